"""Sums of integer products: 8-bit ones on matrix units, others by threads; both exact."""

import numpy as np
import pytest
from tools import contractions as T
from tools.contractions import INTEGERS

import tilec
from tilec.core.dtypes import DTYPES

TILES = {"i8": T.mma(32, 32, 64), "u8": T.fma(), "i32": T.fma(), "i16": T.fma()}


@pytest.mark.crossed
@pytest.mark.parametrize("kind", TILES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [{"M": 40, "N": 48, "K": 80}, {"M": 33, "N": 35, "K": 37}])
def test_products_of_integers(kind, transposed, sizes, monkeypatch):
    text = INTEGERS.format(t=kind, transposed="N, K" if transposed else "K, N", at="n, k" if transposed else "k, n")
    specialised, result = T.lowered(text, sizes, "a100", TILES[kind], monkeypatch)
    assert result.plan.kernels[-1].options.instruction == TILES[kind][0]
    random = np.random.default_rng(0)
    low, high = (0, 255) if kind == "u8" else (-128, 127)
    shapes = [[s.value for s in t.shape] for t in specialised.inputs]
    inputs = [random.integers(low, high, s, endpoint=True).astype(DTYPES[kind].numpy) for s in shapes]
    (output,) = T.emulated(specialised, result, inputs)
    a, b = (x.astype(np.int32) for x in inputs)
    np.testing.assert_array_equal(output, a @ (b.T if transposed else b))


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["i8", "u8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_integers_by_warpgroups(kind, transposed, monkeypatch):
    """A factor whose bytes do not follow each other along k is stored so first."""
    text = INTEGERS.format(t=kind, transposed="N, K" if transposed else "K, N", at="n, k" if transposed else "k, n")
    sizes = {"M": 72, "N": 80, "K": 208}
    specialised, result = T.lowered(text, sizes, "h200", ("wgmma", 64, 64, 128, (4, 1)), monkeypatch, pack=True)
    assert result.plan.kernels[-1].options.instruction == "wgmma"
    assert tuple(p.stored for p in result.plan.steps("pack")) == (() if transposed else ("c.right",))
    low, high = (0, 255) if kind == "u8" else (-128, 127)
    shapes = [[s.value for s in t.shape] for t in specialised.inputs]
    inputs = [np.random.default_rng(0).integers(low, high, s, endpoint=True).astype(DTYPES[kind].numpy) for s in shapes]
    inputs[0][0], inputs[1][0] = low, low  # the ends of the type
    (output,) = T.emulated(specialised, result, inputs)
    a, b = (x.astype(np.int32) for x in inputs)
    np.testing.assert_array_equal(output, a @ (b.T if transposed else b))


def test_the_cpu_has_no_integer_panels():
    a, b = (np.random.default_rng(1).integers(-99, 99, (20, 20)).astype(np.int32) for _ in range(2))
    np.testing.assert_array_equal(tilec.compile(INTEGERS.format(t="i32", transposed="K, N", at="k, n"))(a, b), a @ b)
