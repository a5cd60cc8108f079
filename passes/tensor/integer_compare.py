"""compare: a fraction of random bits is compared as an integer, if the other side is the same for many elements.

    f32(word >> 8) * 2^-24 >= p    ->    word >> 8 >= t,    t = ceil(p * 2^24) within 0 .. 2^24

The rewrite is exact, infinities and NaN included: up to 24 bits become a float without rounding, and powers of two scale
without rounding. `t` is computed once. The conversion and the product of every element disappear.
"""

from __future__ import annotations

from math import frexp

from tilec.analysis.float_ranges import is_shared
from tilec.core import mlir
from tilec.core.mlir import arith, ir
from tilec.core.mlir import math as math_ops

WORD, EXACT = 32, 24  # bits of a word, and of a whole number that is sure to be a float32
_SWAPPED = {2: 4, 4: 2, 3: 5, 5: 3, 9: 11, 11: 9, 10: 12, 12: 10}  # predicates of arith.cmpf: of (a, b), and of (b, a)
_AT_LEAST, _STRICT, _ORDERED = {2, 3, 9, 10}, {2, 5, 9, 12}, {2, 3, 4, 5}  # > or >=; > or its opposite; false for NaN


def compare_whole(module: ir.Operation) -> None:
    for op in [o for o in mlir.traverse(module) if o.name == "arith.cmpf"]:
        around = op.parent.operation
        if mlir.is_generic(around) and "reduction" in mlir.iterators_of(around):
            continue  # states are combined by the same comparison as elements
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        for (left, right), asked in ((op.operands, predicate), (reversed(list(op.operands)), _SWAPPED.get(predicate))):
            if asked in _SWAPPED and (found := _fraction(left)) is not None and is_shared(right):
                with ir.InsertionPoint(op), op.location:
                    op.results[0].replace_all_uses_with(_compare(*found, right, asked))
                op.erase()
                break


def _fraction(value: ir.Value) -> tuple[ir.Operation, float] | None:
    """The shift of a word to its upper bits, and the power of two that multiplies them as a float32."""
    op, scale = mlir.definition(value), 1.0
    if op is not None and op.name == "arith.mulf" and (known := mlir.constant_value(op.operands[1])) is not None:
        op, scale = mlir.definition(op.operands[0]), float(known)
    if op is None or op.name not in ("arith.sitofp", "arith.uitofp") or str(op.results[0].type) != "f32":
        return None
    upper = mlir.definition(op.operands[0])
    if upper is None or upper.name != "arith.shrui" or str(upper.results[0].type) != f"i{WORD}":
        return None
    bits = WORD - (mlir.constant_value(upper.operands[1]) or 0)
    power = frexp(scale)[0] == 0.5 and 2.0**-64 <= scale <= 1  # its inverse scales without rounding, too
    return (upper, scale) if power and 0 < bits <= EXACT else None


def _compare(upper: ir.Operation, scale: float, limit: ir.Value, predicate: int) -> ir.Value:
    """Of whole numbers: n >= t or n < t, where t is the least that is at least, or more than, the limit over the scale."""
    at_least, single = predicate in _AT_LEAST, ir.F32Type.get()
    number = upper.results[0]
    zero, end = (mlir.constant(x, single) for x in (0.0, 2.0 ** (WORD - mlir.constant_value(upper.operands[1]))))
    t = arith.mulf(limit, mlir.constant(1 / scale, single))
    t = arith.addf(math_ops.floor(t), mlir.constant(1.0, single)) if predicate in _STRICT else math_ops.ceil(t)
    below, above = (arith.CmpFPredicate.OLT, end), (arith.CmpFPredicate.OGT, zero)
    # the first bound takes the place of a NaN: no number is as large as the end, and all are at least 0
    for test, bound in (below, above) if at_least == (predicate in _ORDERED) else (above, below):
        t = arith.select(arith.cmpf(test, t, bound), t, bound)
    asked = arith.CmpIPredicate.uge if at_least else arith.CmpIPredicate.ult
    return arith.cmpi(asked, number, arith.fptosi(number.type, t))
