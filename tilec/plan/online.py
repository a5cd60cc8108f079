"""How reductions of a kernel that read one another are carried in one pass (`tilec/analysis/online_reduction.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilec.analysis.carried import Online
from tilec.analysis.expression import Reader, Unreadable
from tilec.analysis.graph import Graph, Node
from tilec.analysis.online_reduction import derive
from tilec.plan.groups import Group


def online_of(nodes: Sequence[Node], group: Group, graph: Graph) -> Online | None:
    """Of reductions of a kernel, all along the same dimensions; None if they cannot be carried."""
    dims = {n.op: group.space.dims[n] for n in group.nodes}
    reader = Reader(dims, partial(graph.maker_in, group.nodes))
    try:
        for n in nodes:
            for k in range(len(n.results)):
                reader.result(n.op, k)
    except Unreadable:
        return None
    reduced = {group.space.dims[n][d] for n in nodes for d in n.reduced}
    online = derive(reader.totals, tuple(sorted(reduced)), exact=True)
    return None if isinstance(online, str) else online
