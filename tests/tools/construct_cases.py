"""Programs of one construct each, that work at any size, with what they mean in NumPy; and how tests run programs."""

from __future__ import annotations

import math

import numpy as np
from by_numpy import np_erf
from conftest import assert_within

import tilec

nan, inf = np.nan, np.inf
FLOATS = ["f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64"]
SIGNED, UNSIGNED = ["i8", "i16", "i32", "i64"], ["u8", "u16", "u32", "u64"]


def compiled(program: str, **options) -> tilec.Op:
    return tilec.compile(program, target="cpu", **options)


def run(program: str, *arrays, expected=None, **options):
    """Compiles and calls, among canaries, too. The results are within the program's error bounds, and what it means is
    `expected` by hand."""
    results = compiled(program, **options)(*arrays)
    assert_within(program, arrays, results, options.get("op"), options.get("sizes"), "cpu", expected)
    return results


def full(statement: str) -> str:
    """A program in which M and N have names."""
    return f"op f(x: f32[M, N]) -> (y: f32[M, N]) {{ {statement} }}"


def f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


def i32(*values) -> np.ndarray:
    return np.array(values, np.int32)


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


def softmax(x):
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
    "softmax": ("y[i, j] = softmax[j](x[i, j])", [X], softmax),
    "log_softmax": ("y[i, j] = log_softmax[j](x[i, j])", [X], lambda x: np.log(softmax(x))),
    "softmax of columns": ("y[i, j] = softmax[i](x[i, j])", [X], lambda x: softmax(x.T).T),
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


def inputs_of(rng, described, z):
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
