"""The classes of some ranges of sizes, in turn: the program of each, and what it is compiled to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tilec.core import mlir
from tilec.core.target import Target
from tilec.core.varying import Varies, Varying, ranges_text
from tilec.driver.classes import Class, intervals
from tilec.driver.find_classes import CPU_ENDS, find_classes, possible
from tilec.driver.lowering import Lowered, lower
from tilec.dsl import ast
from tilec.dsl.build import build
from tilec.dsl.specialise import Argument, Specialised, specialise
from tilec.plan.model import Plan
from tilec.plan.schedule.read import Schedule, ranges_of

MOST = 32
"""Classes that are looked at: of several sizes that vary there are as many as intervals of all of them, multiplied."""


@dataclass(frozen=True)
class Each:
    """A class, the program with its sizes, and what it is lowered to; None where a pass refuses sizes that vary so: `refused` says
    why."""

    of: Class
    special: Specialised
    lowered: Lowered | None
    refused: str = ""

    @property
    def plan(self) -> Plan | None:
        return self.lowered.plan if self.lowered is not None else None


def check_classes(schedule: Schedule, op: str, varies: Mapping[str, Varying]) -> None:
    """Raises CallError if a file has a plan of an op for a range of sizes that is no class of those which vary, on any target. One
    for other sizes, which no call of this op has, may be there for another use of the file."""
    for number, section in enumerate(schedule.sections):
        ranges = ranges_of(section)
        if not ranges or not ranges.keys() <= varies.keys() or not schedule.is_of_op(section, op):
            continue
        near = {name: [p for p in possible(varies[name]) if p.common(v) is not None] for name, v in ranges.items()}
        if not all(near.values()) or all(v in near[name] for name, v in ranges.items()):
            continue
        if not schedule.has_of_sizes(section, {name: part for name, (part, *_) in near.items()}):
            what = f"{ranges_text(ranges)} is no class of the sizes {ranges_text({name: varies[name] for name in ranges})}"
            known = "; ".join(f"{name} = {', '.join(map(_text, intervals(varies[name], CPU_ENDS)))}" for name in ranges)
            schedule.fail(what, number, "sizes", hint=f"the classes are {known}; `tilec explain` prints those of a GPU")


def _text(v: Varying) -> str:
    return str(v.low) if v.low == v.high else str(v)


def each_class(
    program: ast.Program, op: str | None, inputs: Sequence[Argument] | None, fixed: Mapping[str, int],
    varies: Mapping[str, Varying], target: Target, schedule: Callable[[Plan], Plan] | None = None, texts: bool = False,
) -> Iterator[Each]:  # fmt: skip
    """The first `MOST` classes, smallest sizes first. `texts`: with the IR after every stage. Raises TileError for a program that
    is wrong at some size, and for a schedule that cannot be obeyed."""
    for of in islice(find_classes(program, op, inputs, fixed, varies, target), MOST):
        special = specialise(program, op, inputs, {**fixed, **dict(of.fixed)}, checked=True, varies=dict(of.ranges))
        try:
            with mlir.context(), mlir.ir.Location.unknown():
                at = of.typical if of.ranges else None
                found = Each(of, special, lower(build(special), target, schedule=schedule, texts=texts, at=at))
        except Varies as error:
            found = Each(of, special, None, str(error))
        yield found
