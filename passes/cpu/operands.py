"""stage, for the CPU: elements that an operation's body loads at computed subscripts become operands, where they lie in a box.

    generic [h, i, j, d] { k[h // 4, j, d] }   ->   box = k[h // 4, 0:T, 0:D]
                                                    generic [h, i, j, d] ins(box[j, d])

Each subscript must be an index of the operation and a number that is the same in the whole block, or such a number alone. Packing
reads operands along memory, by vectors.
"""

from __future__ import annotations

from tilec.analysis.index_terms import BodyTerms
from tilec.core import mlir
from tilec.core.mlir import ir, memref
from tilec.index.questions import factor
from tilec.index.terms import term
from tilec.passes.cuda.memory_spaces import sizes_of
from tilec.passes.emit import Body
from tilec.passes.rebuild import Operand, operands_in, rebuild, replace


def boxes_as_operands(op: ir.Operation) -> ir.Operation:
    """The operation itself, or another one in its place."""
    body, maps = mlir.body_of(op), mlir.maps_of(op)
    if not any(o.operation.name == "memref.load" for o in body.operations):
        return op
    with ir.InsertionPoint(op), op.location:
        sizes = sizes_of(list(op.operands), [mlir.map_dims(m) for m in maps])
    found: list[tuple[ir.Operation, list[int | None]]] = []
    for view in body.operations:
        load = view.operation
        if load.name == "memref.load" and (dims := _box(op, load, sizes)) is not None:
            found.append((load, dims))
    if not found:
        return op
    with ir.InsertionPoint(op), op.location:
        boxes = [(_view(body, load, dims, sizes), dims, load) for load, dims in found]
        own = [Operand(box, [d for d in dims if d is not None], load.results[0]) for box, dims, load in boxes]
        return replace(op, rebuild(op, operands=[*operands_in(op), *own]))


def _box(op: ir.Operation, load: ir.Operation, sizes: dict[int, ir.Value | int]) -> list[int | None] | None:
    """The dimension of the operation along each of the memory's, None for a single place there; None where it is no box."""
    body, terms, found = mlir.body_of(op), BodyTerms(op), list[int | None]()
    wide = {d for d, n in sizes.items() if n != 1}
    for index in list(load.operands)[1:]:
        inside = mlir.slice_of(body, index)
        if any(o.name == "memref.load" or set(mlir.operands_of(o)) & set(body.arguments) for o in inside):
            return None
        dims = {mlir.index_dim(o) for o in inside if o.name == "linalg.index"} & wide
        if not dims:
            found.append(None)
            continue
        (d, *others) = dims
        if others or factor(terms.of(index), terms.dims[d]) is not term(1):
            return None
        found.append(d)
    own = [d for d in found if d is not None]
    return found if len(set(own)) == len(own) and own else None


def _view(body: ir.Block, load: ir.Operation, dims: list[int | None], sizes: dict[int, ir.Value | int]) -> ir.Value:
    """The box, whose first element is that at index 0 of all dimensions."""
    source, *indices = load.operands
    offsets = []
    for index in indices:
        offsets.append(Body(body, index=lambda _: mlir.index(0)).value(index))
    strides, _ = ir.MemRefType(source.type).get_strides_and_offset()
    kept = [p for p, d in enumerate(dims) if d is not None]
    counts = [1 if d is None else sizes[d] for d in dims]
    static = [n if isinstance(n, int) else mlir.DYNAMIC for n in counts]
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, [strides[p] for p in kept])
    type_ = ir.MemRefType.get([static[p] for p in kept], ir.MemRefType(source.type).element_type, layout)
    dynamic = [n for n in counts if isinstance(n, ir.Value)]
    rank = len(dims)
    return memref.SubViewOp(type_, source, offsets, dynamic, [], [mlir.DYNAMIC] * rank, static, [1] * rank).result


__all__ = ["boxes_as_operands"]
