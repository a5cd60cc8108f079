"""`tilec check` and `tilec fmt`: the commands for program texts."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tilec.cli.common import (
    defined,
    note,
    parse_checked,
    read_text,
    show,
    show_error,
    write,
    write_file,
)
from tilec.cli.json_output import show_json
from tilec.cli.records import Checked, CheckedFile, CheckedOp, Tensor, message
from tilec.core.diagnostics import CallError, Diagnostic, TileError

if TYPE_CHECKING:
    from tilec.dsl.ast import Program
    from tilec.dsl.check import Described


def check(args: argparse.Namespace) -> int:
    """Every mistake of every file; exit status 1 if there is one."""
    if not args.ranges and (args.op or args.define):
        raise CallError("--op and -D only go with --ranges", hint="add --ranges, or leave them out")
    files = []
    for path in args.files:
        found, ops = _checked(path, args)
        files.append(CheckedFile(str(path), [message(d) for d in found], [_record(name, facts) for name, facts in ops]))
        if not args.json:
            for name, facts in ops:
                _show_ranges(name, facts)
            for diagnostic in found:
                show_error(TileError(diagnostic))
    wrong = sum(m.severity == "error" for f in files for m in f.messages)
    if args.json:
        show_json(Checked(wrong, files))
    elif wrong > 1:
        note(f"{wrong} mistakes", kind="")
    return 1 if wrong else 0


Ops: TypeAlias = "list[tuple[str, list[Described]]]"  # by name, with the facts about each of their names


def _checked(path: Path, args: argparse.Namespace) -> tuple[list[Diagnostic], Ops]:
    """The mistakes of a file, or else its warnings; and with `--ranges` its ops."""
    from tilec.dsl.short_doubts import doubts

    ops: Ops = []
    try:
        program = parse_checked(path, args.path)
        if args.ranges:
            ops = list(_ranges(program, args))
        return [*(d for op in program.ops for d in doubts(op)), *refused_everywhere(program)], ops
    except TileError as error:
        return list(error.diagnostics), ops


def _record(name: str, facts: list[Described]) -> CheckedOp:
    tensors = [Tensor(d.name, d.dtype, list(d.shape), {index: (low, high) for index, low, high in d.ranges}) for d in facts]
    return CheckedOp(name, tensors)


_SMALL = 400  # statements up to which `check` tries sizes
_TRIED = (dict(zip(range(6), (5, 7, 3, 11, 2, 13))), *(dict.fromkeys(range(6), n) for n in (8, 64, 720)))


def refused_everywhere(program: Program) -> list[Diagnostic]:
    """A warning for every op that is refused at all of some sizes: a proof that fails with numbers is none that `check`
    can tell with names, as other sizes may be meant."""
    from tilec.dsl.check_sizes import size_names
    from tilec.dsl.specialise import accepted_sizes, specialise

    found: list[Diagnostic] = []
    if sum(len(op.body) for op in program.ops) > _SMALL:
        return found
    for op in program.ops:
        names = list(size_names(op))
        if not names or any(t.shape is None for t in op.inputs):
            continue
        first: Diagnostic | None = None
        for tried in _TRIED:
            sizes = {name: tried[k % len(tried)] for k, name in enumerate(names)}
            try:
                specialise(program, op.name, None, sizes)
                break
            except TileError as error:
                reported = ", ".join(f"{n}={v}" for n, v in sizes.items())
                first = first or replace(error.diagnostics[0], message=f"{error.diagnostics[0].message} (at {reported})")
        else:
            if accepted_sizes(program, op, dict(zip(names, _TRIED[0].values())), {}) is not None:
                continue
            assert first is not None, "sizes were tried"
            message = f"`{op.name}` is refused at all sizes that were tried: {first.message}"
            found.append(replace(first, message=message, severity="warning"))
    return found


def _ranges(program: Program, args: argparse.Namespace) -> Iterator[tuple[str, list[Described]]]:
    """The inferred ranges and types of every name, op by op."""
    from tilec.dsl.check_sizes import size_names
    from tilec.dsl.specialise import choose_op, describe_ranges

    ops = [choose_op(program, args.op)] if args.op or not program.ops else program.ops
    given = defined(args)
    for name in given:
        if not any(name in size_names(op) for op in ops):
            names = [f"`{op.name}`" for op in ops]
            every = sorted({n for op in ops for n in size_names(op)})
            hint = f"the sizes are {', '.join(every)}" if every else "there are no named sizes"
            raise CallError(f"{' and '.join(names)} {'has' if len(ops) == 1 else 'have'} no size `{name}`", hint=hint)
    for op in ops:
        known = {name: value for name, value in given.items() if name in size_names(op)}
        yield op.name, describe_ranges(program, op.name, known or None)


def _show_ranges(op: str, facts: list[Described]) -> None:
    width = max((len(d.name) for d in facts), default=0)
    lines = [f"op {op}"]
    for described in facts:
        name, _, rest = str(described).partition(": ")
        lines.append(f"  {name:<{width}}  {rest}")
    show("\n".join(lines), [(r"^op .*$", "bold"), (r"\b\w+ in ", "cyan")])


def fmt(args: argparse.Namespace) -> int:
    """Formats files in place; with `--check` only prints the changes."""
    status = 0
    for path in args.files:
        try:
            status |= _format(path, args.check)
        except TileError as error:
            show_error(error)
            status = 1
    return status


def _format(path: Path, check_only: bool) -> int:
    from tilec.dsl.format import format_source
    from tilec.dsl.parse import parse

    source = read_text(path)
    parse(source)  # its mistakes under the file's own name
    formatted = format_source(source.text)
    if check_only:
        if formatted != source.text:
            _show_difference(source.name, source.text, formatted)
        return int(formatted != source.text)
    if str(path) == "-":
        write(None, formatted)
    elif formatted != source.text:
        write_file(path, formatted.encode())
    return 0


def _show_difference(name: str, before: str, after: str) -> None:
    """A unified diff. Where only the ends of lines differ, which it would not show, one line says so."""
    if before.replace("\r\n", "\n") == after:
        show(f"{name}: its lines end with CR LF, formatted ones with LF")
        return
    old, new = (text.replace("\r\n", "\n").splitlines(keepends=True) for text in (before, after))
    for line in difflib.unified_diff(old, new, name, f"{name}, formatted"):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        shown = line.rstrip("\n")
        show(shown, [(r"^.+$", style)] if style else None)
        if not line.endswith("\n"):
            show("\\ No newline at end of file")
