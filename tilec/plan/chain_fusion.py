"""Which groups become a contraction chain (`tilec/plan/chain.py`), by predicted time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import prod

from tilec.analysis.ancestors import Ancestors
from tilec.analysis.directions import has_windows
from tilec.analysis.graph import Graph, Node
from tilec.analysis.space import Space, space_of
from tilec.analysis.traffic import work_of
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.chain import choose_chain_tile
from tilec.cost.model import TooLarge, predict
from tilec.plan.chain import as_contractions, chain_problem, is_contraction_chain
from tilec.plan.cpu.chain import chain_us, separate_us
from tilec.plan.groups import Group, Kernels, Remark, join
from tilec.plan.legality import refuse, refuse_reads, refuse_reads_of
from tilec.plan.ordered_factors import ordered
from tilec.plan.unchosen import unchosen

MOST_FIRSTS = 4  # contractions whose results a thread might hold


def join_chains(graph: Graph, member: Kernels, target: Target, remarks: list[Remark]) -> None:
    """Joins contractions with the operations between them and an earlier contraction, if that is legal and takes less time."""
    made = Ancestors(graph.nodes, graph.producers, graph.position)
    near = Ancestors(graph.nodes, graph.producers, graph.position, _multiplies)
    waits = _Waits(graph, made)
    sizes = {n: max((prod(n.extents[d] for d in r.dims) for r in n.results), default=0) for n in graph.nodes}
    for node in graph.nodes:
        if not _multiplies(node) or node.inlined:
            continue
        before = operations_before(node, graph)
        if target.kind == "cuda" and _join_all(node, before, graph, member, target, remarks, made, near, sizes):
            continue
        computed = [p for v in (*node.extracts, *node.sources) if (p := graph.producer.get(v)) is not None]
        for first in filter(_multiplies, before):
            if member[first] is member[node] and is_contraction_chain(member[node].nodes):
                continue
            chain = [n for n in computed if n is first or near.has(n, first)]  # asked first, since most are refused
            why = refuse_reads([*chain, node], graph)
            if why is None:
                chain = [first, *(n for n in before if near.has(n, first)), node]
                why = refuse_reads(chain, graph)
            found: list[Node] | str = why or []
            if why is None and len(chain) > 2:
                found = waits.refuse(first, node) or _with_readers(chain, first, node, graph, made, sizes)
            if isinstance(found, str):
                remarks.append(Remark("refused", f"{first.name} with {node.name}", found, node.line))
            elif found:
                whole = [m for g in {id(member[n]): member[n] for n in found}.values() for m in g.nodes]
                _join(graph.in_order(whole), graph, member, target, remarks, (first, node))
    for node in graph.nodes:
        if node.contraction is None or node.inlined or is_contraction_chain(member[node].nodes):
            continue
        core = _reductions(node, graph, member, made)
        whole = graph.in_order({m for n in core for m in member[n].nodes})
        if core and not _join(whole, graph, member, target, remarks) and len(core) < len(whole):
            _join(core, graph, member, target, remarks)
    if target.kind == "cuda":
        _join_results(graph, member, target, remarks)


def _join_results(graph: Graph, member: Kernels, target: Target, remarks: list[Remark]) -> None:
    """Joins chains that read the same tensors, with which they may compute the same scores."""
    readers: dict[ir.Value, list[Node]] = {}
    for node in graph.nodes:
        if node.contraction is None or node.inlined or not is_contraction_chain(member[node].nodes):
            continue
        for value in dict.fromkeys(node.values):
            before = {id(member[n]): n for n in readers.setdefault(value, [])}
            for other in before.values():
                if member[other] is not member[node]:
                    _join(graph.in_order((*member[other].nodes, *member[node].nodes)), graph, member, target, remarks)
            readers[value].append(node)


class _Waits:
    """Operations that wait for others until all blocks have stored what these make."""

    def __init__(self, graph: Graph, made: Ancestors):
        self.graph, self.made, at = graph, made, graph.position
        self.awaited = {n: sum(1 << at[p] for p in set(graph.awaited(n))) for n in graph.nodes if graph.awaited(n)}
        self.waiting = sum(1 << at[n] for n in self.awaited)
        self.separate = sum(1 << at[n] for n in graph.nodes if not n.inlined)

    def refuse(self, first: Node, last: Node) -> str | None:
        """Why no kernel has both and all that is between them, which it would have: the first operation that waits for another.
        Layers that add to one tensor are between many pairs."""
        at, nodes = self.graph.position, self.graph.nodes
        inside = (1 << at[first] | self.made.between(first, last)) & self.separate
        waiting = (inside | 1 << at[last]) & self.waiting
        while waiting:
            node = nodes[(waiting & -waiting).bit_length() - 1]
            if self.awaited[node] & inside:
                return refuse_reads_of(node, [p for p in self.graph.awaited(node) if inside >> at[p] & 1], self.graph)
            waiting &= waiting - 1
        return None


def _join_all(
    node: Node, before: list[Node], graph: Graph, member: Kernels, target: Target, remarks: list[Remark], made: Ancestors,
    near: Ancestors, sizes: Mapping[Node, int],
) -> bool:  # fmt: skip
    """Joins a contraction with all of several that its factor is computed from; returns whether they are one kernel."""
    products = [n for n in before if (c := n.contraction or n.vector_product) is not None and c.m + c.n]
    largest = max((sizes[n] for n in products), default=0)  # smaller ones make what a row or a factor is read from
    firsts = [n for n in products if sizes[n] == largest]
    if not 1 < len(firsts) <= MOST_FIRSTS:
        return False
    chain = [n for n in before if n in firsts or any(near.has(n, first) for first in firsts)] + [node]
    names = " and ".join(n.name for n in graph.in_order(firsts))
    found: list[Node] | str = refuse_reads(chain, graph) or chain
    for first in firsts:
        if not isinstance(found, str):
            found = _with_readers(found, first, node, graph, made, sizes)
    if isinstance(found, str):
        remarks.append(Remark("refused", f"{names} with {node.name}", found, node.line))
        return False
    core = graph.in_order({*found, *(n for n in member[node].nodes if made.has(n, node))})
    whole = graph.in_order(m for g in {id(member[n]): member[n] for n in core}.values() for m in g.nodes)
    joined = (*firsts, node)
    if not _join(whole, graph, member, target, remarks, joined) and len(core) < len(whole):
        _join(core, graph, member, target, remarks, joined)
    return len({id(member[n]) for n in (*firsts, node)}) == 1


def chain_factor_of(node: Node, graph: Graph) -> Node | None:
    """The contraction of which an operation makes a narrow factor, where a contraction chain may become of it and of another one,
    with a reduction between them."""
    kinds = {str(ir.ShapedType(r.value.type).element_type) for r in node.results}
    readers = graph.consumers(node)
    if not kinds <= {"bf16", "f16"} or len(readers) != 1 or readers[0].contraction is None:
        return None
    (reader,) = readers
    for last in graph.in_order({reader, *_after(reader, graph)}):
        if last.contraction is None:
            continue
        before = operations_before(last, graph)
        pair = [n for n in before if n.contraction is not None and reader in (n, last)]
        if any(n.reduced and n.contraction is None for n in before for first in pair if first in operations_before(n, graph)):
            return reader
    return None


def _with_readers(
    chain: list[Node], first: Node, last: Node, graph: Graph, made: Ancestors, sizes: Mapping[Node, int]
) -> list[Node] | str:
    """A chain with what else reads tensors as large as the first contraction's result, which are not stored: further reductions of
    them, and what these are computed of. A text as soon as there is one that no kernel can have. `sizes`: elements of the largest
    result of each operation."""
    size = prod(first.extents[d] for d in first.results[0].dims)
    inside, pending = dict.fromkeys(chain), deque(chain)
    while pending:
        n = pending.popleft()
        large = n is not last and sizes[n] >= size
        near = [c for c in graph.consumers(n) if not c.inlined and c is not last and not made.has(c, last)] if large else []
        near += [p for p in graph.producers(n) if not p.inlined and (p is first or made.has(p, first))]
        more = [m for m in dict.fromkeys(near) if m not in inside]
        inside |= dict.fromkeys(more)
        pending += more
        for m in more:
            if why := next((w for c in (m, *graph.consumers(m)) if c in inside and (w := refuse_reads_of(c, inside, graph))), None):
                return why
    return list(inside)


def _multiplies(node: Node) -> bool:
    return node.contraction is not None or node.vector_product is not None


def _reductions(node: Node, graph: Graph, member: Kernels, made: Ancestors) -> list[Node]:
    """A contraction, the operations that reduce its result, and what they are computed of: all that reads a tensor no smaller than
    the result. None if it is stored, or not reduced."""
    size = prod(node.extents[d] for d in node.results[0].dims)
    inside, pending = dict.fromkeys(member[node].nodes), deque(member[node].nodes)
    while pending:
        n = pending.popleft()
        more: list[Node] = []
        if any(prod(n.extents[d] for d in r.dims) >= size for r in n.results):
            if graph.is_returned(n):
                return []
            more += graph.consumers(n)
        more += [p for p in graph.producers(n) if p is node or made.has(p, node)]
        pending += [m for m in dict.fromkeys(more) if m not in inside]
        inside |= dict.fromkeys(more)
        if any(m.contraction is not None and m is not node for m in more):
            return []
    reduced = any(n.reduced for n in inside if n is not node)
    return graph.in_order(inside) if reduced and sum(n.contraction is not None for n in inside) == 1 else []


def _join(
    chain: list[Node], graph: Graph, member: Kernels, target: Target, remarks: list[Remark],
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
            fused_us = _chain_us(nodes, space, graph, target)
        else:
            fused_us = chain_us(nodes, space, graph, target)
    remainders = [r for g in groups for r in _without(g, nodes, graph, member, target)]
    if target.kind == "cuda":
        fused_us += sum(time_us(g, graph, target) for g in remainders)
        separate = sum(time_us(g, graph, target) for g in groups)
    else:
        fused_us += sum(g.time_us(graph, target) for g in remainders)
        separate = separate_us(groups, nodes, graph, target)
    better = profitable(fused_us, separate)
    for n in promoted if better else ():
        n.contraction = n.vector_product
    what, more = "a contraction chain", f", in which {chain[0].name} stays on chip"
    kernels = [Group(nodes, space), *remainders]
    join(kernels, member, remarks, subject, line, (fused_us, separate), len(groups), what, more, better)
    return True


def _chain_us(nodes: list[Node], space: Space, graph: Graph, target: Target) -> float:
    """Of a chain on a GPU, with its best tile."""
    weigh = lambda: choose_chain_tile(target, chain_problem(nodes, space, graph, target))[0].prediction.time_us  # noqa: E731
    return graph.memoise("chain", nodes, weigh).result


def _without(g: Group, nodes: list[Node], graph: Graph, member: Kernels, target: Target) -> list[Group]:
    """What is left of a kernel without some of its operations: one kernel, or one for each operation where that is not legal."""
    rest = [n for n in g.nodes if n not in nodes]
    space = refuse(rest, graph, member, target) if rest else ""
    if not isinstance(space, str):
        return [Group(rest, space)]
    singles = ((n, space_of([n], graph)) for n in rest)
    return [Group([n], own) for n, own in singles if not isinstance(own, str)]


def time_us(g: Group, graph: Graph, target: Target) -> float:
    """Of a kernel, with its best tile where it multiplies, or has windows: how often elements are read depends on it."""
    return graph.memoise(("tiled", graph.may_pack), g.nodes, lambda: _time_us(g, graph, target)).result


def _time_us(g: Group, graph: Graph, target: Target) -> float:
    from tilec.plan.cuda.choose import choose
    from tilec.plan.cuda.contraction import tiles_of

    nodes = [n for n in g.nodes if n.contraction is not None]
    if is_contraction_chain(g.nodes):
        return _chain_us(g.nodes, g.space, graph, target)
    plain = len(nodes) == 1 and 0 not in g.space.extents.values()
    if plain and (choices := tiles_of(nodes[0], g, graph, target).choices):
        return choices[0].prediction.time_us
    by_layout = any(n.vector_product is not None for n in g.nodes) or traverses_several(g)
    if not nodes and any(map(has_windows, g.nodes)):
        known = ordered(g, graph, target)
        return known.after_us if graph.may_pack else known.uncoalesced_us
    if not nodes and by_layout:
        try:
            kernel, _ = choose(unchosen(g, graph, g.nodes[0].name, target), g, graph, target)
            return predict(kernel.work, target).time_us
        except TooLarge:
            pass
    return predict(work_of(g.nodes, graph, g.space, target), target).time_us


TRAVERSED = 4096  # elements of a block that few threads traverse in a few microseconds


def traverses_several(g: Group) -> bool:
    """Whether a block without matrix units traverses many elements of several dimensions, of which threads lie along one only."""
    own = [e for d, e in g.space.extents.items() if d not in g.space.grid and e > 1]
    return len(own) > 1 and prod(own) > TRAVERSED and all(n.contraction is None for n in g.nodes)


def profitable(fused_us: float, separate: float) -> bool:
    return fused_us <= separate


def operations_before(node: Node, graph: Graph) -> list[Node]:
    """The operations that `node` is computed from, back to contractions and no further."""
    found: dict[Node, None] = {}
    pending = list(graph.producers(node))
    while pending:
        producer = pending.pop()
        if producer not in found and not producer.inlined:
            found[producer] = None
            pending += [] if _multiplies(producer) else graph.producers(producer)
    return list(found)


def _after(node: Node, graph: Graph) -> set[Node]:
    """The operations that are computed from `node`, on to contractions and no further."""
    found: set[Node] = set()
    pending = list(graph.consumers(node))
    while pending:
        consumer = pending.pop()
        if consumer not in found and not consumer.inlined:
            found.add(consumer)
            pending += [] if _multiplies(consumer) else graph.consumers(consumer)
    return found
