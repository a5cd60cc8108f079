"""What-if: statements that change the inputs of the planner, and the plans before and after.

| statement | what it changes |
| --- | --- |
| `M = 1`, `M * 2` | a size |
| `target = b200` | the target |
| `bandwidth * 2`, `dram.latency_ns = 400` | a figure of the target's file |
| `m apart from y`, `h with y` | which operations share a kernel |
| `inline e`, `compute e once` | whether each reader computes a tensor |
| `tile y = 64x64`, `stages y = 3`, `family y = rows` | a kernel's table in the schedule file |
| `split = none`, `split = all`, `split = y` | the steps of a rewrite |

Several statements hold at once. The target and the sizes change first, then rewrites, kernels and their options.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tilec.core import mlir
from tilec.core.diagnostics import CallError, Source, Span, TileError
from tilec.core.figures import changed, figure_names, has_figure
from tilec.core.target import Target
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl import ast
from tilec.dsl.build import build
from tilec.dsl.specialise import Argument, Specialised, accepted_sizes, choose_op, specialise
from tilec.plan.model import Plan
from tilec.plan.schedule.constraints import Constraint, Fuse, Inline, Once, Option, Separate, Steps, Value, rewrites
from tilec.process import progress

T = TypeVar("T")
MOST_FIGURES = 3  # of one statement, that are reported
Schedule = Callable[[Plan], Plan]

_NAME, _NUMBER = r"[A-Za-z_][\w.]*", r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_FORMS = {
    form: re.compile(pattern)
    for form, pattern in {
        "apart": rf"({_NAME}) +apart +from +({_NAME})",
        "with": rf"({_NAME}) +with +({_NAME})",
        "inline": rf"inline +({_NAME})",
        "once": rf"compute +({_NAME}) +once",
        "option": rf"({_NAME}) +({_NAME}) *= *(.+)",
        "value": r"""([\w."]+) *= *(.+)""",
        "scale": rf"""([\w."]+) *([*/]) *({_NUMBER})""",
    }.items()
}
EXAMPLES = (
    "bandwidth*2", "M = 1", "target = b200", "a apart from b", "a with b", "inline a", "compute a once", "tile y = 64x64",
    "split = none",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What a plan is made of. `inputs`: types and shapes of the inputs, where the program leaves them to calls."""

    program: ast.Program
    op: str | None
    sizes: Mapping[str, int]
    target: Target
    inputs: Sequence[Argument] | None = None
    schedule: Schedule | None = None

    def specialised(self) -> Specialised:
        return specialise(self.program, self.op, self.inputs, dict(self.sizes), checked=True)

    def plan(self, special: Specialised, constraints: Sequence[Constraint] = ()) -> Plan:
        """Raises TileError for a constraint that cannot be kept."""

        def decided(plan: Plan) -> Plan:
            for each in (*((self.schedule,) if self.schedule else ()), *constraints):
                plan = each(plan)
            return plan

        with mlir.context(), mlir.ir.Location.unknown():
            progress.at("in stage 'plan'")
            found = lower(build(special), self.target, schedule=decided, end="plan", emit=False, texts=False).plan
        assert found is not None, "the stage that was asked for"
        return found


@dataclass(frozen=True)
class Side:
    """A plan, and the program that it is of."""

    special: Specialised
    plan: Plan


@dataclass
class _Changes:
    """A problem as statements change it. `reported`: what changed, in words."""

    problem: Problem
    reported: list[str] = field(default_factory=list)
    constraints: list[Callable[[Specialised], Constraint]] = field(default_factory=list)


def ask(problem: Problem, statements: Sequence[str]) -> tuple[Side, Side, list[str], list[str]]:
    """The plan as it is, and that with all statements; then, in words, what changes, and what keeps changes from having an effect.
    Raises CallError for a statement that is not understood, or that cannot hold; it says what would be allowed."""
    special = problem.specialised()
    before = Side(special, problem.plan(special))
    parsed = sorted((_parse(Source("what-if", text.strip()), problem) for text in statements), key=lambda s: s.phase)
    changes = _Changes(problem)
    for statement in parsed:
        statement.apply(changes)
    special = changes.problem.specialised()
    constraints = [make(special) for make in changes.constraints]
    after = Side(special, changes.problem.plan(special, constraints))
    return before, after, changes.reported, list(_limited(problem.target, changes.problem.target))


def _limited(before: Target, after: Target) -> Iterator[str]:
    """Levels of memory that changed and are no faster, since each unit draws only so much."""
    for name in ("dram", "l3", "l2", "l1"):
        one, other = getattr(before, name), getattr(after, name)
        if before.name == after.name and one is not None and other is not None and one.bandwidth_gbs != other.bandwidth_gbs:
            rates = one.rate(before.units), other.rate(after.units)
            if rates[0] == rates[1]:
                yield f"{name}.unit_gbs still limits {name} to {rates[0] / 1e9:g} GB/s"


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Statement:
    """`phase`: statements of a lower one hold first."""

    source: Source

    @property
    def phase(self) -> int:
        raise NotImplementedError

    def apply(self, changes: _Changes) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class _Target(_Statement):
    name: str
    phase = 0

    def apply(self, changes: _Changes) -> None:
        target = _at(self.source, lambda: load(self.name))
        changes.reported.append(f"target {changes.problem.target.name} -> {target.name}")
        changes.problem = replace(changes.problem, target=target)


@dataclass(frozen=True)
class _Figure(_Statement):
    name: str
    change: Callable[[float], float]
    phase = 1

    def apply(self, changes: _Changes) -> None:
        before = changes.problem.target
        target, figures = _at(self.source, lambda: changed(before, self.name, self.change))
        listed = ", ".join(map(str, figures[:MOST_FIGURES]))
        more = f" and {len(figures) - MOST_FIGURES} more" if len(figures) > MOST_FIGURES else ""
        changes.reported.append(listed + more)
        changes.problem = replace(changes.problem, target=target)


@dataclass(frozen=True)
class _Size(_Statement):
    name: str
    change: Callable[[float], float]
    phase = 2

    def apply(self, changes: _Changes) -> None:
        problem = changes.problem
        before = problem.specialised().sizes[self.name]
        after = self.change(before)
        if after != int(after) or after < 0:
            raise _mistake(self.source, f"`{self.name}` is a size, and cannot be {after:g}", "sizes are whole numbers from 0")
        sizes = {**problem.specialised().sizes, self.name: int(after)}
        found = replace(problem, sizes=sizes, inputs=None)
        try:
            found.specialised()
        except TileError as error:
            op = choose_op(problem.program, problem.op)
            if any(t.dtype is None or t.shape is None for t in op.inputs):
                hint: str | None = "write the op in full, with types and sizes: `op f(x: f32[M, N]) -> (y: f32[M])`"
                raise _mistake(self.source, f"the program does not say which shapes have the size `{self.name}`", hint) from None
            near = accepted_sizes(problem.program, op, sizes, {})
            hint = f"the program takes {', '.join(f'{n} = {v}' for n, v in near.items())}" if near else None
            raise _mistake(self.source, f"the program refuses {self.name} = {int(after)}: {_first(error)}", hint) from None
        changes.reported.append(f"{self.name} {before} -> {int(after)}")
        changes.problem = found


@dataclass(frozen=True)
class _Constraint(_Statement):
    """`order`: its phase."""

    make: Callable[[Specialised], Constraint]
    order: int

    @property
    def phase(self) -> int:
        return self.order

    def apply(self, changes: _Changes) -> None:
        changes.reported.append(self.source.text)
        changes.constraints.append(self.make)


_STEPS, _GROUPS, _OPTIONS = 3, 4, 5  # phases


def _parse(source: Source, problem: Problem) -> _Statement:
    for form, pattern in _FORMS.items():
        if (found := pattern.fullmatch(source.text)) is not None:
            return _statement(form, found.groups(), source, problem)
    raise _mistake(source, "this statement is not understood", f"statements are such as: {', '.join(EXAMPLES)}")


def _statement(form: str, words: Sequence[str], source: Source, problem: Problem) -> _Statement:
    match (form, *words):
        case "apart", one, other:
            return _Constraint(source, lambda special: Separate(source, special, one, other), _GROUPS)
        case "with", one, other:
            return _Constraint(source, lambda special: Fuse(source, special, one, other), _GROUPS)
        case "inline", name:
            return _Constraint(source, lambda special: Inline(source, special, name), _GROUPS)
        case "once", name:
            return _Constraint(source, lambda special: Once(source, special, name), _GROUPS)
        case "option", key, kernel, text:
            value = _value(text)
            return _Constraint(source, lambda special: Option(source, special, key, kernel, value), _OPTIONS)
        case "scale", name, sign, number:
            factor = float(number)
            if not factor:
                raise _mistake(source, "the factor is 0", "a factor is above 0")
            return _quantity(name, lambda old: old * factor if sign == "*" else old / factor, source, problem)
        case "value", "target", name:
            return _Target(source, name)
        case "value", name, text if name in rewrites():
            return _Constraint(source, lambda special: Steps(source, special, name, text), _STEPS)
        case "value", name, text:
            found = _quantity(name, lambda _: float(text), source, problem)
            if re.fullmatch(_NUMBER, text) is None:
                raise _mistake(source, f"`{text}` is not a number")
            return found
    raise AssertionError(form)


def _quantity(name: str, change: Callable[[float], float], source: Source, problem: Problem) -> _Statement:
    """A size of the program, or else a figure of the target."""
    name = name.replace('"', "")
    sizes = problem.specialised().sizes
    if name in sizes:
        return _Size(source, name, change)
    if not has_figure(problem.target, name):
        known = [*sizes, *rewrites(), "target", *figure_names(problem.target)]
        close = difflib.get_close_matches(name, known, 3, 0.5)
        listed = f"the sizes are {', '.join(sizes)}" if sizes else None
        hint = f"did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else listed
        raise _mistake(source, f"`{name}` is neither a size of the program nor a figure of the target {problem.target.name}", hint)
    return _Figure(source, name, change)


def _value(text: str) -> Value:
    """`64x64` and `[64, 64]` are lists, `3` a number, `true` and `no` truths; another text is a word."""
    listed = text.strip("[] ").replace(",", "x").replace(" ", "")
    if re.fullmatch(r"\d+(x\d+)*", listed):
        numbers = [int(n) for n in listed.split("x")]
        return numbers if len(numbers) > 1 or text.startswith("[") else numbers[0]
    truths = {"true": True, "yes": True, "false": False, "no": False}
    return truths.get(text.lower(), text)


def _mistake(source: Source, message: str, hint: str | None = None) -> CallError:
    return CallError(message, Span(source, 0, len(source.text)), hint=hint)


def _at(source: Source, make: Callable[[], T]) -> T:
    """What a function returns; its error is put at the statement."""
    try:
        return make()
    except CallError as error:
        (d,) = error.diagnostics
        raise _mistake(source, d.message, d.hint) from None


def _first(error: TileError) -> str:
    return error.diagnostics[0].message.split("\n")[0]
