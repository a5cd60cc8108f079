"""`tilec check` and `tilec fmt`: programs as texts."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from tilec.cli_common import (
    coloured,
    defined,
    paint,
    parse_checked,
    read_text,
    say,
    show_error,
    write,
    write_file,
)
from tilec.diagnostics import TileError


def check(args: argparse.Namespace) -> int:
    """Every mistake of every file; exit status 1 if there is one."""
    wrong = 0
    for path in args.files:
        try:
            program = parse_checked(path)
            if args.ranges:
                _ranges(program, args)
        except TileError as error:
            show_error(error)
            wrong += len(error.diagnostics)
    if wrong > 1:
        print(f"{wrong} mistakes", file=sys.stderr)
    return 1 if wrong else 0


def _ranges(program, args: argparse.Namespace) -> None:
    """What was inferred of every name, op by op."""
    from tilec.dsl.specialise import choose_op, describe_ranges

    ops = [choose_op(program, args.op)] if args.op or not program.ops else program.ops
    for op in ops:
        lines = [f"op {op.name}"]
        found = describe_ranges(program, op.name, defined(args) or None)
        width = max((len(d.name) for d in found), default=0)
        for described in found:
            name, _, rest = str(described).partition(": ")
            lines.append(f"  {name:<{width}}  {rest}")
        say("\n".join(lines), [(r"^op .*$", "bold"), (r"\b\w+ in ", "cyan")])


def fmt(args: argparse.Namespace) -> int:
    """Formats in place, or with `--check` only tells what it would change."""
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
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, f"{name}, formatted", lineterm="")
    for line in lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        say(paint(line, style) if style and coloured(sys.stdout) else line)
