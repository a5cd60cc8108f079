"""argmax, argmin and what shares their loop, in lanes: the same place and value as NumPy's, whatever ties, NaN and ends of types
there are, and SIMD code."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from tools.construct_cases import compiled, run
from tools.printed import assembly, code

LENGTHS = (3, 64, 100, 259)
MORE = (1, 15, 63, 127, 255, 256, 1030)
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.int32, np.int64, np.uint8)


def rows_of(dtype, length: int, seed: int = 0) -> np.ndarray:
    """Rows of small numbers, so that most are tied, among them rows of one number, of an end of the type, with NaN and zeros of
    both signs in several places."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 5, (14, length)).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        ends = np.iinfo(dtype)
        x[0], x[1], x[2, -1], x[3, 0] = ends.min, ends.max, ends.max, ends.min
        return x
    x[0], x[1], x[2] = -np.inf, np.inf, np.nan
    x[3, -1], x[4, length // 2], x[5, length // 3 :], x[6, 0] = np.nan, np.nan, np.nan, np.nan
    x[7], x[7, ::2], x[8], x[8, 1::2] = 0.0, -0.0, 0.0, -0.0
    x[9], x[10] = random.standard_normal((2, length)).astype(dtype)
    x[11], x[11, -1], x[12], x[12, length // 2] = -np.inf, -3, np.inf, 3
    return x


def place(x: np.ndarray, name: str) -> np.ndarray:
    """As NumPy has it: the first of equal ones, and the first NaN above all."""
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    return getattr(np, name)(wide, axis=-1)


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places(name, dtype):
    for length in (*LENGTHS, *(MORE if (name, dtype) == ("argmax", np.float32) else ())):
        x = rows_of(dtype, length)
        run(f"y[i] = {name}[j](x[i, j])", x, expected=place(x, name))


FUSED = {
    "place and largest": "p[i] = argmax[j](x[i, j]); y[i] = max[j](x[i, j])",
    "both places": "p[i] = argmax[j](x[i, j]); y[i] = argmin[j](x[i, j])",
    "place and sum": "p[i] = argmin[j](x[i, j]); y[i] = sum[j](x[i, j])",
    "place and sum of squares and least": "p[i] = argmin[j](x[i, j]); q[i] = sum[j](x[i, j] * x[i, j]); y[i] = min[j](x[i, j])",
    "place and product": "p[i] = argmax[j](x[i, j]); y[i] = prod[j](1 + x[i, j] / 1024)",
    "place and any": "p[i] = argmax[j](x[i, j]); y[i] = any[j](x[i, j] > 3)",
    "place and all": "p[i] = argmax[j](x[i, j]); y[i] = all[j](x[i, j] > 3)",
    "place and count": "p[i] = argmax[j](x[i, j]); y[i] = sum[j](1 if x[i, j] > 3 else 0)",
    "place of a choice": "y[i] = argmax[j](x[i, j] if j % 3 == 1 else -inf)",
    "place of a distance": "y[i] = argmin[j]((x[i, j] - x[i, 0]) ** 2)",
    "place along columns": "y[j] = argmax[i](x[i, j])",
    "place and sum of places": "p[i] = argmax[j](x[i, j]); y[i] = sum[j](x[i, j] * j)",
    "place in a row above": "p[i] = argmax[j](x[i, j]) + 1; y[i] = argmin[j](x[i, j]) * 5000000000",
}


@pytest.mark.crossed
@pytest.mark.parametrize("length", [64, 259])
@pytest.mark.parametrize("name", FUSED)
def test_places_with_others(name, length):
    x = rows_of(np.float32, length)[7:11]
    run(FUSED[name], x)
    x = rows_of(np.float32, length)
    with np.errstate(invalid="ignore"):
        run(FUSED[name], x)


@pytest.mark.parametrize("name", ["place and largest", "both places", "place and sum", "place and all"])
def test_lanes_are_vectors(name):
    """The comparisons and choices of an element, and what a lane keeps, are those of whole vectors."""
    op = compiled(FUSED[name])
    op(np.ones((16, 512), np.float32))
    (kernel,) = op.kernels
    assert re.search(r"for j_lane in short_range\(64\)", code(kernel.source))
    lines = assembly(op).splitlines()
    vectors, scalars = (sum(bool(re.match(rf"\s+v?cmp\w*{kind}\s|\s+fcm\w+\s+{arm}", line)) for line in lines)
                        for kind, arm in (("ps", "v"), ("ss", "s")))  # fmt: skip
    assert vectors > 8 and vectors > scalars


@pytest.mark.parametrize("shape", [(16, 512), (1201, 200), (300, 1030)])
@pytest.mark.parametrize("name", ["place and largest", "both places", "place of a choice", "place along columns"])
def test_places_are_short_while_they_are_chosen(name, shape):
    """A vector has as many of them as of f32; the last blocks of a grid may have fewer rows."""
    op = compiled(FUSED[name])
    op(np.ones(shape, np.float32))
    (kernel,) = op.kernels
    text = code(kernel.source)
    lanes = re.findall(r"lanes_\d+ = (\w+)_pointer", text)
    assert "i32_pointer(" in text and "i64" not in lanes
    run(FUSED[name], np.tile(rows_of(np.float32, shape[1])[7:11], (shape[0] // 4, 1)))


def test_short_rows_have_no_lanes():
    op = compiled("y[i] = argmax[j](x[i, j])")
    op(np.ones((16, 40), np.float32))
    assert "lane" not in code(op.kernels[0].source)
