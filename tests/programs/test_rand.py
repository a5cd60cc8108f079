"""`rand`: the documented stream, the same bits whoever computes it."""

from __future__ import annotations

import numpy as np
import pytest
from tools.emulation import emulate
from tools.philox import expected, philox

import tilec

UNIFORM = "op uniform(seed: i64, start: i64, x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + rand(seed, start + i) }"
SEEDS = [(0, 0), (7, 1 << 31), (-1, -5), (1 << 40, (1 << 62) + 3), (-(1 << 63), (1 << 63) - 5000)]


def test_known_answers():
    """The authors' own test vectors for philox4x32 of 7 rounds (Random123, kat_vectors)."""
    ones, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    assert philox((0,) * 4, (0,) * 2) == (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)
    assert philox((ones,) * 4, (ones,) * 2) == (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)
    assert philox(pi[:4], pi[4:]) == (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)


@pytest.mark.parametrize(("seed", "start"), SEEDS)
def test_the_stream_is_the_documented_one(seed, start):
    x = np.zeros(1000, np.float32)
    want = expected(seed, start, 1000)
    np.testing.assert_array_equal(tilec.compile(UNIFORM)(seed, start, x), want)
    np.testing.assert_array_equal(tilec.reference(UNIFORM)(np.int64(seed), np.int64(start), x), want)


def test_numbers_are_uniform():
    x = np.zeros(1 << 20, np.float32)
    y = tilec.compile(UNIFORM)(3, 0, x)
    assert y.min() >= 0 and y.max() < 1
    counts = np.histogram(y, 256, (0, 1))[0]
    deviation = np.sum((counts - 4096.0) ** 2 / 4096)  # chi squared of 255 degrees: mean 255, deviation 22.6
    assert abs(deviation - 255) < 5 * 22.6
    assert abs(np.corrcoef(y[:-1], y[1:])[0, 1]) < 5 / 1024


def test_dropout_keeps_the_share_and_the_mean():
    x = np.ones((300, 1000), np.float32)
    text = """op f(x: f32[M, N], p: f32, seed: i64) -> (y: f32[M, N]) {
        y[i, j] = x[i, j] / (1 - p) if rand(seed, i * N + j) >= p else 0
    }"""
    y = tilec.compile(text)(x, np.float32(0.25), 11)
    mask = expected(11, 0, x.size).reshape(x.shape) >= 0.25
    np.testing.assert_array_equal(y, np.where(mask, np.float32(1) / np.float32(0.75), 0))
    assert abs(mask.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / x.size)


def test_a_program_may_have_its_own():
    op = tilec.compile("def rand(a, b) { return a - b }\nop f(x: f32[N]) -> (y: f32[N]) { y[i] = rand(x[i], 1) }")
    assert op(np.full(3, 5, np.float32)).tolist() == [4, 4, 4]


def test_it_counts_in_whole_numbers():
    with pytest.raises(tilec.TileError, match="`rand` takes whole numbers, this is f32"):
        tilec.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = rand(x[i], i) }")


@pytest.mark.parametrize(("seed", "start"), SEEDS[1:3])
def test_emitted_cuda_draws_the_same(seed, start):
    x = np.zeros(100, np.float32)
    (y,), _ = emulate(UNIFORM, None, {"seed": np.array(seed), "start": np.array(start), "x": x})
    np.testing.assert_array_equal(y, expected(seed, start, 100))


def test_on_a_gpu_its_products_are_one_instruction():
    op = tilec.compile(UNIFORM, target="sm_90a", sizes={"N": 4096}).build()
    (cubin,) = op._latest.cubins.values()
    assert "mul.wide.u32" in cubin.ptx and "mul.lo.s64" not in cubin.ptx


@pytest.mark.gpu
@pytest.mark.parametrize(("seed", "start"), SEEDS)
def test_the_gpu_draws_the_same(seed, start):
    torch = pytest.importorskip("torch")
    x = torch.zeros(1000, device="cuda")
    y = tilec.compile(UNIFORM)(torch.tensor(seed, device="cuda"), torch.tensor(start, device="cuda"), x)
    np.testing.assert_array_equal(y.cpu().numpy(), expected(seed, start, 1000))
