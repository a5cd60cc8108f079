"""map, for CUDA contraction chains: the scores stay in registers between the two contractions.

A block has some rows of the scores and loops over tiles of j. The computation on them (`fragments.py`: masks, states, weights,
results) does not depend on how tiles are copied and multiplied, which is an engine's part (`ENGINES`). Tiles that a mask cuts have
loops of their own; those that it excludes are left out.
"""

from __future__ import annotations

from tilec.core.mlir import ir
from tilec.kernels import ContractionChain, Planned
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.reduced import ReducedWarpgroups
from tilec.passes.cuda.chain.reduced_warps import ReducedWarps
from tilec.passes.cuda.chain.split import split
from tilec.passes.cuda.chain.warpgroups import Warpgroups
from tilec.passes.cuda.chain.warps import Warps
from tilec.passes.cuda.contraction.grid import erase, tiles_of
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import erase_unused

ENGINES: dict[tuple[str, bool], type[Warpgroups | ReducedWarpgroups | Warps | ReducedWarps]] = {
    ("wgmma", True): Warpgroups, ("wgmma", False): ReducedWarpgroups, ("mma.sync", True): Warps, ("mma.sync", False): ReducedWarps
}  # fmt: skip
"""By the matrix instruction, and whether a second contraction follows."""


def map_chain(function: ir.Operation, planned: Planned) -> None:
    options = planned.options
    assert isinstance(options, ContractionChain)
    (forall,) = tiles_of(function)
    parts = split(function, planned) if options.blocks_per_tile > 1 else None
    with ir.InsertionPoint(forall), function.location:
        thread = Thread()
        block = ChainBlock(function, planned, forall)
        if parts:
            parts(block)
        ENGINES[options.unit, bool(block.chain.products)](block, thread).run()
        erase(block.operations)
    forall.erase()
    erase_unused(function)
