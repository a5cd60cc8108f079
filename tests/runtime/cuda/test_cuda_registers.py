"""How many registers kernels take, and what they get where those that the plan allows do not suffice."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilec

pytest.importorskip("numba_cuda_mlir.cuda")

from tools.cuda_kernels import COPY

from tilec.core.registers import MOST, REGISTERS, limits
from tilec.runtime.cuda import compile as cuda_compile


@pytest.mark.parametrize("body", ["cos(x[i])", "sin(x[i])"])
def test_sines_that_are_written_out_twice_share_no_registers(body):
    """What the full form computes is not kept from the quick one, for all elements of a thread."""
    op = tilec.compile(f"op f(x: bf16[N]) -> (y: bf16[N]) {{ y[i] = {body} }}", target="sm_90a").build(N=2**24)
    (cubin,) = op._latest.cubins.values()
    (planned,) = op._latest.compiled.registers.values()
    assert cubin.registers <= planned and not cubin.spills


def test_accesses_of_a_threads_steps_share_an_address():
    """Else each step of a gain and a bias takes registers for its own, and an SM has one block of these where it is planned two."""
    text = """op f(x: f32[M, N], gain: f32[N], bias: f32[N]) -> (y: f32[M, N]) {
        mu[i] = mean[j](x[i, j])
        v[i] = mean[j]((x[i, j] - mu[i]) ** 2)
        y[i, j] = (x[i, j] - mu[i]) * rsqrt(v[i] + 1e-5) * gain[j] + bias[j] }"""
    schedule = {"thread_counts": [1, 512], "vectors": [1, 4], "steps": [1, 6], "registers": 64}
    op = tilec.compile(text, target="sm_90a").build(M=8192, N=12288)
    (cubin,), (kernel,) = op._latest.cubins.values(), op.plan.kernels
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in kernel.options.options() if k in schedule} == schedule
    assert cubin.registers <= 64 and not cubin.spills


def test_states_of_loops_that_are_written_out_stay_in_registers():
    """Each copy of a body has variables of its own: one that all copies set kept the states of an argmax in memory."""
    text = "op f(x: bf16[M, N]) -> (y: i64[M]) { y[i] = argmax[j](x[i, j]) }"
    op = tilec.compile(text, target="sm_90a").build(M=8192, N=16384)
    (cubin,) = op._latest.cubins.values()
    assert "for j_step in unrolled(" in op.kernels[0].source and not cubin.faults and not cubin.stack


def test_loops_over_the_steps_of_products_stay_loops():
    """Twelve copies of a step took the assembler most of its time. Epilogues of three warpgroups do not spill."""
    text = """op f(x: bf16[M, K], w: bf16[N, K], v: bf16[N, K], b: bf16[N], c: bf16[N]) -> (y: bf16[M, N], z: bf16[M, N]) {
        y[i, j] = sum[k](x[i, k] * w[j, k]) + b[j]
        z[i, j] = sum[k](x[i, k] * v[j, k]) + c[j] }"""
    op = tilec.compile(text, target="h200").build(M=4096, K=768, N=768)
    (cubin,) = op._latest.cubins.values()
    assert cubin.ptx.count("wgmma.mma_async") == 64 // 16 and not cubin.faults  # a step is 64 long, an instruction 16
    assert "_step < opaque(12):" in op.kernels[0].source


@pytest.mark.parametrize(("registers", "threads"), [(64, 256), (32, 128), (64, 32), (96, 128), (64, 1024), (168, 384)])
def test_a_kernel_that_spills_gives_up_as_few_blocks_as_it_can(registers, threads):
    *tried, last = limits(registers, threads)
    assert tried[0] == registers and last is None
    blocks = [REGISTERS // (threads * n) for n in tried]
    assert tried == sorted(set(tried)) and blocks[1:] == sorted(set(blocks[1:]), reverse=True) and all(blocks)
    for n, fit in zip(tried[1:], blocks[1:]):  # 8 more registers would cost a block
        assert n + 8 > MOST or REGISTERS // (threads * (n + 8)) < fit


@pytest.mark.parametrize(("spills", "frugal"), [(0, False), (8, True)])
def test_a_kernel_that_spills_is_assembled_frugally_if_that_helps(spills, frugal, monkeypatch):
    """Also where no limit is set; what spills all the same stays as it was."""
    assembled = cuda_compile.assemble

    def spilling(*args, **options):
        cubin = assembled(*args, **options)
        tried.append((options["max_registers"], options.get("frugal", False)))
        return replace(cubin, registers=len(tried), spills=spills if tried[-1][1] else 8)

    monkeypatch.setattr(cuda_compile, "assemble", spilling)
    for given in ({}, {"max_registers": 64, "relax": True}):
        tried: list[tuple[int | None, bool]] = []
        cubin = cuda_compile.compile_kernel(COPY, "kernel", "sm_90a", 256, allow=("spills",), **given)
        assert tried[-1] == (None, True) and not any(f for _, f in tried[:-1])
        assert cubin.registers == len(tried) - frugal and cubin.spills == spills
    assert assembled(cubin.ptx, "kernel", "sm_90a", frugal=True).image


def test_explain_reports_of_registers_that_the_plan_did_not_allow():
    """Where a kernel would spill, it gets more of them, and fewer blocks fit an SM."""
    text = "op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }"
    op = tilec.compile(text, target="sm_90a").build(M=4096, N=4096)
    assert "would spill" not in op.explain(full=True)
    ((name, most),) = op._latest.compiled.registers.items()
    cubin = op._latest.cubins[name]
    assert cubin.registers <= most and "would spill" not in op.explain(full=True)
    op._latest.cubins[name] = replace(cubin, registers=2 * most)
    assert f"compiled with {2 * most} of a thread, as {most} would spill: " in op.explain(full=True)
