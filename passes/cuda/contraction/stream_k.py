"""Stream-k: all blocks share the steps along k of the first tiles equally, and the sums of a tile's parts meet in memory.

    tiles of 4 steps, 3 of which 4 blocks share:    |0 0 0 1|1 1 2 2|2 3 3 3|

    for tile, part of its steps {
      c = a[part] * b[part]
      if the part begins within the tile { sums[block] = c; flag[block] = 1 }
      else { for other of the tile's further blocks { wait for flag[other]; c += sums[other]; flag[other] = 0 }
             c's epilogue } }
    tiles that remain are whole, as many for each block

The sums of a tile are added in the order of k, however long blocks take, so that results are the same from run to run. A block
stores at most one part, before it waits for any. It waits for blocks with lower numbers only: as those start first, they are
running or finished, and never wait for it in turn. Blocks are counted from the last one for that.

Source: Osama, Merrill, Cecka, Garland, Owens, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
Multiplication on the GPU" (PPoPP 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tilec.core import locations, mlir
from tilec.core.hardware import WARP, WARPGROUP
from tilec.core.mlir import arith, gpu, ir, memref, scf, vector
from tilec.kernels import WarpgroupContraction
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.contraction.result_boxes import synchronise
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.cuda.messages import add_flags, add_memory, fence, observe, publish, take_back, wait
from tilec.passes.cuda.ring import carried_loop
from tilec.passes.loops import loop, sum_of, when

EQUAL = arith.CmpIPredicate.eq


@dataclass(frozen=True)
class Part:
    """A block's steps of a tile: the tile's number, the first step, the one behind the last, and how many they are. `further`: the
    blocks that have the steps behind them."""

    tile: ir.Value
    first: ir.Value
    end: ir.Value
    count: ir.Value
    further: ir.Value


class StreamK:
    """The parts of a block, or of a cluster of blocks, `first` of `blocks`. `tiles`: of each, of which the first `shared` have
    `steps` steps that all share. Steps that are shared are numbered from tile to tile."""

    def __init__(self, options: WarpgroupContraction, first: ir.Value, blocks: int, tiles: int, steps: int):
        self.options, self.blocks, self.tiles, self.steps = options, blocks, tiles, steps
        self.size = options.cluster[0] * options.cluster[1]
        self.shared = options.stream_k // self.size
        self.least, self.more = divmod(self.shared * steps, blocks)  # steps of each, and the blocks that have one more
        self.number = locations.named(sum_of([(first, -1)], blocks - 1), "from_last")

    def _begin(self, number: ir.Value) -> ir.Value:
        """A block's first step."""
        if not self.more:
            return sum_of([(number, self.least)])
        return sum_of([(number, self.least), (arith.minsi(number, mlir.index(self.more)), 1)])

    def _owner(self, step: ir.Value) -> ir.Value:
        """The block that has a step."""
        if not self.more:
            return arith.divui(step, mlir.index(self.least))
        of_longer, first = arith.divui(step, mlir.index(self.least + 1)), self.more * (self.least + 1)
        behind = arith.divui(arith.maxsi(sum_of([(step, 1)], -first), mlir.index(0)), mlir.index(self.least))
        longer = arith.cmpi(arith.CmpIPredicate.slt, step, mlir.index(first))
        return arith.select(longer, of_longer, sum_of([(behind, 1)], self.more))

    @contextmanager
    def parts(self, state: list[ir.Value]) -> Iterator[tuple[Part, list[ir.Value]]]:
        """Of a block, one after another; a loop that carries stages and phases. Registers are scarce there: the loop's variable is
        the number of a whole tile, with iterations before the first one for parts of others, and few values tell what a part is."""
        number, steps, size = self.number, mlir.index(self.steps), self.blocks
        begin, end = (self._begin(sum_of([(number, 1)], n)) for n in (0, 1))
        last = arith.divui(sum_of([(end, 1)], -1), steps)
        count = sum_of([(last, 1), (arith.divui(begin, steps), -1)], 1)
        most = (self.least + self.steps - 1) // self.steps + 1  # parts of shared tiles
        first = sum_of([(number, 1), (count, -size)], self.shared + size * most)
        carried = [*state, begin]
        behind, names = mlir.index(self.tiles + size * most), ("stage", "phase", "next_step")
        with carried_loop(first, behind, carried, size, "part", names) as (whole, now):
            *inner, at = now
            at = _below(at, self.shared * self.steps + 1)
            is_shared = arith.cmpi(arith.CmpIPredicate.slt, whole, mlir.index(self.shared + size * most))
            tile = arith.select(is_shared, arith.divui(at, steps), sum_of([(whole, 1)], -size * most))
            tile = locations.named(_below(tile, self.tiles), "tile")
            start = sum_of([(tile, self.steps)])
            low = arith.select(is_shared, sum_of([(at, 1), (start, -1)]), mlir.index(0))
            high = arith.select(is_shared, arith.minsi(sum_of([(end, 1), (start, -1)]), steps), steps)
            owner = self._owner(sum_of([(start, 1)], self.steps - 1))
            cut = arith.cmpi(arith.CmpIPredicate.slt, high, steps)
            further = arith.select(cut, sum_of([(owner, 1), (number, -1)]), mlir.index(0))
            yield Part(tile, low, high, sum_of([(high, 1), (low, -1)]), further), inner
            now[:] = [*inner, sum_of([(start, 1), (high, 1)])]
        state[:] = carried[:-1]


def _below(number: ir.Value, most: int) -> ir.Value:
    """A number that is known to be from 0 to below `most`, so that 32 bits are enough for divisions of it."""
    return arith.andi(number, mlir.index((1 << (most - 1).bit_length()) - 1))


class Parts:
    """The sums of parts of tiles, in memory: those of each block, as its threads hold them, and a flag for each of its warps."""

    def __init__(self, function: ir.Operation, stream_k: StreamK, thread: Thread, sums: ir.Value):
        self.stream_k, self.sums = stream_k, sums
        type_ = ir.MemRefType(sums.type)
        threads, blocks = WARP * stream_k.options.warps[0], stream_k.blocks * stream_k.size
        wide, halves, pair = type_.shape
        shape = [blocks, wide, halves, threads, pair]
        add_memory([function], {"parts": (shape, type_.element_type)})
        add_flags(function, [blocks, stream_k.options.warps[0]], "flags")
        *_, self.memory, self.flags = mlir.entry(function).arguments
        self.block = gpu.BlockIdOp(gpu.Dimension.x).result
        self.warp, self.lane = sum_of([(thread.warp, 1)], -WARPGROUP // WARP), thread.lane
        self.thread = sum_of([(thread.number, 1)], -WARPGROUP)
        self.pair = registers([pair], "%further_sums", type_.element_type)

    @contextmanager
    def complete(self, part: Part) -> Iterator[None]:
        """What follows is done where the sums are those of the whole tile, after the others' sums have been added."""
        begins = arith.cmpi(EQUAL, part.first, mlir.index(0))
        choice = scf.IfOp(locations.named(begins, "begins_tile"), has_else=True)
        with ir.InsertionPoint(choice.else_block):
            self._store()
            scf.YieldOp([])
        with ir.InsertionPoint(choice.then_block):
            with carried_loop(mlir.index(0), part.further, [], name="further") as (n, _):
                self._add(sum_of([(self.block, 1), (n, -self.stream_k.size)], -self.stream_k.size))
            yield
            scf.YieldOp([])

    def _store(self) -> None:
        def store(at: list[ir.Value], where: list[ir.Value]) -> None:
            vector.StoreOp(vector.LoadOp(self._type, self.sums, at).result, self.memory, where)

        self._each(store, self.block)
        synchronise()
        fence()
        self._by_one(lambda: publish(mlir.constant(0, ir.IntegerType.get_signless(32)), self.flags, [self.block, self.warp]))

    def _add(self, block: ir.Value) -> None:
        look = partial(observe, self.flags, [block, self.warp])
        wait(look(), look)
        fence()
        plus = arith.addi if isinstance(self._type.element_type, ir.IntegerType) else arith.addf

        def add(at: list[ir.Value], where: list[ir.Value]) -> None:
            vector.StoreOp(vector.LoadOp(self._type, self.memory, where).result, self.pair, [mlir.index(0)])
            with loop(self._type.shape[0], name="pair") as lane:
                total = plus(memref.LoadOp(self.sums, [*at[:-1], lane]).result, memref.LoadOp(self.pair, [lane]).result)
                memref.StoreOp(total, self.sums, [*at[:-1], lane])

        self._each(add, block)
        synchronise()
        self._by_one(lambda: take_back(self.flags, [block, self.warp]))

    @property
    def _type(self) -> ir.VectorType:
        type_ = ir.MemRefType(self.sums.type)
        return ir.VectorType.get(type_.shape[-1:], type_.element_type)

    def _each(self, act: Callable[[list[ir.Value], list[ir.Value]], object], block: ir.Value) -> None:
        """`act(at, where)` for each pair of this thread's sums, and where a block's lie in memory."""
        wide, halves, _ = ir.MemRefType(self.sums.type).shape
        with loop(wide, name="fragment") as j, loop(halves, name="half") as half:
            act([j, half, mlir.index(0)], [block, j, half, self.thread, mlir.index(0)])

    def _by_one(self, action: Callable[[], object]) -> None:
        first = arith.cmpi(EQUAL, self.lane, mlir.index(0))
        with when(locations.named(first, "is_first_lane")):
            action()
