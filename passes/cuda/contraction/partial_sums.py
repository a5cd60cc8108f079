"""Partial sums that leave the matrix units: those that the units have too few bits for, or that are scaled (`scales.py`).

    for part { p = the part's products; wait for them; sums += p }

A warpgroup adds under the products of the other. Before it does, it asks whether its next stage is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref
from tilec.kernels import WarpgroupContraction
from tilec.kernels.contraction import SPAN
from tilec.passes.cuda.contraction.anew import add_anew, unless_finite
from tilec.passes.cuda.contraction.fragments import fragment_coordinates
from tilec.passes.cuda.contraction.problem import Problem, Side
from tilec.passes.cuda.contraction.scales import Scales
from tilec.passes.cuda.contraction.stream_k import Part
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.cuda.ring import Ring, carried_loop
from tilec.passes.loops import Count, all_of, below, loop, quotient_up, sum_of

_State = list[ir.Value]


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
        self.steps, self.scales = self.options.two_level // problem.depth, Scales(problem, shape)
        self.partial = registers(ir.MemRefType(sums.type).shape, "%partial_sums", problem.accumulator)

    def multiply(self, problem: Problem, state: _State, shared: Part | None = None) -> None:
        """`shared`: the part of the steps that a block has, each of which is a partial sum."""
        self.problem = problem
        with self._each_sum() as at:
            memref.StoreOp(mlir.constant(0.0, problem.accumulator), self.sums, at)
        parts, zero = quotient_up(problem.steps, self.steps), mlir.index(0)
        self.first, self.end = (shared.first, shared.end) if shared else (zero, mlir.index(parts))
        count = shared.count if shared else parts
        whole = count // SPAN if isinstance(count, int) and self.scales.lines else 0
        self.scales.fetch(problem, self.first, parts)
        if self.steps == 1:
            self.ring.wait_full(*state)
        if isinstance(count, ir.Value) and self.scales.lines:
            spans = arith.divui(sum_of([(count, 1)], SPAN - 1), mlir.index(SPAN))
            with carried_loop(zero, spans, state, name=f"{problem.inner_name}_span") as (number, now):
                own = arith.minsi(sum_of([(count, 1), (number, -SPAN)]), mlir.index(SPAN))
                self._span(number, own, parts, now)
        elif isinstance(count, ir.Value):
            self._span(zero, count, parts, state)
        elif whole:
            with carried_loop(zero, mlir.index(whole), state, name=f"{problem.inner_name}_span") as (number, now):
                self._span(number, mlir.index(SPAN), parts, now)
        if isinstance(count, int) and (rest := count - SPAN * whole):
            self._span(mlir.index(whole), mlir.index(rest), parts, state)
        if problem.parts > 1:
            self._recompute()

    def _span(self, number: ir.Value, count: ir.Value, parts: Count, state: _State) -> None:
        """So many parts, whose scales are in shared memory together."""
        self.scales.store(self.problem, sum_of([(self.first, 1), (number, SPAN)]), parts)
        with carried_loop(mlir.index(0), count, state, name=f"{self.problem.inner_name}_part") as (position, now):
            part = sum_of([(self.first, 1), (number, SPAN), (position, 1)])
            (self._stage if self.steps == 1 else self._stages)(part, position, now)
            self._add()
            if self.steps == 1:
                self.ring.wait_full_if(below(sum_of([(part, 1)], 1), self.end), *now)

    def _stage(self, part: ir.Value, position: ir.Value, state: _State) -> None:
        """A part of one stage, which is full. No products run from one turn of the loop to the next, as the assembler would wait
        for these."""
        stage = self._start(mlir.index(0), state)
        self.scales.load(self.problem, part, position)
        self._complete(stage)

    def _stages(self, part: ir.Value, position: ir.Value, state: _State) -> None:
        """A part of several stages."""
        count = mlir.index(self.steps)
        self.scales.load(self.problem, part, position)
        if not isinstance(self.problem.steps, int) or self.problem.steps % self.steps:
            count = arith.minsi(count, arith.subi(mlir.index(self.problem.steps), sum_of([(part, self.steps)])))
        with carried_loop(mlir.index(0), count, state, name=f"{self.problem.inner_name}_step") as (step, now):
            self.ring.wait_full(*now)
            self._complete(self._start(step, now))

    def _start(self, step: ir.Value, state: _State) -> ir.Value:
        """Starts the products of the next stage, which is full, from zero where `step` is 0."""
        stage, phase = state
        self.product(self.partial, stage, step)
        state[:] = self.ring.next(stage, phase)
        return stage

    def _complete(self, stage: ir.Value) -> None:
        """Waits for them; the stage may be filled again."""
        self.wait(0, self.partial)
        self.ring.release(stage, self.shape.thread)

    # ---- numbers without parts -----------------------------------------------------------------------------

    def _recompute(self) -> None:
        """Where a sum is not finite, a thread adds those of its row anew, of whole numbers."""
        problem, zero = self.problem, mlir.index(0)

        def of_row(half: ir.Value, k: ir.Value) -> ir.Value:
            row, _ = fragment_coordinates(self.shape.thread, half, zero)
            return self._whole(problem.left, self.shape.row(row), k)

        def of_column(j: ir.Value, lane: ir.Value, k: ir.Value) -> ir.Value:
            _, column = fragment_coordinates(self.shape.thread, zero, j)
            return self._whole(problem.right, sum_of([(column, 1), (lane, 1)]), k)

        steps = partial(loop, problem.length, always=True, rolled=True, name=problem.inner_name)
        with unless_finite(self.sums, self._exists) as unfinished:
            add_anew(unfinished, self.sums, steps, of_row, of_column)

    def _exists(self, j: ir.Value, half: ir.Value, lane: ir.Value) -> ir.Value | None:
        """Whether a sum is one of rows and columns that copies fill: of others it is of what shared memory held before. None where
        all are filled; at the edge of a tensor they are, with zeros."""
        problem = self.problem
        row, column = fragment_coordinates(self.shape.thread, half, j)
        positions = ((problem.left, self.shape.row(row)), (problem.right, sum_of([(column, 1), (lane, 1)])))
        at = problem.coordinates(*positions)
        return all_of([c for side, _ in positions if not side.full for c in problem.inside(side, at)])

    def _whole(self, side: Side, number: ir.Value, k: ir.Value) -> ir.Value:
        where = self.problem.existing(side, self.problem.coordinates((side, number), (None, k)))
        return self.problem.evaluate(self.problem.whole(side), where, element=ir.F32Type.get())

    def _add(self) -> None:
        with self._each_sum() as at:
            added = self.scales.apply(memref.LoadOp(self.partial, at).result, at)
            memref.StoreOp(arith.addf(memref.LoadOp(self.sums, at).result, added), self.sums, at)

    @contextmanager
    def _each_sum(self) -> Iterator[list[ir.Value]]:
        with loop(self.shape.wide, name="fragment") as j, loop(2, name="half") as half, loop(2, name="pair") as lane:
            yield [j, half, lane]
