"""Clusters: rows that several blocks share, which access each other's shared memory (sm_90 and later).

    m = alloc                                     rank = cluster_block_id
    generic max ins(x : 1xN) outs(m)      ->      generic max ins(x[rank * part : ... + part]) outs(m)
                                                  every block sends its m to all, waits for theirs, combines them

`spread` cuts the row first, so that the rest of `stage` and `map` sees a tile of `part` elements. `across_blocks`
completes a reduction. A block sends a state by an asynchronous store that counts on an mbarrier of the receiver
(`memref.dma_start`, whose tag is an mbarrier), so that no block waits for a barrier of the whole cluster. Memory of space 7 is
distributed shared memory: its first subscript is the number of the block that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from tilec.analysis.layout import Layout
from tilec.core import locations, mlir, records
from tilec.core.mlir import affine, arith, gpu, ir, memref, nvvm
from tilec.kernels.attributes import Spread
from tilec.kernels.rows import part_of
from tilec.passes.loops import Threads, flat_slot

CLUSTER = 7  # the number of this memory space in LLVM's NVPTX backend


def planned_spread(function: ir.Operation) -> Spread | None:
    """The parts into which `spread` cut a kernel."""
    return records.get(function, "tilec.spread", Spread)


# ---- stage: every block has its part ---------------------------------------------------------------------------------


def cluster_rank() -> ir.Value:
    """Of a block in its cluster."""
    return gpu.ClusterBlockIdOp(gpu.Dimension.x).result


def spread(
    function: ir.Operation, dim: int, blocks: int, vector: int, rank: Callable[[], ir.Value] = cluster_rank
) -> None:
    """Cuts dimension `dim` of all operations of a kernel into parts; `rank` makes the number of a block's own."""
    generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
    extent = next(
        e for op in generics for d, e in zip(mlir.get_integers(op, "tilec.dims"), mlir.extents_of(op)) if d == dim
    )
    part = part_of(extent, blocks, vector)
    with ir.InsertionPoint.at_block_begin(mlir.entry(function)), function.location:
        number, rank_dim = rank(), ir.AffineDimExpr.get(0)
        start = affine.AffineApplyOp(ir.AffineMap.get(1, 0, [rank_dim * part]), [number]).result
        size: int | ir.Value = part
        if extent % part:
            left = ir.AffineMap.get(1, 0, [rank_dim * -part + extent, ir.AffineConstantExpr.get(part)])
            size = affine.AffineMinOp(left, [number]).result
    cut: dict[tuple[ir.Value, int], ir.Value] = {}
    for op in generics:
        dims = mlir.get_integers(op, "tilec.dims")
        if dim not in dims:
            continue
        for n, map_ in enumerate(mlir.maps_of(op)):
            operand_dims = [dims[d] for d in mlir.map_dims(map_)]
            if dim in operand_dims:
                op.operands[n] = _part(op.operands[n], operand_dims.index(dim), start, size, part, cut)
        _offset_indices(op, dims.index(dim), start)
    function.attributes["tilec.spread"] = records.to_attribute(Spread(dim, blocks, part))


def _part(
    value: ir.Value,
    at: int,
    start: ir.Value,
    size: int | ir.Value,
    part: int,
    cut: dict[tuple[ir.Value, int], ir.Value],
) -> ir.Value:
    """A block's part of a tensor along its dimension `at`; memory of the block's own shrinks to it."""
    if (value, at) in cut:
        return cut[value, at]
    owner = mlir.definition(value)
    local = owner is not None and owner.name == "memref.alloc"
    point = ir.InsertionPoint(_after_constants(value.owner) if owner is None else operation_after(owner))
    shaped = ir.MemRefType(value.type)
    with point, ir.Location.unknown() if owner is None else owner.location:
        source = value
        if local:
            shape = [part if n == at else e for n, e in enumerate(shaped.shape)]
            whole = ir.MemRefType.get(shape, shaped.element_type, None, shaped.memory_space)
            source = memref.AllocOp(whole, [], []).result
        made = _slice(source, at, None if local else start, size)
    cut[value, at] = made
    for user in mlir.uses(value) if local else []:
        if user.name == "linalg.fill":
            user.operands[1] = made
    return made


def _slice(value: ir.Value, at: int, start: ir.Value | None, size: int | ir.Value) -> ir.Value:
    shaped = ir.MemRefType(value.type)
    sizes = [
        (mlir.DYNAMIC if isinstance(size, ir.Value) else size) if n == at else e for n, e in enumerate(shaped.shape)
    ]
    if start is None and sizes == list(shaped.shape):
        return value
    strides, offset = shaped.get_strides_and_offset()
    dynamic = [memref.DimOp(value, mlir.index(n)).result for n, s in enumerate(sizes) if s == mlir.DYNAMIC and n != at]
    if isinstance(size, ir.Value):
        dynamic.insert(sum(s == mlir.DYNAMIC for s in sizes[:at]), size)
    begin = ir.ShapedType.get_dynamic_stride_or_offset() if start is not None else offset
    type_ = ir.MemRefType.get(sizes, shaped.element_type, ir.StridedLayoutAttr.get(begin, strides), shaped.memory_space)
    offsets = [mlir.DYNAMIC if n == at and start is not None else 0 for n in range(len(sizes))]
    moved = [] if start is None else [start]
    return memref.SubViewOp(type_, value, moved, dynamic, [], offsets, sizes, [1] * len(sizes)).result


def _offset_indices(op: ir.Operation, d: int, start: ir.Value) -> None:
    """`linalg.index` counts inside the part; the program's index begins where the part does."""
    for inner in list(mlir.body_of(op).operations):
        if inner.operation.name != "linalg.index" or mlir.index_dim(inner.operation) != d:
            continue
        with ir.InsertionPoint(operation_after(inner.operation)):
            total = ir.AffineMap.get(2, 0, [ir.AffineDimExpr.get(0) + ir.AffineDimExpr.get(1)])
            users = mlir.uses(inner.results[0])
            moved = affine.AffineApplyOp(total, [start, inner.results[0]]).result
            for user in users:
                for n, operand in enumerate(user.operands):
                    if operand == inner.results[0]:
                        user.operands[n] = moved


def operation_after(op: ir.Operation) -> ir.Operation:
    operations = [o.operation for o in op.block.operations]
    return operations[operations.index(op) + 1]


def _after_constants(block: ir.Block) -> ir.Operation:
    """The first operation that is neither a constant nor made by `spread`."""
    skip = (
        "arith.constant", "gpu.cluster_block_id", "gpu.block_id", "arith.remui", "affine.apply", "affine.min",
        "memref.subview",
    )  # fmt: skip
    return next(o.operation for o in block.operations if o.operation.name not in skip)


class Kernel(Protocol):
    """A kernel whose reduction blocks may share."""

    function: ir.Operation
    phase: ir.Value | None
    rank: ir.Value | None

    @property
    def spread(self) -> Spread | None: ...

    def wait_for_cluster(self) -> None: ...

    def mbarriers(self, count: int) -> ir.Value: ...


class Mapped(Protocol):
    """An operation that is mapped to threads, or several as one online reduction: the states in `tiles` are combined."""

    threads: Threads
    layout: Layout

    @property
    def kernel(self) -> Kernel: ...

    @property
    def reduced(self) -> Collection[int]: ...

    @property
    def operand_dims(self) -> Sequence[tuple[int, ...]] | Mapping[int, tuple[int, ...]]: ...

    @property
    def tiles(self) -> Sequence[ir.Value] | Mapping[int, ir.Value]: ...

    @property
    def chunk(self) -> object: ...


class Combination(Protocol):
    """How states are combined: a `Combiner`, or an online reduction. `groups` are of states that go together."""

    def groups(self) -> list[list[int]]: ...

    def combine(self, group: list[int], a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]: ...

    def tensor(self, n: int) -> str | None: ...


# ---- map: finishing a reduction --------------------------------------------------------------------------------------


def across_blocks(generic: Mapped, combiner: Combination, group: list[int], butterfly: Callable[..., list[ir.Value]]) -> None:
    """Combines a group's states over the blocks of the cluster; all of them get the result, in one order."""
    kernel, dims = generic.kernel, generic.operand_dims[group[0]]
    kernel.wait_for_cluster()
    assert kernel.spread is not None
    blocks, number = kernel.spread.blocks, generic.threads.number
    buffers = [_DsmemBuffer(generic, n, generic.layout.slots(dims)) for n in group]
    sends = arith.cmpi(arith.CmpIPredicate.ult, number, mlir.index(blocks))
    with generic.threads.slots(dims, {}, None, lanes=True, owner=sends) as position:
        for buffer in buffers:
            buffer.send(number, position.slot(dims), flat_slot(position, dims))
    for buffer in buffers:
        buffer.wait()
    sender = arith.andi(number, mlir.index(blocks - 1))
    with generic.threads.slots(dims, {}, None, lanes=True) as position:
        values = [buffer.read(sender, flat_slot(position, dims)) for buffer in buffers]
        masks = [1 << n for n in range(blocks.bit_length() - 1)]
        for value, n in zip(butterfly(combiner, group, values, masks), group):
            memref.StoreOp(value, generic.tiles[n], position.slot(dims))


class _DsmemBuffer:
    """The memory in which each block of a cluster receives a state from every other block, and the mbarrier (tag) that
    counts the arrivals. In a loop over rows two mailboxes alternate. A block that is a row ahead does not overwrite
    states that another block still reads, since it has received that block's states of the row between."""

    def __init__(self, generic: Mapped, n: int, slots: int) -> None:
        kernel, self.tile = generic.kernel, generic.tiles[n]
        assert kernel.spread is not None and kernel.rank is not None
        self.phase = kernel.phase if kernel.phase is not None else mlir.index(0)
        self.rank, self.blocks, self.slots = kernel.rank, kernel.spread.blocks, slots
        phases = 1 if kernel.phase is None else 2
        element = ir.MemRefType(self.tile.type).element_type
        space = mlir.integer(CLUSTER)
        with ir.InsertionPoint.at_block_begin(mlir.entry(kernel.function)):
            shape = [self.blocks, phases, self.blocks, slots]
            self.memory = memref.AllocOp(ir.MemRefType.get(shape, element, None, space), [], []).result
            locations.named(self.memory, "of_blocks")
        self.mbarriers = kernel.mbarriers(phases)

    def send(self, to: ir.Value, slot: list[ir.Value], flat: ir.Value) -> None:
        """A slot of this block's state to block `to`."""
        target = [self.memory, to, self.phase, self.rank, flat]
        memref.DmaStartOp([self.tile, *slot, *target, mlir.index(1), self.mbarriers, self.phase])

    def wait(self) -> None:
        memref.DmaWaitOp(self.mbarriers, [self.phase], mlir.index(self.blocks * self.slots))

    def read(self, sender: ir.Value, flat: ir.Value) -> ir.Value:
        return memref.LoadOp(self.memory, [self.rank, self.phase, sender, flat]).result


def arrive() -> None:
    """Says to the cluster that this block is there and its mbarriers are ready."""
    nvvm.FenceMbarrierInitOp()
    nvvm.ClusterArriveOp()


def wait_for_cluster() -> None:
    """Waits until all blocks of the cluster have arrived: before the first state is sent, so that loads come first."""
    nvvm.ClusterWaitOp()
