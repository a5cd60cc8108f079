"""Products of f32 and f16 by a CPU's matrix unit: numbers as sums of bf16, no less right than sums of f32 products."""

import re
from dataclasses import replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from tools import lowering
from tools.machines import refitted

import tilec
from tilec.core import host
from tilec.core.fitted import NestTimes, PanelTimes
from tilec.core.target import BUILT_IN, Target
from tilec.core.targets import load
from tilec.cost.panels import part_products
from tilec.plan.cpu import panels
from tilec.semantics.interpreted import interpret_stage

amx = pytest.mark.skipif("amx_bf16" not in host.estimate().features, reason="this CPU has no AMX")
MATMUL = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"
FORMS = {  # parameters and body of an op, how many bf16 a number of each factor is, dimensions of the inputs
    "plain": ("a: f32[M, K], b: f32[K, N]", "sum[k](a[m, k] * b[k, n])", (3, 3), "MK KN"),
    "left along m": ("a: f32[K, M], b: f32[K, N]", "sum[k](a[k, m] * b[k, n])", (3, 3), "KM KN"),
    "right along k": ("a: f32[M, K], b: f32[N, K]", "sum[k](a[m, k] * b[n, k])", (3, 3), "MK NK"),
    "bf16 weights": ("a: f32[M, K], b: bf16[K, N]", "sum[k](a[m, k] * b[k, n])", (3, 1), "MK KN"),
    "bf16 rows": ("a: bf16[M, K], b: f32[N, K]", "sum[k](a[m, k] * b[n, k])", (1, 3), "MK NK"),
    "f16": ("a: f16[M, K], b: f16[K, N]", "sum[k](a[m, k] * b[k, n])", (2, 2), "MK KN"),
    "f16 and f32": ("a: f16[M, K], b: f32[N, K]", "sum[k](a[m, k] * b[n, k])", (2, 3), "MK NK"),
    "bytes": ("a: f32[M, K], b: i8[K, N]", "sum[k](a[m, k] * f32(b[k, n]))", (3, 1), "MK KN"),
    "rounded to tf32": ("a: f32[M, K], b: f32[K, N]", "sum[k](a[m, k] * b[k, n]) using tf32", (2, 2), "MK KN"),
    "computed": ("a: f32[M, K], b: f32[K, N]", "sum[k](exp(a[m, k]) * max(b[k, n], 0))", (3, 3), "MK KN"),
}  # fmt: skip
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "i8": np.int8}


@pytest.fixture
def always(monkeypatch):
    """Panels whatever they cost, and matrix units where they are possible."""
    monkeypatch.setattr(panels, "GAIN_US", -np.inf)
    time_us = panels.panel_us
    monkeypatch.setattr(panels, "panel_us", lambda t, p, b: time_us(t, p, b) * (1e3 if b.instruction == "fma" else 1))


def text_of(form: str) -> tuple[str, str]:
    parameters, body, _, shapes = FORMS[form]
    return f"op f({parameters}) -> (c: f32[M, N]) {{ c[m, n] = {body} }}", shapes


def draw(form: str, sizes: dict[str, int], rng, scale: float = 1.0) -> list[np.ndarray]:
    text, shapes = text_of(form)
    kinds = re.findall(r": (\w+)\[", text.split(" -> ")[0])
    found = []
    for kind, dims in zip(kinds, shapes.split()):
        shape = [sizes[d] for d in dims]
        if kind == "i8":
            found.append(rng.integers(-128, 128, shape).astype(np.int8))
        else:
            found.append((scale * rng.standard_normal(shape)).astype(TYPES[kind]))
    return found


@amx
@pytest.mark.parametrize("sizes", [(16, 16, 32), (33, 31, 65), (40, 50, 330)])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, sizes, rng, always):
    text, _ = text_of(form)
    inputs = draw(form, dict(zip("MNK", sizes)), rng)
    op = tilec.compile(text, target="cpu")
    assert_within(text, inputs, op(*inputs), kind="cpu")
    options = op.plan.kernels[0].options
    assert options.instruction == "amx" and options.parts == FORMS[form][2]


def test_products_of_parts():
    """Six of nine products, the largest last; most take a factor of the product before."""
    found = part_products(3, 3)
    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)] and found[-1] == (0, 0)
    shared = [a for a, b in pairwise(found) if a[0] == b[0] or a[1] == b[1]]
    assert len(shared) == len(found) - 1
    assert part_products(3, 1) == [(1, 0), (2, 0), (0, 0)]
    assert part_products(1, 1) == [(0, 0)]


@amx
@pytest.mark.parametrize("positive", [False, True])
def test_errors_are_no_larger_than_those_of_f32_products(positive, rng, always):
    """Than those of the fastest order of sums; and half of those of sums in order, as docs/numerics.md says."""
    a, b = (rng.standard_normal((512, 512), np.float32) for _ in range(2))
    a, b = (np.abs(a), np.abs(b)) if positive else (a, b)
    op = tilec.compile(MATMUL, target="cpu")
    exact = a.astype(np.float64) @ b
    mine, plain = (np.sqrt(((x - exact) ** 2).mean()) for x in (op(a, b), np.matmul(a, b)))
    assert op.plan.kernels[0].options.instruction == "amx" and mine <= plain
    in_order = np.zeros((32, 512), np.float32)
    for k in range(512):
        in_order += a[:32, k, None] * b[k]
    assert 2 * mine <= np.sqrt(((in_order - exact[:32]) ** 2).mean())


@amx
@pytest.mark.parametrize("form", ["plain", "right along k", "bf16 weights", "bf16 rows", "f16 and f32"])
@pytest.mark.parametrize("kind", ["wide", "tiny", "subnormal", "huge", "infinity", "nan", "one subnormal beside huge"])
def test_numbers_that_a_matrix_unit_must_not_multiply(kind, form, rng, always):
    """Vectors compute tiles whose parts would be subnormal or infinite: inputs anywhere in the range of f32."""
    text, _ = text_of(form)
    a, b = draw(form, {"M": 40, "N": 50, "K": 70}, rng)
    wide_a = a.dtype != np.float16
    match kind:
        case "wide":
            most = 50 if wide_a else 10
            a = (a * 2.0 ** rng.integers(-most, most, a.shape)).astype(a.dtype)
            b = (b * 2.0 ** rng.integers(-50, 50, b.shape)).astype(b.dtype)
        case "tiny":
            a, b = (a * (1e-22 if wide_a else 1e-4)).astype(a.dtype), (b * 1e-22).astype(b.dtype)
        case "subnormal":
            b = (b * 1e-39).astype(b.dtype)
        case "huge":
            b[3, 5], b[4] = 3.39e38, 3.4e38 * np.sign(b[4].astype(np.float32))
        case "infinity":
            a[3, 5], b[1, 2] = np.inf, -np.inf
        case "nan":
            a[3, 5], b[1, 2] = np.nan, np.nan
        case "one subnormal beside huge":
            b[3], b[5] = 1e-40, 1e30
            a = (a * (1e4 if wide_a else 1)).astype(a.dtype)
    with np.errstate(all="ignore"):
        assert_within(text, [a, b], tilec.compile(text, target="cpu")(a, b), kind="cpu")


@amx
def test_signs_and_payloads(rng, always):
    """A NaN whose last bits alone are set is none of an infinity's bits; a zero of either sign adds nothing."""
    a, b = rng.standard_normal((40, 70), np.float32), rng.standard_normal((70, 50), np.float32)
    a.view(np.uint32)[7, 9] = 0x7F800001
    a[8], b[:, 4] = -0.0, 0.0
    result = tilec.compile(MATMUL, target="cpu")(a, b)
    assert np.isnan(result[7]).all() and np.isfinite(np.delete(result, 7, 0)).all()
    assert not result[8].any() and not np.delete(result, 7, 0)[:, 4].any()


CONVOLUTIONS = {  # parameters and body; shapes of the inputs
    "nchw": (
        "x: {t}[N, C, H, W], f: {t}[K, C, R, S]", "y: f32[N, K, H, W]",
        "y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - 1, w + s - 1], 0) * f[k, c, r, s])",
        [(2, 18, 9, 21), (19, 18, 3, 3)],
    ),
    "nhwc": (
        "x: {t}[N, H, W, C], f: {t}[K, R, S, C]", "y: f32[N, H, W, K]",
        "y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - 1, w + s - 1, c], 0) * f[k, r, s, c])",
        [(2, 9, 21, 34), (19, 3, 3, 34)],
    ),
    "strided": (
        "x: {t}[N, H, W, C], f: {t}[K, R, S, C]", "y: f32[N, H // 2, W // 2, K]",
        "y[n, h, w, k] = sum[r, s, c](pad(x[n, 2 * h + r - 1, 2 * w + s - 1, c], 0) * f[k, r, s, c])",
        [(1, 12, 40, 16), (33, 3, 3, 16)],
    ),
    "odd": (
        "x: {t}[N, H, W, C], f: {t}[R, S, C, K]", "y: f32[N, H, W, K]",
        "y[n, h, w, k] = sum[r, s, c](pad(x[n, h + r - 2, w + s - 2, c], 0) * f[r, s, c, k])",
        [(1, 9, 21, 3), (5, 5, 3, 20)],
    ),
}  # fmt: skip


@amx
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, kind, rng, always):
    """Windows of several reduced dimensions: pairs lie along the longest."""
    parameters, result, body, shapes = CONVOLUTIONS[name]
    text = f"op f({parameters.format(t=kind)}) -> ({result}) {{ {body} }}"
    inputs = [rng.standard_normal(s).astype(TYPES[kind]) for s in shapes]
    op = tilec.compile(text, target="cpu")
    assert_within(text, inputs, op(*inputs), kind="cpu")
    assert op.plan.kernels[0].options.instruction == ("fma" if name == "odd" else "amx")  # pairs lie along one dimension


@amx
@pytest.mark.parametrize("sizes", [(64, 64, 640), pytest.param((70, 90, 600), marks=pytest.mark.slow)])
def test_sums_of_several_steps_stay_in_memory_of_the_block(sizes, rng, always):
    """Tiles that are whole and such that are not, in steps that end before a panel does."""
    m, n, k = sizes
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    op = tilec.compile(MATMUL, target="cpu")
    assert_within(MATMUL, [a, b], op(a, b), kind="cpu", expected=a.astype(np.float64) @ b)
    assert "sums_" in op.kernels[0].source and op.plan.kernels[0].options.depths[0] < k
    np.testing.assert_array_equal(op(a, b), op(a, b))


@pytest.mark.parametrize("m", [2, 4])
def test_few_rows_pack_a_few_rows_of_the_other_factor(m):
    """They are used once, so that they stay in L1."""
    plan = lowering.planned(MATMUL, None, {"M": m, "N": 4096, "K": 4096}, load(BUILT_IN / "cpu.toml"))
    assert max(plan.kernels[0].options.depths) <= 32


def test_a_window_lies_along_its_last_subscript(always):
    """The left factor of an image with channels last is contiguous along the channels, which are reduced."""
    parameters, result, body, _ = CONVOLUTIONS["nhwc"]
    text = f"op f({parameters.format(t='f32')}) -> ({result}) {{ {body} }}"
    sizes = {"N": 1, "H": 28, "W": 28, "C": 64, "K": 64, "R": 3, "S": 3}
    plan = lowering.planned(text, None, sizes, load(BUILT_IN / "cpu.toml"))
    options = plan.kernels[0].options
    assert options.along[0] == options.inner[-1] == options.along[1]


def described() -> Target:
    """A machine on which products of parts pay."""
    target = refitted(load(BUILT_IN / "cpu.toml"), NestTimes, vector_issue=1e-5)
    target = refitted(target, PanelTimes, pack_along_ns=0.01, pack_across_ns=0.01, split_ns=0.01)
    return replace(target, tensor={"bf16": {"amx": 9000.0}})


@pytest.mark.parametrize("form", ["plain", "right along k", "bf16 weights", "f16"])
@pytest.mark.parametrize("scale", [1.0, 1e-21])
def test_every_stage(form, scale, rng, always):
    """For a described machine, whatever the host is: each stage's IR is interpreted."""
    text, _ = text_of(form)
    sizes = {"M": 5, "N": 17 if scale == 1 else 9, "K": 35}
    a, b = draw(form, sizes, rng, 1.0 if form == "f16" else scale)
    program, result = lowering.lowered(text, None, sizes, target=described(), texts=True)
    assert result.plan.kernels[0].options.instruction == "amx"
    for stage in ("tile", "stage", "map"):
        (found,) = interpret_stage(program, result.texts, stage, {"a": a, "b": b}).values()
        assert_within(text, [a, b], found, kind="cpu")


@pytest.mark.parametrize("first, second", [("bf16", "f32"), ("f32", "bf16")])
def test_tiles_of_one_element(first, second, rng, always):
    """What is computed from the index of a tile's only row depends on no index of the block any more."""
    text = f"""op f(x: {first}[4, 40], w: {second}[3, 40]) -> (y: f32[2, 3]) {{
        y[i, j] = sum[k](x[j + 1, k + 3] * w[i + 1, k + 5]) where k in 0:35
    }}"""
    inputs = {"x": rng.standard_normal((4, 40)).astype(TYPES[first]), "w": rng.standard_normal((3, 40)).astype(TYPES[second])}

    def ones(plan):
        (kernel,) = plan.kernels
        return replace(plan, kernels=(replace(kernel, tile=(1,) * len(kernel.grid)),))

    program, result = lowering.lowered(text, None, {}, ones, described())
    assert result.plan.kernels[0].options.instruction == "amx"
    (found,) = interpret_stage(program, result.texts, "map", inputs).values()
    assert_within(text, [*inputs.values()], found, kind="cpu")
