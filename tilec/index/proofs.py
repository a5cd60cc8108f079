"""The search for a proof that a term is at least 0: leaves are eliminated, the last first.

A sum that is linear in a leaf is least at one of that leaf's ends. A proof for these ends is one for all values between them.
Real numbers stand for whole ones: two quotients of one number by different divisors are compared by their ends alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import gcd, inf
from typing import Protocol

from tilec.index.answers import remembered
from tilec.index.terms import Cond, Leaf, Term, at_least, remainders, split, sum_of, term, total

STEPS = 24
"""Of one proof: with 80 no more was proved of 2,400 questions, and the slowest took 40 times as long."""


class Known(Protocol):
    """What a search asks of facts (`tilec/index/facts.py`)."""

    @property
    def swaps(self) -> Mapping[Leaf, Term]: ...
    def bounds(self, x: Term) -> tuple[float, float]: ...
    def ends_of(self, leaf: Leaf) -> tuple[tuple[Term, ...], tuple[Term, ...]]: ...
    def replaced(self, x: Term) -> Term: ...
    def is_divisor(self, n: Term) -> bool: ...
    def where(self, *conditions: Cond) -> Known: ...


def search(facts: Known, p: Term, steps: list[int]) -> bool:
    """Whether p >= 0 where the facts hold, in as many steps as are left of `steps`."""
    p = _tight(facts, p)
    low, high = facts.bounds(p)
    if low >= 0 or high < 0 or steps[0] <= 0 or not p.leaves:
        return low >= 0
    steps[0] -= 1
    if any(m[0] in m[1:] for m in p.parts if m):  # N * N - 2 * N + 2 is M * M + 1 for M = N - 1, which is not negative
        lows = {x: facts.bounds(term(x))[0] for x in p.leaves}
        if -inf not in lows.values() and all(f >= 0 for f in _moved(p, lows).parts.values()):
            return True
    for c, _, k, other in remainders(p, True):  # 0 to k - 1
        (least, most), positive = facts.bounds(c), facts.is_divisor(k)
        if positive and (least >= 0 or most <= 0) and search(facts, other if least >= 0 else other + c * (k - 1), steps):
            return True
    leaf = _last(facts, p.leaves)
    return any(all(search(here, q, steps) for here, q in case) for case in _cases(facts, leaf, *p.collect(leaf)))


def _last(facts: Known, leaves: Sequence[Leaf]) -> Leaf:
    """One that no other depends on: the last in order, but for new symbols that older ones are made of here."""
    if not facts.swaps:
        return leaves[0]
    behind = [_behind(facts, x) for x in leaves]
    return next((x for n, x in enumerate(leaves) if not any(x in b for m, b in enumerate(behind) if m != n)), leaves[0])


@remembered
def _behind(facts: Known, leaf: Leaf) -> frozenset[Leaf]:
    """What it is made of, and its ends are, and so on."""
    found, pending = set[Leaf](), [leaf]
    while pending:
        x = pending.pop()
        terms = [*x.args, *(x.when.terms if x.when else ()), *(facts.replaced(e) for e in x.ends if e is not None)]
        more = {y for t in terms for y in t.leaves} - found
        found |= more
        pending += more
    return frozenset(found)


def _cases(facts: Known, leaf: Leaf, c: Term, r: Term) -> Iterator[list[tuple[Known, Term]]]:
    """Lists of terms; c * leaf + r is at least 0 where all of one list are."""
    (least, most), linear = facts.bounds(c), leaf not in c.leaves
    rising, falling = least >= 0, most <= 0
    if leaf.op == "//":
        of, by = leaf.args
        k, rest = split(c, by)
        scale, slack = (term(1), term(0)) if rest is term(0) else (by, by - 1)
        k = k if rest is term(0) else c
        up, down = k * of + r * scale + slack, k * (of - by + 1) + r * scale + slack  # by * leaf is of - by + 1 to of
        if linear and (facts.is_divisor(by)):
            yield [(facts, q) for q in ([down] if rising else [up] if falling else [up, down])]
        low, high = facts.bounds(term(leaf))
        if rising and low > -inf:
            yield [(facts, c * int(low) + r)]
        if falling and high < inf:
            yield [(facts, c * int(high) + r)]
    elif leaf.op == "min":
        if falling:
            yield from ([(facts, c * a + r)] for a in leaf.args)
        yield [(facts.where(*(at_least(b, a) for b in leaf.args if b is not a)), c * a + r) for a in leaf.args]
    elif leaf.when is not None:
        yield [(facts.where(w), c * a + r) for w, a in zip((leaf.when, ~leaf.when), leaf.args)]
    else:
        lows, highs = facts.ends_of(leaf)
        if not falling:
            yield from ([(facts, c * a + r)] + ([] if rising else [(facts, c)]) for a in lows)
        if not rising:
            yield from ([(facts, c * b + r)] + ([] if falling else [(facts, -c)]) for b in highs)
        if linear and not rising and not falling:
            yield from ([(facts, c * a + r), (facts, c * b + r)] for a in lows for b in highs)


def _moved(p: Term, by: Mapping[Leaf, float]) -> Term:
    """With leaf + number for each leaf."""
    return total([reduce(Term.__mul__, (term(x) + int(by[x]) for x in m), term(f)) for m, f in p.parts.items()])


def _tight(facts: Known, p: Term) -> Term:
    """A sum of integers that is at least 0 only where p is: its parts' common divisors are taken out."""
    for leaf in p.leaves if p.parts and () not in p.parts else ():
        c, r = p.collect(leaf)
        if r is term(0) and c.constant is None and facts.is_divisor(term(leaf)):
            return _tight(facts, c)
    g = gcd(*(f for m, f in p.parts.items() if m))
    return sum_of({m: f // g for m, f in p.parts.items() if f // g}) if g > 1 else p


def cancelled(p: Term, fact: Term) -> Iterator[Term]:
    """b * p - a * fact, in which a part has gone, for positive a and b: p is at least 0 where one of these is."""
    for ratio in dict.fromkeys((p.parts[m], f) for m, f in fact.parts.items() if m and p.parts.get(m, 0) * f > 0):
        a, b = (abs(x) // gcd(*ratio) for x in ratio)
        yield p * b - fact * a
