"""Steps of rewrites: what a plan changes in the program before kernels are made of it.

A `Rewrite` is a named kind of change, such as `split`. A `Step` is one use of it, at an operation of the program. The search
(`tilec/plan/search.py`) asks a rewrite for the steps that apply to a program, has it apply them to a copy, and compares the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilec.core.mlir import ir
from tilec.passes.tensor.pack import SIDES
from tilec.plan.groups import Remark

if TYPE_CHECKING:
    from tilec.plan.model import Plan
    from tilec.plan.state import State


@dataclass(frozen=True)
class Step:
    """One use of a rewrite, at an operation of the program. Fields of derived classes are options."""

    operation: str


@dataclass(frozen=True)
class Split(Step):
    """Dimension `dim` of a reduction becomes `parts` parts."""

    dim: int
    parts: int

    @property
    def partial(self) -> str:
        """The operation that makes the parts."""
        return f"{self.operation}.partial"


@dataclass(frozen=True)
class Pack(Step):
    """The factor `side` of a sum of products is stored over dimensions `dims` of its operation, as `kind`. `extents`: along them,
    with the zeros that follow; empty where none do. Without `dims`, the tensor that it is an element of is stored, in aligned
    rows."""

    side: str
    dims: tuple[int, ...]
    kind: str
    extents: tuple[int, ...] = ()

    @property
    def number(self) -> int:
        """Of the side, among those of a product."""
        return SIDES.index(self.side)

    @property
    def stored(self) -> str:
        """The operation that stores it."""
        return f"{self.operation}.{self.side}"


@dataclass(frozen=True)
class Applied:
    """A step of a plan. `reason` has the times that were weighed, `line` is the source position."""

    rewrite: str
    step: Step
    reason: str = field(default="", compare=False)
    line: tuple[str, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Compared:
    """How the plans with and without steps are compared: by `weigh`, in microseconds. Remarks have the `verb` and the `subject` of
    what is done; `refused` is the subject of each of what is not; `done` and `undone` say which form a time is of."""

    verb: str
    subject: str
    refused: tuple[str, ...]
    done: str
    undone: str
    weigh: Callable[[Plan], float] = lambda plan: plan.time_us


@dataclass(frozen=True)
class Found:
    """The steps that apply to a program, and remarks on them. Without `compared` they pay by themselves: they are taken."""

    steps: tuple[Applied, ...] = ()
    remarks: tuple[Remark, ...] = ()
    compared: Compared | None = None


@dataclass(frozen=True)
class Rewrite:
    """A kind of change. `find` returns the steps that may pay, given a function that makes the plan without them. `named` returns
    those that a schedule file may name, whatever they cost, and `exact` a further one by its fields, or why there is none. `apply`
    carries steps out in a function. `describe` says what a step does. Steps `of_kernels` are found in the kernels of a program, and
    applied once cheap operations are computed inside their readers."""

    name: str
    find: Callable[[State, Callable[[], Plan]], Found]
    named: Callable[[State], Sequence[Applied]]
    apply: Callable[[ir.Operation, Sequence[Step]], None]
    describe: Callable[[Step], str]
    step: type[Step] = Step
    of_kernels: bool = False
    exact: Callable[[State, Mapping[str, Any]], Applied | str] = lambda state, fields: ""
