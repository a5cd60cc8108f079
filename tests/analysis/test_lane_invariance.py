"""Neighbours that share a quotient: what follows from it is computed once for all of them, and is the same."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools.lowering import planned

import tilec

FORM = "op f(seed: i64, x: f32[M, N]) -> (y: f32[M, N]) {{ y[i, j] = x[i, j] + {} }}"
TARGETS = pytest.mark.parametrize("target", ["cpu", "h200"])


@pytest.mark.crossed
@TARGETS
@pytest.mark.parametrize(
    ("count", "n", "together"),
    [
        ("i * N + j", 64, 4),
        ("i * N + j", 66, 2),  # rows begin at a half of a group
        ("i * N + j", 65, 1),
        ("i * N + j + 12", 64, 4),
        ("i * N + j + 2", 64, 2),
        ("seed + j", 64, 1),
        ("2 * j", 64, 1),
        ("j * M + i", 64, 1),
    ],
)
def test_numbers_share_a_run_where_the_count_allows_it(target, count, n, together):
    text = FORM.format(f"rand(seed, {count})")
    (kernel,) = tilec.compile(text, sizes={"M": 6, "N": n}, target=target).build().kernels
    assert kernel.source.count("5.960464477539063e-08") == together  # once for each number of a loop's body


@pytest.mark.crossed
@TARGETS
@pytest.mark.parametrize("n", [64, 66, 3072 + 4])
@pytest.mark.parametrize(
    "value",
    [
        "rand(seed, i * N + j)",
        "rand(seed, i * N + j + 12) * rand(seed, j)",
        "f32((i * N + j) // 4) * f32((i * N + j) % 2) + f32(j // 8)",
        "cos(rand(seed, i * N + j)) * f32(j // 2 % 8)",
    ],
)
def test_what_is_shared_is_the_same(target, n, value):
    arrays = [np.int64(5), np.zeros((3, n), np.float32)]
    text = FORM.format(value)
    found = tilec.compile(text, target=target).interpret("map", *arrays)
    assert_within(text, arrays, found)


def test_what_is_shared_is_looked_at_once():
    """30 statements that read the one before twice are 2**30 paths."""
    lines = "\n".join(f"    n{k + 1}[i] = n{k}[i] + n{k}[i]" for k in range(30))
    body = f"    n0[i] = i // 4 where i in 0:64\n{lines}\n    y[i] = rand(seed, i) + n30[i] % 7"
    assert tilec.compile(f"op f(seed: i64) -> (y: f32[64]) {{\n{body}\n}}\n").build().kernels


def test_a_body_is_written_out_for_few_neighbours():
    """As many as a quotient is the same for were once: 4096 bodies, which LLVM took minutes for."""
    text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = sin(x[i]) * f32(i // 4096) }"
    (kernel,) = tilec.compile(text, sizes={"N": 8192}, target="cpu").build().kernels
    assert 1 <= kernel.source.count(" x[") <= 64


@pytest.mark.parametrize("text", [
    "op f(x: i64[N]) -> (y: i64[N]) { t[i, j] = i * 3 + j + x[i] where i in 0:N, j in 0:4  m[i] = max[j](t[i, j])  "
    "y[k] = (k + t[0, 2]) // 4 + m[k] }",
    "op f(x: i64[N]) -> (y: i64[N]) { m[i] = argmax[j in 0:N](j * x[i])  y[k] = (k + m[0]) // 4 where k in 0:N }",
    "op f(x: i64[N]) -> (y: i64[N]) { m[i] = argmax[j in 0:N](j * x[i])  y[k] = x[(k + m[m[0]]) // 4] if k > 3 else 0 "
    "where k in 0:N }",
])  # fmt: skip
def test_indices_of_an_operation_that_computes_an_operand(text):
    """They are no indices of the operation that reads it."""
    assert planned(text, None, {"N": 64}).kernels
    x = np.arange(64) * 7 % 13 - 6
    assert_within(text, [x], tilec.compile(text, target="cpu")(x))
