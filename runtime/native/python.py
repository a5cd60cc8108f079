"""Runs a CPU program's tables from Python, step by step: what `tilec_launch` of `runtime/native/cpu.py` does by machine code.

Programs run so where native calls are switched off (docs/native_calls.md). Kernels are the same machine code either way, and so are
the threads that share their blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from tilec.runtime.native.tables import NODE, Pool, Program, Step
from tilec.runtime.native.workspaces import Workspaces

_RUN = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
"""`tilec_run_blocks` of `runtime/native/pool.py`, called without Python's global lock."""


class _Step(NamedTuple):
    loop: int
    bytes: int
    slots: list[int]
    sizes: list[int]
    grid: int
    scratch: int
    stride: int


class PythonLaunch:
    """Called with the addresses of inputs and outputs, it runs the program of a `native_tables.Program`. Safe in many threads.

    `fail(step << 32 | number of the check)` raises the error of a run-time check.
    """

    def __init__(self, table: int, workspaces: Workspaces, fail: Callable[[int], NoReturn]):
        program = _words(table, len(Program))
        self._workspaces, self._fail = workspaces, fail
        self._arrays, self._workspace, self._pool = (
            program[n] for n in (Program.arrays, Program.workspace, Program.pool)
        )
        self._begins, self._offsets = (
            _words(program[n], program[Program.temporaries]) for n in (Program.begins, Program.offsets)
        )
        self._steps = [_read_step(address) for address in _words(program[Program.step_list], program[Program.steps])]

    def __call__(self, *addresses: int) -> None:
        if len(addresses) != self._arrays:
            raise TypeError(f"{self._arrays} addresses are expected, not {len(addresses)}")
        node = self._workspaces.take(self._workspace) if self._workspace else -NODE
        try:
            memory = [*addresses, *[node + NODE] * len(self._offsets)]
            memory[self._arrays :] = [memory[k] + offset for k, offset in zip(self._begins, self._offsets)]
            failed = next((code for n, step in enumerate(self._steps) if (code := self._run(n, step, memory, node))), 0)
        finally:
            if self._workspace:
                self._workspaces.give(node)
        if failed:
            self._fail(failed)

    def _run(self, number: int, step: _Step, memory: list[int], node: int) -> int:
        """0, or the step and the number of the check that failed."""
        given = [*(memory[slot] for slot in step.slots), *step.sizes]
        if not step.loop:
            ctypes.memmove(given[1], given[0], step.bytes)
            return 0
        args = (ctypes.c_int64 * (len(given) + 1))(*given, 0)
        data = (ctypes.c_int64 * 2)(ctypes.addressof(args), step.bytes)
        run = _RUN(_words(self._pool, len(Pool))[Pool.run])
        run(self._pool, step.loop, step.grid, ctypes.addressof(data), node + NODE + step.scratch, step.stride)
        return number << 32 | args[len(given)] if args[len(given)] else 0


def _read_step(address: int) -> _Step:
    words = _words(address, len(Step))
    slots, sizes = _words(words[Step.slots], words[Step.parameters]), _words(words[Step.size_list], words[Step.sizes])
    return _Step(words[Step.loop], words[Step.bytes], slots, sizes, words[Step.grid], words[Step.scratch], words[Step.stride])


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []
