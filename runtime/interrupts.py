"""Ctrl-C put off while what it would leave half done cannot be done again: registrations that last as long as the process.

Numba and the MLIR bindings register types, functions and dialects when they are first used. Where KeyboardInterrupt comes
between two of them, the first half stays, and every later attempt fails: "duplicate registration", "already registered".
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager


@contextmanager
def uninterrupted():
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
