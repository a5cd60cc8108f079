"""The cubins of a program: from the disk cache, or compiled now, several at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from tilec.core.host import available_cores
from tilec.process import progress
from tilec.process.collection import uncollected
from tilec.process.interrupts import uninterrupted
from tilec.process.logs import log
from tilec.process.workers import Abandoned, Workers, workers
from tilec.runtime import cache, generated
from tilec.runtime.cpu.load import MissingSymbol
from tilec.runtime.cpu.objects import load_native
from tilec.runtime.program import Cubin, Emitted, KernelSource

COMPILER, PRINTED = "tilec.runtime.cuda.compile", "tilec.runtime.cuda.intrinsics"
"""What makes machine code, and what printed kernels import."""
RELAX, ALLOW = True, ("stack", "spills", "warnings")


class CompilationsInFlight:
    """Kernels that are compiled while others of their program are still printed."""

    def __init__(self, chip: str):
        self.chip, self.pool = chip, Workers(available_cores(), "tilec-assemble", spare=True)
        self.cubins: dict[tuple, Future[Cubin]] = {}
        self.process = os.getpid()

    def __enter__(self) -> CompilationsInFlight:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """No more kernels come. If an exception leaves the block, those that have not begun are dropped."""
        self.pool.end() if kind is None else self.pool.abandon()

    def submit(self, module: str, kernel: KernelSource, registers: int | None) -> None:
        """`module`: the text of a module with this kernel alone."""
        same = _same(module, kernel, registers)
        if same not in self.cubins:
            self.cubins[same] = self.pool.submit(_compile, module, kernel, self.chip, registers)

    def here(self) -> Mapping[tuple, Future[Cubin]]:
        """The kernels; none in a fork of the process that began them, where nobody would end them."""
        return self.cubins if self.process == os.getpid() else {}


def program_cubins(
    emitted: Emitted, chip: str, registers: Mapping[str, int], in_flight: CompilationsInFlight | None = None
) -> dict[str, Cubin]:  # fmt: skip
    """Every kernel's cubin by kernel name. `registers`: the most that a thread may have, where the plan sets it. `in_flight`:
    kernels of the program that are compiled already.

    All are one entry of the cache, which is found by the module's text: finding isomorphic kernels means compiling that
    text to bytecode, which takes longer than to read them all.
    """
    asked = [(k.name, k.threads, parameters(k), registers.get(k.name)) for k in emitted.kernels]
    code = cache.code_digest(COMPILER, PRINTED, generated.__name__)
    key = cache.make_key("cubins", emitted.module, repr((asked, RELAX, ALLOW)), chip, code, *versions())
    names = ", ".join(k.name for k in emitted.kernels)
    if (found := cache.load(key)) is not None and (cubins := _from_cache(*found)) is not None:
        log("cache", f"machine code for {chip} of {names} is in the disk cache")
        return cubins
    log("cache", f"machine code for {chip} of {names} is compiled")
    cubins = _compiled(emitted, chip, registers, in_flight)
    different = list({id(c): c for c in cubins.values()}.values())
    properties = {
        "kernels": {name: different.index(c) for name, c in cubins.items()},
        "cubins": [c.properties() for c in different],
    }
    files = {f"{n}.cubin": c.image for n, c in enumerate(different)}
    cache.save(key, properties, files | {f"{n}.ptx": c.ptx.encode() for n, c in enumerate(different)})
    return cubins


def _from_cache(properties: dict[str, Any], files: dict[str, bytes]) -> dict[str, Cubin] | None:
    try:
        cubins = [
            Cubin(files[f"{n}.cubin"], files[f"{n}.ptx"].decode(), **(p | {"warnings": tuple(p["warnings"])}))
            for n, p in enumerate(properties["cubins"])
        ]
        return {name: cubins[n] for name, n in properties["kernels"].items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None


def _compiled(
    emitted: Emitted, chip: str, registers: Mapping[str, int], in_flight: CompilationsInFlight | None
) -> dict[str, Cubin]:  # fmt: skip
    """Kernels that differ in names only share one. One kernel is assembled while the next becomes PTX; the longest texts begin, so
    that the end waits for no long one."""
    made: dict[tuple, Future[Cubin]] = {}
    already = in_flight.here() if in_flight is not None else {}
    first: dict[tuple, KernelSource] = {}
    same: dict[str, tuple] = {}
    with uncollected(), workers(available_cores(), "tilec-assemble") as pool:
        modules = generated.alone(emitted.module)

        def compiled(k: KernelSource) -> Future[Cubin]:
            return pool.submit(_compile, modules[k.name], k, chip, registers.get(k.name))

        for k in sorted(emitted.kernels, key=lambda k: len(k.text), reverse=True):
            key = same[k.name] = _same(modules[k.name], k, registers.get(k.name))
            if key not in made:
                first[key] = k
                made[key] = already.get(key) or compiled(k)
        with suppress(MissingSymbol), uninterrupted():  # what calls take, meanwhile
            load_native()
        for number, (key, k) in enumerate(first.items(), 1):
            progress.at(f"compiling kernel {number} of {len(made)}")
            try:
                made[key].result()
            except (Abandoned, CancelledError):
                if key not in already:
                    raise
                made[key] = compiled(k)  # an interruption of other work has ended it
    return {name: made[key].result() for name, key in same.items()}


def _same(module: str, kernel: KernelSource, registers: int | None) -> tuple:
    """What kernels share that become one cubin. `module`: the text of a module with this kernel alone."""
    code = generated.identity(generated.functions(module)[kernel.name])
    definitions = generated.definitions(module)
    return code, definitions, kernel.threads, kernel.parameters, kernel.maps, bool(kernel.sites), registers


def _compile(module: str, kernel: KernelSource, chip: str, registers: int | None) -> Cubin:
    """Compiles with the plan's register limit, or with as many registers as needed if that limit would spill."""
    from tilec.runtime.cuda.compile import compile_kernel

    return compile_kernel(
        module, kernel.name, chip, kernel.threads, parameters=parameters(kernel), max_registers=registers, relax=RELAX,
        allow=ALLOW,
    )  # fmt: skip


def parameters(kernel: KernelSource) -> list[str]:
    """The kinds of its parameters, as `runtime/cuda/compile.py` and `runtime/cuda/launch.py` name them."""
    return ["i64"] * kernel.parameters + ["tensor_map"] * len(kernel.maps) + ["i64"] * (kernel.sizes + bool(kernel.sites))


def versions() -> tuple[str, ...]:
    """Versions of all that has a part in a cubin, for cache keys."""
    return cache.installed(
        "tilec", "numba_cuda_mlir", "nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core"
    )
