"""The engine of contractions on Hopper whose result is only reduced along its columns.

    if warpgroup 0 { for tile of j { for step of k { wait until slot is empty; start the copies of a[k], b[j, k] into it } } }
    else { for tile of j { for step of k { s += a[k] b[j, k] }
                           states from s } }

The rows' factor stays in shared memory where there is room for it, so that only the other one comes in steps. The warpgroups
then alternate (ping-pong), so that the products of one run during the arithmetic of the other. With many steps of k the
products outweigh that arithmetic, and the warpgroups share each step as they do in a plain contraction.
"""

from __future__ import annotations

from tilec.core import locations, mlir, opcodes
from tilec.core.hardware import LINE, ROWS
from tilec.core.mlir import arith, ir
from tilec.core.opcodes import WarpgroupProduct
from tilec.kernels.matrix import BYTES
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.values import statements
from tilec.passes.cuda.chain.warpgroups import LOADING, Engine, FactorTiles
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.ring import Ring, carried_loop
from tilec.passes.cuda.roles import begin_ping_pong
from tilec.passes.loops import sum_of


class ReducedWarpgroups(Engine):
    """With no second contraction. Tiles of both factors come in steps, or of the right one alone."""

    def __init__(self, block: ChainBlock, thread: Thread):
        super().__init__(block, thread)
        chain, options = block.chain, block.options
        self.depth, self.kept_left = LINE // BYTES[options.multiplicand], bool(options.kept_left)
        self.steps = -(-block.sizes[chain.inner] // self.depth)
        self.majors = [x.contiguous == chain.inner for x in (chain.left, chain.right)]
        held = (self.steps * self.depth, 1) if self.kept_left else (self.depth, options.stages)
        self.left = FactorTiles(chain.left, block.box | {chain.inner: held[0]}, block.subscripts, held[1], self.roles, block.length)
        right = {chain.between: block.bn, chain.inner: self.depth}
        self.right = FactorTiles(chain.right, right, block.subscripts, options.stages, self.roles, block.length)
        self.ring = Ring([self.right] if self.kept_left else [self.left, self.right], options.stages, self.groups)
        self.rows = Ring([self.left], 1, 1) if self.kept_left else None
        self.begin([self.ring, *([self.rows] if self.rows else [])])

    def run(self) -> None:
        self.roles.divide(LOADING, self._load, self._consume)

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self) -> None:
        zero = mlir.index(0)
        if self.rows:
            self.left.load(self.rows, zero, {})
        tiles = self.fragments.tiles
        with carried_loop(tiles.begin, tiles.end, [zero, zero]) as (number, state):
            first = locations.named(self.fragments.tiles.first_line(number), "start")

            def copy(stage: ir.Value, step: ir.Value) -> None:
                k = locations.named(arith.muli(step, mlir.index(self.depth)), "k")
                if not self.rows:
                    self.left.copy(self.ring, stage, {self.chain.inner: k})
                self.right.copy(self.ring, stage, {self.chain.between: first, self.chain.inner: k})

            self.ring.fill(self.steps, state, copy, one=self.roles.one)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _consume(self) -> None:
        zero, tiles, scores = mlir.index(0), self.fragments.tiles, self.chain.scores
        with ir.Location.name(scores.name, scores.operation.location):
            self.fragments.clear()
            if self.rows:
                self.rows.wait_full(zero, zero)
            if self.alternate:
                begin_ping_pong(self.block.function, self.roles)
            state = [zero, zero]
            for first, end, masked in tiles.ranges(zero):
                with carried_loop(first, end, state) as (number, now):
                    self.ring.multiply(self.steps, now, self.thread, self._product, self._wait, alternate=self.alternate)
                    self.fragments.weigh(number, masked)
            self.fragments.states.complete()
        self.parts.store()

    def _wait(self, running: int) -> None:
        self.wait(running, self.fragments.products[0])

    def _product(self, stage: ir.Value, step: ir.Value) -> None:
        """s (+)= the rows of this warpgroup times a tile of the right factor; from zero in the first step."""
        zero = mlir.index(0)
        at = zero if self.kept_left else stage
        if self.majors[0]:
            terms = [(self.half, 1), *([(step, self.block.bm)] if self.kept_left else [])]
            left = self.left.lines(at, sum_of(terms), ROWS)
        else:  # a slab for each warpgroup
            terms = [(self.roles.consumer, self.left.box_lines), *([(step, self.depth)] if self.kept_left else [])]
            left = self.left.lines(at, sum_of(terms), self.depth)
        product = WarpgroupProduct(self.block.bn, self.depth, self.block.options.multiplicand, *self.majors)
        with statements([self.chain.scores]):
            right = self.right.lines(stage, zero)
            opcodes.call(self.block.function, product, [self.fragments.products[0], left, right, step])
