"""What the plan says that a block keeps in SRAM: at least what the printed kernel takes, and never more than there is."""

from __future__ import annotations

import re

import pytest
from fuzz.choices import Choices
from fuzz.compare import as_schedule, check, specialised
from fuzz.programs import Case, drawn_case
from fuzz.schedules import drawn_schedule, planned
from tools.lowering import lowered

from tilec.core.diagnostics import CallError
from tilec.core.targets import load
from tilec.plan.schedule.write import write_schedule
from tilec.semantics.verify_inputs import inputs_of

PROGRAMS = {
    "two scans across each other": (
        "op f(x: i64[M, N]) -> (y: i64[M, N]) { y[i, j] = max(cumsum[i](cumprod[j](i % 7)), x[i, j]) }", {"M": 130, "N": 130}),
    "places along a scan": (
        "op f(x: f32[M, N, K], w: i64[M, N]) -> (y: i64[M, N]) { y[i, j] = max(cumsum[i](argmax[k](x[i, j, k])), w[i, j]) }",
        {"M": 130, "N": 130, "K": 1}),
    "a product of places in between": (
        """op f(x: f32[N, N], c: bool[N, N], w: i64[N, N, K]) -> (y: f64[N, N]) {
            s[i, j] = cumsum[i](x[i, j] if c[i, j] else prod[k in 0:1](clamp(x[j, i], -1, 1)))
            y[i, j] = argmin[k](argmin[l in 0:1](s[i, j]) + w[i, j, k] ** 2)
        }""", {"N": 130, "K": 1}),
    "rows in SRAM": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }", {"M": 4096, "N": 32768}),
    "rows that blocks share": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = softmax[j](x[i, j]) }", {"M": 64, "N": 262144}),
    "rows that begin anywhere": (
        "op f(x: bf16[M, N]) -> (y: bf16[M, N]) { y[i, j] = softmax[j](x[i, j]) }", {"M": 999, "N": 50257}),
    "a scan of a block": ("op f(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = cumsum[j](x[i, j]) }", {"M": 512, "N": 9000}),
    "a scan that is read again": (
        "op f(x: f32[M, N]) -> (y: f32[M, N]) { c[i, j] = cumsum[j](x[i, j])  y[i, j] = c[i, j] / (1 + max[j](c[i, j])) }",
        {"M": 512, "N": 3000}),
    "turned": ("op f(x: f32[M, N]) -> (y: f32[N, M]) { y[j, i] = x[i, j] }", {"M": 999, "N": 1024}),
    "a product of matrices": ("op f(x: f16[M, K], w: f16[K, N]) -> (y: f16[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }",
                              {"M": 512, "N": 512, "K": 512}),
    "one of integers": ("op f(x: f64[M, K], w: f64[N, K]) -> (y: f64[M, N]) { y[i, j] = sum[k](x[i, k] * w[j, k]) }",
                        {"M": 100, "N": 200, "K": 300}),
    "attention": (
        """op f(q: bf16[H, S, D], k: bf16[H, S, D], v: bf16[H, S, D]) -> (o: bf16[H, S, D]) {
            p[h, i, j] = softmax[j](sum[d](q[h, i, d] * k[h, j, d]))
            o[h, i, d] = sum[j](p[h, i, j] * v[h, j, d])
        }""", {"H": 8, "S": 1024, "D": 64}),
}  # fmt: skip


def kernels(case: Case, target: str, schedule: str | None = None):
    """The planned and the printed kernels, by name."""
    _, result = lowered(specialised(case), schedule=as_schedule(schedule), target=target)
    plans = {k.name: k for k in result.plan.kernels}
    return [(plans[k.name], k) for k in result.emitted.kernels if k.name in plans]  # one that combines parts has no plan


def hold(case: Case, target: str, schedule: str | None = None) -> None:
    room = load(target).sm.shared_per_block
    for plan, printed in kernels(case, target, schedule):
        assert printed.shared <= plan.sram(plan) <= room, printed.text


@pytest.mark.parametrize("target", ["h200", "rtx4090"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_of_every_kind(name, target):
    hold(Case(*PROGRAMS[name], {}), target)


@pytest.mark.slow
def test_drawn_kernels():
    for number in range(200):
        draw = Choices(f"sram {number}")
        case = drawn_case(draw, statements=draw.pick(2, 3, 4))
        hold(case, "h200", drawn_schedule(draw, specialised(case), "h200") if draw.chance(50) else None)


def test_a_tile_is_cut_to_what_there_is_room_for():
    text, sizes = PROGRAMS["places along a scan"]
    case = Case(text, sizes, {})
    ((plan, _),) = [p for p in kernels(case, "h200") if p[0].outputs == ("y",)]
    assert plan.tile[0] < 130
    check(Case(text, sizes, inputs_of(specialised(case), "ordinary", 0)), "emulator")


def test_a_schedule_that_asks_for_more_is_refused():
    case = Case(*PROGRAMS["places along a scan"], {})
    program = specialised(case)
    text = write_schedule(planned(program, "h200", None), program)
    tile = re.findall(r"^tile = .*$", text, re.MULTILINE)[-1]
    with pytest.raises(
        CallError, match=r"a block would take [0-9,]+ bytes of shared memory, and h200 has 232,448 for a block"
    ) as error:
        planned(program, "h200", text.replace(tile, "tile = [130]"))
    assert "tile = [130]" in str(error.value)


STAGES = "op f(x: f16[M, K], w: f16[K, N]) -> (y: f16[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }"


def test_more_stages_than_there_is_room_for_are_refused():
    case = Case(STAGES, {"M": 512, "N": 512, "K": 512}, {})
    program = specialised(case)
    text = write_schedule(planned(program, "h200", None), program)
    for line in ("block = [128, 256, 64]", "stages = 6"):
        text = re.sub(rf"^{line.partition(' ')[0]} = .*$", line, text, flags=re.MULTILINE)
    with pytest.raises(CallError, match="a block would take") as error:
        planned(program, "h200", text)
    assert "block = [128, 256, 64]" in str(error.value)


SEPARATE = """op f(x: f32[M, N]) -> (y: f32[M, N]) {
    t[i, j] = exp(sin(x[i, j]) * cos(x[i, j])) + tan(x[i, j])
    b[i] = any[j](t[i, j] > 0.5)
    y[i, j] = t[i, j] if b[i] else 0
}"""


def test_what_no_block_can_hold_is_several_kernels():
    """Blocks of a cluster could keep such rows, and cannot exchange bools."""
    case = Case(SEPARATE, {"M": 4, "N": 60000}, {})
    plan = planned(specialised(case), "h200", None)
    assert [k.nodes for k in plan.kernels] == [("t",), ("b",), ("y",)]
    assert any("240,016 bytes of shared memory" in str(r) and r.verb == "refused" for r in plan.remarks)
    text = write_schedule(plan, specialised(case))
    whole = text[: text.index("[plan.kernels")] + '[plan.kernels.f_all]\noperations = ["t", "b", "y"]\n'
    with pytest.raises(
        CallError, match="`t`, `b`, `y` cannot be one kernel: a block would take 240,016 bytes"
    ) as error:
        planned(specialised(case), "h200", whole)
    assert 'operations = ["t", "b", "y"]' in str(error.value)
