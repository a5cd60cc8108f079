"""Matrix instructions: ldmatrix and mma.sync (sm_80), wgmma (sm_90a). Fragments are local arrays.

A fragment of 16-bit or narrower elements is an int32 array, two or four elements a word; accumulators are
float32 or int32. Layouts of fragments: PTX ISA, "Matrix Fragments for mma.m16n8k*" and "Register Fragments
for wgmma.mma_async.m64nNk*".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilec.runtime.cuda.device.define import (
    Array,
    DeviceFunction,
    Intrinsic,
    Parameter,
    asm,
    define,
    extract,
    indices,
    read,
    write,
)

_LETTER = {"f32": "f", "i32": "r"}


_LINE = 128  # bytes of a line that is swizzled


def matrix_descriptor(lines: int | None = None) -> int:
    """The upper bits of a matrix descriptor (PTX ISA, "Matrix-Descriptor Format") of a tile that begins at a multiple of
    1024 bytes, swizzled by 128 bytes: in lines of k, or in slabs of 64 rows, each of so many lines of rows."""
    swizzle, next_8_lines = 1 << 62, 8 * _LINE
    next_slab = 16 if lines is None else lines * _LINE  # lines of k have no second slab
    return swizzle | (next_8_lines >> 4) << 32 | (next_slab >> 4) << 16


def ldmatrix(count: int, transposed: bool = False, element: str = "i32") -> DeviceFunction:
    """`(array, at, shared)`: `count` 8x8 matrices of 16-bit elements into `count` words; each lane names one
    row. A row of 16 bytes may as well be 4 elements of 32 bits: then words are of type `element`."""
    targets = ", ".join(f"${j}" for j in range(count))
    kind = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{kind}.shared.b16 {{{targets}}}, [${count}];"
    body = f"""{indices("array", "at", count)}
      %narrow = arith.trunci %address : i64 to i32
      %loaded = {asm(text, "r" * count, [("r", "%narrow")])}
      {extract("%loaded", "r" * count, "word")}
      {_cast("word", count, "i32", element)}
      {write("array", element, [f"%word{j}_{element}" for j in range(count)])}"""
    name = f"ldmatrix_x{count}" + ("_trans" if transposed else "") + ("" if element == "i32" else f"_{element}")
    return define(name, {"array": Array(element), "at": "i64", "address": "i64"}, None, body)


def _cast(name: str, count: int, source: str, target: str) -> str:
    """`%name0_f32`, ...: the same bits as another type."""
    return "\n".join(f"%{name}{j}_{target} = arith.bitcast %{name}{j} : {source} to {target}" for j in range(count))


# dtype: shape, types of the instruction, words of A and of B, element type of the accumulators
_MMA = {
    "bf16": ("m16n8k16", "f32.bf16.bf16.f32", 4, 2, "f32"),
    "f16": ("m16n8k16", "f32.f16.f16.f32", 4, 2, "f32"),
    "tf32": ("m16n8k8", "f32.tf32.tf32.f32", 4, 2, "f32"),
    "i8": ("m16n8k32", "s32.s8.s8.s32", 4, 2, "i32"),
    "u8": ("m16n8k32", "s32.u8.u8.s32", 4, 2, "i32"),
    "f8e4m3": ("m16n8k32", "f32.e4m3.e4m3.f32", 4, 2, "f32"),  # sm_89
    "f8e5m2": ("m16n8k32", "f32.e5m2.e5m2.f32", 4, 2, "f32"),
}


def _word(dtype: str) -> str:
    """The type of a word of a factor's fragment."""
    return "f32" if dtype == "tf32" else "i32"


def mma(dtype: str) -> DeviceFunction:
    """`mma_bf16(acc, acc_at, a, a_at, b, b_at)`: acc[0:4] += A (4 words) x B (2 words), one warp, row times
    column."""
    shape, kinds, words_a, words_b, element = _MMA[dtype]
    letter, word = _LETTER[element], _word(dtype)

    def group(first: int, count: int) -> str:
        return "{" + ", ".join(f"${first + j}" for j in range(count)) + "}"

    text = f"mma.sync.aligned.{shape}.row.col.{kinds} {group(0, 4)}, {group(8, words_a)}, "
    text += f"{group(8 + words_a, words_b)}, {group(0, 4)};"
    inputs = [(letter, f"%acc_v{j}") for j in range(4)]
    inputs += [("r", f"%a_v{j}_i32") for j in range(words_a)] + [("r", f"%b_v{j}_i32") for j in range(words_b)]
    body = f"""{indices("acc", "acc_at", 4)}
      {indices("a", "a_at", words_a)}
      {indices("b", "b_at", words_b)}
      {read("acc", element, 4)}
      {read("a", word, words_a)}
      {read("b", word, words_b)}
      {_cast("a_v", words_a, word, "i32")}
      {_cast("b_v", words_b, word, "i32")}
      %product = {asm(text, letter * 4, inputs, pure=True, ties=4)}
      {extract("%product", letter * 4, "new")}
      {write("acc", element, [f"%new{j}" for j in range(4)])}"""
    parameters: dict[str, Parameter] = {"acc": Array(element), "acc_at": "i64"}
    parameters |= {"a": Array(word), "a_at": "i64", "b": Array(word), "b_at": "i64"}
    return define(f"mma_{dtype}", parameters, None, body)


# dtype: k of one instruction, its types, element type of the accumulators, and whether operands may be
# transposed
_WGMMA = {
    "bf16": (16, "f32.bf16.bf16", "f32", True),
    "f16": (16, "f32.f16.f16", "f32", True),
    "tf32": (8, "f32.tf32.tf32", "f32", False),
    "f8e4m3": (32, "f32.e4m3.e4m3", "f32", False),
    "f8e5m2": (32, "f32.e5m2.e5m2", "f32", False),
    "i8": (32, "s32.s8.s8", "i32", False),
    "u8": (32, "s32.u8.u8", "i32", False),
}


def wgmma(
    dtype: str,
    n: int,
    *,
    steps: int = 1,
    registers: bool = False,
    step_a: int = 2,
    step_b: int = 2,
    transpose_a: bool = False,
    transpose_b: bool = False,
    slab_a: int = 0,
    slab_b: int = 0,
) -> DeviceFunction:
    """`steps` products m64 n k(16, 8 or 32) by one warpgroup, into n/2 accumulators: fence, products, commit.

    `f(acc, at, a, b, keep)`: descriptors `a` and `b` of tiles in shared memory advance by `step_a`, `step_b` (units of
    16 bytes) per step, or by `slab_a`, `slab_b` where a line of 128 bytes has ended; `keep` 0 begins from zero. With
    `registers`, A comes from an array of words, 4 per step: `f(acc, at, a, a_at, b, keep)`. The result is there only
    after a `wgmma_wait` that names the same accumulators. One assembly block ties the accumulators to the same registers
    before and after, so nothing moves between the steps.
    """
    k, kinds, element, transposable = _WGMMA[dtype]
    if n % 8 or not 8 <= n <= 256 or ((transpose_a or transpose_b) and not transposable) or (transpose_a and registers):
        raise ValueError(f"no wgmma m64n{n}k{k} of {dtype} with these operands")
    count, letter = n // 2, _LETTER[element]
    words_a = 4 * steps if registers else 1
    first_a = 2 * count
    b, keep = first_a + words_a, first_a + words_a + 1
    scale = "" if element == "i32" else ", 1, 1"
    transposes = (
        (f", {int(transpose_b)}" if registers else f", {int(transpose_a)}, {int(transpose_b)}") if transposable else ""
    )
    accumulators = ", ".join(f"${i}" for i in range(count))
    text = f"{{\n.reg .b64 da, db;\n.reg .pred p;\nsetp.ne.b32 p, ${keep}, 0;\nwgmma.fence.sync.aligned;\n"
    for step in range(steps):
        text += f"add.s64 db, ${b}, {_advance(step, k, step_b, slab_b)};\n"
        if registers:
            operand = "{" + ", ".join(f"${first_a + 4 * step + j}" for j in range(4)) + "}"
        else:
            text += f"add.s64 da, ${first_a}, {_advance(step, k, step_a, slab_a)};\n"
            operand = "da"
        text += f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{kinds} {{{accumulators}}}, {operand}, db, "
        text += f"{'p' if step == 0 else '1'}{scale}{transposes};\n"
    text += "wgmma.commit_group.sync.aligned;\n}"
    inputs = [(letter, f"%acc_v{i}") for i in range(count)]
    word = _word(dtype)
    inputs += [("r", f"%a_v{i}_i32") for i in range(words_a)] if registers else [("l", "%a")]
    inputs += [("l", "%b"), ("r", "%keep")]
    body = [indices("acc", "at", count), read("acc", element, count)]
    if registers:
        body += [indices("a", "a_at", words_a), read("a", word, words_a), _cast("a_v", words_a, word, "i32")]
    body += [
        f"%product = {asm(text, letter * count, inputs, ties=count)}",
        extract("%product", letter * count, "new"),
        write("acc", element, [f"%new{i}" for i in range(count)]),
    ]
    operand_a: dict[str, Parameter] = {"a": Array(word), "a_at": "i64"} if registers else {"a": "i64"}
    parameters: dict[str, Parameter] = {
        "acc": Array(element),
        "at": "i64",
        **operand_a,
        "b": "i64",
        "keep": "i32",
    }
    name = f"wgmma_{dtype}_n{n}_s{steps}_{step_a}_{step_b}_{int(transpose_a)}{int(transpose_b)}{'r' * registers}"
    name += f"_{slab_a}_{slab_b}" if slab_a or slab_b else ""
    return define(name, parameters, None, "\n".join(body))


def _advance(step: int, k: int, within: int, slab: int) -> int:
    """The increment of a descriptor for a step; `slab` 0: all steps are `within` one."""
    line = 128 * 8 // {8: 32, 16: 16, 32: 8}[k] // k  # steps
    return step * within if not slab else step // line * slab + step % line * within


def _numbered(name: str, counts: Iterable[int]) -> list[tuple[str, int]]:
    """Counts with names `a`, `a2`, `a3` and so on."""
    return [(name + str(n) * (n > 1), count) for n, count in enumerate(counts, start=1)]


def wgmma_wait(
    groups: int, accumulators: int, element: str = "f32", words: int = 0, more: tuple[int, ...] = (), word: str = "i32",
    more_words: tuple[int, ...] = (),
) -> DeviceFunction:  # fmt: skip
    """`f(acc, at)`: waits until at most `groups` newest groups run, and hands the accumulators through.

    The sums of an asynchronous product must pass through the wait's own assembly as tied operands, or LLVM,
    which sees values and not the hardware, moves their uses above it. With `words`, `f(acc, at, a, a_at)`
    also hands through an A operand in registers, of type `word`, which must not be overwritten before its product is over; with
    `more`, `f(acc, at, acc2, acc2_at, ...)` so many accumulators of each further product, and with `more_words` such operands.
    """
    arrays = [(name, element, _LETTER[element], count) for name, count in _numbered("acc", (accumulators, *more))]
    arrays += [(name, word, "r", count) for name, count in _numbered("a", (words, *more_words) if words else ())]
    letters = "".join(letter * count for _, _, letter, count in arrays)
    held = {name for name, _, letter, _ in arrays[1 + len(more) :]}
    inputs = [(letter, f"%{name}_v{i}{'_i32' * (name in held)}") for name, _, letter, count in arrays for i in range(count)]
    text, parameters, body, first = f"wgmma.wait_group.sync.aligned {groups};", dict[str, Parameter](), list[str](), 0
    for name, kind, _, count in arrays:
        at = "at" if name == "acc" else f"{name}_at"
        parameters |= {name: Array(kind), at: "i64"}
        body += [indices(name, at, count), read(name, kind, count)]
    body += [_cast(f"{name}_v", count, word, "i32") for name, _, _, count in arrays if name in held]
    body += [f"%held = {asm(text, letters, inputs, ties=len(letters))}", extract("%held", letters, "new")]
    for name, kind, _, count in arrays:
        made = [f"%new{first + i}" for i in range(count)]
        if name in held:
            body += [f"{v}_word = arith.bitcast {v} : i32 to {kind}" for v in made]
            made = [f"{v}_word" for v in made]
        body.append(write(name, kind, made))
        first += count
    counts = "_and".join("".join(f"_{n}" for n in own) for own in ((words,), more, more_words) if own)
    name = f"wgmma_wait_{groups}_{accumulators}_{element}{counts}" + (word != "i32") * f"_{word}"
    return define(name, parameters, None, "\n".join(body))


def pack(dtype: str) -> DeviceFunction:
    """`pack_bf16(low, high) -> int32`: two float32 rounded to a word of a fragment."""
    text = f"cvt.rn.{dtype}x2.f32 $0, $2, $1;"
    body = f"%result = {asm(text, 'r', [('f', '%low'), ('f', '%high')], pure=True)}"
    return define(f"pack_{dtype}", {"low": "f32", "high": "f32"}, "i32", body)


def round_tf32(count: int) -> DeviceFunction:
    """`(array, at)`: float32 numbers to the nearest tf32, ties away from zero (the only rounding before sm_90)."""
    cut = [
        f"%cut{j} = {asm('cvt.rna.tf32.f32 $0, $1;', 'r', [('f', f'%array_v{j}')], pure=True)}" for j in range(count)
    ]
    body = [indices("array", "at", count), read("array", "f32", count), *cut, _cast("cut", count, "i32", "f32")]
    body.append(write("array", "f32", [f"%cut{j}_f32" for j in range(count)]))
    return define(f"round_tf32_x{count}", {"array": Array("f32"), "at": "i64"}, None, "\n".join(body))


def shared_words(step: int) -> DeviceFunction:
    """`f(array, at, address)`: 16 bytes of shared memory into four words, `step` apart."""
    text = "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];"
    body = f"""{indices("array", "at", 4, step)}
      %narrow = arith.trunci %address : i64 to i32
      %loaded = {asm(text, "rrrr", [("r", "%narrow")])}
      {extract("%loaded", "rrrr", "word")}
      {write("array", "i32", [f"%word{j}" for j in range(4)])}"""
    return define(f"shared_words_{step}", {"array": Array("i32"), "at": "i64", "address": "i64"}, None, body)


# Four bytes, the word w, to the pairs $0 and $1. The last bits of an f16, an f32 or a bf16 count from 1024, 2^23 or 128 on, where
# they are 10, 23 or 7. A signed byte with its sign turned is 128 more; for a bf16 the bit of the sign is taken off as a number.
_SPREAD = "prmt.b32 $0, {0}, {1}, 0x4140;\nprmt.b32 $1, {0}, {1}, 0x4342;\n"  # bytes, each below the same one
_BY_F32 = (
    "prmt.b32 a, w, 0x4B000000, 0x744{0};\nprmt.b32 b, w, 0x4B000000, 0x744{1};\nadd.f32 a, a, 0fCB000000;\n"
    "add.f32 b, b, 0fCB000000;\nprmt.b32 ${2}, a, b, 0x7632;\n"
)
_F8 = "mov.b32 {{l, h}}, w;\ncvt.rn.f16x2.{0}x2 a, l;\ncvt.rn.f16x2.{0}x2 b, h;\n"
_ROUND = (
    "mov.b32 {{l, h}}, {0};\ncvt.f32.f16 c, l;\ncvt.f32.f16 d, h;\ncvt.rn.bf16x2.f32 ${1}, d, c;\n"
)
_WIDEN = {
    ("i8", "bf16"): "and.b32 a, w, 0x7F7F7F7F;\nand.b32 b, w, 0x80808080;\n" + _SPREAD.format("a", "0x43434343")
    + "prmt.b32 a, b, 0x43434343, 0x4140;\nprmt.b32 b, b, 0x43434343, 0x4342;\n"
    + "fma.rn.bf16x2 $0, a, m, $0;\nfma.rn.bf16x2 $1, b, m, $1;\n",
    ("u8", "bf16"): _BY_F32.format(0, 1, 0) + _BY_F32.format(2, 3, 1),
    ("i8", "f16"): "xor.b32 a, w, 0x80808080;\n" + _SPREAD.format("a", "0x64646464")
    + "mov.b32 b, 0x64806480;\nsub.f16x2 $0, $0, b;\nsub.f16x2 $1, $1, b;\n",
    ("u8", "f16"): _SPREAD.format("w", "0x64646464") + "mov.b32 b, 0x64006400;\nsub.f16x2 $0, $0, b;\nsub.f16x2 $1, $1, b;\n",
    **{(f"f8{t}", "bf16"): _F8.format(t) + _ROUND.format("a", 0) + _ROUND.format("b", 1) for t in ("e4m3", "e5m2")},
    **{(f"f8{t}", "f16"): _F8.format(t) + "mov.b32 $0, a;\nmov.b32 $1, b;\n" for t in ("e4m3", "e5m2")},
}  # fmt: skip


def widen(source: str, dtype: str, step: int) -> DeviceFunction:
    """`f(array, at, address)`: 16 numbers of 8 bits of shared memory into 8 words of a fragment, `step` apart."""
    text = "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];"
    lines = [indices("array", "at", 8, step), "%narrow = arith.trunci %address : i64 to i32"]
    lines += [f"%loaded = {asm(text, 'rrrr', [('r', '%narrow')])}", extract("%loaded", "rrrr", "word")]
    registers = ".reg .b32 w, a, b, m;\n.reg .b16 l, h;\n.reg .f32 c, d;\nmov.b32 m, 0xBF80BF80;\nmov.b32 w, $2;\n"
    whole = "{\n" + registers + _WIDEN[source, dtype] + "}"
    for j in range(4):
        made = asm(whole, "rr", [("r", f"%word{j}")], pure=True)
        lines += [f"%pairs{j} = {made}", extract(f"%pairs{j}", "rr", f"pair{j}_")]
    lines.append(write("array", "i32", [f"%pair{j}_{half}" for j in range(4) for half in range(2)]))
    parameters: dict[str, Parameter] = {"array": Array("i32"), "at": "i64", "address": "i64"}
    return define(f"widen_{source}_{dtype}_{step}", parameters, None, "\n".join(lines))


MATRIX: dict[str, Callable[[], Intrinsic]] = {
    **{f"ldmatrix_x{c}{s}": partial(ldmatrix, c, bool(s)) for c in (1, 2, 4) for s in ("", "_trans")},
    **{f"mma_{dtype}": partial(mma, dtype) for dtype in _MMA},
    **{f"pack_{dtype}": partial(pack, dtype) for dtype in ("bf16", "f16")},
    "ldmatrix_x4_f32": partial(ldmatrix, 4, element="f32"),
    "round_tf32_x4": partial(round_tf32, 4),
}
