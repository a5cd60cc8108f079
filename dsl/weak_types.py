"""Weak types of literals: a literal, or an expression of literals alone, has one of two weak types until it meets a type."""

from __future__ import annotations

import math

import numpy as np

from tilec.core.dtypes import F32, I64, DType, compute_type, join
from tilec.core.reductions import highest, lowest
from tilec.dsl import ast

WEAK_INT = DType("whole number", "int", 0, "")
WEAK_FLOAT = DType("number", "float", 0, "")
UNKNOWN = DType("unknown", "float", 0, "")  # of names with a mistake, and of the short form before its call
WEAK = (WEAK_INT, WEAK_FLOAT)


def meet(a: DType, b: DType) -> DType:
    """The type of arithmetic between `a` and `b`, where literals take the type of the other operand."""
    if UNKNOWN in (a, b):
        return UNKNOWN
    if a in WEAK and b in WEAK:
        return WEAK_FLOAT if WEAK_FLOAT in (a, b) else WEAK_INT
    if a in WEAK or b in WEAK:
        weak, strong = (a, b) if a in WEAK else (b, a)
        if strong.is_float:
            return compute_type(strong)
        return F32 if weak is WEAK_FLOAT else strong if strong.is_integer else I64
    return join(a, b)


def wide(dtype: DType) -> DType:
    """The type that a value is computed in."""
    return dtype if dtype in WEAK or dtype is UNKNOWN else compute_type(dtype)


def default(dtype: DType) -> DType:
    """The type of a literal that meets nothing."""
    return {WEAK_INT: I64, WEAK_FLOAT: F32}.get(dtype, dtype)


def holds(dtype: DType, value: int | float) -> bool:
    """Whether a number is a value of the type."""
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return math.isnan(value) or float(np.asarray(value, np.float64).astype(dtype.numpy)) == value
    if dtype.kind == "bool":
        return True
    low, high = lowest(dtype), highest(dtype)
    return low <= value <= high and (isinstance(value, int) or value.is_integer())


def rounds(literal: ast.Expr, dtype: DType) -> bool:
    """Whether a narrow float may not hold the value that f32 arithmetic gives."""
    narrow = dtype.is_float and 0 < dtype.bits < 32
    return narrow and not (isinstance(literal, ast.Number) and holds(dtype, literal.value))
