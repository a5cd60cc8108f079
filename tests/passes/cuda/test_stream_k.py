"""Tiles whose steps along k all blocks share: by the interpreter and by the emulator."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within
from fuzz.matrix import machine
from tools import contractions as c
from tools import lowering
from tools.cuda_kernels import compiled
from tools.cuda_row_emulator import RowIntrinsics
from tools.emulation import run_printed
from tools.machines import refitted

from tilec.core.diagnostics import Source
from tilec.core.fitted import WarpgroupTimes
from tilec.core.targets import load
from tilec.semantics.interpreted import interpret_stage
from tilec.semantics.interpreter import Fault


def lowered(text, sizes, block, tiles, blocks, monkeypatch, stages=2, **changes):
    """A product by warpgroups with this block, of which so many `blocks` share so many `tiles`."""
    return c.by_warpgroups(
        text, sizes, block, monkeypatch, stages=stages, persistent_blocks=blocks, stream_k=tiles, **changes
    )


def check(text, specialised, result, exact):
    """The printed kernel and the mapped one compute the product."""
    inputs = c.arrays(specialised)
    expected = exact(*(x.astype(np.float64) for x in inputs))
    printed = run_printed(specialised, result, inputs, RowIntrinsics)[0]
    assert_within(text, inputs, printed, kind="cuda", expected=expected)
    found = interpret_stage(specialised, result.texts, "map", dict(zip((i.name for i in specialised.inputs), inputs)))
    assert_within(text, inputs, [found["c"]], kind="cuda", expected=expected)
    return found["c"]


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "rows, columns, k, tiles, blocks",
    [
        (1, 1, 200, 1, 3),  # one tile of 4 steps: a block has two of them
        (1, 1, 200, 1, 4),  # a step for each
        (1, 1, 64, 1, 1),  # nothing to share
        (3, 1, 200, 3, 4),  # the last step of a tile, and half of it
        (2, 2, 264, 1, 3),  # and a whole tile for each
        (3, 2, 72, 3, 2),  # more tiles than blocks, one of them shared; steps that are not full
        (5, 1, 136, 2, 3),
        (1, 3, 520, 3, 7),  # 27 steps, no multiple of 7
    ],
)
def test_blocks_share_steps(rows, columns, k, tiles, blocks, monkeypatch):
    text, sizes = c.NT.format(t="bf16", o="bf16"), {"M": 64 * rows - 24, "N": 32 * columns - 8, "K": k}
    specialised, result = lowered(text, sizes, (64, 32), tiles, blocks, monkeypatch)
    assert "fence_gpu" in result.emitted.kernels[0].text
    check(text, specialised, result, lambda a, b: a @ b.T)


SUM = """op mm(a: {t}[M, K], b: {t}[K, N], d: f32[N]) -> (c: {o}[M, N]) {{
 h[m, n] = sum[k](a[m, k] * b[k, n])
 c[m, n] = gelu(h[m, n] + d[n])
}}
"""
GATED = """op gated(x: {t}[M, K], g: {t}[K, N], u: {t}[K, N]) -> (h: {o}[M, N]) {{
 h[m, n] = silu(sum[k](x[m, k] * g[k, n])) * sum[k](x[m, k] * u[k, n])
}}
"""
SEPARATE = """op apart(x: {t}[M, K], g: {t}[K, N], u: {t}[K, P]) -> (h: {o}[M, N], i: f32[M, P]) {{
 h[m, n] = sum[k](x[m, k] * g[k, n])
 i[m, p] = sum[k](x[m, k] * u[k, p])
}}
"""

SCALED = """op mm(a: f8e4m3[M, K], b: f8e4m3[N, K], u: f32[M, K // 128], v: f32[{n}, K // 128]) -> (c: bf16[M, N]) {{
 c[m, n] = sum[k](f32(a[m, k]) * f32(b[n, k]) * u[m, k // 128] * v[{at}, k // 128])
}}
"""


def gelu(x):
    from math import erf

    return 0.5 * x * (1 + np.vectorize(erf)(x / 2**0.5))


@pytest.mark.parametrize("cluster, tiles, blocks", [((2, 1), 2, 4), ((1, 2), 4, 6), ((2, 2), 4, 8)])
def test_clusters_share_steps(cluster, tiles, blocks, monkeypatch):
    """Blocks of a cluster have tiles of their own, and the same steps of them."""
    text, sizes = c.NT.format(t="bf16", o="bf16"), {"M": 232, "N": 56, "K": 328}
    specialised, result = lowered(text, sizes, (64, 32), tiles, blocks, monkeypatch, cluster=cluster)
    assert "_multicast" in result.emitted.kernels[0].text
    check(text, specialised, result, lambda a, b: a @ b.T)


def test_what_follows_has_the_whole_sum(monkeypatch):
    text, sizes = SUM.format(t="f16", o="f32"), {"M": 168, "N": 120, "K": 264}
    specialised, result = lowered(text, sizes, (64, 64), 6, 4, monkeypatch)
    check(text, specialised, result, lambda a, b, d: gelu(a @ b + d))


def test_flags_are_in_order(monkeypatch):
    """The interpreter finds sums that are read without a fence, and the emulator flags that are left."""
    text, sizes = c.NT.format(t="bf16", o="bf16"), {"M": 40, "N": 24, "K": 200}
    specialised, result = lowered(text, sizes, (64, 32), 1, 3, monkeypatch)
    inputs = dict(zip("ab", c.arrays(specialised)))
    mapped, fence = result.texts["map"], "nvvm.memory.barrier"
    assert mapped.count(fence) == 2
    lines = mapped.splitlines()
    for without in (n for n, line in enumerate(lines) if fence in line):
        wrong = "\n".join(lines[:without] + lines[without + 1 :])
        with pytest.raises(Fault, match=r"is written by thread .* and read by thread .*, in another block"):
            interpret_stage(specialised, {**result.texts, "map": wrong}, "map", inputs)
    left = re.sub(r"(publish_i64\(.*), 0\)", r"\1, 1)", result.emitted.module)
    assert left != result.emitted.module
    with pytest.raises(AssertionError, match="leaves flags behind"):
        wrong = replace(result, emitted=replace(result.emitted, module=left))
        run_printed(specialised, wrong, list(inputs.values()), RowIntrinsics)


@pytest.mark.parametrize("text, sizes", [(GATED, {"N": 72}), (SEPARATE, {"N": 136, "P": 72})])
def test_several_products_share_steps(text, sizes):
    """Tiles of several results follow one another; sums of several products meet."""
    text = text.format(t="bf16", o="f32")
    sizes |= {"M": 200, "K": 200}
    specialised, result = lowering.lowered(Source("t.tile", text), None, sizes, target=machine("stream-k"))
    (kernel,) = result.plan.kernels
    assert kernel.options.stream_k and kernel.options.has_several_products
    inputs = dict(zip((i.name for i in specialised.inputs), c.arrays(specialised)))
    found = interpret_stage(specialised, result.texts, "map", inputs)
    assert_within(text, inputs, list(found.values()), kind="cuda")


def test_what_cannot_be_shared(monkeypatch):
    text, sizes = c.NT.format(t="bf16", o="bf16"), {"M": 232, "N": 88, "K": 136}
    _, result = lowered(text, sizes, (64, 32), 12, 6, monkeypatch)
    (kernel,) = result.plan.kernels

    def refused(**changes):
        edited = replace(kernel, options=replace(kernel.options, **changes))
        return edited.options.refuse(edited, kernel, load("h200"))

    assert refused() is None
    assert "from 0 to all 12 tiles, not 13" in str(refused(stream_k=13)) and refused(stream_k=-1).option == "stream_k"
    assert "multiples of a cluster's 2, not 3" in str(refused(stream_k=3, cluster=(2, 1)))
    assert "both factors, one tile at a time" in str(refused(alternate_tiles=True))
    assert "is added as it is" in str(refused(two_level=128))


@pytest.mark.slow
@pytest.mark.parametrize("n", [136, 1032])
def test_partial_sums_stay_in_registers(n):
    """The largest blocks that the model has for 8-bit factors."""
    text, sizes = SCALED.format(n="N // 8", at="n // 8"), {"M": 1032, "N": n, "K": 4096}
    _, result = lowering.lowered(Source("t.tile", text), None, sizes, target=machine("stream-k"))
    assert result.plan.kernels[0].options.stream_k
    compiled(result.emitted, "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("block, cluster", [((128, 256), (1, 1)), ((192, 160), (2, 1))])
def test_sums_stay_in_registers(block, cluster, monkeypatch):
    """No spills, no stack, no warning of the assembler; the epilogue is computed from registers."""
    text, sizes = SUM.format(t="bf16", o="bf16"), {"M": 2304, "N": 2304, "K": 2304}
    _, result = lowered(text, sizes, block, 18, 132, monkeypatch, stages=4, cluster=cluster)
    ((_, cubin),) = compiled(result.emitted, "sm_90a")
    assert "fence.acq_rel.gpu" in cubin.ptx


def test_plans_do_without_where_little_is_promised():
    """Less than the model has been wrong by, over whole tiles or over parts of k in a kernel of their own."""
    for sizes in ({"M": 2304, "N": 2304, "K": 9216}, {"M": 3072, "N": 256, "K": 32768}):
        text = Source("t.tile", c.NT.format(t="bf16", o="bf16"))
        plan = lowering.lowered(text, None, sizes, target="h200", end="plan", emit=False)[1].plan
        assert not any(getattr(k.options, "stream_k", 0) for k in plan.kernels)


def test_the_model_shares_steps_where_a_round_is_nearly_empty():
    """2304 x 2304 are 162 tiles of 128 x 256: 30 blocks would have a second one, and 102 wait. Full rounds are left alone."""
    timed = refitted(load("h200"), WarpgroupTimes, stream_k=1.05)
    for n, k, shares in ((2304, 9216, True), (4096, 4096, False), (512, 512, False)):
        text = Source("t.tile", c.NT.format(t="bf16", o="bf16"))
        _, result = lowering.lowered(text, None, {"M": n, "N": n, "K": k}, target=timed, end="plan")
        assert bool(result.plan.kernels[0].options.stream_k) == shares


@pytest.mark.parametrize(
    "text, sizes",
    [(c.NT.format(t="f8e4m3", o="bf16"), {"N": 136, "K": 700}), (SCALED.format(n="N", at="n"), {"N": 40, "K": 5 * 128}),
     (SCALED.format(n="N // 128", at="n // 128"), {"N": 128, "K": 21 * 128})],
)  # fmt: skip
def test_partial_sums_share_steps(text, sizes):
    """Each step is added to the sums in registers, times the scales of this step, wherever a block begins."""
    specialised, result = lowering.lowered(Source("t.tile", text), None, sizes | {"M": 136}, target=machine("stream-k"))
    (kernel,) = result.plan.kernels
    assert kernel.options.stream_k and kernel.options.two_level == 128
    inputs = dict(zip((i.name for i in specialised.inputs), c.arrays(specialised)))
    found = interpret_stage(specialised, result.texts, "map", inputs)
    assert_within(text, inputs, list(found.values()), kind="cuda")
