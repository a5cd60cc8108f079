"""CUDA kernels give the right numbers, whatever the layout: run thread by thread on the CPU (`cuda_emulator`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within
from expectations import EXAMPLES
from tools.emulation import emulate
from tools.lowering import lowered, planned

import tilec
from tilec.core import mlir
from tilec.core.targets import load
from tilec.plan import fusion
from tilec.plan.cuda import choose, columns
from tilec.runtime.cuda.cubins import program_cubins

ALL = [pytest.param(example, id=name) for name, example in EXAMPLES.items()]
QUICK = [pytest.param(EXAMPLES[name], id=name) for name in (
    "softmax", "layernorm", "variance", "top1", "cumsum", "transpose", "cross_entropy", "max_pool", "linear", "jacobi",
)]  # fmt: skip

SMALL = {
    "row_registers": {"elements": 2, "packed_elements": 2, "reread_elements": 1},
    "layouts": {"loads": 2, "point_threads": 32},
}


def check(example, inputs, schedule=None, target="h200"):
    outs, failed = emulate(example.path, example.op, inputs, schedule, target)
    assert not any(failed)
    assert_within(example.path, inputs, outs, example.op, kind="cuda")


@pytest.mark.some(2)
@pytest.mark.parametrize("example", ALL)
def test_examples(example, rng, monkeypatch):
    """Contractions on scalar units: the emulator has no matrix units."""
    monkeypatch.setattr(choose, "choose_contraction", lambda *_: None)
    monkeypatch.setattr(fusion, "join_chains", lambda *_: None)
    check(example, example.inputs(rng))


@pytest.mark.parametrize("example", QUICK)
def test_tiles_that_do_not_fit_registers(example, rng, monkeypatch):
    """Rows are read again by every pass, and intermediates live in workgroup memory: on a card where a thread holds little."""
    monkeypatch.setattr(choose, "choose_contraction", lambda *_: None)
    for module in (choose, columns):
        monkeypatch.setattr(module, "THREADS", 64)
    h200 = load("h200")
    groups = dict(h200.fitted.groups)
    for name, changes in SMALL.items():
        groups[name] = replace(groups[name], **changes)
    small = replace(h200, fitted=replace(h200.fitted, groups=groups))
    check(example, example.inputs(rng), target=small)


@pytest.mark.crossed
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("example", QUICK)
def test_any_layout(example, seed, rng, monkeypatch):
    """A plan is a choice: every layout computes the same."""
    monkeypatch.setattr(choose, "choose_contraction", lambda *_: None)
    draw = np.random.default_rng(seed)
    shuffle = lambda plan: replace(plan, kernels=tuple(_shuffled(k, draw) for k in plan.kernels))  # noqa: E731
    check(example, example.inputs(rng), shuffle)


def _shuffled(kernel, draw):
    """Another layout for a kernel: threads along any dimensions in any order, other vectors, steps and tiles."""
    dims = range(len(kernel.extents))
    counts, budget = [1] * len(dims), 128
    order = [int(d) for d in draw.permutation(len(dims))]
    for d in order:
        counts[d] = 1 << int(draw.integers(0, min(budget, 16).bit_length()))
        budget //= counts[d]
    if "running_sum" in kernel.name:  # a scan's threads are lanes of one warp
        order = [d for d in dims if d not in kernel.grid] + list(kernel.grid)
    vectors = [1] * len(dims)
    lane = int(draw.integers(0, len(dims)))
    vectors[lane] = 2 if kernel.extents[lane] % 2 == 0 else 1
    steps = [int(draw.integers(1, 4)) for _ in dims]
    spans = [c * v for c, v in zip(counts, vectors)]
    tile = tuple(spans[d] * int(draw.integers(1, steps[d] + 1)) for d in kernel.grid)
    order = tuple(d for d in order if counts[d] > 1)
    options = {"thread_order": order, "thread_counts": tuple(counts)}
    options |= {"vectors": tuple(vectors), "steps": tuple(steps)}
    return replace(kernel, tile=tile, options=replace(kernel.options, **options))


PROGRAMS = {
    "all of a matrix": ("op f(x: f32[M, N]) -> (y: f32) { y = sum[i, j](x[i, j]) }", {"x": (9, 20)}),
    "bools": ("op f(x: f32[M, N]) -> (y: bool[M]) { y[i] = any[j](x[i, j] > 1.5) }", {"x": (5, 24)}),
    "sums over columns": ("op f(x: f32[M, N]) -> (y: f32[N]) { y[j] = sum[i](x[i, j]) }", {"x": (70, 64)}),
    "scan down columns": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = cumsum[i](x[i, j]) }", {"x": (37, 12)}),
    "running maximum": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = cummax[j](x[i, j]) }", {"x": (3, 300)}),
    "smallest in columns": ("op f(x: f32[M, N]) -> (y: i64[N]) { y[j] = argmin[i](x[i, j]) }", {"x": (41, 8)}),
    "cube turned": ("op f(x: f32[A, B, C]) -> (y: f32[C, B, A]) { y[c, b, a] = x[a, b, c] }", {"x": (35, 3, 40)}),
    "sums both ways": ("op f(x: f32[M, N]) -> (y: f32[N]) { s[i] = sum[j](x[i, j])  t[j] = sum[i](x[i, j])"
                       "  y[j] = t[j] - sum[i](s[i] * x[i, j]) }", {"x": (5, 37)}),
    "product without depth": ("op f(x: f32[M, K], z: f32[K, M]) -> (y: f32[M, M]) { y[i, j] = 1 + sum[k](x[i, k] * z[k, j]) }",
                              {"x": (3, 0), "z": (0, 3)}),
    "row and column": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] - sum[k](x[i, k]) }", {"x": (6, 32)}),
}  # fmt: skip


@pytest.mark.parametrize("source, shapes", PROGRAMS.values(), ids=PROGRAMS)
def test_programs(source, shapes, rng):
    inputs = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    outs, _ = emulate(source, None, inputs)
    assert_within(source, inputs, outs, kind="cuda")


def test_not_a_number_wins(rng):
    x = rng.standard_normal((3, 300), dtype=np.float32)
    x[0, 7] = x[0, 250] = x[2, 0] = np.nan
    source = """op f(x: f32[M, N]) -> (m: f32[M], p: i64[M]) {
        m[i] = max[j](x[i, j])
        p[i] = argmax[j](x[i, j])
    }"""
    (largest, place), _ = emulate(source, None, {"x": x})
    assert np.isnan(largest[[0, 2]]).all() and largest[1] == x[1].max()
    assert list(place) == [7, x[1].argmax(), 0]


def test_a_failed_check_is_reported(rng):
    ids = np.array([[0, 3], [9, 1]], np.int32)
    inputs = {"ids": ids, "table": rng.standard_normal((5, 8)).astype(EXAMPLES["embedding"].inputs(rng)["table"].dtype)}
    _, failed = emulate(EXAMPLES["embedding"].path, None, inputs)
    assert failed == [1]


@pytest.mark.parametrize("example", ALL)
def test_mapped_ir_is_valid_and_can_be_read_back(example, rng):
    _, result = lowered(example.path, example.op, example.inputs(rng), texts=True)
    with mlir.context():
        for stage in ("stage", "map"):
            module = mlir.parse(result.texts[stage])
            assert module.operation.verify()
            assert mlir.text(module) == mlir.text(mlir.parse(mlir.text(module)))


@pytest.mark.parametrize("length, ends, branches", [(500, 8, 3), (499, 2, 11)])
def test_rows_that_end_within_a_step_branch_there_only(length, ends, branches):
    """The last of a thread's loads may be outside: none waits for another, and the sums of the others have no branch. Of rows
    that begin anywhere in a vector it is the first and the last, and there are elements that count and others."""
    source = "op f(x: f32[M, N]) -> (s: f32[M]) { s[i] = sum[j](x[i, j] * x[i, j]) }"
    op = tilec.compile(source, target="sm_90a", sizes={"M": 100_003, "N": length})
    steps = op.plan.kernels[0].options.steps[1]
    (ptx,) = [c.ptx for c in program_cubins(op._last.emitted, "sm_90a", {}).values()]
    assert steps == 8 and ptx.count("@p ld.global") == ends
    assert sum("bra" in line.replace("\t", " ").split() for line in ptx.splitlines()) <= branches


@pytest.mark.parametrize("source, moved", [("y[i, j] = a[i] + b[j]", 16), ("y[i, j] = a[i] + x[i, j]", 32)])
def test_blocks_that_only_write_take_two_vectors_a_thread(source, moved):
    """A block that moves less than 32 bytes a thread is over before the next one is there."""
    inputs = {n: np.zeros(s, np.float32) for n, s in (("a", 4096), ("b", 4096), ("x", (4096, 4096))) if n in source}
    (kernel,) = planned(source, None, inputs).kernels
    assert moved * np.prod(kernel.options.steps) == 32 and max(kernel.options.vectors) == 4
