"""Classes of sizes: which sizes of a program one plan and one compiled program serve.

A size that varies is in one of a few intervals, by its magnitude. Multiples of a number may be apart from the others of an interval
(`tilec/driver/find_classes.py`). Each class has a typical number, at which the program is planned (`tilec/plan/varying.py`). What
is compiled serves the whole class. So neither a plan nor the order of a sum depends on the size that a program happens to be called
with first. A size of one number is no size that varies: it is compiled as the number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as cached
from itertools import pairwise, product
from math import gcd, isqrt, lcm, log2

from tilec.core.varying import Varying

ENDS = (0, 1, 16, 128, 256, 512, 1024, 16384)
"""The greatest number of each interval but the last. One row, a few, and each tile of rows that fills a GPU have plans of their
own; above, the number of blocks changes and little else."""

FEW = 128
"""Up to so many, fewer rows than a tile has leave a part of it empty, which costs little, where more need a second tile."""

LARGEST_UNIT = 16
"""The greatest number of whose multiples there are classes."""


@dataclass(frozen=True)
class Class:
    """The part of each size's range, by name; `fixed` are sizes of which it has one number. `ranges` has the whole range of a size
    that is invariant, as the program says the same of all its numbers then; `parts` has the part that tiles are chosen for."""

    ranges: tuple[tuple[str, Varying], ...]
    fixed: tuple[tuple[str, int], ...]
    parts: tuple[tuple[str, Varying], ...] = ()

    @property
    def own(self) -> dict[str, Varying]:
        """The part of each size's range that it is for."""
        return dict(self.ranges) | dict(self.parts)

    @property
    def typical(self) -> dict[str, int]:
        """Numbers that stand for those of the class."""
        return typical_sizes(self.own, [n for _, n in self.fixed])

    def __str__(self) -> str:
        own = self.own
        of = {name: f" of {v}" for name, v in self.ranges if v.invariant}
        parts = [f"{name} = {n}" for name, n in self.fixed] + [f"{name} = {v}{of.get(name, '')}" for name, v in own.items()]
        return ", ".join(sorted(parts))


def class_from(
    ranges: Iterable[tuple[str, Mapping[str, int]]], fixed: Iterable[tuple[str, int]],
    parts: Iterable[tuple[str, Mapping[str, int]]] = (),
) -> Class:  # fmt: skip
    """A class of the fields that `dataclasses.asdict` gives."""
    made, own = (tuple((name, varying_from(v)) for name, v in each) for each in (ranges, parts))
    return Class(made, tuple((name, n) for name, n in fixed), own)


def varying_from(fields: Mapping[str, int]) -> Varying:
    return Varying(fields["low"], fields["high"], fields["multiple"], invariant=bool(fields["invariant"]))


def intervals(v: Varying, ends: Sequence[int] = ENDS) -> list[Varying]:
    """The parts of a range, in order, of which `ends` are the greatest numbers. One element of an invariant size has no part of its
    own: it has the sums of others."""
    found = []
    for before, end in pairwise((-1, *(n for n in ends if n > 1 or not v.invariant), v.high)):
        if (part := multiples(Varying(max(v.low, before + 1), min(v.high, end), v.multiple))) is not None:
            found.append(part)
    return found


def multiples(v: Varying, unit: int = 1) -> Varying | None:
    """The numbers of a range that are multiples of its own and of another number; None where there are none."""
    by = lcm(v.multiple, unit)
    low, high = -(-v.low // by) * by, v.high // by * by
    return Varying(low, high, by) if low <= high else None


def finest(number: int) -> tuple[int, int]:
    """What is the same only of numbers of one class, whichever classes an op has: their ends are powers of two."""
    return (number - 1).bit_length() + 1 if number > 1 else number, gcd(number, LARGEST_UNIT)


class Classes:
    """Those of some sizes' ranges. `units`: numbers of whose multiples there are classes apart, by size that is not invariant.
    `joined`: whether one class has all numbers of such a size in a range, which several of the intervals make that `ends` are the
    greatest numbers of."""

    def __init__(
        self, varies: Mapping[str, Varying], units: Mapping[str, int],
        joined: Callable[[str, Varying], bool] = lambda name, v: False, ends: Sequence[int] = ENDS,
    ):  # fmt: skip
        self._parts = {name: intervals(v, ends) for name, v in sorted(varies.items())}
        self._varies = dict(varies)
        self._units = {name: n for name, n in units.items() if name in varies and not varies[name].invariant}
        self._joined = cached(joined)
        self._made: dict[tuple[tuple[int, bool], ...], Class] = {}

    def of(self, sizes: Mapping[str, int]) -> Class:
        """The class of some sizes, each of which is in its range."""
        word = tuple(self._position(name, sizes[name]) for name in self._parts)
        if (found := self._made.get(word)) is None:
            chosen = zip(self._parts, word)
            found = self._made[word] = self._class({name: self._numbers(name, *position) for name, position in chosen})
        return found

    def __iter__(self) -> Iterator[Class]:
        """All, smallest sizes first."""
        for chosen in product(*map(self._all, self._parts)):
            yield self._class(dict(zip(self._parts, chosen)))

    def neighbours(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Sizes of each class that differs from that of some sizes in one of them, and has the next larger or the next smaller
        numbers of it, from 2 on."""
        for name, parts in self._parts.items():
            interval, whole = self._position(name, sizes[name])
            first, last = self._around(name, interval)
            for n in (last + 1, first - 1):
                if 0 <= n < len(parts) and min(parts[n].low, parts[first].low) > 1:
                    yield {**sizes, name: typical(self._numbers(name, n, whole))}

    def _position(self, name: str, number: int) -> tuple[int, bool]:
        """Which interval a number is in, and whether it is of those multiples."""
        parts = self._parts[name]
        return bisect_left(parts, number, key=lambda p: p.high), number % self._units.get(name, 1) == 0

    def _numbers(self, name: str, interval: int, whole: bool) -> Varying:
        """All numbers at such a position. Those of an interval serve its multiples, too, which have a class of their own."""
        part = self._over(name, *self._around(name, interval))
        found = multiples(part, self._units.get(name, 1)) if whole else None
        return found or part

    def _around(self, name: str, interval: int) -> tuple[int, int]:
        """The first and the last of the intervals of which an interval's class consists: of those that begin at 2 or more all, or
        one half of them, or one half of that, and so on. So few plans are made, and the classes depend on no number."""
        parts = self._parts[name]
        first, last = next((n for n, p in enumerate(parts) if p.low > 1), len(parts)), len(parts) - 1
        if interval < first or self._varies[name].invariant:
            return interval, interval
        while first < last and not self._joined(name, self._over(name, first, last)):
            middle = (first + last - 1) // 2
            first, last = (first, middle) if interval <= middle else (middle + 1, last)
        return first, last

    def _over(self, name: str, first: int, last: int) -> Varying:
        """The numbers from one interval to another."""
        parts = self._parts[name]
        return parts[first] if first == last else replace(parts[first], high=parts[last].high)

    def _all(self, name: str) -> list[Varying]:
        positions = [(n, whole) for n in range(len(self._parts[name])) for whole in (False, True)]
        return list(dict.fromkeys(self._numbers(name, *position) for position in positions))

    def _class(self, chosen: Mapping[str, Varying]) -> Class:
        whole = {name: v for name, v in self._varies.items() if v.invariant}
        single = {name: p.low for name, p in chosen.items() if p.low == p.high and name not in whole}
        open_ = [(name, p) for name, p in chosen.items() if name not in single]
        parts = tuple((name, p) for name, p in open_ if name in whole)
        return Class(tuple((name, whole.get(name, p)) for name, p in open_), tuple(single.items()), parts)


def typical_sizes(varies: Mapping[str, Varying], others: Collection[int] = ()) -> dict[str, int]:
    """A number for each size, where it can be another one than that of every size before it, and than the `others`, those of sizes
    that do not vary. The planner has one loop for dimensions of one number: at a size of its own each has its own."""
    found = dict[str, int]()
    for name, v in sorted(varies.items()):
        found[name] = typical(v, {*found.values(), *others})
    return found


def typical(v: Varying, others: Collection[int] = ()) -> int:
    """The number that stands for a range: the greatest prime below a power of two near its geometric mean, or, up to `FEW`, near
    its end. If there is another, it is none of some `others`. It is a multiple of no more than all numbers of the range are. Tiles
    of powers of two fit it: a number just above the power would leave a tile all but empty. No other tile does: one of 3 or 5 rows
    would fit 15, and a third of it would be empty at half of the others."""
    low, high = -(-v.low // v.multiple), v.high // v.multiple
    near = (high - 1).bit_length() if v.high <= FEW else round(log2(max(1, isqrt(max(low, 1) * high))) + 0.25)
    end = min((1 << near) - 1, high)
    for taken in (others, ()):
        primes = (n for n in range(end, max(low, 2) - 1, -1) if _is_prime(n) and v.multiple * n not in taken)
        if (found := next(primes, None)) is not None:
            return v.multiple * found
    middle = min(max(end, low), high)
    return v.multiple * (middle if middle % 2 else middle + 1 if middle < high else max(low, middle - 1))


@cached
def _is_prime(number: int) -> bool:
    return all(number % d for d in range(2, isqrt(number) + 1))
