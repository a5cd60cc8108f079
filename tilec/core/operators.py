"""The operators and the associative reductions of the language on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def _power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """`base ** exponent`; between integers a negative power is 1 / base ** n, rounded towards 0."""
    if base.dtype.kind == "f" or exponent.dtype.kind == "u":
        return np.power(base, exponent)
    unit = np.where(np.abs(base) == 1, np.power(base, exponent % 2), 0).astype(base.dtype)
    return np.where(exponent < 0, unit, np.power(base, np.maximum(exponent, 0)))


def _shift_left(a: np.ndarray, by: np.ndarray) -> np.ndarray:
    inside = (by >= 0) & (by < 8 * a.dtype.itemsize)
    return np.where(inside, np.left_shift(a, np.where(inside, by, 0)), 0).astype(a.dtype)


def _shift_right(a: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Copies of the sign come in, as a quotient that is rounded down has them."""
    inside = (by >= 0) & (by < 8 * a.dtype.itemsize)
    return np.where(inside, np.right_shift(a, np.where(inside, by, 0)), np.where(a < 0, -1, 0).astype(a.dtype)).astype(a.dtype)


def floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a // b`, of floats as Python's in the type that they are of: (a - r) / b, where r is the remainder with the sign of
    a, is whole but for rounding, so that 1.0 // 0.1 is 9. It is one less where a % b has the other sign, so that
    -1.0 // inf is -1. A zero has the sign of a / b, and a division by zero is that.
    """
    if a.dtype.kind != "f":
        return np.floor_divide(a, b)
    exact, remainder = np.divide(a, b), np.fmod(a, b)
    quotient = (a - remainder) / b
    quotient = np.where(_other_sign(remainder, b), quotient - quotient.dtype.type(1), quotient)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + whole.dtype.type(1), whole)
    return np.where(b == 0, exact, np.where(quotient == 0, exact * exact.dtype.type(0), whole))


def modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a % b`, of floats as Python's: the divisor added where the remainder has another sign; a zero has the divisor's."""
    if a.dtype.kind != "f":
        return np.remainder(a, b)
    remainder = np.fmod(a, b)
    result = np.where(_other_sign(remainder, b), remainder + b, remainder)
    return np.where(remainder == 0, np.copysign(remainder, b), result)


def _other_sign(remainder: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (remainder != 0) & ((remainder < 0) != (b < 0))


OPERATORS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": floor_divide, "%": modulo,
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "<<": _shift_left, ">>": _shift_right,
    "**": _power, "and": np.logical_and, "or": np.logical_or,
    "==": np.equal, "!=": np.not_equal,
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip

UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {"-": np.negative, "~": np.invert, "not": np.logical_not}

COMBINE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip
