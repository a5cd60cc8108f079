"""Guarded loads: a clamped load whose result is used only inside the bounds becomes a load under a condition.

    i1 = min(max(i, 0), 9)                          inside = i >= 0 and i < 10
    x = load a[i1]                             ->   y = if inside { load a[i] } else { 0 }
    y = select(i >= 0 and i < 10, x, 0)

The clamped form has no branch, but its subscript is no sum of loop variables, so that SIMD compilers make a gather of it.
They turn the guarded form into a masked load.
"""

from __future__ import annotations

from tilec.analysis.index_terms import BodyTerms, unclamped_value
from tilec.core import mlir
from tilec.core.mlir import ir, scf


def guard_loads(generic: ir.Operation) -> None:
    """Rewrites the selects of a body whose taken value is a load that nothing else reads."""
    block, terms, replaced = mlir.body_of(generic), BodyTerms(generic), list[ir.Operation]()
    for view in list(block.operations):
        op = view.operation
        if op.name != "arith.select" or len(op.operands) != 3:
            continue
        condition, taken, otherwise = op.operands
        load = mlir.definition(taken)
        if load is not None and load.name == "memref.load" and load.block == block and len(mlir.uses(taken)) == 1:
            _guard(terms, op, load, condition, otherwise)
            replaced += [op, load]
    for op in replaced:
        op.erase()


def _guard(
    terms: BodyTerms, select: ir.Operation, load: ir.Operation, condition: ir.Value, otherwise: ir.Value
) -> None:  # fmt: skip
    with ir.InsertionPoint(select), select.location:
        made = scf.IfOp(condition, [select.results[0].type], has_else=True)
        with ir.InsertionPoint(made.then_block):
            copy = mlir.clone_op(load, {})
            for n, index in enumerate(list(load.operands)[1:], 1):
                copy.operands[n] = unclamped_value(terms, index, terms.holds(condition))
            scf.YieldOp(list(copy.results))
        with ir.InsertionPoint(made.else_block):
            scf.YieldOp([otherwise])
    select.results[0].replace_all_uses_with(made.results[0])
