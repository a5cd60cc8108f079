"""The factors of a `linalg.generic` that sums products, and the dimensions and operands that each depends on.

    ^bb0(%x: bf16, %w: bf16, %sum: f32):             factors of the operation: %a and %b
      %a = arith.extf %x                             stored(%a) = %x, before it was widened
      %b = arith.extf %w
      %p = arith.mulf %a, %b
      %s = arith.addf %sum, %p
      linalg.yield %s

A factor may also be computed, from several operands and from the numbers of its place. Where it is a product itself, some of its
factors may be the same for many adjacent places of k (`scaled`): those are scales, and may be applied to the sum over these places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.mlir import ir

_PRODUCTS = {"arith.addf": "arith.mulf", "arith.addi": "arith.muli"}  # of what these sums are
_FROM_INTEGERS = ("arith.sitofp", "arith.uitofp")
_WIDENED = ("arith.extf", "arith.extsi", "arith.extui")


def factors_of(op: ir.Operation) -> tuple[ir.Value, ir.Value] | None:
    """The factors of the product that an operation adds to its one state, in the body's order; None where it adds another term."""
    if (product := product_of(op)) is None:
        return None
    left, right = product.operands
    return left, right


def product_of(op: ir.Operation) -> ir.Operation | None:
    """The product that an operation adds to its one state; None where it adds another term."""
    body = mlir.body_of(op)
    (total, *others) = list(body.operations)[-1].operation.operands
    state, added = list(body.arguments)[-1], mlir.definition(total)
    if others or added is None or added.name not in _PRODUCTS or state not in list(added.operands):
        return None
    a, b = added.operands
    product = mlir.definition(b if a == state else a)
    return product if product is not None and product.name == _PRODUCTS[added.name] else None


def leaves_of(value: ir.Value) -> list[ir.Value]:
    """What a value is the float product of, with as many factors as there are."""
    owner = mlir.definition(value)
    if owner is None or owner.name != "arith.mulf":
        return [value]
    return [leaf for factor in owner.operands for leaf in leaves_of(factor)]


@dataclass(frozen=True)
class Scaled:
    """A factor as the product of one number, `core`, that is another for every place of k, and of `scales`, which `period` adjacent
    places share (0: there are none)."""

    core: ir.Value
    scales: tuple[ir.Value, ...] = ()
    period: int = 0


def scaled(body: ir.Block, factor: ir.Value, operand_dims: Sequence[Iterable[int]], inner: Sequence[tuple[int, int]]) -> Scaled:
    """`inner`: the reduced dimensions in the order of k, outermost first, with their extents."""
    found = [(leaf, period_of(body, leaf, operand_dims, inner)) for leaf in leaves_of(factor)]
    cores = [leaf for leaf, period in found if period == 1]
    period = gcd(*(p for _, p in found if p != 1))
    if len(cores) != 1 or not period:
        return Scaled(factor)
    return Scaled(cores[0], tuple(leaf for leaf, period in found if period != 1), period)


def period_of(
    body: ir.Block, value: ir.Value, operand_dims: Sequence[Iterable[int]], dims: Sequence[tuple[int, int]]
) -> int:  # fmt: skip
    """The largest number P such that a value depends on the place along `dims` (outermost first, with their extents) by its
    quotient by P alone; 0 where it does not depend on it."""
    found, length = 0, 1
    for d, extent in reversed(dims):
        found = gcd(found, length * _period(body, value, operand_dims, d))
        length *= extent
    return found


def _period(body: ir.Block, value: ir.Value, operand_dims: Sequence[Iterable[int]], d: int) -> int:
    """The same for one dimension."""
    if isinstance(value.owner, ir.Block):
        mine = value.owner == body
        return int(mine and d in operand_dims[ir.BlockArgument(value).arg_number])
    op = mlir.definition(value)
    if op is None or op.block != body:
        return 0
    if op.name == "linalg.index":
        return int(index_dim(op) == d)
    operands = mlir.operands_of(op)
    periods = [_period(body, v, operand_dims, d) for v in operands]
    if op.name != "affine.apply":
        return gcd(*periods)
    whole = ir.AffineMapAttr(op.attributes["map"]).value
    is_index = [_is_index(v, d) for v in operands]
    return _affine_period(whole.results[0], list(zip(periods, is_index)), whole.n_dims)


def _is_index(value: ir.Value, d: int) -> bool:
    owner = mlir.definition(value)
    return owner is not None and owner.name == "linalg.index" and index_dim(owner) == d


def _affine_period(x: ir.AffineExpr, operands: list[tuple[int, bool]], symbols: int) -> int:
    """The same for an affine expression of operands with these periods, or that are the place itself; symbols come after so many
    dimensions."""

    def operand(x: ir.AffineExpr) -> tuple[int, bool]:
        match x:
            case ir.AffineDimExpr():
                return operands[x.position]
            case ir.AffineSymbolExpr():
                return operands[symbols + x.position]
        return 0, False

    match x:
        case ir.AffineConstantExpr():
            return 0
        case ir.AffineDimExpr() | ir.AffineSymbolExpr():
            return operand(x)[0]
        case ir.AffineFloorDivExpr() if operand(x.lhs)[1] and isinstance(x.rhs, ir.AffineConstantExpr):
            return x.rhs.value
    return gcd(*(_affine_period(part, operands, symbols) for part in mlir.sides(x)))


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


def narrow(factor: ir.Value) -> ir.Value:
    """A factor before it was widened or made a float from an integer."""
    plain, owner = stored(factor), mlir.definition(stored(factor))
    return plain if owner is None or owner.name not in _FROM_INTEGERS else stored(owner.operands[0])


def stored_term(x: Expr) -> Expr:
    """The same of an expression."""
    return stored_term(x.args[0]) if x.op in _WIDENED else x
