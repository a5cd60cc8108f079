"""Rows over clusters, and rows that arrive while others are worked on: right for any plan, without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from expectations import EXAMPLES
from tools import lowering
from tools.plans import built
from tools.rows import PLANS, TOP, VARIANCE, planned, run

from tilec.core.dtypes import DTYPES
from tilec.core.targets import load
from tilec.kernels import Rows, Threaded


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["softmax", pytest.param("layernorm", marks=pytest.mark.slow), "rmsnorm"])
def test_examples(name, plan, rng):
    example = EXAMPLES[name]
    inputs = example.inputs(rng, {"M": 3, "N": 456})
    outs, emitted = run(example.path, example.op, inputs, planned(*plan))
    (kernel,) = emitted.kernels
    assert kernel.cluster == plan[2] and kernel.persistent == (plan[3] > 0)
    assert_within(example.path, inputs, outs, example.op, kind="cuda")


@pytest.mark.crossed
@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("residency", ["registers", "smem"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_rows_that_registers_do_not_hold(cluster, steps, residency, dtype, rng):
    """Read again by every pass, or kept in SRAM: then read once, whatever a pass holds of them at a time."""
    source = EXAMPLES["layernorm"].path.read_text().replace("f32[", f"{dtype}[")
    x, gain, bias = (rng.normal(1, 2, s).astype(DTYPES[dtype].numpy) for s in ((2, 3208), (3208,), (3208,)))
    inputs = {"x": x, "gain": gain, "bias": bias}
    outs, emitted = run(
        source, None, inputs, planned(32, 8, cluster, 0, 0, residency=residency, online=False, steps=(1, steps))
    )
    reads = ["cp_async" in line for line in emitted.module.splitlines() if re.search(r"\bx \+", line)]
    assert all(reads) if residency == "smem" else len(reads) >= 3 and not any(reads)
    assert_within(source, inputs, outs, kind="cuda")


@pytest.mark.crossed
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("beside", [1, 3])
@pytest.mark.parametrize("name", ["softmax", "layernorm"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_rows_partly_in_registers(cluster, beside, name, dtype, rng):
    """The last chunks of a row are loaded once, into registers; SRAM is not kept for them."""
    source, length = EXAMPLES[name].path.read_text().replace("f32[", f"{dtype}["), 32 * 8 * 2 * 4 * cluster
    x, gain, bias = (rng.normal(1, 2, s).astype(DTYPES[dtype].numpy) for s in ((2, length), (length,), (length,)))
    inputs = {"x": x} | ({"gain": gain, "bias": bias} if name == "layernorm" else {})
    more = {"residency": "smem", "online": False, "steps": (1, 2), "hybrid_chunks": beside}
    outs, emitted = run(source, None, inputs, planned(32, 8, cluster, 0, int(dtype == "bf16"), **more))
    reads = [line.split("(")[0].strip() for line in emitted.module.splitlines() if re.search(r"\bx \+", line)]
    assert any("cp_async" in r for r in reads) and any("_nc" in r for r in reads)
    assert len(reads) == (1 + beside) * (2 if dtype == "f32" else 1), "an element is read more than once"
    kept = (4 - beside) * 32 * 8 * 2 * np.dtype(DTYPES[dtype].numpy).itemsize
    assert kept <= emitted.kernels[0].shared < kept + 512
    assert_within(source, inputs, outs, kind="cuda")


def test_a_row_is_read_twice_where_that_leaves_more_in_l2():
    """The last reading says so; neither is asked for where the kernel is small, or there is more than one reduction."""
    text = EXAMPLES["rmsnorm"].path.read_text().replace("bf16[", "f32[")
    inputs = {"x": np.zeros((32768, 4096), np.float32), "gain": np.zeros(4096, np.float32)}
    result = lowering.lowered(text, None, inputs)[1]
    assert result.plan.kernels[0].options.residency == "reload"
    reads = re.findall(r"load_f32x4(\w*)\(.*, x \+", result.emitted.module)
    assert reads == ["_nc_again", "_nc_last"] and "_nc(gain" in result.emitted.module.replace("load_f32x4", "")
    assert plan_of(text, x=((1024, 4096), np.float32), gain=((4096,), np.float32)).residency == "registers"
    norm = EXAMPLES["layernorm"].path.read_text()
    assert (
        plan_of(
            norm, **{n: (np.shape(v), np.float32) for n, v in (inputs | {"bias": inputs["gain"]}).items()}
        ).residency
        != "reload"
    )


@pytest.mark.parametrize("length", [4096, 4100])
def test_rows_read_twice(length, rng):
    text = EXAMPLES["rmsnorm"].path.read_text().replace("bf16[", "f32[")
    inputs = {
        "x": rng.normal(1, 2, (3, length)).astype(np.float32),
        "gain": rng.normal(1, 1, length).astype(np.float32),
    }
    outs, emitted = run(text, None, inputs, planned(128, 4, 1, 0, 0, residency="reload", steps=(1, 8)))
    assert "_nc_again" in emitted.module and "_nc_last" in emitted.module
    assert_within(text, inputs, outs, kind="cuda")


def test_a_row_that_sram_does_not_hold_is_partly_in_registers():
    """One block has all of it, where a cluster's would wait for each other; of shorter rows two more blocks fit an SM."""
    x, gain = ((1024, 65536), np.float32), ((65536,), np.float32)
    options = plan_of(EXAMPLES["rmsnorm"].path.read_text().replace("bf16[", "f32["), x=x, gain=gain)
    assert options.residency == "smem" and options.hybrid_chunks == 1 and options.cluster == 1
    options = plan_of(
        EXAMPLES["softmax"].path.read_text().replace("f32[", "bf16["), x=((2048, 65536), ml_dtypes.bfloat16)
    )
    assert options.hybrid_chunks == 1 and options.cluster == 1 and options.packed


@pytest.mark.crossed
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("length", [28, 1000])
def test_moments(plan, online, length, rng):
    """A part may end within a block, or the last blocks may have little."""
    x = rng.normal(1, 2, (3, length)).astype(np.float32)
    outs, _ = run(VARIANCE, None, {"x": x}, planned(*plan, online=online))
    wide = x.astype(np.float64)
    assert_within(VARIANCE, [x], outs, kind="cuda", expected=(wide.mean(1), wide.var(1)))


SQUARES = {
    "of columns": "(mu: f32[N], v: f32[N]) { mu[j] = mean[i](x[i, j])  v[j] = mean[i]((x[i, j] - mu[j]) ** 2) }",
    "from the largest": """(y: f32[N], a: f32[N]) { m[j] = max[i](x[i, j])  a[j] = sum[i](2 * x[i, j])
        y[j] = sum[i]((m[j] - 2 * x[i, j]) ** 2) + sum[i](x[i, j] / (1 + a[j] * a[j])) }""",
}


@pytest.mark.parametrize("name", SQUARES)
@pytest.mark.parametrize("length", [3, 521])
def test_one_loop_down_columns(name, length, rng):
    """Far from 0, with parts that end in the middle, a NaN, an infinity: within the bounds of the definition."""
    source = f"op f(x: f32[M, N]) -> {SQUARES[name]}"
    x = rng.normal(300, 1, (length, 20)).astype(np.float32)
    x[2, 3], x[1, 4], x[0, 5] = np.nan, np.inf, 1e6
    outs, _ = run(source, None, {"x": x}, None)
    assert_within(source, {"x": x}, outs, kind="cuda")


@pytest.mark.parametrize("rows", [4, 16])
def test_few_long_rows_are_one_kernel(rows):
    """The blocks of a cluster share a row, so that a kernel for all of it has as much to do at a time as several have."""
    inputs = {"x": np.zeros((rows, 262144), np.float32)} | {n: np.zeros(262144, np.float32) for n in ("gain", "bias")}
    (kernel,) = lowering.planned(EXAMPLES["layernorm"].path, None, inputs).kernels
    assert kernel.options.cluster == 16


def test_a_variance_reads_once():
    """What threads do not hold is read by one pass, where its reductions can be one."""
    x = {"x": np.zeros((4096, 16384), np.float32)}
    (kernel,) = lowering.planned(EXAMPLES["variance"].path, None, x).kernels
    assert kernel.options.online and kernel.work.dram_read == 4 * 4096 * 16384
    (kernel,) = lowering.planned(EXAMPLES["variance"].path, None, {"x": x["x"][:8]}).kernels
    assert kernel.options.online is False


def plan_of(source: str, **inputs) -> Threaded:
    """Options of the first kernel; arrays are given by shape and type."""
    return lowering.planned(source, None, {n: np.zeros(*a) for n, a in inputs.items()}).kernels[0].options


def test_what_is_read_once_is_planned_so():
    sums = "op f(x: bf16[M, N]) -> (z: f32[M]) { z[i] = logsumexp[j](x[i, j]) }"
    bf16 = ml_dtypes.bfloat16
    long, short = (plan_of(sums, x=(shape, bf16)) for shape in ((64, 262144), (65536, 1024)))
    assert long.online or long.cluster > 1
    assert short.online is False and short.block_threads >= 128 and short.thread_counts[0] > 1
    everything = plan_of("op f(x: f32[M, N]) -> (y: f32) { y = sum[i, j](x[i, j]) }", x=((1024, 1024), np.float32))
    assert everything.block_threads >= 256  # the steps of both dimensions are loads in flight
    down = plan_of(f"op f(x: f32[M, N]) -> {SQUARES['of columns']}", x=((4096, 4096), np.float32))
    assert max(down.vectors) == 1 and down.block_threads == 512  # one word an access, and more of them
    places = plan_of("op f(x: bf16[M, N]) -> (y: i64[M]) { y[i] = argmax[j](x[i, j]) }", x=((4096, 16384), bf16))
    assert places.cluster == 1 and places.prefetched_rows == 0


@pytest.mark.parametrize("plan", PLANS)
def test_a_place_is_the_whole_rows(plan, rng):
    """The index counts from the start of the row, the first of equals wins, and a NaN does before all."""
    x = rng.integers(0, 50, (4, 520)).astype(np.float32)
    x[1, 300] = x[1, 500] = 90
    x[2, 400] = np.nan
    (place, value), _ = run(TOP, None, {"x": x}, planned(*plan))
    assert place.tolist() == [int(np.argmax(row)) for row in x]
    np.testing.assert_array_equal(value, x.max(1))


def test_infinities_and_nan(rng):
    x = rng.normal(size=(4, 456)).astype(np.float32)
    x[0, 3], x[1, 400], x[2] = -np.inf, np.nan, -np.inf
    (y,), _ = run(EXAMPLES["softmax"].path, None, {"x": x}, planned(64, 4, 2, 1, 1))
    (again,), _ = run(EXAMPLES["softmax"].path, None, {"x": x}, planned(64, 4, 2, 1, 1))
    assert np.array_equal(y, again, equal_nan=True)
    assert y[0, 3] == 0 and np.isnan(y[1]).all() and np.isnan(y[2]).all()
    assert_within(EXAMPLES["softmax"].path, [x], y, kind="cuda")


def refused(kernel_options, tile=(1,)):
    """Why the rows of a softmax cannot be mapped so."""
    inputs = {"x": np.zeros((64, 4096), np.float32)}
    plans = []
    lowering.lowered(EXAMPLES["softmax"].path, None, inputs, lambda plan: plans.append(plan) or plan)
    (kernel,) = plans[0].kernels
    layout = {"thread_order": (1,), "thread_counts": (1, 128), "vectors": (1, 4), "steps": (1, 2)}
    old = kernel_options.pop("old", False)
    edited = replace(built(kernel, Rows, **(layout | {"cluster": 4} | kernel_options)), tile=tile)
    return edited.options.refuse(edited, kernel, load("a100" if old else "h200"))


@pytest.mark.parametrize(
    ("options", "tile", "why"),
    [
        ({}, (1,), None),
        ({"cluster": 3}, (1,), "1, 2, 4, 8 or 16 blocks, not 3"),
        ({"old": 1}, (1,), "no clusters"),
        ({"prefetched_rows": 1}, (1,), "`persistent_blocks` must be above 0"),
        ({}, (2,), "the tile must be [1]"),
        (
            {"steps": (1, 1), "prefetched_rows": 1, "persistent_blocks": 9},
            (1,),
            "hold 512 elements, and a block's part",
        ),
        ({"steps": (1, 1)}, (1,), None),
        ({"residency": "smem", "cluster": 1}, (1,), None),
        (
            {"residency": "smem", "prefetched_rows": 1, "persistent_blocks": 9},
            (1,),
            "or `smem` if `prefetched_rows` is 0",
        ),
        ({"residency": "smem"}, (2,), "the tile must be [1]"),
        ({"residency": "smem", "hybrid_chunks": 1, "steps": (1, 1)}, (1,), None),
        (
            {"residency": "smem", "hybrid_chunks": 2, "steps": (1, 1)},
            (1,),
            "must be whole chunks of 512",
        ),
        ({"residency": "smem", "hybrid_chunks": 1, "online": True}, (1,), "`hybrid_chunks` must be 0 unless"),
        ({"cluster": 1, "hybrid_chunks": 1}, (1,), "`hybrid_chunks` must be 0 unless `residency`"),
    ],
)
def test_what_a_schedule_cannot_ask_for(options, tile, why):
    found = refused(options, tile)
    assert found is None if why is None else why in found.why
