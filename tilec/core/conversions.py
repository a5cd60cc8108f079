"""Conversions between types on NumPy arrays: for the reference, its error bounds, and the interpreter.

NumPy and ml_dtypes round some conversions twice, by way of f32, and leave floats beyond an integer type's range to the
processor. This module rounds once and saturates.
"""

from __future__ import annotations

import numpy as np

_SINGLE = 4  # bytes of an f32, which holds all values of shorter types


def to_float(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """To the nearest float of the type, ties to even, rounded once."""
    array = np.asarray(array)
    with np.errstate(all="ignore"):
        if dtype.itemsize < _SINGLE <= array.dtype.itemsize:
            if array.dtype.kind in "iu":
                array = _marked(array).astype(np.float64)
            if array.dtype == np.float64:
                array = to_odd(array)
        return array.astype(dtype)


def to_integer(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Without the fraction; the type's smallest or largest number where that does not fit, and 0 of a NaN."""
    array, limits = np.asarray(array, np.float64), np.iinfo(dtype)
    low, high = array <= float(limits.min), array >= float(limits.max)
    fits = ~(low | high | np.isnan(array))
    whole = np.where(fits, array, 0).astype(dtype)
    return np.where(low, dtype.type(limits.min), np.where(high, dtype.type(limits.max), whole))


def to_odd(array: np.ndarray) -> np.ndarray:
    """f64 as f32, rounded to odd where it is not exact: a second rounding to fewer bits does as one would.

    Source: Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    near = array.astype(np.float32)
    back, bits = near.astype(np.float64), near.view(np.int32)
    even = np.isfinite(array) & (back != array) & (bits & 1 == 0)
    step = np.where(np.abs(back) < np.abs(array), np.int32(1), np.int32(-1))
    return np.where(even, bits + step, bits).view(np.float32)


def _marked(array: np.ndarray) -> np.ndarray:
    """Integers that an f64 holds, which round to 24 bits or fewer as these do: of large ones a bit stands for the last."""
    if array.dtype.itemsize < 8:
        return array
    rest = array & array.dtype.type(0xFFF)
    large = (array >> array.dtype.type(53)).astype(np.int64)
    large = (large != 0) & (large != -1) if array.dtype.kind == "i" else large != 0
    marked = (array - rest) | np.where(rest != 0, 0x800, 0).astype(array.dtype)
    return np.where(large, marked, array)
