"""The cost of kernels that reduce along rows, by the threads of a row and by its residency between passes."""

from __future__ import annotations

from math import ceil, hypot, log2

from tilec.core.fitted import Barriers, PersistentRows, RowTimes, SmemRows
from tilec.core.target import Target
from tilec.cost.model import Choice, Prediction, Work, occupancy, predict, ranked, round_up
from tilec.cost.row_tiles import Rows, RowTile, row_candidates

L1_MISSES = 0.02  # of these lines
L1_SHARE = 0.75  # of an SM's memory that rows find room in beside what blocks have in shared memory
_END = 4  # instructions for an element at a row's end besides its own, which no other of the warp has


def row_work(target: Target, p: Rows, tile: RowTile) -> Work:
    """One read and one write of everything; more if rows do not stay on chip. A reduction stalls the loads of its block."""
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    padded = tile.cluster * round_up(p.padded_extent(ceil(p.length / tile.cluster)), tile.vector * tile.threads)
    flops = {u: n * p.rows * p.length for u, n in p.flops.items()}
    blocks = ceil(p.rows / tile.rows_per_block) * tile.cluster
    if target.core is not None:
        moved, in_l1 = p.passes * once + written, tile.residency == "l1"
        return Work(
            once * (p.passes if tile.residency == "dram" else 1), written, flops=flops, blocks=blocks, lanes=p.length / padded,
            working_set=once + written, l2_bytes=0 if in_l1 else moved, shared_bytes=moved if in_l1 else 0,
        )  # fmt: skip
    if tile.stages:
        return _persistent(target, p, tile)
    if tile.residency == "sram":
        return _waiting(target, p, tile)
    times, barriers = target.fit(RowTimes), target.fit(Barriers)
    barrier = barriers.warp_ns if tile.threads <= 32 else barriers.block_ns
    barrier = barriers.cluster_ns if tile.cluster > 1 else barrier
    passes = p.passes - (p.joined if tile.residency == "memory" else 0)
    looped = tile.residency == "memory" and passes == 1
    rounds = ceil(p.length / (tile.threads * tile.vector * tile.vectors)) if looped else 1  # of loads
    shuffles = 2.0 * p.rows * p.passes * tile.threads * tile.cluster * log2(max(2, min(32, tile.threads)))
    if tile.unaligned:  # warps with an end of a row go through its elements one by one
        ends = p.rows * tile.vector * min(32, tile.threads) * (1 if tile.vectors == 1 else 2)
        shuffles += _END * p.passes * ends
    reads, block, reread = float(once), tile.block, passes - 1.0
    resident = occupancy(target, max(32, block), tile.registers, tile.shared).blocks
    many = blocks > resident * target.units
    exposed = times.exposed_alone if resident == 1 else times.exposed_shared
    flight = min(tile.vectors, 8) * tile.vector * p.element_bytes * p.reads * p.length / padded
    if tile.residency == "memory":
        held = occupancy(target, block, tile.registers).blocks * target.units * tile.rows_per_block
        near = occupancy(target, block, tile.registers).blocks * tile.rows_per_block * p.length * p.element_bytes * p.reads
        misses = min(1.0, held * p.length * p.element_bytes * p.reads / target.l2.bytes)  # the lines that others have replaced
        if near <= L1_SHARE * target.multiprocessor.shared_bytes:  # a row's own lines are still in L1
            misses, reread = min(misses, L1_MISSES), L1_MISSES * reread
        reads *= 1 + misses * (passes - 1)
    reads *= 1 + _scattered(target, p, tile, rounds)
    return Work(
        dram_read=reads,
        dram_write=written - (times.unwritten * target.l2.bytes if tile.residency == "reload" else 0),
        l2_bytes=written + once * (1 + reread if tile.residency == "memory" else 1),
        flops={**flops, "int": flops.get("int", 0) + shuffles},
        blocks=blocks,
        units=target.units
        if tile.cluster == 1
        else target.multiprocessor.clusters(tile.cluster, resident) * tile.cluster // resident,
        threads=block,
        registers=tile.registers,
        bytes_in_flight=flight,
        # a cluster meets before it starts; of the arithmetic, the loads of other blocks hide most
        stall_ns=(barrier * (max(1, passes - 1) + (tile.cluster > 1)) + 1e3 * exposed * _busy_us(target, p, tile))
        / (rounds * tile.rows_each),
        lanes=p.length / padded,
        shared_per_block=tile.shared,
        serial_us=_left_over(target, p, tile, blocks, rounds)
        + _realigning_us(target, p, tile, once + written)
        + (0.0 if many else times.element_us * p.passes * tile.vectors * tile.vector),
    )


def _realigning_us(target: Target, p: Rows, tile: RowTile, moved: float) -> float:
    """The time that shows of moving the elements of operands that all rows share to where those of unaligned rows are."""
    if not (tile.unaligned and p.common):
        return 0.0
    instructions = target.fit(RowTimes).realigned * p.common * p.rows * p.length
    move_us = 1e6 * moved / target.dram.rate(target.units)
    return hypot(move_us, instructions / (target.units * target.multiprocessor.issued * target.clock_ghz * 1e3)) - move_us


def _left_over(target: Target, p: Rows, tile: RowTile, blocks: int, rounds: int) -> float:
    """Microseconds at the end of a kernel that only reads in which too little is on its way. Blocks end one after another
    over a share of the time that one is at work; and the last ones, where fewer are left than run at a time, go through their
    rows alone, which counts for less in later waves, when blocks no longer start together."""
    if p.writes or tile.cluster > 1:
        return 0.0
    block = tile.block
    most = occupancy(target, max(32, block), tile.registers, tile.shared).blocks * target.units
    waves, rest = divmod(blocks, most)
    each = 1e6 * tile.rows_per_block * p.length * p.element_bytes * p.reads / target.dram.rate(target.units)
    ending = target.fit(RowTimes).ending * min(blocks / 2, most) * each
    if not waves or not rest:
        return ending
    alone = 1e-3 * rounds * (target.dram.latency_ns + target.fit(Barriers).block_ns)
    alone += _busy_us(target, p, tile) * target.multiprocessor.issued / min(target.multiprocessor.issued, block)
    return max(ending, (alone - rest * each) / waves)


def _scattered(target: Target, p: Rows, tile: RowTile, rounds: int) -> float:
    """The share by which reads slow down if blocks read at distant addresses, each in the middle of its row. It is larger
    if a block requests less at a time."""
    if rounds == 1:
        return 0.0
    piece = tile.threads * tile.vector * p.element_bytes * (tile.vectors if tile.threads >= 32 else 1)
    fit = target.fit(RowTimes)
    return fit.scatter / (1 + piece / fit.scatter_bytes)


def _busy_us(target: Target, p: Rows, tile: RowTile, special: float = 5) -> float:
    """The time of a block's arithmetic on its rows on one SM, by issued instructions, as many as `special` for the special
    function of an element."""
    issued = 2 * sum(n for u, n in p.flops.items() if u != "special") + special * p.flops.get("special", 0)
    return issued * p.length * tile.rows_per_block / tile.cluster / (target.multiprocessor.issued * target.clock_ghz * 1e3)


def _waiting(target: Target, p: Rows, tile: RowTile) -> Work:
    """Rows in shared memory: memory is idle for a share of the time that it moves data. If an SM has several blocks, the
    start, end and exchange of one hide behind the loads of the others. A block alone shows its arithmetic between its
    loads and stores. Operands that all rows share are read for each row, later in larger clusters."""
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    fit, resident = target.fit(SmemRows), max(1, occupancy(target, tile.threads, tile.registers, tile.shared).blocks)
    common = fit.common * p.common * (1 + (tile.cluster - 1) / fit.common_blocks)
    if tile.cluster > 1:
        share = fit.cluster + common
        share += fit.cluster_block * (tile.cluster - 1) * max(0.0, fit.hiding_blocks / resident - 1)
    elif resident > 1:
        share = fit.several + fit.several_common * common
    else:
        share = fit.alone + common + fit.alone_pass * (p.passes - 2)
        share += fit.alone_special * max(0.0, p.flops.get("special", 0) - 1)
    share += fit.idle * max(0.0, fit.threads / (tile.threads * resident) - 1)
    share += tile.unaligned * (fit.unaligned + fit.realigned * p.common * (p.passes - 2))
    return Work(
        dram_read=once,
        dram_write=written,
        l2_bytes=once + written + p.common * p.rows * p.length * p.element_bytes,
        flops={u: n * p.rows * p.length for u, n in p.flops.items()},
        blocks=p.rows * tile.cluster,
        threads=tile.threads,
        registers=tile.registers,
        bytes_in_flight=p.length * p.element_bytes * p.reads / (tile.threads * tile.cluster),
        serial_us=share * 1e6 * (once + written) / target.dram.rate(target.units),
        shared_per_block=tile.shared,
    )


def _persistent(target: Target, p: Rows, tile: RowTile) -> Work:
    """Blocks that go from row to row: memory is always busy, but for its waits for one row's work.

    A round of rows makes memory wait for a share of the time that it moves, however rows are mapped to threads;
    Little's law with one row in flight a block turns that into time, as for all loads. With little arithmetic between them,
    loads and stores of many blocks meet; threads that others do not hide, and large clusters, wait longer. The
    last round has the memory for itself. Operands that all rows share are read once a block. Of rows that are unaligned, or
    read by single elements, some of the arithmetic shows: that on addresses and on the rows' ends.
    """
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    blocks = tile.persistent_blocks * tile.cluster
    part = p.length / tile.cluster
    rounds = p.rows / tile.persistent_blocks
    move_us = (once + written) / target.dram.rate(target.units) * 1e6
    fit = target.fit(PersistentRows)
    share = fit.cluster if tile.cluster > 2 else fit.block
    if tile.cluster > 2 and p.writes:
        resident = max(1, occupancy(target, tile.threads, tile.registers, tile.shared).blocks)
        idle = fit.idle * max(0.0, fit.threads / (tile.threads * resident) - 1) - fit.several * (resident > 1)
        waits = 1 + idle + fit.large * (tile.cluster > fit.large_blocks)
        share *= min(fit.most, fit.passes / (p.passes + 1)) * waits
    wait_ns = max(fit.latencies * target.dram.latency_ns, share * 1e3 * move_us / rounds)
    last_round = fit.last_round if p.writes and rounds > fit.last_rounds else 1
    single = tile.vector == 1 and p.element_bytes <= 4 and p.passes > 1
    shows = fit.unaligned if tile.unaligned else fit.narrow * single
    special = target.multiprocessor.issued / target.rates.special
    busy_us = _busy_us(target, p, tile, special=special) * p.rows * tile.cluster / target.units
    return Work(
        dram_read=once,
        dram_write=written,
        l2_bytes=once + written + blocks * p.common * part * p.element_bytes,
        flops={u: n * p.rows * p.length for u, n in p.flops.items()},
        blocks=blocks,
        threads=tile.threads,
        registers=tile.registers,
        bytes_in_flight=part * p.element_bytes * p.reads / tile.threads,
        stall_ns=wait_ns - target.dram.latency_ns,
        serial_us=last_round * move_us * (ceil(rounds) / rounds - 1) + fit.start_us
        + hypot(move_us, shows * busy_us) - move_us,
        shared_per_block=tile.shared,
    )


def row_cost(target: Target, problem: Rows, tile: RowTile) -> Prediction:
    return predict(row_work(target, problem, tile), target)


def choose(target: Target, *problems: Rows) -> list[Choice[RowTile]]:
    """All candidates, cheapest first; of several problems where rows can be read in several ways."""
    return ranked((Choice(t, row_cost(target, p, t)) for p in problems for t in row_candidates(target, p)), _effort)


def _effort(tile: RowTile) -> tuple[int, ...]:
    """A tie goes to the simpler tile; of unaligned 16-bit rows to one that prefetches more, as the work on a row takes longer."""
    threads = tile.threads * (tile.rows_per_block if tile.threads > 1 else 1)
    stages = -tile.stages if tile.unaligned and tile.packed else tile.stages
    return tile.cluster, stages, not tile.packed, threads, tile.registers
