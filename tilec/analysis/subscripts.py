"""The positions at which elements are read: how subscripts of expressions depend on an index."""

from __future__ import annotations

from math import gcd

from tilec.analysis.expression import Expr
from tilec.analysis.index_terms import ExprTerms
from tilec.index import questions


def subscripts(x: Expr) -> tuple[Expr, ...]:
    """The subscripts of an element."""
    return x.args or tuple(Expr("index", own_dims=(d,), type="index") for d in x.own_dims)


def step(x: Expr, d: int) -> int | None:
    """By how much an integer expression grows from one number of dimension `d` to the next; None where that varies."""
    terms = ExprTerms()
    found = questions.step(terms.of(x), terms.dim(d))
    return None if found is None else found.constant


def granule(d: int, *factors: Expr) -> int:
    """A number such that the factors are the same for as many elements along dimension `d`, from each multiple of it on; 0 where
    each element has another one."""
    terms = ExprTerms()
    found = questions.period(terms.dim(d), *(terms.of(p) for x in factors for p in subscripts(x))).constant or 0
    return found if found > 1 else 0


def page(subscript: Expr, d: int) -> int:
    """n where a subscript is the remainder of an index by n; 0 where it is not."""
    terms = ExprTerms()
    found = questions.page(terms.of(subscript), terms.dim(d))
    return 0 if found is None else found.constant or 0


def period(x: Expr, d: int) -> int:
    """The number by whose quotient alone an expression depends on dimension `d`: 1 where it is another one for every element, 0
    where it does not depend on it."""
    terms = ExprTerms()
    return questions.period(terms.dim(d), terms.of(x)).constant or 0


def base_multiple(subscript: Expr) -> int:
    """A number that divides a subscript where its last index is 0: 0 for a bare index, which is then 0 itself."""
    found = ExprTerms().of(subscript)
    last = min((m for m in found.parts if m), key=lambda m: abs(found.parts[m]), default=())
    is_index = all(leaf.is_symbol or leaf.op == "call" for leaf in last)
    return gcd(*(f for m, f in found.parts.items() if m != last or not is_index))
