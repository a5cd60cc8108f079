"""Integer terms over indices and sizes: sums of products of leaves times numbers.

    i = index("i", 32);  N = size("N", 8, 8192, multiple=8);  n = index("n", N)
    4 * i + 3                      a sum: {(i,): 4, (): 3}
    n // 8 * 8 + n % 8   ->   n    a remainder is x - n * (x // n), and no leaf of its own

A leaf is a symbol (an index or a size, between two terms), a call (a value of which only the arguments are known, such as an
element of memory), a quotient rounded down, a minimum, or a choice. Terms and leaves are unique: equal ones are the same object,
and `x is y` compares them. Two terms are equal, too, if their difference is `term(0)`. All arithmetic is that of integers: readers
leave out what may exceed 64 bits.

Leaves are ordered by what they are made of and by their names, never by when or where they were made: what is found of a term
depends on nothing but the term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from threading import Lock
from typing import ClassVar
from weakref import WeakValueDictionary

from tilec.index.answers import remembered

Monomial = tuple["Leaf", ...]
"""A product of leaves, in their order; () is 1."""
Order = tuple[int, str, bytes]
NESTED = 4
"""Choices and minima in one another whose cases are looked at: with each more, there are twice as many cases of cases."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """`op`: "index", "size", "call", "//", "min" or "if". `ends`: the least and the greatest value of a symbol or a call; None
    where that is unknown. `when`: the condition of an "if", whose `args` are the values where it holds and where it does not.
    A leaf comes later in the order (`order`) than all that it is made of, and than its ends."""

    op: str
    name: str = ""
    args: tuple[Term, ...] = ()
    ends: tuple[Term | None, Term | None] = (None, None)
    when: Cond | None = None

    @cached_property
    def order(self) -> Order:
        terms = [*self.args, *(e for e in self.ends if e is not None), *(self.when.terms if self.when else ())]
        rank = 1 + max((x.order[0] for t in terms for x in t.leaves), default=0)
        text = f"{self.op} {self.name} {self.when.ops if self.when else ''} {self.ends[0] is None}"
        content = blake2b(text.encode(), digest_size=12)
        for t in terms:
            content.update(t.digest)
        return rank, self.name or self.op, content.digest()

    @cached_property
    def free(self) -> frozenset[Leaf]:
        """The symbols that it depends on."""
        if self.is_symbol:
            return frozenset({self})
        return frozenset().union(*(a.free for a in (*self.args, *(self.when.terms if self.when else ()))))

    @cached_property
    def unknowns(self) -> frozenset[Leaf]:
        """The symbols and the calls that it depends on, and itself, if it is one."""
        terms = [*self.args, *(self.when.terms if self.when else ())]
        own = {self} if self.is_symbol or self.op == "call" else set[Leaf]()
        return frozenset(own.union(*(t.unknowns for t in terms)))

    @cached_property
    def choices(self) -> int:
        """How many choices and minima stand in one another here."""
        terms = [*self.args, *(self.when.terms if self.when else ())]
        return (self.op in ("if", "min")) + max((x.choices for t in terms for x in t.leaves), default=0)

    @property
    def is_symbol(self) -> bool:
        return self.op in ("index", "size")

    def __str__(self) -> str:
        args = ", ".join(map(str, self.args))
        if self.op == "//":
            return f"{_operand(self.args[0])} // {_operand(self.args[1])}"
        if self.op == "if":
            return f"if({self.when}, {args})"
        return f"{self.name or self.op}({args})" if self.args else self.name

    __repr__ = __str__


def _operand(x: Term) -> str:
    return str(x) if (x.constant or 0) > 0 or (x.leaf is not None and x.leaf.op != "//") else f"({x})"


def rank(part: tuple[Monomial, int]) -> tuple[int, list[Order]]:
    return len(part[0]), [leaf.order for leaf in part[0]]


@dataclass(frozen=True, eq=False)
class Term:
    """A sum: numbers that are not 0, by monomials. `+`, `-`, `*`, `//` and `%` take terms and whole numbers; quotients are rounded
    down. By a number that may be 0, or whose sign is not known, quotients and remainders are calls, of which nothing is known."""

    parts: Mapping[Monomial, int]
    quotient: ClassVar[Callable[[Term, Term], Term]]
    remainder: ClassVar[Callable[[Term, Term], Term]]

    @cached_property
    def free(self) -> frozenset[Leaf]:
        """The symbols that it depends on. The order of this set is that of addresses: sort what decides anything."""
        return frozenset().union(*(leaf.free for leaf in self.leaves))

    @cached_property
    def unknowns(self) -> frozenset[Leaf]:
        """The symbols and the calls that it depends on."""
        return frozenset().union(*(leaf.unknowns for leaf in self.leaves))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The last in order first: none depends on one that follows it."""
        return tuple(sorted({x for m in self.parts for x in m}, key=lambda leaf: leaf.order, reverse=True))

    @cached_property
    def digest(self) -> bytes:
        """The same for equal terms, in every process."""
        text = b";".join(b"%d" % f + b"".join(x.order[2] for x in m) for m, f in self.parts.items())
        return blake2b(text, digest_size=12).digest()

    @property
    def constant(self) -> int | None:
        """Its value, if it is a number."""
        return 0 if not self.parts else self.parts.get(()) if len(self.parts) == 1 else None

    @property
    def number(self) -> int:
        """The number that it adds to the rest of the sum."""
        return self.parts.get((), 0)

    @property
    def leaf(self) -> Leaf | None:
        """The leaf that it is."""
        if len(self.parts) != 1:
            return None
        ((m, f),) = self.parts.items()
        return m[0] if len(m) == 1 == f else None

    @property
    def symbol(self) -> Leaf:
        """The index or the size that it is. Raises ValueError for any other term."""
        if (leaf := self.leaf) is None or not leaf.is_symbol:
            raise ValueError(f"{self} is no symbol")
        return leaf

    def collect(self, leaf: Leaf) -> tuple[Term, Term]:
        """(c, r), where it is c * leaf + r, and r is no sum with this leaf."""
        return self.factor(leaf), sum_of({m: f for m, f in self.parts.items() if leaf not in m}, ordered=True)

    def factor(self, leaf: Leaf) -> Term:
        """The c of `collect`."""
        found = [(m, m.index(leaf), f) for m, f in self.parts.items() if leaf in m]
        return sum_of({m[:at] + m[at + 1 :]: f for m, at, f in found})

    def __add__(self, other: Term | int) -> Term:
        return _plus(self, term(other), 1)

    def __sub__(self, other: Term | int) -> Term:
        return _plus(self, term(other), -1)

    def __rsub__(self, other: int) -> Term:
        return _plus(term(other), self, -1)

    def __neg__(self) -> Term:
        return sum_of({m: -f for m, f in self.parts.items()}, ordered=True)

    def __mul__(self, other: Term | int) -> Term:
        other = term(other)
        parts: dict[Monomial, int] = {}
        for m, f in self.parts.items():
            for n, g in other.parts.items():
                both = tuple(sorted(m + n, key=lambda leaf: leaf.order)) if m and n else m or n
                parts[both] = parts.get(both, 0) + f * g
        return sum_of({m: f for m, f in parts.items() if f})

    def __floordiv__(self, other: Term | int) -> Term:
        return Term.quotient(self, term(other))

    def __mod__(self, other: Term | int) -> Term:
        return Term.remainder(self, term(other))

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        """With remainders, where it has any; what is subtracted comes later, and a number last."""
        found, rest = summands(self)
        parts = [(c, f"{_operand(z)} % {_operand(k)}", True) for c, z, k in found]
        for m, weight in rest.parts.items():
            names = " * ".join(f"({x})" if x.op == "//" and len(m) > 1 else str(x) for x in m)
            parts.append((term(weight), names, len(m) == 1 and m[0].op == "//"))
        text = ""
        for c, name, divides in sorted(parts, key=lambda p: (not p[1], (p[0].constant or 0) < 0, p[1])):
            number = c.constant
            factor = f"({c})" if number is None else "" if abs(number) == 1 and name else str(abs(number))
            name = f"({name})" if divides and (factor or (number == -1 and not text)) else name
            sign = ("-" if not text else " - ") if number is not None and number < 0 else " + " if text else ""
            text += sign + " * ".join(part for part in (factor, name) if part)
        return text or "0"

    __repr__ = __str__


@dataclass(frozen=True)
class Cond:
    """`term` >= 0, == 0 or != 0 (`op`); or "and", "or" of `parts`. `&`, `|` and `~` combine conditions."""

    op: str
    term: Term | None = None
    parts: tuple[Cond, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        return (self.term,) if self.term is not None else tuple(t for p in self.parts for t in p.terms)

    @property
    def ops(self) -> str:
        return f"{self.op}({','.join(p.ops for p in self.parts)})"

    def __invert__(self) -> Cond:
        if self.term is not None and self.op == ">=":
            return Cond(">=", -self.term - 1)
        return Cond({"==": "!=", "!=": "==", "and": "or", "or": "and"}[self.op], self.term, tuple(~p for p in self.parts))

    def __and__(self, other: Cond) -> Cond:
        return Cond("and", None, (self, other))

    def __or__(self, other: Cond) -> Cond:
        return Cond("or", None, (self, other))

    def mapped(self, change: Callable[[Term], Term]) -> Cond:
        """Of other terms."""
        return Cond(self.op, None if self.term is None else change(self.term), tuple(p.mapped(change) for p in self.parts))

    def __str__(self) -> str:
        return f"{self.term} {self.op} 0" if self.term is not None else f" {self.op} ".join(f"({p})" for p in self.parts)


def at_least(a: Term | int, b: Term | int) -> Cond:
    return Cond(">=", term(a) - b)


def below(a: Term | int, b: Term | int) -> Cond:
    return Cond(">=", term(b) - a - 1)


def equal(a: Term | int, b: Term | int) -> Cond:
    return Cond("==", term(a) - b)


# ---- making ----------------------------------------------------------------------------------------------------------

_LOCK = Lock()  # of the tables, as programs are compiled in several threads
_TERMS: WeakValueDictionary[frozenset[tuple[Monomial, int]], Term] = WeakValueDictionary()
_LEAVES: WeakValueDictionary[tuple[object, ...], Leaf] = WeakValueDictionary()


def sum_of(parts: Mapping[Monomial, int], ordered: bool = False) -> Term:
    """The term of these parts, none of which is 0. `ordered`: they come as in another term."""
    key = frozenset(parts.items())
    if (found := _TERMS.get(key)) is None:
        made = Term(parts if ordered or len(parts) < 2 else dict(sorted(parts.items(), key=rank)))
        with _LOCK:
            if (found := _TERMS.get(key)) is None:
                found = _TERMS[key] = made
    return found


def leaf_of(
    op: str, name: str = "", args: tuple[Term, ...] = (), ends: tuple[Term | None, Term | None] = (None, None),
    when: Cond | None = None,
) -> Term:  # fmt: skip
    """A leaf as a term."""
    key = op, name, args, ends, when
    if (found := _LEAVES.get(key)) is None:
        made = Leaf(op, name, args, ends, when)
        with _LOCK:
            if (found := _LEAVES.get(key)) is None:
                found = _LEAVES[key] = made
    return term(found)


def term(x: Term | Leaf | int) -> Term:
    if isinstance(x, Term):
        return x
    if isinstance(x, Leaf):
        return sum_of({(x,): 1})
    return _number(x)


@lru_cache(maxsize=1 << 12)
def _number(x: int) -> Term:
    return sum_of({(): int(x)} if x else {})


def _plus(a: Term, b: Term, times: int) -> Term:
    if not b.parts:
        return a
    parts = dict(a.parts)
    for m, f in b.parts.items():
        if total := parts.get(m, 0) + times * f:
            parts[m] = total
        else:
            del parts[m]
    return sum_of(parts)


def total(terms: Iterator[Term] | list[Term]) -> Term:
    found = term(0)
    for x in terms:
        found = found + x
    return found


def index(name: str, extent: Term | int | None, low: Term | int | None = 0) -> Term:
    """An index from `low` to below `extent`, which may be terms; None where that is unknown. One of a name is another one where its
    ends are others. Number indices by position ("i0", "i1"), so that alike statements have the same terms."""
    return leaf_of("index", name, (), (None if low is None else term(low), None if extent is None else term(extent) - 1))


def size(name: str, low: int = 1, high: int | None = None, multiple: int = 1, rest: int = 0) -> Term:
    """A size from `low` to `high` that leaves `rest` when it is divided by `multiple`. Where `multiple` is not 1, it is that number
    times a symbol, so that factors of sums tell all divisibility.

    size("N", 1, 100, multiple=8)   ->   8 * N/8, where N/8 is 1 to 12
    """
    ends = term(-((rest - low) // multiple)), None if high is None else term((high - rest) // multiple)
    return leaf_of("size", name if multiple == 1 else f"{name}/{multiple}", (), ends) * multiple + rest


def call(name: str, *args: Term | int, low: int | None = None, high: Term | int | None = None) -> Term:
    """A value of which no more is known than its range, and that it is the same for the same arguments: `ids[b]`."""
    return leaf_of("call", name, tuple(map(term, args)), (None if low is None else term(low), None if high is None else term(high)))


# ---- parts of sums ---------------------------------------------------------------------------------------------------


def split(x: Term, n: Term) -> tuple[Term, Term]:
    """(q, r), where x == q * n + r: the parts of which n is a factor are taken out; of numbers, rounded down."""
    if (number := x.constant) is not None and (by := n.constant) is not None:
        return term(number // by), term(number % by)
    lead, b = max(n.parts.items(), key=rank)
    q: dict[Monomial, int] = {}
    r: dict[Monomial, int] = {}
    for m, f in x.parts.items():
        rest = None if lead and not m else without(m, lead) if lead else m
        if rest is None or (m and f % b):
            r[m] = f
            continue
        q[rest] = f // b
        if f % b:
            r[m] = f % b
    found = sum_of({m: f for m, f in q.items() if f})
    if len(n.parts) == 1:
        return found, sum_of(r, ordered=True)
    if not found.parts or max(map(len, found.parts)) > 4:
        return term(0), x
    left = x - found * n  # by a sum: what its largest part takes out
    if len(left.parts) > len(x.parts):
        return term(0), x
    more, left = split(left, n) if len(left.parts) < len(x.parts) else (term(0), left)
    return found + more, left


def without(m: Monomial, less: Monomial) -> Monomial | None:
    left = list(m)
    for leaf in less:
        if leaf not in left:
            return None
        left.remove(leaf)
    return tuple(left)


@remembered
def remainders(x: Term, partial: bool = False) -> tuple[tuple[Term, Term, Term, Term], ...]:
    """(c, z, k, other), where x == c * (z % k) + other, and other has fewer parts: the remainders that a sum has. `partial`: also
    those whose quotient stays in the other parts, with another factor.

    i // 4 - 2 * (i // 8)   ->   1, i // 4, 2, 0            i + 14 * (i // 2)   ->   1, i, 2, 16 * (i // 2)
    """
    return tuple(_remainders(x, partial))


def _remainders(x: Term, partial: bool) -> Iterator[tuple[Term, Term, Term, Term]]:
    quotients = [leaf for leaf in x.leaves if leaf.op == "//"]
    for leaf in quotients:
        whole = x.factor(leaf)
        others = (_of_quotient(leaf, inner) for inner in quotients if inner is not leaf)
        for z, k in ((leaf.args[0], leaf.args[1]), *filter(None, others)):
            c, r = split(whole, -k)
            if r is term(0):
                other = _without_remainder(x, c, z, k, leaf)
                if len(other) - (() in other) < len(x.parts) - (() in x.parts) - 1:
                    yield c, z, k, sum_of(other)
            first = next((m for m in z.parts if m), ())
            if partial and first in x.parts and x.parts[first] % z.parts[first] == 0:
                c = term(x.parts[first] // z.parts[first])
                other = _without_remainder(x, c, z, k, leaf)
                if len(other) < len(x.parts):
                    yield c, z, k, sum_of(other)


@remembered
def _of_quotient(leaf: Leaf, inner: Leaf) -> tuple[Term, Term] | None:
    """(z, k), where the quotient is z // k, and z is a sum with another quotient."""
    (of, by), (of_inner, by_inner) = leaf.args, inner.args
    k, r = split(by, by_inner)
    more, less = split(of - of_inner, by_inner)
    return (term(inner) + more, k) if r is less is term(0) else None


def _without_remainder(x: Term, c: Term, z: Term, k: Term, leaf: Leaf) -> Mapping[Monomial, int]:
    """The parts of x - c * (z % k), where the leaf is z // k. Most such sums are not kept, and no term is made of them."""
    factor, by = c.constant, k.constant
    if factor is None or by is None:
        return (x - c * (z - k * term(leaf))).parts
    parts = dict(x.parts)
    for m, f in (*z.parts.items(), ((leaf,), -by)):
        parts[m] = parts.get(m, 0) - factor * f
        if not parts[m]:
            del parts[m]
    return parts


def summands(x: Term) -> tuple[list[tuple[Term, Term, Term]], Term]:
    """The remainders of a sum, as (c, z, k) of c * (z % k), and what is left of it."""
    found = []
    while first := next(iter(remainders(x)), None):
        *remainder, x = first
        found.append((remainder[0], remainder[1], remainder[2]))
    return found, x


def traverse(*xs: Term) -> Iterator[Term]:
    """Terms, and those that their leaves are made of, each once."""
    pending, seen = list(reversed(xs)), set[Term]()
    while pending:
        if (x := pending.pop()) not in seen:
            seen.add(x)
            yield x
            pending += (t for leaf in x.leaves for t in (*leaf.args, *(leaf.when.terms if leaf.when else ())))
