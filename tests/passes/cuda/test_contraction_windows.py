"""Convolutions for CUDA: factors at affine places, copied as boxes by TMA and as pieces by cp.async, run by the emulator and the
interpreter, and compiled at sizes that matter."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import assert_within
from tools import contractions as T
from tools import lowering
from tools.contractions import check, lowered, mma
from tools.cuda_kernels import compiled
from tools.plans import rewritten

from tilec.core.diagnostics import CallError, Source
from tilec.core.targets import load
from tilec.kernels import matrix
from tilec.plan.cuda import choose_contraction as planned
from tilec.plan.schedule.write import write_schedule
from tilec.semantics.interpreted import interpret_stage

CONV = """op conv(x: {t}[N, H, W, C], f: {t}[R, S, C, K]) -> (y: {o}[N, H, W, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - 1, w + s - 1, c], 0) * f[r, s, c, k])
}}
"""
OUTSIDE_IS_ONE = CONV.replace("c], 0)", "c], 1)")
GUARDED = CONV.replace(
    "pad(x[n, h + r - 1, w + s - 1, c], 0)",
    "(x[n, h + r - 1, w + s - 1, c] if 1 <= h + r and h + r <= H and w + s > 0 and w + s - 1 < W else 0)",
)
PARTLY = GUARDED.replace("1 <= h", "2 <= h")
DILATED = CONV.replace("h + r - 1", "h + 2 * r - 2").replace("w + s - 1", "w + 2 * s - 2")
STRIDED = """op conv(x: {t}[N, 2 * H - 1, 2 * W, C], f: {t}[K, R, S, C]) -> (y: {o}[N, H, W, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, 2 * h + r - 1, 2 * w + s - 1, c], 0) * f[k, r, s, c])
}}
"""
GROUPED = """op conv(x: {t}[N, H, W, G * C], f: {t}[G, K, R, S, C]) -> (y: {o}[N, H, W, G, K]) {{
 y[n, h, w, g, k] = sum[r, s, c](pad(x[n, h + r - 1, w + s - 1, g * C + c], 0) * f[g, k, r, s, c])
}}
"""
ONE_DIM = """op conv(x: {t}[N, L, C], f: {t}[R, C, K], b: {o}[K]) -> (y: {o}[N, L, K]) {{
 y[n, l, k] = max(sum[r, c](pad(x[n, l + r - 2, c], 0) * f[r, c, k]) + b[k], 0)
}}
"""
THREE_DIMS = """op conv(x: {t}[D, H, W, C], f: {t}[Q, R, S, C, K]) -> (y: {o}[D, H, W, K]) {{
 y[d, h, w, k] = sum[q, r, s, c](pad(x[d + q - 1, h + r - 1, w + s - 1, c], 0) * f[q, r, s, c, k])
}}
"""
BACKWARD = """op conv(g: {t}[N, H, W, K], f: {t}[R, S, C, K]) -> (x: {o}[N, H, W, C]) {{
 x[n, h, w, c] = sum[r, s, k](pad(g[n, h - r + 1, w - s + 1, k], 0) * f[r, s, c, k])
}}
"""
OF_WEIGHTS = """op conv(x: {t}[N, H, W, C], g: {t}[N, H, W, K]) -> (f: {o}[3, 3, C, K]) {{
 f[r, s, c, k] = sum[n, h, w](pad(x[n, h + r - 1, w + s - 1, c], 0) * g[n, h, w, k])
}}
"""
OF_STRIDED_WEIGHTS = OF_WEIGHTS.replace("x: {t}[N, H, W, C]", "x: {t}[N, 2 * H, 2 * W, C]")
OF_STRIDED_WEIGHTS = OF_STRIDED_WEIGHTS.replace("n, h + r", "n, 2 * h + r").replace("w + s", "2 * w + s")
CHANNELS_FIRST = """op conv(x: {t}[N, C, H, W], f: {t}[K, R, S, C]) -> (y: {o}[N, K, H, W]) {{
 y[n, k, h, w] = sum[r, s, c](pad(x[n, c, h + r - 1, w + s - 1], 0) * f[k, r, s, c])
}}
"""
ANY_WINDOW = """op conv(x: {t}[N, H, W, C], f: {t}[K, C, R, S]) -> (y: {o}[N, H, W, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - R // 2, w + s - S // 2, c], 0) * f[k, c, r, s])
}}
"""
SIZES = {"N": 2, "H": 9, "W": 7, "C": 64, "K": 40, "R": 3, "S": 3}
FEW = SIZES | {"C": 24, "H": 6}


def np_conv(x, f, stride=1, pad=1, spread=1, outside=0):
    """NHWC by RSCK, by hand."""
    (_, h, w, _), (r, s, _, _) = x.shape, f.shape
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=outside)
    high, wide = ((e + 2 * pad - spread * (n - 1) - 1) // stride + 1 for e, n in ((h, r), (w, s)))
    windows = (
        np.einsum("nhwc,ck->nhwk", x[:, a:, b:][:, : stride * high : stride, : stride * wide : stride], f[i, j])
        for i, a in enumerate(range(0, r * spread, spread))
        for j, b in enumerate(range(0, s * spread, spread))
    )
    return sum(windows)


def kc_last(f):
    return f.transpose(1, 2, 3, 0)


def np_one_dim(x, f, b):
    padded = np.pad(x, ((0, 0), (2, 2), (0, 0)))[:, None]
    return np.maximum(np_conv(padded, f[None], pad=0)[:, 0] + b, 0)


def np_three_dims(x, f):
    padded = np.pad(x, ((1, 1), (0, 0), (0, 0), (0, 0)))
    return sum(np_conv(padded[q : q + len(x)], f[q]) for q in range(len(f)))


def np_grouped(x, f):
    parts = np.split(x, len(f), axis=3)
    return np.stack([np_conv(part, kc_last(g)) for part, g in zip(parts, f)], 3)


CASES = {
    "plain": (CONV, SIZES, np_conv),
    "few channels": (CONV, FEW, np_conv),
    "guarded": (GUARDED, FEW, np_conv),
    "dilated": (DILATED, SIZES, lambda x, f: np_conv(x, f, pad=2, spread=2)),
    "strided": (STRIDED, SIZES | {"H": 5}, lambda x, f: np_conv(x, kc_last(f), 2)),
    "grouped": (GROUPED, SIZES | {"G": 2, "H": 3}, np_grouped),
    "one dimension": (ONE_DIM, {"N": 3, "L": 37, "C": 24, "K": 40, "R": 5}, np_one_dim),
    "three dimensions": (THREE_DIMS, {"D": 3, "H": 5, "W": 4, "C": 32, "K": 24, "Q": 3, "R": 3, "S": 3}, np_three_dims),
    "backward": (BACKWARD, FEW | {"K": 64}, lambda g, f: np_conv(g, f[::-1, ::-1].transpose(0, 1, 3, 2))),
    "a window of one": (ANY_WINDOW, SIZES | {"R": 1, "S": 1}, lambda x, f: np_conv(x, f.transpose(2, 3, 1, 0), pad=0)),
}
WGMMA = {64: ("wgmma", 64, 64, 64, (4, 1)), 128: ("wgmma", 128, 64, 64, (8, 1))}


@pytest.mark.parametrize("name", CASES)
def test_boxes(name, monkeypatch):
    """TMA copies windows: shifted boxes with zeros outside."""
    text, sizes, expected = CASES[name]
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    result = check(text, ("bf16", "bf16"), sizes, WGMMA[64], expected, monkeypatch)
    assert len(result.emitted.kernels) == 1


@pytest.mark.parametrize("name", CASES)
def test_pieces(name, monkeypatch):
    """cp.async copies windows 16 bytes at a time, where these lie inside a line of the tensor."""
    text, sizes, expected = CASES[name]
    small = {d: min(n, {"C": 24, "K": 24, "H": 4}.get(d, n)) for d, n in sizes.items()}
    result = check(text, ("f16", "f32"), small, mma(), expected, monkeypatch, "a100")
    assert result.plan.kernels[-1].options.left_copy == "async"


@pytest.mark.parametrize("offsets", [(8, 1), (1, 8)], ids=str)
@pytest.mark.parametrize("result", ["i, j", "j, i"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_tiles_of_one_element(kind, result, offsets):
    """What is computed from the index of a tile's only row depends on no index of the block any more. One of the factors is copied
    in pieces; rows of the other begin between those."""
    text = f"""op f(x: {kind}[3, 80], w: {kind}[4, 80]) -> (y: f32[{"2, 3" if result == "i, j" else "3, 2"}]) {{
        y[{result}] = sum[k](x[i + 1, k + {offsets[0]}] * w[j + 1, k + {offsets[1]}]) where k in 0:64
    }}"""

    def ones(plan):
        (kernel,) = plan.kernels
        return replace(plan, kernels=(replace(kernel, tile=(1,) * len(kernel.grid)),))

    specialised, found = lowering.lowered(text, None, {}, ones, "h200")
    assert sorted(found.plan.kernels[0].options.copies) == ["async", "registers"]
    inputs = T.arrays(specialised)
    assert_within(text, inputs, T.emulated(specialised, found, inputs), kind="cuda")


@pytest.mark.parametrize("rows", WGMMA)
def test_channels_first(rows, monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    expected = lambda x, f: np_conv(x.transpose(0, 2, 3, 1), kc_last(f)).transpose(0, 3, 1, 2)  # noqa: E731
    check(CHANNELS_FIRST, ("bf16", "bf16"), SIZES | {"W": 16, "H": 3, "N": 1}, WGMMA[rows], expected, monkeypatch)


def test_the_right_factor_stays(monkeypatch):
    """Blocks that compute several tiles copy the weights once."""
    sizes = FEW | {"N": 5, "H": 8, "K": 24}
    monkeypatch.setattr(planned, "pick", lambda choices, nth: next(c.tile for c in choices if c.tile.kept))
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 4)
    text = CONV.format(t="bf16", o="f32")
    specialised, result = lowering.lowered(Source("t.tile", text), None, sizes, target=replace(load("h200"), units=2))
    (kernel,) = result.plan.kernels
    assert kernel.options.kept_steps == 9 and kernel.options.persistent_blocks == 2
    inputs = T.arrays(specialised)
    exact = np_conv(*(a.astype(np.float64) for a in inputs))
    np.testing.assert_allclose(T.emulated(specialised, result, inputs)[0], exact, rtol=1e-4, atol=1e-3)
    (found,) = interpret_stage(specialised, result.texts, "map", dict(zip("xf", inputs))).values()
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-3)


def np_of_weights(stride):
    def expected(x, g):
        (_, high, wide, _), x = g.shape, np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        window = lambda r, s: x[:, r:, s:][:, : stride * high : stride, : stride * wide : stride]  # noqa: E731
        return np.array([[np.einsum("nhwc,nhwk->ck", window(r, s), g) for s in range(3)] for r in range(3)])

    return expected


@pytest.mark.parametrize(
    "text, stride, pixels, box",
    [
        (OF_WEIGHTS, 1, {"N": 3, "H": 4, "W": 12}, (4, 4, 4)),
        (OF_STRIDED_WEIGHTS, 2, {"N": 20, "H": 2, "W": 6}, (16, 2, 2)),
    ],
)
def test_boxes_of_pixels_are_summed_over(text, stride, pixels, box, monkeypatch):
    """The gradient of weights: k is a pixel, and a step along k is a box of pixels."""
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    sizes = pixels | {"C": 64, "K": 24}
    result = check(text, ("bf16", "f32"), sizes, WGMMA[64], np_of_weights(stride), monkeypatch)
    assert result.plan.kernels[-1].options.inner_box == box


def test_boxes_of_several_images(monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    result = check(CONV, ("bf16", "f32"), SIZES | {"N": 3, "K": 24}, WGMMA[128], np_conv, monkeypatch)
    assert dict(zip("nhwk", result.plan.kernels[-1].tile)) == {"n": 2, "h": 9, "w": 7, "k": 24}


def test_what_is_outside_is_not_zero(monkeypatch):
    """Then threads compute the factor."""
    expected = lambda x, f: np_conv(x, f, outside=1)  # noqa: E731
    result = check(OUTSIDE_IS_ONE, ("bf16", "bf16"), FEW, mma(), expected, monkeypatch)
    assert result.plan.kernels[-1].options.copies == ("registers", "async")


def test_conditions_of_its_own(monkeypatch):
    """Where the program asks for more than "inside the tensor", cp.async obeys it, and TMA could not."""

    def without_first_row(x, f):
        return np_conv(np.concatenate([0 * x[:, :1], x[:, 1:]], 1), f)

    result = check(PARTLY, ("bf16", "bf16"), FEW, mma(), without_first_row, monkeypatch)
    assert result.plan.kernels[-1].options.copies == ("registers", "async")
    plan = lowering.planned(PARTLY.format(t="bf16", o="bf16"), None, SIZES | {"H": 64, "W": 64})
    assert plan.kernels[-1].options.instruction == "mma.sync"


def test_groups_of_few_channels(monkeypatch):
    """A box would go on into the next group's channels, which may hold a NaN: matrix units would add 0 times it."""
    plan = lowering.planned(GROUPED.format(t="bf16", o="bf16"), None, SIZES | {"G": 2, "C": 32, "H": 64, "W": 64})
    assert plan.kernels[-1].options.left_copy == "async"


@pytest.mark.parametrize("name", ["strided", "a window of one"])
def test_interpreted(name, monkeypatch):
    text, sizes, expected = CASES[name]
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    specialised, result = lowered(text.format(t="bf16", o="f32"), sizes | {"K": 16}, "h200", WGMMA[64], monkeypatch)
    inputs = T.arrays(specialised)
    (found,) = interpret_stage(specialised, result.texts, "map", dict(zip("xf", inputs))).values()
    np.testing.assert_allclose(found, expected(*(a.astype(np.float64) for a in inputs)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("text, channels, target, instruction", [
    (CONV, 256, "a100", "mma.sync"), (STRIDED, 128, "a100", "mma.sync"), (CHANNELS_FIRST, 128, "a100", "mma.sync"),
    (CONV, 256, "h200", "wgmma"), (STRIDED, 128, "h200", "wgmma"),
    (CHANNELS_FIRST, 128, "h200", "wgmma"),  # from images with channels last, which are stored first
])  # fmt: skip
def test_large_windows_fit_registers(text, channels, target, instruction):
    sizes = {"N": 32, "C": channels, "H": 28, "W": 64, "K": 256, "R": 3, "S": 3}
    _, result = lowered(text.format(t="bf16", o="bf16"), sizes, target)
    *stored, plan = result.plan.kernels
    assert plan.options.instruction == instruction and len(stored) == len(result.plan.steps("pack"))
    assert len(compiled(result.emitted, load(target).chip)) == 1 + len(stored)


IMAGES_FIRST = """op conv(x: {t}[N, C, H, W], f: {t}[K, C, R, S]) -> (y: {o}[N, K, H, W]) {{
 y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - 1, w + s - 1], 0) * f[k, c, r, s]){using}
}}
"""
SIGNALS_FIRST = """op conv(x: {t}[N, C, L], f: {t}[K, C, R]) -> (y: {o}[N, K, L]) {{
 y[n, k, l] = sum[c, r](pad(x[n, c, l + r - 1], 0) * f[k, c, r]){using}
}}
"""
VOLUMES_FIRST = """op conv(x: {t}[N, C, D, H, W], f: {t}[K, C, Q, R, S]) -> (y: {o}[N, K, D, H, W]) {{
 y[n, k, d, h, w] = sum[c, q, r, s](pad(x[n, c, d + q - 1, h + r - 1, w + s - 1], 0) * f[k, c, q, r, s]){using}
}}
"""
STRIDED_FIRST = """op conv(x: {t}[N, C, 2 * H, 2 * W], f: {t}[K, C, R, S]) -> (y: {o}[N, K, H, W]) {{
 y[n, k, h, w] = sum[c, r, s](pad(x[n, c, 2 * h + r - 1, 2 * w + s - 1], 0) * f[k, c, r, s]){using}
}}
"""
GROUPS_FIRST = """op conv(x: {t}[N, G * C, H, W], f: {t}[G, K, C, R, S]) -> (y: {o}[N, G, K, H, W]) {{
 y[n, g, k, h, w] = sum[c, r, s](pad(x[n, g * C + c, h + r - 1, w + s - 1], 0) * f[g, k, c, r, s]){using}
}}
"""


def np_first(x, f, stride=1):
    """Channels before any number of places, by hand."""
    places = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *[(1, 1)] * places))
    taken = [(e - n) // stride + 1 for e, n in zip(x.shape[2:], f.shape[2:])]
    result = np.zeros((x.shape[0], f.shape[0], *taken), x.dtype)
    for at in np.ndindex(*f.shape[2:]):
        window = x[(slice(None), slice(None), *(slice(a, a + stride * n, stride) for a, n in zip(at, taken)))]
        result += np.einsum("nc...,kc->nk...", window, f[(slice(None), slice(None), *at)])
    return result


def np_groups_first(x, f):
    return np.stack([np_first(part, own) for part, own in zip(np.split(x, len(f), axis=1), f)], 1)


FIRST = {"N": 2, "C": 64, "K": 40, "H": 6, "W": 7, "R": 3, "S": 3}
CHANNELS_LAST_CASES = {
    "images": (IMAGES_FIRST, FIRST, np_first, (0, 2, 3, 1)),
    "few channels": (IMAGES_FIRST, FIRST | {"C": 20}, np_first, (0, 2, 3, 1)),
    "several lines of channels": (IMAGES_FIRST, FIRST | {"C": 136, "H": 3}, np_first, (0, 2, 3, 1)),
    "signals": (SIGNALS_FIRST, {"N": 2, "C": 64, "K": 40, "L": 37, "R": 3}, np_first, (0, 2, 1)),
    "volumes": (VOLUMES_FIRST, FIRST | {"N": 1, "D": 3, "H": 3, "W": 5, "Q": 3}, np_first, (0, 2, 3, 4, 1)),
    "strided": (STRIDED_FIRST, FIRST | {"H": 3}, lambda x, f: np_first(x, f, 2), (0, 2, 3, 1)),
    "groups": (GROUPS_FIRST, FIRST | {"G": 2, "H": 3}, np_groups_first, (0, 2, 3, 1)),
}


ROUNDED = [("f16", ""), ("f32", " using tf32"), ("f32", " using bf16"), ("f8e4m3", "")]
FORMS = [*((name, "bf16", "") for name in CHANNELS_LAST_CASES), *(("few channels", *kind) for kind in ROUNDED)]


@pytest.mark.some(4)
@pytest.mark.parametrize("name, kind, using", FORMS)
def test_tensors_are_stored_with_channels_last(name, kind, using, monkeypatch):
    """The channels are then lines that TMA copies, where windows move the places."""
    text, sizes, expected, order = CHANNELS_LAST_CASES[name]
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    tile = ("wgmma", 64, 64, 32 if "tf32" in using else 128 if kind == "f8e4m3" else 64, (4, 1))
    result = check(text.replace("{using}", using), (kind, "f32"), sizes, tile, expected, monkeypatch, pack=True)
    images, *others = sorted(result.plan.steps("pack"), key=lambda p: p.order != order)
    assert images.order == order and images.kind == (using.split()[-1] if using else kind)
    assert len(result.plan.kernels) == 2 + len(others)


THIRDS_FIRST = """op conv(x: {t}[N, C, 3 * H, 3 * W], f: {t}[K, C, R, S]) -> (y: {o}[N, K, H, W]) {{
 y[n, k, h, w] = sum[c, r, s](pad(x[n, c, 3 * h + r - 1, 3 * w + s - 1], 0) * f[k, c, r, s]){using}
}}
"""
PIECES = {
    "images of three": (IMAGES_FIRST, FIRST | {"C": 3, "K": 20}, np_first),
    "images of seven": (IMAGES_FIRST, FIRST | {"C": 7, "K": 20}, np_first),
    "signals of three": (SIGNALS_FIRST, {"N": 2, "C": 3, "K": 24, "L": 37, "R": 3}, np_first),
    "volumes of three": (VOLUMES_FIRST, FIRST | {"N": 1, "C": 3, "D": 3, "H": 3, "W": 5, "Q": 3}, np_first),
    "every second": (STRIDED_FIRST, FIRST | {"C": 3, "H": 3}, lambda x, f: np_first(x, f, 2)),
    "every third": (THIRDS_FIRST, FIRST | {"C": 3, "H": 3}, lambda x, f: np_first(x, f, 3)),
    "every third of many": (THIRDS_FIRST, FIRST | {"C": 16, "H": 3, "R": 4, "S": 4}, lambda x, f: np_first(x, f, 3)),
}


@pytest.mark.some(4)
@pytest.mark.parametrize("kind, using", [("bf16", ""), ("f32", " using tf32")])
@pytest.mark.parametrize("name", PIECES)
def test_few_channels_are_stored_in_pieces(name, kind, using, monkeypatch):
    """With zeros behind, in both factors: a piece of 16 bytes is the channels of one place."""
    text, sizes, expected = PIECES[name]
    tile = mma(32, 32, 16 if using and sizes["C"] < 16 else 32)
    result = check(text.replace("{using}", using), (kind, "f32"), sizes, tile, expected, monkeypatch, pack=True)
    assert result.plan.kernels[-1].options.copies == ("async", "async")
    images, weights = sorted(result.plan.steps("pack"), key=lambda p: p.side != "left" and not p.order)
    assert images.order[-1] == 1
    channels = weights.extents[-1] if weights.extents else sizes["C"]
    assert channels % (4 if using else 8) == 0 and channels - sizes["C"] < 8


def test_strides_of_three_are_packed_where_that_pays():
    """Boxes that skip two of three elements are no copies of TMA's."""
    sizes = {"N": 64, "C": 64, "H": 64, "W": 64, "K": 128, "R": 3, "S": 3}
    text = THIRDS_FIRST.replace("{using}", " using tf32").format(t="f32", o="f32")
    plan = lowering.planned(text, None, sizes)
    assert plan.steps("pack") and plan.kernels[-1].options.copies == ("async", "async")


@pytest.mark.parametrize("kind, using", [("bf16", ""), ("f32", " using tf32")])
def test_channels_are_stored_last_where_that_pays(kind, using):
    """And left where they are for a small convolution, which takes less time than a further kernel."""
    text = IMAGES_FIRST.replace("{using}", using).format(t=kind, o=kind)
    large = {"N": 128, "C": 64, "H": 128, "W": 128, "K": 128, "R": 3, "S": 3}
    plan = lowering.planned(text, None, large)
    assert [p.order for p in plan.steps("pack")] == [(0, 2, 3, 1)] * 2
    assert plan.kernels[-1].options.left_copy == plan.kernels[-1].options.right_copy == "tma"
    (reason,) = {a.reason for a in plan.rewrites}
    assert "unpacked" in reason and "with copies that TMA can load" in reason
    assert not lowering.planned(text, None, large | {"N": 1, "H": 8, "W": 8}).steps("pack")


@pytest.mark.some(4)
@pytest.mark.parametrize("images", ["f16", "f8e4m3", "i8", "i32", "f32"])
@pytest.mark.parametrize("filters", ["bf16", "f8e5m2", "u8", "f32"])
def test_tensors_of_other_types_than_are_multiplied(images, filters):
    """One of narrower elements, or of as many bits, is left as it is: it would be read at its own type."""
    using = " using bf16" if "f32" in (images, filters) else ""
    text = IMAGES_FIRST.replace("{using}", using).replace("{t}", images, 1).replace("{t}", filters, 1).format(o="f32")
    sizes = {"N": 8, "C": 64, "H": 32, "W": 32, "K": 128, "R": 3, "S": 3}
    made = lowering.lowered(text, None, sizes, emit=False)[1]
    bits = {"x": images, "f": filters}
    for pack in made.plan.steps("pack"):
        stored = bits["x" if pack.side == "left" else "f"]
        assert not pack.order or stored in ("f32", pack.kind)


TWICE = """op conv(x: {t}[N, C, H, W], f: {t}[K, C, R, S], g: {t}[K, C, R, S]) -> (y: {o}[N, K, H, W]) {{
 t[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - 1, w + s - 1], 0) * f[k, c, r, s]){using}
 y[n, k, h, w] = (sum[c, r, s](pad(x[n, c, h + r - 1, w + s - 1], 0) * g[k, c, r, s]){using}) + t[n, k, h, w]
}}
"""


def test_a_tensor_that_two_products_read_is_stored_once(monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    expected = lambda x, f, g: np_first(x, f) + np_first(x, g)  # noqa: E731
    result = check(
        TWICE.replace("{using}", ""),
        ("bf16", "f32"),
        FIRST | {"N": 1, "H": 3},
        WGMMA[64],
        expected,
        monkeypatch,
        pack=True,
    )
    assert len(result.plan.steps("pack")) == 4
    stored = [k.nodes for k in result.plan.kernels if k.options.name in ("points", "transpose")]
    assert sorted(name for nodes in stored for name in nodes) == ["t.left", "t.right", "y.sum.right"]


def test_storing_once_pays_for_several_products():
    """Each alone would take longer with a copy of its own."""
    sizes = {"N": 2, "C": 64, "H": 64, "W": 64, "K": 32, "R": 2, "S": 3}
    texts = [text.replace("{using}", " using tf32").format(t="f32", o="f32") for text in (IMAGES_FIRST, TWICE)]
    alone, both = (lowering.planned(text, None, sizes) for text in texts)
    assert not alone.steps("pack") and len(both.steps("pack")) == 4
    assert both.time_us < 2 * alone.time_us and "with a copy that 2 kernels read" in both.rewrites[0].reason


def test_a_schedule_names_the_order():
    """As `tilec plan` writes it; another order is refused with those that there are."""
    text = IMAGES_FIRST.replace("{using}", "").format(t="bf16", o="bf16")
    sizes = {"N": 64, "C": 64, "H": 64, "W": 64, "K": 128, "R": 3, "S": 3}
    planned_for = lambda **step: lowering.lowered(text, None, sizes, rewritten(pack=[step]), end="plan", emit=False)  # noqa: E731
    special, own = lowering.lowered(text, None, sizes, end="plan", emit=False)
    assert write_schedule(own.plan, special).count("order = [0, 2, 3, 1]") == 2
    assert planned_for(operation="y.sum")[1].plan.rewrites == own.plan.rewrites
    (left,) = planned_for(operation="y.sum", side="left", order=[0, 2, 3, 1])[1].plan.steps("pack")
    assert left.stored == "y.sum.left"
    with pytest.raises(CallError, match=r"order = \[0, 2, 3, 1\]"):
        planned_for(operation="y.sum", order=[0, 3, 2, 1])
