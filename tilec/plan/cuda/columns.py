"""Layouts of kernels that are contiguous along a grid dimension: columns, which reduce across it, and points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from tilec.analysis.directions import Window, windows_of
from tilec.analysis.layout import Layout
from tilec.analysis.traffic import element_bytes
from tilec.core import mlir
from tilec.core.fitted import Layouts
from tilec.core.hardware import WIDE, WORD
from tilec.core.mlir import ir
from tilec.core.quantities import by_sizes, count
from tilec.cost import model as cost
from tilec.passes.cuda.threaded.trig_fallback import is_trigonometric
from tilec.plan.cuda.online import online_reductions
from tilec.plan.cuda.view import THREADS, UNROLLED, Numbers, View, lay_out, power, unrolled, vector_of

MOST_SUMS = 32  # of neighbours that a thread holds at a time
HELD_WORDS = 100  # of a thread's sums, windows and factors: with addresses, 128 registers
WRITTEN_OUT = 2048  # products of a thread that are written out
LOAD = 4  # instructions that a load takes, with its address and condition
LINE = 128  # bytes that neighbouring threads read side by side


def columns(view: View, lane: int) -> tuple[dict[int, int], Layout, str]:
    """Threads along the contiguous grid dimension, then along a reduction that needs them, then along other grid
    dimensions; steps keep several loads in flight."""
    kernel, extents, vector, fit = view.kernel, view.extents, vector_of(view, lane), view.target.fit(Layouts)
    if not view.reduced:  # stores of 16 bytes that leave gaps for the next one reach 0.63 of copy, narrower loads 0.98
        vector = min(vector, max(1, WIDE // max((a.element for a in view.accesses if a.written), default=1)))
    near = _neighbours(view, lane, vector)
    vector = near.vector if near else vector
    splits = [d for d in view.reduced if d not in view.scanned and extents[d] > UNROLLED]
    points = prod(extents[d] for d in kernel.grid)
    counts: dict[int, int] = {}
    budget = THREADS if view.reduced else fit.point_threads
    joined = bool(splits and online_reductions(view)) and _split(view, points) > 1
    if joined:  # the states of several reductions take registers: one word an access, and more of them
        vector = min(vector, max(1, WORD // min((a.element for a in view.accesses if not a.written), default=WORD)))
    narrow = _split(view, points // vector) if splits else 1
    blocks = points // (16 * vector) / view.target.units  # an SM, with 16 lanes along a row: 256 bytes of it
    line = (
        8 if blocks < fit.few_blocks else 16 if blocks < (fit.online_line_blocks if joined else fit.line_blocks) else 32
    )
    counts[lane] = min(max(line, budget // narrow) if narrow > 1 else budget, power(extents[lane] / vector))
    if near is not None:  # whole threads: a guard would keep neighbours apart
        written = max(a.element for a in view.accesses if a.written)
        counts[lane] = min((lanes := extents[lane] // vector) & -lanes, power(LINE / (vector * written)))
        budget //= 2  # of blocks with fewer threads, more registers of an SM are in use
    budget //= counts[lane]
    if narrow > 1:
        longest = max(splits, key=lambda d: extents[d])
        counts[longest] = min(2 * budget, power(extents[longest] / 2))
        budget = max(1, budget // counts[longest])
    for d in sorted((d for d in kernel.grid if d != lane), reverse=True):
        counts[d] = min(budget, power(extents[d]))
        budget //= counts[d]
    steps = unrolled(view, {*view.reduced} - {*splits}, vector) | dict.fromkeys(
        splits, (4 if joined else 2) * fit.loads
    )
    tile = {d: min(max(1, extents[d]), counts.get(d, 1) * (vector if d == lane else 1)) for d in kernel.grid}
    others = sorted((d for d in tile if d != lane), reverse=True)
    computed = [v for n in view.group.nodes for v in n.extracts]
    if near is not None:
        _deal_neighbours(view, near, others, counts, tile, steps)
    if vector == 1 and not view.reduced and len(computed) > len(set(computed)):
        _more_steps(view, (*others, lane), tile, steps, UNROLLED)  # what rows read alike stays in L1
    elif vector == 1 and not splits:
        _more_steps(view, (lane, *others), tile, steps, fit.loads)  # single elements: several of them in flight
    elif not view.reduced and computed:
        _more_steps(view, (*others, lane), tile, steps, 2)  # two places to wait for at a time
    elif not view.reduced and (_is_busy(view) or _is_light(view, vector)):
        _more_steps(view, (lane, *others), tile, steps, 2)
    layout = replace(lay_out(view, counts, {lane: vector}, steps, tile), dense=tuple(sorted(near.counts)) if near else ())
    threads = f"{by_sizes(counts[d] for d in layout.order)} threads" if layout.order else "1 thread"
    return (
        tile,
        layout,
        f"{threads}, {count(vector, 'element')} an access, tiles of {by_sizes(tile[d] for d in kernel.grid)}",
    )


@dataclass(frozen=True)
class _Neighbours:
    """A thread's neighbours, so many along each dimension of `counts`, with `vector` elements in an access. `unrolled`: the reduced
    dimensions along which windows lie, all of whose steps are unrolled. `rounds`: of loops, each of which waits for its loads.
    `instructions`: for an element, besides the sum's own."""

    counts: Numbers
    vector: int
    unrolled: tuple[int, ...]
    rounds: int
    instructions: float


@dataclass(frozen=True)
class _Windows:
    """The windows of a kernel, by the grid dimensions along which neighbours share them. `element`: bytes of what they read;
    `factors`: whether each place of a window has a factor."""

    by_dim: dict[int, tuple[Window, ...]]
    element: int
    factors: bool


def _windows(view: View, lane: int) -> _Windows | None:
    found: dict[int, set[Window]] = {}
    nodes = view.group.nodes
    for node in nodes:
        dims = view.group.space.dims[node]
        for d, windows in windows_of(node).items():
            if dims[d] in view.kernel.grid and dims[d] != lane:
                found.setdefault(dims[d], set()).update(replace(w, along=dims[w.along]) for w in windows)
    if not found:
        return None
    element = max(element_bytes(ir.ShapedType(v.type).element_type) for n in nodes for v in n.extracts)
    alongs = {w.along for windows in found.values() for w in windows}
    factors = any(alongs & set(a.dims) for a in view.accesses if not a.written)
    by_dim = {d: tuple(sorted(w, key=lambda w: w.along)) for d, w in found.items()}
    return _Windows(by_dim, element, factors)


def _neighbours(view: View, lane: int, widest: int) -> _Neighbours | None:
    """The neighbours with the fewest instructions an element, among those that fit registers and leave blocks for all SMs. Tiles
    divide the dimensions: guards would cost more than the neighbours save."""
    windows = _windows(view, lane) if widest > 1 else None
    if windows is None:
        return None
    points, found = prod(view.extents[d] for d in view.kernel.grid), []
    along = sorted(d for d in windows.by_dim if windows.by_dim[d])
    for vector in (v for v in (8, 4, 2) if v <= widest and v * windows.element >= WORD):
        most = MOST_SUMS // vector
        options = {d: [(d, n) for n in range(1, most + 1) if view.extents[d] % n == 0] for d in windows.by_dim}
        choices = product(*(options[d] for d in along[-2:])) if along else ((o,) for d in options for o in options[d])
        for counts in map(dict, choices):
            sums = vector * prod(counts.values())
            if 1 < prod(counts.values()) <= most and points >= 2 * view.target.units * THREADS * sums:
                found += list(_shared(view, windows, {d: n for d, n in counts.items() if n > 1}, vector))
    return min(found, key=lambda n: (n.rounds > 1, round(n.instructions, 6), sorted(n.counts, reverse=True)), default=None)


def _shared(view: View, windows: _Windows, counts: Numbers, vector: int) -> Iterator[_Neighbours]:
    """The neighbours with the elements of all their windows in registers; or, along two dimensions, with those of a line of windows,
    while a loop goes along the first dimension."""
    short = {d: [w for w in windows.by_dim[d] if view.extents[w.along] <= UNROLLED][:1] for d in counts}
    lengths = {d: prod(view.extents[w.along] for w in short[d]) for d in counts}
    places = {d: _places(n, lengths[d], short[d]) for d, n in counts.items()}
    sums, written = vector * prod(counts.values()), prod(lengths.values())
    rounds = prod(view.extents[p] for p in view.reduced) // max(1, written)  # of the loops that are not written out
    accesses = prod(places.values()) + written * windows.factors
    each = LOAD + vector * (windows.element < WORD)  # instructions of an access, with conversions
    if sums * written > WRITTEN_OUT:
        return
    first, words = min(counts), vector * windows.element / WORD
    for lines in (False, True)[: len(counts)]:
        if lines and not (short[first] and short[first][0].stride == 1 and 0 < short[first][0].dilation <= counts[first]):
            return
        held = prod((counts if lines and d == first else places)[d] for d in counts)
        factors = written / (lengths[first] if lines else 1) * windows.factors
        if sums + (held + factors) * words <= HELD_WORDS:
            unrolled_dims = tuple(w.along for d in counts for w in short[d] if not (lines and d == first))
            yield _Neighbours(counts, vector, unrolled_dims, rounds, rounds * accesses * each / sums)


def _places(neighbours: int, length: int, windows: Sequence[Window]) -> int:
    """Elements of neighbours' windows, each once if every place between the first and the last is one of them."""
    for w in windows:
        if (w.dilation == 1 and 0 < w.stride <= length) or (w.stride == 1 and 0 < w.dilation <= neighbours):
            return w.stride * (neighbours - 1) + w.dilation * (length - 1) + 1
    return neighbours * length if windows else neighbours + 1  # of a stencil the compiler finds the accesses that are the same


def _deal_neighbours(
    view: View, near: _Neighbours, others: Sequence[int], counts: dict[int, int], tile: dict[int, int], steps: dict[int, int]
) -> None:
    """Gives each thread its neighbours. Threads lie along neighbours first, so that blocks share few elements of their windows, and
    what is left of them along other dimensions."""
    spare = prod(counts.get(d, 1) for d in others)
    for p in view.reduced:
        steps[p] = view.extents[p] if p in near.unrolled else 1
    for d in others:
        counts[d], steps[d] = 1, near.counts.get(d, 1)
        tile[d] = steps[d]
    while spare > 1:
        found = [d for d in others if view.extents[d] % (2 * tile[d]) == 0]
        d = min(found, key=lambda d: (d not in near.counts, tile[d]), default=None)
        if d is None:
            return
        counts[d], tile[d], spare = 2 * counts[d], 2 * tile[d], spare // 2


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
