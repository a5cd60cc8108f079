"""The machine code of CPU programs: from the disk cache if this processor compiled it before, or compiled now."""

from __future__ import annotations

import ctypes
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache as once
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from tilec.core.host import available_threads
from tilec.process import progress
from tilec.process.interrupts import uninterrupted
from tilec.process.logs import log
from tilec.process.workers import workers
from tilec.runtime import cache
from tilec.runtime.cpu.load import MissingSymbol, load, machine
from tilec.runtime.generated import alone, functions, identity
from tilec.runtime.program import Emitted, Object

COMPILER = "tilec.runtime.cpu.compile"
PRINTED = "tilec.runtime.cpu.support"
"""What printed kernels import."""


def load_program(emitted: Emitted) -> dict[str, int]:
    """The address of every kernel's loop over blocks."""
    key = cache.make_key("objects", emitted.module, cache.code_digest(COMPILER, PRINTED), *_versions())
    names = ", ".join(k.name for k in emitted.kernels)
    if (found := cache.load(key)) is not None:
        try:
            loaded = load_kernels(_from_cache(*found))
            log("cache", f"machine code for the CPU of {names} is in the disk cache")
            return loaded
        except (KeyError, TypeError, AttributeError, MissingSymbol):
            pass
    log("cache", f"machine code for the CPU of {names} is compiled")
    made = _compiled(emitted)
    objects = {o.symbol: o for o in made.values()}
    properties = {
        "kernels": {name: o.symbol for name, o in made.items()},
        "needs": {symbol: o.needs for symbol, o in objects.items()},
    }
    cache.save(key, properties, {symbol: o.image for symbol, o in objects.items()})
    return load_kernels(made)


def compiles_here() -> bool:
    """Whether this process has the compiler loaded, so that no other one need load it."""
    return COMPILER in sys.modules


def _compiled(emitted: Emitted) -> dict[str, Object]:
    if not compiles_here() and (made := _compiled_elsewhere(emitted)) is not None:
        return made
    with uninterrupted():
        from tilec.runtime.cpu.compile import compile_kernels

    return compile_kernels(emitted.module, emitted.kernels)


def _compiled_elsewhere(emitted: Emitted) -> dict[str, Object] | None:
    """By processes of the compiler's own, several kernels at once; None where those cannot be had.

    Kernels that differ in names only are one.
    """
    from tilec.process import compile_server

    codes, modules = functions(emitted.module), alone(emitted.module)
    identities = {k.name: identity(codes[k.name]) for k in emitted.kernels}
    names = {same: name for name, same in identities.items()}
    with workers(available_threads(), "tilec-compile") as pool:
        asked = {
            same: pool.submit(compile_server.ask, COMPILER, {"module": modules[name], "kernel": name})
            for same, name in names.items()
        }
        with suppress(MissingSymbol):  # what running takes, meanwhile
            load_pool()
            load_native()
        replies = {}
        for number, (same, future) in enumerate(asked.items(), 1):
            progress.at(f"compiling kernel {number} of {len(asked)}")
            replies[same] = future.result()
    made = {same: r for same, r in replies.items() if r is not None and "image" in r}
    if len(made) < len(replies):
        return None
    objects = {same: Object(b64decode(r["image"]), r["symbol"], tuple(r["needs"])) for same, r in made.items()}
    return {name: objects[same] for name, same in identities.items()}


def load_kernels(made: dict[str, Object]) -> dict[str, int]:
    """The address of every kernel's loop. Raises MissingSymbol for machine code that was made for another process."""
    return {name: load(o.image, (o.symbol,), o.needs)[o.symbol] for name, o in made.items()}


def _from_cache(properties: dict, files: dict[str, bytes]) -> dict[str, Object]:
    needs = properties["needs"]
    return {name: Object(files[symbol], symbol, tuple(needs[symbol])) for name, symbol in properties["kernels"].items()}


NATIVE = ("tilec_launch", "tilec_call", "tilec_prepared", "tilec_execute", "tilec_cuda_execute", "tilec_copy")


@once
def load_native() -> dict[str, int]:
    """The addresses of the functions of `runtime/native/cpu.py`."""
    from tilec.runtime.native import cpu

    return _load_written("native", cpu.module, NATIVE)


@once
def load_pool() -> dict[str, int]:
    """The addresses of the functions of `runtime/native/pool.py`."""
    from tilec.runtime.native import pool

    return _load_written("pool", pool.module, pool.NAMES)


def _load_written(name: str, write: Callable[[], ir.Module], functions: Sequence[str]) -> dict[str, int]:
    """The addresses of functions of a module that tilec writes itself, from the disk cache if it was compiled before."""
    key = cache.make_key(name, cache.code_digest(write.__module__, machine.__module__), *_versions())
    if (found := cache.load(key)) is not None:
        with suppress(KeyError, TypeError, MissingSymbol):
            return _load_functions(found[1]["image"], functions, found[0]["needs"])
    module = write()
    needs = [f.name for f in module.functions if f.is_declaration]
    image = machine().emit_object(llvm.parse_assembly(str(module)))
    cache.save(key, {"needs": needs}, {"image": image})
    return _load_functions(image, functions, needs)


def _load_functions(image: bytes, functions: Sequence[str], needs: Sequence[str]) -> dict[str, int]:
    for name in needs:  # LLVM does not find them by itself everywhere
        function = _SYSTEM[name]() if name in _SYSTEM else getattr(ctypes.pythonapi, name, None)
        if function is not None:
            llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return load(image, functions, needs)


def _sched_yield() -> Any:
    if sys.platform == "win32":
        return ctypes.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield


_SYSTEM: dict[str, Callable[[], Any]] = {
    "memmove": lambda: ctypes.memmove,
    "sched_yield": _sched_yield,
}


@once
def _versions() -> tuple[str, ...]:
    """All beside the sources that has a part in the machine code: versions, the processor, and Numba's settings."""
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_") and "THREAD" not in k)
    processor = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return (*cache.installed("numba", "llvmlite"), sys.version, llvm.get_process_triple(), *processor, *settings)
