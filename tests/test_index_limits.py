"""Index arithmetic near 2^31 and 2^63: compiled, not run, except for what fits; on a GPU, tensors over 2^31 elements."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
from tilec import mlir
from tilec.api import read_source
from tilec.driver import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.mlir import ir
from tilec.target import load

PROGRAMS = [
    "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j]) }",
    "op f(x: f32[M, N]) -> (y: f32[N, M]) { y[j, i] = x[i, j] * 2 }",
    "op f(x: i8[M, N]) -> (y: i8[M, N]) { y[i, j] = pad(x[i, j + 1], 0) }",
    "op f(x: f32[M, N], n: i64[M]) -> (y: f32[M]) { y[i] = pad(x[n[i], i % N], 0) }",
]
SIZES = [{"M": 2**16, "N": 2**15 + 1}, {"M": 3, "N": 2**31 - 1}, {"M": 3, "N": 2**31}, {"M": 2**31 + 1, "N": 2}]
HUGE = [{"M": 2**32, "N": 2**31}, {"M": 2**62, "N": 4}, {"M": 2**63, "N": 1}]


def lowered(program: str, sizes: dict[str, int], target: str):
    with mlir.context(), ir.Location.unknown():
        return lower(build(specialise(parse(read_source(program)), None, None, sizes)), load(target))


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_products_past_31_bits_compile(program, sizes, target):
    module = lowered(program, sizes, target).emitted.module
    compile(module, "<kernels>", "exec")


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("sizes", HUGE, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_products_past_63_bits_are_refused(program, sizes, target):
    with pytest.raises(tilec.CallError, match="is too large"):
        lowered(program, sizes, target)


def test_values_of_indices_and_sizes_past_31_bits():
    program = "op f(x: i64[M]) -> (y: i64[M], z: i64[M]) { y[i] = i * N + x[i] + sum[k in N:N](k)  z[i] = y[i] // N }"
    op = tilec.compile(program, sizes={"N": 2**33 + 1}, target="cpu")
    found = op(np.arange(7))
    places = np.arange(7) * (2**33 + 1) + np.arange(7)
    np.testing.assert_array_equal(found.y, places)
    np.testing.assert_array_equal(found.z, np.arange(7))


def test_gathers_by_huge_subscripts_stay_inside():
    """2^32 + 1 is not 1."""
    x, n = np.arange(5, dtype=np.float32), np.array([2**32 + 1, -(2**32) + 1, 2**63 - 1, -(2**63), 1])
    found = tilec.compile("y[i] = pad(x[n[i]], -1)", target="cpu")(x, n)
    np.testing.assert_array_equal(found, [-1, -1, -1, -1, 1])


@pytest.mark.gpu
@pytest.mark.slow
def test_over_two_to_the_31_elements_on_the_gpu():
    torch = pytest.importorskip("torch")
    rows, columns = 2**16 + 3, 2**15 + 1
    x = torch.zeros((rows, columns), dtype=torch.int8, device="cuda")
    x[-1, -2:] = torch.tensor([3, 5], dtype=torch.int8)
    shifted = tilec.compile("op f(x: i8[M, N]) -> (y: i8[M, N]) { y[i, j] = pad(x[i, j - 1], 1) }")(x)
    assert (
        shifted[-1, -1].item() == 3 and shifted[-1, 0].item() == 1 and int(shifted.sum(dtype=torch.int64)) == rows + 3
    )
    assert int(tilec.compile("y = sum[i, j](i64(x[i, j]))")(x)) == 8
