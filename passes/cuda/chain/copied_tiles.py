"""Tiles of a chain's factors that all threads copy to shared memory by cp.async, as `mma.sync` reads them.

Lines in shared memory are an odd number of 16-byte pieces, so that the 8 lines of a matrix are in different banks. With a swizzle
in place of the padding, the addresses of fragments are no constants apart, and fill the registers.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod

from tilec.analysis.factor_access import FactorAccess
from tilec.analysis.subscripts import subscripts
from tilec.core import locations, mlir
from tilec.core.extents import Extent, known_shape, shape_of
from tilec.core.hardware import WIDE
from tilec.core.mlir import arith, ir, memref, scf
from tilec.cost.chain import chain_line, product_depth
from tilec.cost.model import round_up
from tilec.index.questions import multiple
from tilec.index.terms import term
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.values import At
from tilec.passes.cuda.contraction.operands import piece_location
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import SHARED, local, root
from tilec.passes.cuda.ring import start_copy
from tilec.passes.loops import all_of, below, delinearise, loop, sum_of, when


def _last_extent(view: ir.Value) -> Extent:
    """Of a view's last dimension; 0, which all vectors divide, where that is the rest of a tile: its pitch is asked about, too."""
    last = known_shape(view)[-1]
    return 0 if last is None else last


class CopiedTiles:
    """Tiles of a factor: lines of the elements that a tile has along its contiguous dimension. `box`: how many a tile has of each
    dimension. `limits`: the last subscript of those that end within a tile."""

    def __init__(
        self, block: ChainBlock, thread: Thread, factor: FactorAccess, box: dict[int, int], slots: int, limits: dict[int, ir.Value]
    ):
        assert factor.contiguous is not None
        self.factor, self.view, self.across = factor, factor.expression.key, factor.contiguous
        self.block, self.thread, self.threads, self.limits = block, thread, block.options.block_threads, limits
        self.sizes = {d: n for d, n in box.items() if d != self.across}
        self.lines, self.columns = prod(self.sizes.values()), box[self.across]
        self.element = ir.MemRefType(self.view.type).element_type
        self.bytes = self.element.width // 8
        self.used = round_up(self.columns, product_depth(self.bytes))
        self.width = chain_line(block.options.unit, self.columns, self.bytes)
        self.tile = memref.AllocOp(local([slots, self.lines, self.width], self.element, SHARED), [], []).result
        locations.named(self.tile, f"{locations.argument(root(self.view)) or 'factor'}_tiles")
        shape = shape_of(root(self.view))
        pitches = [prod(shape[d:]) for d in range(1, len(shape))]
        inner = self.across in [first.inner for first in block.chain.firsts]
        whole = block.sizes[self.across] if inner else _last_extent(self.view)
        starts = [multiple(term(s)) for s in (self.columns, whole, factor.offset(self.across), *pitches)]
        self.vector = next(v for v in (WIDE // self.bytes, 4, 2, 1) if all(s % v == 0 for s in starts))

    def column(self, line: ir.Value, column: ir.Value) -> ir.Value:
        """Where an element of a line lies in it."""
        return column

    def copy(self, slot: ir.Value, first: dict[int, ir.Value]) -> None:
        """Starts this thread's copies of the tile that begins at `first` of the block's part; what does not exist becomes zeros."""
        lines_at_once = self.threads // self.pieces  # lines, or none
        with ExitStack() as stack:
            i = stack.enter_context(loop(-(-self.lines * self.pieces // self.threads), name="piece"))
            line, number = piece_location(i, self.thread, self.threads, self.pieces)
            column = arith.muli(number, mlir.index(self.vector))
            if lines_at_once and self.lines % lines_at_once:
                stack.enter_context(when(below(line, self.lines)))
            if self.pieces * self.vector > self.used:
                stack.enter_context(when(below(column, self.used)))
            position = dict(zip(self.sizes, delinearise(line, list(self.sizes.values()), [None] * len(self.sizes))))
            position[self.across] = column
            position = {d: sum_of([(x, 1), *([(first[d], 1)] if d in first else [])]) for d, x in position.items()}
            at_most = arith.CmpIPredicate.sle
            conditions = [arith.cmpi(at_most, position[d], last) for d, last in self.limits.items()]
            conditions += [below(column, self.columns)] if self.used > self.columns else []
            if self.factor.page:  # memory tells the place, also of what does not exist
                position |= {d: arith.minsi(position[d], last) for d, last in self.limits.items()}
            at = At(position, mlir.index(0))
            source = [self.block.subscripts.build(p, at) for p in subscripts(self.factor.expression)]
            self._copy([slot, line, self.column(line, column)], source, all_of(conditions))

    @property
    def pieces(self) -> int:
        """Vectors of a line, and so many more that they are a power of 2 as threads are: then a thread's lines are a constant
        apart."""
        return 1 << (self.used // self.vector - 1).bit_length()

    def _copy(self, target: list[ir.Value], source: list[ir.Value], exists: ir.Value | None) -> None:
        if self.vector > 1:
            start_copy(self.tile, target, self.view, source, self.vector, exists)
            return
        if exists is None:
            memref.StoreOp(memref.LoadOp(self.view, source).result, self.tile, target)
            return
        choice = scf.IfOp(exists, has_else=True)
        with ir.InsertionPoint(choice.then_block):
            memref.StoreOp(memref.LoadOp(self.view, source).result, self.tile, target)
            scf.YieldOp([])
        with ir.InsertionPoint(choice.else_block):
            memref.StoreOp(mlir.constant(0.0, self.element), self.tile, target)
            scf.YieldOp([])
