"""Guarded loads: a clamped load whose result is used only inside the bounds becomes a load under a condition.

    i1 = min(max(i, 0), 9)                          inside = i >= 0 and i < 10
    x = load a[i1]                             ->   y = if inside { load a[i] } else { 0 }
    y = select(i >= 0 and i < 10, x, 0)

The clamped form has no branch, but its subscript is no sum of loop variables, so that SIMD compilers make a gather of it.
They turn the guarded form into a masked load.
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import arith, ir, scf

AT_LEAST, BELOW = arith.CmpIPredicate.sge, arith.CmpIPredicate.slt


def guard_loads(block: ir.Block) -> None:
    """Rewrites the selects of a body whose taken value is a load that nothing else reads."""
    for view in list(block.operations):
        op = view.operation
        if op.name != "arith.select" or len(op.operands) != 3:
            continue
        condition, taken, otherwise = op.operands
        load = mlir.definition(taken)
        if load is not None and load.name == "memref.load" and load.block == block and len(mlir.uses(taken)) == 1:
            _guard(op, load, condition, otherwise)


def _guard(select: ir.Operation, load: ir.Operation, condition: ir.Value, otherwise: ir.Value) -> None:
    known = bounds_of(condition)
    with ir.InsertionPoint(select), select.location:
        made = scf.IfOp(condition, [select.results[0].type], has_else=True)
        with ir.InsertionPoint(made.then_block):
            copy = mlir.clone_op(load, {})
            for n, index in enumerate(list(load.operands)[1:], 1):
                copy.operands[n] = unclamped(index, known)
            scf.YieldOp(list(copy.results))
        with ir.InsertionPoint(made.else_block):
            scf.YieldOp([otherwise])
    select.results[0].replace_all_uses_with(made.results[0])
    select.erase()
    load.erase()


def bounds_of(condition: ir.Value) -> set[tuple[ir.Value, bool, int]]:
    """(value, whether from below, bound) of every comparison that a conjunction is made of."""
    owner = mlir.definition(condition)
    if owner is None:
        return set()
    if owner.name == "arith.andi":
        return bounds_of(owner.operands[0]) | bounds_of(owner.operands[1])
    if owner.name == "arith.cmpi" and (limit := mlir.constant_value(owner.operands[1])) is not None:
        predicate = ir.IntegerAttr(owner.attributes["predicate"]).value
        if predicate in (AT_LEAST.value, BELOW.value):
            return {(owner.operands[0], predicate == AT_LEAST.value, int(limit))}
    return set()


def unclamped(index: ir.Value, known: set[tuple[ir.Value, bool, int]]) -> ir.Value:
    """The subscript inside a clamp whose bounds the condition implies."""
    upper = mlir.definition(index)
    if upper is None or upper.name not in ("arith.maxsi", "arith.minsi"):
        return index
    inner, limit = upper.operands
    bound = mlir.constant_value(limit)
    raw = unclamped(inner, known)
    from_below = upper.name == "arith.maxsi"
    implied = bound is not None and any(
        value == raw and below == from_below and (at >= bound if below else at <= bound + 1)
        for value, below, at in known
    )
    return raw if implied else index


__all__ = ["bounds_of", "guard_loads", "unclamped"]
