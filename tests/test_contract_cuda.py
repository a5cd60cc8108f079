"""Contractions for CUDA: planned, mapped and printed kernels, run by an emulator; on request compiled, or run
on a GPU.

Every program is small, hangs over the edges of its tiles, and takes several tiles of k.
"""

import numpy as np
import pytest
from by_numpy import np_conv2d
from conftest import assert_within
from cuda_emulator import run
from cuda_matrix_emulator import MatrixIntrinsics

from tilec import mlir, plan_cuda_contraction
from tilec.cost_contraction import BlockTile
from tilec.diagnostics import Source
from tilec.driver import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.dtypes import DTYPES
from tilec.kernels import MatrixKernel, contraction
from tilec.mlir import ir
from tilec.target import load

MATMUL = """op mm(a: {t}[M, K], b: {t}[K, N]) -> (c: {o}[M, N]) {{
 c[m, n] = sum[k](a[m, k] * b[k, n])
}}
"""
TURNED = """op mm(a: {t}[K, M], b: {t}[N, K]) -> (c: {o}[M, N]) {{
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

TURNED_USING = USING.replace("f32[M, K]", "f32[K, M]").replace("f32[K, N]", "f32[N, K]")
TURNED_USING = TURNED_USING.replace("a[m, k]", "a[k, m]").replace("b[k, n]", "b[n, k]")


def lowered(text: str, sizes: dict[str, int], target: str, tile: tuple | None = None, monkeypatch=None):
    """A program down to Python text; `tile` is (instruction, bm, bn, bk, warps)."""
    if tile is not None:
        instruction, *block, warps = tile

        def only(found: BlockTile, *_) -> bool:
            same = (found.instruction, found.bm, found.bn, found.bk, (found.warp_m, found.warp_n)) == (
                instruction,
                *block,
                warps,
            )
            return same and found.split_k == found.cluster == 1

        monkeypatch.setattr(plan_cuda_contraction, "_is_buildable", only)
    specialised = specialise(parse(Source("t.tile", text)), None, None, sizes)
    with mlir.context(), ir.Location.unknown():
        result = lower(build(specialised), load(target))
        again = mlir.parse(result.texts["map"])
        assert again.operation.verify() and again.operation.get_asm(enable_debug_info=True) == result.texts["map"]
    return specialised, result


def arrays(specialised, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    made = []
    for t in specialised.inputs:
        values = random.standard_normal([s.value for s in t.shape])
        made.append(values.astype(DTYPES[str(t.dtype)].numpy))
    return made


def check(text, kinds, sizes, tile, expected, monkeypatch, target="h200"):
    text = text.format(**dict(zip("to", kinds)))
    specialised, result = lowered(text, sizes, target, tile, monkeypatch)
    assert result.plan.kernels[-1].options.instruction == tile[0]
    inputs = arrays(specialised)
    outputs = emulated(specialised, result, inputs)
    assert_within(text, inputs, outputs, kind="cuda", expected=expected(*(a.astype(np.float64) for a in inputs)))
    return result


def emulated(specialised, result, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the printed kernels compute."""
    outputs = [np.zeros([s.value for s in t.shape], DTYPES[str(t.dtype)].numpy) for t in specialised.outputs]
    run(result.emitted, inputs, outputs, MatrixIntrinsics)
    return outputs


FMA = ("fma", 32, 32, 8, (1, 1))
MMA = ("mma.sync", 32, 32, 32, (1, 1))


def fma(bm=32, bn=64, bk=8, tm=4, tn=4):
    """The tile that `cost_contraction._fma_shapes` makes of these numbers."""
    warps = bm * bn // (32 * tm * tn)
    return "fma", bm, bn, bk, (bm // (4 * tm), warps // (bm // (4 * tm)))


@pytest.mark.parametrize(
    "sizes", [{"M": 40, "N": 72, "K": 20}, {"M": 33, "N": 65, "K": 19}, {"M": 64, "N": 64, "K": 8}]
)
@pytest.mark.parametrize("text, expected", [(MATMUL, lambda a, b: a @ b), (TURNED, lambda a, b: a.T @ b.T)])
def test_fma(text, expected, sizes, monkeypatch):
    check(text, ("f32", "f32"), sizes, fma(), expected, monkeypatch)


def test_fma_f64(monkeypatch):
    check(MATMUL, ("f64", "f64"), {"M": 40, "N": 70, "K": 20}, fma(), lambda a, b: a @ b, monkeypatch)
    check(
        TURNED,
        ("f64", "f64"),
        {"M": 40, "N": 70, "K": 20},
        fma(tm=8, tn=8, bm=64),
        lambda a, b: a.T @ b.T,
        monkeypatch,
    )


def test_fma_tiles(monkeypatch):
    check(
        MATMUL,
        ("f32", "f32"),
        {"M": 72, "N": 136, "K": 36},
        fma(64, 128, 16, 8, 8),
        lambda a, b: a @ b,
        monkeypatch,
    )
    check(TO_COLUMNS, ("f32", "f32"), {"M": 72, "N": 40, "K": 36}, fma(), lambda a, b: (a @ b).T, monkeypatch)


def test_fma_convolution(monkeypatch):
    sizes = {"N": 2, "C": 3, "H": 7, "W": 9, "K": 5, "R": 3, "S": 5}
    check(CONV, ("f32", "f32"), sizes, fma(), np_conv2d, monkeypatch)
    check(CONV, ("bf16", "bf16"), sizes, mma(), np_conv2d, monkeypatch)


def test_fma_einsum(monkeypatch):
    sizes = {"B": 2, "I": 33, "K": 5, "L": 4, "J": 36}
    check(EINSUM, ("f32", "f32"), sizes, fma(), lambda a, c: np.einsum("bikl,lbkj->bij", a, c), monkeypatch)


def mma(bm=32, bn=32, bk=32, warps=(1, 2)):
    return "mma.sync", bm, bn, bk, warps


@pytest.mark.parametrize("sizes", [{"M": 40, "N": 40, "K": 72}, {"M": 33, "N": 35, "K": 37}])
@pytest.mark.parametrize("text, expected", [(MATMUL, lambda a, b: a @ b), (TURNED, lambda a, b: a.T @ b.T)])
def test_mma(text, expected, sizes, monkeypatch):
    result = check(text, ("bf16", "bf16"), sizes, mma(), expected, monkeypatch, "a100")
    assert ("cp_async_16" in result.emitted.module) == (sizes["M"] == 40)


def test_mma_tiles(monkeypatch):
    check(
        MATMUL,
        ("f16", "f32"),
        {"M": 24, "N": 72, "K": 136},
        mma(16, 64, 64, (1, 2)),
        lambda a, b: a @ b,
        monkeypatch,
        "a100",
    )
    check(
        TO_COLUMNS,
        ("f16", "f16"),
        {"M": 40, "N": 24, "K": 40},
        mma(),
        lambda a, b: (a @ b).T,
        monkeypatch,
        "a100",
    )
    check(MATMUL, ("f8e4m3", "f16"), {"M": 40, "N": 24, "K": 40}, mma(), lambda a, b: a @ b, monkeypatch, "a100")


def test_mma_allowed_by_the_source(monkeypatch):
    check(USING, ("bf16", "f32"), {"M": 40, "N": 40, "K": 72}, mma(), lambda a, b: a @ b, monkeypatch, "a100")


@pytest.mark.parametrize("sizes", [{"M": 40, "N": 40, "K": 72}, {"M": 33, "N": 35, "K": 37}])
@pytest.mark.parametrize("tile", [mma(32, 32, 16), mma(32, 64, 32)])
def test_mma_tf32(tile, sizes, monkeypatch):
    """Rounded to nearest: half of the error that cutting bits off would make."""
    for text, expected in ((USING, lambda a, b: a @ b), (TURNED_USING, lambda a, b: a.T @ b.T)):
        result = check(text, ("tf32", "f32"), sizes, tile, expected, monkeypatch, "a100")
        assert "round_tf32_x4" in result.emitted.module


def linear(x, w, b, z):
    return np.tanh(x @ w + b) + z


@pytest.mark.parametrize("tile, target", [(mma(), "a100"), (("wgmma", 64, 64, 64, (4, 1)), "h200")])
def test_epilogue(tile, target, monkeypatch):
    sizes = {"M": 40, "N": 40, "K": 72}
    check(LINEAR, ("bf16", "bf16"), sizes, tile, linear, monkeypatch, target)
    if tile[0] != "wgmma":
        check(LINEAR, ("bf16", "f32"), {"M": 35, "N": 33, "K": 37}, tile, linear, monkeypatch, target)


def test_prologue(monkeypatch):
    sizes = {"M": 40, "N": 40, "K": 72}
    result = check(PROLOGUE, ("bf16", "bf16"), sizes, mma(), lambda a, s, b: (a * s[:, None]) @ b, monkeypatch)
    assert len(result.emitted.kernels) == 1


@pytest.mark.parametrize("tile", [mma(), ("wgmma", 64, 32, 64, (4, 1))])
@pytest.mark.parametrize(
    "text, sizes, expected",
    [
        (BATCHED, {"B": 2, "M": 40, "N": 40, "K": 72}, lambda a, b: np.einsum("imk,ink->imn", a, b)),
        (HEADS, {"H": 2, "M": 40, "N": 40, "K": 72}, lambda a, b: np.einsum("mhk,nhk->mhn", a, b)),
        (TWO_ROWS, {"P": 5, "Q": 13, "N": 40, "K": 72}, lambda a, b: np.einsum("pqk,nk->pqn", a, b)),
    ],
)
def test_batches(text, sizes, expected, tile, monkeypatch):
    check(text, ("bf16", "bf16"), sizes, tile, expected, monkeypatch)


@pytest.mark.parametrize("text, expected", [(MATMUL, lambda a, b: a @ b), (TURNED, lambda a, b: a.T @ b.T)])
@pytest.mark.parametrize("tile", [("wgmma", 64, 64, 64, (4, 1)), ("wgmma", 128, 128, 64, (8, 1))])
def test_wgmma(text, expected, tile, monkeypatch):
    monkeypatch.setitem(contraction.DEEPEST, "wgmma", 2)
    result = check(text, ("bf16", "bf16"), {"M": 136, "N": 72, "K": 200}, tile, expected, monkeypatch)
    assert "tma_load_2d" in result.emitted.module


GELU = """op linear(x: {t}[M, K], w: {t}[K, N], b: {t}[N]) -> (y: {o}[M, N]) {{
 h[m, n] = sum[k](x[m, k] * w[k, n])
 y[m, n] = gelu(h[m, n] + b[n])
}}
"""
LARGE = {"M": 4096, "N": 4096, "K": 4096}
IMAGES = {"N": 32, "C": 256, "H": 56, "W": 56, "K": 256, "R": 3, "S": 3}


@pytest.mark.parametrize("target", ["a100", "h200"])
@pytest.mark.parametrize(
    "text, kind, sizes",
    [
        (MATMUL, "f32", LARGE),
        (TURNED, "f32", LARGE),
        (MATMUL, "f64", LARGE),
        (MATMUL, "bf16", LARGE),
        (TURNED, "bf16", LARGE),
        (GELU, "bf16", LARGE),
        (PROLOGUE, "bf16", LARGE),
        (MATMUL, "bf16", {"M": 4000, "N": 4001, "K": 4001}),
        (BATCHED, "bf16", {"B": 64, "M": 1024, "N": 1024, "K": 1024}),
        (CONV, "f32", IMAGES),
        (CONV, "bf16", IMAGES),
    ],
)
def test_large_tiles_fit_registers(text, kind, sizes, target):
    """No spills, no stack, no warning of the assembler, at the sizes that matter."""
    pytest.importorskip("cuda.core")
    from tilec.runtime.cuda_compile import compile_kernel
    from tilec.runtime.cuda_cubins import parameters as _parameters

    _, result = lowered(text.format(t=kind, o=kind), sizes, target)
    instruction = {"mma.sync": "mma.sync", "wgmma": "wgmma.mma_async", "fma": "fma.rn"}
    plans = {plan.name: plan.options for plan in result.plan.kernels}
    assert any(isinstance(options, MatrixKernel) for options in plans.values())
    for kernel in result.emitted.kernels:  # one, or two where a factor is packed first
        cubin = compile_kernel(
            result.emitted.module, kernel.name, load(target).chip, kernel.threads, parameters=_parameters(kernel)
        )
        if isinstance(plans[kernel.name], MatrixKernel):
            assert instruction[plans[kernel.name].instruction] in cubin.ptx
        assert kernel.shared <= load(target).sm.shared_per_block
