"""The only import of MLIR's bindings. numba-cuda-mlir carries them, so that another copy takes one edit here.

The import takes 0.3 s. The rest of tilec imports this module when it first compiles a program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from tilec.process.interrupts import uninterrupted
from tilec.process.lean_imports import Later, executing, import_without


def _define_later(module: ModuleType, execute: Callable[[], None]) -> None:
    """Puts off the work of `@linalg_structured_op`, which the module uses for operations that tilec builds by others."""
    from numba_cuda_mlir._mlir.dialects.linalg.opdsl import lang

    define = lang.linalg_structured_op

    def later(function: Callable | None = None, **named: Any) -> Any:
        return partial(later, **named) if function is None else Later(lambda: define(function, **named))

    vars(lang)["linalg_structured_op"] = later
    try:
        execute()
    finally:
        vars(lang)["linalg_structured_op"] = vars(module)["linalg_structured_op"] = define


_NAMED_OPS = "numba_cuda_mlir._mlir.dialects.linalg.opdsl.ops.core_named_ops"

with uninterrupted(), executing(_NAMED_OPS, _define_later):
    import_without("numba_cuda_mlir", later="numba_cuda_mlir.numba_cuda")
    from numba_cuda_mlir._mlir import ir
    from numba_cuda_mlir._mlir.dialects import (
        affine,
        arith,
        bufferization,
        builtin,  # noqa: F401 - the bindings else import it where nothing may be raised, and Ctrl-C is
        cf,
        func,
        gpu,
        linalg,
        math,
        memref,
        nvgpu,
        nvvm,
        scf,
        tensor,
        vector,
    )
    from numba_cuda_mlir._mlir.passmanager import PassManager

__all__ = [
    "VALUE_TYPES", "PassManager", "affine", "arith", "bufferization", "cf", "context", "func", "gpu", "ir", "linalg", "math",
    "memref", "nvgpu", "nvvm", "plain_values", "reading_context", "scf", "tensor", "vector",
]  # fmt: skip


DIALECTS = (
    "affine", "arith", "bufferization", "cf", "func", "gpu", "linalg", "math", "memref", "nvgpu", "nvvm", "scf", "tensor",
    "vector",
)  # fmt: skip
"""Those that tilec builds operations of. Others are loaded when a text or a pass has them."""


def context() -> ir.Context:
    """A fresh context that knows upstream's dialects and keeps silent: diagnostics come back as exceptions.

    All forty dialects would be loaded by default, which takes 4 ms, and each `canonicalize` would collect the patterns of all.
    Without threads: where a fork inherits a context, its collector waits for ever for threads that did not come along.
    """
    plain_values()
    made = ir.Context(load_on_create_dialects=list(DIALECTS))
    made.enable_multithreading(False)
    return made


READS = 256
"""Texts that one context reads: what it has seen it keeps, and it makes room for another one."""


class _Reading(threading.local):
    context: ir.Context
    left = 0


_READING = _Reading()


def reading_context() -> ir.Context:
    """This thread's context for texts that are only read: to load the dialects takes a millisecond, as long as to read a small
    text. No pass runs in it, as `canonicalize` would collect the patterns of all dialects that any of the texts has."""
    plain_values()
    if not _READING.left:
        _READING.context, _READING.left = context(), READS
    _READING.left -= 1
    return _READING.context


_SCALARS = (ir.BF16Type, ir.F16Type, ir.F32Type, ir.F64Type, ir.IndexType, ir.IntegerType, ir.ComplexType)
VALUE_TYPES = {"arith": _SCALARS, "tensor": (ir.RankedTensorType,), "memref": (ir.MemRefType,)}


_itself = partial({}.get, None)
"""The identity, in C: an exception of a Python function, such as Ctrl-C, would end the process where the bindings call it."""


def plain_values() -> None:
    """Takes back the operators that Numba's compiler, where it is imported, gives to values in the whole process.

    `==` is among them: it builds a comparison, where the passes ask whether two values are the same one.
    """
    for module, kinds in VALUE_TYPES.items():
        if f"numba_cuda_mlir.mlir.dialect_exts.{module}" in sys.modules:
            for kind in kinds:
                ir.register_value_caster(kind.static_typeid, replace=True)(_itself)
