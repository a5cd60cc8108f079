"""Which operations share a kernel: legality with reasons, and profit by predicted time.

A kernel's operations walk one space of *kernel dimensions*: dimensions of different operations are the same one where an
intermediate tensor connects them. The *grid* is made of the dimensions that are parallel in every operation: one block
computes all operations for its part of the grid, so nothing that one block makes is needed by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilec.cost import Work, predict
from tilec.graph import Graph, Node, Read
from tilec.mlir import ir
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
class Space:
    """The kernel dimensions of a set of nodes: `dims[node][d]` is the kernel dimension of the node's dimension d."""

    nodes: list[Node]
    dims: dict[Node, tuple[int, ...]]
    extents: dict[int, int]
    grid: tuple[int, ...]

    @property
    def parallelism(self) -> int:
        return prod(self.extents[d] for d in self.grid)


@dataclass
class Group:
    """Operations that become one kernel."""

    nodes: list[Node]
    space: Space
    recompute: set[Node] = field(default_factory=set)


def group(graph: Graph, target: Target) -> tuple[list[Group], list[Remark]]:
    """Inlines cheap producers (marks nodes `inlined`), then joins kernels along the program's edges as long as time falls."""
    remarks: list[Remark] = []
    _inline(graph, remarks)
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


def _inline(graph: Graph, remarks: list[Remark]) -> None:
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
        if why is None and repeats > 1 and (operations > CHEAP or len(node.reads) + len(node.extracts) > 2):
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
            Remark("inlined", f"{node.name} into {where}", f"{operations:.0f} operations, no store, no load", node.line)
        )


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
    consumer.instructions += node.instructions


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


def space_of(nodes: list[Node], graph: Graph) -> Space | str:
    """Unites the nodes' dimensions through the tensors between them; a text where two roles of one node collide."""
    parent: dict[tuple[Node, int], tuple[Node, int]] = {(n, d): (n, d) for n in nodes for d in range(len(n.extents))}

    def find(key):
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    inside = set(nodes)
    for node in nodes:
        for read in node.reads:
            producer = graph.producer.get(read.value)
            if producer not in inside or producer is node:
                continue
            result = next(r for r in producer.results if r.value == read.value)
            for mine, theirs in zip(read.dims, result.dims):
                parent[find((node, mine))] = find((producer, theirs))
    if clash := _clash(nodes, find):
        return clash
    _unite_shared_inputs(nodes, graph, parent, find)
    numbers: dict[tuple[Node, int], int] = {}
    for node in nodes:
        for d in range(len(node.extents)):
            numbers.setdefault(find((node, d)), len(numbers))
    dims = {n: tuple(numbers[find((n, d))] for d in range(len(n.extents))) for n in nodes}
    extents = {dims[n][d]: n.extents[d] for n in nodes for d in range(len(n.extents))}
    reduced = {dims[n][d] for n in nodes for d in n.reduced}
    grid = [k for k in extents if k not in reduced and all(k in dims[n] for n in nodes)]
    return Space(list(nodes), dims, extents, tuple(grid))


def _clash(nodes: list[Node], find) -> str | None:
    for node in nodes:
        roots = [find((node, d)) for d in range(len(node.extents))]
        if len(set(roots)) < len(roots):
            return f"{node.name} reads one element at places that other blocks compute"
    return None


def _unite_shared_inputs(nodes: list[Node], graph: Graph, parent, find) -> None:
    """Two operations that read one input in the same places walk it together, where that makes no clash."""
    seen: dict[ir.Value, tuple[Node, tuple[int, ...]]] = {}
    inside = set(nodes)
    for node in nodes:
        for read in node.reads:
            if graph.producer.get(read.value) in inside:
                continue
            if read.value not in seen:
                seen[read.value] = (node, read.dims)
                continue
            other, dims = seen[read.value]
            if other is node:
                continue
            before = dict(parent)
            for mine, theirs in zip(read.dims, dims):
                parent[find((node, mine))] = find((other, theirs))
            if _clash(nodes, find) or _extent_clash(nodes, find):
                parent.clear()
                parent.update(before)


def _extent_clash(nodes: list[Node], find) -> bool:
    sizes: dict = {}
    return any(
        sizes.setdefault(find((n, d)), n.extents[d]) != n.extents[d] for n in nodes for d in range(len(n.extents))
    )


# ---- what a kernel costs ---------------------------------------------------------------------------------------------


def bytes_of(value: ir.Value) -> int:
    shaped = ir.ShapedType(value.type)
    return prod(shaped.shape) * element_bytes(shaped.element_type)


def element_bytes(element: ir.Type) -> int:
    return 8 if isinstance(element, ir.IndexType) else max(1, element.width // 8)


def outputs_of(nodes: list[Node], graph: Graph) -> list[ir.Value]:
    """Results that leave the kernel: returned, or read by another."""
    inside = set(nodes)
    found = []
    for node in nodes:
        for result in node.results:
            readers = [
                n for n in graph.nodes
                if not n.inlined
                and n not in inside
                and (result.value in n.extracts or any(r.value == result.value for r in n.reads))
            ]  # fmt: skip
            if readers or result.value in graph.returned:
                found.append(result.value)
    return found


def inputs_of(nodes: list[Node]) -> list[ir.Value]:
    made = {r.value for n in nodes for r in n.results}
    values = [v for n in nodes for v in ([r.value for r in n.reads] + n.extracts)]
    return [v for v in dict.fromkeys(values) if v not in made]


def kept_values(nodes: list[Node], graph: Graph) -> list[tuple[Node, ir.Value]]:
    """Intermediates that stay in the kernel: made and read in it, and not written out."""
    out = set(outputs_of(nodes, graph))
    read = {r.value for n in nodes for r in n.reads}
    return [(n, r.value) for n in nodes for r in n.results if r.value in read and r.value not in out]


def kept_bytes(nodes: list[Node], graph: Graph, space: Space) -> int:
    """Bytes of the kernel's intermediates for one point of the grid."""
    total = 0
    for node, value in kept_values(nodes, graph):
        result = next(r for r in node.results if r.value == value)
        inner = prod(node.extents[d] for d in result.dims if space.dims[node][d] not in space.grid)
        total += inner * element_bytes(ir.ShapedType(value.type).element_type)
    return total


CLUSTER = 16  # blocks at most


def onchip_bytes(target: Target, nodes: list[Node], space: Space) -> int:
    """What blocks that work together may keep: most of an SM's shared memory, or half of its registers where a cluster
    of SMs shares a row; half of a core's L2 cache."""
    if target.kind != "cuda":
        return target.l2.bytes // 2
    clusters = CLUSTER * 2 * target.sm.registers if target.has("clusters") and _rows(nodes, space) else 0
    return max(target.sm.shared_per_block, clusters)


def _rows(nodes: list[Node], space: Space) -> bool:
    """Whether one dimension is walked inside a block, and memory runs along it."""
    inner = {d for d, e in space.extents.items() if d not in space.grid and e > 1}
    accesses = [[space.dims[n][d] for d in r.dims] for n in nodes for r in (*n.reads, *n.results)]
    ends = {places[-1] for places in accesses if inner & set(places)}
    return len(inner) == 1 and ends == inner and not any(n.scan is not None for n in nodes)


OVERHEAD = 3  # instructions an element for addresses, loads and stores of vectors


def work_of(nodes: list[Node], graph: Graph, space: Space, target: Target) -> Work:
    """The amounts of a kernel, before its tiles are chosen: every input read once, every output written once."""
    reads, writes = sum(map(bytes_of, inputs_of(nodes))), sum(map(bytes_of, outputs_of(nodes, graph)))
    flops: dict[str, float] = {}
    points = target.kind == "cuda" and all(n.elementwise for n in nodes)
    for node in nodes:
        unit = _unit(node, target)
        if points and unit == "fma.f32":  # each instruction takes the place of an FMA
            instructions = node.instructions + OVERHEAD / len(nodes)
            flops[unit] = flops.get(unit, 0) + 2 * node.iterations * instructions
            continue
        flops[unit] = flops.get(unit, 0) + node.iterations * node.flops
        flops["special"] = flops.get("special", 0) + node.iterations * node.special
    kept = kept_bytes(nodes, graph, space)
    cooperate = prod(e for k, e in space.extents.items() if k not in space.grid)
    if target.kind == "cuda":
        threads = max(32, min(256, cooperate))
        blocks = max(1, space.parallelism * min(cooperate, threads) // threads)
        return Work(
            dram_read=reads,
            dram_write=writes,
            flops=flops,
            blocks=blocks,
            threads=threads,
            shared_per_block=min(kept, target.sm.shared_per_block),
        )
    work = max(1, sum(n.iterations for n in nodes))
    blocks = max(1, min(space.parallelism, work // 16384))
    return Work(dram_read=reads, dram_write=writes, flops=flops, blocks=blocks, threads=1, working_set=reads + writes)


def _unit(node: Node, target: Target) -> str:
    element = ir.ShapedType(node.results[0].value.type).element_type
    wide = isinstance(element, ir.F64Type)
    if node.contraction is not None and target.kind == "cuda":
        from tilec.matrix import multiplicand_of

        name = multiplicand_of(node)
        if name in ("bf16", "f16", "tf32", "f8", "i8"):
            return f"tensor.{name}"
        if node.contraction.integer:
            return "int"
    return "fma.f64" if wide else "fma.f32"
