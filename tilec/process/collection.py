"""Garbage collection while much is made that is in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
    of thousands, which each full collection looks through. Where some are left out, which may be the caller's doing, nothing is
    done."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
