"""Rows that are mapped to threads, clusters and stages in a given way, run by the emulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilec.kernels import Rows
from tools.cuda_row_emulator import RowIntrinsics
from tools.emulation import run_printed
from tools.lowering import lowered
from tools.plans import built

VARIANCE = """op variance(x: f32[M, N]) -> (mu: f32[M], v: f32[M]) {
    mu[i] = mean[j](x[i, j])
    v[i] = mean[j]((x[i, j] - mu[i]) ** 2)
}"""
TOP = "op top(x: f32[M, N]) -> (p: i64[M], v: f32[M]) { p[i] = argmax[j](x[i, j])  v[i] = max[j](x[i, j]) }"
PLANS = [  # threads, vector, cluster, stages, packed
    pytest.param((64, 4, 2, 1, 1), id="cluster, pipelined"),
    pytest.param((32, 4, 4, 2, 0), id="cluster, two stages"),
    pytest.param((64, 4, 4, 0, 1), id="cluster"),
    pytest.param((64, 4, 1, 1, 1), id="pipelined"),
    pytest.param((64, 1, 2, 0, 0), id="cluster of single elements"),
    pytest.param((128, 2, 2, 1, 1), id="few elements a thread"),
]


def planned(threads, vector, cluster, stages, packed, **other):
    """The schedule that deals every kernel's rows out so."""

    def map_kernel(kernel):
        lane = max(d for d in kernel.extents if d not in kernel.grid)
        rank = len(kernel.extents)
        steps = -(-kernel.extents[lane] // (threads * vector * cluster))
        one = [1] * rank
        put = lambda value: tuple(value if d == lane else n for d, n in enumerate(one))  # noqa: E731
        layout = {"thread_counts": put(threads), "vectors": put(vector), "steps": put(steps), "thread_order": (lane,)}
        ahead = {"prefetched_rows": stages, "persistent_blocks": 2 * (stages > 0)}
        kernel = built(kernel, Rows, cluster=cluster, packed=bool(packed), **ahead, **(layout | other))
        return replace(kernel, tile=(1,) * len(kernel.grid))

    return lambda plan: replace(plan, kernels=tuple(map_kernel(k) for k in plan.kernels))


def run(source, op, inputs, schedule):
    special, result = lowered(source, op, inputs, schedule)
    outs, failed = run_printed(special, result, inputs, RowIntrinsics)
    assert not any(failed)
    return outs, result.emitted
