"""The machine code of a CPU program: from the disk cache, where it was compiled before on this processor, or by Numba."""

from __future__ import annotations

import os
import sys
from functools import cache as once

import llvmlite.binding as llvm

from tilec.runtime import cache
from tilec.runtime.cpu_launch import CpuKernel, MissingSymbol, load_kernels
from tilec.runtime.interrupts import uninterrupted
from tilec.runtime.program import Emitted, Object


def load_program(emitted: Emitted) -> dict[str, CpuKernel]:
    """Every kernel of a program, ready to run."""
    key = cache.make_key("objects", emitted.module, cache.runtime_digest(), *_versions())
    if (found := cache.load(key)) is not None:
        try:
            return load_kernels(emitted.kernels, _from_cache(*found))
        except (KeyError, TypeError, AttributeError, MissingSymbol):
            pass
    with uninterrupted():
        from tilec.runtime.cpu_compile import compile_kernels

    made = compile_kernels(emitted.module, emitted.kernels)
    objects = {o.symbol: o for o in made.values()}
    properties = {
        "kernels": {name: o.symbol for name, o in made.items()},
        "needs": {symbol: o.needs for symbol, o in objects.items()},
    }
    cache.save(key, properties, {symbol: o.image for symbol, o in objects.items()})
    return load_kernels(emitted.kernels, made)


def _from_cache(properties: dict, files: dict[str, bytes]) -> dict[str, Object]:
    needs = properties["needs"]
    return {name: Object(files[symbol], symbol, tuple(needs[symbol])) for name, symbol in properties["kernels"].items()}


@once
def _versions() -> tuple[str, ...]:
    """All beside the sources that has a part in the machine code: versions, the processor, and Numba's settings."""
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_") and "THREAD" not in k)
    processor = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return (*cache.installed("numba", "llvmlite"), sys.version, llvm.get_process_triple(), *processor, *settings)
