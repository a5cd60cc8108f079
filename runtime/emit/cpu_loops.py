"""Short loops of CPU kernels, of which LLVM makes vectors. Left alone, it writes them out, and vectors are of the loop around."""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.cost import loop_nest

ORDERED = ("arith.addf", "arith.mulf")  # but where they may be made in any order
COMBINED = (
    "arith.maximumf", "arith.minimumf", "arith.addi", "arith.muli", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui",
    "arith.ori", "arith.andi", "arith.xori",
)  # fmt: skip


def is_short(loop: ir.Operation) -> bool:
    """Whether it is an innermost loop of few iterations, each on the next elements of memory, that carries no more than sums and
    extremes."""
    low, high, step = (mlir.constant_value(v) for v in list(loop.operands)[:3])
    if low != 0 or step != 1 or high is None or not loop_nest.is_short(int(high)):
        return False
    block = loop.regions[0].blocks[0]
    inside = [o for o in mlir.traverse(loop) if o != loop]
    if any(o.name in ("scf.for", "scf.while") or o.name.startswith("vector.") for o in inside):
        return False
    if not all(_is_along(o, block) for o in inside if o.name in ("memref.load", "memref.store")):
        return False
    return all(map(_is_combined, list(block.arguments)[1:], list(block.operations)[-1].operands))


def _is_along(access: ir.Operation, block: ir.Block) -> bool:
    """Whether the loop moves along the memory of an access, or leaves it at its place."""
    memory, *subscripts = list(access.operands)[1 if access.name == "memref.store" else 0 :]
    strides, _ = ir.MemRefType(memory.type).get_strides_and_offset()
    return all(n == 1 or not mlir.depends(block, v, block.arguments[0]) for v, n in zip(subscripts, strides))


def _is_combined(state: ir.Value, following: ir.Value) -> bool:
    """Whether an element alone is added to a state, or compared with it."""
    made = mlir.definition(following)
    if made is None or len(mlir.uses(state)) != 1 or state not in list(made.operands):
        return False
    return made.name in COMBINED or (made.name in ORDERED and "reassoc" in str(made.attributes["fastmath"]))


__all__ = ["is_short"]
