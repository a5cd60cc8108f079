"""map, for CUDA walks of two contractions: scores stay in registers from the first to the second.

    if warpgroup 0 { for tile of j { wait until slot is empty; start the copies of k[j], v[j] into it } }
    else { for tile of j { s = q k[j]                 (asynchronous)
                           o += w v[the tile before]  (asynchronous, under what follows)
                           m, ... from s; s = weights from s, m; l from s; o, l rescaled
                           w = s in 16 bits } }

The weights of a tile are multiplied one step later, so that the matrix units work while the next tile's weights are
computed; and the warpgroups that multiply take turns, so that one's products run under the other's arithmetic. The
registers of a score's fragment are those of a left factor's, so weights never pass through shared memory. Tiles that a
mask cuts are walked first, in a loop of their own; those that it excludes are not walked.

Sources: Shah et al., "FlashAttention-3" (2024), for the order of things; PTX ISA, "Register Fragments for
wgmma.mma_async.m64nNk16", for the fragments.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tilec import mlir
from tilec.diagnostics import InternalError
from tilec.expression import Expr, Reader
from tilec.kernels import ContractionChain, Planned
from tilec.mlir import arith, gpu, ir, memref, nvvm, scf
from tilec.online import Carried
from tilec.passes.contract_problem import PRIVATE, Thread, local
from tilec.passes.loops import delinearise, loop, sum_of, when
from tilec.passes.spaces import is_local, root
from tilec.passes.stream_pipeline import Calls, Operand, Ring, walk
from tilec.passes.stream_ranges import Tiles
from tilec.passes.stream_results import Output, Results
from tilec.passes.stream_values import HALVES, PAIRS, At, States, Values, registers, selected
from tilec.passes.stream_weights import Packer, exclude, fits, is_bounded
from tilec.streaming import Chain, Linear, read_chain

LOADS, MULTIPLIES = 24, 240  # registers of a thread that loads, and of one that multiplies, of 168 at launch
ROWS = 64  # of a warpgroup


def map_stream(function: ir.Operation, planned: Planned) -> None:
    view = next(o for o in mlir.entry(function).operations if o.operation.name == "scf.forall")
    with ir.InsertionPoint(view), function.location:
        _Kernel(function, planned, view.operation).build()
    view.operation.erase()
    for op in reversed([o.operation for o in mlir.entry(function).operations]):
        if op.name in ("memref.alloc", "memref.subview", "memref.dim") and not any(mlir.uses(op.results[0])):
            op.erase()


class _Kernel:
    def __init__(self, function: ir.Operation, planned: Planned, forall: ir.Operation):
        self.function, self.forall, self.calls = function, forall, Calls(function)
        options = planned.options
        assert isinstance(options, ContractionChain)
        self.bm, self.bn = options.block
        self.stages, self.parts, self.kind = options.stages, options.weight_terms, options.multiplicand
        self.threads, self.groups = options.block_threads, options.warpgroups
        self.turns, self.descending = options.ping_pong, options.longest_first
        self.grid = list(planned.grid)

    def build(self) -> None:
        self.thread = Thread()
        self.warpgroup = arith.shrui(self.thread.number, mlir.index(7))
        operations = self._enter()
        self._read(operations)
        self._allocate()
        gpu.BarrierOp()
        choice = scf.IfOp(arith.cmpi(arith.CmpIPredicate.eq, self.warpgroup, mlir.index(0)), has_else=True)
        with ir.InsertionPoint(choice.then_block):
            self._registers(LOADS, more=False)
            with when(arith.cmpi(arith.CmpIPredicate.eq, self.thread.number, mlir.index(0))):
                self._load()
            scf.YieldOp([])
        with ir.InsertionPoint(choice.else_block):
            self._registers(MULTIPLIES, more=True)
            with ir.Location.name(self.chain.product.total.name, self.chain.product.total.operation.location):
                self._multiply()
            with (mlir.definition(self.outputs[-1].view) or self.function).location:
                Results(
                    self.chain, self.values, self.outputs, self.o, self.thread, self.row, self.column,
                    self.sizes[self.chain.columns], self.bm, self.sizes[self.chain.rows],
                ).store()  # fmt: skip
            scf.YieldOp([])
        for op in reversed(operations):
            if op.name.startswith("linalg."):
                op.erase()

    def _registers(self, count: int, more: bool) -> None:
        """Moves registers to the warpgroups that multiply; a single one has enough."""
        if self.groups > 1:
            action = ir.Attribute.parse(f"#nvvm<action {'increase' if more else 'decrease'}>")
            nvvm.SetMaxRegisterOp(count, action)

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
        mapping = dict(zip(block.arguments, delinearise(number, counts)))
        inner = [o.operation for o in block.operations if o.operation.name != "scf.forall.in_parallel"]
        return [mlir.clone_op(op, mapping) for op in inner]

    def _read(self, operations: list[ir.Operation]) -> None:
        generics = [o for o in operations if mlir.is_generic(o)]
        places = {o: tuple(mlir.get_integers(o, "tilec.dims")) for o in generics}
        made = {root(v): (o, n) for o in generics for n, v in enumerate(mlir.outputs_of(o))}
        reader = Reader(places, lambda value: made.get(root(value)))
        self.outputs = []
        for value, (op, n) in made.items():
            if not is_local(value):
                place = tuple(places[op][d] for d in mlir.map_dims(mlir.maps_of(op)[len(mlir.inputs_of(op)) + n]))
                self.outputs.append(Output(reader.result(op, n), mlir.outputs_of(op)[n], place))
        chain = read_chain(reader, [o.value for o in self.outputs])
        if not isinstance(chain, Chain):
            raise InternalError(f"the kernel is no walk of two contractions: {chain}", "map", str(self.function))
        self.chain = chain
        self.sizes: dict[int, int] = {}
        for op in generics:
            self.sizes |= zip(places[op], mlir.extents_of(op))
        for output in self.outputs:  # at the edge of the grid a block has fewer rows
            for n, d in enumerate(output.place):
                if self.sizes[d] == mlir.DYNAMIC:
                    self.sizes[d] = memref.DimOp(output.view, mlir.index(n)).result
        self.length = self.sizes[chain.stream]

    def _allocate(self) -> None:
        chain, sizes = self.chain, self.sizes
        operands = [
            Operand(x.key, x.place, lines, columns)
            for x, lines, columns in (
                (chain.left, chain.rows, chain.inner), (chain.right, chain.stream, chain.inner),
                (chain.values, chain.stream, chain.columns),
            )
        ]  # fmt: skip
        inner, columns = sizes[chain.inner], sizes[chain.columns]
        self.q = Ring(operands[0], self.bm, inner, 1, 1)
        self.k = Ring(operands[1], self.bn, inner, self.stages, self.groups)
        self.v = Ring(operands[2], self.bn, columns, self.stages, self.groups)
        for ring in (self.q, self.k, self.v):
            ring.make_barriers()
        self.depth, self.wide = -(-inner // 16) * 16, -(-columns // 16) * 16
        self.s = registers([self.bn // 8, 2, 2], "s")
        self.o = registers([self.wide // 8, 2, 2], "o")
        with ir.Location.name("w"):
            shape = [self.parts * self.bn // 4, 2]
            packed = memref.AllocaOp(local(shape, mlir.type_of(self.kind), PRIVATE), [], [])
            packed.operation.attributes["tilec.packed"] = ir.UnitAttr.get()
            self.w = packed.result
        self.packer = Packer(self.s, self.w, self.parts, self.kind, is_bounded(chain.weights))
        group = mlir.index(0) if self.groups == 1 else sum_of([(self.warpgroup, 1)], -1)
        self.half = arith.muli(group, mlir.index(ROWS)) if self.groups > 1 else mlir.index(0)
        quad = arith.shrui(self.thread.lane, mlir.index(2))
        warp = arith.andi(self.thread.warp, mlir.index(3))
        self.row = sum_of([(self.half, 1), (warp, 16), (quad, 1)])
        self.column = sum_of([(arith.andi(self.thread.lane, mlir.index(3)), 2)])
        self.tiles = Tiles(chain.masks, chain.stream, chain.rows, self.length, sizes[chain.rows], self.bn)
        limits = {} if self.tiles.even else {chain.stream: mlir.index(self.length - 1)}
        if isinstance(sizes[chain.rows], ir.Value) or sizes[chain.rows] % self.bm:
            size = sizes[chain.rows]
            size = size if isinstance(size, ir.Value) else mlir.index(size)
            limits[chain.rows] = arith.subi(size, mlir.index(1))
        self.values = Values(chain.scores.number, chain.product.total.number, limits)
        self.states = States(chain.online, chain.product, self.values)
        with when(arith.cmpi(arith.CmpIPredicate.eq, self.thread.number, mlir.index(0))):
            for ring in (self.q, self.k, self.v):
                ring.initialise()
            nvvm.FenceMbarrierInitOp()

    # ---- loading -------------------------------------------------------------------------------------------

    def _load(self) -> None:
        zero = mlir.index(0)
        self.q.load(zero, zero)
        state = [zero, zero]
        with walk(zero, self.tiles.count, state) as (number, now):
            slot, parity = now
            line = arith.muli(self.tiles.tile(number), mlir.index(self.bn))
            for ring in (self.k, self.v):
                ring.wait_empty(slot, parity)
                ring.load(slot, line)
            now[:] = self.k.next(slot, parity)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _multiply(self) -> None:
        zero = mlir.index(0)
        self.states.clear()
        with loop(self.wide // 8) as j:
            for half, lane in PAIRS:
                memref.StoreOp(mlir.constant(0.0, ir.F32Type.get()), self.o, [j, mlir.index(half), mlir.index(lane)])
        self.q.wait_full(zero, zero)
        if self.tiles.always:
            self._walk()
        else:
            with when(arith.cmpi(arith.CmpIPredicate.sgt, self.tiles.count, zero)):
                self._walk()
        self.states.complete()

    def _walk(self) -> None:
        """The first tile's weights; then, for each further tile, its weights under the product of those before."""
        zero, one = mlir.index(0), mlir.index(1)
        if self.turns:
            last = arith.cmpi(arith.CmpIPredicate.eq, self.warpgroup, mlir.index(self.groups))
            with when(last):
                self._turn("arrive")  # the first warpgroup has the first turn
            self._turn("sync")
        self.k.wait_full(zero, zero)
        self._scores(zero)
        if self.turns:
            self._turn("arrive")
        self._wait(0, self.s)
        self._release(self.k, zero)
        self._weights(zero, masked=self.tiles.masked)
        self.packer.pack()
        state = [*self.k.next(zero, zero), zero, zero]  # this tile's slot and parity, and the last one's
        for first, end, masked in self.tiles.ranges(one):
            with walk(first, end, state) as (number, now):
                now[:] = self._step(number, now, masked)
        slot, parity = state[2:]
        self.v.wait_full(slot, parity)
        self._product(slot)
        self._wait(0, self.o, self.w)

    def _step(self, number: ir.Value, state: list[ir.Value], masked: bool) -> list[ir.Value]:
        slot, parity, before, old = state
        self.k.wait_full(slot, parity)
        if self.turns:
            self._turn("sync")
        self._scores(slot)
        self.v.wait_full(before, old)
        self._product(before)
        if self.turns:
            self._turn("arrive")
        self._wait(self.parts, self.s)
        self._release(self.k, slot)
        self._weights(number, masked)
        self._wait(0, self.o, self.w)
        self._release(self.v, before)
        self._rescale()
        self.packer.pack()
        return [*self.k.next(slot, parity), slot, parity]

    def _turn(self, action: str) -> None:
        """Waits for this warpgroup's turn, or gives it to the next one: barriers 1 and up, one for each.

        A call, since upstream's `nvvm.barrier` with a number does not parse again with locations.
        """
        i32 = ir.IntegerType.get_signless(32)
        both = mlir.constant(2 * 128, i32)
        number = self.warpgroup
        if action == "arrive":
            number = sum_of([(number, -1)], self.groups + 1)
        number = arith.index_cast(i32, number)
        self.calls("named_barrier" + ("_arrive" if action == "arrive" else ""), [number, both])

    def _release(self, ring: Ring, slot: ir.Value) -> None:
        """This warpgroup has read the slot: one of its threads says so."""
        lane = arith.andi(self.thread.number, mlir.index(127))
        with when(arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))):
            ring.release(slot)

    def _scores(self, slot: ir.Value) -> None:
        """s = the rows of this warpgroup times a tile of the second factor."""
        name = f"wgmma_64x{self.bn}x{self.depth}_{self.kind}_mk_nk_{self.bm}_{self.bn}"
        views = [self.q.view(mlir.index(0), self.half), self.k.view(slot)]
        self.calls(name, [self.s, *views, mlir.index(0)])

    def _product(self, slot: ir.Value) -> None:
        """o += the weights, each in its parts, times a tile of the third factor."""
        name = f"wgmma_64x{self.wide}x{self.bn}_{self.kind}_rk_kn_0_{self.bn}"
        for part in range(self.parts):
            at = mlir.index(part * self.bn // 4)
            self.calls(name, [self.o, self.w, self.v.view(slot), at, mlir.index(1)])

    def _wait(self, running: int, sums: ir.Value, *factors: ir.Value) -> None:
        """Until at most so many products run."""
        count = prod(ir.MemRefType(sums.type).shape)
        words = "".join(f"_{ir.MemRefType(f.type).shape[0]}" for f in factors)
        self.calls(f"wgmma_wait_{running}_{count}{words}", [sums, *factors])

    # ---- between the products ------------------------------------------------------------------------------

    def _weights(self, number: ir.Value, masked: bool) -> None:
        """States brought up to date with the tile of this number; its weights take the scores' place."""
        chain = self.chain
        start = arith.muli(self.tiles.tile(number), mlir.index(self.bn))
        place = partial(self._place, start)
        bounds = self._bounds()
        if masked and chain.absorbing is not None and fits(bounds, self._largest()):
            exclude(chain, bounds, self.s, self.row, sum_of([(start, 1), (self.column, 1)]))
            masked = False

        def term(c: Carried, at: At) -> ir.Value:
            value = self.values.build(chain.under(c.term, masked), at)
            return selected(self._exists(at, masked), value, c.identity)

        self.states.collect(self.bn // 8, place, term)
        self.states.shift()
        weights = chain.under(chain.weights, masked)
        with loop(self.bn // 8) as j:
            for half, lane in PAIRS:
                at = place(j, half, lane)
                self.states.add(at, lane, term)
                value = selected(self._exists(at, masked), self.values.build(weights, at), 0.0)
                memref.StoreOp(value, self.s, [j, mlir.index(half), mlir.index(lane)])

    def _bounds(self) -> list[Linear]:
        """What is at least 0 for the elements that exist and that no mask excludes."""
        end = Expr("index", place=(self.chain.stream,), type="index")
        edge = [] if self.tiles.even else [({end: -1}, self.length - 1)]
        return [*(b for m in self.chain.masks for b in m.bounds), *edge]

    def _largest(self) -> int:
        """The longest dimension of what the kernel reads and writes."""
        return max(e for a in mlir.entry(self.function).arguments for e in ir.ShapedType(a.type).shape)

    def _place(self, start: ir.Value, j: ir.Value, half: int, lane: int) -> At:
        score = memref.LoadOp(self.s, [j, mlir.index(half), mlir.index(lane)]).result
        row, column = sum_of([(self.row, 1)], 8 * half), sum_of([(start, 1), (j, 8), (self.column, 1)], lane)
        return At({self.chain.rows: row, self.chain.stream: column}, half, score)

    def _exists(self, at: At, masked: bool) -> ir.Value | None:
        """Whether an element of the walk is before its end; None where all are."""
        if self.tiles.even or not masked:
            return None
        leaf = Expr("outer", key="exists")
        if leaf not in at.known:
            end = mlir.index(self.length)
            at.known[leaf] = arith.cmpi(arith.CmpIPredicate.slt, at.coordinates[self.chain.stream], end)
        return at.known[leaf]

    def _rescale(self) -> None:
        if self.chain.product.shift is None:
            return
        factors = [self.states.factor(self.chain.product, half) for half in HALVES]
        with loop(self.wide // 8) as j:
            for half, lane in PAIRS:
                at = [j, mlir.index(half), mlir.index(lane)]
                memref.StoreOp(arith.mulf(memref.LoadOp(self.o, at).result, factors[half]), self.o, at)
