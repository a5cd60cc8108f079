"""Reductions in parts that depend on one another: sums of distances from what another sum tells, each part about its own mean."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16
from tools.emulation import run_printed
from tools.lowering import lowered
from tools.plans import rewritten

import tilec
from tilec.core.diagnostics import CallError
from tilec.plan import split_reduction

UNIT = 2.0**-24
SHAPES = {  # dimensions, those of the result, those reduced, sizes, NumPy's axes
    "rows": ("i, j", "i", "j", (3, 1200), 1),
    "columns": ("i, j", "j", "i", (1200, 8), 0),
    "middle": ("i, j, k", "i, k", "j", (2, 600, 8), 1),
    "outer and inner": ("i, j, k", "j", "i, k", (30, 3, 40), (0, 2)),
    "outer and inner, swapped": ("i, j, k", "j", "k, i", (30, 3, 40), (0, 2)),
}
FORMS = {  # of the numbers, and of the squares
    "a tensor": ("{x}", "(x[{all}] - m{at}) ** 2"),
    "negated": ("{x}", "(m{at} - x[{all}]) ** 2"),
    "named": ("{x}", "d[{all}] * d[{all}]"),
    "computed": ("{x} + 1", "(x[{all}] + 1 - m{at}) ** 2"),
    "bf16": ("f32({x})", "(f32(x[{all}]) - m{at}) ** 2"),
    "from another value": ("{x}", "(x[{all}] - (0.5 * m{at} + b{at})) ** 2"),
}


def program(shape: str, form: str) -> str:
    every, own, reduced, sizes, _ = SHAPES[shape]
    extents = dict(zip(every.split(", "), sizes))
    kept, at = f"[{', '.join(str(extents[d]) for d in own.split(', '))}]", f"[{own}]"
    number, square = (text.format(x=f"x[{every}]", all=every, at=at) for text in FORMS[form])
    named = f"d[{every}] = x[{every}] - m{at}\n" if form == "named" else ""
    type_ = "bf16" if form == "bf16" else "f32"
    head = f"op f(x: {type_}[{', '.join(map(str, sizes))}], b: f32{kept}) -> (m: f32{kept}, v: f32{kept})"
    return f"{head} {{ m{at} = mean[{reduced}]({number})\n {named} v{at} = mean[{reduced}]({square}) }}"


def expected(shape: str, form: str, x: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes, exact = SHAPES[shape][4], x.astype(np.float64) + (form == "computed")
    mean = exact.mean(axis=axes, keepdims=True)
    other = 0.5 * mean + b.reshape(mean.shape) if form == "from another value" else mean
    return mean.squeeze(axes), ((exact - other) ** 2).mean(axis=axes)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of numbers of elements that tests can compute, whatever they cost."""
    monkeypatch.setattr(split_reduction, "MIN_PART", 16)
    monkeypatch.setattr(split_reduction, "COMPARED", 1e9)
    monkeypatch.setattr(split_reduction, "SAVING", 1e9)


@pytest.mark.some(6)
@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize("shape, form", [(s, f) for s in SHAPES for f in FORMS if (s, f) != ("rows", "bf16")])  # not emulated
def test_parts_are_about_their_own_means(shape, form, offset, rng, small_parts):
    sizes, axes = SHAPES[shape][3:]
    x = (rng.standard_normal(sizes) + offset * (form != "bf16")).astype(bfloat16 if form == "bf16" else np.float32)
    b = rng.standard_normal(x.sum(axis=axes).shape).astype(np.float32)
    special, made = lowered(program(shape, form), None, {}, rewritten(split=True))
    about = [s for s in made.plan.steps("split") if s.about]
    parts = [n for k in made.plan.kernels for n in k.nodes if ".partial" in n]
    assert about and len(made.plan.kernels) == 2 and set(parts) <= set(made.plan.kernels[0].nodes)
    found, _ = run_printed(special, made, [x, b])
    mean, variance = expected(shape, form, x, b)
    n, most = x.size // mean.size, np.abs(x).max() + 1.0
    assert (np.abs(found[0] - mean) <= (n + 4) * UNIT * most).all()
    left = (n * UNIT * most) ** 2 * UNIT + (4 * UNIT * most) ** 2
    scale = variance + (2 * UNIT * most * np.sqrt(variance) if form != "from another value" else most * np.sqrt(variance))
    assert (np.abs(found[1] - variance) <= 4 * (n + 4) * UNIT * scale + left).all()


def test_parts_on_a_cpu(rng, small_parts):
    text = program("outer and inner", "a tensor")
    x, b = rng.standard_normal((30, 3, 40)).astype(np.float32), np.zeros(3, np.float32)
    assert any(s.about for s in lowered(text, None, {}, rewritten(split=True), target="cpu")[1].plan.steps("split"))
    found = tilec.compile(text)(x, b)
    assert np.abs(found[1] - expected("outer and inner", "a tensor", x, b)[1]).max() <= 4 * 1204 * UNIT * 2


def test_parts_with_infinities(rng, small_parts):
    """A part that has none is finite, and its distance from the mean of all is not."""
    x = rng.standard_normal((1200, 8)).astype(np.float32)
    x[5, 0], x[9, 1], x[7, 2], x[:, 3], x[:, 4] = np.inf, -np.inf, np.nan, x[:, 3] * 1e30, 3.3
    special, made = lowered(program("columns", "a tensor"), None, {}, rewritten(split=True))
    mean, variance = run_printed(special, made, [x, np.zeros(8, np.float32)])[0]
    assert mean[0] == np.inf and mean[1] == -np.inf and np.isnan(mean[2]) and np.isfinite(mean[3:]).all()
    assert np.isnan(variance[:3]).all() and variance[3] == np.inf and 0 <= variance[4] < 1e-9


def test_parts_as_a_schedule_names_them(small_parts):
    text = program("columns", "a tensor")
    steps = lowered(text, None, {}, rewritten(split=True), end="plan", emit=False)[1].plan.steps("split")
    fields = [{k: v for k, v in vars(s).items() if v != ""} for s in steps]
    again = lowered(text, None, {}, rewritten(split=fields[::-1]), end="plan", emit=False)[1].plan
    assert {*again.steps("split")} == {*steps} and len(again.kernels) == 2
    squares = next(s for s in steps if s.rest)
    for given, words in (
        ([squares.operation], "are about those of `m.sum`, which has to be in"),
        ([{"operation": squares.operation, "dim": squares.dim, "parts": 2, "about": "m.sum"}], "leave out `about` and `rest`"),
    ):
        with pytest.raises(CallError, match=words):
            lowered(text, None, {}, rewritten(split=given), end="plan", emit=False)
