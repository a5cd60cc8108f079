"""map, for the CPU: fills and copies of memory become loops."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilec.core import locations, mlir
from tilec.core.mlir import ir, memref, scf
from tilec.passes.cuda.memory_spaces import operand_dims


def map_fill(op: ir.Operation) -> None:
    value, out = op.operands
    with ir.InsertionPoint(op), op.location:
        flat = _flat(out)
        _over(
            flat, lambda subscripts: memref.StoreOp(value, flat, subscripts), names=_names(out) if flat == out else []
        )
    op.erase()


def _names(value: ir.Value) -> list[str | None]:
    """The indices that subscript memory in an operation that is mapped after this one."""
    for user in mlir.uses(value):
        if mlir.is_generic(user):
            known = locations.loop_names(user)
            return [known.get(d) for d in operand_dims(user)[list(user.operands).index(value)]]
    return []


def _flat(value: ir.Value) -> ir.Value:
    """Memory that lies in one piece as one dimension: one loop, where LLVM unrolls short ones that are nested."""
    type_ = ir.MemRefType(value.type)
    if type_.rank < 2 or mlir.DYNAMIC in type_.shape or not isinstance(type_.layout, ir.AffineMapAttr):
        return value
    flat = ir.MemRefType.get([prod(type_.shape)], type_.element_type, memory_space=type_.memory_space)
    return memref.CollapseShapeOp(flat, value, [list(range(type_.rank))]).result


def map_copy(op: ir.Operation) -> None:
    source, target = op.operands
    with ir.InsertionPoint(op), op.location:
        _over(target, lambda subscripts: memref.StoreOp(memref.LoadOp(source, subscripts).result, target, subscripts))
    op.erase()


def _over(
    value: ir.Value,
    body: Callable[[list[ir.Value]], object],
    subscripts: tuple[ir.Value, ...] = (),
    names: list[str | None] | None = None,
) -> None:
    """Loops over every element of a memref."""
    shape = ir.ShapedType(value.type).shape
    if len(subscripts) == len(shape):
        body(list(subscripts))
        return
    size = shape[len(subscripts)]
    extent = memref.DimOp(value, mlir.index(len(subscripts))).result if size == mlir.DYNAMIC else mlir.index(size)
    loop = scf.ForOp(mlir.index(0), extent, mlir.index(1), [])
    locations.named(loop, names[len(subscripts)] if names else "element" if len(shape) == 1 else None)
    with ir.InsertionPoint(loop.body):
        _over(value, body, (*subscripts, loop.induction_variable), names)
        scf.YieldOp([])


__all__ = ["map_copy", "map_fill"]
