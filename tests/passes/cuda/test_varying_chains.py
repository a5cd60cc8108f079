"""Contraction chains for CUDA whose sizes vary: lowered once, and run at the ends of tiles and of ranges."""

from dataclasses import replace

import pytest
from conftest import assert_within
from tools.chains import chains_pay, use_tile, warps
from tools.contractions import arrays, emulated
from tools.lowering import lowered, specialised
from tools.varying import varying

from tilec.core.diagnostics import Source
from tilec.core.varying import Varies
from tilec.runtime import sized
from tilec.semantics.interpreter import prepare

FULL = """op f(q: bf16[B, S, 16], k: bf16[B, T, 16], v: bf16[B, T, 16]) -> (o: bf16[B, S, 16]) {
    s[b, i, j] = sum[d](q[b, i, d] * k[b, j, d]) / 4
    p[b, i, j] = softmax[j](s[b, i, j])
    o[b, i, d] = sum[j](p[b, i, j] * v[b, j, d]) using bf16
}"""
CAUSAL = """op f(q: bf16[B, S, 16], k: bf16[B, S, 16], v: bf16[B, S, 16]) -> (o: bf16[B, S, 16]) {
    s[b, i, j] = sum[d](q[b, i, d] * k[b, j, d]) / 4 if j <= i else -inf
    p[b, i, j] = softmax[j](s[b, i, j])
    o[b, i, d] = sum[j](p[b, i, j] * v[b, j, d]) using bf16
}"""
GROUPED = """op f(q: bf16[B, 4, 16], k: bf16[B, 2, T, 16], v: bf16[B, 2, T, 16]) -> (o: bf16[B, 4, 16]) {
    s[b, h, j] = sum[d](q[b, h, d] * k[b, h // 2, j, d]) / 4
    p[b, h, j] = softmax[j](s[b, h, j])
    o[b, h, d] = sum[j](p[b, h, j] * v[b, h // 2, j, d]) using bf16
}"""
STATES = """op f(x: bf16[M, 16], w: bf16[N, 16]) -> (y: f32[M]) {
    z[i, j] = sum[k](x[i, k] * w[j, k])
    y[i]    = log(sum[j](exp(z[i, j])))
}"""
WARPS, PARTS, WARPGROUP = warps(16, 16), warps(16, 16, parts=3), (64, 32)


def lower_varying(text, tile, at, monkeypatch, high=400, low=1, **sizes):
    """The program whose sizes `at` vary from `low` to `high`, with this tile."""
    chains_pay(monkeypatch)
    use_tile(tile, monkeypatch)
    special = varying(text, {name: (low, high) for name in at}, **sizes)
    return lowered(special, at=at)[1]


def check_each(result, text, points, **sizes):
    """Thread by thread, where races and what is outside of memory are faults."""
    run = prepare(result.texts["map"])
    for point in points:
        inputs = arrays(specialised(Source("t.tile", text), None, sizes | point))
        assert_within(text, inputs, run(inputs), kind="cuda")


ENDS = [{"S": s, "T": t} for s, t in [(1, 1), (15, 16), (16, 17), (17, 31), (33, 32)]]


@pytest.mark.parametrize("tile", [WARPS, PARTS, WARPGROUP])
def test_queries_and_keys_vary(monkeypatch, tile):
    result = lower_varying(FULL, tile, {"S": 37, "T": 51}, monkeypatch, B=2)
    assert len(result.emitted.kernels) == (2 if tile is PARTS else 1)
    points = ENDS if tile is not WARPGROUP else [{"S": 1, "T": 1}, {"S": 64, "T": 32}, {"S": 65, "T": 65}]
    check_each(result, FULL, points, B=2)


@pytest.mark.parametrize("tile", [WARPS, WARPGROUP])
def test_one_size_is_that_of_queries_and_of_keys(monkeypatch, tile):
    result = lower_varying(CAUSAL, tile, {"S": 101, "B": 3}, monkeypatch)
    (kernel,) = result.plan.kernels
    assert kernel.options.longest_first
    points = [(1, 1), (2, 16), (3, 17), (1, 33)] if tile is WARPS else [(1, 1), (2, 65)]
    check_each(result, CAUSAL, [{"B": b, "S": s} for b, s in points])


def test_keys_of_grouped_heads_vary(monkeypatch):
    result = lower_varying(GROUPED, PARTS, {"B": 3, "T": 201}, monkeypatch)
    check_each(result, GROUPED, [{"B": 1, "T": 1}, {"B": 2, "T": 16}, {"B": 5, "T": 49}])


@pytest.mark.parametrize("tile", [WARPS, (64, 64)])
def test_rows_and_columns_of_a_reduced_contraction_vary(monkeypatch, tile):
    result = lower_varying(STATES, tile, {"M": 101, "N": 201}, monkeypatch)
    check_each(result, STATES, [{"M": 1, "N": 1}, {"M": 17, "N": 64}, {"M": 65, "N": 65}])


@pytest.mark.parametrize("tile", [WARPS, PARTS, WARPGROUP])
def test_the_printed_kernel_serves_all_sizes(monkeypatch, tile):
    result = lower_varying(FULL, tile, {"S": 37, "T": 51}, monkeypatch, B=1)
    for point in ({"S": 1, "T": 1}, {"S": 3, "T": 33}):
        special = specialised(Source("t.tile", FULL), None, {"B": 1} | point)
        inputs = arrays(special)
        outputs = emulated(special, replace(result, emitted=sized.at(result.emitted, point)), inputs)
        assert_within(FULL, inputs, outputs, kind="cuda")


def test_a_block_has_room_for_more_rows_than_the_sizes_that_it_is_planned_at(monkeypatch):
    """All of 7 rows are in one block of 16: others then have 16, and not 7 or 28."""
    result = lower_varying(FULL, WARPS, {"S": 7}, monkeypatch, B=1, T=16)
    (kernel,) = result.emitted.kernels
    assert [sized.number(kernel.grid, {"S": s}) for s in (1, 16, 17, 400)] == [1, 1, 2, 25]


def test_features_of_a_head_do_not_vary(monkeypatch):
    text = FULL.replace("16]", "D]")
    with pytest.raises(Varies, match="features"):
        lower_varying(text, WARPS, {"D": 16}, monkeypatch, low=16, high=32, B=1, S=16, T=16)
