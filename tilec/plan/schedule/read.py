"""Reading schedule files: the file's plan for a program is checked, applied to the compiler's plan, and predicted.

Every line of the file is checked against the planner's own findings: unknown names, impossible tiles, operations that cannot be
one kernel. Where the compiler's choice differs, a remark has both times.
"""

# mypy: no-strict-optional
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="arg-type, assignment, attr-defined, index"

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from tilec.core import records
from tilec.core.diagnostics import CallError, Source, Span, TileError
from tilec.core.quantities import duration
from tilec.core.targets import names
from tilec.core.toml import Toml, parse_toml, read_toml
from tilec.core.varying import Varies, Varying, names_in, ranges_text
from tilec.kernels import FAMILIES, KernelPlan
from tilec.plan.cuda.launches import refuse_launches
from tilec.plan.given_groups import Fixed
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.plan.rewrites import REWRITES
from tilec.plan.schedule.edit import Edit, Fail, suggest
from tilec.plan.search import ALL, StepRefused, written

_PLAN_KEYS = {"program": str, "sizes": dict, "target": str, "inline": list, "rewrites": dict, "launches": dict, "kernels": dict}
_REWRITES = {rewrite.name: rewrite for rewrite in REWRITES}
_KERNEL_KEYS = {"operations": list, "tile": list, "loops": dict, **dict.fromkeys(FAMILIES, dict)}
VERSION = 2
"""Of the form of schedule files."""
SUCH = '"17..128"'  # a range, for hints
_PLAN_HEADER = r"^[ \t]*(\[\[[ \t]*plan[ \t]*\]\])"
_KEY = r"""(?:^[ \t]*|[.{{,][ \t]*)(["']?{}["']?)(?=[ \t]*[=\].])"""  # in a line, header or inline table
_SHAPE = re.compile(r"\[([^][]*)\]")  # of an input, in the text of a program with its shapes
_WORDS = {str: "a string", list: "a list", dict: "a table"}


Section: TypeAlias = "Mapping[str, Toml]"


def ranges_of(section: Section) -> dict[str, Varying]:
    """The sizes that vary in a file's plan."""
    given = section.get("sizes")
    found = {name: Varying.parse(str(text)) for name, text in given.items()} if isinstance(given, dict) else {}
    return {name: v for name, v in found.items() if v is not None}


def is_of(section: Section, signature: str, varies: Mapping[str, Varying]) -> bool:
    """Whether a file's plan is of a program with these shapes and sizes that vary, for whatever target."""
    return section["program"] == signature and ranges_of(section) == varies


def named(section: Section) -> str:
    """A file's plan by its program and its sizes, as `Plan.named`."""
    found = ranges_of(section)
    return f"{section['program']} with {ranges_text(found)}" if found else str(section["program"])


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
            self._sizes(plan, number)
            known = named(plan), plan["target"]
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

    def _sizes(self, plan: Section, number: int) -> None:
        """The ranges of a class of sizes, one for each size that the program's shapes name."""
        wanted = list(dict.fromkeys(n for shape in _SHAPE.findall(str(plan["program"])) for n in names_in(shape)))
        sizes = plan.get("sizes")
        given = sizes if isinstance(sizes, dict) else {}
        if wanted and "sizes" not in plan:
            hint = f"write sizes = {{{', '.join(f'{name} = {SUCH}' for name in wanted)}}}"
            self.fail(f"`{wanted[0]}` is no number, and `sizes` must say its range", number, "program", hint=hint)
        for name, text in given.items():
            where = number, "sizes", name
            if name not in wanted:
                hint = f"these have {', '.join(wanted)}" if wanted else "write a name in place of a number: f32[M, 1000]"
                self.fail(f"the shapes of `program` have no size `{name}`", *where, hint=hint)
            found = Varying.parse(text) if isinstance(text, str) else None
            if found is None:
                self.fail(f"`{name}` must be a range", *where, hint=f'write {name} = {SUCH}, or "32..128 by 16"')
            if (mistake := found.mistake(name)) is not None:
                self.fail(mistake[0], *where, hint=mistake[1])
            if found.low == found.high:
                self.fail(f"`{name}` has one number", *where, hint=f"write {found.low} in `program`, and no range")
        if missing := [name for name in wanted if name not in given]:
            self.fail(f"`sizes` has no range of `{missing[0]}`", number, "sizes", hint=f"write {missing[0]} = {SUCH}")

    def _kernel(self, kernel: object, number: int, name: str) -> None:
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
            self.fail(f"there is no rewrite `{name}`", *where, hint=suggest(name, _REWRITES))
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
                    self.fail(f"unknown key `{key}`", *where, key, hint=suggest(key, known))
                kind = records.kind_of(rewrite.step, key)
                right = isinstance(value, list) and all(type(v) is int for v in value) if kind is tuple else type(value) is kind
                if not right:
                    self.fail(f"`{key}` must be {records.NOUNS[kind]}", *where, key)

    def _keys(self, table: Any, known: dict[str, type], where: tuple) -> None:
        for key, value in table.items():
            if key not in known:
                self.fail(f"unknown key `{key}`", *where, key, hint=suggest(key, known))
            if not isinstance(value, known[key]):
                self.fail(f"`{key}` must be {_WORDS[known[key]]}", *where, key)

    def _list_of(self, kind: type, value: object, key: str, *where) -> None:
        if not isinstance(value, list) or any(type(v) is not kind for v in value):
            self.fail(f"`{key}` must be a list of {'names' if kind is str else 'whole numbers'}", *where, key)

    @property
    def sections(self) -> list[Section]:
        """The file's plans."""
        found: list[Section] = self.table.get("plan", [])
        return found

    def is_of_op(self, section: Section, op: str) -> bool:
        """Whether a file's plan is one of an op."""
        return str(section["program"]).partition("(")[0] == op

    def has_of_sizes(self, section: Section, varies: Mapping[str, Varying]) -> bool:
        """Whether the file has a plan of the same program and target for other sizes."""
        found = (s for s in self.sections if s["target"] == section["target"])
        return any(is_of(s, str(section["program"]), varies) for s in found)

    # ---- obeying it ---------------------------------------------------------------------------------------

    def __call__(self, own: Plan) -> Plan:
        for number, section in enumerate(self.table.get("plan", [])):
            if is_of(section, own.signature, own.varies) and section["target"] == own.target.name:
                return self._obey(own, section, number)
        what = f"no plan for {own.named} on {own.target.name} in {self.source.name}{self._others(own)}: the compiler decided"
        return replace(own, remarks=(*own.remarks, Remark("ignored", "schedule", what)))

    def _others(self, own: Plan) -> str:
        """The targets that the file has plans of this program for; that one is unknown, which may be a slip. Or the other sizes
        that it has plans for."""
        same = [s for s in self.sections if s["program"] == own.signature]
        targets = [str(s["target"]) for s in same if is_of(s, own.signature, own.varies)]
        if not targets:
            sizes = dict.fromkeys(ranges_text(ranges_of(s)) for s in same if s["target"] == own.target.name)
            return f" (it has plans for {'; '.join(sizes)})" if sizes else ""
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
            obeyed = Edit(self._failing(number, name), table, plan).apply(replace(kernel, name=name))
            kernels.append(obeyed)
            remarks += self._difference(kernel, obeyed)
        launches = self._launches(plan, kernels, section, number, remarks)
        plan = replace(
            plan, kernels=tuple(kernels), launches=launches, remarks=(), unscheduled=own.rewrites, obeys=self.span(number)
        )  # fmt: skip
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
        mine = steps_of(own)
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
        except Varies as error:
            self.fail(f"this plan cannot be carried out where sizes vary: it asks for {error}", number)

    def _tables(self, plan: Plan, section: dict[str, Any], number: int) -> dict[frozenset[str], tuple[str, dict]]:
        """The file's kernels by their operations; kernels that list no operations are found by name."""
        named = {k.name: frozenset(k.nodes) for k in plan.kernels}
        tables: dict[frozenset[str], tuple[str, dict]] = {}
        stem = plan.signature.partition("(")[0]
        for name, table in section.get("kernels", {}).items():
            if "operations" not in table and name not in named:
                self.fail(f"there is no kernel `{name}`", number, name, hint=suggest(name, named))
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
                    self.fail(f"there is no kernel `{kernel}`", *where, hint=suggest(kernel, known))
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

    def _failing(self, *where: int | str) -> Fail:
        def fail(message: str, *keys: str, hint: str | None = None) -> NoReturn:
            self.fail(message, *where, *keys, hint=hint)

        return fail

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


def steps_of(plan: Plan) -> dict[str, list[dict[str, object]]]:
    """The steps of a plan by their rewrites: the fields of each."""
    return {name: [dict(records.items(step)) for step in plan.steps(name)] for name in _REWRITES}


def _demanded(steps: Any) -> Any:
    """A file's steps of a rewrite: the fields of each."""
    if steps is True:
        return ALL
    tables = ({"operation": step} if isinstance(step, str) else step for step in steps)
    return [{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()} for table in tables]


def _groups(plan: Plan) -> tuple[tuple[str, ...], ...]:
    return tuple(k.nodes for k in plan.kernels)
