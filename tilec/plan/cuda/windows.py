"""Windows along grid dimensions: how many neighbours a thread computes, so that it loads what their windows share once.

`passes/cuda/threaded/vector_gather.py` has the code. This module chooses the neighbours, by the instructions that an element takes,
and predicts the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

from tilec.analysis.directions import Window, windows_of
from tilec.analysis.graph import Node
from tilec.analysis.isomorphic import of_structure
from tilec.analysis.layout import Layout
from tilec.analysis.operation_costs import instructions_of
from tilec.analysis.traffic import OVERHEAD, bytes_of, element_bytes
from tilec.core import mlir
from tilec.core.fitted import Layouts
from tilec.core.hardware import SECTOR, WARP, WORD
from tilec.core.mlir import ir
from tilec.cost.model import Work, round_up
from tilec.plan.cuda.view import THREADS, UNROLLED, Numbers, View

MOST_SUMS = 32  # of neighbours that a thread holds at a time
CHOICES = 2  # numbers of neighbours that are weighed, of each width of access, with loops that wait and without
WRITTEN_OUT = 2048  # products of a thread that are written out
CONVERSIONS = ("arith.extf", "arith.truncf", "arith.select", "arith.constant", "tensor.extract")  # or parts of a load
ADDRESSES = 40  # registers of a thread for addresses, conditions and loops
LOAD = 4  # instructions that a load takes, with its address and condition


@dataclass(frozen=True)
class Neighbours:
    """A thread's neighbours, so many along each dimension of `counts`, with `vector` elements in an access. `unrolled`: the reduced
    dimensions along which windows lie, all of whose steps are unrolled. `rounds`: of loops, each of which waits for its loads.
    `instructions`: for an element, besides the sum's own. `lines`: the reduced dimensions of long windows, of one thread."""

    counts: Numbers
    vector: int
    unrolled: tuple[int, ...]
    rounds: int
    instructions: float
    lines: tuple[int, ...] = ()


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
    element = max(element_bytes(v.type) for n in nodes for v in n.extracts)
    alongs = {w.along for windows in found.values() for w in windows}
    factors = any(alongs & set(a.dims) for a in view.accesses if not a.written)
    by_dim = {d: tuple(sorted(w, key=lambda w: w.along)) for d, w in found.items()}
    return _Windows(by_dim, element, factors)


def neighbours(view: View, lane: int, widest: int) -> list[Neighbours]:
    """The neighbours with the fewest instructions an element, a few of each width of access, among those that fit registers and
    leave blocks for all SMs. Tiles divide the dimensions along which they lie: guards would cost more than the neighbours save."""
    windows = _windows(view, lane)
    if windows is None or (widest == 1 and not any(windows.by_dim.values())):
        return []
    points, found = prod(view.extents[d] for d in view.kernel.grid), list[Neighbours]()
    along = sorted(d for d in windows.by_dim if windows.by_dim[d])
    for vector in (v for v in (8, 4, 2) if v <= widest and v * windows.element >= WORD) if widest > 1 else (1,):
        most = MOST_SUMS // vector
        options = {d: [(d, n) for n in range(1, most + 1) if _may_cut(view, windows, d, n)] for d in windows.by_dim}
        choices = product(*(options[d] for d in along[-2:])) if along else ((o,) for d in options for o in options[d])
        for counts in map(dict, choices):
            sums = vector * prod(counts.values())
            if 1 < prod(counts.values()) <= most:
                more = {d: n for d, n in counts.items() if n > 1}
                if points * _sharing_threads(view, windows, more) >= 2 * view.target.units * THREADS * sums:
                    found += [*_shared(view, windows, more, vector), *_long(view, windows, more, vector)]
    found.sort(key=lambda n: (n.rounds > 1, round(n.instructions, 6), sorted(n.counts, reverse=True)))
    by_vector: dict[tuple[int, bool], list[Neighbours]] = {}
    for n in found:
        if bool(n.lines) == bool(found[0].lines):  # loops that are written out do not wait, and others do
            by_vector.setdefault((n.vector, n.rounds > 1), []).append(n)
    return [n for n in found if n in by_vector.get((n.vector, n.rounds > 1), [])[:CHOICES]]


def _may_cut(view: View, windows: _Windows, d: int, number: int) -> bool:
    """Whether a dimension may have tiles of so many neighbours: all whole, or windows one place apart, whose loads at the edge are
    predicated."""
    return view.extents[d] % number == 0 or all(w.stride == 1 for w in windows.by_dim[d])


def _beyond(view: View, counts: Numbers) -> float:
    """How many times as many elements whole tiles of so many neighbours have."""
    return prod(round_up(view.extents[d], n) / view.extents[d] for d, n in counts.items())


def _shared(view: View, windows: _Windows, counts: Numbers, vector: int) -> Iterator[Neighbours]:
    """The neighbours with the elements of all their windows in registers; or, along two dimensions, with those of a line of
    windows, while a loop goes along the first dimension. Short dimensions of windows that are not shared are written out or not."""
    short = {d: [w for w in windows.by_dim[d] if view.extents[w.along] <= UNROLLED][:1] for d in counts}
    lengths = {d: prod(view.extents[w.along] for w in short[d]) for d in counts}
    covered = {d: _covered(n, lengths[d], short[d]) for d, n in counts.items()}
    most = view.target.fit(Layouts).window_words
    first, words = min(counts), max(1.0, vector * windows.element / WORD)
    along = [w.along for d in counts for w in short[d]]
    others = [p for p in view.reduced if p not in along and 1 < view.extents[p] <= UNROLLED]
    for other_dims, lines in product((others, []) if others else ([],), (False, True)[: len(counts)]):
        if lines and not (short[first] and short[first][0].stride == 1 and 0 < short[first][0].dilation <= counts[first]):
            continue
        inner = prod(view.extents[p] for p in other_dims)
        sums, written = vector * prod(counts.values()), inner * prod(lengths.values())
        rounds = prod(view.extents[p] for p in view.reduced) // max(1, written)  # of the loops that are not written out
        accesses = rounds * (inner * prod(covered.values()) + written * windows.factors)
        held = inner * prod(covered.values())
        if lines:  # and a line that is on its way
            held = held // covered[first] * (counts[first] + short[first][0].dilation)
        factors = written / (lengths[first] if lines else 1) * windows.factors
        if sums * written <= WRITTEN_OUT and sums + (held + factors) * words <= most:
            unrolled_dims = (*other_dims, *(w.along for d in counts for w in short[d] if not (lines and d == first)))
            if lines and not _innermost(view, short[first][0].along, unrolled_dims):
                continue
            each = _beyond(view, counts) * _instructions(accesses, windows, vector) / sums
            yield Neighbours(counts, vector, unrolled_dims, rounds, each)


def _long(view: View, windows: _Windows, counts: Numbers, vector: int) -> Iterator[Neighbours]:
    """Neighbours along one dimension whose windows are long, as those of a gradient of weights are: the loop along windows is
    written out, and each of its rounds loads one further element."""
    ((d, number), *others), most = counts.items(), view.target.fit(Layouts).window_words
    sums, words = vector * number, max(1.0, vector * windows.element / WORD)
    for w in [] if others else windows.by_dim[d][:1]:
        length = view.extents[w.along]
        if not (UNROLLED < length <= WRITTEN_OUT // sums and w.stride == 1 and 0 < w.dilation <= number):
            continue
        if not _innermost(view, w.along, ()):
            continue
        rounds = prod(view.extents[p] for p in view.reduced) // length
        accesses = rounds * (_covered(number, length, [w]) + length * windows.factors)
        if sums + (number + w.dilation + windows.factors) * words <= most:
            each = _beyond(view, counts) * _instructions(accesses, windows, vector) / sums
            yield Neighbours(counts, vector, (), rounds, each, (w.along,))


def _innermost(view: View, along: int, unrolled: Sequence[int]) -> bool:
    """Whether no loop is inside the one along a dimension: what a round keeps for the next is of one round of others."""
    for node in view.group.nodes:
        order = [k for d, k in enumerate(view.group.space.dims[node]) if d in node.reduced]
        if along in order and any(view.extents[k] > 1 and k not in unrolled for k in order[order.index(along) + 1 :]):
            return False
    return True


def _sharing_threads(view: View, windows: _Windows, counts: Numbers) -> int:
    """Threads that may share a reduction along another dimension than windows."""
    along = {w.along for d in counts for w in windows.by_dim[d]}
    return min(WARP, max((e for p in view.reduced if p not in along and (e := view.extents[p]) > UNROLLED), default=1))


def _covered(neighbours: int, length: int, windows: Sequence[Window]) -> int:
    """Elements of neighbours' windows, each once if every place between the first and the last is one of them."""
    for w in windows:
        if (w.dilation == 1 and 0 < w.stride <= length) or (w.stride == 1 and 0 < w.dilation <= neighbours):
            return w.stride * (neighbours - 1) + w.dilation * (length - 1) + 1
    return neighbours * length if windows else neighbours + 1  # of a stencil the compiler finds the accesses that are the same


def map_neighbours(
    view: View, near: Neighbours, others: Sequence[int], counts: dict[int, int], tile: dict[int, int], steps: dict[int, int]
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
        free = [d for d in others if view.extents[d] % (2 * tile[d]) == 0]
        if not free:
            return
        d = min(free, key=lambda d: (d not in near.counts, tile[d]))
        counts[d], tile[d], spare = 2 * counts[d], 2 * tile[d], spare // 2


def _instructions(accesses: float, windows: _Windows, vector: int) -> float:
    """Of so many accesses of vectors, with conversions."""
    return accesses * (LOAD + vector * (windows.element < WORD))


@of_structure
def _arithmetic(node: Node) -> float:
    """Instructions of one element of a window, besides its load; a product and its sum are one."""
    body = [o.operation for o in mlir.body_of(node.op).operations]
    floats = [o for o in body if any(isinstance(r.type, ir.FloatType) for r in o.results) and o.name not in CONVERSIONS]
    products = [o for o in floats if o.name == "arith.mulf"]
    fused = sum(all(u.name in ("arith.addf", "arith.subf") for u in mlir.uses(o.results[0])) for o in products)
    return max(1.0, sum(instructions_of(o, {}) for o in floats) - fused)


def work_of_windows(view: View, layout: Layout, tile: Mapping[int, int], work: Work) -> Work:
    """The work of a kernel whose threads have neighbours: a product of windows is one instruction, besides loads of what the
    windows of a thread share. Blocks read the edges of their windows again, from L2."""
    lane = layout.order[0]
    windows, sm = _windows(view, lane), view.target.sm
    if windows is None or sm is None or not windows.by_dim.keys() >= {*layout.dense}:
        return work
    vector, elements = max(layout.vectors), prod(view.extents[d] for d in view.kernel.grid)
    near = {d: layout.steps[d] for d in layout.dense}
    rounds, halo = prod(view.extents[p] for p in view.reduced), 1.0
    accesses = window_elements = ahead = 1
    for d, number in near.items():
        window = windows.by_dim[d][:1]
        length = prod(view.extents[w.along] for w in window)
        at_once = prod(layout.steps[w.along] for w in window)
        accesses, rounds = accesses * _covered(number, length, window), rounds // max(1, length)
        window_elements *= length
        ahead *= _covered(number, at_once, window)
        for w in window:
            span = w.stride * tile[d]
            halo *= max(1.0, (span + w.dilation * (length - 1) - w.stride + 1) / max(1, span))
    factors = window_elements * windows.factors
    shared = rounds * (_instructions(accesses, windows, vector) + factors * _factor(view, lane, windows, vector))
    own = sum(n.iterations * (_arithmetic(n) if windows_of(n) else n.instructions) for n in view.group.nodes)
    issued = 2 * (own + elements * (_beyond(view, near) * shared / (vector * prod(near.values())) + OVERHEAD))
    pieces = tile.get(lane, 1) * windows.element / SECTOR  # of memory, side by side
    read = (halo * ceil(pieces) / pieces - 1) * sum(bytes_of(v) for n in view.group.nodes for v in set(n.extracts))
    registers = ADDRESSES + vector * prod(near.values()) + words_of_windows(view, layout)
    return replace(
        work,
        flops={**work.flops, "fma.f32": issued},
        l2_bytes=work.dram_read + work.dram_write + max(0.0, read),
        lanes=view.extents[lane] / round_up(view.extents[lane], tile.get(lane, 1)),
        registers=min(max(work.registers, ceil(registers)), sm.registers // (2 * layout.block), 168),
        bytes_in_flight=ahead * vector * windows.element,
    )


def words_of_windows(view: View, layout: Layout) -> float:
    """Registers of a thread for what it has loaded: what the windows of its neighbours share, and their factors."""
    windows = _windows(view, layout.order[0])
    if windows is None or not windows.by_dim.keys() >= {*layout.dense}:
        return 0.0
    shared = {w.along for d in layout.dense for w in windows.by_dim[d][:1]}
    held = prod(layout.steps[p] for p in view.reduced if p not in shared)
    for d in layout.dense:
        window, number = windows.by_dim[d][:1], layout.steps[d]
        length = prod(view.extents[w.along] for w in window)
        at_once = prod(layout.steps[w.along] for w in window)
        held *= number + window[0].dilation if at_once < length else _covered(number, length, window)
    written_out = prod(layout.steps[p] for p in view.reduced)
    return (held + written_out * windows.factors) * max(1.0, max(layout.vectors) * windows.element / WORD)


def _factor(view: View, lane: int, windows: _Windows, vector: int) -> float:
    """Instructions by which a thread loads the factors of a place of its windows: vectors, where they lie so."""
    along = {w.along for found in windows.by_dim.values() for w in found}
    read = [a for a in view.accesses if not a.written and along & set(a.dims) and a.value not in view.ordered]
    other_dims = any(lane in a.dims and a.dims[-1] != lane for a in read)
    return vector * _instructions(1, windows, 1) if other_dims else _instructions(1, windows, vector)
