"""The work of CUDA kernels that a layout deals out to threads, with any tile and options of their family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd, prod

from tilec.analysis.graph import Node
from tilec.analysis.layout import Layout
from tilec.analysis.traffic import LINE, OVERHEAD, bytes_of, element_bytes
from tilec.core.fitted import Layouts, RowTimes
from tilec.core.hardware import SECTOR, SLOT, WARP, WIDE, WORD
from tilec.core.mlir import ir
from tilec.core.registers import compiled
from tilec.core.target import Target
from tilec.cost import model as cost
from tilec.cost.blame import ARITHMETIC
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
from tilec.kernels import Columns, KernelPlan, Points, Rows, Scan, Threaded, Transpose, VectorContraction
from tilec.kernels.rows import part_of
from tilec.plan.cuda.block_order import reread_bytes
from tilec.plan.cuda.lines import UNCOALESCED, cut_sectors, lanes_at_work, line_bytes, slot_bytes
from tilec.plan.cuda.online import online_reductions
from tilec.plan.cuda.outer_products import work_of_products
from tilec.plan.cuda.scan import ScanTile, scan_intermediate_bytes
from tilec.plan.cuda.view import Access, View, scattered
from tilec.plan.cuda.windows import words_of_windows, work_of_windows

LEAST = 16  # registers of a thread besides the elements that it holds: with fewer it spills (cubins of ptxas 13)
LOADING = 8  # the same while it only loads, for addresses
WRITTEN_OUT = 300  # instructions of a loop of known length that LLVM unrolls as a whole (`UnrollThreshold`, LoopUnrollPass.cpp)


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
        if isinstance(options, Transpose) and layout.lane != self.lane:  # each element is in a line of its own
            uncoalesced = sum(a.bytes // a.element for a in view.accesses) / max(layout.vectors)
            work = replace(work, shared_bytes=work.shared_bytes + LINE * uncoalesced)
        if isinstance(options, Scan) and self.lane is not None:
            rows = prod(min(t, kernel.extents[d]) for d, t in zip(kernel.grid, kernel.tile))
            tile = ScanTile(layout.threads[self.lane], max(1, rows), layout.steps[self.lane], options.blocks_per_tile)
            work = scan_work(view, self.lane, tile, layout, work)
        if isinstance(options, Rows) and self.rows is not None:
            work = self._row_work(kernel, options, layout, work)
        else:
            work = _within(work, view, layout, options)
            if isinstance(options, VectorContraction):
                work = work_of_products(work, view, layout)
            work = _no_more(work, view.target)
            if isinstance(options, (Points, Columns)):
                work = _waiting(work, view)
        return replace(work, shared_per_block=max(work.shared_per_block, kernel.sram(kernel)))

    def _row_work(self, kernel: KernelPlan, options: Rows, layout: Layout, own: cost.Work) -> cost.Work:
        assert self.rows is not None and self.lane is not None
        target, vector = self.view.target, options.vectors[self.lane]
        p = replace(self.rows, vector=vector, unaligned=True) if options.unaligned else self.rows
        tile = _row_tile(p, self.lane, kernel, options, layout, target)
        if tile.residency == "memory" and not options.online:
            p = replace(p, joined=0)
        work = row_work(target, p, tile)
        cut = target.fit(RowTimes).cut_sectors * SECTOR * cut_sectors(self.view, layout, self.lane)
        work = replace(work, l2_bytes=max(work.l2_bytes, work.dram_read + work.dram_write) + cut if cut else work.l2_bytes)
        return replace(work, dram_write=own.dram_write, flops=own.flops, shared_bytes=own.shared_bytes)


def _partly_idle(work: cost.Work, view: View, layout: Layout, kernel: KernelPlan) -> cost.Work:
    """With the threads that have nothing to do in a block's tile, the loads that a block does not have, and the sectors of memory
    of which a tile has a part."""
    busy = _busy(layout)
    read, written = (_overhang([a for a in view.accesses if a.written == w], layout) for w in (False, True))
    flight = work.bytes_in_flight * busy * (1 + read / work.dram_read if work.dram_read else 1)
    read, written, l2_bytes = work.dram_read + read, work.dram_write + written, work.l2_bytes
    if isinstance(kernel.options, (Points, Columns)) and (slots := slot_bytes(view, layout)):
        l2_bytes = max(l2_bytes, read + written) + slots
    lanes = work.lanes * lanes_at_work(layout)
    return replace(work, bytes_in_flight=flight, lanes=lanes, dram_read=read, dram_write=written, l2_bytes=l2_bytes)


def _busy(layout: Layout) -> float:
    """The share of a block's threads that have elements."""
    return prod(min(1.0, ceil(layout.extents[d] / layout.vectors[d]) / layout.threads[d]) for d in layout.order)


def _waiting(work: cost.Work, view: View) -> cost.Work:
    """With the time that loads are on their way. Neighbours that a thread reads have been loaded by others, or by itself: it waits
    for memory first, and then for the L2 cache, as conditions around such loads keep them where they are used."""
    near = any(n.extracts for n in view.group.nodes) * view.target.l2.latency_ns
    return replace(work, latency_ns=view.target.fit(Layouts).latency_ns, stall_ns=work.stall_ns + near)


def _no_more(work: cost.Work, target: Target) -> cost.Work:
    """With no more in flight than a block loads, where blocks come one after another: else all wait once, as any kernel does."""
    if work.blocks <= cost.occupancy(target, work.threads, work.registers).blocks * target.units:
        return work
    return replace(work, bytes_in_flight=min(work.bytes_in_flight, max(1.0, work.dram_read / (work.blocks * work.threads))))


def _overhang(accesses: list[Access], layout: Layout) -> float:
    """Bytes that move besides those of the accesses."""
    return sum(a.bytes * (_sectors(a, layout) - 1) for a in accesses)


def _sectors(access: Access, layout: Layout) -> float:
    """How many times as much memory moves as an access has bytes, where tiles end within sectors. Where a reduction has a pass
    over memory for each part of a line, each fetches at least what the L2 cache does (`cudaLimitMaxL2FetchGranularity`)."""
    if not access.dims or access.value is None:
        return 1.0
    inner, shape = access.dims[-1], ir.ShapedType(access.value.type).shape
    run = layout.extents[inner] * access.element
    if layout.extents[inner] >= shape[-1]:
        return 1.0
    if layout.chunks(inner) > 1 and any(layout.chunks(d) > 1 for d in access.dims[:-1]):
        part = layout.chunk(inner) * access.element
        ends = [min(part, run - start) for start in range(0, run, part)]
        return sum(end + SLOT - gcd(end, run, SLOT) for end in ends) / run
    return (run + SECTOR - gcd(run, SECTOR)) / run


def tile_layout(kernel: KernelPlan) -> Layout:
    """The layout of a block's tile, of all of a row where several blocks share it."""
    assert isinstance(kernel.options, Threaded)
    tile = dict(zip(kernel.grid, kernel.tile))
    return kernel.options.layout({d: min(tile.get(d, e), e) for d, e in kernel.extents.items()})


def _row_tile(p: RowProblem, lane: int, kernel: KernelPlan, options: Rows, layout: Layout, target: Target) -> RowTile:
    """A kernel's rows as the cost model deals them out."""
    threads, vector = layout.threads[lane], layout.vectors[lane]
    rows = max(1, prod(kernel.tile))
    row_threads = min(rows, prod(n for d, n in enumerate(layout.threads) if d != lane))
    part = part_of(kernel.extents[lane], options.cluster, vector)
    vectors = min(layout.steps[lane], max(1, ceil(p.padded_extent(part) / (threads * vector))))
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
    if residency in ("registers", "memory") and not stages:
        wanted = held_registers(target, p, elements, options.packed)
        wanted = wanted if residency == "registers" else loop_registers(target, p, threads, elements)
        least = LEAST + int(elements * (p.element_bytes / WORD if options.packed or p.element_bytes > WORD else 1))
        registers = compiled(options.registers, max(WARP, layout.block), least, wanted)
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


def _held(view: View, layout: Layout, options: Threaded) -> int:
    """Words that a thread holds at a time, which are in registers or spill: sums, or all elements of a round that it needs twice.
    Without a reduction it stores what it has read before it loads more; what it reads at computed subscripts comes first."""
    if isinstance(options, VectorContraction):
        return 0
    if view.reduced and (options.online or view.scanned):  # a total first, and then what depends on it
        return max((layout.slots(a.dims) for a in view.accesses if not a.written), default=0)
    if view.reduced:
        return layout.slots(view.kernel.grid)
    lane, found = layout.lane_dim, 0
    if lane is None:
        return 0
    for node in view.group.nodes:
        vectors = len(node.extracts) - scattered(node, view, lane)
        found += layout.slots(view.group.space.dims[node]) * (1 + vectors) if node.extracts and vectors > 0 else 0
    return found


def _within(work: cost.Work, view: View, layout: Layout, options: Threaded) -> cost.Work:
    """With the registers that the kernel is compiled with. Words that a thread holds without a register are stored, and loaded
    again, in each of its rounds. As many of those that it loads are on their way as have registers."""
    held, wanted, loaded = _held(view, layout, options), work.registers, work.bytes_in_flight / WORD
    if layout.dense:  # windows share elements, which are loaded into several registers; half have come before the others leave
        loaded = words_of_windows(view, layout)
        wanted = LEAST + held + ceil(loaded / 2)
    registers = compiled(options.registers, work.threads, LEAST + held, wanted)
    share = max(WORD, registers - LOADING - held * (loaded > held)) / max(WORD, loaded)
    work = replace(work, registers=registers, bytes_in_flight=work.bytes_in_flight * min(1.0, share))
    if (words := LEAST + held - registers) <= 0:
        return work
    rounds = prod(layout.chunks(d) for d in range(len(layout.extents)))
    moved = 2.0 * WORD * words * rounds * work.threads * work.blocks
    return replace(work, l2_bytes=max(work.l2_bytes, work.dram_read + work.dram_write) + moved)


def work_laid_out(kernel: KernelPlan, view: View, layout: Layout) -> cost.Work:
    """The work of the kernel with this layout."""
    sm = view.target.sm
    assert sm is not None
    covered = [n.name for n in online_reductions(view)] if isinstance(kernel.options, Threaded) and kernel.options.online else []
    reread = sum(
        a.bytes * (len({view.nests[covered[0] if n in covered else n] for n in a.readers}) - 1)
        for a in view.accesses
        if not a.written and not layout.whole(a.dims)
    )
    if isinstance(kernel.options, Points):
        reread += reread_bytes(view, kernel.grid, kernel.tile)
    held = max((layout.slots(a.dims) * max(1, a.element // 4) for a in view.accesses), default=0)
    dims, whole = view.group.space.dims, {a.value for a in view.accesses}  # read once, also where others ask for neighbours
    flight = sum(layout.slots(a.dims) * a.element for a in view.accesses if not a.written)
    extracts = [(n, v) for n in view.group.nodes for v in set(n.gathered) - whole]
    flight += sum(layout.slots(dims[n]) * element_bytes(v.type) for n, v in extracts)
    gathered = sum(min(n.iterations * 4, bytes_of(v)) for n, v in extracts)
    read = sum(a.bytes for a in view.accesses if not a.written) + gathered
    near = 0 if isinstance(kernel.options, VectorContraction) else UNCOALESCED  # factors are loaded for a few products each
    registers = 40 + held + _gathered(view, layout) if view.reduced else min(32, 16 + held)
    registers, flight = min(168, sm.registers // layout.block, registers), flight * _written_out(view, layout) or WIDE
    if view.reduced:
        flight = min(flight, WORD * max(WORD, registers - LOADING))
    work = replace(
        view.kernel.work, tiled=True, blocks=max(1, kernel.blocks), threads=layout.block, registers=registers, shared_per_block=0,
        dram_read=read + reread, bytes_in_flight=flight,
        shared_bytes=0.0 if isinstance(kernel.options, Transpose) else sum(line_bytes(view, layout, near).values()),
        warp_clocks=view.target.fit(Layouts).warp_clocks,
    )  # fmt: skip
    work = replace(work, serial_us=_waiting_us(view, layout, work) + _left_over_us(view, layout, work))
    if covered:
        work = replace(work, stall_ns=_between_loads_ns(view, layout, work))
    return work_of_windows(view, layout, dict(zip(kernel.grid, kernel.tile)), work) if layout.dense else work


def _between_loads_ns(view: View, layout: Layout, work: cost.Work) -> float:
    """Nanoseconds that a block computes between the loads of a round and those of the next, of joined reductions, which wait for
    one another: nothing hides that where an SM has one block."""
    rounds = prod(layout.chunks(d) for d in view.reduced)
    if rounds < 2 or work.blocks > view.target.units:
        return 0.0
    terms = cost.predict(replace(work, serial_us=0.0), view.target).terms
    return 1e3 * max((us for name, us in terms.items() if name in ARITHMETIC), default=0.0) / rounds


def _written_out(view: View, layout: Layout) -> int:
    """Rounds of a thread whose loads are on their way together: of short loops, which compilers unroll, and in which no load has a
    condition or an address of its own."""
    nodes, rounds = view.group.nodes, prod(layout.chunks(d) for d in range(len(layout.extents)))
    if view.reduced or view.scanned or any(n.extracts for n in nodes):
        return 1
    instructions = sum((n.instructions + OVERHEAD) * layout.slots(view.group.space.dims[n]) for n in nodes)
    return rounds if rounds * instructions <= WRITTEN_OUT else 1


def _gathered(view: View, layout: Layout) -> int:
    """Elements at computed subscripts that a thread holds at a time, of a reduction: those of all its steps, each in a register."""
    dims = view.group.space.dims
    return max((layout.slots(dims[n]) * len({*n.gathered}) for n in view.group.nodes if n.reduced), default=0)


def _waiting_us(view: View, layout: Layout, work: cost.Work) -> float:
    """Microseconds that blocks wait for loads one after another, in loops in which fewer threads than a warp have elements of their
    own: a latency for each line of memory, but for the first."""
    lines = 0.0
    for node in view.group.nodes:
        loaders = prod(layout.threads[d] for d in view.group.space.dims[node])
        if loaders < WARP:
            read = [*(a for a in view.accesses if node.name in a.readers), *_computed(view, node)]
            lines += max([0.0, *(_lines(a, layout) - 1 for a in read)])
    at_once = cost.occupancy(view.target, work.threads, work.registers).blocks * view.target.units
    return 1e-3 * view.target.dram.latency_ns * max(0.0, lines) * ceil(work.blocks / max(1, at_once))


def _left_over_us(view: View, layout: Layout, work: cost.Work) -> float:
    """Microseconds at the end of a kernel of long loops in which the last blocks, where fewer are left than run at a time, wait for
    their loads alone; they count for less in later waves, when blocks no longer start together."""
    most = cost.occupancy(view.target, work.threads, work.registers).blocks * view.target.units
    waves, rest = divmod(work.blocks, max(1, most))
    if not waves or not rest or not view.reduced or view.scanned:
        return 0.0
    rounds = prod(layout.chunks(d) for d in view.reduced)
    each = 1e6 * work.dram_read / work.blocks / view.target.dram.rate(view.target.units)
    return max(0.0, 1e-3 * view.target.dram.latency_ns * (rounds - 1) - rest * each) / waves


def _computed(view: View, node: Node) -> Iterator[Access]:
    """What an operation reads at computed subscripts, by the dimensions that they move with."""
    for reader, value, strides in view.reads:
        if reader is node and value in node.extracts:
            yield Access(tuple(strides), bytes_of(value), element_bytes(value.type), False)


def _lines(access: Access, layout: Layout) -> float:
    """Lines of memory that a block reaches one after another."""
    covered = prod(layout.threads[d] for d in access.dims) * layout.slots(access.dims) * access.element
    return prod(layout.chunks(d) for d in access.dims) * min(1.0, covered / LINE)

