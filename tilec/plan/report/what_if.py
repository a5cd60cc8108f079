"""Two plans, before and after a change of the planner's inputs: what differs, and under which condition a slower one would pay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Literal

from tilec.cost.blame import UNSURE, scaled
from tilec.cost.launches import launch_work
from tilec.cost.model import Work, predict
from tilec.plan.model import Plan
from tilec.plan.report.records import Decision, Explanation, Kernel

DERIVED = ("roofline", "intensity", "occupancy")
"""Facts that follow from others: a difference of theirs says nothing further."""
AMOUNTS = {
    "dram": "bytes of memory", "l2": "bytes through L2", "shared": "bytes of the nearest memory",
    "tensor": "products of matrix units", "arithmetic": "other arithmetic", "waits": "waits", "launch": "launches",
}  # fmt: skip
"""Amounts of the cost model, by their names in `tilec.cost.blame`."""
MOST = 16.0  # times as long as an amount takes, or one over it, up to which a condition is looked for
STEPS = 40  # of the search on either side


@dataclass(frozen=True)
class ChangedFact:
    """A fact of a kernel that is another one after the change."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class ChangedKernel:
    """A kernel of both plans, or of one of them."""

    computes: list[str]
    """The operations that it computes, after the change where it is there."""
    before: str | None
    """Its name before the change; null where it is new."""
    after: str | None
    """Its name after the change; null where it is gone."""
    before_us: float | None
    after_us: float | None
    facts: list[ChangedFact]
    """What differs of a kernel that is in both plans."""


@dataclass(frozen=True)
class WhatIf:
    """A plan before and after a change of what it is made of. All times are predictions."""

    schema: Literal["tilec.what-if/1"] = field(default="tilec.what-if/1", init=False)
    """The name and version of this format."""
    changes: list[str]
    """What changed, in words."""
    notes: list[str]
    """What keeps a change from having its effect."""
    speedup: float
    """The time before over the time after."""
    pays: str | None
    """For a slower plan on the same target: the least change of one amount of the cost model at which it would be as fast. Null
    where no change of up to 16 times brings that about."""
    kernels: list[ChangedKernel]
    """The longest after the change first."""
    gone: list[Decision]
    """Decisions that are only in the plan before."""
    new: list[Decision]
    """Decisions that are only in the plan after."""
    before: Explanation
    after: Explanation


def what_if(
    changes: Sequence[str], notes: Sequence[str], explained: tuple[Explanation, Explanation], plans: tuple[Plan, Plan]
) -> WhatIf:
    """The record of two plans, before and after, and of what is known of each."""
    before, after = explained
    known = [{(d.verb, d.subject) for d in e.decisions} for e in explained]
    gone, new = ([d for d in e.decisions if (d.verb, d.subject) not in other] for e, other in zip(explained, reversed(known)))
    kernels = sorted(_kernels(before, after), key=lambda k: (k.after_us is None, -(k.after_us or k.before_us or 0.0)))
    same = plans[0].target == plans[1].target and before.program == after.program
    pays = condition(*plans) if same and after.time_us > 1.002 * before.time_us else None
    speedup = before.time_us / after.time_us if after.time_us else 1.0
    return WhatIf(list(changes), list(notes), speedup, pays, kernels, gone, new, before, after)


def _kernels(before: Explanation, after: Explanation) -> Iterator[ChangedKernel]:
    """Kernels of both plans are those that compute the same, or else have the same name."""
    left = list(after.kernels)
    for kernel in before.kernels:
        match = next((k for k in left if k.computes == kernel.computes), None) or next(
            (k for k in left if k.name == kernel.name and not any(o.computes == k.computes for o in before.kernels)), None
        )
        if match is None:
            yield ChangedKernel(kernel.computes, kernel.name, None, kernel.cost.time_us, None, [])
            continue
        left.remove(match)
        yield ChangedKernel(
            match.computes, kernel.name, match.name, kernel.cost.time_us, match.cost.time_us, list(_facts(kernel, match))
        )
    for kernel in left:
        yield ChangedKernel(kernel.computes, None, kernel.name, None, kernel.cost.time_us, [])


def _facts(before: Kernel, after: Kernel) -> Iterator[ChangedFact]:
    one, other = before.facts, after.facts
    for name in dict.fromkeys((*one, *other)):
        if name not in DERIVED and one.get(name) != other.get(name):
            yield ChangedFact(name, one.get(name), other.get(name))


# ---- what would pay --------------------------------------------------------------------------------------------------------


def condition(before: Plan, after: Plan) -> str | None:
    """Of a plan that is slower than another one on the same target: the least change of one amount of the cost model at which it
    would be as fast, both plans staying as they are. None where no amount alone brings that about."""
    works = _works(before), _works(after)
    found: list[tuple[float, str]] = []
    for name in UNSURE:
        for sign in (1, -1):
            if (x := _crossing(name, works, before, sign)) is not None:
                found.append((abs(x), f"{AMOUNTS[name]} took {_times(exp(x))}"))
                break
    return min(found)[1] if found else None


def _works(plan: Plan) -> list[Work]:
    """Of each launch, and of each copy."""
    works = {k.name: k.work for k in plan.kernels}
    shared = {k for own in plan.launches.values() for k in own}
    found = [work for name, work in works.items() if name not in shared]
    return [*found, *(launch_work([works[k] for k in own]) for own in plan.launches.values()), *(c.work for c in plan.copies)]


def _crossing(name: str, works: tuple[list[Work], list[Work]], plan: Plan, sign: int) -> float | None:
    """The logarithm of the least factor of an amount at which the second works take no longer than the first ones."""

    def excess(x: float) -> float:
        totals = [sum(predict(*scaled(name, work, plan.target, exp(x))).time_us for work in side) for side in works]
        return totals[1] - totals[0]

    try:
        low = 0.0
        for step in range(1, STEPS + 1):
            high = sign * log(MOST) * step / STEPS
            if excess(high) > 0:
                low = high
                continue
            for _ in range(STEPS):
                middle = (low + high) / 2
                low, high = (middle, high) if excess(middle) > 0 else (low, middle)
            return high
    except (ValueError, OverflowError):  # blocks that do not fit
        return None
    return None


def _times(factor: float) -> str:
    return f"{factor:.3g} times as long" if factor >= 1 else f"{factor:.2g} times as long as they do"
