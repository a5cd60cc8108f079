"""exp, exp2, expm1, sinh, cosh, tanh, erf and erfc: all of them the same reduced exponential.

x = n ln 2 + r with an integer n and |r| <= ln 2 / 2, by two steps of W. J. Cody and W. Waite (Software Manual for the
Elementary Functions, 1980), the first of which is exact with FMA; exp(r) - 1 = r + r^2 P(r) by a minimax polynomial;
then 2^n (1 + ...). Subnormal results are rounded once more, and not flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from tilec.runtime.cpu.math_tables import ERF_F32, ERF_F64, ERFC_F64, EXPM1_F32, EXPM1_F64, TANH_F32, TANH_F64
from tilec.runtime.cpu.math_values import (
    F32,
    F64,
    Float,
    Value,
    absolute,
    bits,
    by_pairs,
    clamp,
    convert,
    copysign,
    floats,
    fma,
    from_bits,
    horner,
    select,
    two_product,
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


def reduced(x: Value, offset: float | Value = 0, factor: float = LOG2_E) -> tuple[Value, Value]:
    """The integer n next to x * factor as a float, and 2^(n + offset).

    Adding a large number rounds to an integer. With the exponents' bias in that number the sum's lowest bits are those of
    the power, one shift away.
    """
    kind = x.kind
    magic = x.like(offset) + (kind.magic + kind.bias)
    shifted = fma(x, factor, magic)
    return shifted - magic, from_bits(bits(shifted) << kind.fraction, kind)


def rest(x: Value, whole: Value) -> Value:
    """x - whole ln 2."""
    high, low = parts(LN2, x.kind)
    return fma(whole, -low, fma(whole, -high, x))


def expm1_of_reduced(r: Value) -> Value:
    """exp(r) - 1 for |r| <= ln 2 / 2."""
    return fma(r * r, by_pairs(r, EXPM1_F32 if r.kind == F32 else EXPM1_F64), r)


def with_sign(magnitude: Value, sign: Value) -> Value:
    """`copysign` for a magnitude that has no sign yet."""
    kind = sign.kind
    return from_bits(bits(magnitude) | (bits(sign) & -1 << kind.bits - 1), kind)


def exponential(x: Value, factor: float, rest: Callable[[Value], Value]) -> Value:
    """2^n exp(rest(n)) for the integer n next to x * factor.

    The power is 2^(n + middle) 2^-middle or 2^(n - middle) 2^middle, by the sign of x, so that subnormal results and those
    near the largest come out.
    """
    middle = (x.kind.bias + 1) // 2
    below = bits(x) < 0
    whole, power = reduced(x, select(below, x.like(middle), -middle), factor)
    result = fma(power, expm1_of_reduced(rest(whole)), power)
    return result * select(below, x.like(2.0**-middle), 2.0**middle)


def exp_of(x: Value) -> Value:
    x = clamp(x, -104, 89) if x.kind == F32 else clamp(x, -746, 710)
    return exponential(x, LOG2_E, lambda whole: rest(x, whole))


@floats
def exp(x: Value) -> Value:
    """e^x; 0 and inf where that is too small and too large."""
    return exp_of(x)


@floats
def exp_below(x: Value) -> Value:
    """e^x for x <= 0: the same bits by fewer instructions, as nothing is chosen by the sign.

    Where the result is 0, as in masked softmaxes, another one is computed: an underflow takes Intel's processors 150 clocks.
    """
    middle, least = (x.kind.bias + 1) // 2, -104 if x.kind == F32 else -746
    underflows = x < least
    x = select(underflows, 0.0, x)
    whole, power = reduced(x, middle)
    result = fma(power, expm1_of_reduced(rest(x, whole)), power) * 2.0**-middle
    return select(underflows, 0.0, result)


@floats
def exp2(x: Value) -> Value:
    """2^x. The reduction x - n is exact, so only ln 2 times it is rounded."""
    x = clamp(x, -150, 128) if x.kind == F32 else clamp(x, -1075, 1024)
    return exponential(x, 1, lambda whole: (x - whole) * float(LN2))


@floats
def expm1(x: Value) -> Value:
    """e^x - 1 without cancellation near 0: 2^n p + (2^n - 1), in halves, as 2^n may be too large where the result is not.
    It has the sign of x, -0 included."""
    y = clamp(x, -18, 89) if x.kind == F32 else clamp(x, -40, 710)
    whole, half = reduced(y, -1)
    return copysign(fma(half, expm1_of_reduced(rest(y, whole)), half - 0.5) * 2, x)


def quarter(x: Value) -> tuple[Value, Value]:
    """2^n / 4 and exp(r) - 1 of |x|, which is cut where its hyperbolic sine has become too large for the type."""
    magnitude, most = absolute(x), 89.5 if x.kind == F32 else 710.5
    y = select(magnitude > most, most, magnitude)
    whole, power = reduced(y, -2)
    return power, expm1_of_reduced(rest(y, whole))


@floats
def sinh(x: Value) -> Value:
    """(m + m / (m + 1)) / 2 for m = e^|x| - 1, by a quarter of m: all of it may be too large."""
    power, above = quarter(x)
    part, magnitude = fma(power, above, power - 0.25), absolute(x)
    tiny = magnitude < 2.0 ** -(x.kind.fraction // 2 + 2)  # a quarter of it may be too small
    return with_sign(select(tiny, magnitude, (part + part / fma(part, 4, 1)) * 2), x)


@floats
def cosh(x: Value) -> Value:
    """(e + 1 / e) / 2 for e = e^|x|."""
    power, above = quarter(x)
    part = fma(power, above, power)
    return (part + 0.0625 / part) * 2


@floats
def tanh(x: Value) -> Value:
    """x + x^3 P(x^2) near 0; 1 - 1 / (e^2|x| / 2 + 1/2) from 0.55 on, with |x| = n ln 2 / 2 + r and e^2r = 1 + r Q(r).

    There an error of e^2|x| counts by a third at most, so that one step reduces it.
    """
    kind, magnitude = x.kind, absolute(x)
    limit = 10 if kind == F32 else 20
    y = select(magnitude > limit, limit, magnitude)
    whole, half = reduced(y, -1, 2 * LOG2_E)
    r = fma(whole, -float(LN2) / 2, y)
    terms = [2.0, *(c * 2.0 ** (n + 2) for n, c in enumerate(EXPM1_F32 if kind == F32 else EXPM1_F64))]
    far = 1 - 1 / fma(half * r, by_pairs(r, terms), half + 0.5)
    z = x * x
    near = fma(z * magnitude, horner(z, TANH_F32 if kind == F32 else TANH_F64), magnitude)
    return with_sign(select(magnitude < 0.55, near, far), x)


@floats
def erf(x: Value) -> Value:
    """-expm1(g(x)) with g = log(1 - erf(|x|)) = -|x| - |x| P(|x|), a smooth function that one polynomial covers.

    The weight of the fit is the effect of an error of g on erf: small where erf is nearly 1. So neither a second interval
    nor rational functions are needed.
    """
    low, high = (ERF_F32, 4) if x.kind == F32 else (ERF_F64, 6)
    magnitude = absolute(x)
    magnitude = select(magnitude > high, high, magnitude)
    g = -fma(magnitude, by_pairs(magnitude, low), magnitude)
    whole, power = reduced(g)
    r = fma(whole, -float(LN2), g)  # in one step: where n is not 0, 1 is added, and the error becomes a small part
    return with_sign(fma(-power, expm1_of_reduced(r), 1 - power), x)


@floats
def erfc(x: Value) -> Value:
    """exp(-x^2) P(t) / (1 + 2 |x|) with t = (|x| - 4) / (|x| + 4), for x >= 0, and 2 less that below (M. M. Shepherd and
    J. G. Laframboise, Chebyshev Approximation of (1 + 2x) exp(x^2) erfc x, 1981). The square has two parts. f32 by way of f64.
    """
    wide = convert(x, F64)
    magnitude = absolute(wide)
    magnitude = select(magnitude > 28, 28.0, magnitude)
    square, square_rest = two_product(magnitude, magnitude)
    e = exp_of(-square)
    e = fma(e, -square_rest, e)
    inverse = 1 / (magnitude + 4)
    t = (magnitude - 4) * inverse
    t = fma(fma(-t, magnitude, fma(t + 1, -4, magnitude)), inverse, t)  # to the nearest: P grows fast at -1
    result = e * (horner(t, ERFC_F64) / fma(magnitude, 2, 1))
    return convert(select(wide < 0, 2 - result, result), x.kind)
