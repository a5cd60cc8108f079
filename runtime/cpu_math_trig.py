"""sin, cos and tan.

Quick: x = q pi + r with r by three steps of Cody and Waite with FMA: the first is exact, as x and q times the first part of
pi are multiples of the last bit of |r| < 2 (see J.-M. Muller et al., Handbook of Floating-Point Arithmetic, chapter 11).
Then sin(x) = (-1)^q sin(r), one odd polynomial on [-pi/2, pi/2]; cos likewise with half a period's shift. There are no
octants to select from, so that a cosine is about 16 instructions.

Beyond `QUICK_LIMIT`: M. H. Payne and R. N. Hanek (Radian Reduction for Trigonometric Functions, 1983): x is an integer
times 2^e, and of 2^e / pi only what is left modulo 2 matters; a table
holds that for every e, as four f64 whose products are added without error; of f32, whose integers have 24 bits, as two
f64 of which the first product is exact.

`sin`, `cos` and `tan` hold on the full range: they compute both and select, which costs about three times the quick form.
`sin_quick`, `cos_quick`, `tan_quick` are for loops that look first: collect `beyond_quick(x)` with `|`, and do the
loop again with the full form if it came out true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import cache

from numba import types

from tilec.runtime.cpu_math_exp import parts
from tilec.runtime.cpu_math_tables import COS_F32, COS_F64, SIN_F32, SIN_F64
from tilec.runtime.cpu_math_values import (
    F32,
    Float,
    Value,
    absolute,
    bits,
    floats,
    fma,
    from_bits,
    horner,
    lookup,
    nearest,
    select,
    typed,
)

QUICK_LIMIT = {"f32": 2.0**17, "f64": 2.0**30}
"""Up to this |x| the quick forms keep their bound."""

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


# ---- reduction: q and r with x = (q - shift) pi + r; shift is 0 or 1/2 ------------------------------------------------


def quick_reduction(x: Value, shift: float, turn: int = 1) -> tuple[Value, Value]:
    """By multiples of pi / turn; |r| <= pi / (2 turn) and a little."""
    whole, q = nearest(fma(x, turn / math.pi, shift) if shift else x * (turn / math.pi))
    if shift:
        whole = whole - shift
    for part in split_integer(pi_scaled(), [x.kind.fraction + 1] * 3):
        x = fma(whole, -part / turn, x)
    return q, x


@cache
def residues(kind: Float) -> list[tuple[float, ...]]:
    """2^e / pi modulo 2, in (-1, 1], for every e that `integer_exponent` gives; one tuple for each part."""
    inverse, two = (1 << 2 * _PI_BITS) // pi_scaled(), 2 << _PI_BITS
    rows = []
    for e in range(-_first(kind), kind.bias - kind.fraction + 1):
        rest = ((inverse << _first(kind)) << e + _first(kind) >> _first(kind)) % two
        rest = ((inverse << e) if e >= 0 else inverse >> -e) % two
        rest -= two if rest > two // 2 else 0
        if kind == F32:
            first = (rest + (1 << _PI_BITS - 30) >> _PI_BITS - 29) << _PI_BITS - 29
            rows.append((math.ldexp(first, -_PI_BITS), *split_integer(rest - first, [53])))
        else:
            rows.append(tuple(split_integer(rest, [53] * 4)))
    return list(zip(*rows))


def _first(kind: Float) -> int:
    """The table begins at x = 2^(fraction - this), below the quick limit."""
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


def full_reduction_f32(x: Value, shift: float) -> tuple[Value, Value]:
    """In f64: the first part has 29 bits after the point, so its product with m is exact; the second adds 2^-59."""
    m, (first, second) = integer_form(x)
    product = m * first
    product = product - nearest(product * 0.5)[0] * 2
    turns = fma(m, second, product)
    whole, q = nearest(turns + shift)
    r = convert((turns - (whole - shift)) * math.pi, F32)
    return Value(x.builder, x.builder.trunc(q.llvm, F32.integer)), r


def full_reduction_f64(x: Value, shift: float) -> tuple[Value, Value]:
    """The sum of m times each part modulo 2, largest first, and every rounding error kept (D. E. Knuth's two-sum)."""
    m, (first, second, third, fourth) = integer_form(x)
    high, high_rest = two_product(m, first)
    middle, middle_rest = two_product(m, second)
    low, low_rest = two_product(m, third)
    turns, error_1 = two_sum(even_part_removed(high), high_rest)
    turns, error_2 = two_sum(even_part_removed(turns), middle)
    whole, q = nearest(turns + shift)
    turns = turns - (whole - shift)
    errors, rest_1 = two_sum(error_1, error_2)
    products, rest_2 = two_sum(middle_rest, low)
    smaller, rest_3 = two_sum(errors, products)
    turns, rest_4 = two_sum(turns, smaller)
    rest = rest_4 + (rest_3 + (rest_1 + (rest_2 + fma(m, fourth, low_rest))))
    pi, pi_rest = split_integer(pi_scaled(), [53, 53])
    r, r_rest = two_product(turns, turns.like(pi))
    return q, r + fma(turns, pi_rest, fma(rest, pi, r_rest))


def even_part_removed(x: Value) -> Value:
    """x modulo 2, in [-1, 1]; exact. The even part may be large: then rounding to an integer must not overflow."""
    return x - call("llvm.rint", x * 0.5) * 2


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b rounded, and the error."""
    total = a + b
    there = total - a
    return total, (a - (total - there)) + (b - there)


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b rounded, and the error."""
    product = a * b
    return product, fma(a, b, -product)


def full_reduction(x: Value, shift: float) -> tuple[Value, Value]:
    """The quick reduction where it holds, else Payne and Hanek's. Infinities become NaN."""
    quick_q, quick_r = quick_reduction(x, shift)
    q, r = (full_reduction_f32 if x.kind == F32 else full_reduction_f64)(x, shift)
    near = absolute(x) <= QUICK_LIMIT[x.kind.name]
    r = select(absolute(x) < math.inf, r, math.nan)
    return select(near, quick_q, q), select(near, quick_r, r)


# ---- functions of the reduced argument --------------------------------------------------------------------------------


def sine(r: Value) -> Value:
    """sin(r) for |r| <= pi/2."""
    z = r * r
    return fma(z * r, horner(z, SIN_F32 if r.kind == F32 else SIN_F64), r)


def signed(x: Value, q: Value) -> Value:
    """(-1)^q x."""
    return from_bits(bits(x) ^ (q << x.kind.bits - 1), x.kind)


Reduction = Callable[[Value, float], tuple[Value, Value]]


def sin_of(x: Value, reduction: Reduction) -> Value:
    q, r = reduction(x, 0)
    return signed(sine(r), q)


def cos_of(x: Value, reduction: Reduction) -> Value:
    """x = (q - 1/2) pi + r, so cos(x) = (-1)^q cos(r - pi/2) = (-1)^q sin(r)."""
    q, r = reduction(x, 0.5)
    return signed(sine(r), q)


def tan_of(x: Value, reduction: Reduction) -> Value:
    """With |r| <= pi/2: sin over cos, of r where |r| <= pi/4, else of the rest to pi/2, the other way round."""
    _, r = reduction(x, 0)
    half, half_rest = (p / 2 for p in split_integer(pi_scaled(), [r.kind.fraction + 1] * 2))
    far = absolute(r) > math.pi / 4
    other = (half - absolute(r)) + half_rest
    small = select(far, other, absolute(r))
    z = small * small
    s = sine(small)
    c = fma(z * z, horner(z, COS_F32 if r.kind == F32 else COS_F64), fma(z, -0.5, 1))
    return from_bits(bits(select(far, c, s) / select(far, s, c)) ^ (bits(r) & r.kind.sign), r.kind)


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
def sin_quick(x: Value) -> Value:
    """The sine where not `beyond_quick(x)`."""
    return sin_of(x, quick_reduction)


@floats
def cos_quick(x: Value) -> Value:
    """The cosine where not `beyond_quick(x)`."""
    return cos_of(x, quick_reduction)


@floats
def tan_quick(x: Value) -> Value:
    """The tangent where not `beyond_quick(x)`."""
    return tan_of(x, quick_reduction)


def _boolean(x: types.Type) -> types.Type | None:
    return types.boolean(x) if isinstance(x, types.Float) else None
