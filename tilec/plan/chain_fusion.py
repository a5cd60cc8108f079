"""Which groups become one kernel of two contractions (`tilec/plan/chain.py`), by predicted time."""

from __future__ import annotations

from tilec.analysis.graph import Graph, Node
from tilec.analysis.traffic import work_of
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost.chain import choose_chain_tile
from tilec.cost.model import predict
from tilec.plan.chain import chain_problem
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


def _join(chain: list[Node], graph: Graph, member: dict[Node, Group], target: Target, remarks: list[Remark]) -> None:
    groups = list({id(member[n]): member[n] for n in chain}.values())
    nodes = graph.in_order(n for g in groups for n in g.nodes)
    subject, line = f"{chain[0].name} with {chain[-1].name}", chain[-1].line
    space = refuse(nodes, graph, member, target)
    if isinstance(space, str):
        remarks.append(Remark("refused", subject, space, line))
        return
    together = choose_chain_tile(target, chain_problem(nodes, space, graph))[0].prediction.time_us
    separate = sum(predict(work_of(g.nodes, graph, g.space, target), target).time_us for g in groups)
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
