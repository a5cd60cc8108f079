"""The lines of a traceback that are the user's, as IPython and notebooks show them above a message."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from itertools import takewhile
from types import TracebackType


def user_frames(traceback: TracebackType | None) -> list[str]:
    """A line for each call from what IPython ran to the call of tilec, and the lines' code. A cell of `%%tile` has none, since
    IPython itself calls tilec for it."""
    frames = []
    while traceback is not None:
        frame = traceback.tb_frame
        frames.append((str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    called = max((n for n, (module, _, _) in enumerate(frames) if _of(module, "IPython")), default=-1)
    own = takewhile(lambda frame: not _of(frame[0], "tilec"), frames[called + 1 :])
    return [text for _, file, line in own for text in _shown(file, line)]


def _of(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _shown(file: str, line: int) -> Iterator[str]:
    yield f"{_label(file)}, line {line}"
    if code := linecache.getline(file, line).strip():
        yield f"    {code}"


def _label(file: str) -> str:
    """`Cell In[3]`, where IPython compiled the code; else the file."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(named) if named else f"File {file}"
