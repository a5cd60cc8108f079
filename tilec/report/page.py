"""The page of one program for given sizes: records of its lines, operations, kernels and decisions, put into the template.

All figures are those of `tilec explain`: the plan's predictions, remarks and facts. The page adds the IR after every stage, printed
kernels and their machine code. It is one file without references to others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilec.core.quantities import amount, duration
from tilec.cost.model import roofline
from tilec.kernels import KernelPlan
from tilec.passes import STAGES
from tilec.plan.model import Plan
from tilec.plan.report.compiled import arithmetic
from tilec.plan.report.expectations import expectations, minimal_traffic, traffic
from tilec.plan.report.explain import bound_by, facts, is_about, verdict
from tilec.plan.report.provenance import Provenance
from tilec.report.costs import REGIMES, Lever, SharedMemory, Term, levers, shared_memory, terms
from tilec.report.ir_lines import Line, Location, compared, functions, operations
from tilec.report.operations import picture
from tilec.report.roofline import figure
from tilec.report.sources import Decision, SourceFile, decision, source_files
from tilec.report.subject import Subject
from tilec.report.template import fill

if TYPE_CHECKING:
    from tilec.report.against import Comparison


@dataclass(frozen=True)
class CodeLine:
    """A line of code. `about`: anchors of the source lines it comes from, with spaces between; `link` and `label`: of the first of
    them, where the line before comes from others."""

    text: str
    state: str
    about: str
    link: str
    label: str


@dataclass(frozen=True)
class Code:
    """The code of a kernel in one form. `change`: how it differs from the form before."""

    name: str
    summary: str
    change: str
    lines: list[CodeLine]


@dataclass(frozen=True)
class KernelView:
    """`same`: the number of an earlier kernel whose printed text and machine code this one shares, or 0."""

    number: int
    name: str
    computes: str
    time: str
    measured: str
    verdict: str
    share: float
    bound: str
    limiter: str
    roofline: float
    allowed: str
    lines: list[tuple[str, str]]
    facts: dict[str, str]
    decisions: list[tuple[Decision, str, str]]
    terms: list[Term]
    levers: list[Lever]
    limits: list[tuple[str, int, bool]]
    shared: SharedMemory | None
    code: list[Code]
    same: int


@dataclass(frozen=True)
class Regime:
    """One of the three limits, and the kernels that it is that of."""

    name: str
    meaning: str
    moves: str
    kernels: list[KernelView]
    time: str
    share: float


def page(subject: Subject, against: Comparison | None = None) -> str:
    """The text of the page. `against`: another plan of the program, which is shown beside this one."""
    plan, specialised = subject.plan, subject.specialised.at(subject.plan.sizes)
    where = Provenance(specialised, plan)
    ir = {stage: functions(text) for stage, text in subject.lowered.texts.items()}
    named = {location for found in ir.values() for lines in found.values() for line in lines for location in line.locations}
    files = source_files(where.sources, plan, sorted(named))
    links = _Links(files)
    printed: dict[str, int] = {}
    kernels = [_kernel(number, k, subject, where, ir, links, printed) for number, k in enumerate(plan.kernels, 1)]
    moved, least = traffic(plan), minimal_traffic(specialised)
    return fill(
        "page",
        name=specialised.name,
        signature=plan.named,
        varies=bool(plan.varies),
        target=str(plan.target),
        note=plan.target.note,
        sizes=[f"{name} = {value}" for name, value in specialised.sizes.items()],
        counted=plan.counted,
        inlined=plan.inlined,
        time=duration(plan.time_us),
        measured=duration(total) if (total := subject.measured.get(specialised.name)) else "",
        traffic=f"{amount(moved)}B",
        excess=moved / least if least else 0.0,
        expectations=[str(e) for e in expectations(specialised, plan)],
        files=files,
        kernels=kernels,
        worst=sorted(kernels, key=lambda k: -k.share),
        regimes=_regimes(plan, kernels),
        picture=picture(subject.lowered.texts["plan"], plan),
        roofline=figure(plan, subject.measured),
        decisions=_decisions(plan, links),
        fused=sum(r.verb == "fused" for r in plan.remarks),
        launches=[(name, list(own), duration(plan.predictions[name].time_us)) for name, own in plan.launches.items()],
        copies=[(c.source, c.name, duration(c.prediction.time_us), bound_by(c.prediction)) for c in plan.copies],
        rewrites=[(a.rewrite, a.step.operation, a.reason, *links.of(a.line)) for a in plan.rewrites],
        missing=subject.missing,
        against=against,
    )


class _Links:
    """The anchors of source lines."""

    def __init__(self, files: Sequence[SourceFile]):
        self.files = {f.name: f for f in files}
        self.short = {f.short: f for f in reversed(files)}
        self.known: dict[Location, tuple[str, str]] = {}

    def of(self, location: Location | None) -> tuple[str, str]:
        """Anchor and label of a line; empty where the page does not have it."""
        if location is None:
            return "", ""
        if location not in self.known:
            file = self.files.get(location[0]) or self.short.get(location[0])
            line = file.line(location[1]) if file else None
            self.known[location] = (line.anchor, f"{file.short}:{line.number}") if file and line else ("", "")
        return self.known[location]

    def code(self, lines: Sequence[Line]) -> list[CodeLine]:
        found, before = [], ""
        for line in lines:
            known = [self.of(location) for location in line.locations]
            about = " ".join(anchor for anchor, _ in known if anchor)
            link, label = next(((a, t) for a, t in known if a), ("", "")) if about != before else ("", "")
            found.append(CodeLine(line.text, line.state, about, link, label))
            before = about or before
        return found


def _kernel(
    number: int, kernel: KernelPlan, subject: Subject, where: Provenance, ir: Mapping[str, Mapping[str, list[Line]]], links: _Links,
    shown: dict[str, int],
) -> KernelView:  # fmt: skip
    """`shown`: the number of the first kernel with each printed one, which is filled."""
    plan, p = subject.plan, kernel.prediction
    measured = subject.measured.get(kernel.name)
    total = sum(k.prediction.time_us for k in plan.kernels) or 1.0
    emitted = subject.lowered.emitted
    printed = emitted.launched.get(kernel.name) or emitted.launched.get(_launch(kernel, plan)) if emitted else None
    text = printed.text if printed else ""
    first = shown.setdefault(printed.name, number) if printed else number
    allowed = roofline(kernel.work, plan.target).time_us
    return KernelView(
        number, kernel.name, ", ".join(kernel.nodes), duration(p.time_us), duration(measured) if measured else "",
        _verdict(kernel, subject, measured), p.time_us / total, p.bound, bound_by(p),
        allowed / p.time_us, duration(allowed),
        [found for location in dict.fromkeys(kernel.lines) if (found := links.of(location))[0]],
        dict(facts(kernel, plan, where, subject.registers.get(kernel.name))), list(_about(kernel, plan, links)),
        terms(p.terms), levers(kernel, plan.target),
        [(name, n, name == p.occupancy.limiter) for name, n in p.occupancy.limits.items()],
        shared_memory(text, plan.target) if plan.target.kind == "cuda" else None,
        list(_forms(kernel, subject, ir, text if first == number else "", links)), first if first != number else 0,
    )  # fmt: skip


def _verdict(kernel: KernelPlan, subject: Subject, measured: float | None) -> str:
    """What explains the difference of the measured time from the predicted one; empty where none was measured."""
    if not measured:
        return ""
    ptx = subject.code.get(kernel.name, {}).get("PTX", "")
    return verdict(kernel, subject.plan.target, measured, (arithmetic(kernel, ptx) if ptx else None) or {})


def _about(kernel: KernelPlan, plan: Plan, links: _Links) -> Iterator[tuple[Decision, str, str]]:
    """The decisions about a kernel or its operations, refused ones first, each with the anchor and the label of its line."""
    for remark in sorted(plan.remarks, key=lambda r: r.verb != "refused"):
        if is_about(remark, kernel):
            yield decision(remark), *links.of(remark.line)


def _launch(kernel: KernelPlan, plan: Plan) -> str:
    """The launch that a kernel shares with others; its own name where it shares none."""
    return next((name for name, own in plan.launches.items() if kernel.name in own), kernel.name)


def _forms(
    kernel: KernelPlan, subject: Subject, ir: Mapping[str, Mapping[str, list[Line]]], text: str, links: _Links
) -> Iterator[Code]:  # fmt: skip
    """A kernel's IR after every stage, its printed text, and its machine code."""
    summaries = {"build": "the program as written", **{s.name: s.summary for s in STAGES}}
    before: list[Line] = []
    for stage, found in ir.items():
        own = found.get(kernel.name) or found.get(_launch(kernel, subject.plan))
        lines = own or [line for function in found.values() for line in operations(function, kernel.nodes)]
        shown = compared(before, lines) if before else lines
        new, gone = (sum(line.state == state for line in shown) for state in ("new", "gone"))
        change = f"{new} new lines, {gone} gone" if before else f"{len(lines)} lines"
        if lines:
            yield Code(stage, summaries[stage], change, links.code(shown))
        before = lines
    if not text:
        return
    yield Code("Numba", "the printed kernel", f"{text.count(chr(10)) + 1} lines", links.code(list(_printed(text))))
    machine = subject.code.get(kernel.name) or subject.code.get(_launch(kernel, subject.plan), {})
    for kind, code in machine.items():
        rows = code.rstrip("\n").split("\n")
        yield Code(kind, "machine code", f"{len(rows)} lines", [CodeLine(row, "", "", "", "") for row in rows])


_STATEMENT = re.compile(r"^( *)# (\S+):(\d+): ")


def _printed(text: str) -> Iterator[Line]:
    """The lines of a printed kernel. A comment names the statement of the lines behind it, to the end of its block."""
    at: tuple[Location, ...] = ()
    indent, afresh = 0, False
    for row in text.split("\n"):
        own = len(row) - len(row.lstrip())
        if statement := _STATEMENT.match(row):
            location = statement[2], int(statement[3])
            at = (*at, location) if afresh else (location,)
            indent, afresh = len(statement[1]), True
        else:
            afresh = False
            if row.strip() and own < indent:
                at = ()
        yield Line(row, at)


def _regimes(plan: Plan, kernels: Sequence[KernelView]) -> list[Regime]:
    total = sum(k.prediction.time_us for k in plan.kernels) or 1.0
    found = []
    for name, (meaning, moves) in REGIMES.items():
        us = sum(k.prediction.time_us for k in plan.kernels if k.prediction.bound == name)
        own = [k for k in kernels if k.bound == name]
        found.append(Regime(name, meaning, moves, own, duration(us), us / total))
    return found


def _decisions(plan: Plan, links: _Links) -> dict[str, list[tuple[Decision, str, str, int]]]:
    """All decisions by kind, each with the anchor and the label of its line, and its number."""
    found: dict[str, list[tuple[Decision, str, str, int]]] = {"refused": [], "taken": [], "stored": [], "other": []}
    for number, remark in enumerate(plan.remarks):
        shown = decision(remark)
        found[shown.kind].append((shown, *links.of(remark.line), number))
    return found
