"""Contractions for CUDA: planned, mapped and printed kernels, run by an emulator; on request compiled, or run
on a GPU.

Every program is small, hangs over the edges of its tiles, and takes several tiles of k.
"""

import numpy as np
import pytest
from by_numpy import np_conv2d
from conftest import assert_within
from tools.contractions import (
    BATCHED,
    CONV,
    EINSUM,
    HEADS,
    INTEGERS,
    LARGE,
    LINEAR,
    MATMUL,
    PROLOGUE,
    TO_COLUMNS,
    TRANSPOSED,
    TRANSPOSED_USING,
    TWO_ROWS,
    USING,
    arrays,
    check,
    emulated,
    fma,
    lowered,
    mma,
)
from tools.cuda_kernels import compiled
from tools.lowering import lowered as lower_text

from tilec.core.targets import load
from tilec.kernels import StoredContraction, matrix


@pytest.mark.crossed
@pytest.mark.parametrize(
    "sizes", [{"M": 40, "N": 72, "K": 20}, {"M": 33, "N": 65, "K": 19}, {"M": 64, "N": 64, "K": 8}]
)
@pytest.mark.parametrize("text, expected", [(MATMUL, lambda a, b: a @ b), (TRANSPOSED, lambda a, b: a.T @ b.T)])
def test_fma(text, expected, sizes, monkeypatch):
    check(text, ("f32", "f32"), sizes, fma(), expected, monkeypatch)


def test_fma_f64(monkeypatch):
    check(MATMUL, ("f64", "f64"), {"M": 40, "N": 70, "K": 20}, fma(), lambda a, b: a @ b, monkeypatch)
    check(
        TRANSPOSED,
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


@pytest.mark.parametrize("sizes", [{"M": 40, "N": 40, "K": 72}, {"M": 33, "N": 35, "K": 37}])
@pytest.mark.parametrize("text, expected", [(MATMUL, lambda a, b: a @ b), (TRANSPOSED, lambda a, b: a.T @ b.T)])
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


@pytest.mark.crossed
@pytest.mark.parametrize("sizes", [{"M": 40, "N": 40, "K": 72}, {"M": 33, "N": 35, "K": 37}])
@pytest.mark.parametrize("tile", [mma(32, 32, 16), mma(32, 64, 32)])
def test_mma_tf32(tile, sizes, monkeypatch):
    """Rounded to nearest: half of the error that cutting bits off would make."""
    for text, expected in ((USING, lambda a, b: a @ b), (TRANSPOSED_USING, lambda a, b: a.T @ b.T)):
        result = check(text, ("tf32", "f32"), sizes, tile, expected, monkeypatch, "a100")
        assert "round_tf32_x4" in result.emitted.module


@pytest.mark.parametrize("left, right, kind", [("bf16", "i8", "bf16"), ("u8", "f16", "f16"), ("bf16", "f16", "tf32")])
def test_mma_of_two_types(left, right, kind, monkeypatch):
    """In the narrowest type that has every number of both."""
    text = MATMUL.replace("a: {t}", f"a: {left}").replace("b: {t}", f"b: {right}")
    tile = mma(32, 32, 16 if kind == "tf32" else 32)
    result = check(text, (left, "f32"), {"M": 40, "N": 48, "K": 72}, tile, lambda a, b: a @ b, monkeypatch, "a100")
    assert result.plan.kernels[-1].options.multiplicand == kind


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


@pytest.mark.crossed
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


@pytest.mark.parametrize("text, expected", [(MATMUL, lambda a, b: a @ b), (TRANSPOSED, lambda a, b: a.T @ b.T)])
@pytest.mark.parametrize("tile", [("wgmma", 64, 64, 64, (4, 1)), ("wgmma", 128, 128, 64, (8, 1))])
def test_wgmma(text, expected, tile, monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    result = check(text, ("bf16", "bf16"), {"M": 136, "N": 72, "K": 200}, tile, expected, monkeypatch)
    assert "tma_load_2d" in result.emitted.module


def test_wgmma_tf32(monkeypatch):
    """The units cut factors as they are: nothing is stored first, and f32 numbers of 24 bits are within the bound."""
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    tile = ("wgmma", 64, 64, 32, (4, 1))
    sizes = {"M": 72, "N": 72, "K": 100}
    result = check(USING_TRANSPOSED, ("tf32", "f32"), sizes, tile, lambda a, b: a @ b.T, monkeypatch)
    assert not result.plan.steps("pack") and len(result.plan.kernels) == 1


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("using", ["", " using f22"])
@pytest.mark.parametrize("k", [128, 400])
def test_wgmma_f8(kind, using, k, monkeypatch):
    """Sums leave the matrix units every 128 products, if the source does not let them stay."""
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    text = MATMUL_TRANSPOSED.replace("\n}}", using + "\n}}")
    tile = ("wgmma", 64, 64, 128, (4, 1))
    result = check(text, (kind, "f32"), {"M": 72, "N": 72, "K": k}, tile, lambda a, b: a @ b.T, monkeypatch)
    assert ("partial_sums" in result.emitted.module) == (not using)
    assert result.plan.kernels[-1].options.multiplicand == kind


MATMUL_TRANSPOSED = MATMUL.replace("b: {t}[K, N]", "b: {t}[N, K]").replace("b[k, n]", "b[n, k]")
INTEGERS_TRANSPOSED = INTEGERS.replace("{transposed}", "N, K").replace("{at}", "n, k")
USING_TRANSPOSED = USING.replace("b: f32[K, N]", "b: f32[N, K]").replace("b[k, n]", "b[n, k]")
GELU = """op linear(x: {t}[M, K], w: {t}[K, N], b: {t}[N]) -> (y: {o}[M, N]) {{
 h[m, n] = sum[k](x[m, k] * w[k, n])
 y[m, n] = gelu(h[m, n] + b[n])
}}
"""
IMAGES = {"N": 32, "C": 256, "H": 56, "W": 56, "K": 256, "R": 3, "S": 3}


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["a100", "h200"])
@pytest.mark.parametrize(
    "text, kind, sizes",
    [
        (MATMUL, "f32", LARGE),
        (TRANSPOSED, "f32", LARGE),
        (MATMUL, "f64", LARGE),
        (MATMUL, "bf16", LARGE),
        (TRANSPOSED, "bf16", LARGE),
        (GELU, "bf16", LARGE),
        (PROLOGUE, "bf16", LARGE),
        (MATMUL, "bf16", {"M": 4000, "N": 4001, "K": 4001}),
        (USING_TRANSPOSED.replace("{o}", "f32"), "tf32", LARGE),
        (INTEGERS_TRANSPOSED, "i8", LARGE),
        (MATMUL_TRANSPOSED.replace("{o}", "bf16"), "f8e4m3", LARGE),
        (BATCHED, "bf16", {"B": 64, "M": 1024, "N": 1024, "K": 1024}),
        (CONV, "f32", IMAGES),
        (CONV, "bf16", IMAGES),
    ],
)
def test_large_tiles_fit_registers(text, kind, sizes, target):
    """No spills, no stack, no warning of the assembler, at the sizes that matter."""
    _, result = lowered(text.format(t=kind, o=kind), sizes, target)
    instruction = {"mma.sync": "mma.sync", "wgmma": "wgmma.mma_async", "fma": "fma.rn"}
    plans = {plan.name: plan.options for plan in result.plan.kernels}
    assert any(isinstance(options, StoredContraction) for options in plans.values())
    for kernel, cubin in compiled(result.emitted, load(target).chip):  # one, or two where a factor is packed first
        if isinstance(plans[kernel.name], StoredContraction):
            assert instruction[plans[kernel.name].instruction] in cubin.ptx
        assert kernel.shared <= load(target).sm.shared_per_block


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "left, right, kind",
    [("bf16", "i8", "bf16"), ("u8", "f16", "f16"), ("i8", "f16", "f16"), ("bf16", "u8", "bf16")],
)
def test_bytes_are_converted_on_the_way_to_the_units(left, right, kind, monkeypatch):
    """Where they are contiguous along k: shared memory holds bytes, and all of both types are right."""
    text = MATMUL_TRANSPOSED.replace("a: {t}", f"a: {left}").replace("b: {t}", f"b: {right}")
    result = check(text, (left, "f32"), {"M": 40, "N": 256, "K": 80}, mma(32, 32, 64), lambda a, b: a @ b.T, monkeypatch, pack=[])
    options = result.plan.kernels[-1].options
    assert options.multiplicand == kind and {left, right} == set(options.stored)


def test_bytes_next_to_a_factor_in_lines_of_rows(monkeypatch):
    """Threads that convert load lines of k of both factors: the other one's lines were read beyond their ends."""
    text = "op f(a: bf16[K, M], b: i8[N, K]) -> (y: f32[M, N]) {{ y[i, j] = sum[k](a[k, i] * b[j, k]) }}"
    sizes, tile = {"M": 17, "N": 16, "K": 64}, mma(16, 32, 64)
    result = check(text, ("bf16", "f32"), sizes, tile, lambda a, b: a.T @ b.T, monkeypatch, pack=[])
    assert set(result.plan.kernels[-1].options.stored) == {"bf16"}


def test_a_vector_by_numbers_that_are_converted(monkeypatch):
    """One row of a product by 8-bit floats is a contraction; by numbers of 16 bits it is a sum of rows."""
    text = MATMUL_TRANSPOSED.replace("a: {t}", "a: bf16").replace("b: {t}", "b: f8e4m3")
    sizes, tile = {"M": 1, "N": 72, "K": 272}, mma(16, 32, 128, (1, 1))
    result = check(text, ("bf16", "f32"), sizes, tile, lambda a, b: a @ b.T, monkeypatch, "h200")
    assert result.plan.kernels[-1].options.stored == ("bf16", "f8e4m3")
    _, plain = lowered(MATMUL_TRANSPOSED.format(t="bf16", o="f32"), sizes, "h200")
    assert not isinstance(plain.plan.kernels[-1].options, StoredContraction)


@pytest.mark.parametrize(
    ("left", "right", "result", "sizes"),
    [
        ("b, i, k", "b, j, k", "j, i, b", {"B": 3, "I": 20, "J": 1, "K": 64}),
        ("b, i, k", "b, j, k", "i, j, b", {"B": 3, "I": 1, "J": 20, "K": 64}),
        ("k, b, i", "j, b, k", "b, i, j", {"B": 3, "I": 1, "J": 20, "K": 64}),
    ],
)
def test_vectors_of_a_batch(left, right, result, sizes):
    """Where the result is contiguous along the batch, or a single row along neither k nor rows, planning had none to go along."""
    a, b, y = (x.upper() for x in (left, right, result))
    text = f"op f(a: f8e5m2[{a}], b: f8e4m3[{b}]) -> (y: bf16[{y}]) {{ y[{result}] = sum[k](a[{left}] * b[{right}]) }}"
    special, lower = lower_text(text, None, sizes)
    assert isinstance(lower.plan.kernels[-1].options, StoredContraction)
    inputs = arrays(special)
    assert_within(text, inputs, emulated(special, lower, inputs), kind="cuda")


@pytest.mark.crossed
@pytest.mark.parametrize("left, right", [("bf16", "bf16"), ("bf16", "i8"), ("f8e4m3", "f16"), ("f8e5m2", "bf16")])
@pytest.mark.parametrize("warps, k", [((1, 1), 272), ((1, 2), 144)])
def test_warps_share_a_step(left, right, warps, k, monkeypatch):
    """Each multiplies its part of a step along k, of which the last one may end early; their sums are added in order."""
    text = MATMUL_TRANSPOSED.replace("a: {t}", f"a: {left}").replace("b: {t}", f"b: {right}")
    tile = mma(16, 32, 128, warps)
    result = check(text, (left, "f32"), {"M": 24, "N": 72, "K": k}, tile, lambda a, b: a @ b.T, monkeypatch, "h200", pack=[])
    options = result.plan.kernels[-1].options
    assert options.inner_warps > 1 and set(options.stored) == {left, right}
