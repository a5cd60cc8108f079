"""Scales of partial sums: factors of a product that many adjacent positions of k share, applied to the sum over these positions.

    next = s[row, 0 : 8], t[column // 128, 0 : 8]                     // 8 parts of k: a span
    for span { shared[warp] = next;  next = those of the next span    // loads, which nothing waits for before the span ends
               for part of k { p = the sum of the part's products; r, c = shared[warp, row, part], shared[warp, column, part]
                               sums += p * (r * c) } }

A thread of a warpgroup has two rows and two adjacent columns of every 8. A warp keeps the scales of its own rows, and those of
columns of which several share a scale (`scale_columns`), so that it waits for no other. Where each column has its own, threads
load these from memory under the part's products.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tilec.core import locations, mlir
from tilec.core.hardware import ROWS
from tilec.core.mlir import arith, ir, memref
from tilec.kernels import WarpgroupContraction
from tilec.kernels.contraction import EACH, SPAN
from tilec.passes.cuda.contraction.fragments import fragment_coordinates
from tilec.passes.cuda.contraction.problem import PRIVATE, SHARED, Problem, Side, local
from tilec.passes.cuda.contraction.result_boxes import synchronise
from tilec.passes.loops import loop, sum_of


class Scales:
    """`fetch(problem, span, parts)` begins to load the scales of a span, `store` brings them to shared memory and fetches the next,
    `load(problem, number, position)` brings those of a part, by its number and its position in the span, into registers, and
    `apply(value, at)` applies them to a thread's sum `[fragment, half, pair]`."""

    def __init__(self, problem: Problem, shape: Any):
        assert isinstance(problem.options, WarpgroupContraction)
        self.shape, self.group, self.promoted = shape, problem.options.scale_columns, problem.options.promoted
        self.left = self.right = None
        self.rows = self.columns = 0  # lines of scales that a warp keeps
        if problem.scaled["left"].scales:
            self.left, self.rows = self._registers([2], "row_scales"), ROWS // 4
        if self.group == 1:
            self.right = self._registers([shape.wide, 2], "column_scales")
        elif self.group:
            self.columns = shape.columns // self.group
            self.right = self._registers([self.columns], "column_scales")
        self.lines = problem.options.scale_lines
        if self.lines:
            self.next = self._registers([self.lines // EACH], "next_scales")
            type_ = local([4 * shape.roles.consumers, self.lines, SPAN], ir.F32Type.get(), SHARED)
            self.memory = locations.named(memref.AllocOp(type_, [], []).result, "scales")

    def _registers(self, counts: list[int], name: str) -> ir.Value:
        with ir.InsertionPoint.at_block_begin(self.shape.thread.block):
            made = memref.AllocaOp(local(counts, ir.F32Type.get(), PRIVATE), [], []).result
        return locations.named(made, name)

    @property
    def _warp(self) -> ir.Value:
        """Among those that multiply."""
        return sum_of([(self.shape.thread.warp, 1)], -4)

    @property
    def _mine(self) -> tuple[ir.Value, ir.Value]:
        """The line, of `EACH` at a time, and the position in a span that a lane fetches."""
        lane, span = self.shape.thread.lane, mlir.index(SPAN)
        return arith.divui(lane, span), arith.remui(lane, span)

    def fetch(self, problem: Problem, span: ir.Value, parts: int) -> None:
        if not self.lines:
            return
        line, position = self._mine
        number = arith.minsi(sum_of([(span, SPAN), (position, 1)]), mlir.index(parts - 1))
        k = sum_of([(number, self.promoted)])
        for n in range(self.rows // EACH):
            self._evaluate(problem, problem.left, self.shape.row(sum_of([(line, 1)], EACH * n)), k, self.next, [mlir.index(n)])
        for n in range(self.rows // EACH, self.lines // EACH):
            group = arith.minsi(sum_of([(line, 1)], EACH * n - self.rows), mlir.index(self.columns - 1))
            self._evaluate(problem, problem.right, arith.muli(group, mlir.index(self.group)), k, self.next, [mlir.index(n)])

    def store(self, problem: Problem, span: ir.Value, parts: int) -> None:
        if not self.lines:
            return
        line, position = self._mine
        synchronise()  # the span before has been read
        with loop(self.lines // EACH, name="line") as n:
            at = [self._warp, sum_of([(n, EACH), (line, 1)]), position]
            memref.StoreOp(memref.LoadOp(self.next, [n]).result, self.memory, at)
        synchronise()
        self.fetch(problem, sum_of([(span, 1)], 1), parts)

    def load(self, problem: Problem, number: ir.Value, position: ir.Value) -> None:
        zero = mlir.index(0)
        if self.left is not None:
            with loop(2, name="half") as half:
                row, _ = fragment_coordinates(self.shape.thread, half, zero)
                memref.StoreOp(self._kept(row, position), self.left, [half])
        if self.columns:
            with loop(self.columns, name="group") as group:
                memref.StoreOp(self._kept(sum_of([(group, 1)], self.rows), position), self.right, [group])
        elif self.right is not None:
            with loop(self.shape.wide, name="fragment") as j, loop(2, name="pair") as lane:
                _, column = fragment_coordinates(self.shape.thread, zero, j)
                k = sum_of([(number, self.promoted)])
                self._evaluate(problem, problem.right, sum_of([(column, 1), (lane, 1)]), k, self.right, [j, lane])

    def _kept(self, line: ir.Value, position: ir.Value) -> ir.Value:
        return memref.LoadOp(self.memory, [self._warp, line, position]).result

    def _evaluate(
        self, problem: Problem, side: Side, number: ir.Value, k: ir.Value, memory: ir.Value, at: list[ir.Value]
    ) -> None:
        """The product of a row's or column's scales; of those that do not exist, some other's."""
        where = problem.existing(side, problem.coordinates((side, number), (None, k)))
        values = [problem.evaluate(v, where, element=ir.F32Type.get()) for v in problem.scaled[side.name].scales]
        memref.StoreOp(reduce(arith.mulf, values), memory, at)

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
