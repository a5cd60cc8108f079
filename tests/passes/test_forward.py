"""What is only forwarded is known before anything is planned: the plan speaks of the kernels and results that there are."""

import pytest
from fuzz.compare import specialised
from fuzz.programs import Case
from tools.found import PROGRAMS

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.kernels import planned_kernels
from tilec.plan.report.explain import explain

FORWARDED = {
    "a negation of a negation": ("op f(x: f32[N]) -> (y: f32[N]) { t[i] = -x[i]  y[i] = -t[i] }", 0, {"y": "x"}),
    "through a transpose and back": (
        "op f(x: f32[N, N]) -> (y: f32[N, N]) { t[i, j] = -x[j, i]  y[i, j] = -t[j, i] }", 0, {"y": "x"}),
    "through three operations of integers": (
        "op f(x: i32[N]) -> (y: i32[N]) { t[i] = x[i] + 1  u[i] = t[i] + 2  y[i] = u[i] - 3 }", 0, {"y": "x"}),
    "a result that is another one": (
        "op f(x: f32[N], a: f32) -> (y: f32[N], z: f32[N]) { t[i] = x[i] + a  y[i] = exp(t[i])  z[i] = exp(x[i] + a) }",
        1, {"z": "y"}),
    "beside a reduction of a reduction's result": (
        "op f(x: f16[N, N]) -> (s: f16[N], m: f16) { r[i] = sum[j](x[i, j])  t[i] = -r[i]  s[i] = -t[i]  m = max[i](s[i]) }",
        None, {}),
}  # fmt: skip


def stages_of(case: Case, target: str):
    special = specialised(case)
    with mlir.context(), ir.Location.unknown():
        module = build(special)
        lowered = lower(module, load(target), end="fuse", emit=False)
        made = {}
        for f, _ in planned_kernels(module.operation):
            made[ir.StringAttr(f.attributes["sym_name"]).value] = len(list(mlir.entry(f).operations)[-1].operands)
    return special, lowered.plan, made


def agree(plan, made):
    assert {k.name: len(k.outputs) for k in plan.kernels} == made


@pytest.mark.parametrize("name", FORWARDED)
def test_what_is_forwarded_is_not_planned(name):
    text, kernels, copies = FORWARDED[name]
    for target in ("cpu", "h200"):
        special, plan, made = stages_of(Case(text, {"N": 40}, {}), target)
        agree(plan, made)
        assert {c.name: c.source for c in plan.copies} == copies
        assert kernels in (None, len(plan.kernels))
        if kernels == 0:
            assert "kernels           1 copy\n" in explain(plan, special)


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_plans_of_found_programs_are_of_what_is_launched(target):
    for text, sizes in list(PROGRAMS.values()):
        _, plan, made = stages_of(Case(text, sizes, {}), target)
        agree(plan, made)


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_what_only_a_dead_branch_reads_is_not_planned(target):
    """It was computed, and made a circle of kernels that a schedule had in another order."""
    text = """op f(x: i32[N, N], n: u16) -> (y: i32[N, N]) {
        t[i, j]: i64 = (sum[k in 0:N](cumsum[i](n)) ** 2) where i in 0:N, j in 0:N
        c[i, j]: bool = true where i in 0:N, j in 0:N
        y[i, j] = x[i, j] * 3 if c[i, j] else i16(abs(t[i, j]))
    }"""
    _, plan, made = stages_of(Case(text, {"N": 7}, {}), target)
    assert [k.name for k in plan.kernels] == ["f_y"] == list(made)
