"""map, for CUDA contractions: a block's tile of C on tensor cores or vector units, its factors staged in
shared memory.

    generic ins(x, w) outs(h) { h + x * w }         a, b = shared tiles of x and w, `stages` of them
    generic ins(h, b) outs(y) { gelu(h + b) }  ->   for k { wait; barrier; start copies of tile k + stages - 1
                                                             c += a[k] * b[k] }
                                                     for elements of c { y = gelu(c + b) }

One barrier a step is enough: behind it every thread has finished the step before, whose slot the copies that
start now refill. What cannot be copied as it is goes through registers, one step ahead: fetched before the
products, put after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilec import mlir
from tilec.diagnostics import InternalError
from tilec.kernels import Contraction, MatrixKernel, Planned, WarpgroupContraction
from tilec.mlir import arith, gpu, ir, nvvm
from tilec.passes.contract_epilogue import Epilogue, buffer
from tilec.passes.contract_problem import Blocks, Problem, Thread, below
from tilec.passes.contract_stage import Stage
from tilec.passes.contract_tile import FmaTile, MmaTile
from tilec.passes.loops import loop, sum_of, when
from tilec.passes.spaces import root


def map_contraction(function: ir.Operation, planned: Planned) -> None:
    options, grid, tiles = planned.options, list(planned.grid), planned.tiles
    assert isinstance(options, MatrixKernel)
    blocks = Blocks(function, options)
    with ir.InsertionPoint(blocks.forall), function.location:
        if isinstance(options, WarpgroupContraction):
            from tilec.passes.contract_wgmma import map_wgmma

            map_wgmma(function, options, blocks, grid, tiles)
        else:
            assert isinstance(options, Contraction)
            _map(function, options, blocks, grid, tiles)
    blocks.forall.erase()
    _clean(function)


def _map(function: ir.Operation, options: Contraction, blocks: Blocks, grid: list[int], tiles: dict[int, int]) -> None:
    function.attributes["tilec.blocks"] = mlir.integer(blocks.count)
    function.attributes["tilec.threads"] = mlir.integer(options.block_threads)
    thread = Thread()
    block = Block(blocks.enter(gpu.BlockIdOp(gpu.Dimension.x).result, grid))
    problem = Problem(options, tiles, block.contraction)
    tile = (FmaTile if options.unit == "fma" else MmaTile)(problem, thread)
    stages = [Stage(problem, side, thread, options.stages) for side in (problem.left, problem.right)]
    tile.clear(block.initial)
    with ir.Location.name(mlir.get_string(block.contraction, "tilec.name") or "c", block.contraction.location):
        _pipeline(problem, tile, stages)
    with (block.after or [block.contraction])[-1].location:
        gpu.BarrierOp()  # the staged tiles are read for the last time: their memory serves the epilogue
        chunks = tile.chunks()
        shared = buffer(chunks, options.block_threads // 32, problem.accumulator, overlay=True)
        Epilogue(problem, block.after, thread, shared, thread.warp).store(chunks)
    block.erase()


class Block:
    """The operations of one block: the contraction, what follows it, and where its sums start from."""

    def __init__(self, operations: list[ir.Operation]):
        self.operations = operations
        generics = [o for o in operations if mlir.is_generic(o)]
        contractions = [o for o in generics if "tilec.reduce" in o.attributes]
        if len(contractions) != 1 or generics[0] != contractions[0]:
            raise InternalError("a contraction kernel has one contraction, which comes first", "map")
        self.contraction, *self.after = generics
        result = root(list(self.contraction.operands)[-1])
        self.initial = next(
            o.operands[0] for o in operations if o.name == "linalg.fill" and root(o.operands[1]) == result
        )

    def erase(self) -> None:
        for op in reversed(self.operations):
            if op.name.startswith("linalg."):
                op.erase()


def _pipeline(problem: Problem, tile: Any, stages: list[Stage]) -> None:
    """Walks k with `stages` tiles under way or in use."""
    slots, steps = problem.options.stages, problem.steps
    copied = [s for s in stages if s.asynchronous]
    fetched = [s for s in stages if not s.asynchronous]
    for stage in fetched:
        stage.fetch(mlir.index(0))
    for stage in fetched:
        stage.put(mlir.index(0), mlir.index(0))
    if copied:
        with loop(slots - 1) as number:
            _start(copied, number, number, steps, steps < slots - 1)
    with loop(steps, always=True) as step:
        if copied:
            nvvm.CpAsyncWaitGroupOp(slots - 2)
        gpu.BarrierOp()
        if copied:
            ahead = sum_of([(step, 1)], slots - 1)
            _start(copied, _slot(ahead, slots), ahead, steps, True)
        _ahead(fetched, step, steps, lambda stage, number: stage.fetch(number))
        tile.multiply(*stages, _slot(step, slots))
        _ahead(fetched, step, steps, lambda stage, number: stage.put(_slot(number, slots), number))


def _start(copied: list[Stage], slot: ir.Value, number: ir.Value, steps: int, guarded: bool) -> None:
    """Starts the copies of a tile of k, if there is one; a group is committed either way, so that counts stay
    even.
    """
    if guarded:
        with when(below(number, steps)):
            for stage in copied:
                stage.copy(slot, number)
    else:
        for stage in copied:
            stage.copy(slot, number)
    nvvm.CpAsyncCommitGroupOp()


def _ahead(fetched: list[Stage], step: ir.Value, steps: int, action: Callable[..., Any]) -> None:
    if not fetched or steps == 1:
        return
    number = sum_of([(step, 1)], 1)
    with when(below(number, steps)):
        for stage in fetched:
            action(stage, number)


def _slot(number: ir.Value, slots: int) -> ir.Value:
    return arith.remui(number, mlir.index(slots))


def _clean(function: ir.Operation) -> None:
    """Tiles of the tensors that are in registers now."""
    for op in reversed([o.operation for o in mlir.entry(function).operations]):
        if op.name in ("memref.alloc", "memref.subview", "memref.dim") and not any(mlir.uses(op.results[0])):
            op.erase()


__all__ = ["Block", "map_contraction"]
