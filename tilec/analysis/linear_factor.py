"""Numbers that a scalar is multiplied by: x = c z, read from its expression."""

from __future__ import annotations

from math import inf

from tilec.analysis.expression import Expr


def linear_factor(x: Expr) -> tuple[Expr, float]:
    """(z, c) with x = c z for a number c; a condition's -inf (+inf) stays what it is under a positive c."""
    match x.op:
        case "arith.mulf" | "arith.divf":
            a, b = x.args
            if x.op == "arith.mulf" and a.number is not None:
                a, b = b, a
            if b.number:
                z, c = linear_factor(a)
                return z, c * b.number if x.op == "arith.mulf" else c / b.number
        case "arith.negf":
            z, c = linear_factor(x.args[0])
            return z, -c
        case "arith.select":
            condition, a, b = x.args
            for inside, outside, order in ((a, b, 1), (b, a, -1)):
                if outside.number in (inf, -inf):
                    z, c = linear_factor(inside)
                    if c > 0:
                        return Expr(x.op, (condition, *(z, outside)[::order]), x.key, x.own_dims, x.type, x.template), c
    return x, 1.0


def inside(x: Expr, state: Expr) -> tuple[Expr, Expr]:
    """A maximum's term without a positive factor, and that factor applied to the maximum: rounding keeps order, so
    this is exact."""
    z, c = linear_factor(x)
    if c == 1 or c <= 0:
        return x, state
    return z, _wrapped(x, state)


def _wrapped(x: Expr, state: Expr) -> Expr:
    """The multiplications and divisions that `linear_factor` takes off `x`, around `state`."""
    match x.op:
        case "arith.mulf" | "arith.divf":
            a, b = x.args
            if x.op == "arith.mulf" and a.number is not None:
                a, b = b, a
            if b.number:
                return Expr(x.op, (_wrapped(a, state), b))
        case "arith.negf":
            return Expr(x.op, (_wrapped(x.args[0], state),))
        case "arith.select":
            _, a, b = x.args
            return _wrapped(b if a.number in (inf, -inf) else a, state)
    return state
