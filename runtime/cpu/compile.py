"""Compiles printed CPU kernels: all kernels of a program in one Numba unit, to one object file.

`runtime/cpu/frontend.py` reads a kernel, LLVM does the rest. Kernels with the same bytecode are compiled once. Beside each kernel
stands a loop over its blocks (`_blocks`).
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import hashlib
import linecache
from base64 import b64encode
from concurrent.futures import Future
from functools import lru_cache
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import codegen, registry, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext

from tilec.process import progress
from tilec.process.collection import uncollected
from tilec.process.interrupts import uninterrupted
from tilec.process.workers import workers
from tilec.runtime.cpu.frontend import kernel_ir
from tilec.runtime.cpu.masked_stores import without_single_masked_stores
from tilec.runtime.generated import identity
from tilec.runtime.program import KernelSource, Object

ARGUMENTS = (types.int64, types.CPointer(types.int64), types.int64)
_I64, _BYTE = ir.IntType(64), ir.IntType(8)


class _Library(codegen.AOTCodeLibrary):
    """Code for an object file rather than for Numba's own engine, optimised once, when it is whole."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def emit(self, symbol: str) -> Object:
        self.link()
        self._optimize_final_module()
        return self.to_object(symbol, self.codegen._tm)

    def link(self) -> None:
        """Brings in the functions that Numba compiled by themselves."""
        for called in self._linking_libraries:
            self._final_module.link_in(called._get_module_for_linking(), preserve=True)

    def to_object(self, symbol: str, machine: llvm.TargetMachine) -> Object:
        self._finalized = True
        module = without_single_masked_stores(self._final_module)
        outside = (*module.functions, *module.global_variables)
        needs = tuple(v.name for v in outside if v.is_declaration and not v.name.startswith("llvm."))
        return Object(machine.emit_object(module), symbol, needs)


def compile_kernels(module: str, kernels: tuple[KernelSource, ...]) -> dict[str, Object]:
    """Machine code for this processor, by name, of the kernels that stand in the text `module`.

    LLVM works on one kernel, in a thread, while Numba reads the next.
    """
    with uninterrupted():
        functions = _execute(module)
    compiled: dict[tuple, Future[Object]] = {}
    names: dict[str, Future[Object]] = {}
    with global_compiler_lock, uncollected(), workers(1, "tilec-llvm") as llvm:
        for number, kernel in enumerate(kernels, 1):
            progress.at(f"compiling kernel {number} of {len(kernels)}")
            function = functions[kernel.name]
            same = identity(function.__code__)
            if same not in compiled:
                symbol = _symbol(same)
                with uninterrupted():
                    library = _read(function, symbol)
                compiled[same] = llvm.submit(library.emit, symbol)
            names[kernel.name] = compiled[same]
        return {name: future.result() for name, future in names.items()}


WARM_UP = """
from tilec.runtime.cpu.support import exp, f32, f32_pointer, inf, maximum, reassoc_add

def kernel(block, args, scratch):
    x, y = f32_pointer(args[0]), f32_pointer(args[1])
    for i in range(min(64, 8 * block)):
        m = f32(-inf)
        for j in range(100):
            m = maximum(m, x[i * 100 + j])
            m = reassoc_add(m, exp(m))
        y[i] = m
"""


def prepare() -> None:
    """For `compile_server`: loads all that compiling takes."""
    answer({"module": WARM_UP, "kernel": "kernel"})


def answer(wanted: dict[str, str], on_part: object = None) -> dict[str, Any]:
    """For `compile_server`: the machine code of one kernel, or the error."""
    try:
        function = _executed(wanted["module"])[wanted["kernel"]]
        symbol = _symbol(identity(function.__code__))
        with global_compiler_lock:
            made = _read(function, symbol).emit(symbol)
    except Exception as error:
        return {"error": repr(error)}
    return {"image": b64encode(made.image).decode(), "symbol": symbol, "needs": made.needs}


def _symbol(same: tuple) -> str:
    return f"tilec_{hashlib.sha256(repr(same).encode()).hexdigest()[:24]}"


def _execute(text: str) -> dict[str, FunctionType]:
    name = f"<tilec kernels {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # for tracebacks
    space: dict = {"__name__": "tilec_kernels"}
    exec(compile(text, name, "exec"), space)
    return space


_executed = lru_cache(1)(_execute)


def _read(function: FunctionType, symbol: str) -> _Library:
    """The kernel in LLVM's hands, not yet optimised, and beside it `symbol`, the loop over its blocks."""
    plain = registry.cpu_target.target_context
    plain.refresh()
    library = _Library(plain.codegen(), symbol)
    kernel_ir(function, ARGUMENTS, library, lambda context, module, kernel: _blocks(context, module, kernel, symbol))
    return library


def _blocks(context: CPUContext, module: ir.Module, kernel: ir.Function, symbol: str) -> None:
    """Adds `symbol`(first block, end, data, scratch memory): runs some of a kernel's blocks, as `runtime/native/pool.py` calls it.
    `data` begins with the address of the kernel's args."""
    pointer = _I64.as_pointer()
    loop = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64, _I64, pointer, _I64]), symbol)
    builder = ir.IRBuilder(loop.append_basic_block())
    first, end, data, scratch = loop.args
    args = builder.load(data)
    counter = builder.alloca(_I64)
    builder.store(first, counter)
    head, body, done = (loop.append_basic_block(n) for n in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    block = builder.load(counter)
    builder.cbranch(builder.icmp_signed("<", block, end), body, done)
    builder.position_at_end(body)
    context.call_conv.call_function(
        builder, kernel, types.void, ARGUMENTS, [block, builder.inttoptr(args, pointer), scratch]
    )
    builder.store(builder.add(block, _I64(1)), counter)
    builder.branch(head)
    builder.position_at_end(done)
    builder.ret_void()


def versions() -> tuple[str, ...]:
    """All that the machine code depends on, for cache keys."""
    import numba

    processor = registry.cpu_target.target_context.codegen().magic_tuple()
    return (numba.__version__, *map(str, llvm.llvm_version_info), *map(str, processor))
