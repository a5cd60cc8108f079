"""Vector gathers: rows at computed subscripts, of which neighbouring lanes read neighbouring elements.

    for lane { y[lane] = table[ids[b], d + lane] }   ->   t = vector.load table[ids[b], d]; for lane { y[lane] = t[lane] }

A load can be a vector if its last subscript increases with the lanes and begins at a multiple of their number, and no other
subscript depends on the lanes. If a condition that is the same for all lanes selects the loaded element or 0, as `pad` does, the
vector is loaded under that condition, at subscripts that need no clamp:

    for lane { y[lane] = select(0 <= i < 9, x[min(max(i, 0), 8), lane], 0) }   ->   t = 0; if 0 <= i < 9 { t = vector.load x[i, 0] }

If a thread has neighbours (`Layout.dense`), and a load depends on their index i and on a window's index s by their sum alone, the
elements of all their windows are loaded once: `x[i + s]` of 4 neighbours and windows of 3 are 6 elements, and not 12.
"""

# mypy: no-strict-optional

from __future__ import annotations

from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from tilec.core import mlir
from tilec.core.mlir import ir, memref, vector
from tilec.passes.cuda.memory_spaces import is_local, root
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.loops import Position, Threads, loop, sum_of, when
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


def fetch(generic: OperationContext, load: ir.Operation) -> dict[ir.Operation, Gathered]:
    """This thread's part of a wide load, in registers, for the operations of the body whose results it has: the load, or the
    selection of the loaded element or 0."""
    value, *subscripts = load.operands
    guard = _guard_of(generic, load)
    if guard is not None:
        known = bounds_of(guard.operands[0])
        subscripts = [unclamped(index, known) for index in subscripts]
    window = _window_of(generic, [*subscripts, *(guard.operands[:1] if guard else ())])
    threads, sizes = (generic.threads, generic.sizes) if window is None else window.unique(generic)
    element = ir.MemRefType(value.type).element_type
    kernel, dims, lanes = generic.kernel, generic.dims, generic.layout.vectors[generic.layout.lane_dim]
    tile = kernel.private(dims, element, kernel.name_of(value), threads.layout)
    width = min(lanes, 128 // max(8, element.width))
    type_ = ir.VectorType.get([width], element)
    with threads.slots(dims, generic.chunk, sizes, lanes=False) as position:
        for begin in range(0, lanes, width):
            mapping: dict[ir.Value, ir.Value] = {}
            slot, condition = position.slot(dims, begin), None
            if guard is not None:
                with loop(width, name="lane") as lane:
                    memref.StoreOp(mlir.constant(0, element), tile, [*slot[:-1], sum_of([(lane, 1)], begin)])
                condition = evaluate(generic, guard.operands[0], position, begin, mapping)
            with nullcontext() if condition is None else when(condition):
                at = [evaluate(generic, v, position, begin, mapping) for v in subscripts]
                vector.StoreOp(vector.LoadOp(type_, value, at).result, tile, slot)
    return {guard or load: Gathered(tile, window)}


@dataclass(frozen=True)
class Window:
    """A thread's neighbours along dimension `neighbour`, whose windows lie along the reduced dimension `along`."""

    neighbour: int
    along: int

    def unique(self, generic: OperationContext) -> tuple[Threads, dict[int, Any]]:
        """Threads that have each element of the windows once, as steps along `neighbour`; and sizes that guard none of them."""
        threads, steps = copy(generic.threads), list(generic.layout.steps)
        steps[self.neighbour], steps[self.along] = steps[self.neighbour] + steps[self.along] - 1, 1
        threads.layout = replace(generic.layout, steps=tuple(steps))
        whole = {self.neighbour: threads.layout.chunk(self.neighbour), self.along: 1}
        return threads, {**generic.sizes, **whole}


@dataclass(frozen=True)
class Gathered:
    """The tile of a wide load; with a `window`, of the elements of a thread's windows."""

    tile: ir.Value
    window: Window | None

    def element(self, position: Position, dims: tuple[int, ...]) -> ir.Value:
        at = position.slot(dims)
        if self.window is not None:
            here, along = (dims.index(d) for d in (self.window.neighbour, self.window.along))
            at[here], at[along] = sum_of([(at[here], 1), (at[along], 1)]), mlir.index(0)
        return memref.LoadOp(self.tile, at).result


def _window_of(generic: OperationContext, values: list[ir.Value]) -> Window | None:
    """The neighbours and the window of a load: the values that it is made by have their indices in sums alone."""
    near, layout = generic.layout.dense, generic.layout
    if near is None or layout.vectors[near] > 1 or near not in generic.dims:
        return None
    needed = {o for v in values for o in mlir.slice_of(generic.block, v)}
    users = [o for o in needed if any(is_index(generic, v, near) for v in o.operands)]
    for along in generic.reduced:
        if layout.chunks(along) > 1 or layout.threads[along] > 1 or layout.vectors[along] > 1:
            continue
        others = [o for o in needed if any(is_index(generic, v, along) for v in o.operands)]
        if users and {*users} == {*others} and all(_is_sum(generic, o, (near, along)) for o in users):
            return Window(near, along)
    return None


def _is_sum(generic: OperationContext, op: ir.Operation, dims: tuple[int, int]) -> bool:
    """Whether an operation adds the indices of both dimensions, each once."""
    if op.name != "affine.apply":
        return False
    weights = mlir.linear(ir.AffineMapAttr(op.attributes["map"]).value)
    return weights is not None and all(
        sum(w for w, v in zip(weights, op.operands) if is_index(generic, v, d)) == 1 for d in dims
    )


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
