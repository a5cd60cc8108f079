"""Functions of the standard library that are made of others: near the exact values, and right at the ends."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within

import tilec

INF, NAN = np.inf, np.nan
ENDS = {
    "erfinv": ([0.0, -0.0, 1, -1, 1.5, -2, INF, NAN], [0.0, -0.0, INF, -INF, NAN, NAN, NAN, NAN]),
    "digamma": ([0.0, -0.0, -1, -7, INF, -INF, NAN], [-INF, INF, NAN, NAN, INF, NAN, NAN]),
    "lgamma": ([0.0, -0.0, -1, -7, 1, 2, INF, -INF, NAN], [INF, INF, INF, INF, 0.0, 0.0, INF, INF, NAN]),
}
SAMPLES = {
    "erfinv": lambda rng: [rng.uniform(-1, 1, 300), 1 - 10.0 ** rng.uniform(-6, 0, 100), 10.0 ** rng.uniform(-30, 0, 100)],
    "lgamma": lambda rng: [rng.uniform(0.01, 12, 300), rng.uniform(0.9, 2.1, 200), 10.0 ** rng.uniform(-30, 30, 100)],
    "digamma": lambda rng: [rng.uniform(1.6, 30, 200), rng.uniform(0.01, 1.3, 100), 10.0 ** rng.uniform(1, 30, 100)],
}
ULPS = {"erfinv": 4, "digamma": 8, "lgamma": 6}
EXACT = {"lgamma": "loggamma"}  # names of mpmath's


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ENDS)
def test_values(name, dtype, rng):
    mpmath = pytest.importorskip("mpmath")
    op = tilec.compile(f"y[i] = {name}(x[i])", target="cpu")
    x, want = (np.array(v, dtype) for v in ENDS[name])
    np.testing.assert_array_equal(op(x), want)
    np.testing.assert_array_equal(np.signbit(op(x))[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])
    x = np.concatenate(SAMPLES[name](rng)).astype(dtype)
    x = x[np.abs(x) < 1] if name == "erfinv" else x
    with mpmath.workprec(120):
        want = np.array([np.longdouble(mpmath.nstr(getattr(mpmath, EXACT.get(name, name))(mpmath.mpf(float(v))), 25)) for v in x])
    size = np.maximum(1, np.abs(want)) if name == "digamma" else np.abs(want)  # which has a zero at 1.46
    unit = np.spacing(size.astype(dtype))
    assert np.max(np.abs(op(x) - want) / unit) <= ULPS[name]


@pytest.mark.parametrize("name", ENDS)
def test_stages(name, rng):
    text = f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = {name}(x[i]) }}"
    x = np.concatenate([ENDS[name][0], *SAMPLES[name](rng)]).astype(np.float32)
    assert_within(text, [x], tilec.interpret(text, "map", x, target="sm_90a"), kind="cuda")


def test_digamma_below_zero(rng):
    mpmath = pytest.importorskip("mpmath")
    x = rng.uniform(-20, 0, 300)
    want = np.array([float(mpmath.digamma(v)) for v in x])
    np.testing.assert_allclose(tilec.compile("y[i] = digamma(x[i])", target="cpu")(x), want, rtol=1e-11, atol=1e-12)


def test_lgamma_below_zero(rng):
    mpmath = pytest.importorskip("mpmath")
    x = rng.uniform(-20, 0, 300)
    want = np.array([float(mpmath.log(abs(mpmath.gamma(v)))) for v in x])
    np.testing.assert_allclose(tilec.compile("y[i] = lgamma(x[i])", target="cpu")(x), want, rtol=1e-11, atol=1e-12)
