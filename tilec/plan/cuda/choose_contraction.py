"""The kernel of a contraction, or of several of one left factor: the best of its tiles, as a plan with all options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import ceil, gcd, prod

from tilec.analysis.graph import Graph, Node
from tilec.analysis.multiplicands import scaled_factor, scales_of
from tilec.analysis.products import period_of
from tilec.core.hardware import LINE
from tilec.core.target import Target
from tilec.cost import contraction
from tilec.cost.block_tile import BlockTile
from tilec.cost.model import Choice, Work, pick
from tilec.cost.stream_k import rounds_of
from tilec.kernels import KernelPlan
from tilec.kernels.contraction import Contraction, WarpgroupContraction
from tilec.kernels.matrix import BY, StoredContraction
from tilec.plan.cuda.contraction import STAGES, Sizes, Tiles, fed, tiles_of
from tilec.plan.cuda.operands import Roles
from tilec.plan.cuda.siblings import sibling_tiles
from tilec.plan.groups import Group, Remark

_KNOWN: ContextVar[dict[tuple[int, int], Tiles | str] | None] = ContextVar("known", default=None)
"""Tiles by the node and the group, both of which live meanwhile."""


@contextmanager
def unchanged() -> Iterator[None]:
    """While nothing is changed: `choose_contraction` finds the tiles of a kernel once, however many of them it is asked for."""
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def choose_contraction(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, nth: int = 0
) -> tuple[KernelPlan, list[Remark]] | None:
    """The tile of a kernel that has a contraction; None where no tile fits."""
    node, *others = [n for n in g.nodes if n.contraction is not None]
    if 0 in kernel.extents.values():
        return None
    known, key = _KNOWN.get(), (id(node), id(g))
    if known is not None and key in known:
        found = known[key]
    else:
        found = sibling_tiles(g, graph, target) if others else tiles_of(node, g, graph, target)
    if known is not None:
        known[key] = found
    if isinstance(found, str) or not found.choices:
        return None
    if not (choices := _with_scales(found, node, g)):
        return None
    tile = pick(choices, nth)
    sizes, built = found.fit(tile).sizes, found.build(tile)
    if isinstance(built, WarpgroupContraction) and built.two_level:
        built = _scaled(built, node, found.roles, g, sizes)
    built = _staged(built, tile, found.problem.out_bytes, target)
    tile = replace(tile, stages=built.stages, shared=built.stages * built.stage_bytes)
    if others:  # each result has columns of its own, and each contraction a loop of its own
        kernel = replace(kernel, grid=tuple(dict.fromkeys((*kernel.grid, *built.columns))), loop_groups=_nest_numbers(g.nodes))
    tiles = tuple(sizes.get(d, 1) for d in kernel.grid)
    weigh = partial(_work, found, target)
    kernel = replace(kernel, tile=tiles, options=built, sram=_shared_bytes, weigh=weigh).weighed(target)
    return kernel, _remarks(kernel, built, tile, found.choices)


def _work(tiles: Tiles, target: Target, kernel: KernelPlan) -> Work:
    """Of a kernel of this contraction with any tile and options."""
    built, tile = kernel.options, dict(zip(kernel.grid, kernel.tile))
    assert isinstance(built, (Contraction, WarpgroupContraction))
    (bm, bn, bk), warps, producers = built.block, prod(built.warps), 4 if built.instruction == "wgmma" else 0
    m, *n = (prod(ceil(kernel.extents[d] / tile[d]) for d in dims) for dims in (built.rows, *built.column_sets))
    problem = tiles.boxes.whole(tiles.problem, built, tile)
    *_, registers = contraction.block_registers(target, problem, built.instruction, bm, bn, warps, producers)
    found = BlockTile(
        bm, bn, bk, built.stages, built.instruction, built.warps[0], built.warps[1], producers, group=built.group_rows,
        registers=registers,
        shared=built.stages * built.stage_bytes, across=built.across_batches,
    )  # fmt: skip
    if isinstance(built, WarpgroupContraction):
        found = replace(found, cluster=(built.cluster[0], built.cluster[1]), kept=built.kept_steps > 0)
        if built.persistent_blocks != (reached := contraction.reached(target, found)):
            found = replace(found, launched=built.persistent_blocks)
            reached = contraction.reached(target, found)
        if built.stream_k:
            found = replace(found, stream_k=rounds_of(built.stream_k, m * sum(n) * problem.batch, reached))
    elif isinstance(built, Contraction):
        found = replace(found, inner_warps=built.inner_warps)
    return contraction.contraction_work(target, fed(problem, built.instruction), found)


def _shared_bytes(kernel: KernelPlan) -> int:
    assert isinstance(kernel.options, StoredContraction)
    return kernel.options.shared_bytes


def _with_scales(found: Tiles, node: Node, g: Group) -> Sequence[Choice]:
    """The choices with registers for the scales of partial sums."""
    if not scales_of(node):
        return found.choices
    fits: dict[tuple[int, int], bool] = {}
    for tile in (c.tile for c in found.choices):
        built = found.build(tile)
        if (tile.bm, tile.bn) not in fits and isinstance(built, WarpgroupContraction):
            sizes = found.fit(tile).sizes
            scaled = _scaled(built, node, found.roles, g, sizes)
            fits[tile.bm, tile.bn] = scaled.refuse_shape() is None and not _cuts_scales(node, found.roles, g, sizes)
    return [c for c in found.choices if fits.get((c.tile.bm, c.tile.bn), True)]


def _scaled(built: WarpgroupContraction, node: Node, roles: Roles, g: Group, sizes: Sizes) -> WarpgroupContraction:
    """With the scales of its partial sums."""
    rows = int(bool(scaled_factor(node, roles.factors["left"]).scales))
    return replace(built, scale_rows=rows, scale_columns=_scale_columns(node, roles, g, sizes))


def _scale_columns(node: Node, roles: Roles, g: Group, sizes: Sizes) -> int:
    """Adjacent columns of a block's tile that share the scales of the right factor; 0 where there are none."""
    found = scaled_factor(node, roles.factors["right"])
    if not found.scales:
        return 0
    *outer, last = roles.columns
    if prod(sizes[d] for d in outer) > 1:
        return 1
    column = [(g.space.dims[node].index(last), g.space.extents[last])]
    shared = gcd(sizes[last], *(period_of(node.terms, v, column) for v in found.scales))
    return shared if shared % 8 == 0 else 1


def _cuts_scales(node: Node, roles: Roles, g: Group, sizes: Sizes) -> bool:
    """Whether a tile has parts of groups of columns that share a scale. Tiles of 160 columns, with scales of 128, gave wrong
    results on an H200, though the interpreter finds no fault in them; they are not faster either."""
    *_, last = roles.columns
    whole = _scale_columns(node, roles, g, sizes | {last: 1024})
    return whole > 1 and sizes[last] % whole != 0 and whole % sizes[last] != 0


def _nest_numbers(nodes: list[Node]) -> dict[str, int]:
    """Numbers of loop nests: contractions are not joined to one loop, even of the same dimensions."""
    contractions = [n for n in nodes if n.contraction is not None]
    return {n.name: contractions.index(n) if n in contractions else len(contractions) for n in nodes}


def _staged(built: StoredContraction, tile: BlockTile, out_bytes: int, target: Target) -> StoredContraction:
    """The kernel with the stages that there is room for; `mma.sync` and `fma` have no more than the model gave them."""
    assert target.sm is not None
    room = target.sm.shared_per_block

    def stages(kernel: StoredContraction) -> int:
        return min(deepest, (room - kernel.other_bytes) // kernel.stage_bytes)

    deepest = built.deepest if tile.instruction == "wgmma" else min(built.deepest, max(2, tile.stages))
    if isinstance(built, WarpgroupContraction):  # all boxes of a tile, or some of them where these leave too few stages
        count = max(1, built.own_columns * out_bytes // LINE)
        divisors = [n for n in range(min(8, count), 0, -1) if count % n == 0]
        kernels = [replace(built, result_boxes=n) for n in divisors]
        two = next((k for k in kernels[-2:] if stages(k) >= 2), kernels[-1])
        built = next((k for k in kernels if stages(k) >= STAGES), two)
    return replace(built, stages=stages(built))


def _remarks(kernel: KernelPlan, built: StoredContraction, tile: BlockTile, choices: Sequence[Choice]) -> list[Remark]:
    line = kernel.lines[-1] if kernel.lines else None
    others = tuple((_describe(c.tile), c.prediction.time_us) for c in choices[:4])
    left, right = (BY[copy] for copy in built.copies)
    sides = f"both factors {left}" if left == right else f"left factor {left}, right factor {right}"
    why = f"{_describe(tile)}, {built.multiplicand}, {built.block_threads} threads; {sides}"
    return [Remark("tiled", kernel.name, why, line, others)]


def _describe(tile: BlockTile) -> str:
    """A tile in words: rows x columns x inner of a block, and all that tiles of one shape differ in."""
    inner = f"x{tile.inner_warps}" if tile.inner_warps > 1 else ""
    warps = "" if tile.instruction == "wgmma" else f", {tile.warp_m}x{tile.warp_n}{inner} warps"
    grouped = f", {tile.group} rows of tiles at a time" if tile.group > 1 else ""
    clusters = f", clusters of {tile.cluster[0]}x{tile.cluster[1]}" if prod(tile.cluster) > 1 else ""
    shared = ", blocks share steps" if tile.stream_k else ""
    return f"{tile.instruction} {tile.bm}x{tile.bn}x{tile.bk}{warps}, {tile.stages} stages{clusters}{shared}{grouped}"
