"""The positions at which elements are read: how subscripts of expressions depend on an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilec.analysis.expression import Expr
from tilec.analysis.index_terms import ExprTerms
from tilec.index import questions


def subscripts(x: Expr) -> tuple[Expr, ...]:
    """The subscripts of an element."""
    return x.args or tuple(Expr("index", own_dims=(d,), type="index") for d in x.own_dims)


def steps(x: Expr, dims: Iterable[int]) -> list[dict[int, int]]:
    """For each subscript of an element, by how much it grows along dimensions: from each number of them to the next."""
    terms = ExprTerms()
    read = [{d: questions.step(terms.of(s), terms.dim(d)) for d in dims} for s in subscripts(x)]
    return [{d: s.constant or 0 for d, s in own.items() if s is not None} for own in read]


def periods(dims: Iterable[int], xs: Sequence[Expr]) -> dict[int, int]:
    """For each dimension, the number by whose quotient alone expressions depend on it: 1 where each element has another one, 0
    where they do not depend on it."""
    terms = ExprTerms()
    read = [terms.of(x) for x in xs]
    return {d: questions.period(terms.dim(d), *read).constant or 0 for d in dims}
