"""What the operators and the associative reductions of the language mean, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def _power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """`base ** exponent`; between integers a negative power is 1 / base ** n, rounded towards 0."""
    if base.dtype.kind == "f" or exponent.dtype.kind == "u":
        return np.power(base, exponent)
    unit = np.where(np.abs(base) == 1, np.power(base, exponent % 2), 0).astype(base.dtype)
    return np.where(exponent < 0, unit, np.power(base, np.maximum(exponent, 0)))


OPERATORS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.remainder,
    "**": _power, "and": np.logical_and, "or": np.logical_or,
    "==": np.equal, "!=": np.not_equal,
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip

COMBINE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip
