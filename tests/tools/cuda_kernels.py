"""Kernels written by hand, for tests of device functions, of their compiler and of launches."""

import re

import pytest

from tilec.runtime.cuda.compile import Cubin, compile_kernel
from tilec.runtime.cuda.cubins import parameters as kinds
from tilec.runtime.program import Emitted, KernelSource

CHIPS = ("sm_80", "sm_90a")
BASICS = "cuda, int8, int32, int64, float32, float64, shared_address"


def kernel(body: str, *names: str, before: str = "", parameters: str = "x, y, n") -> str:
    """The module text of a kernel as it is emitted: imports, then parametrised functions, then the kernel."""
    lines = [f"    {line}" for line in body.strip().splitlines()]
    imports = ", ".join(dict.fromkeys([*BASICS.split(", "), *names]))
    return "\n".join(
        [
            f"from tilec.runtime.cuda.intrinsics import {imports}",
            before,
            f"def kernel({parameters}):",
            "    tid = int64(cuda.threadIdx.x)",
            *lines,
            "",
        ]
    )


def check(source: str, chips=CHIPS, threads: int = 128, **options):
    cubins = [compile_kernel(source, "kernel", chip, threads, **options) for chip in chips]
    assert all(c.image.startswith(b"\x7fELF") and c.registers > 0 for c in cubins)
    return cubins[-1]


TRIGONOMETRIC = re.compile(r"\b(sin|cos|tan)_f")
"""Functions whose reduction of huge arguments keeps a table in local memory, on a path that is never taken else."""


def compiled(program: Emitted, chip: str) -> list[tuple[KernelSource, Cubin]]:
    """Every kernel of an emitted program with its cubin: without spills, stack or the assembler's warnings, which are errors."""
    pytest.importorskip("cuda.core")
    found = []
    for kernel in program.kernels:
        allow = ("stack",) if TRIGONOMETRIC.search(kernel.text) else ()
        cubin = compile_kernel(
            program.module, kernel.name, chip, kernel.threads, parameters=kinds(kernel), allow=allow
        )
        found.append((kernel, cubin))
    return found


SHARED = "base = shared_address(cuda.shared.array(0, int8))\n"
COPY = kernel("store_f32(y + tid * 4, load_f32(x + tid * 4))", "load_f32", "store_f32", parameters="x, y")
