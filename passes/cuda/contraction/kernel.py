"""Stage `map` for CUDA contractions: one kernel, by warps or by warpgroups, as its family says."""

from __future__ import annotations

from tilec.core.mlir import ir
from tilec.kernels import Contraction, Planned, StoredContraction, WarpgroupContraction
from tilec.passes.cuda.contraction.grid import grids_of
from tilec.passes.cuda.contraction.warpgroups import map_wgmma
from tilec.passes.cuda.contraction.warps import map_warps
from tilec.passes.cuda.memory_spaces import erase_unused


def map_contraction(function: ir.Operation, planned: Planned) -> None:
    options, grid, tiles = planned.options, list(planned.grid), planned.tiles
    assert isinstance(options, StoredContraction)
    grids = grids_of(function, options, grid)
    with ir.InsertionPoint(grids[-1].forall), function.location:
        if isinstance(options, WarpgroupContraction):
            map_wgmma(function, options, grids, tiles)
        else:
            assert isinstance(options, Contraction)
            map_warps(function, options, grids[0], tiles)
    for blocks in grids:
        blocks.forall.erase()
    erase_unused(function)
