"""Contractions on the GPU of this machine, within its error bounds: odd sizes, few rows, empty tensors."""

import numpy as np
import pytest
from by_numpy import np_conv2d
from conftest import assert_within, from_torch, to_gpu
from tools import contractions as T

import tilec
from tilec.core.dtypes import DTYPES

pytestmark = pytest.mark.gpu

SIZES = [
    (128, 256, 512),
    (127, 65, 33),
    (1, 300, 200),
    (4, 300, 200),
    (300, 1, 200),
    (256, 256, 8192),
    (0, 8, 8),
    (8, 8, 0),
    (1000, 1048, 1064),
]


def check(text: str, types: list[str], shapes: list[tuple[int, ...]], expected) -> None:
    random = np.random.default_rng(sum(map(sum, shapes)))
    inputs = [random.standard_normal(s).astype(DTYPES[t].numpy) for s, t in zip(shapes, types)]
    result = tilec.compile(text)(*map(to_gpu, inputs))
    exact = expected(*(x.astype(np.float64) for x in inputs))
    assert_within(text, inputs, from_torch(result), kind="cuda", expected=exact)


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f64"])
def test_products(kind, m, n, k):
    check(T.MATMUL.format(t=kind, o=kind), [kind] * 2, [(m, k), (k, n)], np.matmul)


@pytest.mark.parametrize("m, n, k", [*SIZES, (4096, 2048, 1024)])
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_products_that_may_be_rounded(kind, m, n, k):
    for text, shapes, expected in (
        (T.USING, [(m, k), (k, n)], np.matmul),
        (T.TRANSPOSED_USING, [(k, m), (n, k)], lambda a, b: a.T @ b.T),
    ):
        check(text.format(t=kind, o="f32"), ["f32"] * 2, shapes, expected)


@pytest.mark.parametrize("heads, depth", [(2, 64), (3, 12), (16, 128), (5, 7)])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_heads(kind, heads, depth):
    check(T.PROJECTION.format(t=kind, o=kind), [kind] * 2, [(2, heads, 70, depth), (heads, depth, 72)], T.projected)
    expected = lambda n, w: np.einsum("bse,ehd->bhsd", n, w)  # noqa: E731
    check(T.TO_HEADS.format(t=kind, o=kind), [kind] * 2, [(2, 70, 136), (136, heads, depth)], expected)


@pytest.mark.parametrize("sizes", [(2, 3, 9, 11, 5, 3, 5), (3, 32, 28, 28, 64, 3, 3), (1, 17, 29, 31, 19, 1, 3)])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_convolutions(kind, sizes):
    n, c, h, w, k, r, s = sizes
    check(T.CONV.format(t=kind, o=kind), [kind] * 2, [(n, c, h, w), (k, c, r, s)], np_conv2d)


CHANNELS_LAST = """op conv(x: {t}[N, H, W, C], f: {t}[K, R, S, C]) -> (y: {t}[N, (H - 1) // {by} + 1, (W - 1) // {by} + 1, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, {by} * h + r - R // 2, {by} * w + s - S // 2, c], 0) * f[k, r, s, c])
}}
"""


@pytest.mark.parametrize(
    "sizes", [(2, 28, 28, 64, 64, 3, 3), (3, 30, 17, 128, 96, 5, 3), (9, 56, 56, 40, 64, 3, 3), (2, 33, 31, 3, 24, 7, 7)]
)
@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_channels_last(kind, by, sizes):
    n, h, w, c, k, r, s = sizes

    def expected(x, f):
        y = np_conv2d(x.transpose(0, 3, 1, 2), f.transpose(0, 3, 1, 2))
        return y.transpose(0, 2, 3, 1)[:, ::by, ::by]

    check(CHANNELS_LAST.format(t=kind, by=by), [kind] * 2, [(n, h, w, c), (k, r, s, c)], expected)
