"""Kernels for the CPU that serve all sizes of a class: results at its ends and around tiles, with canaries beside them."""

import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import combinations, product
from math import prod

import numpy as np
import pytest
from expectations import EXAMPLES

import tilec
from tilec.core.amounts import function
from tilec.runtime.program import Emitted, Slot, Step, Temporary
from tilec.runtime.sized import with_offsets
from tilec.runtime.temporaries import uses_of

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


@pytest.mark.parametrize("other", ["N", "13", "127", "2 * M", "M + N"])
def test_dimensions_of_equal_numbers_at_the_typical_sizes_have_loops_of_their_own(other):
    """Two sizes of one class, or one and a number that it may be planned at. All elements are written, and nothing beside them."""
    results, second = f"(a: f32[M], b: f32[{other}])", f"b[i] = x * 2 where i in 0:{other}"
    text = f"op f(x: f32, u: bool[M, N]) -> {results} {{ a[i] = x + f32(i) where i in 0:M  {second} }}"
    op = tilec.compile(text, varies={"M": (2, 128), "N": (2, 128)}, target="cpu")
    for m, n in ((10, 2), (3, 9), (16, 16), (20, 100), (128, 17), (13, 11)):
        extent = eval(other, {"M": m, "N": n})
        memory, outs = zip(*(with_canaries(np.empty(k, np.float32)) for k in (m, extent)))
        op(np.float32(3), np.zeros((m, n), bool), out=list(outs))
        np.testing.assert_array_equal(outs[0], 3 + np.arange(m, dtype=np.float32))
        np.testing.assert_array_equal(outs[1], np.full(extent, 6, np.float32))
        assert all((b[:MARGIN] == CANARY).all() and (b[-MARGIN:] == CANARY).all() for b in memory), (m, n)
    assert not any(c.refused for c in op.classes())


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


def test_calls_of_a_known_class_take_the_short_way(monkeypatch):
    """Sizes that no call had before, too, and however many there were."""
    monkeypatch.setattr("tilec.api.MOST_SIZED", 12)
    op = tilec.compile("op f(x: f32[M]) -> (y: f32[M]) { y[i] = 2 * x[i] }", varies={"M": (1, 100)}, target="cpu")
    arrays = [np.arange(m, dtype=np.float32) for m in range(20, 40)]
    np.testing.assert_array_equal(op(arrays[0]), 2 * arrays[0])
    long_way, call = [], op._call
    monkeypatch.setattr(op, "_call", lambda *given: long_way.append(given[0][0]) or call(*given))
    made = []
    monkeypatch.setattr(op._by_class, "fast", lambda given, fast=op._by_class.fast: made.append(len(given[0])) or fast(given))
    for x in (*arrays, *arrays[::-1]):
        np.testing.assert_array_equal(op(x), 2 * x)
        assert op.kernels[0].grid == tilec.compile(op._program.source.text, target="cpu").build(M=len(x)).kernels[0].grid
    assert long_way == [] and len(op.classes()) == 1
    assert made[:19] == list(range(21, 40)) and made[19:] == list(range(33, 19, -1))[-len(made[19:]) :], "six or more are known"
    assert 8 <= len(made[19:]) <= 14
    for other in (arrays[3].astype(np.float64), np.arange(7, dtype=np.float32)[::2], arrays[3].reshape(1, -1)):
        with suppress(tilec.CallError):
            np.testing.assert_array_equal(op(other), 2 * other)
        assert long_way.pop() is other and not long_way


MEMORY = """op f(x: f32[M, N]) -> (y: f32[N], z: f32[M, M]) {
    s[j] = sum[i](x[i, j])
    p[i, k] = sum[j](x[i, j] * x[k, j])
    z[i, k] = p[i, k] / max[l](p[i, l])
    y[j] = s[j] / max[k](s[k])
}"""


def test_calls_of_several_sizes_at_a_time_share_memory():
    """Each has as much as it needs, and all of them no more than the largest needs for each thread."""
    op = tilec.compile(MEMORY, varies={"M": (1, 512), "N": (1, 512)}, target="cpu")
    shapes = [(17, 40), (128, 128), (64, 20), (20, 120), (100, 33)]
    arrays = [np.random.default_rng(k).random(shape, np.float32) for k, shape in enumerate(shapes)]
    right = [op(x) for x in arrays]
    (whole,) = {e.whole for e in op._by_class._at.values()} | {e.whole for _, e, _ in op._fast}
    assert whole.workspaces.bytes > 0

    def calls(seed):
        for k in np.random.default_rng(seed).integers(0, len(arrays), 300):
            for found, expected in zip(op(arrays[k]), right[k]):
                np.testing.assert_array_equal(found, expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))
    assert whole.workspaces.bytes <= 5 * (whole.workspaces._largest + 256)


def test_where_temporaries_lie_at_any_size():
    """Two that are needed at one step are apart."""
    slots = [Slot("temporary", n) for n in range(7)]
    steps = tuple(Step("k", (a, b, c)) for a, b, c in zip(slots, slots[1:], [*slots[3:], slots[0], slots[2]]))
    texts = ["4 * M", "4 * M * N", "4 * N", "64", "M + N", "4 * (M // 8)", "8 * N"]
    emitted = Emitted("f", "", (), steps, tuple(Temporary(text, 0, n == 3) for n, text in enumerate(texts)))
    placed, names = with_offsets(emitted, {"M": 60, "N": 7})
    both = function([amount for t in placed.temporaries for amount in (t.offset, t.bytes)], ["M", "N"], names)
    lives = uses_of(steps) | {slots[3]: (0, len(steps))}
    for m, n in product((0, 1, 7, 60, 1000), (0, 1, 7, 500)):
        found = list(zip(*[iter(both(m, n))] * 2))
        assert [size for _, size in found] == [4 * m, 4 * m * n, 4 * n, 64, m + n, 4 * (m // 8), 8 * n]
        for a, b in combinations(range(7), 2):
            (first, last), (other_first, other_last) = lives[slots[a]], lives[slots[b]]
            if first <= other_last and other_first <= last:
                (low, size), (high, other) = found[a], found[b]
                assert low % 256 == high % 256 == 0 and (low + size <= high or high + other <= low), (m, n, a, b)


def test_a_failed_check_of_a_new_size_is_raised():
    program = "op pick(x: f32[N], at: i32[M]) -> (y: f32[M]) { y[i] = x[at[i]] }"
    op, x = tilec.compile(program, varies={"M": (1, 100)}, target="cpu"), np.arange(9, dtype=np.float32)
    at = np.arange(30, dtype=np.int32) % 9
    for m in (20, 21, 22):
        np.testing.assert_array_equal(op(x, at[:m].copy()), x[at[:m]])
    at[17] = 9
    for m in (23, 20):
        with pytest.raises(tilec.CallError, match="9"):
            op(x, at[:m].copy())


@pytest.mark.parametrize("text", ["y[i, j] = x[i, j]", "t[i, j] = x[i, j] + 1  y[i, j] = t[i, j] - 1  z[i, j] = y[i, j]"])
def test_copies_of_new_sizes(text):
    outputs = "y: f32[M, N], z: f32[M, N]" if "z" in text else "y: f32[M, N]"
    op = tilec.compile(f"op f(x: f32[M, N]) -> ({outputs}) {{ {text} }}", varies={"M": (0, 50_000)}, target="cpu")
    for m in (20, 21, 128, 20_000, 20_001, 49_999):
        x = np.random.default_rng(m).integers(0, 99, (m, 7)).astype(np.float32)
        results = op(x)
        for found in results if isinstance(results, tuple) else (results,):
            np.testing.assert_array_equal(found, x)
    assert len(op.classes()) == 2
