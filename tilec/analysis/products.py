"""The factors of a `linalg.generic` that sums products, and the dimensions and operands that each depends on.

    ^bb0(%x: bf16, %w: bf16, %sum: f32):             factors of the operation: %a and %b
      %a = arith.extf %x                             stored(%a) = %x, before it was widened
      %b = arith.extf %w
      %p = arith.mulf %a, %b
      %s = arith.addf %sum, %p
      linalg.yield %s

A factor may also be computed, from several operands and from the numbers of its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.mlir import ir

_PRODUCTS = {"arith.addf": "arith.mulf", "arith.addi": "arith.muli"}  # of what these sums are
_WIDENED = ("arith.extf", "arith.extsi", "arith.extui")


def factors_of(op: ir.Operation) -> tuple[ir.Value, ir.Value] | None:
    """The factors of the product that an operation adds to its one state, in the body's order; None where it adds another term."""
    body = mlir.body_of(op)
    (total, *others) = list(body.operations)[-1].operation.operands
    state, added = list(body.arguments)[-1], mlir.definition(total)
    if others or added is None or added.name not in _PRODUCTS or state not in list(added.operands):
        return None
    a, b = added.operands
    product = mlir.definition(b if a == state else a)
    if product is None or product.name != _PRODUCTS[added.name]:
        return None
    left, right = product.operands
    return left, right


def arguments_of(body: ir.Block, value: ir.Value) -> list[int]:
    """Numbers of the operands whose elements a value of the body reads at bare indices."""
    values = [value, *(v for op in mlir.slice_of(body, value) for v in mlir.operands_of(op))]
    mine = [v for v in values if isinstance(v.owner, ir.Block) and v.owner == body]
    return sorted({ir.BlockArgument(v).arg_number for v in mine})


def dims_of(body: ir.Block, value: ir.Value, operand_dims: Sequence[Iterable[int]]) -> frozenset[int]:
    """The dimensions of the operation that a value of its body depends on; `operand_dims` are those that subscript each operand."""
    found = {d for n in arguments_of(body, value) for d in operand_dims[n]}
    for op in mlir.slice_of(body, value):
        found |= {index_dim(o) for o in (op, *mlir.traverse(op)) if o.name == "linalg.index"}
    return frozenset(found)


def index_dim(op: ir.Operation) -> int:
    """The dimension whose number a `linalg.index` is."""
    return ir.IntegerAttr(op.attributes["dim"]).value


def stored(factor: ir.Value) -> ir.Value:
    """A factor before it was widened: that loses nothing, so matrix units can take the narrow one."""
    owner = mlir.definition(factor)
    return factor if owner is None or owner.name not in _WIDENED else stored(owner.operands[0])


def stored_term(x: Expr) -> Expr:
    """The same of an expression."""
    return stored_term(x.args[0]) if x.op in _WIDENED else x
