"""The structure of operations: equal for those that compute the same, but for their names and what they read."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from tilec.core.mlir import ir

NAMES = ("tilec.name", "tilec.indices")  # attributes in which equal operations may differ


def structure_of(*ops: ir.Operation, names: Collection[str] = NAMES) -> tuple[Hashable, tuple[ir.Value, ...]]:
    """What operations in a row are, and all in them, without locations and the attributes `names`; and the values from outside
    that they use. Operations of one structure do the same with their first such values, with their second ones, and so on."""
    values: dict[ir.Value, int] = {}
    inside: dict[ir.Value, int] = {}
    found = tuple([_structure(op, inside, values, names) for op in ops])
    return (found, tuple([v.type for v in values])), tuple(values)


def _structure(op: ir.Operation, inside: dict[ir.Value, int], outside: dict[ir.Value, int], names: Collection[str]) -> Hashable:
    given = op.attributes
    attributes = tuple([(name, given[name]) for name in given if name not in names])
    operands = []
    for v in op.operands:
        position = inside.get(v)
        operands.append(-1 - outside.setdefault(v, len(outside)) if position is None else position)
    regions = []
    for region in op.regions:
        blocks = []
        for block in region.blocks:
            arguments = tuple(v.type for v in block.arguments)
            for v in block.arguments:
                inside[v] = len(inside)
            inner = tuple([_structure(o.operation, inside, outside, names) for o in block.operations])
            blocks.append((arguments, inner))
        regions.append(tuple(blocks))
    for v in op.results:
        inside[v] = len(inside)
    return op.name, attributes, tuple(operands), tuple([v.type for v in op.results]), tuple(regions)
