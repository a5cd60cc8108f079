"""Questions about terms: how a subscript depends on an index.

    x = 4 * i + j // 16 * 64        factor(x, i) -> 4    is_shared(x, j, 16) -> True    period(j, x) -> 16

Each answer holds for all values that indices and sizes may have: None, or False, where it varies or is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import gcd, prod

from tilec.index.answers import remembered
from tilec.index.facts import NONE
from tilec.index.terms import Cond, Leaf, Term, at_least, index, remainders, split, term, traverse

TRIAL = 1 << 12  # prime factors from here on are not searched: those of vectors and tiles are smaller


@remembered
def factor(x: Term, d: Term) -> Term | None:
    """Of an index in a term that is linear in it; 0 where it does not depend on it.   4 * i + j, i   ->   4"""
    c, r = x.collect(d.symbol)
    return None if d.symbol in c.free | r.free else c


@remembered
def step(x: Term, d: Term) -> Term | None:
    """By how much it grows from each number of an index to the next.   (4 * i + j) // 4, i   ->   1"""
    found = NONE.rebuilt(x, {d.symbol: d + 1}) - x
    return found if d.symbol not in found.free else None


@remembered
def unclamped(x: Term) -> Term:
    """It where no minimum or maximum with a number has an effect.   min(max(i - 1, 0), 31)   ->   i - 1"""
    facts = NONE
    for leaf in reversed([leaf for y in traverse(x) for leaf in y.leaves if leaf.op == "min"]):
        numbers = [a for a in leaf.args if a.constant is not None]
        for a in leaf.args if len(numbers) == 1 else ():
            facts = facts.assume(at_least(numbers[0], facts.simplified(a)))
    return facts.simplified(x)


@remembered
def in_lanes(x: Term, d: Term, v: Term | int) -> tuple[Term, Leaf]:
    """It at v * block + lane in place of an index, and the lane: v adjacent elements, from a multiple of v on."""
    low, high = d.symbol.ends
    lane = index(f"{d}%{v}", v)
    block = index(f"{d}/{v}", None if high is None else (high + v) // v, None if low is None else low // v)
    return NONE.rebuilt(x, {d.symbol: block * v + lane}), lane.symbol


@remembered
def is_shared(x: Term, d: Term, v: Term | int) -> bool:
    """Whether v adjacent elements share it, from each multiple of v on.   i // 16, i, 4   ->   True"""
    if d.symbol not in x.free:
        return True
    moved, lane = in_lanes(x, d, v)
    return lane not in moved.free


@remembered
def lane_numbers(x: Term, d: Term, v: int) -> tuple[int, ...] | None:
    """Its values for v adjacent elements, from each multiple of v on, where these are numbers and not all the same.

    (4 * j + i) % 4, i, 4   ->   0, 1, 2, 3
    """
    moved, lane = in_lanes(x, d, v)
    values = [NONE.rebuilt(moved, {lane: term(n)}).constant for n in range(v)] if moved.free == {lane} else [None]
    found = tuple(n for n in values if n is not None)
    return found if len(found) == v and len({*found}) > 1 else None


@remembered
def is_adjacent(x: Term, d: Term, v: int, alignment: int = 1) -> bool:
    """Whether it grows by one from lane to lane, of v from each multiple of v on, and begins at a multiple of a number."""
    moved, lane = in_lanes(x, d, v)
    first = moved - term(lane)
    return lane not in first.free and multiple(first) % alignment == 0


@remembered
def period(d: Term, *xs: Term) -> Term:
    """The largest number through whose quotient alone they depend on an index: 1 where each is another, 0 where they do not.

    i, i // 4 + j, i // 8 % 2   ->   4
    """
    if not any(d.symbol in x.free for x in xs):
        return term(0)
    found: Term | None = None
    quotients = (leaf for x in traverse(*xs) for leaf in x.leaves if leaf.op == "//")
    for leaf in dict.fromkeys(q for q in quotients if d.symbol in q.args[0].free):
        of, by = leaf.args
        unit = split(by, term(gcd(of.collect(d.symbol)[0].constant or 1, by.constant or 0) or 1))[0]
        if found is None or found is unit:
            found = unit
        else:
            found = term(gcd(found.constant or 1, unit.constant or 1))
    most = term(1) if found is None else found
    if all(is_shared(x, d, most) for x in xs):
        return most
    if most.constant is None:  # a size
        return term(1)
    size = 1  # what depends on i // a alone and on i // b alone depends on i // lcm(a, b) alone: each prime for itself
    for p in _primes(most.constant):
        if all(is_shared(x, d, size * p) for x in xs):
            size *= p
    return term(size)


def _primes(n: int) -> Iterator[int]:
    """Its prime factors, each as often as it divides. What has none below `TRIAL` counts as one.   12   ->   2, 2, 3"""
    p = 2
    while p * p <= n and p < TRIAL:
        if n % p == 0:
            yield p
            n //= p
        else:
            p += 1
    if n > 1:
        yield n


@remembered
def page(x: Term, d: Term) -> Term | None:
    """n, where it is the remainder of an index by n.   i % 16, i   ->   16"""
    return next((k for c, z, k, other in remainders(x) if z is d and c.constant == 1 and other is term(0)), None)


@remembered
def multiple(x: Term) -> int:
    """The largest number that is known to divide it; 0 of 0.   8 * (N/8) + 4 * i   ->   4"""
    return gcd(*(f * prod(gcd(*map(multiple, leaf.args)) for leaf in m if leaf.op in ("min", "if")) for m, f in x.parts.items()))


@remembered
def diagonal(i: Term, j: Term, *xs: Term) -> tuple[int, int] | None:
    """(a, b), where they depend on two indices through a * i + b * j alone: a is positive, and both have no common factor.

    i, j, (i - j) // 2 + 7, min(j - i, 3)   ->   (1, -1)
    """
    pairs: dict[tuple[int, int], None] = {}
    for x in traverse(*xs):
        a, b = (x.factor(d.symbol).constant if d.symbol in x.leaves else None for d in (i, j))
        if a and b:
            common = gcd(a, b) * (1 if a > 0 else -1)
            pairs[a // common, b // common] = None
    for a, b in pairs:
        move = {i.symbol: i + b, j.symbol: j - a}
        if all((NONE.rebuilt(x, move) - x) is term(0) for x in xs):
            return a, b
    return None


@remembered
def thresholds(when: Cond, d: Term) -> tuple[Term, ...]:
    """Numbers of an index from which on the outcome of a condition may change; none of parts that are not linear in it.

    i + 3 >= 10, i   ->   7
    """
    if when.term is None:
        return tuple(t for p in when.parts for t in thresholds(p, d))
    c, r = when.term.collect(d.symbol)
    if not (a := c.constant) or d.symbol in r.free:
        return ()
    if when.op != ">=":
        first = -(r // a) if a > 0 else -(-r // -a)
        return first, first + 1
    return (-(r // a) if a > 0 else r // -a + 1,)


def divisions(xs: Iterable[Term]) -> int:
    """How many different quotients are computed."""
    return len({leaf for x in traverse(*xs) for leaf in x.leaves if leaf.op == "//"})


def digits(d: Term, *xs: Term) -> list[Term] | None:
    """Extents of the parts of an index, outermost first, in whose place nothing is divided; None where there are none.

    p, p // 4 % 8, p % 4   ->   [P // 32, 8, 4]
    """
    if (high := d.symbol.ends[1]) is None:
        return None
    cuts = {leaf.args[1] for x in traverse(*xs) for leaf in x.leaves if leaf.op == "//" and leaf.args[0] is d}
    ends = sorted({term(1), *cuts, high + 1}, key=lambda t: (max(map(len, t.parts), default=0), t.constant or 0, t.digest))
    parts = [split(b, a) for a, b in pairwise(ends)]
    return None if any(r is not term(0) for _, r in parts) else [q for q, _ in reversed(parts)]
