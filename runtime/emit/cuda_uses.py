"""Readers and writers of a kernel's memory, by which the CUDA emitter chooses registers or memory for values."""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir


def stored_arguments(function: ir.Operation) -> set[ir.Value]:
    """The function's arguments that it writes."""
    from tilec.passes.cuda.memory_spaces import root

    return {root(op.operands[1]) for op in mlir.traverse(function) if op.name in ("memref.store", "vector.store")}


def is_read_as_scalar(memory: ir.Value) -> bool:
    """Whether elements of private memory are read other than by a vector that goes to memory."""
    space = str(ir.MemRefType(memory.type).memory_space or "")
    if "private" not in space:
        return False
    return any(not _goes_to_memory(u) for u in mlir.uses(memory) if u.name == "memref.load")


def _goes_to_memory(load: ir.Operation) -> bool:
    users = mlir.uses(load.results[0])
    return all(
        u.name == "memref.store" and u.operands[0] == load.results[0]
        and "private" not in str(ir.MemRefType(u.operands[1].type).memory_space or "")
        for u in users
    )  # fmt: skip


def is_unchanged(load: ir.Operation, memory: ir.Value) -> bool:
    """Whether no store to `memory` lies between a load and the last use of its result, all within one block."""
    users = set(mlir.uses(load.results[0]))
    operations = [o.operation for o in load.block.operations]
    written = False
    for op in operations[operations.index(load) + 1 :]:
        inside = {op, *mlir.traverse(op)}
        if users & inside:
            if written:
                return False
            users -= inside
            if not users:
                return not (len(inside) > 1 and any(_writes(o, memory) for o in inside))
        written = written or any(_writes(o, memory) for o in inside)
    return False


def _writes(op: ir.Operation, memory: ir.Value) -> bool:
    return op.name in ("memref.store", "vector.store") and op.operands[1] == memory
