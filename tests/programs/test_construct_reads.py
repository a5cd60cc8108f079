"""Gathers, guards and shifted reads, compiled for the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_close
from tools.construct_cases import compiled, f32, i32, run

import tilec
from tilec import CallError
from tilec.core.dtypes import DTYPES

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
    values = np.array(expected(t.astype(np.float64), k), np.float64)
    run(f"op f(ids: i32[N], t: f32[V]) -> (y: f32[N]) {{ {statement} }}", k, t, expected=values)


def test_guard_around_a_sum_of_rows():
    program = "op f(ids: i32[N], t: f32[V, D]) -> (y: f32[N]) { y[i] = sum[d](t[ids[i], d]) if ids[i] < V else 0 }"
    t = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_close(run(program, i32(1, 9), t), f32(12, 0))
    with pytest.raises(CallError):
        run(program, i32(1, -1), t)


def test_gather_from_an_intermediate():
    program = "op f(ids: i32[N], x: f32[V]) -> (y: f32[N]) { h[v] = exp(x[v])  y[i] = h[ids[i]] + h[0] }"
    x = f32(0.5, 1, 2)
    run(program, i32(2, 0), x, expected=np.exp([2, 0.5]) + np.exp(0.5))


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
