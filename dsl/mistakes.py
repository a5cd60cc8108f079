"""All mistakes of a file at once: syntax errors, and errors of meaning in the parts that could be parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilec.core.diagnostics import Diagnostic, Source, Span, TileError
from tilec.dsl import ast
from tilec.dsl.check import Elaborator, check_module
from tilec.dsl.check_scope import Module, Report
from tilec.dsl.modules import Loader, load, load_file
from tilec.dsl.parse import MAX_DIAGNOSTICS, Partial, parse_partly
from tilec.dsl.short_doubts import doubts


@dataclass(frozen=True)
class Reading:
    """What could be read of a source, all mistakes that were found, the declarations that it sees, and the work of the check for
    each op."""

    program: ast.Program
    mistakes: list[Diagnostic]
    module: Module
    elaborated: dict[str, Elaborator]


def read(source: Source, loader: Loader = load_file) -> ast.Program:
    """The program of a source without mistakes. Raises TileError with every one that is found."""
    found = read_partly(source, loader)
    if found.mistakes:
        raise TileError(found.mistakes)
    return found.program


def read_partly(source: Source, loader: Loader = load_file) -> Reading:
    """The parts of a source that could be read, and every mistake. Raises TileError for a text that is not worth reading on."""
    partial, report = parse_partly(source), Report()
    module = load(partial.program, report, loader)
    elaborated = check_module(module, report)
    found = sorted(report.diagnostics, key=lambda d: (d.span.source.name, d.span.start))
    if partial.problems:
        found = [*partial.problems, *_independent(found, partial)][:MAX_DIAGNOSTICS]
    found.sort(key=lambda d: (d.span.source.name != source.name, d.span.start))
    return Reading(partial.program, found, module, elaborated)


def warnings(program: ast.Program, loader: Loader = load_file) -> list[Diagnostic]:
    """What a program without mistakes was hardly meant to be: doubtful inputs of the short form, ops that no size suits."""
    from tilec.dsl.refused_sizes import refused_everywhere

    return [*(d for op in program.ops for d in doubts(op)), *refused_everywhere(program, loader)]


def _independent(found: Iterable[Diagnostic], partial: Partial) -> Iterable[Diagnostic]:
    """Mistakes of meaning that no mistake of form brought about.

    Not those on its lines; not those about a name that a given-up statement of the same op would define, nor, but for
    names that nothing defines, those on a line that uses one: its meaning is not known.
    """
    ops = [op.span for op in partial.program.ops]

    def op_at(offset: int | None) -> Span | None:
        return next((s for s in ops if offset is not None and s.start <= offset < s.end), None)

    broken = {line for d in partial.problems for line in _lines(d)}
    for d in found:
        about = _WORD.findall(" ".join(_QUOTED.findall(f"{d.message} {d.hint or ''}")))
        others = [] if d.message.startswith("unknown") else _WORD.findall(_text(d))
        here = d.span.source is partial.program.span.source
        mine = op_at(d.span.start) if here else None
        lost = {name for name, offset in partial.lost if op_at(offset) in (None, mine)}
        if lost.isdisjoint((*about, *others)) and not (here and broken.intersection(_lines(d))):
            yield d


_WORD, _QUOTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), re.compile("`([^`]*)`")


def _lines(d: Diagnostic) -> range:
    """The lines that it is about."""
    text = d.span.source.text
    return range(d.span.line, d.span.line + text.count("\n", d.span.start, max(d.span.start, d.span.end - 1)) + 1)


def _text(d: Diagnostic) -> str:
    """These lines."""
    text = d.span.source.text
    begin, end = text.rfind("\n", 0, d.span.start) + 1, text.find("\n", max(d.span.start, d.span.end - 1))
    return text[begin : end if end >= 0 else len(text)]
