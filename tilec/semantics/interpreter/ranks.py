"""Kernels whose rows are spread over the blocks of a cluster, as they stand after `stage`: no thread is there yet.

Every block has its part of the spread dimension, and a reduction over it is the whole row's (`passes/cuda/cluster.py`; `map`
builds the exchange of states). The blocks run the operations in lockstep, and the state of such a reduction
is passed from one to the next.
"""

from __future__ import annotations

from tilec.core import mlir, records
from tilec.core.mlir import ir
from tilec.kernels.attributes import Spread
from tilec.semantics.interpreter.code import Block, Code, Context, Shared, Values, Waiting


def cluster_of(function: ir.Operation) -> int:
    """How many blocks share the rows of a kernel that is not mapped yet; 1 where none do."""
    spread = records.get(function, "tilec.spread", Spread)
    return spread.blocks if spread else 1


def shared_dim(op: ir.Operation) -> int | None:
    """The operation's dimension that is spread, where it reduces over it."""
    function = op
    while function.name != "func.func":
        function = function.parent.operation
    spread, dims = records.get(function, "tilec.spread", Spread), mlir.get_integers(op, "tilec.dims")
    if spread is None or spread.dim not in dims or spread.blocks == 1:
        return None
    d = dims.index(spread.dim)
    return d if mlir.iterators_of(op)[d] == "reduction" else None


def call(code: Code, context: Context, arguments: list, blocks: int) -> None:
    """Runs a kernel for all blocks of each cluster."""
    frames = []
    for rank in range(blocks):
        own = Context()
        own.block, own.first_block, own.rank = context.block, context.first_block, rank
        frames.append(code.frame(own, arguments))
    run(code.body, frames)
    context.block = frames[0][0].block
    context.launch()


def run(block: Block, frames: list[Values]) -> None:
    """The steps of a block, each by every rank before the next."""
    for step in block.steps:
        if isinstance(step, Shared):
            step.for_ranks(frames)
            continue
        assert not isinstance(step, Waiting), "ranks are taken as one before their threads are mapped"
        for frame in frames:
            step(frame, None)
