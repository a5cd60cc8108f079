"""Runs compiled CPU programs: their tables, for `runtime/native/cpu.py` or `runtime/native/python.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from tilec.core.amounts import divided_up, largest, plus, rounded_up, times
from tilec.core.diagnostics import CheckError
from tilec.core.host import permit_amx
from tilec.runtime.cpu import pool
from tilec.runtime.cpu import threads as counts
from tilec.runtime.native import copy, tables
from tilec.runtime.native.tables import KeepAlive
from tilec.runtime.native.template import Template
from tilec.runtime.native.workspaces import Workspaces
from tilec.runtime.program import Amount, Emitted, KernelSource, Step

CACHE_LINE = 128


class CpuProgram:
    """Kernels in the order of a program's steps. `launch` is safe in many threads at once.

    A call has a workspace for itself: temporaries, and scratch memory for every thread that works on it. `table` is the address of
    a `native_tables.Program`.
    """

    def __init__(
        self, emitted: Emitted, loops: Mapping[str, int], inputs: int, outputs: int, workspaces: Workspaces | None = None,
        alive: KeepAlive | None = None,
    ):  # fmt: skip
        """`workspaces`: shared by programs with the same kernels, of which each call needs one. `alive`: has the tables; those of a
        `Template` are launched by its copies alone."""
        self._steps, self._kernels = emitted.steps, {k.name: k for k in emitted.kernels}
        if any("configure_tiles(" in k.text for k in emitted.kernels):
            permit_amx()
        used = [self._kernels[s.kernel] for s in self._steps if s.kernel is not None]
        threads = counts.limit() if any(map(_shared, used)) else 1
        scratch = rounded_up(emitted.workspace, CACHE_LINE)
        workspace = plus(scratch, largest(0, *(times(_stride(k), threads if _shared(k) else 1) for k in used)))
        self.words = inputs + outputs + len(emitted.temporaries)
        self._begin = {"input": 0, "output": inputs, "temporary": inputs + outputs}
        self._alive = alive = KeepAlive() if alive is None else alive
        workspaces = Workspaces() if workspaces is None else workspaces
        steps = [self._step(s, loops, scratch) for s in self._steps]
        self.table = alive.table(
            tables.Program, steps=len(steps), step_list=alive.words(steps), arrays=inputs + outputs,
            temporaries=len(emitted.temporaries), offsets=alive.words([t.offset for t in emitted.temporaries]),
            begins=alive.words(emitted.begins(inputs, outputs)),
            parameters=max((len(s.slots) + len(s.sizes) for s in self._steps), default=0), workspace=workspace,
            free=workspaces.free, allocate=alive.object(workspaces.allocate), fail=alive.object(self._fail), pool=pool.table(),
        )  # fmt: skip
        if isinstance(alive, Template):
            return
        if tables.native_calls():
            self._launch = builtin("tilec_launch", self.table, self)
        else:
            from tilec.runtime.native.python import PythonLaunch

            self._launch = PythonLaunch(self.table, workspaces, self._fail)

    def _step(self, step: Step, loops: Mapping[str, int], scratch: Amount) -> int:
        slots = self._alive.words([self._begin[s.kind] + s.number for s in step.slots])
        sizes = {"sizes": len(step.sizes), "size_list": self._alive.words(step.sizes)} if step.sizes else {}
        common = {"parameters": len(step.slots), "slots": slots, "bytes": step.bytes, **sizes}
        if step.kernel is None:
            many = isinstance(step.bytes, str) or step.bytes >= copy.PARALLEL
            shared = tables.native_calls() and len(step.slots) == 2 and many
            loop = {"loop": native()[copy.NAME], "grid": divided_up(step.bytes, copy.BLOCK)} if shared else {}
            return self._alive.table(tables.Step, **loop, **common)
        kernel = self._kernels[step.kernel]
        stride = _stride(kernel)
        return self._alive.table(
            tables.Step, loop=loops[kernel.name], grid=kernel.grid, scratch=scratch, stride=stride, **common
        )

    def launch(self, addresses: Sequence[int]) -> None:
        """Runs all steps on row-major arrays at these addresses, inputs before outputs. Raises CheckError for what a
        run-time check found."""
        counts.settle()
        self._launch(*addresses)

    def _fail(self, code: int) -> NoReturn:
        step, number = self._steps[code >> 32], code & 0xFFFFFFFF
        raise CheckError(step.sites(self._kernels[step.kernel or ""])[number - 1])


def _shared(kernel: KernelSource) -> bool:
    """Whether several threads may have its blocks."""
    return isinstance(kernel.grid, str) or kernel.grid > 1


def _stride(kernel: KernelSource) -> Amount:
    """Bytes from one thread's scratch memory to the next's: no two are on one cache line."""
    return rounded_up(kernel.scratch, CACHE_LINE)


# ---- built-in functions ----------------------------------------------------------------------------------------------


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_FASTCALL = 0x80  # METH_FASTCALL: arguments as an array


def native() -> dict[str, int]:
    """The addresses of the functions of `runtime/native/cpu.py`."""
    from tilec.runtime.cpu.objects import load_native

    return load_native()


@cache
def _methods() -> dict[str, _Method]:
    return {name: _Method(name.encode(), address, _FASTCALL, None) for name, address in native().items()}


def builtin(name: str, table: int, owner: object) -> Callable[..., Any]:
    """`tilec_launch`, `tilec_call` or `tilec_prepared` for the table at an address. It keeps `owner`, which keeps the table."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new(ctypes.addressof(_methods()[name]), (table, owner), None)


__all__ = ["CpuProgram", "builtin", "native"]
