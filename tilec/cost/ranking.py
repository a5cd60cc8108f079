"""The best of many choices, most of which are never predicted (branch and bound).

Choices come in bunches, each with a bound: a number that is below the ranks of all in it, and takes much less time to find than
these. A bunch is weighed once its bound is below the best rank that is known, since the next choice may then be one of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar, overload

T = TypeVar("T")

Ranked = tuple[tuple[float, ...], T]
"""A choice behind the numbers that order it: its rank first, then what decides between equals."""


class Ranking(Sequence[T], Generic[T]):
    """All choices of its bunches, the least first. As a sequence it weighs no more of them than it is asked for; its length needs
    all of them."""

    def __init__(self) -> None:
        self._bunches: list[tuple[float, int, Callable[[], Iterable[Ranked[T]]]]] = []
        self._weighed: list[Ranked[T]] = []
        self._found: list[T] = []
        self._added = 0

    def add(self, bound: float, weigh: Callable[[], Iterable[Ranked[T]]]) -> None:
        """A bunch of choices, of which none has a rank below `bound`. No two choices of a ranking have the same numbers."""
        assert not self._found, "a choice that is known as the best may not be it"
        heappush(self._bunches, (bound, self._added, weigh))
        self._added += 1

    @property
    def least(self) -> float:
        """The rank of the best, infinite where there is none; before any choice was asked for."""
        self._weigh()
        return self._weighed[0][0][0] if self._weighed else inf

    def _weigh(self) -> None:
        """Until the best of those that are weighed is the best of those that are left."""
        while self._bunches and (not self._weighed or self._bunches[0][0] <= self._weighed[0][0][0]):
            for ranked in heappop(self._bunches)[-1]():
                heappush(self._weighed, ranked)

    def _reach(self, count: float) -> list[T]:
        """The choices that are found, so many of them if there are."""
        while len(self._found) < count:
            self._weigh()
            if not self._weighed:
                break
            self._found.append(heappop(self._weighed)[-1])
        return self._found

    @overload
    def __getitem__(self, which: int) -> T: ...
    @overload
    def __getitem__(self, which: slice) -> list[T]: ...
    def __getitem__(self, which: int | slice) -> T | list[T]:
        last = which.stop if isinstance(which, slice) else which + 1
        return self._reach(inf if last is None or last <= 0 else last)[which]

    def __len__(self) -> int:
        return len(self._reach(inf))

    def __bool__(self) -> bool:
        return bool(self._reach(1))
