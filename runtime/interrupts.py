"""Ctrl-C: at once where threads work, and put off where what it leaves half done cannot be done again.

Numba and the MLIR bindings register types, functions and dialects when they are first used, for as long as the process lasts.
Where KeyboardInterrupt comes between two of them, the first half stays, and every later attempt fails: "duplicate
registration", "already registered".
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


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


@contextmanager
def workers(count: int | None, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads to work with. Where an exception leaves this, Ctrl-C above all, what they have not begun is dropped, and nobody
    waits for the rest: kernels that other processes compile are given up."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(count, name)
    try:
        yield pool
    except BaseException:
        from tilec.runtime import compile_server

        pool.shutdown(wait=False, cancel_futures=True)
        compile_server.give_up()
        raise
    pool.shutdown()
