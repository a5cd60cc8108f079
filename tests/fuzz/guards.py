"""Memory that tells when a kernel leaves its own: canary bytes around every array, and pages behind it that fault.

`Guarded` makes arrays and remembers what lies around them. With `pages`, an array ends where a page ends that is followed by
one that nothing may touch, or begins where one begins: reading beyond it, too, is a SIGSEGV, which `in_a_child` turns into a
failure. `run_guarded` runs a CPU program whose temporaries and scratch areas lie apart, with canaries between them.
`guards_cuda.py` does the same on a GPU, `tools/guarded_calls.py` has every test's calls made so.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import tilec
from tilec.runtime.cpu.launch import CACHE_LINE, CpuProgram, _stride
from tilec.runtime.native.tables import NODE
from tilec.runtime.native.workspaces import Workspaces
from tilec.runtime.program import Emitted, Temporary

CANARY = 0xA5
"""The first array's canary bytes."""
MARGIN = 256
"""Bytes of canaries on each side; a multiple of all alignments."""
ALIGN = 64
"""Bytes that temporaries and scratch memory begin on a multiple of."""
PAGE = mmap.PAGESIZE
Pages = Literal["end", "begin"] | None
"""Whether an array ends, or begins, at a page that nothing may touch."""


class Overrun(AssertionError):
    """Something was written beside the memory that it belongs into."""


def canary(number: int) -> int:
    """The canary bytes of an array: its neighbours have others, so that what a kernel reads behind one array and writes behind
    another is seen."""
    return (CANARY + 29 * number) % 256


class Guarded:
    """Arrays with canaries around them."""

    def __init__(self, pages: Pages = None):
        self.pages = pages if hasattr(mmap, "MAP_ANONYMOUS") and sys.platform != "win32" else None
        self._around: list[tuple[str, np.ndarray, int]] = []

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        self._around.clear()  # the last reference to a page's memory frees it

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any, align: int = 0) -> np.ndarray:
        """An array of canaries, on a multiple of `align` bytes, or of its elements'."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block, begin = self._block(count, align or dtype.itemsize)
        block[:] = own = canary(len(self._around))
        self._around += [(f"before {name}", block[:begin], own), (f"behind {name}", block[begin + count :], own)]
        return block[begin : begin + count].view(dtype).reshape(shape)

    def copy(self, name: str, array: np.ndarray) -> np.ndarray:
        made = self.empty(name, array.shape, array.dtype)
        made[...] = array
        return made

    def watch(self, name: str, memory: np.ndarray) -> None:
        """Bytes that are canaries, and are to stay so."""
        memory[:] = own = canary(len(self._around))
        self._around.append((name, memory, own))

    def check(self) -> None:
        for name, memory, own in self._around:
            wrong = np.flatnonzero(memory != own)
            if len(wrong):
                where = (
                    f"{len(memory) - wrong[-1]} bytes before" if name.startswith("before") else f"{wrong[0]} bytes on"
                )
                raise Overrun(f"{len(wrong)} bytes were written {name}, {where}")

    def _block(self, count: int, align: int) -> tuple[np.ndarray, int]:
        """Bytes, and where `count` of them begin that are the array's."""
        if self.pages is None:
            raw = np.empty(count + 2 * MARGIN + 64, np.uint8)
            first = -raw.ctypes.data % 64
            return raw[first:], MARGIN
        inner = -(-max(1, count) // PAGE) * PAGE
        whole = np.frombuffer(mmap.mmap(-1, inner + 2 * PAGE), np.uint8)
        forbid(whole[:PAGE])
        forbid(whole[PAGE + inner :])
        begin = (inner - count) // align * align if self.pages == "end" else 0
        return whole[PAGE : PAGE + inner], begin


def forbid(pages: np.ndarray) -> None:
    """Nobody may touch these whole pages from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(pages)), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


def apart(emitted: Emitted, gap: int, align: int = ALIGN) -> Emitted:
    """The same program, with a gap around every temporary and canaries behind every thread's scratch memory. Temporaries end
    at multiples of the gap, but for their alignment."""
    most = max((k.scratch for k in emitted.kernels), default=0)
    kernels = tuple(replace(k, scratch=_up(most, ALIGN) + MARGIN) if k.scratch else k for k in emitted.kernels)
    temporaries, offset = [], gap
    for t in emitted.temporaries:
        offset = _up(offset + t.bytes, gap) - _up(t.bytes, align)
        temporaries.append(replace(t, offset=offset, within=None))
        offset = _up(offset + t.bytes, gap) + gap
    if temporaries:  # which nothing uses
        temporaries.append(Temporary(gap, offset - gap))
    return replace(emitted, kernels=kernels, temporaries=tuple(temporaries))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


class GuardedWorkspaces(Workspaces):
    """Guarded workspaces of one program, `emitted`, which is `apart` by `gap`. `scratch`: bytes that a thread's has at most."""

    def __init__(self, guarded: Guarded, emitted: Emitted, gap: int, scratch: int):
        super().__init__()
        self._guarded, self._emitted, self._gap, self._scratch = guarded, emitted, gap, scratch

    def allocate(self, small: int, size: int) -> int:
        """One workspace: its temporaries, then the scratch areas of threads."""
        guarded, workspace = self._guarded, self._emitted.workspace
        block = guarded.empty("the workspace", (NODE + self._gap + size,), np.uint8, ALIGN)
        memory = block[NODE + -(block.ctypes.data + NODE) % self._gap :]
        free = 0
        for number, t in enumerate(self._emitted.temporaries[:-1]):
            guarded.watch(f"before temporary {number}", memory[free : t.offset])
            free = _up(t.end, self._gap)
            guarded.watch(f"behind temporary {number}", memory[t.end : free])
            if guarded.pages:
                forbid(memory[free : free + PAGE])
                free += PAGE
        guarded.watch("behind the temporaries", memory[free:workspace])
        if self._scratch:
            stride = max(map(_stride, self._emitted.kernels))
            for begin in range(_up(workspace, CACHE_LINE), size, stride):
                guarded.watch("behind scratch memory", memory[begin + self._scratch : begin + stride])
        ctypes.c_int64.from_address(memory.ctypes.data - NODE + 8).value = size
        return memory.ctypes.data - NODE


def run_guarded(
    emitted: Emitted, loops: Mapping[str, int], inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, tuple[Any, tuple[int, ...]]], pages: Pages = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The results of a CPU program of which `loops` are the kernels' addresses; `outputs` are types and shapes by name.

    Raises Overrun, and CheckError for what a run-time check found.
    """
    with Guarded(pages) as guarded:
        given = {n: guarded.copy(f"argument {n}", np.ascontiguousarray(a)) for n, a in inputs.items()}
        made = {n: guarded.empty(f"result {n}", shape, dtype) for n, (dtype, shape) in outputs.items()}
        gap, scratch = PAGE if pages else MARGIN, max((k.scratch for k in emitted.kernels), default=0)
        spaced = apart(emitted, gap)
        program = CpuProgram(spaced, loops, len(given), len(made), GuardedWorkspaces(guarded, spaced, gap, scratch))
        try:
            program.launch([a.ctypes.data for a in (*given.values(), *made.values())])
        finally:
            guarded.check()
        for name, array in given.items():
            before = np.ascontiguousarray(inputs[name])
            if array.tobytes() != before.tobytes():
                raise Overrun(f"argument {name} was written")
        results = {n: a.copy() for n, a in made.items()}
        del given, made, program
    return results


def in_a_child(act: Callable[[], Any]) -> Any:
    """What `act` returns, in a process of its own.

    A signal that ends it is raised as Overrun, an exception as an AssertionError.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        faulthandler.disable()  # a signal is expected
        try:
            reported = pickle.dumps((True, act()))
        except BaseException as error:
            kind = Overrun if isinstance(error, Overrun) else AssertionError
            reported = pickle.dumps((False, kind(f"{error}\n{traceback.format_exc()}")))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(reported)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        reported = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        raise Overrun(f"{signal.Signals(-status).name}: memory was touched that nothing may touch")
    fine, result = pickle.loads(reported)
    if not fine:
        raise result
    return result


def run_checked(
    source: Any, op: str | None, sizes: Mapping[str, int], inputs: Any, pages: Pages, of: Any = None
) -> dict[str, np.ndarray]:
    """The results of a program's own compiled kernels, guarded; `of` is an executable whose kernels run instead."""
    built = tilec.compile(source, op=op, sizes=dict(sizes), target="cpu").build()._last
    names, kernels = [name for name, _, _ in built.compiled.inputs], of or built
    given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
    arrays = {n: np.asarray(given[n], d.numpy).reshape(shape) for n, d, shape in built.compiled.inputs}
    outputs = {name: (dtype.numpy, shape) for name, dtype, shape in built.outputs}
    return run_guarded(kernels.emitted, kernels.loops, arrays, outputs, pages)
