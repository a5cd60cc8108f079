"""Programs that a command prints: a terminal shows them in colours."""

from __future__ import annotations

import sys
from pathlib import Path

from tilec.cli.common import coloured, write
from tilec.process.printable import printable


def write_program(path: Path | None, text: str) -> None:
    """To a file, or where the path is None or `-` to the standard output."""
    if (path is None or str(path) == "-") and coloured(sys.stdout):
        sys.stdout.write(_painted(printable(text)))
    else:
        write(path, text)


def _painted(text: str) -> str:
    from pygments import highlight
    from pygments.formatters import TerminalFormatter

    from tilec.dsl.highlight import TileLexer

    return highlight(text, TileLexer(stripnl=False, ensurenl=False), TerminalFormatter())
