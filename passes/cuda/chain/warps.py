"""The engine of contraction chains by `mma.sync`: all threads copy tiles by cp.async, and each warp multiplies its own rows.

    start the copies of q, k[0], v[0], ...
    for tile of j { wait for k[j]; barrier; start the copies of a later v;  s = q k[j]
                    wait for v[j]; barrier; start the copies of a later k;  states and weights from s; o rescaled; o += w v[j] }

Tiles of k and of v follow one another in a ring: while one is multiplied, those after it arrive. A warp has 16 or 32 rows and
all columns, so that no warp needs what another computes. It needs no tensor maps, and takes factors with any strides.

Lines in shared memory are an odd number of 16-byte pieces, so that the 8 lines of a matrix are in different banks. With a swizzle
in place of the padding, the addresses of fragments are no constants apart, and fill the registers.

Sources: Dao, "FlashAttention-2" (2023), for the division of work; PTX ISA, "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from math import prod

from tilec.analysis.chain import Factor
from tilec.analysis.subscripts import base_multiple, subscripts
from tilec.core import locations, mlir
from tilec.core.hardware import WIDE
from tilec.core.mlir import arith, gpu, ir, memref, nvgpu, scf
from tilec.cost.chain import chain_line
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.fragments import Fragments, Terms, clear
from tilec.passes.cuda.chain.split import PartialStates
from tilec.passes.cuda.chain.values import At, statements
from tilec.passes.cuda.contraction.fragments import load_matrices, multiply_fragments
from tilec.passes.cuda.contraction.problem import PRIVATE, SHARED, Thread, all_of, below, local
from tilec.passes.cuda.memory_spaces import root
from tilec.passes.cuda.ring import CopyRing, carried_loop
from tilec.passes.loops import delinearise, loop, sum_of, when


class _Factor:
    """Tiles of a factor in shared memory: lines of all that it has along its contiguous dimension. `lines`: how many of each of the
    others. `limits`: the last subscript of those that end within a tile."""

    def __init__(
        self, block: ChainBlock, thread: Thread, factor: Factor, lines: dict[int, int], slots: int, limits: dict[int, ir.Value]
    ):
        self.factor, self.view, self.sizes = factor, factor.element.key, lines
        self.block, self.thread, self.threads, self.limits = block, thread, block.options.block_threads, limits
        assert factor.contiguous is not None
        self.lines, self.across = prod(lines.values()), factor.contiguous
        self.element = ir.MemRefType(self.view.type).element_type
        self.bytes = self.element.width // 8
        self.columns = block.sizes[self.across]
        self.used, self.width = 16 * -(-self.columns // 16), chain_line(block.options.unit, self.columns)
        self.tile = memref.AllocOp(local([slots, self.lines, self.width], self.element, SHARED), [], []).result
        locations.named(self.tile, f"{locations.argument(root(self.view)) or 'factor'}_tiles")
        strides, _ = ir.MemRefType(root(self.view).type).get_strides_and_offset()
        apart = (self.columns, base_multiple(subscripts(factor.element)[-1]), *strides[:-1])
        self.vector = next(v for v in (WIDE // self.bytes, 4, 2, 1) if all(s % v == 0 for s in apart))

    def column(self, line: ir.Value, column: ir.Value) -> ir.Value:
        """Where an element of a line lies in it."""
        return column

    def copy(self, slot: ir.Value, first: dict[int, ir.Value]) -> None:
        """Starts this thread's copies of the tile that begins at `first` of the block's part; what does not exist becomes zeros."""
        together = self.threads // self.pieces  # lines, or none
        with ExitStack() as stack:
            i = stack.enter_context(loop(-(-self.lines * self.pieces // self.threads), name="piece"))
            line, column = self._coordinates(i)
            if together and self.lines % together:
                stack.enter_context(when(below(line, self.lines)))
            if self.pieces * self.vector > self.used:
                stack.enter_context(when(below(column, self.used)))
            position = dict(zip(self.sizes, delinearise(line, list(self.sizes.values()), [None] * len(self.sizes))))
            position = {d: sum_of([(x, 1), *([(first[d], 1)] if d in first else [])]) for d, x in position.items()}
            at_most = arith.CmpIPredicate.sle
            conditions = [arith.cmpi(at_most, position[d], last) for d, last in self.limits.items()]
            conditions += [below(column, self.columns)] if self.used > self.columns else []
            at = At(position | {self.across: column}, mlir.index(0))
            source = [self.block.subscripts.build(p, at) for p in subscripts(self.factor.element)]
            self._copy([slot, line, self.column(line, column)], source, all_of(conditions))

    @property
    def pieces(self) -> int:
        """Vectors of a line, and so many more that they are a power of 2 as threads are: then a thread's lines are a constant
        apart."""
        return 1 << (self.used // self.vector - 1).bit_length()

    def _coordinates(self, i: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Line and column of this thread's vector `i`."""
        number, together = self.thread.number, self.threads // self.pieces
        if together:
            line = sum_of([(arith.divui(number, mlir.index(self.pieces)), 1), (i, together)])
            return line, arith.muli(arith.remui(number, mlir.index(self.pieces)), mlir.index(self.vector))
        parts = mlir.index(self.pieces // self.threads)
        number = sum_of([(arith.remui(i, parts), self.threads), (number, 1)])
        return arith.divui(i, parts), arith.muli(number, mlir.index(self.vector))

    def _copy(self, target: list[ir.Value], source: list[ir.Value], exists: ir.Value | None) -> None:
        if self.vector > 1:
            elements = None if exists is None else arith.select(exists, mlir.index(self.vector), mlir.index(0))
            nvgpu.DeviceAsyncCopyOp(
                self.tile, target, self.view, source, self.vector, srcElements=elements,
                bypassL1=self.vector * self.bytes == WIDE,
            )  # fmt: skip
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


class Warps:
    """Each warp has `high` times 16 of the block's rows."""

    def __init__(self, block: ChainBlock, thread: Thread):
        self.block, self.chain, self.thread = block, block.chain, thread
        chain, options = block.chain, block.options
        assert chain.values is not None
        self.high, self.stages = block.bm // (16 * options.warps), options.stages
        ends = {chain.between: mlir.index(block.length - 1)} if block.length % block.bn else {}
        step, factor = {chain.between: block.bn}, partial(_Factor, block, thread)
        self.q_tiles = factor(chain.left, block.box, 1, block.limits())
        self.k_tiles, self.v_tiles = (factor(x, step, self.stages, ends) for x in (chain.right, chain.values))
        self.fragments = Fragments(block, thread, self._warp_row, self.high)
        self.parts = PartialStates(self.fragments)
        self.left, self.right = self._part(4 * self.high, "%left"), self._part(4, "%right")
        self.ring = CopyRing(self.stages, self.fragments.tiles.end)

    def _warp_row(self) -> Terms:
        return [(self.thread.warp, 16 * self.high)]

    def _part(self, words: int, name: str) -> ir.Value:
        """Words of a factor's fragments."""
        made = memref.AllocaOp(local([words, 2], mlir.type_of(self.block.options.multiplicand), PRIVATE), [], [])
        made.operation.attributes["tilec.words"] = ir.UnitAttr.get()
        return locations.named(made.result, name)

    def run(self) -> None:
        product = self.chain.product
        assert product is not None
        with ir.Location.name(product.total.name, product.total.operation.location):
            self.fragments.clear()
            self.fragments.traverse(self._loop_over_tiles)
        self.parts.store()

    def _loop_over_tiles(self) -> None:
        begin = self.fragments.tiles.begin
        self.q_tiles.copy(mlir.index(0), {})
        for n in range(2 * self.stages - 1):
            self._start(self.v_tiles if n % 2 else self.k_tiles, sum_of([(begin, 1)], n // 2), exists=n < 2)
        for first, end, masked in self.fragments.tiles.ranges(mlir.index(0)):
            with carried_loop(first, end, []) as (number, _):
                self._step(number, masked)

    def _step(self, number: ir.Value, masked: bool) -> None:
        own, slot = self.fragments, self.ring.stage_of(number)
        self._await()
        self._start(self.v_tiles, sum_of([(number, 1)], self.stages - 1), exists=self.stages == 1)
        self._scores(slot)
        self._await()
        self._start(self.k_tiles, sum_of([(number, 1)], self.stages))
        own.weigh(number, masked)
        own.rescale()
        own.packer.pack()
        self._product(slot)

    # ---- copies --------------------------------------------------------------------------------------------

    def _start(self, tiles: _Factor, number: ir.Value, exists: bool = False) -> None:
        """Starts the copies of a factor's tile of this number, if there is one."""
        between, start = self.chain.between, partial(self.fragments.first_line, number)
        self.ring.start(number, lambda: tiles.copy(self.ring.stage_of(number), {between: start()}), exists)

    def _await(self) -> None:
        """Until the next tile is there for all threads, which then have read the one before the last."""
        self.ring.wait(2 * self.stages - 2)
        gpu.BarrierOp()

    # ---- multiplying ---------------------------------------------------------------------------------------

    def _scores(self, slot: ir.Value) -> None:
        """s = the rows of this warp times a tile of the second factor."""
        own, zero = self.fragments, mlir.index(0)
        with statements([self.chain.scores]):
            clear(own.scores)
            tight = self.high > 1 and own.depth > 64  # addresses of further steps would take the last registers
            with loop(own.depth // 16, rolled=tight, name="depth") as step:
                k = arith.muli(step, mlir.index(16))
                with loop(self.high, name="high") as i:
                    row = sum_of([*self._warp_row(), (i, 16)])
                    word = arith.muli(i, mlir.index(4))
                    load_matrices(self.q_tiles, zero, row, k, self.left, word, self.thread, k_major=True, rows_first=True)
                with loop(self.block.bn // 16, name="columns") as j:
                    first = arith.muli(j, mlir.index(16))
                    load_matrices(self.k_tiles, slot, first, k, self.right, zero, self.thread, k_major=True, rows_first=False)
                    self._multiply(own.scores, j, self.left, [])

    def _product(self, slot: ir.Value) -> None:
        """o += the weights, each in its parts, times a tile of the third factor."""
        own, bn = self.fragments, self.block.bn
        apart = self.block.options.weight_terms > 1  # LLVM leaves a loop as large, and weights that it subscripts are memory then
        with loop(bn // 16, unroll=apart, name="depth") as step, loop(own.wide // 16, name="columns") as j:
            k, first = arith.muli(step, mlir.index(16)), arith.muli(j, mlir.index(16))
            load_matrices(self.v_tiles, slot, first, k, self.right, mlir.index(0), self.thread, k_major=False, rows_first=False)
            with loop(self.block.options.weight_terms, name="part") as term:
                self._multiply(own.sums, j, own.weights, [(term, self.high * bn // 4), (step, 4)], bn // 4)

    def _multiply(self, sums: ir.Value, j: ir.Value, left: ir.Value, at: Terms, words: int = 4) -> None:
        """Sums of 16 columns += the words of the left factor's fragments `at`, each so many `words` after the one above, times
        the right factor's."""
        with loop(2, name="eight") as n, loop(self.high, name="high") as i:
            position = [sum_of([(j, 2), (n, 1)]), arith.muli(i, mlir.index(2)), mlir.index(0)]
            word = sum_of([*at, (i, words)])
            multiply_fragments(sums, position, (left, word), (self.right, arith.muli(n, mlir.index(2))))
