"""The memory spaces of a block's memory, and the kernel dimensions that subscript it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tilec.core import mlir
from tilec.core.mlir import ir, memref

VIEWS = ("memref.subview", "memref.cast", "memref.collapse_shape", "arith.select")
PRIVATE, SHARED = SPACES = ("private", "workgroup")


def local(shape: Sequence[int], element: ir.Type, space: str) -> ir.MemRefType:
    """Memory of a thread (`PRIVATE`) or of a block (`SHARED`)."""
    return ir.MemRefType.get(list(shape), element, None, attribute_of(space))


def attribute_of(space: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#gpu.address_space<{space}>")


def registers(shape: Sequence[int], name: str, type_: ir.Type | str = "f32", words: bool = False) -> ir.Value:
    """An array of each thread, declared before any loop. `words`: a fragment, of which a register has 32 bits."""
    element = mlir.type_of(type_) if isinstance(type_, str) else type_
    with _before_loops(), ir.Location.name(name) if name else nullcontext():
        made = memref.AllocaOp(local(shape, element, PRIVATE), [], [])
    if words:
        made.operation.attributes["tilec.words"] = ir.UnitAttr.get()
    return made.result


def _before_loops() -> ir.InsertionPoint | AbstractContextManager[None]:
    block = ir.InsertionPoint.current.block
    if block.owner.operation.name == "func.func":
        return nullcontext()
    while block.owner.operation.name != "func.func":
        block = block.owner.operation.block
    return ir.InsertionPoint.at_block_begin(block)


def operand_dims(op: ir.Operation) -> list[list[int]]:
    """The kernel dimensions that subscript each operand."""
    dims = mlir.get_integers(op, "tilec.dims")
    return [[dims[d] for d in mlir.map_dims(m)] for m in mlir.maps_of(op)]


def size_of(value: ir.Value, n: int) -> ir.Value | int:
    """The extent of dimension `n` of memory; a value where it differs from block to block, at the edge of the grid."""
    size = ir.ShapedType(value.type).shape[n]
    return memref.DimOp(value, mlir.index(n)).result if size == mlir.DYNAMIC else size


def sizes_of(operands: Sequence[ir.Value], operand_dims: Sequence[Iterable[int]]) -> dict[int, ir.Value | int]:
    """The extents of the dimensions that subscript the operands, each from the first operand that has it."""
    sizes: dict[int, ir.Value | int] = {}
    for value, dims in zip(operands, operand_dims):
        for n, d in enumerate(dims):
            if d not in sizes:
                sizes[d] = size_of(value, n)
    return sizes


def root(value: ir.Value) -> ir.Value:
    """The memory that a view is part of; the first one of tensors that take turns."""
    while (made := mlir.definition(value)) is not None and made.name in VIEWS:
        value = made.operands[made.name == "arith.select"]
    return value


def is_local(value: ir.Value) -> bool:
    """Whether it is memory of the block."""
    return not isinstance(root(value).owner, ir.Block)


def space_of(value: ir.Value) -> str | None:
    """ "private", "workgroup", or None for global memory."""
    space = str(ir.MemRefType(root(value).type).memory_space or "")
    return next((name for name in SPACES if name in space), None)


def is_half(value: ir.Value) -> bool:
    """Whether elements are 16-bit floats, of which a thread may keep two in a register."""
    return isinstance(ir.MemRefType(value.type).element_type, (ir.BF16Type, ir.F16Type))


def erase_unused(function: ir.Operation) -> None:
    """Takes away memory that nothing reads or writes any more: tiles of tensors that are in registers now."""
    for op in reversed([o.operation for o in mlir.entry(function).operations]):
        if op.name in ("memref.alloc", "memref.subview", "memref.dim") and not any(mlir.uses(op.results[0])):
            op.erase()
