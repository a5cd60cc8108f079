"""Scans along a dimension that the threads of a warp, or of a block, share.

    y[j] = y[j - 1] + x[j]      ->      every thread scans the elements of its own access,
                                        shuffles give it the sum of the threads before it,
                                        which it adds to each of its prefixes, behind what earlier steps carried over

Where a warp holds all threads of a row, no barrier is needed. Warps that share a row leave the totals of their steps in
workgroup memory, where each finds those before its own. Blocks that share a row go on in `chain_cuda`.
"""

from __future__ import annotations

from tilec import mlir
from tilec.mlir import arith, gpu, ir, linalg, memref
from tilec.passes.chain_cuda import Chain
from tilec.passes.combine import Combiner
from tilec.passes.loops import Place, sum_of, when
from tilec.passes.reduce_cuda import WARP
from tilec.passes.spaces import is_local


def finish_scans(function: ir.Operation) -> None:
    """What is made of a scan's elements alone becomes part of the scan, which then leaves no elements for it."""
    for op in [o for o in mlir.walk(function) if mlir.is_generic(o) and "tilec.scan" in o.attributes]:
        inputs = len(mlir.inputs_of(op))
        reduced = {d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"}
        whole = [n for n, m in enumerate(mlir.maps_of(op)) if n >= inputs and reduced <= set(mlir.map_dims(m))]
        users = [u for n in whole for u in mlir.uses(op.operands[n]) if u != op]
        if len(whole) != 1 or len(users) != 1 or not is_local(op.operands[whole[0]]):
            continue
        if finishes(users[0]) and mlir.get_integers(users[0], "tilec.dims") == mlir.get_integers(op, "tilec.dims"):
            _finish(op, users[0], whole[0])


def finishes(op: ir.Operation) -> bool:
    """Whether an operation makes one result of one operand, element by element."""
    if not mlir.is_generic(op) or len(op.operands) != 2 or set(mlir.iterators_of(op)) != {"parallel"}:
        return False
    plain = all(mlir.map_dims(m) == list(range(len(mlir.iterators_of(op)))) for m in mlir.maps_of(op))
    effects = ("memref.load", "tensor.extract", "linalg.index", "cf.assert", "scf.if")
    return plain and not any(o.name in effects for o in mlir.walk(op))


def _finish(scan: ir.Operation, op: ir.Operation, out: int) -> None:
    block, other = mlir.body_of(scan), mlir.body_of(op)
    end = list(block.operations)[-1].operation
    values, position = list(end.operands), out - len(mlir.inputs_of(scan))
    with ir.InsertionPoint(end), op.location:
        mapping = {other.arguments[0]: values[position]}
        for inner in list(other.operations)[:-1]:
            mlir.clone_op(inner.operation, mapping)
        result = list(other.operations)[-1].operands[0]
        values[position] = mapping.get(result, result)
        operands = [*list(scan.operands)[:out], op.operands[1], *list(scan.operands)[out + 1 :]]
    with ir.InsertionPoint(op), scan.location:
        inputs = len(mlir.inputs_of(scan))
        made, body = mlir.generic(
            [], operands[:inputs], operands[inputs:], mlir.maps_of(scan), mlir.iterators_of(scan)
        )  # fmt: skip
        for name in ("tilec.dims", "tilec.scan", "tilec.reduce", "tilec.name"):
            if name in scan.attributes:
                made.attributes[name] = scan.attributes[name]
        with ir.InsertionPoint(body):
            mapping = dict(zip(block.arguments, body.arguments))
            for inner in list(block.operations)[:-1]:
                mlir.clone_op(inner.operation, mapping)
            linalg.YieldOp([mapping.get(v, v) for v in values])
    op.erase()
    scan.erase()


def scan(generic, d: int) -> None:
    """One chunk of a scan along kernel dimension `d`, over which `threads[d]` lanes lie."""
    (state,) = generic.states
    (out,) = [n for n in range(generic.count, len(generic.operands)) if n != state]
    end = list(generic.block.operations)[-1]
    scanned, made = (end.operands[n - generic.count] for n in (state, out))
    generic.scanned_as = None
    if (
        made != scanned
    ):  # something is made of the scan's elements: they stay in registers of their own until they are whole
        type_ = ir.MemRefType(generic.operands[state].type).element_type
        generic.scanned_as = (
            generic.kernel.private(generic.places[out], type_, "scanned", generic.layout),
            scanned,
            made,
        )
    combine = _Combine(Combiner(generic.op, [state]), state)
    if generic.layout.threads[d] > WARP or generic.kernel.chained:
        _over_warps(generic, d, state, out, combine)
    else:
        _within_warps(generic, d, state, out, combine)


def _within_warps(generic, d: int, state: int, out: int, combine: _Combine) -> None:
    dims, carry = generic.places[state], generic.tiles[state]
    identity = generic.identity(state)
    running = generic.kernel.private(dims, identity.type, "prefix")
    with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as place:
        at = place.slot(dims)
        _own(generic, state, place, running, at, identity)
        before, total = _across(generic, d, combine, memref.LoadOp(running, at).result, identity)
        carried = memref.LoadOp(carry, at).result
        memref.StoreOp(combine(carried, before), running, at)
        with generic.threads.lanes(place, generic.sizes) as inner:
            _add(generic, out, inner, combine, memref.LoadOp(running, at).result)
        memref.StoreOp(combine(carried, total), carry, at)


def _own(generic, state: int, place: Place, running: ir.Value, at: list[ir.Value], identity: ir.Value) -> None:
    """A thread's scan of its own elements of a step; their total is left in `running`."""
    carry = generic.tiles[state]
    memref.StoreOp(identity, running, at)
    generic.tiles[state] = running
    with generic.threads.lanes(place, generic.sizes) as inner:
        generic.compute(inner)
        if generic.scanned_as:
            so_far = memref.LoadOp(running, at).result
            (out,) = [n for n in range(generic.count, len(generic.operands)) if n != state]
            memref.StoreOp(so_far, generic.scanned_as[0], inner.slot(generic.places[out]))
    generic.tiles[state] = carry


def _over_warps(generic, d: int, state: int, out: int, combine: _Combine) -> None:
    """A block has one row, and `steps` of it a warp at a time: their totals are scanned as they lie in the row."""
    layout, kernel, carry = generic.layout, generic.kernel, generic.tiles[state]
    identity, steps, warps = generic.identity(state), layout.steps[d], layout.threads[d] // WARP
    at = [mlir.index(0)] * len(generic.places[state])
    totals = _workgroup(steps * warps, identity.type)
    running = kernel.private(generic.places[state], identity.type, "prefix")
    before = kernel.registers(steps, identity.type, "before")
    warp = arith.shrui(generic.threads.number, mlir.index(WARP.bit_length() - 1))
    lane = arith.andi(generic.threads.number, mlir.index(WARP - 1))
    if generic.chunk:  # an earlier chunk's reading is over
        gpu.BarrierOp()
    with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as place:
        _own(generic, state, place, running, at, identity)
        previous, total = _across(generic, d, combine, memref.LoadOp(running, at).result, identity)
        memref.StoreOp(previous, before, [place.steps[d]])
        with when(arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))):
            memref.StoreOp(total, totals, [sum_of([(place.steps[d], warps), (warp, 1)])])
    gpu.BarrierOp()
    offsets, whole = _scan_totals(generic, combine, totals, steps * warps, lane, identity)
    carried = memref.LoadOp(carry, at).result
    if kernel.chained:
        carried = combine(carried, _before_block(generic, combine, warp, lane, whole, identity))
    with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as place:
        source = sum_of([(place.steps[d], warps), (warp, 1)])
        offset = _shuffle(offsets, arith.index_cast(_i32(), source), gpu.ShuffleMode.IDX)
        mine = combine(offset, memref.LoadOp(before, [place.steps[d]]).result)
        memref.StoreOp(combine(carried, mine), running, at)
        with generic.threads.lanes(place, generic.sizes) as inner:
            _add(generic, out, inner, combine, memref.LoadOp(running, at).result)
    memref.StoreOp(combine(carried, whole), carry, at)


def _scan_totals(generic, combine: _Combine, totals: ir.Value, count: int, lane: ir.Value, identity: ir.Value):
    """Every warp scans the totals, a lane each: what lies before a lane's own, and the sum of all."""
    there = arith.cmpi(arith.CmpIPredicate.ult, lane, mlir.index(count))
    inside = arith.select(there, lane, mlir.index(0))
    mine = arith.select(there, memref.LoadOp(totals, [inside]).result, identity)
    return _prefixes(combine, mine, identity, lane, 1, WARP, WARP - 1)


def _before_block(generic, combine: _Combine, warp: ir.Value, lane: ir.Value, whole: ir.Value, identity: ir.Value):
    """The total of the blocks before, for which the first warp asks."""
    found = _workgroup(1, identity.type)
    with when(arith.cmpi(arith.CmpIPredicate.eq, warp, mlir.index(0))):
        total = Chain(generic.kernel, lane).before(combine.combiner, combine.group, whole, identity)
        with when(arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))):
            memref.StoreOp(total, found, [mlir.index(0)])
    gpu.BarrierOp()
    return memref.LoadOp(found, [mlir.index(0)]).result


def _workgroup(slots: int, element: ir.Type) -> ir.Value:
    space = ir.Attribute.parse("#gpu.address_space<workgroup>")
    return memref.AllocOp(ir.MemRefType.get([slots], element, None, space), [], []).result


class _Combine:
    def __init__(self, combiner: Combiner, state: int):
        self.combiner, self.group = combiner, [state]

    def __call__(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.combiner.combine(self.group, [a], [b])[0]


def _across(generic, d: int, combine: _Combine, mine: ir.Value, identity: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What the threads of the warp before this one have, and what all have together."""
    layout, place = generic.layout, generic.threads.place[d]
    stride, count = layout.stride(d), min(WARP, layout.threads[d])
    lane = arith.andi(generic.threads.number, mlir.index(WARP - 1))
    last = arith.ori(lane, mlir.index((count - 1) * stride))
    if layout.threads[d] > WARP:
        place = lane
    return _prefixes(combine, mine, identity, place, stride, count, last)


def _prefixes(
    combine: _Combine,
    mine: ir.Value,
    identity: ir.Value,
    place: ir.Value,
    stride: int,
    count: int,
    last: ir.Value | int,
) -> tuple[ir.Value, ir.Value]:
    """Among `count` lanes that lie `stride` apart, of which this is number `place`: what those before have, and what all
    have, which lane `last` knows in the end."""
    inclusive = mine
    for n in range(count.bit_length() - 1):
        other = _shuffle(inclusive, mlir.constant(stride << n, _i32()), gpu.ShuffleMode.UP)
        reached = arith.cmpi(arith.CmpIPredicate.sge, place, mlir.index(1 << n))
        inclusive = arith.select(reached, combine(other, inclusive), inclusive)
    previous = _shuffle(inclusive, mlir.constant(stride, _i32()), gpu.ShuffleMode.UP)
    first = arith.cmpi(arith.CmpIPredicate.eq, place, mlir.index(0))
    source = mlir.constant(last, _i32()) if isinstance(last, int) else arith.index_cast(_i32(), last)
    total = _shuffle(inclusive, source, gpu.ShuffleMode.IDX)
    return arith.select(first, identity, previous), total


def _shuffle(value: ir.Value, lane: ir.Value, mode) -> ir.Value:
    return gpu.ShuffleOp(value, lane, mlir.constant(WARP, _i32()), mode).operation.results[0]


def _add(generic, out: int, place: Place, combine: _Combine, offset: ir.Value) -> None:
    if not generic.scanned_as:
        generic.put(out, place, combine(offset, generic.element(out, place)))
        return
    tile, scanned, made = generic.scanned_as
    mapping = {scanned: combine(offset, memref.LoadOp(tile, place.slot(generic.places[out])).result)}
    generic.put(out, place, _computed(made, mapping, generic.block))


def _computed(value: ir.Value, mapping: dict[ir.Value, ir.Value], block: ir.Block) -> ir.Value:
    """A value of the body, from those that are known."""
    owner = mlir.definition(value)
    if value not in mapping and owner is not None and owner.block == block:
        for operand in owner.operands:
            _computed(operand, mapping, block)
        mlir.clone_op(owner, mapping)
    return mapping.get(value, value)


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)
