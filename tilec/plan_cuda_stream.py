"""Tiles of CUDA kernels that walk two contractions at once (`tilec.streaming`).

| option | meaning |
|---|---|
| `instruction`, `multiplicand` | "wgmma", and the type in which the factors are staged |
| `stream` | the kernel dimension that is walked |
| `block` | (bm, bn): rows of a block, and elements of a step of the walk |
| `stages` | tiles of the second and of the third factor that shared memory holds, each |
| `parts` | numbers of the staged type that make up one weight |
| `turns` | 1: the warpgroups that multiply take turns, so that one's products run under the other's arithmetic |
| `descending` | 1: blocks of the last rows start first, since their walks are longest |
| `threads` | of a block: a warpgroup that loads, and those that multiply |
"""

from __future__ import annotations

from dataclasses import replace

from tilec.cost import pick
from tilec.cost_stream import StreamTile, choose_stream_tile, stream_bytes, stream_work
from tilec.graph import Graph
from tilec.grouping import Group, Remark
from tilec.plan import KernelPlan
from tilec.stream_grouping import chain_of, grows, parts_of, stream_problem
from tilec.target import Target


def choose_stream(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, nth: int = 0
) -> tuple[KernelPlan, list[Remark]]:
    """The tile of a kernel for which `refuse_stream` had no reason."""
    chain, problem = chain_of(g.nodes, g.space, graph), stream_problem(g.nodes, g.space, graph)
    assert not isinstance(chain, str)
    choices = choose_stream_tile(target, problem)
    tile, parts = pick(choices, nth), parts_of(chain)
    assert parts is not None
    options = {
        "instruction": "wgmma", "multiplicand": chain.values.type, "stream": chain.stream,
        "block": (tile.bm, tile.bn), "stages": tile.stages, "parts": parts, "turns": int(tile.groups > 1),
        "threads": tile.threads, "descending": int(grows(chain, kernel.extents)),
    }  # fmt: skip
    kernel = replace(kernel, sram=lambda k: stream_bytes(problem, *k.options["block"], k.options["stages"]))
    sizes = tuple(min(tile.bm, kernel.extents[d]) if d == chain.rows else 1 for d in kernel.grid)
    kernel = replace(kernel, tile=sizes, options=options, work=stream_work(target, problem, tile))
    line = kernel.lines[-1] if kernel.lines else None
    others = tuple((_describe(c.tile), c.prediction.time_us) for c in choices[:4])
    why = f"{_describe(tile)} of {chain.values.type}, {tile.stages} stages, {tile.threads} threads"
    remarks = [Remark("tiled", kernel.name, why, line, others)]
    states = ", ".join(c.total.name for c in chain.online.carried)
    how = "rescaled when the maximum grows" if chain.online.shifts else "added up"
    remarks.append(Remark("carried", states, f"along {chain.scores.name}'s index, {how}", line))
    if parts > 1:
        reason = f"an f32 weight takes {parts} numbers of {chain.values.type}, so {parts} products instead of 1; "
        reason += f"`using {chain.values.type}` rounds weights, and takes 1"
        remarks.append(Remark("split", chain.product.total.name, reason, line))
    if chain.masks:
        reason = f"tiles that the mask excludes are skipped: {100 * problem.share:.0f}% of the scores remain"
        remarks.append(Remark("skipped", chain.scores.name, reason, line))
    return kernel, remarks


def refuse_stream_options(planned: KernelPlan, edited: KernelPlan) -> str | None:
    """Why a walk's options, which may be a person's, cannot be."""
    o = edited.options
    if "stream" not in o:
        return None
    if len(o["block"]) != 2 or o["block"][0] not in (64, 128) or not 0 < o["block"][1] <= 256 or o["block"][1] % 16:
        return f"`block` is 64 or 128 rows, and a multiple of 16 up to 256 for a step, not {list(o['block'])}"
    groups = o["block"][0] // 64
    if o["threads"] != 128 * (groups + 1):
        return f"{o['block'][0]} rows take {128 * (groups + 1)} threads: 128 that load, and 128 for each 64 rows"
    if o["stages"] < 1 or o["turns"] not in range(groups) or o["descending"] not in (0, 1):
        return "`stages` is at least 1, `descending` 0 or 1, and `turns` 1 only with two warpgroups that multiply"
    for name in ("stream", "multiplicand", "instruction", "parts"):
        if o[name] != planned.options[name]:
            return f"`{name}` follows from the program: {planned.options[name]}"
    if any(t not in (1, min(o["block"][0], edited.extents[d])) for t, d in zip(edited.tile, edited.grid)):
        return "`tile` is 1 along all dimensions but the rows, and there what `block` says"
    return None


def _describe(tile: StreamTile) -> str:
    return f"wgmma {tile.bm} rows, steps of {tile.bn}"
