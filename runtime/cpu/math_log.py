"""log, log2, log1p and pow.

x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and with s = f / (2 + f) the series log(1 + f) = 2 s + s^3 P(s^2),
summed as f - (f^2/2 - s (f^2/2 + s^2 P)), where the exact f carries the leading bits (K. C. Ng's method in FDLIBM,
1993). Subnormal arguments are scaled up first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

from tilec.runtime.cpu.math_exp import LN2, LOG2_E, exponential, parts
from tilec.runtime.cpu.math_tables import LOG_F32, LOG_F64, LOG_LONG_F64
from tilec.runtime.cpu.math_values import (
    F32,
    F64,
    Value,
    absolute,
    bits,
    call,
    clamp,
    convert,
    copysign,
    floats,
    fma,
    from_bits,
    horner,
    select,
    to_float,
    two_product,
    two_sum,
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
    """log(1 + f) as f - f^2/2, rounded, and the remainder."""
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


def log1p_of(x: Value) -> Value:
    u = x + 1
    k = exponent(u)
    some = k >> 1  # 2^-k in two factors, as the one may be subnormal
    power, rest = two_to(-some, x.kind), two_to(some - k, x.kind)
    f = fma(x * power, rest, power * rest - 1)
    result = copysign(combine(to_float(k, x.kind), *tail(f)), x)
    return special(u, select(u < math.inf, result, u))


@floats
def log1p(x: Value) -> Value:
    """log(1 + x): the k of 1 + x, then 1 + f = 2^-k + x 2^-k, which leaves f = x where k = 0."""
    return log1p_of(x)


# ---- powers ----------------------------------------------------------------------------------------------------------


def log2_pair(x: Value) -> tuple[Value, Value]:
    """log2 of a positive f64 as a sum of two, to about 2^-63: pow multiplies its error by up to 1074.

    As above, with s, s^2 and the first coefficient 2/3 in two parts each.
    """
    k, f = split(x)
    below, below_rest = two_sum(f, f.like(2))
    s = f / below
    s_rest = (fma(-s, below, f) - s * below_rest) / below
    z, z_rest = two_product(s, s)
    z_rest = fma(s * 2, s_rest, z_rest)
    two_thirds, two_thirds_rest = parts(Decimal(2) / 3, F64)
    first, first_rest = two_product(z, two_thirds)
    first_rest = first_rest + fma(z, two_thirds_rest, z_rest * two_thirds)
    series, series_rest = two_sum(first, z * z * horner(z, LOG_LONG_F64[1:]))
    series_rest = series_rest + first_rest
    term, term_rest = two_product(s, series)
    term_rest = term_rest + fma(s, series_rest, s_rest * series)
    natural, natural_rest = two_sum(s * 2, term)
    natural_rest = natural_rest + (term_rest + s_rest * 2)
    inverse, inverse_rest = parts(1 / LN2, F64)
    product, product_rest = two_product(natural, inverse)
    product_rest = product_rest + fma(natural, inverse_rest, natural_rest * inverse)
    total, total_rest = two_sum(k, product)
    return total, total_rest + product_rest


def log2_single(x: Value) -> tuple[Value, Value]:
    """log2 of a positive f64 to f64 precision: enough for a pow of f32."""
    k, f = split(x)
    leading, rest = tail(f)
    return fma(leading + rest, LOG2_E, k), x.like(0)


def power(x: Value, y: Value, log2_of: Callable[[Value], tuple[Value, Value]]) -> Value:
    """x^y of f64: 2^(y log2 |x|), then the sign, then C99's special values."""
    magnitude = absolute(x)
    log, log_rest = log2_of(magnitude)
    regular = (magnitude > 0) & (magnitude < math.inf)
    log = select(regular, log, select(magnitude == 0, -math.inf, magnitude))
    wanted = select(log == 0, 0, y * log)
    n_and_fraction = clamp(wanted, -1100, 1100)
    rest = fma(y, log, -n_and_fraction) + y * log_rest
    rest = select(regular & (log != 0) & (n_and_fraction == wanted), rest, 0)
    result = exponential(n_and_fraction, 1, lambda whole: (n_and_fraction - whole + rest) * float(LN2))
    is_whole, half = call("llvm.rint", y) == y, y * 0.5
    odd = is_whole & (call("llvm.rint", half) != half)
    result = select(odd, copysign(result, x), result)
    result = select((x < 0) & (x > -math.inf) & (is_whole ^ True), math.nan, result)
    return select((y == 0) | (x == 1), 1, result)


@floats
def pow(x: Value, y: Value) -> Value:
    """x^y; f32 by way of f64."""
    if x.kind == F64:
        return power(x, y, log2_pair)
    return convert(power(convert(x, F64), convert(y, F64), log2_single), F32)
