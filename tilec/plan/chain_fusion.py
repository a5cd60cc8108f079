"""Which groups become a contraction chain (`tilec/plan/chain.py`), by predicted time."""

from __future__ import annotations

from math import prod

from tilec.analysis.graph import Graph, Node
from tilec.analysis.space import space_of
from tilec.analysis.traffic import work_of
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.chain import choose_chain_tile
from tilec.cost.model import TooLarge, predict
from tilec.plan.chain import as_contractions, chain_problem, is_contraction_chain
from tilec.plan.cpu.chain import chain_us, separate_us
from tilec.plan.groups import Group, Remark, join
from tilec.plan.legality import refuse
from tilec.plan.unchosen import unchosen


def join_chains(graph: Graph, member: dict[Node, Group], target: Target, remarks: list[Remark]) -> None:
    """Joins contractions with the operations between them and an earlier contraction, if that is legal and takes less time."""
    for node in graph.nodes:
        if not _multiplies(node) or node.inlined:
            continue
        before = _before(node, graph)
        for first in filter(_multiplies, before):
            chain = [first, *(n for n in before if first in _before(n, graph)), node]
            if len(chain) > 2 and (member[first] is not member[node] or not is_contraction_chain(member[node].nodes)):
                chain = _with_readers(chain, first, node, graph)
                whole = [m for g in {id(member[n]): member[n] for n in chain}.values() for m in g.nodes]
                _join(graph.in_order(whole), graph, member, target, remarks, (first, node))
    for node in graph.nodes:
        if node.contraction is None or node.inlined or is_contraction_chain(member[node].nodes):
            continue
        core = _reductions(node, graph, member)
        whole = graph.in_order({m for n in core for m in member[n].nodes})
        if core and not _join(whole, graph, member, target, remarks) and len(core) < len(whole):
            _join(core, graph, member, target, remarks)


def chain_factor_of(node: Node, graph: Graph) -> Node | None:
    """The contraction of which an operation makes a narrow factor, where a contraction chain may become of it and of another one,
    with a reduction between them."""
    kinds = {str(ir.ShapedType(r.value.type).element_type) for r in node.results}
    readers = graph.consumers(node)
    if not kinds <= {"bf16", "f16"} or len(readers) != 1 or readers[0].contraction is None:
        return None
    (reader,) = readers
    for last in graph.nodes:
        if last.contraction is None:
            continue
        before = _before(last, graph)
        pair = [n for n in before if n.contraction is not None and reader in (n, last)]
        if any(n.reduced and n.contraction is None for n in before for first in pair if first in _before(n, graph)):
            return reader
    return None


def _with_readers(chain: list[Node], first: Node, last: Node, graph: Graph) -> list[Node]:
    """A chain with what else reads tensors as large as the first contraction's result, which are not stored: further reductions of
    them, and what these are computed of."""
    size = prod(first.extents[d] for d in first.results[0].dims)
    inside = list(chain)
    for n in inside:  # grows
        large = n is not last and any(prod(n.extents[d] for d in r.dims) >= size for r in n.results)
        near = [c for c in graph.consumers(n) if not c.inlined and not _descends(c, last, graph)] if large else []
        near += [p for p in graph.producers(n) if not p.inlined and _descends(p, first, graph)]
        inside += [m for m in dict.fromkeys(near) if m not in inside]
    return inside


def _multiplies(node: Node) -> bool:
    return node.contraction is not None or node.vector_product is not None


def _reductions(node: Node, graph: Graph, member: dict[Node, Group]) -> list[Node]:
    """A contraction, the operations that reduce its result, and what they are computed of: all that reads a tensor no smaller than
    the result. None if it is stored, or not reduced."""
    size = prod(node.extents[d] for d in node.results[0].dims)
    inside = list(member[node].nodes)
    for n in inside:  # grows
        if any(prod(n.extents[d] for d in r.dims) >= size for r in n.results):
            if graph.is_returned(n):
                return []
            inside += [c for c in graph.consumers(n) if c not in inside]
        inside += [p for p in graph.producers(n) if p not in inside and _descends(p, node, graph)]
    reduced = any(n.reduced for n in inside if n is not node)
    return graph.in_order(inside) if reduced and sum(n.contraction is not None for n in inside) == 1 else []


def _descends(node: Node, first: Node, graph: Graph) -> bool:
    """Whether an operation is computed from another."""
    found, pending = {node}, [node]
    while pending:
        more = [p for p in graph.producers(pending.pop()) if p not in found]
        found.update(more)
        pending += more
    return first in found


def _join(
    chain: list[Node], graph: Graph, member: dict[Node, Group], target: Target, remarks: list[Remark],
    products: tuple[Node, ...] = (),
) -> bool:  # fmt: skip
    """Makes the operations one kernel, if that is legal and takes less time; returns whether it is legal. What else their kernels
    have stays as it is, in kernels without them. `products` are its contractions, perhaps of a single row."""
    groups = list({id(member[n]): member[n] for n in chain}.values())
    nodes = graph.in_order(chain)
    subject, line = f"{chain[0].name} with {chain[-1].name}", chain[-1].line
    with as_contractions(products) as promoted:
        space = refuse(nodes, graph, member, target)
        if isinstance(space, str):
            remarks.append(Remark("refused", subject, space, line))
            return False
        if target.kind == "cuda":
            together = choose_chain_tile(target, chain_problem(nodes, space, graph, target))[0].prediction.time_us
        else:
            together = chain_us(nodes, space, graph, target)
    rests = [r for g in groups for r in _without(g, nodes, graph, member, target)]
    if target.kind == "cuda":
        together += sum(time_us(g, graph, target) for g in rests)
        separate = sum(time_us(g, graph, target) for g in groups)
    else:
        together += sum(g.time_us(graph, target) for g in rests)
        separate = separate_us(groups, nodes, graph, target)
    better = profitable(together, separate)
    for n in promoted if better else ():
        n.contraction = n.vector_product
    what, more = "a contraction chain", f", in which {chain[0].name} stays on chip"
    kernels = [Group(nodes, space), *rests]
    join(kernels, member, remarks, subject, line, (together, separate), len(groups), what, more, better)
    return True


def _without(g: Group, nodes: list[Node], graph: Graph, member: dict[Node, Group], target: Target) -> list[Group]:
    """What is left of a kernel without some of its operations: one kernel, or one for each operation where that is not legal."""
    rest = [n for n in g.nodes if n not in nodes]
    space = refuse(rest, graph, member, target) if rest else ""
    if not isinstance(space, str):
        return [Group(rest, space)]
    singles = ((n, space_of([n], graph)) for n in rest)
    return [Group([n], own) for n, own in singles if not isinstance(own, str)]


def time_us(g: Group, graph: Graph, target: Target) -> float:
    """Of a kernel, with its best tile where it multiplies."""
    from tilec.plan.cuda.choose import choose
    from tilec.plan.cuda.contraction import tiles_of

    nodes = [n for n in g.nodes if n.contraction is not None]
    plain = len(nodes) == 1 and not is_contraction_chain(g.nodes) and 0 not in g.space.extents.values()
    if plain and (choices := tiles_of(nodes[0], g, graph, target).choices):
        return choices[0].prediction.time_us
    if not nodes and any(n.vector_product is not None for n in g.nodes):
        try:
            kernel, _ = choose(unchosen(g, graph, g.nodes[0].name, target), g, graph, target)
            return predict(kernel.work, target).time_us
        except TooLarge:
            pass
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
            pending += [] if _multiplies(producer) else graph.producers(producer)
    return found
