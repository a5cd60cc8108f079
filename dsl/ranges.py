"""Integer polynomials over sizes and indices, and the proofs that accesses stay inside.

Everything is exact and decides for *all* sizes >= 1 at once: a polynomial in the sizes is known to be >= 0 if, after
`M = 1 + M'`, no coefficient is negative. Indices are eliminated by their bounds (interval arithmetic, one by one),
`//` and `%` are atoms with bounds of their own, and conditions of enclosing `if`s are facts `p >= 0` that may be
subtracted from the polynomial of a proof. When every size is a number the same code computes with numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Literal

from tilec.dsl import ast

_MAX_TERMS = 200  # a product of large polynomials is not worth a proof


@dataclass(frozen=True)
class Atom:
    """`left // right` or `left % right` where it does not simplify; `right` holds sizes only."""

    op: Literal["//", "%"]
    left: Poly
    right: Poly

    def __str__(self) -> str:
        return f"({self.left}) {self.op} ({self.right})"


Variable = str | Atom
Monomial = tuple[Variable, ...]


@dataclass(frozen=True)
class Poly:
    """A sum of integer multiples of products of variables, in canonical order."""

    terms: tuple[tuple[Monomial, int], ...] = ()

    @staticmethod
    def of(value: int | Variable) -> Poly:
        if isinstance(value, int):
            return Poly((((), value),)) if value else _ZERO
        return Poly((((value,), 1),))

    @property
    def constant(self) -> int | None:
        """The value of a polynomial without variables."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @property
    def number(self) -> int:
        """The same, where all sizes are numbers."""
        assert self.constant is not None
        return self.constant

    @property
    def variables(self) -> set[Variable]:
        return {v for monomial, _ in self.terms for v in monomial}

    def __add__(self, other: Poly | int) -> Poly:
        return _combine(self, _lift(other), 1)

    def __sub__(self, other: Poly | int) -> Poly:
        return _combine(self, _lift(other), -1)

    def __neg__(self) -> Poly:
        return _combine(Poly(), self, -1)

    def __mul__(self, other: Poly | int) -> Poly:
        if (by := other if isinstance(other, int) else other.constant) is not None:
            return Poly(tuple([(m, a * by) for m, a in self.terms])) if by else _ZERO
        terms: dict[Monomial, int] = {}
        for m, a in self.terms:
            for n, b in _lift(other).terms:
                product = tuple(sorted(m + n, key=str)) if m and n else m or n
                terms[product] = terms.get(product, 0) + a * b
        return _poly(terms)

    def __str__(self) -> str:
        parts: list[str] = []
        for monomial, factor in sorted(self.terms, key=lambda term: (term[0] == (), str(term[0]))):
            names = " * ".join(f"({v})" if isinstance(v, Atom) and len(monomial) > 1 else str(v) for v in monomial)
            size = names if abs(factor) == 1 and names else f"{abs(factor)} * {names}" if names else str(abs(factor))
            sign = ("- " if factor < 0 else "+ ") if parts else ("-" if factor < 0 else "")
            parts.append(sign + size)
        return " ".join(parts) or "0"

    def split(self, variable: Variable) -> tuple[Poly, Poly] | None:
        """`(c, rest)` with `self == c * variable + rest`; None if the variable occurs in a higher power."""
        factor: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, a in self.terms:
            if variable not in monomial:
                rest[monomial] = a
                continue
            others = list(monomial)
            others.remove(variable)
            if variable in others:
                return None
            factor[tuple(others)] = a
        return _poly(factor), _poly(rest)

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """The polynomial with some of its variables replaced."""
        total = Poly()
        for monomial, a in self.terms:
            product = Poly.of(a)
            for v in monomial:
                product = product * _substituted(v, values)
            total = total + product
        return total


def _substituted(variable: Variable, values: Mapping[str, Poly]) -> Poly:
    match variable:
        case Atom(op=op, left=left, right=right):
            return divide(op, left.substitute(values), right.substitute(values))
        case str():
            return values.get(variable, Poly.of(variable))


def names_in(p: Poly) -> set[str]:
    """The names in a polynomial, also inside `//` and `%`."""
    return {n for v in p.variables for n in ((v,) if isinstance(v, str) else names_in(v.left) | names_in(v.right))}


def _lift(value: Poly | int) -> Poly:
    return Poly.of(value) if isinstance(value, int) else value


_ZERO = Poly()


@lru_cache(maxsize=4096)
def _order(monomial: Monomial) -> str:
    return str(monomial)


def _term_order(term: tuple[Monomial, int]) -> str:
    return _order(term[0])


def _poly(terms: Mapping[Monomial, int]) -> Poly:
    found = [term for term in terms.items() if term[1]]
    if len(found) > 1:
        found.sort(key=_term_order)
    return Poly(tuple(found))


def _combine(a: Poly, b: Poly, sign: int) -> Poly:
    if not b.terms:
        return a
    terms = dict(a.terms)
    for monomial, factor in b.terms:
        terms[monomial] = terms.get(monomial, 0) + sign * factor
    return _poly(terms)


def divide(op: Literal["//", "%"], left: Poly, right: Poly) -> Poly:
    """`left // right` or `left % right`, rounded down as in Python; simplified where that is exact."""
    a, b = left.constant, right.constant
    if b == 0:
        raise ZeroDivisionError
    if a is not None and b is not None:
        return Poly.of(a // b if op == "//" else a % b)
    quotient, rest = _quotient(left, right)
    if rest == Poly():
        return quotient if op == "//" else Poly()
    return Poly.of(Atom(op, left, right))


def _quotient(left: Poly, right: Poly) -> tuple[Poly, Poly]:
    """`(q, r)` with `left == q * right + r`, taking out whole multiples of a divisor of one term."""
    if len(right.terms) != 1:
        return (Poly.of(1), Poly()) if left == right else (Poly(), left)
    ((divisor, b),) = right.terms
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, a in left.terms:
        others = list(monomial)
        divides = a % b == 0
        for v in divisor:
            if v not in others:
                divides = False
                break
            others.remove(v)
        if divides:
            quotient[tuple(others)] = a // b
        else:
            rest[monomial] = a
    return _poly(quotient), _poly(rest)


def combined(op: str, a: Poly, b: Poly) -> Poly:
    """`a op b`, of `+`, `-`, `*`, `//` and `%`."""
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//" | "%":
            return divide(op, a, b)
    raise AssertionError(f"`{op}` is no operator of polynomials")


def size_poly(size: ast.Size, sizes: Mapping[str, Poly]) -> Poly:
    """A size as a polynomial; a name that `sizes` does not bind stays a variable."""
    match size:
        case ast.SizeNumber(value=value):
            return Poly.of(value)
        case ast.SizeName(name=name):
            return sizes.get(name, Poly.of(name))
        case ast.SizeBinary(op=op, left=left, right=right):
            return combined(op, size_poly(left, sizes), size_poly(right, sizes))


def to_size(p: Poly) -> ast.Size:
    """A polynomial as a size: a number where it is one."""
    if (value := p.constant) is not None:
        return ast.SizeNumber(value)
    terms: list[ast.Size] = []
    for monomial, factor in p.terms:
        sizes: list[ast.Size] = [ast.SizeNumber(factor)] if factor != 1 or not monomial else []
        for v in monomial:
            sizes.append(
                ast.SizeBinary("//", to_size(v.left), to_size(v.right)) if isinstance(v, Atom) else ast.SizeName(v)
            )
        terms.append(reduce(lambda a, b: ast.SizeBinary("*", a, b), sizes))
    return reduce(lambda a, b: ast.SizeBinary("+", a, b), terms)


# ---- proofs ----------------------------------------------------------------------------------------------------------

Interval = tuple[Poly, Poly]  # both ends inside
Bounds = Mapping[str, Interval]


def nonnegative(p: Poly) -> bool:
    """Whether p >= 0 for all sizes >= 1: sufficient, and exact for numbers."""
    if (value := p.constant) is not None:
        return value >= 0
    for v in p.variables:  # a remainder that is taken away is at most its divisor less one
        if isinstance(v, Atom) and v.op == "%" and nonnegative(v.right - 1) and (parts := p.split(v)):
            factor, rest = parts
            if nonnegative(-factor):
                return nonnegative(factor * (v.right - 1) + rest)
    moved = Poly()
    for monomial, a in p.terms:
        product = Poly.of(a)
        for v in monomial:  # a size is 1 + something >= 0; a quotient or remainder of sizes at best something >= 0
            if isinstance(v, Atom) and not _atom_nonnegative(v):
                return False
            product = product * (Poly.of(v) + 1 if isinstance(v, str) else Poly.of(v))
        moved = moved + product
        if len(moved.terms) > _MAX_TERMS:
            return False
    return all(a >= 0 for _, a in moved.terms)


def _atom_nonnegative(atom: Atom) -> bool:
    return nonnegative(atom.right - 1) and (atom.op == "%" or nonnegative(atom.left))


def indices_of(p: Poly, bounds: Bounds) -> set[str]:
    """The indices (names in `bounds`) that a polynomial depends on, also inside `//` and `%`."""
    found: set[str] = set()
    for v in p.variables:
        match v:
            case Atom(left=left):
                found |= indices_of(left, bounds)
            case str():
                found |= {v} & bounds.keys()
    return found


def interval(p: Poly, bounds: Bounds) -> tuple[Poly | None, Poly | None]:
    """The least and the greatest value of p over the bounds, in sizes; None where that is not known."""
    return _extreme(p, bounds, 0), _extreme(p, bounds, 1)


def _extreme(p: Poly, bounds: Bounds, side: int) -> Poly | None:
    """One end: each index is replaced by the end of its range that the sign of its factor asks for."""
    if (number := _extreme_number(p, bounds, side)) is not None:
        return Poly.of(number)
    for v in sorted(p.variables, key=lambda v: (isinstance(v, str), str(v))):
        if (isinstance(v, str) and v not in bounds) or not _depends(v, bounds):
            continue
        if (parts := p.split(v)) is None:
            return None
        factor, rest = parts
        if (sign := _sign(factor, bounds)) is None:
            return None
        end = bounds[v][side ^ (sign < 0)] if isinstance(v, str) else _atom_end(v, bounds, side ^ (sign < 0))
        if end is None:
            return None
        p = factor * end + rest
    return p


def _extreme_number(p: Poly, bounds: Bounds, side: int) -> int | None:
    """One end of a sum of multiples of indices whose ranges are numbers; None of all else."""
    total = 0
    for monomial, factor in p.terms:
        if not monomial:
            total += factor
            continue
        variable, *others = monomial
        if others or not isinstance(variable, str) or variable not in bounds:
            return None
        if (end := bounds[variable][side ^ (factor < 0)].constant) is None:
            return None
        total += factor * end
    return total


def _depends(variable: Variable, bounds: Bounds) -> bool:
    return isinstance(variable, str) or bool(indices_of(variable.left, bounds))


def _sign(factor: Poly, bounds: Bounds) -> int | None:
    low, high = interval(factor, bounds) if indices_of(factor, bounds) else (factor, factor)
    if low is not None and nonnegative(low):
        return 1
    if high is not None and nonnegative(-high):
        return -1
    return None


def _atom_end(atom: Atom, bounds: Bounds, side: int) -> Poly | None:
    """The least (side 0) or greatest (side 1) value of `left // right` or `left % right`, for right >= 1."""
    if not nonnegative(atom.right - 1):
        return None
    low, high = interval(atom.left, bounds)
    if atom.op == "//":
        end = (low, high)[side]
        return None if end is None else _floor(end, atom.right)
    if low is not None and high is not None and nonnegative(low) and nonnegative(atom.right - 1 - high):
        return (low, high)[side]
    return (Poly(), atom.right - 1)[side]


def _floor(p: Poly, divisor: Poly) -> Poly | None:
    """p // divisor, where the rest that is no multiple of the divisor is provably one floor step."""
    quotient, rest = _quotient(p, divisor)
    if nonnegative(rest) and nonnegative(divisor - 1 - rest):
        return quotient
    if nonnegative(-rest - 1) and nonnegative(divisor + rest):
        return quotient - 1
    return divide("//", p, divisor)


@dataclass(frozen=True)
class Facts:
    """The facts at a place: the bounds of indices, and polynomials known to be >= 0 there.

    `whole` are the bounds before any condition narrowed them.
    """

    bounds: Bounds
    known: tuple[Poly, ...] = ()
    whole: Bounds | None = None

    @property
    def unconditional(self) -> Facts:
        """The facts without the conditions."""
        return self if self.whole is None else Facts(self.whole)

    def binding(self, ranges: Bounds) -> Facts:
        """Inside a reduction over these ranges: facts about an outer index of the same name do not apply."""
        bounds = {**self.bounds, **ranges}
        known = tuple(p for p in self.known if not indices_of(p, bounds) & ranges.keys())
        return Facts(bounds, known, {**(self.whole or self.bounds), **ranges})

    def assume(self, facts: list[Poly]) -> Facts:
        """These facts too; one about a single index also narrows its bounds."""
        bounds = dict(self.bounds)
        for fact in facts:
            for index in indices_of(fact, bounds):
                if (parts := fact.split(index)) is None or indices_of(parts[1], bounds):
                    continue
                factor, rest = parts[0].constant, parts[1]
                low, high = bounds[index]
                if factor == 1 and nonnegative(-rest - low):
                    bounds[index] = (-rest, high)
                elif factor == -1 and nonnegative(high - rest):
                    bounds[index] = (low, rest)
        return Facts(bounds, (*self.known, *facts), self.whole or self.bounds)

    @property
    def impossible(self) -> bool:
        """Whether some index certainly has no value here, so that nothing is evaluated."""
        return any(nonnegative(low - high - 1) for low, high in self.bounds.values())

    def proves(self, p: Poly) -> bool:
        """Whether p >= 0 at this place: from the bounds, or from one or two of the facts and the bounds."""
        if self._low_enough(p):
            return True
        known = self.known[-12:]
        rests = [p - fact for fact in known]
        return any(map(self._low_enough, rests)) or any(
            self._low_enough(rest - fact) for k, rest in enumerate(rests) for fact in known[k:]
        )

    def _low_enough(self, p: Poly) -> bool:
        low = _extreme(p, self.bounds, 0)
        return low is not None and nonnegative(low)
