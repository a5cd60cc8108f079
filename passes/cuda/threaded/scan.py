"""Scans along a dimension that the threads of a warp, or of a block, share.

    y[j] = y[j - 1] + x[j]      ->      every thread scans the elements of its own access,
                                        shuffles give it the sum of the threads before it,
                                        which it adds to each of its prefixes, after the total of earlier steps

If all threads of a row are in one warp, no barrier is needed. Warps that share a row write the totals of their steps to
workgroup memory, and each warp reads the totals before its own. `passes/cuda/threaded/look_back.py` continues for
blocks that share a row.
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.hardware import WARP
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.passes.combiner import Combiner
from tilec.passes.cuda.memory_spaces import SHARED, local
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.cuda.threaded.look_back import LookBack
from tilec.passes.cuda.threaded.vector_gather import evaluate
from tilec.passes.loops import Position, sum_of, when


def scan(generic: OperationContext, d: int) -> None:
    """One chunk of a scan along kernel dimension `d`, over which `threads[d]` lanes lie."""
    found = _Scan(generic, d)
    if generic.layout.threads[d] > WARP or generic.kernel.looks_back:
        found.over_warps()
    else:
        found.within_warps()


class _Scan:
    def __init__(self, generic: OperationContext, d: int):
        self.generic, self.d = generic, d
        (self.state,) = generic.states
        (self.out,) = [n for n in range(generic.count, len(generic.operands)) if n != self.state]
        self.combiner, self.identity = Combiner(generic.op, [self.state]), generic.identity(self.state)
        self.running = generic.kernel.private(generic.operand_dims[self.state], self.identity.type, "%prefix")
        end = list(generic.block.operations)[-1]
        self.scanned, self.made = (end.operands[n - generic.count] for n in (self.state, self.out))
        self.elements = None
        # Values computed from a complete element, or stored by other threads, too, one of which may have added the sum
        # before it already: until it is complete, an element has registers of its own.
        if self.made != self.scanned or generic.has_copies(self.out):
            dims = generic.operand_dims[self.out]
            self.elements = generic.kernel.private(dims, self.identity.type, "%scanned", generic.layout)
        self.so_far = generic.block.arguments[self.state]
        self.preceding = None
        if mlir.depends(generic.block, self.made, self.so_far, {self.scanned}):  # `(s + 7) - 5` has become `s + 2`
            dims = generic.operand_dims[self.out]
            self.preceding = generic.kernel.private(dims, self.identity.type, "%preceding", generic.layout)

    def combine(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.combiner.combine([self.state], [a], [b])[0]

    def within_warps(self) -> None:
        generic, carry = self.generic, self.generic.tiles[self.state]
        with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as position:
            at = position.slot(generic.operand_dims[self.state])
            self._own(position, at)
            before, total = self._across(memref.LoadOp(self.running, at).result)
            carried = memref.LoadOp(carry, at).result
            memref.StoreOp(self.combine(carried, before), self.running, at)
            with generic.threads.lanes(position, generic.sizes) as inner:
                self._add(inner, memref.LoadOp(self.running, at).result)
            memref.StoreOp(self.combine(carried, total), carry, at)

    def over_warps(self) -> None:
        """A block has one row, and `steps` of it a warp at a time: their totals are scanned as they lie in the row."""
        generic, d, carry = self.generic, self.d, self.generic.tiles[self.state]
        layout, kernel = generic.layout, generic.kernel
        steps, warps = layout.steps[d], layout.threads[d] // WARP
        at = [mlir.index(0)] * len(generic.operand_dims[self.state])
        totals = _workgroup(steps * warps, self.identity.type)
        before = kernel.registers(steps, self.identity.type, "%before")
        warp = arith.shrui(generic.threads.number, mlir.index(WARP.bit_length() - 1))
        lane = arith.andi(generic.threads.number, mlir.index(WARP - 1))
        if generic.chunk:  # an earlier chunk's reading is over
            gpu.BarrierOp()
        with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as position:
            self._own(position, at)
            previous, total = self._across(memref.LoadOp(self.running, at).result)
            memref.StoreOp(previous, before, [position.steps[d]])
            with when(arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))):
                memref.StoreOp(total, totals, [sum_of([(position.steps[d], warps), (warp, 1)])])
        gpu.BarrierOp()
        offsets, whole = self._scan_totals(totals, steps * warps, lane)
        carried = memref.LoadOp(carry, at).result
        if kernel.looks_back:
            carried = self.combine(carried, self._before_block(warp, lane, whole))
        with generic.threads.slots(generic.dims, generic.chunk, None, lanes=False) as position:
            source = sum_of([(position.steps[d], warps), (warp, 1)])
            offset = _shuffle(offsets, arith.index_cast(_i32(), source), gpu.ShuffleMode.IDX)
            mine = self.combine(offset, memref.LoadOp(before, [position.steps[d]]).result)
            memref.StoreOp(self.combine(carried, mine), self.running, at)
            with generic.threads.lanes(position, generic.sizes) as inner:
                self._add(inner, memref.LoadOp(self.running, at).result)
        memref.StoreOp(self.combine(carried, whole), carry, at)

    def _own(self, position: Position, at: list[ir.Value]) -> None:
        """A thread's scan of its own elements of a step; their total is left in `running`."""
        generic = self.generic
        tiles = dict(generic.tiles)
        memref.StoreOp(self.identity, self.running, at)
        generic.tiles[self.state] = self.running
        # no part of an element goes to workgroup memory
        if self.elements is not None and self.out not in generic.tiles:
            generic.tiles[self.out] = self.elements if self.made == self.scanned else generic.out_tile(self.out)
        with generic.threads.lanes(position, generic.sizes) as inner:
            if self.preceding is not None:
                so_far = memref.LoadOp(self.running, at).result
                memref.StoreOp(so_far, self.preceding, inner.slot(generic.operand_dims[self.out]))
            generic.compute(inner)
            if self.made != self.scanned:
                assert self.elements is not None
                so_far = memref.LoadOp(self.running, at).result
                memref.StoreOp(so_far, self.elements, inner.slot(generic.operand_dims[self.out]))
        generic.tiles = tiles

    def _add(self, position: Position, offset: ir.Value) -> None:
        """Adds the sum before a thread's elements to one of them."""
        generic = self.generic
        if self.elements is None:
            generic.put(self.out, position, self.combine(offset, generic.element(self.out, position)))
            return
        slot = position.slot(generic.operand_dims[self.out])
        known = {self.scanned: self.combine(offset, memref.LoadOp(self.elements, slot).result)}
        if self.preceding is not None:
            known[self.so_far] = self.combine(offset, memref.LoadOp(self.preceding, slot).result)
        generic.put(self.out, position, evaluate(generic, self.made, position, 0, known))

    def _scan_totals(self, totals: ir.Value, count: int, lane: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Every warp scans the totals, a lane each: the sum before a lane's own total, and the sum of all."""
        there = arith.cmpi(arith.CmpIPredicate.ult, lane, mlir.index(count))
        inside = arith.select(there, lane, mlir.index(0))
        mine = arith.select(there, memref.LoadOp(totals, [inside]).result, self.identity)
        return self._prefixes(mine, lane, 1, WARP, WARP - 1)

    def _before_block(self, warp: ir.Value, lane: ir.Value, whole: ir.Value) -> ir.Value:
        """The total of the blocks before, for which the first warp asks."""
        found = _workgroup(1, self.identity.type)
        with when(arith.cmpi(arith.CmpIPredicate.eq, warp, mlir.index(0))):
            look_back = LookBack(self.generic.kernel, lane)
            total = look_back.before(self.combiner, [self.state], whole, self.identity)
            with when(arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))):
                memref.StoreOp(total, found, [mlir.index(0)])
        gpu.BarrierOp()
        return memref.LoadOp(found, [mlir.index(0)]).result

    def _across(self, mine: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The sum of the warp's threads before this one, and the sum of all."""
        layout, threads, d = self.generic.layout, self.generic.threads, self.d
        stride, count = layout.stride(d), min(WARP, layout.threads[d])
        index = threads.thread_index[d]
        lane = arith.andi(threads.number, mlir.index(WARP - 1))
        last = arith.ori(lane, mlir.index((count - 1) * stride))
        return self._prefixes(mine, lane if layout.threads[d] > WARP else index, stride, count, last)

    def _prefixes(
        self, mine: ir.Value, index: ir.Value, stride: int, count: int, last: ir.Value | int
    ) -> tuple[ir.Value, ir.Value]:
        """Among `count` lanes that lie `stride` apart, of which this is number `index`: the sum of those before, and the sum of all
        have, which lane `last` knows in the end."""
        inclusive = mine
        for n in range(count.bit_length() - 1):
            other = _shuffle(inclusive, mlir.constant(stride << n, _i32()), gpu.ShuffleMode.UP)
            reached = arith.cmpi(arith.CmpIPredicate.sge, index, mlir.index(1 << n))
            inclusive = arith.select(reached, self.combine(other, inclusive), inclusive)
        previous = _shuffle(inclusive, mlir.constant(stride, _i32()), gpu.ShuffleMode.UP)
        first = arith.cmpi(arith.CmpIPredicate.eq, index, mlir.index(0))
        source = mlir.constant(last, _i32()) if isinstance(last, int) else arith.index_cast(_i32(), last)
        total = _shuffle(inclusive, source, gpu.ShuffleMode.IDX)
        return arith.select(first, self.identity, previous), total


def _workgroup(slots: int, element: ir.Type) -> ir.Value:
    return memref.AllocOp(local([slots], element, SHARED), [], []).result


def _shuffle(value: ir.Value, lane: ir.Value, mode: gpu.ShuffleMode) -> ir.Value:
    return gpu.ShuffleOp(value, lane, mlir.constant(WARP, _i32()), mode).operation.results[0]


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)
