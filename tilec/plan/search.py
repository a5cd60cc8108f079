"""The search for the steps of a plan: for each rewrite, the plans with and without its steps are made and compared.

The rewrites are asked for in the order of `REWRITES`. The steps of one rewrite are taken together or not at all. Where a schedule
file decides a rewrite, its steps are those of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn

from tilec.core import mlir, records
from tilec.core.diagnostics import CallError
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.rewrite import Compared, Found, Rewrite
from tilec.plan.rewrites import REWRITES
from tilec.plan.state import State
from tilec.plan.steps import Applied, Step
from tilec.process import forks

OPERATIONS_THRESHOLD = 200  # operations: to plan them takes half a second

Demands = Mapping[str, Sequence[Mapping[str, records.Value]]]
"""For each rewrite that a schedule decides: the fields of the steps that it names, some of which may be left out."""
ALL: Sequence[Mapping[str, records.Value]] = ({},)
"""Every step that a rewrite can take."""
NONE: Demands = {rewrite.name: () for rewrite in REWRITES}
"""No step at all."""


def search(
    state: State, plan_of_all: Callable[[State], Plan], demands: Demands, rewrites: Sequence[Rewrite] = REWRITES
) -> Plan:  # fmt: skip
    """The fastest plan of those that `plan_of_all` makes of a program and of what these rewrites make of it. Raises CallError for
    a step that is demanded and cannot be taken."""
    if not rewrites:
        return plan_of_all(state)
    rewrite, *further = rewrites

    def plan_of(program: State) -> Plan:
        return search(program, plan_of_all, demands, further)

    if rewrite.name in demands:
        return plan_of(_with(rewrite, state, _demanded(rewrite, state, demands[rewrite.name])))
    without = cache(lambda: plan_of(state))
    found = rewrite.find(state, without)
    if not found.steps:
        return _with_remarks(without(), found.remarks)
    if found.compared is None:
        return _with_remarks(plan_of(_with(rewrite, state, found.steps)), found.remarks)
    taken = lambda: plan_of(_with(rewrite, state, found.steps))  # noqa: E731
    return _faster(rewrite, found, found.compared, without, taken, is_large(state.function))


def carried_out(state: State, demands: Demands) -> State:
    """A program once the steps are applied that a schedule decides: all of them, so that there is nothing to search. Raises
    CallError for a step that cannot be taken."""
    for rewrite in REWRITES:
        state = _with(rewrite, state, _demanded(rewrite, state, demands[rewrite.name]))
    return state


def _with(rewrite: Rewrite, state: State, steps: tuple[Applied, ...]) -> State:
    return state.after(rewrite.apply, steps, rewrite.of_kernels)


def _faster(
    rewrite: Rewrite, found: Found, compared: Compared, without: Callable[[], Plan], taken: Callable[[], Plan], at_once: bool
) -> Plan:  # fmt: skip
    """The faster of two plans, with a remark that has both times."""

    def about(plan: Plan) -> tuple[float, float]:
        return compared.weigh(plan), plan.time_us

    number, plan, times = forks.choose(
        [without, taken], about, lambda summaries: int(summaries[1][0] < summaries[0][0]), at_once
    )
    reason = f"{duration(times[1][1])} {compared.done}, {duration(times[0][1])} {compared.undone}"
    if not number:
        return _with_remarks(plan, [Remark("refused", subject, reason) for subject in compared.refused])
    steps = [a if a.rewrite != rewrite.name or a.reason else replace(a, reason=reason) for a in plan.rewrites]
    remarks = found.remarks or [Remark(compared.verb, compared.subject, reason)]
    return _with_remarks(replace(plan, rewrites=tuple(steps)), remarks)


def _with_remarks(plan: Plan, remarks: Sequence[Remark]) -> Plan:
    return replace(plan, remarks=(*remarks, *plan.remarks)) if remarks else plan


def is_large(function: ir.Operation) -> bool:
    """Whether plans of it take so long that they are made beside each other."""
    return len(mlir.entry(function).operations) >= OPERATIONS_THRESHOLD


class StepRefused(CallError):
    """A step of a `rewrite` that a schedule names, and that cannot be taken."""

    def __init__(self, rewrite: str, why: str, hint: str | None = None):
        super().__init__(why, hint=hint)
        self.rewrite = rewrite


def _demanded(rewrite: Rewrite, state: State, demands: Sequence[Mapping[str, records.Value]]) -> tuple[Applied, ...]:
    """The steps that a schedule names."""
    if not demands:
        return ()
    known, steps = rewrite.named(state), list[Applied]()
    for demand in demands:
        found = [a for a in known if all(getattr(a.step, key) == value for key, value in demand.items())]
        if demand and not found:
            exact = rewrite.exact(state, demand)
            found = [_refused(rewrite, demand, known, exact)] if not isinstance(exact, Applied) else [exact]
        steps += [a for a in found if a not in steps]
    if why := rewrite.lacks(state.function, [a.step for a in steps]):
        hint = f"write {' and '.join(written(a) for a in known if a.step.operation in {s.step.operation for s in steps})}"
        raise StepRefused(rewrite.name, f"the rewrite `{rewrite.name}` cannot be applied: {why}", hint)
    return tuple(steps)


def _refused(rewrite: Rewrite, demand: Mapping[str, records.Value], known: Sequence[Applied], why: str) -> NoReturn:
    """Raises the error for a step that is none of those known; `why` it cannot be, where that is known."""
    operation = demand["operation"]
    what = f"the rewrite `{rewrite.name}` cannot be applied to `{operation}`"
    if why:
        raise StepRefused(rewrite.name, f"{what}: {why}")
    if here := [written(a) for a in known if a.step.operation == operation]:
        raise StepRefused(rewrite.name, f"{what} with these options", f"write {' or '.join(here)}")
    names = ", ".join(f"`{n}`" for n in dict.fromkeys(a.step.operation for a in known))
    able = f"it applies to {names}" if names else "it applies to nothing here"
    raise StepRefused(rewrite.name, what, f"{able}; `{rewrite.name} = []` forbids it")


def written(applied: Applied) -> str:
    """A step as a schedule file has it."""
    step = applied.step
    if type(step) is Step:
        return f'"{step.operation}"'
    kind: Any = type(step)
    known = records.fields_of(kind)
    fields = [f"{key} = {_toml(value)}" for key, value in records.items(step) if value != known[key].default]
    return f"{{{', '.join(fields)}}}"


def _toml(value: records.Value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)
