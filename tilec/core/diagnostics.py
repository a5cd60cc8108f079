"""Source positions, and one type of message for all mistakes of users."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

from tilec.process.printable import columns, printable, shortened


@dataclass(frozen=True)
class Source:
    """A text and the name that messages call it by (a path, or `<program>`). The byte order mark that some editors put
    before a text is not part of it. `folders`: where its imports may lie, other than below its own folder."""

    name: str
    text: str = field(repr=False)
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.removeprefix("\ufeff"))

    @property
    def shown(self) -> str:
        """The name, where a text must be Unicode: bytes of a path that are not become question marks."""
        return printable(self.name.encode("utf-8", "replace").decode("utf-8")).replace("\n", "\\n")

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column of a character offset."""
        number = bisect_right(self._starts, max(0, min(offset, len(self.text))))
        return number, offset - self._starts[number - 1] + 1

    def line(self, number: int) -> str:
        if not 1 <= number <= len(self._starts):
            return ""
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end]

    @cached_property
    def _starts(self) -> list[int]:
        """The offset of each line's first character."""
        return [0, *(m.end() for m in re.finditer("\n", self.text))]


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (half-open) of a source."""

    source: Source
    start: int
    end: int

    @staticmethod
    def none() -> Span:
        return _NOWHERE

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.position(self.start)[1]

    def __str__(self) -> str:
        return f"{self.source.shown}:{self.line}:{self.column}"


_NOWHERE = Span(Source("<nowhere>", ""), 0, 0)


@dataclass(frozen=True)
class Note:
    """A further place that explains a mistake ("M is 4 here")."""

    message: str
    span: Span


@dataclass(frozen=True)
class Diagnostic:
    """One mistake: where, what, and where possible what to do."""

    message: str
    span: Span
    notes: tuple[Note, ...] = ()
    hint: str | None = None
    severity: str = "error"

    @property
    def text(self) -> str:
        """The message, and what to do about it, without the place."""
        return printable_message(self.message) + (f"\nhint: {printable_message(self.hint)}" if self.hint else "")

    def __str__(self) -> str:
        location = "" if self.span is _NOWHERE else f"{self.span}: "
        parts = [f"{location}{self.severity}: {printable_message(self.message)}", *_excerpt(self.span)]
        for note in self.notes:
            parts += [f"{note.span}: note: {printable_message(note.message)}", *_excerpt(note.span)]
        if self.hint:
            parts.append(f"hint: {printable_message(self.hint)}")
        return "\n".join(parts)


def printable_message(message: str) -> str:
    """A message as a terminal shows it: nothing in it steers the terminal, and names are of a readable length."""
    return printable(shortened(message))


def _excerpt(span: Span) -> list[str]:
    """The source line and carets under the span, cut to its first line."""
    if span is _NOWHERE or not span.source.text:
        return []
    line, column = span.source.position(span.start)
    text = span.source.line(line)
    width = max(1, min(span.end - span.start, len(text) - column + 1))
    window, shown = text, column
    if len(text) > 160:  # a megabyte on one line is still a readable message
        first = max(0, column - 61)
        window, shown = text[first : first + 120], column - first
        width = min(width, len(window) - shown + 1)
    before, under = window[: shown - 1], window[shown - 1 : shown - 1 + width]
    indent = "".join("\t" if c == "\t" else " " * columns(c) for c in before)
    gutter = f"{line} | "
    return [gutter + printable(window), " " * (len(gutter) - 2) + "| " + indent + "^" * max(1, sum(map(columns, under)))]


class TileError(Exception):
    """The user's mistake, of one or more diagnostics. `str()` is the whole message."""

    def __init__(self, diagnostics: Diagnostic | list[Diagnostic] | tuple[Diagnostic, ...]):
        self.diagnostics = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__("\n".join(str(d) for d in self.diagnostics))

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows of it: the user's calls, and the message with its carets. tilec's frames say nothing about
        a mistake of the user."""
        from tilec.process.user_frames import user_frames

        return [*user_frames(self.__traceback__), *f"{type(self).__name__}: {self}".splitlines()]


class CallError(TileError, ValueError):
    """A call's arguments do not fit the program: wrong rank, type, size, device or an overlapping `out=`."""

    def __init__(self, message: str, span: Span | None = None, notes: tuple[Note, ...] = (), hint: str | None = None):
        super().__init__(Diagnostic(message, span or Span.none(), notes, hint))

    def __str__(self) -> str:
        (d,) = self.diagnostics
        hint = f"\nhint: {printable_message(d.hint)}" if d.hint else ""
        return str(d) if d.span is not Span.none() else printable_message(d.message) + hint


class CheckError(CallError):
    """A run-time check that failed: an index that depends on data was outside its table. `deferred`: the check belongs to an
    earlier call than the call that raises this error, and the arguments of that call are gone. `program`: the text of the kernels
    whose check it is, where the check is deferred."""

    def __init__(self, message: str, deferred: bool = False, hint: str | None = None, program: str = ""):
        super().__init__(message, hint=hint)
        self.deferred, self.program = deferred, program


class InternalError(Exception):
    """A defect of tilec. Carries the stage that failed and the IR it failed on, which the CLI saves."""

    def __init__(self, message: str, stage: str | None = None, ir: str | None = None):
        super().__init__(message)
        self.stage, self.ir = stage, ir
