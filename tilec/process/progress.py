"""Reports of progress: the current work of the compiler, for people who wait.

Each long part of the work reports its name when it begins. The command line prints it on the standard error if a command takes
longer than some seconds, and so does a compilation in a program that uses tilec, if the standard error is a terminal.
`TILEC_PROGRESS=0` turns both off. The logger `tilec` has the reports in any case, at level INFO.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tilec.process.printable import is_terminal, printable

FIRST, REPEATED = 5.0, 15.0  # seconds until it is shown, and shown again

VARIABLE = "TILEC_PROGRESS"

_outer, _latest, _shown = "", "", False


def at(what: str) -> None:
    """Reports the work that begins now. Of several threads the last report counts."""
    global _latest
    _latest = what
    if (logging := sys.modules.get("logging")) is not None:  # who wants to read it has imported it
        logging.getLogger("tilec").info(printable(what))


@contextmanager
def during(what: str) -> Iterator[None]:
    """Adds the purpose of the work to all reports within the block."""
    global _outer, _latest
    before, _outer, _latest = _outer, what, ""
    try:
        yield
    finally:
        _outer, _latest = before, ""


@contextmanager
def shown(show: Callable[[str], object]) -> Iterator[None]:
    """Calls `show` from a thread of its own if the work within the block takes long."""
    global _outer, _latest, _shown
    if os.environ.get(VARIABLE) == "0":
        yield
        return
    begin, done, _outer, _latest = time.monotonic(), threading.Event(), "", ""

    def watch() -> None:
        wait = FIRST
        while not done.wait(wait):
            if what := ", ".join(filter(None, (_outer, _latest))):
                show(f"{what}, {time.monotonic() - begin:.0f} s so far; Ctrl-C stops it")
            wait = REPEATED

    thread = threading.Thread(target=watch, name="tilec-progress", daemon=True)
    try:
        _shown = True
        thread.start()
        yield
    finally:
        _shown = False
        done.set()
        if thread.is_alive():
            thread.join(1)  # it may be writing; Python aborts where it ends while a thread does so


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Prints progress on the standard error if the work within the block takes long, it is a terminal, and nobody shows it yet."""
    error = sys.stderr
    if _shown or not is_terminal(error):
        yield
        return

    def show(report: str) -> None:
        with suppress(OSError, ValueError, AttributeError):  # a terminal that is gone, one that was closed meanwhile
            print(f"tilec is still {report}", file=error, flush=True)

    with shown(show), during(what):
        yield
