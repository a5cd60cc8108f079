"""The standard streams of a command, even if its caller closed some; and Python's warnings as notes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilec.core.diagnostics import CallError


class _Closed(io.TextIOBase):
    """A stream that was closed before the process began: using it is an error, having it is none."""

    def __init__(self, name: str):
        self._name = name

    @property
    def buffer(self) -> _Closed:
        return self

    def read(self, *_: object) -> str:
        raise CallError(f"the standard {self._name} is closed")

    write = read  # type: ignore[assignment]

    def isatty(self) -> bool:
        return False


def open_streams() -> None:
    """Gives the process the standard streams that it lacks. Their numbers are taken, so that no other file gets them."""
    for number, name in enumerate(("input", "output", "error")):
        stream = ("stdin", "stdout", "stderr")[number]
        if getattr(sys, stream) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        setattr(sys, stream, io.StringIO() if name == "error" else _Closed(name))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a letter


@contextmanager
def warnings_as(show: Callable[[str], None]) -> Iterator[None]:
    """Shows tilec's own warnings as one line, without the position in tilec's sources."""
    from tilec.runtime.cache import CacheWarning

    with warnings.catch_warnings():
        plain = warnings.showwarning

        def reported(message: Warning | str, category: type[Warning], *location: Any, **named: Any) -> None:
            if issubclass(category, CacheWarning):
                show(str(message))
            else:
                plain(message, category, *location, **named)

        warnings.showwarning = reported
        yield
