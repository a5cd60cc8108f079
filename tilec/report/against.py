"""Two plans of a program side by side: their kernels and times, and the facts and decisions in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.core.quantities import amount, duration
from tilec.dsl.specialise import Specialised
from tilec.kernels import KernelPlan
from tilec.plan.model import Plan
from tilec.plan.report.expectations import traffic
from tilec.plan.report.explain import bound_by, facts
from tilec.plan.report.provenance import Provenance
from tilec.report.sources import Decision, decision


@dataclass(frozen=True)
class Row:
    """A kernel. `share`: of the longer plan's time. `own`: no kernel of the other plan is equal to it."""

    name: str
    computes: str
    time: str
    share: float
    bound: str
    own: bool


@dataclass(frozen=True)
class Side:
    """A plan. `decisions`: those that the other plan does not have."""

    label: str
    time: str
    counted: str
    traffic: str
    kernels: list[Row]
    decisions: list[Decision]


@dataclass(frozen=True)
class Difference:
    """A kernel that both plans have, with other facts: label, and what it is in each."""

    kernel: str
    facts: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Comparison:
    sides: tuple[Side, Side]
    verdict: str
    differences: list[Difference]


def compare(specialised: Specialised, plans: tuple[Plan, Plan], labels: tuple[str, str]) -> Comparison:
    """Both plans are of the same program for the same sizes."""
    longest = max(plan.time_us for plan in plans) or 1.0
    sides = tuple(_side(plans[n], plans[1 - n], labels[n], longest) for n in (0, 1))
    first, second = (plan.time_us for plan in plans)
    faster = f"The plan of {labels[first > second]} is predicted to be {longest / (min(first, second) or 1.0):.2f} times as fast."
    verdict = "Both plans are predicted to take the same time." if duration(first) == duration(second) else faster
    return Comparison((sides[0], sides[1]), verdict, list(_differences(specialised, plans)))


def _side(plan: Plan, other: Plan, label: str, longest: float) -> Side:
    rows = [
        Row(k.name, ", ".join(k.nodes), duration(k.prediction.time_us), k.prediction.time_us / longest, bound_by(k.prediction),
            not any(_equal(k, o) for o in other.kernels))
        for k in plan.kernels
    ]  # fmt: skip
    known = {str(remark) for remark in other.remarks}
    decisions = [decision(r) for r in plan.remarks if str(r) not in known]
    return Side(label, duration(plan.time_us), plan.counted, f"{amount(traffic(plan))}B", rows, decisions)


def _equal(a: KernelPlan, b: KernelPlan) -> bool:
    return (a.nodes, a.tile, a.grid, a.loops, a.options) == (b.nodes, b.tile, b.grid, b.loops, b.options)


def _differences(specialised: Specialised, plans: Sequence[Plan]) -> list[Difference]:
    texts = []
    for plan in plans:
        where = Provenance(specialised, plan)
        texts.append({k.name: dict(facts(k, plan, where)) for k in plan.kernels})
    found = []
    for name in texts[0].keys() & texts[1].keys():
        one, two = texts[0][name], texts[1][name]
        rows = [(label, one.get(label, "—"), two.get(label, "—")) for label in one | two if one.get(label) != two.get(label)]
        if rows:
            found.append(Difference(name, rows))
    return sorted(found, key=lambda d: d.kernel)
