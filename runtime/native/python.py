"""Runs a CPU program's tables from Python, step by step: what `tilec_launch` of `runtime/native/cpu.py` does by machine code.

Programs run so where native calls are switched off (docs/native_calls.md). Kernels are the same machine code either way, and so
is the thread pool that shares out their blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, NoReturn

from tilec.runtime.native.tables import NODE, Pool, Program, Step

_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
"""A kernel over a share of its blocks: (&share, dimensions, steps, data), of which it reads the first and the last."""
_PARALLEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
"""Numba's `numba_parallel_for`(loop, args, dimensions, steps, data, inner dimensions, arrays, threads)."""
_THREADS = ctypes.CFUNCTYPE(ctypes.c_int)
_USE = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _Step(NamedTuple):
    loop: Callable[..., None] | None
    address: int
    bytes: int
    slots: list[int]
    grid: int
    scratch: int
    stride: int


class PythonLaunch:
    """Called with the addresses of inputs and outputs, it runs the program of a `native_tables.Program`. Safe in many threads.

    `allocate()` makes a workspace; `fail(step << 32 | number of the check)` raises the error of a run-time check.
    """

    def __init__(self, table: int, allocate: Callable[[], int], fail: Callable[[int], NoReturn]):
        program = _words(table, len(Program))
        self._allocate, self._fail = allocate, fail
        self._arrays, self._workspace, self._pool = (
            program[n] for n in (Program.arrays, Program.workspace, Program.pool)
        )
        self._begins, self._offsets = (
            _words(program[n], program[Program.temporaries]) for n in (Program.begins, Program.offsets)
        )
        self._steps = [_read_step(address) for address in _words(program[Program.step_list], program[Program.steps])]
        self._free: list[int] = []  # workspaces that no call has; a list's `append` and `pop` are atomic

    def __call__(self, *addresses: int) -> None:
        if len(addresses) != self._arrays:
            raise TypeError(f"{self._arrays} addresses are expected, not {len(addresses)}")
        node = self._take() if self._workspace else -NODE
        try:
            memory = [*addresses, *[node + NODE] * len(self._offsets)]
            memory[self._arrays :] = [memory[k] + offset for k, offset in zip(self._begins, self._offsets)]
            failed = next((code for n, step in enumerate(self._steps) if (code := self._run(n, step, memory, node))), 0)
        finally:
            if self._workspace:
                self._free.append(node)
        if failed:
            self._fail(failed)

    def _take(self) -> int:
        try:
            return self._free.pop()
        except IndexError:
            return self._allocate()

    def _run(self, number: int, step: _Step, memory: list[int], node: int) -> int:
        """0, or the step and the number of the check that failed."""
        given = [memory[slot] for slot in step.slots]
        if step.loop is None:
            ctypes.memmove(given[1], given[0], step.bytes)
            return 0
        args = (ctypes.c_int64 * (len(given) + 1))(*given, 0)
        pool = _words(self._pool, len(Pool))
        lost = ctypes.c_int64.from_address(pool[Pool.lost]).value
        alone = step.grid == 1 or not pool[Pool.parallel_for] or lost
        shares = 1 if alone else min(step.grid, *_bounds(pool))
        data = (ctypes.c_int64 * 5)(step.grid, shares, ctypes.addressof(args), node + NODE + step.scratch, step.stride)
        share, one, count = ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_int64(shares)
        address = ctypes.addressof
        if shares == 1:
            step.loop(address(share), None, None, address(data))
        else:
            _in_pool(pool, step.address, address(share), address(count), address(one), address(data), shares)
        return number << 32 | args[len(given)] if args[len(given)] else 0


def _bounds(pool: list[int]) -> list[int]:
    """Numbers of threads, of which the least counts."""
    most, theirs = (ctypes.c_int64.from_address(pool[n]).value for n in (Pool.most, Pool.theirs))
    return [most, *(_THREADS(f)() for f in (pool[Pool.threads], theirs) if f)]


def _in_pool(pool: list[int], loop: int, share: int, count: int, one: int, data: int, shares: int) -> None:
    lock = pool[Pool.lock]
    if lock:
        _without_gil().PyThread_acquire_lock(ctypes.c_void_p(lock), 1)
    try:
        mask = _THREADS(pool[Pool.threads])()
        _PARALLEL(pool[Pool.parallel_for])(loop, share, count, one, data, 0, 1, shares)
        _USE(pool[Pool.use])(mask)
    finally:
        if lock:
            _without_gil().PyThread_release_lock(ctypes.c_void_p(lock))


@cache
def _without_gil() -> Any:
    """Python's C functions, called without the global lock, which who has the other lock may be waiting for."""
    return ctypes.CDLL(None, handle=ctypes.pythonapi._handle)


def _read_step(address: int) -> _Step:
    words = _words(address, len(Step))
    loop, slots = words[Step.loop], _words(words[Step.slots], words[Step.parameters])
    rest = words[Step.grid], words[Step.scratch], words[Step.stride]
    return _Step(_LOOP(loop) if loop else None, loop, words[Step.bytes], slots, *rest)


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []
