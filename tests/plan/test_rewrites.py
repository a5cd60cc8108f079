"""Rewrites: schedule files force and forbid them, and `explain` shows their steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tools.lowering import lowered, planned
from tools.plans import scheduled

from tilec.core.diagnostics import CallError, Source
from tilec.plan.report.explain import explain
from tilec.plan.schedule.write import write_schedule
from tilec.plan.search import written
from tilec.plan.steps import Applied, Split, Step

LONG = Source("t.tile", "op f(x: f32[N]) -> (y: f32) { y = sum[i](x[i]) }")
MANY = {"N": 1 << 22}


def decided(**section):
    return lowered(LONG, None, MANY, scheduled(**section), end="plan", emit=False)[1].plan


def test_a_schedule_forces_and_forbids_rewrites():
    own = planned(LONG, None, MANY)
    (step,) = own.steps("split")
    whole = decided(rewrites={"split": []})
    assert not whole.rewrites and [k.nodes for k in whole.kernels] == [("y",)] and whole.time_us > own.time_us
    for same in (True, ["y"], [{"operation": "y"}], [{"operation": "y", "parts": step.parts}]):
        assert decided(rewrites={"split": same}).rewrites == own.rewrites
    (other,) = decided(rewrites={"split": [{"operation": "y", "dim": 0, "parts": 16}]}).steps("split")
    assert other == replace(step, parts=16)
    assert decided(rewrites={"concatenation": True, "pack": []}).rewrites == own.rewrites  # none applies


def test_rewrites_and_kernels_are_decided_jointly():
    """A file that forbids a split lists the operations of the program as it is."""
    assert not decided(rewrites={"split": []}, kernels={"f_y": {"operations": ["y"]}}).rewrites
    both = {"f_a": {"operations": ["y.partial"]}, "f_b": {"operations": ["y"]}}
    assert [k.name for k in decided(kernels=both).kernels] == ["f_a", "f_b"]
    with pytest.raises(CallError, match=r"there is no operation `y\.partial`") as raised:
        decided(rewrites={"split": []}, kernels=both)
    assert "`rewrites` decides which further operations there are" in str(raised.value)


@pytest.mark.parametrize(
    "rewrites, message",
    [
        ({"splt": ["y"]}, ["there is no rewrite `splt`", "did you mean `split`?"]),
        ({"diagonals": ["y"]}, ["there is no rewrite `diagonals`", "it was renamed to `toeplitz`"]),
        ({"split": 3}, ["`split` must be a list of operations, or `true` for all that it applies to"]),
        ({"split": False}, ["`split` must be a list of operations"]),
        ({"split": [3]}, ["a step of `split` is the name of an operation, or a table with `operation`"]),
        ({"split": [{"dim": 0}]}, ["or a table with `operation`"]),
        ({"split": [{"operation": "y", "dm": 0}]}, ["unknown key `dm`", "did you mean `dim`?"]),
        ({"split": [{"operation": "y", "dim": "i"}]}, ["`dim` must be a whole number"]),
        ({"split": [{"operation": "y", "dim": True}]}, ["`dim` must be a whole number"]),
        ({"pack": [{"operation": "y", "dims": ["i"]}]}, ["`dims` must be a list of whole numbers"]),
        ({"split": ["z"]}, ["the rewrite `split` cannot be applied to `z`", "it applies to `y`; `split = []` forbids it"]),
        ({"pack": ["y"]}, ["the rewrite `pack` cannot be applied to `y`", "it applies to nothing here"]),
        ({"split": [{"operation": "y", "dim": 0, "parts": 3}]}, ["4194304 elements cannot be 3 equal parts"]),
        ({"split": [{"operation": "y", "dim": 1, "parts": 4}]}, ["its dimensions are 0 to 0"]),
        ({"split": [{"operation": "y", "parts": 4}]}, ["say `dim` and `parts` to have them in any case"]),
    ],
)
def test_rewrites_that_cannot_be(rewrites, message):
    with pytest.raises(CallError) as raised:
        decided(rewrites=rewrites)
    assert all(part in str(raised.value) for part in message) and "given.sched.toml:" in str(raised.value)


def test_factors_with_longer_lines_are_stored_in_pairs():
    """Lines of k with zeros behind them are as long in both factors: one alone would meet what lies behind the other."""
    text = "op f(a: bf16[M, K], b: bf16[K, N]) -> (c: bf16[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }"

    def given(**section):
        sizes = {"M": 2046, "N": 1998, "K": 2002}
        return lowered(text, None, sizes, scheduled(**section), end="plan", emit=False)[1].plan

    both = [{"operation": "c.sum", "side": side} for side in ("left", "right")]
    left, right = given(rewrites={"pack": both}).steps("pack")
    assert left.extents[1] == right.extents[0] > 2002
    for alone in both:
        with pytest.raises(CallError, match=r"has longer lines than `c\.sum` multiplies, and the other factor has not") as raised:
            given(rewrites={"pack": [alone]})
        assert 'side = "left"' in str(raised.value) and 'side = "right"' in str(raised.value)


def test_explain_lists_the_steps():
    special, result = lowered(LONG, None, MANY, end="plan", emit=False)
    (step,) = result.plan.steps("split")
    text = explain(result.plan, special)
    assert f"rewrites\n  1. split y: i in {step.parts} parts\n     t.tile:1  op f(" in text
    assert "unsplit, it has 1 parallel point" in text
    assert "rewrites" not in explain(decided(rewrites={"split": []}), special).partition("decisions")[0]
    assert f'split = [{{operation = "y", dim = 0, parts = {step.parts}}}]' in write_schedule(result.plan, special)


def test_steps_that_a_hint_names_are_written_as_in_a_schedule_file():
    assert written(Applied("copy", Step("y"))) == '"y"'
    assert written(Applied("split", Split("y", 1, 4, rest="z"))) == '{operation = "y", dim = 1, parts = 4, rest = "z"}'
