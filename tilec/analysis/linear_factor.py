"""Numbers that a scalar is multiplied by: x = c z, read from its expression."""

from __future__ import annotations

from math import inf

from tilec.analysis.expression import Expr


def linear_factor(x: Expr) -> tuple[Expr, float]:
    """(z, c) with x = c z for a number c; a condition's -inf (+inf) stays what it is under a positive c."""
    z, c, _ = _peeled(x)
    return z, c


def inside(x: Expr, state: Expr) -> tuple[Expr, Expr]:
    """A maximum's term without a positive factor, and that factor applied to the maximum: rounding keeps order, so
    this is exact."""
    z, c, taken = _peeled(x)
    if c == 1 or c <= 0:
        return x, state
    for op, number in taken:
        state = Expr(op, (state, *number))
    return z, state


def _peeled(x: Expr) -> tuple[Expr, float, list[tuple[str, tuple[Expr, ...]]]]:
    """z and c, and what makes x of z, the innermost first: a product or a quotient with its number, or a negation."""
    match x.op:
        case "arith.mulf" | "arith.divf":
            a, b = x.args
            if x.op == "arith.mulf" and a.number is not None:
                a, b = b, a
            if b.number:
                z, c, taken = _peeled(a)
                return z, c * b.number if x.op == "arith.mulf" else c / b.number, [*taken, (x.op, (b,))]
        case "arith.negf":
            z, c, taken = _peeled(x.args[0])
            return z, -c, [*taken, (x.op, ())]
        case "arith.select":
            condition, a, b = x.args
            for own, outside, order in ((a, b, 1), (b, a, -1)):
                if outside.number in (inf, -inf):
                    z, c, taken = _peeled(own)
                    if c > 0:
                        chosen = (condition, *(z, outside)[::order])
                        return Expr(x.op, chosen, x.key, x.own_dims, x.type, x.template), c, taken
    return x, 1.0, []
