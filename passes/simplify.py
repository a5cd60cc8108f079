"""simplify: algebra that upstream's canonicalizer does not know.

x / 2.0          ->  x * 0.5            exact: the divisor is a power of two
rsqrt of a sqrt, exp of a log and the like stay as written: they round differently
"""

from __future__ import annotations

import math

from tilec import mlir
from tilec.mlir import arith, ir


def simplify(module: ir.Operation) -> None:
    for op in list(mlir.walk(module)):
        if op.name == "arith.divf":
            _divide_by_power_of_two(op)


def _divide_by_power_of_two(op: ir.Operation) -> None:
    divisor = mlir.constant_value(op.operands[1])
    if divisor is None or not math.isfinite(divisor) or abs(math.frexp(divisor)[0]) != 0.5:
        return
    inverse = 1 / divisor
    if not 1e-30 < abs(inverse) < 1e30:  # a subnormal inverse would round
        return
    with ir.InsertionPoint(op), op.location:
        product = arith.mulf(op.operands[0], mlir.constant(inverse, op.results[0].type))
    op.results[0].replace_all_uses_with(product)
    op.erase()
