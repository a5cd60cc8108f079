"""Random legal schedule files: kernels moved apart and together, operations inlined, tiles, loops and options."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import tomlkit

from fuzz.choices import Choices
from fuzz.compare import as_schedule
from tilec.core import mlir
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.specialise import Specialised
from tilec.plan.model import Plan
from tilec.plan.schedule.write import write_schedule

TARGETS = {"cpu": "cpu", "emulator": "h200", "gpu": "h200"}


def drawn_schedule(draw: Choices, program: Specialised, target: str) -> str:
    """The text of a schedule file for a program: the compiler's own plan after some edits that it accepts."""
    with mlir.context(), ir.Location.unknown():
        plan_as = _planner(program, target)
        text = write_schedule(plan_as(None), program)
        if "[plan.kernels" in text and draw.chance(50):
            regrouped = _regroup(draw, text)
            with suppress(CallError):  # not legal, and refused
                text = write_schedule(plan_as(regrouped), program)
        edited = _edit(draw, text, plan_as(text))
        try:
            plan_as(edited)
        except CallError:
            return text
        return edited


def planned(program: Specialised, target: str, text: str | None) -> Plan:
    """The plan of a program as the text of a schedule file says."""
    with mlir.context(), ir.Location.unknown():
        return _planner(program, target)(text)


def _planner(program: Specialised, name: str) -> Callable[[str | None], Plan]:
    """Plans a program as the text of a schedule file says, in the current MLIR context; what comes before is done once."""
    module, target = build(program), load(name)
    lower(module, target, end="simplify", emit=False, texts=False)

    def plan_as(text: str | None) -> Plan:
        copy = module.operation.clone()
        return lower(copy, target, schedule=as_schedule(text), begin="plan", end="plan", emit=False, texts=False).plan

    return plan_as


def _regroup(draw: Choices, text: str) -> str:
    """One operation goes to a kernel of its own or of another, or is computed inside its readers."""
    table = tomllib.loads(text)
    section = table["plan"][0]
    groups = [list(k["operations"]) for k in section["kernels"].values()]
    inline = list(section.get("inline", []))
    for _ in range(draw.integer(1, 3)):
        source = groups[draw.below(len(groups))]
        if not source:
            continue
        name = source.pop(draw.below(len(source)))
        match draw.below(3):
            case 0:
                groups.append([name])
            case 1:
                groups[draw.below(len(groups))].append(name)
            case _:
                inline.append(name)
    groups = [g for g in groups if g]
    stem = section["program"].partition("(")[0]
    section["inline"] = inline
    section["kernels"] = {f"{stem}_drawn{n}": {"operations": g} for n, g in enumerate(groups)}
    return tomlkit.dumps(table)


def _edit(draw: Choices, text: str, plan: Plan) -> str:
    """Tiles, orders of loops, and options of the same kind."""
    table: dict[str, Any] = tomllib.loads(text)
    kernels = {k.name: k for k in plan.kernels}
    for name, edited in table["plan"][0].get("kernels", {}).items():
        kernel = kernels[name]
        if draw.chance(50):
            edited["tile"] = [_tile(draw, kernel.extents[d]) for d in kernel.grid]
        for operation, order in edited.get("loops", {}).items():
            if draw.chance(50):
                edited["loops"][operation] = draw.ordered(order)
        options = edited.get(kernel.options.name, {})
        for key, value in options.items():
            if draw.chance(25):
                options[key] = other(draw, value)
    return tomlkit.dumps(table)


def other(draw: Choices, value: Any) -> Any:
    """A value like an option's, legal or not."""
    match value:
        case bool():
            return not value
        case str():
            return draw.pick("registers", "smem", "reload", "none")
        case int():
            return draw.pick(value // 2, value * 2, 1, 0, value + 1, -1)
    numbers = list(value)
    if numbers and not draw.chance(10):
        at = draw.below(len(numbers))
        numbers[at] = other(draw, numbers[at])
    elif numbers and draw.chance(50):
        numbers.pop()
    else:
        numbers.append(1)
    return numbers


def _tile(draw: Choices, extent: int) -> int:
    """A divisor, or any number up to the extent."""
    divisors = [d for d in range(1, extent + 1) if extent % d == 0] or [1]
    return draw.pick(*divisors) if draw.chance(50) else draw.integer(1, max(1, extent))
