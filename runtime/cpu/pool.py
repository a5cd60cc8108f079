"""The process's threads for kernels: the table of `runtime/native/pool.py`, whose machine code starts them as they are needed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache, partial

from tilec.process import forking
from tilec.runtime.cpu import threads
from tilec.runtime.cpu.objects import load_pool
from tilec.runtime.native import pool, team
from tilec.runtime.native.tables import Pool, Slot, Team

_making = threading.Lock()
_SIGNALS = (ctypes.c_uint8 * 1024)(*[255] * 1024)  # all of them, however a system writes that


def table() -> int:
    """The address of the table. Its memory is never freed: helpers look at it while the process ends."""
    with forking.compiling(), _making:
        return _table()


@cache
def _table() -> int:
    memory = ctypes.create_string_buffer(
        pool.LINE * (3 + threads.limit()) + pool.SLOTS * pool.slot_bytes(threads.limit())
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    fill = partial(_fill, memory, load_pool(), threads.limit())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fill)  # where there are no helpers yet
    return fill()


def _fill(memory: ctypes.Array[ctypes.c_char], functions: dict[str, int], limit: int) -> int:
    ctypes.memset(memory, 0, len(memory))
    start = -(-ctypes.addressof(memory) // pool.LINE) * pool.LINE
    of_team, helpers, size = start + pool.LINE, start + 2 * pool.LINE, pool.slot_bytes(limit)
    slots = helpers + pool.LINE * limit
    words = {
        Pool.run: functions[pool.RUN], Pool.share: functions[pool.SHARE], Pool.help: functions[pool.HELP], Pool.limit: limit,
        Pool.most: ctypes.addressof(threads.MOST), Pool.theirs: ctypes.addressof(threads.THEIRS), Pool.helpers: helpers,
        Pool.slots: slots, Pool.slot_bytes: size, Pool.team: of_team,
    }  # fmt: skip
    if sys.platform == "linux":
        words |= {Pool.clock: _function("clock_gettime"), Pool.clock_of: _function("pthread_getcpuclockid")}
    if mask := _function("pthread_sigmask"):
        words |= {Pool.mask: mask, Pool.mask_how: signal.SIG_BLOCK, Pool.mask_all: ctypes.addressof(_SIGNALS)}
    for field, value in words.items():
        _write(start, field, value)
    _write(of_team, Team.parallel, ctypes.addressof(threads.TEAM))
    _write(of_team, Team.join, functions[team.JOIN])
    for number in range(pool.SLOTS):
        _write(slots + number * size, Slot.lock, _held_lock())
        _write(slots + number * size, Slot.pool, start)
    return start


def _function(name: str) -> int:
    """The address of a function of the C library; 0 where it has none."""
    found = None if os.name == "nt" else getattr(ctypes.CDLL(None), name, None)
    return ctypes.cast(found, ctypes.c_void_p).value or 0 if found is not None else 0


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
