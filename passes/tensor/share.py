"""Equal operations become one: a maximum that `softmax` and `logsumexp` of the same tensor both take is computed once.

    %m = generic {max} ins(%x)  {tilec.name = "logsumexp.m"}
    %n = generic {max} ins(%x)  {tilec.name = "softmax.m"}      ->   %m = ..., and %m in place of %n

Upstream's `cse` does not see them as equal, since they differ in their names. Two results of the program stay two operations: one
would have to be copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.core import mlir
from tilec.core.mlir import ir

NAMES = ("tilec.name", "tilec.indices")  # attributes in which equal operations may differ


def share_equal(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        block = mlir.entry(function)
        returned = {v for v in list(block.operations)[-1].operands}
        seen: dict[tuple, list[ir.Operation]] = {}
        for op in [o.operation for o in block.operations]:
            if not mlir.is_generic(op):
                continue
            others = seen.setdefault(tuple(op.operands), [])  # of a later one those that were shared are the first's
            first = next((o for o in others if _equal(o, op, {})), None)
            if first is None:
                others.append(op)
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


def _equal(a: ir.Operation, b: ir.Operation, known: dict[ir.Value, ir.Value]) -> bool:
    """Whether two operations compute the same; `known` takes values of the first to those of the second."""
    if a.name != b.name or _attributes(a) != _attributes(b):
        return False
    if [r.type for r in a.results] != [r.type for r in b.results] or not _same(a.operands, b.operands, known):
        return False
    for one, other in zip(a.regions, b.regions):
        if len(one.blocks) != len(other.blocks):
            return False
        for mine, its in zip(one.blocks, other.blocks):
            if [v.type for v in mine.arguments] != [v.type for v in its.arguments]:
                return False
            known |= dict(zip(mine.arguments, its.arguments))
            first, second = ([o.operation for o in block.operations] for block in (mine, its))
            if len(first) != len(second) or not all(_equal(x, y, known) for x, y in zip(first, second)):
                return False
    known |= dict(zip(a.results, b.results))
    return len(a.regions) == len(b.regions)


def _same(first: Sequence[ir.Value], second: Sequence[ir.Value], known: dict[ir.Value, ir.Value]) -> bool:
    return len(first) == len(second) and all(known.get(a, a) == b for a, b in zip(first, second))


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes if name not in NAMES}
