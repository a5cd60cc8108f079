"""The alternatives to a kernel's plan, which `tilec tune` measures and the audit of the cost model compares.

The planner ranks the tiles of rows, contractions and contraction chains, and these come in its order. For other kernels
the alternatives vary the layout: threads along each dimension, elements of an access, unrolled steps. On the CPU they
vary the tile and the innermost loop. A candidate differs from the plan only in options that a schedule file can hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from math import prod
from zlib import crc32

from tilec.analysis.graph import Graph
from tilec.analysis.layout import make, transposed
from tilec.core.target import Target
from tilec.cost.model import NoFurtherChoice
from tilec.kernels import KernelPlan, Threaded
from tilec.kernels.threaded import laid_out
from tilec.plan.check import refuse
from tilec.plan.cpu import loops
from tilec.plan.cuda import choose as plan_cuda
from tilec.plan.cuda.choose_contraction import unchanged
from tilec.plan.cuda.view import View, accesses
from tilec.plan.groups import Group

MOST_HELD = 64  # elements of one operand that a thread may hold, as for rows in `tilec/cost/rows.py`
THREADS = (64, 128, 256, 512, 1024)  # of a block


def candidates(kernel: KernelPlan, g: Group, graph: Graph, target: Target, most: int | None = None) -> list[KernelPlan]:
    """The plan's own choice, then all others by their predicted times. Equal times are in an arbitrary, fixed order.
    `kernel` is as before the backend's choices. `most`: of choices that the planner ranks, so many of the first ones."""
    choose = plan_cuda.choose if target.kind == "cuda" else loops.choose
    own = _predicted(choose(kernel, g, graph, target)[0], target)
    assert own is not None
    with unchanged():
        found = list(islice(_picks(kernel, g, graph, target), most))
    if len(found) < 2:
        found = [*(_layouts(own, g, graph, target) if target.kind == "cuda" else _tiles(own, g))]
    known = [k for f in found if (k := _predicted(f, target)) and (k.family.name != own.family.name or _fixed(k) == _fixed(own))]
    unlike = {_described(k): k for k in sorted(known, key=lambda k: -k.prediction.time_us)}
    unlike.pop(_described(own), None)
    return [own, *sorted(unlike.values(), key=lambda k: (round(k.prediction.time_us, 1), crc32(_described(k).encode())))]


def _fixed(kernel: KernelPlan) -> list[object]:
    """The options that no schedule file can hold another value of."""
    return [value for f, value in kernel.family.fields() if f.metadata["fixed"]]


def _described(kernel: KernelPlan) -> str:
    """The text of the choices that a schedule file holds."""
    return repr((kernel.tile, sorted(kernel.loops.items()), kernel.options))


def _predicted(kernel: KernelPlan, target: Target) -> KernelPlan | None:
    try:
        return kernel.weighed(target)
    except ValueError:  # does not fit
        return None


def _picks(kernel: KernelPlan, g: Group, graph: Graph, target: Target) -> Iterator[KernelPlan]:
    """The choices that the planner ranks, in its order; its only choice where it ranks none."""
    choose, first = (plan_cuda.choose, None) if target.kind == "cuda" else (loops.choose, None)
    for n in range(1000):
        try:
            found, _ = choose(kernel, g, graph, target, n)
        except NoFurtherChoice:
            return
        if n and _described(found) == first:
            return  # `pick` made no difference
        first = first or _described(found)
        yield found


# ---- layouts, CUDA ---------------------------------------------------------------------------------------------------


def _layouts(own: KernelPlan, g: Group, graph: Graph, target: Target) -> Iterator[KernelPlan]:
    """Layouts over the dimensions that have threads in `own`, and the longest that is reduced."""
    o = own.options
    if not isinstance(o, Threaded):
        return
    view = View(own, g, graph, target, accesses(own, g, graph))
    dims, lane = range(len(own.extents)), next(iter(o.thread_order), None)
    if lane is None:
        return
    longest = [d for d in view.reduced if d not in view.scanned and own.extents[d] > 8 and d not in o.thread_order]
    order = (*o.thread_order, *sorted(longest, key=lambda d: -own.extents[d])[:1])
    for vector in (v for v in (1, 2, 4, 8) if v <= 8 and own.extents[lane] % v == 0):
        if o.transposed_dims and vector > 1:
            continue
        for counts in _counts([own.extents[d] for d in order], vector):
            threads = dict(zip(order, counts))
            for steps in _steps(own, view, order):
                sizes = {d: threads.get(d, 1) * (vector if d == lane else 1) * steps.get(d, 1) for d in own.grid}
                tile = tuple(min(own.extents[d], sizes[d]) for d in own.grid)
                inside = [dict(zip(own.grid, tile)).get(d, own.extents[d]) for d in dims]
                layout = make(
                    inside, [d for d in order if threads[d] > 1], [threads.get(d, 1) for d in dims],
                    [vector if d == lane else 1 for d in dims], [steps.get(d, 1) for d in dims])  # fmt: skip
                layout = replace(layout, dense=getattr(o, "adjacent_steps", None) or ())
                held = [layout, *(transposed(layout, d) for d in o.transposed_dims)]
                if max((x.slots(a.dims) for x in held for a in view.accesses), default=1) > MOST_HELD:
                    continue
                most = min(o.registers, target.multiprocessor.registers // layout.block) if o.registers is not None else None
                kernel = replace(own, tile=tile, options=replace(o, **laid_out(layout), registers=most))
                if refuse(kernel, own, target) is None:
                    yield kernel


def _counts(extents: list[int], vector: int) -> Iterator[tuple[int, ...]]:
    """Threads by dimension, powers of two; the first has the vectors."""
    powers = [[1 << n for n in range(11) if 1 << n < 2 * max(1, e // v)] for e, v in _with_vectors(extents, vector)]
    for counts in product(*powers):
        if prod(counts) in THREADS and (counts[0] >= 8 or counts[0] == powers[0][-1]):
            yield counts


def _with_vectors(extents: list[int], vector: int) -> list[tuple[int, int]]:
    return [(e, 1 if n else vector) for n, e in enumerate(extents)]


def _steps(own: KernelPlan, view: View, order: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """Along dimensions of loops, unrolled as in `own`, less or more; along those of the grid 1 to 4, or as in `own`."""
    assert isinstance(own.options, Threaded)
    mine = dict(enumerate(own.options.steps))
    choices = {}
    for d in mine:
        if d in own.grid:
            choices[d] = sorted({1, 2, 4, mine[d]} if d in order else {mine[d]})
        else:
            choices[d] = sorted({max(1, mine[d] // 2), mine[d], 2 * mine[d]} if own.extents[d] > 8 else {mine[d]})
    for steps in product(*choices.values()):
        yield dict(zip(choices, steps))


# ---- tiles, CPU ------------------------------------------------------------------------------------------------------


def _tiles(own: KernelPlan, g: Group) -> Iterator[KernelPlan]:
    """Tiles that are larger or smaller along the two longest dimensions; and another loop innermost."""
    longest = sorted(own.grid, key=lambda d: -own.extents[d])[:2]
    for scales in product(*([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8] if d in longest else [1] for d in own.grid)):
        tile = tuple(
            max(1, min(own.extents[d], int(t * s))) for d, t, s in zip(own.grid, own.tile, scales, strict=True)
        )
        yield replace(own, tile=tile)
    node = max(g.nodes, key=lambda n: n.iterations)
    order = own.loops.get(node.name, ())
    for d in order[:-1] if node.scan is None else ():
        yield replace(own, loops=own.loops | {node.name: (*(x for x in order if x != d), d)})
