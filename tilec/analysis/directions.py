"""Directions of memory: along which dimensions of an operation computed accesses are adjacent, and windows overlap."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tilec.analysis.graph import Node
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.isomorphic import of_structure
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.index.questions import in_lanes, is_adjacent, period, step, unclamped
from tilec.index.terms import Term, term


@of_structure
def extract_directions(node: Node) -> dict[int, float]:
    """Dimensions that move the last subscript of a computed access."""
    found: dict[int, float] = {}
    for op in _loads(node):
        for d in sorted(node.terms.dims_of(node.terms.of(list(op.operands)[-1]))):
            found[d] = found.get(d, 0) + 0.5
    return found


def _loads(node: Node) -> list[ir.Operation]:
    """Computed accesses."""
    return [o.operation for o in mlir.body_of(node.op).operations if o.operation.name == "tensor.extract" and len(o.operands) > 1]


@of_structure
def scattered_extracts(node: Node, d: int, lanes: int) -> int:
    """Computed accesses that differ along dimension `d`, and that neighbours cannot make as one.

    They can where the last subscript alone moves, by one from lane to lane.
    """
    count, lane = 0, node.terms.dims[d]
    for value, *subscripts in [op.operands for op in _loads(node)]:
        *others, last = map(node.terms.of, subscripts)
        moved = any(lane.symbol in x.free for x in others)
        aligned = ir.ShapedType(value.type).shape[-1] % lanes == 0
        if moved or lane.symbol in last.free:
            count += moved or not (aligned and is_adjacent(last, lane, lanes, lanes))
    return count


def selected_among(node: Node) -> dict[ir.Value, int]:
    """Of tensors between whose elements an operation selects by indices, how many there are: one is read for each element."""
    body, found = mlir.body_of(node.op), dict[ir.Value, list[ir.Value]]()
    for op in (o.operation for o in body.operations):
        if op.name == "tensor.extract":
            found[op.results[0]] = [op.operands[0]]
        elif op.name == "arith.select" and all(v in found for v in list(op.operands)[1:]):
            made = mlir.slice_of(body, op.operands[0])
            if not any(o.name == "tensor.extract" or any(v in body.arguments for v in o.operands) for o in made):
                found[op.results[0]] = [t for v in list(op.operands)[1:] for t in found[v]]
    return {t: len(tensors) for tensors in sorted(found.values(), key=len) for t in tensors}


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
    loads, terms = [list(op.operands) for op in _loads(node)], node.terms
    seen = Counter(value for value, *_ in loads)
    for value, *subscripts, _ in loads:
        for subscript in map(terms.of, subscripts):
            dims = terms.dims_of(subscript)
            if dims and (len(dims) > 1 or seen[value] > 1):
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
    return [(n, [[step_inside(node.terms, s, d) for d in range(len(node.extents))] for s in own]) for n, own in _subscripts(node)]


@of_structure
def mean_steps_of_extracts(node: Node) -> list[tuple[int, list[list[float]]]]:
    """The same by how much each subscript grows on average (`mean_step`): so the threads of a warp lie apart in memory."""
    return [(n, [[mean_step(node.terms, s, d) for d in range(len(node.extents))] for s in own]) for n, own in _subscripts(node)]


def _subscripts(node: Node) -> list[tuple[int, list[Term]]]:
    numbers = {v: n for n, v in enumerate(node.outside)}
    loads = [list(op.operands) for op in _loads(node)]
    return [(numbers[v], [node.terms.of(s) for s in subscripts]) for v, *subscripts in loads]


def mean_step(terms: BodyTerms, subscript: Term, d: int) -> float:
    """By how much a subscript grows from one number of dimension `d` to the next, on average over the numbers that share a
    quotient: `i // 2` by 0.5. Inside the bounds to which it is clamped; 0 where that varies, or is 0."""
    inside, index = unclamped(subscript), terms.dims[d]
    shared = period(index, inside).constant or 1
    if shared == 1:
        return step_inside(terms, subscript, d)
    moved, lane = in_lanes(index, index, shared)
    blocks = moved.free - {lane}  # none where one quotient is all
    found = step(in_lanes(inside, index, shared)[0], term(next(iter(blocks)))) if blocks else None
    return 0 if found is None else (found.constant or 0) / shared


def step_inside(terms: BodyTerms, subscript: Term, d: int) -> int:
    """By how much a subscript grows from one number of dimension `d` to the next, inside the bounds to which it is clamped; 0 where
    that varies, or is 0."""
    found = step(unclamped(subscript), terms.dims[d])
    return 0 if found is None else found.constant or 0
