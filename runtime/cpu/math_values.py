"""LLVM values with Python's operators, and intrinsics made of Python functions over them.

`@floats` makes a Numba intrinsic of a function that is written as ordinary arithmetic:

    @floats
    def square_plus_one(x: Value) -> Value:
        return fma(x, x, 1)

Its body is inlined as straight-line LLVM IR without branches or calls, so loops that contain it vectorise, and it costs
no compilation of its own, as a jitted callee would (50 ms each). No operation carries fast-math flags: operations
are computed as written, so that roundings can be reasoned about. `fma` needs the FMA instructions to be fast.
"""

# mypy: no-strict-optional
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="attr-defined, union-attr"

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@dataclass(frozen=True)
class Float:
    """A binary floating-point type: `fraction` bits are stored of its mantissa."""

    name: str
    bits: int
    fraction: int
    llvm: ir.Type
    numba: types.Type
    numpy: type[np.floating]

    @property
    def bias(self) -> int:
        return (1 << (self.bits - self.fraction - 2)) - 1

    @property
    def integer(self) -> ir.Type:
        return ir.IntType(self.bits)

    @property
    def magic(self) -> float:
        """1.5 * 2^fraction: x + magic rounds x to an integer, which then is in the low bits (|x| < 2^(fraction-1))."""
        return 1.5 * 2.0**self.fraction


F32 = Float("f32", 32, 23, ir.FloatType(), types.float32, np.float32)
F64 = Float("f64", 64, 52, ir.DoubleType(), types.float64, np.float64)
_BY_LLVM = {str(F32.llvm): F32, str(F64.llvm): F64}


class Value:
    """A scalar LLVM value at the end of a builder's block. Python numbers beside it take its type.

    Of integers `>>` keeps the sign, comparisons are signed; comparisons of floats are false for NaN, except `!=`.
    """

    __slots__ = ("builder", "llvm")

    def __init__(self, builder: ir.IRBuilder, llvm: ir.Value) -> None:
        self.builder, self.llvm = builder, llvm

    @property
    def is_float(self) -> bool:
        return not isinstance(self.llvm.type, ir.IntType)

    @property
    def kind(self) -> Float:
        return _BY_LLVM[str(self.llvm.type)]

    def like(self, other: Value | float) -> Value:
        """A number as a value of this type."""
        return other if isinstance(other, Value) else Value(self.builder, ir.Constant(self.llvm.type, other))

    def _binary(self, for_float: str, for_integer: str, other: Value | float, swap: bool = False) -> Value:
        build = getattr(self.builder, for_float if self.is_float else for_integer)
        left, right = self.llvm, self.like(other).llvm
        return Value(self.builder, build(right, left) if swap else build(left, right))

    def _compare(self, op: str, other: Value | float) -> Value:
        build = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        if self.is_float and op == "!=":
            build = self.builder.fcmp_unordered
        return Value(self.builder, build(op, self.llvm, self.like(other).llvm))

    def __add__(self, other):
        return self._binary("fadd", "add", other)

    def __sub__(self, other):
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other):
        return self._binary("fsub", "sub", other, swap=True)

    def __mul__(self, other):
        return self._binary("fmul", "mul", other)

    def __truediv__(self, other):
        return self._binary("fdiv", "sdiv", other)

    def __rtruediv__(self, other):
        return self._binary("fdiv", "sdiv", other, swap=True)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self):
        return Value(self.builder, self.builder.fneg(self.llvm)) if self.is_float else 0 - self

    def __and__(self, other):
        return self._binary("and_", "and_", other)

    def __or__(self, other):
        return self._binary("or_", "or_", other)

    def __xor__(self, other):
        return self._binary("xor", "xor", other)

    def __lshift__(self, other):
        return self._binary("shl", "shl", other)

    def __rshift__(self, other):
        return self._binary("ashr", "ashr", other)

    def __lt__(self, other):
        return self._compare("<", other)

    def __le__(self, other):
        return self._compare("<=", other)

    def __gt__(self, other):
        return self._compare(">", other)

    def __ge__(self, other):
        return self._compare(">=", other)

    def __eq__(self, other):
        return self._compare("==", other)

    def __ne__(self, other):
        return self._compare("!=", other)

    __hash__ = None


# ---- operations ------------------------------------------------------------------------------------------------------


def call(name: str, *arguments: Value) -> Value:
    """An LLVM intrinsic on values of one type, such as `llvm.sqrt`, which the vectoriser knows."""
    builder, type_ = arguments[0].builder, arguments[0].llvm.type
    function = builder.module.declare_intrinsic(name, [type_], ir.FunctionType(type_, [type_] * len(arguments)))
    return Value(builder, builder.call(function, [a.llvm for a in arguments]))


def fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """a * b + c, rounded once."""
    return call("llvm.fma", a, a.like(b), a.like(c))


def absolute(x: Value) -> Value:
    return call("llvm.fabs", x)


def copysign(magnitude: Value, sign: Value) -> Value:
    return call("llvm.copysign", magnitude, sign)


def select(condition: Value, then: Value | float, otherwise: Value | float) -> Value:
    """One of two values, both computed. At least one must be a Value."""
    model = then if isinstance(then, Value) else otherwise
    chosen = model.builder.select(condition.llvm, model.like(then).llvm, model.like(otherwise).llvm)
    return Value(model.builder, chosen)


def clamp(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN: both comparisons are false."""
    x = select(x > high, high, x)
    return select(x < low, low, x)


def bits(x: Value) -> Value:
    """A float's representation."""
    return Value(x.builder, x.builder.bitcast(x.llvm, x.kind.integer))


def from_bits(x: Value, kind: Float) -> Value:
    return Value(x.builder, x.builder.bitcast(x.llvm, kind.llvm))


def to_float(x: Value, kind: Float) -> Value:
    """An integer as a float."""
    return Value(x.builder, x.builder.sitofp(x.llvm, kind.llvm))


def convert(x: Value, kind: Float) -> Value:
    """A float as another."""
    build = x.builder.fpext if kind.bits > x.kind.bits else x.builder.fptrunc
    return x if kind == x.kind else Value(x.builder, build(x.llvm, kind.llvm))


def two_to(n: Value, kind: Float) -> Value:
    """2^n for an integer n in the range of normal exponents."""
    return from_bits((n + kind.bias) << kind.fraction, kind)


def nearest(x: Value) -> tuple[Value, Value]:
    """x rounded to an integer, as a float and as an integer (|x| < 2^(fraction - 1); wrong but harmless beyond)."""
    shifted = x + x.kind.magic
    return shifted - x.kind.magic, bits(shifted) - bits(x.like(x.kind.magic))


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b rounded, and the error (D. E. Knuth, The Art of Computer Programming, volume 2)."""
    total = a + b
    there = total - a
    return total, (a - (total - there)) + (b - there)


def two_product(a: Value, b: Value | float) -> tuple[Value, Value]:
    """a * b rounded, and the error."""
    product = a * b
    return product, fma(a, b, -product)


def horner(x: Value, coefficients: Sequence[Value | float]) -> Value:
    """The polynomial with these coefficients, lowest first."""
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def by_pairs(x: Value, coefficients: Sequence[float]) -> Value:
    """The same, by Horner's rule in x^2: sums of two terms do not wait for one another. It pays for six terms or more."""
    pairs = [fma(x, high, low) for low, high in zip(coefficients[::2], coefficients[1::2])]
    return horner(x * x, [*pairs, *coefficients[2 * len(pairs) :]])


def lookup(table: Sequence[float], index: Value, kind: Float) -> Value:
    """table[index] of a constant table that is stored with the code; vectorises as a gather."""
    builder = index.builder
    type_ = ir.ArrayType(kind.llvm, len(table))
    name = f"tilec.{kind.name}.{abs(hash(tuple(table))):x}"
    variable = builder.module.globals.get(name)
    if variable is None:
        variable = ir.GlobalVariable(builder.module, type_, name)
        variable.initializer = ir.Constant(type_, [kind.llvm(float(v)) for v in table])
        variable.global_constant, variable.linkage = True, "internal"
    address = builder.gep(variable, [ir.IntType(32)(0), index.llvm], inbounds=True)
    element = builder.load(address)
    element.set_metadata("invariant.load", builder.module.add_metadata([]))  # no store of the loop aliases it
    return Value(builder, element)


# ---- intrinsics ------------------------------------------------------------------------------------------------------

Body = Callable[..., Value]


def typed(body: Body, result: Callable[..., types.Type | None]) -> Callable:
    """A Numba intrinsic with this body; `result` tells its type by those of the arguments, or None to refuse them."""

    def define(typingctx, *arguments):
        plain = [types.unliteral(a) for a in arguments]
        returned = result(*plain)
        if returned is None:
            return None

        def generate(context, builder, signature, values):
            return body(*(Value(builder, v) for v in values)).llvm

        return returned(*plain), generate

    define.__name__, define.__doc__ = body.__name__, body.__doc__
    define.__module__, define.__qualname__ = body.__module__, body.__qualname__
    parameters = [inspect.Parameter(p, inspect.Parameter.POSITIONAL_ONLY) for p in inspect.signature(body).parameters]
    context = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_ONLY)
    define.__signature__ = inspect.Signature([context, *parameters])
    return intrinsic(define)


def _same_float(*arguments: types.Type) -> types.Type | None:
    return arguments[0] if isinstance(arguments[0], types.Float) and len(set(arguments)) == 1 else None


def floats(body: Body) -> Callable:
    """An intrinsic whose arguments and result are all f32 or all f64."""
    return typed(body, _same_float)
