"""exp, exp2, expm1, tanh and erf: all of them the same reduced exponential.

x = n ln 2 + r with an integer n and |r| <= ln 2 / 2, by two steps of W. J. Cody and W. Waite (Software Manual for the
Elementary Functions, 1980), the first of which is exact with FMA; exp(r) - 1 = r + r^2 P(r) by a minimax polynomial;
then 2^n (1 + ...). Subnormal results are rounded once more, and not flushed.
"""

from __future__ import annotations

from decimal import Decimal

from tilec.runtime.cpu_math_tables import ERF_F32, ERF_F64, EXPM1_F32, EXPM1_F64, TANH_F32, TANH_F64
from tilec.runtime.cpu_math_values import (
    F32,
    Float,
    Value,
    absolute,
    clamp,
    copysign,
    floats,
    fma,
    horner,
    nearest,
    select,
    two_to,
)

LN2 = Decimal("0.69314718055994530941723212145817656807550013436025525412068")
LOG2_E = float(1 / LN2)


def parts(number: Decimal, kind: Float, count: int = 2) -> list[float]:
    """A number as the unevaluated sum of floats, the largest first, each the rest rounded to nearest."""
    result = []
    for _ in range(count):
        result.append(float(kind.numpy(float(number))))
        number -= Decimal(result[-1])
    return result


def reduced(x: Value) -> tuple[Value, Value, Value]:
    """n as an integer, r, and exp(r) - 1."""
    high, low = parts(LN2, x.kind)
    whole, n = nearest(x * LOG2_E)
    r = fma(whole, -low, fma(whole, -high, x))
    return n, r, expm1_of_reduced(r)


def expm1_of_reduced(r: Value) -> Value:
    """exp(r) - 1 for |r| <= ln 2 / 2."""
    return fma(r * r, horner(r, EXPM1_F32 if r.kind == F32 else EXPM1_F64), r)


def scaled(x: Value, n: Value) -> Value:
    """x * 2^n for 1/2 <= x <= 2, by two powers, so that subnormal results and those near the largest come out."""
    half = n >> 1
    return x * two_to(half, x.kind) * two_to(n - half, x.kind)


def exp_of(x: Value) -> Value:
    x = clamp(x, -104, 89) if x.kind == F32 else clamp(x, -746, 710)
    n, _, p = reduced(x)
    return scaled(p + 1, n)


@floats
def exp(x: Value) -> Value:
    """e^x; 0 and inf where that is too small and too large."""
    return exp_of(x)


@floats
def exp2(x: Value) -> Value:
    """2^x. The reduction x - n is exact, so only ln 2 times it is rounded."""
    x = clamp(x, -150, 128) if x.kind == F32 else clamp(x, -1075, 1024)
    whole, n = nearest(x)
    return scaled(expm1_of_reduced((x - whole) * float(LN2)) + 1, n)


def expm1_of(x: Value) -> Value:
    """2^n p + (2^n - 1), in halves, as 2^n may be too large where the result is not."""
    n, _, p = reduced(clamp(x, -18, 89) if x.kind == F32 else clamp(x, -40, 710))
    half = two_to(n - 1, x.kind)
    return fma(half, p, half - 0.5) * 2


@floats
def expm1(x: Value) -> Value:
    """e^x - 1 without cancellation near 0. It has the sign of x, -0 included."""
    return copysign(expm1_of(x), x)


@floats
def tanh(x: Value) -> Value:
    """x + x^3 P(x^2) near 0; 1 - 2 / (e^2|x| + 1) from 0.55 on, with e^2|x| + 1 as 2^n p + (2^n + 1)."""
    magnitude = absolute(x)
    n, _, p = reduced(clamp(magnitude * 2, 0, 20 if x.kind == F32 else 40))
    power = two_to(n, x.kind)
    far = 1 - 2 / fma(power, p, power + 1)
    z = x * x
    near = fma(z * magnitude, horner(z, TANH_F32 if x.kind == F32 else TANH_F64), magnitude)
    return copysign(select(magnitude < 0.55, near, far), x)


@floats
def erf(x: Value) -> Value:
    """-expm1(g(x)) with g = log(1 - erf(|x|)) = -|x| - |x| P(|x|), a smooth function that one polynomial covers.

    The weight of the fit is what an error of g does to erf: little where erf is nearly 1. So neither a second interval
    nor rational functions are needed.
    """
    low, high = (ERF_F32, 4) if x.kind == F32 else (ERF_F64, 6)
    magnitude = clamp(absolute(x), 0, high)
    g = fma(magnitude, horner(magnitude, low), magnitude)
    return copysign(expm1_of(-g), x)
