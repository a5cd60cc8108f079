"""The product of two staged tiles on the vector units, by thread.

    a[8 x 2] = 8 loads of 2 k    b[2 x 16] = 8 loads of 4 columns    c[8 x 16] += a b  (vector.contract)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref, vector
from tilec.kernels.contraction import Contraction, fma_group
from tilec.passes.cuda.contraction.fragments import PARTS, Chunks, Sums, overlapped, whole
from tilec.passes.cuda.contraction.operands import Stage
from tilec.passes.cuda.contraction.problem import Problem, Side, Thread
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.loops import delinearise, loop, sum_of


class FmaTile:
    """A thread holds `high` x `wide` elements; 4 x 8 threads are a warp's, so that few of them share a bank.

    Where a factor is staged in lines of rows, a thread has pieces of 4 adjacent ones, else every so manieth
    row. What it multiplies comes in groups of k: the next group is loaded while one is multiplied.
    """

    def __init__(self, problem: Problem, thread: Thread):
        self.problem, self.thread = problem, thread
        assert isinstance(problem.options, Contraction)
        warps_m, warps_n = problem.options.warps
        self.tall, self.broad = 4 * warps_m, 8 * warps_n  # threads along rows and columns
        self.high, self.wide = problem.left.size // self.tall, problem.right.size // self.broad
        self.piece = min(4, 16 // (problem.element.width // 8))  # elements of a shared load
        self.group = fma_group(self.high, self.wide, problem.element.width)
        self.warp_row = arith.divui(thread.warp, mlir.index(warps_n))
        self.warp_column = arith.remui(thread.warp, mlir.index(warps_n))
        self.row = sum_of([(self.warp_row, 4), (arith.divui(thread.lane, mlir.index(8)), 1)])
        self.column = sum_of([(self.warp_column, 8), (arith.remui(thread.lane, mlir.index(8)), 1)])
        self.sums = registers([self.high, self.wide], "%sums", problem.accumulator)
        self.parts = [
            (self._part(problem.left, self.high, which), self._part(problem.right, self.wide, which)) for which in PARTS
        ]
        self.vector = 1 if problem.right.major else self.piece

    def _part(self, side: Side, count: int, which: str) -> ir.Value:
        shape = [count, self.group] if side.major else [self.group, count]
        return registers(shape, f"%{self.problem.tensor(side)}_{which}", self.problem.element)

    def clear(self, value: ir.Value) -> None:
        with loop(self.high, name="row") as i, loop(self.wide, name="column") as j:
            memref.StoreOp(value, self.sums, [i, j])

    def multiply(self, slot: ir.Value, left: Stage, right: Stage) -> None:
        def fetch(parts: tuple[ir.Value, ir.Value], number: ir.Value) -> None:
            self._fetch(parts, left, right, slot, arith.muli(number, mlir.index(self.group)))

        overlapped(self.problem.depth // self.group, self.parts, fetch, self._contract)

    def _fetch(self, parts: tuple[ir.Value, ir.Value], left: Stage, right: Stage, slot: ir.Value, k: ir.Value) -> None:
        self._load(parts[0], left, self.row, self.tall, self.high, slot, k)
        self._load(parts[1], right, self.column, self.broad, self.wide, slot, k)

    def _load(
        self, part: ir.Value, stage: Stage, mine: ir.Value, threads: int, count: int, slot: ir.Value, k: ir.Value
    ) -> None:
        zero = mlir.index(0)
        if stage.side.major:
            type_ = ir.VectorType.get([self.group], self.problem.element)
            with loop(count, name="element") as i:
                line = sum_of([(i, threads), (mine, 1)])
                vector.StoreOp(vector.LoadOp(type_, stage.tile, [slot, line, k]).result, part, [i, zero])
            return
        type_ = ir.VectorType.get([self.piece], self.problem.element)
        with (
            loop(self.group, name=f"{self.problem.inner_name}_inner") as i,
            loop(count // self.piece, name="piece") as j,
        ):
            at = sum_of([(j, threads * self.piece), (mine, self.piece)])
            loaded = vector.LoadOp(type_, stage.tile, [slot, sum_of([(k, 1), (i, 1)]), at]).result
            vector.StoreOp(loaded, part, [i, arith.muli(j, mlir.index(self.piece))])

    def _contract(self, parts: tuple[ir.Value, ir.Value]) -> None:
        """sums[i, j] += sum of left[i, k] * right[j, k] over the group's k."""
        i, j, k = (ir.AffineDimExpr.get(n) for n in range(3))
        left = (i, k) if self.problem.left.major else (k, i)
        right = (j, k) if self.problem.right.major else (k, j)
        maps = [ir.AffineMapAttr.get(ir.AffineMap.get(3, 0, list(e))) for e in (left, right, (i, j))]
        kinds = [ir.Attribute.parse(f"#vector.iterator_type<{t}>") for t in ("parallel", "parallel", "reduction")]
        a, b, c = (whole(v) for v in (*parts, self.sums))
        total = vector.ContractionOp(c.type, a, b, c, ir.ArrayAttr.get(maps), ir.ArrayAttr.get(kinds)).result
        vector.StoreOp(total, self.sums, [mlir.index(0)] * 2)

    def add_shares(self) -> None:
        """Warps have rows and columns of their own."""

    def once(self) -> AbstractContextManager:
        return nullcontext()

    def chunks(self) -> Chunks:
        """One for each of a thread's rows: a warp's 4 threads along rows, all of its columns."""
        return Chunks(self.high, 4, 8 * self.wide, self._spill, self._coordinates)

    def _spill(self, i: ir.Value, put: Callable[..., None]) -> None:
        row = arith.divui(self.thread.lane, mlir.index(8))
        mine = arith.remui(self.thread.lane, mlir.index(8))
        with loop(self.wide // self.vector, name="piece") as j:
            at = [i, arith.muli(j, mlir.index(self.vector))]
            put(Sums(self.sums, at, self.vector), row, sum_of([(j, 8 * self.vector), (mine, self.vector)]))

    def _coordinates(self, i: ir.Value, row: ir.Value, column: ir.Value) -> tuple[ir.Value, ir.Value]:
        group = 1 if self.problem.left.major else self.piece
        first, rest = (i, mlir.index(0)) if group == 1 else delinearise(i, [self.high // group, group])
        mine = sum_of([(rest, 1), (first, group * self.tall), (self.warp_row, 4 * group), (row, group)])
        width = 8 * self.vector
        j, rest = arith.divui(column, mlir.index(width)), arith.remui(column, mlir.index(width))
        return mine, sum_of([(j, self.broad * self.vector), (self.warp_column, width), (rest, 1)])
