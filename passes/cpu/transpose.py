"""Transposes on the CPU: operands that are contiguous along another dimension than the innermost loop, transposed in registers.

At `stage` such an input goes through scratch memory of the block, which is contiguous along the innermost loop. So does
such a result:

    generic ins(x[j, i]) outs(y[i, j])   ->   tile = alloc [i, j]; transpose ins(x) outs(tile)
                                              generic ins(tile[i, j]) outs(y[i, j])

An operation that only copies is a transpose as a whole, without scratch memory.

At `map` the transpose becomes loops over square tiles of vectors, and over single elements at the edges:

    store(tile[i:i+16, j:j+16], transpose(load(x[j:j+16, i:i+16])))
"""

from __future__ import annotations

from typing import Any

from tilec.core import locations, mlir
from tilec.core.mlir import affine, ir, linalg, memref, vector
from tilec.kernels import RegisterTranspose
from tilec.passes.cpu.memory import Size, allocated
from tilec.passes.cpu.panels import loop, loops
from tilec.passes.cuda.memory_spaces import size_of


def stage_transposes(op: ir.Operation, tiles: dict[int, int], options: RegisterTranspose) -> None:
    """Replaces operands of a linalg.generic by transposed copies, if they are contiguous along one of the kernel's
    dimensions `transposed`, and the innermost loop goes along another. Results that are added to stay as they are."""
    along, lanes = options.transposed, mlir.integer(options.lanes)
    names, maps = mlir.get_integers(op, "tilec.dims"), mlir.maps_of(op)
    order = mlir.get_integers(op, "tilec.loops") or list(range(len(names)))
    inputs = len(mlir.inputs_of(op))
    transposed = []
    for n in range(len(op.operands)):
        dims = mlir.map_dims(maps[n])
        if not dims or names[dims[-1]] not in along or order[-1] not in dims[:-1]:
            continue
        if n < inputs or not mlir.uses(mlir.body_of(op).arguments[n]):
            transposed.append(n)
    if transposed and (permutation := _copy(op)) is not None:
        with ir.InsertionPoint(op), op.location:
            source, target = op.operands
            _transpose(source, target, permutation).attributes["tilec.lanes"] = lanes
        op.erase()
        return
    for n in transposed:
        value, dims = op.operands[n], mlir.map_dims(maps[n])
        inner = dims.index(order[-1])
        swap = list(range(len(dims)))
        swap[inner], swap[-1] = swap[-1], swap[inner]
        with ir.InsertionPoint(op), op.location:
            tile = _tile(value, swap, [names[d] for d in dims], tiles)
            pair = (value, tile) if n < inputs else (tile, value)
            copy = _transpose(*pair, swap)
        copy.attributes["tilec.lanes"] = lanes
        if n >= inputs:
            copy.move_after(op)
        op.operands[n] = tile
        maps[n] = mlir.projection(maps[n].n_dims, [dims[d] for d in swap])
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def _copy(op: ir.Operation) -> list[int] | None:
    """Which dimension of its one input each of its result's is, of an operation that only copies; None of others."""
    body = list(mlir.body_of(op).operations)
    if len(body) > 1 or len(op.operands) != 2 or body[0].operands[0] != mlir.body_of(op).arguments[0]:
        return None
    source, target = (mlir.map_dims(m) for m in mlir.maps_of(op))
    divide_sums = sorted(source) == sorted(target) and source[-1] != target[-1]
    return [source.index(d) for d in target] if divide_sums else None


def _transpose(source: ir.Value, target: ir.Value, permutation: list[int]) -> ir.Operation:
    linalg.transpose(source, outs=[target], permutation=permutation)
    return next(u for u in mlir.uses(target) if u.name == "linalg.transpose" and u.operands[0] == source)


def _tile(value: ir.Value, swap: list[int], dims: list[int], tiles: dict[int, int]) -> ir.Value:
    """Scratch memory for the transposed `value`, as large as in a whole block, and cut to this block's part."""
    type_ = ir.MemRefType(value.type)
    shape = list(type_.shape)
    room = [tiles[dims[d]] if dims[d] in tiles else size_of(value, d) for d in swap]
    alloc = allocated(room, type_.element_type, "turned")
    locations.named(alloc, "transposed")
    used = [shape[d] for d in swap]
    if all(isinstance(whole, ir.Value) or whole == own for whole, own in zip(room, used)):
        return alloc.result
    layout = ir.StridedLayoutAttr.get(0, ir.MemRefType(alloc.result.type).get_strides_and_offset()[0])
    cut = ir.MemRefType.get(used, type_.element_type, layout)
    dynamic = [memref.DimOp(value, mlir.index(d)).result for d in swap if shape[d] == mlir.DYNAMIC]
    return memref.SubViewOp(cut, alloc.result, [], dynamic, [], [0] * len(used), used, [1] * len(used)).result


def map_transpose(op: ir.Operation) -> None:
    """A linalg.transpose that moves its source's last dimension, as loops over tiles of vectors."""
    source, target = op.operands
    order, lanes = list(ir.DenseI64ArrayAttr(op.attributes["permutation"])), mlir.get_integer(op, "tilec.lanes")
    rank = len(order)
    row, column = order[-1], rank - 1  # the source's dimension that becomes the last, and its last
    with ir.InsertionPoint(op), op.location:
        sizes = {d: size_of(source, d) for d in range(rank)}
        at: dict[int, ir.Value] = {}
        with loops({d: n for d, n in sizes.items() if d not in (row, column)}, at):
            planes = [
                _plane(source, at, sizes),
                _plane(target, {order.index(d): i for d, i in at.items()}, [sizes[d] for d in order]),
            ]
            transpose_plane(planes[0], planes[1], sizes[row], sizes[column], lanes)
    op.erase()


def transpose_plane(source: ir.Value, target: ir.Value, rows: Size, columns: Size, lanes: int) -> None:
    """target[c, r] = source[r, c]: transposes tiles column by column, so that stores are contiguous. The last tile along a known
    size begins where it ends with it, and stores some elements again; behind an unknown size's whole tiles are elements."""
    known = [n for n in (rows, columns) if isinstance(n, int)]
    lanes = min([lanes, *(1 << n.bit_length() >> 1 for n in known)])
    type_ = ir.VectorType.get([lanes, lanes], ir.MemRefType(source.type).element_type)
    ends = [n if isinstance(n, int) else whole(n, lanes) for n in (rows, columns)]
    if lanes > 1:
        with loop(0, ends[1], lanes, "column") as c, loop(0, ends[0], lanes, "row") as r:
            r, c = (_inside(at, n, lanes) for at, n in ((r, rows), (c, columns)))
            square = vector.LoadOp(type_, source, [r, c]).result
            vector.StoreOp(vector.TransposeOp(type_, square, [1, 0]).result, target, [c, r])
    else:
        ends = [0, 0]
    _transpose_elements(source, target, (0, ends[0]), (ends[1], columns))
    _transpose_elements(source, target, (ends[0], rows), (0, columns))


def _inside(start: ir.Value, size: Size, lanes: int) -> ir.Value:
    """Where a tile starts, moved back so far that it ends inside."""
    if not isinstance(size, int) or size % lanes == 0:
        return start
    known = mlir.constant_value(start)
    if known is not None:
        return mlir.index(min(int(known), size - lanes))
    least = [ir.AffineDimExpr.get(0), ir.AffineConstantExpr.get(size - lanes)]
    return affine.AffineMinOp(ir.AffineMap.get(1, 0, least), [start]).result


def _transpose_elements(
    source: ir.Value, target: ir.Value, rows: tuple[Size, Size], columns: tuple[Size, Size]
) -> None:
    if any(isinstance(a, int) and a == b for a, b in (rows, columns)):
        return
    with loop(*rows, name="row") as r, loop(*columns, name="column") as c:
        memref.StoreOp(memref.LoadOp(source, [r, c]).result, target, [c, r])


def _plane(value: ir.Value, at: dict[int, ir.Value], sizes: Any) -> ir.Value:
    """The two-dimensional part of `value` where its other dimensions are `at`."""
    type_ = ir.MemRefType(value.type)
    if not at:
        return value
    strides, _ = type_.get_strides_and_offset()
    kept = [d for d in range(type_.rank) if d not in at]
    shape = [type_.shape[d] for d in kept]
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, [strides[d] for d in kept])
    part = ir.MemRefType.get(shape, type_.element_type, layout)
    offsets = [0 if d in kept else mlir.DYNAMIC for d in range(type_.rank)]
    counts = [type_.shape[d] if d in kept else 1 for d in range(type_.rank)]
    dynamic = [sizes[d] for d in kept if type_.shape[d] == mlir.DYNAMIC]
    ones = [1] * type_.rank
    starts = [at[d] for d in range(type_.rank) if d not in kept]
    return memref.SubViewOp(part, value, starts, dynamic, [], offsets, counts, ones).result


def whole(size: Size, lanes: int) -> Size:
    """The largest multiple of `lanes` up to `size`."""
    if isinstance(size, int):
        return size // lanes * lanes
    down = ir.AffineExpr.get_mul(ir.AffineExpr.get_floor_div(ir.AffineDimExpr.get(0), lanes), lanes)
    return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [down]), [size]).result


__all__ = ["map_transpose", "stage_transposes", "transpose_plane", "whole"]
