"""Sorting by ranks, the largest k one after the other, and a maximum with its index: one kernel each, which reads its rows once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_within

import tilec

ROOT = next(p for p in Path(__file__).parents if (p / "pyproject.toml").exists())
MANUAL = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
WRITTEN = next(text for text in re.findall(r"```tile\n(.*?)```", MANUAL, re.DOTALL) if "op top2" in text)
NAN_LAST = """op f(x: f32[M, N]) -> (v: f32[M, N], p: i64[M, N]) {
    rank[i, a] = sum[b](i32(x[i, b] < x[i, a] or (isnan(x[i, a]) and not isnan(x[i, b]))
                            or ((x[i, b] == x[i, a] or (isnan(x[i, a]) and isnan(x[i, b]))) and b < a)))
    p[i, r] = sum[a](a if rank[i, a] == r else 0) where r in 0:N
    v[i, r] = x[i, p[i, r]]
}"""
BOTH = {
    "rows": "op f(x: f32[M, N]) -> (m: f32[M], p: i64[M]) { m[i] = max[k](x[i, k]); p[i] = argmax[k](x[i, k]) }",
    "columns": "op f(x: f32[N, M]) -> (m: f32[M], p: i64[M]) { m[i] = max[k](x[k, i]); p[i] = argmax[k](x[k, i]) }",
    "least": "op f(x: f32[M, N]) -> (p: i64[M], m: f32[M]) { p[i] = argmin[k](x[i, k]); m[i] = min[k](x[i, k]) }",
}


def rows(rng, m: int, n: int, special: bool = False) -> np.ndarray:
    x = rng.integers(-5, 6, (m, n)).astype(np.float32)  # with ties
    if special:
        x[rng.random((m, n)) < 0.2] = np.nan
        x[rng.random((m, n)) < 0.2] = np.inf
        x[0], x[1] = -np.inf, np.nan
    return x


def one_kernel(op) -> None:
    assert len(op.kernels) == 1, [k.name for k in op.kernels]


@pytest.mark.parametrize("n", [1, 2, 33, 64])
def test_sort(n, rng):
    x = rows(rng, 6, n)
    op = tilec.compile(WRITTEN, op="sort", target="cpu")
    v, p = op(x)
    np.testing.assert_array_equal(p, np.argsort(x, 1, kind="stable"))
    np.testing.assert_array_equal(v, np.sort(x, 1))
    assert_within(NAN_LAST, [x], tilec.interpret(NAN_LAST, "map", x, target="sm_90a"), kind="cuda")


def test_sort_with_nan_last(rng):
    x = rows(rng, 9, 40, special=True)
    v, p = tilec.compile(NAN_LAST, target="cpu")(x)
    np.testing.assert_array_equal(p, np.argsort(x, 1, kind="stable"))
    np.testing.assert_array_equal(v, np.sort(x, 1))


@pytest.mark.parametrize("n", [2, 37, 130])
def test_the_two_largest(n, rng):
    x = rows(rng, 8, n)
    x[0] = -np.inf
    v, p = tilec.compile(WRITTEN, op="top2", target="cpu")(x)
    order = np.argsort(-x, 1, kind="stable")[:, :2]
    np.testing.assert_array_equal(p, order)
    np.testing.assert_array_equal(v, np.take_along_axis(x, order, 1))
    found = tilec.compile(WRITTEN, op="top2", target="sm_90a").interpret("map", x)
    np.testing.assert_array_equal(found[1], order)


@pytest.mark.parametrize(("name", "sizes"), [("sort", {"M": 4096, "N": 64}), ("top2", {"M": 4096, "N": 1024})])
def test_they_are_one_kernel_on_a_gpu(name, sizes):
    op = tilec.compile(WRITTEN, op=name, target="sm_90a", sizes=sizes).build()
    one_kernel(op)
    assert all(c.stack == 0 for c in op._latest.cubins.values())


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("text", BOTH.values(), ids=BOTH)
def test_a_maximum_and_its_index_are_one_kernel(text, target):
    op = tilec.compile(text, target=target, sizes={"M": 1024, "N": 2048}).build()
    one_kernel(op)
