"""Fusion: which operations share a kernel, with the reason of every refusal, and the predicted time of every choice.

All operations of a kernel share one space of *kernel dimensions*: dimensions of different operations are the same where
an intermediate tensor connects them. The *grid* consists of the dimensions that are parallel in every operation. A block
computes all operations for its part of the grid, so that no block needs the results of another.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilec.analysis.directions import has_windows
from tilec.analysis.graph import Graph, Node, reads_per_element
from tilec.analysis.siblings import are_siblings, read_one_tensor
from tilec.analysis.space import space_of
from tilec.analysis.traffic import bytes_of
from tilec.core.fitted import Recompute
from tilec.core.hardware import WIDE
from tilec.core.mlir import ir
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.passes.tensor.inline import refuse_inline
from tilec.plan.chain import is_contraction_chain, is_reduced_contraction
from tilec.plan.chain_fusion import chain_factor_of, join_chains, time_us, traverses_several
from tilec.plan.cuda.by_key import sorts_keys
from tilec.plan.groups import Group, Kernels, Remark, join, ordered
from tilec.plan.legality import refuse
from tilec.plan.sibling_fusion import join_siblings


def group(graph: Graph, target: Target) -> tuple[list[Group], list[Remark]]:
    """Inlines cheap producers (marks nodes `inlined`), then joins kernels along the program's edges as long as time falls."""
    remarks: list[Remark] = []
    _inline(graph, target, remarks)
    member = Kernels(graph)
    near = _Neighbours(graph, member)
    later: list[tuple[Node, Node]] = []
    for node in graph.nodes:
        if node.inlined:
            continue
        member[node] = Group([node], space_of([node], graph))
        candidates = near.of(node)
        for other in candidates:
            if _waits(node, other, candidates, graph, member):
                later.append((node, other))
            else:
                _fuse_if_faster(node, other, graph, member, target, remarks)
    join_chains(graph, member, target, remarks)
    for node, other in later:
        _fuse_if_faster(node, other, graph, member, target, remarks)
    join_siblings(graph, member, target, remarks)
    return ordered(graph, member), _standing(remarks, member)


def _waits(node: Node, other: Node, candidates: list[Node], graph: Graph, member: Kernels) -> bool:
    """Whether an operation reads a contraction's result and something that does not follow from it, such as a mask or a bias: the
    contraction is asked first, since a chain reads the other from memory."""
    made = {n for c in candidates for n in member[c].nodes if n.contraction is not None}
    mine = member[other].nodes
    if not made or not made.isdisjoint(mine):
        return False
    first = min(graph.position[n] for n in made)
    return all(made.isdisjoint(_behind(n, first, graph)) for n in mine)


def _behind(node: Node, first: int, graph: Graph) -> set[Node]:
    """The operations from the position `first` on that an operation follows from."""
    found, pending = set[Node](), [node]
    while pending:
        producers = [p for p in graph.producers(pending.pop()) if p not in found and graph.position[p] >= first]
        found.update(producers)
        pending += producers
    return found


def _fuse_if_faster(
    node: Node, other: Node, graph: Graph, member: Kernels, target: Target, remarks: list[Remark]
) -> None:
    """Makes the kernels of two operations one, if that is legal and takes less time."""
    mine, theirs = member[node], member[other]
    if mine is theirs or ("tilec.stored" in other.op.attributes and has_windows(node)):
        return  # each block would store what its windows read
    if (size := size_of(mine.nodes) + size_of(theirs.nodes)) > MOST:
        theirs.at_size_cap = size_of(theirs.nodes) > MOST // 2
        reason = f"one kernel of {size} operations would take long to compile"
        remarks.append(Remark("refused", f"{other.name} with {node.name}", reason, node.line))
        return
    nodes = graph.in_order((*mine.nodes, *theirs.nodes))
    if is_reduced_contraction(nodes) or (target.kind == "cuda" and are_siblings(nodes) and read_one_tensor(nodes)):
        return  # `join_chains` asks for all readers of the contraction at once, `join_siblings` by the best tiles
    if is_contraction_chain(mine.nodes) and is_contraction_chain(theirs.nodes):
        return  # `join_chains` knows what they compute both
    outcome = refuse(nodes, graph, member, target)
    if isinstance(outcome, str):
        remarks.append(Remark("refused", f"{other.name} with {node.name}", outcome, node.line))
        return
    if target.kind == "cpu" and is_contraction_chain(nodes):
        return  # `join_chains` knows what it costs
    joined = Group(nodes, outcome)
    windows = target.kind == "cuda" and any(map(has_windows, nodes)) and not any(n.contraction for n in nodes)
    one, *others = (time_us(g, graph, target) if windows else g.time_us(graph, target) for g in (joined, theirs, mine))
    if target.kind == "cuda" and one <= sum(others) and traverses_several(joined):  # its layout may have few threads
        one, *others = (time_us(g, graph, target) for g in (joined, theirs, mine))
    times = one, sum(others)
    join([joined], member, remarks, f"{other.name} with {node.name}", node.line, times, 2)


def _standing(remarks: list[Remark], member: Kernels) -> list[Remark]:
    """The remarks without refusals that a later decision overrides, such as a contraction chain."""
    home = {n.name: id(g) for n, g in member.items()}
    found = []
    for remark in remarks:
        first, _, second = remark.subject.partition(" with ")
        if remark.verb != "refused" or first not in home or home[first] != home.get(second):
            found.append(remark)
    return list(dict.fromkeys(found))


class _Neighbours:
    """Candidates for sharing a kernel with an operation: its producers, then earlier readers of its inputs, one of each kernel. A
    scalar, such as the length of a cache, may join another: a launch takes longer than either."""

    def __init__(self, graph: Graph, member: Kernels):
        self.graph, self.member = graph, member
        self.readers: dict[ir.Value, list[Node]] = {}
        self.scalars: list[Node] = []

    def of(self, node: Node) -> list[Node]:
        near = [p for p in reversed(self.graph.producers(node)) if p in self.member]
        siblings: list[Node] = []
        for value in {r.value: None for r in node.reads if r.value not in self.graph.producer}:
            kernels = {id(self.member[n]): n for n in reversed(self.readers.get(value, [])) if not self.member[n].at_size_cap}
            latest = self.graph.in_order(kernels.values())[-SIBLINGS:]
            siblings += latest
            self.readers[value] = [*latest, node]
        if node.iterations == 1:
            siblings += [n for n in self.scalars[-1:] if all(m.iterations == 1 for m in self.member[n].nodes)]
            self.scalars.append(node)
        return list(dict.fromkeys(near + self.graph.in_order(set(siblings))))


def size_of(nodes: list[Node]) -> int:
    """The compile effort of the nodes as one kernel: their operations, and `LOOP` for each loop nest."""
    return sum(n.size + LOOP for n in nodes)


# ---- inlining: recompute instead of store ----------------------------------------------------------------------------

MOST = 1024  # operations of a kernel: compilers take more than twice as long for twice as many
LOOP = 8  # operations that take as long to compile as a loop and its accesses
SIBLINGS = 16  # kernels that read the same input, and that an operation might join
CHEAP = 4  # operations that cost less than a load and a store of their result


def _inline(graph: Graph, target: Target, remarks: list[Remark]) -> None:
    epilogues: dict[Node, Node] = {}  # what stays an operation of its own behind a contraction, and that
    for node in graph.nodes:
        if not node.elementwise or graph.is_returned(node) or "tilec.stored" in node.op.attributes:
            continue
        consumers = graph.consumers(node)
        if not consumers:
            continue
        why = refuse_inline(node.op)
        operations = node.flops + 15 * node.special
        repeats = sum(
            max(1, reads_per_element(node.results[0].value, c)) * max(1, c.iterations // max(1, node.iterations))
            for c in consumers
        )
        recomputed = _between_loop_groups(node, consumers, graph, target)
        cheap = target.fit(Recompute).operations if recomputed else CHEAP
        reads = len(node.reads)
        if not any(c.contraction is not None for c in consumers):  # a product's factor is read for each row or column
            reads = sum(prod(node.extents[d] for d in {*r.dims}) == node.iterations for r in node.reads)
        if why is None and repeats > 1 and (operations > cheap or reads + len(node.extracts) > 2):
            why = f"inlining would compute its {operations:.0f} operations {repeats} times for each element"
        if why is None and len(node.extracts) and repeats > 1:
            why = "inlining would evaluate its computed subscripts more than once"
        if why is None and node.has_checks and (reader := next((c for c in consumers if sorts_keys(c, target)), None)):
            why = f"{reader.name} does not look at all elements, which are checked"
        if why is None and target.kind == "cuda" and (reader := chain_factor_of(node, graph)):
            why = f"the contraction chain of {reader.name} multiplies tiles that are loaded, and not computed"
        if why is None and (maker := _contraction_before(node, graph, epilogues)):
            why = f"it is the epilogue of {maker.name}, and takes no more bytes to store than {maker.name}"
            epilogues[node] = maker
        size = max(reads_per_element(node.results[0].value, c) * node.size + c.size for c in consumers)
        if why is None and size + LOOP > MOST:
            why = f"one kernel of {size} operations would take long to compile"
        if why is not None:
            remarks.append(Remark("not inlined", node.name, why, node.line))
            continue
        graph.inline(node, consumers)
        where = ", ".join(c.name for c in consumers)
        remarks.append(
            Remark(
                "inlined",
                f"{node.name} into {where}",
                f"computing its {count(round(operations), 'operation')} again takes less time than a store and a load",
                node.line,
            )
        )


def _between_loop_groups(node: Node, consumers: list[Node], graph: Graph, target: Target) -> bool:
    """Whether two passes of a GPU kernel should each compute the node, instead of keeping it between the passes.

    The exponential of a softmax is such a node: it reads a complete reduction, is reduced itself, and is read again. Its inputs
    stay on chip in their stored type: in registers, if rows take a share of them that lets several blocks fit an SM; or in shared
    memory, for unaligned rows of 16-bit elements.
    """
    made = [p for p in graph.producers(node) if p.reduced and p.contraction is None]
    inputs = [r.value for r in node.reads if len(r.dims) == len(node.extents)]
    if target.sm is None or not made or not inputs or any(v in graph.producer for v in inputs):
        return False
    length = max(prod(p.extents[d] for d in p.reduced) for p in made)
    row = length * sum(bytes_of(v) for v in inputs) // max(1, node.iterations)
    if any(c.contraction for c in consumers) or not any(c.reduced for c in consumers):
        return False
    fit = target.fit(Recompute)
    fits = fit.least < row / (4 * target.sm.registers) < fit.most
    return not fits or (row % WIDE > 0 and all(ir.ShapedType(v.type).element_type.width == 16 for v in inputs))


def _contraction_before(node: Node, graph: Graph, epilogues: Mapping[Node, Node]) -> Node | None:
    """The contraction whose epilogue this operation is, if the result of the operation is no larger than the contraction's. What
    goes into a contraction of its own may stand behind other operations of an epilogue: each tile of a factor that is computed
    would be computed by several blocks."""
    (result,) = node.results
    for producer in graph.producers(node):
        maker = producer if producer.contraction is not None else epilogues.get(producer)
        if maker is None or graph.consumers(producer) != (node,):
            continue
        if maker is not producer and not any(c.contraction for c in graph.consumers(node)):
            continue
        (made,) = maker.results
        if len(made.dims) == len(node.extents) and bytes_of(result.value) <= bytes_of(made.value):
            return maker
    return None
