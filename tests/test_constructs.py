"""Every construct of the language, compiled for the CPU, against plain NumPy written by hand.

The order is that of docs/language.md. `CASES` holds what works at any size: each runs at a middling size, at ones, with
an empty dimension, and at primes large enough for several blocks. The rest is about single values, errors and calls.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_close
from expectations import Bound, np_erf

import tilec
from tilec import CallError, TileError
from tilec.dtypes import DTYPES

nan, inf = np.nan, np.inf
F32 = Bound(rtol=1e-5, atol=1e-5)
FLOATS = ["f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64"]
SIGNED, UNSIGNED = ["i8", "i16", "i32", "i64"], ["u8", "u16", "u32", "u64"]


def compiled(program: str, **options) -> tilec.Op:
    return tilec.compile(program, target="cpu", **options)


def run(program: str, *arrays, **options):
    return compiled(program, **options)(*arrays)


def full(statement: str) -> str:
    """A program in which M and N have names."""
    return f"op f(x: f32[M, N]) -> (y: f32[M, N]) {{ {statement} }}"


def f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


def i32(*values) -> np.ndarray:
    return np.array(values, np.int32)


# ---- at any size -----------------------------------------------------------------------------------------------------

SIZES = {
    "odd": {"M": 5, "N": 37, "K": 7},
    "ones": {"M": 1, "N": 1, "K": 1},
    "no rows": {"M": 0, "N": 3, "K": 2},
    "no columns": {"M": 3, "N": 0, "K": 2},
    "no depth": {"M": 3, "N": 2, "K": 0},
    "primes": {"M": 211, "N": 257, "K": 13},
}
X, A, B = ("x", "f32", "M N"), ("a", "f32", "M K"), ("b", "f32", "K N")
V, W = ("v", "f32", "N"), ("w", "f32", "N")
I = ("n", "i32", "M N")


def _reduce(ufunc, initial):
    return lambda x: ufunc.reduce(x, axis=1, initial=initial)


def _logsumexp(x):
    if x.shape[1] == 0:
        return np.full(x.shape[0], -inf)
    return np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1)


def _mean(x):
    return x.mean(1) if x.shape[1] else np.full(x.shape[0], nan)


def _softmax(x):
    e = np.exp(x - x.max(1, keepdims=True, initial=-inf))
    return e / e.sum(1, keepdims=True)


def _shift(x, by, value):
    """x[i, j + by], or the value."""
    if x.size == 0:
        return x
    places = np.arange(x.shape[1]) + by
    inside = (places >= 0) & (places < x.shape[1])
    return np.where(inside, x[:, np.clip(places, 0, x.shape[1] - 1)], value)


# name: (program, inputs, NumPy at f64)
CASES = {
    # 3. statements
    "copy": ("y[i, j] = x[i, j]", [X], lambda x: x),
    "transpose": ("y[j, i] = x[i, j]", [X], lambda x: x.T),
    "order of indices": ("y[k, i, j] = a[i, k] * b[k, j]", [A, B], lambda a, b: a.T[:, :, None] * b[:, None, :]),
    "chain of names": ("p[i, j] = x[i, j] + 1; q[i, j] = p[i, j] * 2  y[i, j] = q[i, j] - p[i, j]", [X],
                       lambda x: x + 1),
    "declared type": ("h[i, j]: f64 = x[i, j]  y[i, j] = h[i, j] * h[i, j]", [X], lambda x: x * x),
    "two results": ("y[i] = sum[j](x[i, j])  z[j] = sum[i](x[i, j])", [X], lambda x: (x.sum(1), x.sum(0))),
    "a result that is read": (
        "op f(x: f32[M, N]) -> (e: f32[M, N], s: f32[M]) { e[i, j] = x[i, j] * 2  s[i] = sum[j](e[i, j]) }",
        [X], lambda x: (2 * x, 2 * x.sum(1))),
    "diamond": ("p[i, j] = exp(x[i, j])  s[i] = sum[j](p[i, j])  t[j] = sum[i](p[i, j])"
                "  y[i, j] = p[i, j] + s[i] + t[j]", [X],
                lambda x: np.exp(x) + np.exp(x).sum(1)[:, None] + np.exp(x).sum(0)),
    "scalar result": ("y = sum[i, j](x[i, j] * x[i, j])", [X], lambda x: (x * x).sum()),
    "scalar between": ("s = sum[i, j](x[i, j])  y[i, j] = x[i, j] - s", [X], lambda x: x - x.sum()),
    "a constant between": (full("z[i, j] = 0 where i in 0:M, j in 0:N  y[i, j] = x[i, j] - z[i, j]"), [X], lambda x: x),
    "where": (full("y[i, j] = x[i, j] * 1 where i in 0:M, j in 0:N"), [X], lambda x: x),
    "no input": ("op f() -> (y: i64[M, N]) { y[i, j] = 10 * i + j }", [], None),
    "other op": (
        "op scale(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = 2 * x[i, j] }\n"
        "op f(x: f32[M, N]) -> (z: f32[M, N]) { t = scale(x)  u = scale(t)  z[i, j] = u[i, j] + t[i, j] }",
        [X], lambda x: 6 * x),
    "other op of several results": (
        "op both(x: f32[M, N]) -> (s: f32[M], t: f32[N]) { s[i] = sum[j](x[i, j])  t[j] = sum[i](x[i, j]) }\n"
        "op f(x: f32[M, N]) -> (z: f32[M, N]) { s, t = both(x)  z[i, j] = s[i] + t[j] }",
        [X], lambda x: x.sum(1)[:, None] + x.sum(0)),
    # 4. ranges
    "guarded neighbour": (full("y[i, j] = x[i, j - 1] if j > 0 else 0"), [X], lambda x: _shift(x, -1, 0)),
    "guard the other way": (full("y[i, j] = -1 if j + 1 >= N else x[i, j + 1]"), [X], lambda x: _shift(x, 1, -1)),
    "guard by and": (full("y[i, j] = x[i, j + 1] - x[i, j - 1] if j > 0 and j < N - 1 else x[i, j]"), [X],
                     lambda x: np.stack([[r[k + 1] - r[k - 1] if 0 < k < len(r) - 1 else r[k] for k in range(len(r))]
                                         for r in x]).reshape(x.shape) if x.size else x),
    "pad": (full("y[i, j] = pad(x[i, j - 2], 7) + pad(x[i, j + 1], -1)"), [X],
            lambda x: _shift(x, -2, 7) + _shift(x, 1, -1)),
    "pad by a value of data": (full("y[i, j] = pad(x[i, j + 1], x[i, j] * 2)"), [X],
                               lambda x: np.concatenate([x[:, 1:], 2 * x[:, -1:]], 1)),
    "convolution by pad": ("op f(x: f32[M, N], w: f32[K]) -> (y: f32[M, N]) {"
                           " y[i, j] = sum[k](pad(x[i, j + k - K // 2], 0) * w[k]) }", [X, ("w", "f32", "K")],
                           lambda x, w: sum((_shift(x, k - len(w) // 2, 0) * w[k] for k in range(len(w))), 0 * x)),
    "split a dimension": ("op f(x: f32[M, K * N]) -> (y: f32[M, K, N]) { y[i, k, j] = x[i, k * N + j] }",
                          [("x", "f32", "M KN")], lambda x: None),
    "join two": ("op f(x: f32[M, N]) -> (y: f32[M * N]) { y[p] = x[p // N, p % N] }", [X], lambda x: x.reshape(-1)),
    "part of a range": ("op f(x: f32[M, N + 2]) -> (y: f32[M]) { y[i] = sum[j in 1:N + 1](x[i, j]) }",
                        [("x", "f32", "M N2")], lambda x: x[:, 1:-1].sum(1)),
    "reversed": (full("y[i, j] = x[i, N - 1 - j]"), [X], lambda x: x[:, ::-1]),
    "triangle": ("y[i, j] = x[i, j] if j <= i else 0", [X], lambda x: np.tril(x)),
    # 5. expressions
    "indices and sizes are values": (full("y[i, j] = f32(i) * N + j + x[i, j] * 0"), [X],
                                     lambda x: np.arange(1.0 * x.size).reshape(x.shape)),
    "arithmetic": ("y[i, j] = (x[i, j] + 1.5) * 2 - x[i, j] / 4 + -x[i, j]", [X], lambda x: (x + 1.5) * 2 - x / 4 - x),
    "powers": ("y[i, j] = x[i, j] ** 2 + x[i, j] ** 3 + abs(x[i, j]) ** 0.5 + (1 + abs(x[i, j])) ** -2", [X],
               lambda x: x**2 + x**3 + abs(x) ** 0.5 + (1 + abs(x)) ** -2.0),
    "power of data": ("y[i, j] = (1 + abs(x[i, j])) ** x[i, j]", [X], lambda x: (1 + abs(x)) ** x),
    "floor division of floats": ("y[i, j] = x[i, j] // 0.5", [X], lambda x: x // 0.5),
    "remainder of floats": ("y[i, j] = x[i, j] % 0.75", [X], lambda x: x % 0.75),
    "comparisons": ("y[i, j] = x[i, j] > 0 and x[i, j] <= 1 or not (x[i, j] != x[i, j]) and x[i, j] < -1", [X],
                    lambda x: ((x > 0) & (x <= 1)) | (x < -1)),
    "conditional": ("y[i, j] = x[i, j] if x[i, j] > 0 else 0.1 * x[i, j]", [X], lambda x: np.where(x > 0, x, 0.1 * x)),
    "nested conditional": ("y[i, j] = 1 if x[i, j] > 1 else (2 if x[i, j] > 0 else 3)", [X],
                           lambda x: np.where(x > 1, 1, np.where(x > 0, 2, 3))),
    "integers": ("y[i, j] = (n[i, j] * 3 - 7) // 4 + n[i, j] % 5", [I], lambda n: (n * 3 - 7) // 4 + n % 5),
    "integer division": ("y[i, j] = n[i, j] / 4", [I], lambda n: n / 4),
    "integer meets float": ("y[i, j] = n[i, j] + 0.5", [I], lambda n: n + 0.5),
    "sum": ("y[i] = sum[j](x[i, j])", [X], lambda x: x.sum(1)),
    "sum of columns": ("y[j] = sum[i](x[i, j])", [X], lambda x: x.sum(0)),
    "prod": ("y[i] = prod[j](1 + x[i, j] / 64)", [X], lambda x: (1 + x / 64).prod(1)),
    "max": ("y[i] = max[j](x[i, j])", [X], _reduce(np.maximum, -inf)),
    "min": ("y[i] = min[j](x[i, j])", [X], _reduce(np.minimum, inf)),
    "any": ("y[i] = any[j](x[i, j] > 1)", [X], lambda x: (x > 1).any(1)),
    "all": ("y[i] = all[j](x[i, j] < 2)", [X], lambda x: (x < 2).all(1)),
    "mean": ("y[i] = mean[j](x[i, j])", [X], _mean),
    "logsumexp": ("y[i] = logsumexp[j](x[i, j])", [X], _logsumexp),
    "matrix product": ("y[i, j] = sum[k](a[i, k] * b[k, j])", [A, B], lambda a, b: a @ b),
    "product with a transpose": ("y[i, j] = sum[k](a[i, k] * c[j, k])", [A, ("c", "f32", "N K")], lambda a, c: a @ c.T),
    "transposed product": ("y[j, i] = sum[k](a[i, k] * b[k, j])", [A, B], lambda a, b: (a @ b).T),
    "matrix and vector": ("y[i] = sum[j](x[i, j] * v[j])", [X, V], lambda x, v: x @ v),
    "dot product": ("y = sum[j](v[j] * w[j])", [V, W], lambda v, w: v @ w),
    "outer product": ("y[i, j] = v[i] * w[j]", [V, W], np.outer),
    "sum of an index alone": ("y[i] = sum[k in 0:3](x[i, k % 1] + k)", [("x", "f32", "M 1")],
                              lambda x: 3 * x[:, 0] + 3),
    "nested reductions": ("y[i] = sum[j](x[i, j] * max[k](b[k, j]))", [X, B],
                          lambda x, b: x @ b.max(0, initial=-inf) if b.shape[0] else None),
    "a name bound again": ("y[i, j] = x[i, j] - sum[j](x[i, j])", [X], lambda x: x - x.sum(1, keepdims=True)),
    "several indices": ("y = max[i, j](abs(x[i, j]))", [X], lambda x: np.abs(x).max(initial=-inf)),
    "variance in two passes": ("m[j] = mean[i](x[i, j])  y[j] = mean[i]((x[i, j] - m[j]) ** 2)", [X],
                               lambda x: x.var(0) if len(x) else np.full(x.shape[1], nan)),
    "cumsum": ("y[i, j] = cumsum[j](x[i, j])", [X], lambda x: x.cumsum(1)),
    "cumsum of columns": ("y[i, j] = cumsum[i](x[i, j])", [X], lambda x: x.cumsum(0)),
    "cumprod": ("y[i, j] = cumprod[j](1 + x[i, j] / 64)", [X], lambda x: (1 + x / 64).cumprod(1)),
    "cummax": ("y[i, j] = cummax[j](x[i, j])", [X], lambda x: np.maximum.accumulate(x, 1)),
    "cummin": ("y[i, j] = cummin[i](x[i, j])", [X], lambda x: np.minimum.accumulate(x, 0)),
    "scan of a reduction": ("s[i] = sum[j](x[i, j])  y[i] = cumsum[i](s[i])", [X], lambda x: x.sum(1).cumsum()),
    "sum of a scan": ("c[i, j] = cumsum[j](x[i, j])  y[i] = sum[j](c[i, j])", [X], lambda x: x.cumsum(1).sum(1)),
    "scan and normalise": ("c[i, j] = cumsum[j](exp(x[i, j]))  s[i] = sum[j](exp(x[i, j]))"
                           "  y[i, j] = c[i, j] / s[i]", [X],
                           lambda x: np.exp(x).cumsum(1) / np.exp(x).sum(1, keepdims=True)),
    # functions
    "rounding": ("y[i, j] = floor(x[i, j]) + 10 * ceil(x[i, j]) + 100 * round(x[i, j])", [X],
                 lambda x: np.floor(x) + 10 * np.ceil(x) + 100 * np.round(x)),
    "exponentials": ("y[i, j] = exp(x[i, j]) + exp2(x[i, j]) + expm1(x[i, j])", [X],
                     lambda x: np.exp(x) + np.exp2(x) + np.expm1(x)),
    "logarithms": ("p[i, j] = abs(x[i, j]) + 0.1  y[i, j] = log(p[i, j]) + log2(p[i, j]) + log1p(p[i, j])", [X],
                   lambda x: np.log(abs(x) + 0.1) + np.log2(abs(x) + 0.1) + np.log1p(abs(x) + 0.1)),
    "roots": ("p[i, j] = abs(x[i, j]) + 0.1  y[i, j] = sqrt(p[i, j]) + rsqrt(p[i, j])", [X],
              lambda x: np.sqrt(abs(x) + 0.1) + 1 / np.sqrt(abs(x) + 0.1)),
    "trigonometry": ("y[i, j] = sin(x[i, j]) + cos(x[i, j]) + tan(x[i, j] / 4)", [X],
                     lambda x: np.sin(x) + np.cos(x) + np.tan(x / 4)),
    "sigmoids": ("y[i, j] = tanh(x[i, j]) + erf(x[i, j]) + sigmoid(x[i, j])", [X],
                 lambda x: np.tanh(x) + (np_erf(x) if x.size else x) + 1 / (1 + np.exp(-x))),
    "min, max, clamp": ("y[i, j] = min(x[i, j], 0.5, -x[i, j]) + max(x[i, j], 0) + clamp(x[i, j], -0.5, 0.5)", [X],
                        lambda x: np.minimum(np.minimum(x, 0.5), -x) + np.maximum(x, 0) + np.clip(x, -0.5, 0.5)),
    "library": ("y[i, j] = relu(x[i, j]) + gelu(x[i, j]) + gelu_tanh(x[i, j]) + silu(x[i, j]) + softplus(x[i, j])", [X],
                lambda x: np.maximum(x, 0) + x * (1 + (np_erf(x / math.sqrt(2)) if x.size else x)) / 2
                + 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
                + x / (1 + np.exp(-x)) + np.log1p(np.exp(x))),
    "softmax": ("y[i, j] = softmax[j](x[i, j])", [X], _softmax),
    "log_softmax": ("y[i, j] = log_softmax[j](x[i, j])", [X], lambda x: np.log(_softmax(x))),
    "softmax of columns": ("y[i, j] = softmax[i](x[i, j])", [X], lambda x: _softmax(x.T).T),
    "own functions": (
        "def leaky(x, slope) { return x if x > 0 else slope * x }\n"
        "def centred[j](x) { m = mean[j](x)  return x - m }\n"
        + full("y[i, j] = leaky(centred[j](x[i, j]), 0.25)"),
        [X], lambda x: np.where((d := x - _mean(x)[:, None]) > 0, d, 0.25 * d)),
    "own function over the library's": (
        "def relu(x) { return max(x, 1) }\nop f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = relu(x[i, j]) }",
        [X], lambda x: np.maximum(x, 1)),
    # gathers
    "gather": ("op f(r: i32[N], x: f32[M + 1, N]) -> (y: f32[N, N]) { y[i, j] = x[r[i], j] }",
               [("r", "rows", "N"), ("x", "f32", "M1 N")], lambda r, x: x[r]),
    "gather along the last": ("op f(r: i32[N], x: f32[N, M + 1]) -> (y: f32[N]) { y[i] = x[i, r[i]] }",
                              [("r", "rows", "N"), ("x", "f32", "N M1")], lambda r, x: x[np.arange(len(r)), r]),
    "gather in a sum": ("op f(r: i32[N], x: f32[M + 1, K]) -> (y: f32[K]) { y[k] = sum[i](x[r[i], k]) }",
                        [("r", "rows", "N"), ("x", "f32", "M1 K")], lambda r, x: x[r].sum(0)),
    "gather with arithmetic": ("op f(r: i32[N], x: f32[M + 1]) -> (y: f32[N]) { y[i] = x[M - r[i]] }",
                               [("r", "rows", "N"), ("x", "f32", "M1")], lambda r, x: x[::-1][r]),
    "sum of what indices give": ("op f(x: f32[M, N]) -> (y: f32[M]) { t[j]: f32 = f32(j) where j in 0:N; y[i] = sum[j](t[j]) }",
                                 [X], lambda x: np.full(len(x), x.shape[1] * (x.shape[1] - 1) / 2)),
    "place among elements turned round": (
        "op f(x: f32[M + 1, N]) -> (y: i64[N]) { t[i, j] = x[M - i, j] where i in 0:M + 1\n y[j] = argmax[i](t[i, j]) }",
        [("x", "f32", "M1 N")], lambda x: x[::-1].argmax(0)),
    "padded gather": ("op f(r: i32[N], x: f32[M]) -> (y: f32[N]) { y[i] = pad(x[r[i] - 1], 9) }",
                      [("r", "rows", "N"), ("x", "f32", "M")],
                      lambda r, x: np.array([x[k - 1] if 1 <= k <= len(x) else 9 for k in r], np.float64)),
}  # fmt: skip
CASES["split a dimension"] = (*CASES["split a dimension"][:2], "split")
CASES["no input"] = (*CASES["no input"][:2], "places")


GIVEN = {"no input": "MN", "split a dimension": "MKN"}  # sizes that no argument tells


def _inputs(rng, described, z):
    extents = {**z, "1": 1, "KN": z["K"] * z["N"], "N2": z["N"] + 2, "M1": z["M"] + 1}
    arrays = []
    for _, kind, dims in described:
        shape = tuple(extents[d] for d in dims.split())
        if kind == "rows":
            arrays.append(rng.integers(0, z["M"] + 1, shape).astype(np.int32))
        elif kind == "i32":
            arrays.append(rng.integers(-50, 50, shape).astype(np.int32))
        else:
            arrays.append(rng.standard_normal(shape).astype(np.float32))
    return arrays


def expected_of(numpy, arrays, z) -> tuple | None:
    """The results by NumPy at f64; None where it has none."""
    wide = [a if a.dtype.kind == "i" else a.astype(np.float64) for a in arrays]
    if numpy == "split":
        expected = wide[0].reshape(z["M"], z["K"], z["N"])
    elif numpy == "places":
        expected = 10 * np.arange(z["M"])[:, None] + np.arange(z["N"])
    else:
        expected = numpy(*wide)
    return expected if expected is None or isinstance(expected, tuple) else (expected,)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_case(name, size, rng):
    program, described, numpy = CASES[name]
    z = SIZES[size]
    arrays = _inputs(rng, described, z)
    expected = expected_of(numpy, arrays, z)
    if expected is None:
        pytest.skip("NumPy has no value for this size")
    given = {n: z[n] for n in GIVEN.get(name, "")}
    results = run(program, *arrays, sizes=given, op="f" if program.count("op ") > 1 else None)
    results = results if isinstance(results, tuple) else (results,)
    bound = Bound(rtol=1e-5, atol=1e-5 * max(1, math.sqrt(z["N"] * max(z["M"], 1))))
    for result, value in zip(results, expected, strict=True):
        assert_close(result, value, bound)


# ---- words -----------------------------------------------------------------------------------------------------------


def test_comments_white_space_and_semicolons():
    program = "# one\ny[i]=x[i]# two\n+1 ; z[\n i ] = y[i]*2 # end"
    assert_close(run(program, f32(1, 2)), f32(4, 6))


def test_numbers():
    assert_close(run("y[i] = x[i] * 12 + 1.5 + 1e-5 * 1e5", f32(1)), f32(14.5), F32)
    assert_close(run("y[i] = x[i] + inf; z[i] = x[i] * nan; w[i] = -inf if x[i] > 0 else 0", f32(1))[0], f32(inf))
    assert np.isnan(run("y[i] = x[i] * nan", f32(1)))


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_stored_as_it_is(name, rng):
    dtype = DTYPES[name].numpy
    x = rng.integers(0, 256, 64 * dtype.itemsize, dtype=np.uint8).view(dtype)
    x = x.astype(bool) if name == "bool" else x
    if name == "bool":
        x = rng.integers(0, 2, 64).astype(bool)
    y = run(f"op f(x: {name}[N]) -> (y: {name}[N]) {{ y[i] = x[i] }}", x)
    assert y.dtype == dtype and y.tobytes() == x.tobytes()


def test_a_size_used_twice_must_be_equal():
    op = compiled("op f(x: f32[M, N], v: f32[N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] + v[j] }")
    with pytest.raises(CallError, match=r"N") as error:
        op(np.zeros((2, 3), np.float32), np.zeros(4, np.float32))
    assert "x" in str(error.value) and "v" in str(error.value) and "3" in str(error.value) and "4" in str(error.value)


def test_arithmetic_of_sizes():
    program = "op f(x: f32[M, 2 * K + 1]) -> (y: f32[M // 2, K]) { y[i, k] = x[2 * i, 2 * k + 1] }"
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    assert_close(run(program, x), x[::2, 1::2][:2])


# ---- statements ------------------------------------------------------------------------------------------------------


def test_import(tmp_path):
    (tmp_path / "parts.tile").write_text(
        "def twice(x) { return 2 * x }\nop one(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }\n"
    )
    main = tmp_path / "main.tile"
    main.write_text('import "parts.tile"\nop main(x: f32[N]) -> (y: f32[N]) { z = one(x)  y[i] = twice(z[i]) }\n')
    assert_close(tilec.compile(main, op="main", target="cpu")(f32(1, 2)), f32(4, 6))


REFUSED = {
    "defined twice": "y[i] = x[i]; y[i] = x[i] + 1",
    "read before defined": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i]  z[i] = x[i] }",
    "result never defined": "op f(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = x[i] }",
    "index twice on the left": "y[i, i] = x[i]",
    "unknown function": "y[i] = nosuch(x[i])",
    "outside": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i + 1] }",
    "and does not guard": "op f(x: f32[N]) -> (y: bool[N]) { y[i] = i > 0 and x[i - 1] > 0 }",
    "no range": "op f(x: f32[N]) -> (y: f32) { y = sum[k](x[k + 1] * x[k - 1]) }",
    "ranges disagree": "op f(x: f32[N], z: f32[M]) -> (y: f32[N]) { y[i] = x[i] + z[i] }",
    "two indices in argmax": "y = argmax[i, j](x[i, j])",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_place(name):
    with pytest.raises(TileError) as error:
        compiled(REFUSED[name])(*(np.zeros((3, 3), np.float32),) * 1)
    assert "<program>:1" in str(error.value) and "^" in str(error.value)


def test_all_mistakes_at_once():
    with pytest.raises(TileError) as error:
        compiled("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i + 1]\n z[i] = nosuch(x[i]) }")
    assert "<program>:1" in str(error.value) and "<program>:2" in str(error.value)


# ---- reductions: values that are special -----------------------------------------------------------------------------

NANS = np.array([[1, nan, 3, 1], [nan, 5, nan, 0], [1, 2, 2, -1], [-inf, -inf, -inf, -inf]], np.float32)
OF_NANS = {
    "sum": [nan, nan, 4, -inf], "prod": [nan, nan, -4, inf], "max": [nan, nan, 2, -inf], "min": [nan, nan, -1, -inf],
    "mean": [nan, nan, 1, -inf], "logsumexp": [nan, nan, np.log(np.exp([1, 2, 2, -1]).sum()), -inf],
    "argmax": [1, 0, 1, 0], "argmin": [1, 0, 3, 0],
}  # fmt: skip


@pytest.mark.parametrize("columns", [4, 400])
@pytest.mark.parametrize("kind", OF_NANS)
def test_nan_in_a_reduction(kind, columns):
    """Repeated a hundredfold, nothing changes for those that do not add up: loops of many lanes keep the rules."""
    if columns > 4 and kind in ("sum", "prod", "mean", "logsumexp"):
        pytest.skip("adds up")
    x = np.tile(NANS, (1, columns // 4))
    assert_close(run(f"y[i] = {kind}[j](x[i, j])", x), np.array(OF_NANS[kind]), F32)
    assert_close(run(f"y[j] = {kind}[i](x[i, j])", np.ascontiguousarray(x.T)), np.array(OF_NANS[kind]), F32)


@pytest.mark.parametrize(
    "kind, ufunc", [("cumsum", np.add), ("cummax", np.maximum), ("cummin", np.minimum), ("cumprod", np.multiply)]
)
def test_nan_in_a_scan(kind, ufunc):
    x = f32(2, -inf, 1, nan, 3, 5)
    assert_close(run(f"y[i] = {kind}[i](x[i])", x), ufunc.accumulate(x))


def test_logsumexp_of_infinities():
    x = f32(-inf, -inf, inf, 1, 1e30, 1e30).reshape(3, 2)
    assert_close(run("y[i] = logsumexp[j](x[i, j])", x), f32(-inf, inf, 1e30), F32)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("n", [1, 5, 1000])
def test_the_first_of_equals(kind, n):
    assert run(f"y = {kind}[j](x[j])", np.full(n, 3, np.float32)) == 0
    x = np.zeros((4, n), np.float32)
    x[:, n // 2 :] = 1 if kind == "argmax" else -1
    assert_close(run(f"y[i] = {kind}[j](x[i, j])", x), np.full(4, n // 2 if n > 1 else 0))


def test_argmax_over_part_of_a_range_gives_the_index():
    x = f32(9, 8, 1, 5, 5, 0)
    assert run("op f(x: f32[N]) -> (y: i64) { y = argmax[j in 2:N](x[j]) }", x) == 3


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_place_in_nothing_is_an_error(kind):
    with pytest.raises((TileError, CallError), match=kind):
        run(f"y[i] = {kind}[j](x[i, j])", np.zeros((2, 0), np.float32))


@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_reductions_of_integers(name, rng):
    dtype = DTYPES[name].numpy
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (3, 50), dtype=dtype, endpoint=True)
    result = compiled(
        "a[i] = sum[j](x[i, j]); b[i] = max[j](x[i, j]); c[i] = min[j](x[i, j]); d[i] = argmax[j](x[i, j])"
    )(x)
    sum_type = np.int32 if dtype.itemsize < 4 else dtype  # as for bool and 8 bits
    assert_close(result[0], x.sum(1, dtype=sum_type))
    assert_close(result[1], x.max(1))
    assert_close(result[2], x.min(1))
    assert_close(result[3], x.argmax(1))


def test_extremes_of_empty_integers_are_the_types():
    x = np.zeros((2, 0), np.int32)
    a, b = run("a[i] = max[j](x[i, j]); b[i] = min[j](x[i, j])", x)
    assert (a == np.iinfo(np.int32).min).all() and (b == np.iinfo(np.int32).max).all()


# ---- integers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_integers_wrap_around_and_divide_as_python_does(name):
    dtype = DTYPES[name].numpy
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = np.array([low, low + 1, 0, 1, 2, 7, high - 1, high, *([-1, -2, -7] if low else [3, 5])], dtype)
    x, z = (g.reshape(-1).copy() for g in np.meshgrid(values, values, indexing="ij"))
    program = """a[i] = x[i] + z[i]; b[i] = x[i] - z[i]; c[i] = x[i] * z[i]; d[i] = x[i] // z[i]; e[i] = x[i] % z[i]
                 f[i] = -x[i]; g[i] = abs(x[i]); h[i] = min(x[i], z[i]); k[i] = x[i] < z[i]; l[i] = x[i] ** 2"""
    results = run(program, x, z)
    quotient, remainder = np.zeros_like(x), np.zeros_like(x)
    some = z != 0
    quotient[some], remainder[some] = x[some] // z[some], x[some] % z[some]
    expected = [x + z, x - z, x * z, quotient, remainder, 0 - x, np.abs(x), np.minimum(x, z), x < z, x * x]
    for field, result, value in zip("abcdefghkl", results, expected, strict=True):
        np.testing.assert_array_equal(result, value.astype(result.dtype), err_msg=field)
        assert result.dtype == (np.bool_ if field == "k" else dtype), field


def test_mixed_integers_take_the_wider_type():
    y = run("op f(a: i8[N], b: i32[N]) -> (y: i32[N]) { y[i] = a[i] * b[i] }", np.array([-3], np.int8), i32(1000))
    assert_close(y, i32(-3000))


def test_unsigned_compares_as_unsigned():
    x = np.array([200, 5], np.uint8)
    assert_close(run("y[i] = f32(x[i]) + (1 if x[i] > 100 else 0)", x), f32(201, 5))


def test_if_of_literals_is_an_integer():
    assert run("y[i] = 1 if x[i] > 0 else 0", f32(1)).dtype == np.int64


# ---- floats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
def test_narrow_floats_are_computed_wide_and_rounded_once(name, rng):
    dtype = DTYPES[name].numpy
    x = rng.standard_normal(101).astype(dtype)
    wide = x.astype(np.float64 if name == "f64" else np.float32)
    y = run(f"op f(x: {name}[N]) -> (y: {name}[N], z: {'f64' if name == 'f64' else 'f32'}) {{"
            " y[i] = x[i] * x[i] + x[i] / 3  z = sum[i](x[i]) }", x)  # fmt: skip
    expected = wide * wide + wide / 3
    assert y.y.dtype == dtype
    # A product and a sum may be one operation of one rounding (or not): the last place of the stored type decides.
    assert_close(y.y, expected, Bound(rtol=2 * 2.0 ** -DTYPES[name].mantissa, atol=2.0**-9 if "f8" in name else 1e-6))
    assert_close(y.z, wide.astype(np.float64).sum(), F32)


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2", "f16", "bf16"])
def test_rounding_to_narrow_types_is_to_nearest_even(name):
    dtype = DTYPES[name].numpy
    values = np.concatenate(
        [np.linspace(-3, 3, 1999), [0.0, -0.0, inf, -inf, nan, 1e-9, -1e-9, 6e-8, 1e-5, 300.0, 1e5]]
    ).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(dtype)
    result = run(f"op f(x: f32[N]) -> (y: {name}[N]) {{ y[i] = x[i] }}", values)
    same = (result.view(f"u{dtype.itemsize}") == expected.view(f"u{dtype.itemsize}")) | (
        np.isnan(values) & np.isnan(result.astype(np.float32))
    )
    assert same.all(), [(v, r, e) for v, r, e, s in zip(values, result, expected, same) if not s][:5]


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2", "f16", "bf16"])
def test_every_narrow_value_is_widened_exactly(name):
    dtype = DTYPES[name].numpy
    x = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype)
    assert_close(run(f"op f(x: {name}[N]) -> (y: f32[N]) {{ y[i] = x[i] }}", x), x.astype(np.float32))


def test_a_declared_name_is_rounded_and_an_undeclared_is_not():
    x = f32(1 + 2**-10)
    assert run("h[i]: bf16 = x[i]  y[i] = h[i] - 1", x) == 0
    assert run("h[i] = x[i]  y[i] = h[i] - 1", x) == f32(2**-10)


def test_nan_in_min_max_and_clamp():
    x = f32(nan, 1, 2)
    assert_close(run("y[i] = max(x[i], 1.5)", x), f32(nan, 1.5, 2))
    assert_close(run("y[i] = min(1.5, x[i])", x), f32(nan, 1, 1.5))
    assert_close(run("y[i] = clamp(x[i], 1.25, 1.5)", x), f32(nan, 1.25, 1.5))
    assert_close(run("y[i] = x[i] == x[i]; z[i] = x[i] != x[i]", x)[1], np.array([True, False, False]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats_divide_as_ieee_and_python_do():
    x, z = f32(1, -1, 0, 7, -7, 7, -7, 1, inf), f32(0, 0, 0, 2, 2, -2, -2, 0.1, 3)
    a, b, c = run("a[i] = x[i] / z[i]; b[i] = x[i] // z[i]; c[i] = x[i] % z[i]", x, z)
    assert_close(a, x / z)
    assert_close(b, x // z)
    assert_close(c, x % z, F32)


def test_accumulators():
    x = np.array([1e8, 1, -1e8, 1] * 8, np.float32)
    assert run("y = sum[i](x[i]) in f64", x) == 16
    assert run("y = sum[i](x[i])", np.full(300, 100, np.int8)) == 30000
    half = np.full(4096, 1, np.float16)
    assert run("y = sum[i](x[i])", half) == 4096


@pytest.mark.parametrize("using, bits", [("tf32", 11), ("bf16", 8)])
def test_using_allows_rounded_multiplicands(using, bits, rng):
    a, b = (rng.standard_normal((33, 33)).astype(np.float32) for _ in "ab")
    y = run(f"y[i, j] = sum[k](a[i, k] * b[k, j]) using {using}", a, b)
    assert_close(y, a.astype(np.float64) @ b, Bound(rtol=2.0**-bits, atol=33 * 2.0**-bits))


def test_products_of_f32_are_full(rng):
    a, b = (rng.standard_normal((65, 300)).astype(np.float32) for _ in "ab")
    y = run("y[i, j] = sum[k](a[i, k] * b[j, k])", a, b)
    assert_close(y, a.astype(np.float64) @ b.T, Bound(rtol=1e-5, atol=4 * math.sqrt(300) * 2.0**-22))


@pytest.mark.parametrize(
    "target", ["i8", "i32", "i64", "u8", "u32", "u64", "bool", "f16", "bf16", "f32", "f64", "f8e4m3"]
)
@pytest.mark.parametrize("source", ["i8", "i32", "i64", "u8", "u64", "bool", "bf16", "f16", "f32", "f64"])
def test_casts(source, target):
    values = [0, 1, 2, 3, 100, 1.75] if source[0] in "fb" else [0, 1, 2, 3, 100, 127]
    x = np.array(values).astype(DTYPES[source].numpy)
    y = run(f"op f(x: {source}[N]) -> (y: {target}[N]) {{ y[i] = {target}(x[i]) }}", x)
    via = x.astype(np.float32) if source == "bf16" else x
    assert_close(y, via.astype(DTYPES[target].numpy))
    assert y.dtype == DTYPES[target].numpy


def test_bools():
    x, z = np.array([True, True, False, False]), np.array([True, False, True, False])
    a, b, c, d, e = run(
        "a[i] = x[i] and z[i]; b[i] = x[i] or z[i]; c[i] = not x[i]; d[i] = x[i] == z[i]; e = any[i](x[i])", x, z
    )
    assert_close(a, x & z)
    assert_close(b, x | z)
    assert_close(c, ~x)
    assert_close(d, x == z)
    assert e.dtype == np.bool_ and e
    assert_close(run("y[i] = 2.5 * f32(x[i])", x), f32(2.5, 2.5, 0, 0))
    assert run("y = sum[i](i32(x[i]))", x) == 2


# ---- gathers and guards ----------------------------------------------------------------------------------------------

GATHER = """# a table
op f(ids: i32[N], t: f32[V, D]) -> (y: f32[N, D]) {
    y[i, d] = t[ids[i], d]
}
"""


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_gather_outside_names_the_line(bad, tmp_path):
    path = tmp_path / "lookup.tile"
    path.write_text(GATHER)
    op, table = tilec.compile(path, target="cpu"), np.arange(8, dtype=np.float32).reshape(4, 2)
    with pytest.raises(CallError, match=r"lookup\.tile:3"):
        op(i32(0, bad, 1), table)
    assert_close(op(i32(3, 0), table), table[[3, 0]])  # the op can be called again


def test_gather_outside_in_a_large_parallel_kernel(rng):
    ids = rng.integers(0, 100, 300_000).astype(np.int32)
    table = rng.standard_normal((100, 4)).astype(np.float32)
    op = compiled(GATHER)
    assert_close(op(ids, table), table[ids])
    ids[-1] = 100
    with pytest.raises(CallError, match="<program>:3"):
        op(ids, table)


@pytest.mark.parametrize("ids", ["i8", "u8", "i64", "u32"])
def test_gather_by_any_integer(ids):
    t = f32(5, 6, 7)
    program = f"op f(k: {ids}[N], t: f32[V]) -> (y: f32[N]) {{ y[i] = t[k[i]] }}"
    assert_close(run(program, np.array([2, 0], DTYPES[ids].numpy), t), f32(7, 5))
    with pytest.raises(CallError):
        run(program, np.array([2, 3], DTYPES[ids].numpy), t)


GUARDED = {
    "gather": ("y[i] = t[ids[i]] if ids[i] >= 0 and ids[i] < V else -1",
               lambda t, k: [t[v] if 0 <= v < 4 else -1 for v in k]),
    "gather in else": ("y[i] = -1 if ids[i] < 0 or ids[i] >= V else t[ids[i]]",
                       lambda t, k: [t[v] if 0 <= v < 4 else -1 for v in k]),
    "inside a sum": ("y[i] = sum[j in 0:N](t[ids[j]] if ids[j] >= 0 and ids[j] < V else 0)  ",
                     lambda t, k: [sum(t[v] for v in k if 0 <= v < 4)] * len(k)),
    "around a sum": ("y[i] = sum[j in 0:3](t[ids[i]] * j) if ids[i] >= 0 and ids[i] < V else 0",
                     lambda t, k: [3 * t[v] if 0 <= v < 4 else 0 for v in k]),
    "inside a scan": ("y[i] = cumsum[i](t[ids[i]] if ids[i] >= 0 and ids[i] < V else 0)",
                      lambda t, k: np.cumsum([t[v] if 0 <= v < 4 else 0 for v in k])),
    "in a max": ("y[i] = max[j in 0:N](t[ids[j]] if ids[j] >= 0 and ids[j] < V else -inf) + 0 * i",
                 lambda t, k: [max(t[v] for v in k if 0 <= v < 4)] * len(k)),
    "nested": ("y[i] = (t[ids[i]] if ids[i] < V else 8) if ids[i] >= 0 else 9",
               lambda t, k: [9 if v < 0 else t[v] if v < 4 else 8 for v in k]),
    "through a name": ("g[i] = t[ids[i]] if ids[i] >= 0 and ids[i] < V else 0  y[i] = g[i] * g[i]",
                       lambda t, k: [t[v] ** 2 if 0 <= v < 4 else 0 for v in k]),
    "pad": ("y[i] = pad(t[ids[i]], 7)", lambda t, k: [t[v] if 0 <= v < 4 else 7 for v in k]),
}  # fmt: skip


@pytest.mark.parametrize("name", GUARDED)
def test_a_branch_not_taken_is_not_evaluated(name):
    statement, expected = GUARDED[name]
    k, t = i32(3, -5, 0, 9, 2, -(2**31), 2**31 - 1), f32(1, 2, 4, 8)
    y = run(f"op f(ids: i32[N], t: f32[V]) -> (y: f32[N]) {{ {statement} }}", k, t)
    assert_close(y, np.array(expected(t.astype(np.float64), k)), F32)


def test_guard_around_a_sum_of_rows():
    program = "op f(ids: i32[N], t: f32[V, D]) -> (y: f32[N]) { y[i] = sum[d](t[ids[i], d]) if ids[i] < V else 0 }"
    t = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_close(run(program, i32(1, 9), t), f32(12, 0))
    with pytest.raises(CallError):
        run(program, i32(1, -1), t)


def test_gather_from_an_intermediate():
    program = "op f(ids: i32[N], x: f32[V]) -> (y: f32[N]) { h[v] = exp(x[v])  y[i] = h[ids[i]] + h[0] }"
    x = f32(0.5, 1, 2)
    assert_close(run(program, i32(2, 0), x), np.exp([2, 0.5]) + np.exp(0.5), F32)


def test_pad_of_an_empty_tensor():
    assert_close(
        run("op f(k: i32[N], x: f32[M]) -> (y: f32[N]) { y[i] = pad(x[k[i]], 3) }", i32(0, 1), f32()), f32(3, 3)
    )


def test_gather_of_an_empty_table():
    with pytest.raises(CallError):
        run("op f(k: i32[N], x: f32[M]) -> (y: f32[N]) { y[i] = x[k[i]] }", i32(0), f32())


def test_shifted_intermediate():
    program = "op f(x: f32[N]) -> (y: f32[N]) { h[i] = x[i] * x[i]  y[i] = h[i] + pad(h[i - 1], 0) }"
    x = np.arange(1, 9, dtype=np.float32)
    assert_close(run(program, x), x**2 + np.concatenate([[0], x[:-1] ** 2]))


def test_diagonal_and_repeated_reads():
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert_close(
        run("op f(x: f32[N, N]) -> (y: f32[N], z: f32[N, N]) { y[i] = x[i, i]  z[i, j] = x[i, j] + x[j, i] }", x)[1],
        x + x.T,
    )
    assert_close(run("op f(x: f32[N, N]) -> (y: f32) { y = sum[i](x[i, i]) }", x), 12.0)


# ---- calls -----------------------------------------------------------------------------------------------------------

NORM = "op norm(x: f32[M, N]) -> (y: f32[M, N], s: f32[M]) { s[i] = sum[j](x[i, j])  y[i, j] = x[i, j] / s[i] }"


def test_several_results_are_a_named_tuple():
    x = np.ones((2, 4), np.float32)
    result = run(NORM, x)
    assert result._fields == ("y", "s") and type(result).__name__ == "norm"
    assert_close(result.s, f32(4, 4))


def test_zero_dimensional_results_and_numbers():
    y = run("op f(a: f32, n: i64) -> (y: f32) { y = a * n }", 2.5, 3)
    assert isinstance(y, np.ndarray) and y.shape == () and y == 7.5
    with pytest.raises(CallError):
        run("op f(a: f32) -> (y: f32) { y = a }", np.zeros(3, np.float32))


def test_out_is_written_whatever_was_in_it(rng):
    x = rng.standard_normal((37, 53)).astype(np.float32)
    out = (np.full_like(x, nan), np.full(37, nan, np.float32))
    result = compiled(NORM)(x, out=out)
    assert result[0] is out[0] and result[1] is out[1]
    assert_close(out[1], x.astype(np.float64).sum(1), F32)
    assert_close(out[0] * out[1][:, None], x, F32)


def test_strided_reversed_and_read_only_arrays(rng):
    base = rng.standard_normal((40, 60)).astype(np.float32)
    op = compiled("y[i, j] = x[i, j] * 2")
    for x in (base[::2, ::3], base.T, base[::-1, ::-1], np.broadcast_to(base[:1], (5, 60)), np.asfortranarray(base)):
        x.flags.writeable = False
        assert_close(op(x), 2 * x)
        big = np.full((2 * x.shape[0], 3 * x.shape[1]), nan, np.float32)
        op(x, out=big[1::2, ::3])
        assert_close(big[1::2, ::3], 2 * x)
        assert np.isnan(big[::2]).all() and np.isnan(big[1::2, 1::3]).all()


def test_out_that_does_not_fit_is_refused(rng):
    x = rng.standard_normal((4, 4)).astype(np.float32)
    op = compiled("y[i, j] = x[i, j] * 2")
    frozen = np.zeros_like(x)
    frozen.flags.writeable = False
    for out in (
        np.zeros((4, 5), np.float32),
        np.zeros((4, 4)),
        frozen,
        x,
        x[::-1],
        x.T,
        (x, x),
        np.zeros(16, np.float32),
    ):
        with pytest.raises(CallError):
            op(x, out=out)
    base = np.zeros((4, 8), np.float32)
    base[:, :4] = x
    assert_close(op(base[:, :4], out=base[:, 4:]), 2 * x)  # beside it is not on it
    shared = np.zeros((4, 4), np.float32)
    with pytest.raises(CallError, match="overlap"):
        compiled("y[i, j] = x[i, j] * 2; z[i, j] = x[i, j] * 3")(x, out=(shared, shared))


def test_arguments_that_do_not_fit_are_refused():
    op = compiled(full("y[i, j] = x[i, j]"))
    x = np.zeros((2, 2), np.float32)
    for arguments in ((), (x, x), (x.astype(np.float64),), (x[0],), ("text",), (x.astype(complex),), (None,)):
        with pytest.raises(CallError):
            op(*arguments)
    with pytest.raises(CallError):
        op(x, stream=0)


def test_one_specialisation_for_each_shape_and_type():
    op = compiled("y[i] = x[i] + 1")
    for n in (3, 5, 3, 5, 3):
        op(np.zeros(n, np.float32))
    op(np.zeros(3, np.float64))
    assert "3 specialisations" in repr(op)
    assert "y" in op.kernels[0].source and set(op.stages) >= {"build", "plan", "map"}


def test_sizes_given_to_compile():
    program = "op f(x: f32[N]) -> (y: f32[K]) { y[k] = x[0] * k }"
    assert_close(run(program, f32(2, 9), sizes={"K": 3}), f32(0, 2, 4))
    with pytest.raises(CallError, match="K"):
        run(program, f32(2, 9))


def test_one_op_called_by_many_threads(rng):
    op = compiled(
        "m[i] = max[j](x[i, j])  e[i, j] = exp(x[i, j] - m[i])  t[j] = sum[i](e[i, j])  y[i, j] = e[i, j] / t[j]"
    )
    arrays = [rng.standard_normal((n, 131)).astype(np.float32) for n in (3, 17, 257, 64) * 6]
    alone = [op(a).tobytes() for a in arrays]
    start = threading.Barrier(4)

    def work(k):
        start.wait()
        return [op(a).tobytes() for a in arrays[k:] + arrays[:k]]

    with ThreadPoolExecutor(4) as pool:
        for k, results in enumerate(pool.map(work, range(4))):
            for n, result in enumerate(results):
                assert result == alone[(n + k) % len(alone)]


def test_first_calls_by_many_threads_build_once(rng):
    op = compiled("y[i] = x[i] * 3")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: op(f32(1, 2)), range(8)))
    assert all((r == f32(3, 6)).all() for r in results) and "1 specialisation" in repr(op)


def test_the_same_bits_on_every_run(rng):
    x = rng.standard_normal((513, 777)).astype(np.float32)
    op = compiled("y[i] = sum[j](x[i, j]); z[j] = sum[i](x[i, j]); t = sum[i, j](x[i, j])")
    first = [r.tobytes() for r in op(x)]
    assert all([r.tobytes() for r in op(x)] == first for _ in range(5))
    assert [
        r.tobytes() for r in compiled("y[i] = sum[j](x[i, j]); z[j] = sum[i](x[i, j]); t = sum[i, j](x[i, j])")(x)
    ] == first


def test_torch_tensors(rng):
    torch = pytest.importorskip("torch")
    op = compiled("op f(x: bf16[M, N]) -> (y: bf16[M, N]) { y[i, j] = softmax[j](x[i, j]) }")
    x = torch.from_numpy(rng.standard_normal((7, 33)).astype(np.float32)).to(torch.bfloat16)
    y = op(x)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.bfloat16
    torch.testing.assert_close(y, x.float().softmax(-1).to(torch.bfloat16))
    torch.testing.assert_close(op(x.t()), x.float().t().softmax(-1).to(torch.bfloat16))
    assert isinstance(op(x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)), np.ndarray)


# ---- expect ----------------------------------------------------------------------------------------------------------

SOFTMAX = """op s(x: f32[M, N]) -> (y: f32[M, N]) {
    e[i, j] = exp(x[i, j])  t[i] = sum[j](e[i, j])  y[i, j] = e[i, j] / t[i]
    %s
}"""


@pytest.mark.parametrize(
    "condition", ["kernels == 1", "fused(e, y)", "traffic <= 1.05 * minimal", "kernels >= 1 and kernels < 2"]
)
def test_expectation_met(condition, rng):
    x = rng.standard_normal((64, 96)).astype(np.float32)
    assert_close(run(SOFTMAX % f"expect {condition}", x), _softmax(x.astype(np.float64)), F32)


@pytest.mark.parametrize("condition", ["kernels == 2", "traffic < minimal", "not fused(e, y)"])
def test_expectation_not_met(condition):
    with pytest.raises(TileError, match="expect") as error:
        run(SOFTMAX % f"expect {condition}", np.zeros((64, 96), np.float32))
    assert "<program>:3" in str(error.value)


def test_powers_of_integers():
    x, z = np.array([1, 2, -3, 7]), np.array([4, 5, 3, -1])
    assert_close(run("y[i] = x[i] ** z[i]", x, z), np.array([1, 32, -27, 0]))
