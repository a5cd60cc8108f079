"""Where the factors of a contraction lie: elements of a tensor at affine subscripts, with zeros outside where the program pads.

    x[n, c]                                          subscripts n and c
    pad(x[n, 2 * h + r - 1, 2 * w + s - 1, c], 0)    subscripts n, 2 h + r - 1, 2 w + s - 1 and c, with bounds

A tile of such a factor is a box of the tensor, shifted by the indices that do not vary within the tile. Hardware that fills what is
outside with zeros copies it as it copies a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import copysign

from tilec.analysis.index_ranges import Ranges
from tilec.analysis.products import index_dim, stored
from tilec.core import mlir
from tilec.core.mlir import ir

_AT_LEAST, _BELOW = 5, 2  # predicates of arith.cmpi: sge, slt
Bound = tuple[ir.Value, int, int]  # what is compared, the predicate, and the constant
_ACCESSES = ("tensor.extract", "memref.load")  # before and after bufferization


@dataclass(frozen=True)
class Subscript:
    """The sum of dimensions of the operation times `factors`, of what is the same in all of a block, and of `constant`. `value`
    is what computes it in the body; None for the bare dimension of an operand."""

    factors: Mapping[int, int]
    constant: int = 0
    value: ir.Value | None = None

    @property
    def bare(self) -> int | None:
        """The dimension that it is."""
        ((d, factor), *others) = [*self.factors.items()] or [(None, 0)]
        return d if factor == 1 and not others and not self.constant else None


@dataclass(frozen=True)
class Access:
    """An element of `tensor`, or 0 where one of the comparisons `bounds` with constants fails. `operand`: the number of the operand
    that it is, None for an access in the body. `exact`: the bounds hold just where the subscripts are inside the tensor."""

    tensor: ir.Value
    subscripts: tuple[Subscript, ...]
    operand: int | None = None
    bounds: tuple[Bound, ...] = ()
    exact: bool = True

    @property
    def shape(self) -> list[int]:
        return list(ir.ShapedType(self.tensor.type).shape)

    @property
    def element(self) -> ir.Type:
        return ir.ShapedType(self.tensor.type).element_type


def access_of(op: ir.Operation, factor: ir.Value) -> Access | None:
    """The element that a value of an operation's body is, before it was widened; None where it is computed otherwise."""
    body, value = mlir.body_of(op), stored(factor)
    if isinstance(value.owner, ir.Block):
        number = ir.BlockArgument(value).arg_number if value.owner == body else len(op.operands)
        if number >= len(mlir.inputs_of(op)):
            return None
        dims = mlir.map_dims(mlir.maps_of(op)[number])
        return Access(list(op.operands)[number], tuple(Subscript({d: 1}) for d in dims), number)
    bounds: list[Bound | None] = []
    owner = mlir.definition(value)
    if owner.name == "arith.select" and _is_zero(owner.operands[2]):
        bounds, owner = [*_bounds(owner.operands[0])], mlir.definition(stored(owner.operands[1]))
    if owner is None or owner.name not in _ACCESSES or owner.block != body:
        return None
    tensor, *indices = owner.operands
    shape = ir.ShapedType(tensor.type).shape
    subscripts = [_subscript(op, _unclamped(i, extent, bounds)) for i, extent in zip(indices, shape)]
    if None in bounds or None in subscripts or mlir.DYNAMIC in shape:
        return None
    return Access(tensor, tuple(subscripts), None, tuple(bounds), _is_exact(op, set(bounds), subscripts, list(shape)))


def _is_zero(value: ir.Value) -> bool:
    """Whether it is the constant +0."""
    number = mlir.constant_value(value)
    return number is not None and number == 0 and copysign(1, number) == 1


def _unclamped(index: ir.Value, extent: int, bounds: Sequence[Bound | None]) -> ir.Value:
    """A subscript before it was kept inside a tensor of this extent, where the bounds keep it there."""
    raw, asked = index, []
    while (owner := mlir.definition(raw)) is not None and owner.name in ("arith.maxsi", "arith.minsi"):
        from_below = owner.name == "arith.maxsi"
        if mlir.constant_value(owner.operands[1]) != (0 if from_below else extent - 1):
            return index
        raw = owner.operands[0]
        asked.append((_AT_LEAST, 0) if from_below else (_BELOW, extent))
    return raw if all((raw, *bound) in bounds for bound in asked) else index


def _subscript(op: ir.Operation, value: ir.Value) -> Subscript | None:
    factors: dict[int, int] = {}
    constant = _add(op, value, 1, factors)
    return None if constant is None else Subscript({d: f for d, f in factors.items() if f}, constant, value)


def _add(op: ir.Operation, value: ir.Value, times: int, factors: dict[int, int]) -> int | None:
    """Adds a value's dimensions, and returns its constant; None where it is not affine. What comes from outside of the body is the
    same in all of a block."""
    owner = mlir.definition(value)
    known = mlir.constant_value(value)
    if known is not None:
        return times * int(known)
    if owner is None or owner.block != mlir.body_of(op):
        return 0 if owner is not None or value.owner != mlir.body_of(op) else None
    if owner.name == "linalg.index":
        factors[index_dim(owner)] = factors.get(index_dim(owner), 0) + times
        return 0
    if owner.name != "affine.apply":
        return None
    linear = mlir.linear(ir.AffineMapAttr(owner.attributes["map"]).value)
    if linear is None:
        return None
    *terms, constant = linear
    parts = [_add(op, v, times * factor, factors) for v, factor in zip(owner.operands, terms) if factor]
    return None if None in parts else sum(parts, times * constant)


def _is_exact(op: ir.Operation, bounds: set[Bound], subscripts: Sequence[Subscript], shape: list[int]) -> bool:
    """Whether all bounds hold just where all subscripts are inside the tensor."""
    extents = mlir.extents_of(op)
    ranges = Ranges(lambda o: (0, extents[index_dim(o)] - 1) if o.name == "linalg.index" else None)
    inside = {(s.value, _AT_LEAST, 0) for s in subscripts} | {(s.value, _BELOW, e) for s, e in zip(subscripts, shape)}
    return bounds <= inside and all(_holds(ranges, *bound) for bound in inside - bounds)


def _bounds(condition: ir.Value) -> Iterator[Bound | None]:
    """The comparisons with constants that a conjunction is made of; None for another condition."""
    owner = mlir.definition(condition)
    if owner is not None and owner.name == "arith.andi":
        for part in owner.operands:
            yield from _bounds(part)
    elif owner is not None and owner.name == "arith.cmpi" and (limit := mlir.constant_value(owner.operands[1])) is not None:
        predicate = ir.IntegerAttr(owner.attributes["predicate"]).value
        yield (owner.operands[0], predicate, int(limit)) if predicate in (_AT_LEAST, _BELOW) else None
    else:
        yield None


def _holds(ranges: Ranges, value: ir.Value, predicate: int, limit: int) -> bool:
    """Whether a comparison follows from the ranges of the operation's indices."""
    known = ranges.of(value)
    return known is not None and (known[0] >= limit if predicate == _AT_LEAST else known[1] < limit)
