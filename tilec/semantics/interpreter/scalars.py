"""`arith` and `affine`: elementwise, in the precision that the IR says.

Integers wrap around. Arithmetic of f32 is done in f32, of bf16 in bf16. Fast-math flags are ignored: nothing
is reordered.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.core import mlir
from tilec.core.conversions import to_float
from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Code, Mask, Scalar, Step, Values, differs, dtype_of, merge, operation
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.memory import Chosen, View


def unsigned(value: Scalar, dtype: np.dtype) -> np.ndarray:
    """The same bits as an unsigned integer."""
    if dtype == np.bool_:
        return np.asarray(value, dtype)
    return np.asarray(value, dtype).view(np.dtype(f"u{dtype.name}"))


def narrowed(value: Scalar, dtype: np.dtype) -> Scalar:
    """A value in another type: floats rounded once, integers cut."""
    if dtype.kind not in "iub" and dtype.itemsize < 4:
        return to_float(np.asarray(value), dtype)[()]
    if isinstance(value, np.ndarray):
        return value.astype(dtype)
    return dtype.type(value) if dtype.kind not in "iu" else np.asarray(value).astype(dtype)[()]


# ---- constants -------------------------------------------------------------------------------------------------------


@operation("arith.constant")
def _constant(code: Code, op: ir.Operation) -> None:
    value, type_ = op.attributes["value"], op.results[0].type
    dtype = dtype_of(type_)
    if isinstance(type_, ir.ShapedType):
        value = ir.DenseElementsAttr(value)
        if not isinstance(type_, ir.VectorType) or not value.is_splat:
            raise Unsupported(op, "a constant of this type")
        full = np.full(tuple(type_.shape), _number(value.get_splat_value(), dtype), dtype)
        code.template[code.slot(op.results[0])] = full[None] if _in_threads(op) else full
    else:
        code.template[code.slot(op.results[0])] = _number(value, dtype)


def _in_threads(op: ir.Operation) -> bool:
    from tilec.semantics.interpreter.flight import is_mapped

    while op.name != "func.func":
        op = op.parent.operation
    return is_mapped(op)


def _number(attribute: ir.Attribute, dtype: np.dtype) -> Scalar:
    if dtype == np.bool_:
        return np.bool_(ir.IntegerAttr(attribute).value if not isinstance(attribute, ir.BoolAttr) else attribute.value)
    if dtype.kind == "i":
        value = ir.IntegerAttr(attribute).value
        return value if str(attribute.type) == "index" else dtype.type(value)
    return dtype.type(ir.FloatAttr(attribute).value)


# ---- arithmetic ------------------------------------------------------------------------------------------------------

BINARY: dict[str, Callable] = {
    "addf": operator.add, "subf": operator.sub, "mulf": operator.mul, "divf": operator.truediv, "remf": np.fmod,
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul,
    "andi": operator.and_, "ori": operator.or_, "xori": operator.xor,
    "maxsi": np.maximum, "minsi": np.minimum,
    "maximumf": np.maximum, "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin,
}  # fmt: skip
OF_BOOLS = {"addi": operator.xor, "subi": operator.xor, "muli": operator.and_}


@operation(*(f"arith.{n}" for n in BINARY))
def _binary(code: Code, op: ir.Operation) -> Step:
    (a, b), (r,) = code.operands(op), code.results(op)
    name = op.name.removeprefix("arith.")
    function = BINARY[name]
    dtype = dtype_of(op.results[0].type)
    if dtype == np.bool_ and name in OF_BOOLS:
        function = OF_BOOLS[name]
    if dtype.kind == "i" and name in ("maxsi", "minsi"):
        whole = max if name == "maxsi" else min

        def step(values: Values, mask: Mask) -> None:
            x, y = values[a], values[b]
            values[r] = whole(x, y) if type(x) is int and type(y) is int else function(x, y)
    else:

        def step(values: Values, mask: Mask) -> None:
            values[r] = function(values[a], values[b])

    return step


def _divides(op: ir.Operation, values: Values, mask: Mask, b: int) -> None:
    """A divisor of zero has no result in the IR."""
    zero = np.asarray(values[b]) == 0
    if mask is not None:
        zero = zero & mask
    if zero.any():
        raise Fault("invalid", op, "division by zero", values[0].names(np.flatnonzero(np.atleast_1d(zero))))


def _truncated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Division towards zero."""
    quotient = x // y
    return quotient + ((quotient < 0) & (quotient * y != x))


DIVIDE: dict[str, Callable] = {
    "divui": operator.floordiv, "remui": operator.mod, "ceildivui": lambda x, y: x // y + (x % y != 0),
    "divsi": _truncated, "remsi": np.fmod, "floordivsi": operator.floordiv, "ceildivsi": lambda x, y: -(-x // y),
    "maxui": np.maximum, "minui": np.minimum,
}  # fmt: skip


@operation(*(f"arith.{n}" for n in DIVIDE))
def _divide(code: Code, op: ir.Operation) -> Step:
    (a, b), (r,) = code.operands(op), code.results(op)
    name = op.name.removeprefix("arith.")
    function, dtype = DIVIDE[name], dtype_of(op.results[0].type)
    without_sign = name.endswith("ui")
    divides = "div" in name or "rem" in name
    plain = {"divui": operator.floordiv, "remui": operator.mod, "floordivsi": operator.floordiv}.get(name)

    def step(values: Values, mask: Mask) -> None:
        x, y = values[a], values[b]
        if plain is not None and type(x) is int and type(y) is int and x >= 0 and y > 0:
            values[r] = plain(x, y)
            return
        if divides:
            _divides(op, values, mask, b)
        if without_sign:
            result = np.asarray(function(unsigned(x, dtype), unsigned(y, dtype)))
            values[r] = result if dtype == np.bool_ else result.astype(result.dtype).view(dtype)[()]
        else:
            values[r] = narrowed(function(np.asarray(x, dtype), np.asarray(y, dtype)), dtype)

    return step


@operation("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(code: Code, op: ir.Operation) -> Step:
    (a, b), (r,) = code.operands(op), code.results(op)
    dtype = dtype_of(op.results[0].type)
    left, arithmetic = op.name == "arith.shli", op.name == "arith.shrsi"

    def step(values: Values, mask: Mask) -> None:
        x, y = values[a], values[b]
        if left:
            values[r] = narrowed(np.asarray(x, dtype) << np.asarray(y, dtype), dtype)
        elif arithmetic or (type(x) is int and x >= 0):
            values[r] = x >> y
        else:
            values[r] = (unsigned(x, dtype) >> unsigned(y, dtype)).view(dtype)[()]

    return step


@operation("arith.negf", "arith.bitcast")
def _unary(code: Code, op: ir.Operation) -> Step:
    (a,), (r,) = code.operands(op), code.results(op)
    source, target = dtype_of(op.operands[0].type), dtype_of(op.results[0].type)

    def negate(values: Values, mask: Mask) -> None:
        values[r] = -values[a]

    def cast_bits(values: Values, mask: Mask) -> None:
        values[r] = np.asarray(values[a], source).view(target)[()]

    return negate if op.name == "arith.negf" else cast_bits


@operation("arith.select")
def _select(code: Code, op: ir.Operation) -> Step:
    (c, a, b), (r,) = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        condition = values[c]
        if differs(condition) and isinstance(values[a], View):
            values[r] = Chosen.of(condition, values[a], values[b])
        elif differs(condition):
            values[r] = merge(condition, values[a], values[b])
        else:
            values[r] = values[a] if condition else values[b]

    return step


# ---- comparisons -----------------------------------------------------------------------------------------------------

_UNORDERED = lambda x, y: (x != x) | (y != y)  # noqa: E731
COMPARE_FLOAT: dict[int, Callable] = {
    0: lambda x, y: (x != x) & False, 1: operator.eq, 2: operator.gt, 3: operator.ge, 4: operator.lt, 5: operator.le,
    6: lambda x, y: (x < y) | (x > y), 7: lambda x, y: (x == x) & (y == y),
    8: lambda x, y: (x == y) | _UNORDERED(x, y), 9: lambda x, y: (x > y) | _UNORDERED(x, y),
    10: lambda x, y: (x >= y) | _UNORDERED(x, y), 11: lambda x, y: (x < y) | _UNORDERED(x, y),
    12: lambda x, y: (x <= y) | _UNORDERED(x, y), 13: operator.ne, 14: _UNORDERED, 15: lambda x, y: (x != x) | True,
}  # fmt: skip
COMPARE_INTEGER = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@operation("arith.cmpf")
def _compare_floats(code: Code, op: ir.Operation) -> Step:
    (a, b), (r,) = code.operands(op), code.results(op)
    function = COMPARE_FLOAT[ir.IntegerAttr(op.attributes["predicate"]).value]

    def step(values: Values, mask: Mask) -> None:
        values[r] = function(values[a], values[b])

    return step


@operation("arith.cmpi")
def _compare_integers(code: Code, op: ir.Operation) -> Step:
    (a, b), (r,) = code.operands(op), code.results(op)
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    dtype = dtype_of(op.operands[0].type)
    function = COMPARE_INTEGER[predicate if predicate < 6 else predicate - 4]
    if dtype == np.bool_ and 2 <= predicate < 6:  # as a signed number, true is -1
        function = COMPARE_INTEGER[{2: 4, 3: 5, 4: 2, 5: 3}[predicate]]

    def step(values: Values, mask: Mask) -> None:
        values[r] = function(values[a], values[b])

    def step_unsigned(values: Values, mask: Mask) -> None:
        values[r] = function(unsigned(values[a], dtype), unsigned(values[b], dtype))[()]

    return step_unsigned if predicate >= 6 else step


# ---- conversions -----------------------------------------------------------------------------------------------------


@operation(
    "arith.extf", "arith.truncf", "arith.sitofp", "arith.fptosi", "arith.trunci", "arith.extsi", "arith.index_cast"
)
def _convert(code: Code, op: ir.Operation) -> Step:
    (a,), (r,) = code.operands(op), code.results(op)
    source, target = dtype_of(op.operands[0].type), dtype_of(op.results[0].type)
    from_bool = source == np.bool_ and op.name in ("arith.extsi", "arith.sitofp", "arith.index_cast")
    to_bool = target == np.bool_
    to_integer = op.name == "arith.fptosi"
    if "tf32" in str(op.results[0].type):
        return _round_to_tf32(code, op)

    def step(values: Values, mask: Mask) -> None:
        value = values[a]
        if to_integer:
            _fits(op, values, mask, value, np.iinfo(target))
        if from_bool:
            value = -np.asarray(value, np.int64)  # as a signed number, true is -1
        if to_bool:
            value = (np.asarray(value) & 1)[()]
        values[r] = narrowed(value, target)

    return step


def _fits(op: ir.Operation, values: Values, mask: Mask, value: object, limits: np.iinfo) -> None:
    """A float outside of an integer's type has no result in the IR."""
    whole = np.trunc(np.asarray(value, np.float64))
    wrong = ~((whole >= float(limits.min)) & (whole < float(limits.max) + (limits.bits < 64)))
    if mask is not None:
        wrong = wrong & mask
    if wrong.any():
        names = values[0].names(np.flatnonzero(np.atleast_1d(wrong)))
        raise Fault("invalid", op, f"a float that is no {'u' if limits.min == 0 else 'i'}{limits.bits}", names)


def _round_to_tf32(code: Code, op: ir.Operation) -> Step:
    """A tf32 is an f32 whose last 13 bits are 0; to the nearest, ties to even or away from zero."""
    (a,), (r,) = code.operands(op), code.results(op)
    away = "roundingmode" in op.attributes and ir.IntegerAttr(op.attributes["roundingmode"]).value == 4

    def step(values: Values, mask: Mask) -> None:
        value = np.asarray(values[a], np.float32)
        bits = value.view(np.int32)
        half = 0x1000 if away else 0xFFF + (bits >> 13 & 1)
        values[r] = np.where(np.isfinite(value), ((bits + half) & ~0x1FFF).view(np.float32), value)

    return step


@operation("arith.extui", "arith.uitofp", "arith.index_castui")
def _convert_unsigned(code: Code, op: ir.Operation) -> Step:
    (a,), (r,) = code.operands(op), code.results(op)
    source, target = dtype_of(op.operands[0].type), dtype_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        values[r] = narrowed(unsigned(values[a], source), target)

    return step


@operation("arith.fptoui")
def _convert_to_unsigned(code: Code, op: ir.Operation) -> Step:
    (a,), (r,) = code.operands(op), code.results(op)
    target = dtype_of(op.results[0].type)
    unsigned_target = np.dtype(f"u{target.name}")

    def step(values: Values, mask: Mask) -> None:
        _fits(op, values, mask, values[a], np.iinfo(unsigned_target))
        values[r] = np.asarray(values[a]).astype(unsigned_target).view(target)[()]

    return step


# ---- affine ----------------------------------------------------------------------------------------------------------


@operation("affine.apply", "affine.min", "affine.max")
def _affine(code: Code, op: ir.Operation) -> Step:
    slots, (r,) = code.operands(op), code.results(op)
    map_ = ir.AffineMapAttr(op.attributes["map"]).value
    parts = [_expression(e, slots, map_.n_dims) for e in map_.results]
    (first, *rest) = parts
    pick, whole = (np.minimum, min) if op.name == "affine.min" else (np.maximum, max)

    def step(values: Values, mask: Mask) -> None:
        result = first(values)
        for part in rest:
            other = part(values)
            result = pick(result, other) if differs(result) or differs(other) else whole(result, other)
        values[r] = result

    return step


def _expression(expr: ir.AffineExpr, slots: list[int], dims: int) -> Callable[[Values], Any]:
    match expr:
        case ir.AffineConstantExpr():
            constant = expr.value
            return lambda values: constant
        case ir.AffineDimExpr():
            return operator.itemgetter(slots[expr.position])
        case ir.AffineSymbolExpr():
            return operator.itemgetter(slots[dims + expr.position])
    left, right = (_expression(side, slots, dims) for side in mlir.sides(expr))
    match expr:
        case ir.AffineAddExpr():
            return lambda values: left(values) + right(values)
        case ir.AffineMulExpr():
            return lambda values: left(values) * right(values)
        case ir.AffineModExpr():
            return lambda values: left(values) % right(values)
        case ir.AffineFloorDivExpr():
            return lambda values: left(values) // right(values)
        case ir.AffineCeilDivExpr():
            return lambda values: -(-left(values) // right(values))
    raise AssertionError(expr)
