"""Integers at the ends of their types, as eager mode computes them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_quotients_and_remainders_at_the_ends_of_types(dtype):
    """Of all pairs but the least number by -1, at which PyTorch's own kernels stop the process."""
    ends = torch.iinfo(dtype)
    numbers = {ends.min, ends.min + 1, ends.min // 2, -7, -2, -1, 0, 1, 2, 3, 7, ends.max // 2, ends.max - 1, ends.max}
    values = torch.tensor(sorted(n for n in numbers if ends.min <= n <= ends.max), dtype=dtype)
    a, b = (t.flatten() for t in torch.meshgrid(values, values[values != 0], indexing="ij"))
    defined = (a != ends.min) | (b != -1) | (ends.min == 0)
    a, b = a[defined], b[defined]

    def quotients(a, b):
        by_numbers = [torch.div(a, n, rounding_mode=mode) for n in (2, 3, ends.max) for mode in ("trunc", "floor")]
        of_numbers = [torch.div(torch.tensor(ends.max, dtype=dtype), b, rounding_mode=mode) for mode in ("trunc", "floor")]
        by_tensors = [torch.div(a, b, rounding_mode=mode) for mode in ("trunc", "floor")]
        return (*by_tensors, *by_numbers, *of_numbers, a % b, torch.fmod(a, b), a.clone().div_(b, rounding_mode="trunc"))

    for found, expected in zip(compiled(quotients)(a, b), quotients(a, b), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_shifts_powers_and_magnitudes_at_the_ends_of_types(dtype):
    ends = torch.iinfo(dtype)
    a = torch.tensor([ends.min, ends.min + 1, 0, 1, 3, ends.max - 1, ends.max], dtype=dtype)[:, None]
    by = torch.arange(ends.bits, dtype=dtype)

    def results(a, by):
        return a << by, a >> by, a << (ends.bits - 1), a >> (ends.bits - 1), a ** (by % 8), a**3, abs(a), -a, a.sign(), ~a

    for found, expected in zip(compiled(results)(a, by), results(a, by), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
