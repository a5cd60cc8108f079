"""Split reductions: which reductions are split into parts, so that enough blocks have work (few or long rows)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import ceil, isqrt, prod

from tilec.analysis.graph import Graph, Node
from tilec.analysis.siblings import are_siblings
from tilec.analysis.space import space_of
from tilec.analysis.traffic import work_of
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
from tilec.plan.rewrite import Compared, Found
from tilec.plan.steps import Applied, Split, Step

MIN_PART = 1 << 14  # elements: less work is not worth a block and its share of the second pass

STEP = 64  # elements of k that a part has a multiple of

LONGEST = 1 << 14  # products of a part that are added one after another, where more parts take as long: the sum loses fewer digits
EQUAL = 1.02  # of a time that is as long

SAVING = 0.9  # of its time, that a contraction in parts, or a kernel of several reductions, may take
COMPARED = 1.5  # the same of several reductions where plans are compared: a block alone on an SM may take longer than its traffic


def find(groups: list[Group], graph: Graph, target: Target, inlined: Callable[[], ir.Operation]) -> Found:
    """Splits of the long reductions of kernels that have too few blocks to fill the machine. On a GPU the parts take a second
    kernel, and often a second look at the data: there the plans are compared. `inlined` makes the program that is split."""
    steps, remarks = [], []
    program = cache(inlined)  # it owns the operations
    named = cache(lambda: named_operations(program()))
    for g in groups:
        node, splits, reason = _of_kernel(g, graph, target, named)
        steps += [Applied("split", s, reason, node.line) for s in splits]
        if reason:
            verb, subject = ("split", node.name) if splits else ("refused", f"to split {node.name}")
            remarks.append(Remark(verb, subject, reason, node.line))
    if target.kind != "cuda" or not steps:
        return Found(tuple(steps), tuple(remarks))
    names = [a.step.operation for a in steps]
    refused = tuple(f"to split {name}" for name in names)
    return Found(tuple(steps), tuple(remarks), Compared("split", ", ".join(names), refused, "split", "unsplit", _weighed_us))


def _of_kernel(g: Group, graph: Graph, target: Target, named: Named) -> tuple[Node, list[Split], str]:
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
    return long[0], *decide(long, g, graph, target, named)


Named = Callable[[], dict[str, ir.Operation]]
"""The operations of the program that is split, by name."""


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


def _split(long: list[Node], g: Group, graph: Graph, target: Target, named: Named) -> tuple[list[Split], str]:
    """The split, if there are too few blocks, and its reason, or that against it."""
    (node,) = long
    found = _parts(node, g, target)
    if not isinstance(found, Split):
        return [], found or ""
    cost = predict(work_of(g.nodes, graph, g.space, target), target).time_us
    whole = f"unsplit, it has {count(g.space.parallelism, 'parallel point')} and takes {duration(cost)}"
    return [found], f"{found.parts} parts of {node.extents[found.dim] // found.parts} elements; {whole}"


def _split_all(long: list[Node], g: Group, graph: Graph, target: Target, named: Named) -> tuple[list[Split], str]:
    """Splits of all long reductions of a kernel, such as the sums of a batch norm, whose data one of too few blocks reads again for
    each: if passes by many blocks take less time, although what was one kernel becomes several."""
    about = _distances(long, g, graph, named)
    splits, separate_us = dict[Node, Split](), 0.0
    waiting = [n for n in long if n not in about]
    for at_once in _readings(waiting, replace(g, nodes=[n for n in g.nodes if n not in about]), graph):
        at_once += [n for n, (sums, _) in about.items() if sums in at_once]
        space = space_of(at_once, graph)
        assert not isinstance(space, str), space
        work = work_of(at_once, graph, space, target)
        parts = 1
        for n in at_once if at_once[0] in long else ():
            found = _like_sums(n, about[n], splits, g) if n in about else _parts(n, g, target) if n.contraction is None else None
            if not isinstance(found, Split):
                return [], found or ""
            splits[n] = found
            parts = max(parts, found.parts)
        if parts > 1:
            combined = Work(dram_read=work.dram_write * parts, blocks=work.blocks)
            work = replace(work, blocks=parts * work.blocks, dram_write=work.dram_write * parts)
            separate_us += predict(combined, target).time_us
        separate_us += predict(work, target).time_us
    fused_us = predict(work_of(g.nodes, graph, g.space, target), target).time_us
    times = f"{duration(separate_us)} in parts, with a kernel for each reading, {duration(fused_us)} as one kernel"
    most = COMPARED if target.kind == "cuda" else SAVING
    return ([*splits.values()], times) if separate_us < most * fused_us else ([], times)


def _distances(long: list[Node], g: Group, graph: Graph, named: Named) -> dict[Node, tuple[Node, Node | None]]:
    """The sums of distances, or of their squares, from what depends on another sum; with that, and, of squares, with the sum of the
    distances, if there is one. Sums of which that is true come before others."""
    online = online_of(long, g, graph) if all(n.contraction is None for n in long) else None
    if online is None:
        return {}
    about = [c for c in online.carried if c.about is not None and c.total.number >= 0]
    made = {c.total.number: graph.producer[c.total.operation.results[0]] for c in online.carried if c.total.number >= 0}
    about.sort(key=lambda c: c.rest != c.total.number)
    found = {made[c.total.number]: (made[c.about or 0], made.get(c.rest or 0)) for c in about}
    able = all(distance_of(named()[n.name], named()[sums.name].results[0]) for n, (sums, _) in found.items())
    return found if able else {}


def _like_sums(n: Node, about: tuple[Node, Node | None], splits: Mapping[Node, Split], g: Group) -> Split:
    """The split of a sum of distances: along the dimension of that of the sum which they depend on."""
    sums, rest = about
    dim = g.space.dims[n].index(g.space.dims[sums][splits[sums].dim])
    return Split(n.name, dim, splits[sums].parts, sums.name, rest.name if rest not in (None, n) else "")


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
    before = now.choices[0].prediction.time_us
    best = before * (target.fit(WarpgroupTimes).stream_k if now.choices[0].tile.stream_k else SAVING)
    found, summed = None, prod(node.extents[d] for d in node.contraction.k)
    for parts in (2, 4, 8, 16, 32):
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


def apply_splits(function: ir.Operation, splits: Sequence[Step]) -> None:
    named = named_operations(function)
    for s in splits:
        assert isinstance(s, Split)
        named[s.operation] = split(named[s.operation], s.dim, s.parts, named.get(s.about), named.get(s.rest))
