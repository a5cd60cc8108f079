"""A defect of tilec: the report of its stage, and the file with the input that reproduces it."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from pathlib import Path

from tilec.cli.common import STAGES, note, write_file
from tilec.core.diagnostics import InternalError, TileError

ERROR_FILE = "tilec-error.mlir"


def report_defect(error: Exception, args: argparse.Namespace, argv: list[str]) -> None:
    """Reports the failing stage, and saves the input that reproduces the failure."""
    stage, ir = (error.stage, error.ir) if isinstance(error, InternalError) else (None, None)
    reported = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    note(f"{reported}\nThis is a defect of tilec, not of the program.", "internal error")
    if stage:
        note(f"in stage '{stage}'", "where")
    elif location := _location(error):
        note(location, "where")
    if ir:
        before = _stage_before(stage)
        path = _save(f"// tilec stage: {before}, target: {_target(args)}\n{ir}")
        note(f"{path} holds the IR that went into the stage", "saved")
        note(f"tilec opt {shlex.quote(str(path))} --from {before}", "to reproduce")
    else:
        note(f"tilec {shlex.join(argv)}", "to reproduce")
    if not os.environ.get("TILEC_DEBUG"):
        note("TILEC_DEBUG=1 shows the traceback", "hint")


def _location(error: BaseException) -> str:
    """The innermost line of ours in a traceback."""
    locations = []
    frame = error.__traceback__
    while frame is not None:
        locations.append((frame.tb_frame.f_code.co_filename, frame.tb_lineno))
        frame = frame.tb_next
    return f"{locations[-1][0]}:{locations[-1][1]}" if locations else ""


def _stage_before(stage: str | None) -> str:
    names = [*STAGES.split(), "emit"]
    return names[max(0, names.index(stage) - 1)] if stage in names else "build"


def _target(args: argparse.Namespace) -> str:
    return getattr(args, "target", None) or "cpu"


def _save(text: str) -> Path:
    """Here, or where that is not allowed in the directory for temporary files."""
    path = Path(ERROR_FILE)
    try:
        write_file(path, text.encode())
    except TileError:
        path = Path(tempfile.mkdtemp(prefix="tilec-")) / ERROR_FILE
        write_file(path, text.encode())
    return path
