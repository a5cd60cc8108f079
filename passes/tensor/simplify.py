"""simplify: algebra that upstream's canonicalizer does not know.

x / 2.0          ->  x * 0.5            exact: the divisor is a power of two
f32(x) or 0      ->  f32(x or bf16(0))  a choice of 0 before the widening: an element, or 0, is loaded under a condition
sum of nothing   ->  0                  a reduction whose range is empty is its identity, a constant like any other
x[i] for no i    ->                     a tensor without elements is not computed
x[i] if false    ->                     an unused tensor is not read, and its producers are not computed
c[i] = 2; c[i]   ->  2                  in other operations, so that they fold here, before anything is planned
rsqrt of a sqrt, exp of a log and the like stay as written: they round differently
"""

from __future__ import annotations

import math

from tilec.core import mlir
from tilec.core.mlir import arith, ir, linalg, tensor
from tilec.passes.rebuild import Anew, operands_in, rebuild, replace
from tilec.passes.tensor.bounds import fold_bounds
from tilec.passes.tensor.elements import forward_elements


def simplify(module: ir.Operation) -> bool:
    """Whether anything changed."""
    changed = False
    for op in list(mlir.traverse(module)):
        if op.name == "arith.divf":
            changed |= _divide_by_power_of_two(op)
        elif op.name == "arith.select":
            changed |= _choose_before_widening(op)
        elif mlir.is_generic(op):
            changed |= _reduce_nothing(op)
    for op in [o for o in mlir.traverse(module) if _is_constant(o)]:
        changed |= _spread_constant(op)
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if all(0 in ir.ShapedType(r.type).shape for r in op.results):
            _make_nothing(op)
            changed = True
    return changed


def settle(module: ir.Operation) -> None:
    """Repeats the folding until nothing changes, so that all planned operations still exist when they are compiled."""
    fold = mlir.PassManager.parse("builtin.module(canonicalize,cse)")
    while simplify(module) | _drop_all_unread(module):  # after all is folded: `a if true else b` reads `b` until then
        fold.run(module)
        forward_elements(module)
        fold_bounds(module)
        fold.run(module)


def _drop_all_unread(module: ir.Operation) -> bool:
    return any([_drop_unread(op) for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]])


def _divide_by_power_of_two(op: ir.Operation) -> bool:
    divisor = mlir.constant_value(op.operands[1])
    if divisor is None or not math.isfinite(divisor) or abs(math.frexp(divisor)[0]) != 0.5:
        return False
    inverse = 1 / divisor
    if not 1e-30 < abs(inverse) < 1e30:  # a subnormal inverse would round
        return False
    with ir.InsertionPoint(op), op.location:
        product = arith.mulf(op.operands[0], mlir.constant(inverse, op.results[0].type))
    op.results[0].replace_all_uses_with(product)
    op.erase()
    return True


def _choose_before_widening(op: ir.Operation) -> bool:
    condition, taken, otherwise = op.operands
    widened, zero = mlir.definition(taken), mlir.constant_value(otherwise)
    if widened is None or widened.name not in ("arith.extf", "arith.extsi") or len(mlir.uses(taken)) > 1:
        return False
    if zero is None or zero != 0 or math.copysign(1, zero) < 0:
        return False
    narrow = widened.operands[0]
    with ir.InsertionPoint(op), op.location:
        chosen = arith.select(condition, narrow, mlir.constant(0, narrow.type))
        wide = ir.Operation.create(widened.name, results=[taken.type], operands=[chosen])
    op.results[0].replace_all_uses_with(wide.results[0])
    op.erase()
    widened.erase()
    return True


def _reduce_nothing(op: ir.Operation) -> bool:
    """Replaces a reduction over an empty range by its identity: a kernel without a step would never write it."""
    kinds = mlir.iterators_of(op)
    if not any(k == "reduction" and e == 0 for k, e in zip(kinds, mlir.extents_of(op))):
        return False
    if len(op.results) != 1 or "tilec.scan" in op.attributes:
        return False
    (start,), (out_map,) = mlir.outputs_of(op), mlir.maps_of(op)[len(mlir.inputs_of(op)) :]
    fill = mlir.definition(start)
    if fill is None or fill.name != "linalg.fill":
        return False
    order = {d: n for n, d in enumerate(d for d, k in enumerate(kinds) if k == "parallel")}
    type_ = ir.RankedTensorType(op.results[0].type)
    with ir.InsertionPoint(op), op.location:
        empty = tensor.EmptyOp(list(type_.shape), type_.element_type).result
        target = mlir.projection(len(order), [order[d] for d in mlir.map_dims(out_map)])
        made, block = mlir.generic([type_], [], [empty], [target], ["parallel"] * len(order))
        made.attributes["tilec.name"] = op.attributes["tilec.name"]
        with ir.InsertionPoint(block):
            linalg.YieldOp([fill.operands[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
    return True


def _make_nothing(op: ir.Operation) -> None:
    """Later stages would leave it out, and with it dimensions that the plan of a kernel speaks of."""
    for result in op.results:
        type_ = ir.RankedTensorType(result.type)
        with ir.InsertionPoint(op), op.location:
            result.replace_all_uses_with(tensor.EmptyOp(list(type_.shape), type_.element_type).result)
    op.erase()


def _is_constant(op: ir.Operation) -> bool:
    """Whether all elements of the tensor that it makes are one constant."""
    if not mlir.is_generic(op) or mlir.inputs_of(op) or len(op.results) != 1:
        return False
    (*body, end) = mlir.body_of(op).operations
    return not body and mlir.constant_value(end.operands[0]) is not None


def _spread_constant(op: ir.Operation) -> bool:
    """A tensor of one constant is that constant to whoever reads it element by element."""
    (end,) = mlir.body_of(op).operations
    changed = False
    for user in dict.fromkeys(mlir.uses(op.results[0])):
        if mlir.is_generic(user):
            read = {n for n, value in enumerate(mlir.inputs_of(user)) if value == op.results[0]}
            if any(mlir.uses(mlir.body_of(user).arguments[n]) for n in read):
                _without_inputs(user, read, end.operands[0])
                changed = True
    return changed


def _drop_unread(op: ir.Operation) -> bool:
    """Removes inputs that the body does not use, which would keep their producers alive."""
    changed = False
    while (n := _unread(op)) is not None:
        value, kept = mlir.inputs_of(op)[n], _without_inputs(op, {n})
        if kept is op:
            type_ = ir.RankedTensorType(value.type)
            with ir.InsertionPoint(op), op.location:
                op.operands[n] = tensor.EmptyOp(list(type_.shape), type_.element_type).result
        op, changed = kept, True
    return changed


def _unread(op: ir.Operation) -> int | None:
    pairs = zip(mlir.inputs_of(op), mlir.body_of(op).arguments)
    return next((n for n, (value, a) in enumerate(pairs) if not mlir.uses(a) and not _is_empty(value)), None)


def _is_empty(value: ir.Value) -> bool:
    owner = mlir.definition(value)
    return owner is not None and owner.name == "tensor.empty"


def _without_inputs(op: ir.Operation, dropped: set[int], element: ir.Value | None = None) -> ir.Operation:
    """The operation with `element` in place of its reads of some inputs; inputs that alone tell a size remain."""
    inputs, maps = mlir.inputs_of(op), mlir.maps_of(op)
    kept = [n for n in range(len(inputs)) if n not in dropped]
    kept_maps = [*(maps[n] for n in kept), *maps[len(inputs) :]]
    if len({d for m in kept_maps for d in mlir.map_dims(m)}) < maps[0].n_dims:
        for n, argument in enumerate(mlir.body_of(op).arguments):
            if n in dropped and element is not None:
                argument.replace_all_uses_with(element)
        return op

    def body(here: Anew) -> list[ir.Value]:
        here.element = lambda _: element
        return here.values()

    with ir.InsertionPoint(op), op.location:
        read = operands_in(op)
        return replace(op, rebuild(op, operands=[read[n] for n in kept], body=body))
