"""The ranges of index values: intervals, followed from loops and threads through integer arithmetic."""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.core import mlir
from tilec.core.mlir import ir

Range = tuple[int, int]
"""The least and the greatest value."""
I32: Range = (-(2**31), 2**31 - 1)
I64: Range = (-(2**63), 2**63 - 1)


class Ranges:
    """Ranges of the indices and 64-bit integers of a function. `leaf` returns those of operations without operands, `element` those
    of a tensor's elements; None is an unknown range."""

    def __init__(self, leaf: Callable[[ir.Operation], Range | None], element: Callable[[ir.Value], Range | None] | None = None):
        self.leaf, self.element = leaf, element
        self.known: dict[ir.Value, Range | None] = {}

    def of(self, value: ir.Value) -> Range | None:
        if value not in self.known:
            found = self._find(value)
            wraps = found is not None and (found[0] < I64[0] or found[1] > I64[1])
            self.known[value] = None if wraps else found
        return self.known[value]

    def of_affine(self, expr: ir.AffineExpr, operands: Sequence[Range | None], dims: int) -> Range | None:
        """Of an affine expression of operands of these ranges, the first `dims` of which are its dimensions."""
        match expr:
            case ir.AffineConstantExpr():
                return expr.value, expr.value
            case ir.AffineDimExpr():
                return operands[expr.position]
            case ir.AffineSymbolExpr():
                return operands[dims + expr.position]
        left, right = (self.of_affine(side, operands, dims) for side in mlir.sides(expr))
        found = None if left is None or right is None else _affine(expr, left, right)
        return None if found is None or found[0] < I64[0] or found[1] > I64[1] else found

    def _find(self, value: ir.Value) -> Range | None:
        op = mlir.definition(value)
        if op is None:
            around, number = ir.BlockArgument(value).owner.owner.operation, ir.BlockArgument(value).arg_number
            if self.element is not None and mlir.is_generic(around) and number < len(mlir.inputs_of(around)):
                return self.element(around.operands[number])
            return self._loop(around) if around.name == "scf.for" and number == 0 else None
        if op.name == "tensor.extract" and self.element is not None:
            return self.element(op.operands[0])
        if not isinstance(value.type, ir.IndexType) and str(value.type) != "i64":
            return None
        known = mlir.constant_value(value)
        if known is not None:
            return int(known), int(known)
        if op.name in ("arith.index_cast", "arith.index_castui"):
            if str(op.operands[0].type) in ("index", "i64"):
                return self.of(op.operands[0])
            return I32 if str(op.operands[0].type) in ("i8", "i16", "i32") and op.name == "arith.index_cast" else None
        operands = [self.of(v) for v in op.operands]
        if op.name == "arith.andi" and operands[1] is not None and operands[1][0] >= 0:
            return 0, operands[1][1]
        if op.name in ("arith.minsi", "arith.maxsi"):  # a clamp of any number has a range
            pick, known = min if op.name == "arith.minsi" else max, [r or I64 for r in operands]
            found = pick(r[0] for r in known), pick(r[1] for r in known)
            return None if found == I64 else found
        if op.name == "arith.select":
            first, second = operands[1:]
            return None if first is None or second is None else (min(first[0], second[0]), max(first[1], second[1]))
        if not operands or None in operands:
            return self.leaf(op) if not operands else None
        match op.name:
            case "arith.addi":
                return operands[0][0] + operands[1][0], operands[0][1] + operands[1][1]
            case "arith.subi":
                return operands[0][0] - operands[1][1], operands[0][1] - operands[1][0]
            case "arith.muli":
                return _product(*operands)
            case "arith.floordivsi":
                return _quotient(*operands)
            case "arith.divui" if operands[0][0] >= 0:  # else it may be of a number that is 2^64 more
                return _quotient(*operands)
            case "arith.remui":
                return _remainder(*operands)
            case "arith.shrui" if operands[0][0] >= 0 and operands[1][0] >= 0:
                return operands[0][0] >> operands[1][1], operands[0][1] >> operands[1][0]
            case "affine.apply" | "affine.min" | "affine.max":
                map_ = ir.AffineMapAttr(op.attributes["map"]).value
                results = [self.of_affine(e, operands, map_.n_dims) for e in map_.results]
                pick = max if op.name == "affine.max" else min
                return None if None in results else (pick(r[0] for r in results), pick(r[1] for r in results))
        return None

    def _loop(self, loop: ir.Operation) -> Range | None:
        """The variable of a loop: from the least start to below the greatest end, by positive steps."""
        start, end, _ = (self.of(v) for v in list(loop.operands)[:3])
        return None if start is None or end is None else (start[0], max(start[0], end[1] - 1))


def _affine(expr: ir.AffineExpr, left: Range, right: Range) -> Range | None:
    match expr:
        case ir.AffineAddExpr():
            return left[0] + right[0], left[1] + right[1]
        case ir.AffineMulExpr():
            return _product(left, right)
        case ir.AffineFloorDivExpr():
            return _quotient(left, right)
        case ir.AffineModExpr():
            return _remainder(left, right)
    return None


def _product(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _quotient(a: Range, b: Range) -> Range | None:
    """Rounded down, by a positive number."""
    ends = [x // y for x in a for y in b] if b[0] > 0 else []
    return (min(ends), max(ends)) if ends else None


def _remainder(a: Range, b: Range) -> Range | None:
    """Of a positive divisor; nothing changes where the dividend is smaller."""
    if b[0] <= 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)
