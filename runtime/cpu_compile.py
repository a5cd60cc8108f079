"""Compiles emitted CPU kernels: all of a program in one unit of Numba's, to one object file.

Numba's own pipeline is made for any Python. Emitted kernels are straight-line code and loops over typed values, so that
what looks for closures, literals, generators and array expressions is left out, which halves the time. Kernels whose
bytecode is the same are compiled once.

Beside each kernel stands a loop over its blocks (`_blocks`), in the form that Numba's thread pool calls.
"""

from __future__ import annotations

import hashlib
import linecache
import operator
from base64 import b64encode
from collections.abc import Hashable
from concurrent.futures import Future
from functools import cache, lru_cache
from types import FunctionType
from typing import Any, ClassVar

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import base, bytecode, callconv, codegen, compiler, funcdesc, interpreter, registry, types
from numba.core import ir as numba_ir
from numba.core.compiler_lock import global_compiler_lock
from numba.core.lowering import Lower
from numba.core.targetconfig import ConfigStack
from numba.core.typed_passes import type_inference_stage

from tilec.runtime import cpu_builtins, progress
from tilec.runtime.cpu_masked_stores import without_single_masked_stores
from tilec.runtime.generated import identity, uncollected
from tilec.runtime.interrupts import uninterrupted, workers
from tilec.runtime.program import KernelSource, Object

ARGUMENTS = (types.int64, types.CPointer(types.int64), types.int64)
_I64, _BYTE = ir.IntType(64), ir.IntType(8)


class _Library(codegen.AOTCodeLibrary):
    """Code for an object file rather than for Numba's own engine, optimised once, when it is whole."""

    def _optimize_functions(self, ll_module) -> None:
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


class _Interpreter(interpreter.Interpreter):
    """From bytecode to Numba's IR, without looking for what emitted kernels do not have: `with`, `f(*list)`, ..."""

    def post_process(self, peepholes, func_ir):
        return func_ir


_forms: dict[tuple, Any] = {}
base._has_loc = cache(base._has_loc)  # which Numba asks `inspect` for each operation
_WRAPPING = {operator.add: ir.IRBuilder.add, operator.sub: ir.IRBuilder.sub, operator.mul: ir.IRBuilder.mul}


class _Lower(Lower):
    """From Numba's IR to LLVM's, without the text and the context of an error for every statement.

    Sums, differences and products of integers wrap around. In Numba's own form they are undefined where they overflow,
    and LLVM takes `a + 1 > a` for true.
    """

    def lower_block(self, block) -> None:
        self.pre_block(block)
        for statement in block.body:
            self.loc = statement.loc
            self.lower_inst(statement)
        self.post_block(block)

    def lower_inst(self, inst) -> None:
        if isinstance(inst, numba_ir.Assign):
            self.storevar(self.lower_assign(self.typeof(inst.target.name), inst), inst.target.name)
        else:
            super().lower_inst(inst)

    def lower_binop(self, resty, expr, op):
        build = _WRAPPING.get(op) if isinstance(resty, types.Integer) else None
        if build is None:
            return self._lower_form(resty, op, self.fndesc.calltypes[expr], expr.lhs, expr.rhs)
        operands = [(self.loadvar(v.name), self.typeof(v.name)) for v in (expr.lhs, expr.rhs)]
        return build(self.builder, *(self.context.cast(self.builder, v, t, resty) for v, t in operands))

    def lower_getitem(self, resty, expr, value, index, signature):
        return self._lower_form(resty, operator.getitem, signature, value, index)

    def _lower_form(self, resty, op, signature, *operands):
        """An operator's form for the types that inference found. Numba looks for it anew each time, for literals first."""
        form = self.context.typing_context.resolve_value_type(op)
        found = _forms.get((op, signature.args))
        if found is None:
            found = _forms[op, signature.args] = form.get_call_type(self.context.typing_context, signature.args, {})
        values = [
            self.context.cast(self.builder, self.loadvar(v.name), self.typeof(v.name), t)
            for v, t in zip(operands, signature.args)
        ]
        made = self.context.get_function(form, found)(self.builder, values)
        return self.context.cast(self.builder, made, signature.return_type, resty)


class _Typing(type(registry.cpu_target.typing_context)):
    """Numba's typing context with `cpu_builtins`, which remembers what a function gives for arguments of some types.

    Numba asks every rule that it has for `+`, NumPy's too, at every `+`. Its rules for operators do not look at the
    values of literals.
    """

    known: ClassVar[dict[tuple, object]] = {}

    def __init__(self, context):
        self.__dict__ = context.__dict__

    def resolve_value_type(self, val):
        own = cpu_builtins.FORMS.get(val) if isinstance(val, Hashable) else None
        return super().resolve_value_type(val if own is None else own)

    def resolve_function_type(self, func, args, kws):
        if kws:
            return super().resolve_function_type(func, args, kws)
        if not isinstance(func, types.Type):  # an operator
            args = tuple(types.unliteral(a) for a in args)
        found = self.known.get((func, args))
        if found is None:
            found = super().resolve_function_type(func, args, kws)
            if found is not None:
                self.known[func, args] = found
        return found


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
from tilec.runtime.cpu_support import exp, f32, f32_pointer, inf, maximum, reassoc_add

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


def answer(wanted: dict[str, str]) -> dict[str, Any]:
    """For `compile_server`: the machine code of one kernel, or what is wrong."""
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
    """The kernel in LLVM's hands, not yet optimised.

    Variables are not renamed to be assigned once, and not deleted after their last use: each has one type, LLVM finds out
    the rest, and nothing is counted.
    """
    target, flags = registry.cpu_target, compiler.Flags()
    typing, plain = _Typing(target.typing_context), target.target_context
    typing.refresh()
    plain.refresh()
    flags.error_model = "numpy"
    context = plain.subtarget(error_model=callconv.create_error_model(flags.error_model, plain))
    library = _Library(context.codegen(), symbol)
    identity_ = bytecode.FunctionIdentity.from_function(function)
    with ConfigStack().enter(flags):
        code = _Interpreter(identity_).interpret(bytecode.ByteCode(identity_))
        found = type_inference_stage(typing, context, code, ARGUMENTS, types.void)
        descriptor = funcdesc.PythonFunctionDescriptor.from_specialized_function(
            code, found.typemap, found.return_type, found.calltypes, context.mangler, inline=False, noalias=False,
            abi_tags=[flags.get_mangle_string()],
        )  # fmt: skip
        with context.push_code_library(library):
            _Lower(context, library, descriptor, code).lower()
    _blocks(context, library, descriptor, symbol)
    return library


def _blocks(context, library: _Library, descriptor, symbol: str) -> None:
    """Adds `symbol`(args, dims, steps, data): runs a share of a kernel's blocks, as Numba's thread pool calls it.

    The pool passes which of the shares in args[0]. `data` is five i64: blocks, shares, and the kernel's arguments: the
    address of its args, of its scratch memory, and the bytes from one share's scratch to the next's.
    """
    module = context.create_module(symbol)
    pointer = _I64.as_pointer()
    kernel = ir.Function(module, context.call_conv.get_function_type(types.void, ARGUMENTS), descriptor.llvm_func_name)
    loop = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, pointer, pointer, pointer]), symbol)
    builder = ir.IRBuilder(loop.append_basic_block())
    share = builder.load(loop.args[0])
    blocks, shares, args, scratch, stride = (builder.load(builder.gep(loop.args[3], [_I64(i)])) for i in range(5))
    first = builder.sdiv(builder.mul(share, blocks), shares)
    end = builder.sdiv(builder.mul(builder.add(share, _I64(1)), blocks), shares)
    own = builder.add(scratch, builder.mul(share, stride))
    counter = builder.alloca(_I64)
    builder.store(first, counter)
    head, body, done = (loop.append_basic_block(n) for n in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    block = builder.load(counter)
    builder.cbranch(builder.icmp_signed("<", block, end), body, done)
    builder.position_at_end(body)
    context.call_conv.call_function(
        builder, kernel, types.void, ARGUMENTS, [block, builder.inttoptr(args, pointer), own]
    )
    builder.store(builder.add(block, _I64(1)), counter)
    builder.branch(head)
    builder.position_at_end(done)
    builder.ret_void()
    library.add_ir_module(module)


def versions() -> tuple[str, ...]:
    """What has a part in the machine code, for cache keys."""
    import numba

    processor = registry.cpu_target.target_context.codegen().magic_tuple()
    return (numba.__version__, *map(str, llvm.llvm_version_info), *map(str, processor))
