"""`math`, and multiplication and addition with one rounding.

Functions are NumPy's, evaluated at f64 and rounded once, so that they are right to half a unit in the last place (f64: to what
NumPy gives) on any machine.
"""

from __future__ import annotations

import numpy as np

from tilec.core.functions import FUNCTIONS
from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, dtype_of, operation

_MATH = {row.mlir: row.reference for row in FUNCTIONS.values() if row.mlir.startswith("math.")}
_MATH |= {"math.powf": np.power, "math.rsqrt": lambda x: 1 / np.sqrt(x)}


@operation(*_MATH)
def _function(code: Code, op: ir.Operation) -> Step:
    slots, (r,) = code.operands(op), code.results(op)
    function, dtype = _MATH[op.name], dtype_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        wide = [np.asarray(values[s], np.float64) for s in slots]
        values[r] = np.asarray(function(*wide)).astype(dtype)[()]

    return step


@operation("math.absi", "math.ipowi")
def _integer_function(code: Code, op: ir.Operation) -> Step:
    slots, (r,) = code.operands(op), code.results(op)
    dtype = dtype_of(op.results[0].type)
    function = np.abs if op.name == "math.absi" else integer_power

    def step(values: Values, mask: Mask) -> None:
        values[r] = function(*(np.asarray(values[s], dtype) for s in slots)).astype(dtype)[()]

    return step


def integer_power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """By squaring, wrapping around; a negative exponent gives 1 / base rounded towards zero, and 0 for a base of 0."""
    result, square, left = np.ones_like(base + exponent), base, np.maximum(exponent, 0)
    while left.any():
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(exponent & 1, -1, 1), 0))
    return np.where(exponent < 0, inverse.astype(base.dtype), result)


def fused_multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """a * b + c, rounded once: exactly for f32 and narrower; for f64 within half a unit and 2**-105."""
    if dtype != np.float64:
        product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact
        total, rest = _two_sum(product, np.asarray(c, np.float64))
        return _to_odd(total, rest).astype(dtype)[()]
    high, low = _two_product(np.asarray(a, dtype), np.asarray(b, dtype))
    total, rest = _two_sum(high, np.asarray(c, dtype))
    exact = total + (rest + low)
    return np.where(np.isfinite(exact), exact, a * b + c)[()]


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum and its error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded product and its error (Dekker, with Veltkamp's splitting)."""
    product = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    big = a * 134217729.0  # 2**27 + 1
    high = big - (big - a)
    return high, a - high


def _to_odd(total: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """The sum rounded to odd, which a second rounding to fewer bits does not spoil (Boldo and Melquiond)."""
    bits = total.view(np.int64) if total.ndim else np.asarray(total).view(np.int64)
    inexact = np.isfinite(total) & (rest != 0) & ((bits & 1) == 0)
    outward = (rest > 0) == (total > 0)
    return np.where(inexact, bits + np.where(outward, 1, -1), bits).view(np.float64)


@operation("math.fma", "vector.fma")
def _fused(code: Code, op: ir.Operation) -> Step:
    (a, b, c), (r,) = code.operands(op), code.results(op)
    dtype = dtype_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        values[r] = fused_multiply_add(values[a], values[b], values[c], dtype)

    return step
