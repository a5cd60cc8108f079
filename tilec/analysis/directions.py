"""Directions of memory: along which dimensions of an operation computed accesses are adjacent, and windows overlap."""

from __future__ import annotations

from tilec.analysis.graph import Node, dims_of
from tilec.core import mlir
from tilec.core.mlir import ir


def extract_directions(node: Node) -> dict[int, float]:
    """Dimensions that move the last subscript of a computed access by one."""
    found: dict[int, float] = {}
    for view in node.op.regions[0].blocks[0].operations:
        op = view.operation
        if op.name != "tensor.extract" or len(op.operands) < 2:
            continue
        for d in _index_dims(list(op.operands)[-1]):
            found[d] = found.get(d, 0) + 0.5
    return found


def scattered_extracts(node: Node, d: int, lanes: int) -> int:
    """Computed accesses that differ along dimension `d`, and that neighbours cannot make as one.

    They can where the last subscript is `d` itself and the others do not depend on it.
    """
    count = 0
    for view in node.op.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "tensor.extract" and any(d in dims_of(v, node) for v in list(op.operands)[1:]):
            value, *others, last = op.operands
            owner = mlir.definition(last)
            bare = owner is not None and owner.name == "linalg.index" and dims_of(last, node) == {d}
            aligned = ir.ShapedType(value.type).shape[-1] % lanes == 0
            count += not (bare and aligned) or any(d in dims_of(v, node) for v in others)
    return count


def windows_of(node: Node) -> dict[int, set[int]]:
    """Dimensions along which computed accesses of neighbouring elements meet, each with the reduced dimensions along which windows
    lie: sums with another dimension, as in a convolution, or several accesses of one tensor, as in a stencil. The last
    subscript, along which vectors lie, does not count."""
    found: dict[int, set[int]] = {}
    seen: dict[ir.Value, int] = {}
    loads = [o.operation for o in mlir.body_of(node.op).operations if o.operation.name == "tensor.extract"]
    for op in loads:
        seen[op.operands[0]] = seen.get(op.operands[0], 0) + 1
    for op in loads:
        for subscript in list(op.operands)[1:-1]:
            dims = _index_dims(subscript)
            if dims and (len(dims) > 1 or seen[op.operands[0]] > 1) and dims_of(subscript, node) == dims:
                for d in dims - node.reduced:
                    found.setdefault(d, set()).update(dims & node.reduced)
    return found


def _index_dims(value: ir.Value) -> set[int]:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return set()
    if owner.name == "linalg.index":
        return {ir.IntegerAttr(owner.attributes["dim"]).value}
    return set().union(*(_index_dims(v) for v in owner.operands)) if len(owner.operands) else set()
