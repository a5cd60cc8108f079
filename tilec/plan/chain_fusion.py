"""Which groups become a contraction chain (`tilec/plan/chain.py`), by predicted time."""

from __future__ import annotations

from math import prod

from tilec.analysis.graph import Graph, Node
from tilec.analysis.traffic import work_of
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost.chain import choose_chain_tile
from tilec.cost.model import predict
from tilec.plan.chain import chain_problem, is_contraction_chain
from tilec.plan.groups import Group, Remark
from tilec.plan.legality import refuse


def join_chains(graph: Graph, member: dict[Node, Group], target: Target, remarks: list[Remark]) -> None:
    """Joins contractions with the operations between them and an earlier contraction, if that is legal and takes less time."""
    for node in graph.nodes:
        if node.contraction is None or node.inlined:
            continue
        before = _before(node, graph)
        for first in [n for n in before if n.contraction is not None]:
            chain = [first, *(n for n in before if first in _before(n, graph)), node]
            if len(chain) > 2 and member[first] is not member[node]:
                _join(chain, graph, member, target, remarks)
    for node in graph.nodes:
        if node.contraction is None or node.inlined or is_contraction_chain(member[node].nodes):
            continue
        if readers := _reductions(node, graph, member):
            _join([node, *readers], graph, member, target, remarks)


def _reductions(node: Node, graph: Graph, member: dict[Node, Group]) -> list[Node]:
    """The operations that reduce a contraction's result, with all that reads what is no smaller than it; none if it is stored."""
    size = prod(node.extents[d] for d in node.results[0].dims)
    inside = list(member[node].nodes)
    for n in inside:  # grows
        if any(prod(n.extents[d] for d in r.dims) >= size for r in n.results):
            if graph.is_returned(n):
                return []
            inside += [m for c in graph.consumers(n) for m in member[c].nodes if m not in inside]
    found = [n for n in inside if n not in member[node].nodes]
    reduced = any(n.reduced for n in found) and not any(n.contraction is not None for n in found)
    return graph.in_order(found) if reduced else []


def _join(chain: list[Node], graph: Graph, member: dict[Node, Group], target: Target, remarks: list[Remark]) -> None:
    groups = list({id(member[n]): member[n] for n in chain}.values())
    nodes = graph.in_order(n for g in groups for n in g.nodes)
    subject, line = f"{chain[0].name} with {chain[-1].name}", chain[-1].line
    space = refuse(nodes, graph, member, target)
    if isinstance(space, str):
        remarks.append(Remark("refused", subject, space, line))
        return
    together = choose_chain_tile(target, chain_problem(nodes, space, graph, target))[0].prediction.time_us
    separate = sum(_time_us(g, graph, target) for g in groups)
    alternatives = (("a contraction chain", together), (f"{len(groups)} kernels", separate))
    apart = f"{duration(separate)} as {len(groups)} kernels"
    if not profitable(together, separate):
        reason = f"a contraction chain would take {duration(together)}, and {apart}"
        remarks.append(Remark("refused", subject, reason, line, alternatives))
        return
    reason = f"{duration(together)} as a contraction chain, in which {chain[0].name} stays on chip; {apart}"
    remarks.append(Remark("fused", subject, reason, line, alternatives))
    joined = Group(nodes, space)
    for n in nodes:
        member[n] = joined


def _time_us(g: Group, graph: Graph, target: Target) -> float:
    """Of a kernel, with its best tile where it is a contraction."""
    from tilec.plan.cuda.contraction import tiles_of

    nodes = [n for n in g.nodes if n.contraction is not None]
    plain = len(nodes) == 1 and not is_contraction_chain(g.nodes) and 0 not in g.space.extents.values()
    if plain and (choices := tiles_of(nodes[0], g, graph, target).choices):
        return choices[0].prediction.time_us
    return predict(work_of(g.nodes, graph, g.space, target), target).time_us


def profitable(together: float, separate: float) -> bool:
    return together <= separate


def _before(node: Node, graph: Graph) -> list[Node]:
    """The operations that `node` is computed from, back to contractions and no further."""
    found: list[Node] = []
    pending = graph.producers(node)
    while pending:
        producer = pending.pop()
        if producer not in found and not producer.inlined:
            found.append(producer)
            pending += [] if producer.contraction is not None else graph.producers(producer)
    return found
