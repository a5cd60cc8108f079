"""Python's recursion limit, raised while any thread works on a long chain of operations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

DEEP = 20_000
"""Calls inside each other: functions that follow the operands of a value call themselves, and a kernel has a thousand
operations and more."""

_lock = Lock()
_before: list[int] = []  # the limit that was there, once for every thread that is inside


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raises the limit, which is one for all threads; the last to leave sets it back."""
    with _lock:
        _before.append(_before[0] if _before else sys.getrecursionlimit())
        sys.setrecursionlimit(max(_before[0], DEEP))
    try:
        yield
    finally:
        with _lock:
            limit = _before.pop()
            if not _before:
                sys.setrecursionlimit(limit)
