"""The program's lines, with the kernels that each is of and the decisions about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilec.core.diagnostics import Source
from tilec.core.quantities import duration
from tilec.plan.groups import Remark
from tilec.plan.model import Plan
from tilec.report.ir_lines import Location

CONTEXT = 2  # lines before and behind those that matter, of a file that is imported


@dataclass(frozen=True)
class Alternative:
    name: str
    time: str
    share: float


@dataclass(frozen=True)
class Decision:
    """A remark for the page. `kind`: "taken", "refused", "stored" or "other". `alternatives`: what was weighed, fastest
    first; a reason names two itself."""

    verb: str
    subject: str
    reason: str
    kind: str
    weighed: str
    alternatives: list[Alternative]


@dataclass
class SourceLine:
    """`kernels`: by their numbers from 1. `anchor`: of the line in the page."""

    number: int
    text: str
    anchor: str
    kernels: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


@dataclass
class SourceFile:
    """`parts`: runs of lines that are shown."""

    name: str
    short: str
    number: int
    parts: list[list[SourceLine]]

    def line(self, number: int) -> SourceLine | None:
        return next((line for part in self.parts for line in part if line.number == number), None)


KINDS = {"fused": "taken", "inlined": "taken", "refused": "refused", "not inlined": "stored"}


def decision(remark: Remark) -> Decision:
    weighed = sorted(remark.alternatives, key=lambda a: a[1])
    longest = max((us for _, us in weighed), default=0.0) or 1.0
    shown = [Alternative(name, duration(us), us / longest) for name, us in weighed] if len(weighed) > 2 else []
    return Decision(remark.verb, remark.subject, remark.reason, KINDS.get(remark.verb, "other"), remark.weighed, shown)


def source_files(sources: Mapping[str, Source], plan: Plan, named: Iterable[Location]) -> list[SourceFile]:
    """The files of a program, the one with its op first: that one whole, and of the others the lines that are `named` or that a
    kernel or a decision is about."""
    wanted: dict[str, set[int]] = {name: set() for name in sources}
    about = [line for k in plan.kernels for line in k.lines] + [r.line for r in plan.remarks if r.line]
    for file, line in (*about, *named):
        if file in wanted:
            wanted[file].add(line)
    found = []
    for number, (name, source) in enumerate(sources.items()):
        rows = source.text.rstrip("\n").split("\n")
        near = {n for line in wanted[name] for n in range(line - CONTEXT, line + CONTEXT + 1)}
        parts: list[list[SourceLine]] = []
        last = -1
        for n, text in enumerate(rows, 1):
            if (number and n not in near) or (not parts and not text.strip()):
                continue
            if n != last + 1 or not parts:
                parts.append([])
            parts[-1].append(SourceLine(n, text.rstrip("\r"), f"L{number}.{n}"))
            last = n
        found.append(SourceFile(name, Path(name).name, number, parts))
    _annotate(found, plan)
    return [f for f in found if f.parts]


def _annotate(files: Iterable[SourceFile], plan: Plan) -> None:
    """Writes kernels and decisions to their lines."""
    lines = {(f.name, line.number): line for f in files for part in f.parts for line in part}
    for number, kernel in enumerate(plan.kernels, 1):
        for location in dict.fromkeys(kernel.lines):
            if location in lines:
                lines[location].kernels.append(number)
    for remark in plan.remarks:
        if remark.line in lines:
            lines[remark.line].decisions.append(decision(remark))
