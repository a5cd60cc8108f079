"""Lines of memory that each level is asked for by loops on a CPU, by their tiles and their order, and how cores wait for them.

A block's loops stand in the loops over blocks. A level of memory keeps what the body of a loop touches if that fits: the next
iteration then finds what it reads again, and the other elements of lines that it touched. What does not fit is asked for anew, by
every iteration of that loop and of those around it. Lines that are a power of two apart share few places of a cache.

Sources: Wolf & Lam, "A data locality optimizing algorithm" (PLDI 1991); McKinley, Carr & Tseng, "Improving data locality with loop
transformations" (TOPLAS 1996).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, gcd, prod

from tilec.core.fitted import LoopTimes
from tilec.core.target import Level, Target

LINE = 64  # bytes
FORESEEN = 16  # pieces of memory that a core's prefetchers follow at a time


@dataclass(frozen=True)
class Access:
    """A tensor that a loop nest reads or writes. `steps`: bytes by which the access moves along each kernel dimension, of those
    where it is not 0. `kept`: an intermediate, of which a block has its own part."""

    tensor: int
    element: int
    steps: Mapping[int, int] = field(hash=False)
    kept: bool = False


@dataclass(frozen=True)
class Nest:
    """One operation's loops. `dims`: the kernel dimensions of its own dimensions."""

    dims: tuple[int, ...]
    accesses: tuple[Access, ...]


@dataclass(frozen=True)
class LoopProblem:
    """The operations of a kernel. `extents`: of the kernel dimensions; `grid`: those that blocks divide, in their order."""

    nests: tuple[Nest, ...]
    extents: Mapping[int, int] = field(hash=False)
    grid: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tiling:
    """`tile`: of each grid dimension; `orders`: of each nest's own dimensions, the outermost first; `transposed`: kernel dimensions
    along which operands are contiguous that registers transpose, in squares of `square` elements."""

    tile: Mapping[int, int] = field(hash=False)
    orders: tuple[tuple[int, ...], ...] = ()
    transposed: tuple[int, ...] = ()
    square: int = 1


@dataclass(frozen=True)
class _Loop:
    dim: int
    trips: float
    span: int = 1  # elements of the dimension from one iteration to the next
    blocks: bool = False


@dataclass(frozen=True)
class Lines:
    """Bytes of the lines that each level of memory is asked for, and microseconds of one core in which it waits for them."""

    l2: float
    l3: float
    dram: float
    waits_us: float


def loop_lines(target: Target, p: LoopProblem, t: Tiling) -> Lines:
    """Of all blocks."""
    fit, waits, known = target.fit(LoopTimes), 0.0, set[int]()
    lines = dict.fromkeys(("l2", "l3", "dram"), 0.0)
    nests = [(nest, _loops(p, nest, order, t)) for nest, order in zip(p.nests, t.orders, strict=True)]
    shared = _shared(nests)
    for nest, loops in nests:
        squares, before = _squares(loops, t), 0.0
        share = squares.share if squares is not None else 0.0
        for level in reversed(lines):
            reread = known if _fits(shared, _cache(target, level)) else set[int]()
            asked = replace(nest, accesses=tuple(a for a in nest.accesses if a.tensor not in reread))
            missed, waited = _missing(target, nest, asked, loops, level, fit.lines_at_once) if share < 1 else (0.0, 0.0)
            if squares is not None:
                inside = _missing(target, nest, asked, squares.loops, level, t.square, squares.fits)
                missed, waited = (share * a + (1 - share) * b for a, b in zip(inside, (missed, waited)))
            lines[level] += LINE * missed
            waits += waited * max(0.0, 1 - before / missed) if missed else 0.0  # others wait for the level beyond
            before = missed
        known |= {a.tensor for a in nest.accesses}
    return Lines(lines["l2"], lines["l3"], lines["dram"], 1e-3 * waits)


def _loops(p: LoopProblem, nest: Nest, order: Sequence[int], t: Tiling) -> list[_Loop]:
    """The loops over blocks, and those of one block, the outermost first. A dimension of one iteration has none."""
    blocks = [_Loop(d, ceil(p.extents[d] / max(1, t.tile[d])), max(1, t.tile[d]), True) for d in p.grid]
    dims = [nest.dims[d] for d in order]
    counts = {x.dim: x.trips for x in blocks}
    inside = [_Loop(d, p.extents[d] / counts.get(d, 1)) for d in dims]  # of a block on average: the last one has fewer
    return [x for x in (*blocks, *inside) if x.trips > 1]


@dataclass(frozen=True)
class _Squares:
    """Loops over squares that registers transpose, with the loops of one last. `share`: of the elements, those in whole squares.
    `fits`: the number of the loop that goes from one square to the next: a square is in registers."""

    loops: list[_Loop]
    share: float
    fits: int


def _squares(loops: Sequence[_Loop], t: Tiling) -> _Squares | None:
    if not loops or t.square < 2:
        return None
    inner, inside = loops[-1], [x for x in loops if not x.blocks]
    other = next((x for x in inside if x.dim in t.transposed and x is not inner), None)
    if other is None or inner.blocks:
        return None
    share = prod((x.trips // t.square) * t.square / x.trips for x in (inner, other))
    if not share:
        return None
    whole = [replace(x, trips=max(1, x.trips // t.square), span=t.square) if x in (inner, other) else x for x in loops]
    made = [*whole, replace(other, trips=t.square), replace(inner, trips=t.square)]
    return _Squares(made, share, len(whole) - 1)


def _shared(nests: Sequence[tuple[Nest, Sequence[_Loop]]]) -> list[tuple[Access, Sequence[_Loop]]]:
    """What the nests of a block touch between one use of a tensor and the next: in one iteration of the outermost loop of a block,
    where that is of one dimension in all of them, or in the whole block."""
    inside = [[x for x in loops if not x.blocks] for _, loops in nests]
    one_dimension = len({loops[0].dim if loops else None for loops in inside}) == 1
    found: dict[int, tuple[Access, Sequence[_Loop]]] = {}
    for (nest, _), loops in zip(nests, inside):
        found |= {a.tensor: (a, loops[1:] if one_dimension else loops) for a in nest.accesses}
    return list(found.values())


def _fits(touched: Sequence[tuple[Access, Sequence[_Loop]]], cache: Level | None) -> bool:
    return cache is not None and sum(_touched(a, loops, cache, True) for a, loops in touched) <= cache.bytes / LINE


def _cache(target: Target, level: str) -> Level | None:
    """The cache before a level."""
    return {"l2": target.l1, "l3": target.l2, "dram": target.l3 or target.l2}[level]


def _missing(
    target: Target, nest: Nest, asked: Nest, loops: Sequence[_Loop], level: str, at_once: float, fits: int | None = None
) -> tuple[float, float]:  # fmt: skip
    """Lines that a level beyond a cache is `asked` for, and the nanoseconds that cores wait for them, as for some others `at_once`:
    a prefetcher has brought those that follow one another. `fits`: the number of a loop whose body fits whatever it touches."""
    cache = _cache(target, level)
    beyond: Level | None = getattr(target, level)
    lines = waited = 0.0
    if cache is None or beyond is None:
        return lines, waited
    for access in {(a.tensor, *sorted(a.steps.items())): a for a in asked.accesses}.values():  # neighbours have the same lines
        if access.kept and level == "dram":
            continue
        missed = _missed(access, nest, loops, cache, fits)
        lines += missed
        waited += missed * beyond.latency_ns / (at_once * max(1.0, _run(access, loops) / LINE))
    return lines, waited


def _run(access: Access, loops: Sequence[_Loop]) -> float:
    """Bytes side by side that the innermost loops go through, of no more pieces at a time than a core foresees."""
    run, pieces = float(access.element), 1.0
    for loop in reversed(loops):
        step = abs(access.steps.get(loop.dim, 0)) * loop.span
        if step and step <= max(run, LINE):
            run = max(run, step * (loop.trips - 1) + run)
        elif step and (pieces := pieces * loop.trips) > FORESEEN:
            break
    return run


def _missed(access: Access, nest: Nest, loops: Sequence[_Loop], cache: Level, fits: int | None) -> float:
    """Lines of an access that a cache does not hold, over all loops."""
    at, most = 0, len(loops) if fits is None else fits  # the outermost loop whose body fits
    while at < most and sum(_touched(a, loops[at + 1 :], cache, True) for a in _distinct(nest)) > cache.bytes / LINE:
        at += 1
    lines = _touched(access, loops[at + 1 :], cache, False)
    if at < len(loops):
        step = abs(access.steps.get(loops[at].dim, 0)) * loops[at].span
        lines *= 1 + (loops[at].trips - 1) * min(1.0, step / LINE)
    return lines * prod(loop.trips for loop in loops[:at])


def _distinct(nest: Nest) -> list[Access]:
    """One access of each tensor: others of it touch nearly the same lines."""
    return list({a.tensor: a for a in nest.accesses}.values())


def _touched(access: Access, loops: Sequence[_Loop], cache: Level, crowded: bool) -> float:
    """Lines that loops touch; `crowded`: as many as would take as much room, where they share few places of the cache."""
    counts: dict[int, float] = {}
    for loop in loops:
        counts[loop.dim] = counts.get(loop.dim, 1) * loop.trips
    near, lines, strided = float(access.element), 1.0, list[tuple[int, float]]()
    for d, count in counts.items():
        step = abs(access.steps.get(d, 0))
        if not step:
            continue
        if step < LINE:
            near = max(near, step * (count - 1) + access.element)
        else:
            strided.append((step, count))
    if crowded and strided:
        step, count = min(strided)
        sets = max(1, cache.bytes // (LINE * cache.ways))
        used = max(1, sets // gcd(sets, max(1, step // LINE)))
        sets_used = min(used * ceil(near / LINE), sets)
        if count * ceil(near / LINE) > cache.ways * sets_used:
            lines = sets / sets_used
    return lines * prod(count for _, count in strided) * ceil(near / LINE)
