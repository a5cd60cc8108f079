"""Partial sums that leave the matrix units: those that the units have too few bits for, or that are scaled (`scales.py`).

    one set of registers:    for part { p = the part's products; wait for them; sums += p }
    two sets (`partials`):   for two parts { p, q = the products of both; wait for p; sums += p; wait for q; sums += q }

With one set, a warpgroup adds under the products of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, memref
from tilec.kernels import WarpgroupContraction
from tilec.passes.cuda.contraction.fragments import fragment_coordinates
from tilec.passes.cuda.contraction.problem import PRIVATE, Problem, Side, local
from tilec.passes.cuda.contraction.scales import Scales
from tilec.passes.cuda.ring import Ring, carried_loop
from tilec.passes.loops import loop, sum_of, when

_State = list[ir.Value]


@dataclass(frozen=True)
class _Set:
    """Registers of a part's sums, and of its scales."""

    sums: ir.Value
    scales: Scales


class PartialSums:
    """`multiply(state)` computes one tile of C. `product(sums, stage, step)` starts the products of a stage, `wait(running, sums)`
    waits until so many run."""

    def __init__(
        self, problem: Problem, function: ir.Operation, shape: Any, ring: Ring, sums: ir.Value,
        product: Callable[[ir.Value, ir.Value, ir.Value], None], wait: Callable[[int, ir.Value], None],
    ):  # fmt: skip
        assert isinstance(problem.options, WarpgroupContraction)
        self.problem, self.function, self.shape, self.ring, self.sums = problem, function, shape, ring, sums
        self.product, self.wait, self.options = product, wait, problem.options
        self.sets: list[_Set] = []
        for number in range(self.options.partials):
            with ir.InsertionPoint.at_block_begin(shape.thread.block):
                made = memref.AllocaOp(ir.MemRefType(sums.type), [], []).result
            self.sets.append(_Set(locations.named(made, f"partial_sums{f'_{number + 1}' * (number > 0)}"), Scales(problem, shape)))

    def multiply(self, problem: Problem, state: _State) -> None:
        self.problem = problem
        with self._each_sum() as at:
            memref.StoreOp(mlir.constant(0.0, problem.accumulator), self.sums, at)
        if len(self.sets) == 1:
            self._one_set(state)
        else:
            self._two_sets(state)
        if problem.parts > 1:
            self._recompute()

    # ---- one set of registers ------------------------------------------------------------------------------

    def _one_set(self, state: _State) -> None:
        zero, (part,), steps = mlir.index(0), self.sets, self.options.promoted // self.problem.depth
        self._load_scales(part, zero)
        with self._parts(zero, self.problem.steps, steps, state) as (first, now):
            part.scales.advance()
            ahead = sum_of([(first, 1)], steps)
            if steps == 1:
                stage = self._start(part, zero, now)
                self._load_scales(part, ahead)
                self._complete(part, 0, stage)
                return
            count = mlir.index(steps)
            if self.problem.steps % steps:
                count = arith.minsi(count, arith.subi(mlir.index(self.problem.steps), first))
            self._load_scales(part, ahead)
            with carried_loop(zero, count, now, name=f"{self.problem.inner_name}_step") as (step, inner):
                stage = self._start(part, step, inner)
                self.wait(0, part.sums)
                self.ring.release(stage, self.shape.thread)
            self._add(part)

    # ---- two sets of registers, of one stage each ----------------------------------------------------------

    def _two_sets(self, state: _State) -> None:
        """Pairs of stages: no products run from one turn of the loop to the next, as the assembler would wait for these."""
        zero, (first, second) = mlir.index(0), self.sets
        for ahead, part in enumerate(self.sets):
            self._load_scales(part, mlir.index(ahead))
        pairs = self.problem.steps // 2
        if pairs:
            with self._parts(zero, 2 * pairs, 2, state) as (number, now):
                for part in self.sets:
                    part.scales.advance()
                old = [self._start(part, zero, now) for part in self.sets]
                for ahead, part in enumerate(self.sets):
                    self._load_scales(part, sum_of([(number, 1)], 2 + ahead))
                for running, part, stage in ((1, first, old[0]), (0, second, old[1])):
                    self._complete(part, running, stage)
        if self.problem.steps % 2:
            first.scales.advance()
            self._complete(first, 0, self._start(first, zero, state))

    # ---- either --------------------------------------------------------------------------------------------

    def _start(self, part: _Set, step: ir.Value, state: _State) -> ir.Value:
        """Starts the products of a stage, from zero where `step` is 0."""
        stage, phase = state
        self.ring.wait_full(stage, phase)
        self.product(part.sums, stage, step)
        state[:] = self.ring.next(stage, phase)
        return stage

    def _complete(self, part: _Set, running: int, stage: ir.Value) -> None:
        """Adds them, while those of so many other stages run."""
        self.wait(running, part.sums)
        self.ring.release(stage, self.shape.thread)
        self._add(part)

    # ---- numbers without parts -----------------------------------------------------------------------------

    def _recompute(self) -> None:
        """Where a sum is not finite, a thread adds its products anew, of whole numbers: one of them may be marked as one that has
        no parts (`tilec/analysis/parts.py`), or may be infinite."""
        problem, f32, zero = self.problem, ir.F32Type.get(), mlir.index(0)
        with ir.InsertionPoint.at_block_begin(self.shape.thread.block):
            check, rows = (memref.AllocaOp(local([n], f32, PRIVATE), [], []).result for n in (1, 2))
        nothing = mlir.constant(0.0, f32)
        memref.StoreOp(nothing, check, [zero])
        with self._each_sum() as at:
            product = arith.mulf(memref.LoadOp(self.sums, at).result, nothing)  # NaN of what is not finite
            memref.StoreOp(arith.addf(memref.LoadOp(check, [zero]).result, product), check, [zero])
        wrong = arith.cmpf(arith.CmpFPredicate.UNE, memref.LoadOp(check, [zero]).result, nothing)
        left, right = problem.wholes
        with when(wrong):
            with self._each_sum() as at:
                memref.StoreOp(nothing, self.sums, at)
            with loop(problem.length, always=True, rolled=True, name=problem.inner_name) as k:
                with loop(2, unroll=True, name="half") as half:
                    row, _ = fragment_coordinates(self.shape.thread, half, zero)
                    memref.StoreOp(self._whole(left, problem.left, self.shape.row(row), k), rows, [half])
                with loop(self.shape.wide, unroll=True, name="fragment") as j, loop(2, unroll=True, name="pair") as lane:
                    _, column = fragment_coordinates(self.shape.thread, zero, j)
                    factor = self._whole(right, problem.right, sum_of([(column, 1), (lane, 1)]), k)
                    with loop(2, unroll=True, name="half") as half:
                        added = arith.mulf(memref.LoadOp(rows, [half]).result, factor)
                        total = arith.addf(memref.LoadOp(self.sums, [j, half, lane]).result, added)
                        memref.StoreOp(total, self.sums, [j, half, lane])

    def _whole(self, value: ir.Value, side: Side, number: ir.Value, k: ir.Value) -> ir.Value:
        where = self.problem.existing(side, self.problem.coordinates((side, number), (None, k)))
        return self.problem.evaluate(value, where, element=ir.F32Type.get())

    @contextmanager
    def _parts(self, first: ir.Value, end: int, step: int, state: _State) -> Iterator[tuple[ir.Value, _State]]:
        with carried_loop(first, mlir.index(end), state, step, name=f"{self.problem.inner_name}_part") as found:
            yield found

    def _load_scales(self, part: _Set, number: ir.Value) -> None:
        """Of the part that begins at a stage, or of the last one: under the products, which nothing should delay."""
        last = (self.problem.steps - 1) * self.problem.depth // self.options.promoted * self.options.promoted
        k = arith.minsi(sum_of([(number, self.problem.depth)]), mlir.index(last))
        part.scales.load(self.problem, k)

    def _add(self, part: _Set) -> None:
        with self._each_sum() as at:
            added = part.scales.apply(memref.LoadOp(part.sums, at).result, at)
            memref.StoreOp(arith.addf(memref.LoadOp(self.sums, at).result, added), self.sums, at)

    @contextmanager
    def _each_sum(self) -> Iterator[list[ir.Value]]:
        with loop(self.shape.wide, name="fragment") as j, loop(2, name="half") as half, loop(2, name="pair") as lane:
            yield [j, half, lane]


