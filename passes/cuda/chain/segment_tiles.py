"""The tiles of j that comparisons of data leave a block, such as `seg[i] == seg[j]`: found before the first tile is loaded.

    for tile { least and largest of seg[j] in the tile; needed = both ranges, this and that of the block's rows, may agree }
    list = the needed tiles, the last first

Warps take tiles in turn; one thread makes the list. What a comparison asks of two ranges holds wherever it holds for a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.analysis.chain_masks import Match
from tilec.analysis.expression import Expr
from tilec.core import locations, mlir
from tilec.core.hardware import WARP
from tilec.core.mlir import arith, gpu, ir, memref, scf
from tilec.passes.cuda.chain.values import At, Values, as_index, combine, shuffle
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import SHARED, local
from tilec.passes.loops import Count, plus, sum_of, when

LIMIT = 1 << 31  # numbers beyond are as good as the last one within
Range = tuple[ir.Value, ir.Value]


@dataclass(frozen=True)
class Span:
    """Tiles from `low` to `high`, of which those from `full_low` to `full_high` no mask cuts."""

    low: ir.Value
    high: ir.Value
    full_low: ir.Value
    full_high: ir.Value


class TileList:
    """The needed tiles of a span, the last first: `count` of them. `cut` lie above the full ones, `below` above the tiles that are
    below those."""

    def __init__(
        self, matches: Sequence[Match], values: Values, thread: Thread, threads: int, rows: Callable[[ir.Value], dict], height: int,
        between: int, length: Count, size: int, most: int, span: Span,
    ):  # fmt: skip
        """`most`: as many tiles as there may be."""
        self.values, self.thread, self.span, self.size = values, thread, span, size
        self.between, self.length, self.rows, self.height = between, length, rows, height
        self.i32 = ir.IntegerType.get_signless(32)
        self.most = most
        self.list = memref.AllocOp(local([self.most + 3], self.i32, SHARED), [], []).result
        locations.named(self.list, "needed_tiles")
        own = [self._range(m.row, height, self._row) for m in matches]
        first = arith.addi(span.low, thread.warp)
        tiles = scf.ForOp(first, arith.maxsi(first, span.high), mlir.index(threads // WARP))
        locations.named(tiles, "tile")
        with ir.InsertionPoint(tiles.body):
            self._look(tiles.induction_variable, matches, own)
            scf.YieldOp([])
        gpu.BarrierOp()
        with when(arith.cmpi(arith.CmpIPredicate.eq, thread.number, mlir.index(0))):
            self._gather()
        gpu.BarrierOp()
        self.count, self.cut, self.below = (self._load(mlir.index(self.most + n)) for n in range(3))

    def tile(self, number: ir.Value) -> ir.Value:
        return self._load(number)

    def _load(self, at: ir.Value) -> ir.Value:
        return as_index(memref.LoadOp(self.list, [at]).result)

    def _row(self, n: ir.Value) -> At:
        return At(self.rows(n), mlir.index(0))

    def _look(self, tile: ir.Value, matches: Sequence[Match], own: list[Range]) -> None:
        """Whether a tile is needed: 1 or 0, at its place from the last tile down."""
        start = arith.muli(tile, mlir.index(self.size))
        end = mlir.index(plus(self.length, -1))

        def column(n: ir.Value) -> At:
            return At({self.between: arith.minsi(arith.addi(start, n), end)}, mlir.index(0))

        needed: ir.Value | None = None
        for match, (least, most) in zip(matches, own):
            low, high = self._range(match.column, self.size, column)
            at_most = arith.CmpIPredicate.sle
            asked = [(least, high)] * (match.at_most or match.equal) + [(low, most)] * (match.at_least or match.equal)
            for a, b in asked:
                holds = arith.cmpi(at_most, a, b)
                needed = holds if needed is None else arith.andi(needed, holds)
        assert needed is not None, "each match asks for a bound"
        with when(arith.cmpi(arith.CmpIPredicate.eq, self.thread.lane, mlir.index(0))):
            at = sum_of([(self.span.high, 1), (tile, -1)], -1)
            memref.StoreOp(arith.extui(self.i32, needed), self.list, [at])

    def _range(self, x: Expr, count: int, locate: Callable[[ir.Value], At]) -> Range:
        """The least and the largest of `count` numbers, by a warp."""
        ends: list[ir.Value] = []
        for k in range(-(-count // WARP)):
            n = sum_of([(self.thread.lane, 1)], WARP * k)
            n = n if WARP * (k + 1) <= count else arith.minsi(n, mlir.index(count - 1))
            wide = as_index(self.values.build(x, locate(n)))
            value = arith.minsi(arith.maxsi(wide, mlir.index(-LIMIT)), mlir.index(LIMIT - 1))
            value = arith.index_cast(self.i32, value)
            ends = [combine(op, a, value) for op, a in zip(("arith.minsi", "arith.maxsi"), ends or [value] * 2)]
        for distance in (1, 2, 4, 8, 16):
            ends = [combine(op, a, shuffle(a, distance)) for op, a in zip(("arith.minsi", "arith.maxsi"), ends)]
        return ends[0], ends[1]

    def _gather(self) -> None:
        """One thread: the needed tiles from the last on, in the place of what was found of them."""
        span, zero = self.span, mlir.index(0)
        tiles = scf.ForOp(zero, arith.subi(span.high, span.low), mlir.index(1), [zero, zero, zero])
        locations.named(tiles, "from_the_last", "count", "cut", "below")
        with ir.InsertionPoint(tiles.body):
            n, (count, cut, below) = tiles.induction_variable, tiles.inner_iter_args
            tile = sum_of([(span.high, 1), (n, -1)], -1)
            found = self._load(n)
            memref.StoreOp(arith.index_cast(self.i32, tile), self.list, [count])
            more = [found]
            for least in (span.full_high, span.full_low):
                above = arith.cmpi(arith.CmpIPredicate.sge, tile, least)
                more.append(arith.select(above, found, zero))
            scf.YieldOp([arith.addi(a, b) for a, b in zip((count, cut, below), more)])
        for k, value in enumerate(tiles.results):
            memref.StoreOp(arith.index_cast(self.i32, value), self.list, [mlir.index(self.most + k)])
