"""f32 numbers as sums of three bf16 numbers, which matrix units multiply: together these hold all 24 bits of an f32.

    x = p0 + p1 + p2        p0 = bf16(x), p1 = bf16(x - p0), p2 = bf16(x - p0 - p1)

Of the nine products of two numbers' parts, six are computed. The others are at most 2^-23 of the whole product together.
A number whose parts would leave the range of bf16, or are not finite, is marked: p0 is NaN, and a sum that it goes into is
computed from the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, cast

from tilec.analysis.patterns import S, name_of, parts_of
from tilec.core import mlir
from tilec.core.mlir import arith, ir, math

KIND = "bf16x3"
"""The multiplicand's name."""
COUNT = 3
PRODUCTS = ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))
"""Parts of the left and of the right factor, the smallest products first."""
TINY, HUGE = 2.0**-100, 2.0**127


@dataclass(frozen=True)
class Parted(Generic[S]):
    """A factor that is read in its parts, or as a `whole` where it is marked."""

    whole: S
    parts: tuple[S, ...]


def parted(factor: S) -> Parted[S] | None:
    """A factor that `joined` made."""
    if name_of(factor) != "arith.select":
        return None
    _, total, whole = cast("Sequence[S]", parts_of(factor))
    parts: list[S] = []
    while name_of(total) == "arith.addf":
        total, part = cast("Sequence[S]", parts_of(total))
        parts.append(part)
    parts.append(total)
    if len(parts) != COUNT or any(name_of(p) != "arith.extf" or str(parts_of(p)[0].type) != "bf16" for p in parts):
        return None
    return Parted(whole, tuple(parts))


def products_of(left: int, right: int) -> Sequence[tuple[int, int]]:
    """The products that are computed of two numbers of so many parts."""
    return [(a, b) for a, b in PRODUCTS if a < left and b < right] if right > 1 else [(a, 0) for a in range(left)]


def joined(whole: ir.Value, parts: list[ir.Value]) -> ir.Value:
    """A number of its parts, bf16. The whole is what is not taken: a load that is taken becomes a part of the condition
    (`passes/predicate_loads.py`)."""
    wide = [arith.extf(whole.type, p) for p in parts]
    total = wide[-1]
    for part in reversed(wide[:-1]):
        total = arith.addf(total, part)
    return arith.select(arith.cmpf(arith.CmpFPredicate.ORD, wide[0], wide[0]), total, whole)


def split(x: ir.Value) -> list[ir.Value]:
    """The parts of an f32."""
    narrow, parts, rest = ir.BF16Type.get(), list[ir.Value](), x
    for _ in range(COUNT):
        if parts:
            rest = arith.subf(rest, arith.extf(x.type, parts[-1]))
        parts.append(arith.truncf(narrow, rest))
    size, zero = math.absf(x), mlir.constant(0.0, x.type)
    inside = arith.andi(
        arith.cmpf(arith.CmpFPredicate.OGE, size, mlir.constant(TINY, x.type)),
        arith.cmpf(arith.CmpFPredicate.OLT, size, mlir.constant(HUGE, x.type)),
    )
    ordinary = arith.ori(inside, arith.cmpf(arith.CmpFPredicate.OEQ, x, zero))
    marks = [float("nan"), *(0.0 for _ in parts[1:])]
    return [arith.select(ordinary, part, mlir.constant(mark, narrow)) for part, mark in zip(parts, marks)]


__all__ = ["COUNT", "KIND", "PRODUCTS", "Parted", "joined", "parted", "products_of", "split"]
