"""Fragments and states of a thread of a contraction chain: what is computed on them between the products, which an engine makes.

    engine: s = q k[j]       here: m, ... from s; s = weights from s, m; l from s; w = s in 16 bits
    engine: o += w v[j]            o, l rescaled; at the end results from o, l

Scores, sums and weights are fragments in registers, which both kinds of matrix instructions lay out alike: a thread has two
rows (eight apart) of every 16 of its warp's, and in each of every 8 columns two adjacent ones. The registers of a score's fragment
are those of a left factor's, so weights never pass through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from tilec.analysis.carried import Carried
from tilec.analysis.chain import Product
from tilec.analysis.chain_masks import Linear
from tilec.analysis.expression import Expr
from tilec.analysis.neighbours import Neighbours
from tilec.core import locations, mlir
from tilec.core.extents import highest, lowest
from tilec.core.mlir import arith, ir, memref, vector
from tilec.cost.chain import product_depth
from tilec.cost.model import round_up
from tilec.kernels.matrix import BYTES
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.exchange import Exchange
from tilec.passes.cuda.chain.masks import Tiles
from tilec.passes.cuda.chain.results import Results
from tilec.passes.cuda.chain.segment_tiles import Span, TileList
from tilec.passes.cuda.chain.states import ROOM, SLACK, States
from tilec.passes.cuda.chain.values import (
    At,
    Values,
    halves,
    pairs,
    rows_of,
    selected,
    statements,
)
from tilec.passes.cuda.chain.weights import Packer, exclude
from tilec.passes.cuda.contraction.fragments import word_registers
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import registers, root
from tilec.passes.cuda.ring import carried_loop
from tilec.passes.loops import loop, sum_of, when

Terms = list[tuple[ir.Value, int]]


def clear(fragments: ir.Value) -> None:
    """Fragments of zeros."""
    type_ = ir.MemRefType(fragments.type)
    with loop(type_.shape[0], name="fragment") as j, pairs(rows_of(fragments)) as (half, lane):
        memref.StoreOp(mlir.constant(0, type_.element_type), fragments, [j, half, lane])


def values_of(block: ChainBlock) -> Values:
    """Of a block's elements."""
    return Values(block.limits() | block.ends(), block.largest)


def tiles_of(block: ChainBlock, values: Values, find: Callable[[Span], TileList] | None = None) -> Tiles:
    """The tiles of a block's elements."""
    heights = {d: block.sizes[d] for d in block.chain.rows}
    least = -(-lowest(block.extent) // block.bn)
    return Tiles(block.chain, values, block.length, block.even, least, heights, block.bn, find)


@dataclass(frozen=True)
class Sums:
    """The fragments of the results of a product: `sums` of `wide` columns, and `weights`, a left factor's words. `added`: a step's
    sums, which are others where they leave the matrix units after each."""

    product: Product
    wide: int
    sums: ir.Value
    weights: ir.Value
    added: ir.Value


class Fragments:
    """Fragments and states of a thread. `warp_row` makes the first of its warp's rows in the block, as a sum; a warp has `high`
    times 16 rows.

    `products` are the fragments of the results of a tile's first contractions. What all else reads is in `scores`, which are the
    first of them if that is f32; weights take the places of these, too. `results` are those of the last contractions, and `packers`
    make the words of their weights.
    """

    def __init__(self, block: ChainBlock, thread: Thread, warp_row: Callable[[], Terms], high: int = 1):
        self.block, self.chain, self.thread, self.bn = block, block.chain, thread, block.bn
        chain, sizes = self.chain, block.sizes
        depth = product_depth(BYTES[block.options.multiplicand])
        self.depths, self.rows = [round_up(sizes[first.inner], depth) for first in chain.firsts], 2 * high
        names = ("%scores", *(f"%scores_{n}" for n in range(2, len(chain.firsts) + 1)))
        kinds, shape = [first.total.term.type for first in chain.firsts], [self.bn // 8, self.rows, 2]
        self.products = [registers(shape, name, kind) for name, kind in zip(names, kinds)]
        self.scores = self.products[0] if kinds[0] == "f32" else registers(shape, "%scaled_scores")
        free = [self.scores, *(tile for tile, kind in zip(self.products[1:], kinds[1:]) if kind == "f32")]
        self.weighed, self.packers, self.results = dict[Expr, ir.Value](), list[Packer](), list[Sums]()
        self.words = self.rows * self.bn * BYTES[block.options.weighted] // 16  # of a product's weights, in one part
        self._allocate_results(free)
        group = thread.group
        self.row = locations.named(sum_of([*warp_row(), (group, 1)]), "row")
        self.column = sum_of([(thread.member, 2)])
        self.values, self.neighbours = values_of(block), Neighbours(chain.between)
        self.tiles = tiles_of(block, self.values, self._needed_tiles if chain.matches else None)
        self.states = States(chain.online, chain.row_states, self.values, self.rows, self._slack())
        self.ahead: dict[Expr, ir.Value] = {}  # what is read of memory before the scores are there

    def _allocate_results(self, free: list[ir.Value]) -> None:
        """Weights take the places of what they are computed of, while some are `free`."""
        options, words = self.block.options, dict[tuple[Expr, bool], ir.Value]()
        for n, p in enumerate(self.chain.products, start=1):
            number, key = f"_{n}" if n > 1 else "", (p.weights, p.values.evens_first)
            if p.weights not in self.weighed:
                own = free.pop(0) if free else registers([self.bn // 8, self.rows, 2], f"%weighed{number}")
                self.weighed[p.weights] = own
            wide = -(-self.block.sizes[p.columns] // 16) * 16
            sums = registers([wide // 8, self.rows, 2], f"%sums{number}")
            if key not in words:
                words[key] = word_registers(options.weight_terms * self.words, f"%weights{number}", options.weighted)
                source, bounded = self.weighed[p.weights], p.weight_bound <= 1
                self.packers.append(Packer(source, words[key], options.weight_terms, bounded, p.values.evens_first))
            # of parts, the units would cut each step's sum
            added = registers([wide // 8, self.rows, 2], "%partial_sums") if p.values.further else sums
            self.results.append(Sums(p, wide, sums, words[key], added))

    def pack(self) -> None:
        """Weights as words of left factors' fragments."""
        for packer in self.packers:
            packer.pack()

    @property
    def multiplied(self) -> list[ir.Value]:
        """The registers that products write, and read."""
        return list(dict.fromkeys([*(r.added for r in self.results), *(r.weights for r in self.results)]))

    def _slack(self) -> int:
        """How far references may lag. Sums of a product are many, and worth a branch around their rescaling. What blocks that share
        rows combine is relative to where their states are."""
        chain, block = self.chain, self.block
        rescaled = [p for p in chain.products if p.carried.rescale is not None]
        if not rescaled or block.parts > 1:
            return 0
        bounded = all(p.weight_bound * 2**SLACK < ROOM for p in rescaled)
        return SLACK if block.options.weighted != "f16" or bounded else 0

    def _needed_tiles(self, span: Span) -> TileList:
        block, chain = self.block, self.chain
        return TileList(
            chain.matches, self.values, self.thread, block.options.block_threads, block.rows_at, block.bm, chain.between,
            block.length, self.bn, -(-highest(block.extent) // self.bn), span,
        )  # fmt: skip

    def clear(self) -> None:
        """States and sums of nothing, while the first tiles arrive."""
        self.block.check(self.thread)
        self.states.clear()
        for r in self.results:
            clear(r.sums)

    def traverse(self, loop_over_tiles: Callable[[list[ir.Value]], None], state: list[ir.Value], carried: bool) -> None:
        """Builds the loop over the block's tiles, passed by where it has none; then completes the states. `carried`: what follows
        takes the `state` that the loop changes."""
        some = None if self.tiles.always else arith.cmpi(arith.CmpIPredicate.sgt, self.tiles.end, self.tiles.begin)
        if some is not None and carried:  # a branch that carries
            once = arith.select(some, mlir.index(1), mlir.index(0))
            with carried_loop(mlir.index(0), once, state, name="once") as (_, now):
                loop_over_tiles(now)
        else:
            with nullcontext() if some is None else when(some):
                loop_over_tiles(state)
        self.states.complete()

    def store(self) -> None:
        """The results, from complete states and sums."""
        block, sums = self.block, {r.product.total.number: r.sums for r in self.results}
        with (mlir.definition(block.outputs[-1].view) or block.function).location:
            Results(block, self.values, sums, self.thread, self.row, self.column, self.rows).store()

    # ---- between the products ------------------------------------------------------------------------------

    def weigh(self, number: ir.Value, masked: bool) -> None:
        """States brought up to date with the scores of the tile of this number; its weights, if any, overwrite them."""
        chain = self.chain
        start = self.tiles.first_line(number)
        locate = partial(self._at, start)
        if chain.score.op != "total":
            with statements(first.total for first in chain.firsts):
                self._score(start)
        if masked and chain.absorbing is not None:
            exclude(chain, self.bounds(), self.scores, self.values, self.block.largest, locate)
            masked = False

        def term(c: Carried, at: At) -> ir.Value:
            return selected(self._exists(at, masked), self.values.build(c.term, at), c.identity)

        self.states.collect(self.bn // 8, locate, term)
        read = [c.total for c in self.states.rows if c.rescale is not None]
        with statements(read) if read else ir.Location.current:
            self._weigh(start, term, masked)

    def _score(self, start: ir.Value) -> None:
        """What all else reads of a score, in the score's place. Memory is read for two adjacent columns at a time where it can
        be."""
        chain, ahead = self.chain, self.ahead
        pairs = {x: registers([2], "%pair", x.type) for x in self._pairs_in_memory() if x not in ahead}
        with loop(self.bn // 8, name="fragment") as j, halves(self.rows) as half:
            at = self._at(start, j, half, mlir.index(0), products=self.products)
            for x, tile in pairs.items():
                vector.StoreOp(self._pair(x, at), tile, [mlir.index(0)])
            with loop(2, unroll=True, name="pair") as lane:
                at = self._at(start, j, half, lane, products=self.products)
                at.known |= {x: memref.LoadOp(tile, [lane]).result for x, tile in pairs.items()}
                at.known |= {x: memref.LoadOp(tile, [j, half, lane]).result for x, tile in ahead.items()}
                memref.StoreOp(self.values.build(chain.score, at), self.scores, [j, half, lane])

    def read_ahead(self, number: ir.Value) -> None:
        """Loads what the scores of the tile of this number read of memory, while they are computed: elements of 16 bits, which
        take the fewest registers."""
        narrow = [x for x in self._pairs_in_memory() if ir.MemRefType(x.key.type).element_type.width == 16]
        if narrow and not self.ahead:
            self.ahead = {x: registers([self.bn // 8, self.rows, 2], "%ahead", x.type) for x in narrow}
            for tile in self.ahead.values():
                tile.owner.attributes["tilec.halves"] = ir.UnitAttr.get()
        start = self.tiles.first_line(number)
        for x, tile in self.ahead.items():
            with loop(self.bn // 8, name="fragment") as j, halves(self.rows) as half:
                position = [j, half, mlir.index(0)]
                vector.StoreOp(self._pair(x, self._at(start, j, half, mlir.index(0))), tile, position)

    def _pair(self, x: Expr, at: At) -> ir.Value:
        """Two neighbours in memory."""
        pair = ir.VectorType.get([2], ir.MemRefType(x.key.type).element_type)
        return vector.LoadOp(pair, x.key, self.values.coordinates(x, at)).result

    def _pairs_in_memory(self) -> list[Expr]:
        """The elements of a score that adjacent columns have side by side."""
        found: dict[Expr, None] = {}
        for x in self.chain.score.leaves:
            if x.op != "element" or x.args or x.own_dims[-1:] != (self.chain.between,):
                continue
            strides, _ = ir.MemRefType(root(x.key).type).get_strides_and_offset()
            even = self.tiles.even and strides[-1] == 1 and all(s % 2 == 0 for s in strides[:-1])
            if even and ir.MemRefType(x.key.type).element_type.width in (16, 32) and len({*x.own_dims}) == len(x.own_dims) > 1:
                found[x] = None
        return list(found)

    def _weigh(self, start: ir.Value, term: Callable[[Carried, At], ir.Value], masked: bool) -> None:
        """Weights, and the sums that read earlier reductions, brought up to date."""
        self.states.rescale()
        rescaled = [c for c in self.states.rows if c.rescale is not None]
        if not self.weighed and len(rescaled) == 1:
            self._add_rescaled(rescaled[0], start, term)
            return
        with self._elements(start, self.weighed) as (at, lane, position):
            self.states.add(at, lane, term)
            values = [selected(self._exists(at, masked), self.values.build(w, at), 0.0) for w in self.weighed]
            for value, tile in zip(values, self.weighed.values()):
                memref.StoreOp(value, tile, position)

    def _add_rescaled(self, c: Carried, start: ir.Value, term: Callable[[Carried, At], ir.Value]) -> None:
        """All terms of a sum, in the scores' registers, then their sum: an exponential is not waited for next to its addition."""
        with self._elements(start, []) as (at, _, position):
            memref.StoreOp(term(c, at), self.scores, position)
        with loop(self.bn // 8, name="fragment") as j, pairs(self.rows) as (half, lane):
            self.states.add_one(c, half, lane, memref.LoadOp(self.scores, [j, half, lane]).result)

    @contextmanager
    def _elements(self, start: ir.Value, used: Iterable[Expr]) -> Iterator[tuple[At, ir.Value, list[ir.Value]]]:
        """Over a thread's scores: where each is, its column of two, and its subscripts. What neighbours share of the expressions
        `used` is known."""
        shared = list(dict.fromkeys(x for u in used for x in self.neighbours.worthwhile(u)))
        if not shared:
            with loop(self.bn // 8, name="fragment") as j, pairs(self.rows) as (half, lane):
                yield self._at(start, j, half, lane), lane, [j, half, lane]
            return
        with loop(self.bn // 16, name="two") as two, halves(self.rows) as half:
            rows = self.block.rows_at(sum_of([(half, 8), (self.row, 1)]))
            first = sum_of([(start, 1), (two, 16)])
            exchanged = Exchange(self.neighbours, self.values, self.thread, first, At(rows, half))
            tiles = {x: exchanged.compute(x) for x in shared}
            with loop(2, unroll=True, name="fragment") as n, loop(2, unroll=True, name="pair") as lane:
                fragment = sum_of([(two, 2), (n, 1)])
                at = self._at(start, fragment, half, lane)
                at.known |= {x: memref.LoadOp(tile, [n, lane]).result for x, tile in tiles.items()}
                yield at, lane, [fragment, half, lane]

    def bounds(self) -> list[Linear]:
        """What is at least 0 for the elements that exist and that no mask excludes."""
        end = Expr("index", own_dims=(self.chain.between,), type="index")
        edge = [] if self.tiles.even else [self._edge(end)]
        return [*(b for m in self.chain.masks for b in m.bounds), *edge]

    def _edge(self, j: Expr) -> Linear:
        """What is at least 0 for the elements that exist."""
        length = self.block.length
        if isinstance(length, int):
            return {j: -1}, length - 1
        return {j: -1, Expr("outer", key=length, type="index"): 1}, -1

    def _at(
        self, start: ir.Value, j: ir.Value, half: ir.Value, lane: ir.Value, *, products: Sequence[ir.Value] | None = None
    ) -> At:  # fmt: skip
        """One place of a tile. `products`: what it has of the first contractions, where their scores are not computed yet."""
        totals = (first.total.number for first in self.chain.firsts)
        tiles = products or (self.scores, *self.products[1:])
        scores = {n: memref.LoadOp(tile, [j, half, lane]).result for n, tile in zip(totals, tiles)}
        rows = self.block.rows_at(sum_of([(half, 8), (self.row, 1)]))
        first, offset = sum_of([(start, 1), (self.column, 1)]), sum_of([(lane, 1), (j, 8)])
        column = sum_of([(lane, 1), (start, 1), (j, 8), (self.column, 1)])
        return At(rows | {self.chain.between: column}, half, scores, parts={self.chain.between: (first, offset)})

    def _exists(self, at: At, masked: bool) -> ir.Value | None:
        """Whether an element of j exists; None where all of a tile do."""
        if self.tiles.even or not masked:
            return None
        leaf = Expr("outer", key="exists")
        if leaf not in at.known:
            end = mlir.index(self.block.length)
            at.known[leaf] = arith.cmpi(arith.CmpIPredicate.slt, at.coordinates[self.chain.between], end)
        return at.known[leaf]

    def add(self) -> None:
        """Adds the last step's sums to those before."""
        for r in self.results:
            if r.added is not r.sums:
                with loop(r.wide // 8, name="fragment") as j, pairs(self.rows) as (half, lane):
                    at = [j, half, lane]
                    total = arith.addf(*(memref.LoadOp(sums, at).result for sums in (r.sums, r.added)))
                    memref.StoreOp(total, r.sums, at)

    def rescale(self) -> None:
        """The sums, to where the references are now."""
        for r in self.results:
            if (rescale := r.product.carried.rescale) is None:
                continue
            with when(self.states.moves(rescale)) if self.states.slack else nullcontext():
                self._rescale(r)

    def _rescale(self, r: Sums) -> None:
        with loop(r.wide // 8, name="fragment") as j, pairs(self.rows) as (half, lane):
            at, factor = [j, half, lane], self.states.factor(r.product.carried, half)
            memref.StoreOp(arith.mulf(memref.LoadOp(r.sums, at).result, factor), r.sums, at)
