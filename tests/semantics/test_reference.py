"""Each construct of the language, evaluated by the reference, against NumPy written by hand."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from conftest import OTHER_ORDER, assert_close

from tilec.core.diagnostics import CallError, TileError
from tilec.semantics import reference as module
from tilec.semantics.reference import OutOfRangeError, reference

BF16, F8E4M3, F8E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
nan, inf = np.nan, np.inf


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, Y, V = f32(4, 5), f32(5, 3, seed=1), f32(5, seed=2)
X64, Y64, V64 = (a.astype(np.float64) for a in (X, Y, V))
IDS = np.array([3, 0, 2], np.int32)
INTS = np.array([[7, -7, 5], [0, 2, -1]], np.int32)

# ---- expressions -------------------------------------------------------------------------------------------

EXPRESSIONS = {
    "arithmetic": ("y[i, j] = (x[i, j] + 1) * 2 - x[i, j] / 4", {"x": X}, (X64 + 1) * 2 - X64 / 4),
    "power": ("y[i, j] = x[i, j] ** 3", {"x": X}, X64**3),
    "unary minus": ("y[i, j] = -x[i, j]", {"x": X}, -X64),
    "floor division": ("y[i, j] = x[i, j] // 2", {"x": INTS}, np.array([[3, -4, 2], [0, 1, -1]], np.int32)),
    "modulo": ("y[i, j] = x[i, j] % 3", {"x": INTS}, np.array([[1, 2, 2], [0, 2, 2]], np.int32)),
    "integer division": ("y[i, j] = x[i, j] / 2", {"x": INTS}, INTS / 2),
    "comparison": ("y[i, j] = x[i, j] > 0", {"x": X}, X > 0),
    "logic": ("y[i, j] = not (x[i, j] > 0 or x[i, j] < -1) and true", {"x": X}, ~((X > 0) | (X < -1))),
    "conditional": ("y[i, j] = x[i, j] if x[i, j] > 0 else 0", {"x": X}, np.maximum(X64, 0)),
    "index values": ("y[i, j] = i * 10 + j + x[i, j]", {"x": X},
                     X64 + np.add.outer(10 * np.r_[:4], np.r_[:5])),
    "triangle": ("y[i, j] = x[i, j] if j <= i else 0", {"x": X}, np.tril(X64)),
    "transpose": ("y[j, i] = x[i, j]", {"x": X}, X64.T),
    "diagonal": ("y[i] = x[i, i]", {"x": X[:, :4]}, X64[:, :4].diagonal()),
    "outer product": ("y[i, j] = v[i] * v[j]", {"v": V}, np.outer(V64, V64)),
    "scalar result": ("y = sum[i](v[i])", {"v": V}, V64.sum()),
    "scalar input": ("y[i] = v[i] * a", {"v": V, "a": np.float32(3)}, V64 * 3),
    "cast to integer": ("y[i] = i32(v[i] * 10)", {"v": V}, (V64 * 10).astype(np.int32)),
    "cast to bool": ("y[i, j] = bool(x[i, j])", {"x": INTS}, INTS != 0),
    "functions": ("y[i] = exp(v[i]) + sqrt(abs(v[i])) + tanh(v[i])", {"v": V},
                  np.exp(V64) + np.sqrt(np.abs(V64)) + np.tanh(V64)),
    "clamp": ("y[i] = clamp(v[i], -0.5, 0.5)", {"v": V}, np.clip(V64, -0.5, 0.5)),
    "min and max of two": ("y[i] = max(v[i], 0) + min(v[i], 1)", {"v": V},
                           np.maximum(V64, 0) + np.minimum(V64, 1)),
    "power of integers": ("y[i] = v[i] ** v[i]", {"v": np.array([3, -2, -1, 0], np.int32)},
                          np.array([27, 0, -1, 1], np.int32)),
    "division by zero": ("y[i] = 7 // v[i] + 7 % v[i]", {"v": np.array([2, 0, -1], np.int32)},
                         np.array([4, 0, -7], np.int32)),
    "python number": ("op f(v: f32[N], a: f32, n: i32) -> (y: f32[N]) { y[i] = v[i] * a + n }",
                      {"v": V, "a": 2, "n": 3}, V64 * 2 + 3),
    "no input": ("y[i] = i * i where i in 0:4", {}, np.array([0, 1, 4, 9])),
    "shifted inside": ("y[i] = v[i + 1] - v[i] where i in 0:4", {"v": V}, np.diff(V64)),
    "several equations": ("a[i] = v[i] + 1; y[i] = a[i] * a[i]", {"v": V}, (V64 + 1) ** 2),
}  # fmt: skip


@pytest.mark.parametrize(("program", "inputs", "expected"), EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_expression(program, inputs, expected):
    assert_close(reference(program)(**inputs), expected, OTHER_ORDER)


# ---- reductions and scans ----------------------------------------------------------------------------------

REDUCTIONS = {
    "sum": ("y[i] = sum[j](x[i, j])", {"x": X}, X64.sum(1)),
    "prod": ("y[j] = prod[i](x[i, j])", {"x": X}, X64.prod(0)),
    "max over two": ("y = max[i, j](x[i, j])", {"x": X}, X64.max()),
    "min": ("y[i] = min[j](x[i, j])", {"x": X}, X64.min(1)),
    "any": ("y[i] = any[j](x[i, j] > 1)", {"x": X}, (X > 1).any(1)),
    "all": ("y[i] = all[j](x[i, j] < 1)", {"x": X}, (X < 1).all(1)),
    "mean": ("y[i] = mean[j](x[i, j])", {"x": X}, X64.mean(1)),
    "logsumexp": ("y[i] = logsumexp[j](x[i, j] + 1000)", {"x": X}, np.log(np.exp(X64).sum(1)) + 1000),
    "argmax": ("y[i] = argmax[j](x[i, j])", {"x": X}, X.argmax(1)),
    "argmin": ("y[i] = argmin[j](x[i, j])", {"x": X}, X.argmin(1)),
    "argmax of a tie": ("y[i] = argmax[j](x[i, j] * 0)", {"x": X}, np.zeros(4, np.int64)),
    "argmax gives the index": ("y[i] = argmax[j in 2:5](x[i, j])", {"x": X}, X[:, 2:].argmax(1) + 2),
    "part of a range": ("y[i] = sum[j in 1:3](x[i, j])", {"x": X}, X64[:, 1:3].sum(1)),
    "matrix product": ("y[i, j] = sum[k](x[i, k] * y0[k, j])", {"x": X, "y0": Y}, X64 @ Y64),
    "trace of a product": ("y = sum[i, k](x[i, k] * x[i, k])", {"x": X}, (X64 * X64).sum()),
    "factors without the index": ("y[i] = sum[k in 0:3](v[i] * v[i])", {"v": V}, 3 * V64**2),
    "index bound again": ("y[i, j] = x[i, j] / sum[j](x[i, j])", {"x": X}, X64 / X64.sum(1, keepdims=True)),
    "nested": ("y[i] = sum[j](x[i, j] * max[k](y0[j, k]))", {"x": X, "y0": Y}, X64 @ Y64.max(1)),
    "accumulator": ("y[i] = sum[j](x[i, j] * x[i, j]) in f64", {"x": X}, (X64**2).sum(1)),
    "multiplicand": ("y[i, j] = sum[k](x[i, k] * y0[k, j]) using bf16", {"x": X, "y0": Y}, X64 @ Y64),
    "bound twice": ("y[i] = sum[j](x[i, j] * sum[j](x[i, j]))", {"x": X}, X64.sum(1) ** 2),
    "guarded convolution": ("y[i] = sum[j in 0:5](v[i - j] if j <= i else 0) where i in 0:5", {"v": V}, V64.cumsum()),
    "cumsum": ("y[i, j] = cumsum[j](x[i, j])", {"x": X}, X64.cumsum(1)),
    "cumprod": ("y[i, j] = cumprod[i](x[i, j])", {"x": X}, X64.cumprod(0)),
    "cummax": ("y[i, j] = cummax[j](x[i, j])", {"x": X}, np.maximum.accumulate(X64, 1)),
    "cummin": ("y[i, j] = cummin[j](x[i, j])", {"x": X}, np.minimum.accumulate(X64, 1)),
}


@pytest.mark.parametrize(("program", "inputs", "expected"), REDUCTIONS.values(), ids=REDUCTIONS)
def test_reduction(program, inputs, expected):
    assert_close(reference(program)(**inputs), expected, OTHER_ORDER)


@pytest.mark.parametrize(("program", "inputs", "expected"), REDUCTIONS.values(), ids=REDUCTIONS)
def test_large_spaces_are_cut_without_changing_the_meaning(program, inputs, expected, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 4)
    assert_close(reference(program)(**inputs), expected, OTHER_ORDER)


NANS = np.array([[1, nan, 3], [nan, 5, nan], [1, 2, 2]], np.float32)
OF_NANS = {
    "sum": [nan, nan, 5], "max": [nan, nan, 2], "min": [nan, nan, 1],
    "logsumexp": [nan, nan, np.log(np.exp([1, 2, 2]).sum())], "argmax": [1, 0, 1], "argmin": [1, 0, 0],
}  # fmt: skip


@pytest.mark.parametrize("kind", OF_NANS)
def test_nan_in_a_reduction(kind):
    assert_close(reference(f"y[i] = {kind}[j](x[i, j])")(NANS), np.array(OF_NANS[kind]), OTHER_ORDER)


OF_NOTHING = {"sum": 0.0, "prod": 1.0, "max": -inf, "min": inf, "mean": nan, "logsumexp": -inf}


@pytest.mark.parametrize("kind", OF_NOTHING)
def test_reduction_of_nothing(kind):
    result = reference(f"y[i] = {kind}[j](x[i, j])")(np.zeros((2, 0), np.float32))
    assert_close(result, np.full(2, OF_NOTHING[kind]))


def test_truth_of_nothing():
    nothing = np.zeros((2, 0), np.float32)
    assert not reference("y[i] = any[j](x[i, j] > 0)")(nothing).any()
    assert reference("y[i] = all[j](x[i, j] > 0)")(nothing).all()


def test_place_in_nothing_is_an_error():
    with pytest.raises(TileError, match="argmax"):
        reference("y[i] = argmax[j](x[i, j])")(np.zeros((2, 0), np.float32))


def test_logsumexp_of_infinities():
    x = np.array([[-inf, -inf], [inf, 1]], np.float32)
    assert_close(reference("y[i] = logsumexp[j](x[i, j])")(x), np.array([-inf, inf]))


# ---- accesses that may be outside --------------------------------------------------------------------------

GATHER = "op f(ids: i32[N], t: f32[V, D]) -> (y: f32[N, D]) { y[i, d] = t[ids[i], d] }"


def test_gather():
    assert_close(reference(GATHER)(IDS, X), X64[IDS])


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_gather_outside_names_the_line(bad):
    with pytest.raises(OutOfRangeError, match=rf"<program>:1:\d+: .*index {bad} is outside 0:4") as error:
        reference(GATHER)(np.array([0, bad, 1], np.int32), X)
    assert isinstance(error.value, IndexError)


def test_padded_gather():
    ids = np.array([3, -1, 4, 0], np.int64)
    result = reference("y[i, d] = pad(t[ids[i], d], 7)")(t=X, ids=ids)
    assert_close(result, np.stack([X64[3], np.full(5, 7), np.full(5, 7), X64[0]]))


def test_padded_shift():
    program = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = pad(x[i - 1], 0) + pad(x[i + 2], -1) }"
    expected = np.array([0, *V64[:-1]]) + np.array([*V64[2:], -1, -1])
    assert_close(reference(program)(V), expected)


def test_pad_of_an_empty_tensor():
    program = "op f(ids: i32[N], x: f32[M]) -> (y: f32[N]) { y[i] = pad(x[ids[i]], 3) }"
    assert_close(reference(program)(IDS, np.zeros(0, np.float32)), np.full(3, 3.0))


def test_branch_not_taken_is_not_evaluated():
    program = "op f(ids: i32[N], t: f32[V]) -> (y: f32[N]) { y[i] = t[ids[i]] if ids[i] >= 0 else -1 }"
    assert_close(reference(program)(np.array([2, -5, 0], np.int32), V), np.array([V64[2], -1, V64[0]]))


def test_branch_guards_the_accesses_inside_a_reduction():
    program = """op f(ids: i32[N], t: f32[V, D]) -> (y: f32[N]) {
        y[i] = sum[d](t[ids[i], d]) if ids[i] < 4 else 0
    }"""
    assert_close(reference(program)(np.array([2, 9], np.int32), X), np.array([X64[2].sum(), 0]), OTHER_ORDER)


def test_branch_guards_the_locals_of_a_function():
    program = """
    def spread[j](x) { m = mean[j](x)  return max[j](abs(x - m)) }
    op f(ids: i32[N], t: f32[V, D]) -> (y: f32[N]) { y[i] = spread[j](t[ids[i], j]) if ids[i] < V else -1 }
    """
    expected = np.array([np.abs(X64[1] - X64[1].mean()).max(), -1])
    assert_close(reference(program)(np.array([1, 9], np.int32), X), expected, OTHER_ORDER)


def test_subscripts_of_a_padded_access_are_guarded_by_themselves():
    program = """op f(a: i32[N], b: i32[V], t: f32[W]) -> (y: f32[N]) {
        y[i] = pad(t[b[a[i]]], -1) if a[i] >= 0 else 5
    }"""
    inner = np.array([3, 99], np.int32)
    assert_close(reference(program)(np.array([0, -1, 1], np.int32), inner, V), np.array([V64[3], 5, -1]))
    with pytest.raises(OutOfRangeError, match=r":2:\d+: .*of `b`"):
        reference(program)(np.array([2], np.int32), inner, V)


def test_scan_under_a_branch_sees_what_came_before():
    program = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = cumsum[i](x[i]) if i >= 2 else 0 }"
    assert_close(reference(program)(V), np.where(np.arange(5) >= 2, V64.cumsum(), 0), OTHER_ORDER)


def test_stencil_under_a_branch():
    program = """op f(x: f32[N]) -> (y: f32[N]) {
        y[i] = x[i - 1] + x[i + 1] if i > 0 and i < N - 1 else x[i]
    }"""
    assert_close(reference(program)(V), np.array([V64[0], *(V64[:-2] + V64[2:]), V64[-1]]))


def test_joined_and_split_dimensions():
    join = "op f(x: f32[A, B]) -> (y: f32[A * B]) { y[i] = x[i // B, i % B] }"
    split = "op f(x: f32[A * B]) -> (y: f32[A, B]) { y[a, b] = x[a * B + b] }"
    assert_close(reference(join)(X), X64.reshape(-1))
    assert_close(reference(split, sizes={"A": 4, "B": 5})(X.reshape(-1)), X64)


# ---- types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint32])
def test_integers_wrap_around(dtype):
    top = np.iinfo(dtype).max
    result = reference("y[i] = x[i] + x[i]")(np.array([top, 1], dtype))
    assert result.dtype == dtype
    assert_close(result, np.array([top, 1], dtype) * np.array(2, dtype))


def test_small_integers_add_up_in_i32():
    result = reference("y = sum[i](x[i])")(np.full(100, 100, np.int8))
    assert result == 10000


@pytest.mark.parametrize("dtype", [np.float16, BF16, F8E4M3, F8E5M2, np.float64])
def test_every_float_is_f64(dtype):
    x = np.array([0.5, 1.25, -3], np.float32).astype(dtype)
    result = reference("y[i] = x[i] * x[i]")(x)
    assert result.dtype == np.float64
    assert_close(result, x.astype(np.float64) ** 2)


ROUNDS = "op f(x: f32[N]) -> (y: bf16[N]) { h[i]: bf16 = x[i] * 3; y[i] = h[i] / 3 }"


def test_declared_types_round_when_asked():
    rounded = reference(ROUNDS, rounded=True)(V)
    h = (V64 * 3).astype(BF16).astype(np.float64)
    assert rounded.dtype == BF16
    assert_close(rounded, (h / 3).astype(BF16))
    assert_close(reference(ROUNDS)(V), V64, OTHER_ORDER)


# ---- ops, functions, results -------------------------------------------------------------------------------


def test_own_functions_and_the_standard_library():
    program = """
    def spread[j](x) { m = mean[j](x)  return max[j](abs(x - m)) }
    def leaky(x, slope) { return x if x > 0 else slope * x }
    op f(x: f32[M, N]) -> (a: f32[M], b: f32[M, N], c: f32[M, N]) {
        a[i] = spread[j](x[i, j])
        b[i, j] = leaky(x[i, j], 0.1)
        c[i, j] = softmax[j](x[i, j])
    }"""
    a, b, c = reference(program)(X)
    assert_close(a, np.abs(X64 - X64.mean(1, keepdims=True)).max(1), OTHER_ORDER)
    assert_close(b, np.where(X64 > 0, X64, 0.1 * X64), OTHER_ORDER)
    assert_close(c, np.exp(X64) / np.exp(X64).sum(1, keepdims=True), OTHER_ORDER)


def test_ops_call_ops():
    program = """
    op halves(x: f32[N]) -> (low: f32[N], high: f32[N]) { low[i] = min(x[i], 0)  high[i] = max(x[i], 0) }
    op f(x: f32[N]) -> (y: f32[N]) { a, b = halves(x)  c, d = halves(b)  y[i] = d[i] - a[i] }
    """
    assert_close(reference(program, "f")(V), np.abs(V64))


def test_several_results_are_a_named_tuple():
    program = "op f(x: f32[N]) -> (low: f32, high: f32) { low = min[i](x[i])  high = max[i](x[i]) }"
    result = reference(program)(V)
    assert (result.low, result.high) == (V64.min(), V64.max())
    assert result.low.shape == ()


def test_program_from_a_file(tmp_path):
    path = tmp_path / "double.tile"
    path.write_text("y[i] = x[i] * 2")
    assert_close(reference(path)(V), V64 * 2)
    assert_close(reference(str(path))(V), V64 * 2)


def test_empty_tensors():
    empty = np.zeros((0, 5), np.float32)
    assert reference("y[i, j] = x[i, j] + 1")(empty).shape == (0, 5)
    assert_close(reference("y[i, j] = sum[k](x[i, k] * z[k, j])")(X[:, :0], Y[:0]), np.zeros((4, 3)))


def test_memory_stays_bounded():
    """160 million terms take 1.3 GB when they are held at once."""
    a = f32(400, 1000)
    tracemalloc.start()
    result = reference("y[i, j] = max[k](a[i, k] + a[j, k])")(a)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_close(result[3], (a[3].astype(np.float64) + a).max(1))
    assert peak < 300e6


def test_wrong_calls():
    program = reference("op f(x: f32[N], z: f32[N]) -> (y: f32[N]) { y[i] = x[i] + z[i] }")
    for arguments in ((V,), (V, V, V)):
        with pytest.raises(CallError):
            program(*arguments)
    with pytest.raises(TileError):
        program(V, V[:3])
    with pytest.raises(CallError, match="complex128"):
        program(V, V.astype(complex))
    with pytest.raises(CallError):
        reference("op f(x: f32) -> (y: f32) { y = x } op g(x: f32) -> (y: f32) { y = x }")(V)


def test_the_public_name_stays_a_function():
    """A module of that name would take its place in the package once imported."""
    import tilec

    for _ in range(2):
        assert tilec.reference("y[i] = 2 * x[i]")(np.ones(3)).tolist() == [2, 2, 2]
