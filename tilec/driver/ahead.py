"""Classes of sizes that are compiled before a call needs them: those beside a class that a call needs.

Sizes that vary seldom stay in one class. While a class is compiled for a call that waits, processors are idle. So the classes with
the next smaller and the next larger numbers of each size are compiled beside it. A call that needs one later finds it, or waits for
the rest of its compilation. What a class is compiled to does not depend on who asks, so results do not, either.

It is done for GPUs alone, whose kernels take long to compile, and where there are many processors and a process that compiles
programs (`tilec/driver/program_compiler.py`). `TILEC_COMPILE_AHEAD=0` turns it off.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future

from tilec.core.host import available_cores
from tilec.core.target import Target
from tilec.driver.executable import Executable
from tilec.driver.frontend import PROGRAMS
from tilec.process import compile_server
from tilec.process.forking import compiling
from tilec.process.workers import Abandoned, Workers

VARIABLE = "TILEC_COMPILE_AHEAD"
PROCESSORS = 8  # from which on some are idle while one class is compiled
AT_ONCE = 3  # classes
_pool: Workers | None = None


class Ahead:
    """The classes of one op, by keys of theirs. `most`: how many are begun."""

    def __init__(self, most: int = 64):
        self._most, self._started = most, dict[Hashable, Future[Executable]]()
        self._lock = threading.Lock()

    def pays(self, target: Target) -> bool:
        """Whether classes are compiled ahead for a target on this machine."""
        wanted = target.kind == "cuda" and os.environ.get(VARIABLE) != "0"
        return wanted and available_cores() >= PROCESSORS and compile_server.running(PROGRAMS)

    def begin(self, key: Hashable, make: Callable[[], Executable]) -> None:
        """Has a class be compiled, unless it was begun before. Waits for nothing."""
        with self._lock:
            if key not in self._started and len(self._started) < self._most:
                self._started[key] = _workers().submit(_complete, make)

    def take(self, key: Hashable) -> Executable | None:
        """A class that was begun, once it is compiled; None where its compilation has not begun to work, or was interrupted. Raises
        what compiling it has raised."""
        with self._lock:
            future = self._started.get(key)
        if future is None or future.cancel():
            return None
        try:
            return future.result()
        except (Abandoned, CancelledError):
            return None


def _complete(make: Callable[[], Executable]) -> Executable:
    with compiling():
        made = make()
        made.complete()
    return made


def _workers() -> Workers:
    """The threads of this process that wait for what is compiled."""
    global _pool
    if _pool is None or (_pool.abandoned and not compile_server.over()):
        _pool = Workers(AT_ONCE, "tilec-ahead", spare=True)
    return _pool


def _in_child() -> None:
    """The threads did not come along."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
