"""Compiling emitted CPU kernels and running them: one parallel loop over blocks serves every kernel.

A kernel is compiled by Numba as a C function of (block, args, scratch); `run_parallel` calls it through its address for
every block. Numba keeps compiled kernels on disk beside the generated module (`cache.module_path`).
"""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from functools import cache
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from tilec.runtime.program import Emitted, KernelSource

SIGNATURE = types.void(types.int64, types.CPointer(types.int64), types.int64)


@intrinsic
def call_kernel(typingctx, kernel, block, args, scratch):
    """Calls the C function at address `kernel`."""

    def codegen(context, builder, signature, values):
        kernel, block, args, scratch = values
        i64 = ir.IntType(64)
        pointer = ir.FunctionType(ir.VoidType(), [i64, i64.as_pointer(), i64]).as_pointer()
        builder.call(builder.inttoptr(kernel, pointer), [block, builder.inttoptr(args, i64.as_pointer()), scratch])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@njit("void(int64, int64, int64, int64)", nogil=True, cache=True)
def run_serial(kernel, grid, args, scratch):
    for block in range(grid):
        call_kernel(kernel, block, args, scratch)


@njit("void(int64, int64, int64, int64, int64)", nogil=True, parallel=True, cache=True)
def run_parallel(kernel, grid, args, scratch, stride):
    for block in prange(grid):
        call_kernel(kernel, types.int64(block), args, scratch + numba.get_thread_id() * stride)


# Numba's own "workqueue" threads abort the process when two Python threads enter them at once; omp and tbb do not.
_one_at_a_time = threading.Lock()


class CpuKernel:
    """A compiled kernel. `launch` runs all its blocks and returns the number of the check that failed, or 0."""

    def __init__(self, source: KernelSource, compiled):
        self.source = source
        self.address = compiled.address
        self._keep = compiled  # owns the machine code
        self._local = threading.local()

    def launch(self, addresses: list[int]) -> int:
        source, local = self.source, self._local
        if not hasattr(local, "args"):
            local.args = np.zeros(source.parameters + 1, np.int64)
            local.scratch, local.stride = _scratch(source.scratch, source.grid)
        args = local.args
        args[: len(addresses)] = addresses
        args[-1] = 0
        if source.grid == 1:
            run_serial(self.address, 1, args.ctypes.data, local.scratch.ctypes.data)
        elif _serialised():
            with _one_at_a_time:
                run_parallel(self.address, source.grid, args.ctypes.data, local.scratch.ctypes.data, local.stride)
        else:
            run_parallel(self.address, source.grid, args.ctypes.data, local.scratch.ctypes.data, local.stride)
        return int(args[-1])


def _scratch(size: int, grid: int) -> tuple[np.ndarray, int]:
    """Private memory for every thread, each piece on cache lines of its own."""
    stride = -(-size // 128) * 128
    threads = 1 if grid == 1 else numba.config.NUMBA_NUM_THREADS
    raw = np.empty(stride * threads + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :], stride


@cache
def _serialised() -> bool:
    run_parallel(0, 0, 0, 0, 0)
    return numba.threading_layer() == "workqueue"


def load_kernels(emitted: Emitted, path: str) -> dict[str, CpuKernel]:
    """Imports the generated module at `path` and compiles its kernels, or finds them in Numba's cache beside it."""
    name = "tilec_kernels_" + re.sub(r"\W", "_", Path(path).parent.name)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(
        spec
    )  # Numba's cache imports a function's module by name
    spec.loader.exec_module(module)
    decorate = numba.cfunc(SIGNATURE, cache=True, nopython=True, error_model="numpy")
    return {k.name: CpuKernel(k, decorate(getattr(module, k.name))) for k in emitted.kernels}


__all__ = ["CpuKernel", "load_kernels"]
