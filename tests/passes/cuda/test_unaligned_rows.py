"""Rows that begin anywhere in a vector: whole vectors from before a row's begin, right at any length and for any plan."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from tools.cuda_row_emulator import RowIntrinsics
from tools.emulation import run_printed
from tools.lowering import lowered, planned
from tools.plans import built

from tilec.analysis.layout import padded_extent
from tilec.core.dtypes import DTYPES
from tilec.kernels import Rows
from tilec.semantics.interpreter import interpret

PROGRAMS = {
    "softmax": """op softmax(x: {t}[M, N]) -> (y: {t}[M, N]) {{
        m[i] = max[j](x[i, j])  e[i, j] = exp(x[i, j] - m[i])  s[i] = sum[j](e[i, j])  y[i, j] = e[i, j] / s[i] }}""",
    "gain": """op gain(x: {t}[M, N], g: {t}[N]) -> (y: {t}[M, N]) {{
        v[i] = mean[j](x[i, j] ** 2)  y[i, j] = x[i, j] / sqrt(v[i] + 1) * g[j] }}""",
    "early": """op early(x: {t}[M, N], g: {t}[N]) -> (y: {t}[M, N]) {{
        v[i] = mean[j](x[i, j] * g[j])  y[i, j] = x[i, j] / sqrt(v[i] ** 2 + 1) * g[j] }}""",
    "normal": """op normal(x: {t}[M, N], g: {t}[N], b: {t}[N]) -> (y: {t}[M, N]) {{
        u[i] = mean[j](x[i, j])  v[i] = mean[j]((x[i, j] - u[i]) ** 2)
        y[i, j] = (x[i, j] - u[i]) * rsqrt(v[i] + 1) * g[j] + b[j] }}""",
    "residual": """op residual(x: {t}[M, N], z: f32[M, N]) -> (h: f32[M, N], y: {t}[M, N]) {{
        h[i, j] = x[i, j] + z[i, j]  v[i] = mean[j](h[i, j] ** 2)  y[i, j] = h[i, j] / sqrt(v[i] + 1) }}""",
    "places": "op places(x: {t}[M, N]) -> (p: i64[M], v: {t}[M]) {{ p[i] = argmax[j](x[i, j])  v[i] = max[j](x[i, j]) }}",
    "index": "op index(x: {t}[M, N]) -> (s: f32[M]) {{ s[i] = sum[j](x[i, j] * (j % 7)) }}",
    "moments": """op moments(x: {t}[M, N]) -> (mu: f32[M], v: f32[M]) {{
        mu[i] = mean[j](x[i, j])  v[i] = mean[j]((x[i, j] - mu[i]) ** 2) }}""",
}
PLANS = [  # threads, rows beside, cluster, stages, packed, steps, residency
    pytest.param((32, 1, 1, 0, 0, None), id="a warp"),
    pytest.param((8, 4, 1, 0, 1, None), id="rows beside, packed"),
    pytest.param((32, 1, 1, 0, 0, 1), id="read again"),
    pytest.param((64, 1, 2, 0, 1, None), id="cluster"),
    pytest.param((32, 1, 1, 1, 1, None), id="pipelined"),
    pytest.param((32, 1, 2, 2, 0, None), id="cluster, two stages"),
    pytest.param((32, 1, 2, 0, 0, 1, "smem"), id="cluster, waiting in SRAM"),
    pytest.param((32, 1, 1, 0, 1, 2, "smem"), id="waiting in SRAM, packed"),
]
KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def shifted(threads, beside, cluster, stages, packed, steps=None, residency="registers", vector=8):
    """The schedule that deals every kernel's rows out so."""

    def map_kernel(kernel):
        (row, lane) = sorted(kernel.extents)
        part = padded_extent(-(-kernel.extents[lane] // (cluster * vector)) * vector, vector)
        count = steps or -(-part // (threads * vector))
        options = {
            "thread_counts": (beside, threads), "vectors": (1, vector), "steps": (1, count),
            "thread_order": (lane, row) if beside > 1 else (lane,), "cluster": cluster, "prefetched_rows": stages,
            "persistent_blocks": 2 * (stages > 0), "packed": bool(packed), "unaligned": True, "residency": residency,
        }  # fmt: skip
        return replace(built(kernel, Rows, **options), tile=(beside,))

    return lambda plan: replace(plan, kernels=tuple(map_kernel(k) for k in plan.kernels))


def inputs_of(name, kind, rows, length, rng):
    x = rng.normal(0, 2, (rows, length)).astype(KINDS[kind])
    more = {
        "gain": {"g": rng.normal(0, 1, length).astype(KINDS[kind])},
        "early": {"g": rng.normal(0, 1, length).astype(KINDS[kind])},
        "normal": {name: rng.normal(0, 1, length).astype(KINDS[kind]) for name in "gb"},
        "residual": {"z": rng.normal(0, 1, (rows, length)).astype(np.float32)},
    }
    return {"x": x, **more.get(name, {})}


def check(source, inputs, schedule):
    """The emitted kernels, and the IR before them, interpreted, are right; the kernels' text."""
    special, result = lowered(source, None, inputs, schedule)
    outs, failed = run_printed(special, result, inputs, RowIntrinsics)
    assert not any(failed)
    assert_within(source, inputs, outs, kind="cuda")
    assert_within(source, inputs, list(interpret(result.texts["map"], inputs).values()), kind="cuda")
    return result.emitted.module


@pytest.mark.crossed
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, plan, rng):
    source = PROGRAMS[name].format(t="bf16")
    text = check(source, inputs_of(name, "bf16", 5, 333, rng), shifted(*plan))
    assert "cp_async_16" in text if plan[3] else re.search(r"load_(bf16x8|u32x4)_nc_where|cp_async_16", text)


@pytest.mark.crossed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", range(16, 24))
def test_lengths(kind, length, rng):
    """Every alignment of a row's begin and end, and of the tensor's."""
    for name, rows in (("gain", 3), ("softmax", 8), ("places", 1)):
        source = PROGRAMS[name].format(t=kind)
        plan = shifted(8, 4, 1, 0, kind != "f32") if length % 2 else shifted(32, 1, 1, 1, 0)
        check(source, inputs_of(name, kind, rows, length, rng), plan)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(("name", "length", "stages"), [("gain", 333, 1), ("gain", 340, 2), ("early", 338, 1)])
def test_a_gain_is_moved_to_where_rows_begin(name, length, stages, kind, rng):
    """By persistent blocks in shared memory, and again only for rows that begin elsewhere."""
    inputs = inputs_of(name, kind, 7, length, rng)
    text = check(PROGRAMS[name].format(t=kind), inputs, shifted(32, 1, 2, stages, kind != "f32"))
    moved, reads = text.index("!= aligned:"), [m.start() for m in re.finditer(r"\bg \+", text)]
    assert reads and all(moved < at < text.index("cp_async_wait", moved) for at in reads)


@pytest.mark.parametrize(("kind", "length", "places"), [("bf16", 50257, 8), ("f32", 50257, 4)])
def test_rows_of_a_persistent_block_begin_at_one_place(kind, length, places):
    inputs = {n: np.zeros((4096, length) if n == "x" else length, KINDS[kind]) for n in ("x", "g", "b")}
    result = lowered(PROGRAMS["normal"].format(t=kind), None, inputs)[1]
    (kernel,) = result.plan.kernels
    assert kernel.options.unaligned and kernel.options.persistent_blocks % places == 0 < kernel.options.persistent_blocks
    assert result.emitted.kernels[0].persistent == places  # and so is the number that is launched, where fewer run at a time


def test_what_the_planner_takes(rng):
    """Rows of odd length are read by whole vectors without being asked; those of even vectors are not
    shifted, nor short ones, which have little but ends."""
    for rows, length, wanted in ((2048, 4099, True), (2048, 4096, None), (1 << 19, 18, False)):
        x = {"x": np.zeros((rows, length), np.float32)}
        (kernel,) = planned(PROGRAMS["softmax"].format(t="f32"), None, x).kernels
        assert kernel.options.unaligned is wanted and max(kernel.options.vectors) == (4 if length > 18 else 2)


@pytest.mark.parametrize(
    ("name", "kind", "residency"),
    [
        ("softmax", "bf16", "smem"),
        ("softmax", "f16", "smem"),
        ("softmax", "f32", "registers"),
        ("gain", "bf16", "smem"),
        ("gain", "f32", "registers"),
        ("normal", "bf16", "registers"),
        ("normal", "f32", "registers"),
    ],
)
def test_long_rows_wait_in_sram(name, kind, residency):
    """Those of 16 bits that few passes read; what a softmax makes of them is computed twice."""
    given = inputs_of(name, kind, 1, 8, np.random.default_rng(0))
    inputs = {n: np.zeros((2670, 50257) if n == "x" else 50257, KINDS[kind]) for n in given}
    (kernel,) = planned(PROGRAMS[name].format(t=kind), None, inputs).kernels
    assert (kernel.options.unaligned, kernel.options.residency) == (True, residency)
    assert "e" not in kernel.loop_groups


@pytest.mark.parametrize(("name", "persistent"), [("gain", False), ("normal", True)])
def test_many_operands_that_begin_elsewhere_are_moved_once(name, persistent):
    """By persistent blocks; the work of moving one for every row is hidden."""
    given = inputs_of(name, "bf16", 1, 8, np.random.default_rng(0))
    inputs = {n: np.zeros((20480, 10001) if n == "x" else 10001, KINDS["bf16"]) for n in given}
    (kernel,) = planned(PROGRAMS[name].format(t="bf16"), None, inputs).kernels
    assert kernel.options.unaligned and (kernel.options.persistent_blocks > 0) is persistent


def test_ties_at_the_ends(rng):
    """Elements of the rows beside take no part: they are larger, and NaN."""
    x = np.full((3, 21), -np.inf, np.float32)
    x[0], x[2] = np.nan, 7
    source = PROGRAMS["places"].format(t="f32")
    check(source, {"x": x}, shifted(32, 1, 1, 0, 0, vector=4))


@pytest.mark.parametrize("kind", KINDS)
def test_what_begins_elsewhere_moves_in_words(kind, rng):
    """Sixteen elements of 16 bits are eight words, taken from the arrays once for each part of a row."""
    inputs = inputs_of("gain", kind, 5, 333, rng)
    _, result = lowered(PROGRAMS["gain"].format(t=kind), None, inputs, shifted(32, 1, 1, 0, 0))
    taken = re.findall(r"word_\d+ = int32\(g_\d+\[\d\]\)", result.emitted.module)
    assert len(taken) == (0 if kind == "f32" else 2 * 8)


@pytest.mark.parametrize("kind", ["i16", "u16"])
def test_integers_of_16_bits_begin_elsewhere(kind, rng):
    source = f"""op gain(x: bf16[M, N], g: {kind}[N]) -> (y: bf16[M, N]) {{
        v[i] = mean[j](x[i, j] ** 2)  y[i, j] = x[i, j] / sqrt(v[i] + 1) * f32(g[j]) }}"""
    inputs = inputs_of("softmax", "bf16", 5, 333, rng) | {"g": rng.integers(0, 2**15, 333).astype(DTYPES[kind].numpy)}
    for packed in (0, 1):
        check(source, inputs, shifted(32, 1, 1, 0, packed))
