"""Sibling contractions: several contractions that read one left factor, none of which reads the result of another, as one kernel.

    h[m, n] = silu(sum[k](x[m, k] * wg[k, n])) * sum[k](x[m, k] * wu[k, n])      results meet: side by side in a tile
    q = x @ wq;  k = x @ wk;  v = x @ wv                                         results apart: tiles follow one another

Results that meet in one expression leave the kernel once, and the left factor is copied once for all of their products. Results
apart share one launch, and the last blocks of one run beside the first of the next: few tiles of each fill the machine together.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.analysis.graph import Graph, Node


def are_siblings(nodes: Sequence[Node]) -> bool:
    """Whether there are several contractions, none of which is computed from another."""
    from_one: set[object] = set()  # values that are computed from a contraction
    several = 0
    for node in nodes:
        depends = any(v in from_one for v in node.values)
        if node.contraction is not None and depends:
            return False
        several += node.contraction is not None
        if depends or node.contraction is not None:
            from_one |= {r.value for r in node.results}
    return several > 1


def read_one_tensor(nodes: Sequence[Node]) -> bool:
    """Whether the contractions of some nodes read one tensor."""
    values = [set(n.values) for n in nodes if n.contraction is not None]
    return bool(set.intersection(*values))


def parts_of(nodes: Sequence[Node], graph: Graph) -> list[list[Node]]:
    """The operations of each result: those that intermediates connect."""
    parts: list[list[Node]] = []
    for node in nodes:
        made = set(graph.producers(node))
        near = [part for part in parts if not made.isdisjoint(part)]
        parts = [part for part in parts if part not in near] + [graph.in_order([*(n for part in near for n in part), node])]
    return sorted(parts, key=lambda part: graph.position[part[0]])
