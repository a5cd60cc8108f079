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
    """Threads for some work. If an exception leaves the block, above all KeyboardInterrupt, work that has not begun is
    dropped, and nobody waits for the rest: kernels in other processes are abandoned."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(count, name)
    try:
        yield pool
    except BaseException:
        from tilec.process import compile_server

        pool.shutdown(wait=False, cancel_futures=True)
        compile_server.give_up()
        raise
    pool.shutdown()
