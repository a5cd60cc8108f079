"""Sums of products that a thread adds anew, of whole numbers, where one of them is not finite.

A number may be marked as one that has no parts (`tilec/analysis/bf16_split.py`), or may be infinite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.loops import loop, when


@contextmanager
def unless_finite(
    sums: ir.Value, exists: Callable[[ir.Value, ir.Value, ir.Value], ir.Value | None] = lambda *_: None
) -> Iterator[ir.Value]:
    """`sums` are fragments. The context's value is a NaN there.
    `exists(fragment, half, pair)`: whether a sum is one that copies filled; None where all are."""
    zero, (wide, *_) = mlir.index(0), ir.MemRefType(sums.type).shape
    check, nothing = registers([1], "%check"), mlir.constant(0.0, ir.F32Type.get())
    memref.StoreOp(nothing, check, [zero])
    with loop(wide, name="fragment") as j, loop(2, name="half") as half, loop(2, name="pair") as lane:
        product = arith.mulf(memref.LoadOp(sums, [j, half, lane]).result, nothing)  # NaN of what is not finite
        if (filled := exists(j, half, lane)) is not None:
            chosen = arith.SelectOp(filled, product, nothing)
            chosen.attributes["tilec.both"] = ir.UnitAttr.get()
            product = chosen.result
        memref.StoreOp(arith.addf(memref.LoadOp(check, [zero]).result, product), check, [zero])
    met = memref.LoadOp(check, [zero]).result
    with when(arith.cmpf(arith.CmpFPredicate.UNE, met, nothing)):
        yield met


def add_anew(
    sums: ir.Value, steps: Callable[[], AbstractContextManager[ir.Value]], left: Callable[[ir.Value, ir.Value], ir.Value],
    right: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
) -> None:  # fmt: skip
    """`steps` is the loop over k; `left(half, k)` a row's factor there, `right(fragment, pair, k)` a column's."""
    (wide, *_), rows = ir.MemRefType(sums.type).shape, registers([2], "%of_rows")
    with loop(wide, name="fragment") as j, loop(2, name="half") as half, loop(2, name="pair") as lane:
        memref.StoreOp(mlir.constant(0.0, ir.F32Type.get()), sums, [j, half, lane])
    with steps() as k:
        with loop(2, unroll=True, name="half") as half:
            memref.StoreOp(left(half, k), rows, [half])
        with loop(wide, unroll=True, name="fragment") as j, loop(2, unroll=True, name="pair") as lane:
            factor = right(j, lane, k)
            with loop(2, unroll=True, name="half") as half:
                added = arith.mulf(memref.LoadOp(rows, [half]).result, factor)
                total = arith.addf(memref.LoadOp(sums, [j, half, lane]).result, added)
                memref.StoreOp(total, sums, [j, half, lane])
