"""A contraction in one block of a CPU kernel: its factors, packed into panels.

A block computes C[r, c] += left[r, k] * right[c, k]. Rows, columns and k run over boxes of the program's
dimensions: in a convolution a column may be a point (n, h, w), and k a point (c, r, s) of the window. A factor
is a value of the operation's body. Packing computes it once for each point, in the order in which the register
kernel reads it:

    for p { for lane { panels[panel, p, lane] = factor(row = panel * width + lane, k = p) } }

The kernel reads contiguous memory, even if a factor is converted, scaled, padded, gathered or transposed. (im2col
is such a packing.) The lanes of a panel are `width` points along the last dimension of rows or columns; lanes beyond
its end are 0. The kernel takes one element of the left factor at a time, so that panels of a left factor that lies
along k lie so, too: panels[panel, lane, p].

Source: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import overload

from tilec.analysis.products import dims_of, factors_of, stored
from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.extents import highest, value_of
from tilec.core.mlir import affine, arith, ir, memref, scf
from tilec.cost.panels import part_products
from tilec.kernels import Panels
from tilec.passes.cpu.memory import Size
from tilec.passes.cuda.memory_spaces import sizes_of
from tilec.passes.emit import Body, emit
from tilec.passes.loops import sum_of, times

STEP = 32  # products along k that a matrix unit adds at a time, in pairs


@dataclass(frozen=True)
class Side:
    """One factor and the dimensions that it alone keeps, the last the lanes' one. `box` is the size of a
    whole tile; `row` has the panels along the last dimension.

    `sizes` is how much of the box this block has; `along` the dimension along which the factor lies in
    memory. The kernel takes a row of the right factor (lanes of a vector) and a column of the left one, element by element:
    panels of a left factor may lie `along_inner`, the dimensions of k.
    """

    factor: ir.Value
    dims: tuple[int, ...]
    box: tuple[Size, ...]
    row: Size
    sizes: tuple[Size, ...]
    width: int
    along: int
    by_element: bool
    along_inner: bool
    parts: int = 1
    """For a matrix unit: of how many numbers of its type each number is the sum."""

    @property
    def panels(self) -> Size:
        return reduce(times, self.box[:-1], self.row)


class Contraction:
    """The operation and its numbers; all dimensions are the operation's own."""

    def __init__(self, op: ir.Operation, tiles: Mapping[int, Size], options: Panels, divide_sums: bool = False):
        """`tiles`: the sizes of a whole block, by kernel dimension; of one that is not among them a block has all. `divide_sums`: a
        division of the left factor by a number of its row is made after the sum."""
        self.op, self.body = op, mlir.body_of(op)
        own = {k: d for d, k in enumerate(mlir.get_integers(op, "tilec.dims"))}
        self.names = {own[k]: name for k, name in locations.index_names(op).items() if k in own}
        self.operands, self.operand_dims = list(op.operands), [mlir.map_dims(m) for m in mlir.maps_of(op)]
        tile = {own[k]: t for k, t in tiles.items() if k in own}
        sizes = sizes_of(self.operands, self.operand_dims)
        rows, columns, inner = (tuple(own[k] for k in dims) for dims in (options.rows, options.columns, options.inner))
        width, along = options.register_tile, [own[k] for k in options.along]
        self.instruction = options.instruction
        self.matrix = options.instruction != "fma"
        factors = self._factors()
        self.columns_outer = options.columns_outer
        self.divisor: ir.Value | None = None
        if divide_sums and (divided := self._divided(factors[0], {*inner, *columns})):
            numerator, self.divisor = divided
            factors = numerator, factors[1]
        parts = options.parts if self.matrix else (1, 1)
        left, right = (self._narrow(f) if self.matrix and n == 1 else f for f, n in zip(factors, parts))
        box = {d: self._most(sizes[d], tile.get(d)) for d in (*rows, *columns)}
        self.left, self.right = (
            Side(
                f,
                dims,
                tuple(box[d] for d in dims),
                quotient(box[dims[-1]], w),
                tuple(sizes[d] for d in dims),
                w,
                a,
                side == "left",
                side == "left" and a in inner,
                n,
            )
            for side, f, dims, w, a, n in zip(("left", "right"), (left, right), (rows, columns), width, along, parts)
        )
        self.inner, self.depths = inner, [max(1, d) for d in options.depths]
        self.k = [sizes[d] for d in inner]
        self.batch = {d: sizes[d] for d in self.operand_dims[-1] if d not in (*rows, *columns)}
        self.lanes = options.lanes
        self.padded = False  # whether the output's memory has room for whole tiles, and is aligned

    def of_vectors(self) -> Contraction:
        """The same from panels of whole numbers, the left one's in rows along k."""
        found = copy(self)
        found.matrix = False
        found.left, found.right = replace(self.left, parts=1, along_inner=True), replace(self.right, parts=1)
        return found

    @property
    def element(self) -> mlir.Element:
        """Of the sums."""
        return ir.MemRefType(self.operands[-1].type).element_type

    @property
    def multiplicand(self) -> ir.Type:
        """Of what is in panels."""
        return ir.BF16Type.get() if self.matrix else self.left.factor.type

    @property
    def in_parts(self) -> bool:
        return max(self.left.parts, self.right.parts) > 1

    @property
    def products(self) -> list[tuple[int, int]]:
        """The parts that are multiplied, the smallest products first."""
        return part_products(self.left.parts, self.right.parts)

    @property
    def depth(self) -> int:
        """Products of a whole panel; a matrix unit takes `STEP` at a time."""
        return round_up(prod(self.depths), STEP) if self.matrix else prod(self.depths)

    @staticmethod
    def _most(size: Size, tile: Size | None) -> Size:
        """Of a dimension in any block: the tile, or all of it, where blocks do not share it."""
        if isinstance(size, int) and isinstance(tile, int):
            return min(tile, size)
        return size if tile is None else tile

    # ---- the body ------------------------------------------------------------------------------------------

    def _factors(self) -> tuple[ir.Value, ir.Value]:
        """Left and right: the left has the rows, the right the columns."""
        if (factors := factors_of(self.op)) is None:
            raise InternalError(f"{mlir.get_string(self.op, 'tilec.name')} is no sum of products", "stage")
        return factors[::-1] if mlir.get_integer(self.op, "tilec.left") else factors

    def _narrow(self, factor: ir.Value) -> ir.Value:
        """A factor as a bf16, which it was before it was widened, or to which `using` allows to round it."""
        narrow, type_ = stored(factor), ir.BF16Type.get()
        if narrow.type == type_:
            return narrow
        with ir.InsertionPoint(list(self.body.operations)[-1]):
            return arith.TruncFOp(type_, factor).result

    def _divided(self, factor: ir.Value, without: set[int]) -> tuple[ir.Value, ir.Value] | None:
        """Numerator and denominator of a quotient whose denominator depends on none of some dimensions."""
        made = mlir.definition(factor)
        if made is None or made.name != "arith.divf" or made.block != self.body:
            return None
        numerator, denominator = made.operands
        return None if self.dims_of(denominator) & without else (numerator, denominator)

    def dims_of(self, value: ir.Value) -> frozenset[int]:
        return dims_of(self.body, value, self.operand_dims)


class Evaluation:
    """Builds a factor part by part: each in the outermost loop that knows all it depends on."""

    def __init__(self, contraction: Contraction, factor: ir.Value, at: dict[int, ir.Value]):
        self.contraction, self.factor, self.at = contraction, factor, dict(at)
        self.body = Body(contraction.body, self._element, self.at.get)
        emit(factor, self.body)

    def enter(self, d: int, index: ir.Value) -> None:
        self.at[d] = index
        emit(self.factor, self.body)

    @property
    def value(self) -> ir.Value:
        return self.body.value(self.factor)

    def _element(self, n: int) -> ir.Value | None:
        dims = self.contraction.operand_dims[n]
        if not self.at.keys() >= {*dims}:
            return None
        return memref.LoadOp(self.contraction.operands[n], [self.at[d] for d in dims]).result


# ---- loops -------------------------------------------------------------------------------------------------


@contextmanager
def loop(low: Size, high: Size, step: int = 1, name: str | None = None) -> Iterator[ir.Value]:
    """for name in range(low, high, step); no loop if there is one iteration."""
    if isinstance(low, int) and isinstance(high, int) and low < high <= low + step:
        yield mlir.index(low)
        return
    made = locations.named(scf.ForOp(mlir.index(low), mlir.index(high), mlir.index(step)), name)
    with ir.InsertionPoint(made.body):
        yield made.induction_variable
        scf.YieldOp([])


@overload
def quotient(size: int, by: int) -> int: ...
@overload
def quotient(size: ir.Value, by: int) -> ir.Value: ...
@overload
def quotient(size: Size, by: int) -> Size: ...


def quotient(size: Size, by: int) -> Size:
    """Rounded up."""
    if isinstance(size, int):
        return -(-size // by)
    up = ir.AffineExpr.get_ceil_div(ir.AffineDimExpr.get(0), by)
    return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [up]), [size]).result


@overload
def round_up(size: int, by: int) -> int: ...
@overload
def round_up(size: Size, by: int) -> Size: ...


def round_up(size: Size, by: int) -> Size:
    count = quotient(size, by)
    return count * by if isinstance(count, int) else sum_of([(count, by)])


def most(size: Size) -> int:
    """The largest number that a size may be."""
    return size if isinstance(size, int) else highest(value_of(size))


def rest(size: Size, start: ir.Value, limit: int) -> Size:
    """min(limit, size - start) of a `start` that is a multiple of `limit` below `size`."""
    if limit == 1 or (isinstance(size, int) and size % limit == 0):
        return limit
    known = mlir.constant_value(start)
    if isinstance(size, int) and known is not None:
        return min(limit, size - int(known))
    d0, d1 = ir.AffineDimExpr.get(0), ir.AffineDimExpr.get(1)
    least = [ir.AffineConstantExpr.get(limit), d1 - d0]
    return affine.AffineMinOp(ir.AffineMap.get(2, 0, least), [start, mlir.index(size)]).result


@contextmanager
def loops(sizes: dict[int, Size], at: dict[int, ir.Value], names: dict[int, str] | None = None) -> Iterator[None]:
    """A nest over dimensions, whose indices go into `at`."""
    with ExitStack() as stack:
        for d, size in sizes.items():
            at[d] = stack.enter_context(loop(0, size, name=(names or {}).get(d)))
        yield


@contextmanager
def panels_of(side: Side, names: dict[int, str]) -> Iterator[tuple[dict[int, ir.Value], ir.Value, ir.Value]]:
    """A nest over the panels of a side: indices of its outer dimensions, where lanes start, its number."""
    at: dict[int, ir.Value] = {}
    with (
        loops(dict(zip(side.dims[:-1], side.sizes)), at, names),
        loop(0, quotient(side.sizes[-1], side.width), name=f"{names.get(side.dims[-1], 'row')}_panel") as t,
    ):
        terms, below = [(t, 1)], side.row
        for d, extent in list(zip(side.dims, side.box))[-2::-1]:
            terms.append((at[d], below) if isinstance(below, int) else (arith.muli(at[d], below), 1))
            below = times(below, extent)
        yield at, sum_of([(t, side.width)]), sum_of(terms)


def panel_shape(c: Contraction, side: Side) -> list[int]:
    """A matrix unit takes both factors in pairs along k, one part after another. Pairs of a right factor in parts are words of
    32 bits."""
    if c.matrix:
        pairs = [side.width, c.depth // 2, 2] if side.by_element else [c.depth // 2, side.width, 2 if side.parts == 1 else 1]
        return [side.parts, *pairs] if side.parts > 1 else pairs
    if side.along_inner:
        return [side.width, c.depth]
    return [c.depth, side.width, 1] if side.by_element else [c.depth, side.width]


def panel_element(c: Contraction, side: Side) -> ir.Type:
    return ir.IntegerType.get_signless(32) if side.parts > 1 and not side.by_element else c.multiplicand


def part_of(source: ir.Value, number: ir.Value | int) -> ir.Value:
    """The memory at one place of the first dimension."""
    shape = ir.MemRefType(source.type).shape
    return box_of(source, [number, *[0] * (len(shape) - 1)], [1, *shape[1:]], list(range(1, len(shape))))


def box_of(source: ir.Value, offsets: list[ir.Value | int], sizes: list[int], kept: list[int]) -> ir.Value:
    """A memref.subview of static sizes, all of stride 1, with the dimensions `kept`; the others have size 1."""
    type_ = ir.MemRefType(source.type)
    strides, start = type_.get_strides_and_offset()
    known = [o for o in offsets if isinstance(o, int)]
    is_known = len(known) == len(offsets) and mlir.DYNAMIC not in (start, *(s for o, s in zip(offsets, strides) if o))
    offset = start + sum(o * s for o, s in zip(known, strides)) if is_known else mlir.DYNAMIC
    layout = ir.StridedLayoutAttr.get(offset, [strides[d] for d in kept])
    part = ir.MemRefType.get([sizes[d] for d in kept], type_.element_type, layout)
    static = [o if isinstance(o, int) else mlir.DYNAMIC for o in offsets]
    dynamic = [o for o in offsets if not isinstance(o, int)]
    return memref.SubViewOp(part, source, dynamic, [], [], static, sizes, [1] * len(sizes)).result


def panel_subscripts(side: Side, lane: ir.Value, p: ir.Value) -> list[ir.Value]:
    """The subscripts of an element in its panel, where k is no pairs."""
    if side.along_inner:
        return [lane, p]
    return [p, lane, mlir.index(0)] if side.by_element else [p, lane]


__all__ = [
    "STEP",
    "Contraction",
    "Evaluation",
    "Side",
    "box_of",
    "loop",
    "loops",
    "most",
    "panel_element",
    "panel_shape",
    "panel_subscripts",
    "panels_of",
    "part_of",
    "quotient",
    "rest",
    "round_up",
]
