"""Kernels for the CPU that serve all sizes of a class: results at its ends and around tiles, with canaries beside them."""

import zlib
from math import prod

import numpy as np
import pytest
from expectations import EXAMPLES

import tilec

CANARY, MARGIN = 0xA5, 256
SIZES = (17, 31, 32, 33, 100, 127, 128)  # of one class


def with_canaries(like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes, and an array of the same kind between the first and the last of them."""
    size = prod(like.shape) * like.itemsize
    memory = np.full(size + 2 * MARGIN, CANARY, np.uint8)
    return memory, memory[MARGIN : MARGIN + size].view(like.dtype).reshape(like.shape)


def check(name: str, vary: str, sizes: tuple[int, ...], **other: int) -> tilec.Op:
    """The op of an example at each of these numbers of the sizes `vary`, beside its reference."""
    example = EXAMPLES[name]
    op = tilec.compile(example.path, op=example.op, varies=dict.fromkeys(vary.split(), (0, 5000)), target="cpu")
    for n in sizes:
        at = {**example.sizes, **other, **{size: n - 3 * k for k, size in enumerate(vary.split())}}
        inputs = example.inputs(np.random.default_rng(zlib.crc32(f"{name} {at}".encode())), at)
        results = op(*inputs.values())
        results = results if isinstance(results, tuple) else (results,)
        memory, outs = zip(*map(with_canaries, results))
        op(*inputs.values(), out=list(outs) if len(outs) > 1 else outs[0])
        bound = example.bound(at)
        for found, right in zip(outs, example.expected(inputs), strict=True):
            if found.dtype.kind in "iub":
                np.testing.assert_array_equal(found, right, err_msg=str(at))
            else:
                np.testing.assert_allclose(found.astype(np.float64), right, bound.rtol, bound.atol, err_msg=str(at))
        assert all((m[:MARGIN] == CANARY).all() and (m[-MARGIN:] == CANARY).all() for m in memory), at
    return op


@pytest.mark.parametrize(
    ("name", "vary"),
    [
        ("gelu", "N"), ("softmax", "N"), ("layernorm", "N"), ("cumsum", "N"), ("top1", "N"), ("variance", "M"),
        ("transpose", "M N"), ("linear", "K"), ("linear", "M N K"), ("attention", "S T"),
        ("causal_attention", "S"), ("decoding", "T"), ("batched_einsum", "K L"), ("conv2d", "C"), ("conv2d", "H W"),
        ("max_pool", "H W"), ("jacobi", "M N"), ("cross_entropy", "B V"), ("attention_backward", "S"),
    ],
)  # fmt: skip
def test_one_program_serves_a_class(name, vary):
    op = check(name, vary, SIZES)
    assert [c.refused for c in op.classes()] == [()] * len(op.classes())
    assert len(op.classes()) <= 2  # the sizes behind the first one may be in the class below


def test_column_sums_of_a_class_have_rounds():
    """As many terms one after another as the class may have: so that a sum does not err by more than an exact program's."""
    op = tilec.compile("op f(x: f32[M, 5]) -> (s: f32[5]) { s[j] = sum[i](x[i, j]) }", varies={"M": (0, 16384)}, target="cpu")
    for m in (2049, 5000, 16384):
        x = np.full((m, 5), np.float32(0.1))
        np.testing.assert_allclose(op(x), np.full(5, m * np.float64(np.float32(0.1))), rtol=300 * 2.0**-24)
    assert len(op.classes()) == 1


def test_scratch_memory_grows_with_a_size():
    """The weights of a row, whose number varies."""
    op = tilec.compile(EXAMPLES["softmax"].path, op="softmax", varies={"N": (0, 1 << 17)}, target="cpu")
    x = np.random.default_rng(0).standard_normal((32, 40_000), dtype=np.float32)
    for n in (20_000, 40_000):
        e = np.exp(x[:, :n].astype(np.float64))
        np.testing.assert_allclose(op(np.ascontiguousarray(x[:, :n])), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert len(op.classes()) == 1


def test_a_call_with_a_size_that_is_known_takes_the_short_way(monkeypatch):
    monkeypatch.setattr("tilec.api.MOST_SIZED", 12)
    op = tilec.compile("op f(x: f32[M]) -> (y: f32[M]) { y[i] = 2 * x[i] }", varies={"M": (1, 100)}, target="cpu")
    arrays = [np.arange(m, dtype=np.float32) for m in range(20, 40)]
    for x in arrays:
        np.testing.assert_array_equal(op(x), 2 * x)
    long_way = []
    monkeypatch.setattr(op, "_call", lambda *given: long_way.append(len(given[0][0])))
    for x in arrays[::-1]:
        result = op(x)
        assert result is None or (result == 2 * x).all()
    assert long_way == list(range(27, 19, -1))  # the latest twelve are known
    op(arrays[-1].astype(np.float64))
    assert long_way[-1] == 39  # of another type
