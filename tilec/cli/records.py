"""The records that `--json` prints, other than that of `explain` (tilec/plan/report/records.py).

A docstring under a field is its description in the JSON schema (docs/json.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilec.core.diagnostics import Diagnostic, Span

# ---- check ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Location:
    """Characters of a file. Lines and columns count from 1; the end is behind the last character."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class FurtherLocation:
    """Another place that explains a message."""

    message: str
    at: Location | None


@dataclass(frozen=True)
class Message:
    """A mistake, or a warning."""

    severity: Literal["error", "warning"]
    message: str
    at: Location | None
    """Null where the message is not about a place, such as that of a file that is missing."""
    notes: list[FurtherLocation]
    hint: str | None
    """What to do about it."""


@dataclass(frozen=True)
class Tensor:
    """What is known of a name of an op, with `--ranges`."""

    name: str
    type: str
    shape: list[str]
    """The size of each dimension: a number, or an expression of named sizes."""
    ranges: dict[str, tuple[str, str]]
    """By index, the first number and the one behind the last."""


@dataclass(frozen=True)
class CheckedOp:
    """An op, with `--ranges`."""

    name: str
    tensors: list[Tensor]


@dataclass(frozen=True)
class CheckedFile:
    """A program that was checked."""

    file: str
    messages: list[Message]
    ops: list[CheckedOp]
    """With `--ranges`, and only without mistakes."""


@dataclass(frozen=True)
class Checked:
    """Mistakes and warnings of programs."""

    schema: Literal["tilec.check/1"] = field(default="tilec.check/1", init=False)
    """The name and version of this format."""
    mistakes: int
    """Messages of severity "error". The exit status is 1 where there are any."""
    files: list[CheckedFile]


def message(diagnostic: Diagnostic) -> Message:
    d = diagnostic
    severity: Literal["error", "warning"] = "warning" if d.severity == "warning" else "error"
    return Message(severity, d.message, location(d.span), [FurtherLocation(n.message, location(n.span)) for n in d.notes], d.hint)


def location(span: Span) -> Location | None:
    if span is Span.none():
        return None
    return Location(span.source.shown, *span.source.position(span.start), *span.source.position(span.end))


# ---- plan ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedProgram:
    """The plan of a program, for a target and sizes."""

    time_us: float
    """The predicted time in microseconds."""
    kernels: int
    copies: int
    decisions: dict[str, object]
    """The plan as the schedule file has it: its keys are those of the table `[[plan]]`."""


@dataclass(frozen=True)
class Planned:
    """Plans, one for each class of sizes that vary."""

    schema: Literal["tilec.plan/1"] = field(default="tilec.plan/1", init=False)
    """The name and version of this format."""
    file: str | None
    """The schedule file that was written; null without `-o`."""
    plans: list[PlannedProgram]


# ---- run -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """An input or a result."""

    name: str
    type: str
    shape: list[int]
    origin: str
    """"given" (by a file), "random" or "result"."""


@dataclass(frozen=True)
class ComparedResult:
    """A result beside the interval that the error bounds allow, at its worst element, with `--check`."""

    name: str
    within: bool
    error: float | None
    """The distance from the middle of the allowed interval; null where it is not finite."""
    allowed: float | None
    """The largest allowed distance; null where it is not finite."""
    index: list[int]
    wrong: int
    """Elements outside of their intervals."""
    unbounded: int
    """Elements that may have any value of their type, about which the comparison says nothing."""


@dataclass(frozen=True)
class Timing:
    """The time of single calls, with `--time`."""

    calls: int
    median_us: float
    best_us: float
    predicted_us: float
    bytes_per_second: float
    """Bytes of inputs and outputs over the median time."""
    operations_per_second: float
    limit_us: float
    """The least time that the device allows: that of inputs and outputs moved once, or of all operations at peak rates."""
    of_limit: float
    """`limit_us` over the median time. It may be above 1: the rates are those that simple kernels reached."""


@dataclass(frozen=True)
class Ran:
    """A run of an op."""

    schema: Literal["tilec.run/1"] = field(default="tilec.run/1", init=False)
    """The name and version of this format."""
    op: str
    target: str
    device: str
    interpreted: str | None
    """With `--interpret`, the stage whose IR was run."""
    seed: int
    arrays: list[Array]
    compared: list[ComparedResult]
    time: Timing | None
    saved: str | None
    """The file that results were written to."""


# ---- verify --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerifiedSizes:
    """One set of sizes."""

    sizes: dict[str, int]
    of: str | None
    """The class that they are of, where sizes vary."""
    outcome: Literal["right", "wrong", "refused", "left out"]
    """"refused": by the compiler. "left out": the interpreter would take long."""
    inputs: list[str]
    """The kinds of inputs that were tried, such as "ordinary", "huge" and "nan"."""
    reason: str | None
    """Why the sizes were refused or left out."""


@dataclass(frozen=True)
class Skipped:
    """What was not checked: a stage, or a class of sizes."""

    name: str
    reason: str


@dataclass(frozen=True)
class WrongStage:
    """The stage whose IR is wrong."""

    stage: str
    step: str | None
    """The pass that made it wrong, where it could be named."""
    what: str
    sizes: dict[str, int]
    """The smallest sizes that were found at which it is wrong."""
    inputs: str
    """The kind of the inputs."""
    reproducer: str | None
    """A file with the IR that went into the stage, which `tilec opt` reads."""


@dataclass(frozen=True)
class Verified:
    """The IR after every stage, compared with the program."""

    schema: Literal["tilec.verify/1"] = field(default="tilec.verify/1", init=False)
    """The name and version of this format."""
    op: str
    target: str
    device: str
    verdict: Literal["right", "wrong", "nothing verified"]
    """"nothing verified": no stage could be compared at sizes above 1."""
    sizes: list[VerifiedSizes]
    skipped: list[Skipped]
    wrong: WrongStage | None


# ---- doctor --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """A line of a section."""

    name: str
    value: str
    """For people; its form may change."""
    missing: bool
    """Whether the part is not there."""


@dataclass(frozen=True)
class Examined:
    """This machine's software and hardware."""

    schema: Literal["tilec.doctor/1"] = field(default="tilec.doctor/1", init=False)
    """The name and version of this format."""
    problems: list[str]
    """What keeps programs from being compiled for the CPU. The exit status is 1 where there are any."""
    gpu_problem: str | None
    """What the compiler for GPUs lacks, with the command that installs it."""
    software: list[Fact]
    cpu: list[Fact]
    gpu: list[Fact]
    cache: list[Fact]


def facts(rows: Sequence[tuple[str, str]]) -> list[Fact]:
    return [Fact(name, value, value == "missing" or value.startswith("missing: ")) for name, value in rows]
