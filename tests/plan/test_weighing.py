"""What a schedule says is what is predicted: the work of a kernel is a function of its tile, its loops and its options."""

from __future__ import annotations

import pytest
from expectations import EXAMPLES
from fuzz.edited_programs import PROGRAMS
from fuzz.edits import own
from tools import lowering

from tilec.core.diagnostics import Source
from tilec.core.targets import load
from tilec.driver.tune import candidates
from tilec.plan.schedule.read import parse_schedule

SOME = 3
"""Candidates of each kernel that are read back."""


def holds(specialised, target) -> None:
    """Every candidate that the planner weighs is given the same work and the same time once its schedule is read."""
    for found in candidates(specialised, target, SOME):
        read = parse_schedule(Source("file", found.schedule))
        plan = lowering.lowered(specialised, schedule=read, target=target, end="plan", emit=False)[1].plan
        for wanted, kernel in zip(found.plan.kernels, plan.kernels, strict=True):
            assert (kernel.tile, kernel.loops, kernel.options) == (wanted.tile, wanted.loops, wanted.options)
            assert kernel.work == wanted.work, kernel.options
            assert kernel.prediction == wanted.prediction


@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates_of_every_family_are_predicted_alike_from_a_file(name):
    made = own(name)
    holds(made.program, made.machine)


@pytest.mark.parametrize("target", ["cpu", "h200", "sm_80"])
@pytest.mark.parametrize("name", ["softmax", "causal_attention", "conv2d", "cumsum", "transpose", "variance"])
def test_candidates_of_examples_are_predicted_alike_from_a_file(name, target):
    example = EXAMPLES[name]
    holds(lowering.specialised(example.path, example.op, example.bench_sizes), load(target))
