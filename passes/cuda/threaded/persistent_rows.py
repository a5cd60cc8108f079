"""Persistent blocks of rows: each block prefetches its next row while it computes one.

    forall (b) in (rows) {                        start: x[number] -> buffer
      copy x[b] -> buffer     {tilec.stages}      for b = number to rows step blocks {
      copy buffer -> x1       {tilec.drain_copy}  ->     wait;  x1 = buffer
      generic max ins(x1) ...                       start: x[b + blocks] -> buffer
    }                                               generic max ins(x1) ... }

`stage` writes the copies (`stage_rows`), `map` the loop (`Pipeline`). Every thread copies the elements that it will read
itself, so that it does not wait for other threads. `tilec.stages` is the number of buffers; 0 marks an operand that all
tiles share, which is copied once, before the loop. (One bulk copy a block, on an H200, was slower by 2 to 12%: it keeps
fewer bytes in flight.)

Where rows are unaligned (`unaligned.py`), an operand that all tiles share begins elsewhere in its vectors than they do. Each thread
moves its elements to where those of the row are, in shared memory, and does so again for rows that begin at another place:

    if misalignment != aligned { g = realign(gain, misalignment) -> buffer }

The plan has so many blocks that the rows of one all begin at the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod

from tilec.analysis.layout import Layout
from tilec.core import locations, mlir
from tilec.core.mlir import arith, gpu, ir, memref, nvvm, scf
from tilec.passes.cuda.memory_spaces import is_local, operand_dims, root, sizes_of
from tilec.passes.cuda.ring import CopyRing, start_copy
from tilec.passes.cuda.threaded.context import KernelContext
from tilec.passes.cuda.threaded.row_alignment import RowAlignment
from tilec.passes.cuda.threaded.unaligned import ends_before, flat, flat_index, load_rest, uncut
from tilec.passes.loops import INNER, TOUCHED, delinearise, loop, sum_of, when

NARROWEST, WIDEST = 32, 128  # bits that an asynchronous copy takes at once
STAGES, DRAIN_COPY, HYBRID_CHUNKS = "tilec.stages", "tilec.drain_copy", "tilec.hybrid_chunks"
"""Attributes of the copies that go through SRAM."""
MakeTile = Callable[[ir.Value, list[int], Layout], ir.Value]
MakeCopy = Callable[[ir.Value, ir.Value, list[int], ir.Operation | None], ir.OpView]


# ---- stage: data that go through SRAM --------------------------------------------------------------------------------


def stage_rows(
    function: ir.Operation, layout: Layout, grid: list[int], stages: int, make_tile: MakeTile, make_copy: MakeCopy
) -> None:
    """Sends the inputs that lie along the rows through SRAM; those of one tile on into registers."""
    forall = next((o.operation for o in mlir.traverse(function) if o.name == "scf.forall"), None)
    if forall is None:
        return
    body = forall.regions[0].blocks[0]
    generics = [o.operation for o in body.operations if mlir.is_generic(o.operation)]
    first = next(o.operation for o in body.operations if o.operation.name.startswith("linalg."))
    copies = []
    found = row_inputs(generics, layout)
    if layout.unaligned:
        found += [(v, d) for v, d in row_inputs(generics, layout, realigned=True) if not set(d) & set(grid)]
    for value, dims in found:
        for op in _slice_within(value, body):
            op.move_before(first)
        with ir.InsertionPoint(first), first.location:
            buffer = make_tile(value, dims, layout)
            copy = make_copy(value, buffer, dims, None)
        own = bool(set(dims) & set(grid))
        copy.operation.attributes[STAGES] = mlir.integer(stages if own else 0)
        copies.append((value, dims, buffer, own))
    for value, dims, buffer, own in copies:
        tile = buffer
        if own:
            with ir.InsertionPoint(first), first.location:
                tile = make_tile(value, dims, layout)
                make_copy(buffer, tile, dims, None).operation.attributes[DRAIN_COPY] = ir.UnitAttr.get()
        _read_instead(generics, value, dims, tile)


def _read_instead(generics: list[ir.Operation], value: ir.Value, dims: list[int], tile: ir.Value) -> None:
    for op in generics:
        for n, (operand, read_dims) in enumerate(zip(mlir.inputs_of(op), operand_dims(op))):
            if operand == value and read_dims == dims:
                op.operands[n] = tile


def hold_rows(
    function: ir.Operation, layout: Layout, hybrid_chunks: int, make_tile: MakeTile, make_copy: MakeCopy
) -> None:
    """Keeps the inputs along the rows that several operations read in SRAM: each is copied once, before its first reader. The
    last `hybrid_chunks` chunks of them go to registers instead."""
    generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
    for value, dims in row_inputs(generics, layout):
        readers = [op for op in generics if (value, dims) in zip(mlir.inputs_of(op), operand_dims(op))]
        if len(readers) < 2:
            continue
        with ir.InsertionPoint(readers[0]), readers[0].location:
            buffer = make_tile(value, dims, layout)
            copy = make_copy(value, buffer, dims, None).operation
            copy.attributes[STAGES], copy.attributes[HYBRID_CHUNKS] = mlir.integer(0), mlir.integer(hybrid_chunks)
        _read_instead(readers, value, dims, buffer)


def row_inputs(
    generics: list[ir.Operation], layout: Layout, realigned: bool = False
) -> list[tuple[ir.Value, list[int]]]:
    """The inputs in global memory whose part of a tile is contiguous along the fastest threads, and that no earlier
    operation of the block writes. For unaligned rows, inputs that begin at other places in a vector are excluded, since
    the threads that copy their elements would not be those that read them. `realigned`: those alone."""
    alignment = RowAlignment(generics, layout) if layout.unaligned else None
    made = {root(value) for op in generics for value in mlir.outputs_of(op)}
    found: list[tuple[ir.Value, list[int]]] = []
    for op in generics:
        for value, dims in zip(mlir.inputs_of(op), operand_dims(op)):
            known = any(v == value and d == dims for v, d in found)
            along = _side_by_side(value, dims, layout) and not known and root(value) not in made
            if along and (alignment is None or alignment.follows(value, dims) != realigned):
                found.append((value, dims))
    return found


def _side_by_side(value: ir.Value, dims: list[int], layout: Layout) -> bool:
    """Whether the last dimension is the threads' and all others of the tile are of one element."""
    if is_local(value):
        return False
    return bool(dims) and dims[-1] == layout.lane and all(layout.extents[d] == 1 for d in dims[:-1])


def _slice_within(value: ir.Value, body: ir.Block) -> list[ir.Operation]:
    """The operations of `body` that `value` is made by, in order."""
    wanted = {value}
    for op in reversed([o.operation for o in body.operations]):
        if any(r in wanted for r in op.results):
            wanted |= set(op.operands)
    return [o.operation for o in body.operations if any(r in wanted for r in o.operation.results)]


# ---- map: the loop ---------------------------------------------------------------------------------------------------


class Pipeline:
    """The loop over a block's tiles: `persistent_blocks` blocks, or clusters, are at work and take tile after tile."""

    def __init__(
        self, kernel: KernelContext, forall: ir.Operation, persistent_blocks: int, realign: Callable[[ir.Operation], None]
    ) -> None:
        """`realign` maps a copy whose elements move to another place in their vectors (`unaligned.realign`)."""
        self.kernel, self.realign = kernel, realign
        self.counts = list(ir.DenseI64ArrayAttr(forall.attributes["staticUpperBound"]))
        self.total = prod(self.counts)
        self.most = min(persistent_blocks, self.total)
        self.body, self.names = forall.regions[0].blocks[0], locations.variables(forall)
        self.ops = [o.operation for o in self.body.operations if o.operation.name != "scf.forall.in_parallel"]
        self.copies = [op for op in self.ops if STAGES in op.attributes]
        self.ring = CopyRing(max((mlir.get_integer(op, STAGES) for op in self.copies), default=1) or 1, self.total)
        self.buffers: dict[ir.Operation, ir.Value] = {}
        self.period = 1  # a number of blocks that has the rows of each begin at one place, where operands are realigned

    def build(self) -> ir.Block:
        """Builds the loop at the insertion point; returns its body, with the operations of one tile in it.

        The launch decides how many blocks there are: as many as run at a time.
        """
        first, count = (gpu.ClusterIdOp, gpu.ClusterDimOp) if self.kernel.spread else (gpu.BlockIdOp, gpu.GridDimOp)
        number, self.step = first(gpu.Dimension.x).result, count(gpu.Dimension.x).result
        for copy in self.copies:
            shape = ir.MemRefType(self._alloc(copy).type)
            leading = [self.ring.stages] if self._is_prefetched(copy) and self.ring.stages > 1 else []
            type_ = ir.MemRefType.get([*leading, *shape.shape], shape.element_type, None, shape.memory_space)
            self.buffers[copy] = memref.AllocOp(type_, [], []).result
            if tensor := self.kernel.name_of(copy.operands[0]):
                locations.named(self.buffers[copy], f"{tensor}_rows")
            self.kernel.buffers.append(self.buffers[copy])
            if self.kernel.alignment:
                self.kernel.vector_buffers.add(self.buffers[copy])
        zero = mlir.index(0)
        for copy in self.copies:
            if self._is_realigned(copy):
                self.kernel.filled.add(self.buffers[copy])
            elif not self._is_prefetched(copy):
                self._start(copy, {}, zero)
        for stage in range(self.ring.stages):
            self._start_prefetches(self._tile_ahead(number, stage), mlir.index(stage))
        self.kernel.wait_for_cluster()
        aligned = []  # where in a vector the last row began
        if self.kernel.alignment and any(map(self._is_realigned, self.copies)):
            aligned, self.period = [mlir.index(-1)], self.kernel.alignment.period
        loop = scf.ForOp(number, mlir.index(self.total), self.step, [*aligned, zero, zero])
        names = ("aligned", "parity", "stage")[not aligned :]
        locations.named(loop, _only(self.counts, self.names) or "tile", *names)
        with ir.InsertionPoint(loop.body):
            self._round(loop)
        return loop.body

    def _round(self, loop: scf.ForOp) -> None:
        """One tile: wait, take it into registers, start the copy of a later one, and the work."""
        tile, (*aligned, phase, stage) = loop.induction_variable, loop.inner_iter_args
        self.kernel.phase = phase
        mapping = self._mapping(tile, stage)
        drain_copies = [op for op in self.ops if DRAIN_COPY in op.attributes]
        prefetched = [self._alloc(copy) for copy in self.copies if self._is_prefetched(copy)]
        for op in self.ops:
            if op.results and op.results[0] in mapping:
                continue
            if op in self.copies:
                if self.kernel.alignment and self.kernel.threads.misalignment is None:
                    misalignment = self._misalignment(mapping.get(op.operands[0], op.operands[0]), op)
                    self.kernel.threads.misalignment = misalignment
                if self._is_realigned(op):
                    self._realign(op, mapping, aligned[0])
                if op == self.copies[-1]:
                    self.ring.wait(self.ring.stages - 1)
                continue
            made = mlir.clone_op(op, mapping)
            if op.name == "memref.subview" and self.ring.stages > 1 and op.operands[0] in prefetched:
                _moved(made.results[0])
            if drain_copies and op == drain_copies[-1]:
                gpu.BarrierOp()  # workgroup memory of the last tile's reductions is free, too
                self._start_prefetches(self._tile_ahead(tile, self.ring.stages), stage)
        began = [self.kernel.threads.misalignment] if aligned and self.kernel.threads.misalignment is not None else []
        scf.YieldOp([*began, arith.xori(phase, mlir.index(1)), self.ring.next(stage)])

    def _realign(self, copy: ir.Operation, mapping: dict[ir.Value, ir.Value], aligned: ir.Value) -> None:
        """Puts an operand that all tiles share where this tile's row begins, unless it is there since the last one."""
        misalignment = self.kernel.threads.misalignment
        assert misalignment is not None
        with when(arith.cmpi(arith.CmpIPredicate.ne, misalignment, aligned)):
            made = mlir.clone_op(copy, dict(mapping))
            with ir.InsertionPoint(made):
                self.realign(made)
            made.erase()

    def _tile_ahead(self, tile: ir.Value, rounds: int) -> ir.Value:
        """The number of the tile that this block takes some rounds later."""
        return sum_of([(tile, 1), *([(self.step, rounds)] if rounds else [])])

    def _mapping(self, tile: ir.Value, stage: ir.Value) -> dict[ir.Value, ir.Value]:
        """The replacements of values of the loop over tiles: its variables, and the memory of the copies."""
        mapping = dict(zip(self.body.arguments, delinearise(tile, self.counts, self.names)))
        return mapping | {self._alloc(copy): self._buffer(copy, stage) for copy in self.copies}

    def _start_prefetches(self, tile: ir.Value, stage: ir.Value) -> None:
        """Starts the copies of a tile, if there is one of this number; they end together."""

        def copy_all() -> None:
            numbers = dict(zip(self.body.arguments, delinearise(tile, self.counts)))
            for copy in self.copies:
                if self._is_prefetched(copy):
                    self._start(copy, numbers, stage)

        self.ring.start(tile, copy_all)

    def _start(self, copy: ir.Operation, mapping: dict[ir.Value, ir.Value], stage: ir.Value) -> None:
        """Copies this thread's elements of one operand."""
        mapping = dict(mapping)
        for op in _slice_within(copy.operands[0], self.body):
            mlir.clone_op(op, mapping)
        source, target = mapping.get(copy.operands[0], copy.operands[0]), self._buffer(copy, stage)
        _copy_async(self.kernel, source, target, tuple(mlir.get_integers(copy, "tilec.dims")))

    def _misalignment(self, source: ir.Value, copy: ir.Operation) -> ir.Value:
        assert self.kernel.alignment is not None
        return self.kernel.alignment.of(source, mlir.get_integers(copy, "tilec.dims"), self.kernel.threads)

    def _buffer(self, copy: ir.Operation, stage: ir.Value) -> ir.Value:
        """The memory that a copy goes to."""
        buffer = self.buffers[copy]
        if not self._is_prefetched(copy) or self.ring.stages == 1:
            return buffer
        whole = ir.MemRefType(buffer.type)
        strides, _ = whole.get_strides_and_offset()
        layout = ir.StridedLayoutAttr.get(ir.ShapedType.get_dynamic_stride_or_offset(), strides[1:])
        type_ = ir.MemRefType.get(whole.shape[1:], whole.element_type, layout, whole.memory_space)
        offsets, sizes = [mlir.DYNAMIC, *[0] * (whole.rank - 1)], [1, *whole.shape[1:]]
        return memref.SubViewOp(type_, buffer, [stage], [], [], offsets, sizes, [1] * whole.rank).result

    def _alloc(self, copy: ir.Operation) -> ir.Value:
        return root(copy.operands[1])

    def _is_prefetched(self, copy: ir.Operation) -> bool:
        return mlir.get_integer(copy, STAGES) > 0

    def _is_realigned(self, copy: ir.Operation) -> bool:
        """Whether an operand that all tiles share begins elsewhere in its vectors than their rows do."""
        alignment, dims = self.kernel.alignment, tuple(mlir.get_integers(copy, "tilec.dims"))
        return alignment is not None and not alignment.follows(copy.operands[0], dims)


def _only(counts: list[int], names: list[str | None]) -> str | None:
    """The name of the only dimension along which there are several blocks."""
    several = [n for n, count in enumerate(counts) if count > 1]
    return names[several[0]] if len(several) == 1 and several[0] < len(names) else None


def copy_rows(kernel: KernelContext, copy: ir.Operation, fetch: Callable[[dict[int, ir.Value]], ir.Value]) -> None:
    """A copy of `hold_rows`: this thread's part has arrived when it continues. `fetch` loads a chunk into registers."""
    buffer = root(copy.operands[1])
    kernel.buffers.append(buffer)
    if kernel.alignment:
        kernel.vector_buffers.add(buffer)
    dims, layout = tuple(mlir.get_integers(copy, "tilec.dims")), kernel.layout
    chunks = layout.chunks(dims[-1])
    inside = chunks - mlir.get_integer(copy, HYBRID_CHUNKS)
    with loop(inside, name=kernel.threads.name(dims[-1], "chunk")) as chunk:
        _copy_async(kernel, copy.operands[0], copy.operands[1], dims, {dims[-1]: chunk})
    nvvm.CpAsyncCommitGroupOp()
    if inside < chunks:
        kernel.hybrid_chunks[buffer] = {n: fetch({dims[-1]: mlir.index(n)}) for n in range(inside, chunks)}
        whole = ir.MemRefType(buffer.type)
        shape = [*whole.shape[:-1], inside * layout.chunk(dims[-1])]
        buffer.set_type(ir.MemRefType.get(shape, whole.element_type, None, whole.memory_space))
    nvvm.CpAsyncWaitGroupOp(0)


def _copy_async(
    kernel: KernelContext,
    source: ir.Value,
    target: ir.Value,
    dims: tuple[int, ...],
    chunk: dict[int, ir.Value] | None = None,
) -> None:
    """Starts the copies of this thread's elements from global memory to SRAM."""
    layout, threads = kernel.layout, kernel.threads
    sizes = sizes_of([source], [dims])
    bits = ir.MemRefType(source.type).element_type.width
    width = min(layout.vectors[dims[-1]], WIDEST // bits)
    plain = bits < 8 or width * bits < NARROWEST  # no asynchronous copy takes so little
    if kernel.alignment:
        before, threads.misalignment = threads.misalignment, None
        threads.misalignment, threads.least = (
            kernel.alignment.of(source, dims, threads),
            kernel.alignment.least(kernel.spread),
        )
        _copy_unaligned(kernel, source, target, dims, sizes, chunk or {}, width)
        threads.misalignment = before
        return
    with threads.slots(dims, chunk or {}, sizes, lanes=False) as position:
        for lane in range(0, layout.vectors[dims[-1]], 1 if plain else width):
            at = position.coordinates(dims, lane)
            if plain:
                memref.StoreOp(memref.LoadOp(source, at).result, target, at)
            else:
                start_copy(target, at, source, at, width)


def _copy_unaligned(
    kernel: KernelContext,
    source: ir.Value,
    target: ir.Value,
    dims: tuple[int, ...],
    sizes: dict[int, ir.Value | int],
    chunk: dict[int, ir.Value],
    width: int,
) -> None:
    """The vectors of rows that begin anywhere in one, as they are in memory, as far as that goes."""
    threads, vectors, memory, target = kernel.threads, kernel.layout.vectors[dims[-1]], flat(source), uncut(target)
    (total,) = ir.MemRefType(memory.type).shape
    for part, lane in product(threads.parts(dims, TOUCHED), range(0, vectors, width)):
        assert part is not None  # rows are unaligned
        cut = total % vectors > 0 and part.kind != INNER  # the memory may end within the vector
        for inside in (True, False) if cut else (True,):
            where = partial(ends_before, source, dims, lane, total - width, inside) if cut else None
            with threads.slots(dims, chunk, sizes, lanes=False, part=part, where=where) as position:
                at = flat_index(source, dims, position, lane)
                to = [*position.coordinates(dims[:-1]), sum_of([(position.bases[dims[-1]], 1)], lane)]
                if inside:
                    start_copy(target, to, memory, [at], width)
                else:
                    load_rest(memory, at, width, target, partial(_advanced, to), narrow=True)


def _advanced(subscripts: list[ir.Value], n: int) -> list[ir.Value]:
    return [*subscripts[:-1], sum_of([(subscripts[-1], 1)], n)]


def _moved(view: ir.Value) -> None:
    """A part of a buffer that does not begin where its memory does."""
    type_ = ir.MemRefType(view.type)
    strides, _ = type_.get_strides_and_offset()
    layout = ir.StridedLayoutAttr.get(ir.ShapedType.get_dynamic_stride_or_offset(), strides)
    view.set_type(ir.MemRefType.get(type_.shape, type_.element_type, layout, type_.memory_space))
