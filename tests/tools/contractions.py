"""Products of matrices for CUDA: programs by their factors' types, lowered with one tile, and run by the emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from conftest import assert_within

from tilec.core.diagnostics import Source
from tilec.core.dtypes import DTYPES
from tilec.core.target import Target
from tilec.kernels import StoredContraction
from tilec.plan.cuda import contraction
from tools import lowering
from tools.cuda_matrix_emulator import MatrixIntrinsics
from tools.emulation import run_printed
from tools.plans import rewritten

MATMUL = """op mm(a: {t}[M, K], b: {t}[K, N]) -> (c: {o}[M, N]) {{
 c[m, n] = sum[k](a[m, k] * b[k, n])
}}
"""
NT = "op mm(a: {t}[M, K], b: {t}[N, K]) -> (c: {o}[M, N]) {{\n c[m, n] = sum[k](a[m, k] * b[n, k])\n}}\n"
TN = "op mm(a: {t}[K, M], b: {t}[K, N]) -> (c: {o}[M, N]) {{\n c[m, n] = sum[k](a[k, m] * b[k, n])\n}}\n"
TRANSPOSED = """op mm(a: {t}[K, M], b: {t}[N, K]) -> (c: {o}[M, N]) {{
 c[m, n] = sum[k](a[k, m] * b[n, k])
}}
"""
TO_COLUMNS = "op mm(a: {t}[M, K], b: {t}[K, N]) -> (c: {o}[N, M]) {{\n c[n, m] = sum[k](a[m, k] * b[k, n])\n}}\n"
LINEAR = """op linear(x: {t}[M, K], w: {t}[K, N], b: {t}[N], z: {o}[M, N]) -> (y: {o}[M, N]) {{
 h[m, n] = sum[k](x[m, k] * w[k, n])
 y[m, n] = tanh(h[m, n] + b[n]) + z[m, n]
}}
"""
PROLOGUE = """op mm(a: {t}[M, K], s: f32[M], b: {t}[K, N]) -> (c: {o}[M, N]) {{
 p[m, k]: {t} = a[m, k] * s[m]
 c[m, n] = sum[k](p[m, k] * b[k, n])
}}
"""
BATCHED = """op mm(a: {t}[B, M, K], b: {t}[B, N, K]) -> (c: {o}[B, M, N]) {{
 c[i, m, n] = sum[k](a[i, m, k] * b[i, n, k])
}}
"""
HEADS = """op mm(a: {t}[M, H, K], b: {t}[N, H, K]) -> (c: {o}[M, H, N]) {{
 c[m, h, n] = sum[k](a[m, h, k] * b[n, h, k])
}}
"""
TWO_ROWS = """op mm(a: {t}[P, Q, K], b: {t}[N, K]) -> (c: {o}[P, Q, N]) {{
 c[p, q, n] = sum[k](a[p, q, k] * b[n, k])
}}
"""
EINSUM = """op mm(a: {t}[B, I, K, L], c: {t}[L, B, K, J]) -> (y: {o}[B, I, J]) {{
 y[b, i, j] = sum[k, l](a[b, i, k, l] * c[l, b, k, j])
}}
"""
CONV = """op conv(x: {t}[N, C, H, W], f: {t}[K, C, R, S]) -> (y: {o}[N, K, H, W]) {{
 y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - R // 2, w + s - S // 2], 0) * f[k, c, r, s])
}}
"""
USING = """op mm(a: f32[M, K], b: f32[K, N]) -> (c: {o}[M, N]) {{
 c[m, n] = sum[k](a[m, k] * b[k, n]) using {t}
}}
"""

TRANSPOSED_USING = USING.replace("f32[M, K]", "f32[K, M]").replace("f32[K, N]", "f32[N, K]")
TRANSPOSED_USING = TRANSPOSED_USING.replace("a[m, k]", "a[k, m]").replace("b[k, n]", "b[n, k]")
PROJECTION = """op project(o: {t}[B, H, S, D], w: {t}[H, D, E]) -> (r: {o}[B, S, E]) {{
 r[b, s, e] = sum[h, d](o[b, h, s, d] * w[h, d, e])
}}
"""
TO_HEADS = """op heads(n: {t}[B, S, E], w: {t}[E, H, D]) -> (q: {o}[B, H, S, D]) {{
 q[b, h, s, d] = sum[e](n[b, s, e] * w[e, h, d])
}}
"""
INTEGERS = "op mm(a: {t}[M, K], b: {t}[{transposed}]) -> (c: i32[M, N]) {{ c[m, n] = sum[k](i32(a[m, k]) * i32(b[{at}])) }}"
LARGE = {"M": 4096, "N": 4096, "K": 4096}


def lowered(
    text: str, sizes: dict[str, int], target: str | Target, tile: tuple | None = None, monkeypatch=None,
    texts: bool | None = None, **rewrites: Any,
):  # fmt: skip
    """A program down to Python text; `tile` is (instruction, bm, bn, bk, warps). `texts` are as `lowering.lowered` takes them,
    `rewrites` those of a schedule file."""
    if tile is not None:
        instruction, *block, warps = tile

        def only(built: StoredContraction) -> bool:
            same = (built.instruction, *built.block, built.warps) == (instruction, *block, warps)
            allowed = getattr(built, "inner_warps", 1) == 1 or built.refuse_shape() is None
            return same and allowed and getattr(built, "cluster", (1, 1)) == (1, 1)

        monkeypatch.setattr(contraction, "_is_buildable", only)
    schedule = rewritten(**rewrites) if rewrites else None
    specialised, result = lowering.lowered(Source("t.tile", text), None, sizes, schedule, target, texts, locations=True)
    lowering.assert_reads_back(result)
    return specialised, result


def by_warpgroups(text: str, sizes: dict[str, int], block: tuple[int, int], monkeypatch, **changes):
    """A product by warpgroups with blocks of so many rows and columns, and these options, down to Python text."""

    def only(built: StoredContraction) -> bool:
        return (built.instruction, *built.block[:2]) == ("wgmma", *block) and getattr(built, "cluster", None) == (1, 1)

    def schedule(plan):
        (kernel,) = plan.kernels
        return replace(plan, kernels=(replace(kernel, options=replace(kernel.options, **changes)),))

    monkeypatch.setattr(contraction, "_is_buildable", only)
    return lowering.lowered(Source("t.tile", text), None, sizes, schedule, locations=True)


def arrays_of(text: str, sizes: dict[str, int]) -> list[np.ndarray]:
    """`arrays` of a program that is lowered later, or elsewhere."""
    return arrays(lowering.specialised(Source("t.tile", text), None, sizes))


def arrays(specialised, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    made = []
    for t in specialised.inputs:
        values = random.standard_normal([s.value for s in t.shape])
        if t.dtype.is_integer:
            low, high = np.iinfo(t.dtype.numpy).min, np.iinfo(t.dtype.numpy).max
            values = np.clip(np.rint(values * 50), low, high)
        made.append(values.astype(DTYPES[str(t.dtype)].numpy))
    return made


def check(text, kinds, sizes, tile, expected, monkeypatch, target="h200", **rewrites):
    text = text.format(**dict(zip("to", kinds)))
    specialised, result = lowered(text, sizes, target, tile, monkeypatch, **rewrites)
    assert result.plan.kernels[-1].options.instruction == tile[0]
    inputs = arrays(specialised)
    outputs = emulated(specialised, result, inputs)
    assert_within(text, inputs, outputs, kind="cuda", expected=expected(*(a.astype(np.float64) for a in inputs)))
    return result


def emulated(specialised, result, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the printed kernels compute."""
    return run_printed(specialised, result, inputs, MatrixIntrinsics)[0]


def fma(bm=32, bn=64, bk=8, tm=4, tn=4):
    """The tile that `cost_contraction._fma_shapes` makes of these numbers."""
    warps = bm * bn // (32 * tm * tn)
    return "fma", bm, bn, bk, (bm // (4 * tm), warps // (bm // (4 * tm)))


def mma(bm=32, bn=32, bk=32, warps=(1, 2)):
    return "mma.sync", bm, bn, bk, warps


def projected(o, w):
    return np.einsum("bhsd,hde->bse", o, w)
