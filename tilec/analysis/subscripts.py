"""The positions at which elements are read: how subscripts of expressions depend on an index."""

from __future__ import annotations

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


def head_group(d: int, *factors: Expr) -> int:
    """A number such that the factors are the same for as many elements along dimension `d`, from each multiple of it on; 0 where
    each element has another one."""
    terms = ExprTerms()
    found = questions.period(terms.dim(d), *(terms.of(p) for x in factors for p in subscripts(x))).constant or 0
    return found if found > 1 else 0


def period(x: Expr, d: int) -> int:
    """The number by whose quotient alone an expression depends on dimension `d`: 1 where it is another one for every element, 0
    where it does not depend on it."""
    terms = ExprTerms()
    return questions.period(terms.dim(d), terms.of(x)).constant or 0
