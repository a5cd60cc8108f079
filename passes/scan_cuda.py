"""Scans along a dimension that the lanes of a warp share.

    y[j] = y[j - 1] + x[j]      ->      every thread scans the elements of its own access,
                                        shuffles give it the sum of the threads before it,
                                        which it adds to each of its prefixes, behind what earlier steps carried over

No barrier is needed: a warp holds all threads of a row.
"""

from __future__ import annotations

from tilec import mlir
from tilec.mlir import arith, gpu, ir, memref
from tilec.passes.combine import Combiner
from tilec.passes.loops import Place

WARP = 32


def scan(generic, d: int) -> None:
    """One chunk of a scan along kernel dimension `d`, over which `threads[d]` lanes lie."""
    (state,) = generic.states
    (out,) = [n for n in range(generic.count, len(generic.operands)) if n != state]
    combine = _Combine(Combiner(generic.op, [state]), state)
    dims, carry = generic.places[state], generic.tiles[state]
    identity = generic.identity(state)
    running = generic.kernel.private(dims, identity.type, "prefix")
    with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as place:
        at = place.slot(dims)
        memref.StoreOp(identity, running, at)
        generic.tiles[state] = running
        with generic.threads.lanes(place, generic.sizes) as inner:
            generic.compute(inner)
        generic.tiles[state] = carry
        before, total = _across(generic, d, combine, memref.LoadOp(running, at).result, identity)
        carried = memref.LoadOp(carry, at).result
        memref.StoreOp(combine(carried, before), running, at)
        with generic.threads.lanes(place, generic.sizes) as inner:
            _add(generic, out, inner, combine, memref.LoadOp(running, at).result)
        memref.StoreOp(combine(carried, total), carry, at)


class _Combine:
    def __init__(self, combiner: Combiner, state: int):
        self.combiner, self.group = combiner, [state]

    def __call__(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.combiner.combine(self.group, [a], [b])[0]


def _across(generic, d: int, combine: _Combine, mine: ir.Value, identity: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What the threads before this one have, and what all have together."""
    layout, place = generic.layout, generic.threads.place[d]
    stride, inclusive = layout.stride(d), mine
    for n in range(layout.threads[d].bit_length() - 1):
        other = _shuffle(inclusive, mlir.constant(stride << n, _i32()), gpu.ShuffleMode.UP)
        reached = arith.cmpi(arith.CmpIPredicate.sge, place, mlir.index(1 << n))
        inclusive = arith.select(reached, combine(other, inclusive), inclusive)
    previous = _shuffle(inclusive, mlir.constant(stride, _i32()), gpu.ShuffleMode.UP)
    first = arith.cmpi(arith.CmpIPredicate.eq, place, mlir.index(0))
    lane = arith.andi(generic.threads.number, mlir.index(WARP - 1))
    last = arith.ori(lane, mlir.index((layout.threads[d] - 1) * stride))
    total = _shuffle(inclusive, arith.index_cast(_i32(), last), gpu.ShuffleMode.IDX)
    return arith.select(first, identity, previous), total


def _shuffle(value: ir.Value, lane: ir.Value, mode) -> ir.Value:
    return gpu.ShuffleOp(value, lane, mlir.constant(WARP, _i32()), mode).operation.results[0]


def _add(generic, out: int, place: Place, combine: _Combine, offset: ir.Value) -> None:
    generic.put(out, place, combine(offset, generic.element(out, place)))


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)
