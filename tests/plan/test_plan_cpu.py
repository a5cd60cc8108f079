"""How CPU kernels tile and traverse memory, and that what they store in the last place is stored."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilec
from tilec.core.target import BUILT_IN
from tilec.core.targets import load
from tilec.cost.model import predict


def compiled(text: str, *arrays: np.ndarray) -> tuple[tilec.Op, np.ndarray]:
    op = tilec.compile(text, target="cpu")
    return op, op(*arrays)


def test_a_small_operand_does_not_decide_the_order_of_loops():
    x, r = np.ones((512, 2048), np.float32), np.arange(512, dtype=np.float32)
    op, y = compiled("y[i, j] = x[i, j] * r[i]", x, r)
    (kernel,) = op.plan.kernels
    assert dict(zip(kernel.grid, kernel.tile))[1] == 2048
    np.testing.assert_array_equal(y, x * r[:, None])


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
def test_pieces_of_permuted_operands_are_long(dtype):
    x = np.arange(2 * 256 * 32 * 64).reshape(2, 256, 32, 64).astype(dtype)
    op, y = compiled("y[b, h, s, d] = x[b, s, h, d]", x)
    (kernel,) = op.plan.kernels
    _, h, s, d = kernel.tile
    assert min(h * d, s * d) * x.itemsize >= min(2048, 1024 * x.itemsize)
    assert kernel.loops["y"] == (0, 2, 1, 3)  # as x lies
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1, 3))


def test_a_kernel_is_one_block_where_a_parallel_loop_costs_more_than_it_saves(tmp_path):
    """What it takes alone is what the model says of one core and of the cache that its arrays are in."""
    text, blocks = (BUILT_IN / "cpu.toml").read_text(), {}
    for overhead in (1, 5, 100):
        path = tmp_path / f"{overhead}.toml"
        path.write_text(re.sub("overhead_us = .*", f"overhead_us = {overhead}", text))
        for size in (32, 512, 4096):
            op = tilec.compile(
                "op relu(x: f32[N, N]) -> (y: f32[N, N]) { y[i, j] = max(x[i, j], 0) }", target=str(path)
            )
            (kernel,) = op.build(N=size).plan.kernels
            alone = predict(replace(kernel.work, blocks=1), load(str(path))).time_us
            assert (kernel.blocks == 1) == (alone < 2 * overhead)
            blocks[overhead, size] = kernel.blocks
    assert blocks[1, 32] == blocks[100, 512] == 1 < min(blocks[1, 512], blocks[100, 4096])


@pytest.mark.parametrize("columns", [1, 64, 2048])
def test_copies_of_rows_are_stored(columns):
    """LLVM makes calls of memcpy of them, and would drop these if it took a result for memory of the kernel's own."""
    table = np.arange(33 * columns, dtype=np.float32).reshape(33, columns)
    ids = np.arange(100) * 7 % 33
    _, y = compiled("y[s, d] = table[ids[s], d]", table, ids)
    np.testing.assert_array_equal(y, table[ids])


def test_a_scan_loops_along_rows_of_memory():
    x = np.random.default_rng(0).integers(-9, 9, (300, 500))
    for axis, index in enumerate("ij"):
        _, y = compiled(f"y[i, j] = cumsum[{index}](x[i, j])", x)
        np.testing.assert_array_equal(y, x.cumsum(axis))


def test_checks_before_a_loop_are_of_what_it_reads():
    """Neither a loop without iterations reads anything, nor is a check forgotten that stands before one."""
    op = tilec.compile("y[s, d] = table[ids[s], d]", target="cpu")
    wrong = np.array([0, 7])
    assert op(np.ones((7, 0), np.float32), wrong).shape == (2, 0)
    with pytest.raises(tilec.CallError, match="reads outside `table`"):
        op(np.ones((7, 3), np.float32), wrong)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("columns", [1, 31, 64, 65, 500])
def test_places_of_extremes_in_runs(kind, columns):
    """Ties, NaNs early and late, all equal, nothing but the identity, and another state beside."""
    rng = np.random.default_rng(0)
    worst = np.float32(-np.inf if kind == "argmax" else np.inf)
    x = rng.integers(-3, 3, (40, columns)).astype(np.float32)
    x[0], x[1], x[2] = worst, np.nan, np.arange(columns)
    x[3, columns // 2 :] = np.nan
    x[4] = -np.arange(columns)
    x[5:9] = np.where(rng.random((4, columns)) < 0.5, 0.0, -0.0)
    text = f"place[i] = {kind}[j](x[i, j]); total[i] = sum[j](x[i, j])"
    place, _ = tilec.compile(text, target="cpu")(x)
    np.testing.assert_array_equal(place, getattr(np, kind)(x, 1))
    largest = kind.removeprefix("arg")
    both = tilec.compile(f"place[i] = {kind}[j](x[i, j]); value[i] = {largest}[j](x[i, j])", target="cpu")(x)
    np.testing.assert_array_equal(both[0], place)
    np.testing.assert_array_equal(both[1], getattr(np, largest)(x, 1))


def test_kernels_of_like_names_stay_separate():
    """Where extents of 1 are dropped, a result of `m` is `m.1` inside, whose kernel must not be that of a tensor `m_1`."""
    text = """op f(x: f32[1, 2, 6]) -> (m: f32[1, 2, 3], m_1: i64[1, 2, 3]) {
        m[a, b, c] = max[r in 0:2](x[0, b, c * 2 + r]) where a in 0:1, b in 0:2, c in 0:3
        p[a, b, c]: i64 = argmax[r in 0:2](x[0, b, c * 2 + r]) where a in 0:1, b in 0:2, c in 0:3
        m_1[a, b, c] = clamp(c * 2 + p[0, b, c] % 2, 0, 5) where a in 0:1, b in 0:2, c in 0:3
    }"""
    x = np.random.default_rng(0).standard_normal((1, 2, 6)).astype(np.float32)
    found, positions = tilec.compile(text, target="cpu")(x)
    pairs = x.reshape(1, 2, 3, 2)
    assert np.array_equal(found, pairs.max(-1))
    assert np.array_equal(positions, np.arange(3) * 2 + pairs.argmax(-1))


def test_vectors_that_one_operation_reads_along_two_dimensions_stay_separate():
    """`p` and `q` need not each other, and have equal extents; but `y` has a dimension of each."""
    text = """op f(x: f32[5, 5], m: bool[10, 10], a: i64[10], b: i64[10]) -> (y: f32[10, 10]) {
        p[i] = clamp(a[i], 0, 4)
        q[i] = clamp(b[i], 0, 4)
        y[i, j] = x[p[i], q[j]] if m[i, j] else 0
    }"""
    rng = np.random.default_rng(0)
    x, m = rng.standard_normal((5, 5)).astype(np.float32), rng.integers(0, 2, (10, 10)).astype(bool)
    a, b = rng.integers(0, 5, (2, 10))
    found = tilec.compile(text, target="cpu")(x, m, a, b)
    np.testing.assert_array_equal(found, np.where(m, x[np.ix_(a, b)], 0))
