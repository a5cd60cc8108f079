"""The classes of some ranges of sizes, in turn: the program of each, and what it is compiled to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tilec.core import mlir
from tilec.core.target import Target
from tilec.core.varying import Varies, Varying
from tilec.driver.classes import Class
from tilec.driver.find_classes import find_classes
from tilec.driver.lowering import Lowered, lower
from tilec.dsl import ast
from tilec.dsl.build import build
from tilec.dsl.specialise import Argument, Specialised, specialise
from tilec.plan.model import Plan

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
