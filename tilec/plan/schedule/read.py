"""Reading schedule files: the file's plan for a program is checked, applied to the compiler's plan, and predicted.

Every line of the file is checked against the planner's own findings: unknown names, impossible tiles, operations that cannot be
one kernel. Where the compiler's choice differs, a remark has both times.
"""

# mypy: no-strict-optional
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="arg-type, assignment, attr-defined, index"

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from tilec.core import records
from tilec.core.diagnostics import CallError, Source, Span, TileError
from tilec.core.quantities import duration
from tilec.core.targets import names
from tilec.core.toml import Toml, parse_toml, read_toml
from tilec.kernels import FAMILIES, Family, KernelPlan, Refusal, Refused
from tilec.plan.check import refuse
from tilec.plan.cuda.launches import refuse_launches
from tilec.plan.given_groups import Fixed
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.rewrites import REWRITES
from tilec.plan.search import ALL, StepRefused, written

_PLAN_KEYS = {"program": str, "target": str, "inline": list, "rewrites": dict, "launches": dict, "kernels": dict}
_REWRITES = {rewrite.name: rewrite for rewrite in REWRITES}
_KERNEL_KEYS = {"operations": list, "tile": list, "loops": dict, **dict.fromkeys(FAMILIES, dict)}
RENAMED = {"register_chunks": "hybrid_chunks", "pieces": "concatenation", "diagonals": "toeplitz"}
"""Words of schedule files that had another name before."""
VERSION = 2
"""Of the form of schedule files."""
_PLAN_HEADER = r"^[ \t]*(\[\[[ \t]*plan[ \t]*\]\])"
_KEY = r"""(?:^[ \t]*|[.{{,][ \t]*)(["']?{}["']?)(?=[ \t]*[=\].])"""  # in a line, header or inline table
_WORDS = {str: "a string", list: "a list", dict: "a table"}


def read_schedule(path: str | Path) -> Schedule:
    """Reads a schedule file, and returns it, a function from the compiler's plan to the plan that obeys the file (`compile` and
    `lower` take it). Raises CallError for a file that cannot be read or is no schedule."""
    return parse_schedule(Source(str(path), read_toml(path, "schedule")))


def parse_schedule(source: Source) -> Schedule:
    """`read_schedule` of a text that is there already."""
    schedule = Schedule(source, parse_toml(source.text, source.name))
    schedule.validate()
    return schedule


class Schedule:
    """A schedule file's text and tables. Called with the compiler's plan, it returns the plan that obeys the
    file.
    """

    def __init__(self, source: Source, table: dict[str, Any]):
        self.source, self.table = source, table

    # ---- the file by itself -------------------------------------------------------------------------------

    def validate(self) -> None:
        """Every key known, every value of its kind."""
        self._version()
        self._keys(self.table, {"version": int, "plan": list}, ())
        seen = set()
        for number, plan in enumerate(self.table.get("plan", [])):
            self._keys(plan, _PLAN_KEYS, (number,))
            for key in ("program", "target"):
                if key not in plan:
                    self.fail(f"a plan needs `{key}`", number)
            known = plan["program"], plan["target"]
            if known in seen:
                what = f"there are two plans for {known[0]} on {known[1]}"
                self.fail(what, number, "program", hint="remove one of them")
            seen.add(known)
            self._list_of(str, plan.get("inline", []), "inline", number)
            for name, steps in plan.get("rewrites", {}).items():
                self._steps(name, steps, number)
            for name, kernels in plan.get("launches", {}).items():
                self._list_of(str, kernels, name, number, "launches")
            for name, kernel in plan.get("kernels", {}).items():
                self._kernel(kernel, number, name)

    def _version(self) -> None:
        """A file that a person wrote may leave it out, but for the tables of options of version 1."""
        plans = self.table.get("plan", [])
        plans = [p for p in plans if isinstance(p, dict)] if isinstance(plans, list) else []
        tables = [k for p in plans if isinstance(p.get("kernels"), dict) for k in p["kernels"].values()]
        version = self.table.get(
            "version", 1 if any(isinstance(k, dict) and "options" in k for k in tables) else VERSION
        )
        if version != VERSION:
            what = f"this schedule file has version {version}, and tilec reads version {VERSION}"
            self.fail(
                what,
                *([] if "version" not in self.table else ["version"]),
                hint="`tilec plan --force` writes a new one",
            )

    def _kernel(self, kernel: Any, number: int, name: str) -> None:
        if not isinstance(kernel, dict):
            self.fail(f"`kernels.{name}` must be a table", number, name)
        self._keys(kernel, _KERNEL_KEYS, (number, name))
        families = [key for key in kernel if key in FAMILIES]
        if len(families) > 1:
            what = f"a kernel has one family, and `{name}` has tables of {len(families)}: {', '.join(families)}"
            self.fail(what, number, name, families[1])
        self._list_of(str, kernel.get("operations", []), "operations", number, name)
        self._list_of(int, kernel.get("tile", []), "tile", number, name)
        for operation, order in kernel.get("loops", {}).items():
            self._list_of(int, order, operation, number, name)

    def _steps(self, name: str, steps: Toml, number: int) -> None:
        where = number, "rewrites", name
        if (rewrite := _REWRITES.get(name)) is None:
            self.fail(f"there is no rewrite `{name}`", *where, hint=_suggest(name, _REWRITES))
        if steps is True:
            return
        if not isinstance(steps, list):
            self.fail(f"`{name}` must be a list of operations, or `true` for all that it applies to", *where)
        for step in steps:
            if isinstance(step, str):
                continue
            if not isinstance(step, dict) or not isinstance(step.get("operation"), str):
                self.fail(f"a step of `{name}` is the name of an operation, or a table with `operation`", *where)
            for key, value in step.items():
                if key not in (known := records.fields_of(rewrite.step)):
                    self.fail(f"unknown key `{key}`", *where, key, hint=_suggest(key, known))
                kind = records.kind_of(rewrite.step, key)
                right = isinstance(value, list) and all(type(v) is int for v in value) if kind is tuple else type(value) is kind
                if not right:
                    self.fail(f"`{key}` must be {records.NOUNS[kind]}", *where, key)

    def _keys(self, table: Any, known: dict[str, type], where: tuple) -> None:
        for key, value in table.items():
            if key not in known:
                self.fail(f"unknown key `{key}`", *where, key, hint=_suggest(key, known))
            if not isinstance(value, known[key]):
                self.fail(f"`{key}` must be {_WORDS[known[key]]}", *where, key)

    def _list_of(self, kind: type, value: object, key: str, *where) -> None:
        if not isinstance(value, list) or any(type(v) is not kind for v in value):
            self.fail(f"`{key}` must be a list of {'names' if kind is str else 'whole numbers'}", *where, key)

    # ---- obeying it ---------------------------------------------------------------------------------------

    def __call__(self, own: Plan) -> Plan:
        for number, section in enumerate(self.table.get("plan", [])):
            if section["program"] == own.signature and section["target"] == own.target.name:
                return self._obey(own, section, number)
        what = f"no plan for {own.signature} on {own.target.name} in {self.source.name}{self._others(own)}: the compiler decided"
        return replace(own, remarks=(*own.remarks, Remark("ignored", "schedule", what)))

    def _others(self, own: Plan) -> str:
        """The targets that the file has plans of this program for; that one is unknown, which may be a slip."""
        targets = [s["target"] for s in self.table.get("plan", []) if s["program"] == own.signature]
        if not targets:
            return ""
        unknown = [t for t in targets if t not in names()]
        reported = f" (it has one for {', '.join(targets)}"
        return f"{reported}; tilec knows no target {', '.join(map(repr, unknown))})" if unknown else f"{reported})"

    def _obey(self, own: Plan, section: dict[str, Any], number: int) -> Plan:
        plan = self._replan(own, section, number)
        tables = self._tables(plan, section, number)
        kernels = []
        remarks = list(plan.remarks)
        for kernel in plan.kernels:
            name, table = tables.get(frozenset(kernel.nodes), (kernel.name, {}))
            obeyed = _Edit(self, number, name, table, plan).apply(replace(kernel, name=name))
            kernels.append(obeyed)
            remarks += self._difference(kernel, obeyed)
        launches = self._launches(plan, kernels, section, number, remarks)
        plan = replace(plan, kernels=tuple(kernels), launches=launches, remarks=(), unscheduled=own.rewrites)
        same = plan.rewrites == own.rewrites
        if same and Fixed(_groups(plan), plan.inlined).same_as(Fixed(_groups(own), own.inlined)):
            return replace(plan, remarks=tuple(remarks))
        return replace(plan, remarks=(*remarks, self._other_groups(own, plan)))

    def _replan(self, own: Plan, section: dict[str, Any], number: int) -> Plan:
        """The plan with the file's rewrites and kernels, where it names them. Where it names kernels, the rewrites that it does not
        decide are the compiler's."""
        lists = [k["operations"] for k in section.get("kernels", {}).values() if "operations" in k]
        given, fixed = {name: _demanded(steps) for name, steps in section.get("rewrites", {}).items()}, None
        if lists or "inline" in section:
            fixed = Fixed(tuple(map(tuple, lists)) if lists else _groups(own), tuple(section.get("inline", own.inlined)))
        mine = {name: [dict(records.items(step)) for step in own.steps(name)] for name in _REWRITES}
        same_kernels = fixed is None or fixed.same_as(Fixed(_groups(own), own.inlined))
        if same_kernels and all(steps == mine[name] for name, steps in given.items()):
            return own
        assert own.replan is not None, "a program is planned again while its stage runs"
        try:
            return own.replan(fixed, mine | given if fixed else given)
        except TileError as error:
            (problem,) = error.diagnostics
            refused = isinstance(error, StepRefused) and error.rewrite in given
            where = self.span(number, "rewrites", error.rewrite) if refused else self._named(problem.message, number)
            further = "; `rewrites` decides which further operations there are" if problem.hint and given and not refused else ""
            hint = f"{problem.hint}{further}" if problem.hint else None
            raise CallError(problem.message, where, hint=hint) from None

    def _tables(self, plan: Plan, section: dict[str, Any], number: int) -> dict[frozenset[str], tuple[str, dict]]:
        """The file's kernels by their operations; kernels that list no operations are found by name."""
        named = {k.name: frozenset(k.nodes) for k in plan.kernels}
        tables: dict[frozenset[str], tuple[str, dict]] = {}
        stem = plan.signature.partition("(")[0]
        for name, table in section.get("kernels", {}).items():
            if "operations" not in table and name not in named:
                self.fail(f"there is no kernel `{name}`", number, name, hint=_suggest(name, named))
            if not re.fullmatch(rf"{stem}_\w+", name, re.ASCII):  # nothing else in the module is called so
                self.fail(
                    f"`{name}` cannot be the name of a kernel of this op", number, name, hint=f"write `{stem}_{name}`"
                )
            tables[frozenset(table["operations"]) if "operations" in table else named[name]] = (name, table)
        taken = [name for name, _ in tables.values()]
        for kernel in plan.kernels:
            if frozenset(kernel.nodes) not in tables and kernel.name in taken:
                self.fail(f"`{kernel.name}` is another kernel's name", number, kernel.name)
        return tables

    def _launches(
        self, plan: Plan, kernels: list[KernelPlan], section: dict[str, Any], number: int, remarks: list[Remark]
    ) -> dict[str, tuple[str, ...]]:
        """The file's launches; the compiler's where it has none, as far as the file's kernels allow them."""
        if "launches" not in section:
            now = {own.name: kernel.name for own, kernel in zip(plan.kernels, kernels)}
            found = {name: tuple(now[k] for k in own) for name, own in plan.launches.items()}
            while (refused := refuse_launches(kernels, found, plan.order, plan.target)) is not None:
                name, why = refused
                remarks.append(Remark("refused", f"{' with '.join(found.pop(name))} in one launch", why))
            return found
        known, stem, taken = [k.name for k in kernels], plan.signature.partition("(")[0], list[str]()
        for name, listed in section["launches"].items():
            where = number, "launches", name
            if name in known or not re.fullmatch(rf"{stem}_\w+", name, re.ASCII):
                self.fail(f"`{name}` cannot be the name of a launch of this op", *where, hint=f"write `{stem}_{name}`")
            if len(listed) < 2:
                self.fail("a launch that kernels share has two at least", *where)
            for kernel in listed:
                if kernel not in known:
                    self.fail(f"there is no kernel `{kernel}`", *where, hint=_suggest(kernel, known))
                if kernel in taken:
                    self.fail(f"the kernel `{kernel}` is listed twice", *where)
                taken.append(kernel)
        found = {name: tuple(listed) for name, listed in section["launches"].items()}
        if (refused := refuse_launches(kernels, found, plan.order, plan.target)) is not None:
            self.fail(f"the launch `{refused[0]}` cannot be: {refused[1]}", number, "launches", refused[0])
        return found

    def _difference(self, own: KernelPlan, obeyed: KernelPlan) -> Iterable[Remark]:
        """A remark with the differences between the file's kernel and the compiler's."""
        reported = [f"tile {list(obeyed.tile)} instead of {list(own.tile)}"] if obeyed.tile != own.tile else []
        if (mine := obeyed.options.name) != own.options.name:
            reported.append(f"family `{mine}` instead of `{own.options.name}`")
        for what, facet in (("loops", lambda k: k.loops), ("options", lambda k: dict(k.options.options()))):
            mine, chosen = facet(obeyed), facet(own)
            for key in (k for k in (*mine, *chosen) if mine.get(k) != chosen.get(k)):
                subject = f"loops of {key}" if what == "loops" else f"`{key}`"
                reported.append(f"{subject} {_instead(mine, chosen, key)}")
        if reported:
            reported = list(dict.fromkeys(reported))
            times = obeyed.prediction.time_us, own.prediction.time_us
            reason = f"{self.source.name} gives {'; '.join(reported)}: "
            reason += f"{duration(times[0])}, the compiler's choice {duration(times[1])}"
            alternatives = (("the schedule's", times[0]), ("the compiler's", times[1]))
            line = obeyed.lines[-1] if obeyed.lines else None
            yield Remark("obeyed", obeyed.name, reason, line, alternatives)

    def _other_groups(self, own: Plan, plan: Plan) -> Remark:
        same = plan.rewrites == own.rewrites

        def shown(p: Plan) -> str:
            kernels = " | ".join(", ".join(k.nodes) for k in p.kernels)
            steps = "".join(f"; {a.rewrite} {written(a)}" for a in p.rewrites) if not same else ""
            return kernels + (f"; inline {', '.join(p.inlined)}" if p.inlined else "") + steps

        reason = f"{self.source.name} gives the kernels {shown(plan)}: {duration(plan.time_us)}; "
        reason += f"the compiler's choice {shown(own)}: {duration(own.time_us)}"
        alternatives = (("the schedule's", plan.time_us), ("the compiler's", own.time_us))
        return Remark("obeyed", "kernels", reason, None, alternatives)

    # ---- messages -----------------------------------------------------------------------------------------

    def fail(self, message: str, *where: int | str, hint: str | None = None) -> NoReturn:
        raise CallError(message, self.span(*where), hint=hint)

    def span(self, *where: int | str) -> Span:
        """Where a key stands: the number of its plan, then names, each looked for behind the one before."""
        at = end = 0
        for step in where:
            pattern = _PLAN_HEADER if isinstance(step, int) else _KEY.format(re.escape(step))
            found = list(re.compile(pattern, re.MULTILINE).finditer(self.source.text, end))
            if found:
                at, end = found[step if isinstance(step, int) else 0].span(1)
        return Span(self.source, at, end)

    def _named(self, message: str, number: int) -> Span:
        """The last position of the operation that a message names first: earlier occurrences are correct."""
        plan = self.span(number)
        following = re.compile(_PLAN_HEADER, re.MULTILINE).search(self.source.text, plan.end)
        end = following.start() if following else len(self.source.text)
        name = re.search(r"`([\w.]+)`", message)
        strings = re.compile(rf"""["']{re.escape(name[1])}["']""") if name else None
        found = list(strings.finditer(self.source.text, plan.end, end)) if strings else []
        return Span(self.source, *found[-1].span()) if found else plan


def _instead(mine: dict[str, Any], chosen: dict[str, Any], key: str) -> str:
    """A loop order or an option of the file, beside the compiler's."""
    a, b = (list(d[key]) if isinstance(d.get(key), tuple) else d.get(key, "none") for d in (mine, chosen))
    return f"{a} instead of {b}"


class _Edit:
    """One kernel's table, applied to the kernel."""

    def __init__(self, schedule: Schedule, number: int, name: str, table: dict[str, Any], plan: Plan):
        self.schedule, self.where, self.table, self.plan = schedule, (number, name), table, plan

    def fail(self, message: str, *where: str, hint: str | None = None) -> NoReturn:
        self.schedule.fail(message, *self.where, *where, hint=hint)

    def apply(self, kernel: KernelPlan) -> KernelPlan:
        """The kernel as the table has it, with a new prediction."""
        kernel = self.family(kernel)
        edited = replace(kernel, tile=self.tile(kernel), loops=self.loops(kernel), options=self.options(kernel))
        if edited == kernel:
            return kernel
        if (refusal := refuse(edited, kernel, self.plan.target)) is not None:
            self.fail_at(edited.options, refusal)
        try:
            return edited.weighed(self.plan.target)
        except ValueError as error:
            self.fail(str(error), "tile")

    def fail_at(self, options: Family, refusal: Refusal) -> NoReturn:
        self.fail(refusal.why, *(["tile"] if refusal.option == "tile" else [options.name, refusal.option or ""]))

    def family(self, kernel: KernelPlan) -> KernelPlan:
        """The kernel built in the way that the table has: the compiler's choice, or the best of another family."""
        asked = next((key for key in self.table if key in FAMILIES), kernel.options.name)
        if asked == kernel.options.name:
            return kernel
        assert self.plan.candidates is not None, "a schedule is read while the stage of its plan runs"
        ranked = next(found for found in self.plan.candidates().values() if found[0].nodes == kernel.nodes)
        others = {k.options.name: replace(k, name=kernel.name) for k in reversed(ranked)}
        if asked not in others:
            ways = ", ".join(f"`{name}`" for name in sorted({kernel.options.name, *others}))
            self.fail(f"this kernel cannot be built as `{asked}`, only as {ways}", asked)
        return others[asked]

    def tile(self, kernel: KernelPlan) -> tuple[int, ...]:
        tile = tuple(self.table.get("tile", kernel.tile))
        extents = tuple(kernel.extents[d] for d in kernel.grid)
        if len(tile) != len(extents):
            what = f"`tile` must have one number for each dimension of the grid {list(extents)}, but it has {len(tile)}"
            self.fail(what, "tile")
        for size, extent, own in zip(tile, extents, kernel.tile):
            if not 1 <= size <= max(1, extent, own):  # threads of the planner's own tile may reach beyond
                self.fail(f"a tile of {size} does not fit a dimension of {extent}", "tile")
        return tile

    def loops(self, kernel: KernelPlan) -> dict[str, tuple[int, ...]]:
        loops = dict(kernel.loops)
        for operation, order in self.table.get("loops", {}).items():
            if operation not in kernel.dims:
                hint = _suggest(operation, kernel.nodes)
                self.fail(f"`{operation}` is not an operation of this kernel", "loops", operation, hint=hint)
            dims = range(len(kernel.dims[operation]))
            if sorted(order) != list(dims):
                self.fail(f"the loops of `{operation}` must be {list(dims)} in some order", "loops", operation)
            loops[operation] = tuple(order)
        return loops

    def options(self, kernel: KernelPlan) -> Family:
        try:
            return kernel.options.edited(self.table.get(kernel.options.name, {}))
        except Refused as error:
            known = dict(kernel.options.editable())
            option = error.refusal.option
            hint = _suggest(option, known) if option not in known else None
            self.fail(str(error), kernel.options.name, option, hint=hint)
            raise


def _demanded(steps: Any) -> Any:
    """A file's steps of a rewrite: the fields of each."""
    if steps is True:
        return ALL
    tables = ({"operation": step} if isinstance(step, str) else step for step in steps)
    return [{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()} for table in tables]


def _groups(plan: Plan) -> tuple[tuple[str, ...], ...]:
    return tuple(k.nodes for k in plan.kernels)


def _suggest(name: str, known: Iterable[str]) -> str | None:
    if name in RENAMED:
        return f"it was renamed to `{RENAMED[name]}`"
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known: {', '.join(known)}" if known else None
