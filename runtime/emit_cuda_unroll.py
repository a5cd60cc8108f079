"""Loops over registers, printed unrolled where LLVM would not unroll them: registers have no addresses."""

from __future__ import annotations

from tilec import mlir
from tilec.mlir import ir
from tilec.runtime.emit_cuda_index import IndexPrinter

UNROLLED_BY_LLVM = 1600
"""The largest loop nest over registers, in instructions, that it was seen to unroll, and some less."""
OPERATION_WEIGHT = {"math": 20}


class UnrollPrinter(IndexPrinter):
    rolled = False  # inside a loop that stays one, where LLVM unrolls less

    def for_loop(self, op: ir.Operation) -> None:
        """The outer loops of a nest first, until LLVM takes what is left."""
        if "tilec.rolled" in op.attributes:
            high = op.operands[1]
            text, self.text[high] = self.expr(high), f"{self.use('rolled')}({self.expr(high)})"
            self.rolled = True
            super().for_loop(op)
            self.text[high], self.rolled = text, False
            return None
        bounds = [mlir.constant_value(v) for v in list(op.operands)[:3]]
        asked = "tilec.unroll" in op.attributes
        large = asked or (_walks_registers(op) and (self.rolled or _weight(op) > UNROLLED_BY_LLVM))
        if len(op.operands) > 3 or None in bounds or not large:
            return super().for_loop(op)
        block = op.regions[0].blocks[0]
        for number in range(*map(int, bounds)):
            self.text[block.arguments[0]] = str(number)
            self.block(block)
        return None

    def index(self, value: ir.Value) -> str | int:
        found = super().index(value)
        return int(found) if str(found).isdigit() else found


def _walks_registers(loop: ir.Operation) -> bool:
    """Whether a loop's variable subscripts private memory."""
    variable = loop.regions[0].blocks[0].arguments[0]
    return any(
        "private" in str(ir.MemRefType(v.type).memory_space)
        for u in mlir.uses(variable) if u.name in ("memref.load", "memref.store", "vector.load", "vector.store")
        for v in u.operands if isinstance(v.type, ir.MemRefType)
    )  # fmt: skip


def _weight(op: ir.Operation) -> float:
    """Instructions of a loop, roughly, once it and those inside are unrolled."""
    total, trips = 0.0, 1
    if op.name == "scf.for":
        bounds = [mlir.constant_value(v) for v in list(op.operands)[:3]]
        trips = 1 if None in bounds else len(range(*map(int, bounds)))
    for region in op.regions:
        total += sum(_weight(o.operation) for block in region.blocks for o in block.operations)
    one = op.name == "math.fma" or "afn" in str(op.attributes.get("fastmath"))  # one instruction
    return trips * (total + (1 if one else OPERATION_WEIGHT.get(op.name.partition(".")[0], 1)))
