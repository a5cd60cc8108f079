"""Completes reductions over threads: every thread's partial state becomes the state of all, in a fixed order.

Within a warp by a butterfly of shuffles, in which both lanes of a pair compute the same combination. Across warps through
workgroup memory. The combination is read from the operation (`passes/combiner.py`), so that it works for the (value,
index) pair of an argmax as for a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from tilec.core import locations, mlir
from tilec.core.hardware import WARP
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.passes.cuda.cluster import Combination, Mapped, across_blocks
from tilec.passes.cuda.memory_spaces import SHARED, local
from tilec.passes.loops import Position, flat_slot, states, sum_of


def across_threads(generic: Mapped, combiner: Combination) -> None:
    """Combines the states in `generic.tiles` over the threads of all reduced dimensions."""
    layout = generic.layout
    reduced = [d for d in layout.order if d in generic.reduced and layout.threads[d] > 1]
    for d in reduced:
        for group in combiner.groups():
            lanes, warps = _split(layout.stride(d), layout.threads[d])
            if lanes:
                _shuffle(generic, combiner, group, lanes)
            if warps > 1:
                _exchange(generic, combiner, group, d, warps)
    spread = generic.kernel.spread
    if spread is not None and spread.dim in generic.reduced:
        for group in combiner.groups():
            across_blocks(generic, combiner, group, butterfly)


def _split(stride: int, threads: int) -> tuple[list[int], int]:
    """The lane masks of a dimension's threads within a warp, and how many warps it spans."""
    masks = [stride << n for n in range(threads.bit_length() - 1)]
    lanes = [m for m in masks if m < WARP]
    return lanes, 1 << (len(masks) - len(lanes))


def _slots(generic: Mapped, group: list[int]) -> AbstractContextManager[Position]:
    """The loop over the slots of a group's states; they have one shape."""
    dims = generic.operand_dims[group[0]]
    return generic.threads.slots(dims, {}, None, lanes=True)


def _shuffle(generic: Mapped, combiner: Combination, group: list[int], masks: list[int]) -> None:
    dims = generic.operand_dims[group[0]]
    with _slots(generic, group) as position:
        at = position.slot(dims)
        values = [memref.LoadOp(generic.tiles[n], at).result for n in group]
        for value, n in zip(butterfly(combiner, group, values, masks), group):
            memref.StoreOp(value, generic.tiles[n], at)


def butterfly(combiner: Combination, group: list[int], values: list[ir.Value], masks: list[int]) -> list[ir.Value]:
    """Combines over the lanes whose numbers differ in `masks`, the farthest first; all of them get the result."""
    if len(masks) < 2:
        return _combined(combiner, group, values, mlir.constant(masks[0], _i32())) if masks else values
    names = [combiner.tensor(n) for n in group]
    with states(len(masks), values, "halving", *(f"@{n}" if n else None for n in names)) as (number, now):
        # masks are powers of two, one after the other
        mask = arith.index_cast(_i32(), arith.shrui(mlir.index(masks[-1]), number))
        now[:] = _combined(combiner, group, now, mask)
    return now


def _combined(combiner: Combination, group: list[int], values: list[ir.Value], mask: ir.Value) -> list[ir.Value]:
    return combiner.combine(group, values, [_from_lane(v, mask) for v in values])


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _from_lane(value: ir.Value, mask: ir.Value) -> ir.Value:
    """Another lane's value. Narrow integers travel as 32 bits."""
    i32 = _i32()
    type_ = value.type
    narrow = isinstance(type_, ir.IntegerType) and type_.width < 32
    if narrow:
        value = arith.extui(i32, value)
    moved = gpu.ShuffleOp(value, mask, mlir.constant(WARP, i32), gpu.ShuffleMode.XOR)
    result = moved.operation.results[0]
    return arith.trunci(type_, result) if narrow else result


def _exchange(generic: Mapped, combiner: Combination, group: list[int], d: int, warps: int) -> None:
    """Across warps: all write, wait, and combine the states of the reduction's warps."""
    dims = generic.operand_dims[group[0]]
    by_lanes = generic.layout.stride(d) == 1 and warps <= WARP
    read = _read_by_lanes if by_lanes else _read_serially
    shift = WARP.bit_length() - 1 if by_lanes else 0  # one state a warp, or one a thread
    number, block = generic.threads.number, generic.layout.block
    mine = arith.shrui(number, mlir.index(shift)) if shift else number
    slots = generic.layout.slots(dims)
    buffers = [_buffer(generic.tiles[n], slots, block >> shift, combiner.tensor(n) or "state") for n in group]
    if generic.chunk:  # an earlier round's reading is over
        gpu.BarrierOp()
    with _slots(generic, group) as position:
        slot = flat_slot(position, dims)
        for n, buffer in zip(group, buffers):
            memref.StoreOp(memref.LoadOp(generic.tiles[n], position.slot(dims)).result, buffer, [slot, mine])
    gpu.BarrierOp()
    with _slots(generic, group) as position:
        slot = flat_slot(position, dims)
        for value, n in zip(read(generic, combiner, group, buffers, slot, d, warps), group):
            memref.StoreOp(value, generic.tiles[n], position.slot(dims))


def _read_by_lanes(
    generic: Mapped, combiner: Combination, group: list[int], buffers: Sequence[ir.Value], slot: ir.Value, d: int, warps: int
) -> list[ir.Value]:
    """Every warp belongs to one reduction as a whole: lane n takes the state of its warp n, and a butterfly follows."""
    number, block = generic.threads.number, generic.layout.block
    source = arith.andi(number, mlir.index(warps - 1))
    if WARP * warps < block:  # several reductions a block: skip the warps of those before
        warp = arith.shrui(number, mlir.index(WARP.bit_length() - 1))
        source = sum_of([(arith.andi(warp, mlir.index(block // WARP - warps)), 1), (source, 1)])
    values = [memref.LoadOp(b, [slot, source]).result for b in buffers]
    return butterfly(combiner, group, values, [1 << n for n in range(warps.bit_length() - 1)])


def _read_serially(
    generic: Mapped, combiner: Combination, group: list[int], buffers: Sequence[ir.Value], slot: ir.Value, d: int, warps: int
) -> list[ir.Value]:
    """A warp works on several reductions: each thread goes through the warps one by one."""
    low = max(generic.layout.stride(d), WARP)  # the distance of one warp's state and the next
    rest = arith.andi(generic.threads.number, mlir.index(generic.layout.block - 1 - low * (warps - 1)))
    values = [memref.LoadOp(b, [slot, rest]).result for b in buffers]
    for w in range(1, warps):
        source = sum_of([(rest, 1)], w * low)
        others = [memref.LoadOp(b, [slot, source]).result for b in buffers]
        values = combiner.combine(group, values, others)
    return values


def _buffer(tile: ir.Value, slots: int, threads: int, tensor: str) -> ir.Value:
    element = ir.MemRefType(tile.type).element_type
    made = memref.AllocOp(local([slots, threads], element, SHARED), [], []).result
    return locations.named(made, f"{tensor}_parts")
