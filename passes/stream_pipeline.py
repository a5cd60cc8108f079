"""Tiles of tensors in shared memory for a walk: rings of them, what fills them, and products that read them.

A tile lies in slabs of 64 columns of 16 bits, the 128 bytes of a swizzled line; a slab is one box that TMA copies. The
walk's two factors have a ring each, in step with each other, so one slot and one parity serve for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilec import mlir
from tilec.mlir import arith, func, ir, memref, nvgpu, scf
from tilec.passes.contract_problem import SHARED, local
from tilec.passes.contract_wgmma import _offsets, _view
from tilec.passes.loops import loop, sum_of
from tilec.passes.spaces import root

SWIZZLE = 128
LINE = 64  # elements


@dataclass(frozen=True)
class Operand:
    """A factor in memory: the block's part of it, the kernel dimensions of its subscripts, and those that a tile has as
    `lines` and `columns`."""

    view: ir.Value
    place: tuple[int, ...]
    lines: int
    columns: int


class Ring:
    """`slots` tiles of `lines` x `columns` elements of a factor, with two barriers each: `full` counts bytes, `empty`
    the `readers` that are done."""

    def __init__(self, operand: Operand, lines: int, columns: int, slots: int, readers: int):
        self.operand, self.lines, self.slots, self.readers = operand, lines, slots, readers
        self.element = ir.MemRefType(operand.view.type).element_type
        self.slabs = -(-columns // LINE)
        self.tile = memref.AllocOp(local([slots, self.slabs * lines, LINE], self.element, SHARED), [], []).result
        sizes = {operand.lines: lines, operand.columns: LINE}
        self.box = [sizes.get(d, 1) for d in operand.place]
        self.map = self._map()

    @property
    def bytes(self) -> int:
        return self.slabs * self.lines * SWIZZLE

    def _map(self) -> ir.Value:
        tensor = root(self.operand.view)
        inside = "x".join(map(str, self.box))
        kind = f"!nvgpu.tensormap.descriptor<tensor = memref<{inside}x{self.element}, #gpu.address_space<{SHARED}>>"
        kind += ", swizzle = swizzle_128b, l2promo = l2promo_128b, oob = zero, interleave = none>"
        unranked = memref.CastOp(ir.Type.parse(f"memref<*x{self.element}>"), tensor).result
        return nvgpu.TmaCreateDescriptorOp(ir.Type.parse(kind), unranked, [mlir.index(b) for b in self.box]).result

    def make_barriers(self) -> None:
        """Behind all tiles, which begin at multiples of 1024 bytes."""
        kind = f"!nvgpu.mbarrier.group<memorySpace = #gpu.address_space<{SHARED}>, num_barriers = {self.slots}>"
        self.full, self.empty = (nvgpu.MBarrierCreateOp(ir.Type.parse(kind)).result for _ in range(2))

    def initialise(self) -> None:
        with loop(self.slots) as slot:
            nvgpu.MBarrierInitOp(self.full, mlir.index(1), slot)
            nvgpu.MBarrierInitOp(self.empty, mlir.index(self.readers), slot)

    def load(self, slot: ir.Value, line: ir.Value) -> None:
        """Starts the copies of the tile that begins at `line` of the block's part."""
        nvgpu.MBarrierArriveExpectTxOp(self.full, mlir.index(self.bytes), slot)
        offsets = _offsets(self.operand.view)
        for slab in range(self.slabs):
            target = _view(self.tile, slot, mlir.index(slab * self.lines), self.lines, self.box)
            at = {self.operand.lines: line, self.operand.columns: mlir.index(slab * LINE)}
            place = [sum_of([(at[d], 1), (o, 1)]) if d in at else o for d, o in zip(self.operand.place, offsets)]
            nvgpu.TmaAsyncLoadOp(target, self.full, self.map, place[::-1], slot)

    def wait_full(self, slot: ir.Value, parity: ir.Value) -> None:
        _wait(self.full, slot, parity, 0)

    def wait_empty(self, slot: ir.Value, parity: ir.Value) -> None:
        """The first wait on a slot is for a phase before the first, so it passes."""
        _wait(self.empty, slot, parity, 1)

    def release(self, slot: ir.Value) -> None:
        nvgpu.MBarrierArriveOp(self.empty, slot)

    def view(self, slot: ir.Value, line: ir.Value | None = None) -> ir.Value:
        """The tile from a line on, as the matrix units read it."""
        line = mlir.index(0) if line is None else line
        known = mlir.constant_value(line)
        return _view(self.tile, slot, line, None if known == 0 else LINE)

    def next(self, slot: ir.Value, parity: ir.Value) -> list[ir.Value]:
        """The slot after this one; the parity turns with every round."""
        following = sum_of([(slot, 1)], 1)
        last = arith.cmpi(arith.CmpIPredicate.eq, following, mlir.index(self.slots))
        turned = arith.xori(parity, mlir.index(1))
        return [arith.select(last, mlir.index(0), following), arith.select(last, turned, parity)]


def _wait(barriers: ir.Value, slot: ir.Value, parity: ir.Value, of: int) -> None:
    """Until the barrier's phase of this parity is over."""
    phase = arith.cmpi(arith.CmpIPredicate.ne, parity, mlir.index(of))
    nvgpu.MBarrierTryWaitParityOp(barriers, phase, mlir.index(10_000_000), slot)


@contextmanager
def walk(first: ir.Value, end: ir.Value, state: list[ir.Value]) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
    """A loop over tiles; the body writes what goes on into the list that it gets."""
    made = scf.ForOp(first, end, mlir.index(1), state)
    with ir.InsertionPoint(made.body):
        carried = list(made.inner_iter_args)
        yield made.induction_variable, carried
        scf.YieldOp(carried)
    state[:] = list(made.results)


class Calls:
    """Calls of device functions that are no operations upstream, which the module declares."""

    def __init__(self, function: ir.Operation):
        self.function = function

    def __call__(self, name: str, arguments: Sequence[ir.Value]) -> None:
        body = self.function.parent.regions[0].blocks[0]
        known = {ir.StringAttr(o.attributes["sym_name"]).value for o in body.operations if "sym_name" in o.attributes}
        if name not in known:
            with ir.InsertionPoint.at_block_begin(body):
                func.FuncOp(name, ([v.type for v in arguments], []), visibility="private")
        func.CallOp([], name, list(arguments))
