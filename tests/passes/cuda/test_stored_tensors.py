"""Windows of f32 tensors that are stored first in bf16 parts, in an order of their dimensions in which TMA copies boxes of them."""

import re

import numpy as np
import pytest
from conftest import assert_within
from tools import contractions as T
from tools import cuda_emulator
from tools.cuda_kernels import compiled
from tools.lowering import planned
from tools.machines import H200, refitted

from tilec.core.fitted import WarpgroupTimes
from tilec.kernels import matrix

PARTS = refitted(H200, WarpgroupTimes, parts=1e-9)
TILE = ("wgmma", 64, 64, 64, (4, 1))
LAST = """op conv(x: {t}[N, H, W, C], f: {t}[K, R, S, C]) -> (y: f32[N, H, W, K]) {{
 y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - 1, w + s - 1, c], 0) * f[k, r, s, c])
}}
"""
FIRST = """op conv(x: {t}[N, C, H, W], f: {t}[K, C, R, S]) -> (y: f32[N, K, H, W]) {{
 y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - 1, w + s - 1], 0) * f[k, c, r, s])
}}
"""
FORMS = {
    "channels last": (LAST, {}),
    "channels first": (FIRST, {}),
    "strided": (FIRST.replace("h + r", "2 * h + r").replace("w + s", "2 * w + s").replace("H, W], f", "2 * H, 2 * W], f"), {}),
    "a single image": (
        "op conv(x: {t}[C, H, W], f: {t}[K, C, R, S]) -> (y: f32[K, H, W]) {{\n"
        " y[k, h, w] = sum[c, r, s](pad(x[c, h + r - 1, w + s - 1], 0) * f[k, c, r, s])\n}}", {},
    ),
    "one dimension": (
        "op conv(x: {t}[N, C, W], f: {t}[K, C, S]) -> (y: f32[N, K, W]) {{\n"
        " y[n, k, w] = sum[c, s](pad(x[n, c, w + s - 1], 0) * f[k, c, s])\n}}", {"W": 64},
    ),
    "three dimensions": (
        "op conv(x: {t}[N, C, D, H, W], f: {t}[K, C, Q, R, S]) -> (y: f32[N, K, D, H, W]) {{\n"
        " y[n, k, d, h, w] = sum[c, q, r, s](pad(x[n, c, d + q - 1, h + r - 1, w + s - 1], 0) * f[k, c, q, r, s])\n}}",
        {"N": 1, "D": 3, "Q": 2, "H": 4, "R": 2},
    ),
    "three dimensions, channels last": (
        "op conv(x: {t}[N, D, H, W, C], f: {t}[K, Q, R, S, C]) -> (y: f32[N, D, H, W, K]) {{\n"
        " y[n, d, h, w, k] = sum[q, r, s, c](pad(x[n, d + q - 1, h + r - 1, w + s - 1, c], 0) * f[k, q, r, s, c])\n}}",
        {"N": 1, "D": 3, "Q": 2, "H": 4, "R": 2},
    ),
    "grouped": (
        FIRST.replace("C, H", "G * C, H").replace("f: {t}[K", "f: {t}[G, K").replace("[N, K, H", "[N, G, K, H")
        .replace("y[n, k", "y[n, g, k").replace("x[n, c,", "x[n, g * C + c,").replace("f[k", "f[g, k"), {"G": 2},
    ),
    "three dimensions, grouped": (
        "op conv(x: {t}[N, G * C, D, H, W], f: {t}[G, K, C, Q, R, S]) -> (y: f32[N, G, K, D, H, W]) {{\n"
        " y[n, g, k, d, h, w] = sum[c, q, r, s](pad(x[n, g * C + c, d + q - 1, h + r - 1, w + s - 1], 0) * f[g, k, c, q, r, s])"
        "\n}}", {"N": 1, "G": 2, "D": 3, "Q": 2, "H": 4, "R": 2},
    ),
    "images of several groups": (
        "op conv(x: {t}[N, G, C, D, H, W], f: {t}[G, K, C, Q, R, S]) -> (y: f32[N, G, K, D, H, W]) {{\n"
        " y[n, g, k, d, h, w] = sum[c, q, r, s](pad(x[n, g, c, d + q - 1, h + r - 1, w + s - 1], 0) * f[g, k, c, q, r, s])"
        "\n}}", {"N": 1, "G": 2, "D": 3, "Q": 2, "H": 4, "R": 2},
    ),
}  # fmt: skip
SIZES = {"N": 2, "C": 64, "H": 5, "W": 6, "K": 40, "R": 3, "S": 3}
LARGE = {"N": 8, "C": 64, "D": 16, "H": 32, "W": 32, "K": 128, "Q": 3, "R": 3, "S": 3, "G": 4}


def written(name, kind, sizes):
    """A form's text, and those sizes that are in it."""
    text = FORMS[name][0].format(t=kind)
    return text, {k: v for k, v in sizes.items() if re.search(rf"\b{k}\b", text)}


def lowered(name, kind, monkeypatch):
    monkeypatch.setitem(matrix.DEEPEST, "wgmma", 2)
    text, sizes = written(name, kind, SIZES | FORMS[name][1])
    specialised, result = T.lowered(text, sizes, PARTS, TILE, monkeypatch, pack=True)
    return text, specialised, result


@pytest.mark.slow  # all stages of many tiles
@pytest.mark.parametrize("name, kind", [(name, "f32") for name in FORMS])
def test_windows(name, kind, monkeypatch):
    text, specialised, result = lowered(name, kind, monkeypatch)
    options = result.plan.kernels[-1].options
    assert options.multiplicand == {"f32": "bf16x3"}.get(kind, kind)
    assert options.copies == ("tma", "tma")
    inputs = T.arrays(specialised)
    if kind == "f32":  # a number that has no parts: sums that it goes into are of whole numbers
        inputs[0].reshape(-1)[inputs[0].size // 2] = np.inf
    assert_within(text, inputs, T.emulated(specialised, result, inputs), kind="cuda")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["channels last", "channels first"])
def test_results_do_not_depend_on_what_shared_memory_held(name, monkeypatch):
    """Boxes may have fewer rows than tiles: sums of the others, which may be NaN, do not have a thread add its products anew."""
    _, specialised, result = lowered(name, "f32", monkeypatch)
    inputs, found = T.arrays(specialised), []
    for byte in (0xA5, 0xFF):  # a small number, and NaN
        monkeypatch.setattr(cuda_emulator, "CANARY", byte)
        found.append([y.tobytes() for y in T.emulated(specialised, result, inputs)])
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["channels last", "channels first"])
def test_parts_pay_for_large_windows(name):
    """And fit registers: no spills, no stack."""
    sizes = {"N": 16, "C": 64, "H": 64, "W": 64, "K": 128, "R": 3, "S": 3}
    _, result = T.lowered(FORMS[name][0].format(t="f32"), sizes, "h200")
    assert [k.operation for k in result.plan.steps("pack")] == ["y", "y"]
    assert result.plan.kernels[-1].options.multiplicand == "bf16x3"
    assert len(compiled(result.emitted, "sm_90a")) == 3


@pytest.mark.parametrize("name", FORMS)
def test_planned(name):
    """In every form six products of parts take less than twice as long as six of bf16, storing included."""
    _, own = written(name, "f32", LARGE)
    sizes = LARGE | ({} if "D" in own else {"N": 32, "H": 64, "W": 64 if "H" in own else 4096})
    parts, narrow = (planned(text, None, own) for text, own in (written(name, kind, sizes) for kind in ("f32", "bf16")))
    assert parts.kernels[-1].options.multiplicand == "bf16x3" and len(parts.kernels) == 3
    assert parts.time_us < 2 * 6 * narrow.time_us
