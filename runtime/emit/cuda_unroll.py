"""Loops over registers, which have no addresses: loops that LLVM would not unroll are unrolled before LLVM sees them.

for j_step in range(8):              LLVM unrolls it, as it is short
for half in unrolled(2):             `unroll` writes the body out twice, with 0 and with 1 for `half`
for j_chunk in range(rolled(40)):    stays a loop, or is unrolled with a rest where nothing inside forbids it
while step < opaque(12):             stays a loop: LLVM learns its end anew in each iteration
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.cuda_index import IndexPrinter

UNROLLED_BY_LLVM = 1600
"""The largest loop nest over registers, in instructions, that it was seen to unroll, and some less."""
OPERATION_WEIGHT = {"math": 20}


class UnrollPrinter(IndexPrinter):
    rolled = False  # inside a loop that stays one, where LLVM unrolls less

    def for_loop(self, op: ir.Operation) -> None:
        before, self.rolled = self.rolled, self.rolled or "tilec.rolled" in op.attributes
        super().for_loop(op)
        self.rolled = before

    def begin_loop(self, op: ir.Operation, name: str, low: str, high: str, step: str) -> tuple[str, ...]:
        if "tilec.opaque_end" not in op.attributes:
            return super().begin_loop(op, name, low, high, step)
        self.line(f"{name} = {low}")
        self.line(f"while {name} < {self.use('opaque')}({high}):")
        return (f"{name} = {name} + {step}",)

    def iterations(self, loop: ir.Operation, bounds: str) -> str:
        """Of a nest the outer loops are unrolled first, until LLVM takes the rest."""
        if "tilec.rolled" in loop.attributes:
            *others, high = bounds.split(", ")
            return f"range({', '.join([*others, self.use('rolled') + f'({high})'])})"
        known = all(mlir.constant_value(v) is not None for v in list(loop.operands)[:3])
        large = (
            _indexes_registers(loop) and (self.rolled or _weight(loop) > UNROLLED_BY_LLVM) and len(loop.operands) == 3
        )
        if known and (large or "tilec.unroll" in loop.attributes):
            return f"{self.use('unrolled')}({bounds})"
        return f"range({bounds})"

    def index(self, value: ir.Value) -> str | int:
        found = super().index(value)
        return int(found) if str(found).isdigit() else found


def _indexes_registers(loop: ir.Operation) -> bool:
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
