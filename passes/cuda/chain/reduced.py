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
from tilec.core.mlir import arith, gpu, ir
from tilec.core.opcodes import WarpgroupProduct, WarpgroupWait
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.fragments import Fragments, Terms
from tilec.passes.cuda.chain.parts import SharedRows
from tilec.passes.cuda.chain.values import statements
from tilec.passes.cuda.chain.warpgroups import REGISTERS, FactorTiles
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.ring import Ring, Roles, begin_ping_pong, carried_loop, make_ready, ping_pong
from tilec.passes.loops import sum_of, when


class ReducedWarpgroups:
    """Warpgroup 0 loads; the others multiply, each 64 of the block's rows."""

    def __init__(self, block: ChainBlock, thread: Thread):
        self.block, self.chain, self.thread, options = block, block.chain, thread, block.options
        self.roles = roles = Roles(thread, options.warpgroups)
        self.groups, self.kept_left = options.warpgroups, bool(options.kept_left)
        chain, self.depth = block.chain, LINE * 8 // mlir.type_of(options.multiplicand).width
        inner = block.sizes[chain.inner]
        self.steps = -(-inner // self.depth)
        self.majors = [x.contiguous == chain.inner for x in (chain.left, chain.right)]
        held = (self.steps * self.depth, 1) if self.kept_left else (self.depth, options.stages)
        self.left = FactorTiles(chain.left, block.box | {chain.inner: held[0]}, block.subscripts, held[1])
        right = {chain.between: block.bn, chain.inner: self.depth}
        self.right = FactorTiles(chain.right, right, block.subscripts, options.stages)
        self.ring = Ring([self.right] if self.kept_left else [self.left, self.right], options.stages, self.groups)
        self.rows = Ring([self.left], 1, 1) if self.kept_left else None
        self.half = arith.muli(roles.consumer, mlir.index(ROWS)) if self.groups > 1 else mlir.index(0)
        self.fragments = Fragments(block, thread, self._warp_row)
        self.shared = SharedRows(self.fragments)
        make_ready([self.ring, *([self.rows] if self.rows else [])], thread)
        gpu.BarrierOp()

    def _warp_row(self) -> Terms:
        return [(self.half, 1), (arith.andi(self.thread.warp, mlir.index(3)), 16)]

    def run(self) -> None:
        self.roles.divide(REGISTERS, self._load, self._consume)

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self) -> None:
        zero = mlir.index(0)
        if self.rows:
            self.left.load(self.rows, zero, {})
        tiles = self.fragments.tiles
        with carried_loop(tiles.begin, tiles.end, [zero, zero]) as (number, state):
            first = locations.named(self.fragments.first_line(number), "start")
            with carried_loop(zero, mlir.index(self.steps), state, name="step") as (step, now):
                stage, phase = now
                k = locations.named(arith.muli(step, mlir.index(self.depth)), "k")
                self.ring.wait_empty(stage, phase)
                self.ring.expect(stage)
                if not self.rows:
                    self.left.copy(self.ring, stage, {self.chain.inner: k})
                self.right.copy(self.ring, stage, {self.chain.between: first, self.chain.inner: k})
                now[:] = self.ring.next(stage, phase)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _consume(self) -> None:
        zero, tiles, scores = mlir.index(0), self.fragments.tiles, self.chain.scores
        with ir.Location.name(scores.name, scores.operation.location):
            self.fragments.clear()
            if self.rows:
                self.rows.wait_full(zero, zero)
            if self.block.options.ping_pong:
                begin_ping_pong(self.block.function, self.roles)
            state = [zero, zero]
            for first, end, masked in tiles.ranges(zero):
                with carried_loop(first, end, state) as (number, now):
                    self._multiply(now)
                    self.fragments.weigh(number, masked)
            self.shared.complete(self.fragments.store)

    def _multiply(self, state: list[ir.Value]) -> None:
        """The scores of one tile. A product may still run when the next is issued; then the stage before is known to be free."""
        zero, scores = mlir.index(0), self.fragments.scores
        if self.block.options.ping_pong:
            ping_pong(self.block.function, self.roles, "sync")
        whole = [*state, zero]
        with carried_loop(zero, mlir.index(self.steps), whole, name="step") as (step, now):
            stage, phase, before = now
            self.ring.wait_full(stage, phase)
            self._product(stage, step)
            self._wait(1, scores)
            with when(arith.cmpi(arith.CmpIPredicate.sgt, step, zero)):
                self.ring.release(before, self.thread)
            now[:] = [*self.ring.next(stage, phase), stage]
        if self.block.options.ping_pong:
            ping_pong(self.block.function, self.roles, "arrive")
        self._wait(0, scores)
        self.ring.release(whole[2], self.thread)
        state[:] = whole[:2]

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
            opcodes.call(self.block.function, product, [self.fragments.scores, left, right, step])

    def _wait(self, running: int, scores: ir.Value) -> None:
        """Until at most so many products run."""
        opcodes.call(self.block.function, WarpgroupWait(running), [scores])
