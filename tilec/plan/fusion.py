"""Fusion: which operations share a kernel, with the reason of every refusal, and the predicted time of every choice.

All operations of a kernel share one space of *kernel dimensions*: dimensions of different operations are the same where
an intermediate tensor connects them. The *grid* consists of the dimensions that are parallel in every operation. A block
computes all operations for its part of the grid, so that no block needs the results of another.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod

from tilec.analysis.graph import Graph, Node, places_of
from tilec.analysis.space import Space, space_of
from tilec.analysis.traffic import bytes_of, is_chain, kept_bytes, onchip_bytes, work_of
from tilec.core.fitted import Recompute
from tilec.core.hardware import WIDE
from tilec.core.mlir import ir
from tilec.core.quantities import count, duration
from tilec.core.target import Target
from tilec.cost.model import predict


@dataclass(frozen=True)
class Remark:
    """A decision or a refusal. `verb` is "fused", "refused", "inlined", "tiled", ...; `line` is the source position."""

    verb: str
    subject: str
    reason: str
    line: tuple[str, int] | None = None
    alternatives: tuple[tuple[str, float], ...] = ()  # what else was weighed, with its predicted microseconds
    weighed: str = ""  # how these times were found, where not as the kernel's own

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}: {self.reason}"


@dataclass
class Group:
    """Operations that become one kernel."""

    nodes: list[Node]
    space: Space
    full: bool = False  # no reader of its inputs is to join it any more
    _time_us: float | None = None

    def time_us(self, graph: Graph, target: Target) -> float:
        """Predicted, before its tiles are chosen."""
        if self._time_us is None:
            self._time_us = predict(work_of(self.nodes, graph, self.space, target), target).time_us
        return self._time_us


def group(graph: Graph, target: Target) -> tuple[list[Group], list[Remark]]:
    """Inlines cheap producers (marks nodes `inlined`), then joins kernels along the program's edges as long as time falls."""
    remarks: list[Remark] = []
    _inline(graph, target, remarks)
    member: dict[Node, Group] = {}
    near = _Neighbours(graph, member)
    for node in graph.nodes:
        if node.inlined:
            continue
        member[node] = Group([node], space_of([node], graph))
        for other in near.of(node):
            mine, theirs = member[node], member[other]
            if mine is theirs:
                continue
            if (size := size_of(mine.nodes) + size_of(theirs.nodes)) > MOST:
                theirs.full = size_of(theirs.nodes) > MOST // 2
                reason = f"one kernel of {size} operations would take long to compile"
                remarks.append(Remark("refused", f"{other.name} with {node.name}", reason, node.line))
                continue
            nodes = graph.in_order((*mine.nodes, *theirs.nodes))
            outcome = refuse(nodes, graph, member, target)
            if isinstance(outcome, str):
                remarks.append(Remark("refused", f"{other.name} with {node.name}", outcome, node.line))
                continue
            joined = Group(nodes, outcome)
            together = joined.time_us(graph, target)
            separate = sum(g.time_us(graph, target) for g in (theirs, mine))
            alternatives = (("one kernel", together), ("two kernels", separate))
            if together > separate:
                reason = f"one kernel would take {duration(together)}, two take {duration(separate)}"
                remarks.append(Remark("refused", f"{other.name} with {node.name}", reason, node.line, alternatives))
                continue
            reason = f"{duration(together)} as one kernel, {duration(separate)} as two"
            remarks.append(Remark("fused", f"{other.name} with {node.name}", reason, node.line, alternatives))
            for n in nodes:
                member[n] = joined
    if target.kind == "cuda":
        from tilec.plan.chain_fusion import join_streams

        join_streams(graph, member, target, remarks)
    return ordered(graph, member), _standing(remarks, member)


def _standing(remarks: list[Remark], member: dict[Node, Group]) -> list[Remark]:
    """The remarks without refusals that a later decision overrides, such as a contraction chain."""
    home = {n.name: id(g) for n, g in member.items()}
    found = []
    for remark in remarks:
        first, _, second = remark.subject.partition(" with ")
        if remark.verb != "refused" or first not in home or home[first] != home.get(second):
            found.append(remark)
    return found


class _Neighbours:
    """Candidates for sharing a kernel with an operation: its producers, then earlier readers of its inputs, one of each kernel."""

    def __init__(self, graph: Graph, member: dict[Node, Group]):
        self.graph, self.member = graph, member
        self.readers: dict[ir.Value, list[Node]] = {}

    def of(self, node: Node) -> list[Node]:
        near = [p for p in reversed(self.graph.producers(node)) if p in self.member]
        siblings: list[Node] = []
        for value in {r.value: None for r in node.reads if r.value not in self.graph.producer}:
            kernels = {id(self.member[n]): n for n in reversed(self.readers.get(value, [])) if not self.member[n].full}
            latest = self.graph.in_order(kernels.values())[-SIBLINGS:]
            siblings += latest
            self.readers[value] = [*latest, node]
        return list(dict.fromkeys(near + self.graph.in_order(set(siblings))))


def ordered(graph: Graph, member: dict[Node, Group]) -> list[Group]:
    """The groups in an order in which each comes after the groups that it reads from; of several possible next groups the
    first one. Raises ValueError if groups read from each other."""
    groups = list({id(g): g for n in graph.nodes if (g := member.get(n))}.values())
    number = {n: k for k, g in enumerate(groups) for n in g.nodes}
    needs = [
        {number[p] for n in g.nodes for p in graph.producers(n) if p in number} - {k} for k, g in enumerate(groups)
    ]
    return [groups[k] for k in topological(needs)]


def topological(needs: Sequence[Set[int]]) -> list[int]:
    """Numbers in an order in which each comes after those that it needs, the smallest possible first. Raises ValueError for
    a cycle."""
    missing = [len(n) for n in needs]
    needed_by: list[list[int]] = [[] for _ in needs]
    for k, before in enumerate(needs):
        for other in before:
            needed_by[other].append(k)
    ready = [k for k, count in enumerate(missing) if not count]
    found = []
    while ready:
        found.append(heappop(ready))
        for k in needed_by[found[-1]]:
            missing[k] -= 1
            if not missing[k]:
                heappush(ready, k)
    if len(found) < len(needs):
        raise ValueError("a cycle")
    return found


def size_of(nodes: list[Node]) -> int:
    """The compile effort of the nodes as one kernel: their operations, and `LOOP` for each loop nest."""
    return sum(n.size + LOOP for n in nodes)


# ---- inlining: recompute instead of store ----------------------------------------------------------------------------

MOST = 1024  # operations of a kernel: compilers take more than twice as long for twice as many
LOOP = 8  # operations that take as long to compile as a loop and its accesses
SIBLINGS = 16  # kernels that read the same input, and that an operation might join
CHEAP = 4  # operations that cost less than a load and a store of their result


def _inline(graph: Graph, target: Target, remarks: list[Remark]) -> None:
    from tilec.passes.tensor.inline import refuse_inline

    for node in graph.nodes:
        if not node.elementwise or graph.is_returned(node) or "tilec.stored" in node.op.attributes:
            continue
        consumers = graph.consumers(node)
        if not consumers:
            continue
        why = refuse_inline(node.op)
        operations = node.flops + 15 * node.special
        repeats = sum(
            max(1, places_of(node.results[0].value, c)) * max(1, c.iterations // max(1, node.iterations))
            for c in consumers
        )
        again = _between_sweeps(node, consumers, graph, target)
        cheap = target.fit(Recompute).operations if again else CHEAP
        if why is None and repeats > 1 and (operations > cheap or len(node.reads) + len(node.extracts) > 2):
            why = f"inlining would compute its {operations:.0f} operations {repeats} times for each element"
        if why is None and len(node.extracts) and repeats > 1:
            why = "inlining would evaluate its computed subscripts more than once"
        if why is None and (maker := _finished(node, graph)):
            why = f"it is the epilogue of {maker.name}, and takes no more bytes to store than {maker.name}"
        size = max(places_of(node.results[0].value, c) * node.size + c.size for c in consumers)
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


def _between_sweeps(node: Node, consumers: list[Node], graph: Graph, target: Target) -> bool:
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


def _finished(node: Node, graph: Graph) -> Node | None:
    """The contraction whose epilogue this operation is, if the result of the operation is no larger than the contraction's."""
    (result,) = node.results
    for producer in graph.producers(node):
        if producer.contraction is None or graph.consumers(producer) != [node]:
            continue
        (made,) = producer.results
        if len(made.dims) == len(node.extents) and bytes_of(result.value) <= bytes_of(made.value):
            return producer
    return None


# ---- legality --------------------------------------------------------------------------------------------------------


def refuse(nodes: list[Node], graph: Graph, member: dict[Node, Group], target: Target) -> Space | str:
    """The kernel space of `nodes` as one kernel, or why they cannot be one."""
    made, inside = {r.value for n in nodes for r in n.results}, set(nodes)
    for node in nodes:
        if any(p.part and p in inside for p in graph.producers(node)):
            return "the reduction is split over many blocks, and a second kernel combines the parts"
        for value in node.extracts:
            if value in made:
                return f"{node.name} reads it at computed subscripts, so that all blocks must have stored their parts first"
    if cycle := _between(nodes, graph, member):
        return f"{cycle.name}, in another kernel, must run between them"
    space = space_of(nodes, graph)
    if isinstance(space, str):
        return space
    if sum(n.contraction is not None for n in nodes):
        return _refuse_contraction(nodes, space, graph, target)
    if target.kind == "cuda" and is_chain(nodes, space):  # of as many blocks as it takes
        return space
    if not space.grid and sum(n.iterations for n in nodes) > 1 << 14:
        return "no index is parallel in both, so that one block would do all the work"
    kept = kept_bytes(nodes, graph, space)
    limit = onchip_bytes(target, nodes, space)
    if kept > limit:
        return f"the intermediates of one point of the grid take {kept} bytes, and {limit} bytes fit on chip"
    return space


def _refuse_contraction(nodes: list[Node], space: Space, graph: Graph, target: Target) -> Space | str:
    contractions = [n for n in nodes if n.contraction is not None]
    if len(contractions) == 2 and target.kind == "cuda" and _connected(nodes, graph):
        from tilec.plan.chain_fusion import refuse_stream

        return refuse_stream(nodes, space, graph, target) or space
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
            return f"{node.name} comes before the contraction {contraction.name}, whose tiles would all compute it again"
    return space


def _connected(nodes: list[Node], graph: Graph) -> bool:
    """Whether the last contraction is computed from the first."""
    last = [n for n in nodes if n.contraction is not None][-1]
    inside, found, pending = set(nodes), set(), [last]
    while pending:
        near = [p for p in graph.producers(pending.pop()) if p in inside and p not in found]
        found |= set(near)
        pending += near
    return sum(n.contraction is not None for n in found) == 1


def _between(nodes: list[Node], graph: Graph, member: dict[Node, Group]) -> Node | None:
    """A node of another kernel that would have to run after one part of this kernel and before another part. A kernel runs
    as a whole, so that the order of one of its nodes is the order of all."""
    inside, late, pending = set(nodes), set(), list(nodes)
    last = max(graph.position[n] for n in nodes)
    while pending:
        for reader in graph.consumers(pending.pop()):
            if reader in inside or reader in late or (reader not in member and graph.position[reader] > last):
                continue  # nothing leads back from behind all of them, but a kernel
            more = [m for m in (member[reader].nodes if reader in member else [reader]) if m not in inside]
            late.update(more)
            pending += more
    return next((p for n in nodes for p in graph.producers(n) if p in late), None)
