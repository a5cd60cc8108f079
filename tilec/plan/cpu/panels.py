"""Tiles of CPU kernels that are a contraction and its epilogue.

A block computes a box of C. Rows are the dimensions that only the left factor has, columns those that only the right
factor has, and C is contiguous along columns. A block packs both factors, a part of k at a time, and computes register
tiles from the panels (`passes/cpu/panels.py`, `passes/cpu/stage.py`). The model weighs idle lanes, packing (which all
blocks of a row or column repeat), blocks for every core, and plain loops, which are as fast at small sizes.

Sources: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al.,
"Analytical modeling is enough for high-performance BLIS" (TOMS 2016).
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, misc"

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, prod

from tilec.analysis.chain import multiplicand_allowed
from tilec.analysis.graph import Graph, Node, dims_of
from tilec.analysis.loop_bodies import loop_order, nest_time_us
from tilec.analysis.products import narrow, stored
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.model import NoFurtherChoice, Work
from tilec.cost.panels import AMX_SIDE, BF16, MOST_PARTS, Blocking, PanelProblem, depths_of, even, panel_us, panel_work
from tilec.kernels import KernelPlan, Panels
from tilec.kernels.cpu import matrix_instructions
from tilec.plan.groups import Group, Remark

PACKED_INNER = (16, 32)  # inner elements that are packed at a time, of products with few rows
GAIN_US = 2  # the least gain of panels: kernels that pack take longer to compile
BF16_PARTS = {"bf16": 1, "f8E4M3FN": 1, "f8E5M2": 1, "i8": 1, "f16": 2, "f32": 3}
"""Of how many bf16 a number of a type is the sum."""
ROUNDED_PARTS = {"bf16": 1, "tf32": 2}  # of an f32 that `using` allows to be rounded
NO_PARTS = (0, 0)
LEAST_INNER = 32  # reduced elements from which a sum's own bound has room for the products of small parts that are left out
IDLE = 16  # one over the share of idle lanes from which vectors across the result are weighed
ACROSS = ", vectors across the result"
WEIGHED = "times of arithmetic and packing alone; the time of the kernel above counts caches, too"


@dataclass(frozen=True)
class Roles:
    """The node's dimensions by role; of rows and columns the last is the lanes'. `along` as above. `across`: the result is
    contiguous along rows, and registers transpose the sums."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    batch: tuple[int, ...]
    along: tuple[int, int]
    across: bool = False

    def transposed(self) -> Roles:
        """Rows for columns: vectors along the other factor's dimensions, of which there may be more."""
        return replace(self, rows=self.columns, columns=self.rows, along=(self.along[1], self.along[0]), across=True)


def choose_contraction(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, pick: int = 0
) -> tuple[KernelPlan, list[Remark]]:
    """The kernel with panels (the `pick`-th best), or unchanged where they cannot be or are not worth it; the remarks say why."""
    node = next(n for n in g.nodes if n.contraction is not None)
    element = str(ir.ShapedType(node.results[0].value.type).element_type)
    roles = _roles(node) if element in ("f32", "f64") else f"panels add up f32 and f64, and the sums are {element}"
    if isinstance(roles, str):
        return kernel, [Remark("refused", f"panels for {node.name}", roles, node.line)]
    size = 8 if element == "f64" else 4
    weighed = graph.memoise(("panels", roles), [node], partial(_weighed, node, roles, size, target)).result
    plain = _plain_us(node, size, target)
    alternatives = (*((f"{b}{ACROSS * own.across}", t) for t, b, own in weighed[:4]), ("plain loops", plain))
    if not weighed or weighed[0][0] + GAIN_US > plain:
        return kernel, [
            Remark(
                "refused",
                f"panels for {node.name}",
                "plain loops are as fast at this size",
                node.line,
                alternatives,
                WEIGHED,
            )
        ]
    roles = weighed[0][2]
    mine = [b for _, b, own in weighed if own == roles]  # a schedule file keeps the plan's rows and columns
    if pick >= len(mine):
        raise NoFurtherChoice
    best = mine[pick]
    return _planned(kernel, g, node, roles, best, element, target), [
        Remark("tiled", kernel.name, str(best), node.line, alternatives, WEIGHED)
    ]


def _weighed(node: Node, roles: Roles, size: int, target: Target) -> list[tuple[float, Blocking, Roles]]:
    """Blockings with their times, the fastest first; vectors lie along the result or, where it leaves a good part of them idle,
    across it."""
    found, width = [], node.extents[roles.columns[-1]]
    idle = -width % _lanes(target, size)
    for own in (roles, roles.transposed()) if IDLE * idle > width else (roles,):
        candidates = dict.fromkeys(_candidates(node, own, size, target))
        problem = panel_problem(node, own)
        found += [(panel_us(target, problem, b), b, own) for b in candidates]
    return sorted(found, key=lambda c: c[0])


def predicted_us(node: Node, target: Target, rows: int | None = None) -> float | None:
    """The time of a contraction with the best panels, or in plain loops; with blocks of so many rows and all columns, where given.
    None where panels do not add up its type."""
    element = str(ir.ShapedType(node.results[0].value.type).element_type)
    roles = _roles(node) if element in ("f32", "f64") else ""
    if isinstance(roles, str):
        return None
    size = 8 if element == "f64" else 4
    if rows is None:
        return min((_plain_us(node, size, target), *(time for time, _, _ in _weighed(node, roles, size, target))))
    return min(time for time, _ in _panel_tiles(node, roles, rows, target))


def register_tile(node: Node, rows: int, target: Target) -> Blocking:
    """The panels of a chain's contraction, for so many rows in a block and all columns."""
    roles = _roles(node)
    assert isinstance(roles, Roles)
    return min(_panel_tiles(node, roles, rows, target), key=lambda t: t[0])[1]


def _panel_tiles(node: Node, roles: Roles, rows: int, target: Target) -> list[tuple[float, Blocking]]:
    """Times of vectors and of a matrix unit: tiles two vectors wide, and as high as registers allow."""
    element = str(ir.ShapedType(node.results[0].value.type).element_type)
    size = 8 if element == "f64" else 4
    extents = [node.extents[d] for d in roles.inner]
    columns = tuple(node.extents[d] for d in roles.columns)
    box = (*(1 for _ in roles.rows[1:]), rows)
    found = []
    units = matrix_instructions(parts := _parts(node, roles), target)
    if "amx" in units:
        mr, nr = (AMX_SIDE * min(2, ceil(n / AMX_SIDE)) for n in (rows, columns[-1]))
        share = 3 if max(parts) == 1 else 8  # of L1, by the left factor's panel
        depth = even(depths_of([prod(extents)], target.l1.bytes // (share * mr * max(parts))), [prod(extents)])[0]
        found.append(Blocking("amx", mr, nr, box, columns, depth))
    lanes = _lanes(target, size)
    vectors = min(2, ceil(columns[-1] / lanes))
    highest = (target.core.vector_registers - 1 - vectors) // vectors
    mr = ceil(rows / ceil(rows / highest))
    depth = depths_of([prod(extents)], target.l1.bytes // (3 * mr * size))[0]
    found.append(Blocking("fma", mr, vectors * lanes, box, columns, depth))
    if "dot" in units:
        depth = even(depths_of([prod(extents)], target.l1.bytes // (3 * mr * BF16)), [prod(extents)])[0]
        found.append(Blocking("dot", mr, vectors * lanes, box, columns, depth))
    problem, of_l2 = panel_problem(node, roles), target.l2.bytes // 8
    for n, b in enumerate(found):  # where the columns' panels are more than a part of a core's cache, the rows' ones stay there
        packed = b.depth * prod(columns) * (size if b.instruction == "fma" else BF16 * problem.parts[1])
        found[n] = replace(b, columns_outer=packed > of_l2)
    return [(panel_us(target, problem, b), b) for b in found]


def _planned(
    kernel: KernelPlan, g: Group, node: Node, roles: Roles, best: Blocking, element: str, target: Target
) -> KernelPlan:
    kernel_dims = g.space.dims[node]
    tile = {kernel_dims[d]: t for d, t in zip((*roles.rows, *roles.columns), (*best.rows, *best.columns))}
    named = {
        name: tuple(kernel_dims[d] for d in getattr(roles, name)) for name in ("rows", "columns", "inner", "along")
    }
    inner = [node.extents[d] for d in roles.inner]
    depths = depths_of(inner, best.depth)
    built = Panels(
        **named, element=element, multiplicand=multiplicand(node), instruction=best.instruction, parts=_parts(node, roles),
        register_tile=(best.mr, best.nr),
        lanes=_lanes(target, 8 if element == "f64" else 4),
        depths=depths if best.instruction == "fma" else even(depths, inner),
    )  # fmt: skip
    weigh = partial(_work, panel_problem(node, roles), kernel.work, target)
    tiles = tuple(tile.get(d, 1) for d in kernel.grid)
    return replace(kernel, tile=tiles, options=built, weigh=weigh).weighed(target)


def _work(problem: PanelProblem, own: Work, target: Target, kernel: KernelPlan) -> Work:
    """Of a kernel of this problem with any tile and options. `own`: what its operations read, write and compute."""
    options = kernel.options
    assert isinstance(options, Panels)
    tile = {d: min(t, kernel.extents[d]) for d, t in zip(kernel.grid, kernel.tile)}
    problem = replace(problem, reads=own.dram_read, writes=own.dram_write)
    work = panel_work(target, problem, blocking_of(options, tile))
    further = {unit: n for unit, n in own.flops.items() if unit != problem.unit}
    return replace(work, flops=further | dict(work.flops))


def blocking_of(options: Panels, tile: Mapping[int, int]) -> Blocking:
    """The blocking that options and a tile, by kernel dimension, say."""
    rows, columns = (tuple(tile[d] for d in dims) for dims in (options.rows, options.columns))
    mr, nr = options.register_tile
    return Blocking(
        options.instruction, mr, nr, rows, columns, prod(options.depths), options.depths,
        options.columns_outer,
    )  # fmt: skip


def problem_of(node: Node) -> PanelProblem:
    """A contraction that panels can compute, as the cost model sees it."""
    roles = _roles(node)
    assert isinstance(roles, Roles)
    return panel_problem(node, roles)


def panel_problem(node: Node, roles: Roles) -> PanelProblem:
    """A contraction as the cost model sees it."""
    rows, columns, inner, batch = (
        tuple(node.extents[d] for d in dims) for dims in (roles.rows, roles.columns, roles.inner, roles.batch)
    )
    contiguous = {roles.rows[-1], *roles.inner}, {roles.columns[-1]}  # dimensions along which a side's panels may lie
    left, right = ("gathered" if node.extracts else "along" if d in dims else "across" for dims, d in zip(contiguous, roles.along))
    element = str(ir.ShapedType(node.results[0].value.type).element_type)
    size = 8 if element == "f64" else 4
    return PanelProblem(rows, columns, inner, prod(batch), size, _parts(node, roles), (left, right), roles.across)


# ---- roles -------------------------------------------------------------------------------------------------


def _roles(node: Node) -> Roles | str:
    """Columns are the factor's dimensions along which the result is contiguous."""
    c, e = node.contraction, node.extents
    order = node.results[0].dims
    last = next((d for d in reversed(order) if e[d] > 1), order[-1])
    if last in c.batch:
        return "the result is contiguous along an index that both factors have"
    m, n = (c.n, c.m) if last in c.m else (c.m, c.n)
    lane = max(m, key=lambda d: (e[d], d))
    rows = (*(d for d in order if d in m and d != lane), lane)
    columns = (*(d for d in order if d in n and d != last), last)
    inner = tuple(sorted(c.k, key=lambda d: e[d]))  # pairs lie along the last one
    return Roles(rows, columns, inner, c.batch, (contiguous_along(node, rows, columns), contiguous_along(node, columns, rows)))


def contiguous_along(node: Node, mine: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The dimension along which most of a factor's reads are contiguous: of its own or a reduced one."""
    score = dict.fromkeys((mine[-1], *mine[:-1], *node.contraction.k), 0.0)  # the lanes' dimension wins ties
    for read in node.reads:
        wide = [d for d in read.dims if node.extents[d] > 1]
        if wide and not set(read.dims) & set(other) and wide[-1] in score:
            score[wide[-1]] += len(wide)  # an operand that is read once for many places matters little
    c, body = node.contraction, mlir.body_of(node.op)
    factor = c.left if mine[-1] in c.m else c.right
    for op in mlir.slice_of(body, factor):
        if op.name == "tensor.extract" and len(op.operands) > 1:
            for d in dims_of(list(op.operands)[-1], node) & set(score):
                score[d] += node.extents[d] > 1
    return max(score, key=lambda d: score[d])


# ---- costs -------------------------------------------------------------------------------------------------


def _lanes(target: Target, size: int) -> int:
    return target.core.simd_bytes // size


def _candidates(node: Node, roles: Roles, size: int, target: Target) -> Iterator[Blocking]:
    lanes = _lanes(target, size)
    rows, columns, inner = ([node.extents[d] for d in dims] for dims in (roles.rows, roles.columns, roles.inner))
    if prod((*rows, *columns, *inner)) == 0:
        return
    units = matrix_instructions(parts := _parts(node, roles), target)
    for instruction, v in product(("fma", "dot") if "dot" in units else ("fma",), (1, 2, 3, 4)):
        number = BF16 if instruction == "dot" else size
        highest = (
            target.core.vector_registers - 1 - v
        ) // v  # others: a row of the right factor, an element of the left
        shares = (ceil(rows[-1] / parts) for parts in (1, target.units))
        for mr in {highest, *(ceil(share / ceil(share / highest)) for share in shares)}:
            deep = {depths_of(inner, 2 * target.l1.bytes // (5 * mr * number))}
            if prod(rows) <= highest:  # packed once, used once: a few rows of memory at a time, which stay in L1
                deep |= {depths_of(inner, n) for n in PACKED_INNER}
            if roles.across:  # fewer steps, each of which adds to the result by way of memory
                deep.add(depths_of(inner, 3 * target.l1.bytes // (4 * mr * number)))
            if instruction == "dot":
                deep = {d for own in deep if _in_pairs(d := even(own, inner))}
            for depth, a, b in product({*map(prod, deep)}, _boxes(rows, mr), _boxes(columns, v * lanes)):
                if depth * prod(b) * number <= target.l2.bytes // 2:
                    yield Blocking(instruction, mr, v * lanes, a, b, depth)
    if "amx" in units:
        of_l1 = (2.0, 4.0, 8.0) if len(inner) == 1 else (4 / 3, 2.0, 4.0, 8.0)  # steps of equal size are worth some of it
        for mr, nr, share in product((AMX_SIDE, 2 * AMX_SIDE), (AMX_SIDE, 2 * AMX_SIDE), of_l1):
            steps = even(depths_of(inner, int(target.l1.bytes / (2 * mr * share * parts[0]))), inner)
            for a, b in product(_boxes(rows, mr), _boxes(columns, nr)):
                if _in_pairs(steps) and prod(steps) * prod(b) * BF16 * parts[1] <= target.l2.bytes // 2:
                    yield Blocking("amx", mr, nr, a, b, prod(steps))


def _in_pairs(depths: tuple[int, ...]) -> bool:
    """Whether whole pairs lie along the last dimension."""
    return not depths[-1] % 2 or all(d == 1 for d in depths[:-1])


def _parts(node: Node, roles: Roles) -> tuple[int, int]:
    """Of how many bf16 each number of the left and the right factor is the sum; 0 where no such numbers are its factors, or where
    it adds up too few of them."""
    c = node.contraction
    element = str(ir.ShapedType(node.results[0].value.type).element_type)
    left, right = (c.left, c.right) if roles.rows[-1] in c.m else (c.right, c.left)
    using = multiplicand_allowed(node.op)
    found = _parts_of(left, using), _parts_of(right, using)
    enough = max(found) == 1 or prod(node.extents[d] for d in roles.inner) >= LEAST_INNER
    return found if element == "f32" and min(found) and enough else NO_PARTS


def parts_of(node: Node) -> tuple[int, int]:
    """`_parts` of a contraction that panels can compute."""
    roles = _roles(node)
    return NO_PARTS if isinstance(roles, str) else _parts(node, roles)


def _parts_of(factor: ir.Value, using: str | None) -> int:
    own = BF16_PARTS.get(str(stored(factor).type), 0)
    return min(BF16_PARTS.get(str(narrow(factor).type), own) or own, ROUNDED_PARTS.get(using, MOST_PARTS))


def multiplicand(node: Node) -> str:
    """The type that both factors are stored in, or rounded to."""
    if multiplicand_allowed(node.op) == "bf16" and str(node.contraction.left.type) == "f32":
        return "bf16"
    stored_types = {str(stored(f).type) for f in (node.contraction.left, node.contraction.right)}
    return stored_types.pop() if len(stored_types) == 1 else str(node.contraction.left.type)


def _boxes(extents: list[int], width: int) -> list[tuple[int, ...]]:
    """Boxes of some sizes: the lanes' dimension first, in whole panels, then others from inside."""
    found: dict[tuple[int, ...], None] = {}
    for size in (32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048):
        *outer, last = extents
        parts = ceil(last / max(size, width))
        lane = min(last, -(-ceil(last / parts) // width) * width)
        box, left = [lane], size // lane
        for extent in reversed(outer):
            taken = min(extent, max(1, left))
            box.insert(0, ceil(extent / ceil(extent / taken)))
            left //= taken
        found[tuple(box)] = None
    return list(found)


def _plain_us(node: Node, size: int, target: Target) -> float:
    """Every row of the result loads the other factor again; a large one comes from memory."""
    alone = nest_time_us(node, loop_order(node), node.extents, target)
    large = max(prod(node.extents[d] for d in read.dims) * size for read in node.reads) if node.reads else 0
    loads = node.iterations * size if large > target.l2.bytes else 0
    every = max(alone / target.units, 1e6 * loads / target.dram.rate(target.units))
    return min(max(alone, 1e6 * loads / target.dram.rate(1)), target.launch.overhead_us + every)


__all__ = ["choose_contraction", "contiguous_along", "multiplicand", "parts_of", "predicted_us", "register_tile"]
