"""Packing of a contraction's factors into panels, in the order in which the register kernel reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod

from tilec.core import mlir
from tilec.core.mlir import affine, arith, ir, memref, scf, vector
from tilec.passes.cpu.matrix import narrow, split, word_of
from tilec.passes.cpu.memory import Size, allocated
from tilec.passes.cpu.panels import (
    STEP,
    Contraction,
    Evaluation,
    Side,
    loop,
    panel_subscripts,
    panels_of,
    quotient,
    rest,
    round_up,
)
from tilec.passes.cpu.transpose import transpose_plane, whole
from tilec.passes.loops import sum_of

SQUARE = 16  # the longest side of a tile that is transposed in registers
ROWS = 8  # of memory that are packed at a time


class Block:
    """A step along k: the `start` of each inner dimension, how far it goes, how many products that makes."""

    def __init__(self, contraction: Contraction, start: dict[int, ir.Value]):
        c = self.contraction = contraction
        self.start = start
        self.extents = {d: rest(e, start[d], depth) for d, e, depth in zip(c.inner, c.k, c.depths)}
        self.strides = {d: prod(c.depths[n + 1 :]) for n, d in enumerate(c.inner)}

    @property
    def first(self) -> ir.Value | None:
        """Whether it is the first step; None where it is the only one."""
        found = None
        for start in self.start.values():
            if mlir.constant_value(start) is None:
                zero = arith.cmpi(arith.CmpIPredicate.eq, start, mlir.index(0))
                found = zero if found is None else arith.andi(found, zero)
        return found

    @property
    def count(self) -> Size:
        """Products in all: of a dimension that the step cuts, all inner ones are whole, outer ones single."""
        count, cut = 1, None
        for size in self.extents.values():
            if isinstance(size, int):
                count *= size
            else:
                assert cut is None
                cut = size
        return count if cut is None else sum_of([(cut, count)])


class Packing:
    """Fills panels of one factor for a block of k. The innermost loop goes along contiguous memory: along the lanes, or
    along one dimension of k. Loops over all lanes have `width` iterations, which suits SIMD code; lanes beyond the end
    are 0, and so are products up to a whole step of a matrix unit."""

    def __init__(self, block: Block, side: Side, panels: ir.Value):
        self.block, self.side, self.panels = block, side, panels
        self.c = c = block.contraction
        self.lane, inner = side.dims[-1], c.inner
        along_k = [d for d in inner if d != side.along] + [side.along]
        self.order = [self.lane, *along_k] if side.along in inner else [*inner, self.lane]
        self.pairs = c.matrix and not side.by_element
        if c.matrix and side.by_element:  # pairs are what lies next to each other along k
            type_ = ir.MemRefType(panels.type)
            kept, outer = type_.shape[:-2], [[d] for d in range(type_.rank - 2)]
            flat = ir.MemRefType.get([*kept, c.depth], type_.element_type)
            self.panels = memref.CollapseShapeOp(flat, panels, [*outer, [type_.rank - 2, type_.rank - 1]]).result
        self.rows: ir.Value | None = None  # a panel as its factor lies in memory, before registers transpose it
        if c.matrix and side.by_element and side.parts == 1 and side.along == self.lane and side.width >= SQUARE // 2:
            self.rows = allocated([c.depth, side.width], c.multiplicand, "rows").result
        self.wide: ir.Value | None = None  # a panel before its numbers are split
        if self.pairs and side.parts > 1 and self._operand_along_k() is not None:
            self.wide = allocated([1, c.depth, side.width], side.factor.type, "wide").result
        self.steps: dict[int, ir.Value] = {}
        self.window: tuple[Size, Size] | None = None  # of the last dimension of k

    def fill_all(self, at: dict[int, ir.Value]) -> None:
        """Fills all panels. Where memory lies along the lanes, a few rows of all panels come before the next ones: processors
        foresee what is read along rows. `at` are the indices of the batch."""
        c, d = self.c, self.c.inner[-1]
        extent = self.block.extents[d]
        whole_pairs = self.pairs and isinstance(extent, int) and extent % 2 == 0 and self.block.count == c.depth
        if (c.matrix and not whole_pairs) or len(c.inner) > 1 or self.side.along != self.lane:
            self._panels(at)
            return
        steps, rows = (_half(extent), ROWS // 2) if self.pairs else (extent, ROWS)
        with loop(0, steps, rows, c.names.get(d)) as low:
            self.window = low, _end(low, steps, rows)
            self._panels(at)
        self.window = None

    def fill(self, at: dict[int, ir.Value], first: ir.Value, number: ir.Value) -> None:
        """Fills the panel of this number, whose lanes start at `first`; `at` are the indices of the batch and of the side's
        outer dimensions."""
        width, self.first, self.number = self.side.width, first, number
        lanes = rest(self.side.sizes[-1], first, width)
        if lanes == width:
            self._fill(at, width)
            return
        whole = arith.cmpi(arith.CmpIPredicate.eq, mlir.index(lanes), mlir.index(width))
        branch = scf.IfOp(whole, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            self._fill(at, width)
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            self._fill(at, lanes)
            self._zeros(lanes, self.side.width, 0)
            scf.YieldOp([])

    def _panels(self, at: dict[int, ir.Value]) -> None:
        with panels_of(self.side, self.c.names) as (outer, first, number):
            self.fill(at | outer, first, number)

    def _fill(self, at: dict[int, ir.Value], lanes: Size) -> None:
        c, last = self.c, self.c.inner[-1]
        if not c.matrix and (number := self._operand_along_k()) is not None:
            self._transpose(c.operands[number], c.operand_dims[number], at, lanes, self.panels, self.number)
            return
        if self.wide is not None:
            self._split_transposed(at, lanes)
            return
        values = [Evaluation(c, self.side.factor, at) for _ in range(2 if self.pairs else 1)]
        if not self.pairs:
            with self._loops(self.order, (0, lanes), values, self.window or (0, self.block.extents[last])):
                self._store([values[0].value])
            if self.rows is not None:
                if lanes != self.side.width:
                    with loop(lanes, self.side.width, name="lane") as lane, loop(0, self.block.count, name="k_inner") as p:
                        memref.StoreOp(mlir.constant(0, c.multiplicand), self.rows, [p, lane])
                whole_panel = [self.number, mlir.index(0), mlir.index(0)], [1, self.side.width, self.block.count]
                source = _plane(self.rows, [mlir.index(0)] * 2, [self.block.count, self.side.width])
                transpose_plane(source, _plane(self.panels, *whole_panel), self.block.count, self.side.width, SQUARE)
        else:
            extent = self.block.extents[last]
            half, up = _half(extent), quotient(extent, 2)
            full = lanes == self.side.width and self.side.parts == 1
            if full and (operand := self._operand_along_lanes()) is not None:
                self._interleave(c.operands[operand], c.operand_dims[operand], at, self.window or (0, half))
            elif full and (operand := self._operand_along_k()) is not None:
                done = self._transpose_pairs(c.operands[operand], c.operand_dims[operand], at, half)
                with self._loops(self.order, (0, lanes), values, (done, half)):
                    self._store([v.value for v in values])
            else:
                with self._loops(self.order, (0, lanes), values, self.window or (0, half)):
                    self._store([v.value for v in values])
            if half != up:  # the last of an odd number
                values = [Evaluation(c, self.side.factor, at)]
                with self._loops(self.order, (0, lanes), values, (half, up)):
                    self._store([values[0].value, mlir.constant(0, self.side.factor.type)])
        if c.matrix and self.block.count != c.depth:
            self._zeros(0, lanes, self.block.count)

    def _operand_along_k(self) -> int | None:
        """The operand that is a factor as it is, and lies along the last dimension of k, where vectors of the panel lie along the
        lanes."""
        c, side = self.c, self.side
        body = c.body.arguments
        if side.by_element or side.factor not in body:
            return None
        number = list(body).index(side.factor)
        strides, _ = ir.MemRefType(c.operands[number].type).get_strides_and_offset()
        lies_along_k = c.operand_dims[number][-1] == c.inner[-1] and strides[-1] == 1
        return number if lies_along_k and self.lane in c.operand_dims[number] else None

    @contextmanager
    def _outer_steps(self, at: dict[int, ir.Value]) -> Iterator[tuple[dict[int, ir.Value], ir.Value]]:
        """Loops over all of k but its last dimension: where they are, and the number of the first product there."""
        c = self.c
        with ExitStack() as stack:
            for d in c.inner[:-1]:
                name = f"{c.names.get(d, 'k')}_inner"
                self.steps[d] = stack.enter_context(loop(0, self.block.extents[d], name=name))
            outer = {d: sum_of([(self.block.start[d], 1), (self.steps[d], 1)]) for d in c.inner[:-1]}
            first = sum_of([(self.steps[d], self.block.strides[d]) for d in c.inner[:-1]])
            yield at | outer | {self.lane: self.first, c.inner[-1]: self.block.start[c.inner[-1]]}, first

    def _transpose_pairs(self, value: ir.Value, dims: list[int], at: dict[int, ir.Value], half: Size) -> Size:
        """Squares of pairs, each a word of 32 bits, as long as they are whole; returns the number of pairs that are done."""
        k, (_, depth, width, _), square = self.c.inner[-1], ir.MemRefType(self.panels.type).shape, STEP // 2
        done = whole(half, square)
        sizes = {self.lane: width, k: self.block.extents[k]}
        flat = ir.MemRefType.get([ir.MemRefType(self.panels.type).shape[0], depth, 2 * width], self.c.multiplicand)
        panels = memref.CollapseShapeOp(flat, self.panels, [[0], [1], [2, 3]]).result
        words = ir.VectorType.get([square, square], ir.IntegerType.get_signless(32))
        pairs = ir.VectorType.get([square, 2 * square], self.c.multiplicand)
        with self._outer_steps(at) as (offsets, first):
            source = _plane(value, [offsets[d] for d in dims], [sizes.get(d, 1) for d in dims])
            with loop(0, done, square, "pair") as p, loop(0, width, square, "lane") as lane:
                rows = vector.LoadOp(pairs, source, [lane, sum_of([(p, 2)])]).result
                transposed = vector.TransposeOp(words, vector.BitCastOp(words, rows).result, [1, 0]).result
                position = [self.number, sum_of([(p, 1), (quotient(first, 2), 1)]), sum_of([(lane, 2)])]
                vector.StoreOp(vector.BitCastOp(pairs, transposed).result, panels, position)
        return done

    def _operand_along_lanes(self) -> int | None:
        """The operand that is a factor as it is, and lies along the lanes."""
        body = list(self.c.body.arguments)
        if self.side.factor not in body:
            return None
        number = body.index(self.side.factor)
        strides, _ = ir.MemRefType(self.c.operands[number].type).get_strides_and_offset()
        return number if self.c.operand_dims[number][-1] == self.lane and strides[-1] == 1 else None

    def _interleave(self, value: ir.Value, dims: list[int], at: dict[int, ir.Value], bounds: tuple[Size, Size]) -> None:
        """Pairs of two rows of memory, a vector of lanes at a time."""
        c, width, shape = self.c, self.side.width, ir.MemRefType(self.panels.type).shape
        flat = ir.MemRefType.get([*shape[:2], 2 * width], c.multiplicand)
        panels = memref.CollapseShapeOp(flat, self.panels, [[0], [1], [2, 3]]).result
        row, pair = (ir.VectorType.get([n], c.multiplicand) for n in (width, 2 * width))
        last, zero = c.inner[-1], mlir.index(0)
        with ExitStack() as stack:
            for d in c.inner:
                own = bounds if d == last else (0, self.block.extents[d])
                self.steps[d] = stack.enter_context(loop(*own, name=f"{c.names.get(d, 'k')}_inner"))
            rows = []
            for h in range(2):
                index = at | {self.lane: self.first}
                for d in c.inner:
                    terms = [(self.block.start[d], 1), (self.steps[d], 2 if d == last else 1)]
                    index[d] = sum_of(terms, h if d == last else 0)
                rows.append(vector.LoadOp(row, value, [index[d] for d in dims]).result)
            strides = [(self.steps[d], 1 if d == last else n // 2) for d, n in self.block.strides.items()]
            vector.StoreOp(vector.InterleaveOp(*rows, results=[pair]).result, panels, [self.number, sum_of(strides), zero])

    def _split_transposed(self, at: dict[int, ir.Value], lanes: Size) -> None:
        """By way of a panel of whole numbers."""
        number, count = self._operand_along_k(), self.block.count
        assert number is not None and self.wide is not None
        self._transpose(self.c.operands[number], self.c.operand_dims[number], at, lanes, self.wide, mlir.index(0))
        half, up = _half(count), quotient(count, 2)
        for low, high, pair in ((0, half, (0, 1)), (half, up, (0,))):
            if low == high:
                continue
            with loop(low, high, name="pair") as p, loop(0, lanes, name="lane") as lane:
                positions = [[mlir.index(0), sum_of([(p, 2)], n), lane] for n in pair]
                values = [memref.LoadOp(self.wide, position).result for position in positions]
                zero = mlir.constant(0, self.side.factor.type)
                self._store_at(lane, p, values if len(values) > 1 else [*values, zero])
        if count != self.c.depth:
            self._zeros(0, lanes, count)

    def _transpose(
        self, value: ir.Value, dims: list[int], at: dict[int, ir.Value], lanes: Size, panels: ir.Value, number: ir.Value
    ) -> None:
        k, panel = self.c.inner[-1], ir.MemRefType(panels.type).shape
        sizes = {self.lane: lanes, k: self.block.extents[k]}
        with self._outer_steps(at) as (offsets, first):
            source = _plane(value, [offsets[d] for d in dims], [sizes.get(d, 1) for d in dims])
            target = _plane(panels, [number, first, mlir.index(0)], [1, self.block.extents[k], panel[2]])
            transpose_plane(source, target, lanes, self.block.extents[k], min(SQUARE, self.c.lanes))

    def _zeros(self, low: Size, high: Size, count: Size) -> None:
        """Zeros in the lanes from `low` to before `high`, behind the first `count` products."""
        end = round_up(self.block.count, STEP) if self.c.matrix else self.block.count
        if self.pairs:
            count, end = quotient(count, 2), quotient(end, 2)
        window = self.window or (count, end)
        zero = mlir.constant(0, ir.MemRefType(self.panels.type).element_type)
        with loop(low, high, name="lane") as lane, loop(*window, name="k_inner") as p:
            for position in self._positions(lane, p):
                memref.StoreOp(zero, self.panels, position)

    @contextmanager
    def _loops(
        self, dims: list[int], lanes: tuple[Size, Size], values: list[Evaluation], last: tuple[Size, Size]
    ) -> Iterator[None]:
        """`last`: the bounds along the last dimension of k, in pairs where the panel has pairs."""
        names = self.c.names
        with ExitStack() as stack:
            for d in dims:
                is_lane, is_last = d == self.lane, d == self.c.inner[-1]
                name = f"{names.get(d, 'n')}_{'lane' if is_lane else 'inner'}"
                bounds = lanes if is_lane else last if is_last else (0, self.block.extents[d])
                step = self.steps[d] = stack.enter_context(loop(*bounds, name=name))
                start = self.first if is_lane else self.block.start[d]
                for number, value in enumerate(values):
                    paired = is_last and self.pairs
                    terms = [(start, 1), (step, 2 if paired else 1)]
                    value.enter(d, sum_of(terms, number if paired else 0))
            yield

    def _store(self, values: list[ir.Value]) -> None:
        part = 2 if self.pairs else 1
        last = self.c.inner[-1]
        strides = [(self.steps[d], 1 if d == last else n // part) for d, n in self.block.strides.items()]
        self._store_at(self.steps[self.lane], sum_of(strides), values)

    def _store_at(self, lane: ir.Value, p: ir.Value, values: list[ir.Value]) -> None:
        stored = values
        if self.side.parts > 1:
            numbers = [split(v, self.side.parts) for v in values]
            stored = [word_of(*both) for both in zip(*numbers)] if self.pairs else [narrow(v) for v in numbers[0]]
        if self.rows is not None:
            (value,) = stored
            memref.StoreOp(value, self.rows, [p, lane])
            return
        for value, position in zip(stored, self._positions(lane, p)):
            memref.StoreOp(value, self.panels, position)

    def _positions(self, lane: ir.Value, p: ir.Value) -> list[list[ir.Value]]:
        """The subscripts of an element: of each of its parts, or of each of a pair."""
        parts, zero = self.side.parts, mlir.index(0)
        if not self.c.matrix:
            return [[self.number, *panel_subscripts(self.side, lane, p)]]
        own = [p, lane] if self.pairs else [lane, p]
        if parts > 1:
            return [[self.number, mlir.index(n), *own, *[zero] * self.pairs] for n in range(parts)]
        return [[self.number, *own, mlir.index(n)] for n in range(2)] if self.pairs else [[self.number, *own]]


def _plane(value: ir.Value, offsets: list[ir.Value], sizes: list[Size]) -> ir.Value:
    """The two-dimensional part of `value` along the two dimensions whose sizes are not 1, or the last ones."""
    type_ = ir.MemRefType(value.type)
    strides, _ = type_.get_strides_and_offset()
    wide = [d for d, n in enumerate(sizes) if n != 1 or isinstance(n, ir.Value)]
    kept = sorted([*wide, *[d for d in reversed(range(len(sizes))) if d not in wide]][:2])
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, [strides[d] for d in kept])
    static = [n if isinstance(n, int) else mlir.DYNAMIC for n in sizes]
    part = ir.MemRefType.get([static[d] for d in kept], type_.element_type, layout)
    dynamic = [n for n in sizes if isinstance(n, ir.Value)]
    unknown = [mlir.DYNAMIC] * len(offsets)
    return memref.SubViewOp(part, value, offsets, dynamic, [], unknown, static, [1] * len(sizes)).result


def _end(low: ir.Value, extent: Size, rows: int) -> Size:
    """min(extent, low + rows)."""
    known = mlir.constant_value(low)
    if isinstance(extent, int) and known is not None:
        return min(extent, int(known) + rows)
    if isinstance(extent, int) and extent % rows == 0:
        return sum_of([(low, 1)], rows)
    d0, d1 = ir.AffineDimExpr.get(0), ir.AffineDimExpr.get(1)
    least = ir.AffineMap.get(2, 0, [d0 + rows, d1])
    return affine.AffineMinOp(least, [low, mlir.index(extent)]).result


def _half(size: Size) -> Size:
    """Rounded down."""
    if isinstance(size, int):
        return size // 2
    down = ir.AffineExpr.get_floor_div(ir.AffineDimExpr.get(0), 2)
    return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [down]), [size]).result


__all__ = ["SQUARE", "Block", "Packing"]
