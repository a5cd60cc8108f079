"""Batch invariance: an element of a result has the same bits in every batch, whatever the other rows are."""

import re
from dataclasses import asdict, replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import tilec
from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.core.varying import Varying
from tilec.driver.classes import Classes, class_from, intervals
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.kernels import WarpgroupContraction
from tilec.plan.invariant import numbers, steps_of
from tilec.plan.model import Plan

BATCHES = (1, 2, 3, 7, 8, 16, 17, 31, 64, 100, 128, 129, 255, 256, 512)
SOFTMAX = """op softmax(x: f32[B, N]) -> (y: f32[B, N]) {
    e[i, j] = exp(x[i, j] - max[k](x[i, k]))
    y[i, j] = e[i, j] / sum[k](e[i, k])
}"""
NORM = """op norm(x: f32[B, N], g: f32[N]) -> (y: f32[B, N]) {
    m[i] = sum[j](x[i, j]) / N
    v[i] = sum[j]((x[i, j] - m[i]) ** 2) / N
    y[i, j] = (x[i, j] - m[i]) * rsqrt(v[i] + 0.00001) * g[j]
}"""
LINEAR = """op linear(x: TYPE[B, K], w: TYPE[N, K], c: TYPE[N]) -> (y: TYPE[B, N]) {
    y[i, j] = sum[k](x[i, k] * w[j, k]) + c[j]
}"""
ATTENTION = """op attention(q: f32[B, H, S, D], k: f32[B, H, S, D], v: f32[B, H, S, D]) -> (o: f32[B, H, S, D]) {
    s[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, j, d]) / sqrt(D)
    e[b, h, i, j] = exp(s[b, h, i, j] - max[t](s[b, h, i, t]))
    p[b, h, i, j] = e[b, h, i, j] / sum[t](e[b, h, i, t])
    o[b, h, i, d] = sum[j](p[b, h, i, j] * v[b, h, j, d])
}"""
LLAMA = """op block(x: f32[B, S, D], g: f32[D], wq: f32[D, H, E], wk: f32[D, H, E], wv: f32[D, H, E], wo: f32[H, E, D],
                    w1: f32[F, D], w2: f32[D, F]) -> (y: f32[B, S, D]) {
    r[b, s] = rsqrt(sum[d](x[b, s, d] ** 2) / D + 0.00001)
    n[b, s, d] = x[b, s, d] * r[b, s] * g[d]
    q[b, h, s, e] = sum[d](n[b, s, d] * wq[d, h, e])
    k[b, h, s, e] = sum[d](n[b, s, d] * wk[d, h, e])
    v[b, h, s, e] = sum[d](n[b, s, d] * wv[d, h, e])
    t[b, h, i, j] = sum[e](q[b, h, i, e] * k[b, h, j, e]) / sqrt(E)
    m[b, h, i, j] = t[b, h, i, j] if j <= i else -1e30
    a[b, h, i, j] = exp(m[b, h, i, j] - max[l](m[b, h, i, l]))
    p[b, h, i, j] = a[b, h, i, j] / sum[l](a[b, h, i, l])
    o[b, i, h, e] = sum[j](p[b, h, i, j] * v[b, h, j, e])
    z[b, s, d] = x[b, s, d] + sum[h, e](o[b, s, h, e] * wo[h, e, d])
    c[b, s] = rsqrt(sum[d](z[b, s, d] ** 2) / D + 0.00001)
    u[b, s, f] = sum[d](z[b, s, d] * c[b, s] * w1[f, d])
    y[b, s, d] = z[b, s, d] + sum[f](u[b, s, f] / (1 + exp(-u[b, s, f])) * w2[d, f])
}"""
SMALL = {"H": 2, "S": 9, "D": 32, "E": 16, "F": 48}
PROGRAMS = [
    *((SOFTMAX, {"N": n}) for n in (7, 100, 1000)),
    *((NORM, {"N": n}) for n in (7, 33, 768)),
    *((LINEAR.replace("TYPE", kind), {"K": 200, "N": n}) for kind in ("f32", "bf16") for n in (5, 100)),
    ("op f(x: f32[B, N]) -> (y: f32[B]) { y[i] = sum[j](sin(x[i, j]) * x[i, j]) }", {"N": 1100}),
    ("op f(x: f32[B]) -> (y: f32[B]) { y[i] = cos(100 * x[i]) }", {}),
    (ATTENTION, {"H": 2, "S": 19, "D": 16}), (LLAMA, SMALL),
]  # fmt: skip


def inputs_of(text: str, batch: int, sizes: dict[str, int]) -> tuple[list[np.ndarray], list[bool]]:
    """Small random numbers, and which arrays have a row for each of the batch."""
    random, declared = np.random.default_rng(0), re.findall(r"\w+: (\w+)\[([^]]*)\](?=.*->)", text, re.DOTALL)
    kinds, sizes = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}, {**sizes, "B": batch}
    shapes = [[sizes[name] for name in shape.split(", ")] for _, shape in declared]
    arrays = [(random.standard_normal(shape) / 5).astype(kinds[kind]) for (kind, _), shape in zip(declared, shapes)]
    return arrays, [shape.startswith("B") for _, shape in declared]


def check_rows(text: str, sizes: dict[str, int], batches: tuple[int, ...]) -> tilec.Op:
    """The bits of rows at some batches are those of the largest one."""
    op = tilec.compile(text, varies={"B": (1, 512)}, invariant=["B"], target="cpu")
    most = max(batches)
    arrays, rows = inputs_of(text, most, sizes)
    whole = op(*arrays)
    for batch in batches:
        found = op(*(a[:batch].copy() if row else a for a, row in zip(arrays, rows)))
        assert found.tobytes() == whole[:batch].tobytes(), batch
    for poison in (np.inf, np.nan, 1e-39):  # of all rows but one
        others = [a.copy() for a in arrays]
        for a, row in zip(others, rows):
            if row:
                a[np.arange(most) != 5] = poison
        assert op(*others)[5].tobytes() == whole[5].tobytes(), poison
    return op


@pytest.mark.parametrize(("text", "sizes"), [PROGRAMS[n] for n in (0, 9)])
def test_rows_have_the_same_bits_in_some_batches(text, sizes):
    op = check_rows(text, sizes, (1, 3, 31, 100))
    assert all(not c.refused and "in the mean" in str(c) for c in op.classes())


@pytest.mark.slow
@pytest.mark.parametrize(("text", "sizes"), PROGRAMS)
def test_rows_have_the_same_bits_in_every_batch(text, sizes):
    check_rows(text, sizes, BATCHES)


def test_long_sums_in_lanes_have_rounds():
    """As those whose order LLVM chooses."""
    text = "op f(x: f32[B, N]) -> (s: f32[B]) { s[i] = sum[j](x[i, j]) }"
    op = tilec.compile(text, varies={"B": (1, 8)}, invariant=["B"], target="cpu")
    for n in (70_001, 1_000_000):
        found = op(np.full((3, n), np.float32(0.1)))
        np.testing.assert_allclose(found, np.full(3, n * np.float64(np.float32(0.1))), rtol=600 * 2.0**-24)
        assert len(set(found)) == 1


def test_a_size_is_invariant_in_the_range_that_the_program_declares():
    op = tilec.compile(
        "op f(x: f32[B: 1..64, 5]) -> (s: f32[B]) { s[i] = sum[j](x[i, j]) }", invariant=["B"], target="cpu"
    )
    x = np.random.default_rng(0).standard_normal((64, 5), dtype=np.float32)
    assert [op(x[:n].copy())[:1].tobytes() for n in (1, 7, 64)] == [op(x)[:1].tobytes()] * 3
    assert "invariant" in op.explain(full=True)
    with pytest.raises(CallError, match="`B` is 65"):
        op(np.zeros((65, 5), np.float32))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("(s: f32[N]) { s[j] = sum[i](x[i, j]) }", "`s` .*reduces along a dimension of it"),
        ("(s: f32[B, N]) { s[i, j] = x[i, j] / B }", "`s` .*computes with its number"),
        ("(s: f32[B, N]) { s[i, j] = x[B - 1 - i, j] }", "`s` .*computes with its number"),
    ],
)
def test_what_the_program_says_of_a_size_rules_it_out(body, why):
    op = tilec.compile(f"op f(x: f32[B, N]) -> {body}", varies={"B": (1, 9)}, invariant=["B"], target="cpu")
    with pytest.raises(CallError, match=f"`B` cannot be invariant: {why}") as error:
        op(np.zeros((4, 3), np.float32))
    assert "leave `B` out of `invariant`" in str(error.value)


def test_a_wrong_option_is_an_error():
    text = "op f(x: f32[B, N]) -> (y: f32[B]) { y[i] = sum[j](x[i, j]) }"
    with pytest.raises(CallError, match="`invariant` is a list of sizes"):
        tilec.compile(text, varies={"B": (1, 9)}, invariant="B")
    with pytest.raises(CallError, match="`B` has no range to vary in"):
        tilec.compile(text, invariant=["B"])
    with pytest.raises(CallError, match="has no size `Q`"):
        tilec.compile(text, invariant=["Q"])


def test_what_cannot_vary_cannot_be_invariant(monkeypatch):
    """The op is not compiled for single numbers instead: their sums would have other orders."""
    from tilec.core.varying import Varies
    from tilec.driver import lowering

    def plan_at(*_):
        raise Varies("a number")

    monkeypatch.setattr(lowering, "plan_at", plan_at)
    monkeypatch.setattr("tilec.driver.recipe.Recipe._elsewhere", lambda self: None)
    text = "op f(x: f32[B, 11]) -> (y: f32[B]) { y[i] = 3.25 * sum[j](x[i, j]) }"
    op = tilec.compile(text, varies={"B": (1, 9)}, invariant=["B"], target="cpu")
    with pytest.raises(CallError, match="`B` cannot be invariant on cpu: stage 'plan' asks for a number"):
        op(np.zeros((4, 11), np.float32))


def test_a_class_of_an_invariant_size_is_of_its_whole_range():
    """So that the program says the same of all numbers."""
    varies = {"B": Varying(1, 512, invariant=True), "N": Varying(1, 512)}
    classes = Classes(varies, {"B": 8})
    found = [classes.of({"B": b, "N": 40}) for b in (1, 16, 17)]
    assert found[0] == found[1] != found[2]
    assert str(found[2]) == "B = 17..128 of 1..512, N = 17..128"
    assert {dict(of.ranges)["B"] for of in found} == {varies["B"]}
    assert [class_from(**asdict(of)) for of in found] == found


ORDERED = [
    (LINEAR.replace("TYPE", "bf16"), {"K": 4096, "N": 1024}), (LINEAR.replace("TYPE", "f32"), {"K": 512, "N": 512}),
    (SOFTMAX, {"N": 1000}), (NORM, {"N": 768}),
    (ATTENTION.replace("f32", "bf16"), {"H": 4, "S": 128, "D": 64}), (LLAMA, {"H": 4, "S": 64, "D": 256, "E": 64, "F": 512}),
]  # fmt: skip


def plans(text: str, target: str, sizes: dict[str, int]) -> list[Plan]:
    """Of every class."""
    v = Varying(1, 4096, invariant=True)
    special = specialise(parse(read_source(text)), None, None, sizes, varies={"B": v})
    found = []
    for part in intervals(v):
        with mlir.context(), ir.Location.unknown():
            at = Classes({"B": v}, {}).of({"B": part.low}).typical
            plan = lower(build(special), load(target), end="plan", emit=False, texts=False, at=at).plan
            assert plan is not None
            found.append(plan)
    return found


def check_order(text: str, target: str, sizes: dict[str, int]) -> list[Plan]:
    first, *others = found = plans(text, target, sizes)
    for plan in others:
        assert [(k.nodes, k.family.order()) for k in plan.kernels] == [(k.nodes, k.family.order()) for k in first.kernels]
        assert steps_of(plan) == steps_of(first)
        assert plan.cost_of_invariance == first.cost_of_invariance
    return found


def test_classes_on_a_gpu_have_other_tiles_and_one_order():
    found = check_order(*ORDERED[0][:1], "h200", ORDERED[0][1])
    assert len({k.tile for plan in found for k in plan.kernels}) > 2
    assert "slower in the mean" in found[0].cost_of_invariance


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "a100"])
@pytest.mark.parametrize(("text", "sizes"), ORDERED)
def test_classes_on_a_gpu_have_one_order(text, sizes, target):
    check_order(text, target, sizes)


def test_a_schedule_file_rules_invariant_sizes_out(tmp_path):
    """Its classes could have sums in other orders."""
    path = tmp_path / "rows.tile"
    path.write_text("op rows(x: f32[B: 1..9, N]) -> (s: f32[B]) { s[i] = sum[j](x[i, j]) }")
    (tmp_path / "rows.sched.toml").write_text("version = 2\n")
    with pytest.raises(CallError, match="`B` cannot be invariant by a schedule file"):
        tilec.compile(path, invariant=["B"], target="cpu")


def test_options_that_order_sums_are_those_of_another_kernel():
    options = WarpgroupContraction(
        multiplicand="bf16", rows=(0,), inner=(2,), left_k_major=True, right_k_major=True, block=(64, 64, 64), stages=4,
        columns=(1,), left_copy="tma", right_copy="tma", persistent_blocks=132,
    )  # fmt: skip
    other = replace(options, block=(128, 256, 128), stages=3, stream_k=2)
    assert options.order() != other.order()
    found = options.ordered_as(other)
    assert found == replace(options, block=(64, 64, 128), stream_k=2) and found.order() == other.order()


def test_plans_are_made_from_one_end_of_a_range_to_the_other():
    for v in (Varying(1, 512), Varying(0, 3), Varying(8, 4096, 8), Varying(0, 0), Varying(100, 101)):
        found = numbers(v)
        assert found == sorted(set(found)) and all(map(v.has, found)) and found[-1] == v.high
        assert all(b <= 5 * (a + v.multiple) for a, b in pairwise(found))
