"""Extremes by row in expressions: what is taken from each element and is no less than any, and roundings that change nothing.

    m = max_j x_j;  a = max(m, z)        `a` is no less than any x_j
    n = max_j (x_j - a)                  is m - a, with the same rounding: rounding keeps order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf

from tilec.analysis.expression import Expr, Total, constant
from tilec.analysis.patterns import choice, compared

Totals = Mapping[int, Total]


def maxima(x: Expr) -> Iterator[Expr]:
    """What a maximum of several values is made of."""
    if x.op == "arith.maximumf":
        for a in x.args:
            yield from maxima(a)
    else:
        yield x


def moved(row: Expr, by: Expr, nothing: Expr) -> Expr:
    """What a state's exponent is moved `by` at the end, from its reference to `row`. Where it has seen `nothing`, its reference is
    none of the row, whose value may be a number all the same: then the state, which is 0, stays."""
    if not _depends_on_more(row):
        return by
    return choice(nothing, choice(equals(row, inf), row, constant(0.0)), by)


def _depends_on_more(row: Expr) -> bool:
    """Whether a value of a row may be a number before any element has been seen: it is made of more than states."""
    if row.op == "arith.maximumf" and any(a.number is not None for a in row.args):
        return True
    return row.op in ("element", "index", "outer") or any(map(_depends_on_more, row.args))


def equals(x: Expr, number: float) -> Expr:
    return compared(1, x, number)


def is_finite(x: Expr) -> Expr:
    """Of what is no less than 0."""
    return compared(4, x, inf)


def below(x: Expr, row: Callable[[Expr], bool], totals: Totals) -> Expr | None:
    """The element's part of what one or more values of a row are taken from, each no less than that; None of anything else. The
    largest of `x` is then made of the largest element's part as `x` is made of it."""
    if x.op != "arith.subf" or not row(x.args[1]):
        return None
    part, taken = x.args
    known = (totals[leaf.key] for leaf in maxima(taken) if leaf.op == "total")
    if not any(t.combine == "arith.maximumf" and t.term == part for t in known):
        return None
    return below(part, row, totals) or part


def without_idle_roundings(x: Expr, totals: Totals) -> Expr:
    """An expression without roundings to a narrow type of numbers that are of that type already, such as a maximum of such."""

    def kept(part: Expr) -> Expr | None:
        if part.op != "arith.extf" or part.args[0].op != "arith.truncf" or part.type != part.args[0].args[0].type:
            return None
        value = part.args[0].args[0]
        return value.replace(kept) if _is_of(value, part.args[0].type, totals) else None

    return x.replace(kept)


def _is_of(x: Expr, type_: str, totals: Totals) -> bool:
    """Whether a narrow type has all values of an expression."""
    match x.op:
        case "arith.extf":
            return x.args[0].type == type_
        case "total":
            total = totals[x.key]
            return total.combine in ("arith.maximumf", "arith.minimumf") and _is_of(total.term, type_, totals)
        case "arith.maximumf" | "arith.minimumf":
            return all(_is_of(a, type_, totals) for a in x.args)
        case "arith.select":
            return all(_is_of(a, type_, totals) for a in x.args[1:])
        case "arith.negf":
            return _is_of(x.args[0], type_, totals)
    return x.number in (0, inf, -inf)
