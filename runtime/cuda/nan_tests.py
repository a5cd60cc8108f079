"""Tests for NaN, some of which NVVM's LLVM 7 folds wrongly for constants (`docs/upstream/nvvm-nan-constant.md`)."""

from __future__ import annotations

from numba_cuda_mlir._mlir import ir

_ORDERED, _UNORDERED = 7, 14
_MEANT = dict.fromkeys((1, 3, 5, _ORDERED), _ORDERED) | dict.fromkeys((9, 11, 13, _UNORDERED), _UNORDERED)
"""LLVM's numbers of comparisons that are, of a number with itself, tests for NaN: oeq, oge, ole, ord; ugt, ult, une, uno."""


def keep_nan_tests(module: ir.Module) -> None:
    """Comparisons of a number with itself become comparisons with 0.

    NVVM does not fold operations on constants that give NaN, such as 0/0 in an unrolled loop, but takes the expression to be
    equal to itself.
    """
    tests: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "llvm.fcmp" and hash(op.operands[0]) == hash(op.operands[1]):  # `==` makes an operation
            tests.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in tests:
        predicate = op.attributes["predicate"]
        meant = _MEANT.get(ir.IntegerAttr(predicate).value)
        if meant is not None:
            with ir.InsertionPoint(op), op.location:
                zero: dict[str, ir.Attribute] = {"value": ir.FloatAttr.get(op.operands[0].type, 0.0)}
                op.operands[1] = ir.Operation.create(
                    "llvm.mlir.constant", results=[op.operands[0].type], attributes=zero
                ).result
            op.attributes["predicate"] = ir.IntegerAttr.get(predicate.type, meant)
