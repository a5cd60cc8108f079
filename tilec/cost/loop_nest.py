"""The time of a loop nest on one core, from what its innermost loop does. It does not see the IR.

LLVM makes vectors of a loop whose accesses lie together along it. Such a loop takes so many bytes of operations, loads and
stores, by the bytes that a core takes in a clock. Single elements are what is left of a row, and accesses with a stride, at
quotients or at computed subscripts. The loop around a very short loop becomes vectors, whose elements lie apart. Other short
loops end with a vector that has a mask (`runtime/emit/cpu_loops.py`). A sum that is made of vectors ends with a sum of lanes.
Reductions whose states depend on each other are reduced in lanes of memory (`passes/cpu/lanes.py`), scans one element after the
other.

Sources: Fog, "Instruction tables" and "Optimizing subroutines in assembly language" (latencies, issue of scalar and vector code).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

from tilec.core.fitted import NestTimes, PanelTimes
from tilec.core.target import Target


@dataclass(frozen=True)
class LoopAccess:
    """A load, or a store, of elements of `bytes`. `steps`: by dimension, how many elements lie from one index to the next; None
    where that varies."""

    steps: tuple[int | None, ...]
    bytes: int
    stores: bool = False

    def contiguous(self, d: int) -> bool:
        return self.steps[d] in (0, 1)


@dataclass(frozen=True)
class LoopOperation:
    """Operations on elements of `bytes` that take as long as `count` additions, and depend on `dims`."""

    dims: frozenset[int]
    count: float
    bytes: int


@dataclass(frozen=True)
class LoopBody:
    """What one step of a nest over `extents` does. `serial`: the dimension of a scan. `choices`: bytes of the states that depend on
    each other, such as a largest element and its position; 0 where there are none. `latencies`: those of additions from a state to
    the next one."""

    extents: tuple[int, ...]
    reduced: frozenset[int]
    accesses: tuple[LoopAccess, ...]
    operations: tuple[LoopOperation, ...]
    serial: int | None = None
    choices: int = 0
    latencies: float = 1.0

    def transposed(self, inner: int, along: Collection[int]) -> LoopBody:
        """The same with copies of what is contiguous along other dimensions than the innermost one, which lie along that."""
        accesses = tuple(
            replace(a, steps=tuple(1 if d == inner else n for d, n in enumerate(a.steps))) if is_transposed(a, inner, along) else a
            for a in self.accesses
        )
        return replace(self, accesses=accesses)


def is_transposed(a: LoopAccess, inner: int, along: Collection[int]) -> bool:
    return a.steps[inner] not in (0, 1) and any(a.steps[d] == 1 for d in along)


INTERLEAVED = 8  # elements of the longest rows that LLVM loads whole and sorts into vectors of columns
WRITTEN_OUT, SHORT = 64, 128  # steps of the longest loop that LLVM writes out whole; steps from which on no loop is short
LEAST = 4  # elements of the shortest vector
LANES, ROUNDS = 16, 4  # the fewest lanes of states in memory, and rounds of elements that they are worth: passes/cpu/lanes.py
CHOICE = 3.0  # clocks of a comparison with a state and the choice by it, beside those of other rows
TREE = 1  # latencies of the steps that halve a vector's lanes, beside other rows
OVERLAP = 100  # elements of a row, from which a core sees nothing else to do while one waits for the one before
STEPS = 4  # of a reduction outside the innermost loop that are made at a time, with one load and store of its state
LINE = 64  # bytes


def nest_us(body: LoopBody, order: Sequence[int], sizes: Sequence[int], target: Target) -> float:
    """Microseconds of one core, of a nest over so many indices along each dimension, in this order of loops, the innermost last."""
    if (total := prod(sizes)) == 0:
        return 0.0
    n = sizes[order[-1]] if order else 1
    return 1e-3 * total / n * _row_clocks(body, order, sizes, target) / target.clock_ghz


def _row_clocks(body: LoopBody, order: Sequence[int], sizes: Sequence[int], target: Target) -> float:
    """Clocks of the innermost loop."""
    core, fit = target.core, target.fit(NestTimes)
    assert core is not None
    d = order[-1] if order else None
    n = 1 if d is None else sizes[d]
    varying = [o for o in body.operations if d in o.dims]
    moving = [a for a in body.accesses if d is not None and a.steps[d] != 0]
    strided = [a for a in moving if d is not None and not a.contiguous(d)]
    read, stored = (sum(a.bytes for a in moving if a.stores == s) for s in (False, True))
    inner, several = d in body.reduced, len(order) > 1 and order[-2] in body.reduced
    count, latency = sum(o.count for o in varying), float(core.fma_latency)
    issue = max(1.0, (count + sum(2 if a.stores else 1 for a in moving)) / fit.scalar_issue)
    if body.choices and (inner or (several and not strided)):
        return _choice_clocks(body, varying, read, n, inner, issue, target)
    held = 0.0 if inner or not body.reduced else stored / STEPS  # sums that are loaded, added to and stored
    simd = float(core.simd_bytes)
    element = max(
        sum(o.count * o.bytes for o in varying) / (fit.vector_issue * simd), (read + held) / (2 * simd),
        (held or stored) / simd, 1 / simd,
    )  # fmt: skip
    if d is not None and body.serial == d:
        if n <= INTERLEAVED:
            return n * max(2 * element, fit.short_clocks)
        return fit.entry_clocks + n * max(issue / 2, latency * max(1.0, body.latencies) * min(1.0, n / OVERLAP))
    if strided:
        away = sum(_strided_clocks(a.steps[d], a.bytes, n, len(strided), target) for a in strided if d is not None)
        return fit.entry_clocks + n * max(element, away)
    if n <= INTERLEAVED and not several and len(order) > 1:
        return n * max(element, fit.short_clocks / 4)
    widest = max([1, *(a.bytes for a in moving), *(o.bytes for o in varying)])
    lanes = max(1, core.simd_bytes // widest)
    if is_short(n):  # whole vectors, of which the last one has a mask
        return fit.entry_clocks / 2 + ceil(n / lanes) * lanes * element + (TREE * latency if inner else 0.0)
    rest = n % lanes if n >= lanes else n % LEAST
    return fit.entry_clocks + (n - rest) * element + rest * issue + (TREE * latency if inner else 0.0)


def is_short(n: int) -> bool:
    """Whether LLVM makes vectors of so many steps, the last one with a mask, before it writes them out
    (`runtime/cpu/builtins.py`). A small rest of a longer loop takes less time than its mask."""
    return INTERLEAVED < n < SHORT and (n <= WRITTEN_OUT or not 0 < n % LANES <= n // LANES)


def _strided_clocks(step: int | None, bytes_: int, n: int, accesses: int, target: Target) -> float:
    """Clocks of an element that does not lie beside the one before: more where L1 does not hold the lines of `n` of them until the
    next element of each is asked for, since it is too small, or has few sets for lines so far apart."""
    fit, l1 = target.fit(NestTimes), target.l1
    if step is None or l1 is None or abs(step) * bytes_ < LINE:
        return fit.strided_clocks
    sets = max(1, l1.bytes // (LINE * l1.ways))
    own = sets // gcd(abs(step) * bytes_ // LINE, sets)
    held = 2 * accesses * n * LINE <= l1.bytes and (n <= l1.ways * own or own > FEW)
    return fit.strided_clocks + (0 if held else fit.conflict_clocks)


FEW = 4  # sets of a cache, which many lines share


def _choice_clocks(
    body: LoopBody, varying: Sequence[LoopOperation], read: float, n: int, inner: bool, issue: float, target: Target
) -> float:
    """Of states that depend on each other: chosen one after the other, in lanes of memory, or by vectors along a row of states."""
    core, fit = target.core, target.fit(NestTimes)
    assert core is not None
    simd = float(core.simd_bytes)
    arithmetic = sum(o.count * o.bytes for o in varying) / (fit.vector_issue * simd)
    element = max(arithmetic, (read + body.choices) / (2 * simd), body.choices / simd)
    if not inner:
        return fit.entry_clocks + n * element
    if n <= INTERLEAVED:
        return n * max(element, 2 * fit.short_clocks)
    if n < LANES * ROUNDS:
        return n * max(issue, CHOICE)
    rest = n % LANES
    return fit.entry_clocks + (n - rest) * element + rest * issue + fit.lanes_clocks


def transposing_us(body: LoopBody, inner: int, along: Collection[int], sizes: Sequence[int], target: Target) -> float:
    """Microseconds of one core in which it makes the copies of `LoopBody.transposed`, for so many indices along each dimension."""
    moved = [a for a in body.accesses if is_transposed(a, inner, along)]
    copied = [prod(n for n, step in zip(sizes, a.steps) if step != 0) for a in moved]
    return 1e-3 * target.fit(PanelTimes).pack_across_ns * sum(copied)


__all__ = ["LoopAccess", "LoopBody", "LoopOperation", "is_short", "nest_us", "transposing_us"]
