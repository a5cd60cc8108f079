"""Directions of memory: along which dimensions of an operation computed accesses are adjacent, and windows overlap."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.analysis.graph import Node, dims_of
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.isomorphic import of_structure
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.index.questions import step, unclamped


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


@dataclass(frozen=True)
class Window:
    """Elements `dilation` places apart along the reduced dimension `along`; those of neighbours begin `stride` places apart."""

    along: int
    stride: int
    dilation: int


def windows_of(node: Node) -> dict[int, set[Window]]:
    """Dimensions along which computed accesses of neighbouring elements meet, each with its windows: sums with another dimension,
    as in a convolution; none for several accesses of one tensor, as in a stencil. The last subscript, along which vectors lie,
    does not count."""
    if "windows" not in node.facts:
        node.facts["windows"] = _windows_of(node)
    found: dict[int, set[Window]] = node.facts["windows"]
    return found


def _windows_of(node: Node) -> dict[int, set[Window]]:
    found: dict[int, set[Window]] = {}
    seen: dict[ir.Value, int] = {}
    loads = [o.operation for o in mlir.body_of(node.op).operations if o.operation.name == "tensor.extract"]
    terms = BodyTerms(node.op)
    for op in loads:
        seen[op.operands[0]] = seen.get(op.operands[0], 0) + 1
    for op in loads:
        for subscript in list(op.operands)[1:-1]:
            dims = _index_dims(subscript)
            if dims and (len(dims) > 1 or seen[op.operands[0]] > 1) and dims_of(subscript, node) == dims:
                for d in dims - node.reduced:
                    steps = {p: step_inside(terms, subscript, p) for p in dims & node.reduced}
                    mine = found.setdefault(d, set())
                    mine |= {Window(p, step_inside(terms, subscript, d), n) for p, n in steps.items()}
    return found


def has_windows(node: Node) -> bool:
    """Whether neighbours meet along any dimension, in windows of a reduction."""
    return any(windows_of(node).values())


@of_structure
def steps_of_extracts(node: Node) -> list[tuple[int, list[list[int]]]]:
    """The computed accesses of an operation: the number of the tensor among `node.outside`, and by how much each subscript grows
    along each dimension (`step_inside`)."""
    offset, dims, found = {v: n for n, v in enumerate(node.outside)}, range(len(node.extents)), []
    terms = BodyTerms(node.op)
    for view in mlir.body_of(node.op).operations:
        if view.operation.name == "tensor.extract" and len(view.operation.operands) > 1:
            value, *subscripts = view.operation.operands
            found.append((offset[value], [[step_inside(terms, s, d) for d in dims] for s in subscripts]))
    return found


def step_inside(terms: BodyTerms, value: ir.Value, d: int) -> int:
    """By how much a subscript grows from one number of dimension `d` to the next, inside the bounds to which it is clamped; 0 where
    that varies, or is 0."""
    found = step(unclamped(terms.of(value)), terms.dims[d])
    return 0 if found is None else found.constant or 0


def _index_dims(value: ir.Value) -> set[int]:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return set()
    if owner.name == "linalg.index":
        return {ir.IntegerAttr(owner.attributes["dim"]).value}
    return set().union(*(_index_dims(v) for v in owner.operands)) if len(owner.operands) else set()
