"""fork() beside tilec's threads: a fork waits for compilation in other threads.

A lock that another thread holds at a fork stays locked in the child forever. Compilers hold many locks. So do imports,
and, before Python 3.12, `functools.cached_property`, which has one lock for all objects of a class. llvmlite takes its
lock whenever its own objects are collected, in any thread; a fork takes that lock, too.
"""

from __future__ import annotations

import logging  # noqa: F401 - its own hook takes a lock; later registrations run earlier
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from tilec.process.interrupts import pass_on

with suppress(RuntimeError):  # once the main thread is over, it cannot be imported, and nothing uses it
    import concurrent.futures.thread  # noqa: F401 - likewise

_LONGEST = 60.0  # seconds that a fork waits

_changed = threading.Condition()
_compiling: Counter[int] = Counter()  # threads by their identity
_held: list[Any] = []  # locks of others, during a fork


@contextmanager
def compiling() -> Iterator[None]:
    """A fork by another thread waits until this is left, and Ctrl-C leaves it as KeyboardInterrupt. Entered before any lock is
    taken."""
    me = threading.get_ident()
    with _changed:
        _compiling[me] += 1
    try:
        yield
    except Exception as error:
        pass_on(error)
        raise
    finally:
        with _changed:
            _compiling[me] -= 1
            _changed.notify_all()


def llvm_lock() -> Any:
    """The lock (an RLock) that llvmlite holds while LLVM works; None where llvmlite is not loaded."""
    return getattr(getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None), "_lock", None)


def _before() -> None:
    _changed.acquire()
    me, end = threading.get_ident(), monotonic() + _LONGEST
    while any(count for thread, count in _compiling.items() if thread != me) and monotonic() < end:
        _changed.wait(end - monotonic())
    lock = llvm_lock()
    if lock is not None and lock.acquire(timeout=max(0.0, end - monotonic())):
        _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().release()
    _changed.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_release)
