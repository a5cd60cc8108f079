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

from tilec.process.forking import llvm_lock

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

    _free_llvm()
    pool = ThreadPoolExecutor(count, name)
    try:
        yield pool
    except BaseException:
        from tilec.process import compile_server

        _free_llvm()
        pool.shutdown(wait=False, cancel_futures=True)
        compile_server.give_up()
        raise
    pool.shutdown()


def _free_llvm() -> None:
    """Gives llvmlite's lock back where an interruption left it with the main thread: between the call that takes it and the
    `with` that would have returned it. Every worker would wait for it, and the main thread for them. Whoever makes
    workers is in no call of llvmlite's."""
    lock = llvm_lock()
    if lock is not None and threading.current_thread() is threading.main_thread():
        while lock._is_owned():
            lock.release()
