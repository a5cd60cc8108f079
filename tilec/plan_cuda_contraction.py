"""Tiles and instructions for CUDA kernels that are a contraction and its epilogue.

The tile comes from `cost_contraction.choose`, among those that the passes can build; here it is laid over the dimensions
of the program: rows of C are the dimensions that only the left factor keeps, columns those of the right one,
and a block takes a box of each with at most `bm` and `bn` points. The roles are such that C is contiguous
along columns.

| option | meaning |
|---|---|
| `instruction` | "fma", "mma.sync" or "wgmma" |
| `multiplicand` | the type in which the factors are staged |
| `rows`, `columns`, `inner` | kernel dimensions: of C's rows and columns, and the reduced ones |
| `block`, `warps` | (bm, bn, bk) of a block, and how its warps lie over rows and columns |
| `stages` | tiles of the factors that shared memory holds |
| `raster` | rows of tiles that are walked together, so that what neighbouring blocks read stays in L2 |
| `left`, `right` | how a factor reaches shared memory, and the direction in which it lies there, see `Feed` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, prod

from tilec import cost_contraction
from tilec.amounts import element_bytes, inputs_of, outputs_of
from tilec.cost import Choice, pick
from tilec.cost_contraction import BlockTile, Contraction
from tilec.graph import Graph, Node
from tilec.grouping import Group, Remark
from tilec.matrix import multiplicand_of
from tilec.mlir import ir
from tilec.passes.contract_stage import padding
from tilec.passes.contract_tile import fma_group
from tilec.plan import KernelPlan
from tilec.plan_cuda_feed import BYTES, LINE, WIDE, Feed, Roles, arrange
from tilec.target import Target

DEEPEST = {"fma": 3, "mma.sync": 6, "wgmma": 8}  # stages; more hide no more latency
# Registers of a thread for data, beside those for addresses; fewer where it computes factors, or finds their
# elements, since what is known of a place before the loop over k is kept.
HELD = {"copied": 224, "computed": 176, "gathered": 160}


BARRIERS = 256  # bytes
OTHER = 24  # registers of a thread for addresses and loops, at least
Sizes = dict[int, int]  # by kernel dimension


@dataclass(frozen=True)
class Tiles:
    """The tiles that can be built for a contraction, the fastest first, and what they are chosen by."""

    kind: str
    roles: Roles
    feeds: dict[str, Feed]
    problem: Contraction
    choices: list[Choice]
    boxes: Callable[[BlockTile], Sizes | None]

    def variant(self, target: Target, **changes) -> list[Choice]:
        """Tiles for the same factors and another problem."""
        tiles = cost_contraction.choose(
            target, replace(self.problem, **changes), _instructions(self.kind, self.feeds, target)
        )
        return [c for c in tiles if _buildable(c.tile, self.feeds, self.kind)]

    def feed(self, factor: ir.Value) -> Feed:
        return next(self.feeds[s] for s, f in self.roles.factors.items() if f == factor)


def tiles_of(node: Node, g: Group, graph: Graph, target: Target) -> Tiles:
    kind = multiplicand_of(node)
    kind = kind if kind in BYTES else "f32"
    roles, feeds = arrange(node, kind, g, graph, target)
    problem = _problem(node, roles, kind, g, graph)
    problem = replace(problem, staged=tuple(_staging(feeds[s]) for s in ("left", "right")))

    @cache  # tiles differ in more than their boxes depend on
    def boxes_of(bm: int, bn: int, instruction: str) -> Sizes | None:
        return _boxes_of(bm, bn, instruction, g.space.extents, roles, feeds, kind)

    def boxes(tile: BlockTile) -> Sizes | None:
        return boxes_of(tile.bm, tile.bn, tile.instruction)

    choices = sorted(
        (c for c in cost_contraction.choose(target, problem, _instructions(kind, feeds, target))
         if _buildable(c.tile, feeds, kind) and boxes(c.tile)),
        key=lambda c: c.rank * _overhang(boxes(c.tile), c.tile, problem, g.space.extents, roles),
    )  # fmt: skip
    return Tiles(kind, roles, feeds, problem, choices, boxes)


def choose_contraction(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, nth: int = 0
) -> tuple[KernelPlan, list[Remark]] | None:
    """The tile of a kernel that has a contraction; None where no tile fits."""
    (node,) = [n for n in g.nodes if n.contraction is not None]
    if 0 in kernel.extents.values():
        return None
    found = tiles_of(node, g, graph, target)
    kind, roles, feeds, problem, choices = found.kind, found.roles, found.feeds, found.problem, found.choices
    if not choices:
        return None
    chosen = pick(choices, nth)
    sizes, tile = found.boxes(chosen), _staged(chosen, feeds, kind, target)
    feeds = {
        s: f if tile.instruction == "wgmma" or f.copy != "tma" else replace(f, copy="async") for s, f in feeds.items()
    }
    options = {
        "instruction": tile.instruction, "multiplicand": kind,
        "rows": roles.rows, "columns": roles.columns, "inner": roles.inner,
        "block": (tile.bm, tile.bn, tile.bk), "warps": (tile.warp_m, tile.warp_n), "threads": tile.threads,
        "stages": tile.stages, "raster": tile.group,
        **{f"{side}_copy": f.copy for side, f in feeds.items()},
        **{f"{side}_major": f.major for side, f in feeds.items()},
    }  # fmt: skip
    if tile.instruction == "wgmma":  # a block a multiprocessor, which goes through the tiles
        options["persistent"] = target.units
    tiles = tuple(sizes.get(d, 1) for d in kernel.grid)
    kernel = replace(kernel, tile=tiles, options=options, sram=contraction_bytes)
    kernel = replace(kernel, work=cost_contraction.contraction_work(target, problem, tile))
    return kernel, _remarks(kernel, kind, tile, feeds, choices)


def _remarks(kernel: KernelPlan, kind: str, tile: BlockTile, feeds: dict[str, Feed], choices) -> list[Remark]:
    line = kernel.lines[-1] if kernel.lines else None
    others = tuple((_describe(c.tile), c.prediction.time_us) for c in choices[:4])
    why = f"{_describe(tile)} of {kind}, {tile.stages} stages, {tile.threads} threads; " + ", ".join(
        f"{side} by {f.copy}" for side, f in feeds.items()
    )
    return [Remark("tiled", kernel.name, why, line, others)]


def _describe(tile: BlockTile) -> str:
    return f"{tile.instruction} {tile.bm}x{tile.bn}x{tile.bk}"


# ---- the tile ----------------------------------------------------------------------------------------------


def _problem(node: Node, roles: Roles, kind: str, g: Group, graph: Graph) -> Contraction:
    m, n, k = (prod(g.space.extents[d] for d in dims) for dims in (roles.rows, roles.columns, roles.inner))
    written = outputs_of(g.nodes, graph)
    out = sum(element_bytes(ir.ShapedType(v.type).element_type) for v in written)
    epilogue = {
        "fma.f32": sum(x.flops for x in g.nodes if x is not node),
        "special": sum(x.special for x in g.nodes if x is not node),
    }
    others = [
        v
        for x in g.nodes
        if x is not node
        for v in inputs_of([x])
        if v not in graph.producer or graph.producer[v] not in g.nodes
    ]
    points = prod(node.extents[d] for d in range(len(node.extents)) if d not in node.reduced)
    reads = sum(
        prod(ir.ShapedType(v.type).shape) * element_bytes(ir.ShapedType(v.type).element_type) for v in others
    ) / max(1, points)
    result = {2: "bf16", 8: "f64"}.get(out, "f32")
    stored, tf32 = ("f32", True) if kind == "tf32" else (kind, False)
    return Contraction(m, n, k, points // (m * n), stored, result, tf32, reads, epilogue=epilogue)


def _staging(feed: Feed) -> float:
    """Integer operations for an element that threads bring: conversions and convolutions of 4096 and 2304 products on an
    H200 take as long as so many."""
    return 0 if feed.copy != "registers" else 40 if feed.gathers else 13


def _instructions(kind: str, feeds: dict[str, Feed], target: Target) -> list[str]:
    if kind not in ("i8", "bf16", "f16", "tf32"):
        return []
    boxes = all(f.copy == "tma" for f in feeds.values())
    hopper = boxes and kind != "i8" and "wgmma" in target.instructions(kind)
    return ["mma.sync", "wgmma"] if hopper else ["mma.sync"]


def _buildable(tile: BlockTile, feeds: dict[str, Feed], kind: str) -> bool:
    """Whether the passes have the code for a tile, and its threads the registers."""
    hardest = _hardest(feeds)
    if (
        tile.split_k > 1
        or tile.cluster > 1
        or _held(tile, feeds, kind) > min(HELD[hardest], 65536 // tile.threads - OTHER)
    ):
        return False
    match tile.instruction:
        case "wgmma":
            majors = all(
                (f.major or (size % 64 == 0 and kind != "tf32")) for f, size in zip(feeds.values(), (tile.bm, tile.bn))
            )
            return majors and tile.bm in (64, 128) and tile.bn % 16 == 0
        case "mma.sync":
            m, n = tile.bm // tile.warp_m, tile.bn // tile.warp_n
            return m % 16 == 0 and n % 16 == 0 and tile.bk * BYTES[kind] >= 64
    return tile.bk >= 16 or (tile.bm, tile.bn) == (32, 32)


def _hardest(feeds: dict[str, Feed]) -> str:
    computed = [f for f in feeds.values() if f.copy == "registers"]
    return "gathered" if any(f.gathers for f in computed) else "computed" if computed else "copied"


def _held(tile: BlockTile, feeds: dict[str, Feed], kind: str) -> int:
    """Registers of a thread for sums, for the factors of one step, and for what it fetches ahead."""
    words, threads = max(1, BYTES[kind] // 4), 32 * tile.warps
    sums = tile.bm * tile.bn // threads
    fetched = sum(
        size * tile.bk // threads for f, size in zip(feeds.values(), (tile.bm, tile.bn)) if f.copy == "registers"
    )
    match tile.instruction:
        case "wgmma":
            return sums
        case "mma.sync":
            return sums + fetched + 2 * (tile.bm // tile.warp_m // 4 + tile.bn // tile.warp_n // 4)
    high, wide = tile.bm // (4 * tile.warp_m), tile.bn // (8 * tile.warp_n)
    products = 32 if kind == "i32" else 0  # before they are added
    return products + words * (sums + fetched + 2 * fma_group(high, wide, 32 * words) * (high + wide))


def _staged(tile: BlockTile, feeds: dict[str, Feed], kind: str, target: Target) -> BlockTile:
    """The tile with the stages that the passes' own use of shared memory leaves room for.

    Two where nothing arrives on its own, since threads then fetch the next tile while they compute this one.
    Lines of k for the vector units have a padding; wgmma keeps an epilogue's buffer beside its stages, the
    others lay it over them.
    """
    majors = [f.major for f in feeds.values()]
    stage = _stage_bytes(tile.instruction, BYTES[kind], (tile.bm, tile.bn, tile.bk), majors)
    room = target.sm.shared_per_block - _beside(tile.instruction, tile.bm, tile.bn)
    deepest = 2 if all(f.copy == "registers" for f in feeds.values()) else DEEPEST[tile.instruction]
    deepest = deepest if tile.instruction == "wgmma" else min(deepest, max(2, tile.stages))
    stages = min(deepest, room // stage)
    return replace(tile, stages=stages, shared=stages * stage)


def _stage_bytes(instruction: str, size: int, block: tuple[int, ...], majors: Sequence[int]) -> int:
    """Of SRAM that one tile of both factors takes."""
    *sides, bk = block
    pads = [padding(instruction, size, major) for major in majors]
    lines = [(n, bk + p) if major else (bk, n + p) for n, p, major in zip(sides, pads, majors)]
    return size * sum(a * b for a, b in lines)


def _beside(instruction: str, bm: int, bn: int) -> int:
    """Barriers, and the epilogue's buffer where it does not lie over the stages."""
    return BARRIERS + (4 * bm * next((c for c in (64, 32, 16) if bn % c == 0), 64) if instruction == "wgmma" else 0)


def contraction_bytes(kernel: KernelPlan) -> int:
    """Of SRAM that a block takes, as the kernel's options say."""
    o = kernel.options
    majors = [o[f"{side}_major"] for side in ("left", "right")]
    stage = _stage_bytes(o["instruction"], BYTES[o["multiplicand"]], o["block"], majors)
    return o["stages"] * stage + _beside(o["instruction"], *o["block"][:2])


def _boxes_of(
    bm: int, bn: int, instruction: str, extents: Sizes, roles: Roles, feeds: dict[str, Feed], kind: str
) -> Sizes | None:
    """The block's part of every dimension of C; None where a factor's pieces would not lie inside it."""
    sizes: Sizes = {}
    for side, points in (("left", bm), ("right", bn)):
        order, feed = roles.order(side), feeds[side]
        piece = 1 if feed.major or feed.copy == "registers" else LINE if instruction == "wgmma" else WIDE
        box = _box([extents[d] for d in order], points, max(1, piece // BYTES[kind]))
        if box is None:
            return None
        sizes |= zip(order, box)
    return sizes


def _overhang(sizes: Sizes, tile: BlockTile, problem: Contraction, extents: Sizes, roles: Roles) -> float:
    """How many times as many blocks the boxes take as tiles of a flat C would."""
    taken = prod(ceil(extents[d] / sizes[d]) for d in (*roles.rows, *roles.columns))
    return taken / (ceil(problem.m / tile.bm) * ceil(problem.n / tile.bn))


def _box(extents: list[int], size: int, piece: int = 1) -> tuple[int, ...] | None:
    """Sizes of a box of at most `size` points, such that the fewest boxes cover the extents; then the longest inside.

    Runs along the last dimension consist of whole pieces, or the box is one run.
    """
    fitting = [b for b in _boxes(extents, size) if b[-1] % piece == 0 or prod(b[:-1]) == 1]
    best = min(
        fitting,
        key=lambda box: (prod(ceil(e / t) for e, t in zip(extents, box)), [-t for t in reversed(box)]),
        default=None,
    )
    return None if best is None else tuple(best)


def _boxes(extents: list[int], size: int) -> Iterator[list[int]]:
    if not extents:
        yield []
        return
    *outer, last = extents
    powers = {1 << p for p in range(size.bit_length()) if 1 << p < last}
    for inner in sorted(t for t in powers | {min(last, size)} if t <= size):
        for box in _boxes(outer, size // inner):
            yield [*box, inner]
