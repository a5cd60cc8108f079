"""From a printed CPU kernel to LLVM's IR, by Numba's types and Numba's code for every operation.

Numba's own pipeline handles any Python. Printed kernels are straight-line code and loops over typed values. Therefore
this front end leaves out the passes for closures, literals, generators, exceptions and array expressions, and prepares no
warnings, debugging information or error texts for each statement, which take a third of the time.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="assignment, attr-defined, has-type, index, misc, var-annotated"

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import pairwise
from types import FunctionType
from typing import Any, ClassVar

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import base, bytecode, callconv, cgutils, compiler, funcdesc, interpreter, registry, typeinfer, types
from numba.core import ir as numba_ir
from numba.core.codegen import CodeLibrary
from numba.core.cpu import CPUContext
from numba.core.errors import TypingError
from numba.core.lowering import Lower
from numba.core.targetconfig import ConfigStack

from tilec.runtime.cpu import builtins


def kernel_ir(
    function: FunctionType, arguments: Sequence[types.Type], library: CodeLibrary,
    extend: Callable[[CPUContext, ir.Module, ir.Function], None],
) -> None:  # fmt: skip
    """Adds a kernel's IR to a library; `extend` adds what else the module shall have.

    Variables are not renamed to be assigned once, and not deleted after their last use: each has one type, LLVM finds out
    the rest, and nothing is counted.
    """
    target, flags = registry.cpu_target, compiler.Flags()
    typing, plain = _Typing(target.typing_context), target.target_context
    typing.refresh()
    flags.error_model = "numpy"
    context = plain.subtarget(error_model=callconv.create_error_model(flags.error_model, plain))
    identity = bytecode.FunctionIdentity.from_function(function)
    with ConfigStack().enter(flags):
        code = _Interpreter(identity).interpret(_Bytecode(identity))
        found, calls = _Types(typing, code).infer(arguments)
        descriptor = funcdesc.PythonFunctionDescriptor.from_specialized_function(
            code, found, types.void, calls, context.mangler, inline=False, noalias=False,
            abi_tags=[flags.get_mangle_string()],
        )  # fmt: skip
        with context.push_code_library(library):
            _Lower(context, library, descriptor, code, extend).lower()


class _Bytecode(bytecode.ByteCode):
    """Bytecode without the instructions that do nothing: the places of Python 3.11's caches, two of three instructions."""

    def __init__(self, identity: bytecode.FunctionIdentity):
        super().__init__(identity)
        kept = [i for i in self.table.values() if i.opname not in _NOTHING or i.offset in self.labels]
        for instruction, following in pairwise(kept):
            if not instruction.is_jump:
                instruction.next = following.offset
        self.table = {i.offset: i for i in kept}


_NOTHING = ("CACHE", "PRECALL")


class _Interpreter(interpreter.Interpreter):
    """From bytecode to Numba's IR, without looking for what emitted kernels do not have: `with`, `f(*list)`, ..."""

    def post_process(self, peepholes, func_ir):
        return func_ir


# ---- types -----------------------------------------------------------------------------------------------------------


class _Typing(type(registry.cpu_target.typing_context)):
    """Numba's typing context with `runtime/cpu/builtins.py`, which remembers a function's result type for argument types.

    Numba asks every rule that it has for `+`, NumPy's too, at every `+`. Its rules for operators do not look at the
    values of literals.
    """

    known: ClassVar[dict[tuple, object]] = {}

    def __init__(self, context) -> None:
        self.__dict__ = context.__dict__

    def resolve_value_type(self, val):
        own = builtins.FORMS.get(val) if isinstance(val, Hashable) else None
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


class _Variable(typeinfer.TypeVar):
    """Says where a type changes, or is asked for before it is known: then another round over all statements follows."""

    unsettled: set[str]

    def add_type(self, tp, loc):
        before = self.type
        made = super().add_type(tp, loc)
        if before is not None and before is not made and before != made:
            self.unsettled.add(self.var)
        return made

    @property
    def defined(self):
        if self.type is None:
            self.unsettled.add(self.var)
        return self.type is not None

    def get(self):
        return (self.type,) if self.defined else ()

    def union(self, other, loc):
        return self.add_type(other.type, loc) if other.defined else self.type


class _Variables(typeinfer.TypeVarMap):
    def __init__(self, context) -> None:
        self.context, self.unsettled = context, set()

    def __missing__(self, name):
        made = self[name] = _Variable(self.context, name)
        made.unsettled = self.unsettled
        return made

    __getitem__, __setitem__ = dict.__getitem__, dict.__setitem__


class _Types(typeinfer.TypeInferer):
    """Types of variables: by one round over the statements where each has its type before it is used, as Numba's second
    round would find again.
    """

    def __init__(self, context, func_ir) -> None:
        super().__init__(context, func_ir, None)
        self.typevars = _Variables(context)

    def infer(self, arguments: Sequence[types.Type]) -> tuple[dict[str, types.Type], dict]:
        """The types of variables, and the signatures of calls. Raises TypingError."""
        for index, (name, type_) in enumerate(zip(self.func_ir.arg_names, arguments, strict=True)):
            self.seed_argument(name, index, type_)
        self.seed_return(types.void)
        self.build_constraint()
        self.propagate()
        found, _, calls = self.unify()
        return found, calls

    def propagate(self, raise_errors=True) -> None:
        unsettled = self.typevars.unsettled
        before, errors = None, True
        while errors or unsettled:
            now = {name: v.type for name, v in self.typevars.items()}
            if now == before:
                break
            unsettled.clear()
            before, errors = now, self._round()
        if errors:
            raise errors[0]

    def _round(self) -> list[TypingError]:
        errors = []
        for constraint in self.constraints.constraints:
            try:
                constraint(self)
            except TypingError as error:
                errors.append(error)
        return errors


# ---- LLVM's IR -------------------------------------------------------------------------------------------------------

_forms: dict[tuple, Any] = {}
base._has_loc = cache(base._has_loc)  # which Numba asks `inspect` for each operation
_CALLED = (types.Function, types.NumberClass)
_WRAPPING = {operator.add: ir.IRBuilder.add, operator.sub: ir.IRBuilder.sub, operator.mul: ir.IRBuilder.mul}


@cache
def _has_wide_vectors() -> bool:
    """Whether vectors of 64 bytes leave the clock as it is. LLVM takes those of 32 on Intel's processors, for the sake of the first
    ones, which slowed down; kernels of transcendental functions take 1.3 to 1.7 times as long with them on later ones."""
    return bool(llvm.get_host_cpu_features().get("avx512vbmi2"))


class _Lower(Lower):
    """From Numba's IR to LLVM's, without the text and the context of an error for every statement.

    Sums, differences and products of integers wrap around. In Numba's own form they are undefined where they overflow,
    and LLVM takes `a + 1 > a` for true.
    """

    def __init__(self, context, library, descriptor, code, extend) -> None:
        super().__init__(context, library, descriptor, code)
        self._extend = extend

    def lower_normal_function(self, fndesc) -> None:
        super().lower_normal_function(fndesc)
        if _has_wide_vectors():  # llvmlite knows no such attribute, and prints what is there
            set.add(self.function.attributes, '"prefer-vector-width"="512"')
        self._extend(self.context, self.module, self.function)

    def _find_singly_assigned_variable(self) -> None:
        """Those that stand for one value, and need no memory: assigned once, and used in the same block after that."""
        assigned, elsewhere = Counter(), set()
        for block in self.blocks.values():
            here = set()
            for statement in block.body:
                target = statement.target.name if isinstance(statement, numba_ir.Assign) else None
                elsewhere.update(v.name for v in _used(statement) if v.name not in here)
                if target is not None:
                    assigned[target] += 1
                    here.add(target)
        self._singly_assigned_vars = {v for v, count in assigned.items() if count == 1 and v not in elsewhere}
        self._blk_local_varmap = {}

    def lower_function_body(self):
        """Also finds the jumps that end an iteration of a `short_range`."""
        heads = [(n, next(block.find_exprs("iternext"), None)) for n, block in self.blocks.items()]
        short = {n for n, step in heads if step is not None and getattr(self.typeof(step.value.name), "short", False)}
        ends = [(n, block.terminator) for n, block in self.blocks.items() if isinstance(block.terminator, numba_ir.Jump)]
        self._hints, self._ends = {}, {id(jump) for n, jump in ends if jump.target in short and n > jump.target}
        return super().lower_function_body()

    def lower_block(self, block) -> None:
        self._cur_ir_block = block
        for statement in block.body:
            self.loc = statement.loc
            self.lower_inst(statement)

    def lower_inst(self, inst) -> None:
        if isinstance(inst, numba_ir.Assign):
            self.storevar(self.lower_assign(self.typeof(inst.target.name), inst), inst.target.name)
        elif isinstance(inst, numba_ir.SetItem):
            self.lower_setitem(inst.target, inst.index, inst.value, self.fndesc.calltypes[inst])
        else:
            super().lower_inst(inst)
            if id(inst) in self._ends:
                if inst.target not in self._hints:
                    self._hints[inst.target] = builtins.hints_of_short_loop(self.module)
                self.builder.block.terminator.set_metadata("llvm.loop", self._hints[inst.target])

    def storevar(self, value, name, argidx=None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def alloca_lltype(self, name, lltype, datamodel=None):
        return cgutils.alloca_once(self.builder, lltype, name=name)

    def lower_binop(self, resty, expr, op):
        build = _WRAPPING.get(op) if isinstance(resty, types.Integer) else None
        if build is None:
            return self._lower_form(resty, op, self.fndesc.calltypes[expr], expr.lhs, expr.rhs)
        operands = [(self.loadvar(v.name), self.typeof(v.name)) for v in (expr.lhs, expr.rhs)]
        return build(self.builder, *(self.context.cast(self.builder, v, t, resty) for v, t in operands))

    def lower_getitem(self, resty, expr, value, index, signature):
        return self._lower_form(resty, operator.getitem, signature, value, index)

    def lower_setitem(self, target_var, index_var, value_var, signature) -> None:
        self._form(operator.setitem, signature, target_var, index_var, value_var)

    def _lower_form(self, resty, op, signature, *operands):
        made = self._form(op, signature, *operands)
        return self.context.cast(self.builder, made, signature.return_type, resty)

    def _form(self, op, signature, *operands):
        """An operator's form for the types that inference found. Numba looks for it anew each time, for literals first."""
        form = self.context.typing_context.resolve_value_type(op)
        found = _forms.get((op, signature.args))
        if found is None:
            found = _forms[op, signature.args] = form.get_call_type(self.context.typing_context, signature.args, {})
        values = [
            self.context.cast(self.builder, self.loadvar(v.name), self.typeof(v.name), t)
            for v, t in zip(operands, signature.args)
        ]
        return self.context.get_function(form, found)(self.builder, values)

    def lower_call(self, resty, expr):
        called, signature = self.typeof(expr.func.name), self.fndesc.calltypes[expr]
        if not isinstance(called, _CALLED) or isinstance(signature.return_type, types.Phantom):
            return super().lower_call(resty, expr)
        if expr.kws or expr.vararg or len(expr.args) != len(signature.args):
            values = self.fold_call_args(called, signature, expr.args, expr.vararg, expr.kws)
        else:
            values = [self._cast_var(v, t) for v, t in zip(expr.args, signature.args)]
        made = self.context.get_function(called, signature)(self.builder, values, self.loc)
        if made is None:  # of a function that returns nothing
            made = self.context.get_dummy_value()
        return self.context.cast(self.builder, made, signature.return_type, resty)


def _used(statement: numba_ir.Stmt) -> Sequence[numba_ir.Var]:
    """The variables that a statement reads."""
    if not isinstance(statement, numba_ir.Assign):
        return statement.list_vars()
    value = statement.value
    if isinstance(value, numba_ir.Var):
        return (value,)
    return value.list_vars() if isinstance(value, numba_ir.Expr) else ()
