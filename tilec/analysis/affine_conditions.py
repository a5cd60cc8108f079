"""Conditions that are affine in indices, as bounds: sums of leaves times numbers that are at least 0 where they hold.

A leaf is an index, a number from outside of the operations, or an integer in memory, such as a length.
"""

from __future__ import annotations

from tilec.analysis.expression import Expr
from tilec.analysis.index_terms import ExprTerms
from tilec.index.terms import Term

Linear = tuple[dict[Expr, int], int]  # the sum of leaves times numbers, and a number
INTEGERS = ("i8", "i16", "i32", "i64")
"""Of elements. Unsigned ones have the same names in MLIR, but are compared by other predicates."""


def affine_bounds(condition: Expr, holds: bool = True) -> tuple[Linear, ...] | None:
    """Affine forms that are all at least 0 just where the condition holds, or where it does not."""
    match condition.op:
        case "arith.andi" | "arith.ori" if holds == (condition.op == "arith.andi"):
            parts = [affine_bounds(a, holds) for a in condition.args]
            known = [part for part in parts if part is not None]
            return tuple(b for part in known for b in part) if len(known) == len(parts) else None
        case "arith.xori" if condition.args[1].number is not None:
            return affine_bounds(condition.args[0], holds != bool(condition.args[1].number))
        case "arith.cmpi":
            found = _compared(condition)
            if holds or found is None:
                return found
            return tuple(({x: -f for x, f in leaves.items()}, -number - 1) for leaves, number in found) if len(found) == 1 else None
    return None


def _compared(condition: Expr) -> tuple[Linear, ...] | None:
    terms = ExprTerms()
    found = terms.condition(condition)
    if found is None or found.term is None or found.op != ">=":
        return None
    bounds = [_linear(terms, x) for x in _without_minima(found.term)]
    known = tuple(b for b in bounds if b is not None)
    return known if len(known) == len(bounds) else None


def _without_minima(x: Term) -> list[Term]:
    """Terms that are all at least 0 just where x is: |i| < n is i < n and -i < n."""
    leaf = next((leaf for leaf in x.leaves if leaf.op == "min"), None)
    if leaf is None:
        return [x]
    c, r = x.collect(leaf)
    return [y for a in leaf.args for y in _without_minima(c * a + r)] if (c.constant or 0) > 0 else [x]


def linear(x: Expr) -> Linear | None:
    """An integer expression as a sum of leaves times numbers."""
    terms = ExprTerms()
    return _linear(terms, terms.exact(x))


def _linear(terms: ExprTerms, x: Term) -> Linear | None:
    leaves: dict[Expr, int] = {}
    for m, f in x.parts.items():
        if m and (len(m) > 1 or m[0] not in terms.sources):
            return None
        leaves |= {terms.sources[leaf]: f for leaf in m}
    return leaves, x.number
