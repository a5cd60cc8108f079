"""Arithmetic, shuffles, barriers and clusters: device functions on scalars, by name.

`SCALAR` maps each name to a function of no arguments that defines it. Names end in the type they work on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilec.runtime.cuda.device.define import DeviceFunction, Intrinsic, asm, define, ptx
from tilec.runtime.cuda.device.trig import absolute, approx, short, trigonometric

# libdevice's accurate functions (largest errors: CUDA Programming Guide, "Mathematical Functions"), not
# `.approx` ones.
_LIBDEVICE = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp10",
    "exp2",
    "expm1",
    "floor",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "rint",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
    "fabs",
]
_LIBDEVICE_2 = ["atan2", "copysign", "fmod", "hypot", "pow"]

# What approximate operations are printed as (`tilec/analysis/rules.py`); those without .ftz take subnormal numbers, too.
_APPROXIMATIONS = {
    "exp2_approx_f32": ("ex2.approx.ftz.f32", 1),  # 2^-22
    "reciprocal_approx_f32": ("rcp.approx.ftz.f32", 1),  # 1 ulp
    "tanh_approx_f32": ("tanh.approx.f32", 1),  # 2^-11
    "log2_approx_f32": ("lg2.approx.f32", 1),  # 2^-22 absolute near 1, relative beyond
    "sqrt_approx_f32": ("sqrt.approx.f32", 1),  # 2^-23
    "divide_approx_f32": ("div.full.f32", 2),  # 2 ulp
}

_PTX: dict[str, tuple[str, str, str]] = {
    "rolled": ("mov.b64 $0, $1;", "l", "l"),  # a count that LLVM does not know, so that it leaves a loop as it is
    "multiply_wide_u32": ("mul.wide.u32 $0, $1, $2;", "rr", "l"),
    "low_word": ("{\n.reg .b32 high;\nmov.b64 {$0, high}, $1;\n}", "l", "r"),
    # NaN wins, as NumPy's maximum has it; Numba's own max() loses it. One instruction on sm_80.
    "maximum_f32": ("max.NaN.f32 $0, $1, $2;", "ff", "f"),
    "minimum_f32": ("min.NaN.f32 $0, $1, $2;", "ff", "f"),
    **{
        n: (f"{i} $0, {', '.join(f'${k + 1}' for k in range(count))};", "f" * count, "f")
        for n, (i, count) in _APPROXIMATIONS.items()
    },
}

_PTX_EFFECTS: dict[str, tuple[str, str, str]] = {
    "named_barrier": ("bar.sync $0, $1;", "rr", ""),  # (barrier 1..15, threads)
    "named_barrier_arrive": ("bar.arrive $0, $1;", "rr", ""),
    "opaque": ("mov.b64 $0, $1;", "l", "l"),  # a number that may be another one each time, as far as LLVM knows
    **{f"part_end_{n}": (f"// the end of part {n}", "", "") for n in range(1, 8)},  # of a launch that kernels share
    "warp_barrier": ("bar.warp.sync 0xffffffff;", "", ""),
    # Words that are complete by themselves, or flags beside a fence.
    "publish_i64": ("st.relaxed.gpu.global.b64 [$0], $1;", "ll", ""),
    "observe_i64": ("ld.relaxed.gpu.global.b64 $0, [$1];", "l", "l"),
    "fence_gpu": ("fence.acq_rel.gpu;", "", ""),
    # Clusters (sm_90).
    "cluster_arrive": ("barrier.cluster.arrive.release;", "", ""),
    "cluster_wait": ("barrier.cluster.wait.acquire;", "", ""),
    # (remote address, value, remote mbarrier): the store arrives with its bytes at the mbarrier.
    **{
        f"remote_store_async_{name}": (
            f"st.async.shared::cluster.mbarrier::complete_tx::bytes.b{name[1:]} [$0], $1, [$2];",
            f"r{letter}r",
            "",
        )
        for name, letter in (("f32", "f"), ("i32", "r"), ("f64", "d"), ("i64", "l"))
    },
}

_REGISTERS = {
    "cluster_rank": "%cluster_ctarank",
    "cluster_id": "%clusterid.x",
    "cluster_count": "%nclusterid.x",
}


def _fma(dtype: str) -> DeviceFunction:
    """a * b + c, rounded once."""
    body = f"%result = math.fma %a, %b, %c : {dtype}"
    return define(f"fma_{dtype}", {"a": dtype, "b": dtype, "c": dtype}, dtype, body)


def _divide_rounded() -> DeviceFunction:
    """The f32 that is nearest to a / b, for many a of one b. The division of PTX has a branch, across which no load moves up.

    Scaled by a power of 2 to [1, 2), |b| has a reciprocal that is rounded correctly, and one correction makes the quotient the
    nearest (P. Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990, theorem 8.1). The
    correction would lose bits of a tiny dividend, which is scaled, too. At infinities and zeros of b it is no number, and the first
    quotient is right. A quotient below 2^-126 is rounded once more where the scales are taken back.
    """
    body = """%magnitude = arith.constant 0x7FFFFFFF : i32
      %ones = arith.constant 0x7F800000 : i32
      %most = arith.constant 0x7F000000 : i32
      %least = arith.constant 0x00800000 : i32
      %one = arith.constant 1.0 : f32
      %infinite = arith.constant 0x7F800000 : f32
      %limit = arith.constant 0x1F800000 : f32
      %up = arith.constant 0x57800000 : f32
      %down = arith.constant 0x27800000 : f32
      %bits = arith.bitcast %b : f32 to i32
      %exponent = arith.andi %bits, %ones : i32
      %opposite = arith.subi %most, %exponent : i32
      %kept = arith.maxsi %opposite, %least : i32
      %scale = arith.bitcast %kept : i32 to f32
      %b_rest = arith.andi %bits, %magnitude : i32
      %size = arith.bitcast %b_rest : i32 to f32
      %divisor = arith.mulf %size, %scale : f32
      %inverse = arith.divf %one, %divisor : f32
      %sign = arith.xori %bits, %b_rest : i32
      %signed = arith.ori %kept, %sign : i32
      %back = arith.bitcast %signed : i32 to f32
      %back_tiny = arith.mulf %back, %down : f32
      %a_bits = arith.bitcast %a : f32 to i32
      %a_rest = arith.andi %a_bits, %magnitude : i32
      %a_size = arith.bitcast %a_rest : i32 to f32
      %tiny = arith.cmpf olt, %a_size, %limit : f32
      %a_up = arith.mulf %a, %up : f32
      %dividend = arith.select %tiny, %a_up, %a : f32
      %factor = arith.select %tiny, %back_tiny, %back : f32
      %quotient = arith.mulf %dividend, %inverse : f32
      %negative = arith.negf %dividend : f32
      %excess = math.fma %quotient, %divisor, %negative : f32
      %missing = arith.negf %excess : f32
      %corrected = math.fma %missing, %inverse, %quotient : f32
      %excess_bits = arith.bitcast %excess : f32 to i32
      %excess_rest = arith.andi %excess_bits, %magnitude : i32
      %off = arith.bitcast %excess_rest : i32 to f32
      %finite = arith.cmpf olt, %off, %infinite : f32
      %scaled = arith.select %finite, %corrected, %quotient : f32
      %result = arith.mulf %scaled, %factor : f32"""
    return define("divide_rounded_f32", {"a": "f32", "b": "f32"}, "f32", body)


def _extremum_f64(name: str, predicate: str) -> DeviceFunction:
    """There is no `max.NaN.f64`: take `a` where it is beyond `b` or NaN."""
    body = f"""%beyond = arith.cmpf {predicate}, %a, %b : f64
      %nan = arith.cmpf uno, %a, %a : f64
      %take = arith.ori %beyond, %nan : i1
      %result = arith.select %take, %a, %b : f64"""
    return define(name, {"a": "f64", "b": "f64"}, "f64", body)


def _extremum_unsigned(name: str, dtype: str) -> DeviceFunction:
    body = f"%result = arith.{name}ui %a, %b : {dtype.replace('u', 'i')}"
    return define(f"{name}_{dtype}", {"a": dtype, "b": dtype}, dtype, body)


def _compare(name: str, predicate: str, dtype: str) -> DeviceFunction:
    """IEEE comparisons. Numba-CUDA's `x != y` is an *ordered* comparison, false where an operand is NaN."""
    body = f"%result = arith.cmpf {predicate}, %a, %b : {dtype}"
    return define(f"{name}_{dtype}", {"a": dtype, "b": dtype}, "bool", body)


def _is_nan(dtype: str) -> DeviceFunction:
    return define(f"is_nan_{dtype}", {"a": dtype}, "bool", f"%result = arith.cmpf uno, %a, %a : {dtype}")


def _within(name: str, extend: str) -> DeviceFunction:
    """An index that is known to fit 32 bits (`_i32`), or 31 and not to be negative (`_u31`): so the compiler knows, too."""
    body = f"%low = arith.trunci %x : i64 to i32\n%result = arith.{extend} %low : i32 to i64"
    return define(name, {"x": "i64"}, "i64", body)


def _unsigned(bits: int) -> DeviceFunction:
    """The same bits without a sign. Numba-CUDA's own cast of a constant keeps its sign: `float32(uint32(int32(-1)))` is -1."""
    body = f"%zero = arith.constant 0 : i{bits}\n%result = arith.addi %a, %zero : i{bits}"
    return define(f"unsigned_u{bits}", {"a": f"i{bits}"}, f"u{bits}", body)


def _bitcast(name: str, source: str, result: str) -> DeviceFunction:
    return define(name, {"a": source}, result, f"%result = arith.bitcast %a : {source} to {result}")


def _round_tf32() -> DeviceFunction:
    """To the nearest tf32, ties away from zero: the only rounding before sm_90."""
    cut = asm("cvt.rna.tf32.f32 $0, $1;", "r", [("f", "%a")], pure=True)
    return define("round_tf32", {"a": "f32"}, "f32", f"%cut = {cut}\n%result = arith.bitcast %cut : i32 to f32")


def _f32_odd() -> DeviceFunction:
    """An f64 as f32, rounded to odd: cut, with the last bit set if bits were lost. A second rounding is then as good as one."""
    cut = asm("cvt.rz.f32.f64 $0, $1;", "f", [("d", "%a")], pure=True)
    body = f"""%cut = {cut}
      %back = arith.extf %cut : f32 to f64
      %inexact = arith.cmpf one, %back, %a : f64
      %word = arith.bitcast %cut : f32 to i32
      %last = arith.extui %inexact : i1 to i32
      %odd = arith.ori %word, %last : i32
      %result = arith.bitcast %odd : i32 to f32"""
    return define("f32_odd", {"a": "f64"}, "f32", body)


def _round(dtype: str) -> DeviceFunction:
    """A float32 rounded to a value of `dtype`, still as float32, as by a store and a load."""
    from tilec.runtime.cuda.device.memory import WIDTH, _decode, _encode_one

    if dtype == "bf16":  # beside a zero, in the upper half: the word is the float32
        both = "{\n.reg .f32 z;\nmov.f32 z, 0f00000000;\ncvt.rn.bf16x2.f32 $0, $1, z;\n}"
        body = f"%word = {asm(both, 'r', [('f', '%a')], pure=True)}\n%result = arith.bitcast %word : i32 to f32"
        return define("round_bf16", {"a": "f32"}, "f32", body)
    bits = f"i{WIDTH[dtype]}"
    body = f"{_encode_one('%a', dtype, 'stored')}\n{_decode('%stored', dtype, 'result', bits)}"
    return define(f"round_{dtype}", {"a": "f32"}, "f32", body)


_SHUFFLES = {"xor": "bfly", "up": "up", "down": "down", "index": "idx"}


def _shuffle(mode: str, dtype: str) -> DeviceFunction:
    """`shuffle_xor_f32(value, lane mask)`: the value of another lane of the warp (PTX ISA, `shfl.sync`).

    All 32 lanes take part. For "up" and "down" a lane whose source is outside the warp keeps its own value.
    Values of 64 bits move as two halves.
    """
    kind = _SHUFFLES[mode]
    clamp = 0 if mode == "up" else 31
    lines = ["%mask = arith.constant -1 : i32", f"%clamp = arith.constant {clamp} : i32"]
    if dtype in ("f32", "i32", "u32"):
        word = dtype.replace("u", "i")
        lines.append(f"%result = nvvm.shfl.sync {kind} %mask, %value, %lane, %clamp : {word} -> {word}")
    else:
        lines += [
            f"%bits = arith.bitcast %value : {dtype.replace('u', 'i')} to i64",
            "%thirty_two = arith.constant 32 : i64",
            "%low = arith.trunci %bits : i64 to i32",
            "%shifted = arith.shrui %bits, %thirty_two : i64",
            "%high = arith.trunci %shifted : i64 to i32",
            f"%low1 = nvvm.shfl.sync {kind} %mask, %low, %lane, %clamp : i32 -> i32",
            f"%high1 = nvvm.shfl.sync {kind} %mask, %high, %lane, %clamp : i32 -> i32",
            "%low2 = arith.extui %low1 : i32 to i64",
            "%high2 = arith.extui %high1 : i32 to i64",
            "%high3 = arith.shli %high2, %thirty_two : i64",
            "%both = arith.ori %low2, %high3 : i64",
            f"%result = arith.bitcast %both : i64 to {dtype.replace('u', 'i')}",
        ]
    return define(f"shuffle_{mode}_{dtype}", {"value": dtype, "lane": "i32"}, dtype, "\n".join(lines))


def _from_integer(dtype: str) -> DeviceFunction:
    """`f32_from_i8(value)`: the integer in the last bits of a number whose unit is 1, which is taken off again. The instruction
    that converts integers is one of the special functions' slow unit."""
    bits, sign = int(dtype[1:]), dtype[0] == "i"
    magic = 0x4B000000 + (1 << (bits - 1)) * sign  # 2^23, and what a turned sign adds
    body = f"""%word = arith.extui %value : i{bits} to i32
      %bits = arith.constant {magic} : i32
      %both = arith.xori %word, %bits : i32
      %shifted = arith.bitcast %both : i32 to f32
      %unit = arith.bitcast %bits : i32 to f32
      %result = arith.subf %shifted, %unit : f32"""
    return define(f"f32_from_{dtype}", {"value": dtype}, "f32", body)


def _shared_address() -> DeviceFunction:
    """The address in shared memory of `cuda.shared.array(0, int8)`: where dynamic shared memory begins.

    Not `%reserved_smem_offset_end`, which lies before it.
    """
    text = "{\n.reg .b64 t;\ncvta.to.shared.u64 $0, $1;\n}"
    memref = "memref<?xi8, strided<[1], offset: ?>>"
    from tilec.runtime.cuda.device.define import Array

    body = f"""%index = memref.extract_aligned_pointer_as_index %array : {memref} -> index
      %generic = arith.index_cast %index : index to i64
      %result = {asm(text, "l", [("l", "%generic")], pure=True)}"""
    return define("shared_address", {"array": Array("i8")}, "i64", body)


def _map_shared() -> DeviceFunction:
    """`map_shared(address, rank)`: this block's shared address as seen in block `rank` of the cluster
    (`mapa`)."""
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    body = f"""%narrow = arith.trunci %address : i64 to i32
      %remote = {asm(text, "r", [("r", "%narrow"), ("r", "%rank")], pure=True)}
      %result = arith.extui %remote : i32 to i64"""
    return define("map_shared", {"address": "i64", "rank": "i32"}, "i64", body)


def _libdevice(function: str, dtype: str) -> Intrinsic:
    from numba_cuda_mlir.cuda import libdevice

    return getattr(libdevice, function + ("f" if dtype == "f32" else ""))


def _build() -> dict[str, Callable[[], Intrinsic]]:
    table: dict[str, Callable[[], Intrinsic]] = {
        "shared_address": _shared_address,
        "map_shared": _map_shared,
        "within_i32": partial(_within, "within_i32", "extsi"),
        "within_u31": partial(_within, "within_u31", "extui"),
        "maximum_f64": partial(_extremum_f64, "maximum_f64", "ogt"),
        "minimum_f64": partial(_extremum_f64, "minimum_f64", "olt"),
        "bits_f32": partial(_bitcast, "bits_f32", "f32", "i32"),
        "from_bits_f32": partial(_bitcast, "from_bits_f32", "i32", "f32"),
        "bits_f64": partial(_bitcast, "bits_f64", "f64", "i64"),
        "from_bits_f64": partial(_bitcast, "from_bits_f64", "i64", "f64"),
    }
    table |= {name: partial(ptx, name, *row, pure=True) for name, row in _PTX.items()}
    table |= {name: partial(ptx, name, *row) for name, row in _PTX_EFFECTS.items()}
    table |= {n: partial(ptx, n, f"mov.u32 $0, {r};", "", "r", pure=True) for n, r in _REGISTERS.items()}
    table |= {f"{n}_u{b}": partial(_extremum_unsigned, n, f"u{b}") for n in ("max", "min") for b in (8, 16, 32, 64)}
    table |= {f"unsigned_u{b}": partial(_unsigned, b) for b in (8, 16, 32, 64)}
    table |= {f"f32_from_{t}": partial(_from_integer, t) for t in ("i8", "u8", "i16", "u16")}
    table["round_tf32"], table["f32_odd"] = _round_tf32, _f32_odd
    table["divide_rounded_f32"] = _divide_rounded
    table |= {f"round_{t}": partial(_round, t) for t in ("bf16", "f16", "f8e4m3", "f8e5m2")}
    for mode in _SHUFFLES:
        for dtype in ("f32", "i32", "u32", "f64", "i64", "u64"):
            table[f"shuffle_{mode}_{dtype}"] = partial(_shuffle, mode, dtype)
    for dtype in ("f32", "f64"):
        table[f"fma_{dtype}"] = partial(_fma, dtype)
        table[f"is_nan_{dtype}"] = partial(_is_nan, dtype)
        table[f"not_equal_{dtype}"] = partial(_compare, "not_equal", "une", dtype)
        for function in (*_LIBDEVICE, *_LIBDEVICE_2):
            table[f"{function}_{dtype}"] = partial(_libdevice, function, dtype)
    for name in ("sin", "cos"):
        table |= {f"{name}_f32": partial(trigonometric, name)}
        table |= {f"{name}_{form.__name__}_f32": partial(form, name) for form in (approx, short, absolute)}
    return table


SCALAR = _build()
