"""Tile sizes and loop orders of CPU kernels.

A block is one task of the parallel loop. Its tile is large enough to hide the start of a task, and small enough for its
intermediates to stay in the core's L2 cache. There are several blocks for each core if there is enough work.
"""

# mypy: no-strict-optional

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from tilec.analysis.graph import Graph, Node, Read
from tilec.analysis.loop_bodies import loop_order
from tilec.analysis.traffic import intermediate_bytes
from tilec.core.fitted import LoopTiles
from tilec.core.mlir import ir
from tilec.core.quantities import by_sizes
from tilec.core.target import Target
from tilec.cost.loop_nest import SHORT
from tilec.cost.model import predict
from tilec.kernels import KernelPlan, LoopNest, Panels, RegisterTranspose
from tilec.plan.chain import is_contraction_chain
from tilec.plan.cpu.chain import choose_chain
from tilec.plan.cpu.loop_work import LoopsWork
from tilec.plan.cpu.panels import choose_contraction
from tilec.plan.groups import Group, Remark

SQUARE = 16  # the longest side of a tile that is transposed in registers
SHARE, REUSED, NARROW = 8, 64, 8
"""Of a block's elements of work, the part that a table has at most; reads of each of its elements, and the extent of the innermost
loop, from which its copy is worth it."""
SMALL_OPERAND_THRESHOLD = 1 / 16  # an operand of less than this share of the largest one does not decide the order of loops


def choose(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, pick: int = 0
) -> tuple[KernelPlan, list[Remark]]:
    """Tile sizes and loop orders of one kernel; of a contraction's blockings the `pick`-th best."""
    if is_contraction_chain(g.nodes):
        chain = replace(kernel, loops={n.name: loop_order(n) for n in g.nodes})
        return choose_chain(chain, g, graph, target)
    transposed = _transposed_dims(kernel, g)
    tile, why = _tile(kernel, g, graph, target, transposed)
    kernel = replace(kernel, tile=tile, loops={n.name: loop_order(n) for n in g.nodes})
    if small := tuple(d for d in _small_tables(g, target) if d not in transposed):
        transposed, why = (*transposed, *small), f"{why}; a small operand is transposed in each"
    built = RegisterTranspose(transposed=transposed, lanes=_square(g, target)) if transposed else LoopNest()
    weigh = LoopsWork(kernel.work, g, graph, target)
    kernel = replace(kernel, options=built, weigh=weigh)
    refused = []
    if any(n.contraction is not None for n in g.nodes):
        kernel, remarks = choose_contraction(kernel, g, graph, target, pick)
        if isinstance(kernel.options, Panels):
            return kernel, remarks
        refused = remarks
    kernel = kernel.weighed(target)
    if not transposed and (across := _across_rows(kernel, g, target)) is not None:
        gain = predict(kernel.work, target).time_us, predict(across.work, target).time_us
        if gain[1] < gain[0]:
            kernel, why = across, f"vectors lie across short rows: {gain[1]:.1f} us, along them {gain[0]:.1f}"
    return kernel, [*refused, Remark("tiled", kernel.name, why, kernel.lines[-1] if kernel.lines else None)]


def _across_rows(kernel: KernelPlan, g: Group, target: Target) -> KernelPlan | None:
    """The same kernel with the loops along short rows around a loop over rows, and rows that registers transpose. None where there
    are no such rows."""
    assert target.l1 is not None
    inner = {n: g.space.dims[n][kernel.loops[n.name][-1]] for n in g.nodes if n.extents}
    short = {d for d in inner.values() if d not in kernel.grid and 1 < kernel.extents[d] < SHORT}
    if len(short) != 1 or not kernel.grid or kernel.extents[row := kernel.grid[-1]] < SQUARE:
        return None
    (along,), loops = short, dict(kernel.loops)
    for n in (n for n, d in inner.items() if d == along):
        dims, order = g.space.dims[n], kernel.loops[n.name]
        if row not in dims:
            return None
        own = dims.index(row)
        loops[n.name] = (*(d for d in order if d != own), own)
    options = RegisterTranspose(transposed=(along,), lanes=_square(g, target))
    tile = list(kernel.tile)
    if kernel.blocks > 1:
        held = min(tile[-1], target.l1.bytes // (8 * kernel.extents[along]))  # rows of 32 bits, of which two copies stay in L1
        sizes = range(max(SQUARE, held // SQUARE * SQUARE), 0, -SQUARE)
        tile[-1] = next((n for n in sizes if kernel.extents[row] % n == 0), sizes[0])
    return replace(kernel, tile=tuple(tile), loops=loops, options=options).weighed(target)


def _transposed_dims(kernel: KernelPlan, g: Group) -> tuple[int, ...]:
    """The kernel dimensions along which operands are contiguous, other than the innermost loop's: blocks transpose these
    operands in registers. Predicates are excluded, since a vector of them has no bytes."""
    found: dict[int, None] = {}
    for node in g.nodes:
        order, dims = loop_order(node), g.space.dims[node]
        for read in (*node.reads, *(() if node.reduced else node.results)):
            if len(read.dims) < 2 or read.dims[-1] == order[-1] or order[-1] not in read.dims:
                continue
            pair = [dims[d] for d in (read.dims[-1], order[-1])]
            if all(d in kernel.grid and kernel.extents[d] >= SQUARE for d in pair) and _bits(read.value) >= 8:
                found[pair[0]] = None
    return tuple(found)


def _small_tables(g: Group, target: Target) -> tuple[int, ...]:
    """The kernel dimensions along which small operands are contiguous that each block reads many times across: a transposed copy
    of one takes less time than reads of single elements, whatever the block's part of it."""
    found: dict[int, None] = {}
    most = target.fit(LoopTiles).block_elements // SHARE
    for node in g.nodes:
        order, dims = loop_order(node), g.space.dims[node]
        for read in node.reads:
            if len(read.dims) < 2 or read.dims[-1] == order[-1] or order[-1] not in read.dims or node.contraction is not None:
                continue
            elements, wide = prod(node.extents[d] for d in read.dims), node.extents[order[-1]] >= NARROW
            if wide and elements <= most and node.iterations >= REUSED * elements and _bits(read.value) >= 8:
                found[dims[read.dims[-1]]] = None
    return tuple(found)


def _square(g: Group, target: Target) -> int:
    """The side of a tile in registers: a vector of the widest element that is read, which has a byte at least."""
    assert target.core is not None
    widest = max(_bits(read.value) for node in g.nodes for read in (*node.reads, *node.results))
    return max(2, min(SQUARE, 8 * target.core.simd_bytes // max(8, widest)))


def _bits(value: ir.Value) -> int:
    element = ir.ShapedType(value.type).element_type
    return 64 if str(element) == "index" else element.width


def _tile(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, transposed: tuple[int, ...]
) -> tuple[tuple[int, ...], str]:
    fit, points = target.fit(LoopTiles), max(1, g.space.parallelism)
    alone = predict(replace(kernel.work, blocks=1), target).time_us
    small = not transposed or all(kernel.extents[d] <= fit.transpose_tile for d in _directions(g))
    if alone < 2 * target.launch.overhead_us and small:  # twice: a small gain is not sure
        whole = tuple(kernel.extents[d] for d in kernel.grid)
        return (
            whole,
            f"one block: {alone:.1f} us of work, and starting a parallel loop takes {target.launch.overhead_us:g} us",
        )
    a_point = max(1.0, sum(n.iterations + n.operations / 8 for n in g.nodes) / points)
    budget = max(1, int(fit.block_elements / a_point))
    per_point = intermediate_bytes(g.nodes, graph, g.space)
    if per_point:
        budget = max(1, min(budget, target.l2.bytes // 4 // per_point))
    budget = max(1, min(budget, ceil(points / (4 * target.units))))
    order = _inner_first(kernel, g)
    tile = {d: 1 for d in kernel.grid}
    directions = [d for d in _directions(g) if d in tile]
    if len(directions) > 1:
        for d in directions:
            tile[d] = min(kernel.extents[d], fit.transpose_tile)
        budget = max(1, budget // prod(tile.values()))
    elif (
        d := _innermost(g)
    ) in tile:  # at least some cache lines along memory, however much work stands behind each element
        along = min(1024, kernel.extents[d] // (4 * target.units))
        if any(n.reduced and d == g.space.dims[n][loop_order(n)[-1]] for n in g.nodes):  # sums of columns: rows go by
            assert target.l1 is not None
            along = min(target.l1.bytes // 12, ceil(kernel.extents[d] / target.units))
        tile[d] = min(kernel.extents[d], max(64, along))
        budget = max(1, budget // tile[d])
        budget = _lengthen(kernel, g, tile, budget, fit.piece_bytes)
    for d in (d for d in order if d not in directions or len(directions) < 2):  # square tiles use whole pages of both
        grow = min(ceil(kernel.extents[d] / tile[d]), budget)
        tile[d] = min(kernel.extents[d], tile[d] * grow)
        budget = max(1, budget // grow)
    sizes = tuple(tile[d] for d in kernel.grid)
    why = "squares, transposed in registers" if transposed else f"about {fit.block_elements} elements of work"
    held = f", {per_point * prod(sizes)} bytes of intermediates" if per_point else ""
    extents = tuple(kernel.extents[d] for d in kernel.grid)
    return sizes, f"tiles of {by_sizes(sizes)} of {by_sizes(extents)}: {why}{held}"


def _lengthen(kernel: KernelPlan, g: Group, tile: dict[int, int], budget: int, piece: int) -> int:
    """Grows a tile along the next contiguous dimension of each operand until `piece` bytes of the operand are together.
    Returns the rest of the budget.

    Longer pieces of one operand mean more rows of another at a time. Rows that are a power of two apart share a set of L1,
    and beyond its associativity, lines are evicted before they are full.
    """
    for node, read in _large(g):
        run = _bits(read.value) // 8 or 1
        for d in (g.space.dims[node][d] for d in reversed(read.dims)):
            if d in tile and run < piece:
                grow = min(ceil(kernel.extents[d] / tile[d]), budget, max(1, piece // (run * tile[d])))
                tile[d], budget = min(kernel.extents[d], tile[d] * grow), max(1, budget // grow)
            if tile.get(d, kernel.extents[d]) < kernel.extents[d]:
                break
            run *= kernel.extents[d]
    return budget


def _large(g: Group) -> list[tuple[Node, Read]]:
    """The accesses that determine the speed of memory. A row's sum is no such access beside the row."""
    found = [(node, read) for node in g.nodes for read in (*node.reads, *node.results) if read.dims]
    sizes = [prod(ir.ShapedType(read.value.type).shape) for _, read in found]
    return [access for access, size in zip(found, sizes) if size >= SMALL_OPERAND_THRESHOLD * max(sizes)]


def _directions(g: Group) -> list[int]:
    """The kernel dimensions that are contiguous in memory in some large operand or result."""
    found: dict[int, None] = {}
    for node, read in _large(g):
        if ir.ShapedType(read.value.type).shape[-1] > 1:
            found[g.space.dims[node][read.dims[-1]]] = None
    return list(found)


def _innermost(g: Group) -> int | None:
    """The kernel dimension of the innermost loop of the operation with the most iterations."""
    node = max(g.nodes, key=lambda n: n.iterations)
    order = loop_order(node)
    return g.space.dims[node][order[-1]] if order else None


def _inner_first(kernel: KernelPlan, g: Group) -> list[int]:
    """Grid dimensions: the contiguous ones first, then the others from the last to the first."""
    directions = _directions(g)
    return sorted(kernel.grid, key=lambda d: (d not in directions, -d))
