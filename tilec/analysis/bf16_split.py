"""f32 numbers as sums of three bf16 numbers, which matrix units multiply: together these hold all 24 bits of an f32.

    x = p0 + p1 + p2        p0 = bf16(x), p1 = bf16(x - p0), p2 = bf16(x - p0 - p1)

Of the nine products of two numbers' parts, six are computed. The others are at most 2^-23 of the whole product together.
A number whose parts would leave the range of bf16, or are not finite, is marked: p0 is NaN, and a sum that it goes into is
computed from the numbers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.core import mlir
from tilec.core.mlir import arith, ir, math

KIND = "bf16x3"
"""The multiplicand's name."""
COUNT = 3
PRODUCTS = ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))
"""Parts of the left and of the right factor, the smallest products first."""
TINY, HUGE = 2.0**-100, 2.0**127


@dataclass(frozen=True)
class Parted:
    """A factor that is read in its parts, or as a `whole` where it is marked."""

    whole: ir.Value
    parts: tuple[ir.Value, ...]


def parted(factor: ir.Value) -> Parted | None:
    """A factor that `joined` made."""
    select = mlir.definition(factor)
    if select is None or select.name != "arith.select":
        return None
    _, total, whole = select.operands
    parts: list[ir.Value] = []
    while (owner := mlir.definition(total)) is not None and owner.name == "arith.addf":
        total, part = owner.operands
        parts.append(part)
    parts.append(total)
    narrow = [mlir.definition(p) for p in parts]
    if len(parts) != COUNT or not all(o is not None and _is_widened(o) for o in narrow):
        return None
    return Parted(whole, tuple(parts))


def _is_widened(op: ir.Operation) -> bool:
    return op.name == "arith.extf" and isinstance(op.operands[0].type, ir.BF16Type)


def joined(whole: ir.Value, parts: list[ir.Value]) -> ir.Value:
    """A number of its parts, bf16. The whole is what is not taken: a load that is taken becomes a part of the condition
    (`passes/predicate_loads.py`)."""
    wide = [arith.extf(whole.type, p) for p in parts]
    total = wide[-1]
    for part in reversed(wide[:-1]):
        total = arith.addf(total, part)
    return arith.select(arith.cmpf(arith.CmpFPredicate.ORD, wide[0], wide[0]), total, whole)


def parts_of(x: ir.Value) -> list[ir.Value]:
    """Those of an f32."""
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


__all__ = ["COUNT", "KIND", "PRODUCTS", "Parted", "joined", "parted", "parts_of"]
