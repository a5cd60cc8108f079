"""The work of CUDA kernels that a layout deals out to threads, with any tile and options of their family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd, prod

from tilec.analysis.layout import Layout
from tilec.analysis.traffic import LINE, element_bytes
from tilec.core.fitted import Layouts
from tilec.core.hardware import SECTOR, WARP, WIDE, WORD
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost import model as cost
from tilec.cost.row_tiles import Rows as RowProblem
from tilec.cost.row_tiles import (
    RowTile,
    held_registers,
    is_reread,
    loop_registers,
    persistent_ways,
    staged_bytes,
    waiting_bytes,
)
from tilec.cost.rows import row_work
from tilec.kernels import KernelPlan, Rows, Scan, Threaded, Transpose, VectorContraction
from tilec.kernels.rows import part_of
from tilec.plan.cuda.lines import line_bytes
from tilec.plan.cuda.online import online_reductions
from tilec.plan.cuda.scan import ScanTile, scan_intermediate_bytes
from tilec.plan.cuda.view import Access, View
from tilec.plan.cuda.windows import ADDRESSES, work_of_windows

HALF = 0.5  # of the threads of a block: fewer that have nothing to do cost little
SPARED = 8  # registers: the assembler takes so many fewer than are counted
FACTORS = 3.0  # of the time of a product, that a thread takes to load a factor of it without matrix units


@dataclass(frozen=True)
class LaidOut:
    """Weighs the kernels of one group of operations. `lane`: the dimension along which memory is contiguous. `rows`: what a block
    reduces, where that is rows alone, read by single elements or vectors that divide them."""

    view: View
    lane: int | None = None
    rows: RowProblem | None = None

    def __call__(self, kernel: KernelPlan) -> cost.Work:
        view, options = self.view, kernel.options
        assert isinstance(options, Threaded) and kernel.sram is not None
        layout = tile_layout(kernel)
        work = _partly_idle(work_laid_out(kernel, view, layout), view, layout, kernel)
        if isinstance(options, (Transpose, VectorContraction)) and layout.lane != self.lane:  # each element is in a line of its own
            uncoalesced = sum(a.bytes // a.element for a in view.accesses) / max(layout.vectors)
            work = replace(work, shared_bytes=work.shared_bytes + LINE * uncoalesced)
        if isinstance(options, Scan) and self.lane is not None:
            rows = prod(min(t, kernel.extents[d]) for d, t in zip(kernel.grid, kernel.tile))
            tile = ScanTile(layout.threads[self.lane], max(1, rows), layout.steps[self.lane], options.blocks_per_tile)
            work = scan_work(view, self.lane, tile, layout, work)
        if isinstance(options, Rows) and self.rows is not None:
            work = self._row_work(kernel, options, layout, work)
        else:
            held = max((layout.slots(a.dims) for a in view.accesses if not a.written), default=0)
            if layout.dense:  # sums of neighbours, and what their windows share, are held as long as a thread works on them
                held = max(held, work.registers - ADDRESSES)
            rounds, spared = prod(layout.chunks(d) for d in range(len(layout.extents))), SPARED if view.reduced else 0
            work = _within(work, options.registers, held, rounds, spared)
            work = _no_more(work, view.target)
        return replace(work, shared_per_block=max(work.shared_per_block, kernel.sram(kernel)))

    def _row_work(self, kernel: KernelPlan, options: Rows, layout: Layout, own: cost.Work) -> cost.Work:
        assert self.rows is not None and self.lane is not None
        target, vector = self.view.target, options.vectors[self.lane]
        p = replace(self.rows, vector=vector, unaligned=True) if options.unaligned else self.rows
        tile = _row_tile(p, self.lane, kernel, options, layout, target)
        if tile.residency == "memory" and not options.online:
            p = replace(p, joined=0)
        work = row_work(target, p, tile)
        work = replace(work, dram_write=own.dram_write, flops=own.flops, shared_bytes=own.shared_bytes)
        if tile.residency not in ("registers", "memory") or tile.stages or tile.cluster > 1:
            return work
        return _spilling(work, options.registers)


def _partly_idle(work: cost.Work, view: View, layout: Layout, kernel: KernelPlan) -> cost.Work:
    """With the threads that have nothing to do in a block's tile, the loads that a block does not have, and the sectors of memory
    of which a tile has a part."""
    dims = range(len(layout.extents))
    used = prod(layout.extents[d] / (layout.chunks(d) * layout.chunk(d)) for d in dims if layout.extents[d])
    busy = prod(min(1.0, ceil(layout.extents[d] / layout.vectors[d]) / layout.threads[d]) for d in layout.order)
    flight = work.bytes_in_flight * busy
    read, written = (_overhang([a for a in view.accesses if a.written == w], layout) for w in (False, True))
    work = replace(work, bytes_in_flight=flight, dram_read=work.dram_read + read, dram_write=work.dram_write + written)
    if isinstance(kernel.options, VectorContraction):
        rows, columns = (prod(layout.steps[d] * layout.vectors[d] for d in side) for side in _sides(kernel, layout))
        pace = 1 + FACTORS * (rows + columns) / (rows * columns)
        return replace(work, lanes=used, pace={unit: pace for unit in work.flops})
    return replace(work, lanes=work.lanes * min(1.0, 2 * used)) if used < HALF else work


def _sides(kernel: KernelPlan, layout: Layout) -> tuple[list[int], list[int]]:
    """The dimensions of a result that a thread has several elements of: the contiguous one, and the others."""
    own = [d for d in kernel.grid if layout.extents[d] > 1]
    return own[-1:], own[:-1]


def _no_more(work: cost.Work, target: Target) -> cost.Work:
    """With no more in flight than a block loads, where blocks come one after another: else all wait once, as any kernel does."""
    if work.blocks <= cost.occupancy(target, work.threads, work.registers).blocks * target.units:
        return work
    return replace(work, bytes_in_flight=min(work.bytes_in_flight, max(1.0, work.dram_read / (work.blocks * work.threads))))


def _overhang(accesses: list[Access], layout: Layout) -> float:
    """Bytes that move besides those of the accesses."""
    return sum(a.bytes * (_sectors(a, layout) - 1) for a in accesses)


def _sectors(access: Access, layout: Layout) -> float:
    """How many times as much memory moves as an access has bytes, where tiles end within sectors."""
    if not access.dims or access.value is None:
        return 1.0
    inner, shape = access.dims[-1], ir.ShapedType(access.value.type).shape
    run = layout.extents[inner] * access.element
    if layout.extents[inner] >= shape[-1]:
        return 1.0
    return (run + SECTOR - gcd(run, SECTOR)) / run


def tile_layout(kernel: KernelPlan) -> Layout:
    """The layout of a block's tile, of all of a row where several blocks share it."""
    assert isinstance(kernel.options, Threaded)
    tile = dict(zip(kernel.grid, kernel.tile))
    return kernel.options.layout({d: min(tile.get(d, e), e) for d, e in kernel.extents.items()})


def _row_tile(p: RowProblem, lane: int, kernel: KernelPlan, options: Rows, layout: Layout, target: Target) -> RowTile:
    """A kernel's rows as the cost model deals them out."""
    threads, vector, vectors = layout.threads[lane], layout.vectors[lane], layout.steps[lane]
    rows = max(1, prod(kernel.tile))
    row_threads = min(rows, prod(n for d, n in enumerate(layout.threads) if d != lane))
    part = part_of(kernel.extents[lane], options.cluster, vector)
    chunks, stages = options.hybrid_chunks or 0, options.prefetched_rows
    whole, elements = layout.whole(range(len(layout.extents))), vectors * vector
    residency, shared = "registers" if whole else "memory", 0
    if options.residency == "smem":
        residency, shared = "sram", waiting_bytes(p, part - chunks * elements * threads)
    elif stages or options.cluster > 1:
        residency, shared = "registers", staged_bytes(p, part, stages)
    elif options.residency == "reload":
        residency = "reload" if whole and is_reread(target, p) else "memory"
    registers = options.registers or 0
    if residency == "registers" and not (stages or options.cluster > 1):
        registers = held_registers(target, p, elements, options.packed)
    elif residency == "memory":
        registers = loop_registers(target, p, threads, elements)
    tile = RowTile(
        threads, vector, rows, vectors, options.cluster, residency, registers, stages, options.persistent_blocks, options.packed,
        shared, bool(options.unaligned), chunks, rows_each=-(-rows // row_threads),
    )  # fmt: skip
    if not stages:
        return tile
    at_once = cost.occupancy(target, threads, registers, shared).blocks
    return replace(tile, persistent_blocks=min(tile.persistent_blocks, max(1, persistent_ways(target, tile.cluster, at_once))))


def scan_work(view: View, lane: int, tile: ScanTile, layout: Layout, work: cost.Work) -> cost.Work:
    """Of rows that threads, warps and blocks share, where intermediates that threads do not hold are in shared memory (`fit`
    refuses what takes more)."""
    assert view.target.sm is not None
    held = replace(layout, blocks_per_row=tile.blocks_per_row).whole([lane])
    kept_here = 0 if held else min(scan_intermediate_bytes(view), view.target.sm.shared_per_block)
    return tile.work(work, work.blocks, kept_here, layout.vectors[lane], view.target)


def _within(work: cost.Work, limit: int | None, held: int, rounds: int, spared: int) -> cost.Work:
    """With no more registers than the limit allows. Elements `held` at a time that have none are stored, and loaded again, in each
    of a thread's rounds."""
    if limit is None:
        return work
    if limit + spared < work.registers:  # more threads at a time, each with fewer loads
        share = max(0.25, limit / work.registers)
        work = replace(work, registers=limit, bytes_in_flight=work.bytes_in_flight * share)
    if (words := held - limit) <= 0:
        return work
    moved = 2.0 * WORD * words * rounds * work.threads * work.blocks
    return replace(work, l2_bytes=max(work.l2_bytes, work.dram_read + work.dram_write) + moved)


def _spilling(work: cost.Work, limit: int | None) -> cost.Work:
    """The same of threads that keep a row's elements: what has no register is stored, and loaded again."""
    if limit is None or limit + SPARED >= work.registers:
        return work
    words = (work.registers - SPARED - limit) * work.threads * work.blocks
    moved = max(work.l2_bytes, work.dram_read + work.dram_write)
    return replace(work, registers=limit, l2_bytes=moved + 2 * WORD * words)


def work_laid_out(kernel: KernelPlan, view: View, layout: Layout) -> cost.Work:
    """The work of the kernel with this layout."""
    sm = view.target.sm
    assert sm is not None
    covered = [n.name for n in online_reductions(view)] if isinstance(kernel.options, Threaded) and kernel.options.online else []
    reread = sum(
        a.bytes * (len({covered[0] if n in covered else n for n in a.readers}) - 1)
        for a in view.accesses
        if not a.written and not layout.whole(a.dims)
    )
    flight = sum(min(WIDE, layout.slots(a.dims) * a.element) for a in view.accesses if not a.written)
    held = max((layout.slots(a.dims) * max(1, a.element // 4) for a in view.accesses), default=0)
    gathered = sum(min(n.iterations * 4, _value_bytes(v)) for n in view.group.nodes for v in set(n.extracts))
    read = sum(a.bytes for a in view.accesses if not a.written) + gathered
    staged = (Transpose, VectorContraction)  # what lies apart goes through shared memory, or counts as arithmetic
    registers = 40 + held + _gathered(view, layout) if view.reduced else min(32, 16 + held)
    work = replace(
        view.kernel.work, blocks=max(1, kernel.blocks), threads=layout.block, shared_per_block=0, dram_read=read + reread,
        registers=min(168, sm.registers // layout.block, registers),
        bytes_in_flight=max(16, flight * max(1, max(layout.steps, default=1))),
        shared_bytes=0.0 if isinstance(kernel.options, staged) else sum(line_bytes(view, layout).values()),
        warp_clocks=view.target.fit(Layouts).warp_clocks,
    )  # fmt: skip
    work = replace(work, serial_us=_waiting_us(view, layout, work))
    return work_of_windows(view, layout, dict(zip(kernel.grid, kernel.tile)), work) if layout.dense else work


def _gathered(view: View, layout: Layout) -> int:
    """Elements at computed subscripts that a thread holds at a time, of a reduction: those of all its steps, each in a register."""
    dims = view.group.space.dims
    return max((layout.slots(dims[n]) * len({*n.extracts}) for n in view.group.nodes if n.reduced and n.extracts), default=0)


def _waiting_us(view: View, layout: Layout, work: cost.Work) -> float:
    """Microseconds that blocks wait for loads one after another, in loops in which fewer threads than a warp have elements of their
    own: a latency for each line of memory, but for the first."""
    lines = 0.0
    for node in view.group.nodes:
        loaders = prod(layout.threads[d] for d in view.group.space.dims[node])
        if loaders < WARP:
            read = [a for a in view.accesses if node.name in a.readers]
            lines += max((_lines(a, layout) - 1 for a in read), default=0.0)
    at_once = cost.occupancy(view.target, work.threads, work.registers).blocks * view.target.units
    return 1e-3 * view.target.dram.latency_ns * max(0.0, lines) * ceil(work.blocks / max(1, at_once))


def _lines(access: Access, layout: Layout) -> float:
    """Lines of memory that a block reaches one after another."""
    covered = prod(layout.threads[d] for d in access.dims) * layout.slots(access.dims) * access.element
    return prod(layout.chunks(d) for d in access.dims) * min(1.0, covered / LINE)


def _value_bytes(value: ir.Value) -> int:
    shaped = ir.ShapedType(value.type)
    return prod(shaped.shape) * element_bytes(shaped.element_type)
