"""Which operations share a kernel: legality with reasons, and profit by predicted time.

A kernel's operations walk one space of *kernel dimensions*: dimensions of different operations are the same one where an
intermediate tensor connects them. The *grid* is made of the dimensions that are parallel in every operation: one block
computes all operations for its part of the grid, so nothing that one block makes is needed by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilec.amounts import bytes_of, is_chain, kept_bytes, onchip_bytes, work_of
from tilec.cost import predict
from tilec.graph import Graph, Node, Read
from tilec.mlir import ir
from tilec.space import Space, space_of
from tilec.target import Target


@dataclass(frozen=True)
class Remark:
    """One decision or refusal: `verb` is "fused", "refused", "inlined", "kept", "tiled", ...; `line` its source position."""

    verb: str
    subject: str
    reason: str
    line: tuple[str, int] | None = None
    alternatives: tuple[tuple[str, float], ...] = ()  # what else was weighed, with its predicted microseconds

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}: {self.reason}"


@dataclass
class Group:
    """Operations that become one kernel."""

    nodes: list[Node]
    space: Space
    recompute: set[Node] = field(default_factory=set)


def group(graph: Graph, target: Target) -> tuple[list[Group], list[Remark]]:
    """Inlines cheap producers (marks nodes `inlined`), then joins kernels along the program's edges as long as time falls."""
    remarks: list[Remark] = []
    _inline(graph, target, remarks)
    member: dict[Node, Group] = {}
    for node in graph.nodes:
        if node.inlined:
            continue
        member[node] = Group([node], space_of([node], graph))
        for other in _neighbours(node, graph, member):
            mine, theirs = member[node], member[other]
            if mine is theirs:
                continue
            nodes = [n for n in graph.nodes if n in (*mine.nodes, *theirs.nodes)]
            outcome = refuse(nodes, graph, member, target)
            if isinstance(outcome, str):
                remarks.append(Remark("refused", f"{other.name} with {node.name}", outcome, node.line))
                continue
            together = predict(work_of(nodes, graph, outcome, target), target)
            apart = [predict(work_of(g.nodes, graph, g.space, target), target) for g in (theirs, mine)]
            separate = sum(p.time_us for p in apart)
            alternatives = (("one kernel", together.time_us), ("two kernels", separate))
            if together.time_us > separate:
                reason = f"one kernel would take {together.time_us:.1f} us, two take {separate:.1f} us"
                remarks.append(Remark("refused", f"{other.name} with {node.name}", reason, node.line, alternatives))
                continue
            reason = f"{together.time_us:.1f} us as one kernel, {separate:.1f} us as two"
            remarks.append(Remark("fused", f"{other.name} with {node.name}", reason, node.line, alternatives))
            joined = Group(nodes, outcome)
            for n in nodes:
                member[n] = joined
    if target.kind == "cuda":
        from tilec.stream_grouping import join_streams

        join_streams(graph, member, target, remarks)
    return ordered(graph, member), remarks


def _neighbours(node: Node, graph: Graph, member: dict[Node, Group]) -> list[Node]:
    """The nodes that `node` might share a kernel with: its producers, then earlier readers of the same inputs."""
    near = [p for p in reversed(graph.producers(node)) if p in member]
    mine = {r.value for r in node.reads if r.value not in graph.producer}
    siblings = [n for n in member if n is not node and any(r.value in mine for r in n.reads)]
    return list(dict.fromkeys(near + siblings))


def ordered(graph: Graph, member: dict[Node, Group]) -> list[Group]:
    """Groups such that each comes after those it reads from."""
    pending = list({id(g): g for n in graph.nodes if (g := member.get(n))}.values())
    done: set[Node] = set()
    result: list[Group] = []
    while pending:
        ready = next(g for g in pending if all(p in done or p in g.nodes for n in g.nodes for p in graph.producers(n)))
        pending.remove(ready)
        result.append(ready)
        done |= set(ready.nodes)
    return result


# ---- inlining: recompute instead of store ----------------------------------------------------------------------------

CHEAP = 4  # operations that cost less than a load and a store of their result
ACCESS = 16  # bytes of a GPU's widest access
AGAIN = 20  # that a GPU computes twice rather than keep their result from sweep to sweep: one function and a few more


def _inline(graph: Graph, target: Target, remarks: list[Remark]) -> None:
    from tilec.passes.merge import refuse_inline

    for node in graph.nodes:
        if not node.elementwise or graph.is_returned(node) or "tilec.packed" in node.op.attributes:
            continue
        consumers = graph.consumers(node)
        if not consumers:
            continue
        why = next((w for c in consumers if (w := refuse_inline(node.op, c.op))), None)
        operations = node.flops + 15 * node.special
        repeats = sum(max(1, c.iterations // max(1, node.iterations)) for c in consumers)
        cheap = AGAIN if _between_sweeps(node, consumers, graph, target) else CHEAP
        if why is None and repeats > 1 and (operations > cheap or len(node.reads) + len(node.extracts) > 2):
            why = f"{operations:.0f} operations would be computed {repeats} times"
        if why is None and len(node.extracts) and repeats > 1:
            why = "its computed subscripts would be evaluated more than once"
        if why is None and (maker := _finished(node, graph)):
            why = f"it finishes the elements of {maker.name}, of which it stores no more bytes"
        if why is not None:
            remarks.append(Remark("kept", node.name, why, node.line))
            continue
        for consumer in consumers:
            inline_into(node, consumer)
        node.inlined = True
        where = ", ".join(c.name for c in consumers)
        remarks.append(
            Remark(
                "inlined",
                f"{node.name} into {where}",
                f"{operations:.0f} operation{'s' * (round(operations) != 1)}, no store, no load",
                node.line,
            )
        )


def _between_sweeps(node: Node, consumers: list[Node], graph: Graph, target: Target) -> bool:
    """Whether it is better computed twice than kept between two sweeps of a GPU over its elements: an exponential of a
    softmax. It reads a complete reduction, is itself reduced and read again, and what it is made of is kept as it is
    stored: in registers, of rows that take an eighth of them, so that several blocks fill an SM, or in SRAM, of rows of 16-bit
    elements that begin anywhere in an access (measured, H200)."""
    made = [p for p in graph.producers(node) if p.reduced and p.contraction is None]
    inputs = [r.value for r in node.reads if len(r.dims) == len(node.extents)]
    if target.sm is None or not made or not inputs or any(v in graph.producer for v in inputs):
        return False
    length = max(prod(p.extents[d] for d in p.reduced) for p in made)
    row = length * sum(bytes_of(v) for v in inputs) // max(1, node.iterations)
    if any(c.contraction for c in consumers) or not any(c.reduced for c in consumers):
        return False
    fits = target.sm.registers * 4 // 8 < row < target.sm.registers * 4 // 2
    return not fits or (row % ACCESS > 0 and all(ir.ShapedType(v.type).element_type.width == 16 for v in inputs))


def _finished(node: Node, graph: Graph) -> Node | None:
    """The contraction of which an operation is the last step: what it stores instead is no larger, and read as often."""
    (result,) = node.results
    for producer in graph.producers(node):
        if producer.contraction is None or graph.consumers(producer) != [node]:
            continue
        (made,) = producer.results
        if len(made.dims) == len(node.extents) and bytes_of(result.value) <= bytes_of(made.value):
            return producer
    return None


def inline_into(node: Node, consumer: Node) -> None:
    (result,) = node.results
    reads = []
    for read in consumer.reads:
        if read.value != result.value:
            reads.append(read)
            continue
        place = dict(zip(result.dims, read.dims))
        reads += [Read(r.value, tuple(place[d] for d in r.dims)) for r in node.reads]
    consumer.reads = list(dict.fromkeys(reads))
    consumer.extracts = consumer.extracts + node.extracts
    consumer.flops += node.flops
    consumer.special += node.special
    # what is the same for many elements is computed once for them: compilers move it out of the innermost loop
    consumer.instructions += node.instructions * min(1.0, node.iterations / max(1, consumer.iterations))


# ---- legality --------------------------------------------------------------------------------------------------------


def refuse(nodes: list[Node], graph: Graph, member: dict[Node, Group], target: Target) -> Space | str:
    """The kernel space of `nodes` as one kernel, or why they cannot be one."""
    made = {r.value for n in nodes for r in n.results}
    for node in nodes:
        if any(p.part and p in nodes for p in graph.producers(node)):
            return "the reduction was split so that many blocks share it; its parts are combined afterwards"
        for value in node.extracts:
            if value in made:
                return f"{node.name} reads it at computed subscripts: other blocks' parts must be in memory first"
    if cycle := _between(nodes, graph, member):
        return f"{cycle.name} runs between them in another kernel"
    space = space_of(nodes, graph)
    if isinstance(space, str):
        return space
    if sum(n.contraction is not None for n in nodes):
        return _refuse_contraction(nodes, space, graph, target)
    if target.kind == "cuda" and is_chain(nodes, space):  # of as many blocks as it takes
        return space
    if not space.grid and sum(n.iterations for n in nodes) > 1 << 14:
        return "no dimension is parallel in both: one block would do all the work"
    kept = kept_bytes(nodes, graph, space)
    limit = onchip_bytes(target, nodes, space)
    if kept > limit:
        return f"intermediates of {kept} bytes for one point of the grid do not fit {limit} bytes on chip"
    return space


def _refuse_contraction(nodes: list[Node], space: Space, graph: Graph, target: Target) -> Space | str:
    contractions = [n for n in nodes if n.contraction is not None]
    if len(contractions) == 2 and target.kind == "cuda" and _connected(nodes, graph):
        from tilec.stream_grouping import refuse_stream

        return refuse_stream(nodes, space, graph, target) or space
    if len(contractions) > 1:
        return "each is a contraction: the tile of one's result is not the tile that the other reads"
    (contraction,) = contractions
    parallel = {space.dims[contraction][d] for d in range(len(contraction.extents)) if d not in contraction.reduced}
    for node in nodes:
        if node is contraction:
            continue
        if node.reduced:
            return f"{node.name} reduces over what the contraction {contraction.name} spreads over blocks"
        if set(space.dims[node]) != parallel:
            return f"{node.name} does not walk the same elements as the contraction {contraction.name}"
        if nodes.index(node) < nodes.index(contraction):
            return f"{node.name} is computed before the contraction {contraction.name}, and costs too much to repeat"
    return space


def _connected(nodes: list[Node], graph: Graph) -> bool:
    """Whether the last contraction is computed from the first."""
    last = [n for n in nodes if n.contraction is not None][-1]
    found, pending = set(), [last]
    while pending:
        near = [p for p in graph.producers(pending.pop()) if p in nodes and p not in found]
        found |= set(near)
        pending += near
    return sum(n.contraction is not None for n in found) == 1


def _between(nodes: list[Node], graph: Graph, member: dict[Node, Group]) -> Node | None:
    """A node of another kernel that would have to run both after a part of this one and before another part.

    A kernel runs as a whole, so what holds for one of its nodes holds for all.
    """
    inside = set(nodes)
    late: set[Node] = set()
    grown = True
    while grown:
        found = {n for n in graph.nodes if not n.inlined and n not in inside and n not in late}
        found = {n for n in found if any(p in inside or p in late for p in graph.producers(n))}
        found |= {m for n in found if n in member for m in member[n].nodes if m not in inside}
        grown = bool(found - late)
        late |= found
    return next((p for n in nodes for p in graph.producers(n) if p in late), None)
