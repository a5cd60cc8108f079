"""Which classes of sizes a program has, and what each costs beside a plan for exactly one size, by the cost model.

A class's plan is that of its typical sizes. It is written as a schedule file has it, and applied to the program at other sizes of
the class: the time that it takes there is compared with that of the plan which the planner makes for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.core.varying import Varying
from tilec.driver.class_loss import planned, time_at
from tilec.driver.classes import Class
from tilec.driver.each_class import each_class
from tilec.dsl import ast
from tilec.dsl.specialise import Argument, specialise
from tilec.plan.model import Plan
from tilec.plan.schedule.read import Schedule


@dataclass(frozen=True)
class Point:
    """Sizes of a class, and microseconds there: of the class's plan (None where it cannot be carried out), and of their own."""

    sizes: Mapping[str, int]
    class_us: float | None
    exact_us: float

    @property
    def loss(self) -> float | None:
        """How much longer the class's plan takes, as a part of the other's time."""
        return None if self.class_us is None else max(0.0, self.class_us / self.exact_us - 1)


@dataclass(frozen=True)
class Row:
    """A class with its plan, and its least and greatest sizes; or why a pass refuses sizes that vary so."""

    of: Class
    plan: Plan | None
    points: tuple[Point, ...] = ()
    refused: str = ""


def rows(
    program: ast.Program, op: str | None, inputs: Sequence[Argument] | None, fixed: Mapping[str, int],
    varies: Mapping[str, Varying], target: Target, schedule: Schedule | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Every class of some ranges. Raises TileError for a program that is wrong at some size, and for a schedule that cannot be
    obeyed."""
    for each in each_class(program, op, inputs, fixed, varies, target, schedule):
        of, known = each.of, {**fixed, **dict(each.of.fixed)}
        if each.plan is None:
            yield Row(of, None, refused=each.refused)
            continue
        ends = [{name: v.low for name, v in of.own.items()}, {name: v.high for name, v in of.own.items()}]
        points = [_point(program, op, inputs, {**known, **sizes}, sizes, each.plan, target) for sizes in ends if of.ranges]
        yield Row(of, each.plan, tuple(points))


def _point(
    program: ast.Program, op: str | None, inputs: Sequence[Argument] | None, known: Mapping[str, int], sizes: Mapping[str, int],
    plan: Plan, target: Target,
) -> Point:  # fmt: skip
    special = specialise(program, op, inputs, known, checked=True)
    exact = planned(special, target)
    return Point(sizes, time_at(plan, special, exact, target), exact.time_us)


def table(found: Sequence[Row], target: Target) -> str:
    """The rows in words."""
    lines = [f"classes of sizes on {target.name}, each compiled once:"]
    width = max((len(str(row.of)) for row in found), default=0)
    for row in found:
        head = f"  {row.of!s:{width}}  "
        if row.plan is None:
            lines.append(f"{head}compiled for each size: {row.refused}")
            continue
        at = ", ".join(f"{name} = {n}" for name, n in row.of.typical.items())
        families = ", ".join(dict.fromkeys(k.options.name for k in row.plan.kernels if k.options))
        lines.append(f"{head}{row.plan.counted} ({families}), {duration(row.plan.time_us)}" + (f" at {at}" if at else ""))
        for point in row.points:
            where = ", ".join(f"{name} = {n}" for name, n in point.sizes.items())
            if point.loss is None:
                lines.append(f"  {'':{width}}  at {where}: not comparable, an exact plan {duration(point.exact_us)}")
            else:
                assert point.class_us is not None
                times = f"{duration(point.class_us)}, an exact plan {duration(point.exact_us)}"
                lines.append(f"  {'':{width}}  at {where}: {times} ({point.loss:.0%} loss)")
    return "\n".join(lines)


