"""Folds clamps and comparisons whose result follows from the ranges of indices, and of elements.

    %i = linalg.index 0        (of 32)           %i = linalg.index 0
    %c = minsi %i, 31                     ->
    %x = extract %t[%c], if %i < 32              %x = extract %t[%i], if true

A padded window clamps and checks every subscript. Most of these subscripts are the dimension's own index, and never leave
its range. Others are elements of a tensor that another operation has clamped.
"""

from __future__ import annotations

from tilec.analysis.index_ranges import Range, Ranges
from tilec.core import mlir
from tilec.core.mlir import ir

_HOLDS = {  # cmpi predicates: when (a, b) is always true, and when always false
    2: lambda a, b: (a[1] < b[0], a[0] >= b[1]), 3: lambda a, b: (a[1] <= b[0], a[0] > b[1]),
    4: lambda a, b: (a[0] > b[1], a[1] <= b[0]), 5: lambda a, b: (a[0] >= b[1], a[1] < b[0]),
}  # fmt: skip


def fold_bounds(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        fold_function(function)


def fold_function(function: ir.Operation) -> None:
    elements: dict[ir.Value, Range | None] = {}
    for op in [o for o in mlir.traverse(function) if mlir.is_generic(o)]:
        folder = _Folder(op, elements)
        folder.fold()
        elements.update(folder.results())


class _Folder:
    """Of an operation that reads tensors whose elements are known to be in these ranges."""

    def __init__(self, generic: ir.Operation, elements: dict[ir.Value, Range | None]):
        self.generic, self.extents = generic, mlir.extents_of(generic)
        self.ranges = Ranges(self._index, elements.get)

    def _index(self, op: ir.Operation) -> Range | None:
        extent = self.extents[ir.IntegerAttr(op.attributes["dim"]).value] if op.name == "linalg.index" else 0
        return (0, extent - 1) if extent > 0 else None

    def results(self) -> dict[ir.Value, Range | None]:
        """The ranges of what the operation makes, where it does not reduce."""
        if "reduction" in mlir.iterators_of(self.generic):
            return {}
        made = list(mlir.body_of(self.generic).operations)[-1].operands
        return {result: self.ranges.of(value) for result, value in zip(self.generic.results, made)}

    def fold(self) -> None:
        for view in list(mlir.body_of(self.generic).operations):
            op = view.operation
            match op.name:
                case "arith.minsi" | "arith.maxsi":
                    self._extremum(op)
                case "arith.cmpi":
                    self._comparison(op)

    def _extremum(self, op: ir.Operation) -> None:
        a, b = (self.ranges.of(v) for v in op.operands)
        if a is None or b is None:
            return
        smaller = 0 if a[1] <= b[0] else 1 if b[1] <= a[0] else None
        if smaller is not None:
            chosen = smaller if op.name == "arith.minsi" else 1 - smaller
            op.results[0].replace_all_uses_with(op.operands[chosen])

    def _comparison(self, op: ir.Operation) -> None:
        holds = _HOLDS.get(ir.IntegerAttr(op.attributes["predicate"]).value)
        ranges = [self.ranges.of(v) for v in op.operands]
        if holds is None or None in ranges:
            return
        always, never = holds(*ranges)
        if always or never:
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(mlir.constant(always, op.results[0].type))
