"""Intervals: values within give results within, in arithmetic, functions, reductions and casts."""

from __future__ import annotations

import itertools
from functools import reduce as fold

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools.enclosures import holds

from tilec.core.dtypes import BF16, DTYPES, F16, F32, F64, I32
from tilec.core.functions import FUNCTIONS
from tilec.semantics import intervals as on
from tilec.semantics.interval_conversions import cast
from tilec.semantics.interval_functions import function, power
from tilec.semantics.interval_reductions import Total, arg_reduce, reduce
from tilec.semantics.intervals import Enclosure, point

nan, inf = np.nan, np.inf
f32 = np.float32


number = st.floats(width=32)
plain = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, inf, -inf, 1e-45, 3e38, -3e38]), number)
intervals = st.one_of(st.tuples(plain), st.tuples(plain, plain), st.tuples(plain, plain, plain)).map(np.float32)


def interval(values: np.ndarray) -> Enclosure:
    """The smallest that holds some values."""
    values = values.astype(np.float64)
    if np.isnan(values).any():
        return point(np.float64(nan)) if np.isnan(values).all() else on.ANYTHING
    return Enclosure(fold(on.lesser, values), fold(on.greater, values)) if len(values) > 1 else point(values[0])


ARITHMETIC = {
    "+": (np.add, lambda a, b: on.add(a, b, F32)),
    "-": (np.subtract, lambda a, b: on.add(a, on.negative(b), F32)),
    "*": (np.multiply, lambda a, b: on.multiply(a, b, F32)),
    "/": (np.divide, lambda a, b: on.divide(a, b, F32)),
    "//": (np.floor_divide, lambda a, b: on.floor_divide(a, b, F32)),
    "%": (np.remainder, lambda a, b: on.modulo(a, b, F32)),
    "**": (lambda a, b: np.power(a.astype(np.float64), b), lambda a, b: power(a, b, F32, None)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", ARITHMETIC)
@given(intervals, intervals)
@settings(deadline=None, max_examples=200)
def test_arithmetic_of_values_within_is_within(op, a, b):
    exactly, enclosed = ARITHMETIC[op]
    found = enclosed(interval(a), interval(b))
    for x, y in itertools.product(a, b):
        assert holds(found, f32(exactly(x, y))), (x, y, found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["atan2", "copysign", "fmod"])
@given(intervals, intervals)
@example(f32((0.0, 0.0, np.nan)), f32((-0.0,)))  # atan2 of a NaN was an angle
@example(f32((0.0, -0.0)), f32((1.0,)))  # fmod of -0 was 0
@settings(deadline=None, max_examples=300)
def test_functions_of_two_values_within_are_within(name, a, b):
    found = function(name, [interval(a), interval(b)], F32)
    for x, y in itertools.product(a, b):
        if name != "copysign" or not np.isnan(y):
            assert holds(found, f32(FUNCTIONS[name].reference(np.float64(x), np.float64(y)))), (x, y, found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(intervals, intervals, intervals)
@settings(deadline=None, max_examples=200)
def test_a_fused_multiplication_and_addition_is_within(a, b, c):
    found = on.add(on.multiply(interval(a), interval(b), F32), interval(c), F32)
    for x, y, z in itertools.product(a, b, c):
        once = f32(float(x) * float(y) + float(z)) if np.isfinite([x, y, z]).all() else x * y + z
        assert holds(found, once) and holds(found, x * y + z), (x, y, z, found)


@pytest.mark.some(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", [n for n, row in FUNCTIONS.items() if 1 in row.arity])
@given(intervals)
@example(f32((4.391249e-41, -1.3386247e-08)))  # their distance, rounded, took the sine of the larger one away
@settings(deadline=None, max_examples=300)
def test_functions_of_values_within_are_within(name, values):
    found = function(name, [interval(values)], F32)
    for x in values:
        assert holds(found, f32(FUNCTIONS[name].reference(np.float64(x)))), (x, found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("scan", [False, True])
def test_any_order_of_a_reduction_is_within(kind, scan, rng):
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    for trial in range(200):
        n = int(rng.integers(1, 40))
        x = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 20 if trial % 2 else 3)).astype(f32)
        if trial % 5 == 0:
            x[rng.integers(0, n)] = rng.choice([0, inf, -inf, nan, 1e-44, 3e38])
        wide = Enclosure(*(np.float64([np.nextafter(v, f32(s)) for v in x]) for s in (-inf, inf)))
        wide = Enclosure(*(np.where(np.isnan(x), nan, end) for end in wide)) if trial % 3 else point(np.float64(x))
        if scan:
            (found, results) = reduce(kind, wide, Total.scan((n,), 0), F32), [ufunc.accumulate(x)]
        else:
            found = reduce(kind, wide, Total.reduction((n,), (0,)), F32).map(lambda end: end.reshape(()))
            results = [ufunc.reduce(x), *(_serial(ufunc, rng.permutation(x)) for _ in range(5))]
        for result in results:
            assert np.all(holds(found, result)), (x, result, found)


def _serial(ufunc, x):
    return ufunc.accumulate(x)[-1]


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint8])
def test_places_of_values_within_are_within(kind, dtype, rng):
    choice = getattr(np, kind)
    for _ in range(300):
        low = rng.integers(0, 6, 7).astype(dtype)
        high = low + rng.integers(0, 2, 7).astype(dtype)
        if dtype is np.float64 and rng.random() < 0.2:
            low[3] = high[3] = nan
        found = arg_reduce(Enclosure(low, high), 0, kind)
        seen = [choice(np.where(np.isnan(low), low, picks)) for picks in itertools.product(*zip(low, high))]
        assert (found.low[0], found.high[0]) == (min(seen), max(seen)), (low, high)


def test_casts_of_values_within_are_within(rng):
    x = (rng.standard_normal(1000) * 100).astype(f32)
    wide = Enclosure(x * (1 - 1e-3 * np.sign(x)), x * (1 + 1e-3 * np.sign(x))).map(np.float64)
    for dtype in (F16, BF16):
        assert holds(on.rounded(wide, dtype), x.astype(dtype.numpy)).all()


def test_units_in_the_last_place():
    x = np.array([0.0, 1.0, 1.5, 2.0, 1e-44, 3e38])
    np.testing.assert_array_equal(on.ulp(x, F32), np.spacing(x.astype(f32)))
    np.testing.assert_array_equal(on.ulp(x, F64), np.spacing(x))


def test_between_numbers_too_large_for_f8e4m3_there_are_others():
    f8 = DTYPES["f8e4m3"]
    ends = Enclosure(np.array([-1e9, -inf, -1e9, 500, -inf, nan]), np.array([1e9, inf, 0, inf, -500, nan]))
    whole = np.array([-(2**31), -(2**31), 500, 3], np.int32), np.array([2**31 - 1, 1, 600, 3], np.int32)
    for found, certain in (
        (on.rounded(ends, f8), [False, False, False, True, True, True]),
        (cast(Enclosure(*whole), I32, f8, None), [False, False, True, False]),
    ):
        assert (np.isnan(found.low) == certain).all()
        assert (on.is_anything(found) == ~np.array(certain) & ~(found.low == 3)).all()


def test_tiny_quotients_that_are_rounded_twice():
    """Once to 24 bits, once to a multiple of 2^-149, which may be the one that is farther from the exact quotient."""
    tiny = np.float64(2.0**-149)
    above = point(np.array([tiny * (4.5 + 2.0**-30)]))
    once, twice = (on.divide(above, point(np.ones(1)), F32, double_rounding=t) for t in (False, True))
    assert once.low[0] == once.high[0] == 5 * tiny
    assert twice.low[0] <= 4 * tiny and twice.high[0] >= 5 * tiny
    exact = on.divide(point(np.array([6 * tiny])), point(np.full(1, 2.0)), F32, double_rounding=True)
    assert exact.low[0] == exact.high[0] == 3 * tiny
