"""log, log2, log1p and pow.

x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and with s = f / (2 + f) the series log(1 + f) = 2 s + s^3 P(s^2), summed
as f - (f^2/2 - s (f^2/2 + s^2 P)), where the exact f carries the leading bits (K. C. Ng's method in FDLIBM, 1993).
Subnormal arguments are scaled up first.
"""

from __future__ import annotations

import math

from tilec.runtime.cpu_math_exp import LN2, parts
from tilec.runtime.cpu_math_tables import LOG_F32, LOG_F64
from tilec.runtime.cpu_math_values import (
    F32,
    Value,
    bits,
    copysign,
    floats,
    fma,
    from_bits,
    horner,
    select,
    to_float,
    two_to,
)


def exponent(x: Value) -> Value:
    """The integer k with sqrt(1/2) <= x / 2^k < sqrt(2), of a normal x > 0."""
    kind = x.kind
    return (bits(x) - int(kind.numpy(math.sqrt(0.5)).view(f"i{kind.bits // 8}"))) >> kind.fraction


def split(x: Value) -> tuple[Value, Value]:
    """k and x / 2^k - 1, of a positive x."""
    kind = x.kind
    small = x < float(2.0 ** (1 - kind.bias))
    x = select(small, x * 2.0**kind.fraction, x)
    k = exponent(x)
    mantissa = from_bits(bits(x) - (k << kind.fraction), kind)
    return to_float(k, kind) - select(small, x.like(kind.fraction), 0), mantissa - 1


def tail(f: Value) -> tuple[Value, Value]:
    """log(1 + f) as f - f^2/2, rounded, and what is missing."""
    s = f / (f + 2)
    z = s * s
    half = f * f * 0.5
    series = z * horner(z, LOG_F32 if f.kind == F32 else LOG_F64)
    leading = f - half
    return leading, fma(s, half + series, (f - leading) - half)


def special(x: Value, result: Value) -> Value:
    """A logarithm's values at 0, below, at infinity and NaN."""
    result = select(x < math.inf, result, x)
    result = select(x == 0, -math.inf, result)
    return select(x < 0, math.nan, result)


def combine(k: Value, leading: Value, rest: Value) -> Value:
    """k ln 2 + leading + rest."""
    high, low = parts(LN2, k.kind)
    return fma(k, high, leading + fma(k, low, rest))


@floats
def log(x: Value) -> Value:
    """The natural logarithm; -inf at 0, NaN below."""
    k, f = split(x)
    return special(x, combine(k, *tail(f)))


@floats
def log2(x: Value) -> Value:
    """k + log(1 + f) / ln 2, exact at powers of 2."""
    k, f = split(x)
    leading, rest = tail(f)
    high, low = parts(1 / LN2, x.kind)
    product = leading * high
    error = fma(leading, high, -product)
    return special(x, (k + product) + fma(leading, low, fma(rest, high, error + ((k - (k + product)) + product))))


@floats
def log1p(x: Value) -> Value:
    """log(1 + x): the k of 1 + x, then 1 + f = 2^-k + x 2^-k, which leaves f = x where k = 0."""
    u = x + 1
    k = exponent(u)
    some = k >> 1  # 2^-k in two factors, as the one may be subnormal
    power, rest = two_to(-some, x.kind), two_to(some - k, x.kind)
    f = fma(x * power, rest, power * rest - 1)
    result = copysign(combine(to_float(k, x.kind), *tail(f)), x)
    return special(u, select(u < math.inf, result, u))
