"""Running compiled CPU kernels: object files are loaded through LLVM, blocks shared out by Numba's thread pool.

Neither needs Numba's compiler, so that a program from the cache starts at once.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from functools import cache

import llvmlite.binding as llvm

from tilec.runtime.forking import compiling, pool_lost
from tilec.runtime.host_memory import allocate
from tilec.runtime.interrupts import uninterrupted
from tilec.runtime.program import KernelSource, Object

_ADDRESS = ctypes.c_void_p
_Loop = ctypes.CFUNCTYPE(None, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS)
_ParallelFor = ctypes.CFUNCTYPE(
    None, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
)
CACHE_LINE = 128


class MissingSymbol(Exception):
    """Machine code of another time needs a function that this process has not."""


# Numba's own "workqueue" threads abort the process when two Python threads enter them at once; omp and tbb do not.
_one_at_a_time = threading.Lock()
_loading = threading.Lock()


class CpuKernel:
    """A compiled kernel. `launch` runs all its blocks and returns the number of the check that failed, or 0."""

    def __init__(self, source: KernelSource, machine: Object):
        self.source = source
        self.address = _load(machine)
        self._loop = _Loop(self.address)
        self._serial = source.grid == 1
        self._local = threading.local()

    def launch(self, addresses: Sequence[int]) -> int:
        try:
            state = self._local.state
        except AttributeError:
            state = self._local.state = _State(self.source)
        state.pack(state.args, 0, *addresses, 0)
        if self._serial or pool_lost():
            state.data[1] = 1
            self._loop(*state.serial)
        else:
            self._parallel(state)
        return state.args[-1]

    def _parallel(self, state: _State) -> None:
        parallel_for, threads, serialised = _pool()
        shares = min(threads(), self.source.grid)
        state.count[0] = state.data[1] = shares
        call = (self.address, state.share, state.count, state.step, state.data, 0, 1, shares)
        if serialised:
            with _one_at_a_time:
                parallel_for(*call)
        else:
            parallel_for(*call)


class _State:
    """What one Python thread hands to a kernel; `cpu_compile._blocks` reads it."""

    def __init__(self, source: KernelSource):
        threads = 1 if source.grid == 1 else _most_threads()
        stride = -(-source.scratch // CACHE_LINE) * CACHE_LINE  # no two threads on one cache line
        self.memory, scratch = allocate(stride * threads)
        self.args = (ctypes.c_int64 * (source.parameters + 1))()
        self.data = (ctypes.c_int64 * 5)(source.grid, 1, ctypes.addressof(self.args), scratch, stride)
        self.pack = struct.Struct(f"{source.parameters + 1}q").pack_into
        self.share, self.count, self.step = (ctypes.c_int64 * 1)(0), (ctypes.c_int64 * 1)(1), (ctypes.c_int64 * 1)(1)
        self.serial = (self.share, None, None, self.data)


def _most_threads() -> int:
    import numba

    return numba.config.NUMBA_NUM_THREADS


@cache
def _pool():
    """Numba's parallel loop, how many threads it may use now, and whether only one thread at a time may enter it."""
    with compiling(), uninterrupted():  # numba has locks, too
        import numba

        numba.get_num_threads()  # starts them
    parallel_for = _ParallelFor(llvm.address_of_symbol("numba_parallel_for"))
    return parallel_for, numba.get_num_threads, numba.threading_layer() == "workqueue"


# ---- machine code ----------------------------------------------------------------------------------------------------


@cache
def _engine() -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


_addresses: dict[str, int] = {}


def _load(machine: Object) -> int:
    """The address of the loop in an object file. It stays for good: a call may run when the last reference goes."""
    with uninterrupted(), _loading:
        found = _addresses.get(machine.symbol)
        if found is None:
            engine = _engine()
            if missing := [name for name in machine.needs if llvm.address_of_symbol(name) is None]:
                raise MissingSymbol(", ".join(missing))
            engine.add_object_file(llvm.ObjectFileRef.from_data(machine.image))
            engine.finalize_object()
            found = _addresses[machine.symbol] = engine.get_function_address(machine.symbol)
        return found


def load_kernels(kernels: tuple[KernelSource, ...], machine: Mapping[str, Object]) -> dict[str, CpuKernel]:
    """Every kernel, ready to run. Raises MissingSymbol for machine code that was made for another process."""
    return {k.name: CpuKernel(k, machine[k.name]) for k in kernels}


__all__ = ["CpuKernel", "MissingSymbol", "load_kernels"]
