"""The engine of contraction chains by `mma.sync`: all threads copy tiles by cp.async, and each warp multiplies its own rows.

    start the copies of q, k[0], v[0], ...
    for tile of j { wait for k[j]; barrier; start the copies of a later v;  s = q k[j]
                    wait for v[j]; barrier; start the copies of a later k;  states and weights from s; o rescaled; o += w v[j] }

Tiles of k and of v follow one another in a ring: while one is multiplied, those after it arrive. A warp has 16 or 32 rows and
all columns, so that no warp needs what another computes. It needs no tensor maps, and takes factors with any strides.

Sources: Dao, "FlashAttention-2" (2023), for the division of work; PTX ISA, "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from functools import partial

from tilec.core import mlir
from tilec.core.mlir import arith, gpu, ir
from tilec.kernels.matrix import BYTES
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.copied_tiles import CopiedTiles
from tilec.passes.cuda.chain.fragments import Fragments, Sums, Terms, clear
from tilec.passes.cuda.chain.split import PartialStates
from tilec.passes.cuda.chain.values import statements
from tilec.passes.cuda.chain.whole_numbers import WholeNumbers
from tilec.passes.cuda.contraction.fragments import load_fragment, multiply_fragments, word_registers
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.ring import CopyRing, carried_loop
from tilec.passes.loops import loop, sum_of


def depth_at_once(kind: str) -> int:
    """Of k, that one instruction multiplies."""
    return 32 // BYTES[kind]


class WarpProducts:
    """Products by the warps of a block, each of which has `high` times 16 of its rows."""

    def __init__(self, block: ChainBlock, thread: Thread):
        self.block, self.chain, self.thread = block, block.chain, thread
        self.high, self.stages = block.bm // (16 * block.options.warps), block.options.stages
        self.fragments = Fragments(block, thread, self._warp_row, self.high)
        kind = block.options.multiplicand
        self.left, self.right = word_registers(4 * self.high, "%left", kind), word_registers(4, "%right", kind)
        self.ends = block.ends()

    def _warp_row(self) -> Terms:
        return [(self.thread.warp, 16 * self.high)]

    def add_scores(
        self, left: tuple[CopiedTiles, ir.Value, ir.Value], right: tuple[CopiedTiles, ir.Value], depth: int,
        rolled: bool = False, number: int = 0,
    ) -> None:  # fmt: skip
        """s += the rows of this warp times a tile of the right factor, over so many of the inner dimension: of the first
        contraction of this number. `left`: tiles, which one, and the first of its inner dimension; `right`: tiles and which one."""
        (rows, which, begin), (columns, slot) = left, right
        inner, sums = self.chain.firsts[number].inner, self.fragments.products[number]
        at_once = depth_at_once(self.block.options.multiplicand)
        with loop(depth // at_once, rolled=rolled, name="depth") as step:
            k = arith.muli(step, mlir.index(at_once))
            with loop(self.high, name="high") as i:
                row, word = sum_of([*self._warp_row(), (i, 16)]), arith.muli(i, mlir.index(4))
                at, major = sum_of([(begin, 1), (k, 1)]), rows.across == inner
                load_fragment(rows, which, row, at, self.left, word, self.thread, k_major=major, rows_first=True)
            with loop(self.block.bn // 16, name="columns") as j:
                first, major = arith.muli(j, mlir.index(16)), columns.across == inner
                load_fragment(columns, slot, first, k, self.right, mlir.index(0), self.thread, k_major=major, rows_first=False)
                self.multiply(sums, j, self.left, [], self.right)

    def multiply(self, sums: ir.Value, j: ir.Value, left: ir.Value, at: Terms, right: ir.Value, words: int = 4) -> None:
        """Sums of 16 columns += the words of the left factor's fragments `at`, each so many `words` after the one above, times
        the right factor's."""
        with loop(2, name="eight") as n, loop(self.high, name="high") as i:
            position = [sum_of([(j, 2), (n, 1)]), arith.muli(i, mlir.index(2)), mlir.index(0)]
            word = sum_of([*at, (i, words)])
            multiply_fragments(sums, position, (left, word), (right, arith.muli(n, mlir.index(2))))


class Warps(WarpProducts):
    """The engine of two contractions."""

    def __init__(self, block: ChainBlock, thread: Thread):
        super().__init__(block, thread)
        chain, sizes = block.chain, block.sizes
        tiles = partial(CopiedTiles, block, thread)
        step, inner = {chain.between: block.bn}, [{x.inner: sizes[x.inner]} for x in chain.firsts]
        self.q_tiles = [tiles(x.left, block.box | own, 1, block.limits()) for x, own in zip(chain.firsts, inner)]
        self.k_tiles = [tiles(x.right, step | own, self.stages, self.ends) for x, own in zip(chain.firsts, inner)]
        self.v_tiles = [tiles(p.values, step | {p.columns: sizes[p.columns]}, self.stages, self.ends) for p in chain.products]
        self.values = self.right if block.options.of_values is None else word_registers(4, "%values", block.options.of_values)
        self.parts = PartialStates(self.fragments)
        self.ring = CopyRing(self.stages, self.fragments.tiles.end)

    def run(self) -> None:
        with statements(p.total for p in self.chain.products):
            self.fragments.clear()
            self.fragments.traverse(lambda _: self._loop_over_tiles(), [], False)
            if self.block.options.weight_terms > 1:
                WholeNumbers(self.fragments).compute_anew()
        self.parts.store()

    def _loop_over_tiles(self) -> None:
        begin = self.fragments.tiles.begin
        for tiles in self.q_tiles:
            tiles.copy(mlir.index(0), {})
        for n in range(2 * self.stages - 1):
            self._start(self.v_tiles if n % 2 else self.k_tiles, sum_of([(begin, 1)], n // 2), exists=n < 2)
        for first, end, masked in self.fragments.tiles.ranges(mlir.index(0)):
            with carried_loop(first, end, []) as (number, _):
                self._step(number, masked)

    def _step(self, number: ir.Value, masked: bool) -> None:
        own, slot = self.fragments, self.ring.stage_of(number)
        self._await()
        self._start(self.v_tiles, sum_of([(number, 1)], self.stages - 1), exists=self.stages == 1)
        self._scores(slot)
        self._await()
        self._start(self.k_tiles, sum_of([(number, 1)], self.stages))
        own.weigh(number, masked)
        own.rescale()
        own.pack()
        self._product(slot)

    # ---- copies --------------------------------------------------------------------------------------------

    def _start(self, factors: list[CopiedTiles], number: ir.Value, exists: bool = False) -> None:
        """Starts the copies of the factors' tiles of this number, if there are such."""

        def copy() -> None:
            stage, at = self.ring.stage_of(number), {self.chain.between: self.fragments.tiles.first_line(number)}
            for tiles in factors:
                tiles.copy(stage, at)

        self.ring.start(number, copy, exists)

    def _await(self) -> None:
        """Until the next tile is there for all threads, which then have read the one before the last."""
        self.ring.wait(2 * self.stages - 2)
        gpu.BarrierOp()

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _scores(self, slot: ir.Value) -> None:
        """s = the rows of this warp times a tile of the second factor, of each first contraction."""
        own, zero = self.fragments, mlir.index(0)
        for n, (first, depth) in enumerate(zip(self.chain.firsts, own.depths)):
            with statements([first.total]):
                clear(own.products[n])
                tight = self.high > 1 and depth > 64  # addresses of further steps would take the last registers
                self.add_scores((self.q_tiles[n], zero, zero), (self.k_tiles[n], slot), depth, rolled=tight, number=n)

    def _product(self, slot: ir.Value) -> None:
        """o += the weights, each in its parts, times a tile of the third factor, of each product."""
        for tiles, results in zip(self.v_tiles, self.fragments.results):
            self._add(tiles, slot, results)

    def _add(self, tiles: CopiedTiles, slot: ir.Value, r: Sums) -> None:
        own, at_once = self.fragments, depth_at_once(self.block.options.weighted)
        steps = self.block.bn // at_once
        # else LLVM leaves the loop, and weights that it subscripts are memory
        unrolled = self.block.options.weight_terms > 1 or at_once < 16
        with loop(steps, unroll=unrolled, name="depth") as step, loop(r.wide // 16, name="columns") as j:
            k, first = arith.muli(step, mlir.index(at_once)), arith.muli(j, mlir.index(16))
            zero = mlir.index(0)
            load_fragment(tiles, slot, first, k, self.values, zero, self.thread, k_major=False, rows_first=False, by_columns=True)
            with loop(self.block.options.weight_terms, name="part") as term:
                self.multiply(r.sums, j, r.weights, [(term, own.words), (step, 4)], self.values, 4 * steps)
