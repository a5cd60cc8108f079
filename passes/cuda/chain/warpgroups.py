"""The engine of contraction chains on Hopper: TMA loads tiles into rings, warpgroups multiply by wgmma.

    if warpgroup 0 { for tile of j { wait until slot is empty; start the copies of k[j], v[j] into it } }
    else { for tile of j { s = q k[j]                 (asynchronous)
                           o += w v[the tile before]  (asynchronous, under what follows)
                           states and weights from s; o rescaled; w = s in 16 bits } }

The weights of a tile are multiplied one step later, so that the matrix units work while the next tile's weights are
computed, unless this takes too many registers (`at_once`); and the warpgroups that multiply alternate (ping-pong), so that the
products of one run during the arithmetic of the other.

Sources: Shah et al., "FlashAttention-3" (2024), for the order of things; PTX ISA, "Register Fragments for
wgmma.mma_async.m64nNk16", for the fragments.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tilec.analysis.bf16_split import KIND, products_of
from tilec.analysis.chain import First
from tilec.analysis.factor_access import FactorAccess
from tilec.analysis.subscripts import subscripts
from tilec.core import locations, mlir, opcodes
from tilec.core.extents import emitted, extent_of
from tilec.core.hardware import LINE, ROWS, WARP
from tilec.core.mlir import arith, gpu, ir
from tilec.core.opcodes import WarpgroupProduct
from tilec.kernels.matrix import ELEMENTS
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.fragments import Fragments, Terms, tiles_of, values_of
from tilec.passes.cuda.chain.split import PartialStates
from tilec.passes.cuda.chain.values import At, Values, statements
from tilec.passes.cuda.chain.whole_numbers import WholeNumbers
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.ring import Ring, RingTiles, carried_loop, make_ready, offsets_of
from tilec.passes.cuda.roles import Roles, begin_ping_pong, ping_pong, wait_for_products
from tilec.passes.loops import Count, below, plus, sum_of, when

LOADING = 24  # registers of a thread that loads
THREE = 32  # where three warpgroups multiply


class FactorTiles(RingTiles):
    """Tiles of a factor, in lines of 128 bytes along its contiguous dimension: a slab has the lines of a box of `sizes` along the
    others, and there are slabs for all of the `sizes` along that one. Each factor has a ring of its own; the rings of j's two
    factors are in step, so one stage and one phase serve for both. Where elements lie in pages, a slab has a box for each of its
    pages, and a lane of the first warp copies each."""

    def __init__(self, factor: FactorAccess, sizes: dict[int, int], values: Values, stages: int, roles: Roles, length: Count):
        """`length`: elements along `between`."""
        assert factor.contiguous is not None
        self.roles, self.length = roles, length
        self.factor, self.values, self.lines_along, view = factor, values, factor.contiguous, factor.expression.key
        self.line = LINE * 8 // ir.MemRefType(view.type).element_type.width
        self.columns = -(-sizes[self.lines_along] // self.line)  # slabs
        self.slab = prod(n for d, n in sizes.items() if d != factor.contiguous)
        length = sizes.get(factor.paged, 1) if factor.page else 1
        self.pages, part = (max(1, length // factor.page), min(length, factor.page)) if factor.page else (1, 1)
        own = sizes | ({factor.paged: part} if factor.page else {})
        rounded = "tf32" if ir.MemRefType(view.type).element_type.width == 32 else None
        box = [self.line if d == factor.contiguous else 1 if d is None else own.get(d, 1) for d in factor.along]
        box = [1, *box] if factor.evens_first else box
        super().__init__(view, box, self.columns * self.pages, self.columns * self.slab, stages, rounded=rounded)

    def load(self, ring: Ring, stage: ir.Value, first: dict[int, ir.Value], factor: FactorAccess | None = None) -> None:
        """Starts the copies of the tile that begins at these subscripts of the block's part; `factor` is that of another block."""
        with self.roles.one():
            ring.expect(stage)
        self.copy(ring, stage, first, factor)

    def copy(self, ring: Ring, stage: ir.Value, first: dict[int, ir.Value], factor: FactorAccess | None = None) -> None:
        """Starts the copies of a tile of which the ring knows."""
        factor = factor or self.factor
        offsets = offsets_of(factor.expression.key) if not factor.expression.args else []
        lane = self.roles.thread.number
        with when(below(lane, self.pages)) if self.pages > 1 else self.roles.one():
            if factor.page:
                first = first | {factor.paged: sum_of([(first[factor.paged], 1), (lane, factor.page)])}
            for slab in range(self.columns):
                lines = [(lane, self.box_lines)] if self.pages > 1 else []
                target = self.target(stage, sum_of(lines, slab * self.slab))
                d = self.lines_along
                at = first | {d: sum_of([(first[d], 1)] if d in first else [], slab * self.line)}
                corner = self._in_page(at, factor) if factor.page else self._corner(at, factor)
                if factor.evens_first:
                    odd, line = divmod(slab, self.columns // 2)
                    half = arith.divui(first[d], mlir.index(2))
                    corner = [mlir.index(odd), *corner[1:-1], sum_of([(half, 1)], line * self.line)]
                ring.copy(self, stage, target, [sum_of([(a, 1), (b, 1)]) for a, b in zip(corner, offsets)] if offsets else corner)

    def _corner(self, at: dict[int, ir.Value], factor: FactorAccess) -> list[ir.Value]:
        return [self.values.build(p, At(at, mlir.index(0))) for p in subscripts(factor.expression)]

    def _in_page(self, at: dict[int, ir.Value], factor: FactorAccess) -> list[ir.Value]:
        """The same where memory tells the page; of a page that does not exist, a place outside the tensor."""
        d, last = factor.paged, mlir.index(plus(self.length, -1))
        exists = arith.cmpi(arith.CmpIPredicate.sle, at[d], last)
        found = self._corner(at | {d: arith.minsi(at[d], last)}, factor)
        p = factor.along.index(d)
        found[p] = arith.select(exists, found[p], end_of(self.view, p))
        return found


def end_of(view: ir.Value, d: int) -> ir.Value:
    """The extent of memory along a dimension."""
    known = extent_of(view, d)
    return mlir.index(known) if isinstance(known, int) else emitted(known, [view])


Parts = list[FactorTiles]
"""The tiles of a factor: of each number that is stored for one of its elements."""


class Engine:
    """Warpgroup 0 loads; the others multiply, each 64 of the block's rows."""

    def __init__(self, block: ChainBlock, thread: Thread):
        self.block, self.chain, self.thread = block, block.chain, thread
        self.groups = block.options.warpgroups
        paged = any(0 < x.page < block.bn for x in block.chain.factors)
        self.roles = Roles(thread, self.groups, WARP if paged else 1)
        self.alternate = partial(ping_pong, block.function, self.roles) if block.options.ping_pong else None
        self.persistent = bool(block.options.persistent_blocks)

    def begin(self, rings: list[Ring]) -> None:
        """Registers, states and barriers, behind all tiles, which begin at multiples of 1024 bytes."""
        self.half = arith.muli(self.roles.consumer, mlir.index(ROWS)) if self.groups > 1 else mlir.index(0)
        if not self.persistent:
            self.enter(self.block)
        make_ready(rings, self.thread)
        gpu.BarrierOp()

    def enter(self, block: ChainBlock) -> None:
        self.fragments = Fragments(block, self.thread, self._warp_row)
        self.parts = PartialStates(self.fragments)

    def _warp_row(self) -> Terms:
        return [(self.half, 1), (arith.andi(self.thread.warp, mlir.index(3)), 16)]

    def wait(self, running: int, *registers: ir.Value) -> None:
        wait_for_products(self.block.function, running, *registers)


class Warpgroups(Engine):
    """With a second contraction, whose factor comes in a ring of its own."""

    def __init__(self, block: ChainBlock, thread: Thread):
        super().__init__(block, thread)
        chain, sizes, stages = block.chain, block.sizes, block.options.stages
        values, step = block.subscripts, {chain.between: block.bn}
        rows = block.options.row_stages or 1
        self.q_tiles, self.k_tiles, self.v_tiles = list[Parts](), list[Parts](), list[Parts]()
        tiles = partial(FactorTiles, values=values, roles=self.roles, length=block.length)
        for first in chain.firsts:
            inner = {first.inner: -(-sizes[first.inner] // 16) * 16 if self._lies_between(first) else sizes[first.inner]}
            self.q_tiles.append([tiles(x, block.box | inner, stages=rows) for x in first.left.parts])
            self.k_tiles.append([tiles(x, step | inner, stages=stages) for x in first.right.parts])
        self.at_once, self.own_tiles = bool(block.options.at_once), list[Parts]()
        for p in chain.products:  # lines are of columns; or of `between`, and as many of them as are multiplied
            columns = -(-sizes[p.columns] // 16) * 16 if p.values.contiguous == chain.between else sizes[p.columns]
            if self.at_once and (right := chain.right_of(p)) is not None:
                self.v_tiles.append(self.k_tiles[right])
                continue
            self.own_tiles.append([tiles(x, step | {p.columns: columns}, stages=stages) for x in p.values.parts])
            self.v_tiles.append(self.own_tiles[-1])
        q, k, v = ([part for parts in factors for part in parts] for factors in (self.q_tiles, self.k_tiles, self.own_tiles))
        self.q, self.k = Ring(q, rows, self.groups), Ring(k, stages, self.groups)
        self.v = Ring(v, stages, self.groups, spare=not self.at_once) if v else self.k
        self.pairs = products_of(block.options.weight_terms, len(self.v_tiles[0]))
        self.begin([*dict.fromkeys((self.q, self.k, self.v))])

    def _lies_between(self, first: First) -> bool:
        """Whether the right factor is contiguous along `between`."""
        return first.right.contiguous == self.chain.between

    def run(self) -> None:
        self.roles.divide(LOADING if self.groups < 3 else THREE, self._load, self._consume)

    def _consume(self) -> None:
        zero, where = mlir.index(0), statements(p.total for p in self.chain.products)
        if self.alternate:
            with where:
                begin_ping_pong(self.block.function, self.roles)
        with self.block.each([zero] * 4) as (block, state):
            if self.persistent:
                self.enter(block)
            with where:
                state[:] = self._multiply(*state)
            self.parts.store()

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self) -> None:
        zero = mlir.index(0)
        with self.block.each([zero] * 4) as (block, state):
            tiles, (*now, row, row_phase) = tiles_of(block, values_of(block)) if self.persistent else self.fragments.tiles, state
            if self.persistent:
                self.q.wait_empty(row, row_phase)
            self._copy(self.q, row, {}, [first.left for first in block.chain.firsts])
            rights = [first.right for first in block.chain.firsts]
            factors = [(self.k, rights)]
            if self.own_tiles:
                values = [p.values for own, p in zip(self.v_tiles, block.chain.products) if own in self.own_tiles]
                factors.append((self.v, values))
            with carried_loop(tiles.begin, tiles.end, now) as (number, at):
                stage, phase = at
                line = locations.named(tiles.first_line(number), "start")
                for ring, own in factors:
                    ring.wait_empty(stage, phase)
                    self._copy(ring, stage, {self.chain.between: line}, own)
                at[:] = self.k.next(stage, phase)
            state[:] = [*now, *self.q.next(row, row_phase)]

    def _copy(self, ring: Ring, stage: ir.Value, first: dict[int, ir.Value], factors: list[FactorAccess]) -> None:
        """Starts the copies of all tiles of a stage, of one block's factors."""
        with self.roles.one():
            ring.expect(stage)
        parts = [part for factor in factors for part in factor.parts]
        for copied, part in zip(ring.tiles, parts, strict=True):
            assert isinstance(copied, FactorTiles)
            copied.copy(ring, stage, first, part)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _multiply(self, stage: ir.Value, phase: ir.Value, row: ir.Value, row_phase: ir.Value) -> list[ir.Value]:
        """All tiles of one block, from this stage and phase of the rings on, and of the rows' one; returns those of the next."""
        now, self.row = [stage, phase], row
        self.fragments.clear()
        self.q.wait_full(row, row_phase)
        self.fragments.traverse(self._loop_over_tiles, now, self.persistent)
        if any(x.further for x in self.chain.factors) or self.block.options.weight_terms > 1:
            WholeNumbers(self.fragments).compute_anew()
        if self.persistent:
            self.q.release(row, self.thread)
        return [*now, *self.q.next(row, row_phase)]

    def _loop_over_tiles(self, rings: list[ir.Value]) -> None:
        """The first tile's weights; then, for each further tile, its weights under the product of those before."""
        one, own, (stage, phase) = mlir.index(1), self.fragments, rings
        if self.at_once:
            for first, end, masked in own.tiles.ranges(mlir.index(0)):
                with carried_loop(first, end, rings) as (number, now):
                    now[:] = self._whole_step(number, now, masked)
            return
        if self.alternate:
            self.alternate("sync")
        self.k.wait_full(stage, phase)
        self._scores(stage)
        if self.alternate:
            self.alternate("arrive")
        own.read_ahead(own.tiles.begin)
        self.wait(0, *own.products)
        self.k.release(stage, self.thread)
        own.weigh(own.tiles.begin, masked=own.tiles.masked)
        own.pack()
        state = [*self.k.next(stage, phase), stage, phase]  # this tile's stage and phase, and the last one's
        for first, end, masked in own.tiles.ranges(one):
            with carried_loop(first, end, state) as (number, now):
                now[:] = self._step(number, now, masked)
        stage, phase = state[2:]
        self.v.wait_full(stage, phase)
        self._product(stage)
        self.wait(0, *own.multiplied)
        if self.persistent:
            self.v.release(stage, self.thread)
        own.add()
        rings[:] = state[:2]

    def _whole_step(self, number: ir.Value, state: list[ir.Value], masked: bool) -> list[ir.Value]:
        """A tile's scores, its weights, and their products."""
        own, (stage, phase), kept = self.fragments, state, self.own_tiles != self.v_tiles  # right factors are values, too
        self.k.wait_full(stage, phase)
        if self.alternate:
            self.alternate("sync")
        self._scores(stage)
        own.read_ahead(number)
        self.wait(0, *own.products)
        if self.alternate:
            self.alternate("arrive")
        if not kept:
            self.k.release(stage, self.thread)
        own.weigh(number, masked)
        own.rescale()
        own.pack()
        if self.own_tiles:
            self.v.wait_full(stage, phase)
        self._product(stage)
        self.wait(0, *own.multiplied)
        own.add()
        for ring in [self.k] * kept + [self.v] * bool(self.own_tiles):
            ring.release(stage, self.thread)
        return self.k.next(stage, phase)

    def _step(self, number: ir.Value, state: list[ir.Value], masked: bool) -> list[ir.Value]:
        stage, phase, before, old = state
        own = self.fragments
        self.k.wait_full(stage, phase)
        if self.alternate:
            self.alternate("sync")
        self._scores(stage)
        self.v.wait_full(before, old)
        self._product(before)
        if self.alternate:
            self.alternate("arrive")
        own.read_ahead(number)
        self.wait(len(self.pairs) * len(own.results), *own.products)
        self.k.release(stage, self.thread)
        own.weigh(number, masked)
        self.v.branch()  # or the assembler moves the wait that follows above the exponentials
        self.wait(0, *own.multiplied)
        self.v.release(before, self.thread)
        own.add()
        own.rescale()
        own.pack()
        return [*self.k.next(stage, phase), stage, phase]

    def _scores(self, stage: ir.Value) -> None:
        """s = the rows of this warpgroup times a tile of the second factor, of each first contraction."""
        bm, bn, kind, own = self.block.bm, self.block.bn, self.block.options.multiplicand, self.fragments
        height = None if mlir.constant_value(self.half) == 0 else ROWS
        for first, depth, sums, q, k in zip(self.chain.firsts, own.depths, own.products, self.q_tiles, self.k_tiles):
            by_inner = not self._lies_between(first)
            product = WarpgroupProduct(bn, depth, _number(kind), right_k_major=by_inner, left_slab=bm, right_slab=k[0].slab)
            for number, (a, b) in enumerate(products_of(len(q), len(k))):
                views = [q[a].lines(self.row, self.half, height), k[b].lines(stage, mlir.index(0))]
                with statements([first.total]):
                    opcodes.call(self.block.function, product, [sums, *views, mlir.index(int(number > 0))])

    def _product(self, stage: ir.Value) -> None:
        """o += the weights, each in its parts, times a tile of the third factor, of each product."""
        bn, options = self.block.bn, self.block.options
        for r, tiles in zip(self.fragments.results, self.v_tiles):
            product = WarpgroupProduct(
                r.wide, bn, _number(options.weighted), right_k_major=r.product.values.contiguous == self.chain.between,
                left_in_registers=True, right_slab=tiles[0].slab,
            )  # fmt: skip
            for number, (term, part) in enumerate(self.pairs):
                tile, kept = tiles[part].lines(stage, mlir.index(0)), r.added is r.sums or number > 0
                operands = [r.added, r.weights, tile, mlir.index(term * bn // 4), mlir.index(int(kept))]
                opcodes.call(self.block.function, product, operands)


def _number(kind: str) -> str:
    """The type of the numbers that are multiplied."""
    return ELEMENTS[kind] if kind == KIND else kind
