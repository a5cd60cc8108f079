"""`tilec check` and `tilec fmt`: the commands for program texts."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tilec.cli.common import (
    defined,
    note,
    parse_checked,
    read_text,
    show,
    show_error,
    write_file,
)
from tilec.cli.json_output import show_json
from tilec.cli.programs import write_program
from tilec.cli.records import Checked, CheckedFile, CheckedOp, Tensor, message
from tilec.core.diagnostics import CallError, Diagnostic, TileError

if TYPE_CHECKING:
    from tilec.dsl.ast import Program
    from tilec.dsl.check import Described


def check(args: argparse.Namespace) -> int:
    """Every mistake of every file; exit status 1 if there is one."""
    if not args.ranges and (args.op or args.define):
        raise CallError("--op and -D only go with --ranges", hint="add --ranges, or leave them out")
    if args.ranges and args.format != "text":
        raise CallError(f"--ranges does not go with --format {args.format}", hint="leave one of them out")
    if args.json and args.format != "text":
        raise CallError(f"--json does not go with --format {args.format}", hint="leave one of them out")
    files, all_found = [], list[Diagnostic]()
    for path in args.files:
        found, ops = _checked(path, args)
        all_found += found
        files.append(CheckedFile(str(path), [message(d) for d in found], [_record(name, facts) for name, facts in ops]))
        if not args.json and args.format == "text":
            for name, facts in ops:
                _show_ranges(name, facts)
            for diagnostic in found:
                show_error(TileError(diagnostic))
    wrong = sum(m.severity == "error" for f in files for m in f.messages)
    if args.json:
        show_json(Checked(wrong, files))
        return 1 if wrong else 0
    if args.format != "text":
        from tilec.cli.annotations import FORMATS

        if text := FORMATS[args.format](all_found):
            show(text)
    if wrong > 1:
        note(f"{wrong} mistakes", kind="")
    return 1 if wrong else 0


Ops: TypeAlias = "list[tuple[str, list[Described]]]"  # by name, with the facts about each of their names


def _checked(path: Path, args: argparse.Namespace) -> tuple[list[Diagnostic], Ops]:
    """The mistakes of a file, or else its warnings; and with `--ranges` its ops."""
    from tilec.dsl.mistakes import warnings

    ops: Ops = []
    try:
        program = parse_checked(path, args.path)
        if args.ranges:
            ops = list(_ranges(program, args))
        return warnings(program), ops
    except TileError as error:
        return list(error.diagnostics), ops


def _record(name: str, facts: list[Described]) -> CheckedOp:
    tensors = [Tensor(d.name, d.dtype, list(d.shape), {index: (low, high) for index, low, high in d.ranges}) for d in facts]
    return CheckedOp(name, tensors)


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
        write_program(None, formatted)
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
