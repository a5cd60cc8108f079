"""Device functions that upstream's dialects have no operation for, as `func.call` of a function that is only declared.

An attribute of the call is the opcode with its arguments:

    func.call @wgmma(%sums, %left, %right, %keep) {tilec.wgmma = {n = 256, k = 64, multiplicand = "bf16", ...}}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.core import records
from tilec.core.mlir import func, ir


@dataclass(frozen=True)
class WarpgroupProduct:
    """`(sums, left, right, [word,] keep)`: sums += left * right by the 128 threads of a warpgroup, 64 x n sums and k products of
    each; from zero where `keep` is 0. Arguments are tiles in workgroup memory, in lines of 128 bytes that are swizzled.

    A line holds products (`k_major`) or else rows. Longer rows lie in slabs of `left_slab`, `right_slab` lines;
    None where k is no longer, and a slab of rows then has k lines. `left_in_registers`: the left factor is a packed fragment in
    registers, from `word` on.
    """

    n: int
    k: int
    multiplicand: str
    left_k_major: bool = True
    right_k_major: bool = True
    left_in_registers: bool = False
    left_slab: int | None = None
    right_slab: int | None = None

    @property
    def k_major(self) -> tuple[bool, bool]:
        return self.left_k_major, self.right_k_major

    @property
    def slabs(self) -> tuple[int | None, int | None]:
        """Lines of a slab of either factor."""
        return self.left_slab, self.right_slab


@dataclass(frozen=True)
class WarpgroupWait:
    """`(sums..., factors...)`: until at most `running` of the warpgroup's products are under way."""

    running: int


@dataclass(frozen=True)
class NamedBarrier:
    """`(number, threads)`: this thread arrives at the block's barrier of this number, which opens when so many have. `waits`: until
    it is open."""

    waits: bool


@dataclass(frozen=True)
class RemoteArrive:
    """`(barriers, number, block)`: this thread arrives at the barrier of this number that a block of its cluster has."""


@dataclass(frozen=True)
class CopyArrive:
    """`(barriers, number)`: arrives at the barrier of this number as soon as all copies that this thread has started (cp.async) are
    complete. The thread goes on."""


Opcode = WarpgroupProduct | WarpgroupWait | NamedBarrier | RemoteArrive | CopyArrive
OPCODES: dict[str, type[Opcode]] = {
    "wgmma": WarpgroupProduct, "wgmma_wait": WarpgroupWait, "named_barrier": NamedBarrier, "remote_arrive": RemoteArrive,
    "copy_arrive": CopyArrive,
}  # fmt: skip
_NAMES = {record: name for name, record in OPCODES.items()}


def opcode_of(call: ir.Operation) -> Opcode | None:
    """The device function that a call names; None for calls of kernels."""
    for name, record in OPCODES.items():
        if (key := f"tilec.{name}") in call.attributes:
            return records.from_attribute(record, call.attributes[key])
    return None


def call(function: ir.Operation, opcode: Opcode, operands: Sequence[ir.Value]) -> None:
    """Calls a device function, which the kernel's module declares once for each list of types: `wgmma`, `wgmma_2`."""
    name = _NAMES[type(opcode)]
    made = func.CallOp([], _declared(function, name, [v.type for v in operands]), list(operands))
    made.attributes[f"tilec.{name}"] = records.to_attribute(opcode)


def _declared(function: ir.Operation, name: str, types: list[ir.Type]) -> str:
    body = function.parent.regions[0].blocks[0]
    wanted = ir.TypeAttr.get(ir.FunctionType.get(types, []))
    known = {
        ir.StringAttr(o.attributes["sym_name"]).value: o.attributes["function_type"]
        for o in body.operations
        if "sym_name" in o.attributes
    }
    symbol, number = name, 1
    while known.get(symbol, wanted) != wanted:
        number += 1
        symbol = f"{name}_{number}"
    if symbol not in known:
        with ir.InsertionPoint.at_block_begin(body):
            func.FuncOp(symbol, (types, []), visibility="private")
    return symbol
