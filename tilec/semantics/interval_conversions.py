"""Enclosures of comparisons, of conversions between types, and of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce as fold

import numpy as np

from tilec.core.conversions import to_float, to_integer
from tilec.core.dtypes import F64, DType
from tilec.core.functions import HIDDEN
from tilec.core.operators import OPERATORS
from tilec.semantics.intervals import Enclosure, point, rounded, without_infinity


def compared(op: str, a: Enclosure, b: Enclosure) -> Enclosure:
    """Whether a comparison holds for certain, and whether it may."""
    if a.is_point and b.is_point:
        return point(OPERATORS[op](a.low, b.low))
    match op:
        case "<" | "<=":
            return Enclosure(OPERATORS[op](a.high, b.low), OPERATORS[op](a.low, b.high))
        case ">" | ">=":
            return Enclosure(OPERATORS[op](a.low, b.high), OPERATORS[op](a.high, b.low))
    sure = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    may = (a.low <= b.high) & (b.low <= a.high)
    return Enclosure(sure, may) if op == "==" else Enclosure(~may, ~sure)


def rounded_to(x: Enclosure, dtype: DType, kind: str | None) -> Enclosure:
    """Rounded to a type; on CUDA after the error that a rounding to 16 bits hides. A value of the type stays as it is."""
    if dtype.name in HIDDEN and kind != "cpu":
        low, high = (np.where(np.isfinite(end), HIDDEN[dtype.name] * np.abs(end), 0) for end in x)
        low, high = x.low - low, x.high + high
        x = Enclosure(np.where(x.low == 0, x.low, low), np.where(x.high == 0, x.high, high))  # zeros keep their signs
    return rounded(x, dtype)


def cast(x: Enclosure, source: DType, target: DType, kind: str | None) -> Enclosure:
    if source == target:
        return x
    if target.kind == "bool":
        return compared("!=", x, point(np.zeros((), x.low.dtype)))
    if target.is_float and not source.is_float:
        return without_infinity(x, x.map(lambda end: to_float(end, target.numpy).astype(np.float64)))
    if target.is_float and source is F64:
        return rounded(x, target)
    if target.is_float:
        return rounded_to(x, target, kind) if source.bits >= target.bits else x
    if source.is_float:
        return x.map(lambda end: to_integer(end, target.numpy))
    if x.is_point or source.kind == "bool":
        return x.map(lambda end: end.astype(target.numpy))
    limits = np.iinfo(target.numpy)
    fits = (x.low == x.high) | ((x.low >= limits.min) & (x.high <= limits.max))
    return _open(x.map(lambda end: end.astype(target.numpy)), ~fits, target)


def _open(x: Enclosure, where: np.ndarray, dtype: DType) -> Enclosure:
    if dtype.kind == "bool":
        return Enclosure(x.low & ~where, x.high | where)
    limits = np.iinfo(dtype.numpy)
    low, high = (np.where(where, np.asarray(n, dtype.numpy), end) for n, end in zip((limits.min, limits.max), x))
    return Enclosure(low, high)


def of_integers(op: str, a: Enclosure, b: Enclosure, dtype: DType) -> Enclosure:
    """Exact on points; sums, differences and products of intervals that stay inside the type; else anything."""
    if (a.is_point and b.is_point) or op in ("and", "or") or (dtype.kind == "bool" and op in ("&", "|")):
        return Enclosure(*_ends(OPERATORS[op], a, b))
    known = (a.low == a.high) & (b.low == b.high)
    exact = OPERATORS[op](a.low, b.low)
    if op not in ("+", "-", "*"):
        return _open(point(exact), ~known, dtype)
    values = [OPERATORS[op](x, y) for x in a for y in b]
    sizes = [np.abs(OPERATORS[op](x.astype(np.float64), y.astype(np.float64))) for x in a for y in b]
    limits = np.iinfo(dtype.numpy)
    fits = known | (fold(np.maximum, sizes) < min(limits.max, 2.0**53))
    fits &= known | (dtype.kind == "int") | (fold(np.minimum, values) <= fold(np.maximum, values))
    return _open(Enclosure(fold(np.minimum, values), fold(np.maximum, values)), ~fits, dtype)


def _ends(
    operation: Callable[[np.ndarray, np.ndarray], np.ndarray], a: Enclosure, b: Enclosure
) -> Iterator[np.ndarray]:
    low = operation(a.low, b.low)
    yield low
    yield low if a.is_point and b.is_point else operation(a.high, b.high)
