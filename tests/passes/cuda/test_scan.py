"""Scans that warps and blocks of a GPU share: right for any way to deal rows out, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from tools.lowering import lowered, planned
from tools.plans import built

import tilec
from tilec.core.targets import load
from tilec.kernels import Scan
from tilec.plan.check import refuse
from tilec.semantics.interpreted import interpret_stage

SUM = "op f(x: {0}[M, N]) -> (y: {0}[M, N]) {{ y[i, j] = cumsum[j](x[i, j]) }}"
FUSED = "op f(x: f32[M, N], w: f32[N]) -> (y: f32[M, N]) { s[i, j] = cummax[j](x[i, j] * w[j])  y[i, j] = exp(s[i, j] - 9) }"
ROW = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = cumsum[i](x[i]) * x[i] }"


def mapped(threads: int, vector: int, steps: int, parts: int | None = None):
    """The schedule that deals rows out so; `parts` by default as many blocks as it takes."""

    def map_kernel(kernel):
        lane = max(d for d in kernel.extents if d not in kernel.grid)
        put = lambda value: tuple(value if d == lane else 1 for d in sorted(kernel.extents))  # noqa: E731
        blocks = ceil(kernel.extents[lane] / (threads * vector * steps)) if parts is None else parts
        layout = {"thread_counts": put(threads), "vectors": put(vector), "steps": put(steps), "thread_order": (lane,)}
        return replace(built(kernel, Scan, **layout, blocks_per_row=blocks), tile=(1,) * len(kernel.grid))

    return lambda plan: replace(plan, kernels=tuple(map_kernel(k) for k in plan.kernels))


def interpreted(source, arrays, schedule):
    """What the mapped kernel computes."""
    names = ("x", "w")[: len(arrays)]
    special, result = lowered(source, None, dict(zip(names, arrays)), schedule)
    (found,) = interpret_stage(special, result.texts, "map", dict(zip(names, arrays))).values()
    return found


def drawn(dtype: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    if dtype[0] == "i":
        return rng.integers(-9, 9, shape).astype(dtype.replace("i", "int"))
    return rng.standard_normal(shape).astype({"f32": "float32", "f64": "float64"}[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("plan", [(32, 1, 1), (64, 2, 4), (256, 4, 2)], ids=str)
def test_blocks_share_rows(dtype, plan):
    source = SUM.format(dtype)
    for length in (997, 2 * plan[0] * plan[1] * plan[2], 2052):
        vector = plan[1] if length % plan[1] == 0 else 1
        arrays = [drawn(dtype, 3, length)]
        found = interpreted(source, arrays, mapped(plan[0], vector, plan[2]))
        assert_within(source, arrays, found)


@pytest.mark.parametrize("plan", [(128, 1, 4, 600), (128, 2, 8, 1300), (256, 1, 4, 600), (64, 4, 8, 2820)], ids=str)
def test_a_last_step_need_not_make_a_power_of_two(plan):
    """Parts of equal length take 3 or 5 of the steps that a block could hold."""
    arrays = [drawn("i32", 2, plan[-1])]
    found = interpreted(SUM.format("i32"), arrays, mapped(*plan[:3]))
    np.testing.assert_array_equal(found, np.cumsum(arrays[0], axis=1, dtype=np.int32))


def test_groups_of_groups():
    """More parts than two levels of groups hold."""
    arrays = [drawn("i32", 1, 32 * 1100)]
    found = interpreted(SUM.format("i32"), arrays, mapped(32, 1, 1))
    np.testing.assert_array_equal(found, np.cumsum(arrays[0], axis=1, dtype=np.int32))


@pytest.mark.parametrize("plan", [(128, 1, 4), (1024, 1, 1), (64, 4, 4)], ids=str)
def test_warps_share_rows(plan):
    arrays = [drawn("f32", 2, 5000)]
    found = interpreted(SUM.format("f32"), arrays, mapped(*plan, parts=1))
    assert_within(SUM.format("f32"), arrays, found)


@pytest.mark.parametrize("plan", [(32, 4, 2, 1), (128, 4, 2, 1), (64, 2, 4, None)], ids=str)
def test_what_is_made_of_a_scan_is_part_of_it(plan, rng):
    """A rounding, a function: no row of unrounded elements is kept in workgroup memory."""
    for source in (
        SUM.format("bf16"),
        "op f(x: f32[M, N]) -> (y: f32[M, N]) { s[i, j] = cumsum[j](x[i, j])  y[i, j] = tanh(s[i, j]) * 2 + 1 }",
    ):
        x = rng.normal(0, 1, (3, 1032)).astype(ml_dtypes.bfloat16 if "bf16" in source else np.float32)
        _, result = lowered(source, None, {"x": x}, mapped(*plan))
        (kernel,) = result.emitted.kernels
        assert kernel.shared < 1024
        assert_within(source, [x], interpreted(source, [x], mapped(*plan)))


@pytest.mark.parametrize("source", [FUSED, ROW])
def test_a_kernel_around_it(source):
    sizes = {"M": 2, "N": 1 << 22} if source == FUSED else {"N": 1 << 22}
    assert len(tilec.compile(source, target="sm_90a", sizes=sizes).plan.kernels) == 1
    shapes = [(2, 3000), (3000,)] if source == FUSED else [(3000,)]
    arrays = [drawn("f32", *s) for s in shapes]
    found = interpreted(source, arrays, mapped(64, 4, 4))
    assert_within(source, arrays, found)


@pytest.mark.parametrize("parts, threads", [(1, 128), (2, 512), (3, 512)])
def test_rows_of_several_parts_of_the_largest_block_have_it(parts, threads):
    plan = planned(SUM.format("f32"), None, {"M": 4096, "N": parts * 512 * 4 * 2})
    assert any(r.verb == "tiled" and f"{threads} threads a row" in r.reason for r in plan.remarks)


def test_few_long_rows_are_shared():
    """Chosen where a warp a row leaves the machine idle, and only there."""
    source = SUM.format("f32")
    few, many = (
        tilec.compile(source, target="h200", sizes={"M": m, "N": 1 << 24 >> (m.bit_length() - 1)}) for m in (2, 8192)
    )
    assert few.plan.kernels[0].options.blocks_per_row > 100 and "share a row" in few.explain(full=True)
    assert many.plan.kernels[0].options.blocks_per_row == 1
    assert few.kernels[0].predicted_us < 2 * many.kernels[0].predicted_us
    assert "publish_i64" in few.kernels[0].source and "publish_i64" not in many.kernels[0].source


def test_no_chain_next_to_a_reduction():
    source = "op f(x: f32[M, N]) -> (y: f32[M, N], s: f32[M]) { s[i] = sum[j](x[i, j])  y[i, j] = cumsum[j](x[i, j]) }"
    op = tilec.compile(source, target="sm_90a", sizes={"M": 2, "N": 100_000})
    scans = [k for k in op.plan.kernels if "y" in k.nodes]
    assert all(len(k.nodes) == 1 or k.options.blocks_per_row is None for k in scans)


def why(kernel, **options):
    """Why a kernel with other options is refused."""
    refusal = refuse(built(kernel, Scan, **options), kernel, load("sm_90a"))
    return refusal and refusal.why


def test_wrong_chains_are_refused():
    op = tilec.compile(SUM.format("f32"), target="sm_90a", sizes={"M": 2, "N": 100_000})
    (kernel,) = op.plan.kernels
    assert why(kernel) is None
    assert "cannot hold" in why(kernel, blocks_per_row=2)
    assert "is too short" in why(kernel, blocks_per_row=99_999)
    assert "tile must be" in why(replace(kernel, tile=(2,)))
    other = {"thread_counts": (2, 64), "thread_order": (1, 0), "blocks_per_row": 1}
    assert "lie along the row" in why(replace(kernel, tile=(2,)), **other)
    assert "partial totals" in why(kernel, blocks_per_row=1, thread_counts=(1, 256), steps=(1, 8))


def test_a_scan_next_to_a_reduction_keeps_to_a_warp():
    source = "op f(x: f32[M, N]) -> (y: f32[M, N]) { s[i] = sum[j](x[i, j])  y[i, j] = cumsum[j](x[i, j]) / s[i] }"
    op = tilec.compile(source, target="sm_90a", sizes={"M": 2000, "N": 1000})
    (kernel,) = op.plan.kernels
    assert kernel.options.blocks_per_row is None and why(kernel) is None
    assert "warp" in why(kernel, thread_counts=(1, 64), thread_order=(1,))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("shape", [(1, 5_000_001), (3, 1 << 20), (64, 65_536)], ids=str)
def test_on_a_gpu(dtype, shape):
    """The same bits in every launch, whichever blocks come first."""
    torch = pytest.importorskip("torch")
    source, x = SUM.format(dtype), drawn(dtype, *shape)
    op = tilec.compile(source)
    given = torch.from_numpy(x).cuda()
    first = op(given)
    assert_within(source, [x], first.cpu().numpy())
    for _ in range(20):
        assert torch.equal(op(given), first)
