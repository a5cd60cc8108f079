"""Clusters of blocks that share factors, and results that leave by TMA: by the interpreter and by the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools import contractions as c
from tools.cuda_kernels import compiled
from tools.cuda_row_emulator import RowIntrinsics
from tools.emulation import run_printed

from tilec.semantics.interpreted import interpret_stage

pytestmark = pytest.mark.slow  # all stages of many tiles


def lowered(text, sizes, block, cluster, monkeypatch, stages=3, blocks=8, **changes):
    """A product by warpgroups with this block and cluster."""
    return c.by_warpgroups(
        text, sizes, block, monkeypatch, stages=stages, persistent_blocks=blocks, cluster=cluster, **changes
    )


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize(
    "text, block, expected",
    [
        (c.MATMUL, (64, 64), lambda a, b: a @ b),
        (c.MATMUL, (128, 128), lambda a, b: a @ b),
        (c.MATMUL, (64, 160), lambda a, b: a @ b),  # two slabs of 64 columns and a half
        (c.NT, (64, 96), lambda a, b: a @ b.T),
        (c.TN, (64, 64), lambda a, b: a.T @ b),
    ],
)
def test_clusters_share_factors(text, block, expected, cluster, monkeypatch):
    """More clusters of tiles than run at a time, and edges along every dimension."""
    bm, bn = block
    sizes = {"M": 4 * bm - 24, "N": 2 * bn - 8, "K": 200}
    text = text.format(t="bf16", o="bf16")
    specialised, result = lowered(text, sizes, block, cluster, monkeypatch, blocks=4)
    (kernel,) = result.plan.kernels
    assert kernel.options.cluster == cluster and "_multicast" in result.emitted.kernels[0].text
    inputs = c.arrays(specialised)
    exact = expected(*(a.astype(np.float64) for a in inputs))
    printed = run_printed(specialised, result, inputs, RowIntrinsics)[0]
    assert_within(text, inputs, printed, kind="cuda", expected=exact)


SCALED = """op mm(a: bf16[M, K], b: bf16[N, K], s: f32[M], d: {o}[N]) -> (c: {o}[M, N]) {{
 h[m, n] = sum[k](a[m, k] * b[n, k])
 c[m, n] = relu(h[m, n] * s[m] + d[n])
}}
"""
HEADS = """op heads(x: bf16[B, S, E], w: bf16[H, D, E]) -> (y: {o}[B, S, H, D]) {{
 y[b, s, h, d] = sum[e](x[b, s, e] * w[h, d, e])
}}
"""


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("block", [(64, 32), (128, 96), (64, 64), (64, 192)])
def test_results_leave_by_tma(kind, block, monkeypatch):
    """Boxes of each width; edges, where factors of rows and columns are not there to be loaded; more tiles than blocks."""
    bm, bn = block
    text, sizes = SCALED.format(o=kind), {"M": 2 * bm - 24, "N": 2 * bn - 16, "K": 72}
    specialised, result = lowered(text, sizes, block, (1, 1), monkeypatch, blocks=2, stages=2)
    assert "tma_store_2d" in result.emitted.kernels[0].text
    inputs = c.arrays(specialised)
    a, b, s, d = (x.astype(np.float64) for x in inputs)
    exact = np.maximum(a @ b.T * s[:, None] + d, 0)
    printed = run_printed(specialised, result, inputs, RowIntrinsics)[0]
    assert_within(text, inputs, printed, kind="cuda", expected=exact)


@pytest.mark.parametrize("sizes", [{"B": 3, "S": 32, "H": 3, "D": 64, "E": 40}, {"B": 3, "S": 24, "H": 3, "D": 64, "E": 40}])
def test_results_of_several_dimensions_leave_by_tma(sizes, monkeypatch):
    """Rows of two dimensions, of which a warp has a box only if the inner one is a multiple of 16."""
    text = HEADS.format(o="bf16")
    specialised, result = lowered(text, sizes, (64, 64), (1, 1), monkeypatch, blocks=2, stages=2)
    assert ("tma_store_4d" in result.emitted.kernels[0].text) == (sizes["S"] % 16 == 0)
    inputs = c.arrays(specialised)
    x, w = (v.astype(np.float64) for v in inputs)
    printed = run_printed(specialised, result, inputs, RowIntrinsics)[0]
    assert_within(text, inputs, printed, kind="cuda", expected=np.einsum("bse,hde->bshd", x, w))
    found = interpret_stage(specialised, result.texts, "map", dict(zip("xw", inputs)))
    assert_within(text, inputs, [found["y"]], kind="cuda", expected=np.einsum("bse,hde->bshd", x, w))


@pytest.mark.parametrize("cluster", [(2, 1), (2, 2)])
def test_clusters_are_interpreted(cluster, monkeypatch):
    """Every stage means the product: no access races, no block uses another's memory before it starts or after it ends."""
    text, sizes = c.NT.format(t="bf16", o="bf16"), {"M": 248, "N": 56, "K": 136}
    specialised, result = lowered(text, sizes, (64, 32), cluster, monkeypatch, blocks=4, stages=2)
    inputs = dict(zip("ab", c.arrays(specialised)))
    found = interpret_stage(specialised, result.texts, "map", inputs)
    a, b = (x.astype(np.float64) for x in inputs.values())
    assert_within(text, list(inputs.values()), [found["c"]], kind="cuda", expected=a @ b.T)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize(
    "text, block, cluster", [(c.NT, (64, 96), (1, 1)), (c.MATMUL, (128, 64), (1, 1)), (c.TN, (128, 64), (2, 1))]
)
def test_warpgroups_alternate_tiles(text, block, cluster, steps, monkeypatch):
    """An odd number of tiles for two warpgroups of fewer blocks, with fewer steps than stages and more."""
    bm, bn = block
    sizes = {"M": (3 if cluster == (1, 1) else 4) * bm - 24, "N": 3 * bn - 8, "K": 64 * steps - 24}
    text = text.format(t="bf16", o="bf16")
    specialised, result = lowered(text, sizes, block, cluster, monkeypatch, blocks=2, alternate_tiles=True)
    inputs = c.arrays(specialised)
    a, b = (x.astype(np.float64) for x in inputs)
    a, b = (a.T if "a[k, m]" in text else a), (b.T if "b[n, k]" in text else b)
    printed = run_printed(specialised, result, inputs, RowIntrinsics)[0]
    assert_within(text, inputs, printed, kind="cuda", expected=a @ b)
    found = interpret_stage(specialised, result.texts, "map", dict(zip("ab", inputs)))
    assert_within(text, inputs, [found["c"]], kind="cuda", expected=a @ b)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block, cluster, changes",
    [((128, 256), (2, 1), {}), ((64, 128), (2, 2), {}), ((128, 128), (1, 1), {"alternate_tiles": True}),
     ((64, 256), (1, 2), {"alternate_tiles": True, "result_boxes": 4})],
)  # fmt: skip
def test_large_tiles_fit_registers(block, cluster, changes, monkeypatch):
    """No spills, no stack, no warning of the assembler; with an epilogue that is computed in registers."""
    text, sizes = SCALED.format(o="bf16").replace("relu(", "gelu("), {"M": 4096, "N": 4096, "K": 4096}
    _, result = lowered(text, sizes, block, cluster, monkeypatch, blocks=132, stages=4, **changes)
    ((_, made),) = compiled(result.emitted, "sm_90a")
    assert ("multicast" in made.ptx) == (cluster != (1, 1)) and "cp.async.bulk.tensor.2d.global" in made.ptx
