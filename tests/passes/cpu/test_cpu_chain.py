"""Chains of contractions on the CPU: attention and its relatives as one kernel, within bounds, masked elements skipped."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from tools import lowering
from tools.machines import CPU

import tilec
from tilec.core import host, mlir
from tilec.core.source import read_source
from tilec.core.target import BUILT_IN
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.kernels import PanelChain
from tilec.plan import chain_fusion
from tilec.plan.cpu import panels
from tilec.semantics.interpreted import interpret_stage

ATTENTION = """op attention(q: f32[H, S, D], k: f32[H, T, D], v: f32[H, T, E]) -> (o: f32[H, S, E]) {{
    s[h, i, j] = 0.3 * sum[d](q[h, i, d] * k[h, j, d])
    t[h, i, j] = {scores}
    m[h, i] = max[j](t[h, i, j])
    e[h, i, j] = exp(t[h, i, j] - m[h, i])
    l[h, i] = sum[j](e[h, i, j])
    o[h, i, d] = sum[j](e[h, i, j] / l[h, i] * v[h, j, d])
}}"""
SCORES = {
    "full": ("s[h, i, j]", lambda i, j, s, t: i >= 0),
    "causal": ("s[h, i, j] if j <= i else -inf", lambda i, j, s, t: j <= i),
    "the last rows of a sequence": ("s[h, i, j] if j <= i + T - S else -inf", lambda i, j, s, t: j <= i + t - s),
    "a window": (
        "s[h, i, j] if j <= i and i - j < 5 else -inf", lambda i, j, s, t: (j <= i) & (i - j < 5)
    ),
    "rows without elements": ("s[h, i, j] if 2 * j <= i - 3 else -inf", lambda i, j, s, t: 2 * j <= i - 3),
    "no more at the end": ("s[h, i, j] if j < T - i else -inf", lambda i, j, s, t: j < t - i),
}  # fmt: skip


@pytest.fixture
def always(monkeypatch):
    """Chains whatever they cost, so that small shapes test them."""
    monkeypatch.setattr(chain_fusion, "chain_us", lambda *_: 0.0)


def attention(q, k, v, keeps):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    i, j = np.ogrid[: q.shape[1], : k.shape[1]]
    s = np.where(keeps(i, j, q.shape[1], k.shape[1]), 0.3 * q @ k.transpose(0, 2, 1), -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v


def is_chain(op) -> bool:
    return len(op.plan.kernels) == 1 and isinstance(op.plan.kernels[0].options, PanelChain)


@pytest.mark.crossed
@pytest.mark.parametrize("sizes", [(1, 1, 40, 5, 3), (2, 40, 40, 16, 16), (1, 57, 83, 9, 33), (1, 96, 150, 33, 20)])
@pytest.mark.parametrize("name", SCORES)
def test_attention(name, sizes, rng, always):
    h, s, t, d, e = sizes
    text, keeps = SCORES[name]
    q, k, v = (rng.standard_normal(x, np.float32) for x in ((h, s, d), (h, t, d), (h, t, e)))
    program = ATTENTION.format(scores=text)
    op = tilec.compile(program, target="cpu")
    result = op(q, k, v)
    assert_within(program, [q, k, v], result, kind="cpu", expected=attention(q, k, v, keeps))
    assert is_chain(op) == (s > 1)
    np.testing.assert_array_equal(result, op(q, k, v))


@pytest.mark.crossed
@pytest.mark.parametrize("unit", ["amx", "dot"])
@pytest.mark.parametrize("sizes", [(1, 40, 40, 5, 3), (2, 70, 45, 16, 16), (1, 33, 600, 9, 40)])
@pytest.mark.parametrize("rounds", ["", " using bf16"])
def test_attention_of_bf16(sizes, rounds, unit, rng, always, monkeypatch):
    if unit not in host.estimate().instructions("bf16"):
        pytest.skip(f"this CPU has no {unit}")
    h, s, t, d, e = sizes
    program = ATTENTION.format(scores=SCORES["causal"][0]).replace("f32", "bf16").replace("v[h, j, d])", f"v[h, j, d]){rounds}")
    q, k, v = (rng.standard_normal(x).astype(ml_dtypes.bfloat16) for x in ((h, s, d), (h, t, d), (h, t, e)))
    time_us = panels.panel_us
    monkeypatch.setattr(panels, "panel_us", lambda t, p, b: time_us(t, p, b) * (1 if b.instruction == unit else 1e3))
    op = tilec.compile(program, target="cpu")
    assert_within(program, [q, k, v], op(q, k, v), kind="cpu")
    assert is_chain(op) and op.plan.kernels[0].options.parts == (1, 1, 1 if rounds else 3, 1)
    assert op.plan.kernels[0].options.matrix == ((1, 1) if unit == "amx" else (2, 2) if rounds else (2, 0))


def test_masked_elements_are_skipped(always):
    """What they would be multiplied with is not read: an infinity there counts as 0."""
    q, k, v = (np.ones((1, 64, 8), np.float32) for _ in range(3))
    v[0, 63] = np.inf
    op = tilec.compile(ATTENTION.format(scores=SCORES["causal"][0]), target="cpu")
    rows = op.build(H=1, S=64, T=64, D=8, E=8).plan.kernels[0].tile[1]
    assert np.isfinite(op(q, k, v)[0, : 64 // rows * rows - rows]).all()


FORMS = {
    "nearest": (
        "op f(x: f32[M, K], w: f32[N, K]) -> (y: i64[M]) { y[i] = argmin[j](sum[k](x[i, k] * w[j, k])) }",
        [(45, 30), (70, 30)], lambda x, w: (x @ w.T).argmin(1),
    ),
    "log of a sum": (
        "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M]) { z[i, j] = sum[k](x[i, k] * w[k, j]) "
        "m[i] = max[j](z[i, j]) y[i] = m[i] + log(sum[j](exp(z[i, j] - m[i]))) }",
        [(45, 30), (30, 70)], None,
    ),
    "two layers": (
        "op f(x: f32[M, K], w: f32[K, N], u: f32[N, O]) -> (y: f32[M, O]) { "
        "z[i, j] = max(sum[k](x[i, k] * w[k, j]), 0) y[i, o] = sum[j](z[i, j] * u[j, o]) }",
        [(45, 30), (30, 70), (70, 20)], lambda x, w, u: np.maximum(x @ w, 0) @ u,
    ),
    "in double": (
        "op f(x: f64[M, K], w: f64[K, N], u: f64[N, O]) -> (y: f64[M, O]) { "
        "z[i, j] = tanh(sum[k](x[i, k] * w[k, j])) y[i, o] = sum[j](z[i, j] * u[j, o]) }",
        [(20, 30), (30, 40), (40, 20)], lambda x, w, u: np.tanh(x @ w) @ u,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_relatives(name, rng, always):
    text, shapes, expected = FORMS[name]
    inputs = [rng.standard_normal(s, np.float64 if "f64" in text else np.float32) for s in shapes]
    op = tilec.compile(text, target="cpu")
    wide = [x.astype(np.float64) for x in inputs]
    want = None if expected is None else expected(*wide)
    assert_within(text, inputs, op(*inputs), kind="cpu", expected=want)
    assert is_chain(op)


LAYOUTS = {  # parameters and factors of attention whose heads lie apart in memory; shapes of the inputs
    "grouped heads": (
        "q: {t}[H, S, D], k: {t}[G, S, D], v: {t}[G, S, D]", ("q[h, i, d]", "k[h // (H // G), j, d]", "v[h // (H // G), j, d]"),
        [(4, 45, 32), (2, 45, 32), (2, 45, 32)],
    ),
    "packed": ("x: {t}[S, 3, H, D]", ("x[i, 0, h, d]", "x[j, 1, h, d]", "x[j, 2, h, d]"), [(45, 3, 2, 32)]),
    "packed with later heads": (
        "x: {t}[S, E]", ("x[i, h * 32 + d]", "x[j, 64 + h * 32 + d]", "x[j, 128 + h * 32 + d]"), [(45, 192)],
    ),
}  # fmt: skip


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_factors_in_boxes_of_their_tensors(name, kind, rng, always):
    """Elements at computed subscripts are operands where they lie in a box, so that vectors read them."""
    parameters, (q, k, v), shapes = LAYOUTS[name]
    heads = "[H=2, D=32]" if name == "packed with later heads" else ""
    text = f"""op f({parameters.format(t=kind)}) -> (o: {kind}[{"2" if heads else "H"}, S, {"32" if heads else "D"}]) {{
        s[h, i, j] = sum[d in 0:{"32" if heads else "D"}]({q} * {k}) / 6{" where h in 0:2" if heads else ""}
        t[h, i, j] = s[h, i, j] if j <= i else -inf
        m[h, i] = max[j](t[h, i, j])
        e[h, i, j] = exp(t[h, i, j] - m[h, i])
        l[h, i] = sum[j](e[h, i, j])
        o[h, i, d] = sum[j](e[h, i, j] / l[h, i] * {v}){" where d in 0:32" if heads else ""} }}"""
    inputs = [rng.standard_normal(s).astype(np.float32 if kind == "f32" else ml_dtypes.bfloat16) for s in shapes]
    op = tilec.compile(text, target="cpu")
    assert_within(text, inputs, op(*inputs), kind="cpu")
    assert is_chain(op) and op.plan.kernels[0].options.bounds


@pytest.mark.parametrize("name", ["causal", "rows without elements"])
def test_every_stage(name, rng, always):
    text, keeps = SCORES[name]
    q, k, v = (rng.standard_normal(x, np.float32) for x in ((1, 17, 3), (1, 19, 3), (1, 19, 4)))
    program = ATTENTION.format(scores=text)
    sizes = {"H": 1, "S": 17, "T": 19, "D": 3, "E": 4}
    special, result = lowering.lowered(program, None, sizes, target=load(BUILT_IN / "cpu.toml"), texts=True)
    assert isinstance(result.plan.kernels[0].options, PanelChain)
    for stage in ("tile", "stage", "map"):
        (found,) = interpret_stage(special, result.texts, stage, {"q": q, "k": k, "v": v}).values()
        assert_within(program, [q, k, v], found, kind="cpu", expected=attention(q, k, v, keeps))


def test_results_take_the_place_of_what_is_read_for_the_last_time(always):
    """One row of scores in memory, of which weights are made."""
    program = ATTENTION.format(scores=SCORES["full"][0])
    text = lowering.lowered(program, None, {"H": 1, "S": 64, "T": 128, "D": 16, "E": 16}, target="cpu")[1].texts["map"]
    allocations = [line for line in text.splitlines() if "memref.alloc" in line and '"left"' not in line]
    assert sum(bool(re.search("x(128|144)xf32>", line)) for line in allocations) == 1  # 144: with room for whole tiles


def test_refusals_have_reasons():
    def reason(text: str, **sizes: int) -> str:
        plan = lowering.planned(text, None, sizes, load(BUILT_IN / "cpu.toml"))
        return " ".join(str(r) for r in plan.remarks if r.verb == "refused")

    wide = reason(ATTENTION.format(scores=SCORES["full"][0]), H=1, S=64, T=1 << 18, D=16, E=16)
    assert "half of L2 has" in wide
    layers = FORMS["two layers"][0]
    assert "a contraction chain would take" in reason(layers, M=2048, K=2048, N=2048, O=2048)


@pytest.mark.parametrize("seed", range(4))
def test_what_lies_behind_a_panels_products_decides_nothing(seed, always):
    """Whether the matrix unit multiplies a panel was decided by all of its memory, also behind the last element that a mask leaves:
    results were others by what other calls had left there. Each call is repeated among canaries."""
    text = """op f(q: bf16[2, 40, 64], k: bf16[2, 72, 64], v: bf16[2, 72, 64]) -> (o: bf16[2, 40, 64]) {
        s[h, i, j] = sum[d](q[h, i, d] * k[h, j, d]) / 8 if j <= i + 32 else -inf
        p[h, i, j] = softmax[j](s[h, i, j])
        o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d]) using bf16
    }"""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((2, n, 64)).astype(ml_dtypes.bfloat16) for n in (40, 72, 72)]
    op = tilec.compile(text, target="cpu")
    want = op(*inputs)
    assert is_chain(op)
    for n in range(8):
        left = [np.full((n + 1) * 997, np.nan, np.float32) for _ in range(30)]
        copies = [x.copy() for x in inputs]
        del left
        assert op(*copies).tobytes() == want.tobytes()


def test_a_block_may_have_all_rows_where_these_are_no_whole_tiles_of_a_unit():
    """Two blocks of 32 rows would each copy all keys and values, for 63 rows: a chain was dearer than three kernels."""
    machine = replace(CPU, units=2, features=("amx_bf16", "avx2", "avx512f", "fma"), tensor={"bf16": {"amx": 9.0}})
    program = parse(read_source(ATTENTION.format(scores="s[h, i, j]")))
    for rows in (63, 64):
        special = specialise(program, None, None, {"H": 2, "S": rows, "T": rows, "D": 64, "E": 64})
        with mlir.context(), mlir.ir.Location.unknown():
            (kernel,) = lower(build(special), machine, texts=False, end="plan", emit=False).plan.kernels
        assert isinstance(kernel.options, PanelChain) and kernel.tile == (1, rows)
