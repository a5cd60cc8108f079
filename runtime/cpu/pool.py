"""The process's threads for kernels: the table of `runtime/native/pool.py`, whose machine code starts them as they are needed."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from functools import cache, partial

from tilec.process import forking
from tilec.runtime.cpu import threads
from tilec.runtime.cpu.objects import load_pool
from tilec.runtime.native import pool
from tilec.runtime.native.tables import Pool, Slot

_making = threading.Lock()
_SIGNALS = (ctypes.c_uint8 * 1024)(*[255] * 1024)  # all of them, however a system writes that


def table() -> int:
    """The address of the table. Its memory is never freed: helpers look at it while the process ends."""
    with forking.compiling(), _making:
        return _table()


@cache
def _table() -> int:
    memory = ctypes.create_string_buffer(
        pool.LINE * (2 + threads.limit()) + pool.SLOTS * pool.slot_bytes(threads.limit())
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    fill = partial(_fill, memory, load_pool(), threads.limit())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fill)  # where there are no helpers yet
    return fill()


def _fill(memory: ctypes.Array[ctypes.c_char], functions: dict[str, int], limit: int) -> int:
    ctypes.memset(memory, 0, len(memory))
    start = -(-ctypes.addressof(memory) // pool.LINE) * pool.LINE
    helpers, size = start + pool.LINE, pool.slot_bytes(limit)
    slots = helpers + pool.LINE * limit
    words = {
        Pool.run: functions[pool.RUN], Pool.share: functions[pool.SHARE], Pool.help: functions[pool.HELP], Pool.limit: limit,
        Pool.most: ctypes.addressof(threads.MOST), Pool.theirs: ctypes.addressof(threads.THEIRS), Pool.helpers: helpers,
        Pool.slots: slots, Pool.slot_bytes: size,
    }  # fmt: skip
    mask = None if os.name == "nt" else getattr(ctypes.CDLL(None), "pthread_sigmask", None)
    if mask is not None:
        words[Pool.mask] = ctypes.cast(mask, ctypes.c_void_p).value or 0
        words |= {Pool.mask_how: signal.SIG_BLOCK, Pool.mask_all: ctypes.addressof(_SIGNALS)}
    for field, value in words.items():
        _write(start, field, value)
    for number in range(pool.SLOTS):
        _write(slots + number * size, Slot.lock, _held_lock())
    return start


def _in_child() -> None:
    """In a fork that did not wait for the thread which makes the table."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def nothing(count: int) -> Callable[[], None]:
    """A launch whose blocks do nothing, on at most so many threads."""
    share = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(load_pool()[pool.SHARE])
    count = min(count, threads.limit())
    return partial(share, table(), load_pool()[pool.NOTHING], count, count, 0, 0, 0)


def _write(table: int, field: int, value: int) -> None:
    ctypes.c_int64.from_address(table + 8 * field).value = value


def _held_lock() -> int:
    allocate, acquire = ctypes.pythonapi.PyThread_allocate_lock, ctypes.pythonapi.PyThread_acquire_lock
    allocate.restype = ctypes.c_void_p
    lock = allocate()
    acquire(ctypes.c_void_p(lock), 1)
    return int(lock)


__all__ = ["nothing", "table"]
