"""argmax and argmin for CUDA, where a thread meets its elements in ascending order: ties, NaN, and what a state starts from."""

from __future__ import annotations

import numpy as np
import pytest
from tools.emulation import emulate
from tools.lowering import lowered
from tools.rows import PLANS, planned
from tools.rows import run as emulate_rows

import tilec

COUNT = np.arange(140)
ROWS = {
    "equal": np.full(140, 3.0),
    "the lowest": np.full(140, -np.inf),
    "the lowest but for the last": np.where(COUNT == 139, -1e30, -np.inf),
    "some NaN": np.where(COUNT % 90 == 77, np.nan, COUNT),
    "NaN": np.full(140, np.nan),
    "NaN after infinity": np.where(COUNT == 138, np.nan, np.inf),
    "ascending": COUNT,
    "two of the largest": np.where(np.isin(COUNT, (61, 127)), 2.0, 1.0),
}
X = np.stack(list(ROWS.values())).astype(np.float32)


def expected(kind: str, x: np.ndarray, axis: int) -> np.ndarray:
    return getattr(np, kind)(x, axis)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("narrow", [False, True])
def test_places_in_rows(kind, sign, narrow):
    x = sign * (X[:, :37] if narrow else X)
    (found,), _ = emulate(f"y[i] = {kind}[j](x[i, j])", None, {"x": x})
    np.testing.assert_array_equal(found, expected(kind, x, 1))


@pytest.mark.parametrize("plan", PLANS)
def test_places_in_rows_of_any_layout(plan):
    (found,), _ = emulate_rows("y[i] = argmax[j](x[i, j])", None, {"x": X}, planned(*plan))
    np.testing.assert_array_equal(found, X.argmax(1))


@pytest.mark.parametrize("shape", [(140, 8), (2, 140, 8), (2, 8, 140)])
def test_places_along_other_axes(shape, rng):
    x = rng.integers(-2, 2, shape).astype(np.float32)
    names = ("i, j", "b, i, j")[len(shape) - 2]
    (found,), _ = emulate(f"y[{names.replace('i, ', '')}] = argmax[i](x[{names}])", None, {"x": x})
    np.testing.assert_array_equal(found, x.argmax(-2))


@pytest.mark.parametrize("dtype", ["i32", "u8", "f64", "bf16"])
def test_places_of_other_types(dtype, rng):
    x = rng.integers(0, 3, (3, 300)).astype(tilec.core.dtypes.DTYPES[dtype].numpy)
    (found,), _ = emulate("y[i] = argmin[j](x[i, j])", None, {"x": x})
    np.testing.assert_array_equal(found, x.astype(np.float64).argmin(1))


def test_places_in_a_part_and_of_what_the_place_decides():
    part = "op f(x: f32[M, N]) -> (y: i64[M]) { y[i] = argmax[j in 2:N](x[i, j]) }"
    (found,), _ = emulate(part, None, {"x": X})
    np.testing.assert_array_equal(found, 2 + X[:, 2:].argmax(1))
    moved = "op f(x: f32[M, N]) -> (y: i64[M]) { y[i] = argmax[j](x[i, j] - f32(j * (j % 3))) }"
    (found,), _ = emulate(moved, None, {"x": X[:2, :40]})
    np.testing.assert_array_equal(found, (X[:2, :40] - COUNT[:40] * (COUNT[:40] % 3)).argmax(1))


def test_a_row_that_blocks_share():
    x = np.where(np.isin(np.arange(20000), (11000, 19999)), 1, 0).astype(np.float32)
    (found,), _ = emulate_rows("y = argmax[j](x[j])", None, {"x": x}, None)
    assert found == 11000


def test_places_are_counted_in_32_bits():
    """No thread compares a place in its loop over elements, and none adds up the index of each."""
    _, result = lowered("y[i] = argmax[j](x[i, j])", None, {"x": np.zeros((4096, 4096), np.float32)})
    source = result.emitted.module
    loop = source[source.index("= -inf") if "= -inf" in source else source.index("(-inf)") :].split("shuffle")[0]
    assert "int32(0)" in loop and " < y_" not in loop
