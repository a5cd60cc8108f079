"""Online reductions of a CUDA kernel: the reductions that share one pass, although some read others (see
`tilec.analysis.online_reduction`).

A kernel has the option `online` if all its reductions run along the same dimensions, and no other operation runs along
one of them before the last reduction is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.analysis.graph import Node
from tilec.plan.online import online_of

if TYPE_CHECKING:
    from tilec.analysis.layout import Layout
    from tilec.plan.cuda.view import View


def online_reductions(view: View) -> list[Node]:
    """The reductions that can share one pass, at least two; an empty list if they cannot."""
    space = view.group.space
    nodes = [n for n in view.group.nodes if n.reduced]
    reduced = {frozenset(space.dims[n][d] for d in n.reduced) for n in nodes}
    if len(nodes) < 2 or len(reduced) != 1 or any(n.scan is not None or n.contraction is not None for n in nodes):
        return []
    (dims,) = reduced
    last = max(view.kernel.loop_groups[n.name] for n in nodes)
    others = [n for n in view.group.nodes if n not in nodes and dims & set(space.dims[n])]
    if last == 0 or any(view.kernel.loop_groups[n.name] <= last for n in others):
        return []
    online = online_of(nodes, view.group, view.graph)
    if online is None or len({c.total.dims for c in online.carried}) > 1:
        return []
    return nodes


def choose_online(view: View, layout: Layout, waits: bool = False) -> bool | None:
    """Whether one pass is better for this layout; None if it is impossible. One pass avoids loading elements again that
    threads do not hold. If threads hold the elements, or these are in shared memory (`waits`), a pass for each reduction
    takes less arithmetic."""
    nodes = online_reductions(view)
    if not nodes:
        return None
    return not waits and not all(layout.whole(view.group.space.dims[n]) for n in nodes)
