"""Parts of concatenations that kernels store where they lie: which they are, and the values of all stages and printed kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import assert_within
from tools import contractions
from tools.cuda_matrix_emulator import MatrixIntrinsics
from tools.emulation import run_printed
from tools.lowering import lowered, specialised

from tilec.core.diagnostics import Source
from tilec.plan.cuda import contraction
from tilec.plan.model import Plan
from tilec.semantics.interpreter import interpret

IMAGES = """op f(x: f32[2, 16, 4, 8], w: f32[24, 16], v: f32[8, 16], z: f32[2, 40, 4, 8], b: f32[8]) -> (y: f32[{shape}]) {{
    s[n, k, h, i] = sum[c](x[n, c, h, i] * w[k, c])
    t[n, k, h, i] = sum[c](x[n, c, h, i] * v[k, c])
    {body}
}}"""
TWO = "{name}[n, k, h, i] = {first} if k < 24 else {second} where n in 0:2, k in 0:32, h in 0:4, i in 0:8"
ROWS = """op f(x: f32[3, 6, 16], w: f32[16, 16], v: f32[24, 16], z: f32[3]) -> (y: f32[3, 6, {extent}]) {{
    s[n, h, k] = sum[c](x[n, h, c] * w[k, c])
    t[n, h, k] = sum[c](x[n, h, c] * v[k, c])
    y[n, h, k] = s[n, h, k] if k < 16 else {second} where n in 0:3, h in 0:6, k in 0:{extent}
}}"""


def images(second: str = "t[n, k - 24, h, i]", first: str = "s[n, k, h, i]", then: str = "", shape: str = "2, 32, 4, 8") -> str:
    return IMAGES.format(shape=shape, body=TWO.format(name="u" if then else "y", first=first, second=second) + "\n    " + then)


THREE = """p[n, k, h, i] = z[n, k, h, i] * 2
    y[n, k, h, i] = s[n, k, h, i] if k < 24 else (p[n, k - 24, h, i] if k < 64 else t[n, k - 64, h, i])
        where n in 0:2, k in 0:72, h in 0:4, i in 0:8"""
NESTED = """r[n, k, h, i] = sum[c](x[n, c, h, i] * v[7 - k, c]) where k in 0:8
    y[n, k, h, i] = cos(u[n, k, h, i]) if k < 32 else r[n, k - 32, h, i] where n in 0:2, k in 0:40, h in 0:4, i in 0:8"""
POOLED = """p[n, k, h, i] = max[a in 0:3](pad(x[n, k, h, i + a - 1], -inf)) where h in 0:4, i in 0:8
    y[n, k, h, i] = s[n, k, h, i] if k < 24 else p[n, k - 24, h, i] where n in 0:2, k in 0:40, h in 0:4, i in 0:8"""
FORMS = {  # a program, the concatenations, and the results that are parts of them
    "products": (images(), ["y"], {"s", "t"}),
    "epilogues": (images("sin(t[n, k - 24, h, i] + b[k - 24])", "relu(s[n, k, h, i])"), ["y"], {"y.piece0", "y.piece1"}),
    "three": (IMAGES.format(shape="2, 72, 4, 8", body=THREE), ["y"], {"s", "p", "t"}),
    "an input that is changed": (images("exp(z[n, k - 24, h, i])"), ["y"], {"s", "y.piece1"}),
    "a pool": (IMAGES.format(shape="2, 40, 4, 8", body=POOLED), ["y"], {"s", "p"}),
    "read further": (images(then="y[n, h, i] = max[k](u[n, k, h, i] * u[n, 31 - k, h, i])", shape="2, 4, 8"), ["u"], {"s", "t"}),
    "a factor": (
        images(then="y[n, m, h, i] = sum[k](u[n, k, h, i] * w[m, k % 16]) where m in 0:24", shape="2, 24, 4, 8"), ["u"], {"s", "t"}
    ),
    "nested": (images(then=NESTED, shape="2, 40, 4, 8"), ["u", "y"], {"s", "t", "y.piece0", "r"}),
    "the first dimension": (
        """op f(x: f32[12, 16], w: f32[16, 20], v: f32[16, 20]) -> (y: f32[24, 20]) {
            s[m, n] = sum[k](x[m, k] * w[k, n])
            t[m, n] = sum[k](x[m, k] * v[k, n])
            y[m, n] = s[m, n] if m < 12 else t[m - 12, n] where m in 0:24, n in 0:20
        }""", ["y"], {"s", "t"},
    ),
    "the last dimension": (ROWS.format(extent=40, second="t[n, h, k - 16]"), ["y"], {"s", "t"}),
}  # fmt: skip
SPLIT = """op f(x: f32[8, 16384], w: f32[16384, 64], u: f32[16, 64]) -> (y: f32[24, 64]) {
    s[m, n] = sum[k](x[m, k] * w[k, n])
    t[m, n] = u[m, n] * 2
    y[m, n] = s[m, n] if m < 8 else t[m - 8, n] where m in 0:24, n in 0:64
}"""
WHOLE = {
    "a scan": IMAGES.format(
        shape="2, 32, 4, 8",
        body="r[n, k, h, i] = cumsum[i](t[n, k, h, i])\n    "
        + TWO.format(name="y", first="s[n, k, h, i]", second="r[n, k - 24, h, i]"),
    ),
    "an input": images("z[n, k - 24, h, i]"),
    "read elsewhere": images(then="y[n, k, h, i] = u[n, k, h, i] + t[n, k % 8, h, i]"),
    "lines of parts begin within accesses": ROWS.format(extent=20, second="t[n, h, k - 16]"),
    "one element": ROWS.format(extent=17, second="z[n] * 2"),
    "no products": """op f(a: f32[9, 8], b: f32[9, 8]) -> (y: f32[18, 8]) {
        s[i, j] = sin(a[i, j])
        t[i, j] = exp(b[i, j])
        y[i, j] = s[i, j] if i < 9 else t[i - 9, j] where i in 0:18, j in 0:8
    }""",
}


def given(text: str, rng) -> dict[str, np.ndarray]:
    return {t.name: rng.standard_normal([s.value for s in t.shape]).astype(np.float32) for t in specialised(text).inputs}


def stored(plan: Plan) -> list[str]:
    return [a.step.operation for a in plan.rewrites if a.rewrite == "parts"]


@pytest.mark.parametrize("name", FORMS)
def test_parts_are_stored_where_they_lie(name, rng):
    """In every stage, and by printed kernels. Nothing copies them."""
    text, concatenations, parts = FORMS[name]
    arrays = given(text, rng)
    special, result = lowered(text, None, arrays, target="h200", texts=True)
    assert stored(result.plan) == concatenations
    written = {name for kernel in result.plan.kernels for name in kernel.outputs}
    assert parts <= written and written.isdisjoint(concatenations)
    for stage in ("plan", "fuse", "bufferize", "map"):
        assert_within(text, arrays, list(interpret(result.texts[stage], arrays).values()), kind="cuda")
    found, failed = run_printed(special, result, arrays, MatrixIntrinsics)
    assert not any(failed)
    assert_within(text, arrays, found, kind="cuda")


def test_sums_in_parts_are_stored_where_they_lie():
    """Parts that nothing is computed from share no launch: they are in one memory."""
    _, result = lowered(Source("t.tile", SPLIT), None, texts=True)
    assert stored(result.plan) == ["y"] and result.plan.steps("split")
    assert sorted(re.findall(r"tilec.slab = array<i64: (.*?)>", result.texts["fuse"])) == ["0, 0, 24, 64", "8, 0, 24, 64"]


@pytest.mark.parametrize("name", WHOLE)
def test_other_concatenations_are_stored_as_a_whole(name):
    assert not stored(lowered(WHOLE[name], None, target="h200", end="plan", emit=False)[1].plan)


BOXES = """op f(x: bf16[2, 64, 4, 64], w: bf16[40, 64], v: bf16[24, 64]) -> (y: {t}[2, 64, 4, 64]) {{
    s[n, k, h, i]: {t} = sum[c](x[n, c, h, i] * w[k, c])
    t[n, k, h, i]: {t} = sum[c](x[n, c, h, i] * v[k, c])
    y[n, k, h, i]: {t} = {first} if k < 40 else t[n, k - 40, h, i] where n in 0:2, k in 0:64, h in 0:4, i in 0:64
}}"""


@pytest.mark.parametrize("first", ["s[n, k, h, i]", "relu(s[n, k, h, i])"])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_boxes_end_where_a_part_does(kind, first, monkeypatch):
    """Tiles have 64 rows, and parts 40 and 24: TMA would store the rest of a box in the part behind."""
    text = BOXES.format(t=kind, first=first)
    monkeypatch.setattr(contraction, "_is_buildable", lambda built: (built.instruction, *built.block[:2]) == ("wgmma", 64, 64))
    special, result = lowered(Source("t.tile", text), None)
    maps = [m for k in result.emitted.kernels for m in k.maps if m.dtype == kind and m.parameter == k.parameters - 1]
    assert [(m.shape, m.strides) for m in maps] == [((2, 40, 4, 64), (64 * 4 * 64, 4 * 64, 64, 1)), ((2, 64, 4, 64), ())]
    inputs = contractions.arrays(special)
    assert_within(text, inputs, list(interpret(result.texts["map"], dict(zip("xwv", inputs))).values()), kind="cuda")
    found, failed = run_printed(special, result, inputs, MatrixIntrinsics)
    assert not any(failed)
    assert_within(text, inputs, found, kind="cuda")


def test_a_cpu_computes_parts_in_one_loop():
    assert not stored(lowered(images(), None, target="cpu", end="plan", emit=False)[1].plan)
