"""Tiles and instructions of CUDA kernels that are a contraction and its epilogue.

`cost_contraction.choose` chooses the tile, among those that the passes can build. This module maps the tile to the
dimensions of the program. Rows of C are the dimensions that only the left factor has, columns those that only the right
factor has. A block takes a box of each, of at most `bm` and `bn` points. The left and right factor are chosen so that C
is contiguous along columns.

The result is one of the families of `kernels/contraction.py`, which check what can be built.
"""

# mypy: no-strict-optional
# mypy: allow-untyped-defs, allow-incomplete-defs
# mypy: disable-error-code="arg-type, union-attr"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, gcd, inf, prod
from typing import NamedTuple

from tilec.analysis import bf16_split
from tilec.analysis.factor_access import FactorAccess
from tilec.analysis.graph import Graph, Node
from tilec.analysis.multiplicands import multiplicands_of, scales_of
from tilec.analysis.traffic import element_bytes, inputs_of, outputs_of
from tilec.core import mlir
from tilec.core.fitted import ContractionTimes, WarpgroupTimes
from tilec.core.hardware import LINE, SECTOR
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost import block_tile, contraction
from tilec.cost.block_tile import BlockTile
from tilec.cost.model import Choice
from tilec.cost.ranking import Ranked, Ranking
from tilec.cost.stream_k import shared_tiles
from tilec.kernels.contraction import Contraction, WarpgroupContraction
from tilec.kernels.matrix import ASYNC, BYTES, StoredContraction
from tilec.plan.cuda.boxes import Boxes
from tilec.plan.cuda.operands import Operand, Roles, arrange, factor_access, warpgroup_copies
from tilec.plan.groups import Group

Sizes = dict[int, int]  # by kernel dimension
Weighed = tuple[float, Choice] | None
TWO_LEVEL = 128  # elements of k: a line of 8-bit numbers
STAGES = 4  # of a ring that hides the latency of its loads


class SeveralProducts(NamedTuple):
    """Options of a kernel of several products of one left factor: how many meet in a result, and the columns of each result."""

    products: int = 1
    siblings: tuple[int, ...] = ()


ONE_PRODUCT = SeveralProducts()


class Fit(NamedTuple):
    """A block's part of every dimension of C, a kernel of this shape, and the stages that have a use."""

    sizes: Sizes
    built: StoredContraction
    deepest: int


@dataclass(frozen=True)
class Tiles:
    """The tiles that can be built for a contraction, the fastest first, and the facts that they were chosen by."""

    kind: str
    roles: Roles
    operands: dict[str, Operand]
    problem: block_tile.Contraction
    choices: Sequence[Choice]
    build: Callable[[BlockTile], StoredContraction]
    fit: Callable[[BlockTile], Fit | None]
    instructions: list[str] | None
    boxes: Boxes

    def variant(self, target: Target, **changes) -> Sequence[Choice]:
        """Tiles for the same factors and another problem, the fastest first; none of which blocks share steps."""

        def weigh(choice: Choice) -> Weighed:
            return (choice.rank, choice) if not choice.tile.stream_k and self.fit(choice.tile) else None

        return _ranked(target, replace(self.problem, **changes), self.instructions, weigh, lambda tile: 1)

    def least_us(self, target: Target, **changes) -> float:
        """A time that no tile takes less than, for the same factors and another problem."""
        problem = replace(self.problem, **changes)
        found = (contraction.families(target, fed(problem, unit), unit) for unit in self.instructions or ("fma",))
        return min((family.least_us for families in found for family in families), default=inf)

    def rank(self, tile: BlockTile, target: Target, **changes) -> float:
        """Of a tile, for the same factors and another problem."""
        found = self.fit(tile)
        problem = self.boxes.whole(replace(self.problem, **changes), found.built, found.sizes)
        return Choice(tile, contraction.contraction_cost(target, fed(problem, tile.instruction), tile)).rank

    def operand(self, factor: ir.Value) -> Operand:
        return next(self.operands[s] for s, f in self.roles.factors.items() if f == factor)


def tiles_of(node: Node, g: Group, graph: Graph, target: Target) -> Tiles:
    """Of the fastest multiplicand for which there are any."""
    kinds = [kind if kind in BYTES else "f32" for kind in multiplicands_of(node, target)]
    for kind in kinds[:-1]:
        if (found := tiles_by(kind, node, g, graph, target)).choices:
            return found
    return tiles_by(kinds[-1], node, g, graph, target)


def tiles_by(kind: str, node: Node, g: Group, graph: Graph, target: Target) -> Tiles:
    """Of one type of multiplicands."""
    roles, operands = arrange(node, kind, g, graph, target)
    return ranked_tiles(kind, roles, operands, fed_problem(node, kind, roles, operands, g, graph, target), g, graph, target)


def fed_problem(
    node: Node, kind: str, roles: Roles, operands: dict[str, Operand], g: Group, graph: Graph, target: Target
) -> block_tile.Contraction:
    """With the way of its factors into shared memory."""
    problem = _problem(node, roles, kind, g, graph)
    longer = overhang(kind, roles, problem.k, g) if "tma" in warpgroup_copies(operands) else 1.0
    return with_operands(replace(problem, two_level=two_level_of(kind, node), overhang=longer), kind, operands, target)


def with_operands(
    problem: block_tile.Contraction, kind: str, operands: Mapping[str, Operand], target: Target
) -> block_tile.Contraction:
    """A problem whose factors go these ways into shared memory."""
    sides, copies = (operands["left"], operands["right"]), warpgroup_copies(operands)
    return replace(
        problem, staged=tuple(_staging(f, BYTES[kind], target) for f in sides),
        filled=tuple(_filling(copy, f, BYTES[kind], target) for copy, f in zip(copies, sides)),
        alone=tuple(_is_alone(f) for f in sides), unaligned=tuple(f.unaligned for f in sides),
        widths=tuple(BYTES[f.stored or kind] / BYTES[kind] for f in sides),
        copied=tuple(1 if f.major or f.copy != "tma" else LINE // BYTES[kind] for f in sides),
        sectors=tuple(1 if f.major else max(1, min(SECTOR, f.step) / BYTES[f.stored or kind]) for f in sides),
    )  # fmt: skip


def overhang(kind: str, roles: Roles, k: int, g: Group) -> float:
    """The steps along k whose factors TMA copies as boxes, over those that k would take as one dimension."""
    depth = LINE // BYTES[kind]
    return prod(ceil(g.space.extents[d] / size) for d, size in roles.boxes(depth).items()) / ceil(k / depth)


def ranked_tiles(
    kind: str, roles: Roles, operands: dict[str, Operand], problem: block_tile.Contraction, g: Group, graph: Graph, target: Target,
    several: SeveralProducts = ONE_PRODUCT,
) -> Tiles:  # fmt: skip
    """The tiles for factors that are fed so; `several`: of several products of one left factor. They are ranked once for all
    contractions of which these facts are the same, such as one before and after another is packed."""
    left, right = operands["left"], operands["right"]
    facts = kind, replace(roles, factors={}), left, right, problem, tuple(g.space.extents.items()), several
    found = graph.cache.memoise(("tiles", *facts), (), partial(_ranked_tiles, *facts, target)).result
    return replace(found, roles=roles)


def _ranked_tiles(
    kind: str, roles: Roles, left: Operand, right: Operand, problem: block_tile.Contraction, own: tuple[tuple[int, int], ...],
    several: SeveralProducts, target: Target,
) -> Tiles:  # fmt: skip
    operands, extents = {"left": left, "right": right}, dict(own)
    boxes = Boxes(roles, operands, problem, extents, target)
    build = partial(_built, kind=kind, boxes=boxes, two_level=problem.two_level, several=several)
    known: dict[tuple, Fit | None] = {}  # by shape: several tiles have one, and differ in their stages

    def too_large(built: WarpgroupContraction) -> bool:
        least = STAGES if built.kept_steps else 2
        return target.sm.shared_per_block < built.other_bytes + least * built.stage_bytes

    def fit(tile: BlockTile) -> Fit | None:
        """None where the passes have no code for the tile, or a factor's pieces would not lie inside its box."""
        warps, shares = (tile.warp_m, tile.warp_n, tile.inner_warps), bool(problem.two_level and tile.stream_k)
        shape = tile.instruction, tile.bm, tile.bn, tile.bk, warps, tile.cluster, tile.kept, shares
        if shape not in known:
            built = build(tile)
            sizes = boxes.sizes(built) if _is_buildable(built) else None
            if sizes and isinstance(built, WarpgroupContraction) and (built.refuse_sizes(extents, sizes) or too_large(built)):
                sizes = None
            known[shape] = Fit(sizes, built, built.deepest) if sizes else None
        return known[shape]

    instructions = _instructions(kind, operands, target)
    if several != ONE_PRODUCT:
        instructions = [i for i in instructions or () if i in _units_for_products(several, kind, operands)] or None
    times, both = target.fit(WarpgroupTimes), "wgmma" in (instructions or ())

    def slower(tile: BlockTile) -> float:
        if tile.instruction != "wgmma":
            return times.mma_sync if both else 1
        return times.kept if tile.kept else times.stream_k if tile.stream_k else 1

    def weigh(choice: Choice) -> Weighed:
        tile, found = choice.tile, fit(choice.tile)
        if found is None or not (tile.instruction == "wgmma" or tile.stages <= found.deepest):
            return None
        if (whole := boxes.whole(problem, found.built, found.sizes)) is not problem:
            choice = Choice(tile, contraction.contraction_cost(target, fed(whole, tile.instruction), tile))
        return slower(tile) * choice.rank, choice

    choices = _ranked(target, problem, instructions, weigh, slower)
    return Tiles(kind, roles, operands, problem, choices, build, fit, instructions, boxes)


def _built(
    tile: BlockTile, *, kind: str, boxes: Boxes, two_level: int, several: SeveralProducts
) -> StoredContraction:
    """The kernel of this tile, with the stages that the model has given it."""
    roles, operands, target, extents = boxes.roles, boxes.operands, boxes.target, boxes.extents
    left, right = operands["left"], operands["right"]
    by_warpgroups = tile.instruction == "wgmma"
    by = warpgroup_copies(operands) if by_warpgroups else [f.pieces or "registers" for f in (left, right)]
    common = {
        "multiplicand": kind, "rows": roles.rows, "columns": roles.columns, "inner": roles.inner,
        "left_k_major": bool(left.major), "right_k_major": bool(right.major),
        "block": (tile.bm, tile.bn, tile.bk), "stages": tile.stages, "group_rows": tile.group, "across_batches": tile.across,
        "left_copy": by[0], "right_copy": by[1],
    }  # fmt: skip
    if by_warpgroups:  # a block a multiprocessor, which goes through the tiles
        size = prod(tile.cluster)
        blocks = target.units if size == 1 else target.sm.clusters(size, 1) * size
        own = {"inner_box": roles.inner_box if "tma" in by else (), "two_level": two_level, "cluster": tile.cluster}
        own["longest_box"] = (left.longest, right.longest)
        built = WarpgroupContraction(**common, persistent_blocks=blocks, **own, **several._asdict())
        if tile.stream_k:
            return replace(built, stream_k=_shared_tiles(built, boxes, tile.stream_k))
        return replace(built, kept_steps=built.steps(extents)) if tile.kept else built
    stored = {f"{side}_stored": f.stored for side, f in operands.items()}
    gathers = any(f.gathers and not f.pieces for f in operands.values())
    warps = {"warps": (tile.warp_m, tile.warp_n), "inner_warps": tile.inner_warps}
    own = {"products": several.products, "gathers": gathers}
    return Contraction(**common, **stored, **warps, **own, unit=tile.instruction)


def _shared_tiles(built: WarpgroupContraction, boxes: Boxes, rounds: int) -> int:
    """Tiles whose steps blocks share, of those that there are."""
    sizes = boxes.sizes(built) if _is_buildable(built) else None
    if sizes is None:
        return 0
    tiles = built.tiles({d: ceil(n / sizes.get(d, 1)) for d, n in boxes.extents.items() if d not in built.inner})
    return shared_tiles(tiles, built.persistent_blocks, rounds)


def two_level_of(kind: str, node: Node) -> int:
    """Elements of k after which sums leave the matrix units: those that share scales, and no more than the units have bits for."""
    if kind == bf16_split.KIND:
        return LINE // BYTES[kind]
    scales = scales_of(node) if kind != str(node.contraction.left.type) else 0
    short = kind.startswith("f8") and mlir.get_string(node.op, "tilec.multiplicand") != "f22"
    return gcd(scales, TWO_LEVEL) if short else scales


def _is_buildable(built: StoredContraction) -> bool:
    return built.refuse_shape() is None


# ---- the tile ----------------------------------------------------------------------------------------------


def _problem(node: Node, roles: Roles, kind: str, g: Group, graph: Graph) -> block_tile.Contraction:
    m, n, k = (prod(g.space.extents[d] for d in dims) for dims in (roles.rows, roles.columns, roles.inner))
    written = outputs_of(g.nodes, graph)
    out = sum(element_bytes(v.type) for v in written)
    behind = [x for x in g.nodes if x.contraction is None]
    epilogue = {"fma.f32": sum(x.flops for x in behind), "special": sum(x.special for x in behind)}
    epilogue = {unit: n for unit, n in epilogue.items() if n}
    others = [v for x in behind for v in inputs_of([x]) if graph.producer.get(v) not in g.nodes]
    points = prod(node.extents[d] for d in range(len(node.extents)) if d not in node.reduced)
    reads = sum(
        prod(ir.ShapedType(v.type).shape) * element_bytes(v.type) for v in others
    ) / max(1, points)
    result = {2: "bf16", 8: "f64"}.get(out, "f32")
    stored, tf32 = ("f32", True) if kind == "tf32" else ("bf16" if kind == bf16_split.KIND else kind, False)
    split = (bf16_split.COUNT, len(bf16_split.PRODUCTS)) if kind == bf16_split.KIND else (1, 1)
    left, right = (factor_access(node, roles.factors[side], g) for side in ("left", "right"))
    batch = {*g.space.dims[node]} - {*roles.rows, *roles.columns, *roles.inner}
    recurring = right is not None and not batch.isdisjoint(d for dims in right.opaque for d in dims)
    return block_tile.Contraction(
        m, n, k, points // (m * n), stored, result, tf32, parts=split[0], products=split[1], reads=reads, epilogue=epilogue,
        sources=(_source_bytes(left), _source_bytes(right)), recurring=recurring,
    )  # fmt: skip


def _source_bytes(found: FactorAccess | None) -> int:
    """Of the tensor that a factor reads; 0 where that is not known."""
    return 0 if found is None else prod(found.access.shape) * element_bytes(found.access.element)


def _staging(operand: Operand, size: int, target: Target) -> float:
    """Integer operations for an element of `size` bytes that threads bring to shared memory."""
    fit = target.fit(ContractionTimes)
    if operand.stored:
        return fit.byte_operations
    if operand.pieces and (operand.windows or operand.pieces != "async") and target.has("tma"):
        return target.fit(WarpgroupTimes).piece_operations * size / ASYNC[operand.pieces]
    return 0 if operand.pieces else fit.gather_operations if _is_alone(operand) else fit.convert_operations


def _is_alone(operand: Operand) -> bool:
    """Whether threads load each element by itself."""
    return not operand.pieces and not operand.stored and (operand.gathers or operand.one_by_one)


def _filling(copy: str, operand: Operand, size: int, target: Target) -> float:
    """The same for tiles that warpgroups multiply."""
    if copy == "tma":
        return 0
    fit = target.fit(WarpgroupTimes)
    if copy in ASYNC:
        return fit.piece_operations * size / ASYNC[copy]
    return fit.filled * _staging(replace(operand, pieces="", stored=""), size, target)


def _ranked(
    target: Target, problem: block_tile.Contraction, instructions: list[str] | None, weigh: Callable[[Choice], Weighed],
    slower: Callable[[BlockTile], float],
) -> Ranking[Choice]:  # fmt: skip
    """The tiles that can be built, the fastest first. An instruction whose products alone take longer than the best tile of one
    before it has none. `weigh` takes a choice to its time, which is `slower` than that of its problem or of a larger one, and to
    the choice with its boxes."""

    def weighed(family: contraction.Family, at: int) -> Iterator[Ranked[Choice]]:
        weighed = ((numbers, weigh(c)) for numbers, c in family.choices)
        return (((found[0], at, *numbers), found[1]) for numbers, found in weighed if found is not None)

    ranking = Ranking[Choice]()
    for at, unit in enumerate(() if instructions is None else instructions or ("fma",)):
        if contraction.least_us(target, problem, unit) <= ranking.least:
            for family in contraction.families(target, fed(problem, unit), unit):
                ranking.add(slower(family.tile) * family.least_rank, partial(weighed, family, at))
    return ranking


def fed(problem: block_tile.Contraction, instruction: str) -> block_tile.Contraction:
    """As the instruction's kernels are fed."""
    return replace(problem, staged=problem.filled, alone=(False, False)) if instruction == "wgmma" else problem


def _instructions(kind: str, operands: dict[str, Operand], target: Target) -> list[str] | None:
    """The matrix instructions for a type, the fastest first; none for one that threads multiply; None where matrix units alone
    have the type, and do not take the factors as they are."""
    if kind in ("i32", "f32", "f64"):
        return []
    by_tma = {f.copy for f in operands.values()} == {"tma"}
    able = by_tma or (kind not in ("tf32", bf16_split.KIND) and (BYTES[kind] == 2 or all(f.major for f in operands.values())))
    found = ["wgmma"] if able and target.has("tma") and "wgmma" in target.instructions(block_tile.unit_type(kind)) else []
    found += ["mma.sync"] if kind in ("i8", "bf16", "f16", "tf32") else []
    return found or None


def _units_for_products(several: SeveralProducts, kind: str, operands: dict[str, Operand]) -> list[str]:
    """Of several products of one left factor: warps multiply those whose results meet, warpgroups those that TMA copies."""
    able = ["wgmma"] if {f.copy for f in operands.values()} == {"tma"} else []
    return able + (["mma.sync"] if not several.siblings and BYTES[kind] == 2 else [])
