"""map, for CUDA: tensors that take turns. Of elements at the same subscripts of several tensors, between which an operation selects
by indices alone, the one that is chosen is loaded.

    y = select(i % 2 == 1, a[i / 2], b[i / 2])   ->   m = select(i % 2 == 1, a, b);  y = m[i / 2]

So are results of several operations read where they take turns, such as the remainders of a transposed convolution: there is one
load for each element and no branch, so that all loads of a thread are on their way at a time.
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref


def choose_tensors(op: ir.Operation) -> None:
    """Rewrites the selections of an operation's body."""
    body = mlir.body_of(op)
    for selection in [o.operation for o in body.operations if o.operation.name == "arith.select"]:
        condition, *values = selection.operands
        loads = [mlir.definition(v) for v in values]
        if not all(o is not None and o.name == "memref.load" and mlir.uses(o.results[0]) == [selection] for o in loads):
            continue
        (one, *subscripts), (other, *others) = (list(o.operands) for o in loads if o is not None)
        same = one.type == other.type and subscripts == others and subscripts
        if same and _is_whole(one) and _is_whole(other) and is_of_indices(body, condition):
            with ir.InsertionPoint(selection), selection.location:
                chosen = memref.LoadOp(arith.select(condition, one, other), subscripts)
            selection.results[0].replace_all_uses_with(chosen.result)
            for each in (selection, *loads):
                each.erase()


def choices(memory: ir.Value) -> list[ir.Value]:
    """The conditions by which memory is one tensor or another."""
    made = mlir.definition(memory)
    if made is None or made.name != "arith.select":
        return []
    condition, *tensors = made.operands
    return [condition, *(c for t in tensors for c in choices(t))]


def _is_whole(memory: ir.Value) -> bool:
    """Whether it is one of the kernel's tensors, or one that is chosen of them."""
    made = mlir.definition(memory)
    return made is None or made.name == "arith.select"


def is_of_indices(body: ir.Block, value: ir.Value) -> bool:
    """Whether a value of a body is made of indices alone."""
    made = mlir.slice_of(body, value)
    return not any(o.name == "memref.load" or any(v in body.arguments for v in o.operands) for o in made)


__all__ = ["choices", "choose_tensors", "is_of_indices"]
