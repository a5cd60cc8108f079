"""What is known of terms: ranges, proofs, and the normal forms that follow from them.

    (4 * i + 3) // 4                         ->   i       whole multiples leave a quotient
    NONE.proves(N - 8 - n // 8 * 8)          ->   True    for N a multiple of 8 from 8 to 8192, and all n below it
    NONE.assume(equal(d % 2, 1)).proves(d - 1)   ->   True    d is at least 1 where it is odd

A proof is "proved" or "not proved": True is for all sizes and indices that are allowed; False says nothing. What is proved of an
index holds for no value where its range is empty, and says nothing about sizes.

Answers depend on the question alone, so that they are remembered, for all threads, and may be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import gcd, inf

from tilec.index.answers import remembered
from tilec.index.factors import as_multiples
from tilec.index.proofs import STEPS, cancelled, search
from tilec.index.ranges import Ends, bounds_of, bounds_of_leaf, has_all, is_least
from tilec.index.terms import NESTED, Cond, Leaf, Term, call, leaf_of, remainders, split, sum_of, term

ROUNDS = 3  # of ends that follow from other ends
DEEP = 16  # leaves in one another: values that are chosen and made of more, such as random numbers, are not simplified


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known at one point of a program: `known` terms are at least 0; `swaps` is what symbols are there; `lows` and `highs`
    are further ends of symbols and calls; `never`: nothing is evaluated there. `NONE` has no facts, and `assume` adds some."""

    known: tuple[Term, ...] = ()
    swaps: Mapping[Leaf, Term] = field(default_factory=dict)
    lows: Mapping[Leaf, tuple[Term, ...]] = field(default_factory=dict)
    highs: Mapping[Leaf, tuple[Term, ...]] = field(default_factory=dict)
    never: bool = False
    depth: int = 0
    ranges: Mapping[Leaf, Ends] = field(default_factory=dict)
    """Of the symbols and calls that facts are about, as numbers."""

    # -- normal forms

    @remembered
    def div(self, x: Term, n: Term) -> Term:
        """The quotient, rounded down."""
        b = n.constant
        if b == 1:
            return x
        if (b is None and not self.proves(n - 1)) or (b is not None and b < 1):  # it may be 0: nothing is known
            return self.div(-x, -n) if (b is None and self.proves(-n - 1)) or (b or 0) < 0 else call("//", x, n)
        whole, rest = split(x, n)
        if (known := self._digit(rest, n)) is not None:
            return whole + known
        for more, g, large, small in as_multiples(x, n):  # (g * a + s) // (g * k) is a // k, where s is 0 to g - 1
            if (digit := self._digit(small, g)) is not None and large is not term(0):
                return more + self.div(large + digit, split(n, g)[0])
        inner = next((m[0] for m, f in rest.parts.items() if len(m) == 1 == f and m[0].op == "//"), None)
        if inner is not None and inner not in (rest - term(inner)).leaves:  # (y // a + z) // n is (y + a * z) // (a * n)
            of, by = inner.args
            return whole + self.div(of + by * (rest - term(inner)), by * n)
        return whole + leaf_of("//", "", (rest, n))

    def mod(self, x: Term, n: Term) -> Term:
        """The remainder: of a positive number n, 0 to n - 1."""
        if (b := n.constant) and x.constant is not None:
            return term(x.constant % b)
        quotient = self.div(x, n)
        return call("%", x, n) if quotient is call("//", x, n) else x - n * quotient

    def _digit(self, r: Term, n: Term) -> int | None:
        """r // n, where that is one number."""
        low, high = self.bounds(r)
        if (b := n.constant) is not None and -inf < low and high < inf and low // b == high // b:
            return int(low // b)
        if r.constant is None or n.constant is None:
            for k in (0, -1):
                if self.proves(r - n * k) and self.proves(n * (k + 1) - 1 - r):
                    return k
        return None

    def min(self, *args: Term) -> Term:
        flat = [x for a in args for x in (a.leaf.args if a.leaf and a.leaf.op == "min" else (a,))]
        least: list[Term] = []
        for a in sorted(dict.fromkeys(flat), key=lambda a: ([x.order for x in a.leaves], a.digest)):
            if not any(self.proves(a - k) for k in least):
                least = [k for k in least if not self.proves(k - a)] + [a]
        return least[0] if len(least) == 1 else leaf_of("min", "", tuple(least))

    def choose(self, when: Cond, yes: Term, no: Term) -> Term:
        """`yes` where a condition holds, else `no`."""
        known = self.decide(when)
        if known is not None or yes is no:
            return yes if known is not False else no
        inner = [leaf for x in (yes, no) for leaf in x.leaves if leaf.args]
        if inner and max(leaf.choices for leaf in inner) < NESTED and max(leaf.order for leaf in inner)[0] <= DEEP:
            yes, no = self.assume(when).simplified(yes), self.assume(~when).simplified(no)
        return yes if yes is no else leaf_of("if", "", (yes, no), (None, None), when)

    def rebuilt(self, x: Term, values: Mapping[Leaf, Term]) -> Term:
        """With other terms for some symbols, in normal form again."""
        return self._rebuilt(x, tuple(values.items()))

    def _rebuilt(self, x: Term, values: tuple[tuple[Leaf, Term], ...]) -> Term:
        if self is NONE and not any(leaf in x.free for leaf, _ in values):
            return x
        parts = {m: f for m, f in x.parts.items() if any(leaf.args or leaf.is_symbol for leaf in m)}
        found = sum_of({m: f for m, f in x.parts.items() if m not in parts})
        for m, f in parts.items():
            found = found + reduce(Term.__mul__, (self._new(leaf, values) for leaf in m), term(f))
        return found

    @remembered
    def _new(self, leaf: Leaf, values: tuple[tuple[Leaf, Term], ...]) -> Term:
        if leaf.is_symbol:
            return next((x for old, x in values if old is leaf), term(leaf))
        args = [self._rebuilt(a, values) for a in leaf.args]
        if leaf.op == "//" or leaf.name == "//":
            return self.div(*args)
        if leaf.name == "%" and args:
            return self.mod(*args)
        if leaf.op == "min":
            return self.min(*args)
        if leaf.when is not None:
            return self.choose(leaf.when.mapped(lambda t: self._rebuilt(t, values)), *args)
        return leaf_of("call", leaf.name, tuple(args), leaf.ends)

    def simplified(self, x: Term) -> Term:
        """In terms of the same symbols: what is known decides quotients, minima and choices."""
        return x if self.never or all(leaf.is_symbol for leaf in x.leaves) else self._simplified(x)

    @remembered
    def _simplified(self, x: Term) -> Term:
        return self.rebuilt(x, {})

    def replaced(self, x: Term) -> Term:
        """With what symbols are at this point."""
        return x if not self.swaps or self.swaps.keys().isdisjoint(x.free) else self._replaced(x)

    @remembered
    def _replaced(self, x: Term) -> Term:
        return NONE.rebuilt(x, self.swaps)  # without facts: their own ends are asked for here

    # -- ranges

    @remembered
    def bounds(self, x: Term) -> Ends:
        """The least and the greatest value, as numbers."""
        return bounds_of(self, x)

    @remembered
    def leaf_bounds(self, leaf: Leaf) -> Ends:
        return self.ranges[leaf] if leaf in self.ranges else bounds_of_leaf(self, leaf)

    def ends_of(self, leaf: Leaf) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """The ends of a symbol or call: each of the first is at most it, each of the second at least it."""
        low, high = (() if e is None else (self.replaced(e),) for e in leaf.ends)
        return self.lows.get(leaf, ()) + low, self.highs.get(leaf, ()) + high

    def ends(self, x: Term) -> tuple[Term | None, Term | None]:
        """The least and the greatest value over all indices, as terms in sizes; None where that is not known."""
        return self._end(x, 0), self._end(x, 1)

    @remembered
    def _end(self, x: Term, side: int) -> Term | None:
        leaf = next((y for y in x.leaves if y.op == "call" or has_index(y)), None)
        if leaf is None:
            return x
        for c, _, k, other in remainders(x):  # 0 to k - 1
            if (s := self.sign(c)) is not None and self.proves(k - 1) and not any(map(has_index, k.leaves)):
                return self._end(other + (c * (k - 1) if (s > 0) == side else 0), side)
        c, r = x.collect(leaf)
        s = self.sign(c)
        if s is None or leaf in c.leaves:
            return None
        up = side if s > 0 else 1 - side
        end: Term | None
        if leaf.op in ("index", "call"):
            end = next(iter(self.ends_of(leaf)[up]), None)
        elif leaf.op == "//":
            of, by = leaf.args
            end = self._end(of, up) if self.sign(by) == 1 and not any(map(has_index, by.leaves)) else None
            end = None if end is None else self.div(end, by)
        else:
            each = [e for e in (self._end(a, up) for a in leaf.args) if e is not None]
            least = leaf.op == "min" or not up
            end = None if len(each) < len(leaf.args) else self.min(*each) if least else -self.min(*(-e for e in each))
        return None if end is None else self._end(c * end + r, side)

    def sign(self, x: Term) -> int | None:
        """1 where it is at least 0, -1 where it is at most 0."""
        return 1 if self.proves(x) else -1 if self.proves(-x) else None

    def fits(self, x: Term, bits: int) -> bool:
        """Whether it is a signed number of so many bits."""
        low, high = self.bounds(x)
        return -(1 << bits - 1) <= low and high < 1 << bits - 1

    # -- proofs

    @remembered
    def proves(self, p: Term) -> bool:
        """Whether p >= 0 for all sizes and indices that are allowed here."""
        if self.never or self.bounds(p)[0] >= 0:
            return True
        if self._is_box and is_least(self, p):
            return False
        p = self.replaced(p)
        if search(self, p, [STEPS]):
            return True
        less = [q for f in self.known for q in cancelled(p, f)]
        return any(search(self, q, [STEPS]) for q in less) or any(
            search(self, q, [STEPS // 4]) for s in less for f in self.known for q in cancelled(s, f)
        )

    @cached_property
    def _is_box(self) -> bool:
        """Whether the facts are numbers alone that single symbols and calls lie between."""
        single = [k.leaves[0] for k in self.known if len(k.leaves) == 1 and all(len(m) < 2 for m in k.parts)]
        numbers = len(single) == len(self.known) and all(has_all(leaf) for leaf in single)
        return numbers and not self.swaps and all(low <= high for low, high in self.ranges.values())

    def is_divisor(self, n: Term) -> bool:
        """Whether it is positive, by what needs no proof under these facts."""
        return self.bounds(n)[0] > 0 or NONE.proves(n - 1)

    def where(self, *conditions: Cond) -> Facts:
        """In a case of a proof: nothing is decided, and cases of cases of cases are proved without their facts."""
        return self if self.depth > 1 else self._case(*conditions)

    @remembered
    def _case(self, *conditions: Cond) -> Facts:
        found = self
        for when in conditions:
            if when.op == "and":
                found = found._case(*when.parts)
            if when.term is not None and when.op in (">=", "=="):
                found = found._narrowed(*(found.replaced(t) for t in (when.term, -when.term)[: 2 if when.op == "==" else 1]))
        return replace(found, depth=self.depth + 1)

    def decide(self, when: Cond) -> bool | None:
        """Whether a condition holds always, or never; None where that is not known."""
        if when.term is None:
            each = [self.decide(p) for p in when.parts]
            return (when.op == "or") if (when.op == "or") in each else None if None in each else when.op == "and"
        t = self.replaced(when.term)
        if when.op == ">=":
            return True if self.proves(t) else False if self.proves(-t - 1) else None
        t = self.simplified(t)
        never = self.proves(t - 1) or self.proves(-t - 1) or t.number % (gcd(*(f for m, f in t.parts.items() if m)) or 1)
        always = t is term(0) or (not never and self.proves(t) and self.proves(-t))
        return (when.op == "==") if always else (when.op == "!=") if never else None

    # -- guards

    @remembered
    def assume(self, when: Cond) -> Facts:
        """These facts, and a condition that holds. What cannot be used of it is left out, which is sound."""
        if when.op == "and" or len(when.parts) == 1:
            return reduce(Facts.assume, when.parts, self)
        known = self.decide(when)
        if known is not None or when.term is None:
            return replace(self, never=True) if known is False else self
        t = self.replaced(when.term)
        if when.op == "!=":
            s = self.sign(t)
            return self if s is None else self.assume(Cond(">=", t * s - 1))
        return self._with_equal(t) if when.op == "==" or self.proves(-t) else self._narrowed(t)

    def _narrowed(self, *terms: Term) -> Facts:
        """Each of the terms is at least 0: an end of each symbol in which it is linear."""
        lows, highs = dict(self.lows), dict(self.highs)
        for t in terms:
            for leaf in [x for x in t.leaves if x.is_symbol or x.op == "call"]:
                c, r = t.collect(leaf)
                if (a := c.constant) and leaf not in r.free:
                    ends, end = (lows, -NONE.div(r, term(a))) if a > 0 else (highs, NONE.div(r, term(-a)))
                    ends[leaf] = (end, *ends.get(leaf, ()))
        return replace(self, known=(*self.known, *terms), lows=lows, highs=highs)._ranged()

    def _with_equal(self, t: Term) -> Facts:
        """t == 0: a symbol with the factor 1 is the rest of the sum; or, of a remainder, n times a new symbol and a number."""
        found = self._narrowed(t, -t)
        for c, z, k, other in remainders(t):
            n, number = k.constant, (other * -1 if c.constant == 1 else other).constant
            if number is None or c.constant not in (1, -1):
                continue
            for leaf in [x for x in z.leaves if x.is_symbol]:
                f, rest = z.collect(leaf)
                able = gcd(f.constant or 0, n) == 1 if n else z is term(leaf)
                if (factor := f.constant) is None or leaf in rest.free | k.free or not able:
                    continue
                first = term(number)
                if n:  # factor * leaf + rest is number modulo n
                    first = (number - rest) * pow(factor, -1, n)
                    first = sum_of({m: x % n for m, x in first.parts.items() if x % n})
                low, high = leaf.ends
                low = None if low is None else -NONE.div(first - low, k)
                high = None if high is None else NONE.div(high - first, k)
                return found._swapped(leaf, leaf_of(leaf.op, f"{leaf.name}/{k}", (), (low, high)) * k + first)
        for leaf in [x for x in t.leaves if x.is_symbol]:
            f, rest = t.collect(leaf)
            if (factor := f.constant) in (1, -1) and leaf not in rest.free:
                return found._swapped(leaf, -rest if factor == 1 else rest)
        return found

    def _swapped(self, leaf: Leaf, by: Term) -> Facts:
        """Where a symbol is a term of other ones; its own ends are facts about that."""
        here = Facts(swaps={leaf: by})
        sides = [by - e for e in self.ends_of(leaf)[0]] + [e - by for e in self.ends_of(leaf)[1]]
        known = tuple(dict.fromkeys(here.replaced(k) for k in (*self.known, *sides)))
        swaps = {**{s: here.replaced(x) for s, x in self.swaps.items()}, leaf: by}
        lows, highs = ({s: tuple(map(here.replaced, e)) for s, e in x.items() if s is not leaf} for x in (self.lows, self.highs))
        return Facts(tuple(k for k in known if not NONE.proves(k)), swaps, lows, highs, self.never)._ranged()

    def _ranged(self) -> Facts:
        """With the ranges that follow: a few rounds, as facts may go in a circle, each from all ranges of the one before."""
        about = dict.fromkeys((*self.lows, *self.highs, *self.swaps))
        found = replace(self, ranges={x: NONE.bounds(term(x)) for x in about})
        for _ in range(ROUNDS):
            ranges = {x: found._range(x) for x in about}
            if ranges == found.ranges:
                break
            found = replace(found, ranges=ranges)
        return found

    def _range(self, leaf: Leaf) -> Ends:
        own = self.ranges[leaf]
        here = [self.bounds(self.swaps[leaf])] if leaf in self.swaps else []
        ends = zip(leaf.ends, (self.lows, self.highs))
        lows, highs = ([self.bounds(e) for e in (*more.get(leaf, ()), *([] if end is None else [end]))] for end, more in ends)
        return max([own[0], *(e[0] for e in (*lows, *here))]), min([own[1], *(e[1] for e in (*highs, *here))])


def has_index(leaf: Leaf) -> bool:
    """Whether it depends on an index."""
    return any(s.op == "index" for s in leaf.free)


NONE = Facts()
Term.quotient, Term.remainder = NONE.div, NONE.mod


def minimum(*args: Term | int) -> Term:
    return NONE.min(*map(term, args))


def maximum(*args: Term | int) -> Term:
    return -NONE.min(*(-term(a) for a in args))


def clamp(x: Term, low: Term | int, high: Term | int) -> Term:
    return minimum(maximum(x, low), high)


def choose(when: Cond, yes: Term | int, no: Term | int) -> Term:
    """`yes` where a condition holds, else `no`."""
    return NONE.choose(when, term(yes), term(no))
