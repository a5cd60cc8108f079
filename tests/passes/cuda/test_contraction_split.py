"""Contractions with few results: parts of k that many blocks compute, vectors, a few rows."""

import pytest
from conftest import assert_within
from tools import contractions as T

from tilec.kernels import StoredContraction


@pytest.mark.parametrize("kind, tile", [("bf16", T.mma(32, 32, 32)), ("f32", T.fma(16, 64, 16, 4, 4))])
def test_parts_of_k(kind, tile, monkeypatch):
    """Forced: at this size one block is faster."""
    sizes = {"M": 20, "N": 40, "K": 256}
    text = T.MATMUL.format(t=kind, o=kind)
    step = {"operation": "c" if kind == "f32" else "c.sum", "dim": 2, "parts": 4}
    specialised, result = T.lowered(text, sizes, "h200", tile, monkeypatch, split=[step])
    partial, combined = result.plan.kernels
    assert partial.options.instruction == tile[0] and not isinstance(combined.options, StoredContraction)
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


def test_parts_where_the_machine_would_idle():
    _, result = T.lowered(T.MATMUL.format(t="bf16", o="bf16"), {"M": 256, "N": 256, "K": 16384}, "h200")
    assert [getattr(k.options, "instruction", None) for k in result.plan.kernels] == ["wgmma", None]
    (split,) = result.plan.steps("split")
    assert split.parts > 2
    _, result = T.lowered(T.MATMUL.format(t="bf16", o="bf16"), {"M": 4096, "N": 4096, "K": 4096}, "h200")
    assert not result.plan.steps("split")


def test_parts_of_all_pixels():
    """Of a convolution's weight's gradient, by images: each part reads windows of its own images."""
    text = """op f(g: bf16[64, 8, 8, 16], x: bf16[64, 8, 8, 16]) -> (w: f32[16, 3, 3, 16]) {
        w[o, r, s, c] = sum[n, y in 0:8, z in 0:8](g[n, y, z, o] * pad(x[n, y + r - 1, z + s - 1, c], 0)) where r in 0:3, s in 0:3
    }"""
    specialised, result = T.lowered(text, {}, "h200")
    (split,) = result.plan.steps("split")
    assert split.parts > 2
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


@pytest.mark.parametrize("sizes", [{"M": 1, "N": 40, "K": 72}, {"M": 40, "N": 1, "K": 72}])
def test_a_vector_is_no_contraction(sizes):
    """Each element of the matrix is used once: there is nothing for tiles to reuse."""
    text = T.MATMUL.format(t="f32", o="f32")
    specialised, result = T.lowered(text, sizes, "h200")
    assert not any(isinstance(k.options, StoredContraction) for k in result.plan.kernels)
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")
