"""How much longer a plan takes at other sizes than the planner's own plan for them, by the cost model.

A plan is written as a schedule file has it, and obeyed at the other sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.core import mlir
from tilec.core.diagnostics import CallError, Source, TileError
from tilec.core.target import Target
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.plan.model import Plan
from tilec.plan.schedule.read import Schedule, parse_schedule
from tilec.plan.schedule.write import write_schedule


def planned(
    special: Specialised, target: Target, schedule: Schedule | None = None, at: Mapping[str, int] | None = None
) -> Plan:  # fmt: skip
    """The plan of a program; `at`: where sizes vary, at these. Raises CallError or TileError where it cannot obey a schedule, and
    Varies where it has none for all of its sizes."""
    with mlir.context(), mlir.ir.Location.unknown():
        found = lower(build(special), target, schedule=schedule, texts=False, end="plan", emit=False, at=at).plan
    assert found is not None
    return found


def time_at(plan: Plan, special: Specialised, exact: Plan, target: Target) -> float | None:
    """Microseconds of a program with a plan for other sizes than its own, of which the plan is `exact`. None where it cannot be
    carried out."""
    here = replace(plan, signature=exact.signature, varies={}, kernels=tuple(_fitting(k, exact) for k in plan.kernels))
    try:
        text = write_schedule(here, special)
        if text == write_schedule(exact, special):
            return exact.time_us
        return planned(special, target, parse_schedule(Source("<class>", text))).time_us
    except (CallError, TileError):
        return None


def same_kernels(a: Plan, b: Plan) -> bool:
    """Whether plans have the same steps of rewrites, and kernels of the same families for the same operations."""
    return _kernels(a) == _kernels(b)


def _kernels(plan: Plan) -> tuple[object, ...]:
    steps = tuple((a.rewrite, a.step) for a in plan.rewrites)
    return steps, tuple((k.nodes, k.options.name if k.options is not None else "") for k in plan.kernels)


def _fitting(kernel: KernelPlan, exact: Plan) -> KernelPlan:
    """A kernel whose tile is no larger than the program is at these sizes."""
    own = next((k for k in exact.kernels if k.nodes == kernel.nodes), None)
    if own is None:
        return kernel
    return replace(kernel, tile=tuple(min(t, max(1, own.extents[d])) for t, d in zip(kernel.tile, kernel.grid)))
