"""What a schedule says is what is predicted: the work of a kernel is a function of its tile, its loops and its options."""

from __future__ import annotations

import tomllib
from dataclasses import fields

import pytest
import tomlkit
from expectations import EXAMPLES
from fuzz.choices import Choices
from fuzz.edited_programs import PROGRAMS
from fuzz.edits import drawn_value, own
from tools import lowering

from tilec.core import mlir
from tilec.core.diagnostics import CallError, Source
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.driver.tune import candidates
from tilec.dsl.build import build
from tilec.kernels import FAMILIES
from tilec.plan.schedule.read import parse_schedule
from tilec.plan.schedule.write import write_schedule

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


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates_of_every_family_have_the_predicted_time_of_a_file(name):
    made = own(name)
    holds(made.program, made.machine)


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["cpu", "h200", "sm_80"])
@pytest.mark.parametrize("name", ["softmax", "causal_attention", "conv2d", "cumsum", "transpose", "variance"])
def test_candidates_of_examples_have_the_predicted_time_of_a_file(name, target):
    example = EXAMPLES[name]
    holds(lowering.specialised(example.path, example.op, example.bench_sizes), load(target))


DRAWS = 24
"""Values that are drawn for a field."""


def moving(name: str, program, machine, wanted: set[str] | None) -> dict[str, bool]:
    """For each field of the schedule of a program's kernels (an option, `tile`, `loops`) that edits are accepted of: whether the
    work of one of them is another than the unedited kernel's. `wanted`: these fields alone."""
    found = dict[str, bool]()

    def ask(plan):
        table = tomllib.loads(write_schedule(plan, program))
        for kernel in plan.kernels:
            message = table["plan"][0]["kernels"][kernel.name]
            options = dict(kernel.options.editable())
            for key in (*options, "tile", *(f"loops.{n}" for n in kernel.loops)):
                field, word = key.partition(".")[0], key.removeprefix("loops.")
                if wanted is not None and field not in wanted:
                    continue
                place = message if key == "tile" else message.get("loops" if field == "loops" else kernel.options.name, {})
                before = place.get(word)
                now = options.get(key, kernel.tile if key == "tile" else kernel.loops.get(word))
                for number in range(DRAWS):
                    place[word] = drawn_value(Choices(f"{name} {key} {number}"), now)
                    try:
                        edited = parse_schedule(Source("file", tomlkit.dumps(table)))(plan)
                    except CallError:
                        continue
                    (mine,) = [k for k in edited.kernels if k.name == kernel.name]
                    if mine != kernel and mine.options.name == kernel.options.name:
                        found[field] = found.get(field, False) or mine.work != kernel.work
                        if found[field]:
                            break
                place[word] = before
        return plan

    with mlir.context(), ir.Location.unknown():
        lower(build(program), machine, schedule=ask, end="plan", emit=False)
    return found


def joined(moved: dict[str, bool], more: dict[str, bool]) -> dict[str, bool]:
    return moved | {field: moves or moved.get(field, False) for field, moves in more.items()}


@pytest.mark.some(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_a_schedule_moves_the_prediction_or_is_named(family):
    """Of small programs, or else of large ones. `explain` names the others as not modelled."""
    from benchmarks.edits import PROGRAMS as LARGE
    from benchmarks.edits import specialised

    kind, moved = FAMILIES[family], dict[str, bool]()
    named = {f.name for f in fields(kind) if not f.metadata["modelled"]} | set(() if kind.weighs_loops else ("loops",))
    for name in (n for n, p in PROGRAMS.items() if p.family == family):
        moved = joined(moved, moving(name, own(name).program, own(name).machine, None))
    for made in (x for x in LARGE[kind.backend] if x.family == family):
        if missing := {field for field, moves in moved.items() if not moves} - named:
            machine = made.machine("cpu" if kind.backend == "cpu" else "h200")
            moved = joined(moved, moving(made.name, specialised(made), machine, missing))
    assert "tile" in moved
    assert {field for field, moves in moved.items() if not moves} <= named


def test_explain_names_what_the_model_leaves_out():
    from tilec.plan.report.explain import explain

    made = own("product, cpu")
    text = explain(made.plan, made.program)
    assert "not modelled      loops, lanes: the predicted time does not depend on what a schedule says of it" in text
