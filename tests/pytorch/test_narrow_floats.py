"""Conversions to floats of 8 bits, and numbers that they do not hold, as in eager mode."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

import tilec.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
INF, NAN = float("inf"), float("nan")
NUMBERS = [448.0, 463.9, 464.0, 464.1, 480.0, 1e6, INF, NAN, 57344.0, 61439.0, 61440.0, 1e30, 1e-9, 0.0, 2.0**-9, 2.0**-10, 3.3]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SOURCES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def of(dtype):
    values = torch.tensor([*NUMBERS, *(-n for n in NUMBERS)], dtype=torch.float64)
    if dtype.is_floating_point:
        return values.to(dtype)
    ends = torch.iinfo(dtype)
    return values.nan_to_num(7).clamp(max(ends.min, -(2**40)), min(ends.max, 2**40)).to(dtype)


def assert_same(function, *inputs):
    """Of equal bits, but for those of NaNs."""
    expected, found = function(*inputs), compiled(function)(*inputs)
    assert found.dtype == expected.dtype
    found, expected = found.float(), expected.float()
    assert bool(((found == expected) | (found.isnan() & expected.isnan())).all()), (found, expected)
    assert torch.equal(found.signbit()[~found.isnan()], expected.signbit()[~found.isnan()])


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_conversions(source, dtype):
    assert_same(lambda x: x.to(dtype), of(source))
    assert tilec.torch.report().share == 1


FORMS = {
    "of an expression": lambda x, f8: ((x * 2).to(f8).float() / 2).to(f8),
    "of a copy": lambda x, f8: torch.empty(x.shape, dtype=f8).copy_(x),
    "of a part": lambda x, f8: torch.zeros(40, dtype=f8).slice_scatter(x.to(f8), 0, 3, 3 + x.numel()),
    "of a sum": lambda x, f8: x.nan_to_num(0, 1e5, -1e5).relu().sum(0, keepdim=True).to(f8),
    "of a product": lambda x, f8: (x.nan_to_num(0, 1e4, -1e4).abs()[:, None] @ torch.ones(1, 3)).to(f8),
    "by way of the other": lambda x, f8: x.to(E5M2 if f8 is E4M3 else E4M3).to(f8),
    "bits": lambda x, f8: x.nan_to_num(3).to(f8).view(torch.uint8),
    "a number": lambda x, f8: torch.where(x > 0, x.to(f8), torch.tensor(1e5, dtype=f8)),
    "of a choice": lambda x, f8: torch.where(x > 0, x, 1e5).to(f8),
    "clamped before": lambda x, f8: x.clamp(-448, 448).to(f8),
}


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, dtype):
    assert_same(lambda x: FORMS[form](x, dtype), of(torch.float32))


def test_the_language_has_nan_beyond_the_type():
    """An operator means what its program says."""
    import numpy as np

    import tilec as compiler

    made = compiler.compile("op f(x: f32[N]) -> (y: f8e4m3[N]) { y[i] = x[i] }", target="cpu")(np.float32([1e6, 448, INF]))
    assert np.isnan(np.asarray(made).astype(np.float32)).tolist() == [True, False, True]
