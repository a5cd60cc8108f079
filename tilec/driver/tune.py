"""Measured plans: the candidates of a program's kernels as schedule files, compiled and timed.

A candidate is the compiler's plan with another tile, loop order or family or options of one kernel. It is compiled from
its schedule file, so that `--schedule` gives the same kernels later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tilec.core import mlir
from tilec.core.diagnostics import Source
from tilec.core.target import Target
from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.plan.model import Plan

if TYPE_CHECKING:
    from tilec.driver.executable import Executable


Edit: TypeAlias = "Callable[[Plan], Plan]"
Choose: TypeAlias = "Callable[[Sequence[KernelPlan], int], list[KernelPlan]]"


@dataclass(frozen=True)
class Candidate:
    """A plan that differs from the compiler's in `kernel`, or in nothing where that is None. `schedule` is its file."""

    kernel: str | None
    plan: Plan
    schedule: str

    @property
    def predicted_us(self) -> float:
        return self.plan.time_us

    def describe(self, own: Plan) -> str:
        """How it differs from `own`: "tile (8,) -> (4,), steps (1, 2) -> (1, 4)"."""
        for mine, theirs in zip(own.kernels, self.plan.kernels):
            if mine.name == self.kernel:
                return ", ".join(differences(mine, theirs))
        return "the compiler's choice"


def differences(mine: KernelPlan, theirs: KernelPlan) -> Iterator[str]:
    if mine.tile != theirs.tile:
        yield f"tile {mine.tile} -> {theirs.tile}"
    for name in theirs.loops:
        if mine.loops.get(name) != theirs.loops[name]:
            yield f"loops of {name} {mine.loops.get(name)} -> {theirs.loops[name]}"
    if mine.family.name != theirs.family.name:
        yield f"{mine.family.name} -> {theirs.family.name}"
    own = dict(mine.family.options())
    for key, value in theirs.family.editable():
        if own.get(key) != value:
            yield f"{key} {own.get(key)} -> {value}"


def spread(ranked: Sequence[KernelPlan], most: int) -> list[KernelPlan]:
    """The first half of `most`, then others at even distances."""
    if len(ranked) <= most:
        return list(ranked)
    first = (most + 1) // 2
    rest, wanted = ranked[first:], most - first
    return [*ranked[:first], *(rest[n * len(rest) // wanted] for n in range(wanted))]


def candidates(
    specialised: Specialised, target: Target, most: int, schedule: Edit | None = None, choose: Choose = spread
) -> list[Candidate]:
    """The compiler's plan (or the plan that `schedule` makes of it), and up to `most` others of every kernel, which `choose` takes
    from those that are ranked by their predicted times."""
    plan, others = _planned(specialised, target, schedule)
    found = [_candidate(None, plan, specialised)]
    for n, kernel in enumerate(plan.kernels):
        for changed in choose([k for k in others.get(kernel.name, []) if k != kernel], most):
            kernels = (*plan.kernels[:n], changed, *plan.kernels[n + 1 :])
            found.append(_candidate(kernel.name, plan.with_kernels(kernels), specialised))
    return found


def _candidate(kernel: str | None, plan: Plan, specialised: Specialised) -> Candidate:
    from tilec.plan.schedule.write import write_schedule

    return Candidate(kernel, plan, write_schedule(plan, specialised))


def _planned(specialised: Specialised, target: Target, schedule: Edit | None) -> tuple[Plan, dict[str, list[KernelPlan]]]:
    """The plan, and the alternatives of every kernel, which are known only while the plan's IR is unchanged."""
    from tilec.driver.lowering import lower
    from tilec.dsl.build import build

    others: dict[str, list[KernelPlan]] = {}

    def ask(own: Plan) -> Plan:
        plan = schedule(own) if schedule else own
        others.update(plan.candidates() if plan.candidates else {})
        return plan

    with mlir.context(), mlir.ir.Location.unknown():
        lowered = lower(build(specialised), target, schedule=ask, end="plan", emit=False)
    assert lowered.plan is not None
    return lowered.plan, others


def compiled(candidate: Candidate, specialised: Specialised, target: Target) -> Executable:
    """The executable of a candidate. Raises TileError if its schedule cannot be carried out."""
    from tilec.driver.executables import build_executable
    from tilec.driver.lowering import lower
    from tilec.driver.recipe import Prepared
    from tilec.dsl.build import build
    from tilec.plan.schedule.read import parse_schedule

    schedule = parse_schedule(Source("candidate", candidate.schedule))
    with mlir.context(), mlir.ir.Location.unknown():
        lowered = lower(build(specialised), target, schedule=schedule)
    return build_executable(Prepared(specialised, lowered, target))


def combined(own: Plan, better: Sequence[Candidate], specialised: Specialised) -> Candidate | None:
    """Every kernel's best in one plan; `better` begins with the best. None where only one kernel has any."""
    best: dict[str, KernelPlan] = {}
    for candidate in better:
        for kernel in candidate.plan.kernels:
            if kernel.name == candidate.kernel:
                best.setdefault(kernel.name, kernel)
    if len(best) < 2:
        return None
    plan = own.with_kernels([best.get(k.name, k) for k in own.kernels])
    return _candidate(None, plan, specialised)
