"""The `tilec` command: runs a subcommand, and handles errors and interruptions.

Exit status: 0; 1 for a mistake in the program, its sizes or files; 2 for wrong use of the command line; 70 for a defect of
tilec, with the IR of the failing stage in a file; 130 when interrupted. Commands are in the other files of this folder, imported
when they run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from tilec.cli.common import note, show_error
from tilec.cli.defects import report_defect
from tilec.cli.parsers import parser
from tilec.cli.streams import open_streams, warnings_as
from tilec.core.diagnostics import InternalError, TileError
from tilec.process import progress
from tilec.process.interrupts import pass_on

OK, MISTAKE, DEFECT, INTERRUPTED, PIPE_CLOSED = 0, 1, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return _status(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # whatever it came into: reading the command line, working, showing an error
        return INTERRUPTED


def _status(argv: list[str]) -> int:
    open_streams()
    args = parser().parse_args(argv)
    try:
        with warnings_as(lambda text: note(text, "warning")):
            status = _run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except TileError as error:
        if isinstance(error.__cause__, InternalError):
            _show_traceback()
        show_error(error)
        return MISTAKE
    except Exception as error:
        _show_traceback()
        if _is_environment(error):
            _drop_output()
            note(str(error) or type(error).__name__, "error")
            return MISTAKE
        report_defect(error, args, argv)
        return DEFECT


def _show_traceback() -> None:
    """Prints the traceback of the handled exception, if TILEC_DEBUG is set."""
    if os.environ.get("TILEC_DEBUG"):
        import traceback

        traceback.print_exc()


def _drop_output() -> None:
    """Discards buffered output after the reader closed the pipe or the disk became full, so that it is not written again at
    exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: argparse.Namespace) -> int:
    module, _, function = args.command.partition(":")
    try:
        with progress.shown(lambda what: note(what, "still")):
            return getattr(import_module(f"tilec.cli.{module}"), function)(args)
    except Exception as error:
        pass_on(error)
        raise


def _is_environment(error: Exception) -> bool:
    """Whether the machine is at fault: no driver, no memory, no space. The driver's class is looked up where already
    imported.
    """
    driver = sys.modules.get("tilec.runtime.cuda.driver")
    return isinstance(error, (OSError, MemoryError, *((driver.CudaError,) if driver else ())))


if __name__ == "__main__":
    sys.exit(main())
