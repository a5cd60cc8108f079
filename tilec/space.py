"""The space that a kernel's operations walk: dimensions of different operations are one where a tensor connects them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilec.graph import Graph, Node
from tilec.mlir import ir


@dataclass
class Space:
    """The kernel dimensions of a set of nodes: `dims[node][d]` is the kernel dimension of the node's dimension d."""

    nodes: list[Node]
    dims: dict[Node, tuple[int, ...]]
    extents: dict[int, int]
    grid: tuple[int, ...]

    @property
    def parallelism(self) -> int:
        return prod(self.extents[d] for d in self.grid)


def space_of(nodes: list[Node], graph: Graph) -> Space | str:
    """Unites the nodes' dimensions through the tensors between them; a text where two roles of one node collide."""
    parent: dict[tuple[Node, int], tuple[Node, int]] = {(n, d): (n, d) for n in nodes for d in range(len(n.extents))}

    def find(key):
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    inside = set(nodes)
    for node in nodes:
        for read in node.reads:
            producer = graph.producer.get(read.value)
            if producer not in inside or producer is node:
                continue
            result = next(r for r in producer.results if r.value == read.value)
            for mine, theirs in zip(read.dims, result.dims):
                parent[find((node, mine))] = find((producer, theirs))
    if clash := _clash(nodes, find):
        return clash
    _unite_shared_inputs(nodes, graph, parent, find)
    numbers: dict[tuple[Node, int], int] = {}
    for node in nodes:
        for d in range(len(node.extents)):
            numbers.setdefault(find((node, d)), len(numbers))
    dims = {n: tuple(numbers[find((n, d))] for d in range(len(n.extents))) for n in nodes}
    extents = {dims[n][d]: n.extents[d] for n in nodes for d in range(len(n.extents))}
    reduced = {dims[n][d] for n in nodes for d in n.reduced}
    grid = [k for k in extents if k not in reduced and all(k in dims[n] for n in nodes)]
    return Space(list(nodes), dims, extents, tuple(grid))


def _clash(nodes: list[Node], find) -> str | None:
    for node in nodes:
        roots = [find((node, d)) for d in range(len(node.extents))]
        if len(set(roots)) < len(roots):
            return f"{node.name} reads one element at places that other blocks compute"
    return None


def _unite_shared_inputs(nodes: list[Node], graph: Graph, parent, find) -> None:
    """Two operations that read one input in the same places walk it together, where that makes no clash."""
    seen: dict[ir.Value, tuple[Node, tuple[int, ...]]] = {}
    inside = set(nodes)
    for node in nodes:
        for read in node.reads:
            if graph.producer.get(read.value) in inside:
                continue
            if read.value not in seen:
                seen[read.value] = (node, read.dims)
                continue
            other, dims = seen[read.value]
            if other is node:
                continue
            before = dict(parent)
            for mine, theirs in zip(read.dims, dims):
                parent[find((node, mine))] = find((other, theirs))
            if _clash(nodes, find) or _extent_clash(nodes, find):
                parent.clear()
                parent.update(before)


def _extent_clash(nodes: list[Node], find) -> bool:
    sizes: dict = {}
    return any(
        sizes.setdefault(find((n, d)), n.extents[d]) != n.extents[d] for n in nodes for d in range(len(n.extents))
    )
