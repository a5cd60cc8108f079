"""Rewrites as records. A `Rewrite` is a named kind of change of a program, such as `split`; a `Step` is one use of it.

The search (`tilec/plan/search.py`) asks a rewrite for the steps that apply to a program, has it apply them to a copy, and compares
the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilec.core import records
from tilec.core.mlir import ir
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.state import State
from tilec.plan.steps import Applied, Step


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
    carries steps out in a function. `describe` says what a step does, given the names of
    its operation's dimensions. `lacks` tells what is missing beside the steps that a schedule file names, or "". Steps `of_kernels`
    are found in the kernels of a program, and
    applied once cheap operations are computed inside their readers."""

    name: str
    find: Callable[[State, Callable[[], Plan]], Found]
    named: Callable[[State], Sequence[Applied]]
    apply: Callable[[ir.Operation, Sequence[Step]], None]
    describe: Callable[[Step, Callable[[int], str]], str]
    step: type[Step] = Step
    of_kernels: bool = False
    exact: Callable[[State, Mapping[str, records.Value]], Applied | str] = lambda state, fields: ""
    lacks: Callable[[ir.Operation, Sequence[Step]], str] = lambda function, steps: ""
