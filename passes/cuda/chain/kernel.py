"""map, for CUDA contraction chains: the scores stay in registers between the two contractions.

    if warpgroup 0 { for tile of j { wait until slot is empty; start the copies of k[j], v[j] into it } }
    else { for tile of j { s = q k[j]                 (asynchronous)
                           o += w v[the tile before]  (asynchronous, under what follows)
                           m, ... from s; s = weights from s, m; l from s; o, l rescaled
                           w = s in 16 bits } }

The weights of a tile are multiplied one step later, so that the matrix units work while the next tile's weights are
computed; and the warpgroups that multiply alternate (ping-pong), so that the products of one run during the arithmetic of
the other. The registers of a score's fragment are those of a left factor's, so weights never pass through shared memory.
Tiles that a mask cuts are walked first, in a loop of their own; those that it excludes are not walked.

Sources: Shah et al., "FlashAttention-3" (2024), for the order of things; PTX ISA, "Register Fragments for
wgmma.mma_async.m64nNk16", for the fragments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from tilec.analysis.chain import Chain, Linear, read_chain
from tilec.analysis.expression import Expr, Reader
from tilec.analysis.online_reduction import Carried
from tilec.core import locations, mlir, opcodes
from tilec.core.diagnostics import InternalError
from tilec.core.hardware import LINE, ROWS
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.core.opcodes import NamedBarrier, WarpgroupProduct, WarpgroupWait
from tilec.kernels import ContractionChain, Planned
from tilec.passes.cuda.chain.masks import Tiles
from tilec.passes.cuda.chain.results import Output, Results
from tilec.passes.cuda.chain.values import At, States, Values, pairs, registers, selected, statements
from tilec.passes.cuda.chain.weights import Packer, exclude, fits, is_bounded
from tilec.passes.cuda.contraction.problem import PRIVATE, Thread, local
from tilec.passes.cuda.memory_spaces import erase_unused, is_local, root
from tilec.passes.cuda.ring import Registers, Ring, RingTiles, Roles, carried_loop, make_ready, offsets_of
from tilec.passes.loops import delinearise, loop, sum_of, when

REGISTERS = Registers(producer=24, consumer=240)  # of 168 at launch


def map_chain(function: ir.Operation, planned: Planned) -> None:
    view = next(o for o in mlir.entry(function).operations if o.operation.name == "scf.forall")
    with ir.InsertionPoint(view), function.location:
        _Kernel(function, planned, view.operation).build()
    view.operation.erase()
    erase_unused(function)


class _Factor(RingTiles):
    """Tiles of a factor: `lines` of its dimension `along` and all `columns`, 64 in a slab. Each factor has a ring of its own; the
    rings of the walk's two factors are in step, so one stage and one phase serve for both."""

    def __init__(self, source: Expr, along: int, across: int, lines: int, columns: int, stages: int):
        self.dims, self.along, self.across = source.own_dims, along, across
        self.line = LINE * 8 // ir.MemRefType(source.key.type).element_type.width
        sizes, slabs = {along: lines, across: self.line}, -(-columns // self.line)
        super().__init__(source.key, [sizes.get(d, 1) for d in source.own_dims], slabs, slabs * lines, stages)

    def load(self, ring: Ring, stage: ir.Value, first: ir.Value) -> None:
        """Starts the copies of the tile that begins at `first` of the block's part."""
        ring.expect(stage)
        offsets = offsets_of(self.view)
        for slab in range(self.slabs):
            target = self.target(stage, mlir.index(slab * self.box_lines))
            at = {self.along: first, self.across: mlir.index(slab * self.line)}
            coordinates = [sum_of([(at[d], 1), (o, 1)]) if d in at else o for d, o in zip(self.dims, offsets)]
            ring.copy(self, stage, target, coordinates)


class _Kernel:
    def __init__(self, function: ir.Operation, planned: Planned, forall: ir.Operation):
        self.function, self.forall = function, forall
        options = planned.options
        assert isinstance(options, ContractionChain)
        self.bm, self.bn = options.block
        self.stages, self.weight_terms, self.kind = options.stages, options.weight_terms, options.multiplicand
        self.threads, self.groups = options.block_threads, options.warpgroups
        self.ping_pong, self.descending = options.ping_pong, options.longest_first
        self.grid = list(planned.grid)

    def build(self) -> None:
        self.thread = Thread()
        self.roles = Roles(self.thread, self.groups)
        operations = self._enter()
        self._read(operations)
        self._allocate()
        gpu.BarrierOp()
        self.roles.divide(REGISTERS, self._load, self._consume)
        for op in reversed(operations):
            if op.name.startswith("linalg."):
                op.erase()

    def _consume(self) -> None:
        with ir.Location.name(self.chain.product.total.name, self.chain.product.total.operation.location):
            self._multiply()
        with (mlir.definition(self.outputs[-1].view) or self.function).location:
            Results(
                self.chain, self.values, self.outputs, self.o, self.thread, self.row, self.column,
                self.sizes[self.chain.columns], self.bm, self.sizes[self.chain.rows],
            ).store()  # fmt: skip

    # ---- what there is to do -------------------------------------------------------------------------------

    def _enter(self) -> list[ir.Operation]:
        """The block's operations, at the tile of its number: rows run fastest, from the last where those are longest."""
        counts = list(ir.DenseI64ArrayAttr(self.forall.attributes["staticUpperBound"]))
        self.function.attributes["tilec.blocks"] = mlir.integer(prod(counts))
        self.function.attributes["tilec.threads"] = mlir.integer(self.threads)
        block = self.forall.regions[0].blocks[0]
        number = gpu.BlockIdOp(gpu.Dimension.x).result
        if self.descending:
            number = arith.subi(mlir.index(prod(counts) - 1), number)
        mapping = dict(zip(block.arguments, delinearise(number, counts, locations.variables(self.forall))))
        inner = [o.operation for o in block.operations if o.operation.name != "scf.forall.in_parallel"]
        return [mlir.clone_op(op, mapping) for op in inner]

    def _read(self, operations: list[ir.Operation]) -> None:
        generics = [o for o in operations if mlir.is_generic(o)]
        dims = {o: tuple(mlir.get_integers(o, "tilec.dims")) for o in generics}
        made = {root(v): (o, n) for o in generics for n, v in enumerate(mlir.outputs_of(o))}
        reader = Reader(dims, lambda value: made.get(root(value)))
        self.outputs = []
        for value, (op, n) in made.items():
            if not is_local(value):
                output_dims = tuple(dims[op][d] for d in mlir.map_dims(mlir.maps_of(op)[len(mlir.inputs_of(op)) + n]))
                self.outputs.append(Output(reader.result(op, n), mlir.outputs_of(op)[n], output_dims))
        chain = read_chain(reader, [o.value for o in self.outputs])
        if not isinstance(chain, Chain):
            raise InternalError(f"the kernel is no chain of two contractions: {chain}", "map", str(self.function))
        self.chain = chain
        self.sizes: dict[int, int] = {}
        for op in generics:
            self.sizes |= zip(dims[op], mlir.extents_of(op))
        for output in self.outputs:  # at the edge of the grid a block has fewer rows
            for n, d in enumerate(output.dims):
                if self.sizes[d] == mlir.DYNAMIC:
                    self.sizes[d] = memref.DimOp(output.view, mlir.index(n)).result
        self.length = self.sizes[chain.between]

    def _allocate(self) -> None:
        chain, sizes = self.chain, self.sizes
        inner, columns = sizes[chain.inner], sizes[chain.columns]
        self.q_tiles = _Factor(chain.left, chain.rows, chain.inner, self.bm, inner, 1)
        self.k_tiles = _Factor(chain.right, chain.between, chain.inner, self.bn, inner, self.stages)
        self.v_tiles = _Factor(chain.values, chain.between, chain.columns, self.bn, columns, self.stages)
        self.q = Ring([self.q_tiles], 1, 1)  # behind all tiles, which begin at multiples of 1024 bytes
        self.k, self.v = (Ring([tiles], self.stages, self.groups) for tiles in (self.k_tiles, self.v_tiles))
        self.depth, self.wide = -(-inner // 16) * 16, -(-columns // 16) * 16
        self.s = registers([self.bn // 8, 2, 2], "%scores")
        self.o = registers([self.wide // 8, 2, 2], "%sums")
        with ir.Location.name("%weights"):
            shape = [self.weight_terms * self.bn // 4, 2]
            packed = memref.AllocaOp(local(shape, mlir.type_of(self.kind), PRIVATE), [], [])
            packed.operation.attributes["tilec.words"] = ir.UnitAttr.get()
            self.w = packed.result
        self.packer = Packer(self.s, self.w, self.weight_terms, self.kind, is_bounded(chain.weights))
        group = self.roles.consumer
        self.half = arith.muli(group, mlir.index(ROWS)) if self.groups > 1 else mlir.index(0)
        quad = arith.shrui(self.thread.lane, mlir.index(2))
        warp = arith.andi(self.thread.warp, mlir.index(3))
        self.row = locations.named(sum_of([(self.half, 1), (warp, 16), (quad, 1)]), "row")
        self.column = sum_of([(arith.andi(self.thread.lane, mlir.index(3)), 2)])
        self.tiles = Tiles(chain.masks, chain.between, chain.rows, self.length, sizes[chain.rows], self.bn)
        limits = {} if self.tiles.even else {chain.between: mlir.index(self.length - 1)}
        if isinstance(sizes[chain.rows], ir.Value) or sizes[chain.rows] % self.bm:
            size = sizes[chain.rows]
            size = size if isinstance(size, ir.Value) else mlir.index(size)
            limits[chain.rows] = arith.subi(size, mlir.index(1))
        self.values = Values(chain.scores.number, chain.product.total.number, limits)
        self.states = States(chain.online, chain.product, self.values)
        make_ready([self.q, self.k, self.v], self.thread)

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self) -> None:
        zero = mlir.index(0)
        self.q_tiles.load(self.q, zero, zero)
        with carried_loop(zero, self.tiles.count, [zero, zero]) as (number, now):
            stage, phase = now
            line = locations.named(arith.muli(self.tiles.tile(number), mlir.index(self.bn)), "start")
            for ring, tiles in ((self.k, self.k_tiles), (self.v, self.v_tiles)):
                ring.wait_empty(stage, phase)
                tiles.load(ring, stage, line)
            now[:] = self.k.next(stage, phase)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _multiply(self) -> None:
        zero = mlir.index(0)
        self.states.clear()
        with loop(self.wide // 8, name="fragment") as j, pairs() as (half, lane):
            memref.StoreOp(mlir.constant(0.0, ir.F32Type.get()), self.o, [j, half, lane])
        self.q.wait_full(zero, zero)
        if self.tiles.always:
            self._loop_over_tiles()
        else:
            with when(arith.cmpi(arith.CmpIPredicate.sgt, self.tiles.count, zero)):
                self._loop_over_tiles()
        self.states.complete()

    def _loop_over_tiles(self) -> None:
        """The first tile's weights; then, for each further tile, its weights under the product of those before."""
        zero, one = mlir.index(0), mlir.index(1)
        if self.ping_pong:
            last = arith.cmpi(arith.CmpIPredicate.eq, self.roles.warpgroup, mlir.index(self.groups))
            with when(last):
                self._ping_pong("arrive")  # the first warpgroup multiplies first
            self._ping_pong("sync")
        self.k.wait_full(zero, zero)
        self._scores(zero)
        if self.ping_pong:
            self._ping_pong("arrive")
        self._wait(0, self.s)
        self.k.release(zero, self.thread)
        self._weights(zero, masked=self.tiles.masked)
        self.packer.pack()
        state = [*self.k.next(zero, zero), zero, zero]  # this tile's stage and phase, and the last one's
        for first, end, masked in self.tiles.ranges(one):
            with carried_loop(first, end, state) as (number, now):
                now[:] = self._step(number, now, masked)
        stage, phase = state[2:]
        self.v.wait_full(stage, phase)
        self._product(stage)
        self._wait(0, self.o, self.w)

    def _step(self, number: ir.Value, state: list[ir.Value], masked: bool) -> list[ir.Value]:
        stage, phase, before, old = state
        self.k.wait_full(stage, phase)
        if self.ping_pong:
            self._ping_pong("sync")
        self._scores(stage)
        self.v.wait_full(before, old)
        self._product(before)
        if self.ping_pong:
            self._ping_pong("arrive")
        self._wait(self.weight_terms, self.s)
        self.k.release(stage, self.thread)
        self._weights(number, masked)
        self._wait(0, self.o, self.w)
        self.v.release(before, self.thread)
        self._rescale()
        self.packer.pack()
        return [*self.k.next(stage, phase), stage, phase]

    def _ping_pong(self, action: str) -> None:
        """Ping-pong: waits until this warpgroup may multiply, or lets the next one: barriers 1 and up, one for each.

        A call, since upstream's `nvvm.barrier` with a number does not parse again with locations.
        """
        i32 = ir.IntegerType.get_signless(32)
        both = mlir.constant(2 * 128, i32)
        number = self.roles.warpgroup
        if action == "arrive":
            number = sum_of([(number, -1)], self.groups + 1)
        number = arith.index_cast(i32, number)
        opcodes.call(self.function, NamedBarrier(waits=action == "sync"), [number, both])

    def _scores(self, stage: ir.Value) -> None:
        """s = the rows of this warpgroup times a tile of the second factor."""
        product = WarpgroupProduct(self.bn, self.depth, self.kind, left_slab=self.bm, right_slab=self.bn)
        first = None if mlir.constant_value(self.half) == 0 else ROWS
        views = [self.q_tiles.lines(mlir.index(0), self.half, first), self.k_tiles.lines(stage, mlir.index(0))]
        with statements([self.chain.scores]):
            opcodes.call(self.function, product, [self.s, *views, mlir.index(0)])

    def _product(self, stage: ir.Value) -> None:
        """o += the weights, each in its parts, times a tile of the third factor."""
        product = WarpgroupProduct(
            self.wide, self.bn, self.kind, right_k_major=False, left_in_registers=True, right_slab=self.bn
        )
        for term in range(self.weight_terms):
            at = mlir.index(term * self.bn // 4)
            opcodes.call(
                self.function, product, [self.o, self.w, self.v_tiles.lines(stage, mlir.index(0)), at, mlir.index(1)]
            )

    def _wait(self, running: int, sums: ir.Value, *factors: ir.Value) -> None:
        """Until at most so many products run."""
        opcodes.call(self.function, WarpgroupWait(running), [sums, *factors])

    # ---- between the products ------------------------------------------------------------------------------

    def _weights(self, number: ir.Value, masked: bool) -> None:
        """States brought up to date with the tile of this number; its weights overwrite the scores."""
        chain = self.chain
        start = arith.muli(self.tiles.tile(number), mlir.index(self.bn))
        locate = partial(self._at, start)
        bounds = self._bounds()
        if masked and chain.absorbing is not None and fits(bounds, self._largest()):
            exclude(chain, bounds, self.s, self.row, sum_of([(start, 1), (self.column, 1)]))
            masked = False

        def term(c: Carried, at: At) -> ir.Value:
            value = self.values.build(chain.under(c.term, masked), at)
            return selected(self._exists(at, masked), value, c.identity)

        self.states.collect(self.bn // 8, locate, term)
        read = [c.total for c in self.states.rows if c.rescale is not None]
        with statements(read) if read else ir.Location.current:
            self._weigh(locate, term, chain.under(chain.weights, masked), masked)

    def _weigh(
        self,
        locate: Callable[..., At],
        term: Callable[[Carried, At], ir.Value],
        weights: Expr,
        masked: bool,
    ) -> None:
        """Weights, and the sums that read earlier reductions, brought up to date."""
        self.states.rescale()
        with loop(self.bn // 8, name="fragment") as j, pairs() as (half, lane):
            at = locate(j, half, lane)
            self.states.add(at, lane, term)
            value = selected(self._exists(at, masked), self.values.build(weights, at), 0.0)
            memref.StoreOp(value, self.s, [j, half, lane])

    def _bounds(self) -> list[Linear]:
        """What is at least 0 for the elements that exist and that no mask excludes."""
        end = Expr("index", own_dims=(self.chain.between,), type="index")
        edge = [] if self.tiles.even else [({end: -1}, self.length - 1)]
        return [*(b for m in self.chain.masks for b in m.bounds), *edge]

    def _largest(self) -> int:
        """The longest dimension of what the kernel reads and writes."""
        return max(e for a in mlir.entry(self.function).arguments for e in ir.ShapedType(a.type).shape)

    def _at(self, start: ir.Value, j: ir.Value, half: ir.Value, lane: ir.Value) -> At:
        score = memref.LoadOp(self.s, [j, half, lane]).result
        row = sum_of([(half, 8), (self.row, 1)])
        column = sum_of([(lane, 1), (start, 1), (j, 8), (self.column, 1)])
        return At({self.chain.rows: row, self.chain.between: column}, half, score)

    def _exists(self, at: At, masked: bool) -> ir.Value | None:
        """Whether an element of the walk is before its end; None where all are."""
        if self.tiles.even or not masked:
            return None
        leaf = Expr("outer", key="exists")
        if leaf not in at.known:
            end = mlir.index(self.length)
            at.known[leaf] = arith.cmpi(arith.CmpIPredicate.slt, at.coordinates[self.chain.between], end)
        return at.known[leaf]

    def _rescale(self) -> None:
        if self.chain.product.rescale is None:
            return
        with loop(self.wide // 8, name="fragment") as j, pairs() as (half, lane):
            at, factor = [j, half, lane], self.states.factor(self.chain.product, half)
            memref.StoreOp(arith.mulf(memref.LoadOp(self.o, at).result, factor), self.o, at)
