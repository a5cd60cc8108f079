"""Variances at large offsets and scales: sums of squares of distances from a mean, without the mean's own error, in one reading."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Within
from tools.emulation import run_printed
from tools.lowering import lowered

import tilec

UNIT = 2.0**-24
SHAPES = {  # dimensions, those of the result, those reduced, sizes, NumPy's axes
    "rows": ("i, j", "i", "j", (3, 700), 1),
    "columns": ("i, j", "j", "i", (4200, 8), 0),
    "middle": ("i, j, k", "i, k", "j", (2, 700, 8), 1),
    "outer and inner": ("i, j, k", "j", "i, k", (20, 3, 40), (0, 2)),
    "outer and inner, swapped": ("i, j, k", "j", "k, i", (20, 3, 40), (0, 2)),
    "all": ("i, j", "", "i, j", (30, 40), (0, 1)),
}
FORMS = {
    "mean": "v{at} = mean[{r}]((x[{all}] - m{at}) ** 2)",
    "sum": "v{at} = sum[{r}]((x[{all}] - m{at}) * (x[{all}] - m{at})) / {n}",
    "negated": "v{at} = mean[{r}]((m{at} - x[{all}]) ** 2)",
    "scaled": "v{at} = 4 * mean[{r}](((x[{all}] - m{at}) * 0.5) ** 2)",
    "named": "d[{all}] = x[{all}] - m{at}\n v{at} = mean[{r}](d[{all}] * d[{all}])",
    "f64": "v{at} = f32(mean[{r}](f64(x[{all}] - m{at}) * f64(x[{all}] - m{at})))",
}
NUMBERS = {"plain": (1, 0), "offset 1e4": (1, 1e4), "offset 1e7": (1, 1e7), "offset -1e6": (3, -1e6), "scale 1e12": (1e12, 0)}


def program(shape: str, form: str, type_: str = "f32") -> str:
    every, own, reduced, sizes, _ = SHAPES[shape]
    extents = dict(zip(every.split(", "), sizes))
    count = float(np.prod([extents[d] for d in reduced.split(", ")]))
    kept = f"[{', '.join(str(extents[d]) for d in own.split(', '))}]" if own else ""
    at = f"[{own}]" if own else ""
    text = FORMS[form].format(at=at, r=reduced, all=every, n=count)
    mean = f"m{at} = mean[{reduced}](x[{every}])"
    return f"op f(x: {type_}[{', '.join(map(str, sizes))}]) -> (m: f32{kept}, v: f32{kept}) {{ {mean}\n {text} }}"


def numbers(shape: str, name: str, rng) -> np.ndarray:
    scale, offset = NUMBERS[name]
    return (rng.standard_normal(SHAPES[shape][3]) * scale + offset).astype(np.float32)


def assert_accurate(found: np.ndarray, x: np.ndarray, axes) -> None:
    """By 4 (n + 4) u of the variance, and what is left of the mean's error e = n u max|x|, squared: its part that rounds by u."""
    exact, n = x.astype(np.float64), x.size // np.size(found)
    variance = exact.var(axis=axes)
    left = (n * UNIT * np.abs(exact).max()) ** 2 * UNIT
    assert (np.abs(found - variance) <= 4 * (n + 4) * UNIT * variance + left).all(), (found, variance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_variances_on_a_cpu(shape, form, rng):
    compiled = tilec.compile(program(shape, form))
    for name in NUMBERS:
        x = numbers(shape, name, rng)
        assert_accurate(compiled(x)[1], x, SHAPES[shape][4])


@pytest.mark.some(2)
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_variances_on_a_gpu(shape, name, rng):
    x = numbers(shape, name, rng)
    special, made = lowered(program(shape, "mean"), None, {})
    if shape in ("columns", "outer and inner", "all"):  # each element is loaded once
        assert made.plan.kernels[0].options.online
    (_, found), _ = run_printed(special, made, [x])
    assert_accurate(found, x, SHAPES[shape][4])


def test_dimensions_that_are_not_neighbours_are_read_once():
    """A batch norm's statistics."""
    text = """op f(x: f32[32, 512, 14, 14]) -> (m: f32[512], v: f32[512]) {
 m[c] = mean[n, h, w](x[n, c, h, w])
 v[c] = mean[n, h, w]((x[n, c, h, w] - m[c]) ** 2) }"""
    (kernel,) = lowered(text, None, {}, end="plan", emit=False)[1].plan.kernels
    assert kernel.options.online and kernel.work.dram_read < 1.1 * 4 * 32 * 512 * 14 * 14


def test_results_are_within_the_bounds_of_programs(rng):
    """Where numbers are few, and in infinities, NaN, and squares beyond f32."""
    for sizes in ((3, 1), (3, 2), (4, 5)):
        text = f"op f(x: f32[{sizes[0]}, {sizes[1]}]) -> (m: f32[{sizes[0]}], v: f32[{sizes[0]}]) "
        text += "{ m[i] = mean[j](x[i, j])\n v[i] = mean[j]((x[i, j] - m[i]) ** 2) }"
        for offset in (0, 1, 1e3, 1e7):
            x = (rng.standard_normal(sizes) + offset).astype(np.float32)
            Within(text, {"x": x})(tilec.compile(text)(x))


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_infinities(target, rng):
    x = rng.standard_normal((4200, 8)).astype(np.float32)
    x[5, 0], x[9, 1], x[7, 2], x[:, 3], x[:, 4] = np.inf, -np.inf, np.nan, x[:, 3] * 1e30, 3.3
    special, made = lowered(program("columns", "mean"), None, {}, target=target)
    mean, variance = run_printed(special, made, [x])[0] if target == "h200" else tilec.compile(program("columns", "mean"))(x)
    assert mean[0] == np.inf and mean[1] == -np.inf and np.isnan(mean[2]) and np.isfinite(mean[3:]).all()
    assert np.isnan(variance[:3]).all() and variance[3] == np.inf and 0 <= variance[4] < 1e-9


@pytest.mark.parametrize(
    "type_, text",
    [
        ("f32", "m[i] = sum[j](x[i, j]) / 701\n v[i] = sum[j]((x[i, j] - m[i]) ** 2)"),  # no mean
        ("f32", "m[i] = mean[j](x[i, j])\n v[i] = sum[j]((2 * x[i, j] - m[i]) ** 2)"),  # of other numbers
        ("f32", "m[i] = mean[j](abs(x[i, j]))\n v[i] = sum[j]((abs(x[i, j]) - m[i]) ** 2)"),  # computed: no time is left
        ("f16", "m[i] = mean[j](f32(x[i, j]))\n v[i] = sum[j]((x[i, j] - m[i]) ** 2)"),  # of few bits
        ("f32", "m[i] = mean[j](x[i, j])\n v[i] = sum[j](abs(x[i, j] - m[i]))"),  # no squares
    ],
)
def test_what_is_left_as_it_is(type_, text):
    head = f"op f(x: {type_}[3, 700]) -> (m: f32[3], v: f32[3]) "
    assert ".rest" not in lowered(f"{head}{{ {text} }}", None, {}, target="cpu", end="simplify", emit=False)[1].texts["simplify"]
