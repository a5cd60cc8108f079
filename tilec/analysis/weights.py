"""Weights of the product of a contraction chain: the type that the program rounds them to, and how large they are."""

from __future__ import annotations

from math import inf

from tilec.analysis.expression import Expr
from tilec.analysis.linear_factor import linear_factor


def narrow_type(x: Expr) -> str:
    """The narrow type that the program rounds a weight to, which is f32."""
    match x.op:
        case "arith.extf":
            return x.args[0].type
        case "arith.select":
            kinds = {narrow_type(a) for a in x.args[1:] if a.number not in (0, 1)}
            return kinds.pop() if len(kinds) == 1 else "f32"
    return "f32"


def without_rounding(x: Expr, kind: str) -> Expr:
    """A weight that is rounded to the factors' type without that rounding: it is rounded to be multiplied."""
    match x.op:
        case "arith.extf" if x.args[0].op == "arith.truncf" and x.args[0].type == kind:
            return x.args[0].args[0]
        case "arith.select":
            args = (x.args[0], *(without_rounding(a, kind) for a in x.args[1:]))
            return Expr(x.op, args, x.key, x.own_dims, x.type, x.template)
    return x


_NAN_OF_NAN = {
    "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "arith.maximumf", "arith.minimumf", "arith.extf",
    "arith.truncf", "math.absf", "math.exp", "math.exp2", "math.fma", "math.sqrt", "math.tanh",
}  # fmt: skip


def is_nan_of_nan(x: Expr) -> bool:
    """Whether a weight is a NaN if a score that it is made of is one."""
    if not _reads_scores(x) or not x.args:
        return True
    chosen = x.op == "arith.select" and not _reads_scores(x.args[0])
    return (chosen or x.op in _NAN_OF_NAN) and all(map(is_nan_of_nan, x.args))


def _reads_scores(x: Expr) -> bool:
    return x.op in ("total", "state", "reference") or any(map(_reads_scores, x.args))


def largest(x: Expr) -> float:
    """What a weight does not exceed in absolute value, unless it is a NaN."""
    if x.number is not None:
        return abs(x.number)
    match x.op:
        case "math.exp2" if x.template is None:  # ours, of a difference from the maximum
            return 1.0
        case "arith.select":
            return max(largest(a) for a in x.args[1:])
        case "arith.extf" | "arith.truncf":
            return largest(x.args[0])
        case "arith.mulf" | "arith.divf":
            z, c = linear_factor(x)
            return inf if z is x else largest(z) * abs(c)
    return inf
