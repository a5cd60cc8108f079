"""map, for CUDA contractions on Hopper: persistent blocks in which some warps load and the others multiply.

    if warpgroup 0 { for tile, k { wait until the stage is empty; start the copies of a[k], b[k] into it } }
    else { for tile { for k { wait until the stage is full; c += a[stage] * b[stage]; the stage before is empty }
                      c's epilogue } }

The producer runs ahead by the number of stages (`passes/cuda/ring.py`), over the edge from one tile to the next, so that the
epilogue of one is under the loads of the other. One of its threads has TMA copy boxes; factors of which tiles are no boxes are
brought by all of its threads (`operands.py`), by cp.async in pieces or through registers.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" (fragments; matrix descriptors, in units
of 16 bytes); CUTLASS and fast.cu for the division of work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from math import prod

from tilec.analysis.bf16_split import PRODUCTS
from tilec.core import extents, locations, mlir, opcodes
from tilec.core.diagnostics import InternalError
from tilec.core.hardware import LINE, ROWS, WARPGROUP
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.core.opcodes import WarpgroupProduct
from tilec.core.varying import Varies
from tilec.kernels import WarpgroupContraction
from tilec.kernels.contraction import widest
from tilec.kernels.matrix import ELEMENTS
from tilec.passes.cuda.contraction.checks import check_subscripts
from tilec.passes.cuda.contraction.clusters import Cluster
from tilec.passes.cuda.contraction.epilogue import Epilogue, buffer
from tilec.passes.cuda.contraction.fragments import Chunks, spill_pairs
from tilec.passes.cuda.contraction.grid import Blocks, erase, of_its_grid
from tilec.passes.cuda.contraction.operands import Stage
from tilec.passes.cuda.contraction.partial_sums import PartialSums
from tilec.passes.cuda.contraction.problem import Block, Problem, Side, Thread
from tilec.passes.cuda.contraction.result_boxes import result_boxes
from tilec.passes.cuda.contraction.stream_k import Part, Parts, StreamK
from tilec.passes.cuda.memory_spaces import registers, root
from tilec.passes.cuda.ring import LineTiles, Ring, RingTiles, carried_loop, make_ready, offsets_of
from tilec.passes.cuda.roles import Roles, begin_ping_pong, ping_pong, wait_for_products
from tilec.passes.loops import Count, delinearise, least, loop, plus, sum_of, times, when

EQUAL = arith.CmpIPredicate.eq
LOADING = 40, 32  # registers of a thread that loads, where two warpgroups multiply, and where three do
SHARING = 40, 56  # where blocks share steps
FILLING = 104, 80  # where it computes where elements lie


def map_wgmma(
    function: ir.Operation, options: WarpgroupContraction, grids: list[Blocks], tiles: dict[int, int]
) -> None:  # fmt: skip
    """`grids`: of each result, whose tiles follow one another."""
    function.attributes["tilec.threads"] = mlir.integer(options.block_threads)
    size, total = prod(options.cluster), reduce(plus, (blocks.count(*options.cluster) for blocks in grids))
    thread, first = Thread(), gpu.BlockIdOp(gpu.Dimension.x).result
    cluster = None
    if size > 1:
        function.attributes["tilec.cluster"] = mlir.integer(size)
        cluster, first = Cluster(function, *options.cluster), arith.divui(first, mlir.index(size))
    shape = _Shape(options, thread)
    samples = [blocks.enter(first, cluster) for blocks in grids]  # the operands' types, which are the same for every tile
    found = [Block(sample) for sample in samples]
    loads = _Loads([_problems(b, blocks, tiles) for b, blocks in zip(found, grids)], shape, function, found, cluster)
    steps = loads.problem.steps  # of every tile
    launched = options.persistent_blocks // size
    count = least(launched, options.stream_k * _number(steps) // size if options.stream_k else total)  # clusters
    extents.set_blocks(function, extents.times(extents.amount_of(count, function), size))
    for sample in samples:
        erase(sample)
    start = [mlir.index(0), mlir.index(0)]  # the first stage, in phase 0
    end = mlir.index(total)
    stream_k = StreamK(options, first, *map(_number, (count, total, steps))) if options.stream_k else None
    parts = Parts(function, stream_k, thread, loads.sums) if stream_k else None

    @contextmanager
    def tiles_from(number: ir.Value, state: list[ir.Value], step: Count) -> Iterator[tuple[ir.Value, Part | None, list[ir.Value]]]:
        """Tile after tile, or the block's parts of tiles."""
        if stream_k:
            with stream_k.parts(state) as (part, now):
                yield part.tile, part, now
        else:
            with carried_loop(number, end, state, step) as (number, now):
                yield number, None, now

    def produce() -> None:
        with tiles_from(first, list(start), count) as (number, part, state):

            def load(which: int, own: ir.Value) -> None:
                operations = grids[which].enter(own, cluster)
                problems = _problems(Block(operations), grids[which], tiles)
                now = state if len(grids) == 1 else list(state)  # of one branch of several
                loads.load(problems, which, now, arith.cmpi(EQUAL, number, first), part)
                erase(operations)

            of_its_grid(number, grids, load)
            if len(grids) > 1:
                state[:] = loads.ring.after(state, part.count if part else steps, mlir.index(1))

    def consume() -> None:
        mine, state, step = first, list(start), count
        if options.alternate_tiles:  # every other tile; the stages between are the other warpgroup's
            mine = sum_of([(first, 1), (mlir.index(times(shape.roles.consumer, count)), 1)])
            step = times(2, count)
            state = loads.ring.after(state, steps, shape.roles.consumer)
            begin_ping_pong(function, shape.roles)
        with tiles_from(mine, state, step) as (number, part, state):
            completed = partial(parts.complete, part) if parts and part is not None else nullcontext

            def complete(which: int, own: ir.Value) -> None:
                # a variable that is set in branches of several others is no register for the compiler: names for one side only
                operations = grids[which].enter(own, cluster, named=len(grids) == 1)
                block = Block(operations)
                problems = _problems(block, grids[which], tiles)
                shape.check(problems)
                if len(grids) == 1:
                    with ir.Location.name(mlir.get_string(block.contraction, "tilec.name") or "c", block.contraction.location):
                        loads.multiply(problems[0], state, part)
                with (completed if len(grids) == 1 else nullcontext)(), (block.after or [block.contraction])[-1].location:
                    warp = sum_of([(shape.thread.warp, 1)], -4)  # among those that multiply
                    to = loads.boxes[which] if loads.boxes else loads.buffer
                    few = parts or shape.roles.consumers > 2  # registers, of which three warpgroups have 160 a thread
                    shape.thread = thread.reread_lane() if few else thread
                    assert to is not None
                    Epilogue(problems, block.after, shape.thread, to, warp).store(loads.chunks)
                    shape.thread = thread
                erase(operations)

            if len(grids) == 1:
                complete(0, number)
            else:
                loads.multiply(loads.problem, state, part)
                with completed():
                    of_its_grid(number, grids, complete)
            if options.alternate_tiles:
                state[:] = loads.ring.after(state, steps, mlir.index(1))
        if loads.boxes:
            loads.boxes[0].wait(thread)

    registers = FILLING if options.filled else SHARING if parts else LOADING
    shape.roles.divide(registers[shape.roles.consumers > 2], produce, consume)
    if cluster:
        cluster.meet()


def _number(count: Count) -> int:
    """Of tiles or steps, where blocks share steps."""
    if isinstance(count, ir.Value):
        raise Varies("how many tiles and steps there are, where blocks share steps")
    return count


def _problems(block: Block, blocks: Blocks, tiles: dict[int, int]) -> list[Problem]:
    """Of each product of a tile."""
    return [Problem(blocks.options, tiles, op) for op in block.contractions]


class _Shape:
    """Who multiplies what: consumers have 64 rows each, or `parts` times 64 rows of tiles of their own (`alternate_tiles`); a
    thread two adjacent columns of every 8, in two rows of each."""

    def __init__(self, options: WarpgroupContraction, thread: Thread):
        self.alternate, self.parts = options.alternate_tiles, options.block[0] // ROWS if options.alternate_tiles else 1
        self.thread, self.wide, self.columns = thread, options.block[1] // 8, options.block[1]
        self.products, self.own = options.products, options.own_columns // 8  # fragments of a product's columns
        self.roles = Roles(thread, options.warps[0] * options.warps[1] // 4, WARPGROUP if options.filled else 1)

    def check(self, problems: list[Problem]) -> None:
        """The program's run-time checks of a tile, by the threads that multiply it."""
        count = WARPGROUP * (1 if self.alternate else self.roles.consumers)
        own = arith.andi(self.thread.number, mlir.index(WARPGROUP - 1))
        for problem in problems:
            check_subscripts(problem, own if self.alternate else sum_of([(self.thread.number, 1)], -WARPGROUP), count)

    def chunks(self, sums: ir.Value, most: int) -> Chunks:
        """A warp has 16 of every 64 of its warpgroup's rows and all columns, of which at most so many are in a chunk."""
        columns = widest(8 * self.own, most)
        count = self.parts * (8 * self.own // columns)
        return Chunks(count, 16, columns, partial(self._spill, sums, columns), partial(self._coordinates, columns))

    def _spill(self, sums: ir.Value, columns: int, number: ir.Value, put: Callable[..., None]) -> None:
        starts = [self.own * p for p in range(self.products)]
        spill_pairs(sums, [], starts, number, columns // 8, self.thread, put)

    def _coordinates(
        self, columns: int, number: ir.Value, row: ir.Value, column: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        part, chunk = delinearise(number, [self.parts, 8 * self.own // columns])
        return self.row(row, part), sum_of([(chunk, columns), (column, 1)])

    def row(self, row: ir.Value, part: ir.Value | None = None) -> ir.Value:
        """In the block's tile, of a warp's row of a part."""
        warp = arith.andi(self.thread.warp, mlir.index(3))
        return sum_of([(self.part(part), ROWS), (warp, 16), (row, 1)])

    def part(self, own: ir.Value | None) -> ir.Value:
        """The number of 64 rows of a tile: the warpgroup's only ones, or its own of this number."""
        return own if self.alternate and own is not None else self.roles.consumer


class _Loads:
    """Both factors in the stages of a ring, and the sums that are made of them. `problems`: of each result, its products."""

    def __init__(
        self, problems: list[list[Problem]], shape: _Shape, function: ir.Operation, blocks: list[Block], cluster: Cluster | None
    ):
        self.problem = problem = problems[0][0]
        self.shape, self.function, self.cluster = shape, function, cluster
        self.columns = max(prod(p.right.box) for each in problems for p in each)
        self.sides = [[self._tiles(problem, side, part) for part in range(problem.parts)] for side in (problem.left, problem.right)]
        self.boxed = [[tiles for tiles in side if isinstance(tiles, RingTiles)] for side in self.sides]
        self.rights = [[self._further(p.right, p) for p in each] for each in problems] if self.boxed[1] else []
        warps = 4 * shape.roles.consumers
        self.boxes = result_boxes(problems, [b.after for b in blocks], warps)  # where tiles end, at a multiple of 1024 bytes
        count, kept = 1 if shape.alternate else shape.roles.consumers, problem.kept_steps
        copied = self.boxed[0] if kept else [tiles for side in self.boxed for tiles in side]
        self.ring = Ring(copied, problem.options.stages, count, cluster, shape.roles.loaders > 1, spare=problem.is_two_level)
        self.kept = Ring(self.boxed[1], kept, count) if kept else None  # filled once, by a block's first tile
        self.sums = registers([shape.parts * shape.wide, 2, 2], "%sums", problem.accumulator)
        self.partial, wait = None, partial(wait_for_products, function)
        if problem.is_two_level:
            self.partial = PartialSums(problem, function, shape, self.ring, self.sums, self._product, wait)
        self.chunks = shape.chunks(self.sums, self.boxes[0].columns if self.boxes else 64 // shape.products)
        self.buffer = None if self.boxes else buffer(self.chunks, warps, problem.accumulator, False, shape.products)
        make_ready([self.ring, self.kept] if self.kept else [self.ring], shape.thread)
        if cluster:
            cluster.meet()
        else:
            gpu.BarrierOp()

    def _tiles(self, problem: Problem, side: Side, part: int) -> LineTiles:
        """A tile of a factor is one box of the tensor, or several of 64 columns where it lies in lines of rows; or lines that
        threads fill."""
        if side.copy != "tma":
            lines = side.size if side.major else self._slabs(side) * problem.depth
            return LineTiles(problem.tensor(side), problem.element, lines, problem.options.stages)
        return self._boxes(problem, side, part)

    def _further(self, side: Side, problem: Problem) -> RingTiles:
        """Tiles of a further right factor lie where those of the first do, or behind them."""
        (first, *_) = self.boxed[1]
        return first if problem is self.problem else self._boxes(problem, side, 0, first)

    def _boxes(self, problem: Problem, side: Side, part: int, first: RingTiles | None = None) -> RingTiles:
        line = LINE * 8 // problem.element.width
        sizes: dict[int, int] = dict(zip(side.dims, side.box)) if side.major else {side.dims[-1]: line}
        sizes |= dict(zip(problem.options.inner, problem.inner_box))
        slabs, splits, outermost = self._slabs(side), self._splits(side), self._split_dim(side)
        if side.major and side.name == "right":  # as many columns as a sibling's, so that all stages have as many bytes
            sizes[outermost] *= self.columns
            sizes[outermost] //= prod(side.box)
        sizes[outermost] //= splits
        box, steps, access = [], [], problem.access(side, part)
        moving = {n for n, d in enumerate(problem.dims) if sizes.get(d, 1) > 1}
        if any(moving & s.opaque for s in access.subscripts):
            raise InternalError(f"tiles of {problem.tensor(side)} are no boxes", "map", str(problem.op))
        for subscript in access.subscripts:
            varying = [(sizes[problem.dims[d]], f) for d, f in subscript.factors.items() if sizes.get(problem.dims[d], 1) > 1]
            ((size, step),) = varying or [(1, 1)]
            box.append(size)
            steps.append(step)
        # rows that the box lacks are never loaded, and never stored
        lines, stages = side.size if side.major else slabs * problem.depth, problem.options.stages
        count = slabs * splits
        if side.name == "right":
            lines, count = lines * self.shape.products, count * self.shape.products
            stages = problem.kept_steps or stages
        rounded = "tf32" if problem.options.multiplicand == "tf32" else None
        tensor, kept = access.tensor, []
        if access.operand is not None:
            tensor = problem.operands[access.operand]
            kept = [d for d, extent in enumerate(extents.shape_of(root(tensor))) if extent != 1]
        if first:
            return first.of(tensor, box, steps, kept)
        return RingTiles(tensor, box, count, lines, stages, steps, kept, rounded)

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

    def load(
        self, problems: list[Problem], which: int, state: list[ir.Value], is_first: ir.Value, part: Part | None
    ) -> None:  # fmt: skip
        """All copies of one tile of a result, the first of a block or another, or of a part of its steps."""
        problem = problems[0]
        sides = zip((problem.left, problem.right), self.sides)
        filled = [Stage(problem, side, self.shape.thread, 0, tiles[0]) for side, tiles in sides if side.copy != "tma"]

        def boxes(stage: ir.Value, step: ir.Value) -> None:
            if self.boxed[0]:
                self._copy_tiles(self.ring, problem, problem.left, step, stage, self.boxed[0])
            if not self.kept:
                for n, (own, tiles) in enumerate(zip(problems, self.rights[which] if self.rights else ())):
                    several = self.boxed[1] if problem.parts > 1 else [tiles]
                    self._copy_tiles(self.ring, own, own.right, step, stage, several, n)
                return
            with when(locations.named(is_first, "is_first_tile")):
                self.kept.expect(step)
                self._copy_tiles(self.kept, problem, problem.right, step, step, self.boxed[1])

        def copy(stage: ir.Value, step: ir.Value) -> None:
            if self.ring.tiles:
                with self.shape.roles.one():
                    boxes(stage, step)
            if filled:
                stored = [tiles.fill(stage, step) for tiles in filled]
                self.ring.arrive(self.function, stage, any(stored))

        end, first = (part.end, part.first) if part else (problem.steps, None)
        self.ring.fill(end, state, copy, f"{problem.inner_name}_step", self.shape.roles.one, first)

    def _copy_tiles(
        self, ring: Ring, problem: Problem, side: Side, step: ir.Value, stage: ir.Value, several: list[RingTiles], product: int = 0
    ) -> None:
        """`several`: tiles of each part of the factor; `product`: the number of that whose factor it is, after those before."""
        count = several[0].slabs // (self.shape.products if side.name == "right" else 1)
        per = count // self._parts(side)
        with loop(per, name="slab") as slab:
            whole = per == count
            number = slab
            if not whole:
                assert self.cluster is not None
                number = sum_of([(self.cluster.part(side.name == "left"), per), (slab, 1)])
            for part, tiles in enumerate(several):
                target = tiles.target(stage, sum_of([(number, tiles.box_lines)], product * count * tiles.box_lines))
                self._copy(ring, problem, side, step, stage, number, part, tiles, target)

    def _copy(
        self, ring: Ring, problem: Problem, side: Side, step: ir.Value, stage: ir.Value, number: ir.Value, part: int,
        tiles: RingTiles, target: ir.Value,
    ) -> None:  # fmt: skip
        splits, d = self._splits(side), self._split_dim(side)
        at = {d: mlir.index(0) for d in problem.dims} | problem.inner_start(step)
        slab, split = delinearise(number, [self._slabs(side), splits])
        if not side.major:
            at |= zip(side.dims, delinearise(sum_of([(slab, LINE * 8 // problem.element.width)]), list(side.box)))
        whole = dict(zip((*problem.options.inner, *side.dims), (*problem.inner_box, *side.box)))
        at[d] = sum_of([(at[d], 1), (split, whole[d] // splits)])
        source, subscripts = problem.source(side, at, part)
        coordinates = [sum_of([(a, 1), (o, 1)]) for a, o in zip(subscripts, offsets_of(source))]
        shared = self.cluster if self._parts(side) > 1 else None
        ring.copy(tiles, stage, target, coordinates, shared.mask(side.name == "left") if shared is not None else None)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def multiply(self, problem: Problem, state: list[ir.Value], part: Part | None) -> None:
        """One tile of C, or a part of its steps."""
        if self.partial is not None:
            self.partial.multiply(problem, state, part)
            return

        def product(stage: ir.Value, step: ir.Value) -> None:
            if self.kept:
                self.kept.wait_full(step, mlir.index(0))
            for part in range(self.shape.parts):
                self._product(self._of_part(part), stage, step, mlir.index(part))

        alternate = partial(ping_pong, self.function, self.shape.roles) if self.shape.alternate else None
        name = f"{problem.inner_name}_step"
        steps = part.count if part else problem.steps
        self.ring.multiply(steps, state, self.shape.thread, product, self._wait, self.shape.parts, alternate, name)

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
        product = WarpgroupProduct(self.shape.columns, problem.depth, kind, problem.left.major, problem.right.major)
        for number, (a, b) in enumerate(PRODUCTS if problem.parts > 1 else ((0, 0),)):
            left = self.sides[0][a].lines(stage, sum_of([(self.shape.part(part), own)]), own)
            right = self.sides[1][b].lines(step if self.kept else stage, mlir.index(0))
            opcodes.call(self.function, product, [sums, left, right, mlir.index(1) if number else step])
