"""emit, for CUDA: loads into registers under a predicate.

    if c: x_2[i] = load(a)      ->      load_f32x4_nc_where(x_2, i, a, c)

A predicate on each load in place of a branch around it: a thread's loads then do not wait for one another. Of a branch around
branches, such as those of a tile that is cut along two dimensions, the loads have both predicates.
"""

from __future__ import annotations

import re

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.emit.cuda_memory import MemoryPrinter
from tilec.runtime.emit.index import Memory

_STORES = ("vector.store", "memref.store")
_PLAIN = ("affine.apply", "scf.yield", "arith.constant", "arith.cmpi")
_INDEX = re.compile(
    r"arith\.((add|sub|mul|and|or|xor|shl|max[su]|min[su]|shr[su])i|index_cast(ui)?|ext[su]i|trunci|select)"
)
"""What subscripts are made by, and defined for all values."""


def guarded_loads(printer: MemoryPrinter, op: ir.Operation) -> bool:
    """Prints a branch that only loads into registers, from memory that the kernel does not write; false for other branches."""
    stores = _stores(op)
    if not stores or not all(_is_ahead(printer, s) for s in stores):
        return False
    around, condition = printer.guard, printer.expr(op.operands[0])
    printer.guard = condition if around is None else f"({around}) & ({condition})"
    printer.block(op.regions[0].blocks[0])
    printer.guard = around
    return True


def guarded_load(printer: MemoryPrinter, store: ir.Operation) -> None:
    """One element, as a vector of one."""
    load = store.operands[0].owner
    array, slot = printer.address(store.operands[1], list(store.operands)[2:])
    address = printer.bytes(*printer.address(load.operands[0], list(load.operands)[1:]))
    name = printer.use(
        f"load_{printer.dtype(array.element)}x1{printer.constancy(printer.memory[load.operands[0]])}_where"
    )
    printer.line(f"{name}({array.base}, {slot}, {address}, {printer.guard})")


def _stores(op: ir.Operation) -> list[ir.Operation]:
    """The loads of a branch that does nothing else."""
    if "tilec.branch" in op.attributes or len(op.results) or len(op.regions[1].blocks):
        return []
    found = []
    for view in op.regions[0].blocks[0].operations:
        inner = view.operation
        if inner.name in _STORES and _is_load(inner.operands[0].owner):
            found.append(inner)
        elif inner.name in ("scf.if", "scf.for"):
            if not (stores := _stores(inner) if inner.name == "scf.if" else _branches(inner)):
                return []
            found += stores
        elif not _is_plain(inner) and not _is_only_stored(inner):
            return []
    return found


def _branches(op: ir.Operation) -> list[ir.Operation]:
    """The loads of a loop over such branches. Loads of a loop without branches inside have the one around it, and do not wait."""
    if len(op.results):
        return []
    found = []
    for inner in (view.operation for view in op.regions[0].blocks[0].operations):
        if inner.name in ("scf.if", "scf.for"):
            if not (stores := _stores(inner) if inner.name == "scf.if" else _branches(inner)):
                return []
            found += stores
        elif not _is_plain(inner):
            return []
    return found


def _is_plain(op: ir.Operation) -> bool:
    """Whether it may be computed without need."""
    return op.name in _PLAIN or (
        _INDEX.fullmatch(op.name) is not None
        and isinstance(op.results[0].type, (ir.IndexType, ir.IntegerType, ir.MemRefType))
    )


def _is_load(op: ir.Operation | ir.OpView | ir.Block) -> bool:
    return not isinstance(op, ir.Block) and op.name in ("vector.load", "memref.load")


def _is_only_stored(op: ir.Operation) -> bool:
    return _is_load(op) and all(u.name in _STORES for u in mlir.uses(op.results[0]))


def _is_ahead(printer: MemoryPrinter, store: ir.Operation) -> bool:
    source: Memory | None = printer.memory.get(store.operands[0].owner.operands[0])
    target: Memory | None = printer.memory.get(store.operands[1])
    if source is None or target is None or source.space != "global" or source.base in printer.written:
        return False
    return target.space == "array" or (target.space == "halves" and store.name == "vector.store")
