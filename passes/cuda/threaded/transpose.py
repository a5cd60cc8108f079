"""Transposes of narrow elements, for CUDA: each thread transposes a square in registers, then exchanges words of several
elements.

    x1[4, 8] = 4 vectors of x, one below the other          // this thread's, contiguous along j
    for j { t[j, i : i + 4] = x1[0, j], x1[1, j], x1[2, j], x1[3, j] }
    barrier
    y1[8] = t[j, i : i + 8]                                 // another thread's, contiguous along i

A tile in workgroup memory is contiguous as the results are. Neighbouring threads write columns that are a vector apart,
which would conflict in the banks of shared memory. Therefore the address along a column is swizzled: xored with the
number of the column's vector.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.layout import Layout
from tilec.core import mlir
from tilec.core.mlir import arith, ir, linalg, memref, vector
from tilec.passes.cuda.memory_spaces import SHARED, attribute_of, local
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.cuda.threaded.unaligned import uncut
from tilec.passes.loops import Threads

MARK = "tilec.swizzle"  # of the memory: elements of a vector, and its extent along the last dimension


def by_vectors(layout: Layout, value: ir.Value, dims: list[int]) -> bool:
    """Whether an operand that is contiguous along its last dimension is transposed by vectors, for a layout along another
    dimension."""
    lane, d = layout.lane, dims[-1]
    assert lane is not None
    width, side = layout.vectors[lane], layout.extents[lane]
    steps = side // layout.threads[d]  # of a thread, once it is transposed
    narrow = ir.MemRefType(value.type).element_type.width < 32
    whole = steps in (2, 4, 8) and steps * layout.threads[d] == side and side & (side - 1) == 0
    return narrow and width > 2 and whole and side % width == 0 == layout.extents[d] % width


def stage_transposed(op: ir.Operation, n: int, value: ir.Value, dims: list[int], layout: Layout) -> None:
    """Lets an operation read operand `n` from a tile in workgroup memory that lies along the layout's fastest threads."""
    lane = layout.lane
    assert lane is not None
    order = [*(k for k, d in enumerate(dims) if d != lane), dims.index(lane)]
    shaped = ir.ShapedType(value.type)
    sizes, whole = [shaped.shape[k] for k in order], [layout.extents[dims[k]] for k in order]
    memory = memref.AllocOp(local(whole, shaped.element_type, SHARED), [], [])
    memory.operation.attributes[MARK] = ir.DenseI64ArrayAttr.get([layout.vectors[lane], whole[-1]])
    tile = memory.result
    if sizes != whole:
        dynamic = [memref.DimOp(value, mlir.index(k)).result for k in order if shaped.shape[k] == mlir.DYNAMIC]
        strides = ir.MemRefType(tile.type).get_strides_and_offset()[0]
        type_ = ir.MemRefType.get(sizes, shaped.element_type, ir.StridedLayoutAttr.get(0, strides), attribute_of(SHARED))
        tile = memref.SubViewOp(type_, tile, [], dynamic, [], [0] * len(sizes), sizes, [1] * len(sizes)).result
    rank = len(dims)
    maps = [mlir.projection(rank, range(rank)), mlir.projection(rank, order)]
    copy, block = mlir.generic([], [value], [tile], maps, ["parallel"] * rank)
    copy.attributes["tilec.dims"], copy.attributes["tilec.transpose"] = mlir.integers(dims), mlir.integer(dims[-1])
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    own = mlir.maps_of(op)
    own[n] = mlir.projection(own[n].n_dims, [mlir.map_dims(own[n])[k] for k in order])
    op.operands[n] = tile
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in own])


def swizzled(subscripts: list[ir.Value], mark: ir.Attribute) -> list[ir.Value]:
    """Where an element of such a tile is."""
    width, extent = ir.DenseI64ArrayAttr(mark)
    *others, column, index = subscripts
    return [*others, column, arith.xori(index, arith.andi(column, mlir.index((extent - 1) & -width)))]


def mark_of(value: ir.Value) -> ir.Attribute | None:
    owner = mlir.definition(value)
    return owner.attributes[MARK] if owner is not None and MARK in owner.attributes else None


def write(generic: OperationContext, mark: ir.Attribute) -> None:
    """This thread's squares into the tile; `generic` copies, in a layout whose steps along the tile's last dimension lie side
    by side."""
    layout, target, target_dims = generic.layout, generic.operands[1], generic.operand_dims[1]
    last, lane = target_dims[-1], layout.lane_dim
    assert lane is not None
    count, width = layout.steps[last], layout.vectors[lane]
    tile = generic.fetch(generic.operands[0], generic.operand_dims[0])
    element = ir.MemRefType(target.type).element_type
    words = generic.kernel.registers(count, element, "%column")
    type_ = ir.VectorType.get([count], element)
    alone = tuple(1 if d == last else s for d, s in enumerate(layout.steps))
    with Threads(replace(layout, steps=alone)).slots(generic.dims, {}, generic.sizes, lanes=False) as position:
        for column in range(width):
            for step in range(count):
                slot = position.slot(generic.operand_dims[0], column)
                slot[generic.operand_dims[0].index(last)] = mlir.index(step)
                memref.StoreOp(memref.LoadOp(tile, slot).result, words, [mlir.index(step)])
            at = swizzled([position.coordinate(d, column if d == lane else 0) for d in target_dims], mark)
            vector.StoreOp(vector.LoadOp(type_, words, [mlir.index(0)]).result, uncut(target), at)


__all__ = ["MARK", "by_vectors", "mark_of", "stage_transposed", "swizzled", "write"]
