"""How many threads share the blocks of a kernel on the CPU.

`set_threads` says it, or else TILEC_THREADS. Otherwise, where PyTorch is loaded, its number counts, as it is at each call
(`torch.set_num_threads`; PyTorch reads OMP_NUM_THREADS); elsewhere OMP_NUM_THREADS. Without any of these, and at most beside
PyTorch's, it is the processors of the process's affinity, within the quota of its cgroups. `limit()` bounds all.

Machine code reads MOST, THEIRS and TEAM at each launch. A plan does not depend on the number: it is made for the cores of the
target, so that results have the same bits however many threads there are.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tilec.core.diagnostics import CallError
from tilec.core.host import available_threads, processors

MOST = ctypes.c_int64(1)
"""Threads of a launch."""
THEIRS = ctypes.c_int64(0)
"""The address of a function that tells PyTorch's number, which bounds MOST; 0 where it does not count."""
TEAM = ctypes.c_int64(0)
"""The address of OpenMP's function that has PyTorch's threads call a function; 0 where PyTorch's number does not count."""
_NAMES = ("_ZN2at15get_num_threadsEv", "?get_num_threads@at@@YAHXZ")  # of at::get_num_threads, by two rules
_LARGEST = 1024
_chosen: int | None = None  # by set_threads
_process = os.getpid()  # the one that has OpenMP's threads


def set_threads(count: int | None) -> None:
    """Has kernels on the CPU run on so many threads from now on, in all of the process; at most on `limit()`. None: as if
    nothing had been set. Raises CallError for anything but a whole number of at least 1."""
    global _chosen
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise CallError(f"set_threads takes a whole number of at least 1, or None, not {count!r}")
    _chosen = count
    settle()


def get_threads() -> int:
    """On how many threads a kernel with many blocks would run, if this thread called it now."""
    settle()
    counts = [MOST.value, limit()]
    if THEIRS.value:
        counts.append(sys.modules["torch"].get_num_threads())
    return int(min(counts))


@cache
def limit() -> int:
    """The most threads of a launch, for which programs have scratch memory: the processors that this process was given, or what
    TILEC_THREADS had in the beginning, if that is more."""
    return min(max(processors(), _of_tilec() or 1), _LARGEST)


def settle() -> None:
    """Finds the numbers anew: PyTorch may have been imported since."""
    chosen = _chosen if _chosen is not None else _of_tilec()
    if chosen is not None:
        MOST.value, THEIRS.value, TEAM.value = chosen, 0, 0
        return
    torch = sys.modules.get("torch")
    theirs = _torchs(torch) if hasattr(torch, "get_num_threads") else 0
    requested = None if theirs else _number("OMP_NUM_THREADS")
    MOST.value, THEIRS.value = min(available_threads(), requested or sys.maxsize), theirs
    TEAM.value = _team(torch) if theirs and os.getpid() == _process else 0


def _of_tilec() -> int | None:
    text = os.environ.get("TILEC_THREADS", "").strip()
    if text and (not text.isdecimal() or not int(text)):
        raise CallError(f"TILEC_THREADS must be a whole number of at least 1, not '{text}'")
    return int(text) if text else None


def _number(variable: str) -> int | None:
    """Of the first level, where a variable says one for each. Others tell of what is wrong with it."""
    text = os.environ.get(variable, "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) else None


def _libraries(torch: ModuleType) -> list[Path]:
    own = Path(str(torch.__file__)).parent
    return [Path(torch._C.__file__), *(own / "lib").glob("*torch_cpu*")]


@cache
def _torchs(torch: Any) -> int:
    """PyTorch's function, which takes some nanoseconds; or, where its libraries do not show it, one that calls Python."""
    for library in _libraries(torch):
        for name in _NAMES:
            try:
                found = getattr(ctypes.CDLL(str(library)), name)
            except (OSError, AttributeError):
                continue
            found.argtypes, found.restype = (), ctypes.c_int
            if found() == torch.get_num_threads():
                return ctypes.cast(found, ctypes.c_void_p).value or 0
    return ctypes.cast(_by_python(torch), ctypes.c_void_p).value or 0


@cache
def _team(torch: ModuleType) -> int:
    """OpenMP's function, where PyTorch's libraries show it by GNU's name, on a system with clocks of other threads."""
    for library in _libraries(torch) if sys.platform == "linux" else ():
        try:
            return ctypes.cast(ctypes.CDLL(str(library)).GOMP_parallel, ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


def _in_child() -> None:
    """A fork has none of OpenMP's threads, and OpenMP does not know it."""
    TEAM.value = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@cache
def _by_python(torch: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int)(torch.get_num_threads)


__all__ = ["MOST", "THEIRS", "get_threads", "set_threads", "settle"]
