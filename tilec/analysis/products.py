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
from typing import cast

from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.patterns import S, name_of, parts_of
from tilec.core import mlir
from tilec.core.extents import Extent
from tilec.core.mlir import ir
from tilec.index.questions import multiple, period

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
    if (found := combined(op)) is None or len(op.results) > 1:
        return None
    added, term = found
    return mlir.definition(term) if name_of(term) == _PRODUCTS.get(added.name) else None


def combined(op: ir.Operation, number: int = 0) -> tuple[ir.Operation, ir.Value] | None:
    """What combines a state with a term, for the result of this number, and the term; None where it is made in another way."""
    state, update = list(mlir.body_of(op).arguments)[len(mlir.inputs_of(op)) + number], mlir.definition(mlir.yielded(op)[number])
    if update is None or len(update.operands) != 2 or state not in list(update.operands):
        return None
    a, b = update.operands
    return update, b if a == state else a


def summed(op: ir.Operation, number: int) -> ir.Value | None:
    """The term of the sum, from 0 on, that the result of this number is."""
    found, start = combined(op, number), mlir.fill_value(mlir.outputs_of(op)[number])
    from_zero = start is not None and mlir.constant_value(start) == 0
    return found[1] if found is not None and found[0].name == "arith.addf" and from_zero else None


def leaves_of(value: ir.Value) -> list[ir.Value]:
    """What a value is the float product of, with as many factors as there are."""
    if name_of(value) != "arith.mulf":
        return [value]
    return [leaf for factor in mlir.definition(value).operands for leaf in leaves_of(factor)]


@dataclass(frozen=True)
class Scaled:
    """A factor as the product of one number, `core`, that is another for every place of k, and of `scales`, which `period` adjacent
    places share (0: there are none)."""

    core: ir.Value
    scales: tuple[ir.Value, ...] = ()
    period: int = 0


def scaled(op: ir.Operation, factor: ir.Value, inner: Sequence[tuple[int, Extent | None]]) -> Scaled:
    """Of an operation. `inner`: the reduced dimensions in the order of k, outermost first, with their extents."""
    terms = BodyTerms(op)
    found = [(leaf, period_of(terms, leaf, inner)) for leaf in leaves_of(factor)]
    cores = [leaf for leaf, period in found if period == 1]
    period = gcd(*(p for _, p in found if p != 1))
    if len(cores) != 1 or not period:
        return Scaled(factor)
    return Scaled(cores[0], tuple(leaf for leaf, period in found if period != 1), period)


def period_of(terms: BodyTerms, value: ir.Value, dims: Sequence[tuple[int, Extent | None]]) -> int:
    """A number P such that a value depends on the position along `dims` (outermost first, with their extents) by its quotient by P
    alone, the largest that is known; 0 where it does not depend on it."""
    found, length, x = 0, 1, terms.of(value)
    for d, extent in reversed(dims):
        found = gcd(found, length * (period(terms.dims[d], x).constant or 0))
        length *= extent if isinstance(extent, int) else 1 if extent is None else multiple(extent)
    return found


def arguments_of(body: ir.Block, value: ir.Value) -> list[int]:
    """Numbers of the operands whose elements a value of the body reads at bare indices."""
    values = [value, *(v for op in mlir.slice_of(body, value) for v in mlir.operands_of(op))]
    mine = [v for v in values if isinstance(v.owner, ir.Block) and v.owner == body]
    return sorted({ir.BlockArgument(v).arg_number for v in mine})


def dims_of(body: ir.Block, value: ir.Value, operand_dims: Sequence[Iterable[int]]) -> frozenset[int]:
    """The dimensions of the operation that a value of its body depends on; `operand_dims` are those that subscript each operand."""
    found = {d for n in arguments_of(body, value) for d in operand_dims[n]}
    for op in mlir.slice_of(body, value):
        found |= _own_dims(op)
    return frozenset(found)


def dims_of_each(body: ir.Block, operand_dims: Sequence[Iterable[int]]) -> dict[ir.Value, frozenset[int]]:
    """`dims_of` for each value of the body, in one pass over it."""
    found = {a: frozenset(dims) for a, dims in zip(body.arguments, operand_dims, strict=True)}
    for view in body.operations:
        op = view.operation
        dims = frozenset(_own_dims(op)).union(*(found.get(v, ()) for v in mlir.operands_of(op)))
        found |= dict.fromkeys(op.results, dims)
    return found


def _own_dims(op: ir.Operation) -> set[int]:
    """The dimensions whose indices an operation is, or has inside."""
    return {mlir.index_dim(o) for o in (op, *mlir.traverse(op)) if o.name == "linalg.index"}


def stored(factor: S) -> S:
    """A factor before it was widened: that loses nothing, so matrix units can take the narrow one."""
    return stored(cast("S", parts_of(factor)[0])) if name_of(factor) in _WIDENED else factor


def narrow(factor: ir.Value) -> ir.Value:
    """A factor before it was widened or made a float from an integer."""
    plain = stored(factor)
    return stored(mlir.definition(plain).operands[0]) if name_of(plain) in _FROM_INTEGERS else plain
