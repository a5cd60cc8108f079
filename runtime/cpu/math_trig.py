"""sin, cos and tan.

Quick: x = q pi + r by three steps of Cody and Waite with FMA. The first is exact, as x and q times the first part of
pi are multiples of the last bit of |r| < 2 (J.-M. Muller et al., Handbook of Floating-Point Arithmetic, chapter 11).
Then sin(x) = (-1)^q sin(r), one odd polynomial on [-pi/2, pi/2]; cos likewise with half a period's shift. There are no
octants to select from, so that a cosine is about 16 instructions.

Beyond `CODY_WAITE_LIMIT`: M. H. Payne and R. N. Hanek (Radian Reduction for Trigonometric Functions, 1983). x is an integer
times 2^e, and of 2^e / pi only the remainder modulo 2 matters. A table holds that for every e: for f64 as four f64 whose
products are added without error; for f32, whose integers have 24 bits, as two f64, the first with an exact product.

`sin`, `cos` and `tan` hold on the full range: they compute both and select, which takes about six times as long as the
approximate form. `sin_approx`, `cos_approx`, `tan_approx` are for loops that look: collect the largest |x|, and do the loop again
with the full form if that is beyond `CODY_WAITE_LIMIT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from tilec.runtime.cpu.math_tables import SIN_F32, SIN_F64, TAN_F32, TAN_F64
from tilec.runtime.cpu.math_values import (
    F32,
    F64,
    Float,
    Value,
    absolute,
    bits,
    call,
    convert,
    copysign,
    floats,
    fma,
    from_bits,
    horner,
    lookup,
    nearest,
    select,
    two_product,
    two_sum,
)

CODY_WAITE_LIMIT = {"f32": 2.0**17, "f64": 2.0**30}
"""Up to this |x| the approximate forms keep their bound."""

_PI_BITS = 1400


@cache
def pi_scaled() -> int:
    """floor(pi * 2^_PI_BITS), by J. Machin's formula (1706): pi / 4 = 4 arctan(1/5) - arctan(1/239)."""
    guard = 32

    def arctan_of_inverse(n: int) -> int:
        term = total = (1 << (_PI_BITS + guard)) // n
        k = 1
        while term:
            term //= -n * n
            k += 2
            total += term // k
        return total

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)) >> guard


def split_integer(number: int, digits: Sequence[int]) -> list[float]:
    """number / 2^_PI_BITS as a sum of f64, the largest first, each of at most so many binary digits."""
    result = []
    for count in digits:
        drop = max(0, number.bit_length() - count)
        part = (abs(number) + (1 << drop >> 1) >> drop) * (1 if number >= 0 else -1)
        result.append(math.ldexp(part, drop - _PI_BITS))
        number -= part << drop
    return result


# ---- reductions: q, r and rest with x = (q - shift) pi / pieces + r + rest; shift is 0 or 1/2, pieces 1 or 2 ---------


def cody_waite_reduction(x: Value, shift: float, pieces: int) -> tuple[Value, Value, Value]:
    """By pi in three parts; |r| <= pi / (2 pieces) and a little. Only tan (2 pieces) needs what rounding r lost."""
    whole, q = nearest(fma(x, pieces / math.pi, shift) if shift else x * (pieces / math.pi))
    if shift:
        whole = whole - shift
    first, second, third = (-p / pieces for p in split_integer(pi_scaled(), [x.kind.fraction + 1] * 3))
    leading = fma(whole, first, x)
    if pieces == 1:
        return q, fma(whole, third, fma(whole, second, leading)), x.like(0)
    step, step_rest = two_product(whole, second)
    middle, middle_rest = two_sum(leading, step)
    return q, *two_sum(middle, fma(whole, third, middle_rest + step_rest))


@cache
def residues(kind: Float) -> list[tuple[float, ...]]:
    """2^e / pi modulo 2, in (-1, 1], for every e that `integer_exponent` gives; one tuple for each part."""
    inverse, two = (1 << 2 * _PI_BITS) // pi_scaled(), 2 << _PI_BITS
    rows = []
    for e in range(-_first(kind), kind.bias - kind.fraction + 1):
        rest = ((inverse << e) if e >= 0 else inverse >> -e) % two
        rest -= two if rest > two // 2 else 0
        if kind == F32:
            first = rest + (1 << _PI_BITS - 30) >> _PI_BITS - 29
            rows.append((math.ldexp(first, -29), *split_integer(rest - (first << _PI_BITS - 29), [53])))
        else:
            rows.append(tuple(split_integer(rest, [53] * 4)))
    return list(zip(*rows))


def _first(kind: Float) -> int:
    """The table begins at x = 2^(fraction - this), below the limit of the approximate forms."""
    return kind.fraction // 2


def integer_form(x: Value) -> tuple[Value, list[Value]]:
    """The integer m, |m| < 2^(fraction + 1), with x = m 2^e, as f64; and the parts of 2^e / pi modulo 2."""
    kind = x.kind
    stored = bits(absolute(x)) >> kind.fraction
    e = stored - (kind.bias + kind.fraction - _first(kind))
    e = select(e < 0, 0, e)
    last = kind.bias - kind.fraction + _first(kind)
    e = select(e > last, last, e)
    m = from_bits((bits(x) & ((1 << kind.fraction) - 1)) | (kind.bias + kind.fraction << kind.fraction), kind)
    return convert(copysign(m, x), F64), [lookup(part, e, F64) for part in residues(kind)]


def full_reduction_f32(x: Value, shift: float, pieces: int) -> tuple[Value, Value, Value]:
    """In f64: the first part has 29 bits after the point, so its product with m is exact; the second adds 2^-59."""
    m, (first, second) = integer_form(x)
    turns = fma(m, second, even_part_removed(m * first))
    whole, q = nearest(fma(turns, pieces, shift))
    exact = (turns - (whole - shift) * (1 / pieces)) * math.pi
    r = convert(exact, F32)
    return Value(x.builder, x.builder.trunc(q.llvm, F32.integer)), r, convert(exact - convert(r, F64), F32)


def full_reduction_f64(x: Value, shift: float, pieces: int) -> tuple[Value, Value, Value]:
    """The sum of m times each part modulo 2, largest first, and every rounding error kept."""
    m, (first, second, third, fourth) = integer_form(x)
    high, high_rest = two_product(m, first)
    middle, middle_rest = two_product(m, second)
    low, low_rest = two_product(m, third)
    turns, error_1 = two_sum(even_part_removed(high), high_rest)
    turns, error_2 = two_sum(even_part_removed(turns), middle)
    whole, q = nearest(fma(turns, pieces, shift))
    turns = turns - (whole - shift) * (1 / pieces)
    errors, rest_1 = two_sum(error_1, error_2)
    products, rest_2 = two_sum(middle_rest, low)
    smaller, rest_3 = two_sum(errors, products)
    turns, rest_4 = two_sum(turns, smaller)
    rest = rest_4 + (rest_3 + (rest_1 + (rest_2 + fma(m, fourth, low_rest))))
    pi, pi_rest = split_integer(pi_scaled(), [53, 53])
    product, product_rest = two_product(turns, pi)
    return q, *two_sum(product, fma(turns, pi_rest, fma(rest, pi, product_rest)))


def even_part_removed(x: Value) -> Value:
    """x modulo 2, in [-1, 1]; exact. The even part may be large: then rounding to an integer must not overflow."""
    return x - call("llvm.rint", x * 0.5) * 2


def full_reduction(x: Value, shift: float, pieces: int) -> tuple[Value, Value, Value]:
    """Cody and Waite's reduction where it holds, else Payne and Hanek's. Infinities become NaN."""
    short = cody_waite_reduction(x, shift, pieces)
    q, r, rest = (full_reduction_f32 if x.kind == F32 else full_reduction_f64)(x, shift, pieces)
    full = q, select(absolute(x) < math.inf, r, math.nan), rest
    near = absolute(x) <= CODY_WAITE_LIMIT[x.kind.name]
    sin, cos, tan = (select(near, a, b) for a, b in zip(short, full))
    return sin, cos, tan


# ---- functions of the reduced argument -------------------------------------------------------------------------------


def sine(r: Value) -> Value:
    """sin(r) for |r| <= pi/2."""
    z = r * r
    return fma(z * r, horner(z, SIN_F32 if r.kind == F32 else SIN_F64), r)


def signed(x: Value, q: Value) -> Value:
    """(-1)^q x."""
    return from_bits(bits(x) ^ (q << x.kind.bits - 1), x.kind)


Reduction = Callable[[Value, float, int], tuple[Value, Value, Value]]


def sin_of(x: Value, reduction: Reduction) -> Value:
    q, r, _ = reduction(x, 0, 1)
    return select(x == 0, x, signed(sine(r), q))  # -0 stays -0


def cos_of(x: Value, reduction: Reduction) -> Value:
    """x = (q - 1/2) pi + r, so cos(x) = (-1)^q cos(r - pi/2) = (-1)^q sin(r)."""
    q, r, _ = reduction(x, 0.5, 1)
    return signed(sine(r), q)


def tan_of(x: Value, reduction: Reduction) -> Value:
    """x = q pi/2 + r: tan(r), or where q is odd -1 / tan(r), which doubles errors: so what r lacks counts."""
    q, r, rest = reduction(x, 0, 2)
    z = r * r
    t = r + fma(z * r, horner(z, TAN_F32 if r.kind == F32 else TAN_F64), fma(rest, z, rest))
    odd = (q & 1) != 0
    return select(x == 0, x, select(odd, t.like(-1), t) / select(odd, t, 1))


@floats
def sin(x: Value) -> Value:
    """The sine on the full range."""
    return sin_of(x, full_reduction)


@floats
def cos(x: Value) -> Value:
    """The cosine on the full range."""
    return cos_of(x, full_reduction)


@floats
def tan(x: Value) -> Value:
    """The tangent on the full range."""
    return tan_of(x, full_reduction)


@floats
def sin_approx(x: Value) -> Value:
    """The sine up to `CODY_WAITE_LIMIT`."""
    return sin_of(x, cody_waite_reduction)


@floats
def cos_approx(x: Value) -> Value:
    """The cosine up to `CODY_WAITE_LIMIT`."""
    return cos_of(x, cody_waite_reduction)


@floats
def tan_approx(x: Value) -> Value:
    """The tangent up to `CODY_WAITE_LIMIT`."""
    return tan_of(x, cody_waite_reduction)
