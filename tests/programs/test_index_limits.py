"""Index arithmetic near 2^31 and 2^63: compiled, not run, except for what fits; on a GPU, tensors over 2^31 elements."""

from __future__ import annotations

import numpy as np
import pytest
from tools import lowering

import tilec

PROGRAMS = [
    "op f(x: f32[M, N]) -> (y: f32[M]) { y[i] = sum[j](x[i, j]) }",
    "op f(x: f32[M, N]) -> (y: f32[N, M]) { y[j, i] = x[i, j] * 2 }",
    "op f(x: i8[M, N]) -> (y: i8[M, N]) { y[i, j] = pad(x[i, j + 1], 0) }",
    "op f(x: f32[M, N], n: i64[M]) -> (y: f32[M]) { y[i] = pad(x[n[i], i % N], 0) }",
]
SIZES = [{"M": 2**16, "N": 2**15 + 1}, {"M": 3, "N": 2**31 - 1}, {"M": 3, "N": 2**31}, {"M": 2**31 + 1, "N": 2}]
HUGE = [{"M": 2**32, "N": 2**31}, {"M": 2**62, "N": 4}, {"M": 2**63, "N": 1}]


def lowered(program: str, sizes: dict[str, int], target: str):
    return lowering.lowered(program, None, sizes, target=target)[1]


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


# ---- on a GPU, tensors of more than 2^31 elements --------------------------------------------------------------------

ROWS, COLUMNS = 2**16 + 3, 2**15 + 1
PIECE = 2**13
"""Rows that are checked at a time."""


@pytest.fixture
def large():
    """Small whole numbers by row and column: sums of them are exact, whatever their order."""
    torch = pytest.importorskip("torch")
    made = torch.empty((ROWS, COLUMNS), dtype=torch.int8, device="cuda")
    for low in range(0, ROWS, PIECE):
        made[low : low + PIECE] = pattern(torch, low, min(low + PIECE, ROWS))
    yield torch, made
    del made
    torch.cuda.empty_cache()


def pattern(torch, low: int, high: int):
    """Rows of the tensor. Neighbours differ, and so do places 2^31 and 2^32 elements or bytes apart."""
    i = torch.arange(low, high, device="cuda")[:, None]
    j = torch.arange(COLUMNS, device="cuda")[None, :]
    return ((i * 7 + j * 3 + i // 4096 + j // 4096) % 13 - 6).to(torch.int8)


def pieces(rows: int = ROWS):
    return [(low, min(low + PIECE, rows)) for low in range(0, rows, PIECE)]


@pytest.mark.gpu
@pytest.mark.slow
class TestOverTwoToThe31Elements:
    def test_elementwise(self, large):
        torch, x = large
        shifted = tilec.compile("op f(x: i8[M, N]) -> (y: i8[M, N]) { y[i, j] = pad(x[i, j - 1], 1) * 2 }")(x)
        for low, high in pieces():
            assert (shifted[low:high, 0] == 2).all() and torch.equal(shifted[low:high, 1:], x[low:high, :-1] * 2)

    def test_one_dimension_with_an_odd_tail(self, large):
        torch, x = large
        flat = x.reshape(-1)
        doubled = tilec.compile("op f(x: i8[N]) -> (y: i16[N]) { y[i] = i16(x[i]) + i % 5 }")(flat)
        assert len(flat) % 2 == 1
        for low in range(0, len(flat), PIECE * COLUMNS):
            part = flat[low : low + PIECE * COLUMNS]
            places = torch.arange(low, low + len(part), device="cuda")
            assert torch.equal(doubled[low : low + len(part)], part.to(torch.int16) + (places % 5).to(torch.int16))

    def test_reductions(self, large):
        torch, x = large
        program = "op f(x: i8[M, N]) -> (r: i32[M], c: i32[N], s: i64) {"
        program += " r[i] = sum[j](i32(x[i, j]))  c[j] = sum[i](i32(x[i, j]))  s = sum[i, j](i64(x[i, j])) }"
        found = tilec.compile(program)(x)
        columns = sum(x[low:high].sum(0, dtype=torch.int32) for low, high in pieces())
        rows = torch.cat([x[low:high].sum(1, dtype=torch.int32) for low, high in pieces()])
        assert torch.equal(found.r, rows) and torch.equal(found.c, columns.to(torch.int32))
        assert found.s.item() == rows.sum(dtype=torch.int64).item()

    def test_places_of_extrema(self, large):
        _, x = large
        x[-1, -1] = 100
        flat = x.reshape(-1)
        assert tilec.compile("op f(x: i8[N]) -> (y: i64) { y = argmax[i](x[i]) }")(flat).item() == len(flat) - 1

    def test_transpose(self, large):
        torch, x = large
        transposed = tilec.compile("op f(x: i8[M, N]) -> (y: i8[N, M]) { y[j, i] = x[i, j] }")(x)
        for low, high in pieces():
            assert torch.equal(transposed[:, low:high], x[low:high].T)

    def test_gather_and_row_lookup(self, large):
        torch, x = large
        flat, last = x.reshape(-1), x.numel() - 1
        places = torch.tensor(
            [0, 2**31 - 1, 2**31, 2**31 + 1, last, last - 1, -1, last + 1, 2**32, 2**32 + 7], device="cuda"
        )
        found = tilec.compile("op f(x: i8[N], n: i64[K]) -> (y: i8[K]) { y[k] = pad(x[n[k]], 77) }")(flat, places)
        inside = (places >= 0) & (places <= last)
        assert torch.equal(found, torch.where(inside, flat[places.clamp(0, last)], 77))
        ids = torch.tensor([ROWS - 1, 0, 2**16, ROWS - 2, 65000], dtype=torch.int32, device="cuda")
        rows = tilec.compile("op f(x: i8[M, N], n: i32[K]) -> (y: i8[K, N]) { y[k, j] = x[n[k], j] }")(x, ids)
        assert torch.equal(rows, x[ids.long()])

    def test_rows_in_f32(self, large):
        """More than 2^33 bytes, and vectors of 16 bytes."""
        torch, x = large
        wide = torch.empty((2**16 + 1, 2**15 + 4), device="cuda")
        for low, high in pieces(len(wide)):
            wide[low:high, :COLUMNS], wide[low:high, COLUMNS:] = x[low:high], 1
        program = "op f(x: f32[M, N]) -> (y: f32[M, N], m: f32[M]) { m[i] = max[j](x[i, j])  y[i, j] = x[i, j] - m[i] }"
        found = tilec.compile(program)(wide)
        for low, high in pieces(len(wide)):
            most = wide[low:high].amax(1)
            assert torch.equal(found.m[low:high], most) and torch.equal(
                found.y[low:high], wide[low:high] - most[:, None]
            )
