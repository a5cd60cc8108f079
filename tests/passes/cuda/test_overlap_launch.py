"""Kernels whose blocks are placed while the kernel before them ends (programmatic dependent launch)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within, from_torch
from tools import cuda_emulator
from tools.cuda_driver_fake import stand_in
from tools.cuda_kernels import compiled
from tools.lowering import lowered
from tools.plans import scheduled

import tilec
from tilec.core import mlir
from tilec.core.diagnostics import Source
from tilec.core.mlir import ir
from tilec.plan.report.explain import explain
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import write_schedule
from tilec.runtime.cuda.launch import Kernel, Launcher
from tilec.runtime.emit.cuda_overlap import Overlap, overlaps
from tilec.runtime.program import Emitted, Slot, Step

SUM = "op f(x: f32[M, N]) -> (y: f32[N]) { y[j] = sum[i](x[i, j]) * 2 }"
X = {"x": np.random.default_rng(0).standard_normal((512, 8), np.float32)}


def in_parts(target="h200", **more):
    """A sum of two kernels, although it is short."""
    return lowered(SUM, None, X, scheduled(rewrites={"split": [{"operation": "y.sum", "dim": 1, "parts": 8}]}, **more), target)


def kernels(result):
    first, second = result.emitted.kernels
    return first, second


def run(emitted):
    out = np.full(8, np.nan, np.float32)
    cuda_emulator.run(emitted, list(X.values()), [out])
    assert_within(SUM, X, [out], kind="cuda")


def test_the_second_kernel_waits_for_the_first():
    special, result = in_parts()
    first, second = kernels(result)
    assert (first.overlap, second.overlap) == (False, True)
    assert "grid_release()" in first.text and "grid_wait" not in first.text and "_nc(" in first.text
    calls = [line.strip() for line in second.text.splitlines() if "(" in line and "#" not in line][1:]
    assert calls[0] == "grid_wait()" and "grid_release" not in second.text
    assert "_nc" not in second.text, "what the first kernel writes while the second is there is no constant"
    run(result.emitted)
    assert Emitted.from_json(result.emitted.to_json()) == result.emitted
    assert "overlap_launch yes" in " ".join(explain(result.plan, special).split())


@pytest.mark.parametrize("wrong", ["does not wait", "reads constants"])
def test_the_emulator_sees_who_does_not_wait(wrong):
    result = in_parts()[1]
    emitted = result.emitted
    load = re.search(r"(load_f32x\d)\(", kernels(result)[1].text)[1]
    change = ("    grid_wait()\n", "    pass\n") if wrong == "does not wait" else (f"{load}(", f"{load}_nc(")
    module = emitted.module.replace(*change).replace(f"    {load},", f"    {load}, {load}_nc,")
    assert module != emitted.module
    with pytest.raises(AssertionError, match=r"before the kernel ahead is complete|writes this meanwhile"):
        run(replace(emitted, module=module))


def test_devices_without_it_launch_one_after_another():
    result = in_parts("a100")[1]
    assert not any(k.overlap or "grid_" in k.text for k in kernels(result))
    assert not any(k.options.overlap_launch or k.work.overlaps for k in result.plan.kernels)
    run(result.emitted)


def test_a_schedule_turns_it_off():
    special, own = in_parts()
    text = write_schedule(own.plan, special)
    assert text.count("overlap_launch = true") == 1
    edited = Source("s", text.replace("overlap_launch = true", "overlap_launch = false"))
    result = lowered(SUM, None, X, parse_schedule(edited))[1]
    first, second = kernels(result)
    assert not second.overlap and "grid_" not in first.text + second.text and "_nc(" in second.text
    assert result.plan.time_us > own.plan.time_us
    run(result.emitted)


def test_only_kernels_are_waited_for():
    """`b` comes after a fill, `c` after `b`; of `c`'s memory the input stays as it is."""
    functions = [f"func.func @{n}(){' attributes {tilec.overlap}' * (n > 'a')} {{ return }}" for n in "abc"]
    x, t, u = Slot("input", 0), Slot("temporary", 0), Slot("temporary", 1)
    steps = [Step("a", (x, t)), Step(None, (u,), 4), Step("b", (x, t, u)), Step("c", (x, u))]
    with mlir.context(), ir.Location.unknown():
        found = overlaps(ir.Module.parse("\n".join(functions)), steps)
    assert found == {"a": Overlap(), "b": Overlap(releases=True), "c": Overlap(waits=True, made=(1,))}


def test_attributes_of_a_launch(monkeypatch):
    driver = stand_in(monkeypatch)
    for cluster, overlap in ((1, False), (1, True), (4, False), (4, True)):
        kernel = Kernel(b"image", "k", ["i64"])
        Launcher(kernel, (8, 1, 1), (32, 1, 1), 0, (cluster, 1, 1), overlap=overlap).launch(0, 1)
    spread, early = (4, 0, 4, 1, 1), (6, 0, 1, 0, 0)
    assert [launch.attributes for launch in driver.launches] == [(), (early,), (spread,), (spread, early)]


def test_nothing_is_read_before_the_wait():
    second = compiled(in_parts()[1].emitted, "sm_90a")[1][1]
    body = second.ptx[second.ptx.index(".entry") :]
    assert "ld.global" in body
    assert body.index("griddepcontrol.wait") < body.index("ld.global")


CHAINS = {  # kernels of all kinds behind one another: reductions, products by the matrix units, rows
    "columns": (SUM, {"x": (1 << 14, 16)}, "float32"),
    "product": (
        "op f(a: bf16[M, K], b: bf16[K, N]) -> (c: bf16[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }",
        {"a": (256, 16384), "b": (16384, 256)},
        "bfloat16",
    ),
    "rows": (
        "op f(x: bf16[M, N], w: bf16[N, K]) -> (y: f32[M, K]) { h[i, k] = sum[j](x[i, j] * w[j, k])\n m[i] = max[k](h[i, k])\n"
        " y[i, k] = h[i, k] - m[i] }",
        {"x": (256, 512), "w": (512, 1024)},
        "bfloat16",
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHAINS)
def test_on_a_gpu(name):
    """Again and again, on two streams and in a graph: a kernel that did not wait would read what the call before left."""
    torch = pytest.importorskip("torch")
    text, shapes, dtype = CHAINS[name]
    op, streams, made = tilec.compile(text), [torch.cuda.Stream() for _ in range(2)], []
    for n in range(20):
        inputs = [torch.randn(s, device="cuda", dtype=getattr(torch, dtype)) for s in shapes.values()]
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[n % 2]):
            made.append((inputs, op(*inputs)))
    torch.cuda.synchronize()
    assert op.plan.kernels[-1].options.overlap_launch
    slots = [torch.empty_like(i) for i in made[0][0]]
    graph = op.graph(*slots)
    for given, result in made:
        for slot, value in zip(slots, given):
            slot.copy_(value)
        assert torch.equal(graph.replay(), result)
    assert_within(text, dict(zip(shapes, map(from_torch, made[0][0]))), [from_torch(made[0][1])], kind="cuda")
