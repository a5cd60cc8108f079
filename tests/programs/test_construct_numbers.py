"""Reductions of special values, integers that wrap around, floats of every width, casts: compiled for the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_close
from tools.construct_cases import FLOATS, SIGNED, UNSIGNED, compiled, f32, i32, inf, nan, run

from tilec import CallError, TileError
from tilec.core.dtypes import DTYPES

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
    run(f"y[i] = {kind}[j](x[i, j])", x, expected=np.array(OF_NANS[kind]))
    run(f"y[j] = {kind}[i](x[i, j])", np.ascontiguousarray(x.T), expected=np.array(OF_NANS[kind]))


@pytest.mark.parametrize(
    "kind, ufunc", [("cumsum", np.add), ("cummax", np.maximum), ("cummin", np.minimum), ("cumprod", np.multiply)]
)
def test_nan_in_a_scan(kind, ufunc):
    x = f32(2, -inf, 1, nan, 3, 5)
    assert_close(run(f"y[i] = {kind}[i](x[i])", x), ufunc.accumulate(x))


def test_logsumexp_of_infinities():
    x = f32(-inf, -inf, inf, 1, 1e30, 1e30).reshape(3, 2)
    run("y[i] = logsumexp[j](x[i, j])", x, expected=f32(-inf, inf, 1e30))


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


def test_powers_of_integers():
    x, z = np.array([1, 2, -3, 7]), np.array([4, 5, 3, -1])
    assert_close(run("y[i] = x[i] ** z[i]", x, z), np.array([1, 32, -27, 0]))


# ---- floats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
def test_narrow_floats_are_computed_wide_and_rounded_once(name, rng):
    dtype = DTYPES[name].numpy
    x = rng.standard_normal(101).astype(dtype)
    wide = x.astype(np.float64)
    run(f"op f(x: {name}[N]) -> (y: {name}[N], z: {'f64' if name == 'f64' else 'f32'}) {{"
        " y[i] = x[i] * x[i] + x[i] / 3  z = sum[i](x[i]) }", x, expected=(wide * wide + wide / 3, wide.sum()))  # fmt: skip


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
    a, b = run("a[i] = x[i] / z[i]; b[i] = x[i] // z[i]", x, z)
    assert_close(a, x / z)
    assert_close(b, x // z)
    run("y[i] = x[i] % z[i]", x, z, expected=x.astype(np.float64) % z)


def test_accumulators():
    x = np.array([1e8, 1, -1e8, 1] * 8, np.float32)
    assert run("y = sum[i](x[i]) in f64", x) == 16
    assert run("y = sum[i](x[i])", np.full(300, 100, np.int8)) == 30000
    half = np.full(4096, 1, np.float16)
    assert run("y = sum[i](x[i])", half) == 4096


@pytest.mark.parametrize("using", ["tf32", "bf16"])
def test_using_allows_rounded_multiplicands(using, rng):
    a, b = (rng.standard_normal((33, 33)).astype(np.float32) for _ in "ab")
    run(f"y[i, j] = sum[k](a[i, k] * b[k, j]) using {using}", a, b, expected=a.astype(np.float64) @ b)


def test_products_of_f32_are_full(rng):
    a, b = (rng.standard_normal((65, 300)).astype(np.float32) for _ in "ab")
    run("y[i, j] = sum[k](a[i, k] * b[j, k])", a, b, expected=a.astype(np.float64) @ b.T)


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
