"""Loops that the CPU's map chooses: several rows of a reduction at once, quick functions of arguments that cannot be huge."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from tools.construct_cases import compiled, run
from tools.printed import assembly, code

REDUCTIONS = {
    "sum": "y[j] = sum[i](x[i, j])",
    "largest": "y[j] = max[i](x[i, j])",
    "place": "y[j] = argmax[i](x[i, j])",
    "product": "y[j] = prod[i](1 + x[i, j] / 64)",
    "scan": "y[i, j] = cumsum[i](x[i, j])",
    "moments": "m[j] = mean[i](x[i, j]); y[j] = mean[i]((x[i, j] - m[j]) ** 2)",
    "weights": "y[j] = sum[i](x[i, j] * x[i, 0] * x[0, j])",
}


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 30])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_at_once(name, rows):
    x = np.random.default_rng(rows).standard_normal((rows, 37), dtype=np.float32)
    run(REDUCTIONS[name], x)


@pytest.mark.parametrize("columns", [1, 7, 32])
def test_rows_at_once_of_two_reductions(columns):
    x = np.random.default_rng(0).standard_normal((6, 3, 9, columns), dtype=np.float32)
    run("y[j, l] = sum[i, k](x[i, j, k, l])", x)


def test_a_sum_is_read_once_for_four_rows():
    op = compiled(REDUCTIONS["sum"])
    op(np.ones((64, 640), np.float32))
    source = code(op.kernels[0].source)
    assert source.count("reassoc_add(") == 4
    assert source.count("= y[") == 1


OFFSET = {
    "columns": ("y[j] = mean[i]((x[i, j] - mean[k](x[k, j])) ** 2)", (40_003, 5), 0),
    "columns of an edge": ("y[j] = mean[i]((x[i, j] - mean[k](x[k, j])) ** 2)", (2050, 1301), 0),
    "rows": ("y[i] = mean[j]((x[i, j] - mean[k](x[i, k])) ** 2)", (3, 100_001), 1),
    "the middle": ("y[a, j] = mean[i]((x[a, i, j] - mean[k](x[a, k, j])) ** 2)", (2, 20_000, 16), 1),
    "a batch": ("y[c] = mean[b, i]((x[b, c, i] - mean[a, k](x[a, c, k])) ** 2)", (3000, 2, 50), (0, 2)),
    "channels last": ("y[c] = mean[b, i]((x[b, i, c] - mean[a, k](x[a, k, c])) ** 2)", (3000, 9, 8), (0, 1)),
}


@pytest.mark.parametrize("name", OFFSET)
def test_long_sums_are_added_up_in_rounds(name):
    """A mean's error would be all of these variances."""
    program, shape, axes = OFFSET[name]
    x = (1e7 + 4 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    op = compiled(program)
    found, expected = op(x), x.astype(np.float64).var(axis=axes)
    assert np.abs(found / expected - 1).max() < 1e-4 and "_round in range(" in op.kernels[0].source


LONG = {
    "sum of sums": ("y[j] = sum[a, i](x[a, i, j])", (40, 30, 7)),
    "sums within": ("y[i, j] = sum[a](x[a, i, j])", (1100, 3, 7)),
    "products": ("y[j] = sum[i](x[i, j] * x[i, 0])", (1029, 12)),
    "long bodies": ("y[j] = sum[i](exp(x[i, j]) * tanh(x[i, j]) - sin(x[i, j]))", (1026, 9)),
    "beside a maximum": ("m[j] = max[i](x[i, j]); y[j] = sum[i](x[i, j]); z[j] = argmin[i](x[i, j])", (1500, 9)),
    "rows beside a maximum": ("m[i] = max[j](x[i, j]); y[i] = sum[j](x[i, j])", (2, 70_001)),
    "rows of halves": ("y[i] = sum[j](f32(f16(x[i, j])))", (2, 70_001)),
    "scan": ("y[i, j] = cumsum[i](x[i, j])", (1100, 3)),
    "integers": ("y[j] = sum[i](i32(x[i, j] * 100))", (1100, 5)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LONG)
def test_rounds_of_sums(name, dtype):
    program, shape = LONG[name]
    run(program, np.random.default_rng(0).standard_normal(shape).astype(dtype))


def test_llvm_does_no_algebra_with_what_is_summed():
    """It takes leave to reorder for that, too: `x - x` became 0. Elements of memory need no cover."""
    x = np.full((4, 40), np.inf, np.float32)
    op = compiled("y[i] = sum[j](x[i, j] - x[i, j])")
    assert np.isnan(op(x)).all() and "opaque(" in op.kernels[0].source
    op = compiled(REDUCTIONS["sum"])
    assert np.isinf(op(x)).all() and "opaque(" not in op.kernels[0].source
    # LLVM's sum of equal steps is the step times a vector of numbers that begin at 0
    op = compiled("y[i] = sum[k in 0:40](x[i, 0])")
    assert np.isinf(op(x)).all()


HUGE = [1e30, -3e38, 1e6, np.inf, np.nan, 0.0, -0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "body", ["cos(cos(x[i]))", "sin(sin(x[i]))", "cos(tanh(x[i]))", "tan(sin(x[i]))", "sin(x[i] / 9)"]
)
def test_functions_of_bounded_arguments(body, dtype):
    x = np.concatenate([np.linspace(-40, 40, 1001), HUGE, 2.0 ** -np.arange(0, 140, 7.0)]).astype(dtype)
    run(f"y[i] = {body}", x)


def test_no_reduction_of_a_bounded_argument():
    """A cosine lies within [-1, 1], so that the next one is a polynomial. The argument of the first may be anything."""
    op = compiled("y[i] = cos(cos(x[i]))")
    op(np.ones(4096, np.float32))
    source = code(op.kernels[0].source)
    assert source.count("cos_approx(") == 1 and source.count("cos(") == 1
    assert "fma(" in source
    assert "cos by a fast approximation" in op.explain(full=True)


def test_no_second_loop_for_bounded_arguments():
    op = compiled("y[i] = sin(tanh(x[i]))")
    op(np.ones(4096, np.float64))
    source = code(op.kernels[0].source)
    assert "sin_approx(" in source and "sin(" not in source.replace("sin_approx(", "")
    assert source.count("for ") == 1


BELOW = {
    "m[i] = max[j](x[i, j]); y[i, j] = exp(x[i, j] - m[i])": True,
    "m[j] = max[i](x[i, j]); y[i, j] = exp(x[i, j] - m[j])": True,
    "m = max[i, j](x[i, j]); y[j, i] = exp(x[i, j] - m)": True,
    "y[i, j] = softmax[j](x[i, j] / 3)": True,
    "y[i, j] = silu(x[i, j])": True,
    "m[i] = max[j](x[i, j]); y[i, j] = exp(x[j, i] - m[i])": False,  # another row's elements
    "m[i] = max[j](x[i, j]); y[i, j] = exp(x[i, j] - m[j])": False,  # another row's maximum
    "m[i] = min[j](x[i, j]); y[i, j] = exp(x[i, j] - m[i])": False,
    "m[i] = max[j](x[i, j] / 2); y[i, j] = exp(x[i, j] - m[i])": False,
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("program", BELOW)
def test_exponentials_of_what_is_not_positive(program, dtype):
    """Below a row's own maximum, the exponential needs nothing for large numbers."""
    x = (np.random.default_rng(1).standard_normal((40, 40)) * 40).astype(dtype)
    x[3, 4], x[5, 6], x[7, 8], x[9] = np.nan, np.inf, -np.inf, -np.inf
    run(program, x)
    op = compiled(program)
    op(x)
    source = "".join(code(k.source) for k in op.kernels)
    assert ("exp_below(" in source) == BELOW[program]
    assert ("exp(" in source) != BELOW[program]


CHOICES = {
    "relu(x[i, j])": True,
    "clamp(x[i, j], -1.5, 2)": True,
    "-abs(x[i, j])": True,
    "x[i, j] if x[i, j] > x[j, i] else x[j, i]": True,
    "min(x[i, j], 0.1)": False,  # no bf16
    "x[i, j] + x[j, i]": False,
}


@pytest.mark.parametrize("body", CHOICES)
def test_what_is_a_bf16_is_not_rounded(body):
    x = (np.random.default_rng(1).standard_normal((40, 40)) * 2).astype(ml_dtypes.bfloat16)
    x[3, 4], x[5, 6], x[7, 8], x[0, 0] = np.nan, np.inf, -np.inf, -0.0
    program = f"op f(x: bf16[N, N]) -> (y: bf16[N, N]) {{ y[i, j] = {body} }}"
    run(program, x)
    op = compiled(program)
    op(x)
    assert ("bf16_from_exact(" in op.kernels[0].source) == CHOICES[body]
    assert ("bf16_from_f32(" in op.kernels[0].source) != CHOICES[body]


SHORT = {
    "points": "y[i, j] = max(x[i, j] + x[0, j], 0)",
    "sum": "y[i] = sum[j](x[i, j])",
    "largest": "y[i] = max[j](x[i, j])",
    "softmax": "y[i, j] = softmax[j](x[i, j])",
    "moments": "m[i] = mean[j](x[i, j]); y[i] = mean[j]((x[i, j] - m[i]) ** 2)",
    "cosine": "y[i, j] = cos(1000000 * x[i, j])",
    "some": "y[i, j] = pad(x[i, j - 1], 0) + x[i, j] if x[i, 0] > 0 else 1",
}


F32, F64, BF16 = np.float32, np.float64, ml_dtypes.bfloat16


@pytest.mark.parametrize("columns, dtype", [(9, F32), (12, BF16), (17, F64), (31, F32), (64, BF16), (100, F32), (127, BF16)])
@pytest.mark.parametrize("name", SHORT)
def test_short_rows(name, columns, dtype):
    """Values, with whole vectors and with a mask for the last one, into guarded memory."""
    x = np.random.default_rng(columns).standard_normal((7, columns)).astype(dtype)
    x[2, 1], x[3, columns - 1] = np.nan, np.inf
    with np.errstate(all="ignore"):
        run(SHORT[name], x)


@pytest.mark.parametrize("name", ["points", "sum", "largest", "softmax"])
def test_short_rows_are_vectors_along_the_row(name, capfd):
    """LLVM gathers no elements that lie a row apart, and has nothing to say of loops that it could not do so."""
    op = compiled(SHORT[name])
    op(np.ones((640, 30), np.float32))
    assert "short_range(30)" in code(op.kernels[0].source)
    assert not re.search(r"v(gather|scatter|insertps)", assembly(op))
    assert "remark" not in capfd.readouterr().err


ACROSS = {
    "scan": "y[i, j] = cumsum[j](x[i, j])",
    "scan of extremes": "y[i, j] = cummax[j](x[i, j] * 2)",
    "place": "y[i] = argmax[j](x[i, j])",
    "place and sum": "p[i] = argmax[j](x[i, j]); y[i] = sum[j](x[i, j])",
}


@pytest.mark.parametrize("rows, columns, dtype", [(130, 12, F32), (64, 17, BF16), (2055, 30, BF16), (96, 2, F64), (1040, 100, F32)])
@pytest.mark.parametrize("name", ACROSS)
def test_short_rows_across(name, rows, columns, dtype):
    """What is done in order is done for several rows side by side, whatever is left of whole squares."""
    x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(dtype)
    x[2, 1], x[rows - 1, columns - 1] = np.nan, np.inf
    with np.errstate(all="ignore"):
        run(ACROSS[name], x)


def test_what_is_done_in_order_is_transposed_by_registers():
    for name in ("scan", "place"):
        op = compiled(ACROSS[name])
        op(np.ones((2048, 12), np.float32))
        source = code(op.kernels[0].source)
        assert "transpose(" in source and "short_range(12)" not in source


def test_short_rows_of_predicates():
    """A vector of these has no bytes."""
    random = np.random.default_rng(1)
    for rows in (16, 20, 200):
        x = random.integers(0, 2, (rows, 2)).astype(bool)
        np.testing.assert_array_equal(run("op f(x: bool[M, 2]) -> (y: bool[M]) { y[i] = any[k](x[i, k]) }", x), x.any(1))
