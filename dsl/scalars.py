"""Scalar arithmetic of the language as `arith` and `math` operations at the insertion point.

Signless MLIR integers carry no sign; the language's type decides the operation. Integer division rounds down and gives 0
for a divisor of 0 (as NumPy does), so that a branch not taken may be computed and dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.core.dtypes import BOOL, F32, F64, DType
from tilec.core.functions import FUNCTIONS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL
from tilec.core.mlir import arith, constant, constant_value, ir, math, type_of

_COMPARE_FLOAT = {"==": "OEQ", "!=": "UNE", "<": "OLT", "<=": "OLE", ">": "OGT", ">=": "OGE"}
_COMPARE_INTEGER = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def mlir_type(dtype: DType) -> ir.Type:
    return type_of(dtype.mlir)


def number(value: int | float | bool, dtype: DType) -> ir.Value:
    return constant(value, mlir_type(dtype))


def cast(value: ir.Value, source: DType, target: DType) -> ir.Value:
    """A float is rounded once and becomes an integer as `_to_integer` says, integers wrap around, bools are `!= 0`."""
    if source == target:
        return value
    to = mlir_type(target)
    if source.is_float and source.bits < 32 and not target.is_float:
        return cast(cast(value, source, F32), F32, target)
    if target == BOOL:
        return compare("!=", value, number(0, source), source)
    if target.is_float and target.bits < 32 and not source.is_float:
        if source.bits < 32:
            return cast(cast(value, source, F32), F32, target)
        return cast(cast(_marked(value, source), source, F64), F64, target)
    if source.is_float and target.is_float:
        if source.bits < target.bits:
            return arith.extf(to, value)
        if source.bits > target.bits:
            return arith.truncf(to, value)
        return arith.truncf(to, arith.extf(mlir_type(F32), value))  # bf16 to f16 and back
    if source.is_float:
        return _to_integer(value, source, target)
    unsigned = source.kind in ("uint", "bool")
    if target.is_float:
        return (arith.uitofp if unsigned else arith.sitofp)(to, value)
    if source == BOOL or source.bits < target.bits:
        return (arith.extui if unsigned else arith.extsi)(to, value)
    return arith.trunci(to, value) if source.bits > target.bits else value


def _to_integer(value: ir.Value, source: DType, target: DType) -> ir.Value:
    """A float without its fraction; the type's smallest or largest number where it does not fit, and 0 of a NaN.

    `arith.fptosi` and `arith.fptoui` mean nothing beyond the type, so they never see such a number. The largest of wide
    types is no float: the float before it takes its place, and is taken back.
    """
    limits = np.iinfo(target.numpy)
    largest = np.asarray(limits.max, source.numpy)
    holds = int(largest) == limits.max
    most = float(largest if holds else np.nextafter(largest, np.asarray(0, source.numpy)))
    low, high = number(float(limits.min), source), number(most, source)
    if target.kind == "uint":  # a NaN is not above 0, either
        inside = arith.select(compare(">", value, low, source), value, low)
    else:
        inside = arith.select(compare("==", value, value, source), value, number(0, source))
        inside = arith.select(compare("<", inside, low, source), low, inside)
    inside = arith.select(compare(">", inside, high, source), high, inside)
    whole = (arith.fptoui if target.kind == "uint" else arith.fptosi)(mlir_type(target), inside)
    if holds:
        return whole
    return arith.select(compare(">", value, high, source), number(limits.max, target), whole)


def _marked(value: ir.Value, dtype: DType) -> ir.Value:
    """An integer that an f64 holds, and that rounds to 24 bits or fewer as this does: of a large one, whose last bits
    are too many, one bit stands for them.
    """
    if dtype.bits < 64:
        return value
    rest = arith.andi(value, number(0xFFF, dtype))
    cut = arith.subi(value, rest)
    marked = arith.select(compare("!=", rest, number(0, dtype), dtype), arith.ori(cut, number(0x800, dtype)), cut)
    large = compare(">=", value, number(1 << 53, dtype), dtype)
    if dtype.kind == "int":
        large = arith.ori(large, compare("<=", value, number(-(1 << 53), dtype), dtype))
    return arith.select(large, marked, value)


def negate(value: ir.Value, dtype: DType) -> ir.Value:
    return arith.negf(value) if dtype.is_float else arith.subi(number(0, dtype), value)


def invert(value: ir.Value, dtype: DType) -> ir.Value:
    return arith.xori(value, number(-1, dtype))


def logical_not(value: ir.Value) -> ir.Value:
    return arith.xori(value, number(True, BOOL))


def compare(op: str, left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    if dtype.is_float:
        return arith.cmpf(getattr(arith.CmpFPredicate, _COMPARE_FLOAT[op]), left, right)
    name = _COMPARE_INTEGER[op]
    if name not in ("eq", "ne"):
        name = ("s" if dtype.kind == "int" else "u") + name
    return arith.cmpi(getattr(arith.CmpIPredicate, name), left, right)


def binary(op: str, left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    match op:
        case "and" | "&":
            return arith.andi(left, right)
        case "or" | "|":
            return arith.ori(left, right)
        case "^":
            return arith.xori(left, right)
        case "<<" | ">>":
            return _shift(op, left, right, dtype)
        case "+" | "-" | "*":
            name = {"+": "add", "-": "sub", "*": "mul"}[op]
            return getattr(arith, name + ("f" if dtype.is_float else "i"))(left, right)
        case "/":
            return arith.divf(left, right)
        case "//":
            return _floor_divide(left, right, dtype)
        case "%":
            return _modulo(left, right, dtype)
        case "**":
            return _power(left, right, dtype)
    raise AssertionError(op)


def _shift(op: str, value: ir.Value, by: ir.Value, dtype: DType) -> ir.Value:
    """All bits are shifted out by an amount that is negative, or no less than the type's bits, which `arith` has no result for."""
    shift = arith.shli if op == "<<" else arith.shrui if dtype.kind == "uint" else arith.shrsi
    known, zero = constant_value(by), number(0, dtype)
    if known is not None and 0 <= known < dtype.bits:
        return shift(value, by)
    inside = arith.cmpi(arith.CmpIPredicate.ult, by, number(dtype.bits, dtype))
    if op == ">>" and dtype.kind == "int":  # copies of the sign remain
        return shift(value, arith.select(inside, by, number(dtype.bits - 1, dtype)))
    return arith.select(inside, shift(value, arith.select(inside, by, zero)), zero)


def _floor_divide(left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    if dtype.is_float:
        return _floor_divide_floats(left, right, dtype)
    divide = arith.divui if dtype.kind == "uint" else arith.floordivsi
    return _guard_divisor(divide, left, right, dtype)


def _floor_divide_floats(left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """`tilec.core.operators.floor_divide`, which says why, in operations."""
    zero, one = number(0, dtype), number(1, dtype)
    exact, remainder = arith.divf(left, right), arith.remf(left, right)
    quotient = arith.divf(arith.subf(left, remainder), right)
    quotient = arith.select(_other_sign(remainder, right, dtype), arith.subf(quotient, one), quotient)
    whole = math.floor(quotient)
    above = compare(">", arith.subf(quotient, whole), number(0.5, dtype), dtype)
    whole = arith.select(above, arith.addf(whole, one), whole)
    whole = arith.select(compare("==", quotient, zero, dtype), arith.mulf(exact, zero), whole)
    return arith.select(compare("==", right, zero, dtype), exact, whole)


def _guard_divisor(
    divide: Callable[[ir.Value, ir.Value], ir.Value], left: ir.Value, right: ir.Value, dtype: DType
) -> ir.Value:
    """0 where the divisor is 0; the division itself never sees one. A divisor of -1 is a negation: it may overflow."""
    known = constant_value(right)
    if known is not None and known not in (0, -1):
        return divide(left, right)
    zero, one = number(0, dtype), number(1, dtype)
    is_zero = compare("==", right, zero, dtype)
    if dtype.kind == "uint":
        return arith.select(is_zero, zero, divide(left, arith.select(is_zero, one, right)))
    is_minus = compare("==", right, number(-1, dtype), dtype)
    safe = arith.select(arith.ori(is_zero, is_minus), one, right)
    quotient = arith.select(is_minus, negate(left, dtype), divide(left, safe))
    return arith.select(is_zero, zero, quotient)


def _modulo(left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """The remainder that has the divisor's sign."""
    if dtype.is_integer:
        quotient = _floor_divide(left, right, dtype)
        remainder = arith.subi(left, arith.muli(quotient, right))
        if constant_value(right):
            return remainder
        return arith.select(compare("==", right, number(0, dtype), dtype), number(0, dtype), remainder)
    zero, remainder = number(0, dtype), arith.remf(left, right)
    whole = arith.select(compare("<", right, zero, dtype), number(-0.0, dtype), zero)
    result = arith.select(_other_sign(remainder, right, dtype), arith.addf(remainder, right), remainder)
    return arith.select(compare("==", remainder, zero, dtype), whole, result)


def _other_sign(remainder: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """Whether a remainder is not 0 and does not have the divisor's sign."""
    zero = number(0, dtype)
    differs = arith.xori(compare("<", remainder, zero, dtype), compare("<", right, zero, dtype))
    return arith.andi(differs, compare("!=", remainder, zero, dtype))


def _power(left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """Small whole exponents are multiplications, which are exact where powers by logarithms are not."""
    exponent = constant_value(right)
    if exponent is not None and exponent == int(exponent) and 0 <= exponent <= 4:
        return _repeated(left, int(exponent), dtype)
    if dtype.is_float:
        if exponent is not None and exponent == 0.5:
            return math.sqrt(left)
        if exponent is not None and exponent == int(exponent) and -4 <= exponent < 0:
            return arith.divf(number(1, dtype), _repeated(left, -int(exponent), dtype))
        return math.powf(left, right)
    return math.ipowi(left, right) if dtype.kind == "int" else _power_unsigned(left, right, dtype)


def _power_unsigned(left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """`math.ipowi` reads a sign. Odd numbers to the 2^62 are 1 in 64 bits, even ones 0: large exponents lose their upper bits but
    stay large."""
    wide = ir.IntegerType.get_signless(64)
    if dtype.bits < 64:
        return arith.trunci(mlir_type(dtype), math.ipowi(arith.extui(wide, left), arith.extui(wide, right)))
    low = arith.ori(arith.andi(right, constant(2**63 - 1, wide)), constant(2**62, wide))
    return math.ipowi(left, arith.select(arith.cmpi(arith.CmpIPredicate.slt, right, constant(0, wide)), low, right))


def _repeated(value: ir.Value, exponent: int, dtype: DType) -> ir.Value:
    if exponent == 0:
        return number(1, dtype)
    if exponent == 1:
        return value
    half = _repeated(value, exponent // 2, dtype)
    square = binary("*", half, half, dtype)
    return binary("*", square, value, dtype) if exponent % 2 else square


def function(name: str, arguments: list[ir.Value], dtype: DType) -> ir.Value:
    """A scalar function of the language; all arguments and the result have type `dtype`, unless its row says otherwise."""
    match name:
        case "rand":
            return _rand(*arguments)
        case "min" | "max":
            result = arguments[0]
            for argument in arguments[1:]:
                result = extremum(name, result, argument, dtype)
            return result
        case "clamp":
            value, low, high = arguments
            return extremum("min", extremum("max", value, low, dtype), high, dtype)
        case "sigmoid":
            return _sigmoid(arguments[0], dtype)
        case "abs" if not dtype.is_float:
            return math.absi(arguments[0]) if dtype.kind == "int" else arguments[0]
        case "ceil" | "floor" | "round" | "trunc" if not dtype.is_float:
            return arguments[0]
        case "sign":
            return _sign(arguments[0], dtype)
        case "fmod":
            left, right = arguments
            return _truncated_remainder(left, right, dtype)
    return getattr(math, FUNCTIONS[name].mlir.removeprefix("math."))(*arguments)


def _sign(x: ir.Value, dtype: DType) -> ir.Value:
    zero, one = number(0, dtype), number(1, dtype)
    below = zero if dtype.kind == "uint" else arith.select(compare("<", x, zero, dtype), number(-1, dtype), zero)
    return arith.select(compare(">", x, zero, dtype), one, below)


def _truncated_remainder(left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """The remainder that has the sign of `left`, as C's; between integers 0 where the divisor is 0."""
    if dtype.is_float:
        return arith.remf(left, right)
    remainder = _modulo(left, right, dtype)
    if dtype.kind == "uint":
        return remainder
    zero = number(0, dtype)
    differs = arith.xori(compare("<", left, zero, dtype), compare("<", right, zero, dtype))
    differs = arith.andi(differs, compare("!=", remainder, zero, dtype))
    return arith.select(differs, arith.subi(remainder, right), remainder)


def _rand(seed: ir.Value, counter: ir.Value) -> ir.Value:
    """See `tilec.core.functions._rand`: the rounds on 32-bit words, whose products are of 64.

    Neighbours differ in the word alone, so that code that computes four of them together shares one run.
    """
    word, wide = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
    half, multipliers = constant(32, wide), [constant(m, wide) for m in PHILOX_MULTIPLIERS]

    def split(value: ir.Value) -> tuple[ir.Value, ir.Value]:
        return arith.trunci(word, value), arith.trunci(word, arith.shrui(value, half))

    keys, zero = split(seed), constant(0, word)
    words = (*split(arith.shrui(counter, constant(2, wide))), zero, zero)
    for n in range(PHILOX_ROUNDS):
        (low0, high0), (low1, high1) = (
            split(arith.muli(arith.extui(wide, words[2 * m]), multiplier)) for m, multiplier in enumerate(multipliers)
        )
        round_keys = [arith.addi(k, constant(_signed(n * w), word)) if n else k for k, w in zip(keys, PHILOX_WEYL)]
        words = (
            arith.xori(arith.xori(high1, words[1]), round_keys[0]), low1,
            arith.xori(arith.xori(high0, words[3]), round_keys[1]), low0,
        )  # fmt: skip
    odd, upper = (
        arith.cmpi(arith.CmpIPredicate.ne, arith.andi(counter, constant(b, wide)), constant(0, wide)) for b in (1, 2)
    )
    chosen = arith.select(upper, arith.select(odd, words[3], words[2]), arith.select(odd, words[1], words[0]))
    fraction = arith.shrui(chosen, constant(8, word))
    return arith.mulf(arith.sitofp(mlir_type(F32), fraction), constant(2.0**-24, mlir_type(F32)))


def _signed(value: int) -> int:
    """The lower 32 bits, as the number that they are in two's complement."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _sigmoid(x: ir.Value, dtype: DType) -> ir.Value:
    """Of the exponential of -|x|, which cannot overflow: 1 / (1 + exp(-x)) is 0 where that does, too early."""
    one = number(1, dtype)
    e = math.exp(arith.negf(math.absf(x)))
    above = arith.select(compare("<", x, number(0, dtype), dtype), e, one)
    return arith.divf(above, arith.addf(one, e))


def extremum(name: str, left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """`min` or `max`; a NaN on either side is the result."""
    if dtype.is_float:
        return (arith.maximumf if name == "max" else arith.minimumf)(left, right)
    suffix = "si" if dtype.kind == "int" else "ui"
    return getattr(arith, name + suffix)(left, right)
