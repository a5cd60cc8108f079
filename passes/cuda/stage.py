"""stage, for CUDA: a block's intermediates get their memory space; inputs that two passes read are kept on chip.

    x = subview %x                              x = subview %x
    m = alloc                                   x1 = alloc private          // kept: two passes read x
    generic max ins(x) outs(m)          ->      generic copy ins(x) outs(x1)
    generic exp ins(x, m) outs(y)               m = alloc private
                                                generic max ins(x1) outs(m)
                                                generic exp ins(x1, m) outs(y)

A private tile still has the block's shape here; `map` divides it among the threads. It needs a layout in which every
thread holds all its elements at once (`Layout.whole`). Other tiles go to workgroup memory, where each thread reads only
elements that it wrote. Reductions accumulate in tiles, never in global memory, and are copied out when complete.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.layout import Layout, tile_extents
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir, linalg, memref
from tilec.kernels import Threaded, planned_kernels
from tilec.passes.cuda.cluster import operation_after, planned_spread, spread
from tilec.passes.cuda.memory_spaces import PRIVATE, SHARED, attribute_of, is_local, operand_dims, root, space_of
from tilec.passes.cuda.threaded import transpose
from tilec.passes.cuda.threaded.hoist_gathers import hoist_gathers
from tilec.passes.cuda.threaded.persistent_rows import STAGES, hold_rows, stage_rows
from tilec.passes.cuda.threaded.scan_epilogue import fuse_scan_epilogues


def stage_cuda(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        if isinstance(
            planned.options, Threaded
        ):  # contractions are staged where their pipeline is made, see passes/cuda/contraction
            _stage(function, planned.tiles, planned.options)


def _stage(function: ir.Operation, tiles: dict[int, int], options: Threaded) -> None:
    for op in [o for o in mlir.traverse(function) if o.name == "memref.copy"]:
        _copy_of_fill(op)
    fuse_scan_epilogues(function)
    layout = _layout(function, tiles, options)
    if options.cluster_blocks > 1:
        assert layout.lane is not None
        spread(function, layout.lane, options.cluster_blocks, layout.vectors[layout.lane])
        layout = _layout(function, tiles, options)
    if stages := options.rows_in_flight:
        stage_rows(function, layout, list(tiles), stages, _tile_like, copy_of_tile)
    elif options.residency == "smem":
        hold_rows(function, layout, options.hybrid_chunks or 0, _tile_like, copy_of_tile)
    generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
    for op in generics:
        for n in range(len(mlir.inputs_of(op)), len(op.operands)):
            _stage_output(op, n, layout)
    for op in generics:
        _transpose_inputs(op, list(options.transposed_dims), layout)
    if options.residency != "reload":
        _stage_inputs(generics, layout)
    hoist_gathers(function, layout, stages > 0, _tile_like, copy_of_tile)
    generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
    for op in generics:
        if STAGES in op.attributes:
            _set_space(root(op.operands[1]), SHARED)
    for op in list(mlir.traverse(function)):
        if op.name == "memref.alloc" and space_of(op.results[0]) is None:
            _assign_space(op.results[0], generics, layout)


def _layout(function: ir.Operation, tiles: dict[int, int], options: Threaded) -> Layout:
    generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
    layout = options.layout(tile_extents(generics, tiles, planned_spread(function)))
    return replace(layout, blocks_per_row=options.blocks_per_tile)


def _copy_of_fill(op: ir.Operation) -> None:
    """Bufferization shares one filled tile between reductions and copies it: each gets a fill of its own."""
    source, target = op.operands
    fills = [u for u in mlir.uses(source) if u.name == "linalg.fill"]
    if len(fills) != 1:
        raise InternalError(f"a block copies memory: {op}", "stage")
    with ir.InsertionPoint(op), op.location:
        mlir.fill(fills[0].operands[0], target)
    op.erase()


# ---- data kept on chip -----------------------------------------------------------------------------------------------


def _stage_output(op: ir.Operation, n: int, layout: Layout) -> None:
    """Accumulates a reduction's result, or holds an intermediate that later operations read, in a tile of the block."""
    value, dims = op.operands[n], operand_dims(op)[n]
    if is_local(value):
        return
    later = [user for user in mlir.uses(value) if mlir.is_generic(user) and value in mlir.inputs_of(user)]
    reduced = _is_state(op, n)
    if not reduced and not (later and layout.whole(dims)):
        return
    with op.location:
        with ir.InsertionPoint(_first_user(op, value)):
            tile = _tile_like(value, dims, layout)
        for user in [u for u in mlir.uses(value) if u.name.startswith("linalg.")]:
            for position, operand in enumerate(user.operands):
                if operand == value:
                    user.operands[position] = tile
        with ir.InsertionPoint(operation_after(op)):
            copy_of_tile(tile, value, dims, op)


def _is_state(op: ir.Operation, n: int) -> bool:
    """Whether a result is carried through a reduction: it lacks a reduced dimension."""
    reduced = {d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"}
    return bool(reduced - set(mlir.map_dims(mlir.maps_of(op)[n])))


def _stage_inputs(generics: list[ir.Operation], layout: Layout) -> None:
    readers: dict[tuple[ir.Value, tuple[int, ...]], list[ir.Operation]] = {}
    for op in generics:
        used = _used_arguments(op)
        for value, dims, live in zip(mlir.inputs_of(op), operand_dims(op), used):
            if live and not is_local(value) and layout.whole(dims):
                readers.setdefault((value, tuple(dims)), []).append(op)
    for (value, position), ops in readers.items():
        if len(ops) < 2:
            continue
        with ir.InsertionPoint(ops[0]), ops[0].location:
            tile = _tile_like(value, list(position), layout)
            copy_of_tile(value, tile, list(position), None)
        for op in ops:
            for n, (operand, read_dims) in enumerate(zip(mlir.inputs_of(op), operand_dims(op))):
                if operand == value and tuple(read_dims) == position:
                    op.operands[n] = tile


def _transpose_inputs(op: ir.Operation, along: list[int], layout: Layout) -> None:
    """Inputs that are contiguous along a dimension of `along` go through workgroup memory, since the threads that read
    neighbouring elements do not use them. One padding element for each row spreads columns over all banks."""
    for n, (value, dims) in enumerate(zip(mlir.inputs_of(op), operand_dims(op))):
        if is_local(value) or not dims or dims[-1] not in along or layout.lane not in dims:
            continue
        if transpose.by_vectors(layout, value, dims):
            with ir.InsertionPoint(op), op.location:
                transpose.stage_transposed(op, n, value, dims, layout)
            continue
        with ir.InsertionPoint(op), op.location:
            tile = _tile_like(value, dims, layout, pad=1)
            copy_of_tile(value, tile, dims, None).attributes["tilec.transpose"] = mlir.integer(dims[-1])
        _set_space(root(tile), SHARED)
        op.operands[n] = tile


def _used_arguments(op: ir.Operation) -> list[bool]:
    used = {v for inner in mlir.traverse(op) for v in inner.operands}
    return [a in used for a in mlir.body_of(op).arguments]


def _tile_like(
    value: ir.Value, dims: list[int], layout: Layout, pad: int = 0, element: ir.Type | None = None
) -> ir.Value:
    """A new tile of the block's shape for `value`, cut to its sizes at the edge of the grid; of its elements' type, or another."""
    shaped = ir.ShapedType(value.type)
    element = element or shaped.element_type
    shape = [layout.extents[d] for d in dims]
    whole = [*shape[:-1], shape[-1] + pad] if shape else shape
    tile = memref.AllocOp(ir.MemRefType.get(whole, element), [], []).result
    sizes = list(shaped.shape)
    if sizes == whole:
        return tile
    dynamic = [memref.DimOp(value, mlir.index(n)).result for n, s in enumerate(sizes) if s == mlir.DYNAMIC]
    strides = ir.MemRefType(tile.type).get_strides_and_offset()[0]
    type_ = ir.MemRefType.get(sizes, element, ir.StridedLayoutAttr.get(0, strides))
    ones = [1] * len(sizes)
    return memref.SubViewOp(type_, tile, [], dynamic, [], [0] * len(sizes), sizes, ones).result


def copy_of_tile(source: ir.Value, target: ir.Value, dims: list[int], op: ir.Operation | None) -> ir.OpView:
    rank = len(dims)
    identity = mlir.projection(rank, range(rank))
    copy, block = mlir.generic([], [source], [target], [identity, identity], ["parallel"] * rank)
    copy.attributes["tilec.dims"] = mlir.integers(dims)
    if op is not None and "tilec.name" in op.attributes:
        copy.attributes["tilec.name"] = op.attributes["tilec.name"]
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    return copy


def _first_user(op: ir.Operation, value: ir.Value) -> ir.Operation:
    """The first operation of the block that touches `value`: its fill, or `op`."""
    users = {u for u in mlir.uses(value) if u.name.startswith("linalg.")}
    return next(o.operation for o in op.block.operations if o.operation in users)


# ---- memory spaces ---------------------------------------------------------------------------------------------------


def _assign_space(alloc: ir.Value, generics: list[ir.Operation], layout: Layout) -> None:
    """Registers where every thread holds all its elements at once, else workgroup memory."""
    dims = next((p for op in generics for v, p in zip(op.operands, operand_dims(op)) if root(v) == alloc), None)
    _set_space(alloc, PRIVATE if dims is None or layout.whole(dims) else SHARED)


def _set_space(value: ir.Value, space: str) -> None:
    type_ = ir.MemRefType(value.type)
    value.set_type(ir.MemRefType.get(type_.shape, type_.element_type, type_.layout, attribute_of(space)))
    for user in mlir.uses(value):
        if user.name in ("memref.subview", "memref.cast"):
            _set_space(user.results[0], space)
