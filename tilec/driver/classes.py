"""Classes of sizes: which sizes of a program one plan and one compiled program serve.

A size that varies is in one of a few intervals, by its magnitude alone. Each has a typical number, at which the program is planned
(`tilec/plan/varying.py`). What is compiled serves the whole interval. So neither a plan nor the order of a sum depends on the size
that a program happens to be called with first. A size of one number is no size that varies: it is compiled as the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, log2

from tilec.core.varying import Varying

ENDS = (0, 1, 16, 128, 512, 2048, 16384)
"""The greatest number of each interval but the last. One row, a few, and each tile of rows that fills a GPU have plans of their
own; above, the number of blocks changes and little else."""


@dataclass(frozen=True)
class Class:
    """The part of each size's range, by name; `fixed` are sizes of which it has one number."""

    ranges: tuple[tuple[str, Varying], ...]
    fixed: tuple[tuple[str, int], ...]

    @property
    def typical(self) -> dict[str, int]:
        """Numbers that stand for those of the class."""
        return {name: typical(v) for name, v in self.ranges}

    def __str__(self) -> str:
        parts = [f"{name} = {n}" for name, n in self.fixed] + [f"{name} = {v}" for name, v in self.ranges]
        return ", ".join(sorted(parts))


def class_from(ranges: Iterable[tuple[str, Mapping[str, int]]], fixed: Iterable[tuple[str, int]]) -> Class:
    """A class of the fields that `dataclasses.asdict` gives."""
    made = ((name, Varying(v["low"], v["high"], v["multiple"], invariant=bool(v["invariant"]))) for name, v in ranges)
    return Class(tuple(made), tuple((name, n) for name, n in fixed))


def intervals(v: Varying) -> list[Varying]:
    """The parts of a range, in order. An invariant size has one: a sum has one order at all of its numbers."""
    if v.invariant:
        return [v]
    found = []
    for before, end in pairwise((-1, *ENDS, v.high)):
        low, high = max(v.low, before + 1), min(v.high, end)
        low, high = -(-low // v.multiple) * v.multiple, high // v.multiple * v.multiple
        if low <= high:
            found.append(Varying(low, high, v.multiple))
    return found


def class_of(varies: Mapping[str, Varying], sizes: Mapping[str, int]) -> Class:
    """The class of some sizes, each of which is in its range."""
    found = {name: next(p for p in intervals(v) if p.has(sizes[name])) for name, v in sorted(varies.items())}
    single = {name: p.low for name, p in found.items() if p.low == p.high}
    return Class(tuple((name, p) for name, p in found.items() if name not in single), tuple(single.items()))


def typical(v: Varying) -> int:
    """The number that stands for a range: one less than a power of two near its geometric mean. It is a multiple of no more than
    all of them are. Tiles of powers of two fit it: a number that is one larger would leave a tile all but empty."""
    low, high = -(-v.low // v.multiple), v.high // v.multiple
    middle = (1 << round(log2(max(1, isqrt(max(low, 1) * high))) + 0.25)) - 1
    middle = min(max(middle, low), high)
    return v.multiple * (middle if middle % 2 else middle + 1 if middle < high else max(low, middle - 1))
