"""The tiles of j that a block computes, and the tiles among them that a mask cuts.

A mask is affine: a j + b i + c >= 0. For all rows i of a block, it holds for some element of a tile, or for all, just
where it does at one end of the tile and at one of the block's rows.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.analysis.chain import Chain
from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.mlir import arith, ir
from tilec.passes.cuda.chain.segment_tiles import Span, TileList
from tilec.passes.cuda.chain.values import At, Values, as_index
from tilec.passes.loops import Count, plus, quotient_up, sum_of

BEYOND = 1 << 40  # elements: more than memory has


class Tiles:
    """`count` tiles, at least `least`, numbered from the last of them down: `tile(number)` is its place. `even`: the last is full;
    where that is not known, it is taken for a tile that is not. A block has `heights` rows along each dimension of rows. `find`
    lists the tiles that comparisons of data leave."""

    def __init__(
        self, chain: Chain, values: Values, length: Count, even: bool, least: int, heights: dict[int, int | ir.Value], size: int,
        find: Callable[[Span], TileList] | None = None,
    ):  # fmt: skip
        self.size, self.even, self.least = size, even, least
        high = quotient_up(length, size)
        full = high if even else plus(high, -1)
        self.low, self.high = mlir.index(0), mlir.index(high)  # where some element exists
        self.full_low, self.full_high = mlir.index(0), mlir.index(full)  # where all do
        self.has_product = bool(chain.products)
        self.always, self.list = not chain.masks and find is None and least > 0, None
        self.masked = bool(chain.masks) or not self.even
        self.ends = {}  # the block's first and last row
        for d, height in heights.items():
            last = height if isinstance(height, ir.Value) else mlir.index(height)
            self.ends[d] = (mlir.index(0), arith.subi(last, mlir.index(1)))
        self.between, self.values = chain.between, values
        for mask in chain.masks:
            for leaves, number in mask.bounds:
                self._bound(leaves, number)
        if chain.masks:
            self.high = arith.maxsi(self.high, self.low)
        self.count = arith.subi(self.high, self.low) if chain.masks else self.high
        self.cut = arith.subi(self.high, self.full_high) if chain.masks else mlir.index(0 if even else 1)
        self.below = arith.subi(self.high, self.full_low) if chain.masks else self.high
        if find is not None:
            self.list = find(Span(self.low, self.high, self.full_low, self.full_high))
            self.count, self.cut, self.below = self.list.count, self.list.cut, self.list.below
        self.begin, self.end, self.shared = mlir.index(0), self.count, False

    def share(self, part: ir.Value, parts: int) -> None:
        """Leaves the block one of equal parts."""
        if parts > 1:
            self.shared, self.always = True, False
            ends = (arith.muli(self.count, sum_of([(part, 1)], more)) for more in (0, 1))
            self.begin, self.end = (arith.divui(end, mlir.index(parts)) for end in ends)

    def _bound(self, leaves: dict[Expr, int], number: int) -> None:
        factor, rows, others, known = 0, [], [], True
        for leaf, f in leaves.items():
            d = leaf.own_dims[0] if leaf.op == "index" else None
            if d == self.between:
                factor += f
            elif d in self.ends:
                rows.append((d, f))
            else:
                known &= not leaf.dims & {self.between, *self.ends}
                others.append((leaf, f))
        if abs(factor) != 1 or not known:
            if factor:
                self.full_high = self.full_low  # nothing is known: every tile may be cut
            return
        at = At({}, mlir.index(0))
        outer = [(number_of(self.values, leaf, at), f) for leaf, f in others]
        least, most = (
            sum_of([*outer, *((self.ends[d][(f > 0) == end], f) for d, f in rows)], number) for end in (False, True)
        )
        size = mlir.index(self.size)
        if factor < 0:  # j <= rest
            self.high = arith.minsi(self.high, _floor(sum_of([(most, 1)], self.size), size))
            self.full_high = arith.minsi(self.full_high, _floor(sum_of([(least, 1)], 1), size))
        else:  # j >= -rest
            self.low = arith.maxsi(self.low, _floor(sum_of([(most, -1)]), size))
            self.full_low = arith.maxsi(self.full_low, _floor(sum_of([(least, -1)], self.size - 1), size))

    def tile(self, number: ir.Value) -> ir.Value:
        return sum_of([(self.high, 1), (number, -1)], -1) if self.list is None else self.list.tile(number)

    def first_line(self, number: ir.Value) -> ir.Value:
        """The element of j at which the tile of this number begins."""
        return arith.muli(self.tile(number), mlir.index(self.size))

    def ranges(self, first: ir.Value) -> list[tuple[ir.Value, ir.Value, bool]]:
        """The numbers of the block's tiles but for its `first` ones, in three ranges: cut by the mask, whole, and cut again."""
        least = sum_of([(self.begin, 1), (first, 1)])
        if self.shared and self.masked and self.has_product:  # ptxas makes products wait where several loops may be empty
            return [(least, self.end, True)]
        return [(self._mine(low, least), self._mine(high, least), masked) for low, high, masked in self._ranges(first)]

    def _mine(self, number: ir.Value, least: ir.Value) -> ir.Value:
        """The nearest number of the block's part."""
        if not self.shared:
            return number
        return arith.minsi(arith.maxsi(number, least), self.end)

    def _ranges(self, first: ir.Value) -> list[tuple[ir.Value, ir.Value, bool]]:
        if not self.masked:
            return [(first, self.count, False)]
        whole = self._clamped(self.cut, first)
        below = self._clamped(self.below, whole)
        found = [(first, whole, True), (whole, below, False)]
        if mlir.constant_value(self.full_low) != 0:
            found.append((below, self.count, True))
        return found

    def _clamped(self, number: ir.Value, first: ir.Value) -> ir.Value:
        if self.always and number == self.count:
            return number
        ends = [mlir.constant_value(v) for v in (number, first)]
        if self.always and None not in ends and max(ends) <= self.least:
            return mlir.index(max(ends))
        return arith.minsi(arith.maxsi(number, first), arith.maxsi(self.count, first))


def number_of(values: Values, leaf: Expr, at: At) -> ir.Value:
    """A leaf of a bound as an index. What memory holds is brought between numbers that are beyond all indices, so that no sum of it
    wraps around; it is compared with no other."""
    value = as_index(values.build(leaf, at))
    return value if leaf.op != "element" else clamped(value, BEYOND)


def clamped(value: ir.Value, most: int) -> ir.Value:
    return arith.minsi(arith.maxsi(value, mlir.index(-most)), mlir.index(most))


def _floor(a: ir.Value, by: ir.Value) -> ir.Value:
    return arith.floordivsi(a, by)
