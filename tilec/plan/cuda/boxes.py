"""Boxes: how the rows and the columns of a block's tile are divided among the dimensions of the program.

    y[n, o, h, w]     256 columns are 1 x 1 x 250 of n, h and w, or 1 x 128 x 2

The fewest boxes multiply the least. But a run of neighbours is as long as a box is. Memory has sectors of 32 bytes, and one of
which a part is written takes longer than a whole one. A request of a warp takes a line of 128 bytes at a time. Runs and products
are weighed by their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, gcd, prod

from tilec.core.hardware import LINE, SECTOR, WARP
from tilec.core.target import Target
from tilec.cost import block_tile, contraction
from tilec.kernels.matrix import ASYNC, StoredContraction, whole_pieces
from tilec.plan.cuda.operands import Operand, Roles

Box = tuple[int, ...]


@dataclass(frozen=True)
class Side:
    """Rows or columns of C, by the `extents` of their dimensions. `adjacent`: how many of the last ones are the last of the result,
    in the same order, but for those of the other side that are behind them, with so many elements of `written` bytes. `step`: the
    bytes from a factor's element to its neighbour along the last dimension, where threads load `at_once` neighbours each; 0 where
    they do not, or go along another dimension."""

    extents: Box
    adjacent: int = 0
    written: int = 4
    step: int = 0
    at_once: int = 1
    behind: int = 1

    def cut(self, box: Box) -> float:
        """The sectors of which a part is written, for each element of the result."""
        if not self.adjacent:
            return 0.0
        run = pitch = 1
        for extent, size in list(zip(self.extents, box))[: -self.adjacent - 1 : -1]:
            run, pitch = run * size, pitch * extent
            if size < extent:
                break
        run, pitch = run * self.behind * self.written, pitch * self.behind * self.written
        each = gcd(run, pitch, SECTOR)
        parts = sum(_cut(begin, run) for begin in range(0, SECTOR, each)) * each / SECTOR
        return parts * self.written / run

    def uncoalesced(self, box: Box) -> float:
        """The lines that requests touch besides those of one run, for each element that threads load."""
        if not self.step:
            return 0.0
        asked, each = WARP * self.at_once, min(1.0, self.step / LINE)
        run = min(asked, box[-1])
        return (asked / run * (1 + (run - 1) * each) - (1 + (asked - 1) * each)) / asked


@dataclass(frozen=True)
class Boxes:
    """The boxes of the tiles of a contraction. `extents`: of the dimensions of its kernel."""

    roles: Roles
    operands: Mapping[str, Operand]
    problem: block_tile.Contraction
    extents: Mapping[int, int]
    target: Target

    def sizes(self, built: StoredContraction) -> dict[int, int] | None:
        """A block's part of every dimension of C; None where a factor's pieces would not lie inside it."""
        found: dict[int, int] = {}
        prices = self._prices(built)
        for side, dims in self._dims(built):
            size = built.own_columns if side else built.block[0]
            box = best_box(self._side(built, side, dims), size, built.piece(side), prices[side])
            if box is None:
                return None
            found |= zip(dims, box)
        return found

    def whole(self, problem: block_tile.Contraction, built: StoredContraction, sizes: Mapping[int, int]) -> block_tile.Contraction:
        """A problem of these factors with all blocks that boxes of these sizes take, which may be more than the tiles of a flat C,
        and with what memory takes longer for their runs."""
        (bm, bn, _), (rows, *columns) = built.block, [dims for _, dims in self._dims(built)]
        m, *n = (prod(ceil(self.extents[d] / sizes[d]) for d in dims) for dims in (rows, *columns))
        if (m, sum(n)) != (ceil(problem.m / bm), ceil(problem.n / bn)):
            problem = replace(problem, m=m * bm, n=sum(n) * bn)
        cut, uncoalesced = 0.0, [0.0, 0.0]
        for side, dims in self._dims(built):
            here, box = self._side(built, side, dims), tuple(sizes[d] for d in dims)
            cut, uncoalesced[side] = max(cut, here.cut(box)), max(uncoalesced[side], here.uncoalesced(box))
        return replace(problem, cut=cut, uncoalesced=(uncoalesced[0], uncoalesced[1])) if cut or any(uncoalesced) else problem

    def _dims(self, built: StoredContraction) -> list[tuple[int, tuple[int, ...]]]:
        return [(0, built.rows), *((1, dims) for dims in built.column_sets)]

    def _side(self, built: StoredContraction, side: int, dims: tuple[int, ...]) -> Side:
        extents, operand, copy = tuple(self.extents[d] for d in dims), self.operands[("left", "right")[side]], built.copies[side]
        result, behind = self._ahead_of_columns(built) if side == 0 else (self.roles.result, 1)
        if side == 1 and self._ahead_of_columns(built)[1] > 1:
            result = ()  # rows go on where the columns end
        last = min(len(dims), len(result))
        adjacent = next(n for n in range(last, -1, -1) if dims[len(dims) - n :] == result[len(result) - n :])
        step = 0 if built.k_major[side] or copy == "tma" or not dims else operand.step
        at_once = ASYNC.get(copy, operand.step) // operand.step if step and not operand.gathers else 1
        return Side(extents, adjacent, self.problem.out_bytes, step, max(1, at_once), behind)

    def _ahead_of_columns(self, built: StoredContraction) -> tuple[tuple[int, ...], int]:
        """The result's dimensions without the last one, and the elements along it, where a thread stores all of these at once, and
        the next dimension is the last of the rows (`rows_first` of `passes/cuda/contraction/epilogue.py`)."""
        result, columns = self.roles.result, built.column_sets
        if len(result) < 2 or len(columns) != 1 or not built.rows or not columns[0]:
            return result, 1
        *ahead, last = result
        few = self.extents[last] in (2, 4, 8) and columns[0][-1] == last and ahead[-1] == built.rows[-1]
        return (tuple(ahead), self.extents[last]) if few else (result, 1)

    def _prices(self, built: StoredContraction) -> tuple[Prices, Prices]:
        p, target, (bm, bn, _) = self.problem, self.target, built.block
        products = contraction.least_us(target, p, built.instruction)
        cut = 1e6 * contraction.cut_bytes(target, replace(p, cut=1.0)) / target.l2.rate(target.units)
        lines = [1e6 * LINE * p.batch * p.k * p.m * p.n / other / target.shared_rate for other in (bn, bm)]
        left, right = (Prices(round(products, 3), round(cut, 3), round(us, 3)) for us in lines)
        return left, right


def _cut(begin: int, length: int) -> int:
    """Sectors of which a run has a part."""
    end = begin + length
    if begin // SECTOR == (end - 1) // SECTOR:
        return int(length < SECTOR)
    return int(begin % SECTOR > 0) + int(end % SECTOR > 0)


@dataclass(frozen=True)
class Prices:
    """Microseconds: of the products without a box beyond an edge, of a sector for each element of the result of which a part is
    written, and of a line for each element that threads load."""

    products: float
    cut: float
    uncoalesced: float


@lru_cache(maxsize=4096)  # of one contraction, planned in several ways
def best_box(side: Side, size: int, piece: int, prices: Prices) -> Box | None:
    """Sizes of a box of at most `size` points for which the kernel takes the least time; of equals the fewest boxes, then the
    longest inside. Runs along the last dimension consist of whole pieces, or the box is one run."""

    def key(box: Box) -> tuple:
        boxes = prod(ceil(e / t) for e, t in zip(side.extents, box))
        more = max(1.0, boxes * size / max(1, prod(side.extents)))
        us = more * (prices.products + prices.uncoalesced * side.uncoalesced(box)) + prices.cut * side.cut(box)
        return round(us, 3), boxes, [-t for t in reversed(box)]

    return min((b for b in _boxes(side.extents, size) if whole_pieces(b, piece)), key=key, default=None)


def _boxes(extents: Sequence[int], size: int) -> Iterator[Box]:
    if not extents:
        yield ()
        return
    *outer, last = extents
    powers = {1 << p for p in range(size.bit_length()) if 1 << p < last}
    for inner in sorted(t for t in powers | {min(last, size)} if t <= size):
        for box in _boxes(outer, size // inner):
            yield (*box, inner)
