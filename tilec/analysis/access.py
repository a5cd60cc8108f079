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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import copysign

from tilec.analysis.expression import Expr
from tilec.analysis.index_terms import BlockTerms, ExprTerms, unclamped_value
from tilec.analysis.products import narrow, stored
from tilec.analysis.subscripts import subscripts
from tilec.core import mlir
from tilec.core.extents import Extent, known_shape, shape_of
from tilec.core.mlir import ir
from tilec.index.facts import NONE
from tilec.index.terms import Cond, Leaf, Term, at_least, below

_ACCESSES = ("tensor.extract", "memref.load")  # before and after bufferization


@dataclass(frozen=True)
class Subscript:
    """A subscript as a term of `dims`, the indices of the operation's dimensions, and what computes it in the body; None for the
    bare dimension of an operand."""

    term: Term
    dims: tuple[Term, ...]
    value: ir.Value | None = None

    @cached_property
    def factors(self) -> dict[int, int]:
        """By dimension, of those that it has factors of."""
        parts = ((n, self.term.parts.get((d.symbol,), 0)) for n, d in enumerate(self.dims))
        return {n: f for n, f in parts if f}

    @property
    def constant(self) -> int:
        return self.term.number

    @cached_property
    def opaque(self) -> frozenset[int]:
        """The dimensions that its other parts depend on."""
        others = [leaf.free for m in self.term.parts for leaf in m if len(m) > 1 or not leaf.is_symbol]
        return frozenset(n for n, d in enumerate(self.dims) if any(d.symbol in free for free in others))

    @property
    def is_affine(self) -> bool:
        """Whether it is a sum of indices, and of values that are the same in all of a block, times numbers, and of a number."""
        return _is_affine(self.term)

    @property
    def is_static(self) -> bool:
        """Whether it is affine, and indices alone decide it."""
        return all(len(m) == 1 and m[0].is_symbol for m in self.term.parts if m)

    @property
    def bare(self) -> int | None:
        """The dimension that it is."""
        return next((n for n, d in enumerate(self.dims) if d is self.term), None)


def _is_affine(x: Term) -> bool:
    return all(len(m) == 1 and (m[0].is_symbol or _is_outside(m[0])) for m in x.parts if m)


def _is_outside(leaf: Leaf) -> bool:
    return leaf.op == "call" and not leaf.args


@dataclass(frozen=True)
class Access:
    """An element of `tensor`, or 0 where one of the comparisons `bounds` fails. `operand`: the number of the operand that it is,
    None for an access in the body. `exact`: the bounds hold just where the subscripts are inside the tensor. `expression`: what
    reads it, where that is no operation's body."""

    tensor: ir.Value
    subscripts: tuple[Subscript, ...]
    operand: int | None = None
    bounds: tuple[ir.Value, ...] = ()
    exact: bool = True
    guarded: frozenset[int] = frozenset()
    """The dimensions of the tensor that bounds are for."""
    expression: Expr | None = None

    @property
    def shape(self) -> list[int]:
        """The tensor's, of a program whose sizes are numbers."""
        return list(ir.ShapedType(self.tensor.type).shape)

    @property
    def extents(self) -> tuple[Extent, ...]:
        return shape_of(self.tensor)

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
        dims = tuple(BlockTerms(op).dims)
        subscripts = tuple(Subscript(dims[d], dims) for d in mlir.map_dims(mlir.maps_of(op)[number]))
        return Access(list(op.operands)[number], subscripts, number)
    comparisons: list[ir.Value] = []
    owner = mlir.definition(value)
    if owner.name == "arith.select" and _is_zero(owner.operands[2]):
        comparisons, owner = [*_conjunction(owner.operands[0])], mlir.definition(stored(owner.operands[1]))
    if owner is None or owner.name not in _ACCESSES or owner.block != body:
        return None
    tensor, *indices = owner.operands
    terms = BlockTerms(op)
    guards = [c for c in map(terms.condition, comparisons) if c is not None and c.op == ">=" and all(map(_is_affine, c.terms))]
    shape = known_shape(tensor)
    if len(guards) < len(comparisons) or None in shape:
        return None
    guard = Cond("and", None, tuple(guards))
    values = [unclamped_value(terms, i, guard) for i in indices]
    subscripts = tuple(Subscript(terms.of(v), tuple(terms.dims), v) for v in values)
    # what is not affine was brought inside by the program's text, or found to be inside
    inside = [_inside(s.term, extent) if s.is_affine and extent is not None else () for s, extent in zip(subscripts, shape)]
    needed = Cond("and", None, tuple(c for both in inside for c in both))
    exact = bool(NONE.assume(needed).decide(guard) and NONE.assume(guard).decide(needed))
    about = frozenset(p for p, both in enumerate(inside) if {*both} & {*guards})
    return Access(tensor, subscripts, None, tuple(comparisons), exact, about)


def access_of_element(x: Expr) -> Access:
    """The element of memory that an expression is."""
    terms = ExprTerms()
    dims = tuple(terms.dim(d) for d in range(max(x.dims, default=-1) + 1))
    return Access(x.key, tuple(Subscript(terms.of(s), dims) for s in subscripts(x)), expression=x)


def _inside(index: Term, extent: Extent) -> tuple[Cond, ...]:
    """What holds where a subscript is inside a tensor."""
    return at_least(index, 0), below(index, extent)


def _is_zero(value: ir.Value) -> bool:
    """Whether it is the constant +0."""
    number = mlir.constant_value(value)
    return number is not None and number == 0 and copysign(1, number) == 1


def _conjunction(condition: ir.Value) -> Iterator[ir.Value]:
    owner = mlir.definition(condition)
    if owner is not None and owner.name == "arith.andi":
        for part in owner.operands:
            yield from _conjunction(part)
    else:
        yield condition
