"""The program's run-time checks in kernels of contraction chains: subscripts that depend on data are inside their tensors.

    assert 0 <= table[b, j // 16] < G        for each page of a block's keys, once, while the first tiles arrive

What a check asks depends on few of the indices, and on some by a quotient alone.
"""

from __future__ import annotations

from math import prod

from tilec.analysis.subscripts import period
from tilec.core import mlir
from tilec.core.hardware import WARPGROUP
from tilec.core.mlir import cf, ir
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.values import At
from tilec.passes.cuda.contraction.problem import Thread, all_of, below
from tilec.passes.loops import delinearise, loop, sum_of, when


def check_subscripts(block: ChainBlock, thread: Thread) -> None:
    """All checks of a block, by the threads that multiply."""
    threads, number = block.options.block_threads, thread.number
    if block.options.unit == "wgmma":
        threads, number = threads - WARPGROUP, sum_of([(number, 1)], -WARPGROUP)
    for condition, message in block.checks:
        sizes = {d: block.box.get(d, block.sizes[d]) for d in sorted(condition.dims)}
        steps = {d: max(1, period(condition, d)) for d in sizes}
        counts = [-(-size // steps[d]) for d, size in sizes.items()]
        with loop(-(-prod(counts) // threads), name="check") as i:
            position = sum_of([(i, threads), (number, 1)])
            at = {d: sum_of([(n, steps[d])]) for d, n in zip(sizes, delinearise(position, counts))}
            edge = [below(at[d], size) for d in sizes if isinstance(size := block.sizes[d], ir.Value)]
            exists = all_of([below(position, prod(counts)), *edge])
            assert exists is not None
            with when(exists):
                holds = block.subscripts.build(condition, At(at, mlir.index(0)))
                cf.AssertOp(holds, message)
