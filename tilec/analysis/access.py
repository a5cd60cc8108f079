"""Where the factors of a contraction lie: elements of a tensor at affine subscripts, with zeros outside where the program pads.

    x[n, c]                                          subscripts n and c
    pad(x[n, 2 * h + r - 1, 2 * w + s - 1, c], 0)    subscripts n, 2 h + r - 1, 2 w + s - 1 and c, under bounds

A tile of such a factor is a box of the tensor, shifted by the indices that do not vary within the tile. Hardware that fills what is
outside with zeros copies it as it copies a plain tensor.

A subscript may also have a part that is no affine form, such as what memory holds, or a quotient (`Opaque`):

    w[e[b], k, n]                                    subscripts e[b], k and n
    keys[table[b, j // 16], j % 16, d]               subscripts table[b, j // 16], j % 16 and d

Where that part is the same in all of a tile, the tile is a box at a place that is known when the kernel runs. Else the lines of the
tile lie anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import copysign

from tilec.analysis.products import dims_of, index_dim, narrow, stored
from tilec.core import mlir
from tilec.core.mlir import ir

_ACCESSES = ("tensor.extract", "memref.load")  # before and after bufferization
_SIGNS = {2: (-1, -1), 3: (-1, 0), 4: (1, -1), 5: (1, 0)}  # cmpi slt, sle, sgt, sge: sign * (a - b) + number >= 0
_CASTS = ("arith.index_cast", "arith.extsi")


@dataclass(frozen=True)
class Opaque:
    """A value of an operation's body that is no affine form of its dimensions, of which it depends on `dims`."""

    value: ir.Value
    dims: frozenset[int]


@dataclass(frozen=True)
class Linear:
    """A sum of dimensions of an operation, of values that are the same in all of a block, and of opaque ones, times numbers; and a
    number."""

    terms: frozenset[tuple[int | ir.Value | Opaque, int]]
    constant: int

    @property
    def factors(self) -> dict[int, int]:
        """By dimension."""
        return {leaf: factor for leaf, factor in self.terms if isinstance(leaf, int)}

    @property
    def opaque(self) -> frozenset[int]:
        """The dimensions that its opaque parts depend on."""
        return frozenset(d for leaf, _ in self.terms if isinstance(leaf, Opaque) for d in leaf.dims)

    @property
    def is_affine(self) -> bool:
        return not any(isinstance(leaf, Opaque) for leaf, _ in self.terms)

    def plus(self, other: Linear, times: int = 1) -> Linear:
        found = dict(self.terms)
        for leaf, factor in other.terms:
            found[leaf] = found.get(leaf, 0) + times * factor
        terms = frozenset((leaf, factor) for leaf, factor in found.items() if factor)
        return Linear(terms, self.constant + times * other.constant)

    def is_positive(self, extents: Sequence[int]) -> bool:
        """Whether it is at least 0 for all indices."""
        if len(self.factors) < len(self.terms):
            return False
        return self.constant + sum(min(0, f * (extents[d] - 1)) for d, f in self.factors.items()) >= 0


@dataclass(frozen=True)
class Subscript:
    """A subscript, and what computes it in the body; None for the bare dimension of an operand."""

    linear: Linear
    value: ir.Value | None = None

    @property
    def factors(self) -> dict[int, int]:
        return self.linear.factors

    @property
    def constant(self) -> int:
        return self.linear.constant

    @property
    def is_affine(self) -> bool:
        return self.linear.is_affine

    @property
    def bare(self) -> int | None:
        """The dimension that it is."""
        factors = [*self.factors.items()]
        return factors[0][0] if len(factors) == len(self.linear.terms) == 1 == factors[0][1] and not self.constant else None


@dataclass(frozen=True)
class Access:
    """An element of `tensor`, or 0 where one of the comparisons `bounds` fails. `operand`: the number of the operand that it is,
    None for an access in the body. `exact`: the bounds hold just where the subscripts are inside the tensor."""

    tensor: ir.Value
    subscripts: tuple[Subscript, ...]
    operand: int | None = None
    bounds: tuple[ir.Value, ...] = ()
    exact: bool = True
    guarded: frozenset[int] = frozenset()
    """The dimensions of the tensor that bounds are for."""

    @property
    def shape(self) -> list[int]:
        return list(ir.ShapedType(self.tensor.type).shape)

    @property
    def is_affine(self) -> bool:
        return all(s.is_affine for s in self.subscripts)

    @property
    def element(self) -> mlir.Element:
        return ir.ShapedType(self.tensor.type).element_type


def access_of(op: ir.Operation, factor: ir.Value) -> Access | None:
    """The element that a value of an operation's body is, before it was widened or made a float; None where it is computed."""
    body, value = mlir.body_of(op), narrow(factor)
    if isinstance(value.owner, ir.Block):
        number = ir.BlockArgument(value).arg_number if value.owner == body else len(op.operands)
        if number >= len(mlir.inputs_of(op)):
            return None
        dims = mlir.map_dims(mlir.maps_of(op)[number])
        return Access(list(op.operands)[number], tuple(Subscript(Linear(frozenset({(d, 1)}), 0)) for d in dims), number)
    comparisons: list[ir.Value] = []
    owner = mlir.definition(value)
    if owner.name == "arith.select" and _is_zero(owner.operands[2]):
        comparisons, owner = [*_conjunction(owner.operands[0])], mlir.definition(stored(owner.operands[1]))
    if owner is None or owner.name not in _ACCESSES or owner.block != body:
        return None
    tensor, *indices = owner.operands
    shape, extents = list(ir.ShapedType(tensor.type).shape), mlir.extents_of(op)
    bounds = [_bound(op, c) for c in comparisons]
    known = {b for b in bounds if b is not None}
    values = [_unclamped(op, i, extent, known) for i, extent in zip(indices, shape)]
    subscripts = tuple(Subscript(_form(op, v), v) for v in values)
    if None in bounds or mlir.DYNAMIC in shape:
        return None
    # what is not affine was brought inside by the program's text, or found to be inside
    inside = [set(_inside(s.linear, extent)) if s.is_affine else set() for s, extent in zip(subscripts, shape)]
    exact = known <= set().union(*inside) and all(b.is_positive(extents) for b in set().union(*inside) - known)
    guarded = frozenset(p for p, asked in enumerate(inside) if asked & known)
    return Access(tensor, subscripts, None, tuple(comparisons), exact, guarded)


def _is_zero(value: ir.Value) -> bool:
    """Whether it is the constant +0."""
    number = mlir.constant_value(value)
    return number is not None and number == 0 and copysign(1, number) == 1


def _inside(index: Linear, extent: int) -> Iterator[Linear]:
    """What is at least 0 where a subscript is inside a tensor."""
    yield index
    yield Linear(frozenset(), extent - 1).plus(index, -1)


def _unclamped(op: ir.Operation, index: ir.Value, extent: int, known: set[Linear]) -> ir.Value:
    """A subscript before it was kept inside a tensor of this extent, where the bounds keep it there."""
    raw, sides = index, set()
    while (owner := mlir.definition(raw)) is not None and owner.name in ("arith.maxsi", "arith.minsi"):
        below = owner.name == "arith.maxsi"
        if mlir.constant_value(owner.operands[1]) != (0 if below else extent - 1):
            return index
        raw = owner.operands[0]
        sides.add(0 if below else 1)
    form = linear_of(op, raw)
    if form is None:
        return index
    return raw if all(b in known for n, b in enumerate(_inside(form, extent)) if n in sides) else index


def _conjunction(condition: ir.Value) -> Iterator[ir.Value]:
    owner = mlir.definition(condition)
    if owner is not None and owner.name == "arith.andi":
        for part in owner.operands:
            yield from _conjunction(part)
    else:
        yield condition


def _bound(op: ir.Operation, comparison: ir.Value) -> Linear | None:
    """What is at least 0 just where a comparison holds; None where it is not affine."""
    owner = mlir.definition(comparison)
    if owner is None or owner.name != "arith.cmpi":
        return None
    sides = [linear_of(op, v) for v in owner.operands]
    sign = _SIGNS.get(ir.IntegerAttr(owner.attributes["predicate"]).value)
    if sign is None or sides[0] is None or sides[1] is None:
        return None
    times, number = sign
    return Linear(frozenset(), number).plus(sides[0], times).plus(sides[1], -times)


def _form(op: ir.Operation, value: ir.Value) -> Linear:
    """What a subscript is of the operation's dimensions, and of parts that are not affine."""
    found = linear_of(op, value, _opaque)
    assert found is not None
    return found


def _opaque(op: ir.Operation, value: ir.Value) -> Linear:
    dims = dims_of(mlir.body_of(op), value, [mlir.map_dims(m) for m in mlir.maps_of(op)])
    return Linear(frozenset({(Opaque(value, dims), 1)}), 0)


def linear_of(
    op: ir.Operation, value: ir.Value, otherwise: Callable[[ir.Operation, ir.Value], Linear | None] = lambda *_: None
) -> Linear | None:  # fmt: skip
    """What a value of the body is of its dimensions, where it is affine, or `otherwise`. What comes from outside is the same in all
    of a block."""
    owner, known = mlir.definition(value), mlir.constant_value(value)
    if known is not None:
        return Linear(frozenset(), int(known))
    if owner is None or owner.block != mlir.body_of(op):
        mine = owner is None and value.owner == mlir.body_of(op)
        return otherwise(op, value) if mine else Linear(frozenset({(value, 1)}), 0)
    if owner.name == "linalg.index":
        return Linear(frozenset({(index_dim(owner), 1)}), 0)
    if owner.name in _CASTS:
        return linear_of(op, owner.operands[0], otherwise)
    weights: list[int] | None = None
    match owner.name:
        case "affine.apply":
            weights = mlir.linear(ir.AffineMapAttr(owner.attributes["map"]).value)
        case "arith.addi" | "arith.subi":
            weights = [1, 1 if owner.name == "arith.addi" else -1, 0]
        case "arith.muli" if (times := mlir.constant_value(owner.operands[1])) is not None:
            weights = [int(times), 0, 0]
    if weights is None:
        return otherwise(op, value)
    parts = [linear_of(op, v, otherwise) for v in owner.operands]
    total = Linear(frozenset(), weights[-1])
    for part, weight in zip(parts, weights):
        if weight:
            if part is None:
                return None
            total = total.plus(part, weight)
    return total
