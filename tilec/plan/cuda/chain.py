"""Tiles of CUDA kernels that are a contraction chain (`tilec.analysis.chain`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from tilec.analysis.graph import Graph
from tilec.core.fitted import ChainTimes
from tilec.core.quantities import count
from tilec.core.target import Target
from tilec.cost.chain import (
    ChainProblem,
    ChainTile,
    chain_bytes,
    chain_cost,
    chain_registers,
    chain_work,
    choose_chain_tile,
)
from tilec.cost.chain_order import last_end, longest_share
from tilec.cost.model import Work, pick
from tilec.kernels import ContractionChain, Family, KernelPlan
from tilec.plan.chain import (
    chain_of,
    chain_problem,
    growing,
    multiplicands_of,
    refuse_warpgroups,
    refuse_warps,
    weight_terms_of,
)
from tilec.plan.groups import Group, Remark


def choose_chain(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, nth: int = 0
) -> tuple[KernelPlan, list[Remark]]:
    """The tile of a kernel for which `refuse_contraction_chain` had no reason."""
    chain, problem = chain_of(g.nodes, g.space, graph), chain_problem(g.nodes, g.space, graph, target)
    assert not isinstance(chain, str)
    choices = choose_chain_tile(target, problem)
    tile, weight_terms = pick(choices, nth), weight_terms_of(chain)
    assert weight_terms is not None
    left, right = problem.k_major
    blocks = target.units if tile.persistent else 0
    products: dict[str, Any] = {"persistent_blocks": blocks, "row_stages": tile.row_stages}
    kinds = multiplicands_of(chain)
    assert kinds is not None
    products |= {"of_values": kinds[1]} if kinds[1] != kinds[0] else {}
    products |= {"at_once": tile.at_once} if tile.unit == "wgmma" else {}
    own = products if chain.products else {"kept_left": tile.kept_left}
    head_groups, (later, earlier) = problem.head_groups if chain.head_groups else (0,), growing(chain, kernel.extents)
    uneven = bool(later or earlier)
    built = ContractionChain(
        unit=tile.unit, multiplicand=kinds[0], between=chain.between, rows=chain.rows, head_groups=head_groups,
        pages=problem.pages,
        weight_terms=weight_terms, block=(tile.bm, tile.bn), warps=tile.warps, stages=tile.stages, ping_pong=tile.ping_pong,
        longest_first=uneven, growing=later, shrinking=() if later else earlier,
        group_batch=_group(problem, tile, target) if uneven else 1,
        blocks_per_row=tile.parts, inner=tuple(first.inner for first in chain.firsts), left_k_major=left, right_k_major=right,
        overlap_combination=bool(target.launch.overlap_us) or None, **own,
    )  # fmt: skip
    reasons = {"wgmma": refuse_warpgroups(chain, kernel.extents), "mma.sync": refuse_warps(chain)}
    if chain.matches or problem.pages:
        reasons["persistent_blocks"] = "each lists the steps that data leave it" if chain.matches else "tables tell where pages are"
    ruled_out = {unit: why for unit, why in reasons.items() if why is not None}
    weigh = partial(_work, problem, target)
    kernel = replace(kernel, sram=lambda k: _bytes(problem, k.options), weigh=weigh, ruled_out=ruled_out)
    box = dict(zip(chain.rows, problem.box(tile.bm)))
    whole_groups = {d: g for d, g in zip(chain.rows, head_groups) if g}
    sizes = tuple(min(box.get(d, 1), whole_groups.get(d, box.get(d, 1)), kernel.extents[d]) for d in kernel.grid)
    kernel = replace(kernel, tile=sizes, options=built).weighed(target)
    line = kernel.lines[-1] if kernel.lines else None
    others = tuple((_describe(c.tile), c.prediction.time_us) for c in choices[:4])
    why = f"{_describe(tile)}, {' and '.join(dict.fromkeys(kinds))}, {count(tile.stages, 'stage')}, {tile.threads} threads"
    remarks = [Remark("tiled", kernel.name, why, line, others)]
    states = ", ".join(c.total.name for c in chain.online.carried)
    how = ", rescaled when the running maximum grows" if chain.online.rescales else ""
    reason = f"computed in one pass over the elements of {chain.scores.name}{how}"
    remarks.append(Remark("online", states, reason, line))
    for p in chain.products:
        if p.weight_type != "f32" and p.carried.final.op != "state":
            reason = f"the weights are rounded to {p.weight_type} before a row's factor is applied to them, not after"
            remarks.append(Remark("rounded", p.total.name, reason, line))
        if weight_terms > 1:
            reason = f"a weight is a sum of {weight_terms} {problem.of_values} numbers, which takes {weight_terms} products; "
            reason += "`using bf16` rounds the weights, and takes 1"
            remarks.append(Remark("exact", p.total.name, reason, line))
    if chain.matches:
        reason = "tiles in which no row's number may be a column's are left out: each block lists the others first"
        remarks.append(Remark("skipped", chain.scores.name, reason, line))
    if chain.masks:
        reason = f"the mask excludes whole tiles: {100 * problem.share:.0f}% of the scores are computed"
        remarks.append(Remark("skipped", chain.scores.name, reason, line))
    return kernel, remarks


def _group(problem: ChainProblem, tile: ChainTile, target: Target) -> int:
    """Problems whose factors that blocks share fill the better part of L2. Persistent blocks take their tiles in a fixed order: the
    fewest problems with which none has much more to do than others, of those that L2 holds unless that costs more. Where tiles
    have a block each, the longest of the last problems may begin late: then these take turns with others, too."""
    shared, fit = problem.length * problem.step_bytes, target.fit(ChainTimes)
    if tile.persistent:
        rows = problem.blocks(tile.bm)
        all_of = min(problem.batch, MANY, max(1, MOST_TILES // rows))
        weigh = partial(longest_share, rows, blocks=target.units, tile_steps=fit.tile_steps)
        if shared <= target.l2.bytes and weigh(min(problem.batch, 16 * all_of), 1) <= EVEN:  # the others take long to weigh
            return 1
        sizes = (n for n in range(1, all_of + 1) if n <= 32 or n % 16 == 0 or n == all_of)
        most = {n: weigh(all_of, n) for n in sizes}
        held = {n: share for n, share in most.items() if n * shared <= target.l2.bytes} or most
        if min(held.values()) > fit.beyond_l2 * min(most.values()):
            held = most
        return next(n for n, share in held.items() if share <= EVEN * min(held.values()))
    held_by_l2 = max(1, min(problem.batch, int(0.5 * target.l2.bytes / shared)))
    rows, all_of = problem.blocks(tile.bm), min(problem.batch, MANY)
    if held_by_l2 >= all_of or all_of * rows > MANY or problem.by_data:  # data tell how long tiles take
        return held_by_l2
    at_once = target.units * chain_cost(target, problem, tile).occupancy.blocks
    ends = {n: last_end(rows, all_of, n, at_once, fit.tile_steps) for n in range(held_by_l2, all_of + 1)}
    least = min(ends.values())
    if ends[held_by_l2] <= fit.beyond_l2 * least:
        return held_by_l2
    return next(n for n, end in ends.items() if end <= EVEN * least)


MANY = 2048
"""Problems of which the order is weighed: more are no less even."""
MOST_TILES = 1 << 15
"""Tiles of which the order is weighed: with so many, blocks have hundreds each, and the last ones matter little."""
EVEN = 1.005
"""How much longer than the shortest a schedule may be."""


def _bytes(problem: ChainProblem, options: Family | None) -> int:
    """Shared memory of a block."""
    assert isinstance(options, ContractionChain)
    bm, bn = options.block
    tile = ChainTile(
        bm, bn, options.stages, 0, 0, kept_left=bool(options.kept_left), unit=options.unit, row_stages=options.row_stages or 1,
        at_once=bool(options.at_once),
    )  # fmt: skip
    return chain_bytes(problem, tile)


def _work(problem: ChainProblem, target: Target, kernel: KernelPlan) -> Work:
    """Of a kernel of this problem with any tile and options."""
    options = kernel.options
    assert isinstance(options, ContractionChain)
    (bm, bn), own = options.block, options.block[0] // options.warps
    tile = ChainTile(
        bm, bn, options.stages, chain_registers(target, problem, options.unit, bm, own, bn), _bytes(problem, options),
        bool(options.kept_left) or options.has_product, options.ping_pong, options.blocks_per_tile, options.unit, own,
        bool(options.persistent_blocks), options.row_stages or 1,
        options.persistent_blocks if options.persistent_blocks not in (None, target.units) else 0,
        prod(-(-kernel.extents[d] // t) for d, t in zip(kernel.grid, kernel.tile) if d in options.rows),
        bool(options.at_once),
    )  # fmt: skip
    return chain_work(target, problem, tile)


def _describe(tile: ChainTile) -> str:
    left = "" if tile.kept_left else ", both factors in steps"
    parts = f", {tile.parts} blocks a row" if tile.parts > 1 else ""
    lasting = ", persistent blocks" if tile.persistent else ""
    once = ", multiplied at once" if tile.at_once else ""
    return f"{tile.unit}, {tile.bm} rows a block, steps of {tile.bn}{once}{left}{parts}{lasting}"
