"""Ranges of terms: the least and the greatest value, by intervals of their parts.

A sum is also looked at by the remainders that it has, and with its other parts inside of a quotient, a minimum or a choice, where
these cancel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Protocol

from tilec.index.terms import NESTED, Leaf, Term, remainders, split, term

Ends = tuple[float, float]
"""The least and the greatest value: whole numbers, or infinite."""
FEW = 4
"""Leaves of a sum that is looked at in all of these ways: with each more, they are several times as many."""


class Known(Protocol):
    """What is asked of facts (`tilec/index/facts.py`)."""

    def bounds(self, x: Term) -> Ends: ...
    def leaf_bounds(self, leaf: Leaf) -> Ends: ...


def bounds_of(facts: Known, x: Term) -> Ends:
    """The least and the greatest value, as numbers."""
    low: float = 0
    high: float = 0
    for m, f in x.parts.items():
        ends: Ends = (f, f)
        for leaf in m:
            ends = _product(ends, facts.leaf_bounds(leaf))
        low, high = low + ends[0], high + ends[1]
    if any(leaf.args for leaf in x.leaves):
        for ends in _by_parts(facts, x):
            low, high = max(low, ends[0]), min(high, ends[1])
    return low, high


def _by_parts(facts: Known, x: Term) -> Iterator[Ends]:
    """Ends of a sum by the remainders that it has, and by leaves of which the other parts are made parts, where these cancel:
    (i % 4 + 5) // 2 + 2 * (i // 4) is (i + 5) // 2."""
    compound = [leaf for leaf in x.leaves if leaf.args and leaf.op != "call"]
    few = len(compound) <= FEW
    found = remainders(x, few)
    if not few:  # one after another, since there are too many subsets: a digit begins with a smaller factor than it ends with
        found = tuple(sorted(found, key=lambda part: (_size(part[0]), _size(part[2])))[:1])
    for c, z, k, other in found:
        if any(leaf.op in ("min", "if") and leaf not in x.leaves for leaf in other.leaves):
            continue  # whose values bring back what is gone, with larger factors, without an end
        zs, ks = facts.bounds(z), facts.bounds(k)
        if ks[0] > 0:
            most = min(ks[1] - 1, zs[1] if zs[0] >= 0 else inf)
            yield _sum(_product(facts.bounds(c), (0, most)), facts.bounds(other))
    for leaf in compound if few else ():
        c, r = x.collect(leaf)
        if (factor := c.constant) is None:
            yield _sum(_product(facts.bounds(c), facts.bounds(term(leaf))), facts.bounds(r))
        elif leaf.free.isdisjoint(r.free):
            continue
        elif leaf.op == "//" and (by := leaf.args[1]).constant:
            q, rest = split(r, c)
            if not leaf.free.isdisjoint(q.free):
                low, high = facts.bounds(leaf.args[0] + by * q)
                quotient = _floor(low, by.number), _floor(high, by.number)
                yield _sum(_product(quotient, (factor, factor)), facts.bounds(rest))
        elif leaf.op in ("min", "if") and leaf.choices <= NESTED:
            lows, highs = zip(*(facts.bounds(a * factor + r) for a in leaf.args))
            least = leaf.op == "min" and factor > 0
            yield (max if leaf.op == "min" and factor < 0 else min)(lows), (min if least else max)(highs)


def _size(x: Term) -> float:
    return inf if (number := x.constant) is None else abs(number)


def bounds_of_leaf(facts: Known, leaf: Leaf) -> Ends:
    low, high = (None if e is None else facts.bounds(e) for e in leaf.ends)
    found = -inf if low is None else low[0], inf if high is None else high[1]
    if leaf.is_symbol or (leaf.op == "call" and leaf.name not in ("//", "%")):
        return found
    each = [facts.bounds(a) for a in leaf.args]
    if leaf.op == "min":
        return min(a for a, _ in each), min(b for _, b in each)
    if leaf.op == "if":
        return min(a for a, _ in each), max(b for _, b in each)
    (a, b), (c, d) = each
    if leaf.name == "%":  # by a number that may be 0
        return min(0, c + 1), max(0, d - 1)
    if c <= 0:
        return -max(abs(a), abs(b)), max(abs(a), abs(b))
    return min(_floor(a, c), _floor(a, d)), max(_floor(b, c), _floor(b, d))


def is_least(facts: Known, x: Term) -> bool:
    """Whether the least value by the intervals of its parts is one that it has: these depend on different symbols and calls, which
    have all values between their ends, and each part has its end there."""
    for c, z, k, other in remainders(x):
        if c.constant and k.constant and _independent((z, other)) and _in_a_row(facts, z) >= k.constant:
            return is_least(facts, other)  # all numbers from 0 to k - 1 are remainders
    one_each = all(len(m) < 2 for m in x.parts) and _independent(x.leaves)
    return one_each and all(_has_end(facts, m[0], f > 0) for m, f in x.parts.items() if m)


def _has_end(facts: Known, leaf: Leaf, least: bool) -> bool:
    """Whether a leaf has the least value of its interval, or else the greatest one."""
    if has_all(leaf):
        return True
    if leaf.op == "//":
        return leaf.args[1].constant is not None and is_least(facts, leaf.args[0] if least else -leaf.args[0])
    if leaf.op == "min":  # one argument is least where all are, and all are greatest at once
        at_once = least or _independent(leaf.args)
        return at_once and all(is_least(facts, a if least else -a) for a in leaf.args)
    return False


def has_all(leaf: Leaf) -> bool:
    """Whether it is a symbol, or a call of nothing, that has all values between two numbers."""
    unknown = leaf.is_symbol or (leaf.op == "call" and not leaf.args)
    return unknown and all(e is None or e.constant is not None for e in leaf.ends)


def _in_a_row(facts: Known, x: Term) -> float:
    """How many numbers in a row are values of a sum, if it is known to have all between its ends; else 0."""
    leaf = (x - x.number).leaf
    if leaf is None or not (_in_a_row(facts, leaf.args[0]) if leaf.op == "//" else has_all(leaf)):
        return 0
    low, high = facts.leaf_bounds(leaf)
    return high - low + 1


def _independent(parts: Sequence[Term | Leaf]) -> bool:
    """Whether no two of them depend on one symbol or call."""
    return sum(len(x.unknowns) for x in parts) == len({u for x in parts for u in x.unknowns})


def _floor(a: float, n: float) -> float:
    return a if a in (inf, -inf) else (0 if a >= 0 else -1) if n == inf else a // n


def _sum(a: Ends, b: Ends) -> Ends:
    return a[0] + b[0], a[1] + b[1]


def _product(a: Ends, b: Ends) -> Ends:
    each = [x * y if x and y else 0 for x in a for y in b]
    return min(each), max(each)
