"""Constraints on a plan that a statement makes, such as `m apart from y`: each is a schedule file's plan, which is then obeyed.

A constraint is a function from a plan to the plan that keeps to it, as a schedule is. Whatever a statement leaves open is the
compiler's choice. The position of a message is that of the statement.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal, TypeAlias

from tilec.core.diagnostics import CallError, Source, Span, TileError
from tilec.core.quantities import duration
from tilec.core.toml import Toml
from tilec.dsl.specialise import Specialised
from tilec.kernels import FAMILIES, KernelPlan
from tilec.plan.given_groups import Fixed
from tilec.plan.model import Plan
from tilec.plan.rewrites import REWRITES
from tilec.plan.schedule.edit import suggest
from tilec.plan.schedule.read import Schedule, steps_of
from tilec.plan.schedule.write import write_schedule

Groups: TypeAlias = tuple[tuple[str, ...], ...]
Value: TypeAlias = "bool | int | str | list[int]"

NEAREST = 4  # values of an option that a hint names


@dataclass(frozen=True)
class Constraint:
    """Raises CallError, where it cannot be kept, with the reason. `source`: the statement."""

    source: Source
    special: Specialised

    def __call__(self, plan: Plan) -> Plan:
        raise NotImplementedError

    def obeyed(self, plan: Plan, section: dict[str, Toml]) -> Plan:
        """The plan that keeps to the keys of a schedule file's plan."""
        whole: dict[str, Toml] = {"program": plan.signature, "target": plan.target.name, **section}
        try:
            return Schedule(self.source, {"plan": [whole]})(plan)
        except CallError as error:
            (d,) = error.diagnostics
            raise self.fail(d.message, d.hint) from None

    def fail(self, message: str, hint: str | None = None) -> CallError:
        return CallError(message, Span(self.source, 0, len(self.source.text)), hint=hint)

    def regrouped(self, plan: Plan, groups: Groups, inlined: Sequence[str]) -> Plan:
        """The plan with these kernels. Where the plan obeys a file, kernels whose operations stay are as the file has them."""
        assert plan.replan is not None, "a plan is changed while its stage runs"
        try:
            found: Plan = plan.replan(Fixed(groups, tuple(inlined)), steps_of(plan))
        except TileError as error:
            (d,) = error.diagnostics
            raise self.fail(d.message, d.hint) from None
        tables = self._tables(plan)
        kept: dict[str, Toml] = {k.name: tables[frozenset(k.nodes)] for k in found.kernels if frozenset(k.nodes) in tables}
        return replace(self.obeyed(found, {"kernels": kept}), obeys=plan.obeys) if kept else found

    def _tables(self, plan: Plan) -> dict[frozenset[str], Toml]:
        """The tables of the kernels of a plan that obeys a file, by their operations."""
        if plan.obeys is None:
            return {}
        (section,) = tomllib.loads(write_schedule(plan, self.special))["plan"]
        return {frozenset(table.pop("operations")): table for table in section["kernels"].values()}

    def operations(self, name: str, plan: Plan) -> list[str]:
        """The operations of a tensor: `y`, and parts of it such as `y.sum`. Names of functions before it may be left out."""
        every = [*(n for k in plan.kernels for n in k.nodes), *plan.inlined]
        for wanted in (lambda n: n == name or n.startswith(f"{name}."), lambda n: f".{name}." in f".{n}."):
            if found := [n for n in every if wanted(n)]:
                return found
        if any(t.name == name for t in self.special.inputs):
            raise self.fail(f"`{name}` is an input, which no kernel computes")
        close = difflib.get_close_matches(name, every, 1)
        hint = f"did you mean `{close[0]}`?" if close else f"the program's are {', '.join(every)}"
        raise self.fail(f"there is no operation `{name}`", hint)


def groups_of(plan: Plan) -> Groups:
    return tuple(k.nodes for k in plan.kernels)


@dataclass(frozen=True)
class Separate(Constraint):
    """`m apart from y`: no kernel computes both. Of all ways to cut a kernel between them, the fastest is taken."""

    one: str
    other: str

    def __call__(self, plan: Plan) -> Plan:
        ones = self.operations(self.one, plan)
        others = [n for n in self.operations(self.other, plan) if n not in ones]
        if not others:
            raise self.fail(f"`{self.other}` is `{self.one}`, or a part of it")
        for name, operations in ((self.one, ones), (self.other, others)):
            if all(n in plan.inlined for n in operations):
                hint = f"`compute {name} once` has a kernel compute it"
                raise self.fail(f"`{name}` is computed inside each of its readers, and is of no kernel", hint)
        while (shared := next((k for k in plan.kernels if _has(k, ones) and _has(k, others)), None)) is not None:
            plan = self._separated(plan, shared, ones, others)
        return plan

    def _separated(self, plan: Plan, kernel: KernelPlan, ones: Sequence[str], others: Sequence[str]) -> Plan:
        """The fastest of the plans in which a kernel is cut between the operations: in two, or else in more."""
        first, second = sorted(([n for n, name in enumerate(kernel.nodes) if name in of] for of in (ones, others)), key=min)
        if max(first) > min(second):
            raise self.fail(f"`{self.one}` and `{self.other}` have operations between each other's, so that no cut is between them")
        halves = [(kernel.nodes[:cut], kernel.nodes[cut:]) for cut in range(max(first) + 1, min(second) + 1)]
        found = [self._tried(plan, kernel, each) for each in halves]
        if not any(isinstance(p, Plan) for p in found):
            found += [self._tried(plan, kernel, (*self._parts(plan, kernel, a), *self._parts(plan, kernel, b))) for a, b in halves]
        plans = [p for p in found if isinstance(p, Plan)]
        if not plans:
            raise next(p for p in found if isinstance(p, CallError))
        return min(plans, key=lambda p: p.time_us)

    def _tried(self, plan: Plan, kernel: KernelPlan, parts: Groups) -> Plan | CallError:
        """The plan with a kernel in parts, or why there is none."""
        try:
            return self.regrouped(plan, (*(k.nodes for k in plan.kernels if k is not kernel), *parts), plan.inlined)
        except CallError as error:
            return error

    def _parts(self, plan: Plan, kernel: KernelPlan, nodes: tuple[str, ...]) -> Groups:
        """Some of a kernel's operations in parts that can be kernels, each as long as it can be."""
        found = list[tuple[str, ...]]()
        while nodes:
            for end in range(len(nodes), 0, -1):
                singles = ((n,) for n in kernel.nodes if n not in nodes[:end])
                if end == 1 or isinstance(self._tried(plan, kernel, (nodes[:end], *singles)), Plan):
                    found.append(nodes[:end])
                    nodes = nodes[end:]
                    break
        return tuple(found)


@dataclass(frozen=True)
class Fuse(Constraint):
    """`h with y`: one kernel computes both, and all that their kernels compute."""

    one: str
    other: str

    def __call__(self, plan: Plan) -> Plan:
        wanted = {*self.operations(self.one, plan), *self.operations(self.other, plan)}
        joined = [k for k in plan.kernels if _has(k, wanted)]
        if len(joined) < 2:
            return plan
        order = [n for k in plan.kernels for n in k.nodes]
        nodes = tuple(n for n in order if any(n in k.nodes for k in joined))
        rest = tuple(k.nodes for k in plan.kernels if k not in joined)
        return self.regrouped(plan, (*rest, nodes), plan.inlined)


@dataclass(frozen=True)
class Inline(Constraint):
    """`inline e`: the readers of a tensor compute it, and no kernel stores it."""

    name: str

    def __call__(self, plan: Plan) -> Plan:
        names = self.operations(self.name, plan)
        groups = tuple(left for group in groups_of(plan) if (left := tuple(n for n in group if n not in names)))
        return self.regrouped(plan, groups, tuple(dict.fromkeys((*plan.inlined, *names))))


@dataclass(frozen=True)
class Once(Constraint):
    """`compute e once`: a kernel computes a tensor, and not each of its readers. It is a kernel of its own or one of the others,
    whichever is the fastest."""

    name: str

    def __call__(self, plan: Plan) -> Plan:
        names = tuple(n for n in self.operations(self.name, plan) if n in plan.inlined)
        if not names:
            return plan
        inlined = tuple(n for n in plan.inlined if n not in names)
        groups = groups_of(plan)
        made, refused = list[Plan](), list[CallError]()
        for joined in ((), *groups):
            try:
                made.append(self.regrouped(plan, (*(g for g in groups if g != joined), (*joined, *names)), inlined))
            except CallError as error:
                refused.append(error)
        if not made:
            raise refused[0]
        return min(made, key=lambda p: p.time_us)


@dataclass(frozen=True)
class Steps(Constraint):
    """`split = none`, `split = all` or `split = y`: the steps of a rewrite."""

    rewrite: str
    value: str

    def __call__(self, plan: Plan) -> Plan:
        steps: Toml = [] if self.value == "none" else True if self.value == "all" else [self.value]
        return self.obeyed(plan, {"rewrites": {self.rewrite: steps}})


@dataclass(frozen=True)
class Option(Constraint):
    """`tile y = 64x64`: a value of a kernel's table. `kernel`: a kernel's name, or that of a tensor that it computes."""

    key: Literal["tile", "family"] | str
    kernel: str
    value: Value

    def __call__(self, plan: Plan) -> Plan:
        kernel = self._kernel(plan)
        options = dict(kernel.family.editable())
        value: Toml = [*self.value] if isinstance(self.value, list) else self.value
        if self.key == "family":
            if self.value not in FAMILIES:
                raise self.fail(f"there is no kernel family `{self.value}`", suggest(str(self.value), FAMILIES))
            return self.obeyed(plan, {"kernels": {kernel.name: {str(self.value): {}}}})
        if self.key != "tile" and self.key not in options:
            hint = suggest(self.key, ["tile", "family", *options])
            raise self.fail(f"`{kernel.name}` is built as `{kernel.family.name}`, which has no option `{self.key}`", hint)
        if isinstance(value, int) and (self.key == "tile" or isinstance(options[self.key], tuple)):
            value = [value]
        table: dict[str, Toml] = {"tile": value} if self.key == "tile" else {kernel.family.name: {self.key: value}}
        if self.key == "tile" and not isinstance(value, list):
            raise self.fail("a tile is one number for each dimension of the grid, such as 64x64")
        try:
            return self.obeyed(plan, {"kernels": {kernel.name: table}})
        except CallError as error:
            (d,) = error.diagnostics
            raise self.fail(d.message, d.hint or self._possible(plan, kernel)) from None

    def _kernel(self, plan: Plan) -> KernelPlan:
        stem = plan.signature.partition("(")[0]
        for kernel in plan.kernels:
            if kernel.name in (self.kernel, f"{stem}_{self.kernel}"):
                return kernel
        names = self.operations(self.kernel, plan)
        found = [k for k in plan.kernels if _has(k, names)]
        if not found:
            raise self.fail(f"`{self.kernel}` is computed inside each of its readers, and is of no kernel")
        if len(found) > 1:
            raise self.fail(f"several kernels compute `{self.kernel}`", "name one: " + ", ".join(k.name for k in found))
        return found[0]

    def _possible(self, plan: Plan, kernel: KernelPlan) -> str | None:
        """The values nearest to the one that was asked for, of the plans that the compiler weighed, with their times."""
        assert plan.candidates is not None, "a plan is changed while its stage runs"
        ranked = next((found for found in plan.candidates().values() if found[0].nodes == kernel.nodes), [])
        times: dict[str, float] = {}
        distance: dict[str, float] = {}
        for k in ranked:
            value = k.tile if self.key == "tile" else dict(k.family.editable()).get(self.key)
            if value is None:
                continue
            text = text_of(list(value) if isinstance(value, tuple) else value)
            times.setdefault(text, k.prediction.time_us)
            distance[text] = _distance(value, self.value)
        nearest = sorted(times, key=lambda t: (distance[t], times[t]))[:NEAREST]
        return "the compiler would take " + ", ".join(f"{t} ({duration(times[t])})" for t in nearest) if nearest else None


def _has(kernel: KernelPlan, names: Sequence[str] | set[str]) -> bool:
    return any(n in names for n in kernel.nodes)


def text_of(value: object) -> str:
    """`64x32`, as statements have it."""
    if isinstance(value, list):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _distance(value: object, asked: object) -> float:
    """How far numbers are from those that were asked for, as logarithms of their quotients."""
    ones, others = (list(v) if isinstance(v, (tuple, list)) else [v] for v in (value, asked))
    pairs = [(a, b) for a, b in zip(ones, others) if isinstance(a, int) and isinstance(b, int)]
    return sum(abs(log(max(a, 0.5) / max(b, 0.5))) for a, b in pairs) + 10.0 * abs(len(ones) - len(others))


def rewrites() -> Iterator[str]:
    """The names of rewrites."""
    return (rewrite.name for rewrite in REWRITES)
