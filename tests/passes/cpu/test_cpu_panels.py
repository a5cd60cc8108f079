"""Contractions on the CPU from packed panels: results within bounds for many forms, the plan's choice, the staged IR."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from by_numpy import np_conv2d
from conftest import assert_within
from tools import lowering
from tools.machines import refitted

import tilec
from tilec.core import host, mlir
from tilec.core.fitted import NestTimes, PanelTimes
from tilec.core.mlir import ir
from tilec.core.target import BUILT_IN
from tilec.core.targets import load
from tilec.plan.cpu import panels
from tilec.semantics.interpreted import interpret_stage

MATMUL = "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"


@pytest.fixture
def always(monkeypatch):
    """Panels whatever they cost, so that small shapes test them."""
    monkeypatch.setattr(panels, "GAIN_US", -np.inf)


@pytest.fixture(params=["amx", "dot"])
def by_unit(request, monkeypatch):
    """An instruction for products of bf16, wherever it is possible, so that small shapes test it."""
    time_us = panels.panel_us
    monkeypatch.setattr(panels, "panel_us", lambda t, p, b: time_us(t, p, b) * (1 if b.instruction == request.param else 1e3))
    return request.param


@pytest.fixture
def on_host(by_unit):
    """Where this CPU has the instruction."""
    if by_unit not in host.estimate().instructions("bf16"):
        pytest.skip(f"this CPU has no {by_unit}")
    return by_unit


@pytest.fixture
def across(monkeypatch):
    """Vectors of sums across the result, where it has few elements along memory or many."""
    time_us = panels.panel_us
    monkeypatch.setattr(panels, "panel_us", lambda t, p, b: time_us(t, p, b) * (1 if p.across else 1e3))


@pytest.fixture
def compiled(tmp_path):
    def compile_(text: str):
        path = tmp_path / "f.tile"
        path.write_text(text)
        return tilec.compile(path, target="cpu")

    return compile_


def has_panels(op) -> bool:
    return any("contract" in k.source for k in op.kernels)


SHAPES = [
    (0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1), (1, 40, 3), (40, 1, 3), (7, 31, 13), (8, 32, 64), (9, 33, 65),
    (15, 63, 1), (97, 101, 103), (128, 256, 511), (130, 258, 513),
]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_matmul(m, n, k, rng, compiled, always):
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    op = compiled(MATMUL)
    assert_within(MATMUL, [a, b], op(a, b), kind="cpu", expected=a.astype(np.float64) @ b)
    np.testing.assert_array_equal(op(a, b), op(a, b))  # the order of sums is fixed
    assert has_panels(op) == (m > 1 and n > 1 and k > 0)  # a vector has nothing to reuse


FORMS = {  # inputs, result and body of the op; shapes of its inputs; the same as an einsum
    "transposed_left": (
        "a: f32[K, M], b: f32[K, N]", "c: f32[M, N]", "c[m, n] = sum[k](a[k, m] * b[k, n])",
        [(70, 45), (70, 53)], "km,kn->mn",
    ),
    "transposed_right": (
        "a: f32[M, K], b: f32[N, K]", "c: f32[M, N]", "c[m, n] = sum[k](a[m, k] * b[n, k])",
        [(45, 70), (53, 70)], "mk,nk->mn",
    ),
    "transposed_result": (
        "a: f32[M, K], b: f32[N, K]", "c: f32[N, M]", "c[n, m] = sum[k](a[m, k] * b[n, k])",
        [(45, 70), (53, 70)], "mk,nk->nm",
    ),
    "double": (
        "a: f64[M, K], b: f64[K, N]", "c: f64[M, N]", "c[m, n] = sum[k](a[m, k] * b[k, n])",
        [(45, 600), (600, 53)], "mk,kn->mn",
    ),
    "batched": (
        "a: f32[Z, M, K], b: f32[Z, K, N]", "c: f32[Z, M, N]", "c[z, m, n] = sum[k](a[z, m, k] * b[z, k, n])",
        [(3, 45, 30), (3, 30, 53)], "zmk,zkn->zmn",
    ),
    "two_rows_two_columns": (
        "a: f32[M, P, K], b: f32[K, N, Q]", "c: f32[M, N, P, Q]",
        "c[m, n, p, q] = sum[k](a[m, p, k] * b[k, n, q])",
        [(5, 19, 30), (30, 7, 33)], "mpk,knq->mnpq",
    ),
    "two_reduced": (
        "a: f32[M, K, L], b: f32[L, N, K]", "c: f32[M, N]", "c[m, n] = sum[k, l](a[m, k, l] * b[l, n, k])",
        [(45, 40, 30), (30, 53, 40)], "mkl,lnk->mn",
    ),
    "rounded_inputs": (
        "a: bf16[M, K], b: bf16[K, N]", "c: bf16[M, N]", "c[m, n] = sum[k](a[m, k] * b[k, n])",
        [(45, 30), (30, 53)], "mk,kn->mn",
    ),
}  # fmt: skip
TYPES = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, rng, compiled, always):
    inputs, result, body, shapes, einsum = FORMS[name]
    text = f"op f({inputs}) -> ({result}) {{ {body} }}"
    type_ = inputs.split(": ")[1].split("[")[0]
    inputs = [rng.standard_normal(s).astype(TYPES[type_]) for s in shapes]
    wide = [x.astype(np.float64) for x in inputs]
    op = compiled(text)
    assert_within(text, inputs, op(*inputs), kind="cpu", expected=np.einsum(einsum, *wide))
    assert has_panels(op)


def test_prologue_gather_and_epilogue(rng, compiled, always):
    text = """
    op f(t: f32[V, K], i: i32[M], g: f32[K], w: f32[K, N], b: f32[N]) -> (c: f32[M, N], d: f32[M, N]) {
        c[m, n] = sum[k]((t[i[m], k] * g[k] + 1.0) * w[k, n])
        d[m, n] = max(c[m, n] + b[n], 0.0)
    }"""
    t, g, w, b = (rng.standard_normal(s, np.float32) for s in ((9, 70), (70,), (70, 53), (53,)))
    i = rng.integers(0, 9, 45).astype(np.int32)
    op = compiled(text)
    inputs = [t, i, g, w, b]
    want = (t.astype(np.float64)[i] * g + 1) @ w
    assert_within(text, inputs, op(*inputs), kind="cpu", expected=(want, np.maximum(want + b, 0)))
    assert has_panels(op)


@pytest.mark.parametrize(("h", "w", "c", "k"), [(9, 11, 3, 5), (7, 33, 17, 16), (1, 64, 2, 3)])
def test_convolution_is_packed_as_im2col(h, w, c, k, rng, compiled, always):
    text = """op f(x: f32[N, C, H, W], f: f32[K, C, R, S]) -> (y: f32[N, K, H, W]) {
        y[n, k, h, w] = sum[c, r, s](pad(x[n, c, h + r - R // 2, w + s - S // 2], 0) * f[k, c, r, s])
    }"""
    x, f = rng.standard_normal((2, c, h, w), np.float32), rng.standard_normal((k, c, 3, 5), np.float32)
    op = compiled(text)
    expected = np_conv2d(x.astype(np.float64), f.astype(np.float64))
    assert_within(text, [x, f], op(x, f), kind="cpu", expected=expected)
    assert has_panels(op)


@pytest.mark.parametrize("name", ["double", "batched", "two_rows_two_columns", "two_reduced", "rounded_inputs"])
def test_vectors_across_the_result(name, rng, compiled, always, across):
    test_forms(name, rng, compiled, always)


@pytest.mark.parametrize(("h", "w", "c", "k"), [(7, 5, 17, 33), (3, 3, 130, 16)])
def test_convolution_of_a_small_image(h, w, c, k, rng, compiled, always, across):
    test_convolution_is_packed_as_im2col(h, w, c, k, rng, compiled, always)


def test_small_images_have_vectors_of_channels():
    """Of vectors along rows of 5 pixels, three lanes of eight would be idle."""
    text = "op f(x: f32[256, 5, 5], f: f32[512, 256]) -> (y: f32[512, 5, 5]) { y[o, h, w] = sum[c](x[c, h, w] * f[o, c]) }"
    (kernel,) = lowering.lowered(text, None, {}, target=load(BUILT_IN / "cpu.toml"), end="plan")[1].plan.kernels
    assert kernel.options.columns == (0,) and set(kernel.options.rows) == {1, 2}
    text = text.replace("5, 5", "64, 64")
    (kernel,) = lowering.lowered(text, None, {}, target=load(BUILT_IN / "cpu.toml"), end="plan")[1].plan.kernels
    assert kernel.options.rows == (0,)


# ---- matrix units ------------------------------------------------------------------------------------------

BF16 = "op f(a: bf16[M, K], b: bf16[K, N]) -> (c: f32[M, N]) { c[m, n] = sum[k](a[m, k] * b[k, n]) }"
UNIT_FORMS = {  # as FORMS, of bf16
    "plain": ("a: bf16[M, K], b: bf16[K, N]", "c[m, n] = sum[k](a[m, k] * b[k, n])", "mk,kn->mn", "MK KN"),
    "left along m": ("a: bf16[K, M], b: bf16[K, N]", "c[m, n] = sum[k](a[k, m] * b[k, n])", "km,kn->mn", "KM KN"),
    "right along k": ("a: bf16[M, K], b: bf16[N, K]", "c[m, n] = sum[k](a[m, k] * b[n, k])", "mk,nk->mn", "MK NK"),
    "allowed to be rounded": (
        "a: f32[M, K], b: f32[K, N]", "c[m, n] = sum[k](a[m, k] * b[k, n]) using bf16", "mk,kn->mn", "MK KN"
    ),
    "rounded": (
        "a: f32[M, K], b: bf16[K, N]", "c[m, n] = sum[k](bf16(2 * a[m, k]) * b[k, n])", "mk,kn->mn", "MK KN"
    ),
}  # fmt: skip


def numbers(shape, rng, dtype=ml_dtypes.bfloat16, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(dtype)


@pytest.mark.crossed
@pytest.mark.parametrize("sizes", [(1, 40, 3), (16, 16, 32), (33, 31, 65), (100, 97, 1030), (64, 256, 511)])
@pytest.mark.parametrize("form", UNIT_FORMS)
def test_products_of_bf16(form, sizes, rng, compiled, always, on_host):
    parameters, body, einsum, shapes = UNIT_FORMS[form]
    extents = dict(zip("MNK", sizes))
    a, b = (tuple(extents[d] for d in dims) for dims in shapes.split())
    rounded = form == "rounded"
    kinds = [np.float32 if "f32" in p else ml_dtypes.bfloat16 for p in parameters.split("], ")]
    inputs = [numbers(shape, rng, kind) for shape, kind in zip((a, b), kinds)]
    text = f"op f({parameters}) -> (c: f32[M, N]) {{ {body} }}"
    expected = None if rounded else np.einsum(einsum, *(x.astype(np.float64) for x in inputs))
    op = compiled(text)
    assert_within(text, inputs, op(*inputs), kind="cpu", expected=expected)
    function = {"amx": "contract_pairs(", "dot": "add_pairs("}[on_host]
    assert any(function in k.source for k in op.kernels) == (min(sizes[:2]) > 1)


@pytest.mark.parametrize("kind", ["tiny", "subnormal", "zeros", "nan", "infinity", "one tiny number"])
def test_numbers_that_are_taken_for_0(kind, rng, compiled, always, on_host):
    """AMX and vectors of pairs have no subnormal numbers: plain loops compute tiles whose products might be such."""
    a, b = numbers((40, 70), rng), numbers((70, 50), rng)
    match kind:
        case "tiny":
            a, b = numbers((40, 70), rng, scale=1e-20), numbers((70, 50), rng, scale=1e-19)
        case "subnormal":
            a = numbers((40, 70), rng, scale=1e-39)
        case "zeros":
            a[::2], b[:, ::3] = 0, 0
        case "nan":
            a[3, 5], b[1, 2] = np.nan, np.nan
        case "infinity":
            a[3, 5], b[1, 2] = np.inf, -np.inf
        case "one tiny number":
            a[20, 3], b[3] = 1e-39, 1e30
            a[20, :3] = a[20, 4:] = 0
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert_within(BF16, [a, b], compiled(BF16)(a, b), kind="cpu", expected=expected)


@pytest.mark.parametrize("form", ["plain", "right along k"])
@pytest.mark.parametrize("scale", [1.0, 1e-20])
def test_every_stage_of_a_product_of_bf16(form, scale, rng, by_unit):
    """For a described machine, whatever the host is: each stage's IR is interpreted."""
    parameters, body, einsum, shapes = UNIT_FORMS[form]
    sizes = {"M": 5, "N": 17 if scale == 1 else 9, "K": 35}
    a, b = (numbers([sizes[d] for d in dims], rng, scale=scale) for dims in shapes.split())
    text = f"op f({parameters}) -> (c: f32[M, N]) {{ {body} }}"
    target = load(BUILT_IN / "cpu.toml")
    target = refitted(target, NestTimes, vector_issue=1e-5)
    target = refitted(target, PanelTimes, pack_along_ns=0.01, pack_across_ns=0.01)
    target = replace(target, tensor={"bf16": {by_unit: 500.0}})
    program, result = lowering.lowered(text, None, sizes, target=target, texts=True)
    assert result.plan.kernels[0].options.instruction == by_unit
    assert re.search({"amx": "vector<16x", "dot": r"vector<\d+x1x2xbf16"}[by_unit], result.texts["map"])
    for stage in ("tile", "stage", "map"):
        (found,) = interpret_stage(program, result.texts, stage, {"a": a, "b": b}).values()
        expected = np.einsum(einsum, a.astype(np.float64), b.astype(np.float64))
        assert_within(text, [a, b], found, kind="cpu", expected=expected)


# ---- the plan's choice and the staged IR -------------------------------------------------------------------


def lowered(text: str, end: str = "map", **sizes: int):
    """For a machine of 16 registers of 32 bytes, whatever the host is."""
    return lowering.lowered(text, None, sizes, target=load(BUILT_IN / "cpu.toml"), end=end)[1]


def test_every_stage_of_a_product_of_bf16_across_the_result(rng, by_unit, across):
    test_every_stage_of_a_product_of_bf16("plain", 1.0, rng, by_unit)


def test_small_sizes_are_plain_loops():
    small, large = (lowered(MATMUL, "stage", M=n, N=n, K=n) for n in (16, 256))
    assert "vector.contract" not in small.texts["stage"] and "vector.contract" in large.texts["stage"]
    (remark,) = [r for r in small.plan.remarks if r.verb == "refused"]
    assert "plain loops" in dict(remark.alternatives)


def test_integers_are_plain_loops():
    text = lowered(MATMUL.replace("f32", "i32"), "stage", M=256, N=256, K=256).texts["stage"]
    assert "linalg.generic" in text and "vector." not in text


def test_staged_text():
    """mr x nr sums in registers, both factors in panels of these widths; the text can be read again."""
    text = lowered(MATMUL, "stage", M=480, N=512, K=512).texts["stage"]
    assert "linalg.generic" not in text
    plan = text[text.index("register_tile = array<i64: ") :]
    mr, nr = (int(v) for v in plan[plan.index(":") + 2 : plan.index(">")].split(","))
    assert f"into vector<{mr}x{nr}xf32>" in text and mr * nr // 8 + nr // 8 + 1 <= 16  # AVX2: 8 lanes, 16 registers
    assert re.search(rf"memref<1x{mr}x\d+xf32>", text) and re.search(rf"memref<\d+x\d+x{nr}xf32>", text)
    assert text.index('tilec.name = "left"') < text.index("vector.load") < text.index("vector.store")
    with mlir.context(), ir.Location.unknown():
        assert mlir.parse(text).operation.get_asm() == text
