"""Ctrl-C: where it waits, and where Python has made another error of it.

Numba and the MLIR bindings register types, functions and dialects at their first use, for the life of the process. A
KeyboardInterrupt in the middle would leave the first half registered, and every later attempt would fail: "duplicate
registration", "already registered". There the interruption waits until the registration is complete. Elsewhere Ctrl-C takes
effect at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C acts when this is left. Only the main thread is ever interrupted, so that others have nothing to do."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    struck = []
    signal.signal(signal.SIGINT, lambda number, frame: struck.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if struck:
            handler(*struck[0])


def pass_on(error: BaseException) -> None:
    """Raises KeyboardInterrupt where an error was made of one. Python 3.11 makes a RuntimeError of all that is raised in a
    `__set_name__`, where a class is made, and so within imports."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
