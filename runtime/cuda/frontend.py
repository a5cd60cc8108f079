"""From a kernel to PTX, by those parts of `numba-cuda-mlir` 0.6 that kernels need.

Printed kernels come as MLIR (`runtime/cuda/lower.py`), which a few passes lower. What that cannot read comes as
bytecode. It is read, typed and lowered as Numba does, but for what no kernel has: nothing is left to inline, to unroll
or to rewrite, each variable has one type, nothing is counted, there are no tensors, complex numbers or structs, and
memory holds integers. Variables that are assigned more than once become memory, as they would if they were renamed
first, and MLIR and NVVM make registers of them.

This is the only module that touches these private entry points.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any, TypeVar

from numba_cuda_mlir import cuda, mlir_optimization, tools
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.passmanager import PassManager
from numba_cuda_mlir.descriptor import mlir_target
from numba_cuda_mlir.install_registry import register_lowering
from numba_cuda_mlir.lowering_utilities.context import get_context
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.mlir_optimization import (
    _call_llvm70_capi,
    _compile_to_ptx,
    _needs_llvm70_path,
    _nvvm_options,
    _prepare_llvm_ir,
    get_base_pipeline,
    get_inline_pipeline,
)
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core import base, bytecode, errors, funcdesc, interpreter
from numba_cuda_mlir.numba_cuda.core.compiler import _make_subtarget
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock
from numba_cuda_mlir.numba_cuda.core.target_extension import target_override
from numba_cuda_mlir.numba_cuda.core.targetconfig import ConfigStack
from numba_cuda_mlir.numba_cuda.core.typed_passes import type_inference_stage
from numba_cuda_mlir.numba_cuda.cudadrv.nvvm import LibDevice
from numba_cuda_mlir.numba_cuda.flags import CUDAFlags

from tilec.runtime.cuda.device.define import Signature
from tilec.runtime.cuda.nan_tests import keep_nan_tests
from tilec.runtime.cuda.shifts import keep_right_shifts

mlir_target.ensure_initialized()
base._has_loc = cache(base._has_loc)  # Numba asks for the signature of every function at each of its calls
errors.WarningsFixer.catch_warnings = lambda fixer, **where: nullcontext()  # around each statement; kernels draw none
mlir_optimization.struct_pointees_attr = lambda op: None

_UNUSED = "one-shot-bufferize|convert-(complex-to-(standard|llvm)|vector-to-scf.*|nvgpu-to-nvvm)|lower-affine"
"""Passes of Numba's pipeline for what emitted kernels do not have."""
_PASSES = f"""builtin.module(
    {get_inline_pipeline()}, convert-scf-to-cf, convert-func-to-llvm{{index-bitwidth=0 use-bare-ptr-memref-call-conv=false}},
    gpu.module(convert-gpu-to-nvvm{{has-redux=false index-bitwidth=64 use-bare-ptr-memref-call-conv=false}}),
    {get_inline_pipeline()}, cse
)"""
"""Passes of the same for what `runtime/cuda/lower.py` makes."""


T = TypeVar("T")


class _Interpreter(interpreter.Interpreter):
    """From bytecode to Numba's IR, without looking for what emitted kernels do not have: `with`, `f(*list)`, ..."""

    def post_process(self, peepholes: object, func_ir: T) -> T:
        return func_ir


@dataclass(frozen=True)
class Lowered:
    """A kernel as LLVM's dialect of MLIR, with the name that it has there, and the options that it is compiled with."""

    module: ir.Module
    symbol: str
    options: dict[str, Any]


@global_compiler_lock
def to_mlir(function: Callable[..., object], kinds: Sequence[str], chip: str, threads: int, min_blocks: int) -> Lowered:
    """Reads, types and lowers a kernel; one at a time. `kinds` are Numba's names of its parameters' types."""
    register_lowering()
    arguments = tuple(getattr(types, kind) for kind in kinds)
    options = dict(cuda.jit(function, chip=chip, launch_bounds=(threads, min_blocks)).targetoptions)
    flags = CUDAFlags()
    flags.error_model = "python"
    context = _make_subtarget(mlir_target.target_context, flags)
    identity = bytecode.FunctionIdentity.from_function(function)
    with (
        _compute_capability(chip), _remembered_types(), target_override("numba_cuda_mlir"), get_context(),
        ir.Location.unknown(), ConfigStack().enter(flags),
    ):  # fmt: skip
        metadata: dict[str, Any] = {"targetoptions": options, "gpu_target": tools.resolve_gpu_target(options)}
        code = _Interpreter(identity).interpret(bytecode.ByteCode(identity))
        found = type_inference_stage(mlir_target.typing_context, context, code, arguments, types.void)
        descriptor = funcdesc.PythonFunctionDescriptor.from_specialized_function(
            code, found.typemap, found.return_type, found.calltypes, context.mangler, inline=False, noalias=False,
            abi_tags=[flags.get_mangle_string()],
        )  # fmt: skip
        with context.push_code_library(SimpleNamespace(referenced_objects={})):
            MLIRLower(context, descriptor, code, metadata=metadata).lower_to_mlir()
        module = metadata["mlir_module"]
        _let_integers_wrap(module)
        _to_llvm(module, re.sub(rf"^ *({_UNUSED}),\n", "", get_base_pipeline(), flags=re.MULTILINE))
    return Lowered(module, tools.generate_mangled_name(descriptor.qualname, descriptor.argtypes), options)


def read(text: str, symbol: str, chip: str) -> Lowered:
    """A kernel from the text that `runtime/cuda/lower.py` makes of it."""
    options = dict(cuda.jit(_nothing, chip=chip).targetoptions)
    with _compute_capability(chip), get_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        _to_llvm(module, _PASSES)
    return Lowered(module, symbol, options)


def _nothing() -> None:
    pass


def signature(function: Callable[..., object], kinds: Sequence[str]) -> Signature | None:
    """Numba's signature of an operator or function for arguments of these types; None if it has none."""
    register_lowering()
    with target_override("numba_cuda_mlir"):
        return mlir_target.typing_context.resolve_function_type(function, tuple(getattr(types, k) for k in kinds), {})


def _to_llvm(module: ir.Module, pipeline: str) -> None:
    """Lowers the module to LLVM's dialect."""
    keep_right_shifts(module)
    passes = PassManager.parse(pipeline)
    passes.enable_verifier(False)  # after each of them, which takes a third of their time
    passes.run(module.operation)
    module.operation.verify()
    keep_nan_tests(module)


def _let_integers_wrap(module: ir.Module) -> None:
    """Takes back what Numba says of sums, differences and products of integers: that they never overflow.

    Where they do, NVVM would take `a + 1 > a` for true. The flags stay as an attribute that says `none`: passes that simplify
    `a * b // c` reads it unasked, and crashes where it is missing.
    """
    none = ir.Attribute.parse("#arith.overflow<none>", module.context)

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in ("arith.addi", "arith.subi", "arith.muli") and "overflowFlags" in op.attributes:
            op.attributes["overflowFlags"] = none
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


_translating = Lock()


def to_ptx(lowered: Lowered) -> str:
    """NVVM's part, which other threads may use to lower further kernels."""
    number = lowered.options["chip"].removeprefix("sm_")
    with _translating, _compute_capability(lowered.options["chip"]), get_context(), ir.Location.unknown():
        if _needs_llvm70_path(number):
            return _call_llvm70_capi(lowered.module, lowered.options).decode()
        text = _prepare_llvm_ir(lowered.module)
        return _compile_to_ptx(text, number, LibDevice(), _nvvm_options(number, lowered.options)).decode()


_known: dict[tuple[object, ...], Signature] = {}


@contextmanager
def _remembered_types() -> Iterator[None]:
    """Lets Numba's typing remember a function's result type for argument types.

    It asks every rule that it has for `+` at every `+`, when it infers types and again when it lowers. Its rules for
    operators do not look at the values of literals.
    """
    context = mlir_target.typing_context
    plain = context.resolve_function_type

    def remembered(func: object, args: tuple[object, ...], kws: Mapping[str, object]) -> Signature | None:
        if kws:
            return plain(func, args, kws)
        if not isinstance(func, types.Type):  # an operator
            args = tuple(map(types.unliteral, args))
        if (known := _known.get((func, args))) is not None:
            return known
        found = plain(func, args, kws)
        if found is not None:
            _known[func, args] = found
        return found

    context.resolve_function_type = remembered
    try:
        yield
    finally:
        del context.resolve_function_type


_asking = Lock()
_answers: list[tuple[int, int]] = []  # of those who compile now
_own: list[tuple[int, int] | None] = []  # the facts of this machine's GPU as found before


@contextmanager
def _compute_capability(chip: str) -> Iterator[None]:
    """`numba-cuda-mlir` asks the driver for this machine's GPU whatever it compiles for; answer for it."""
    answer = divmod(int("".join(filter(str.isdigit, chip))), 10)
    with _asking:
        if not _answers:
            _own[:] = [tools._cached_cc]
        _answers.append(answer)
        tools._cached_cc = answer
    try:
        yield
    finally:
        with _asking:
            _answers.remove(answer)
            tools._cached_cc = _answers[-1] if _answers else _own[0]
