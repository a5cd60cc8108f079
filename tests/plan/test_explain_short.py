"""The short report: a row for every kernel, launch and copy, longest first, within the width; and the report of one kernel."""

import re
from dataclasses import replace
from functools import cache

import pytest
from rich.cells import cell_len
from tools import ROOT
from tools.explained import MLP, SOFTMAX, planned
from tools.lowering import lowered

from tilec.core.diagnostics import CallError
from tilec.plan.report.explain import Observed, explain, explain_kernel
from tilec.plan.report.records import explanation
from tilec.plan.report.short import UNWRAPPED, Ways, short

WAYS = Ways("--kernel NAME", "--full")
COPIED = "op c(x: f32[M, N]) -> (y: f32[M, N], z: f32[M, N]) { y[i, j] = x[i, j]  z[i, j] = exp(x[i, j]) }"
LAUNCHED = """op f(x: f32[3, 1024], u: f32[300]) -> (s: f32[3], v: f32[300]) {
    s[i] = sum[j](x[i, j])
    v[k] = exp(u[k])
    EXPECT
}
"""
BLOCK = {"B": 1, "S": 512, "E": 512, "H": 8, "D": 64, "F": 2048}


@cache
def block():
    special, result = lowered(ROOT / "examples/transformer_block.tile", None, BLOCK, target="h200", end="plan", emit=False)
    return result.plan, special


def rows(text: str) -> list[list[str]]:
    """The cells of an unwrapped table, without its head."""
    lines = text.split("\n\n")[1].splitlines()
    assert re.split(r" {2,}", lines[0])[0] == "kernel"
    return [re.split(r" {2,}", line) for line in lines[1:]]


def test_every_kernel_has_a_row_and_the_longest_is_first():
    plan, special = block()
    text = short(explanation(plan, special), WAYS)
    kernels = sorted(plan.kernels, key=lambda k: -k.prediction.time_us)
    assert [row[0] for row in rows(text)] == [k.name.removeprefix("transformer_block_") for k in kernels]
    assert "called transformer_block_…: " in text and f"{len(plan.kernels)} kernels" in text
    assert sum(int(row[3].strip("<%")) for row in rows(text)) == pytest.approx(100, abs=len(kernels))
    refused = sum(r.verb == "refused" for r in plan.remarks)
    assert f"{len(plan.remarks)} decisions, {refused} refusal" in text
    assert "causal_attention, o" in text  # the function that was inlined, and not each of its statements


@pytest.mark.parametrize("width", [40, 80, 140])
def test_lines_fit_the_terminal_and_lose_nothing(width):
    plan, special = block()
    found = explanation(plan, special)
    text = short(found, WAYS, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width and "…" not in text.replace("block_…", "")
    coloured = short(found, WAYS, width, colours=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert coloured != plain and [x.rstrip() for x in plain.split("\n")] == text.split("\n")
    one_line = short(found, WAYS, UNWRAPPED)
    assert "".join(text.split("\n\n")[0].split()) == "".join(one_line.split("\n\n")[0].split())


def test_measured_times_have_a_column_and_make_the_order():
    special, plan = planned(MLP.replace("EXPECT", "expect kernels == 1"), {"M": 64, "D": 32, "F": 48})
    least = min(plan.kernels, key=lambda k: k.prediction.time_us)
    measured = {k.name: k.prediction.time_us for k in plan.kernels} | {least.name: 1e4, special.name: 1e4}
    found = explanation(plan, special, Observed(measured))
    text = short(found, WAYS)
    assert rows(text)[0][0] == least.name.removeprefix("mlp_") and rows(text)[0][3] == "10.00 ms"
    assert "10.00 ms measured; " in text and "expect kernels == 1: FAILS (kernels is 2)" in text
    assert f"off by more than 20%:\n  {least.name.removeprefix('mlp_')}: " in text
    cost = next(k.cost for k in found.kernels if k.name == least.name)
    assert cost.of_limit == cost.limit_us / 1e4 < 0.01 and next(k.model for k in found.kernels if k.name == least.name)


def test_copies_and_launches_have_rows():
    special, plan = planned(COPIED, {"M": 256, "N": 512})
    assert any(row[:2] == ["y", "a copy of x"] for row in rows(short(explanation(plan, special), WAYS)))
    special, plan = planned(LAUNCHED.replace("EXPECT", ""), {}, "h200")
    ((name, kernels),) = plan.launches.items()
    found = explanation(plan, special)
    launch, *own = rows(short(found, WAYS))
    assert launch[1] == "2 kernels at once:" and launch[3] == "100%" and {f"f_{row[1]}" for row in own} == set(kernels)
    assert all(k.launch == name and k.cost.share is None for k in found.kernels)
    assert found.launches[0].cost.limit_us <= sum(k.cost.limit_us for k in found.kernels)


def test_nothing_in_a_name_steers_the_terminal():
    special, plan = planned(SOFTMAX.replace("EXPECT", ""), {"M": 8, "N": 8})
    found = explanation(replace(plan, signature="f\x1b[2J(x)"), special)
    for text in (short(found, WAYS), short(replace(found, note="\u202e"), WAYS)):
        assert "\x1b" not in text and "\u202e" not in text
    assert "f\\x1b[2J(x)" in short(found, WAYS)


def test_a_kernels_report_is_its_part_of_the_whole():
    plan, special = block()
    whole = explain(plan, special)
    for name in ("transformer_block_g", "g"):
        part, decisions = explain_kernel(name, plan, special).split("\n\n")
        assert part in whole and part.startswith("kernel transformer_block_g: ")
        assert "    tiled        transformer_block_g: " in decisions and "o.sum" not in decisions
        assert set(re.findall(r"^    .*$", decisions, re.MULTILINE)) <= set(whole.splitlines())
    assert explain_kernel("k", plan, special).startswith("kernel transformer_block_q_k_v: ")  # which writes `k`
    with pytest.raises(CallError, match="no kernel 'zzz'\nhint: the kernels are transformer_block_"):
        explain_kernel("zzz", plan, special)
    special, plan = planned(LAUNCHED.replace("EXPECT", ""), {}, "h200")
    (name,) = plan.launches
    assert explain_kernel(name, plan, special).startswith(f"launch {name}: ")
