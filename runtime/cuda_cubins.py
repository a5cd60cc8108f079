"""The cubins of a program: from the disk cache, where they were compiled before, or compiled, several at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from tilec.runtime import generated
from tilec.runtime.cuda_assemble import Cubin
from tilec.runtime.cuda_compile import cached_kernel
from tilec.runtime.generated import uncollected
from tilec.runtime.program import Emitted, KernelSource


def program_cubins(emitted: Emitted, chip: str, registers: Mapping[str, int]) -> dict[str, Cubin]:
    """Every kernel's cubin by kernel name. `registers` are what a thread may have, where the plan says.

    Kernels that differ in names only share one. One kernel is assembled while the next becomes PTX.
    """
    codes = generated.functions(emitted.module)
    made: dict[tuple, Future[Cubin]] = {}
    cubins: dict[str, Future[Cubin]] = {}
    with uncollected(), ThreadPoolExecutor(os.cpu_count(), "tilec-assemble") as pool:
        for k in emitted.kernels:
            most = registers.get(k.name)
            same = generated.identity(codes[k.name]), k.threads, k.parameters, k.maps, bool(k.sites), most
            if same not in made:
                made[same] = pool.submit(_compile, emitted.module, k, chip, most)
            cubins[k.name] = made[same]
    return {name: future.result() for name, future in cubins.items()}


def _compile(module: str, kernel: KernelSource, chip: str, registers: int | None) -> Cubin:
    """With the registers that the plan allows, or as many as it takes where those would spill."""
    return cached_kernel(
        module, kernel.name, chip, kernel.threads, parameters=parameters(kernel), max_registers=registers, relax=True,
        allow=("stack", "spills", "warnings"),
    )[0]  # fmt: skip


def parameters(kernel: KernelSource) -> list[str]:
    """The kinds of its parameters, as `cuda_compile` and `cuda_launch` name them."""
    return ["i64"] * kernel.parameters + ["tensor_map"] * len(kernel.maps) + ["i64"] * bool(kernel.sites)
