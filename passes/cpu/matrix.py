"""stage, for the CPU: sums of products by a matrix unit (AMX), where it computes them as IEEE 754 says.

AMX takes pairs of bf16 along k, and adds to f32. It takes subnormal numbers for 0, inputs and results, so that tiny numbers
are noticed: where the smallest number of a panel of each factor could make a product below 2^-110, plain loops compute the
tile. No sum of larger products is subnormal, since each product is a multiple of 2^-125.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.
"""

from __future__ import annotations

from math import prod

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, math, memref, scf, vector
from tilec.passes.cpu.panels import STEP, Contraction, Size, loop, quotient, round_up

LEAST = 254 - 110 + 1  # of the sum of two biased exponents, each perhaps one too low


def smallest(panel: ir.Value) -> ir.Value:
    """The bits of the smallest number in a panel of bf16 that is not 0, less 1, as i16 without sign."""
    shape = ir.MemRefType(panel.type).shape
    flat = memref.CollapseShapeOp(_flat(panel), panel, [list(range(len(shape)))]).result
    word = ir.IntegerType.get_signless(16)
    made = scf.ForOp(mlir.index(0), mlir.index(prod(shape)), mlir.index(1), [mlir.constant(0xFFFF, word)])
    locations.named(made, "element", "smallest")
    with ir.InsertionPoint(made.body):
        bits = arith.bitcast(word, memref.LoadOp(flat, [made.induction_variable]).result)
        magnitude = arith.andi(bits, mlir.constant(0x7FFF, word))
        less = arith.subi(magnitude, mlir.constant(1, word))  # of 0 the largest number
        scf.YieldOp([arith.minui(made.inner_iter_args[0], less)])
    return made.results[0]


def _flat(panel: ir.Value) -> ir.Type:
    type_ = ir.MemRefType(panel.type)
    _, offset = type_.get_strides_and_offset()
    layout = ir.StridedLayoutAttr.get(offset, [1])
    return ir.MemRefType.get([prod(type_.shape)], type_.element_type, layout)


def is_plain(left: ir.Value, right: ir.Value) -> ir.Value:
    """Whether no product of two panels is tiny, by the smallest number of each."""
    word = ir.IntegerType.get_signless(32)
    exponents = [arith.shrui(arith.extui(word, v), mlir.constant(7, word)) for v in (left, right)]
    return arith.cmpi(arith.CmpIPredicate.sge, arith.addi(*exponents), mlir.constant(LEAST, word))


def products(c: Contraction, start: ir.Value, left: ir.Value, right: ir.Value, count: Size, out: ir.Value) -> None:
    """out = start + left * right over `count` products, by the matrix unit."""
    pairs = STEP // 2
    tile, a_type, b_type = (
        ir.VectorType.get(shape, element)
        for shape, element in (
            ([c.left.width, c.right.width], c.element),
            ([c.left.width, pairs, 2], c.multiplicand),
            ([pairs, c.right.width, 2], c.multiplicand),
        )
    )
    zero, bound = mlir.index(0), quotient(round_up(count, STEP), 2)
    k_loop = scf.ForOp(
        zero,
        mlir.index(bound) if isinstance(bound, int) else bound,
        mlir.index(pairs),
        [vector.BroadcastOp(tile, start).result],
    )
    locations.named(k_loop, f"{locations.joined(c.names.get(d, 'k') for d in c.inner)}_pair", "sums")
    maps = [mlir.projection(4, dims) for dims in ([0, 2, 3], [2, 1, 3], [0, 1])]
    kinds = [
        ir.Attribute.parse(f"#vector.iterator_type<{kind}>")
        for kind in ("parallel", "parallel", "reduction", "reduction")
    ]
    attributes = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]), ir.ArrayAttr.get(kinds)
    with ir.InsertionPoint(k_loop.body):
        p, sums = k_loop.induction_variable, k_loop.inner_iter_args[0]
        a = vector.LoadOp(a_type, left, [zero, p, zero]).result
        b = vector.LoadOp(b_type, right, [p, zero, zero]).result
        scf.YieldOp([vector.ContractionOp(tile, a, b, sums, *attributes).result])
    vector.StoreOp(k_loop.results[0], out, [zero, zero])


def exact_products(
    c: Contraction, start: ir.Value, left: ir.Value, right: ir.Value, count: Size, out: ir.Value
) -> None:
    """The same in plain loops."""
    with loop(0, c.left.width, name="row") as r:
        with loop(0, c.right.width, name="column") as j:
            memref.StoreOp(start, out, [r, j])
        with loop(0, quotient(count, 2), name="pair") as p:
            for half in range(2):
                h = mlir.index(half)
                a = arith.extf(c.element, memref.LoadOp(left, [r, p, h]).result)
                with loop(0, c.right.width, name="column") as j:
                    b = arith.extf(c.element, memref.LoadOp(right, [p, j, h]).result)
                    total = math.fma(a, b, memref.LoadOp(out, [r, j]).result)
                    memref.StoreOp(total, out, [r, j])


__all__ = ["exact_products", "is_plain", "products", "smallest"]
