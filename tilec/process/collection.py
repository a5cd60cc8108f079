"""Garbage collection while much is made that is in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS_THRESHOLD = 10_000  # objects: Python 3.12 itself leaves out some hundreds
_frozen = False  # by this module


@contextmanager
def uncollected() -> Iterator[None]:
    """Disables the garbage collector: compilers make a great many objects, and nearly all are in use."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def frozen() -> Iterator[None]:
    """Leaves the objects that are there already out of garbage collections: of a process with PyTorch these are hundreds
    of thousands, which each full collection looks through. Nothing is done where a caller has left out his own, which could not be
    distinguished afterwards."""
    global _frozen
    if _frozen or gc.get_freeze_count() >= OBJECTS_THRESHOLD:
        yield
        return
    gc.freeze()
    _frozen = True
    try:
        yield
    finally:
        gc.unfreeze()
        _frozen = False
