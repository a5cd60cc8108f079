"""Whether a system of linear inequalities has a solution in integers.

This is the Omega test (Pugh, "The Omega test: a fast and practical integer programming algorithm for dependence analysis",
1991). Equalities are solved by Euclid's algorithm on their factors. Inequalities lose one variable after another (Fourier and
Motzkin). Where that is not exact in integers, the dark shadow and then the splinters decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd

Row = tuple[Mapping[str, int], int]
"""Factors of variables, and a number: their sum is at least 0, or equal to 0."""
MOST_WORK = 20_000  # combinations of two inequalities


class TooMuch(Exception):
    """The answer takes more work than it is worth."""


@dataclass
class Work:
    """How many combinations may still be made, and how many variables were."""

    left: int = MOST_WORK
    made: int = field(default=0)

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooMuch


def has_solution(at_least: Iterable[Row], equal: Iterable[Row] = (), work: Work | None = None) -> bool:
    """Whether integers exist for which each of `at_least` is >= 0 and each of `equal` is 0. Raises TooMuch."""
    return _solvable([(dict(f), n) for f, n in equal], [(dict(f), n) for f, n in at_least], work or Work())


_Row = tuple[dict[str, int], int]


def _solvable(equal: list[_Row], at_least: list[_Row], work: Work) -> bool:
    while True:
        found = _without_equalities(equal, at_least, work)
        if found is None:
            return False
        reduced = _tightened(found, work)
        if reduced is None:
            return False
        at_least, equal = reduced
        if equal:
            continue
        if not at_least:
            return True
        name, exact = _next(at_least)
        lower = [r for r in at_least if r[0].get(name, 0) > 0]
        upper = [r for r in at_least if r[0].get(name, 0) < 0]
        rest = [r for r in at_least if not r[0].get(name, 0)]
        if not lower or not upper:
            at_least = rest
            continue
        if exact:
            at_least = rest + _shadow(name, lower, upper, work)
            continue
        if not _solvable([], rest + _shadow(name, lower, upper, work), work):
            return False
        if _solvable([], rest + _shadow(name, lower, upper, work, dark=True), work):
            return True
        return _splinters(name, at_least, lower, upper, work)


def _splinters(name: str, at_least: list[_Row], lower: list[_Row], upper: list[_Row], work: Work) -> bool:
    """The solutions that the dark shadow leaves out lie close above a lower end."""
    most = max(-f[name] for f, _ in upper)
    for factors, number in lower:
        for above in range((most * factors[name] - most - factors[name]) // most + 1):
            work.spend(1)
            if _solvable([(dict(factors), number - above)], [(dict(f), n) for f, n in at_least], work):
                return True
    return False


def _without_equalities(equal: list[_Row], at_least: list[_Row], work: Work) -> list[_Row] | None:
    """The inequalities after the equalities are solved; None where these have no solution."""
    while equal:
        factors, number = equal.pop()
        factors = {v: a for v, a in factors.items() if a}
        if not factors:
            if number:
                return None
            continue
        common = gcd(*factors.values())
        if number % common:
            return None
        factors, number = {v: a // common for v, a in factors.items()}, number // common
        name = min(factors, key=lambda v: (abs(factors[v]), v))
        by = factors[name]
        work.spend(1)
        if abs(by) == 1:  # name = -by * (the rest)
            value = {v: -by * a for v, a in factors.items() if v != name}, -by * number
        else:  # in place of `name` a variable that takes whole multiples of its factor out of the others
            work.made += 1
            fresh = f"{name}'{work.made}"
            value = {v: -(a // by) for v, a in factors.items() if v != name} | {fresh: 1}, -(number // by)
            equal.append((factors, number))
        equal = [_substituted(row, name, value) for row in equal]
        at_least = [_substituted(row, name, value) for row in at_least]
    return at_least


def _substituted(row: _Row, name: str, value: _Row) -> _Row:
    factors, number = row
    if not (by := factors.get(name, 0)):
        return row
    found = {v: a for v, a in factors.items() if v != name}
    for v, a in value[0].items():
        found[v] = found.get(v, 0) + by * a
    return {v: a for v, a in found.items() if a}, number + by * value[1]


def _tightened(rows: list[_Row], work: Work) -> tuple[list[_Row], list[_Row]] | None:
    """The inequalities without common factors, one for each direction, and the equalities that two of them amount to; None
    where two contradict each other."""
    least: dict[tuple[tuple[str, int], ...], int] = {}
    for factors, number in rows:
        factors = {v: a for v, a in factors.items() if a}
        if not factors:
            if number < 0:
                return None
            continue
        common = gcd(*factors.values())
        key = tuple(sorted((v, a // common) for v, a in factors.items()))
        number //= common
        least[key] = min(least.get(key, number), number)
    work.spend(len(least) // 8)
    equal: list[_Row] = []
    kept: list[_Row] = []
    for key, number in least.items():
        opposite = least.get(tuple((v, -a) for v, a in key))
        if opposite is not None and number + opposite < 0:
            return None
        if opposite is not None and number + opposite == 0:
            if key[0][1] > 0:
                equal.append((dict(key), number))
            continue
        kept.append((dict(key), number))
    return kept, equal


def _next(rows: list[_Row]) -> tuple[str, bool]:
    """The variable to eliminate, and whether that is exact: one side has factors of 1 only."""
    low: dict[str, list[int]] = defaultdict(list)
    high: dict[str, list[int]] = defaultdict(list)
    for factors, _ in rows:
        for v, a in factors.items():
            (low if a > 0 else high)[v].append(abs(a))

    def order(v: str) -> tuple[bool, int, str]:
        exact = all(a == 1 for a in low[v]) or all(a == 1 for a in high[v])
        return not exact, len(low[v]) * len(high[v]) - len(low[v]) - len(high[v]), v

    inexact, _, name = min(map(order, {*low, *high}))
    return name, not inexact


def _shadow(name: str, lower: list[_Row], upper: list[_Row], work: Work, dark: bool = False) -> list[_Row]:
    """What is left of the inequalities without a variable: for real numbers; `dark`: where an integer surely lies between."""
    work.spend(len(lower) * len(upper))
    found = []
    for f, n in lower:
        for g, m in upper:
            a, b = f[name], -g[name]
            factors = {v: b * c for v, c in f.items() if v != name}
            for v, c in g.items():
                if v != name:
                    factors[v] = factors.get(v, 0) + a * c
            found.append(({v: c for v, c in factors.items() if c}, b * n + a * m - dark * (a - 1) * (b - 1)))
    return found
