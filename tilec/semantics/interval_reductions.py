"""Enclosures of reductions and scans, for any order in which a compiled program combines the elements.

A sum of n terms, each rounded at most once before, errs by at most gamma(n) sum |terms|, where
gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2: true of
any order, so of blocks, several chains and trees, too). A product of n terms errs by gamma(n) of itself, and by
underflow where a partial product is too small for the type. Extremes are exact.

`Total` has the axes of a reduction: `reduce` keeps them at length 1, and a scan gives every prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from tilec.core.dtypes import F64, DType
from tilec.core.reductions import REDUCTIONS
from tilec.semantics.intervals import Enclosure, corners, is_anything, negative, of_either_sign, point, rounded

HOST = 2.0**-53  # the unit roundoff of the f64 in which ends are computed


def unit_roundoff(dtype: DType) -> float:
    """The largest relative error of rounding a real number to `dtype`."""
    return 2.0**-dtype.mantissa


def gamma(count: np.ndarray | float, unit: float) -> np.ndarray:
    """Higham's bound on `count` roundings in a row; infinite where there are too many to tell."""
    product = np.asarray(count * unit, np.float64)
    return np.where(product < 1, product / np.where(product < 1, 1 - product, 1), np.inf)


def largest(dtype: DType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy).max)


@dataclass(frozen=True)
class Total:
    """A reduction over `axes`, or the scan along one axis; `count` is how many elements each result combines."""

    axes: tuple[int, ...]
    count: np.ndarray
    scans: bool = False

    @staticmethod
    def reduction(shape: tuple[int, ...], axes: tuple[int, ...]) -> Total:
        return Total(axes, np.asarray(int(np.prod([shape[a] for a in axes]))))

    @staticmethod
    def scan(shape: tuple[int, ...], axis: int) -> Total:
        along = [1] * len(shape)
        along[axis] = shape[axis]
        return Total((axis,), np.arange(1, shape[axis] + 1).reshape(along), True)

    def __call__(self, ufunc: np.ufunc, array: np.ndarray, **initial: float) -> np.ndarray:
        if self.scans:
            return ufunc.accumulate(array, axis=self.axes[0], dtype=array.dtype)
        named: dict[str, Any] = initial if array.dtype == np.bool_ else {"dtype": array.dtype, **initial}
        return ufunc.reduce(array, axis=self.axes, keepdims=True, **named)

    def any(self, array: np.ndarray) -> np.ndarray:
        return self(np.logical_or, array)


# ---- sums --------------------------------------------------------------------------------------------------


def sum_parts(x: Enclosure, total: Total) -> list[np.ndarray]:
    """The parts of a sum: its ends, its size, its positive and negative terms, and infinities apart. The parts of two
    halves are added."""
    add = np.add
    anything, nothing = is_anything(x), np.isnan(x.low)
    special = ~np.isfinite(x.low) | ~np.isfinite(x.high)
    low, high = x
    flags = [np.zeros((), np.int64)] * 6
    if special.any():
        masks = [x.low == -np.inf, x.high == np.inf, x.low == np.inf, x.high == -np.inf, nothing, anything]
        flags = [total(add, m.astype(np.int64)) for m in masks]
        low, high = (np.where(np.isfinite(end), end, 0.0) for end in x)
    arrays = [low, high, np.maximum(np.abs(low), np.abs(high)), np.maximum(high, 0), np.maximum(-low, 0)]
    return [*(total(add, array) for array in arrays), *flags]


def sum_of_parts(parts: list[np.ndarray], count: np.ndarray, dtype: DType, unit: float) -> Enclosure:
    """The enclosure of a sum that is accumulated in `dtype`, where each step errs by `unit`."""
    low, high, size, positive, negative, *flags = parts
    may_down, may_up, up, down, nan, anything = (f > 0 for f in flags)
    error = np.where(count > 1, gamma(count, unit) + gamma(count + 2, HOST), 0) * size
    error = np.where(size > 0, error, 0)  # infinitely many roundings of nothing
    most = largest(dtype)
    may_up, may_down = may_up | (positive + error > most), may_down | (negative + error > most)
    least = np.where(negative > 0, low - error, np.maximum(low - error, 0))  # no order of such terms is negative
    low = np.where(may_down, -np.inf, np.where(up, np.inf, least))
    high = np.where(may_up, np.inf, np.where(down, -np.inf, high + error))
    open_ = anything | (may_up & may_down)
    certain = nan | (up & down)
    low, high = np.where(open_, -np.inf, low), np.where(open_, np.inf, high)
    return of_either_sign(Enclosure(np.where(certain, np.nan, low), np.where(certain, np.nan, high)), np.asarray(True))


def _sum(x: Enclosure, total: Total, dtype: DType) -> Enclosure:
    return sum_of_parts(sum_parts(x, total), total.count, dtype, unit_roundoff(dtype))


# ---- products ----------------------------------------------------------------------------------------------


def _product(x: Enclosure, total: Total, dtype: DType) -> Enclosure:
    exact = _multiplied(x, total)
    size = np.maximum(np.abs(x.low), np.abs(x.high))
    most = total(np.multiply, np.maximum(size, 1))  # the largest that a part of the product may be
    unit = 2.0 ** (-1074 if dtype is F64 else -149)
    relative = np.where(total.count > 1, gamma(total.count, unit_roundoff(dtype)) + gamma(total.count, HOST), 0)
    error = relative * np.maximum(np.abs(exact.low), np.abs(exact.high))
    lost = np.where(total.count > 1, total.count * unit * most, 0)
    error = np.where(np.isfinite(error), error, 0) + np.where(total.any(size == 0), 0, lost)
    open_ = ((most > largest(dtype)) & (total.count > 1) | is_anything(exact)) & ~np.isnan(exact.low)
    low, high = exact.low - error, exact.high + error
    return of_either_sign(Enclosure(np.where(open_, -np.inf, low), np.where(open_, np.inf, high)), np.asarray(True))


def _multiplied(x: Enclosure, total: Total) -> Enclosure:
    """By halves, or step by step for a scan; the corners of two intervals at a time."""
    moved = x.map(lambda end: np.moveaxis(end, total.axes, range(len(total.axes))))
    rest = moved.low.shape[len(total.axes) :]
    moved = moved.map(lambda end: end.reshape(int(np.prod(end.shape[: len(total.axes)])), *rest))
    if total.scans:
        return _prefixes(moved).map(lambda end: np.moveaxis(end, 0, total.axes[0]))
    return _halves(moved).map(lambda end: np.expand_dims(end, total.axes))


def _halves(x: Enclosure) -> Enclosure:
    length = x.low.shape[0]
    if length == 0:
        return point(np.ones(x.low.shape[1:], x.low.dtype))
    while length > 1:
        half = length // 2
        first, second = x.map(itemgetter(slice(half))), x.map(itemgetter(slice(half, 2 * half)))
        folded = corners(np.multiply, first, second)
        rest = x.map(itemgetter(slice(2 * half, None)))
        x = Enclosure(np.concatenate([folded.low, rest.low]), np.concatenate([folded.high, rest.high]))
        length = x.low.shape[0]
    return x.map(lambda end: end[0])


def _prefixes(x: Enclosure) -> Enclosure:
    rows = [x.map(lambda end: end[:1])] if x.low.shape[0] else []
    for n in range(1, x.low.shape[0]):
        rows.append(corners(np.multiply, rows[-1], x.map(itemgetter(slice(n, n + 1)))))
    if not rows:
        return x
    return Enclosure(np.concatenate([r.low for r in rows]), np.concatenate([r.high for r in rows]))


# ---- extremes ----------------------------------------------------------------------------------------------


def _extreme(x: Enclosure, total: Total, ufunc: np.ufunc, identity: float) -> Enclosure:
    initial = {} if total.scans else {"initial": identity}
    found = x.map(lambda end: total(ufunc, end, **initial))
    if found.low.dtype.kind != "f":
        return found
    found = of_either_sign(found, np.asarray(True))
    if x.is_point:
        return found
    open_ = total.any(is_anything(x)) & ~np.isnan(found.low)
    return Enclosure(np.where(open_, -np.inf, found.low), np.where(open_, np.inf, found.high))


def arg_reduce(x: Enclosure, axis: int, kind: str) -> Enclosure:
    """The first and the last index that `argmax` or `argmin` may give.

    One may win that no earlier one is certain to reach, and no later one to exceed. The first NaN wins for certain.
    """
    if x.is_point:
        return point(np.expand_dims(REDUCTIONS[kind].reference(x.low, axis), axis))
    is_float = x.low.dtype.kind == "f"
    low, high = x if kind == "argmax" else negative(x) if is_float else (~x.high, ~x.low)
    number = np.arange(low.shape[axis]).reshape([-1 if a == axis else 1 for a in range(low.ndim)])
    if not is_float:
        nan = anything = np.zeros(low.shape, np.bool_)
    else:
        nan, anything = np.isnan(low), is_anything(x)
        low, high = np.where(nan, -np.inf, low), np.where(nan, -np.inf, high)
    best = np.maximum.accumulate(low, axis=axis)  # for certain
    may = (high > np.roll(best, 1, axis)) | (number == 0)
    may &= high >= np.take(best, [-1], axis)
    may = np.where(nan.any(axis, keepdims=True), nan, may) | anything
    may &= (np.roll(np.logical_or.accumulate(nan, axis=axis), 1, axis) == 0) | (number == 0)
    last = low.shape[axis] - 1 - np.flip(may, axis).argmax(axis)
    return Enclosure(*(np.expand_dims(end, axis) for end in (may.argmax(axis), last)))


# ---- all of them -------------------------------------------------------------------------------------------


def reduce(kind: str, x: Enclosure, total: Total, dtype: DType) -> Enclosure:
    """A reduction or scan (`sum`, `prod`, `max`, `min`, `any`, `all`) accumulated in `dtype`."""
    match kind:
        case "sum" if dtype.is_float:
            found = _sum(x, total, dtype)
            return rounded(found, dtype) if np.all(total.count < 2) else found
        case "prod" if dtype.is_float:
            return _product(x, total, dtype)
        case "sum" | "prod":
            return (_sum_of_integers if kind == "sum" else _product_of_integers)(x, total, dtype)
    ufunc = {"max": np.maximum, "min": np.minimum, "any": np.logical_or, "all": np.logical_and}[kind]
    return _extreme(x, total, ufunc, REDUCTIONS[kind].identity(dtype))


def _sum_of_integers(x: Enclosure, total: Total, dtype: DType) -> Enclosure:
    """Exact where the elements are; else any value of the type, should the result not stay inside it."""
    found = x.map(lambda end: total(np.add, end))
    if x.is_point:
        return found
    size = total(np.add, _sizes(x))
    return _opened(found, total.any(x.low != x.high) & (size > np.iinfo(dtype.numpy).max / 2), dtype)


def _product_of_integers(x: Enclosure, total: Total, dtype: DType) -> Enclosure:
    """Exact where the elements are; else any value of the type, should a part of the product not stay inside it."""
    if x.is_point:
        return x.map(lambda end: total(np.multiply, end))
    found, most = _multiplied(x, total), total(np.multiply, np.maximum(_sizes(x), 1))
    zero = total.any((x.low == 0) & (x.high == 0))
    wraps = total.any(x.low != x.high) & (most > min(np.iinfo(dtype.numpy).max, 2.0**53))
    return _opened(found.map(lambda end: np.where(zero, 0, end)), wraps & ~zero, dtype)


def _sizes(x: Enclosure) -> np.ndarray:
    return np.maximum(np.abs(x.low.astype(np.float64)), np.abs(x.high.astype(np.float64)))


def _opened(x: Enclosure, where: np.ndarray, dtype: DType) -> Enclosure:
    limits = np.iinfo(dtype.numpy)
    return Enclosure(np.where(where, limits.min, x.low), np.where(where, limits.max, x.high))
