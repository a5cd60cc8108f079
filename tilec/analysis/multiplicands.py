"""The type to which a contraction's factors may be rounded, which decides whether matrix units can compute it.

Matrix units multiply narrow numbers exactly and add in float32. A product of bf16 tensors, which the language computes in
f32, loses nothing there. A product of f32 tensors would lose 16 bits of every factor, and uses matrix units only where
the source allows it (`using bf16`).
"""

from __future__ import annotations

from tilec.analysis.graph import Node
from tilec.analysis.products import stored
from tilec.core import mlir
from tilec.core.mlir import ir

_EXACT = {  # stored type: the multiplicand that holds all of its values
    "bf16": "bf16", "f16": "f16", "f8E4M3FN": "f16", "f8E5M2": "f16",
}  # fmt: skip


def multiplicand_of(node: Node) -> str:
    """The type that both factors of a contraction may be rounded to without a loss that the source does not
    allow.
    """
    assert node.contraction is not None
    left, right = node.contraction.left, node.contraction.right
    product = str(left.type)
    allowed = mlir.get_string(node.op, "tilec.multiplicand")
    if product == "i32" and all(_extended(f) == "arith.extsi" and str(stored(f).type) == "i8" for f in (left, right)):
        return "i8"
    if product != "f32":
        return product
    if allowed is not None:
        return allowed
    kinds = {_EXACT.get(str(stored(f).type), "f32") for f in (left, right)}
    return kinds.pop() if len(kinds) == 1 else "f32"


def _extended(factor: ir.Value) -> str:
    owner = mlir.definition(factor)
    return "" if owner is None else owner.name
