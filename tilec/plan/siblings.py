"""Whether sibling contractions (`tilec/analysis/siblings.py`) can be one kernel, with the reason where they cannot."""

from __future__ import annotations

from tilec.analysis.graph import Graph, Node
from tilec.analysis.siblings import parts_of
from tilec.analysis.space import Space
from tilec.core.target import Target
from tilec.plan.cuda.siblings import sibling_tiles
from tilec.plan.groups import Group


def refuse_siblings(nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    """Why nodes that `are_siblings` holds for cannot be one kernel."""
    inside = set(nodes)
    for part in parts_of(nodes, graph):
        (first, *_) = contractions = [n for n in part if n.contraction is not None] or [part[0]]
        parallel = {space.dims[first][d] for d in range(len(first.extents)) if d not in first.reduced}
        for node in (n for n in part if n not in contractions):
            if node.reduced:
                return f"{node.name} reduces along an index that the contraction {first.name} divides among blocks"
            if inside.isdisjoint(graph.producers(node)):
                return f"{node.name} comes before the contraction {first.name}, whose tiles would all compute it again"
            if set(space.dims[node]) != parallel:
                return f"{node.name} has other indices than the result of the contraction {first.name}"
    found = sibling_tiles(Group(nodes, space), graph, target)
    return found if isinstance(found, str) else None
