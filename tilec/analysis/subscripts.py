"""The places at which elements are read: how subscripts depend on an index."""

from __future__ import annotations

from math import gcd

from tilec.analysis.affine_conditions import linear
from tilec.analysis.expression import Expr
from tilec.core.mlir import ir


def subscripts(x: Expr) -> tuple[Expr, ...]:
    """The subscripts of an element."""
    return x.args or tuple(Expr("index", own_dims=(d,), type="index") for d in x.own_dims)


def step(x: Expr, d: int) -> int | None:
    """By how much an integer expression grows from one number of dimension `d` to the next; None where that varies."""
    if d not in x.dims:
        return 0
    steps = [step(a, d) for a in x.args]
    match x.op:
        case "index":
            return 1
        case "arith.index_cast" | "arith.extsi":
            return steps[0]
        case "arith.addi" | "arith.subi":
            first, second = steps
            if first is None or second is None:
                return None
            return first + (second if x.op == "arith.addi" else -second)
        case "arith.muli":
            for number, other in zip((a.number for a in x.args), reversed(steps)):
                if number is not None:
                    return None if other is None else other * int(number)
            return None
        case "affine.apply":
            assert x.template is not None
            map_ = ir.AffineMapAttr(x.template.attributes["map"]).value
            return _affine_step(map_.results[0], steps, map_.n_dims)
    return None


def _affine_step(e: ir.AffineExpr, steps: list[int | None], dims: int) -> int | None:
    match e:
        case ir.AffineConstantExpr():
            return 0
        case ir.AffineDimExpr():
            return steps[e.position]
        case ir.AffineSymbolExpr():
            return steps[dims + e.position]
    a, b = (_affine_step(side, steps, dims) for side in (e.lhs, e.rhs))
    match e:
        case ir.AffineAddExpr() if a is not None and b is not None:
            return a + b
        case ir.AffineMulExpr() if a is not None and isinstance(e.rhs, ir.AffineConstantExpr):
            return a * e.rhs.value
    return 0 if a == b == 0 else None


_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")
_QUOTIENTS = ("arith.floordivsi", "arith.divsi", "arith.divui")  # of indices, which are not negative


def granule(d: int, *factors: Expr) -> int:
    """The number by whose quotient alone the factors depend on dimension `d`; 0 where there is none."""
    found = [_quotient(p, d) for x in factors for p in subscripts(x) if d in p.dims]
    return gcd(*found) if found and all(found) else 0


def _quotient(x: Expr, d: int) -> int:
    """n where an expression depends on `d` through (d + more) // n, and `more` is a multiple of what divides n."""
    while x.op in _CASTS:
        x = x.args[0]
    if x.op in _QUOTIENTS and x.args[1].number:
        return int(x.args[1].number) if step(x.args[0], d) == 1 else 0
    inner = [a for a in x.args if d in a.dims]
    if x.op != "affine.apply" or len(inner) != 1 or inner[0].op != "index":
        return 0
    assert x.template is not None
    map_ = ir.AffineMapAttr(x.template.attributes["map"]).value
    position = list(x.args).index(inner[0])
    return _affine_quotient(map_.results[0], position, map_.n_dims)


def _affine_quotient(e: ir.AffineExpr, position: int, dims: int) -> int:
    def reads(part: ir.AffineExpr) -> bool:
        match part:
            case ir.AffineConstantExpr():
                return False
            case ir.AffineDimExpr():
                return part.position == position
            case ir.AffineSymbolExpr():
                return dims + part.position == position
        return reads(part.lhs) or reads(part.rhs)

    if isinstance(e, ir.AffineFloorDivExpr) and isinstance(e.rhs, ir.AffineConstantExpr):
        return e.rhs.value
    if isinstance(e, (ir.AffineAddExpr, ir.AffineMulExpr)):
        found = {_affine_quotient(side, position, dims) for side in (e.lhs, e.rhs) if reads(side)}
        return found.pop() if len(found) == 1 else 0
    return 0


def base_multiple(subscript: Expr) -> int:
    """A number that divides a subscript where its last index is 0: 0 for a bare index, which is then 0 itself."""
    if subscript.op == "index":
        return 0
    found = linear(subscript)
    if found is None:
        return 1
    leaves, number = found
    last = min(leaves, key=lambda leaf: abs(leaves[leaf]), default=None)
    return gcd(number, *(f for leaf, f in leaves.items() if leaf is not last))
