"""Vector gathers: rows at computed subscripts, of which neighbouring lanes read neighbouring elements.

    for lane { y[lane] = table[ids[b], d + lane] }   ->   t = vector.load table[ids[b], d]; for lane { y[lane] = t[lane] }

A load can be a vector if its last subscript increases with the lanes and begins at a multiple of their number, and no other
subscript depends on the lanes. If a condition that is the same for all lanes selects the loaded element or 0, as `pad` does, the
vector is loaded under that condition, at subscripts that need no clamp:

    for lane { y[lane] = select(0 <= i < 9, x[min(max(i, 0), 8), lane], 0) }   ->   t = 0; if 0 <= i < 9 { t = vector.load x[i, 0] }
"""

# mypy: no-strict-optional

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tilec.core import mlir
from tilec.core.mlir import ir, memref, vector
from tilec.passes.cuda.memory_spaces import is_local, root
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.loops import loop, sum_of, when
from tilec.passes.predicate_loads import bounds_of, unclamped


def wide_loads(generic: OperationContext) -> list[ir.Operation]:
    """The loads of a body that can move all lanes of a step at a time."""
    lanes = generic.layout.vectors[generic.layout.lane_dim] if generic.layout.lane_dim in generic.dims else 1
    if lanes == 1:
        return []
    return [
        o.operation
        for o in generic.block.operations
        if o.operation.name == "memref.load" and _is_wide(generic, o, lanes)
    ]


def _is_wide(generic: OperationContext, load: ir.OpView, lanes: int) -> bool:
    value, *subscripts = load.operands
    if not subscripts or is_local(value) or ir.MemRefType(root(value).type).shape[-1] % lanes:
        return False
    *others, last = subscripts
    return _moves(generic, last, lanes) and not any(_depends(generic, v, {}) for v in others)


def _moves(generic: OperationContext, value: ir.Value, lanes: int) -> bool:
    """Whether a subscript is the lanes' index, from a multiple of their number on."""
    owner = mlir.definition(value)
    if owner is not None and owner.name == "affine.apply":
        weights = mlir.linear(ir.AffineMapAttr(owner.attributes["map"]).value)
        if weights is None:
            return False
        *factors, constant = weights
        mine = [_is_lane(generic, v) for v in owner.operands]
        rest = [constant, *(f for f, m in zip(factors, mine) if not m)]
        return [f for f, m in zip(factors, mine) if m] == [1] and all(f % lanes == 0 for f in rest)
    return _is_lane(generic, value)


def _is_lane(generic: OperationContext, value: ir.Value) -> bool:
    return is_index(generic, value, generic.layout.lane_dim)


def is_index(generic: OperationContext, value: ir.Value, d: int | None) -> bool:
    """Whether a value is the index of a kernel dimension."""
    owner = mlir.definition(value)
    if owner is None or owner.name != "linalg.index":
        return False
    return generic.dims[ir.IntegerAttr(owner.attributes["dim"]).value] == d


def _depends(generic: OperationContext, value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether a value of the body differs between lanes."""
    if value in known:
        return known[value]
    owner = mlir.definition(value)
    if owner is None:
        mine = value.owner == generic.block
        return mine and generic.layout.lane_dim in generic.operand_dims[ir.BlockArgument(value).arg_number]
    if owner.block != generic.block:
        return False
    known[value] = _is_lane(generic, value) or any(
        _depends(generic, v, known) for o in (owner, *mlir.traverse(owner)) for v in o.operands if v not in o.results
    )
    return known[value]


def fetch(generic: OperationContext, load: ir.Operation) -> dict[ir.Operation, ir.Value]:
    """This thread's part of a wide load, in registers, for the operations of the body whose results it has: the load, or the
    selection of the loaded element or 0."""
    value, *subscripts = load.operands
    guard = _guard_of(generic, load)
    if guard is not None:
        known = bounds_of(guard.operands[0])
        subscripts = [unclamped(index, known) for index in subscripts]
    element = ir.MemRefType(value.type).element_type
    kernel, dims, lanes = generic.kernel, generic.dims, generic.layout.vectors[generic.layout.lane_dim]
    tile = kernel.private(dims, element, kernel.name_of(value), generic.layout)
    width = min(lanes, 128 // max(8, element.width))
    type_ = ir.VectorType.get([width], element)
    with generic.threads.slots(dims, generic.chunk, generic.sizes, lanes=False) as position:
        for begin in range(0, lanes, width):
            mapping: dict[ir.Value, ir.Value] = {}
            slot, condition = position.slot(dims, begin), nullcontext()
            if guard is not None:
                with loop(width, name="lane") as lane:
                    memref.StoreOp(mlir.constant(0, element), tile, [*slot[:-1], sum_of([(lane, 1)], begin)])
                condition = when(evaluate(generic, guard.operands[0], position, begin, mapping))
            with condition:
                at = [evaluate(generic, v, position, begin, mapping) for v in subscripts]
                vector.StoreOp(vector.LoadOp(type_, value, at).result, tile, slot)
    return {guard or load: tile}


def _guard_of(generic: OperationContext, load: ir.Operation) -> ir.Operation | None:
    """The selection of a loaded element or 0, which alone reads it, by a condition that is the same for all lanes."""
    uses = mlir.uses(load.results[0])
    if len(uses) != 1 or uses[0].name != "arith.select" or uses[0].block != generic.block:
        return None
    condition, taken, otherwise = uses[0].operands
    zero = taken == load.results[0] and str(mlir.constant_value(otherwise)) in ("0.0", "0", "False")  # but not -0.0
    return uses[0] if zero and not _depends(generic, condition, {}) else None


def evaluate(
    generic: OperationContext, value: ir.Value, position: Any, lane: int, mapping: dict[ir.Value, ir.Value]
) -> ir.Value:
    """A value of the body that does not vary otherwise, such as a subscript, at one lane of a step; `mapping` has the values known
    of it."""
    owner = mlir.definition(value)
    if value in mapping or (owner is not None and owner.block != generic.block):
        return mapping.get(value, value)
    if owner is None:
        if value.owner == generic.block:
            mapping[value] = generic.element(ir.BlockArgument(value).arg_number, position)
        return mapping.get(value, value)
    if owner.name == "linalg.index":
        mapping[value] = position.coordinate(generic.dims[ir.IntegerAttr(owner.attributes["dim"]).value], lane)
        return mapping[value]
    for inner in (owner, *mlir.traverse(owner)):
        for v in inner.operands:
            evaluate(generic, v, position, lane, mapping)
    mlir.clone_op(owner, mapping)
    return mapping[value]


__all__ = ["evaluate", "fetch", "is_index", "wide_loads"]
