"""Contractions on the GPU of this machine, against float64 under an error bound: odd sizes, few rows, empty tensors."""

import numpy as np
import pytest
import test_contract_cuda as T
import test_contract_views as V

import tilec

pytestmark = pytest.mark.gpu

NEAREST = {"bf16": 2.0**-8, "f16": 2.0**-11, "tf32": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}
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


def compare(
    text: str, types: list[str], shapes: list[tuple[int, ...]], terms: int, expected, rounded: str = ""
) -> None:
    """`|result - exact| <= sum |a||b| * (2 roundings of a factor + terms of f32) + one rounding of the result`."""
    import torch

    kinds = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
    random = np.random.default_rng(sum(map(sum, shapes)))
    inputs = [torch.from_numpy(random.standard_normal(s)).to("cuda", kinds[t]) for s, t in zip(shapes, types)]
    result = tilec.compile(text)(*inputs)
    wide = [x.double().cpu().numpy() for x in inputs]
    exact, magnitude = expected(*wide), expected(*(abs(x) for x in wide))
    unit = NEAREST["f64" if "f64" in types else "f32"]
    factor = 2 * NEAREST[rounded] if rounded else 0.0
    allowed = magnitude * (factor + (terms + 8) * unit) + NEAREST[
        str(result.dtype).split(".")[-1].replace("bfloat", "bf").replace("float", "f")
    ] * abs(exact)
    assert np.all(np.abs(result.double().cpu().numpy() - exact) <= allowed)


@pytest.mark.parametrize("m, n, k", SIZES)
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f64"])
def test_products(kind, m, n, k):
    compare(T.MATMUL.format(t=kind, o=kind), [kind] * 2, [(m, k), (k, n)], k, np.matmul)


@pytest.mark.parametrize("m, n, k", [*SIZES, (4096, 2048, 1024)])
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_products_that_may_be_rounded(kind, m, n, k):
    for text, shapes, expected in (
        (T.USING, [(m, k), (k, n)], np.matmul),
        (T.TURNED_USING, [(k, m), (n, k)], lambda a, b: a.T @ b.T),
    ):
        compare(text.format(t=kind, o="f32"), ["f32"] * 2, shapes, k, expected, kind)


@pytest.mark.parametrize("heads, depth", [(2, 64), (3, 12), (16, 128), (5, 7)])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_heads(kind, heads, depth):
    compare(
        V.PROJECTION.format(t=kind, o=kind),
        [kind] * 2,
        [(2, heads, 70, depth), (heads, depth, 72)],
        heads * depth,
        V.projected,
    )
    compare(
        V.TO_HEADS.format(t=kind, o=kind),
        [kind] * 2,
        [(2, 70, 136), (136, heads, depth)],
        136,
        lambda n, w: np.einsum("bse,ehd->bhsd", n, w),
    )


@pytest.mark.parametrize("sizes", [(2, 3, 9, 11, 5, 3, 5), (3, 32, 28, 28, 64, 3, 3), (1, 17, 29, 31, 19, 1, 3)])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_convolutions(kind, sizes):
    n, c, h, w, k, r, s = sizes
    compare(T.CONV.format(t=kind, o=kind), [kind] * 2, [(n, c, h, w), (k, c, r, s)], c * r * s, convolved)


def convolved(x: np.ndarray, f: np.ndarray) -> np.ndarray:
    (h, w), (r, s) = x.shape[2:], f.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (r // 2, r // 2), (s // 2, s // 2)))
    parts = [
        np.einsum("nchw,kc->nkhw", padded[:, :, i : i + h, j : j + w], f[:, :, i, j])
        for i in range(r)
        for j in range(s)
    ]
    return sum(parts)
