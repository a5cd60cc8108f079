"""map, for CUDA contractions: a block's tile of C by mma.sync or fma, with a pipeline of factors in shared memory.

    generic ins(x, w) outs(h) { h + x * w }         a, b = shared tiles of x and w, `stages` of them
    generic ins(h, b) outs(y) { gelu(h + b) }  ->   for k { wait; barrier; start copies of tile k + stages - 1
                                                             c += a[k] * b[k] }
                                                     for elements of c { y = gelu(c + b) }

One barrier a step is enough. After it every thread has finished the step before, and the copies that start now
refill that step's slot. Factors that cannot be copied as they are go through registers, one step ahead: they are
loaded before the products, and stored into shared memory after them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from tilec.core import extents, locations, mlir
from tilec.core.mlir import gpu, ir
from tilec.kernels import Contraction
from tilec.passes.cuda.contraction.checks import check_subscripts
from tilec.passes.cuda.contraction.epilogue import Epilogue, buffer
from tilec.passes.cuda.contraction.fma import FmaTile
from tilec.passes.cuda.contraction.fragments import MmaTile
from tilec.passes.cuda.contraction.grid import Blocks, erase
from tilec.passes.cuda.contraction.operands import Stage
from tilec.passes.cuda.contraction.problem import Block, Problem, Thread
from tilec.passes.cuda.ring import CopyRing
from tilec.passes.loops import below, loop, sum_of, when


def map_warps(function: ir.Operation, options: Contraction, blocks: Blocks, tiles: dict[int, int]) -> None:
    extents.set_blocks(function, extents.blocks_of(blocks.forall))
    function.attributes["tilec.threads"] = mlir.integer(options.block_threads)
    thread = Thread()
    block = Block(blocks.enter(gpu.BlockIdOp(gpu.Dimension.x).result))
    problem, *further = problems = [Problem(options, tiles, op) for op in block.contractions]
    tile = (FmaTile if options.unit == "fma" else MmaTile)(problem, thread)
    stages = [Stage(problem, side, thread, options.stages) for side in (problem.left, problem.right)]
    stages += [Stage(p, p.right, thread, options.stages) for p in further]
    check_subscripts(problem, thread.number, options.block_threads)
    tile.clear(block.initial)
    with ir.Location.name(mlir.get_string(block.contraction, "tilec.name") or "c", block.contraction.location):
        _pipeline(problem, tile, stages)
    with (block.after or [block.contraction])[-1].location:
        gpu.BarrierOp()  # the staged tiles are read for the last time: their memory serves the epilogue
        tile.add_shares()
        chunks = tile.chunks()
        shared = buffer(chunks, prod(options.warps), problem.accumulator, True, options.products)
        with tile.once():
            Epilogue(problems, block.after, thread, shared, thread.warp).store(chunks)
    erase(block.operations)


def _pipeline(problem: Problem, tile: FmaTile | MmaTile, stages: list[Stage]) -> None:
    """Loops over k with the tiles of some steps under way or in use."""
    ring = CopyRing(problem.options.stages, problem.steps)
    ahead = ring.stages - 1  # steps
    copied = [s for s in stages if s.asynchronous]
    fetched = [s for s in stages if not s.asynchronous]
    for stage in fetched:
        stage.fetch(mlir.index(0))
    for stage in fetched:
        stage.put(mlir.index(0), mlir.index(0))
    if copied:
        with loop(ahead, name="stage") as step:
            ring.start(step, partial(_copy, copied, step, step), exists=isinstance(ring.steps, int) and ring.steps >= ahead)
    with loop(ring.steps, always=True, name=f"{problem.inner_name}_step") as step:
        if copied:
            ring.wait(ahead - 1)
        gpu.BarrierOp()
        if copied:
            later = locations.named(sum_of([(step, 1)], ahead), "ahead")
            ring.start(later, partial(_copy, copied, ring.stage_of(later), later))
        _next(ring, fetched, step, lambda stage, number: stage.fetch(number))
        tile.multiply(ring.stage_of(step), *stages)
        _next(ring, fetched, step, lambda stage, number: stage.put(ring.stage_of(number), number))


def _copy(copied: list[Stage], slot: ir.Value, number: ir.Value) -> None:
    for stage in copied:
        stage.copy(slot, number)


def _next(ring: CopyRing, fetched: list[Stage], step: ir.Value, action: Callable[[Stage, ir.Value], None]) -> None:
    """What goes through registers, one step ahead."""
    if not fetched or (isinstance(ring.steps, int) and ring.steps == 1):
        return
    number = sum_of([(step, 1)], 1)
    with when(below(number, ring.steps)):
        for stage in fetched:
            action(stage, number)
