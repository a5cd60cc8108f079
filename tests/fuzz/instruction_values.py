"""What instructions of PTX compute, by its manual, over arrays with an element for each thread.

Registers of integers are arrays of unsigned numbers.
"""

from __future__ import annotations

import ctypes
import operator
from functools import cache

import numpy as np

KINDS = {
    "pred": np.dtype(bool),
    "b16": np.dtype("u2"), "b32": np.dtype("u4"), "b64": np.dtype("u8"),
    "f32": np.dtype("f4"), "f64": np.dtype("f8"),
}  # fmt: skip
"""Registers, and how an array holds them."""


def signed(x: np.ndarray) -> np.ndarray:
    return x.view(f"i{x.dtype.itemsize}")


def as_sign(x: np.ndarray, sign: str) -> np.ndarray:
    return signed(x) if sign == "s" else x


def lower_bits(x, dtype) -> np.ndarray:
    """Numbers of Python's, of which an integer of this type keeps the lower bits."""
    mask = (1 << 8 * dtype.itemsize) - 1
    return np.array([int(v) & mask for v in x], dtype)


def cut(x: np.ndarray, width: int) -> np.ndarray:
    return x.astype(f"u{width // 8}")


def high(sign):
    def value(a, b):
        x, y = as_sign(a, sign).astype(object), as_sign(b, sign).astype(object)
        return lower_bits(x * y >> 8 * a.dtype.itemsize, a.dtype)

    return value


def extend(a, sign, width):
    """As a number with or without a sign, in this many bits."""
    return as_sign(a, sign).astype(f"{'i' if sign == 's' else 'u'}{width // 8}").view(f"u{width // 8}")


def wide(sign, width):
    return lambda a, b: extend(a, sign, 2 * width) * extend(b, sign, 2 * width)


def shift(how, sign="u"):
    """Amounts beyond the width are the width."""

    def value(a, amount):
        width = 8 * a.dtype.itemsize
        x, n = as_sign(a, sign), np.minimum(amount, width - 1).astype(a.dtype)
        beyond = amount >= width
        if how == "l":
            return np.where(beyond, 0, a << n).astype(a.dtype)
        if sign == "u":
            return np.where(beyond, 0, a >> n).astype(a.dtype)
        return (x >> n.astype(x.dtype)).view(a.dtype)

    return value


def quotient(sign, rest):
    """Rounded towards 0; a remainder has the sign of the dividend. Divisors that no drawn kernel has give 0."""

    def value(a, b):
        found = []
        for x, y in zip(as_sign(a, sign).tolist(), as_sign(b, sign).tolist()):
            q = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            found.append(x - q * y if rest else q)
        return lower_bits(found, a.dtype)

    return value


COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def extreme(how, sign):
    pick = np.minimum if how == "min" else np.maximum
    return lambda a, b: pick(as_sign(a, sign), as_sign(b, sign)).view(a.dtype)


def compared(how, sign):
    return lambda a, b: COMPARE[how](as_sign(a, sign), as_sign(b, sign))


def extracted(sign):
    def value(a, b, c):
        width, found = 8 * a.dtype.itemsize, []
        for x, pos, length in zip(a.tolist(), (b & 255).tolist(), (c & 255).tolist()):
            bits = (x >> pos) & ((1 << length) - 1)
            top = sign == "s" and length > 0 and x >> min(pos + length - 1, width - 1) & 1
            kept = max(0, min(length, width - pos))
            found.append(bits | (-1 << kept if top else 0))
        return lower_bits(found, a.dtype)

    return value


def inserted(a, b, c, d):
    width, found = 8 * a.dtype.itemsize, []
    for x, y, pos, length in zip(a.tolist(), b.tolist(), (c & 255).tolist(), (d & 255).tolist()):
        mask = ((1 << length) - 1) << pos & ((1 << width) - 1)
        found.append(y & ~mask | x << pos & mask)
    return lower_bits(found, a.dtype)


def permuted(a, b, c):
    both, out = a.astype("u8") | b.astype("u8") << np.uint64(32), np.zeros_like(a)
    for i in range(4):
        nibble = (c >> np.uint32(4 * i)) & 15
        byte = (both >> (8 * (nibble & 7)).astype("u8")).astype("u1")
        sign = np.where(byte & 128, 255, 0).astype("u1")
        out |= np.where(nibble & 8, sign, byte).astype("u4") << np.uint32(8 * i)
    return out


def funnel(way, wrap):
    def value(a, b, c):
        n = (c & 31 if wrap else np.minimum(c, 32)).astype("u8")
        both = a.astype("u8") | b.astype("u8") << np.uint64(32)
        return cut(both << n >> np.uint64(32) if way == "l" else both >> n, 32)

    return value


def reversed(x):
    width = 8 * x.dtype.itemsize
    return np.array([int(f"{v:0{width}b}"[::-1], 2) for v in x.tolist()], x.dtype)


def counted(x):
    return np.array([v.bit_count() for v in x.tolist()], "u4")


def leading(x):
    return np.array([8 * x.dtype.itemsize - v.bit_length() for v in x.tolist()], "u4")


@cache
def _library() -> ctypes.CDLL:
    found = ctypes.CDLL("libm.so.6")
    found.fma.restype, found.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    found.fmaf.restype, found.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    return found


def fused(a, b, c):
    """Rounded once: the C library's."""
    function = _library().fmaf if a.dtype == np.float32 else _library().fma
    return np.array([function(*v) for v in zip(a.tolist(), b.tolist(), c.tolist())], a.dtype)


def float_extreme(how, propagates=False):
    """A NaN loses, unless it is propagated; -0 is less than +0."""

    def value(a, b):
        less = (a < b) | ((a == b) & np.signbit(a))
        found = np.where(less if how == "min" else ~less, a, b)
        if propagates:
            return np.where(np.isnan(a), a, np.where(np.isnan(b), b, found))
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, found))

    return value


def float_compared(how):
    """The unordered ones (`ltu`) are true of NaN, the others false."""

    def value(a, b):
        nan = np.isnan(a) | np.isnan(b)
        if how in ("num", "nan"):
            return nan if how == "nan" else ~nan
        return COMPARE[how[:2]](a, b) & ~nan | (nan if how.endswith("u") else False)

    return value


def narrowed(how):
    def value(a):
        near = a.astype("f4")
        back = near.astype("f8")
        if how == "rn":
            return near
        towards, off = {
            "rz": (np.float32(0), np.abs(back) > np.abs(a)),
            "rm": (np.float32(-np.inf), back > a),
            "rp": (np.float32(np.inf), back < a),
        }[how]
        found = np.where(off, np.nextafter(near, towards), near)
        return np.where(found == 0, np.copysign(found, a.astype("f4")), found).astype("f4")

    return value


ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(how, sign, width):
    """Saturates."""
    low, high = (0, 2**width - 1) if sign == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)

    def value(a):
        whole = ROUND[how](a.astype("f8"))
        numbers = (0 if np.isnan(x) else low if x <= low else high if x >= high else int(x) for x in whole.tolist())
        return lower_bits(numbers, np.dtype(f"u{width // 8}"))

    return value
