"""Arrays of intervals that hold every value a compiled program may compute: the arithmetic of error bounds.

An interval goes through an operation as all of its values do, and is then rounded as the operation's result is:

    +, -, /, sqrt     to the nearest value of the type, so that an exact operand gives one value
    *                 to the nearest, or not at all: an addition that follows may take the product unrounded (FMA)
    functions         moved outwards by the units in the last place that `tilec.core.functions` documents
    casts             to the nearest value of the type; near a tie that leaves two values

Comparisons give intervals of bools, and casts to integers intervals of integers. A decision that earlier errors may
change is undetermined, and so are values that depend on it. Ends are f64. Those of f64 values move outwards by a unit in
the last place more where NumPy itself may err.

An interval of NaN is NaN for certain. [-inf, inf] is any value, and NaN. Zeros have signs: [-0, 0] is a zero of either,
[0, 0] is 0 and not -0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from tilec.core.conversions import to_float
from tilec.core.dtypes import F32, F64, DType
from tilec.core.operators import OPERATORS


class Enclosure(NamedTuple):
    """Ends of one interval for each element; the same array twice where every interval is a point."""

    low: np.ndarray
    high: np.ndarray

    @property
    def is_point(self) -> bool:
        return self.low is self.high

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Enclosure:
        """A monotone function, or a change of shape, of both ends."""
        low = function(self.low)
        return Enclosure(low, low if self.is_point else function(self.high))


def point(value: object) -> Enclosure:
    array = np.asarray(value)
    return Enclosure(array, array)


def lesser(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smaller end, where -0 is below 0."""
    least = np.minimum(a, b)
    if least.dtype.kind != "f" or np.all(least):
        return least
    return np.where((least == 0) & (np.signbit(a) | np.signbit(b)), -0.0, least)


def greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The larger end, where 0 is above -0."""
    most = np.maximum(a, b)
    if most.dtype.kind != "f" or np.all(most):
        return most
    return np.where((most == 0) & ~(np.signbit(a) & np.signbit(b)), 0.0, most)


def of_either_sign(x: Enclosure, where: np.ndarray) -> Enclosure:
    """Zeros whose sign the language leaves open, where they are."""
    where = where & (x.low == 0) & (x.high == 0)
    return Enclosure(np.where(where, -0.0, x.low), np.where(where, 0.0, x.high)) if np.any(where) else x


ANYTHING = Enclosure(np.asarray(-np.inf), np.asarray(np.inf))


def is_anything(x: Enclosure) -> np.ndarray:
    return (x.low == -np.inf) & (x.high == np.inf)


def hull(a: Enclosure, b: Enclosure) -> Enclosure:
    """The interval that holds both; NaN together with a number holds any value."""
    low, high = lesser(a.low, b.low), greater(a.high, b.high)
    if low.dtype.kind != "f":
        return Enclosure(low, high)
    mixed = np.isnan(a.low) ^ np.isnan(b.low)
    return Enclosure(np.where(mixed, -np.inf, low), np.where(mixed, np.inf, high))


def select(condition: Enclosure, then: Enclosure, otherwise: Enclosure) -> Enclosure:
    """The branch that is taken, or both where the condition is undetermined."""
    if condition.is_point:
        low = np.where(condition.low, then.low, otherwise.low)
        both = then.is_point and otherwise.is_point
        return Enclosure(low, low if both else np.where(condition.low, then.high, otherwise.high))
    open_ = condition.high & ~condition.low
    taken, either = select(point(condition.low), then, otherwise), hull(then, otherwise)
    return Enclosure(np.where(open_, either.low, taken.low), np.where(open_, either.high, taken.high))


# ---- rounding ----------------------------------------------------------------------------------------------


def ulp(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The unit in the last place of `dtype` at x; of finite x, that of the smallest normal number below that."""
    least = -1074 if dtype is F64 else -149
    _, exponent = np.frexp(x)
    return np.ldexp(1.0, np.where(np.asarray(x) == 0, least, np.maximum(exponent - dtype.mantissa, least)))


def to_nearest(array: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 rounded to `dtype`, still as f64."""
    return array if dtype is F64 else to_float(array, dtype.numpy).astype(np.float64)


def rounded(x: Enclosure, dtype: DType) -> Enclosure:
    """The values of `dtype` that are nearest to those of an interval. A value that is too large for the type may be any
    number."""
    return without_infinity(x, x.map(lambda end: to_nearest(end, dtype)))


def without_infinity(x: Enclosure, nearest: Enclosure) -> Enclosure:
    """The enclosure of `x` after rounding, with ends that round to `nearest`. f8e4m3 has NaN for values that are too large; between
    two such ends, one on either side of 0, there are numbers.
    """
    low, high = np.isnan(nearest.low), np.isnan(nearest.high)
    lost = (low ^ high) | (low & (x.low < 0) & (x.high > 0))
    if not np.any(lost):
        return nearest
    return Enclosure(np.where(lost, -np.inf, nearest.low), np.where(lost, np.inf, nearest.high))


def outwards(x: Enclosure) -> Enclosure:
    """By the rounding of f64 in which ends are computed, where there are two of them."""
    if x.is_point:
        return x
    wide = x.low < x.high
    low = np.where(wide & np.isfinite(x.low), np.nextafter(x.low, -np.inf), x.low)
    return Enclosure(low, np.where(wide & np.isfinite(x.high), np.nextafter(x.high, np.inf), x.high))


def widened(x: Enclosure, dtype: DType, count: float) -> Enclosure:
    """Moved outwards by `count` units in the last place; two binades' where the next is that near."""

    def step(end: np.ndarray) -> np.ndarray:
        unit = ulp(end, dtype)
        return np.where(np.isfinite(end), count * ulp(np.abs(end) + 2 * count * unit, dtype), 0)

    return Enclosure(x.low - step(x.low), x.high + step(x.high))


def settled(low: np.ndarray, high: np.ndarray, *operands: Enclosure) -> Enclosure:
    """Ends as computed: NaN where an operand is NaN or all are points; anything where one is that, or may give NaN."""
    ends = [end for x in operands for end in x]
    if all(np.isfinite(end).all() for end in (low, high, *ends)):
        return Enclosure(low, high)
    certain = reduce(np.logical_or, (np.isnan(x.low) for x in operands), np.isnan(low) & np.isnan(high))
    certain &= reduce(
        np.logical_or,
        (np.isnan(x.low) for x in operands),
        reduce(np.logical_and, (x.low == x.high for x in operands), np.True_),
    )
    open_ = reduce(np.logical_or, map(is_anything, operands), np.isnan(low) | np.isnan(high)) & ~certain
    low = np.where(open_, -np.inf, np.where(certain, np.nan, low))
    return Enclosure(low, np.where(open_, np.inf, np.where(certain, np.nan, high)))


def corners(operation: Callable, *operands: Enclosure) -> Enclosure:
    """The extremes of an operation that is monotone in each operand, over all choices of ends."""
    if all(x.is_point for x in operands):
        return point(operation(*(x.low for x in operands)))
    values = [operation(*ends) for ends in product(*((x.low,) if x.is_point else x for x in operands))]
    return settled(reduce(lesser, values), reduce(greater, values), *operands)


# ---- arithmetic of floats ----------------------------------------------------------------------------------


def negative(x: Enclosure) -> Enclosure:
    low = -x.high
    return Enclosure(low, low if x.is_point else -x.low)


def add(a: Enclosure, b: Enclosure, dtype: DType) -> Enclosure:
    if a.is_point and b.is_point:
        return rounded(point(a.low + b.low), dtype)
    return rounded(outwards(settled(a.low + b.low, a.high + b.high, a, b)), dtype)


def multiply(a: Enclosure, b: Enclosure, dtype: DType, same: bool = False) -> Enclosure:
    """`same` says that both are one value, whose square is not negative."""
    exact = corners(np.multiply, a, b)
    if same and not exact.is_point:
        exact = Enclosure(np.maximum(exact.low, np.where((a.low < 0) & (a.high > 0), 0.0, exact.low)), exact.high)
        exact = Enclosure(np.where(is_anything(a), -np.inf, np.where(exact.low < 0, 0.0, exact.low)), exact.high)
    nearest = rounded(exact, dtype)
    if dtype is F64:  # the product before rounding is no f64
        exact = Enclosure(np.nextafter(exact.low, -np.inf), np.nextafter(exact.high, np.inf))
        zero = nearest.low == nearest.high
        zero &= (nearest.low == 0) & (_is_zero(a) | _is_zero(b))
        exact = Enclosure(np.where(zero, nearest.low, exact.low), np.where(zero, nearest.high, exact.high))
    if nearest.is_point and (np.array_equal(nearest.low, exact.low, equal_nan=True)):
        return nearest
    return Enclosure(lesser(nearest.low, exact.low), greater(nearest.high, exact.high))


def _is_zero(x: Enclosure) -> np.ndarray:
    return (x.low == 0) & (x.high == 0)


def quotient_of(a: Enclosure, b: Enclosure) -> Enclosure:
    if a.is_point and b.is_point:
        return point(np.divide(a.low, b.low))
    found = corners(np.divide, a, b)
    open_ = (b.low <= 0) & (b.high >= 0) & ~np.isnan(a.low) & ~is_known(b)  # of a zero the sign may be known
    return Enclosure(np.where(open_, -np.inf, found.low), np.where(open_, np.inf, found.high))


def divide(a: Enclosure, b: Enclosure, dtype: DType, double_rounding: bool = False) -> Enclosure:
    """`double_rounding`: a quotient below the normal numbers of f32 may be rounded to 24 bits first, as some are on CUDA
    (`tilec/analysis/rules.py`)."""
    exact = quotient_of(a, b)
    found = rounded(outwards(exact), dtype)
    if not double_rounding or dtype is not F32:
        return found
    last = 2.0**-149
    low, high = (last * ((np.abs(end) < 2.0**-126) & (np.rint(end / last) * last != end)) for end in exact)
    return Enclosure(found.low - low, found.high + high) if low.any() or high.any() else found


def is_known(x: Enclosure) -> np.ndarray:
    """Where there is one value, zeros with their sign."""
    if x.is_point:
        return np.asarray(True)
    return np.isnan(x.low) | ((x.low == x.high) & (np.signbit(x.low) == np.signbit(x.high)))


def _as_computed(op: str, a: Enclosure, b: Enclosure, dtype: DType) -> np.ndarray:
    """The operator's result in its type, for operands of that type."""
    left, right = (x.low.astype(dtype.numpy) for x in (a, b))
    return OPERATORS[op](left, right).astype(np.float64)


def modulo(a: Enclosure, b: Enclosure, dtype: DType) -> Enclosure:
    """The remainder is exact but for the sum that gives it the divisor's sign."""
    exact, one = is_known(a) & is_known(b), _as_computed("%", a, b, dtype)
    if np.all(exact):
        return point(one)
    quotient = outwards(quotient_of(a, b))
    low, high = np.floor(quotient.low), np.floor(quotient.high)
    known = (low == high) & (b.low == b.high) & np.isfinite(b.low) & (np.abs(low) < 2.0**53)
    rest = Enclosure(a.low - low * b.low, a.high - low * b.high)
    span = Enclosure(np.minimum(b.low, -0.0), np.maximum(b.high, 0.0))
    found = Enclosure(np.where(known, rest.low, span.low), np.where(known, rest.high, span.high))
    open_ = ~np.isfinite(quotient.low) | ~np.isfinite(quotient.high)
    found = Enclosure(np.where(open_, -np.inf, found.low), np.where(open_, np.inf, found.high))
    return select(point(exact), point(one), rounded(outwards(widened(found, dtype, 1)), dtype))


def floor_divide(a: Enclosure, b: Enclosure, dtype: DType) -> Enclosure:
    """Two roundings and one to a whole number, of which an infinity divided is NaN."""
    exact, one = is_known(a) & is_known(b), _as_computed("//", a, b, dtype)
    if np.all(exact):
        return point(one)
    found = widened(divide(a, b, dtype), dtype, 2).map(np.floor)
    open_ = (np.isinf(a.low) | np.isinf(a.high)) & ~np.isnan(found.low)
    found = Enclosure(np.where(open_, -np.inf, found.low), np.where(open_, np.inf, found.high))
    return select(point(exact), point(one), found)
