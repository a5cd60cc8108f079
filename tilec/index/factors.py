"""Sums as multiples of a number and what is left: how quotients of sums become sums of quotients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import gcd

from tilec.index.terms import Monomial, Term, rank, remainders, split, sum_of, term, without


def as_multiples(x: Term, n: Term) -> Iterator[tuple[Term, Term, Term, Term]]:
    """(w, g, a, s), where x == n * w + g * a + s, and g divides n."""
    for found in _of_remainders(x, n):
        yield term(0), *found
    whole, rest = split(x, n)
    for g in _common_factors(rest, n):
        yield whole, g, *split(rest, g)


def _common_factors(x: Term, n: Term) -> list[Term]:
    """What divides n and some part of x, the largest first; where n is a sum, such as 4 * N + 4, that sum over a number."""
    if len(n.parts) != 1:
        return _common_sums(x, n)
    ((mono, b),) = n.parts.items()
    found: dict[tuple[Monomial, int], None] = {}
    for m, f in x.parts.items():
        if m:
            both = tuple(sorted((Counter(m) & Counter(mono)).elements(), key=lambda leaf: leaf.order)) if mono else ()
            found[both, gcd(f, b)] = None
    keys = sorted((k for k in found if k != ((), 1) and k != (mono, b)), key=lambda k: (-len(k[0]), -k[1]))
    return [sum_of({m: g}) for m, g in keys]


def _common_sums(x: Term, n: Term) -> list[Term]:
    number = gcd(*n.parts.values())
    least = sum_of({m: f // number for m, f in n.parts.items()}, ordered=True)
    lead, b = max(least.parts.items(), key=rank)
    found = {gcd(f // b, number) for m, f in x.parts.items() if f % b == 0 and without(m, lead) is not None}
    return [least * g for g in sorted(found - {number}, reverse=True)]


def _of_remainders(x: Term, n: Term) -> Iterator[tuple[Term, Term, Term]]:
    """(g, a, s), where x == g * a + s, and g divides n, a number: the remainders of a sum are parts of their own.

    6 * (i % 3) + j, 18   ->   (6, i % 3, j)
    """
    wholes, rest = list[tuple[Term, Term]](), x
    while n.constant and (found := min(remainders(rest, True), key=_lowest, default=None)):
        wholes.append((found[0], rest - found[3]))
        rest = found[3]
    factors = [*(c.constant or 1 for c, _ in wholes), *(f for m, f in rest.parts.items() if m)] if wholes else []
    for g in map(term, sorted({gcd(f, n.number) for f in factors} - {1}, reverse=True)):
        large, small = split(rest, g)
        for c, whole in wholes:
            if c.constant is not None and c.constant % g.number == 0:
                large = large + split(whole, g)[0]
            else:
                small = small + whole
        yield g, large, small


def _lowest(found: tuple[Term, Term, Term, Term]) -> tuple[int, int]:
    """The order of the digits of an index: what is left of a number of digits depends on those below them."""
    _, z, k, _ = found
    return max((leaf.args[1].constant or 0 for leaf in z.leaves if leaf.op == "//"), default=1), k.constant or 0
