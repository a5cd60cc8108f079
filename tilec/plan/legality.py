"""Whether operations can share a kernel, with the reason where they cannot."""

from __future__ import annotations

from collections.abc import Collection, Set

from tilec.analysis.graph import Graph, Node
from tilec.analysis.siblings import are_siblings
from tilec.analysis.space import Space, space_of
from tilec.analysis.traffic import allows_look_back, intermediate_bytes, onchip_bytes, outputs_of
from tilec.core.target import Target
from tilec.passes.tensor.slice_updates import POSITION
from tilec.plan.chain import is_contraction_chain, refuse_contraction_chain
from tilec.plan.cpu.chain import refuse_panel_chain
from tilec.plan.cuda.by_key import refuse_by_key
from tilec.plan.groups import Kernels
from tilec.plan.siblings import refuse_siblings


def refuse(nodes: list[Node], graph: Graph, member: Kernels, target: Target) -> Space | str:
    """The kernel space of `nodes` as one kernel, or why they cannot be one."""
    if why := refuse_reads(nodes, graph):
        return why
    if len(nodes) > 1 and any(POSITION in n.op.attributes for n in nodes):
        return "what is stored at a position that data tell is a kernel of its own"
    if graph.inserted and any(r.value in graph.inserted for n in nodes for r in n.results) and len(outputs_of(nodes, graph)) > 1:
        return "a kernel that stores a part of a tensor has no other result"
    if cycle := _between(nodes, graph, member):
        return f"{cycle.name}, in another kernel, must run between them"
    space = space_of(nodes, graph)
    if isinstance(space, str):
        return space
    if why := refuse_by_key(nodes, space.dims, target):
        return why
    if sum(n.contraction is not None for n in nodes):
        found = graph.memoise("refused", nodes, lambda: _refuse_contraction(nodes, space, graph, target))
        return found.reason(found.result, [n.name for n in nodes]) if found.result else space
    if target.kind == "cuda" and allows_look_back(nodes, space):  # of as many blocks as it takes
        return space
    if not space.grid and sum(n.iterations for n in nodes) > 1 << 14:
        return "no index is parallel in both, so that one block would do all the work"
    kept = intermediate_bytes(nodes, graph, space)
    limit = onchip_bytes(target, nodes, space)
    if kept > limit:
        return f"the intermediates of one point of the grid take {kept} bytes, and {limit} bytes fit on chip"
    return space


def refuse_reads(nodes: Collection[Node], graph: Graph) -> str | None:
    """Why some of the nodes read what others make in a way that no kernel allows, whatever else it has."""
    inside = nodes if isinstance(nodes, (dict, Set)) else set(nodes)
    return next((why for node in nodes if (why := refuse_reads_of(node, inside, graph))), None)


def refuse_reads_of(node: Node, inside: Collection[Node], graph: Graph) -> str | None:
    """The same of what one node reads, for which `inside` has the nodes."""
    before = [p for p in graph.awaited(node) if p in inside]
    if any(p.part for p in before):
        return "the reduction is split over many blocks, and a second kernel combines the parts"
    if before:
        return f"{node.name} reads it at computed subscripts, so that all blocks must have stored their parts first"
    return None


def _refuse_contraction(nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    contractions = [n for n in nodes if n.contraction is not None]
    if target.kind == "cuda" and are_siblings(nodes):
        return refuse_siblings(nodes, space, graph, target)
    if is_contraction_chain(nodes) and _connected(nodes, space, graph):
        if target.kind == "cuda":
            return refuse_contraction_chain(nodes, space, graph, target)
        if len(contractions) > 2:
            return "a chain of more than two contractions is several kernels on a CPU"
        both = "both are contractions, but " if len(contractions) > 1 else ""
        why = refuse_panel_chain(nodes, space, graph, target)
        return f"{both}no contraction chain: {why}" if why else None
    if len(contractions) > 1:
        return "both are contractions, and the tile that one writes is not the tile that the other reads"
    (contraction,) = contractions
    parallel = {space.dims[contraction][d] for d in range(len(contraction.extents)) if d not in contraction.reduced}
    for node in nodes:
        if node is contraction:
            continue
        if node.reduced:
            return f"{node.name} reduces along an index that the contraction {contraction.name} divides among blocks"
        if set(space.dims[node]) != parallel:
            return f"{node.name} has other indices than the result of the contraction {contraction.name}"
        if graph.position[node] < graph.position[contraction]:
            return (
                f"{node.name} comes before the contraction {contraction.name}, whose tiles would all compute it again"
            )
    return None


def _connected(nodes: list[Node], space: Space, graph: Graph) -> bool:
    """Whether there is one contraction; or each is computed from others or is what others are computed from, and those that come
    last sum over the same dimensions."""
    inside, before = set(nodes), dict[Node, set[Node]]()  # the contractions that each operation is computed from
    for n in nodes:
        near = [p for p in graph.producers(n) if p in inside and p is not n]
        before[n] = {m for p in near for m in (*before[p], p) if m.contraction is not None}
    contractions = {n for n in nodes if n.contraction is not None}
    last = contractions - {m for n in contractions for m in before[n]}
    sums = {frozenset(space.dims[n][d] for d in n.reduced) for n in last}
    return len(contractions) == 1 or (all(before[n] for n in last) and len(sums) == 1)


def _between(nodes: list[Node], graph: Graph, member: Kernels) -> Node | None:
    """A node of another kernel that would have to run after one part of this kernel and before another part. A kernel runs
    as a whole, so that the order of one of its nodes is the order of all."""
    if (behind := member.behind(nodes)) is not None:
        own, position = set(nodes), graph.position
        return next((p for n in nodes for p in graph.producers(n) if p not in own and behind >> position[p] & 1), None)
    inside, after, pending = set(nodes), set(), list(nodes)
    last = max(graph.position[n] for n in nodes)
    while pending:
        for reader in graph.consumers(pending.pop()):
            if reader in inside or reader in after or (reader not in member and graph.position[reader] > last):
                continue  # nothing leads back from behind all of them, but a kernel
            more = [m for m in (member[reader].nodes if reader in member else [reader]) if m not in inside]
            after.update(more)
            pending += more
    return next((p for n in nodes for p in graph.producers(n) if p in after), None)
