"""The language's functions for emitted CPU kernels: Numba intrinsics of f32 and f64 that are inlined without branches.

Loops over them vectorise. The modules of the functions have their methods and sources, `tilec.core.functions` their error bounds.
Subnormal numbers are handled. Every function gives NaN for NaN, and the limits of C99 (annex F) at infinities and zeros.
"""

from __future__ import annotations

from tilec.runtime.cpu.math_exp import cosh, erf, erfc, exp, exp2, exp_below, expm1, sinh, tanh
from tilec.runtime.cpu.math_inverse import acos, acosh, asin, asinh, atan, atan2, atanh
from tilec.runtime.cpu.math_log import log, log1p, log2, pow
from tilec.runtime.cpu.math_trig import cos, cos_approx, sin, sin_approx, tan, tan_approx
from tilec.runtime.cpu.math_values import Value, call, floats
from tilec.runtime.cpu.math_values import copysign as sign_copied

__all__ = [
    "absolute", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cos_approx", "cosh",
    "erf", "erfc", "exp", "exp2", "exp_below", "expm1", "floor", "log", "log1p", "log2", "pow", "round_even", "rsqrt", "sin",
    "sin_approx", "sinh", "sqrt", "tan", "tan_approx", "tanh", "trunc",
]  # fmt: skip


@floats
def sqrt(x: Value) -> Value:
    """The square root, correctly rounded."""
    return call("llvm.sqrt", x)


@floats
def rsqrt(x: Value) -> Value:
    """1 / sqrt(x), each correctly rounded: 1.5 units together, where estimates would need steps and special cases."""
    return 1 / call("llvm.sqrt", x)


@floats
def ceil(x: Value) -> Value:
    return call("llvm.ceil", x)


@floats
def floor(x: Value) -> Value:
    return call("llvm.floor", x)


@floats
def trunc(x: Value) -> Value:
    """Without its fraction."""
    return call("llvm.trunc", x)


@floats
def copysign(x: Value, sign: Value) -> Value:
    return sign_copied(x, sign)


@floats
def round_even(x: Value) -> Value:
    """To the nearest integer, halves to the even one."""
    return call("llvm.rint", x)


@floats
def absolute(x: Value) -> Value:
    return call("llvm.fabs", x)
