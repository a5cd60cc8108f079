"""Conditions that are affine in indices, as bounds: sums of leaves times numbers that are at least 0 where they hold.

A leaf is an index, a number from outside of the operations, or an integer in memory, such as a length.
"""

from __future__ import annotations

from tilec.analysis.expression import Expr, constant
from tilec.core import mlir
from tilec.core.mlir import ir

Linear = tuple[dict[Expr, int], int]  # the sum of leaves times numbers, and a number
INTEGERS = ("i8", "i16", "i32", "i64")
"""Of elements. Unsigned ones have the same names in MLIR, but are compared by other predicates."""
_AT_LEAST = {2: (1, -1), 3: (0, -1), 4: (1, 1), 5: (0, 1)}  # cmpi a, b: sign * (a - b) - strict >= 0


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
            return tuple(_add(_times(b, -1), ({}, -1)) for b in found) if len(found) == 1 else None
    return None


def _compared(condition: Expr) -> tuple[Linear, ...] | None:
    assert condition.template is not None
    predicate = ir.IntegerAttr(condition.template.attributes["predicate"]).value
    sides = [side for side in map(_side, condition.args) if side is not None]
    if predicate not in _AT_LEAST or len(sides) < 2 or any(map(_may_wrap, sides)):
        return None
    strict, sign = _AT_LEAST[predicate]
    if condition.args[0].op == "math.absi":  # |x| < y: x < y and -x < y
        if sign > 0:
            return None
        ends = (_add(sides[1], _times(sides[0], way)) for way in (1, -1))
        return tuple((leaves, number - strict) for leaves, number in ends)
    if condition.args[1].op == "math.absi":
        return None
    leaves, number = _add(_times(sides[0], sign), _times(sides[1], -sign))
    return ((leaves, number - strict),)


def _side(x: Expr) -> Linear | None:
    """A side of a comparison: an element of 64 bits is compared as it is, but not added to anything, which may wrap around."""
    if x.op == "math.absi":
        return linear(x.args[0])
    return ({x: 1}, 0) if x.op == "element" and x.type in INTEGERS else linear(x)


def _may_wrap(side: Linear) -> bool:
    """Whether it may leave 64 bits, whatever the indices of tensors that memory holds."""
    leaves, number = side
    return sum(map(abs, leaves.values())) > 2**16 or abs(number) > 2**62


def linear(x: Expr) -> Linear | None:
    """An integer expression as a sum of leaves times numbers."""
    match x.op:
        case "constant":
            return {}, int(x.key)
        case "index" | "outer":
            return {x: 1}, 0
        case "arith.extsi" if x.args[0].op == "element" and x.type == "i64":
            return {x.args[0]: 1}, 0
        case "arith.index_cast" | "arith.extsi":
            return linear(x.args[0])
        case "affine.apply":
            return linear(expanded(x))
    if len(x.args) != 2 or x.type not in ("i64", "index"):
        return None
    a, b = (linear(side) for side in x.args)
    if a is None or b is None:
        return None
    match x.op:
        case "arith.addi":
            return _add(a, b)
        case "arith.subi":
            return _add(a, _times(b, -1))
        case "arith.muli" if not a[0] or not b[0]:
            return _times(b, a[1]) if not a[0] else _times(a, b[1])
    return None


def expanded(x: Expr) -> Expr:
    """What an `affine.apply` computes, as sums, products, quotients and remainders of its operands."""
    assert x.template is not None
    map_ = ir.AffineMapAttr(x.template.attributes["map"]).value
    return _expanded(map_.results[0], x.args, map_.n_dims)


def _expanded(part: ir.AffineExpr, operands: tuple[Expr, ...], dims: int) -> Expr:
    match part:
        case ir.AffineConstantExpr():
            return constant(part.value, "index")
        case ir.AffineDimExpr():
            return operands[part.position]
        case ir.AffineSymbolExpr():
            return operands[dims + part.position]
    (op,) = (op for kind, op in _OPERATIONS.items() if isinstance(part, kind))
    return Expr(op, tuple(_expanded(side, operands, dims) for side in mlir.sides(part)), type="index")


_OPERATIONS = {
    ir.AffineAddExpr: "arith.addi", ir.AffineMulExpr: "arith.muli", ir.AffineFloorDivExpr: "arith.floordivsi",
    ir.AffineCeilDivExpr: "arith.ceildivsi", ir.AffineModExpr: "arith.remsi",
}  # fmt: skip


def _add(a: Linear, b: Linear) -> Linear:
    leaves = {leaf: a[0].get(leaf, 0) + b[0].get(leaf, 0) for leaf in a[0] | b[0]}
    return {leaf: factor for leaf, factor in leaves.items() if factor}, a[1] + b[1]


def _times(a: Linear, factor: int) -> Linear:
    return {leaf: f * factor for leaf, f in a[0].items()}, a[1] * factor
