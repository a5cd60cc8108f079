"""From a kernel's bytecode to PTX, by those parts of `numba-cuda-mlir` 0.6 that emitted kernels need.

Its own pipeline is made for any Python. Emitted kernels are straight-line code and loops over typed values: nothing is left
to inline, to unroll or to rewrite, each variable has one type, and nothing is counted. So bytecode is read, typed and
lowered, and that is all, which halves the time. Variables that are assigned more than once become memory, as they would
if they were renamed first, and MLIR and NVVM make registers of them.

This is the only module that touches these private entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from numba_cuda_mlir import cuda, tools
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir.descriptor import mlir_target
from numba_cuda_mlir.install_registry import register_lowering
from numba_cuda_mlir.lowering_utilities.context import get_context
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.mlir_optimization import optimize
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core import bytecode, funcdesc, interpreter
from numba_cuda_mlir.numba_cuda.core.compiler import _make_subtarget
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock
from numba_cuda_mlir.numba_cuda.core.target_extension import target_override
from numba_cuda_mlir.numba_cuda.core.targetconfig import ConfigStack
from numba_cuda_mlir.numba_cuda.core.typed_passes import type_inference_stage
from numba_cuda_mlir.numba_cuda.flags import CUDAFlags

mlir_target.ensure_initialized()


class _Interpreter(interpreter.Interpreter):
    """From bytecode to Numba's IR, without looking for what emitted kernels do not have: `with`, `f(*list)`, ..."""

    def post_process(self, peepholes, func_ir):
        return func_ir


@global_compiler_lock
def to_ptx(
    function: Callable[..., Any], kinds: Sequence[str], chip: str, threads: int, min_blocks: int
) -> tuple[str, str]:
    """The PTX of a kernel, and the name that it has there. `kinds` are Numba's names of its parameters' types."""
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
        library = SimpleNamespace(referenced_objects={})
        with context.push_code_library(library):
            MLIRLower(context, descriptor, code, metadata=metadata).lower_to_mlir()
        metadata["linker"] = _PtxOnly()  # it would ask the driver; we assemble ourselves
        metadata["mlir_module_str"] = ""  # nobody reads it
        optimize(SimpleNamespace(metadata=metadata, fndesc=descriptor, library=library))
    return metadata["ptx"], metadata["func_name"]


class _PtxOnly:
    """Stands where `numba-cuda-mlir` keeps its linker, and links nothing."""

    code = b""

    def recreate_with_lto(self, *_args: Any, **_options: Any) -> _PtxOnly:
        return self

    def add_ptx(self, ptx: bytes) -> None:
        pass

    def complete(self) -> _PtxOnly:
        return self


_known: dict[tuple[Any, ...], Any] = {}


@contextmanager
def _remembered_types():
    """Lets Numba's typing remember what a function gives for arguments of some types.

    It asks every rule that it has for `+` at every `+`, when it infers types and again when it lowers. Its rules for
    operators do not look at the values of literals.
    """
    context = mlir_target.typing_context
    plain = context.resolve_function_type

    def remembered(func, args, kws):
        if kws:
            return plain(func, args, kws)
        if not isinstance(func, types.Type):  # an operator
            args = tuple(map(types.unliteral, args))
        found = _known.get((func, args))
        if found is None and (found := plain(func, args, kws)) is not None:
            _known[func, args] = found
        return found

    context.resolve_function_type = remembered
    try:
        yield
    finally:
        del context.resolve_function_type


@contextmanager
def _compute_capability(chip: str):
    """`numba-cuda-mlir` asks the driver for this machine's GPU whatever it compiles for; answer for it."""
    saved, number = tools._cached_cc, int("".join(filter(str.isdigit, chip)))
    tools._cached_cc = divmod(number, 10)
    try:
        yield
    finally:
        tools._cached_cc = saved
