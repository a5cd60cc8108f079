"""map, for CUDA contractions on Hopper: persistent blocks in which some warps load and the others multiply.

    if warpgroup 0 { for tile, k { wait until the stage is empty; start the copies of a[k], b[k] into it } }
    else { for tile { for k { wait until the stage is full; c += a[stage] * b[stage]; the stage before is empty }
                      c's epilogue } }

The producer runs ahead by the number of stages (`passes/cuda/ring.py`), over the edge from one tile to the next, so that the
epilogue of one is under the loads of the other.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" (fragments; matrix descriptors, in units
of 16 bytes); CUTLASS and fast.cu for the division of work.
"""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from tilec.analysis.parts import PRODUCTS
from tilec.core import locations, mlir, opcodes
from tilec.core.hardware import LINE, ROWS
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.core.opcodes import WarpgroupProduct
from tilec.kernels import WarpgroupContraction
from tilec.kernels.contraction import widest
from tilec.kernels.matrix import ELEMENTS
from tilec.passes.cuda.contraction.clusters import Cluster
from tilec.passes.cuda.contraction.epilogue import Epilogue, buffer
from tilec.passes.cuda.contraction.fragments import Chunks, Sums, fragment_coordinates
from tilec.passes.cuda.contraction.grid import Blocks
from tilec.passes.cuda.contraction.partial_sums import PartialSums
from tilec.passes.cuda.contraction.problem import PRIVATE, Block, Problem, Side, Thread, local
from tilec.passes.cuda.contraction.result_boxes import ResultBoxes, boxed_result
from tilec.passes.cuda.memory_spaces import root
from tilec.passes.cuda.ring import (
    Registers,
    Ring,
    RingTiles,
    Roles,
    begin_ping_pong,
    carried_loop,
    make_ready,
    offsets_of,
    ping_pong,
    wait_for_products,
)
from tilec.passes.loops import delinearise, loop, sum_of, when

EQUAL = arith.CmpIPredicate.eq
REGISTERS = Registers(producer=40, consumer=232)  # of 168 at launch
MOST_REGISTERS = Registers(producer=24, consumer=240)


def map_wgmma(
    function: ir.Operation, options: WarpgroupContraction, blocks: Blocks, grid: list[int], tiles: dict[int, int]
) -> None:
    function.attributes["tilec.threads"] = mlir.integer(options.block_threads)
    size = prod(options.cluster)
    count = min(options.persistent_blocks // size, blocks.count // size)  # clusters that are launched
    function.attributes["tilec.blocks"] = mlir.integer(count * size)
    thread, first = Thread(), gpu.BlockIdOp(gpu.Dimension.x).result
    cluster = None
    if size > 1:
        function.attributes["tilec.cluster"] = mlir.integer(size)
        cluster, first = Cluster(function, *options.cluster), arith.divui(first, mlir.index(size))
    shape = _Shape(options, thread)
    sample = blocks.enter(first, grid, cluster)  # the operands' types, which are the same for every tile
    block = Block(sample)
    loads = _Loads(Problem(options, tiles, block.contraction), shape, function, block.after, cluster)
    steps = loads.problem.steps  # of every tile
    _erase(sample)
    start = [mlir.index(0), mlir.index(0)]  # the first stage, in phase 0
    end = mlir.index(blocks.count // size)

    def produce() -> None:
        with carried_loop(first, end, list(start), count) as (number, state):
            operations = blocks.enter(number, grid, cluster)
            loads.load(Problem(options, tiles, _contraction(operations)), state, arith.cmpi(EQUAL, number, first))
            _erase(operations)

    def consume() -> None:
        mine, state, step = first, list(start), count
        if options.alternate_tiles:  # every other tile; the stages between are the other warpgroup's
            mine, step = sum_of([(first, 1), (shape.roles.consumer, count)]), 2 * count
            state = loads.ring.after(state, steps, shape.roles.consumer)
            begin_ping_pong(function, shape.roles)
        with carried_loop(mine, end, state, step) as (number, state):
            _multiply_tile(options, tiles, blocks.enter(number, grid, cluster), loads, shape, state)
            if options.alternate_tiles:
                state[:] = loads.ring.after(state, steps, mlir.index(1))
        if loads.boxes:
            loads.boxes.wait(thread)

    shape.roles.divide(MOST_REGISTERS if options.partials > 1 else REGISTERS, produce, consume)
    if cluster:
        cluster.meet()


def _multiply_tile(
    options: WarpgroupContraction, tiles: Any, operations: Any, loads: _Loads, shape: _Shape, state: list[ir.Value]
) -> None:
    block = Block(operations)
    problem = Problem(options, tiles, block.contraction)
    with ir.Location.name(mlir.get_string(block.contraction, "tilec.name") or "c", block.contraction.location):
        loads.multiply(problem, state)
    with (block.after or [block.contraction])[-1].location:
        warp = sum_of([(shape.thread.warp, 1)], -4)  # among those that multiply
        Epilogue(problem, block.after, shape.thread, loads.boxes or loads.buffer, warp).store(loads.chunks)
    _erase(operations)


def _contraction(operations: list[ir.Operation]) -> ir.Operation:
    return next(o for o in operations if "tilec.reduce" in o.attributes)


def _erase(operations: list[ir.Operation]) -> None:
    for op in reversed(operations):
        if op.name.startswith("linalg.") or (
            op.name in ("memref.alloc", "memref.subview") and not any(mlir.uses(op.results[0]))
        ):
            op.erase()


class _Shape:
    """Who multiplies what: consumers have 64 rows each, or `parts` times 64 rows of tiles of their own (`alternate_tiles`); a
    thread two adjacent columns of every 8, in two rows of each."""

    def __init__(self, options: WarpgroupContraction, thread: Thread):
        self.alternate, self.parts = options.alternate_tiles, options.block[0] // ROWS if options.alternate_tiles else 1
        self.thread, self.wide, self.columns = thread, options.block[1] // 8, options.block[1]
        self.roles = Roles(thread, options.warps[0] * options.warps[1] // 4)

    def chunks(self, sums: ir.Value, most: int) -> Chunks:
        """A warp has 16 of every 64 of its warpgroup's rows and all columns, of which at most so many are in a chunk."""
        columns = widest(8 * self.wide, most)
        count = self.parts * (8 * self.wide // columns)
        return Chunks(count, 16, columns, partial(self._spill, sums, columns), partial(self._coordinates, columns))

    def _spill(self, sums: ir.Value, columns: int, number: ir.Value, put: Callable[..., None]) -> None:
        with loop(2, name="half") as half, loop(columns // 8, name="fragment") as j:
            at = [sum_of([(number, columns // 8), (j, 1)]), half, mlir.index(0)]
            put(Sums(sums, at, 2), *fragment_coordinates(self.thread, half, j))

    def _coordinates(
        self, columns: int, number: ir.Value, row: ir.Value, column: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        part, chunk = delinearise(number, [self.parts, 8 * self.wide // columns])
        return self.row(row, part), sum_of([(chunk, columns), (column, 1)])

    def row(self, row: ir.Value, part: ir.Value | None = None) -> ir.Value:
        """In the block's tile, of a warp's row of a part."""
        warp = arith.andi(self.thread.warp, mlir.index(3))
        return sum_of([(self.part(part), ROWS), (warp, 16), (row, 1)])

    def part(self, own: ir.Value | None) -> ir.Value:
        """The number of 64 rows of a tile: the warpgroup's only ones, or its own of this number."""
        return own if self.alternate and own is not None else self.roles.consumer


class _Loads:
    """Both factors in the stages of a ring, and the sums that are made of them."""

    def __init__(
        self, problem: Problem, shape: _Shape, function: ir.Operation, after: list[ir.Operation], cluster: Cluster | None
    ):
        self.problem, self.shape, self.function, self.cluster = problem, shape, function, cluster
        numbers = range(problem.parts)
        self.sides = [[self._tiles(side, part) for part in numbers] for side in (problem.left, problem.right)]
        warps, result = 4 * shape.roles.consumers, boxed_result(problem, after)
        self.boxes = ResultBoxes(problem, result, warps) if result else None  # where tiles end, at a multiple of 1024 bytes
        count, kept = 1 if shape.alternate else shape.roles.consumers, problem.kept_steps
        copied = [tiles for side in self.sides for tiles in side]
        self.ring = Ring(self.sides[0] if kept else copied, problem.options.stages, count, cluster)
        self.kept = Ring(self.sides[1], kept, count) if kept else None  # filled once, by a block's first tile
        self.sums = memref.AllocaOp(local([shape.parts * shape.wide, 2, 2], problem.accumulator, PRIVATE), [], []).result
        locations.named(self.sums, "sums")
        self.partial, wait = None, partial(wait_for_products, function)
        if problem.is_promoted:
            self.partial = PartialSums(problem, function, shape, self.ring, self.sums, self._product, wait)
        self.chunks = shape.chunks(self.sums, self.boxes.columns if self.boxes else 64)
        self.buffer = None if self.boxes else buffer(self.chunks, warps, problem.accumulator, overlay=False)
        make_ready([self.ring, self.kept] if self.kept else [self.ring], shape.thread)
        if cluster:
            cluster.meet()
        else:
            gpu.BarrierOp()

    def _tiles(self, side: Side, part: int) -> RingTiles:
        """A tile of a factor is one box of the tensor, or several of 64 columns where it lies in lines of rows."""
        problem = self.problem
        line = LINE * 8 // problem.element.width
        sizes: dict[int, int] = dict(zip(side.dims, side.box)) if side.major else {side.dims[-1]: line}
        sizes |= dict(zip(problem.options.inner, problem.inner_box))
        slabs, splits = self._slabs(side), self._splits(side)
        sizes[self._split_dim(side)] //= splits
        box, steps, access = [], [], problem.access(side, part)
        for subscript in access.subscripts:
            varying = [(sizes[problem.dims[d]], f) for d, f in subscript.factors.items() if sizes.get(problem.dims[d], 1) > 1]
            ((size, step),) = varying or [(1, 1)]
            box.append(size)
            steps.append(step)
        # rows that the box lacks are never loaded, and never stored
        lines, stages = side.size if side.major else slabs * problem.depth, problem.options.stages
        if side.name == "right" and problem.kept_steps:
            stages = problem.kept_steps
        rounded = "tf32" if problem.options.multiplicand == "tf32" else None
        if access.operand is None:
            return RingTiles(access.tensor, box, slabs * splits, lines, stages, steps, rounded=rounded)
        tensor = problem.operands[access.operand]
        kept = [d for d, extent in enumerate(ir.MemRefType(root(tensor).type).shape) if extent > 1]
        return RingTiles(tensor, box, slabs * splits, lines, stages, steps, kept, rounded)

    def _parts(self, side: Side) -> int:
        """Blocks that share a tile of a factor."""
        return self.cluster.parts(side.name == "left") if self.cluster else 1

    def _splits(self, side: Side) -> int:
        """Boxes of a slab: where there is not a slab for each part."""
        return self._parts(side) if self._slabs(side) % self._parts(side) else 1

    def _slabs(self, side: Side) -> int:
        """Of a tile: one of lines of k, or so many of lines of rows, of which the last may have more of them than the tile."""
        return 1 if side.major else -(-side.size // (LINE * 8 // self.problem.element.width))

    def _split_dim(self, side: Side) -> int:
        """The dimension along which a slab is split: that of its first lines."""
        dims, box = (side.dims, side.box) if side.major else (self.problem.options.inner, self.problem.inner_box)
        return next((d for d, size in zip(dims, box) if size > 1), dims[-1])

    # ---- loading -------------------------------------------------------------------------------------------

    def load(self, problem: Problem, state: list[ir.Value], is_first: ir.Value) -> None:
        """All copies of one tile of C, the first of a block or another."""

        def copy(stage: ir.Value, step: ir.Value) -> None:
            self._copy_tiles(self.ring, problem, problem.left, step, stage)
            if not self.kept:
                self._copy_tiles(self.ring, problem, problem.right, step, stage)
                return
            with when(locations.named(is_first, "is_first_tile")):
                self.kept.expect(step)
                self._copy_tiles(self.kept, problem, problem.right, step, step)

        self.ring.fill(problem.steps, state, copy, f"{problem.inner_name}_step")

    def _copy_tiles(self, ring: Ring, problem: Problem, side: Side, step: ir.Value, stage: ir.Value) -> None:
        several = self.sides[side.name == "right"]
        per = several[0].slabs // self._parts(side)
        with loop(per, name="slab") as slab:
            whole = per == several[0].slabs
            number = slab if whole else sum_of([(self.cluster.part(side.name == "left"), per), (slab, 1)])
            for part in range(len(several)):
                self._copy(ring, problem, side, step, stage, number, part)

    def _copy(
        self, ring: Ring, problem: Problem, side: Side, step: ir.Value, stage: ir.Value, number: ir.Value, part: int
    ) -> None:
        splits, d, tiles = self._splits(side), self._split_dim(side), self.sides[side.name == "right"][part]
        target = tiles.target(stage, sum_of([(number, tiles.box_lines)]))
        at = {d: mlir.index(0) for d in problem.dims} | problem.inner_start(step)
        slab, split = delinearise(number, [tiles.slabs // splits, splits])
        if not side.major:
            at |= zip(side.dims, delinearise(sum_of([(slab, LINE * 8 // problem.element.width)]), list(side.box)))
        whole = dict(zip((*problem.options.inner, *side.dims), (*problem.inner_box, *side.box)))
        at[d] = sum_of([(at[d], 1), (split, whole[d] // splits)])
        source, subscripts = problem.source(side, at, part)
        coordinates = [sum_of([(a, 1), (o, 1)]) for a, o in zip(subscripts, offsets_of(source))]
        shared = self.cluster is not None and self._parts(side) > 1
        ring.copy(tiles, stage, target, coordinates, self.cluster.mask(side.name == "left") if shared else None)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def multiply(self, problem: Problem, state: list[ir.Value]) -> None:
        """One tile of C."""
        if self.partial is not None:
            self.partial.multiply(problem, state)
            return

        def product(stage: ir.Value, step: ir.Value) -> None:
            if self.kept:
                self.kept.wait_full(step, mlir.index(0))
            for part in range(self.shape.parts):
                self._product(self._of_part(part), stage, step, mlir.index(part))

        alternate = partial(ping_pong, self.function, self.shape.roles) if self.shape.alternate else None
        name = f"{problem.inner_name}_step"
        self.ring.multiply(problem.steps, state, self.shape.thread, product, self._wait, self.shape.parts, alternate, name)

    def _wait(self, running: int) -> None:
        wait_for_products(self.function, running, self.sums)

    def _of_part(self, part: int) -> ir.Value:
        """The sums of 64 rows."""
        if self.shape.parts == 1:
            return self.sums
        sizes = [self.shape.wide, 2, 2]
        layout = ir.StridedLayoutAttr.get(4 * self.shape.wide * part, [4, 2, 1])
        whole = ir.MemRefType(self.sums.type)
        type_ = ir.MemRefType.get(sizes, whole.element_type, layout, whole.memory_space)
        at = [self.shape.wide * part, 0, 0]
        return memref.SubViewOp(type_, self.sums, [], [], [], at, sizes, [1] * 3).result

    def _product(self, sums: ir.Value, stage: ir.Value, step: ir.Value, part: ir.Value | None = None) -> None:
        """sums (+)= 64 rows of left times all of right, for the k of one stage and each pair of numbers in
        which factors are stored; from zero in the first step.

        A call of what is no operation upstream: `nvgpu.warpgroup.mma` takes only one order of the right
        factor's dimensions, and gives no access to its sums.
        """
        problem = self.problem
        own = ROWS if problem.left.major else problem.depth
        kind = ELEMENTS[problem.options.multiplicand] if problem.parts > 1 else problem.options.multiplicand
        product = WarpgroupProduct(problem.right.size, problem.depth, kind, problem.left.major, problem.right.major)
        for number, (a, b) in enumerate(PRODUCTS if problem.parts > 1 else ((0, 0),)):
            left = self.sides[0][a].lines(stage, sum_of([(self.shape.part(part), own)]), own)
            right = self.sides[1][b].lines(step if self.kept else stage, mlir.index(0))
            opcodes.call(self.function, product, [sums, left, right, mlir.index(1) if number else step])
