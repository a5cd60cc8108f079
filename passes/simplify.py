"""simplify: algebra that upstream's canonicalizer does not know.

x / 2.0          ->  x * 0.5            exact: the divisor is a power of two
sum of nothing   ->  0                  a reduction whose range is empty is its identity, a constant like any other
c[i] = 2; c[i]   ->  2                  in other operations: what folds then does so here, before anything is planned
rsqrt of a sqrt, exp of a log and the like stay as written: they round differently
"""

from __future__ import annotations

import math

from tilec import mlir
from tilec.mlir import arith, ir, linalg, tensor


def simplify(module: ir.Operation) -> None:
    for op in list(mlir.walk(module)):
        if op.name == "arith.divf":
            _divide_by_power_of_two(op)
        elif mlir.is_generic(op):
            _reduce_nothing(op)
    for op in [o for o in mlir.walk(module) if mlir.is_generic(o)]:
        _spread_constant(op)


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


def _reduce_nothing(op: ir.Operation) -> None:
    """A kernel without a single step would never write what its result starts from."""
    kinds = mlir.iterators_of(op)
    if not any(k == "reduction" and e == 0 for k, e in zip(kinds, mlir.extents_of(op))):
        return
    if len(op.results) != 1 or "tilec.scan" in op.attributes:
        return
    (start,), (place,) = mlir.outputs_of(op), mlir.maps_of(op)[len(mlir.inputs_of(op)) :]
    fill = mlir.definition(start)
    if fill is None or fill.name != "linalg.fill":
        return
    order = {d: n for n, d in enumerate(d for d, k in enumerate(kinds) if k == "parallel")}
    type_ = ir.RankedTensorType(op.results[0].type)
    with ir.InsertionPoint(op), op.location:
        empty = tensor.EmptyOp(list(type_.shape), type_.element_type).result
        target = mlir.projection(len(order), [order[d] for d in mlir.map_dims(place)])
        made, block = mlir.generic([type_], [], [empty], [target], ["parallel"] * len(order))
        made.attributes["tilec.name"] = op.attributes["tilec.name"]
        with ir.InsertionPoint(block):
            linalg.YieldOp([fill.operands[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _spread_constant(op: ir.Operation) -> None:
    """A tensor of one constant is that constant to whoever reads it element by element."""
    (*body, end) = mlir.body_of(op).operations
    if body or mlir.inputs_of(op) or len(op.results) != 1 or mlir.constant_value(end.operands[0]) is None:
        return
    for user in mlir.uses(op.results[0]):
        if mlir.is_generic(user):
            for value, element in zip(mlir.inputs_of(user), mlir.body_of(user).arguments):
                if value == op.results[0]:
                    element.replace_all_uses_with(end.operands[0])
