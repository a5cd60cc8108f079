"""Tiles of CUDA kernels that are a contraction chain (`tilec.analysis.chain`)."""

# mypy: no-strict-optional
# mypy: disable-error-code="union-attr"

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.graph import Graph
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.cost.chain import StreamTile, choose_stream_tile, stream_bytes, stream_work
from tilec.cost.model import pick
from tilec.kernels import ContractionChain, KernelPlan
from tilec.plan.chain import chain_of, grows, parts_of, stream_problem
from tilec.plan.groups import Group, Remark


def choose_stream(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, nth: int = 0
) -> tuple[KernelPlan, list[Remark]]:
    """The tile of a kernel for which `refuse_stream` had no reason."""
    chain, problem = chain_of(g.nodes, g.space, graph), stream_problem(g.nodes, g.space, graph)
    assert not isinstance(chain, str)
    choices = choose_stream_tile(target, problem)
    tile, parts = pick(choices, nth), parts_of(chain)
    assert parts is not None
    built = ContractionChain(
        multiplicand=chain.values.type, between=chain.stream, weight_terms=parts, block=(tile.bm, tile.bn),
        stages=tile.stages, ping_pong=tile.groups > 1, longest_first=grows(chain, kernel.extents),
    )  # fmt: skip
    kernel = replace(
        kernel, sram=lambda k: stream_bytes(problem, k.options.block[0], k.options.block[1], k.options.stages)
    )
    sizes = tuple(min(tile.bm, kernel.extents[d]) if d == chain.rows else 1 for d in kernel.grid)
    kernel = replace(kernel, tile=sizes, options=built, work=stream_work(target, problem, tile))
    line = kernel.lines[-1] if kernel.lines else None
    others = tuple((_describe(c.tile), c.prediction.time_us) for c in choices[:4])
    why = f"{_describe(tile)}, {chain.values.type}, {count(tile.stages, 'stage')}, {tile.threads} threads"
    remarks = [Remark("tiled", kernel.name, why, line, others)]
    states = ", ".join(c.total.name for c in chain.online.carried)
    how = ", rescaled when the running maximum grows" if chain.online.shifts else ""
    reason = f"computed in one pass over the elements of {chain.scores.name}{how}"
    remarks.append(Remark("online", states, reason, line))
    if parts > 1:
        reason = f"an f32 weight is a sum of {parts} {chain.values.type} numbers, which takes {parts} products; "
        reason += f"`using {chain.values.type}` rounds the weights, and takes 1"
        remarks.append(Remark("exact", chain.product.total.name, reason, line))
    if chain.masks:
        reason = f"the mask excludes whole tiles: {100 * problem.share:.0f}% of the scores are computed"
        remarks.append(Remark("skipped", chain.scores.name, reason, line))
    return kernel, remarks


def _describe(tile: StreamTile) -> str:
    return f"wgmma, {tile.bm} rows a block, steps of {tile.bn}"
