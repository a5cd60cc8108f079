"""Which reductions of a CUDA kernel are one walk, although some read others (`tilec.online` says how that is possible).

Option `online`: 1 where they are. A kernel has it where its reductions can be: all of them walk one dimension, and
nothing else walks it before the last of them is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.expression import Reader, Unreadable
from tilec.graph import Node
from tilec.online import Online, derive

if TYPE_CHECKING:
    from tilec.passes.layout import Layout
    from tilec.plan_cuda_view import View


def online_reductions(view: View) -> list[Node]:
    """The reductions that may be one walk, at least two; none where they may not."""
    space = view.group.space
    nodes = [n for n in view.group.nodes if n.reduced]
    walked = {frozenset(space.dims[n][d] for d in n.reduced) for n in nodes}
    if len(nodes) < 2 or len(walked) != 1 or any(n.scan is not None or n.contraction is not None for n in nodes):
        return []
    (dims,) = walked
    last = max(view.kernel.sweeps[n.name] for n in nodes)
    others = [n for n in view.group.nodes if n not in nodes and dims & set(space.dims[n])]
    if len(dims) != 1 or last == 0 or any(view.kernel.sweeps[n.name] <= last for n in others):
        return []
    online = _derive(view, nodes, min(dims))
    if online is None or len({c.total.place for c in online.carried}) > 1:
        return []
    return nodes


def _derive(view: View, nodes: list[Node], dim: int) -> Online | None:
    places = {n.op: view.group.space.dims[n] for n in view.group.nodes}
    made = {
        r.value: (n.op, k)
        for n in view.graph.nodes
        for k, r in enumerate(n.results)
        if n in view.group.nodes or n.inlined
    }
    reader = Reader(places, made.get)
    try:
        for n in nodes:
            for k in range(len(n.results)):
                reader.result(n.op, k)
    except Unreadable:
        return None
    online = derive(reader.totals, dim, exact=True)
    return None if isinstance(online, str) else online


def choose_online(view: View, layout: Layout, waits: bool = False) -> bool | None:
    """Whether one walk is better for this layout, None where it cannot be. It saves reading elements again that threads do not
    hold. Where they hold them, or
    these wait in SRAM, a walk for each takes less arithmetic."""
    nodes = online_reductions(view)
    if not nodes:
        return None
    return not waits and not all(layout.whole(view.group.space.dims[n]) for n in nodes)
