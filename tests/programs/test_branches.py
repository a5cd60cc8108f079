"""Conditions around loops over the index that they name: they choose what is used, and change nothing of how it is made."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
from tilec.semantics.reference import reference

X = np.array([0.5, -1.0, 2.0, 0.25, 1.5, -0.75], np.float32)
N = np.array([0, 3, 1, 2, 2, 1])
SOFTMAX = np.exp(X) / np.exp(X).sum()

# by what is under the condition: (expression of x[N] and n[N], what it is at every j)
PROGRAMS = {
    "a function over its index": ("softmax[j](x[j])", SOFTMAX),
    "a function over its index, of a gather": ("softmax[j](x[n[j]])", np.exp(X[N]) / np.exp(X[N]).sum()),
    "a sum over another index of that name": ("sum[j](x[n[j]])", X[N].sum()),
    "a sum inside another": ("sum[k](sum[j](x[n[j]]) * x[k])", X[N].sum() * X.sum()),
    "a sum over a condition's other index": ("sum[k](x[k] * (sum[j](x[n[j]]) if k > 1 else 0))", X[N].sum() * X[2:].sum()),
    "a function inside a sum": ("sum[j](relu(x[n[j]] * x[j]))", np.maximum(X[N] * X, 0).sum()),
    "a scan of a function": ("cumsum[j](softmax[j](x[n[j]]))", np.cumsum(np.exp(X[N]) / np.exp(X[N]).sum())),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_condition_on_an_index_of_a_loop(name):
    text, expected = PROGRAMS[name]
    expected = np.broadcast_to(expected, X.shape)
    chosen = np.arange(6) >= 4
    for condition, taken in (("j >= 4", chosen), ("not j < 4", chosen)):
        program = f"op f(x: f32[N], n: i64[N]) -> (y: f32[N]) {{ y[j] = {text} if {condition} else -1 }}"
        for found in (tilec.compile(program, target="cpu")(X, N), reference(program)(X, N)):
            np.testing.assert_allclose(found, np.where(taken, expected, -1), rtol=2e-6)


@pytest.mark.parametrize("text", ["sum[j](x[n[j]])", "softmax[j](x[n[j]])", "sum[k](sum[j](x[n[j] + k]))"])
def test_a_branch_that_is_never_taken_reads_nothing(text):
    program = f"op f(x: f32[N], n: i64[N]) -> (y: f32[N]) {{ y[j] = {text} if j < 0 else 1 }}"
    program = program.replace("sum[k]", "sum[k in 0:2]")
    np.testing.assert_array_equal(tilec.compile(program, target="cpu")(X, N + 100), 1)


def test_a_condition_says_nothing_of_what_a_function_reads_elsewhere():
    program = "op f(x: f32[N]) -> (y: f32[N]) { y[j] = softmax[j](x[j - 1]) if j > 0 else 0 }"
    with pytest.raises(tilec.TileError, match=r"`x\[j - 1\]` reaches outside"):
        tilec.compile(program)
