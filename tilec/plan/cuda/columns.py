"""Layouts of kernels that are contiguous along a grid dimension: columns, which reduce across it, and points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil, prod

from tilec.analysis.layout import Layout
from tilec.analysis.traffic import LINE
from tilec.core import mlir
from tilec.core.fitted import Layouts
from tilec.core.hardware import WARP, WIDE, WORD
from tilec.core.quantities import by_sizes, count
from tilec.cost import model as cost
from tilec.passes.cuda.threaded.trig_fallback import is_trigonometric
from tilec.plan.cuda.laid_out import work_laid_out
from tilec.plan.cuda.online import online_reductions
from tilec.plan.cuda.view import HELD, THREADS, UNROLLED, View, lay_out, power, unrolled, vector_of
from tilec.plan.cuda.windows import Neighbours, map_neighbours, neighbours

SHARED = 4  # threads of a column, where blocks would last too long
FEW_BLOCKS, SMALL = 4, 2  # blocks of a row, and the part of a block, 1 of so many, that gets no block of its own
WAVES = 8  # of blocks, from which on the last ones count for little

Tiled = tuple[dict[int, int], Layout, str]  # a block's tile, its layout, and what the plan tells of it


def columns(view: View, lane: int) -> list[Tiled]:
    """Threads along the contiguous grid dimension, then along a reduction that needs them, then along other grid
    dimensions; steps keep several loads in flight. Several where threads have neighbours, whose numbers are to be weighed."""
    vector = vector_of(view, lane)
    if not view.reduced:  # stores of 16 bytes that leave gaps for the next one reach 0.63 of copy, narrower loads 0.98
        vector = min(vector, max(1, WIDE // max((a.element for a in view.accesses if a.written), default=1)))
    if found := neighbours(view, lane, vector):
        return [_columns(view, lane, n.vector, n, c, THREADS // 2) for n in found for c in _lanes(view, lane, n)]
    threads = THREADS if view.reduced else view.target.fit(Layouts).point_threads
    plain = [_columns(view, lane, vector, None, 0, threads)]
    if view.reduced and _ends_unevenly(view, plain[0]):  # more threads a column, and so shorter blocks
        plain.append(_columns(view, lane, vector, None, 0, threads, SHARED))
    while view.reduced and _is_small(view, plain[-1]) and (vector > 2 or threads > 2 * WARP):
        vector, threads = (vector // 2, threads) if vector > 2 else (vector, threads // 2)  # smaller blocks, for more SMs
        plain.append(_columns(view, lane, vector, None, 0, threads))
    return [*_kept(view, lane, vector_of(view, lane)), *plain[::-1]]  # of those that take as long, the one on the most SMs


def _ends_unevenly(view: View, tiled: Tiled) -> bool:
    """Whether no threads share a column, and few blocks are left after a few waves of them: they would read alone."""
    tile, layout, _ = tiled
    blocks = prod(ceil(view.extents[d] / tile.get(d, 1)) for d in view.kernel.grid)
    kernel = replace(view.kernel, tile=tuple(tile.get(d, 1) for d in view.kernel.grid))
    work = work_laid_out(kernel, view, layout)
    most = cost.occupancy(view.target, work.threads, work.registers).blocks * view.target.units
    alone = all(layout.threads[d] == 1 for d in view.reduced) and any(layout.chunks(d) > 1 for d in view.reduced)
    return alone and most < blocks < WAVES * most and 0 < blocks % most < most / 2


def _kept(view: View, lane: int, widest: int) -> list[Tiled]:
    """Where several passes read the same columns: the layouts whose blocks have whole columns in their threads' registers, so that
    memory is read once."""
    dims = [d for d in view.reduced if view.extents[d] > 1]
    read = [a for a in view.accesses if not a.written and len(a.readers) > 1 and {lane, *dims} <= {*a.dims}]
    if not read or not dims or view.scanned:
        return []
    words = max(1, max(a.element for a in read) // WORD) * len(read)
    longest, found = max(dims, key=lambda d: view.extents[d]), []
    others = prod(view.extents[d] for d in dims if d != longest)
    shapes = sorted(product((32, 16, 8), (32, 16, 8, 4)), key=lambda s: abs(power(prod(s)) - THREADS))  # as other blocks are
    for lanes, threads in shapes:
        steps = ceil(view.extents[longest] / threads) * others
        vector = next((v for v in (8, 4, 2, 1) if v <= widest and v * steps * words <= HELD), 0)
        if not vector or lanes * vector > power(view.extents[lane]) or threads >= 2 * view.extents[longest]:
            continue
        counts = {lane: lanes, longest: threads}
        tile = {d: lanes * vector if d == lane else 1 for d in view.kernel.grid}
        layout = lay_out(view, counts, {lane: vector}, {d: view.extents[d] for d in dims}, tile)
        if layout.whole(dims):
            text = f"{lanes} x {threads} threads, {count(vector, 'element')} an access, columns in registers"
            found.append((tile, layout, text))
    return found


def _is_small(view: View, tiled: Tiled) -> bool:
    """Whether at least half of the SMs have no block, and no threads share a column."""
    tile, layout, _ = tiled
    blocks = prod(ceil(view.extents[d] / tile.get(d, 1)) for d in view.kernel.grid)
    return 2 * blocks <= view.target.units and all(layout.threads[d] == 1 for d in view.reduced)


def _lanes(view: View, lane: int, near: Neighbours) -> list[int]:
    """Numbers of threads along the contiguous dimension: as many as divide it, or more, of which the last block has some beside it;
    those that store a line of memory at most. One guard stands around all that a thread does."""
    written = max(a.element for a in view.accesses if a.written)
    lanes, most = view.extents[lane] // near.vector, power(LINE / (near.vector * written))
    least = min(lanes & -lanes, most)
    return [least << n for n in range(most.bit_length()) if least << n <= min(most, power(lanes))] if near.vector > 1 else [0]


def _columns(view: View, lane: int, vector: int, near: Neighbours | None, lanes: int, budget: int, least: int = 1) -> Tiled:
    """With so many elements an access, such neighbours if any, and with them so many threads along the contiguous dimension;
    `budget`: threads of a block; `least`: those that share a column."""
    kernel, extents, fit = view.kernel, view.extents, view.target.fit(Layouts)
    alone = {*view.scanned, *(near.lines if near else ())}
    splits = [d for d in view.reduced if d not in alone and extents[d] > UNROLLED]
    points = prod(extents[d] for d in kernel.grid)
    counts: dict[int, int] = {}
    joined = bool(splits and online_reductions(view)) and _split(view, points) > 1
    if joined:  # the states of several reductions take registers: one word an access, and more of them
        vector = min(vector, max(1, WORD // min((a.element for a in view.accesses if not a.written), default=WORD)))
    narrow = max(least, _split(view, points // (vector * prod(near.counts.values() if near else ())))) if splits else 1
    blocks = points // (16 * vector) / view.target.units  # an SM, with 16 lanes along a row: 256 bytes of it
    line = (
        8 if blocks < fit.few_blocks else 16 if blocks < (fit.online_line_blocks if joined else fit.line_blocks) else 32
    )
    counts[lane] = min(max(line, budget // narrow) if narrow > 1 else budget, power(extents[lane] / vector))
    if lanes:
        counts[lane] = lanes
    budget //= counts[lane]
    if narrow > 1:
        longest = max(splits, key=lambda d: extents[d])
        # a thread has a sum for each neighbour, so that no more threads meet at the end than are wanted
        counts[longest] = min(min(2 * budget, narrow) if near else 2 * budget, power(extents[longest] / 2))
        budget = max(1, budget // counts[longest])
    for d in sorted((d for d in kernel.grid if d != lane), reverse=True):
        counts[d] = min(budget, power(extents[d]))
        budget //= counts[d]
    steps = unrolled(view, {*view.reduced} - {*splits}, vector) | dict.fromkeys(
        splits, (4 if joined else 2) * fit.loads
    )
    for d in splits:  # no guards, where a number of steps divides what a thread has
        share = ceil(extents[d] / counts.get(d, 1))
        even = max(n for n in range(1, steps[d] + 1) if share % n == 0)
        steps[d] = even if 2 * even > steps[d] else steps[d]
    _hold_less(view, vector, steps)
    tile = {d: min(max(1, extents[d]), counts.get(d, 1) * (vector if d == lane else 1)) for d in kernel.grid}
    others = sorted((d for d in tile if d != lane), reverse=True)
    computed = [v for n in view.group.nodes for v in n.extracts]
    if near is not None:
        map_neighbours(view, near, others, counts, tile, steps)
    if near is not None and vector == 1:
        pass
    elif vector == 1 and not view.reduced and len(computed) > len(set(computed)):
        _more_steps(view, (*others, lane), tile, steps, UNROLLED)  # what rows read alike stays in L1
    elif vector == 1 and not splits:
        _more_steps(view, (lane, *others), tile, steps, fit.loads)  # single elements: several of them in flight
    elif not view.reduced and computed:
        _more_steps(view, (*others, lane), tile, steps, 2)  # two places to wait for at a time
    elif not view.reduced and (_is_busy(view) or _is_light(view, vector)):
        _more_steps(view, (lane, *others), tile, steps, 2)
    if near is None and not view.reduced:
        _without_rest(view.extents[lane], lane, counts[lane] * vector, tile, steps)
    layout = replace(lay_out(view, counts, {lane: vector}, steps, tile), dense=tuple(sorted(near.counts)) if near else ())
    threads = f"{by_sizes(counts[d] for d in layout.order)} threads" if layout.order else "1 thread"
    return (
        tile,
        layout,
        f"{threads}, {count(vector, 'element')} an access, tiles of {by_sizes(tile[d] for d in kernel.grid)}",
    )


def _without_rest(extent: int, lane: int, at_once: int, tile: dict[int, int], steps: dict[int, int]) -> None:
    """A step more, of `at_once` elements each, where a block of its own would be left with few elements of a short row: it takes as
    long as others do. 513 elements are 5 steps of 128, rather than a block of 4 and one of one element."""
    blocks = ceil(extent / tile[lane])
    rest = extent - (blocks - 1) * tile[lane]
    if 1 < blocks <= FEW_BLOCKS and SMALL * rest <= tile[lane]:
        steps[lane] = ceil(extent / ((blocks - 1) * at_once))
        tile[lane] = min(extent, steps[lane] * at_once)


def _hold_less(view: View, vector: int, steps: dict[int, int]) -> None:
    """Fewer steps along dimensions that operations without a reduction have besides the grid's: a thread holds each of their
    results, where a reduction has one sum for all steps. It holds all that a reduction reads at computed subscripts in its steps,
    too: fewer of the steps that are no short dimension."""
    results_along: dict[tuple[int, ...], int] = {}
    for node in view.group.nodes:
        dims = tuple(d for d in view.group.space.dims[node] if d in steps)
        if dims and not node.reduced and node.scan is None:
            results_along[dims] = results_along.get(dims, 0) + 1
    for dims, results in results_along.items():
        while results * vector * prod(steps[d] for d in dims) > HELD and max(steps[d] for d in dims) > 1:
            longest = max(dims, key=lambda d: steps[d])
            steps[longest] = (steps[longest] + 1) // 2
    for node in view.group.nodes:
        own = [d for d in view.group.space.dims[node] if d in steps]
        long = [d for d in own if view.extents[d] > UNROLLED]
        if not (node.reduced and node.extracts and long):
            continue
        while vector * prod(steps[d] for d in own) > 2 * HELD and max(steps[d] for d in long) > 1:
            longest = max(long, key=lambda d: steps[d])
            steps[longest] = (steps[longest] + 1) // 2


def _is_light(view: View, vector: int) -> bool:
    """Whether a vector of each operand is too little for a block that comes and goes."""
    points = {d for d in view.kernel.grid if view.extents[d] > 1}
    return (
        vector * sum(a.element for a in view.accesses if points <= set(a.dims)) < view.target.fit(Layouts).light_bytes
    )


def _is_busy(view: View) -> bool:
    """Whether the arithmetic of elements takes nearly as long as their memory. A thread then takes two vectors, which share
    addresses and common values, and whose instructions overlap.

    Sines and cosines that are written out twice are excluded, since they fill the registers.
    """
    if any(is_trigonometric(op) for n in view.group.nodes for op in mlir.traverse(n.op)):
        return False
    terms = cost.predict(view.kernel.work, view.target).terms
    memory = max(terms.get(name, 0.0) for name in cost.MEMORY)
    busy = view.target.fit(Layouts).busy
    return any(us > busy * memory for name, us in terms.items() if name not in cost.MEMORY)


def _split(view: View, threads: int) -> int:
    """Over how many threads a reduction is spread so that all SMs have enough to do."""
    wanted = view.target.units * view.target.fit(Layouts).split_threads
    return min(32, power(wanted / max(1, threads))) if threads < wanted else 1


def _more_steps(view: View, order: Sequence[int], tile: dict[int, int], steps: dict[int, int], wanted: int) -> None:
    """Gives a thread several elements along the first dimension or the next, as long as all SMs have blocks."""
    blocks = prod(ceil(view.extents[d] / t) for d, t in tile.items())
    for d in order:
        while wanted > 1 and 2 * tile[d] <= view.extents[d] and blocks >= 8 * view.target.units:
            tile[d], steps[d] = 2 * tile[d], 2 * steps.get(d, 1)
            wanted, blocks = wanted // 2, blocks // 2
