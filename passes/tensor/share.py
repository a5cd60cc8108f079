"""Equal operations become one: a maximum that `softmax` and `logsumexp` of the same tensor both take is computed once.

    %m = generic {max} ins(%x)  {tilec.name = "logsumexp.m"}
    %n = generic {max} ins(%x)  {tilec.name = "softmax.m"}      ->   %m = ..., and %m in place of %n

Upstream's `cse` does not see them as equal, since they differ in their names. Two results of the program stay two operations: one
would have to be copied.
"""

from __future__ import annotations

from collections.abc import Hashable

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.structure import NAMES, structure_of


def share_equal(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        block = mlir.entry(function)
        returned = {v for v in list(block.operations)[-1].operands}
        seen: dict[Hashable, ir.Operation] = {}
        for op in [o.operation for o in block.operations]:
            if not mlir.is_generic(op):
                continue
            first = seen.setdefault(structure_of(op), op)  # of a later one operands that were shared are the first's
            if first is op:
                continue
            mine, its = (any(r in returned for r in o.results) for o in (op, first))
            if mine and its:
                continue
            if mine:
                for name in NAMES:
                    if name in op.attributes:
                        first.attributes[name] = op.attributes[name]
                returned |= set(first.results)
            for before, after in zip(op.results, first.results):
                before.replace_all_uses_with(after)
            op.erase()
