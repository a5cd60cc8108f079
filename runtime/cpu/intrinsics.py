"""Operations of printed CPU kernels beside Python's operators: pointers, narrow floats, exact forms of arithmetic.

Kernels work on raw addresses. After `x = f32_pointer(args[0])`, `x[i]` and `x[i] = v` are plain loads and stores, without
wraparound and without bounds checks. All operations are inlined without branches, so that loops vectorise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from tilec.runtime.cpu import math_values
from tilec.runtime.cpu.math_values import (
    F32,
    F64,
    Value,
    absolute,
    bits,
    call,
    convert,
    floats,
    from_bits,
    to_float,
    typed,
)

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import Context, Signature

_choose = math_values.select

_POINTED = {
    "bool": types.boolean,
    **{f"i{b}": getattr(types, f"int{b}") for b in (8, 16, 32, 64)},
    **{f"u{b}": getattr(types, f"uint{b}") for b in (8, 16, 32, 64)},
    "f32": types.float32,
    "f64": types.float64,
}


def _pointer(element: types.Type) -> Callable:
    """The intrinsic that makes an address a pointer to elements of this type."""

    @intrinsic
    def pointer(typingctx: Context, address: types.Type) -> tuple[Signature, Callable[..., ir.Value]] | None:
        if not isinstance(types.unliteral(address), types.Integer):
            return None

        def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
            type_ = context.get_value_type(signature.return_type)
            # an empty instruction rather than `inttoptr`: a call's result can be declared apart from all other
            # memory (llvmlite prints the calling convention where attributes of the result stand), so that loops
            # vectorise without a look at the addresses. The second one may keep the address, or LLVM would take the
            # memory for the kernel's own, and drop the last stores to it
            empty = ir.InlineAsm(ir.FunctionType(type_, [arguments[0].type]), "", "=r,0", side_effect=False)
            address = builder.call(empty, arguments, cconv="noalias")
            barrier = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [type_]), "", "r,~{memory}", side_effect=True)
            builder.call(barrier, [address])
            return address

        return types.CPointer(element)(types.intp), generate

    return pointer


bool_pointer = _pointer(_POINTED["bool"])
i8_pointer, i16_pointer = _pointer(_POINTED["i8"]), _pointer(_POINTED["i16"])
i32_pointer, i64_pointer = _pointer(_POINTED["i32"]), _pointer(_POINTED["i64"])
u8_pointer, u16_pointer = _pointer(_POINTED["u8"]), _pointer(_POINTED["u16"])
u32_pointer, u64_pointer = _pointer(_POINTED["u32"]), _pointer(_POINTED["u64"])
f32_pointer, f64_pointer = _pointer(_POINTED["f32"]), _pointer(_POINTED["f64"])


# ---- arithmetic ------------------------------------------------------------------------------------------------------

_REORDERED = ("reassoc", "nsz")


@floats
def reassoc_add(a: Value, b: Value) -> Value:
    """a + b in a sum whose order LLVM may choose: of this operation only, so that the loop's reduction vectorises."""
    return Value(a.builder, a.builder.fadd(a.llvm, b.llvm, flags=_REORDERED))


@floats
def reassoc_mul(a: Value, b: Value) -> Value:
    """a * b in a product whose order LLVM may choose."""
    return Value(a.builder, a.builder.fmul(a.llvm, b.llvm, flags=_REORDERED))


@floats
def opaque(x: Value) -> Value:
    """x, of which LLVM does not know how it was computed.

    It takes `reassoc` for leave to do algebra with the terms: x * c + y * c becomes (x + y) * c, x - x becomes 0, and n steps
    of c become n * c. With infinite numbers these differ. Exclusive or with a 0 that LLVM does not know can be vectorised.
    """
    number = bits(x)
    with x.builder.goto_entry_block():
        zero = ir.Constant(number.llvm.type, 0)
        unknown = ir.InlineAsm(ir.FunctionType(zero.type, [zero.type]), "", "=r,0", side_effect=False)
        unknown = x.builder.call(unknown, [zero])
    return from_bits(number ^ Value(x.builder, unknown), x.kind)


@floats
def fma(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once."""
    return call("llvm.fma", a, b, c)


@floats
def fmod(a: Value, b: Value) -> Value:
    """The remainder with the sign of a, exact; a call of the C library, so loops of it stay scalar."""
    return Value(a.builder, a.builder.frem(a.llvm, b.llvm))


def _same(*arguments: types.Type) -> types.Type | None:
    return arguments[0] if isinstance(arguments[0], types.Number) and len(set(arguments)) == 1 else None


def _same_integer(*arguments: types.Type) -> types.Type | None:
    return _same(*arguments) if isinstance(arguments[0], types.Integer) else None


@floats
def maximum(a: Value, b: Value) -> Value:
    """The larger; a NaN on either side is the result, and 0 is above -0."""
    return call("llvm.maximum", a, b)


@floats
def minimum(a: Value, b: Value) -> Value:
    """The smaller; a NaN on either side is the result, and -0 is below 0."""
    return call("llvm.minimum", a, b)


@intrinsic
def select(
    typingctx: Context, condition: types.Type, then: types.Type, otherwise: types.Type
) -> tuple[Signature, Callable[..., ir.Value]] | None:
    """One of two values of one type, both computed."""
    then, otherwise = types.unliteral(then), types.unliteral(otherwise)
    if then != otherwise or not isinstance(types.unliteral(condition), types.Boolean):
        return None

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
        chosen, left, right = arguments
        return builder.select(chosen, left, right)

    return then(types.boolean, then, then), generate


def _divided(a: Value, b: Value, signed: bool) -> tuple[Value, Value]:
    """Quotient and remainder, rounded towards zero."""
    build = a.builder
    divide, remain = (build.sdiv, build.srem) if signed else (build.udiv, build.urem)
    return Value(build, divide(a.llvm, b.llvm)), Value(build, remain(a.llvm, b.llvm))


def _floor_intrinsic(adjust: Callable, doc: str) -> Callable:
    @intrinsic
    def divide(typingctx: Context, a: types.Type, b: types.Type) -> tuple[Signature, Callable[..., ir.Value]] | None:
        type_ = types.unliteral(a)
        if _same_integer(type_, types.unliteral(b)) is None:
            return None

        def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]) -> ir.Value:
            left, right = (Value(builder, v) for v in arguments)
            quotient, remainder = _divided(left, right, type_.signed)
            signs_differ = ((remainder ^ right) < 0) & (remainder != 0) if type_.signed else None
            return adjust(quotient, remainder, right, signs_differ).llvm

        return type_(type_, type_), generate

    divide.__doc__ = doc
    return divide


def _floor_quotient(quotient: Value, remainder: Value, b: Value, signs_differ: Value | None) -> Value:
    return quotient if signs_differ is None else _choose(signs_differ, quotient - 1, quotient)


def _floor_remainder(quotient: Value, remainder: Value, b: Value, signs_differ: Value | None) -> Value:
    return remainder if signs_differ is None else _choose(signs_differ, remainder + b, remainder)


floor_divide = _floor_intrinsic(
    _floor_quotient, "a // b of integers of one type, rounded down; b must not be 0, and the quotient must fit."
)
floor_modulo = _floor_intrinsic(_floor_remainder, "a % b of integers of one type, with the sign of b; b must not be 0.")


@intrinsic
def _product(typingctx: Context, a: types.Type, b: types.Type) -> tuple[Signature, Callable[..., ir.Value]]:
    """Modulo 2^64: Numba's own product is undefined where it overflows."""
    kinds = (types.int64, types.int64)
    return types.int64(*kinds), lambda context, builder, signature, arguments: builder.mul(*arguments)


@register_jitable
def ipow(base: int, exponent: int) -> int:
    """Powers of integers by squaring, modulo 2^bits; those with a negative exponent are rounded towards zero."""
    if exponent < 0:
        if base == 1 or base == -1:
            exponent = -exponent
        else:
            return 0
    result, square = 1, types.int64(base)
    while exponent > 0:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result


def _bits(element: types.Type, word: types.Type) -> Callable:
    return typed(bits, lambda x: word if x == element else None)




def _f32_from_bits(x: Value) -> Value:
    return from_bits(x, F32)


f32_from_bits = typed(_f32_from_bits, lambda x: types.float32 if x == types.int32 else None)
bits_f32, bits_f64 = _bits(types.float32, types.int32), _bits(types.float64, types.int64)


# ---- narrow floats: their bits are u8 and u16 ------------------------------------------------------------------------

_WORD = ir.IntType(32)


def _storing(source: types.Type, result: types.Type) -> Callable[[types.Type], types.Type | None]:
    return lambda argument: result if argument == source else None


def _decoder(bits_type: types.Type) -> Callable[[Callable], Callable]:
    return lambda body: typed(body, _storing(bits_type, types.float32))


def _encoder(bits_type: types.Type) -> Callable[[Callable], Callable]:
    return lambda body: typed(body, _storing(types.float32, bits_type))


def _widened(x: Value) -> Value:
    return Value(x.builder, x.builder.zext(x.llvm, _WORD))


def _narrowed(x: Value, width: int) -> Value:
    return Value(x.builder, x.builder.trunc(x.llvm, ir.IntType(width)))


def _magnitude(x: Value) -> Value:
    return bits(absolute(x))


def _sign(x: Value, at: int) -> Value:
    """The sign as the bit of this number."""
    return bits(x) >> 31 & 1 << at


def _rounded_shift(x: Value, count: int) -> Value:
    """x / 2^count to the nearest, ties to even, of a non-negative integer."""
    return x + ((1 << count - 1) - 1) + (x >> count & 1) >> count


@_decoder(types.uint16)
def f32_from_bf16(x: Value) -> Value:
    return from_bits(_widened(x) << 16, F32)


@_encoder(types.uint16)
def bf16_from_f32(x: Value) -> Value:
    """To nearest even; a NaN becomes a quiet one. The sign stays in the word: what rounding adds to a number's or an infinity's
    magnitude never carries into it."""
    word = bits(x)
    rounded = word + 0x7FFF + (word >> 16 & 1)
    return _narrowed(_choose(x != x, word | 0x7FC00000, rounded) >> 16, 16)


@_encoder(types.uint16)
def bf16_from_exact(x: Value) -> Value:
    """Of a number that a bf16 is; NaN of one that came from a bf16 or from arithmetic."""
    return _narrowed(bits(x) >> 16, 16)


@_decoder(types.uint16)
def f32_from_f16(x: Value) -> Value:
    half = x.builder.bitcast(x.llvm, ir.HalfType())
    return Value(x.builder, x.builder.fpext(half, F32.llvm))


@_encoder(types.uint16)
def f16_from_f32(x: Value) -> Value:
    """To nearest even; infinity beyond 65520."""
    half = x.builder.fptrunc(x.llvm, ir.HalfType())
    return Value(x.builder, x.builder.bitcast(half, ir.IntType(16)))


def _f32_odd(x: Value) -> Value:
    """An f64 as f32, rounded to odd where it is not exact: rounding that to fewer bits does as one rounding would.

    Source: Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    near = convert(x, F32)
    back, word = convert(near, F64), bits(near)
    toward_zero = absolute(back) > absolute(x)
    odd = _choose(toward_zero, word - 1, word + 1)
    away = Value(x.builder, x.builder.fcmp_ordered("!=", back.llvm, x.llvm))  # not of a NaN
    even = (word & 1) == 0
    return from_bits(_choose(Value(x.builder, x.builder.and_(away.llvm, even.llvm)), odd, word), F32)


f32_odd = typed(_f32_odd, _storing(types.float64, types.float32))


def _f8_from_f32(x: Value, fraction: int, bias: int) -> Value:
    """Rounded magnitude bits without regard to overflow. Adding 2^(23 - digits) rounds what will be subnormal."""
    magnitude = _magnitude(x)
    shift = 23 - fraction
    normal = _rounded_shift(magnitude, shift) - (127 - bias << fraction)
    unit = 2.0 ** (24 - bias - fraction)
    subnormal = bits(absolute(x) + unit) - bits(x.like(unit))
    return _choose(magnitude < 128 - bias << 23, subnormal, normal)


@_decoder(types.uint8)
def f32_from_f8e4m3(x: Value) -> Value:
    """Of the variant without infinities (e4m3fn), in which all ones are NaN."""
    word = _widened(x)
    magnitude = word & 0x7F
    normal = (magnitude << 20) + (120 << 23)
    subnormal = bits(to_float(magnitude, F32) * 2.0**-9)
    value = _choose(magnitude < 8, subnormal, normal)
    value = _choose(magnitude == 0x7F, 0x7FC00000, value)
    return from_bits(value | (word & 0x80) << 24, F32)


@_encoder(types.uint8)
def f8e4m3_from_f32(x: Value) -> Value:
    """To nearest even. There is no infinity: a value that rounds beyond 448 is NaN, as in ml_dtypes."""
    stored = _choose(absolute(x) <= 464, _f8_from_f32(x, 3, 7), 0x7F)
    return _narrowed(stored | _sign(x, 7), 8)


@_decoder(types.uint8)
def f32_from_f8e5m2(x: Value) -> Value:
    """The upper byte of an f16."""
    half = x.builder.bitcast(x.builder.trunc((_widened(x) << 8).llvm, ir.IntType(16)), ir.HalfType())
    return Value(x.builder, x.builder.fpext(half, F32.llvm))


@_encoder(types.uint8)
def f8e5m2_from_f32(x: Value) -> Value:
    """To nearest even; infinity from 61440 on."""
    stored = _choose(absolute(x) < 61440, _f8_from_f32(x, 2, 15), 0x7C)
    stored = _choose(x != x, 0x7E, stored)
    return _narrowed(stored | _sign(x, 7), 8)


__all__ = [
    *(f"{name}_pointer" for name in _POINTED),
    *(f"f32_from_{t}" for t in ("bf16", "f16", "f8e4m3", "f8e5m2")),
    *(f"{t}_from_f32" for t in ("bf16", "f16", "f8e4m3", "f8e5m2")),
    "bf16_from_exact", "f32_from_bits", "bits_f32", "bits_f64", "f32_odd",
    "floor_divide", "floor_modulo", "fma", "fmod", "ipow", "maximum", "minimum", "opaque", "reassoc_add", "reassoc_mul", "select",
]  # fmt: skip
