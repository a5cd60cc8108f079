"""The cubins of a program: from the disk cache, or compiled now, several at a time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tilec.core.host import available_cores
from tilec.process import generated, progress
from tilec.process.generated import uncollected
from tilec.process.interrupts import uninterrupted
from tilec.process.workers import workers
from tilec.runtime import cache
from tilec.runtime.cpu.load import MissingSymbol
from tilec.runtime.cpu.objects import load_native
from tilec.runtime.program import Cubin, Emitted, KernelSource

if TYPE_CHECKING:
    from concurrent.futures import Future


def program_cubins(emitted: Emitted, chip: str, registers: Mapping[str, int]) -> dict[str, Cubin]:
    """Every kernel's cubin by kernel name. `registers`: the most that a thread may have, where the plan sets it.

    All are one entry of the cache, which is found by the module's text: telling which kernels are alike means compiling that
    text to bytecode, which takes longer than to read them all.
    """
    asked = [(k.name, k.threads, parameters(k), registers.get(k.name)) for k in emitted.kernels]
    key = cache.make_key("cubins", emitted.module, repr(asked), chip, cache.runtime_digest(), *versions())
    if (found := cache.load(key)) is not None and (cubins := _from_cache(*found)) is not None:
        return cubins
    cubins = _compiled(emitted, chip, registers)
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


def _compiled(emitted: Emitted, chip: str, registers: Mapping[str, int]) -> dict[str, Cubin]:
    """Kernels that differ in names only share one. One kernel is assembled while the next becomes PTX; the longest texts begin, so
    that the end waits for no long one."""
    codes = generated.functions(emitted.module)
    made: dict[tuple, Future[Cubin]] = {}
    cubins: dict[str, Future[Cubin]] = {}
    with uncollected(), workers(available_cores(), "tilec-assemble") as pool:
        for k in sorted(emitted.kernels, key=lambda k: len(k.text), reverse=True):
            most = registers.get(k.name)
            same = generated.identity(codes[k.name]), k.threads, k.parameters, k.maps, bool(k.sites), most
            if same not in made:
                made[same] = pool.submit(_compile, generated.alone(emitted.module, k.name), k, chip, most)
            cubins[k.name] = made[same]
        with suppress(MissingSymbol), uninterrupted():  # what calls take, meanwhile
            load_native()
        for number, future in enumerate(made.values(), 1):
            progress.at(f"compiling kernel {number} of {len(made)}")
            future.result()
    return {name: future.result() for name, future in cubins.items()}


def _compile(module: str, kernel: KernelSource, chip: str, registers: int | None) -> Cubin:
    """Compiles with the plan's register limit, or with as many registers as needed if that limit would spill."""
    from tilec.runtime.cuda.compile import compile_kernel

    return compile_kernel(
        module, kernel.name, chip, kernel.threads, parameters=parameters(kernel), max_registers=registers, relax=True,
        allow=("stack", "spills", "warnings"),
    )  # fmt: skip


def parameters(kernel: KernelSource) -> list[str]:
    """The kinds of its parameters, as `runtime/cuda/compile.py` and `runtime/cuda/launch.py` name them."""
    return ["i64"] * kernel.parameters + ["tensor_map"] * len(kernel.maps) + ["i64"] * bool(kernel.sites)


def versions() -> tuple[str, ...]:
    """Versions of all that has a part in a cubin, for cache keys."""
    return cache.installed(
        "tilec", "numba_cuda_mlir", "nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core"
    )
