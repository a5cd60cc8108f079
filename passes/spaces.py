"""Where the memory of a block lies, and which kernel dimensions subscript it."""

from __future__ import annotations

from tilec import mlir
from tilec.mlir import ir

SPACES = ("private", "workgroup")


def places_of(op: ir.Operation) -> list[list[int]]:
    """The kernel dimensions that subscript each operand."""
    dims = mlir.get_integers(op, "tilec.dims")
    return [[dims[d] for d in mlir.map_dims(m)] for m in mlir.maps_of(op)]


def root(value: ir.Value) -> ir.Value:
    """The memory that a view is part of."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in (
        "memref.subview",
        "memref.cast",
        "memref.collapse_shape",
    ):
        value = value.owner.operands[0]
    return value


def is_local(value: ir.Value) -> bool:
    """Whether it is memory of the block."""
    return not isinstance(root(value).owner, ir.Block)


def space_of(value: ir.Value) -> str | None:
    """ "private", "workgroup", or None for global memory."""
    space = str(ir.MemRefType(root(value).type).memory_space or "")
    return next((name for name in SPACES if name in space), None)


def is_half(value: ir.Value) -> bool:
    """Whether elements are floats of 16 bits, of which threads may keep two in a register."""
    return isinstance(ir.MemRefType(value.type).element_type, (ir.BF16Type, ir.F16Type))
