"""simplify: algebra that upstream's canonicalizer does not know.

x / 2.0          ->  x * 0.5            and the other rules of `tilec/analysis/rules.py` for this stage, all exact
sum of nothing   ->  0                  a reduction whose range is empty is its identity, a constant like any other
x[i] for no i    ->                     a tensor without elements is not computed
x[i] if false    ->                     an unused tensor is not read, and its producers are not computed
c[i] = 2; c[i]   ->  2                  in other operations, so that they fold here, before anything is planned
rsqrt of a sqrt, exp of a log and the like stay as written: they round differently
"""

from __future__ import annotations

from tilec.analysis.rules import rules_for
from tilec.core import extents, mlir
from tilec.core.mlir import ir, linalg
from tilec.passes.emit import substitute
from tilec.passes.rebuild import Anew, operands_in, rebuild, replace
from tilec.passes.tensor.bounds import fold_bounds
from tilec.passes.tensor.elements import forward_elements


def simplify(module: ir.Operation) -> bool:
    """Whether anything changed."""
    changed = False
    for op in list(mlir.traverse(module)):
        if mlir.is_generic(op):
            changed |= _reduce_nothing(op)
        elif len(op.results) == 1 and (fitting := next(rules_for(op.results[0], "simplify"), None)) is not None:
            rule, found = fitting
            substitute(op, rule.replace(op.results[0], found))
            changed = True
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


def _reduce_nothing(op: ir.Operation) -> bool:
    """Replaces a reduction over an empty range by its identity: a kernel without a step would never write it."""
    kinds = mlir.iterators_of(op)
    if not any(k == "reduction" and e == 0 for k, e in zip(kinds, mlir.extents_of(op))):
        return False
    if len(op.results) != 1 or "tilec.scan" in op.attributes:
        return False
    (start,), (out_map,) = mlir.outputs_of(op), mlir.maps_of(op)[len(mlir.inputs_of(op)) :]
    if (identity := mlir.fill_value(start)) is None:
        return False
    order = {d: n for n, d in enumerate(d for d, k in enumerate(kinds) if k == "parallel")}
    type_ = ir.RankedTensorType(op.results[0].type)
    with ir.InsertionPoint(op), op.location:
        empty = extents.empty_like(op.results[0])
        target = mlir.projection(len(order), [order[d] for d in mlir.map_dims(out_map)])
        made, block = mlir.generic([type_], [], [empty], [target], ["parallel"] * len(order))
        made.attributes["tilec.name"] = op.attributes["tilec.name"]
        with ir.InsertionPoint(block):
            linalg.YieldOp([identity])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
    return True


def _make_nothing(op: ir.Operation) -> None:
    """Later stages would leave it out, and with it dimensions that the plan of a kernel speaks of."""
    for result in op.results:
        with ir.InsertionPoint(op), op.location:
            result.replace_all_uses_with(extents.empty_like(result))
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
            with ir.InsertionPoint(op), op.location:
                op.operands[n] = extents.empty_like(value)
        op, changed = kept, True
    return changed


def _unread(op: ir.Operation) -> int | None:
    pairs = zip(mlir.inputs_of(op), mlir.body_of(op).arguments)
    return next((n for n, (value, a) in enumerate(pairs) if not mlir.uses(a) and not mlir.is_empty(value)), None)


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
