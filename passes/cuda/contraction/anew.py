"""Sums of products that a thread adds anew, of whole numbers, where one of them is not finite.

A number may be marked as one that has no parts (`tilec/analysis/bf16_split.py`), or may be infinite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import reduce

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.loops import loop, when


@dataclass(frozen=True)
class Unfinished:
    """`met`: a NaN. `rows`: of each of a thread's rows, a number that is not 0 where one of its sums is not finite. Rows of
    finite sums keep them, so that no row's bits depend on another's."""

    met: ir.Value
    rows: ir.Value

    def store(self, new: ir.Value, target: ir.Value, at: Sequence[ir.Value], half: ir.Value) -> None:
        """Stores a number of a row that is computed anew."""
        wanted = arith.cmpf(arith.CmpFPredicate.UNE, memref.LoadOp(self.rows, [half]).result, mlir.constant(0.0, ir.F32Type.get()))
        chosen = arith.SelectOp(wanted, new, memref.LoadOp(target, at).result)
        chosen.attributes["tilec.both"] = ir.UnitAttr.get()
        memref.StoreOp(chosen.result, target, at)


@contextmanager
def unless_finite(
    sums: ir.Value, exists: Callable[[ir.Value, ir.Value, ir.Value], ir.Value | None] = lambda *_: None
) -> Iterator[Unfinished]:
    """`sums` are fragments.
    `exists(fragment, half, pair)`: whether a sum is one that copies filled; None where all are."""
    wide, rows, _ = ir.MemRefType(sums.type).shape
    check, nothing = registers([rows], "%check"), mlir.constant(0.0, ir.F32Type.get())
    with loop(rows, unroll=True, name="half") as half:
        memref.StoreOp(nothing, check, [half])
    with loop(wide, name="fragment") as j, loop(rows, unroll=True, name="half") as half, loop(2, name="pair") as lane:
        product = arith.mulf(memref.LoadOp(sums, [j, half, lane]).result, nothing)  # NaN of what is not finite
        if (filled := exists(j, half, lane)) is not None:
            chosen = arith.SelectOp(filled, product, nothing)
            chosen.attributes["tilec.both"] = ir.UnitAttr.get()
            product = chosen.result
        memref.StoreOp(arith.addf(memref.LoadOp(check, [half]).result, product), check, [half])
    met = reduce(arith.addf, [memref.LoadOp(check, [mlir.index(n)]).result for n in range(rows)])
    with when(arith.cmpf(arith.CmpFPredicate.UNE, met, nothing)):
        yield Unfinished(met, check)


def add_anew(
    unfinished: Unfinished, sums: ir.Value, steps: Callable[[], AbstractContextManager[ir.Value]],
    left: Callable[[ir.Value, ir.Value], ir.Value], right: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
) -> None:  # fmt: skip
    """`steps` is the loop over k; `left(half, k)` a row's factor there, `right(fragment, pair, k)` a column's."""
    wide, count, _ = ir.MemRefType(sums.type).shape
    rows = registers([count], "%of_rows")
    with loop(wide, name="fragment") as j, loop(count, name="half") as half, loop(2, name="pair") as lane:
        unfinished.store(mlir.constant(0.0, ir.F32Type.get()), sums, [j, half, lane], half)
    with steps() as k:
        with loop(count, unroll=True, name="half") as half:
            memref.StoreOp(left(half, k), rows, [half])
        with loop(wide, unroll=True, name="fragment") as j, loop(2, unroll=True, name="pair") as lane:
            factor = right(j, lane, k)
            with loop(count, unroll=True, name="half") as half:
                added = arith.mulf(memref.LoadOp(rows, [half]).result, factor)
                total = arith.addf(memref.LoadOp(sums, [j, half, lane]).result, added)
                unfinished.store(total, sums, [j, half, lane], half)
