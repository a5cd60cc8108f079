"""asin, acos, atan, atan2, asinh, acosh and atanh.

The inverses of the circular functions are odd polynomials on an interval around 0, to which identities lead: atan(x) = pi/2 -
atan(1/x), asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)), whose 1 - x is exact from 1/2 on. pi has two parts. Those of the hyperbolic
functions are `log1p` of an argument without cancellation (W. Kahan, Branch Cuts for Complex Elementary Functions, 1987).
"""

from __future__ import annotations

import math
from decimal import Decimal

from tilec.runtime.cpu.math_exp import LN2, parts, with_sign
from tilec.runtime.cpu.math_log import log1p_of
from tilec.runtime.cpu.math_tables import ASIN_F32, ASIN_F64, ATAN_F32, ATAN_F64
from tilec.runtime.cpu.math_values import F32, Value, absolute, bits, by_pairs, call, floats, fma, select

PI = Decimal("3.14159265358979323846264338327950288419716939937510582")


def away(x: Value, number: Decimal) -> Value:
    """number - x, with more of the number than a float holds."""
    high, low = parts(number, x.kind)
    return high - (x - low)


def atan_of_share(t: Value) -> Value:
    """atan(t) for 0 <= t <= 1."""
    z = t * t
    return fma(z * t, by_pairs(z, ATAN_F32 if t.kind == F32 else ATAN_F64), t)


@floats
def atan(x: Value) -> Value:
    magnitude = absolute(x)
    above = magnitude > 1
    angle = atan_of_share(select(above, 1 / magnitude, magnitude))
    return with_sign(select(above, away(angle, PI / 2), angle), x)


@floats
def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), as C99 has it for zeros and infinities of either sign."""
    height, width = absolute(y), absolute(x)
    steep = height > width
    least, most = select(steep, width, height), select(steep, height, width)
    share = select(least == most, select(most == 0, most, 1), least / most)  # infinities, too, are 1 apart
    angle = atan_of_share(share)
    angle = select(steep, away(angle, PI / 2), angle)
    return with_sign(select(bits(x) < 0, away(angle, PI), angle), y)


def asin_of_part(x: Value) -> tuple[Value, Value]:
    """Whether |x| > 1/2, and asin(|x|), or else asin(sqrt((1 - |x|) / 2)); NaN beyond 1."""
    magnitude = absolute(x)
    far = magnitude > 0.5
    z = select(far, (1 - magnitude) * 0.5, magnitude * magnitude)
    s = select(far, call("llvm.sqrt", z), magnitude)
    return far, fma(z * s, by_pairs(z, ASIN_F32 if x.kind == F32 else ASIN_F64), s)


@floats
def asin(x: Value) -> Value:
    far, angle = asin_of_part(x)
    return with_sign(select(far, away(angle * 2, PI / 2), angle), x)


@floats
def acos(x: Value) -> Value:
    far, angle = asin_of_part(x)
    beyond = select(x < 0, away(angle * 2, PI), angle * 2)
    return select(far, beyond, away(with_sign(angle, x), PI / 2))


def logarithm(x: Value, argument: Value) -> Value:
    """log1p(argument), or log(2 x) where x is so large that its square need not be representable."""
    large = x > (2.0**30 if x.kind == F32 else 2.0**60)
    return log1p_of(select(large, x, argument)) + select(large, x.like(float(LN2)), 0)


@floats
def asinh(x: Value) -> Value:
    magnitude = absolute(x)
    z = magnitude * magnitude
    return with_sign(logarithm(magnitude, magnitude + z / (call("llvm.sqrt", z + 1) + 1)), x)


@floats
def acosh(x: Value) -> Value:
    """NaN below 1."""
    t = x - 1
    return select(x < 1, math.nan, logarithm(x, t + call("llvm.sqrt", fma(t, t, t * 2))))


@floats
def atanh(x: Value) -> Value:
    """log((1 + x) / (1 - x)) / 2; NaN beyond 1."""
    magnitude = absolute(x)
    return with_sign(log1p_of(magnitude * 2 / (1 - magnitude)) * 0.5, x)
