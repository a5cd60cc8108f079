"""map, for CUDA: one operation of a kernel, for each thread's part of its elements.

Every operation loads its operands from global memory first, computes on registers, and stores last, so that several
independent loads are in flight. A reduction over threads is completed by shuffles within a warp and by workgroup memory
across warps, in a fixed order. Every thread along the reduced dimensions then holds the result.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.analysis.lane_invariance import NONE, LaneInvariance, find_lane_invariance
from tilec.core import extents, mlir
from tilec.core.mlir import arith, gpu, ir, memref, vector
from tilec.passes.combiner import Combiner
from tilec.passes.cuda.memory_spaces import is_half, is_local, root, space_of
from tilec.passes.cuda.threaded import transpose, unaligned
from tilec.passes.cuda.threaded.argreduce import ascending, complete_index, start, step
from tilec.passes.cuda.threaded.context import KernelContext, OperationContext
from tilec.passes.cuda.threaded.reduce import across_threads
from tilec.passes.cuda.threaded.scan import scan
from tilec.passes.cuda.threaded.trig_fallback import (
    compute_with_fallback,
    has_fast_path,
    is_trigonometric,
    mark_approximate,
)
from tilec.passes.cuda.threaded.vector_gather import Gathered, fetch, index_of, slides, wide_loads
from tilec.passes.loops import EDGE, TOUCHED, WHOLE, Position, Threads, loop


class GenericMapper(OperationContext):
    """Maps one operation of a kernel: loads, computes, combines states, stores."""

    def __init__(self, kernel: KernelContext, op: ir.Operation, threads: Threads):
        super().__init__(kernel, op, threads)
        self.loops = [d for d in self.dims if self.layout.chunks(d) != 1 and d not in self.reduced]
        self.reduced_loops = [d for d in self.reduced if self.layout.chunks(d) != 1]
        self.gathered: dict[ir.Operation, Gathered] = {}  # loads of the body that were made for all lanes of a step
        self.invariance = self._lane_invariance()
        self.ascending = {a.state: a for a in ascending(self) if self.threads.misalignment is None}

    def _lane_invariance(self) -> LaneInvariance:
        """Lanes of a vector that share a part of the body."""
        lane = self.layout.lane_dim
        if lane is None or lane not in self.dims or self.threads.misalignment is not None:
            return NONE
        return find_lane_invariance(self.terms, index_of(self, lane), self.layout.vectors[lane])

    # ---- the order of things -----------------------------------------------------------------------------------------

    def build(self) -> None:
        if not (self._is_copy() and self.layout is self.kernel.layout and self._copy()):
            self._load([n for n in range(self.count) if self.layout.whole(self.operand_dims[n])])
            self._enter(self.loops, self._reduce)
        if any(self.has_copies(n) or self._has_copies_reread(n) for n in range(self.count, len(self.operands))):
            gpu.BarrierOp()  # threads read each other's last stores

    def _has_copies_reread(self, n: int) -> bool:
        """The same of a result in global memory that a later operation reads there: all of them store it, too."""
        return space_of(self.operands[n]) is None and self._is_reread(n) and self._is_shared(n)

    def _is_copy(self) -> bool:
        (*body, end) = self.block.operations
        return (
            not body
            and list(end.operands) == [self.block.arguments[0]]
            and self.operand_dims[0] == self.operand_dims[1]
        )

    def _copy(self) -> bool:
        """Between a private tile and memory a copy needs no tile of its own."""
        spaces = [space_of(v) for v in self.operands]
        if spaces in ([None, "private"], ["workgroup", "private"]):
            self.fetch(self.operands[0], self.operand_dims[0], self.kernel.tile(self.operands[1], self.operand_dims[1]))
            self.kernel.filled.add(root(self.operands[1]))
        elif spaces == ["private", None]:
            self.tiles[1] = self.kernel.tile(self.operands[0], self.operand_dims[0])
            self._store(1)
        return spaces in ([None, "private"], ["workgroup", "private"], ["private", None])

    def _reduce(self) -> None:
        """One chunk of the parallel dimensions: states start, elements are added, threads' states are combined."""
        for n in self.states:
            self._start(n)
        outside = [n for n in range(self.count) if not set(self.operand_dims[n]) & set(self.reduced_loops)]
        self._load([n for n in outside if n not in self.tiles])
        self._enter(self.reduced_loops, self._chunk)
        for n, ascent in self.ascending.items():
            tile = self._state_tile(n)
            complete_index(self, ascent, tile)
            self.tiles[n] = tile
        if self.states and self.scanned is None:
            across_threads(self, Combiner(self.op, self.states))
        for n in self.states:
            self._store_state(n)

    def _chunk(self) -> None:
        """One chunk of all dimensions: load, compute, store."""
        held = dict(self.tiles)
        self._load([n for n in range(self.count) if n not in self.tiles])
        stores = [n for n in range(self.count, len(self.operands)) if n not in self.states]
        for n in stores:
            if space_of(self.operands[n]) != "workgroup":
                self.tiles[n] = self.out_tile(n)
        if self.scanned is not None and self.layout.threads[self.scanned] > 1:
            scan(self, self.scanned)
        elif has_fast_path(self):
            self.gathered = {}
            compute_with_fallback(self)
        else:
            wide = wide_loads(self) if self.threads.misalignment is None else []
            if not any(slides(self, d) for d in self.reduced_loops):
                self.kept = {}
            self.gathered = {op: tile for load in wide for op, tile in fetch(self, load).items()}
            self.compute_all()
        for n in stores:
            if space_of(self.operands[n]) is None:
                self._store(n)
        self.tiles = held

    def _enter(self, loops: list[int], body: Callable[[], None]) -> None:
        """Loops over the chunks of some dimensions around `body`."""
        if not loops:
            return body()
        d, *rest = loops
        if slides(self, d):
            return self._slide(d, rest, body)
        unroll = self.layout is not self.kernel.layout and isinstance(self.sizes[d], ir.Value)
        # rows that every operation reads: unrolled, their loads would be moved up for as long as there are registers
        rolled = self.layout is self.kernel.layout and (
            self.kernel.online or bool(self.layout.dense) or (self.kernel.reduces and d == self.layout.lane)
        )
        in_registers = {
            n for v in self.operands for n in self.kernel.hybrid_chunks.get(root(v), ()) if d == self.layout.lane
        }
        inside = min(in_registers, default=0)
        ranges = (
            [(0, inside, False), *((n, n + 1, False) for n in sorted(in_registers))]
            if in_registers
            else self.threads.ranges(d)
        )
        for low, high, inner in ranges:
            self.threads.inner = inner
            written, always, name = unroll and not inner, low not in in_registers, self.threads.name(d, "chunk")
            with loop(high - low, always=always, unroll=written, rolled=rolled, start=low, name=name) as self.chunk[d]:
                tiles = dict(self.tiles)
                self._enter(rest, body)
                self.tiles = tiles
            del self.chunk[d]
        self.threads.inner = False

    def _slide(self, d: int, rest: list[int], body: Callable[[], None]) -> None:
        """A loop along windows, written out: its first round loads all that they begin with."""
        self.kept = {}
        for low, high in ((0, 1), (1, self.layout.chunks(d))):
            with loop(high - low, always=low > 0, unroll=True, start=low, name=self.threads.name(d, "chunk")) as self.chunk[d]:
                tiles = dict(self.tiles)
                self._enter(rest, body)
                self.tiles = tiles
            del self.chunk[d]

    # ---- states ------------------------------------------------------------------------------------------------------

    def _start(self, n: int) -> None:
        """The identity into every slot of a state."""
        if n in self.ascending:
            self.tiles[n] = start(self, self.ascending[n])
            return
        self.tiles[n] = self._state_tile(n)
        with self.threads.slots(self.operand_dims[n], {}, None, lanes=True) as position:
            memref.StoreOp(self.identity(n), self.tiles[n], position.slot(self.operand_dims[n]))

    def _state_tile(self, n: int) -> ir.Value:
        if space_of(self.operands[n]) == "private":
            return self.kernel.tile(self.operands[n], self.operand_dims[n])
        return self.kernel.private(self.operand_dims[n], ir.MemRefType(self.operands[n].type).element_type)

    def _store_state(self, n: int) -> None:
        """A complete state into workgroup memory, where it does not stay in registers."""
        if space_of(self.operands[n]) == "private":
            return
        with self.threads.slots(self.operand_dims[n], self.chunk, self.sizes, lanes=True) as position:
            value = memref.LoadOp(self.tiles[n], position.slot(self.operand_dims[n])).result
            memref.StoreOp(value, self.operands[n], position.coordinates(self.operand_dims[n]))

    # ---- loads and stores --------------------------------------------------------------------------------------------

    def _load(self, operands: list[int]) -> None:
        """Private tiles, and this thread's part of global memory, into `tiles`."""
        seen: dict[tuple, ir.Value] = {}
        for n in operands:
            value, dims = self.operands[n], self.operand_dims[n]
            if not self.live[n]:
                continue
            if space_of(value) == "private":
                self.tiles[n] = self.kernel.tile(value, dims)
            elif (chunk := self._register_chunk(value)) is not None:
                self.tiles[n] = chunk
            elif space_of(value) is None or self._is_buffer(value) or transpose.mark_of(root(value)):
                if (value, dims) not in seen:
                    seen[value, dims] = self.fetch(value, dims)
                self.tiles[n] = seen[value, dims]

    def _register_chunk(self, value: ir.Value) -> ir.Value | None:
        """The registers that hold this chunk of a row, the rest of which is in SRAM."""
        tiles = self.kernel.hybrid_chunks.get(root(value))
        if tiles is None:
            return None
        assert self.layout.lane is not None
        return tiles.get(mlir.constant_value(self.chunk[self.layout.lane]))

    def fetched(self, n: int, chunk: dict[int, ir.Value]) -> ir.Value:
        """A chunk of an operand, in registers."""
        self.chunk = chunk
        return self.fetch(self.operands[n], self.operand_dims[n])

    def fetch(self, value: ir.Value, dims: tuple[int, ...], tile: ir.Value | None = None) -> ir.Value:
        if tile is None:
            element = ir.MemRefType(value.type).element_type
            tile = self.kernel.private(dims, element, self.kernel.name_of(value), self.layout)
        width = self._vector(value, dims)
        if self.kernel.packed and is_half(value) and width % 2 == 0:
            tile.owner.attributes["tilec.halves"] = ir.UnitAttr.get()
        if self._is_unaligned(dims):
            unaligned.fetch(self, value, dims, tile)
            return tile
        mark, reading = transpose.mark_of(root(value)), self._reading(value)
        with self.threads.slots(dims, self.chunk, self.sizes, lanes=width == 1) as position:
            for lane in self._pieces(width):
                if width > 1:
                    type_ = ir.VectorType.get([width], ir.MemRefType(value.type).element_type)
                    at = position.coordinates(dims, lane)
                    memory, at = (root(value), transpose.swizzled(at, mark)) if mark else (value, at)
                    read = vector.LoadOp(type_, memory, at)
                    if reading:
                        read.attributes["tilec.read"] = ir.StringAttr.get(reading)
                    vector.StoreOp(read.result, tile, position.slot(dims, lane))
                else:
                    one = memref.LoadOp(value, position.coordinates(dims)).result
                    memref.StoreOp(one, tile, position.slot(dims))
        return tile

    def _reading(self, value: ir.Value) -> str:
        """For data that do not stay on chip: "again" if a later operation reads them, too, "last" if only earlier ones did."""
        if self.kernel.on_chip or space_of(value) is not None or self._is_buffer(value):
            return ""
        later = any(mlir.is_generic(u) and u != self.op and value in mlir.inputs_of(u) for u in mlir.uses(value))
        before = value in self.kernel.known
        self.kernel.known.add(value)
        return "again" if later else "last" if before else ""

    def _is_reread(self, n: int) -> bool:
        """Whether a later operation of the kernel reads a result out of memory."""
        value = self.operands[n]
        return any(mlir.is_generic(u) and value in mlir.inputs_of(u) for u in mlir.uses(value))

    def _store_at(self, n: int, position: Position) -> None:
        """The accesses of one step, or of one of its elements."""
        value, dims, tile = self.operands[n], self.operand_dims[n], self.tiles[n]
        width = self._vector(value, dims)
        for lane in self._pieces(width):
            if width > 1:
                type_ = ir.VectorType.get([width], ir.MemRefType(value.type).element_type)
                element = vector.LoadOp(type_, tile, position.slot(dims, lane)).result
                vector.StoreOp(element, value, position.coordinates(dims, lane))
            else:
                element = memref.LoadOp(tile, position.slot(dims)).result
                memref.StoreOp(element, value, position.coordinates(dims))

    def _store(self, n: int) -> None:
        """This thread's part of a result into global memory; where threads hold the same, the first stores it."""
        value, dims = self.operands[n], self.operand_dims[n]
        width = self._vector(value, dims)
        owner = None if self._is_reread(n) else self.threads.first([d for d in self.layout.order if d not in dims])
        if self._is_unaligned(dims):
            return unaligned.store(self, n, owner)
        with self.threads.slots(dims, self.chunk, self.sizes, lanes=width == 1, owner=owner) as position:
            self._store_at(n, position)

    def _vector(self, value: ir.Value, dims: tuple[int, ...]) -> int:
        """Elements that one access may move: up to 16 bytes side by side, every one of them inside and aligned."""
        lane_dim = self.layout.lane_dim
        if lane_dim is None or not dims or dims[-1] != lane_dim or lane_dim in dims[:-1]:
            return 1
        if is_local(value) and not self._is_buffer(value) and transpose.mark_of(root(value)) is None:
            return 1
        whole = extents.shape_of(root(value))[-1]
        if self._is_unaligned(dims) and root(value) not in self.kernel.vector_buffers:
            assert self.kernel.alignment is not None
            return self.access(value) if self.kernel.alignment.follows(value, dims) else 1
        return self.access(value) if extents.divides(self.layout.vectors[lane_dim], whole) else 1

    def _is_unaligned(self, dims: tuple[int, ...]) -> bool:
        """Whether an operand's rows begin anywhere in a vector."""
        return self.threads.misalignment is not None and self.layout.lane_dim in dims

    def _is_buffer(self, value: ir.Value) -> bool:
        """Whether it is memory that asynchronous copies fill."""
        return root(value) in self.kernel.buffers

    def _pieces(self, width: int) -> range:
        """Where the accesses of one step begin among its lanes."""
        if width <= 1:
            return range(1)
        assert self.layout.lane_dim is not None
        return range(0, self.layout.vectors[self.layout.lane_dim], width)

    # ---- the body ----------------------------------------------------------------------------------------------------

    def compute_all(self, far: ir.Value | None = None) -> None:
        """One chunk: an element after the other, or several that share their common values."""
        size = self.invariance.size
        free = self._is_free()
        if free:
            self.kernel.filled |= {root(v) for v in self.operands[self.count :]}
        masked = self._is_masked()
        for part in self.threads.parts(self.dims, *((TOUCHED,) if free else (WHOLE, EDGE))):
            with self.threads.slots(
                self.dims, self.chunk, self.sizes, lanes=True, lane_stride=size, part=part, masked=masked
            ) as position:
                shared: dict[ir.Value, ir.Value] = {}
                for number in range(size):
                    self.compute(position.offset_lane(number), far, number, shared)

    def _is_free(self) -> bool:
        """Whether the elements beside an unaligned row may be computed, too, since their results are not used."""
        if not self._is_unaligned(self.dims) or self.states:
            return False
        inputs = [(v, p) for v, p, live in zip(self.operands[: self.count], self.operand_dims, self.live) if live]
        lacking = {v for v, p in inputs if self._is_unaligned(p) and (is_local(v) or root(v) in self.kernel.written)}
        return all(root(v) in self.kernel.filled for v in lacking) and self._is_plain()

    def _is_masked(self) -> bool:
        """Whether the elements beside an unaligned row are computed, and then left out of the states: eight branches in a row take
        longer than eight elements (H200; four do not)."""
        states = len(self.states) == len(self.operands) - self.count
        lane = self.layout.lane
        many = lane is not None and self.layout.vectors[lane] > 4
        return states and self._is_unaligned(self.dims) and many and self._is_plain()

    def _is_plain(self) -> bool:
        """Whether an element may be computed without need: its body neither reads memory nor checks anything."""
        return not any(o.operation.name in ("memref.load", "cf.assert", "scf.if") for o in self.block.operations)

    def _put_inside(self, n: int, position: Position, value: ir.Value) -> None:
        """A new value of a state, unless the element is beside the row."""
        assert position.inside is not None
        chosen = arith.SelectOp(position.inside, value, self.element(n, position))
        chosen.attributes["tilec.both"] = ir.UnitAttr.get()
        self.put(n, position, chosen.result)

    def compute(
        self,
        position: Position,
        far: ir.Value | None = None,
        number: int = 0,
        shared: dict[ir.Value, ir.Value] | None = None,
    ) -> None:
        """One element; in a loop over groups, the element of this number, which finds the first element's values in `shared`."""
        invariance = NONE if shared is None else self.invariance
        mapping: dict[ir.Value, ir.Value] = {}
        for n, argument in enumerate(self.block.arguments):
            if self.live[n]:
                mapping[argument] = self.element(n, position)
        for inner in self.block.operations:
            if inner.operation.name == "linalg.index":
                mapping[inner.results[0]] = position.coordinate(self.dims[mlir.index_dim(inner.operation)])
        for inner in self.block.operations:
            if inner.operation in self.gathered:
                mapping[inner.results[0]] = self.gathered[inner.operation].element(position, self.dims)
            elif any(step(self, a, inner.operation, position, mapping) for a in self.ascending.values()):
                pass
            elif inner.operation.name not in ("linalg.index", "linalg.yield"):
                copy = invariance.clone(inner.operation, number, mapping, {} if shared is None else shared)
                if copy is not None and far is not None and is_trigonometric(copy):
                    mark_approximate(copy, far)
        put = self.put if position.inside is None else self._put_inside
        for n, value in enumerate(list(self.block.operations)[-1].operands, self.count):
            put(n, position, mapping.get(value, value))
