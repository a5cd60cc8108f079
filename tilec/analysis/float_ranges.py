"""Ranges of floats, and whether a value of a body is one for many elements: what conditions of rules ask."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilec.analysis import softmax_weights as weights
from tilec.core import mlir
from tilec.core.functions import FUNCTIONS
from tilec.core.mlir import ir

Range = tuple[float, float]
NEAR = 1.0 + 2.0**-10
"""Sines and cosines are no larger, whatever their errors, and those of such numbers need no reduction."""
_IMAGES = {row.mlir: row.image for row in FUNCTIONS.values() if row.mlir.startswith("math.")}


def is_shared(value: ir.Value) -> bool:
    """Whether a value of a body is the same for many elements, since its operands lack a dimension."""
    op = mlir.definition(value)
    if op is None:
        owner = value.owner.owner.operation
        if not mlir.is_generic(owner):
            return True
        dims = mlir.map_dims(mlir.maps_of(owner)[ir.BlockArgument(value).arg_number])
        return len(mlir.iterators_of(owner)) - 1 not in dims
    if op.name == "linalg.index":
        return mlir.index_dim(op) != len(mlir.iterators_of(op.parent.operation)) - 1
    operands = list(op.operands)[1:] if op.name == "tensor.extract" else op.operands  # one element of any tensor
    return not len(op.regions) and all(is_shared(v) for v in operands)


def range_of(value: ir.Value) -> Range:
    """The least and the greatest value that a float may have, NaN apart."""
    everything = (-math.inf, math.inf)
    known = mlir.constant_value(value)
    if known is not None:
        return float(known), float(known)
    op = mlir.definition(value)
    if op is None or not str(value.type).startswith(("f", "bf")):
        return everything
    inner: Callable[[int], Range] = lambda n: range_of(op.operands[n])  # noqa: E731
    match op.name:
        case "arith.negf":
            low, high = inner(0)
            return -high, -low
        case "arith.extf" | "arith.truncf":
            return inner(0)
        case "arith.maximumf" | "arith.minimumf":
            pick = max if op.name == "arith.maximumf" else min
            (a, b), (c, d) = inner(0), inner(1)
            return pick(a, c), pick(b, d)
        case "arith.select":
            (a, b), (c, d) = inner(1), inner(2)
            return min(a, c), max(b, d)
        case "arith.subf" if weights.dims_of_maximum(*op.operands) is not None:
            return -math.inf, 0.0
        case "arith.mulf" if op.operands[0] == op.operands[1]:
            return 0.0, math.inf
        case "arith.mulf" | "arith.divf" | "arith.addf" if inner(0)[0] >= 0 and inner(1)[0] >= 0:
            return 0.0, math.inf
        case "math.exp" | "math.exp2" if inner(0)[1] <= 0:
            return 0.0, 1.0
        case "math.log1p" if inner(0)[0] >= 0:
            return 0.0, math.inf
        case "math.sin" | "math.cos":
            return -NEAR, NEAR
        case "arith.uitofp":
            return 0.0, math.inf
    return _IMAGES.get(op.name, everything)
