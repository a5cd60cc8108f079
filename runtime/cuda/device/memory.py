"""Loads and stores by address, of one element or of a vector of up to 16 bytes, in global and shared memory.

Floats narrower than 32 bits are float32 in registers; the conversion is part of the load or the store and
rounds to nearest even, as ml_dtypes does. Plain accesses are LLVM's own loads and stores, which it may merge,
reorder and fold into address modes. `_nc` reads through the read-only path (PTX ISA, `ld.global.nc`): only
for memory that nobody writes while the kernel runs. So do `_nc_again` and `_nc_last`, the first telling the L2 cache to keep a
line that will be read again, the second that this was the last time (sm_90). There are no other hints: on an H200, stores that
leave no line in L1 make kernels that keep their rows in registers 1% slower and copies no faster, and loads that leave none are
2 to 20% slower.
"""

from __future__ import annotations

from tilec.runtime.cuda.device.define import (
    Array,
    DeviceFunction,
    Parameter,
    asm,
    chip_number,
    define,
    extract,
    indices,
    mlir_type,
    read,
    write,
)

WIDTH = {
    **{f"{sign}{bits}": bits for sign in "iu" for bits in (8, 16, 32, 64)},
    **{"bool": 8, "f8e4m3": 8, "f8e5m2": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64},
}
_SPACE = {"global": 1, "shared": 3}
_F8 = {
    "f8e4m3": (3, 7, 464.0),
    "f8e5m2": (2, 15, 61440.0),
}  # mantissa bits, exponent bias, last value before overflow


def in_register(dtype: str) -> str:
    """The type a stored `dtype` has in registers."""
    return "f32" if dtype in ("bf16", "f16", *_F8) else dtype


def in_array(dtype: str) -> str:
    """The element type of local arrays of `dtype`: bool is kept as bytes of 0 and 1 there."""
    return "u8" if dtype == "bool" else in_register(dtype)


# Scalars


def load(dtype: str, space: str = "global", hint: str = "") -> DeviceFunction:
    """`load_f32(address) -> float32`."""
    bits = WIDTH[dtype]
    body = _load_words("address", bits // 8, bits, space, hint) + "\n"
    body += _decode("%word0", dtype, "v", _word(bits))
    body += f"\n%result = {_same('%v', in_register(dtype))}"
    name = f"{'shared_' if space == 'shared' else ''}load_{dtype}{_suffix(hint)}"
    return define(name, {"address": "i64"}, in_register(dtype), body)


def store(dtype: str, space: str = "global") -> DeviceFunction:
    """`store_f32(address, value)`."""
    bits = WIDTH[dtype]
    body = _encode(["%value"], dtype, "v") + "\n" + _store_words("address", ["%v"], bits, space)
    name = f"{'shared_' if space == 'shared' else ''}store_{dtype}"
    return define(name, {"address": "i64", "value": in_register(dtype)}, None, body)


# Vectors


def load_vector(dtype: str, count: int, space: str = "global", hint: str = "", where: bool = False) -> DeviceFunction:
    """`load_f32x4(array, at, address)` fills `array[at : at + 4]`; `address` is a multiple of the vector's
    size. `load_f32x4_nc_where(array, at, address, condition)` fills it with zeros where it is not to load."""
    bits, element = WIDTH[dtype], in_array(dtype)
    size = _vector_bytes(dtype, count)
    word = min(size * 8, max(32, bits))
    if space == "shared" and bits < word:  # LLVM would load each element by itself
        hint = "shared"
    body = [indices("array", "at", count), _load_words("address", size, word, space, hint, where)]
    for j in range(count):
        lane = _lane(f"%word{j * bits // word}", j * bits % word, word, bits, f"e{j}")
        body += [lane, _decode(f"%e{j}", "u8" if dtype == "bool" else dtype, f"v{j}", f"i{bits}")]
    body.append(write("array", element, [f"%v{j}" for j in range(count)]))
    name = f"{'shared_' if space == 'shared' else ''}load_{dtype}x{count}{_suffix(hint if space == 'global' else '')}"
    parameters = _vector_parameters(element)
    if where:
        name, parameters = f"{name}_where", parameters | {"condition": "bool"}
    return define(name, parameters, None, "\n".join(body))


def store_vector(dtype: str, count: int, space: str = "global") -> DeviceFunction:
    """`store_f32x4(array, at, address)` writes `array[at : at + 4]`; `address` is a multiple of the vector's
    size."""
    bits, element = WIDTH[dtype], in_array(dtype)
    size = _vector_bytes(dtype, count)
    word = min(size * 8, max(32, bits))
    lanes = word // bits
    body = [indices("array", "at", count), read("array", element, count)]
    for w in range(count // lanes):
        values = [f"%array_v{j}" for j in range(w * lanes, (w + 1) * lanes)]
        body.append(_encode(values, "u8" if dtype == "bool" else dtype, f"word{w}"))
    body.append(_store_words("address", [f"%word{w}" for w in range(count // lanes)], word, space))
    name = f"{'shared_' if space == 'shared' else ''}store_{dtype}x{count}"
    return define(name, _vector_parameters(element), None, "\n".join(body))


def _vector_parameters(element: str) -> dict[str, Parameter]:
    return {"array": Array(element), "at": "i64", "address": "i64"}


def _vector_bytes(dtype: str, count: int) -> int:
    size = count * WIDTH[dtype] // 8
    if size not in (1, 2, 4, 8, 16):
        raise ValueError(f"{dtype}x{count} is {size} bytes; a memory access is 1, 2, 4, 8 or 16")
    return size


def _suffix(hint: str) -> str:
    return f"_{hint}" if hint else ""


# Memory accesses of integer words

_POLICIES = {
    "nc_again": "0x14F0000000000000",
    "nc_last": "0x12F0000000000000",
}  # evict_last, evict_first, as CUTLASS has them


def _word(bits: int) -> str:
    return f"i{bits}"


def _pointer(address: str, space: str) -> str:
    return f"%pointer = llvm.inttoptr %{address} : i64 to !llvm.ptr<{_SPACE[space]}>"


def _load_words(address: str, size: int, word: int, space: str, hint: str, where: bool = False) -> str:
    """`%word0`, ... of `word` bits each, by one access of `size` bytes."""
    count = size * 8 // word
    if hint or where:
        return _load_words_asm(address, count, word, hint, where)
    kind = _word(word) if count == 1 else f"vector<{count}x{_word(word)}>"
    lines = [_pointer(address, space)]
    target = "%word0" if count == 1 else "%words"
    lines.append(f"{target} = llvm.load %pointer {{alignment = {size} : i64}} : !llvm.ptr<{_SPACE[space]}> -> {kind}")
    for j in range(count if count > 1 else 0):
        lines.append(f"%n{j} = llvm.mlir.constant({j} : i32) : i32")
        lines.append(f"%word{j} = llvm.extractelement %words[%n{j} : i32] : {kind}")
    return "\n".join(lines)


def _load_words_asm(address: str, count: int, word: int, hint: str, where: bool) -> str:
    kind = {"shared": "shared", "": "global"}.get(hint, "global.nc")
    policy = _POLICIES.get(hint, "") if chip_number() == 90 else ""
    kind += ".L2::cache_hint" if policy else ""
    letter = {8: "h", 16: "h", 32: "r", 64: "l"}[word]
    vector = f".v{count}" if count > 1 else ""
    targets = ", ".join(f"${j}" for j in range(count))
    text = f"ld.{kind}{vector}.{'u' if word == 8 else 'b'}{word} "
    text += (f"{{{targets}}}" if count > 1 else targets) + f", [${count}]" + (", policy;" if policy else ";")
    setup = f".reg .b64 policy;\nmov.b64 policy, {policy};\n" if policy else ""
    lines, sources = [], [("l", f"%{address}")]
    if where:  # zeros come before the load: behind it they would wait for it, in the order of instructions
        moves = "".join(f"mov.b{max(16, word)} ${j}, 0;\n" for j in range(count))
        text, setup = f"{moves}@p {text}", f"{setup}.reg .pred p;\nsetp.ne.b32 p, ${count + 1}, 0;\n"
        lines, sources = ["%wanted = arith.extui %condition : i1 to i32"], [*sources, ("r", "%wanted")]
    text = f"{{\n{setup}{text}\n}}" if setup else text
    loaded = asm(text, letter * count, sources, pure=hint.startswith("nc"))
    lines.append(f"%loaded = {loaded}")
    if word == 8:  # PTX has no byte registers
        return "\n".join([*lines, "%word0 = arith.trunci %loaded : i16 to i8"])
    return "\n".join([*lines, extract("%loaded", letter * count, "word")])


def _store_words(address: str, words: list[str], word: int, space: str) -> str:
    count, kind = len(words), _word(word)
    lines, value, whole = [_pointer(address, space)], words[0], kind
    if count > 1:
        whole, value = f"vector<{count}x{kind}>", "%packed0"
        lines.append(f"%packed0 = llvm.mlir.undef : {whole}")
        for j, item in enumerate(words):
            lines.append(f"%n{j} = llvm.mlir.constant({j} : i32) : i32")
            lines.append(f"%packed{j + 1} = llvm.insertelement {item}, %packed{j}[%n{j} : i32] : {whole}")
        value = f"%packed{count}"
    size = count * word // 8
    lines.append(f"llvm.store {value}, %pointer {{alignment = {size} : i64}} : {whole}, !llvm.ptr<{_SPACE[space]}>")
    return "\n".join(lines)


def _lane(word: str, shift: int, word_bits: int, bits: int, name: str) -> str:
    """`%name`: the `bits` of a word that begin at `shift`."""
    if word_bits == bits:
        return f"%{name} = {_same(word, f'i{bits}')}"
    return (
        f"%{name}_s = arith.constant {shift} : i{word_bits}\n"
        f"%{name}_w = arith.shrui {word}, %{name}_s : i{word_bits}\n"
        f"%{name} = arith.trunci %{name}_w : i{word_bits} to i{bits}"
    )


def _same(value: str, dtype: str) -> str:
    kind = mlir_type(dtype)
    return f"llvm.bitcast {value} : {kind} to {kind}"


# Conversions between types in memory and types in registers


def _decode(value: str, dtype: str, name: str, kind: str) -> str:
    """`%name` in registers from the stored bits."""
    match dtype:
        case "bool":
            return f"%{name}_0 = arith.constant 0 : i8\n%{name} = arith.cmpi ne, {value}, %{name}_0 : i8"
        case "f32" | "f64":
            return f"%{name} = arith.bitcast {value} : {kind} to {dtype}"
        case "f16":
            return f"%{name}_h = arith.bitcast {value} : i16 to f16\n%{name} = arith.extf %{name}_h : f16 to f32"
        case "bf16":
            return _shifted(value, "i16", 16, f"{name}_b", "i32") + f"\n%{name} = arith.bitcast %{name}_b : i32 to f32"
        case "f8e5m2":  # the upper byte of a float16
            return (
                _shifted(value, "i8", 8, f"{name}_b", "i16")
                + f"\n%{name}_h = arith.bitcast %{name}_b : i16 to f16"
                + f"\n%{name} = arith.extf %{name}_h : f16 to f32"
            )
        case "f8e4m3":
            return _decode_f8e4m3(value, name)
    return f"%{name} = {_same(value, kind)}"


def _shifted(value: str, kind: str, shift: int, name: str, wide: str) -> str:
    return (
        f"%{name}_w = arith.extui {value} : {kind} to {wide}\n%{name}_s = arith.constant {shift} : {wide}\n"
        f"%{name} = arith.shli %{name}_w, %{name}_s : {wide}"
    )


def _decode_f8e4m3(value: str, n: str) -> str:
    """Exponent and mantissa moved to where float32 has them, times 2^120 for the biases; 0x7f is the only
    NaN.

    Two integer operations, a product and a select: no slower than the two conversions through f16x2 of sm_89.
    """
    return f"""
      %{n}_w = arith.extui {value} : i8 to i32
      %{n}_m = arith.constant 127 : i32
      %{n}_a = arith.andi %{n}_w, %{n}_m : i32
      %{n}_20 = arith.constant 20 : i32
      %{n}_b = arith.shli %{n}_a, %{n}_20 : i32
      %{n}_f = arith.bitcast %{n}_b : i32 to f32
      %{n}_k = arith.constant 0x7B800000 : f32
      %{n}_p = arith.mulf %{n}_f, %{n}_k : f32
      %{n}_nan = arith.constant 0x7FC00000 : f32
      %{n}_is = arith.cmpi eq, %{n}_a, %{n}_m : i32
      %{n}_q = arith.select %{n}_is, %{n}_nan, %{n}_p : f32
      %{n}_i = arith.bitcast %{n}_q : f32 to i32
      %{n}_80 = arith.constant 128 : i32
      %{n}_24 = arith.constant 24 : i32
      %{n}_t = arith.andi %{n}_w, %{n}_80 : i32
      %{n}_u = arith.shli %{n}_t, %{n}_24 : i32
      %{n}_o = arith.ori %{n}_i, %{n}_u : i32
      %{n} = arith.bitcast %{n}_o : i32 to f32"""


def _encode(values: list[str], dtype: str, name: str) -> str:
    """`%name`: the stored bits of the values, the first in the lowest bits."""
    bits = WIDTH[dtype]
    if dtype in ("bf16", "f16") and len(values) == 2:  # cvt takes the upper half first
        text = f"cvt.rn.{dtype}x2.f32 $0, $2, $1;"
        return f"%{name} = {asm(text, 'r', [('f', v) for v in values], pure=True)}"
    if len(values) == 1:
        return _encode_one(values[0], dtype, name)
    word = f"i{bits * len(values)}"
    lines = []
    for j, value in enumerate(values):
        lines += [
            _encode_one(value, dtype, f"{name}_{j}"),
            f"%{name}_{j}w = arith.extui %{name}_{j} : i{bits} to {word}",
            f"%{name}_{j}s = arith.constant {j * bits} : {word}",
            f"%{name}_{j}p = arith.shli %{name}_{j}w, %{name}_{j}s : {word}",
            f"%{name}_o{j} = arith.ori %{name}_{j}p, %{name}_o{j - 1} : {word}" if j else "",
        ]
        if j == 0:
            lines.append(f"%{name}_o0 = {_same(f'%{name}_0p', word)}")
    lines.append(f"%{name} = {_same(f'%{name}_o{len(values) - 1}', word)}")
    return "\n".join(lines)


def _encode_one(value: str, dtype: str, name: str) -> str:
    match dtype:
        case "bool":
            return f"%{name} = arith.extui {value} : i1 to i8"
        case "f32" | "f64":
            return f"%{name} = arith.bitcast {value} : {dtype} to i{WIDTH[dtype]}"
        case "f16":
            narrow = f"%{name}_h = arith.truncf {value} : f32 to f16"
            return f"{narrow}\n%{name} = arith.bitcast %{name}_h : f16 to i16"
        case "bf16":
            # with a zero beside it: the conversion of one number is an instruction of the special functions' slow unit
            text = "{\n.reg .f32 z;\nmov.f32 z, 0f00000000;\ncvt.rn.bf16x2.f32 $0, z, $1;\n}"
            return f"%{name}_w = {asm(text, 'r', [('f', value)], pure=True)}\n%{name} = arith.trunci %{name}_w : i32 to i16"
        case "f8e4m3" | "f8e5m2":
            return _encode_f8(value, dtype, name)
    return f"%{name} = {_same(value, f'i{WIDTH[dtype]}')}"


def _encode_f8(value: str, dtype: str, n: str) -> str:
    """Rounded to nearest even; beyond the range e4m3 becomes NaN and e5m2 infinity, as in ml_dtypes and
    PyTorch.

    PTX has only the saturating conversion, hence the select after it.
    """
    beyond, compare = ("0x7F", "ugt") if dtype == "f8e4m3" else ("0x7C", "oge")
    rounded = _round_f8_cvt(dtype, n) if chip_number() >= 89 else _round_f8_emulated(dtype, n)
    return f"""
      %{n}_bits = arith.bitcast {value} : f32 to i32
      %{n}_m31 = arith.constant 0x7FFFFFFF : i32
      %{n}_abs = arith.andi %{n}_bits, %{n}_m31 : i32
      %{n}_mag = arith.bitcast %{n}_abs : i32 to f32
      %{n}_24 = arith.constant 24 : i32
      %{n}_80 = arith.constant 0x80 : i32
      %{n}_sh = arith.shrui %{n}_bits, %{n}_24 : i32
      %{n}_sign = arith.andi %{n}_sh, %{n}_80 : i32
      {rounded}
      %{n}_limit = arith.constant {_F8[dtype][2]:e} : f32
      %{n}_beyond = arith.constant {beyond} : i32
      %{n}_is = arith.cmpf {compare}, %{n}_mag, %{n}_limit : f32
      %{n}_sel = arith.select %{n}_is, %{n}_beyond, %{n}_code : i32
      %{n}_all = arith.ori %{n}_sel, %{n}_sign : i32
      %{n} = arith.trunci %{n}_all : i32 to i8"""


def _round_f8_cvt(dtype: str, n: str) -> str:
    kind = dtype.removeprefix("f8")
    text = f"{{\n.reg .f32 z;\nmov.f32 z, 0f00000000;\ncvt.rn.satfinite.{kind}x2.f32 $0, z, $1;\n}}"
    return f"""%{n}_cvt = {asm(text, "h", [("f", f"%{n}_mag")], pure=True)}
      %{n}_code = arith.extui %{n}_cvt : i16 to i32"""


def _round_f8_emulated(dtype: str, n: str) -> str:
    """Normal numbers: add half of the last place, shift, rebias. Subnormal ones: float32's own addition
    rounds them when the sum's last place is the smallest subnormal."""
    mantissa, bias, _ = _F8[dtype]
    drop = 23 - mantissa
    magic = (127 + 23 - mantissa - bias + 1) << 23  # 2^(23 + smallest exponent)
    return f"""%{n}_drop = arith.constant {drop} : i32
      %{n}_one = arith.constant 1 : i32
      %{n}_odd0 = arith.shrui %{n}_abs, %{n}_drop : i32
      %{n}_odd = arith.andi %{n}_odd0, %{n}_one : i32
      %{n}_half = arith.constant {(1 << (drop - 1)) - 1 - ((127 - bias) << 23)} : i32
      %{n}_r0 = arith.addi %{n}_abs, %{n}_half : i32
      %{n}_r1 = arith.addi %{n}_r0, %{n}_odd : i32
      %{n}_normal = arith.shrui %{n}_r1, %{n}_drop : i32
      %{n}_mb = arith.constant {magic} : i32
      %{n}_mf = arith.bitcast %{n}_mb : i32 to f32
      %{n}_sum = arith.addf %{n}_mag, %{n}_mf : f32
      %{n}_sb = arith.bitcast %{n}_sum : f32 to i32
      %{n}_small = arith.subi %{n}_sb, %{n}_mb : i32
      %{n}_least = arith.constant {(127 - bias + 1) << 23} : i32
      %{n}_isn = arith.cmpi uge, %{n}_abs, %{n}_least : i32
      %{n}_fin = arith.select %{n}_isn, %{n}_normal, %{n}_small : i32
      %{n}_inf = arith.constant 0x7F800000 : i32
      %{n}_isnan = arith.cmpi ugt, %{n}_abs, %{n}_inf : i32
      %{n}_nan = arith.constant 0x7F : i32
      %{n}_code = arith.select %{n}_isnan, %{n}_nan, %{n}_fin : i32"""
