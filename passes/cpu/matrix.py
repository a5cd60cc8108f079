"""stage, for the CPU: sums of products by a matrix unit (AMX), or by vectors of pairs (AVX512-BF16), where these compute them as
IEEE 754 says.

Both take pairs of bf16 along k, and add to f32. A factor with more bits is a sum of several bf16 (`split`): three have all
bits of an f32. Of the products of two numbers' parts those are computed whose numbers add up to less than three, the smallest
first. The others are at most 2^-22 of the whole product together.

Both take subnormal numbers for 0, factors and results, so that tiny numbers are noticed: where the smallest number of a panel of
each factor could make a product of which a bit is below 2^-126, vectors multiply the tile (`exact_products`). No sum of larger
products is subnormal, as each product is a multiple of 2^-125. Infinities in parts are noticed in the same way: a part
of the other factor may be 0.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS and VDPBF16PS.
"""

from __future__ import annotations

from functools import reduce
from math import prod

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, memref, scf, vector
from tilec.passes.cpu.memory import Size
from tilec.passes.cpu.panels import STEP, Contraction, loop, part_of, quotient, round_up
from tilec.passes.loops import sum_of

LEAST = 254 - 110 + 1  # of the sum of two biased exponents, each perhaps one too low
LEAST_IN_PARTS = LEAST + 16  # the last bits of the products of parts are as many places further down
LEAST_EXPONENT = 24 + 1  # of a number whose last part is not subnormal
INFINITE = 0x7F80
ROWS = 8  # of a tile that vectors of f32 multiply at a time, at most


def split(x: ir.Value, count: int) -> list[ir.Value]:
    """An f32 as the sum of 2 or 3 bf16, each an i32 whose lower half is 0. With 2 it must have no more than 16 bits. Each part but
    the last has the next 8 bits of what is left, the last all others. Of an infinity the others are 0."""
    word = ir.IntegerType.get_signless(32)

    def upper(value: ir.Value, added: int) -> ir.Value:
        bits = arith.bitcast(word, value)
        bits = arith.addi(bits, mlir.constant(added, word)) if added else bits
        return arith.andi(bits, mlir.constant(-0x10000, word))

    parts, zero = [upper(x, 0)], mlir.constant(0.0, x.type)
    first = arith.bitcast(x.type, parts[0])
    left = arith.select(arith.cmpf(arith.CmpFPredicate.OEQ, x, first), zero, arith.subf(x, first))
    if count == 3:
        parts.append(upper(left, 0x8000))
        left = arith.subf(left, arith.bitcast(x.type, parts[-1]))
    return [*parts, upper(left, 0xFFFF)]  # exact, but for a subnormal number, of which something must remain


def narrow(part: ir.Value) -> ir.Value:
    """A part as bf16."""
    return arith.truncf(ir.BF16Type.get(), arith.bitcast(ir.F32Type.get(), part))


def word_of(low: ir.Value, high: ir.Value) -> ir.Value:
    """Two parts in one word of 32 bits, the first in the lower half."""
    return arith.ori(arith.shrui(low, mlir.constant(16, low.type)), high)


def code(panel: ir.Value, parts: bool, count: Size, is_left: bool) -> ir.Value:
    """The bits of the smallest number in a panel of bf16 that is not 0, less 1, as i16 without sign; 0 where the matrix unit must
    not multiply it. `parts`: one of the two factors is in parts; `count`: how many products the panel has. What lies behind these,
    up to the panel's end, nobody has written."""
    short, pieces = ir.IntegerType.get_signless(16), [panel]
    if _rank(panel) > 3:
        pieces = [part_of(panel, n) for n in (0, ir.MemRefType(panel.type).shape[0] - 1)]
    room = 2 * ir.MemRefType(pieces[0].type).shape[1 if is_left else 0]
    used = round_up(count, STEP)
    lines = [_in_lines(p, whole=used == room) for p in pieces]
    if _rank(lines[0]) == 1:
        bounds: list[Size] = [ir.MemRefType(lines[0].type).shape[0]]
    elif is_left:
        bounds = [ir.MemRefType(lines[0].type).shape[0], used]
    else:
        bounds = [quotient(used, 2), ir.MemRefType(lines[0].type).shape[1]]
    element = ir.MemRefType(lines[0].type).element_type
    word = element if isinstance(element, ir.IntegerType) else short  # a pair is looked at in its upper half, twice
    one, ones = mlir.constant(1 if word == short else 1 << 16, word), -1 if word != short else 0xFFFF
    names = ["smallest", *["last"] * (len(lines) - 1), *["largest"] * parts]

    def over(at: list[ir.Value], states: list[ir.Value]) -> list[ir.Value]:
        """The states after all elements behind the subscripts `at`."""
        if len(at) < _rank(lines[0]):
            last = len(at) == _rank(lines[0]) - 1
            size = bounds[len(at)]
            bound = mlir.index(size)
            made = locations.named(scf.ForOp(mlir.index(0), bound, mlir.index(1), states), "element" if last else "row", *names)
            with ir.InsertionPoint(made.body):
                scf.YieldOp(over([*at, made.induction_variable], list(made.inner_iter_args)))
            return list(made.results)
        for n, memory in enumerate(lines):
            for size in _magnitudes(memref.LoadOp(memory, at).result, word):
                states[n] = arith.minui(states[n], arith.subi(size, one))  # of 0 the largest number
                if parts and n == 0:
                    states[-1] = arith.maxui(states[-1], size)
        return states

    found = over([], [mlir.constant(n, word) for n in [ones] * len(lines) + [0] * parts])
    if word != short:
        found = [arith.trunci(short, arith.shrui(v, mlir.constant(16, word))) for v in found]
    smallest, *others = found
    if not parts:
        return smallest
    good = arith.cmpi(arith.CmpIPredicate.ult, others[-1], mlir.constant(INFINITE, short))
    if len(lines) > 1:  # the last part shows what the first one has no bits of
        above = arith.cmpi(arith.CmpIPredicate.uge, others[0], mlir.constant(1 << 7, short))
        good = arith.andi(good, above)
    return arith.select(good, smallest, mlir.constant(0, short))


def _rank(value: ir.Value) -> int:
    return ir.MemRefType(value.type).rank


def _magnitudes(x: ir.Value, word: ir.Type) -> list[ir.Value]:
    """Of a bf16 as i16; of both numbers of a pair as i32 whose lower half is 0."""
    if x.type != word:
        return [arith.andi(arith.bitcast(word, x), mlir.constant(0x7FFF, word))]
    upper = mlir.constant(0x7FFF0000, word)
    return [arith.andi(v, upper) for v in (x, arith.shli(x, mlir.constant(16, word)))]


def _in_lines(panel: ir.Value, whole: bool) -> ir.Value:
    """A panel as one line, or as several where these do not lie next to each other, or not all of it is looked at."""
    type_ = ir.MemRefType(panel.type)
    (step, *_), offset = type_.get_strides_and_offset()
    count, length = type_.shape[0], prod(type_.shape[1:])
    if whole and step == length:
        shape, strides, groups = [count * length], [1], [[0, 1, 2]]
    else:
        shape, strides, groups = [count, length], [step, 1], [[0], [1, 2]]
    lines = ir.MemRefType.get(shape, type_.element_type, ir.StridedLayoutAttr.get(offset, strides))
    return memref.CollapseShapeOp(lines, panel, groups).result


def is_plain(c: Contraction, left: ir.Value, right: ir.Value) -> ir.Value:
    """Whether a matrix unit may multiply two panels, by the `code` of each."""
    word = ir.IntegerType.get_signless(32)
    exponents = [arith.shrui(arith.extui(word, v), mlir.constant(7, word)) for v in (left, right)]
    least = LEAST_IN_PARTS if c.in_parts else LEAST
    floors = [LEAST_EXPONENT if side.parts > 1 else 1 for side in (c.left, c.right)]
    return reduce(
        arith.andi,
        (
            arith.cmpi(arith.CmpIPredicate.sge, number, mlir.constant(floor, word))
            for number, floor in zip([arith.addi(*exponents), *exponents], [least, *floors])
        ),
    )


def products(c: Contraction, start: ir.Value | None, left: ir.Value, right: ir.Value, count: Size, out: ir.Value) -> None:
    """out = start + left * right over `count` products, by its instruction; without a `start`, out += left * right."""
    pairs, zero = STEP // 2 if c.instruction == "amx" else 1, mlir.index(0)
    tile, a_type, b_type = (
        ir.VectorType.get(shape, element)
        for shape, element in (
            ([c.left.width, c.right.width], c.element),
            ([c.left.width, pairs, 2], c.multiplicand),
            ([pairs, c.right.width, 2], c.multiplicand),
        )
    )
    words = ir.VectorType.get([pairs, c.right.width, 1], ir.IntegerType.get_signless(32))
    bound = quotient(round_up(count, 2 * pairs), 2)
    initial = vector.LoadOp(tile, out, [zero, zero]) if start is None else vector.BroadcastOp(tile, start)
    k_loop = scf.ForOp(zero, mlir.index(bound), mlir.index(pairs), [initial.result])
    locations.named(k_loop, f"{locations.joined(c.names.get(d, 'k') for d in c.inner)}_pair", "sums")
    maps = [mlir.projection(4, dims) for dims in ([0, 2, 3], [2, 1, 3], [0, 1])]
    kinds = [
        ir.Attribute.parse(f"#vector.iterator_type<{kind}>")
        for kind in ("parallel", "parallel", "reduction", "reduction")
    ]
    attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]), ir.ArrayAttr.get(kinds)
    with ir.InsertionPoint(k_loop.body):
        p, sums = k_loop.induction_variable, k_loop.inner_iter_args[0]
        a: dict[int, ir.Value] = {}
        b: dict[int, ir.Value] = {}
        for i, j in c.products:
            if i not in a:
                a[i] = vector.LoadOp(a_type, piece(left, i), [zero, p, zero]).result
            if j not in b and c.right.parts > 1:
                b[j] = vector.BitCastOp(b_type, vector.LoadOp(words, piece(right, j), [p, zero, zero]).result).result
            elif j not in b:
                b[j] = vector.LoadOp(b_type, right, [p, zero, zero]).result
            sums = vector.ContractionOp(tile, a[i], b[j], sums, *attributes).result
        scf.YieldOp([sums])
    vector.StoreOp(k_loop.results[0], out, [zero, zero])


def piece(panel: ir.Value, number: int) -> ir.Value:
    """One part of a panel's numbers."""
    return part_of(panel, number) if _rank(panel) > 3 else panel


class Widened:
    """Memory for the panels of one tile as numbers of the sums' type, in the order in which vectors multiply."""

    def __init__(self, c: Contraction):
        shapes = [1, c.left.width, c.depth], [1, c.depth, c.right.width]
        made = [memref.AllocOp(ir.MemRefType.get(shape, c.element), [], [], alignment=64) for shape in shapes]
        for name, alloc in zip(("left", "right"), made):
            alloc.attributes["tilec.name"] = mlir.string(f"wide_{name}")
        self.left, self.right = (alloc.result for alloc in made)


def widen(c: Contraction, panel: ir.Value, count: Size, out: ir.Value, is_left: bool) -> None:
    """A panel's bf16 as numbers of the sums' type."""
    width = c.left.width if is_left else c.right.width
    with loop(0, width, name="lane") as lane, loop(0, quotient(count, 2), name="pair") as p:
        for half in range(2):
            position = [lane, p, mlir.index(half)] if is_left else [p, lane, mlir.index(half)]
            number, at = arith.extf(c.element, memref.LoadOp(panel, position).result), sum_of([(p, 2)], half)
            memref.StoreOp(number, out, [lane, at] if is_left else [at, lane])


def exact_products(c: Contraction, start: ir.Value | None, count: Size, out: ir.Value, wide: Widened) -> None:
    """The same by vectors, of widened panels."""
    zero, left, right = mlir.index(0), part_of(wide.left, 0), part_of(wide.right, 0)
    rows = max(n for n in range(1, ROWS + 1) if c.left.width % n == 0)
    tile, column, row = (
        ir.VectorType.get(shape, c.element) for shape in ([rows, c.right.width], [rows, 1], [1, c.right.width])
    )
    with loop(0, c.left.width, rows, "row") as r:
        bound = mlir.index(count)
        initial = vector.LoadOp(tile, out, [r, zero]) if start is None else vector.BroadcastOp(tile, start)
        k_loop = scf.ForOp(zero, bound, mlir.index(1), [initial.result])
        locations.named(k_loop, "k_inner", "sums")
        with ir.InsertionPoint(k_loop.body):
            p = k_loop.induction_variable
            a = vector.LoadOp(column, left, [r, p]).result
            b = vector.LoadOp(row, right, [p, zero]).result
            scf.YieldOp([product_of_vectors(a, b, k_loop.inner_iter_args[0])])
        vector.StoreOp(k_loop.results[0], out, [r, zero])


def product_of_vectors(a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
    """sums[i, j] + the sum over k of a[i, k] * b[k, j]."""
    maps = [mlir.projection(3, dims) for dims in ([0, 2], [2, 1], [0, 1])]
    kinds = [ir.Attribute.parse(f"#vector.iterator_type<{kind}>") for kind in ("parallel", "parallel", "reduction")]
    attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]), ir.ArrayAttr.get(kinds)
    return vector.ContractionOp(sums.type, a, b, sums, *attributes).result


__all__ = [
    "Widened", "code", "exact_products", "is_plain", "narrow", "product_of_vectors", "products", "split",
    "widen", "word_of",
]  # fmt: skip
