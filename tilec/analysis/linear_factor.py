"""Numbers that a scalar is multiplied by: x = c z, read from its expression by the rules of `factor`."""

from __future__ import annotations

from tilec.analysis.expression import Expr
from tilec.analysis.rules import rules_for, rules_on


def varying(x: Expr) -> list[int]:
    """Which operands are neither numbers nor conditions."""
    return [n for n, a in enumerate(x.args) if a.number is None and a.type != "i1"]


def _with_factor(x: Expr) -> Expr:
    """An expression as a product with a number, where the rules make it one: of its one varying operand first."""
    if not rules_on(x.op, "factor") or len(own := varying(x)) != 1:
        return x
    args = (*x.args[: own[0]], _with_factor(x.args[own[0]]), *x.args[own[0] + 1 :])
    changed = Expr(x.op, args, x.key, x.own_dims, x.type, x.template)
    return next((rule.replace(changed, found) for rule, found in rules_for(changed, "factor")), x)


def linear_factor(x: Expr) -> tuple[Expr, float]:
    """(z, c) with x = c z for a number c; a condition's -inf (+inf) stays what it is under a positive c."""
    product = _with_factor(x)
    if product.op == "arith.mulf":
        for z, c in (product.args, product.args[::-1]):
            if c.number:
                return z, c.number
    return x, 1.0


def inside(x: Expr, state: Expr) -> tuple[Expr, Expr]:
    """A maximum's term without a positive factor, and that factor applied to the maximum: rounding keeps order, so
    this is exact."""
    z, c = linear_factor(x)
    if c == 1 or c <= 0:
        return x, state
    return z, _applied(x, z, state)


def _applied(x: Expr, z: Expr, state: Expr) -> Expr:
    """What makes `x` of `z`, made of a state; what conditions choose alone counts."""
    if x == z:
        return state
    (n,) = varying(x)
    if x.op == "arith.select":
        return _applied(x.args[n], z.args[n], state)
    return Expr(x.op, (*x.args[:n], _applied(x.args[n], z, state), *x.args[n + 1 :]))
