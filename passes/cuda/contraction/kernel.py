"""Stage `map` for CUDA contractions: one kernel, by warps or by warpgroups, as its family says."""

from __future__ import annotations

from tilec.core.mlir import ir
from tilec.kernels import Contraction, Planned, StoredContraction, WarpgroupContraction
from tilec.passes.cuda.contraction.grid import Blocks
from tilec.passes.cuda.contraction.warpgroups import map_wgmma
from tilec.passes.cuda.contraction.warps import map_warps
from tilec.passes.cuda.memory_spaces import erase_unused


def map_contraction(function: ir.Operation, planned: Planned) -> None:
    options, grid, tiles = planned.options, list(planned.grid), planned.tiles
    assert isinstance(options, StoredContraction)
    blocks = Blocks(function, options)
    with ir.InsertionPoint(blocks.forall), function.location:
        if isinstance(options, WarpgroupContraction):
            map_wgmma(function, options, blocks, grid, tiles)
        else:
            assert isinstance(options, Contraction)
            map_warps(function, options, blocks, grid, tiles)
    blocks.forall.erase()
    erase_unused(function)
