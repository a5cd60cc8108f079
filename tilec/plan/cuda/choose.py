"""Families and layouts of CUDA kernels: which threads of a block compute which elements, and which data stay in registers.

A layout (`tilec/analysis/layout.py`) has for each kernel dimension the number of threads, the elements of one access, and the
unrolled steps. Few shapes cover all operations:

- *rows*: memory is contiguous along a dimension that a block reduces, or has whole. The threads of a block share a row, or
  several rows. Data that later passes read again stay in registers.
- *columns*: memory is contiguous along a grid dimension, and there is a reduction across it. Threads lie along both dimensions,
  and the threads along the reduction combine their states at the end.
- *points*: the same without a reduction. *transpose*: points whose inputs are transposed in shared memory.
- *contractions* without matrix units: outer products in registers.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, attr-defined, union-attr"

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilec.analysis.graph import Graph, Node
from tilec.analysis.layout import Layout
from tilec.core import mlir
from tilec.core.hardware import WIDE, WORD
from tilec.core.mlir import ir
from tilec.core.quantities import by_sizes, count
from tilec.core.target import Target
from tilec.cost import model as cost
from tilec.cost.row_tiles import RowTile, short_rows
from tilec.kernels import Columns, KernelPlan, Points, Rows, Scan, Threaded, Transpose, VectorContraction
from tilec.kernels.threaded import laid_out
from tilec.passes.cuda.threaded.trig_fallback import is_trigonometric
from tilec.plan.chain import is_contraction_chain
from tilec.plan.cuda.block_order import order_of_blocks
from tilec.plan.cuda.by_key import choose_by_key, sorts_keys
from tilec.plan.cuda.chain import choose_chain
from tilec.plan.cuda.choose_contraction import choose_contraction
from tilec.plan.cuda.columns import Tiled, columns
from tilec.plan.cuda.laid_out import LaidOut, scan_work, work_laid_out
from tilec.plan.cuda.lines import stored_across
from tilec.plan.cuda.online import choose_online
from tilec.plan.cuda.rows import SHOWN, RowPlan, alone, choose_rows, describe, row_tiles, ruled_out_rows
from tilec.plan.cuda.scan import ScanPlan, refuse_look_back, ruled_out_scan, scan_intermediate_bytes, scan_tiles
from tilec.plan.cuda.shared_memory import fit, on_chip, too_much
from tilec.plan.cuda.view import (
    HELD,
    THREADS,
    View,
    accesses,
    lane_dim,
    lanes_of_windows,
    lay_out,
    power,
    unrolled,
    vector_of,
)
from tilec.plan.groups import Group, Remark

TRANSPOSE_SIDE = (
    128  # elements of a side of a tile that is transposed in vectors: 256 bytes of memory in both directions
)
WINDOWS_THRESHOLD = 0.97  # of the time of a layout of windows that another with more instructions must take to be chosen
COLUMNS_THRESHOLD = 0.9  # the same of columns, where blocks are smaller
FAST_PATH_MOST = 16  # elements of a thread for which sin and cos are written out twice: more of the full forms fill the registers


def choose(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, pick: int = 0
) -> tuple[KernelPlan, list[Remark]]:
    """Tile sizes and the layout of one kernel: the best, or where several are ranked the `pick`-th best. Raises
    NoFurtherChoice."""
    return choose_with(kernel, g, graph, target, pick, frozenset())


def choose_with(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target, pick: int, ordered: frozenset[ir.Value]
) -> tuple[KernelPlan, list[Remark]]:
    """The same with tensors that are stored in the order of threads: see `View`."""
    view = View(kernel, g, graph, target, accesses(kernel, g, graph), pick, ordered)
    contraction = next((n for n in g.nodes if n.contraction is not None), None)
    if (by_key := next((n for n in g.nodes if sorts_keys(n, target)), None)) is not None:
        if pick:
            raise cost.NoFurtherChoice
        return choose_by_key(view, by_key)
    if is_contraction_chain(g.nodes):
        return choose_chain(kernel, g, graph, target, pick)
    if contraction is not None and (planned := choose_contraction(kernel, g, graph, target, pick)):
        return planned
    if contraction is not None and not (contraction.contraction.m and contraction.contraction.n):
        contraction = None  # each number of both factors is read once
    lane = lane_dim(view)
    if contraction is None and (others := lanes_of_windows(view, lane)):
        first = replace(view, pick=0)
        lane = min((lane, *others), key=lambda d: _laid_out(first, d, None)[0].prediction.time_us)
    return _laid_out(view, lane, contraction)


def _laid_out(view: View, lane: int | None, contraction: Node | None) -> tuple[KernelPlan, list[Remark]]:
    """The kernel with its threads along a dimension."""
    g, target, row = view.group, view.target, None
    kernel = replace(view.kernel, sram=on_chip(view).bytes)
    family: type[Threaded] = Points
    if contraction is not None:
        family, (tile, layout, why) = VectorContraction, _contraction(view, contraction)
    elif lane is None:
        tile, layout, why = {}, lay_out(view, {}, {}, {}, {}), "one thread computes a scalar"
    elif transposed := _transposed_dims(view, lane):
        family, (tile, layout, why) = Transpose, _transpose(view, lane, transposed[0])
    elif lane in kernel.grid:
        family, (tile, layout, why) = Columns if view.reduced else Points, _columns(view, lane)
    else:
        tile, layout, why, row = _rows(view, lane)
        family = Scan if isinstance(row, ScanPlan) else Rows
    if family is Points:
        kernel = replace(kernel, grid=order_of_blocks(view, [tile.get(d, 1) for d in kernel.grid]))
    sizes = tuple(tile.get(d, 1) for d in kernel.grid)
    further = {"transposed": transposed} if family is Transpose else {}
    kernel = replace(kernel, tile=sizes, options=family(**laid_out(layout), **further))
    if lane is not None:
        kernel = replace(kernel, ruled_out=ruled_out_rows(view, lane) | ruled_out_scan(view, lane))
    blocks = row.tile.cluster if isinstance(row, RowPlan) else 1  # that hold a row together
    waits = isinstance(row, RowPlan) and row.tile.residency == "sram"
    kernel = _with(kernel, online=choose_online(view, replace(layout, blocks_per_row=blocks), waits))
    kernel = replace(kernel, weigh=LaidOut(view, lane, row.problem if isinstance(row, RowPlan) else None))
    kernel = replace(kernel, work=work_laid_out(kernel, view, layout))
    if not view.reduced and target.sm is not None:  # small blocks that fill the SM, as long as nothing spills
        kernel = _with(kernel, registers=target.sm.registers // target.sm.threads)
    elif lane is not None and lane in kernel.grid and contraction is None and kernel.blocks > target.units:
        # Room for a second block, which loads while the first waits at its barriers.
        most = target.sm.registers // (2 * layout.block) if target.sm else 0
        kernel = _with(kernel, registers=min(128, max(64, most)))
    if isinstance(row, ScanPlan):
        kernel = replace(_with(kernel, blocks_per_row=row.blocks_per_row), work=row.work)
    elif row is not None:
        kernel = _with_rows(kernel, row)
    if lane is not None and lane in view.reduced and contraction is None and kernel.options.registers is None:
        # Left alone, the assembler takes what registers there are, and one block an SM waits at its own barriers.
        kernel = _with(kernel, registers=max(64, kernel.work.registers // 8 * 8 - 8))
    kernel, smaller = _fitted(kernel, view)
    kernel, trig = _with_trig_path(kernel, g, layout)
    kernel = kernel.weighed(target)
    line = kernel.lines[-1] if kernel.lines else None
    return kernel, [Remark("tiled", kernel.name, why + smaller + trig, line, row.alternatives if row else ())]


def _with(kernel: KernelPlan, **options: Any) -> KernelPlan:
    return replace(kernel, options=replace(kernel.options, **options))


def _fitted(kernel: KernelPlan, view: View) -> tuple[KernelPlan, str]:
    """The kernel with a tile that fits shared memory."""
    fitting, why = fit(kernel, view.target), ""
    if fitting.tile != kernel.tile:
        why = f"; tile reduced to {by_sizes(fitting.tile)}: {too_much(kernel, view.target)}"
    return fitting, why


def _with_trig_path(kernel: KernelPlan, g: Group, layout: Layout) -> tuple[KernelPlan, str]:
    """The option `trig_fast_path`, of kernels with sines and cosines: true where a thread computes all elements by forms that are
    not for huge arguments, and again by the full ones if there was one; false where each element has a branch."""
    of = {n.name: g.space.dims[n] for n in g.nodes if any(map(is_trigonometric, mlir.traverse(n.op)))}
    if not of:
        return kernel, ""
    most = max(layout.slots(dims) for dims in of.values())
    why = f"; sin and cos of a thread's {count(most, 'element')} " + (
        "take one branch" if most <= FAST_PATH_MOST else "take a branch each"
    )
    return _with(kernel, trig_fast_path=most <= FAST_PATH_MOST), why


def _with_rows(kernel: KernelPlan, row: RowPlan) -> KernelPlan:
    """The kernel with its rows mapped to threads as chosen."""
    tile, registers = row.tile, kernel.options.registers
    residency = {"sram": "smem", "reload": "reload"}.get(tile.residency, "registers")
    if tile.cluster > 1 or tile.stages or tile.residency in ("sram", "reload"):
        registers = tile.registers
    elif tile.packed or (tile.residency == "memory" and kernel.options.online):
        registers = max(64, tile.registers)
    if row.problem is not None:
        kernel = replace(kernel, work=replace(kernel.work, registers=tile.registers))
    return _with(
        kernel, cluster=tile.cluster, prefetched_rows=tile.stages, persistent_blocks=tile.persistent_blocks, packed=tile.packed,
        residency=residency, registers=registers, unaligned=tile.unaligned if row.unaligned else None,
        hybrid_chunks=tile.hybrid_chunks if row.hybrid_chunks else None,
    )  # fmt: skip


def _columns(view: View, lane: int) -> Tiled:
    """The layout of which the kernel takes the least time: of those that take nearly as little, the first."""
    found = columns(view, lane)
    if len(found) == 1:
        return found[0]

    def time_us(tiled: Tiled) -> float:
        tile, layout, _ = tiled
        kernel = replace(view.kernel, tile=tuple(tile.get(d, 1) for d in view.kernel.grid))
        return cost.predict(work_laid_out(kernel, view, layout), view.target).time_us

    times = [time_us(tiled) for tiled in found]
    near = WINDOWS_THRESHOLD if found[0][1].dense else COLUMNS_THRESHOLD
    return found[next(n for n, us in enumerate(times) if near * us <= min(times))]


# ---- rows ------------------------------------------------------------------------------------------------------------


def _rows(view: View, lane: int) -> tuple[dict[int, int], Layout, str, RowPlan | ScanPlan]:
    """Threads share a row; several short rows share a block, or several blocks a long one."""
    if lane in view.scanned:
        return _scan_rows(view, lane)
    vector = vector_of(view, lane)
    if alone(view, lane):
        chosen, across = choose_rows(view, lane, vector), ""
        sizes, layout = _thread_mapping(view, lane, chosen.tile)
        if view.pick == 0 and (mapped := _across_rows(view, lane, chosen, layout)) is not None:
            chosen, sizes, layout, across = *mapped, ", threads along rows last"
        return sizes, layout, f"rows of {view.extents[lane]}: {describe(chosen.tile)}{across}", chosen
    found = []  # loops go over several dimensions: what the kernel does then depends on the layout
    for tile in row_tiles(view, lane, vector):
        sizes, layout = _thread_mapping(view, lane, tile)
        if choose_online(view, layout):
            layout = _hold_less(view, lane, layout)
        kernel = replace(view.kernel, tile=tuple(sizes.get(d, 1) for d in view.kernel.grid), options=Rows(**laid_out(layout)))
        work = work_laid_out(_with(kernel, online=choose_online(view, layout)), view, layout)
        found.append((cost.predict(work, view.target).time_us, tile, sizes, layout))
    if view.pick >= len(found):
        raise cost.NoFurtherChoice
    least = min(f[0] for f in found)
    found.sort(key=lambda f: (round(f[0] / least, 2), -f[1].block, f[0]))  # of equal ones the most warps, which hide the most
    _, tile, sizes, layout = found[view.pick]
    others = tuple((describe(t), us) for us, t, *_ in found[:SHOWN])
    return sizes, layout, f"rows of {view.extents[lane]}: {describe(tile)}", RowPlan(tile, others)


def _hold_less(view: View, lane: int, layout: Layout) -> Layout:
    """Fewer steps along other dimensions than the rows': joined reductions hold all that they loaded until they have totals."""
    steps, others = list(layout.steps), [d for d in view.reduced if d != lane]
    while max(replace(layout, steps=tuple(steps)).slots(a.dims) for a in view.accesses if not a.written) > HELD:
        d = max(others, key=steps.__getitem__)
        if steps[d] == 1:
            break
        steps[d] //= 2
    return replace(layout, steps=tuple(steps))


def _across_rows(view: View, lane: int, chosen: RowPlan, layout: Layout) -> tuple[RowPlan, dict[int, int], Layout] | None:
    """The rows with a warp's threads side by side in neighbouring rows, if results are contiguous so, and that takes less time."""
    if not view.kernel.grid or all(a.dims[-1] != view.kernel.grid[-1] for a in stored_across(view, lane)):
        return None

    def time_us(tile: RowTile, sizes: dict[int, int], layout: Layout) -> float:
        options = Rows(**laid_out(layout), registers=tile.registers)
        tiles = tuple(sizes.get(d, 1) for d in view.kernel.grid)
        kernel = replace(view.kernel, tile=tiles, options=options, sram=on_chip(view).bytes)
        return cost.predict(LaidOut(view, lane, chosen.problem)(kernel), view.target).time_us

    own = {d: layout.extents[d] for d in view.kernel.grid}
    found, least = None, time_us(chosen.tile, own, layout)
    for tile in short_rows(view.target, chosen.problem):
        mapped = _thread_mapping(view, lane, tile, across_first=True)
        if (us := time_us(tile, *mapped)) < least:
            found, least = (replace(chosen, tile=tile), *mapped), us
    return found


def _thread_mapping(
    view: View, lane: int, tile: RowTile, across_first: bool = False
) -> tuple[dict[int, int], Layout]:  # fmt: skip
    """The block's tile along grid dimensions, and the layout, for a row tile; consecutive threads lie along a row, or across."""
    across = view.kernel.grid[-1] if view.kernel.grid else None
    counts = {lane: tile.threads}
    if across is not None and tile.rows_per_block > 1:
        counts[across] = power(min(tile.rows_per_block, view.extents[across]))
        counts = dict(reversed(counts.items())) if across_first else counts
    step = unrolled(view, set(view.reduced) - {lane}, tile.vector * tile.vectors) | {lane: tile.vectors}
    ones = dict.fromkeys(view.kernel.grid, 1)
    layout = lay_out(view, counts, {lane: tile.vector}, step, ones | counts, tile.unaligned)
    return {across: counts.get(across, 1)} if across is not None else {}, layout


def _scan_rows(view: View, lane: int) -> tuple[dict[int, int], Layout, str, ScanPlan]:
    """A scan along rows: the lanes of a warp share a row, several rows a block; warps and blocks share few long rows."""
    vector, grid = vector_of(view, lane), view.kernel.grid
    row_bytes, found = scan_intermediate_bytes(view), []
    for tile in scan_tiles(view, lane, vector, THREADS, row_bytes):
        counts = {lane: tile.threads} | ({grid[-1]: tile.rows_per_block} if grid else {})
        steps = unrolled(view, set(view.reduced) - {lane}, vector * tile.steps) | {lane: tile.steps}
        layout = lay_out(view, counts, {lane: vector}, steps, dict.fromkeys(grid, 1) | counts)
        kernel = replace(view.kernel, tile=tuple(counts.get(d, 1) for d in grid))
        work = scan_work(view, lane, tile, layout, work_laid_out(kernel, view, layout))
        found.append((tile, {d: c for d, c in counts.items() if d != lane}, layout, work))
    times = [cost.predict(work, view.target).time_us for *_, work in found]
    if view.pick >= len(found):
        raise cost.NoFurtherChoice
    tile, sizes, layout, work = found[sorted(range(len(found)), key=times.__getitem__)[view.pick]]
    blocks = None if refuse_look_back(view, lane) else tile.blocks_per_row
    others = sorted(((str(t), us) for (t, *_), us in zip(found, times)), key=lambda o: o[1])
    return (
        sizes,
        layout,
        f"a scan: {tile}, {count(vector, 'element')} an access",
        ScanPlan(blocks, work, tuple(others)),
    )


# ---- transposes ------------------------------------------------------------------------------------------------------


def _transposed_dims(view: View, lane: int) -> tuple[int, ...]:
    """Dimensions other than `lane` along which a large input is contiguous: shared memory transposes it."""
    if view.reduced or lane not in view.kernel.grid:
        return ()
    large = [a for a in view.accesses if not a.written and lane in a.dims and a.dims[-1] != lane]
    found = {a.dims[-1] for a in large if min(view.extents[a.dims[-1]], view.extents[lane]) >= 16}
    return tuple(sorted(found, key=lambda d: -view.extents[d]))


def _transpose(view: View, lane: int, other: int) -> tuple[dict[int, int], Layout, str]:
    """Square tiles with 8 elements a thread: whole cache lines in both directions. Narrow elements move by vectors, which
    threads transpose among themselves (`passes/cuda/threaded/transpose.py`; 0.93 to 0.97 of copy, measured on an H200),
    or by words,
    which do not conflict in banks of shared memory."""
    wide = WIDE // max(a.element for a in view.accesses)
    if wide > 4 and all(view.extents[d] % wide == 0 and view.extents[d] >= 64 for d in (lane, other)):
        side = {d: min(TRANSPOSE_SIDE, power(view.extents[d] + 1) // 2) for d in (lane, other)}
        result = next(a.dims for a in view.accesses if a.written)
        counts = {lane: side[lane] // wide}
        if len(result) > 2 and result[-1] == lane and (next_dim := result[-2]) != other and side[lane] < TRANSPOSE_SIDE:
            # a short row of the result: with what lies behind it
            side[next_dim] = counts[next_dim] = min(
                TRANSPOSE_SIDE // side[lane], power(view.extents[next_dim] + 1) // 2
            )
        counts[other] = side[lane] // 2
        steps = {lane: 1, other: max(1, side[other] // counts[other])}
        layout = lay_out(view, counts, {lane: wide}, steps, side)
        return side, layout, f"tiles of {side[lane]} x {side[other]}, transposed in vectors of {wide} elements"
    vector = max(1, WORD // max(a.element for a in view.accesses))
    while view.extents[lane] % vector or view.extents[other] % vector:
        vector //= 2
    side = {d: min(64, power(view.extents[d])) for d in (lane, other)}
    counts = {lane: min(32, side[lane] // vector), other: min(16, side[other])}
    steps = {d: side[d] // counts[d] // (vector if d == lane else 1) for d in side}
    layout = lay_out(view, counts, {lane: vector}, steps, side)
    return (
        side,
        layout,
        f"tiles of {side[lane]} x {side[other]}, transposed in shared memory, {count(vector, 'element')} an access",
    )


# ---- contractions ----------------------------------------------------------------------------------------------------


def _contraction(view: View, node: Node) -> tuple[dict[int, int], Layout, str]:
    """Outer products in registers: a thread has some rows and columns of the result, and loads their factors.

    The matrix units' path takes over where it applies; this one is for every type and every form of the factors.
    """
    dims, c = view.group.space.dims[node], node.contraction
    sides = [[dims[d] for d in side] for side in (c.m, c.n)]
    outs = [a.dims[-1] for a in view.accesses if a.written and a.dims]
    lane = next((d for d in outs if d in sides[0] + sides[1]), sides[1][-1])
    other = max(sides[0] if lane in sides[1] else sides[1], key=lambda d: (view.extents[d], d))
    vector = 4
    while vector > 1 and view.extents[lane] % vector:
        vector //= 2
    counts = {lane: min(16, power(view.extents[lane] / vector))}
    counts[other] = min(THREADS // counts[lane], power(view.extents[other] / 4))
    rows = min(4, power(view.extents[other] / counts[other]))
    wide = 4 // vector
    steps = {d: 1 for d in view.reduced} | {dims[c.k[-1]]: 4, other: rows, lane: wide}
    tile = {lane: counts[lane] * vector * wide, other: counts[other] * rows}
    layout = lay_out(view, counts, {lane: vector}, steps, tile)
    return (
        tile,
        layout,
        f"{tile[other]} x {tile[lane]} results a block, {rows} x {wide * vector} a thread, without matrix units",
    )
