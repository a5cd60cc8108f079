"""The engine by `mma.sync` of contractions whose result is only reduced along its columns.

    start the copies of the first steps
    for tile of j { for step of k { wait for a[k], b[j, k]; barrier; start the copies of a later step;  s += a[k] b[j, k] }
                    states from s }

Steps of all tiles follow one another in one ring, so that the next tile's factors arrive while the states of one are computed. The
rows' factor stays in shared memory where there is room for it. Several blocks of an SM compute states and products at a time.
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import arith, gpu, ir
from tilec.cost.chain import reduction_depth
from tilec.kernels.matrix import BYTES
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.copied_tiles import CopiedTiles
from tilec.passes.cuda.chain.fragments import clear
from tilec.passes.cuda.chain.split import PartialStates
from tilec.passes.cuda.chain.values import statements
from tilec.passes.cuda.chain.warps import WarpProducts
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.ring import CopyRing, carried_loop
from tilec.passes.loops import sum_of


class ReducedWarps(WarpProducts):
    """A contraction whose result is only reduced, in steps of its inner dimension."""

    def __init__(self, block: ChainBlock, thread: Thread):
        super().__init__(block, thread)
        chain, self.kept_left = block.chain, bool(block.options.kept_left)
        inner = block.sizes[chain.inner]
        self.depth = reduction_depth(block.options.unit, inner, BYTES[block.options.multiplicand])
        self.steps = -(-inner // self.depth)
        end = {chain.inner: mlir.index(inner - 1)} if inner % self.depth else {}
        held, copies = (self.steps * self.depth, 1) if self.kept_left else (self.depth, self.stages)
        self.left_tiles = CopiedTiles(block, thread, chain.left, block.box | {chain.inner: held}, copies, block.limits() | end)
        step = {chain.between: block.bn, chain.inner: self.depth}
        self.right_tiles = CopiedTiles(block, thread, chain.right, step, self.stages, self.ends | end)
        self.parts = PartialStates(self.fragments)
        self.begin, last = (sum_of([(n, self.steps)]) for n in (self.fragments.tiles.begin, self.fragments.tiles.end))
        self.ring = CopyRing(self.stages, last)

    def run(self) -> None:
        scores = self.chain.scores
        with ir.Location.name(scores.name, scores.operation.location):
            self.fragments.clear()
            if self.kept_left:
                self.left_tiles.copy(mlir.index(0), {})
            for n in range(self.stages - 1):
                self._start(sum_of([(self.begin, 1)], n))
            for first, end, masked in self.fragments.tiles.ranges(mlir.index(0)):
                with carried_loop(first, end, []) as (number, _):
                    self._multiply(number)
                    self.fragments.weigh(number, masked)
            self.fragments.states.complete()
        self.parts.store()

    def _start(self, position: ir.Value) -> None:
        """Starts the copies of a step, numbered through all tiles, if there is one."""
        self.ring.start(position, lambda: self._copy(position))

    def _copy(self, position: ir.Value) -> None:
        stage, steps = self.ring.stage_of(position), mlir.index(self.steps)
        number, step = arith.divui(position, steps), arith.remui(position, steps)
        k = arith.muli(step, mlir.index(self.depth))
        if not self.kept_left:
            self.left_tiles.copy(stage, {self.chain.inner: k})
        first = self.fragments.tiles.first_line(number)
        self.right_tiles.copy(stage, {self.chain.between: first, self.chain.inner: k})

    def _multiply(self, number: ir.Value) -> None:
        """The scores of one tile."""
        zero = mlir.index(0)
        with statements([self.chain.scores]):
            clear(self.fragments.products[0])
            with carried_loop(zero, mlir.index(self.steps), [], name="step") as (step, _):
                position = sum_of([(number, self.steps), (step, 1)])
                self.ring.wait(self.stages - 2)
                gpu.BarrierOp()
                self._start(sum_of([(position, 1)], self.stages - 1))
                stage = self.ring.stage_of(position)
                left = (zero, sum_of([(step, self.depth)])) if self.kept_left else (stage, zero)
                self.add_scores((self.left_tiles, *left), (self.right_tiles, stage), self.depth)
