"""Folds clamps and comparisons whose result follows from the ranges of indices, and of elements.

    %i = linalg.index 0        (of 32)           %i = linalg.index 0
    %c = minsi %i, 31                     ->
    %x = extract %t[%c], if %i < 32              %x = extract %t[%i], if true

A padded window clamps and checks every subscript. Most of these subscripts are the dimension's own index, and never leave
its range. Others are elements of a tensor that another operation has clamped.
"""

from __future__ import annotations

from tilec.analysis.index_terms import BITS, BodyTerms
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.index.facts import NONE, Ends


def fold_bounds(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        fold_function(function)


def fold_function(function: ir.Operation) -> None:
    elements: dict[ir.Value, Ends] = {}  # of results
    for op in [o for o in mlir.traverse(function) if mlir.is_generic(o)]:
        terms = BodyTerms(op, elements=elements)
        for view in list(terms.block.operations):
            _fold(terms, view.operation)
        if "reduction" not in mlir.iterators_of(op):
            made = zip(op.results, list(terms.block.operations)[-1].operands)
            elements |= {r: NONE.bounds(terms.exact(v)) for r, v in made if str(v.type) in BITS}


def _fold(terms: BodyTerms, op: ir.Operation) -> None:
    if op.name in ("arith.minsi", "arith.maxsi"):
        a, b = map(terms.exact, op.operands)
        smaller = 0 if NONE.proves(b - a) else 1 if NONE.proves(a - b) else None
        if smaller is not None:
            op.results[0].replace_all_uses_with(op.operands[smaller if op.name == "arith.minsi" else 1 - smaller])
    elif op.name == "arith.cmpi" and (holds := NONE.decide(terms.holds(op.results[0]))) is not None:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(mlir.constant(holds, op.results[0].type))
