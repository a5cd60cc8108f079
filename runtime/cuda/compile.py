"""Compiles emitted kernel source to a cubin, for any chip, with or without a GPU in the machine.

`numba-cuda-mlir` turns the Python function into PTX; `runtime/cuda/assemble.py` does the rest, because only the
assembler's verbose log says how many registers a kernel uses and whether it spills. A kernel that spills,
that has a stack frame or that ptxas warns about is refused unless the caller allows it: all three mean that
it is slow.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tilec.core.registers import limits
from tilec.process.collection import uncollected
from tilec.process.interrupts import uninterrupted
from tilec.runtime.cuda.assemble import CompileError, ResourceError, assemble
from tilec.runtime.cuda.toolkit import NoCompiler, refuse_if_missing
from tilec.runtime.cuda.unroll import unroll
from tilec.runtime.program import Cubin

__all__ = [
    "CompileError",
    "Cubin",
    "NoCompiler",
    "ResourceError",
    "assemble",
    "chip_number",
    "compile_kernel",
]

OLDEST_CHIP = 80
_LOCK = threading.Lock()


def compile_kernel(
    source: str,
    entry: str,
    chip: str,
    threads: int,
    *,
    parameters: Sequence[str] | None = None,
    min_blocks: int = 1,
    max_registers: int | None = None,
    relax: bool = False,
    allow: Collection[str] = (),
) -> Cubin:
    """Compiles function `entry` of the module text `source` for `chip` ("sm_80", "sm_90a", ...).

    `parameters` are type names ("i64", "i32", "f32", "f64", or "tensor_map": 128 bytes by value, an address
    in the kernel); by default all are "i64". `threads` a block and `min_blocks` a multiprocessor bound the
    registers (`setmaxnreg` is ignored without both). With `relax`, a kernel that would spill within
    `max_registers` gets some more, or as many as it takes. One that spills all the same is assembled again, by the
    optimisations alone that take few registers. `allow` names faults to let through: "spills", "stack", "warnings".
    Raises `ResourceError` for others, `CompileError` if the source is wrong. Several threads may compile: NVVM
    and the assembler work on kernels while another is lowered.
    """
    if chip_number(chip) < OLDEST_CHIP:
        raise ValueError(f"{chip} is too old: kernels use instructions of sm_{OLDEST_CHIP} (Ampere) and newer")
    begin = time.perf_counter()
    text = _to_ptx(source, entry, chip, threads, parameters, min_blocks)
    for most in limits(max_registers, threads) if relax and max_registers else (max_registers,):
        cubin = assemble(text, entry, chip, max_registers=most, source=source, begin=begin)
        if not cubin.spills:
            break
    else:  # within all that it may have
        frugal = assemble(text, entry, chip, max_registers=most, frugal=True, source=source, begin=begin)
        cubin = cubin if frugal.spills else frugal
    if set(cubin.faults) - set(allow):
        raise ResourceError(cubin)
    return cubin


def chip_number(chip: str) -> int:
    """90 of "sm_90a"."""
    match = re.fullmatch(r"sm_(\d+)[af]?", chip)
    if not match:
        raise ValueError(f"{chip!r} is not a chip; chips look like sm_80, sm_90a, sm_100a")
    return int(match[1])


# From source to PTX


def _to_ptx(source: str, entry: str, chip: str, threads: int, parameters: Sequence[str] | None, min_blocks: int) -> str:
    """By a process of the compiler's own; in this one where that cannot be had."""
    from tilec.process import compile_server

    wanted: dict[str, Any] = {
        "source": source,
        "entry": entry,
        "chip": chip,
        "threads": threads,
        "min_blocks": min_blocks,
    }
    wanted["parameters"] = parameters and list(parameters)
    reply = compile_server.ask(__name__, wanted)
    return _compile_here(**wanted) if reply is None or "ptx" not in reply else reply["ptx"]


def prepare() -> None:
    """For `compile_server`: loads all that compiling takes, and leaves no thread."""
    from tilec.process import lean_imports
    from tilec.runtime import cache

    version = cache.installed("cuda-core")[0].split()[-1]
    lean_imports.stand_in("cuda.core", __version__=version)  # is for launches, and takes 0.2 s to import
    with uninterrupted(), _operator_values():
        from numba_cuda_mlir.lowering_utilities.context import get_context

        get_context().enable_multithreading(False)
    source = "from tilec.runtime.cuda.intrinsics import load_f32, store_f32\n\ndef kernel(x):\n    store_f32(x, load_f32(x))\n"
    _compile_here(source, "kernel", "sm_90a", 128, None, 1)


def answer(wanted: dict[str, Any], on_part: object = None) -> dict[str, str]:
    """The reply of `compile_server`: PTX, or the error. The caller then compiles itself, for its own traceback."""
    try:
        return {"ptx": _compile_here(**wanted)}
    except Exception as error:
        return {"error": str(error)}


def _compile_here(
    source: str, entry: str, chip: str, threads: int, parameters: Sequence[str] | None, min_blocks: int
) -> str:
    try:
        with uninterrupted(), _LOCK, uncollected(), _operator_values():
            from tilec.runtime.cuda import frontend
            from tilec.runtime.cuda.device.define import target

            with target(chip):
                names, lowered = _lowered(source, entry, chip, threads, parameters, min_blocks)
        ptx = frontend.to_ptx(lowered)
    except CompileError:
        raise
    except Exception as error:
        refuse_if_missing(error)
        raise CompileError(f"{entry} does not compile for {chip}: {error}", source) from error
    ptx = re.sub(rf"{re.escape(lowered.symbol)}(?=\W|_param_)", entry, ptx)
    maps = [i for i, name in enumerate(names) if name == "tensor_map"]
    return _tensor_maps(_dynamic_shared(ptx), entry, maps)


def _tensor_maps(ptx: str, entry: str, positions: Sequence[int]) -> str:
    """Makes a parameter 128 bytes by value and its use the address of it, as `__grid_constant__` does in CUDA
    C++.

    So a tensor map travels with the launch, and needs no device memory that outlives it.
    """
    for i in positions:
        name = rf"{entry}_param_{i}"
        ptx = re.sub(rf"\.param \.[ub]64 {name}(?=[,\s])", f".param .align 64 .b8 {name}[128]", ptx)
        load = rf"ld\.param\.[ub]64\s+(%\w+), \[{name}\];"
        ptx = re.sub(load, rf"mov.b64 \1, {name};\n\tcvta.param.u64 \1, \1;", ptx)
    return ptx


def _dynamic_shared(ptx: str) -> str:
    """Declares dynamic shared memory as dynamic.

    `cuda.shared.array(0, ...)` arrives as a static variable of one byte, which moves the variables after it and
    counts against the limit of a block. As an external array of no size it begins where dynamic shared memory
    does, on a multiple of 1024 bytes as the 128-byte swizzle of TMA and wgmma needs.
    """
    variable = re.compile(r"^[^\n]*\.shared \.align \d+ \.b8 (__dynamic_shmem__\d+)(?:\[\d*\])?;\n", re.MULTILINE)
    names = dict.fromkeys(variable.findall(ptx))
    externs = "".join(f".extern .shared .align 1024 .b8 {name}[];\n" for name in names)
    return variable.sub("", ptx).replace(".address_size 64\n", f".address_size 64\n\n{externs}", 1)


def _lowered(
    source: str, entry: str, chip: str, threads: int, parameters: Sequence[str] | None, min_blocks: int
) -> tuple[Sequence[str], Any]:
    """The types of the kernel's parameters, and the kernel in LLVM's dialect. Where it says what no printed kernel does, Numba
    reads it."""
    from tilec.runtime.cuda import frontend, lower
    from tilec.runtime.cuda.device.define import NUMBA
    from tilec.runtime.cuda.numbers import Unknown

    tree = unroll(source)
    kernel = next((f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == entry), None)
    if kernel is None:
        raise CompileError(f"the module has no function {entry}", source)
    names = parameters or ["i64"] * len(kernel.args.args)
    types = ["i64" if name == "tensor_map" else name for name in names]
    tree.body.remove(kernel)
    defined = _execute(tree, source, entry)
    try:
        text = lower.to_mlir(kernel, defined, types, chip, threads, min_blocks)
    except Unknown:
        tree.body.append(kernel)
        function = _execute(tree, source, entry)[entry]
        return names, frontend.to_mlir(function, [NUMBA[t] for t in types], chip, threads, min_blocks)
    return names, frontend.read(text, lower.SYMBOL + entry, chip)


def _execute(tree: ast.Module, source: str, entry: str) -> dict[str, Any]:
    """What a module of its own defines, whose text tracebacks and `inspect` can show."""
    import hashlib

    name = f"tilec_kernel_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module  # Numba looks globals up by module name
    try:
        exec(compile(tree, filename, "exec"), module.__dict__)
    except Exception as error:
        raise CompileError(f"the module of {entry} does not execute: {error}", source) from error
    finally:
        sys.modules.pop(name, None)
    return module.__dict__


@contextmanager
def _operator_values() -> Iterator[None]:
    """Lets MLIR values have the operators that `numba-cuda-mlir` gives them for its own use, within only.

    They are global to the process, and `==` is among them: it builds a comparison, where the passes ask whether two
    values are the same one.
    """
    from numba_cuda_mlir.mlir.dialect_exts.arith import ScalarValue
    from numba_cuda_mlir.mlir.dialect_exts.memref import MemRefValue
    from numba_cuda_mlir.mlir.dialect_exts.tensor import TensorValue

    from tilec.core.mlir import VALUE_TYPES, ir, plain_values

    made = {"arith": ScalarValue, "tensor": TensorValue, "memref": MemRefValue}
    for module, kinds in VALUE_TYPES.items():
        for kind in kinds:
            ir.register_value_caster(kind.static_typeid, replace=True)(made[module])
    try:
        yield
    finally:
        plain_values()
