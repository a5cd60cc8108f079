"""Options of one kernel changed: each family of kernels, each field, values that are legal or not.

What the compiler accepts must be right: the IR after every stage by the interpreter, and for the CPU the compiled kernel. The same
edit of dumped IR must be refused, or come to the same kernels.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import tomlkit

from fuzz.choices import Choices
from fuzz.compare import Verdict, Wrong, as_schedule, expect, outputs_of, specialised
from fuzz.compiled_as_one import compile_as_one
from fuzz.edited_programs import PROGRAMS
from fuzz.guards import in_a_child, run_guarded
from fuzz.programs import Case
from tilec.core import mlir, records
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.driver.lowering import Lowered, lower
from tilec.dsl.build import build
from tilec.dsl.specialise import Specialised
from tilec.kernels import FAMILIES
from tilec.passes import NAMES
from tilec.plan.model import Plan
from tilec.plan.schedule.write import write_schedule
from tilec.semantics.interpreted import interpret_stage


@dataclass(frozen=True)
class Own:
    """A program as the compiler plans it."""

    program: Specialised
    case: Case
    machine: Target
    plan: Plan
    schedule: str
    dump: str
    """The IR after stage `plan`."""


@cache
def own(name: str) -> Own:
    made = PROGRAMS[name]
    case, machine = made.case, made.machine
    program = specialised(case)
    lowered = _lowered(program, machine, None, end="plan")
    plan = lowered.plan
    assert plan is not None and {k.options.name for k in plan.kernels} == {made.family}, name
    return Own(program, case, machine, plan, write_schedule(plan, program), lowered.texts["plan"])


def _lowered(program: Specialised, machine: Target, schedule: str | None, **options: Any) -> Lowered:
    with mlir.context(), ir.Location.unknown():
        return lower(build(program), machine, schedule=as_schedule(schedule), **{"emit": False} | options)


# ---- drawing -----------------------------------------------------------------------------------------------------------


def drawn_edit(draw: Choices) -> tuple[str, str]:
    """The name of a program, and its schedule with one to three values of one kernel changed."""
    name = draw.pick(*PROGRAMS)
    return name, with_drawn_values(draw, own(name).plan, own(name).schedule)


def with_drawn_values(draw: Choices, plan: Plan, schedule: str) -> str:
    """The schedule of a plan with one to three values of one kernel changed: of its options, its tile, its loops."""
    table = tomllib.loads(schedule)
    kernel = draw.pick(*plan.kernels)
    message = table["plan"][0]["kernels"][kernel.name]
    options = message.setdefault(kernel.options.name, {})
    now = dict(kernel.options.options())
    known = {f.name: f for f in fields(FAMILIES[kernel.options.name])}
    keys = [*known, "tile", *(f"loops.{n}" for n in kernel.loops)]
    loose = [k for k in keys if k in now and not known[k].metadata["fixed"]] + ["tile"]
    for _ in range(draw.pick(1, 1, 1, 2, 3)):
        key = draw.pick(*keys) if draw.chance(70) else draw.pick(*loose)
        if key == "tile":
            message["tile"] = drawn_value(draw, kernel.tile)
        elif key.startswith("loops."):
            operation = key.removeprefix("loops.")
            message["loops"][operation] = drawn_value(draw, kernel.loops[operation])
        else:
            options[key] = drawn_value(draw, now.get(key))
    return tomlkit.dumps(table)


def drawn_value(draw: Choices, value: Any) -> Any:
    """A value in place of another one, mostly of its kind."""
    if value is None or draw.chance(3):
        return draw.pick(1, True, 0, "foo", [1], [])
    match value:
        case bool():
            return not value
        case str():
            return draw.pick(
                "registers", "reload", "smem", "async", "tma", "fma", "amx", "mma.sync", "wgmma", "f32", "bf16", "foo", ""
            )
        case int():
            return _number(draw, value)
    numbers = list(value)
    if not numbers or draw.chance(8):
        return draw.pick([*numbers, 1], numbers[:-1], [])
    if draw.chance(15):
        return draw.ordered(numbers)
    for _ in range(draw.pick(1, 1, 2)):
        at = draw.below(len(numbers))
        numbers[at] = _number(draw, numbers[at])
    return numbers


def _number(draw: Choices, value: int) -> int:
    if draw.chance(60):
        return draw.pick(value // 2, value * 2, value + 1, value - 1, 4 * value)
    return draw.pick(0, 1, -1, 2, 3, 4, 5, 8, 16, 32, 64, 96, 128, 256, 1 << 20, 1 << 40)


def planned(name: str, schedule: str | None) -> Plan:
    """The plan of a program as a schedule says. Raises CallError where the schedule is refused."""
    plan = _lowered(own(name).program, own(name).machine, schedule, end="plan").plan
    assert plan is not None
    return plan


# ---- checking ----------------------------------------------------------------------------------------------------------


def check_edit(name: str, schedule: str) -> Verdict | None:
    """None where the compiler refuses the schedule of a program. Raises Wrong, or what compiling and running raise, where the
    compiler accepts the schedule, and results are not right after every stage (and on the CPU, if it is the target), or where
    dumped IR with the same edit does not fare alike."""
    made = own(name)
    try:
        lowered = _lowered(made.program, made.machine, schedule, emit=True)
    except CallError as error:
        if (text := from_dump(name, schedule)) is not None:
            raise Wrong(f"a schedule is refused ({error}), and the same edit of IR is not: {text}") from None
        return None
    assert lowered.plan is not None
    if {k.options.name for k in lowered.plan.kernels} != {
        PROGRAMS[name].family
    }:  # of which a schedule says less than IR
        return check_lowered(name, lowered)
    if (found := from_dump(name, schedule)) != _mapped(lowered):
        raise Wrong(
            f"a schedule is obeyed, and the same edit of IR is {'refused' if found is None else 'something else'}"
        )
    return check_lowered(name, lowered)


def from_dump(name: str, schedule: str) -> str | None:
    """The IR after `map`, of IR that was dumped after `plan` and edited as a schedule is; None where the compiler refuses it."""
    made = own(name)
    (table,) = tomllib.loads(schedule)["plan"]
    with mlir.context(), ir.Location.unknown():
        module = mlir.parse(made.dump)
        kernels = {k.name: {e.name: e.attr for e in k.attr} for k in module.operation.attributes["tilec.kernels"]}
        for kernel, message in table["kernels"].items():
            for key, value in message.items():
                if key == "tile":
                    kernels[kernel][key] = records.attribute_of(value)
                elif key in FAMILIES:
                    options = {e.name: e.attr for e in kernels[kernel].get(key, ())}
                    edited = {k: records.attribute_of(v) for k, v in value.items()}
                    kernels[kernel][key] = ir.DictAttr.get(options | edited)
            for op in [o for o in mlir.traverse(module.operation) if mlir.is_generic(o)]:
                if (order := message.get("loops", {}).get(mlir.get_string(op, "tilec.name"))) is not None:
                    op.attributes["tilec.loops"] = records.attribute_of(order)
        edited = {k: ir.DictAttr.get(entries) for k, entries in kernels.items()}
        module.operation.attributes["tilec.kernels"] = ir.DictAttr.get(edited)
        try:
            return _mapped(lower(mlir.parse(mlir.text(module, locations=True)), made.machine, begin="fuse", emit=False))
        except CallError:
            return None


def _mapped(lowered: Lowered) -> str:
    """The IR after `map`, without predicted times."""
    return re.sub(r"predicted_us = [^,}]*", "", lowered.texts["map"])


def check_lowered(name: str, lowered: Lowered) -> Verdict:
    """Holds what became of a program to the reference. Raises Wrong, and what running raises."""
    planned, verdict = own(name), Verdict()
    for stage in [s for s in NAMES if s in lowered.texts]:
        with np.errstate(all="ignore"):
            results = interpret_stage(planned.program, lowered.texts, stage, planned.case.inputs)
        where = f"after {stage} for {planned.machine.name}: "
        verdict = expect(planned.case, planned.program, results, None, where)
    if planned.machine.kind == "cpu":
        (loops,) = compile_as_one([lowered.emitted], 0)
        case, outputs = planned.case, outputs_of(planned.program)
        results = in_a_child(lambda: run_guarded(lowered.emitted, loops, case.inputs, outputs, "end"))
        verdict = expect(case, planned.program, results, "cpu")
    return verdict
