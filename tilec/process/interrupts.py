"""Ctrl-C while Numba or MLIR registers names: the interruption waits until the registration is complete.

Numba and the MLIR bindings register types, functions and dialects at their first use, for the life of the process. A
KeyboardInterrupt in the middle would leave the first half registered, and every later attempt would fail: "duplicate
registration", "already registered". Elsewhere Ctrl-C takes effect at once.
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
