"""Scales of partial sums: factors of a product that many adjacent places of k share, applied to the sum over these places.

    next_r, next_c = s[row, 0], t[column // 128, 0]
    for part of k { r, c = next_r, next_c
                    next_r, next_c = s[row, part + 1], t[column // 128, part + 1]      // loads, under the products
                    p = the sum of part's products
                    sums += p * (r * c) }

A thread of a warpgroup has two rows and two adjacent columns of every 8. Columns of which several share a scale
(`scale_columns`) have one register together.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import reduce
from typing import Any

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, memref
from tilec.kernels import WarpgroupContraction
from tilec.passes.cuda.contraction.fragments import fragment_coordinates
from tilec.passes.cuda.contraction.problem import PRIVATE, Problem, Side, local
from tilec.passes.loops import loop, sum_of


class Scales:
    """`load(problem, k)` brings the scales of a part that begins at `k` into registers, `advance()` makes them those that
    `apply(value, at)` applies to a thread's sum `[fragment, half, pair]`. Scales are loaded a part ahead, since whatever reads them
    may be scheduled before the part's products, which would then wait for the loads."""

    def __init__(self, problem: Problem, shape: Any):
        assert isinstance(problem.options, WarpgroupContraction)
        self.shape, self.group = shape, problem.options.scale_columns
        self.left = self.right = None
        self.ahead: dict[ir.Value, ir.Value] = {}
        if problem.scaled["left"].scales:
            self.left = self._registers([2], "row_scales")
        if self.group == 1:
            self.right = self._registers([shape.wide, 2], "column_scales")
        elif self.group:
            self.right = self._registers([shape.columns // self.group], "column_scales")

    def _registers(self, counts: list[int], name: str) -> ir.Value:
        with ir.InsertionPoint.at_block_begin(self.shape.thread.block):
            type_ = local(counts, ir.F32Type.get(), PRIVATE)
            made, ahead = (memref.AllocaOp(type_, [], []).result for _ in range(2))
        self.ahead[made] = locations.named(ahead, f"next_{name}")
        return locations.named(made, name)

    def advance(self) -> None:
        for memory, ahead in self.ahead.items():
            counts = ir.MemRefType(memory.type).shape
            with ExitStack() as stack:
                at = [stack.enter_context(loop(count, name="scale")) for count in counts]
                memref.StoreOp(memref.LoadOp(ahead, at).result, memory, at)

    def load(self, problem: Problem, k: ir.Value) -> None:
        zero = mlir.index(0)
        if self.left is not None:
            with loop(2, name="half") as half:
                row, _ = fragment_coordinates(self.shape.thread, half, zero)
                self._store(problem, problem.left, self.shape.row(row), k, self.left, [half])
        if self.right is None:
            return
        if self.group > 1:
            with loop(self.shape.columns // self.group, name="group") as group:
                column = arith.muli(group, mlir.index(self.group))
                self._store(problem, problem.right, column, k, self.right, [group])
            return
        with loop(self.shape.wide, name="fragment") as j, loop(2, name="pair") as lane:
            _, column = fragment_coordinates(self.shape.thread, zero, j)
            self._store(problem, problem.right, sum_of([(column, 1), (lane, 1)]), k, self.right, [j, lane])

    def _store(
        self, problem: Problem, side: Side, number: ir.Value, k: ir.Value, memory: ir.Value, at: list[ir.Value]
    ) -> None:
        """The product of a row's or column's scales; of those that do not exist, some other's."""
        where = problem.existing(side, problem.coordinates((side, number), (None, k)))
        values = [problem.evaluate(v, where, element=ir.F32Type.get()) for v in problem.scaled[side.name].scales]
        memref.StoreOp(reduce(arith.mulf, values), self.ahead[memory], at)

    def apply(self, value: ir.Value, at: list[ir.Value]) -> ir.Value:
        j, half, lane = at
        found = []
        if self.left is not None:
            found.append(memref.LoadOp(self.left, [half]).result)
        if self.right is not None and self.group == 1:
            found.append(memref.LoadOp(self.right, [j, lane]).result)
        elif self.right is not None:
            group = arith.divui(arith.muli(j, mlir.index(8)), mlir.index(self.group))
            found.append(memref.LoadOp(self.right, [group]).result)
        return arith.mulf(value, reduce(arith.mulf, found)) if found else value
