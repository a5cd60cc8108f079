"""The space of a kernel's operations: dimensions of different operations are one kernel dimension where a tensor connects them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from tilec.analysis.graph import Graph, Node
from tilec.core.mlir import ir

Dim = tuple[Node, int]


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

    def of(self, nodes: list[Node]) -> Space:
        """That of other nodes, which are isomorphic."""
        return Space(list(nodes), dict(zip(nodes, self.dims.values())), dict(self.extents), self.grid)


def space_of(nodes: list[Node], graph: Graph) -> Space | str:
    """Unites the nodes' dimensions through the tensors between them; a text where two roles of one node collide."""
    if len(nodes) == 1:
        return _alone(nodes[0])
    found = graph.memoise("space", nodes, partial(_united, nodes, graph)).result
    return _united(nodes, graph) if isinstance(found, str) else found.of(nodes)  # a text names an operation


def _united(nodes: list[Node], graph: Graph) -> Space | str:
    parent: dict[Dim, Dim] = {(n, d): (n, d) for n in nodes for d in range(len(n.extents))}

    def find(key: Dim) -> Dim:
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
    for node, other in equal_nodes(nodes, graph):
        for d in range(len(node.extents)):
            parent[find((node, d))] = find((other, d))
    if clash := _clash(nodes, find):
        return clash
    united = _unite_shared_inputs(nodes, graph, {key: find(key) for key in parent})
    if not any(n.reduced or n.scan is not None for n in nodes):
        united = _unite_independent(nodes, graph, united)
    numbers: dict[Dim, int] = {}
    for node in nodes:
        for d in range(len(node.extents)):
            numbers.setdefault(united((node, d)), len(numbers))
    dims = {n: tuple(numbers[united((n, d))] for d in range(len(n.extents))) for n in nodes}
    extents = {dims[n][d]: n.extents[d] for n in nodes for d in range(len(n.extents))}
    reduced = {dims[n][d] for n in nodes for d in n.reduced}
    shared = set.intersection(*(set(dims[n]) for n in nodes)) - reduced
    return Space(list(nodes), dims, extents, tuple(k for k in extents if k in shared))


def equal_nodes(nodes: list[Node], graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Pairs of operations that compute the same from the same tensors, as copies of products for their readers do."""
    inside, numbers, known = set(nodes), dict[Hashable, int](), dict[Node, int]()

    def number_of(node: Node) -> int:
        if (found := known.get(node)) is None:
            read = tuple([_made(v) for v in node.outside])
            found = known[node] = numbers.setdefault((node.structure, read), len(numbers))
        return found

    def _made(value: ir.Value) -> Hashable:
        maker = graph.producer.get(value)
        if maker is None or not (maker in inside or maker.inlined):
            return value
        return number_of(maker), next(k for k, r in enumerate(maker.results) if r.value == value)

    first: dict[int, Node] = {}
    for node in nodes:
        if (other := first.setdefault(number_of(node), node)) is not node:
            yield node, other


def _alone(node: Node) -> Space:
    """The dimensions of one operation, which are its kernel's."""
    dims = range(len(node.extents))
    return Space([node], {node: tuple(dims)}, dict(zip(dims, node.extents)), tuple([d for d in dims if d not in node.reduced]))


def _clash(nodes: list[Node], find: Callable[[Dim], Dim]) -> str | None:
    for node in nodes:
        roots = [find((node, d)) for d in range(len(node.extents))]
        if len(set(roots)) < len(roots):
            return f"{node.name} reads elements that other blocks compute"
    return None


def _unite_shared_inputs(nodes: list[Node], graph: Graph, root: dict[Dim, Dim]) -> Callable[[Dim], Dim]:
    """Unites the dimensions of operations that read one input at the same subscripts, unless that unites two dimensions of
    one operation, or different extents. `root` has the dimensions that are united already. Returns a function to the
    united dimension."""
    nodes_of: dict[Dim, set[Node]] = {}  # by whom
    sizes: dict[Dim, set[int]] = {}
    for (node, d), key in root.items():
        nodes_of.setdefault(key, set()).add(node)
        sizes.setdefault(key, set()).add(node.extents[d])
    above: dict[Dim, Dim] = {}

    def find(key: Dim) -> Dim:
        key = root[key]
        while key in above:
            key = above[key]
        return key

    def unite(one: Dim, other: Dim) -> bool:
        less, more = sorted((find(one), find(other)), key=lambda k: len(nodes_of[k]))
        if less == more:
            return True
        if sizes[less] != sizes[more] or not nodes_of[less].isdisjoint(nodes_of[more]):
            return False
        nodes_of[more] |= nodes_of[less]
        above[less] = more
        return True

    seen: dict[ir.Value, tuple[Node, tuple[int, ...]]] = {}
    inside = set(nodes)
    for node in nodes if all(len(s) == 1 for s in sizes.values()) else ():
        for read in node.reads:
            if graph.producer.get(read.value) in inside:
                continue
            other, dims = seen.setdefault(read.value, (node, read.dims))
            if other is node or _in_other_roles((node, read.dims), (other, dims)):
                continue
            before = len(above)
            if not all(unite((node, mine), (other, theirs)) for mine, theirs in zip(read.dims, dims)):
                while len(above) > before:
                    less, more = above.popitem()
                    nodes_of[more] -= nodes_of[less]
    return find


def _in_other_roles(one: tuple[Node, tuple[int, ...]], other: tuple[Node, tuple[int, ...]]) -> bool:
    """Whether two contractions read an input so that one sums over a dimension of it that is the other's result's: keys that are
    values, too."""
    (a, mine), (b, theirs) = one, other
    both = a.contraction is not None and b.contraction is not None
    return both and any((m in a.reduced) != (t in b.reduced) for m, t in zip(mine, theirs))


def _unite_independent(nodes: list[Node], graph: Graph, united: Callable[[Dim], Dim]) -> Callable[[Dim], Dim]:
    """Unites the dimensions that operations have besides those of all, where none of the operations needs another, no operation
    has both dimensions, and the extents are equal: of two tensors that are scaled by one vector, the rows are one dimension of
    the kernel, as if the tensors were one. `united` has the dimensions that are united already. Returns a function to the united
    dimension."""
    roots = {n: tuple(united((n, d)) for d in range(len(n.extents))) for n in nodes}
    common = set.intersection(*(set(r) for r in roots.values()))
    own = {n: tuple(key for key in r if key not in common) for n, r in roots.items()}
    kinds = {dims: n for n, dims in enumerate(dict.fromkeys(own.values()))}
    if len(kinds) < 2:
        return united
    needs: dict[Node, int] = {}  # the kinds of operations that an operation needs, as bits
    needed = dict.fromkeys(kinds, 0)
    for node in nodes:
        producers = (graph.producer.get(read.value) for read in node.reads)
        needs[node] = 0
        for producer in producers:
            if producer in own:
                needs[node] |= needs[producer] | 1 << kinds[own[producer]]
        needed[own[node]] |= needs[node]
    operands_of_one: dict[Dim, set[Dim]] = {}  # the dimensions of operations that have this one, which stay apart from it
    for dims in kinds:
        for dim in dims:
            operands_of_one.setdefault(dim, set()).update(dims)
    above: dict[Dim, Dim] = {}
    first: dict[tuple[int, ...], list[tuple[Dim, ...]]] = {}
    for dims, number in kinds.items():
        extents = tuple(node.extents[d] for node, d in dims)
        others = first.setdefault(extents, [])
        for other in others:
            separate = not (needed[dims] >> kinds[other] & 1 or needed[other] >> number & 1)
            if separate and set(other).isdisjoint(dims) and not any(b in operands_of_one[a] for a, b in zip(dims, other)):
                for a, b in zip(dims, other):
                    above[a] = b
                    operands_of_one[b] |= operands_of_one[a]
                    for c in [*operands_of_one[a]]:
                        operands_of_one[c].add(b)
                break
        else:
            others.append(dims)
    return lambda dim: above.get(united(dim), united(dim))
