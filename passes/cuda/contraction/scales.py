"""Scales of partial sums: factors of a product that many adjacent positions of k share, applied to the sum over these positions.

    next = s[row, 0 : 8], t[column // 128, 0 : 8]                     // 8 parts of k: a span
    for span { shared[warp] = next;  next = those of the next span    // loads, which nothing waits for before the span ends
               for part of k { p = the sum of the part's products; r, c = shared[warp, row, part], shared[warp, column, part]
                               sums += p * (r * c) } }

A thread of a warpgroup has two rows and two adjacent columns of every 8. A warp keeps the scales of its own rows, and those of
columns of which several share a scale (`scale_columns`), so that it waits for no other; of one or two such groups of columns it
keeps the products r * c, since a thread that multiplied them would do so between the products of matrices, and wait there. Where
each column has its own scale, threads load these from memory under the part's products.
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
from tilec.passes.cuda.contraction.problem import Problem, Side
from tilec.passes.cuda.contraction.result_boxes import synchronise
from tilec.passes.cuda.memory_spaces import SHARED, local, registers
from tilec.passes.loops import Count, loop, plus, sum_of


class Scales:
    """`fetch(problem, first, parts)` begins to load the scales of a span from this part on, `store` brings them to shared memory
    and fetches the next, `load(problem, number, position)` brings those of a part, by its number and its position in the span, into
    registers, and `apply(value, at)` applies them to a thread's sum `[fragment, half, pair]`."""

    def __init__(self, problem: Problem, shape: Any):
        assert isinstance(problem.options, WarpgroupContraction)
        self.shape, self.group, self.two_level = shape, problem.options.scale_columns, problem.options.two_level
        self.left = self.right = None
        self.rows, self.columns = ROWS // 4 * problem.options.scale_rows, problem.options.scale_groups
        self.lines, self.joined = problem.options.scale_lines, problem.options.joined_scales
        if self.joined:
            self.left = self._registers([self.columns, 2], "scales")
        elif self.rows:
            self.left = self._registers([1, 2], "row_scales")
        if self.group == 1:
            self.right = self._registers([shape.wide, 2], "column_scales")
        elif self.columns and not self.joined:
            self.right = self._registers([self.columns], "column_scales")
        if self.lines:
            self.next_rows = self._registers([max(1, self.rows // EACH)], "next_row_scales")
            count = self.columns if self.joined else max(1, -(-self.columns // EACH))
            self.next_columns = self._registers([count], "next_column_scales")
            type_ = local([4 * shape.roles.consumers, self.lines, SPAN], ir.F32Type.get(), SHARED)
            self.memory = locations.named(memref.AllocOp(type_, [], []).result, "kept_scales")

    def _registers(self, counts: list[int], name: str) -> ir.Value:
        return registers(counts, f"%{name}")

    @property
    def _warp(self) -> ir.Value:
        """Among those that multiply."""
        return sum_of([(self.shape.thread.warp, 1)], -4)

    @property
    def _mine(self) -> tuple[ir.Value, ir.Value]:
        """The line, of `EACH` at a time, and the position in a span that a lane fetches."""
        lane, span = self.shape.thread.lane, mlir.index(SPAN)
        return arith.divui(lane, span), arith.remui(lane, span)

    def fetch(self, problem: Problem, first: ir.Value, parts: Count) -> None:
        if not self.lines:
            return
        line, position = self._mine
        number = arith.minsi(sum_of([(first, 1), (position, 1)]), mlir.index(plus(parts, -1)))
        k = sum_of([(number, self.two_level)])
        for n in range(self.rows // EACH):
            row = self.shape.row(sum_of([(line, 1)], EACH * n))
            self._evaluate(problem, problem.left, row, k, self.next_rows, [mlir.index(n)])
        for n in range(ir.MemRefType(self.next_columns.type).shape[0] if self.columns else 0):
            group = arith.minsi(sum_of([(line, 1)], EACH * n), mlir.index(self.columns - 1))
            group = mlir.index(n) if self.joined else group
            column = arith.muli(group, mlir.index(self.group))
            self._evaluate(problem, problem.right, column, k, self.next_columns, [mlir.index(n)])

    def store(self, problem: Problem, first: ir.Value, parts: Count) -> None:
        if not self.lines:
            return
        rows, columns = (
            [memref.LoadOp(memory, [mlir.index(n)]).result for n in range(count)]
            for memory, count in ((self.next_rows, self.rows // EACH), (self.next_columns, -(-self.columns // EACH)))
        )
        if self.joined:
            groups = (memref.LoadOp(self.next_columns, [mlir.index(n)]).result for n in range(self.columns))
            values = [arith.mulf(row, group) for group in groups for row in rows]
        else:
            values = [*rows, *columns]
        line, position = self._mine
        synchronise()  # the span before has been read
        for n, value in enumerate(values):
            memref.StoreOp(value, self.memory, [self._warp, sum_of([(line, 1)], EACH * n), position])
        synchronise()
        self.fetch(problem, sum_of([(first, 1)], SPAN), parts)

    def load(self, problem: Problem, number: ir.Value, position: ir.Value) -> None:
        zero = mlir.index(0)
        if self.left is not None:
            with loop(self.columns if self.joined else 1, name="group") as group, loop(2, name="half") as half:
                row, _ = fragment_coordinates(self.shape.thread, half, zero)
                memref.StoreOp(self._kept(sum_of([(row, 1), (group, self.rows)]), position), self.left, [group, half])
        if self.joined:
            return
        if self.columns:
            assert self.right is not None
            with loop(self.columns, name="group") as group:
                memref.StoreOp(self._kept(sum_of([(group, 1)], self.rows), position), self.right, [group])
        elif self.right is not None:
            with loop(self.shape.wide, name="fragment") as j, loop(2, name="pair") as lane:
                _, column = fragment_coordinates(self.shape.thread, zero, j)
                k = sum_of([(number, self.two_level)])
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
        found, group = [], mlir.index(0)
        if self.columns:
            group = arith.divui(arith.muli(j, mlir.index(8)), mlir.index(self.group))
        if self.left is not None:
            found.append(memref.LoadOp(self.left, [group if self.joined else mlir.index(0), half]).result)
        if self.right is not None:
            found.append(memref.LoadOp(self.right, [j, lane] if self.group == 1 else [group]).result)
        return arith.mulf(value, reduce(arith.mulf, found)) if found else value
