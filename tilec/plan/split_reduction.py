"""Split reductions: which reductions are split into parts, so that enough blocks have work (few or long rows)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, isqrt, prod

from tilec.analysis.graph import Graph, Node
from tilec.analysis.siblings import are_siblings
from tilec.analysis.space import space_of
from tilec.analysis.traffic import onchip_bytes, work_of
from tilec.core import mlir
from tilec.core.fitted import WarpgroupTimes
from tilec.core.mlir import ir
from tilec.core.quantities import count, duration
from tilec.core.target import Target
from tilec.cost.model import Work, predict
from tilec.passes.tensor.split import distance_of, refuse_split, split
from tilec.plan.chain import is_contraction_chain
from tilec.plan.groups import Group, Remark
from tilec.plan.model import Plan
from tilec.plan.online import online_of
from tilec.plan.prepack import packed_us
from tilec.plan.rewrite import Compared, Found
from tilec.plan.steps import Applied, Split, Step

MIN_PART = 1 << 14  # elements: less work is not worth a block and its share of the second pass

STEP = 64  # elements of k that a part has a multiple of

LONGEST = 1 << 14  # products of a part that are added one after another, where more parts take as long: the sum loses fewer digits
EQUAL = 1.02  # of a time that is as long

SAVING = 0.9  # of its time, that a contraction in parts, or a kernel of several reductions, may take
COMPARED = 2.0  # the same of several reductions where plans are compared: a block alone on an SM may take longer than its traffic


def find(groups: list[Group], graph: Graph, target: Target, inlined: Callable[[], ir.Operation]) -> Found:
    """Splits of the long reductions of kernels that have too few blocks to fill the machine. On a GPU the parts take a second
    kernel, and often a second look at the data: there the plans are compared. `inlined` makes the program that is split."""
    steps, remarks = [], []
    for g in groups:
        node, splits, reason = _of_kernel(g, graph, target)
        steps += [Applied("split", s, reason, node.line) for s in splits]
        if reason:
            verb, subject = ("split", node.name) if splits else ("refused", f"to split {node.name}")
            remarks.append(Remark(verb, subject, reason, node.line))
    steps = _about_sums(steps, graph, inlined)
    if target.kind != "cuda" or not steps:
        return Found(tuple(steps), tuple(remarks))
    names = [a.step.operation for a in steps]
    refused = tuple(f"to split {name}" for name in names)
    return Found(tuple(steps), tuple(remarks), Compared("split", ", ".join(names), refused, "split", "unsplit", _weighed_us))


def _of_kernel(g: Group, graph: Graph, target: Target) -> tuple[Node, list[Split], str]:
    """The splits of a kernel's reductions, and their reason, or that against them, which names a node."""
    node = max(g.nodes, key=lambda n: n.iterations)
    if node.contraction is not None and node.reduced and node.scan is None:
        if target.kind != "cuda":
            return node, [], ""
        known = graph.memoise("parts", g.nodes, partial(_split_contraction, node, g, graph, target)).result
        return (node, [replace(known[0], operation=node.name)], known[1]) if known else (node, [], "")
    long = _long_reductions(g)
    if any(n.scan is not None for n in g.nodes) or not long or max(n.iterations for n in long) < 2 * MIN_PART:
        return node, [], ""
    if len(long) == 1 and any(p in g.nodes for p in graph.producers(long[0])):
        return node, [], ""
    decide = _split if len(long) == 1 else _split_all
    return long[0], *decide(long, g, graph, target)


def _weighed_us(plan: Plan) -> float:
    """Its time, where kernels whose blocks share steps have to be as much faster as the target says."""
    shared = [k.prediction.time_us for k in plan.kernels if getattr(k.options, "stream_k", 0)]
    return plan.time_us + (plan.target.fit(WarpgroupTimes).stream_k - 1) * sum(shared)


def _long_reductions(g: Group) -> list[Node]:
    """Those that sum over all that a block has, not over a window of each point: the longest first, no much shorter ones."""
    points = {n: prod(e for d, e in enumerate(n.extents) if d not in n.reduced) for n in g.nodes if n.reduced}
    whole = [n for n, count in points.items() if count <= g.space.parallelism]
    most = max((n.iterations for n in whole), default=0)
    return sorted((n for n in whole if n.iterations > most // 4), key=lambda n: -n.iterations)


def _split(long: list[Node], g: Group, graph: Graph, target: Target) -> tuple[list[Split], str]:
    """The split, if there are too few blocks, and its reason, or that against it."""
    (node,) = long
    found = _parts(node, g, target)
    if not isinstance(found, Split):
        return [], found or ""
    cost = predict(work_of(g.nodes, graph, g.space, target), target).time_us
    whole = f"unsplit, it has {count(g.space.parallelism, 'parallel point')} and takes {duration(cost)}"
    return [found], f"{found.parts} parts of {node.extents[found.dim] // found.parts} elements; {whole}"


def _split_all(long: list[Node], g: Group, graph: Graph, target: Target) -> tuple[list[Split], str]:
    """Splits of all long reductions of a kernel, such as the sums of a batch norm, whose data one of too few blocks reads again for
    each: if passes by many blocks take less time, although what was one kernel becomes several."""
    splits, separate_us, passes = list[Split](), 0.0, 0
    for at_once in _readings(long, g, graph):
        space = space_of(at_once, graph)
        assert not isinstance(space, str), space
        work = work_of(at_once, graph, space, target)
        parts = 1
        for n in at_once if at_once[0] in long else ():
            found = _parts(n, g, target) if n.contraction is None else None
            if not isinstance(found, Split):
                return [], found or ""
            splits.append(found)
            parts = max(parts, found.parts)
        passes += at_once[0] in long
        if parts > 1:
            combined = Work(dram_read=work.dram_write * parts, blocks=work.blocks)
            work = replace(work, blocks=parts * work.blocks, dram_write=work.dram_write * parts)
            separate_us += predict(combined, target).time_us
        separate_us += predict(work, target).time_us
    fused = work_of(g.nodes, graph, g.space, target)
    if fused.dram_read > onchip_bytes(target, g.nodes, g.space) * g.space.parallelism:  # what a block has read is gone
        fused = replace(fused, dram_read=fused.dram_read * passes)
    fused_us = predict(fused, target).time_us
    times = f"{duration(separate_us)} in parts, with a kernel for each reading, {duration(fused_us)} as one kernel"
    most = COMPARED if target.kind == "cuda" else SAVING
    return (splits, times) if separate_us < most * fused_us else ([], times)


def _readings(long: list[Node], g: Group, graph: Graph) -> list[list[Node]]:
    """A kernel's operations, each alone, but for long reductions of the same tensors that wait for the same others: these are
    computed while the tensors are read once."""
    before: dict[Node, set[Node]] = {}
    found: dict[object, list[Node]] = {}
    for n in g.nodes:
        producers = [p for p in graph.producers(n) if p in g.nodes]
        before[n] = {a for p in producers for a in ({p} if p in long else set()) | before.get(p, set())}
        read = (frozenset(mlir.inputs_of(n.op)), frozenset(before[n])) if n in long else n
        if isinstance(space_of([*found.get(read, []), n], graph), str):
            read = n
        found.setdefault(read, []).append(n)
    return list(found.values())


def _about_sums(steps: list[Applied], graph: Graph, inlined: Callable[[], ir.Operation]) -> list[Applied]:
    """The steps, where sums of distances from what another sum tells, or of their squares, have parts about those of that sum: no
    part waits for another, and one reading makes all."""
    nodes = {n.name: n for n in graph.nodes}
    found = {nodes[a.step.operation]: a for a in steps}
    about: dict[Node, Split] = {}
    for sums, applied in found.items():
        assert isinstance(applied.step, Split)
        if sums.contraction is None and sums not in about:
            about |= {n: s for n, s in _about(sums, applied.step, [*found], graph) if n not in about}
    if about:
        program = inlined()
        named = named_operations(program)
        about = {n: s for n, s in about.items() if distance_of(named[n.name], named[s.about].results[0])}
    return [replace(a, step=about.get(n, a.step)) for n, a in found.items()]


def _about(sums: Node, step: Split, split: list[Node], graph: Graph) -> Iterator[tuple[Node, Split]]:
    """The reductions that have parts about those of a sum, with their splits."""
    rows = {sums}  # what is computed of the sum for each of its points
    for n in graph.nodes:
        if n.elementwise and n.iterations * prod(sums.extents[d] for d in sums.reduced) <= sums.iterations:
            rows |= {n} if rows & {*graph.producers(n)} else set()
    after = [n for n in split if n.iterations == sums.iterations and n not in rows and rows & {*graph.producers(n)}]
    nodes = graph.in_order({*rows, *after})
    space = space_of(nodes, graph) if after else ""
    if isinstance(space, str) or len({frozenset(space.dims[n][d] for d in n.reduced) for n in (sums, *after)}) > 1:
        return
    online = online_of([sums, *after], Group(nodes, space), graph)
    named = {c.total.number: c.total.name for c in online.carried if c.total.number >= 0} if online else {}
    by_name = {n.name: n for n in after}
    for c in online.carried if online else ():
        if c.total.name in by_name and c.about is not None and named[c.about] == sums.name:
            mine = by_name[c.total.name]
            dim = space.dims[mine].index(space.dims[sums][step.dim])
            rest = named.get(c.rest or 0, "") if c.rest != c.total.number else ""
            yield mine, Split(mine.name, dim, step.parts, sums.name, rest)


def _parts(node: Node, g: Group, target: Target) -> Split | str | None:
    """The split, why there is none, or None where there are blocks enough."""
    blocks = (4 if target.kind == "cpu" else 8) * target.units
    points = max(1, g.space.parallelism)
    if target.kind == "cuda" and not _rows(node):
        points = ceil(points / 256)  # down columns a block takes as many as it has threads and more
    want = min(ceil(blocks / points), node.iterations // points // MIN_PART)
    if want < 2:
        return None
    best = max(((_divisor(node.extents[d], want), -d) for d in node.reduced), key=lambda c: c[0])
    parts, dim = best[0], -best[1]
    if parts < 2:
        return f"none of the reduced extents {[node.extents[d] for d in sorted(node.reduced)]} has a divisor from 2 to {want}"
    return refuse_split(node.op, dim, parts) or Split(node.name, dim, parts)


def _split_contraction(node: Node, g: Group, graph: Graph, target: Target) -> tuple[Split, str] | None:
    """Parts of k, where C has too few tiles to fill the machine and the parts can be added in less than they save."""
    from tilec.plan.cuda.contraction import tiles_of

    if is_contraction_chain(g.nodes) or are_siblings(g.nodes):
        return None
    if 0 in node.extents or 4 * (points := g.space.parallelism) > 128 * 128 * 4 * target.units:
        return None
    assert node.contraction is not None
    now = tiles_of(node, g, graph, target)
    if not now.choices:
        return None
    before, packed = now.choices[0].prediction.time_us, packed_us(node, g, graph, target)
    best = before * (target.fit(WarpgroupTimes).stream_k if now.choices[0].tile.stream_k else SAVING)
    best, before = min(best, packed), min(before, packed)
    found, summed = None, prod(node.extents[d] for d in node.contraction.k)
    for parts in (2, 4, 8, 16, 32, 64, 128):
        dim = next((d for d in sorted(node.contraction.k) if not refuse_split(node.op, d, parts)), None)
        if dim is None or summed // parts % STEP:  # a step has some of each dimension that is summed
            continue
        combine = Work(
            dram_read=4 * parts * points, dram_write=4 * points, flops={}, threads=128, blocks=ceil(points / 512),
            working_set=4 * parts * points, overlaps=True,
        )  # fmt: skip
        added = predict(combine, target).time_us
        problem = {"k": now.problem.k // parts, "batch": now.problem.batch * parts, "out": "f32", "epilogue": {}}
        most = best * EQUAL if found is not None and summed // found.parts > LONGEST else best
        if added + now.least_us(target, **problem) >= most:
            continue  # whatever the tiles
        tiles = now.variant(target, **problem)
        time = tiles[0].prediction.time_us + added if tiles else most
        if time < most:
            best, found = min(best, time), Split(node.name, dim, parts)
    return (
        None
        if found is None
        else (found, f"split-K in {found.parts} parts: {duration(best)}, unsplit {duration(before)}")
    )


def _rows(node: Node) -> bool:
    """Whether memory is contiguous along the reduced dimension: one row is then work for a whole block."""
    longest = max(node.reads, key=lambda r: len(r.dims), default=None)
    return longest is None or not longest.dims or longest.dims[-1] in node.reduced


def _divisor(extent: int, limit: int) -> int:
    """The largest divisor up to `limit`."""
    small = {d for d in range(1, isqrt(extent) + 1) if extent % d == 0} if extent else {1}
    return max(d for d in small | {extent // d for d in small} if d <= limit)


def named_operations(function: ir.Operation) -> dict[str, ir.Operation]:
    return {mlir.get_string(op, "tilec.name") or "": op for op in mlir.traverse(function) if mlir.is_generic(op)}


def lacking(function: ir.Operation, steps: Sequence[Step]) -> str:
    """What steps need beside them: the split of the sum that their parts are about those of, and that of the distances."""
    parts = {s.operation: s.parts for s in steps if isinstance(s, Split)}
    for s in steps:
        assert isinstance(s, Split)
        for name in filter(None, (s.about, s.rest)):
            if parts.get(name) != s.parts:
                return f"the parts of `{s.operation}` are about those of `{name}`, which has to be in {s.parts} parts, too"
    return ""


def apply_splits(function: ir.Operation, splits: Sequence[Step]) -> None:
    """Sums first that others are about, and squares after the distances themselves."""
    named, steps = named_operations(function), [s for s in splits if isinstance(s, Split)]
    for s in sorted(steps, key=lambda s: (bool(s.about), bool(s.rest))):
        named[s.operation] = split(named[s.operation], s.dim, s.parts, named.get(s.about), named.get(s.rest))
