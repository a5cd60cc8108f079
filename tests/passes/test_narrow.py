"""A conversion that all readers of a tensor make is made once: the same bits, narrower tensors, and contraction chains."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_within
from tools.lowering import lowered

from tilec import passes
from tilec.core import locations, mlir
from tilec.core.dtypes import BF16
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.kernels import ContractionChain
from tilec.passes.tensor.narrow import narrow
from tilec.semantics.interpreter import interpret

CASTS = {  # what an op computes of x: f32[M, N], w: i32[M, N]; and the narrow tensors that are left
    "a window": ("t[i, j] = exp(x[i, j])  y[i, j] = (f32(bf16(t[i, j - 1])) if j > 0 else 0) + x[i, j]", ["t: bf16"]),
    "two readers": (
        "t[i, j] = exp(x[i, j])  y[i, j] = sum[k in 0:N](bf16(t[i, k]) * x[i, k]) + f32(bf16(t[M - 1 - i, j]))", ["t: bf16"]
    ),
    "f16": ("t[i, j] = x[i, j] * 3  y[i, j] = f32(f16(t[M - 1 - i, j]))", ["t: f16"]),
    "f64": ("t[i, j] = f64(x[i, j]) / 3  y[i, j] = f32(t[M - 1 - i, j])", ["t: f32"]),
    "a sum": ("t[i] = sum[j](x[i, j])  y[i, j] = f32(bf16(t[M - 1 - i])) * x[i, j]", ["t: bf16"]),
    "a whole number": ("t[i, j] = w[i, j] * 77  y[i, j] = f32(i8(t[M - 1 - i, j]))", ["t: i8"]),
    "an opposite": ("t[i, j] = exp(x[i, j])  y[i, j] = f32(bf16(-t[M - 1 - i, j]))", ["t: bf16"]),
    "another number": (
        "t[i, j] = exp(x[i, j])  y[i, j] = sum[k in 0:N](f32(bf16(t[i, k] if x[j % M, k] > 0 else 0.3)))", ["t: bf16"]
    ),
    "a producer's producer": (
        "t[i, j] = exp(x[i, j])  u[i, j] = t[i, N - 1 - j] where j in 0:N  y[i, j] = f32(bf16(u[M - 1 - i, j]))",
        ["t: bf16", "u: bf16"],
    ),
    "one reader that does not": (
        "t[i, j] = exp(x[i, j])  y[i, j] = f32(bf16(t[M - 1 - i, j])) + t[i, N - 1 - j]", []
    ),
    "two types": ("t[i, j] = exp(x[i, j])  y[i, j] = f32(bf16(t[M - 1 - i, j])) + f32(f16(t[i, N - 1 - j]))", []),
    "a comparison": ("t[i, j] = exp(x[i, j])  y[i, j] = f32(bf16(t[M - 1 - i, j])) if t[M - 1 - i, j] > 1 else 0", []),
    "a maximum": ("t[i, j] = x[i, j] * 3  y[i, j] = f32(bf16(max(t[M - 1 - i, j], 0)))", []),
    "a scan": ("t[i, j] = cumsum[j](x[i, j])  y[i, j] = f32(bf16(t[M - 1 - i, j]))", []),
    "one kernel": ("t[i, j] = exp(x[i, j])  y[i, j] = f32(bf16(t[i, j])) * 2", []),
}  # fmt: skip
SIZES = {"M": 5, "N": 12}


def written(body: str) -> str:
    return f"op f(x: f32[M, N], w: i32[M, N]) -> (y: f32[M, N]) {{ {body} }}"


def tensors(text: str) -> list[str]:
    """The tensors of the names `t` and `u`, with the types of their elements."""
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(text)
        found = [o for o in mlir.traverse(module.operation) if mlir.is_generic(o)]
        types = {mlir.get_string(o, "tilec.name"): str(ir.ShapedType(o.results[0].type).element_type) for o in found}
    return [f"{name}: {type_}" for name, type_ in types.items() if name in ("t", "u")]


@pytest.fixture
def without(monkeypatch):
    """The stages without the pass."""

    def remove():
        left = [passes.Stage(s.name, s.summary, tuple(x for x in s.steps if x is not narrow)) for s in passes.STAGES]
        monkeypatch.setattr(passes, "STAGES", tuple(left))

    return remove


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("case", CASTS)
def test_a_conversion_moves_and_no_bit_changes(case, target, rng, without):
    body, expected = CASTS[case]
    inputs = {
        "x": rng.normal(0, 1, (5, 12)).astype(np.float32),
        "w": rng.integers(-(2**31), 2**31, (5, 12), dtype=np.int32),
    }
    found = lowered(written(body), None, inputs, target=target, end="simplify")[1].texts["simplify"]
    types = tensors(found)
    assert [t for t in types if not t.endswith(("f32", "i32", "f64"))] == [t for t in expected if t != "t: f32"]
    if case == "f64":
        assert types == ["t: f32"]
    without()
    plain = lowered(written(body), None, inputs, target=target, end="simplify")[1].texts["simplify"]
    assert (tensors(plain) == types) == (not expected)
    outs, same = interpret(found, inputs), interpret(plain, inputs)
    assert [o.tobytes() for o in outs.values()] == [o.tobytes() for o in same.values()]
    assert_within(written(body), inputs, list(outs.values()), kind="cuda" if target == "h200" else "cpu")


@pytest.mark.parametrize("case", CASTS)
def test_what_was_narrowed_stays(case):
    text = lowered(written(CASTS[case][0]), None, SIZES, end="simplify")[1].texts["simplify"]
    with mlir.context(), ir.Location.unknown():
        again = lower(mlir.parse(text), load("h200"), end="simplify", locations=False, emit=False)
    assert again.texts["simplify"] == text


def test_an_accumulator_stays_wide():
    """The sum has a name of its own, and the operation that converts it has the statement's."""
    text = lowered(written(CASTS["a sum"][0]), None, SIZES, end="simplify", locations=True)[1].texts["simplify"]
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(text)
        total, converted = [o for o in mlir.traverse(module.operation) if mlir.is_generic(o)][:2]
        assert mlir.get_string(total, "tilec.name") == "t.sum"
        assert str(ir.ShapedType(total.results[0].type).element_type) == "f32"
        assert mlir.get_string(converted, "tilec.name") == "t" and locations.indices(converted) == ["i"]
        assert mlir.source_line(converted) == mlir.source_line(total)


# ---- attention of queries that are rounded where they are read ---------------------------------------------

ATTENTION = """op f(x: {kind}[B, S, E], w: {kind}[E, E], b: {kind}[E], k: {kind}[B, S, E], v: {kind}[B, S, E])
    -> (o: {kind}[B, E // 64, S, 64]{out}) {{
    q[n, i, e]: f32 = sum[c](x[n, i, c] * w[e, c]) + b[e]
    s[n, h, i, j] = 0.125 * {scores} where h in 0:E // 64
    p[n, h, i, j] = softmax[j](s[n, h, i, j])
    o[n, h, i, d] = {product}
    {rest}
}}"""
SCORES = "(sum[d in 0:64](q[n, i, h * 64 + d] * k[n, j, h * 64 + d]) using bf16)"
PRODUCT = "sum[j](p[n, h, i, j] * v[n, j, h * 64 + d]) using bf16 where h in 0:E // 64, d in 0:64"
SCORES_F16 = "sum[d in 0:64](f16(q[n, i, h * 64 + d]) * k[n, j, h * 64 + d])"
PRODUCT_F16 = "sum[j](f16(p[n, h, i, j]) * v[n, j, h * 64 + d]) where h in 0:E // 64, d in 0:64"
AGAIN = "z[n, i, j] = sum[e](q[n, i, e] * k[n, j, e]) using bf16"
OF_BF16 = ATTENTION.format(kind="bf16", out="", scores=SCORES, product=PRODUCT, rest="")
CHAINS = {  # and the kernels of their plans
    "bf16": (OF_BF16, 2),
    "f16": (ATTENTION.format(kind="f16", out="", scores=SCORES_F16, product=PRODUCT_F16, rest=""), 2),
    "two readers": (
        ATTENTION.format(kind="bf16", out=", z: f32[B, S, S]", scores=SCORES, product=PRODUCT, rest=AGAIN),
        3,
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_queries_in_f32_are_no_bar_to_a_chain(case):
    source, kernels = CHAINS[case]
    plan = lowered(source, None, {"B": 4, "S": 1024, "E": 512}, end="plan", emit=False)[1].plan
    assert len(plan.kernels) == kernels
    (chain,) = [k for k in plan.kernels if isinstance(k.options, ContractionChain)]
    assert "o" in chain.name


def test_queries_that_another_reader_takes_whole_stay(without):
    source = ATTENTION.format(
        kind="bf16",
        out=", z: f32[B, S]",
        scores=SCORES,
        product=PRODUCT,
        rest="z[n, i] = sum[e](q[n, i, e] * q[n, i, e])",
    )
    sizes = {"B": 1, "S": 64, "E": 64}
    text = lowered(source, None, sizes, end="simplify")[1].texts["simplify"]
    without()
    plain = lowered(source, None, sizes, end="simplify")[1].texts["simplify"]
    assert 'tilec.name = "q"' in text
    name = [line for line in text.split("\n") if 'tilec.name = "q"' in line]
    assert name == [line for line in plain.split("\n") if 'tilec.name = "q"' in line] and "xbf16>) attrs" not in name[0]


def test_using_rounds_nothing_before_a_product_on_a_cpu():
    text = lowered(OF_BF16, None, {"B": 1, "S": 64, "E": 64}, target="cpu", end="simplify")[1].texts["simplify"]
    (made,) = [line for line in text.split("\n") if 'tilec.name = "q"' in line]
    assert "xf32>) attrs" in made


@pytest.mark.slow
@pytest.mark.parametrize("case", CHAINS)
def test_every_stage_of_attention_stays_within_its_bound(case, rng):
    source, _ = CHAINS[case]
    kind = np.float16 if case == "f16" else BF16.numpy
    shapes = {"x": (1, 64, 64), "w": (64, 64), "b": (64,), "k": (1, 64, 64), "v": (1, 64, 64)}
    inputs = {
        name: (rng.normal(0, 1, shape) / (8 if name == "w" else 1)).astype(kind) for name, shape in shapes.items()
    }
    result = lowered(source, None, inputs, texts=True)[1]
    for text in result.texts.values():
        assert_within(source, inputs, list(interpret(text, inputs).values()), kind="cuda")


@pytest.mark.parametrize("weight", ["exp(s[i, j] - l[i])", "softmax[j](s[i, j])"])
def test_a_rounding_that_the_product_makes_costs_nothing(weight):
    """Weights that are declared as bf16 are the same kernel, in the same time, as those that `using bf16` rounds."""
    source = """op f(q: bf16[S, D], k: bf16[S, D], v: bf16[S, D], l: f32[S]) -> (o: bf16[S, D]) {{
        s[i, j] = sum[d](q[i, d] * k[j, d])
        p[i, j]{kind} = {weight}
        o[i, d] = sum[j](p[i, j] * v[j, d]){using}
    }}"""
    plans = [
        lowered(source.format(kind=k, weight=weight, using=u), None, {"S": 4096, "D": 64}, end="plan", emit=False)[
            1
        ].plan
        for k, u in ((": bf16", ""), ("", " using bf16"))
    ]
    (declared,), (allowed,) = [p.kernels for p in plans]
    assert isinstance(declared.options, ContractionChain)
    assert declared.prediction.time_us == allowed.prediction.time_us
