"""Enclosures of powers and of the scalar functions of the language.

The exact values are moved outwards by the units in the last place that `tilec.core.functions` documents.
"""


from __future__ import annotations

from functools import reduce

import numpy as np

from tilec.core.dtypes import F64, DType, compute_type
from tilec.core.functions import FUNCTIONS, POWER, Function
from tilec.semantics.intervals import (
    Enclosure,
    corners,
    divide,
    greater,
    hull,
    is_anything,
    is_known,
    lesser,
    multiply,
    of_either_sign,
    outwards,
    point,
    quotient_of,
    rounded,
    settled,
    widened,
)

HOST_ULP = 4
"""What NumPy's functions of f64 may err by: the bound of its own accuracy tests."""


def power(a: Enclosure, b: Enclosure, dtype: DType, kind: str | None) -> Enclosure:
    """By repeated multiplication where the exponent is a small whole number, by the documented function else."""
    general = _power(a, b, dtype, kind)
    exponent = b.low.item() if b.is_point and b.low.size == 1 else np.nan
    if exponent == 0.5:
        return hull(general, function("sqrt", [a], dtype, kind))
    if abs(exponent) > 4 or exponent != np.round(exponent):
        return general
    repeated = _repeated(a, int(abs(exponent)), dtype)
    if exponent < 0:
        repeated = divide(point(1.0), repeated, dtype)
    return hull(general, repeated)


def _power(a: Enclosure, b: Enclosure, dtype: DType, kind: str | None) -> Enclosure:
    found = corners(np.power, a, b)
    if not (a.is_point and b.is_point):
        whole = (b.low == b.high) & (b.low == np.round(b.low))
        across = (a.low <= 0) & (a.high >= 0)
        even = whole & ((np.remainder(b.low, 2) == 0) | np.isinf(b.low)) & (b.low > 0)
        low = np.where(even & across, np.minimum(found.low, 0.0), found.low)
        open_ = (across & (b.low < 0)) | ((a.low < 0) & (a.low < a.high) & ~whole) | ((a.low < 0) & (b.low < b.high))
        open_ |= np.isnan(a.low) | np.isnan(b.low)
        found = Enclosure(np.where(open_, -np.inf, low), np.where(open_, np.inf, found.high))
    return rounded(widened(found, dtype, _units(POWER, dtype, kind)), dtype)


def _repeated(x: Enclosure, exponent: int, dtype: DType) -> Enclosure:
    if exponent < 2:
        return x if exponent else point(np.ones(()))
    half = _repeated(x, exponent // 2, dtype)
    square = multiply(half, half, dtype, same=True)
    return multiply(square, x, dtype) if exponent % 2 else square


# ---- functions ---------------------------------------------------------------------------------------------


def _units(row: Function, dtype: DType, kind: str | None) -> float:
    """Documented units in the last place on one kind of target, or on any, and those of NumPy at f64."""
    documented = row.units(dtype, kind)
    return documented + HOST_ULP if dtype is F64 and documented > 0.5 else documented


def function(name: str, arguments: list[Enclosure], dtype: DType, kind: str | None = None) -> Enclosure:
    """A scalar function of the language; all arguments and the result are of type `dtype`."""
    row = FUNCTIONS[name]
    if row.signature is not None and not all(x.is_point for x in arguments):
        shape = np.broadcast_shapes(*(x.low.shape for x in arguments))
        return Enclosure(*(np.full(shape, end, np.float64) for end in row.image))
    if not dtype.is_float:
        return _of_integers(row, arguments)
    if name == "sign":  # of NaN 0
        return arguments[0].map(row.reference)
    if name == "copysign":
        return _with_sign(*arguments)
    count = _units(row, compute_type(dtype), kind)
    if name in ("min", "max", "clamp") or all(x.is_point for x in arguments):
        low, high = (row.reference(*ends) for ends in zip(*arguments))
        exact = settled(low, high, *arguments)
        exact = point(exact.low) if all(x.is_point for x in arguments) else exact
        exact = of_either_sign(exact, _of_two_signs(arguments)) if name in ("min", "max", "clamp") else exact
    else:
        exact = _image_of_two(name, *arguments) if len(arguments) == 2 else _image(name, row, arguments[0])
    if count <= 0.5:
        return rounded(outwards(exact), dtype)
    low, high = widened(exact, dtype, count)
    least, most = row.image
    inside = ~is_anything(Enclosure(low, high))
    low, high = np.where(inside, np.maximum(low, least), low), np.where(inside, np.minimum(high, most), high)
    return rounded(Enclosure(low, high), dtype)


def _of_two_signs(arguments: list[Enclosure]) -> np.ndarray:
    """Where some may be -0 and some 0: which of the two is the smaller is open."""
    ends = [end for x in arguments for end in (x[:1] if x.is_point else x)]
    zeros = [(end == 0, np.signbit(end)) for end in ends]
    minus, plus = (reduce(np.logical_or, (z & (s == sign) for z, s in zeros)) for sign in (True, False))
    return minus & plus


def _image(name: str, row: Function, x: Enclosure) -> Enclosure:
    """The values that a function takes on intervals."""
    low, high = row.reference(x.low), row.reference(x.high)
    match name:
        case "abs":
            least = np.where((x.low <= 0) & (x.high >= 0), 0.0, np.minimum(low, high))
            return settled(least, np.maximum(low, high), x)
        case "sin" | "cos":  # no value is farther from the ends' than the ends are apart
            width = np.where(x.low == x.high, 0.0, x.high - x.low)
            least, most = np.minimum(low, high), np.maximum(low, high)
            error = np.spacing(np.maximum(np.minimum(width, 2.0), 1e-300))  # the sums' own errors, at most
            slack = np.where(width > 0, error, 0.0)
            below, above = most - width - 2 * slack, least + width + 2 * slack
            return settled(np.clip(below, -1.0, least), np.clip(above, most, 1.0), x)
        case "tan":  # grows from pole to pole
            pole = (x.high - x.low >= np.pi) | (low > high)
            return settled(np.where(pole, -np.inf, low), np.where(pole, np.inf, high), x)
        case "acos" | "erfc":
            return settled(high, low, x)
        case "cosh":
            least = np.where((x.low <= 0) & (x.high >= 0), 1.0, np.minimum(low, high))
            return settled(least, np.maximum(low, high), x)
        case "rsqrt":  # of a zero of either sign
            return settled(np.where(x.low > 0, high, np.nan), low, x)
    return settled(low, high, x)


def _with_sign(a: Enclosure, b: Enclosure) -> Enclosure:
    """The sign of a NaN is open."""
    sure = ~np.isnan(b.low) & ~is_anything(b) & (np.signbit(b.low) == np.signbit(b.high))
    if a.is_point and np.all(sure):
        return point(np.copysign(a.low, b.low))
    most = greater(np.abs(a.low), np.abs(a.high))
    least = np.where((a.low <= 0) & (a.high >= 0), 0.0, lesser(np.abs(a.low), np.abs(a.high)))
    above, below, minus = settled(least, most, a), settled(-most, -least, a), np.signbit(b.low)
    low, high = np.where(sure & ~minus, above.low, below.low), np.where(sure & minus, below.high, above.high)
    return Enclosure(low, high)


def _image_of_two(name: str, a: Enclosure, b: Enclosure) -> Enclosure:
    """The values of a function of two arguments, where one of them is more than a point."""
    most = greater(np.abs(a.low), np.abs(a.high))
    match name:
        case "atan2":  # grows or falls along either axis but for the step across the negative numbers
            found = corners(np.arctan2, a, b)
            step = ((b.low < 0) | np.signbit(b.low)) & (a.low <= 0) & (a.high >= 0) & ~is_known(a)
            return settled(np.where(step, -np.pi, found.low), np.where(step, np.pi, found.high), a, b)
        case "fmod":  # a - n b where the quotient has one whole number n; else between 0 and either of a and b
            exact = is_known(a) & is_known(b)
            quotient = outwards(quotient_of(a, b))
            n = np.trunc(quotient.low)
            one = (n == np.trunc(quotient.high)) & (b.low == b.high) & (np.abs(n) < 2.0**53) & np.isfinite(b.low)
            size = lesser(most, greater(np.abs(b.low), np.abs(b.high)))
            low, high = np.where(a.low < 0, -size, -0.0), np.where(a.high > 0, size, 0.0)
            rest = [np.where(end == n * b.low, np.copysign(0.0, end), end - n * b.low) for end in a]  # a zero has the sign of a
            low, high = np.where(one, rest[0], low), np.where(one, rest[1], high)
            found = settled(low, high, a, b)
            open_ = ((b.low <= 0) & (b.high >= 0)) | np.isinf(a.low) | np.isinf(a.high)
            found = Enclosure(np.where(open_, -np.inf, found.low), np.where(open_, np.inf, found.high))
            sure = np.fmod(a.low, b.low)
            return Enclosure(np.where(exact, sure, found.low), np.where(exact, sure, found.high))
    raise AssertionError(name)


def _of_integers(row: Function, arguments: list[Enclosure]) -> Enclosure:
    if row.name == "abs" and not arguments[0].is_point:
        x = arguments[0]
        low, high = np.abs(x.low), np.abs(x.high)
        return Enclosure(np.where((x.low <= 0) & (x.high >= 0), 0, np.minimum(low, high)), np.maximum(low, high))
    low = np.asarray(row.reference(*(x.low for x in arguments)), arguments[0].low.dtype)
    if all(x.is_point for x in arguments):
        return point(low)
    if row.name == "fmod":  # of any sign and size
        known, limits = reduce(np.logical_and, (x.low == x.high for x in arguments)), np.iinfo(low.dtype)
        return Enclosure(np.where(known, low, limits.min), np.where(known, low, limits.max))
    return Enclosure(low, np.asarray(row.reference(*(x.high for x in arguments)), low.dtype))
