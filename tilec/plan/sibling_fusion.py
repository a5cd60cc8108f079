"""Which kernels of sibling contractions (`tilec/analysis/siblings.py`) become one, by predicted time."""

from __future__ import annotations

from tilec.analysis.graph import Graph, Node
from tilec.analysis.siblings import are_siblings
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.plan.chain_fusion import time_us
from tilec.plan.cuda.contraction import Tiles, tiles_of
from tilec.plan.cuda.siblings import sibling_tiles
from tilec.plan.groups import Group, Kernels, Remark, join
from tilec.plan.legality import refuse


def join_siblings(graph: Graph, member: Kernels, target: Target, remarks: list[Remark]) -> None:
    """Makes kernels whose contractions are siblings one, if that is legal and takes less time."""
    if target.kind != "cuda":
        return
    readers: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.contraction is None or node.inlined:
            continue
        for value in dict.fromkeys(node.values):
            kernels: dict[int, Node] = {}  # the latest reader of each; in a program of many, only the last few
            for other in reversed(readers.setdefault(value, [])):
                if len(kernels) < SIBLINGS:
                    kernels.setdefault(id(member[other]), other)
            for other in kernels.values():
                theirs, mine = member[other], member[node]
                nodes = graph.in_order((*theirs.nodes, *mine.nodes))
                if theirs is mine or not are_siblings(nodes):
                    continue
                subject = f"{other.name} with {node.name}"
                outcome = refuse(nodes, graph, member, target)
                if isinstance(outcome, str):
                    remarks.append(Remark("refused", subject, outcome, node.line))
                    continue
                joined = Group(nodes, outcome)
                fused_us = _weighed_us(joined, 0, graph, target)
                separate_us = _weighed_us(theirs, _operations(mine), graph, target) - _overlapped(target)
                separate_us += _weighed_us(mine, _operations(theirs), graph, target)
                more = f" of {count(sum(n.contraction is not None for n in nodes), 'product')} of one factor"
                join([joined], member, remarks, subject, node.line, (fused_us, separate_us), 2, more=more, weighed=WEIGHED)
            readers[value].append(node)


SIBLINGS = 16  # kernels that read the same factor, and that a contraction might join
WEIGHED = "with a tenth of the time of resources that wait for another, as tiles are ranked"


def _weighed_us(g: Group, others: float, graph: Graph, target: Target) -> float:
    """Predicted, with the best tile: a result in memory between two kernels takes time even where products take more. `others`:
    operations of the other kernel."""
    return graph.memoise(("with others", others), g.nodes, lambda: _with_others_us(g, others, graph, target)).result


def _with_others_us(g: Group, others: float, graph: Graph, target: Target) -> float:
    found = graph.memoise("tiles", g.nodes, lambda: _tiles(g, graph, target)).result  # of which no factor is asked for
    if isinstance(found, str) or not found.choices:
        return time_us(g, graph, target)
    return found.rank(found.choices[0].tile, target, neighbours=others)


def _tiles(g: Group, graph: Graph, target: Target) -> Tiles | str:
    contractions = [n for n in g.nodes if n.contraction is not None]
    return sibling_tiles(g, graph, target) if len(contractions) > 1 else tiles_of(contractions[0], g, graph, target)


def _operations(g: Group) -> float:
    """Of its contractions."""
    return sum(2.0 * n.iterations for n in g.nodes if n.contraction is not None)


def _overlapped(target: Target) -> float:
    """What a kernel takes less where it is launched while the one before it ends."""
    return target.launch.ramp_us - target.launch.overlap_us if target.launch.overlap_us else 0.0
