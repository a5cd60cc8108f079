"""Memory of a block: a piece of the thread's scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tilec.core import mlir
from tilec.core.mlir import ir, memref

Size: TypeAlias = "int | ir.Value"


def allocated(sizes: Sequence[Size], element: ir.Type, name: str) -> memref.AllocOp:
    """Memory of such extents, called `name` in the printed kernel. Those that are no numbers are computed of the kernel's sizes."""
    shape = [n if isinstance(n, int) else mlir.DYNAMIC for n in sizes]
    varying = [n for n in sizes if isinstance(n, ir.Value)]
    made = memref.AllocOp(ir.MemRefType.get(shape, element), varying, [], alignment=64)
    made.attributes["tilec.name"] = mlir.string(name)
    return made


__all__ = ["Size", "allocated"]
