"""The cost of kernels that reduce along rows, by the threads of a row and by its residency between passes."""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, assignment"

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, log2

from tilec.core.fitted import Barriers, PersistentRows, RowRegisters, RowTimes, SmemRows
from tilec.core.target import Target
from tilec.cost.model import Choice, Prediction, Work, home_level, occupancy, predict, ranked, round_up


@dataclass(frozen=True)
class Rows:
    """A kernel that reduces along rows: `reads` and `writes` operands of `rows` x `length` elements of
    `element_bytes`.

    `common`: operands that all rows share, such as a gain by column. `live`: values an element that are kept between
    passes, at most at a time, `made` of them computed. `passes` over a row: reductions, and one to write; `joined` of them
    are part of the one before where a row is not kept (`tilec/plan/cuda/online.py`). `flops`:
    operations an element, by unit. `vector`: elements of the widest access that rows allow; 0 for what their length
    allows. `spreads`, `prefetches`: whether blocks may share a row, and whether rows may come through SRAM while others are
    worked on. `unaligned`: rows begin anywhere in a vector of `vector` elements, and are read by whole ones.
    """

    rows: int
    length: int
    element_bytes: int = 4
    reads: int = 1
    writes: int = 1
    live: int = 1
    made: int = 0
    passes: int = 2
    joined: int = 0
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    common: int = 0
    vector: int = 0
    spreads: bool = True
    prefetches: bool = True
    unaligned: bool = False

    @property
    def access(self) -> int:
        """Elements of one access, of 16 bytes at most."""
        if self.unaligned:
            return self.vector
        row = self.length * self.element_bytes
        widest = next((w // self.element_bytes for w in (16, 8, 4, 2) if w >= self.element_bytes and row % w == 0), 1)
        return min(self.vector, widest) if self.vector else widest

    def padded_extent(self, part: int) -> int:
        """Elements that a part of a row takes, with the unused elements of its first and last vectors (unaligned rows)."""
        return round_up(part + self.vector - 1, self.vector) if self.unaligned else part


@dataclass(frozen=True)
class RowTile:
    """`threads` of a block that share a row, loads of `vector` elements, `vectors` of them a thread;
    `cluster` blocks that share a row. `residency`: where a row is between passes ("registers", "sram", "l1", "l2",
    "memory"). `stages`: rows that may be on their way into SRAM while one is worked on, by `persistent_blocks` blocks (or
    clusters) that go on to further rows; 0: a block for every row. `packed`: kept as stored, in 16 bits.
    `register_chunks`: of rows in SRAM, how many times `vectors` of a thread are in registers instead. CPU:
    `rows_per_block` is a task.
    """

    threads: int
    vector: int
    rows_per_block: int
    vectors: int
    cluster: int = 1
    residency: str = "registers"
    registers: int = 32
    stages: int = 0
    persistent_blocks: int = 0
    packed: bool = False
    shared: int = 0
    unaligned: bool = False
    register_chunks: int = 0


def row_candidates(target: Target, problem: Rows) -> Iterator[RowTile]:
    """Every way to deal rows out to threads that fits registers; rows are read again where nothing holds
    them.
    """
    p = problem
    if target.core is not None:
        yield from _row_tasks(target, p)
        return
    fit, vector, size = target.fit(RowRegisters), p.access, max(1, p.element_bytes // 4)
    words = size * (2 if p.passes > 1 else 1)
    length = p.padded_extent(p.length)
    whole = 1 << max(0, ceil(length / vector) - 1).bit_length()
    single = p.passes == p.joined + 1  # one walk over a row, if it is not kept
    holds = fit.elements if single else fit.reread_elements
    some = min(8, max(1, holds // (vector * max(1, p.reads))))  # loads in flight of a loop over a row's parts
    halves = p.element_bytes == 2 and vector % 2 == 0 and p.passes > 1
    for threads in (1 << n for n in range(11)):
        if threads > whole or (threads < whole and threads < 8):
            continue
        vectors = ceil(length / (vector * threads))
        if _is_reread(target, p) and threads >= 256 and vectors <= 4 and threads * vectors * vector == p.length:
            registers = 16 + vectors * vector * p.element_bytes // 2 + 8 * (p.element_bytes == 2)
            yield RowTile(threads, vector, 1, vectors, 1, "reload", registers)
        for rows in sorted({max(1, n // threads) for n in (threads, 128, 256)}):
            if rows > p.rows and rows > 1:
                continue
            for packed in (False, True) if halves else (False,):
                kept = vectors * vector * (p.made + p.reads / 2 if packed else size)
                registers = round_up(int((fit.packed if packed and p.writes else fit.base) - 8 + kept), 8)
                most = registers + 16 * p.common * p.unaligned  # operands common to all rows are prepared ahead of time
                elements = vectors * vector
                half = fit.elements if threads >= 32 and p.writes and not p.unaligned else fit.packed_elements
                fits = elements * words <= fit.elements or (packed and elements <= half)
                if fits and occupancy(target, max(32, threads * rows), most).blocks:
                    yield RowTile(
                        threads, vector, rows, vectors, 1, "registers", registers, packed=packed, unaligned=p.unaligned
                    )  # fmt: skip
            for held in sorted({min(vectors, n) for n in ((some + 1) // 2, some)} if single else {min(vectors, some)}):
                only_loop = single and not p.unaligned and p.length % (threads * held * vector) == 0
                stored = only_loop and not p.joined  # sums of elements on arrival are loaded as they are stored
                values = held * vector * p.element_bytes // 4 if stored else held * vector * size
                registers = round_up((fit.whole_loop if only_loop else fit.loop) - 8 + values, 8)
                fits = held < vectors and held * vector * (size if single else words) <= fit.elements
                if fits and occupancy(target, max(32, threads * rows), registers + 16 * p.common * p.unaligned).blocks:
                    yield RowTile(threads, vector, rows, held, 1, "memory", registers, unaligned=p.unaligned)
    yield from _shared_rows(target, p)
    yield from _waiting_rows(target, p)


def _is_reread(target: Target, p: Rows) -> bool:
    """Whether a block may load its row a second time for the result, from L1, and tell L2 that this was the last use. L2
    evicts such lines first, and keeps more of the written lines at the end. On an H200 this saves 1 to 3% of a kernel
    that moves several times as much as L2 holds."""
    if (
        not target.has("l2_policies")
        or p.unaligned
        or p.made
        or (p.passes, p.joined, p.reads, p.writes) != (2, 0, 1, 1)
    ):
        return False
    fit, row = target.fit(RowTimes), p.length * p.element_bytes
    return row >= fit.evict_row_bytes and p.rows * row > fit.evict_sizes * target.l2.bytes


def _waiting_rows(target: Target, p: Rows) -> Iterator[RowTile]:
    """Rows that wait in SRAM from pass to pass, whole or shared by a cluster's blocks: a block, or cluster, for every row."""
    fit, vector, sm = target.fit(RowRegisters), p.access, target.sm
    if sm is None or not (p.prefetches and target.has("cp_async") and vector * p.element_bytes == 16):
        return
    if p.passes < 2 or not p.writes or (p.unaligned and (p.common or p.element_bytes > 2)):
        return  # with unaligned neighbours they were slower than rows in registers; none of 32 bits was measured (H200)
    for cluster, threads in product(_clusters(target, p), (128, 256, 512, 1024)):
        part = round_up(ceil(p.length / cluster), vector)
        vectors = fit.smem_accesses // (2 if p.unaligned else 1)  # their ends take registers
        chunk, most = vectors * threads * vector, 0
        if part < chunk or part * p.element_bytes < fit.smem_bytes or p.rows * cluster < 4 * target.units:
            continue
        cut = cluster == 1 and part % chunk == 0 and p.element_bytes > 1 and not (p.made or p.unaligned)
        for chunks in range(part // chunk if cut else 1):  # as few as let one more block in; clusters gain little
            held = chunks * vectors * vector * p.reads * p.element_bytes // 4
            shared = p.padded_extent(part - chunks * chunk) * (p.element_bytes * p.reads + 4 * p.made) + 1024
            blocks = min(occupancy(target, threads, fit.smem + held, shared).blocks, sm.threads // threads)
            registers = min(64, sm.registers // (threads * max(1, blocks)) // 8 * 8)
            if blocks > most and registers >= fit.smem + held:
                most, packed = blocks, p.unaligned or (chunks > 0 and p.element_bytes == 2)
                yield RowTile(
                    threads, vector, 1, vectors, cluster, "sram", registers, 0, 0, packed, shared, p.unaligned, chunks
                )  # fmt: skip


def _clusters(target: Target, p: Rows) -> tuple[int, ...]:
    return (1, 2, 4, 8, 16) if p.spreads and target.has("clusters") else (1,)


def _shared_rows(target: Target, p: Rows) -> Iterator[RowTile]:
    """Rows that the blocks of a cluster share, and rows that come through SRAM ahead of time."""
    fit, vector, packed = target.fit(RowRegisters), p.access, p.element_bytes == 2 and p.access % 2 == 0
    words = p.element_bytes / 4 if packed or p.element_bytes > 4 else 1
    depths = (0, 1, 2) if p.prefetches and target.has("cp_async") and vector * p.element_bytes >= 4 else (0,)
    for cluster, threads, stages in product(_clusters(target, p), (128, 256, 512, 1024), depths):
        part = round_up(ceil(p.length / cluster), vector)
        vectors = ceil(p.padded_extent(part) / (threads * vector))
        held = vectors * vector
        if (
            (cluster == 1 and not stages)
            or held > (fit.elements if vector > 1 else fit.elements // 2)
            or part * (cluster - 1) >= p.length
        ):
            continue
        if part < threads * vector and threads > 128:
            continue
        need = round_up(int(fit.base - 8 + held * max(words * p.reads, p.live) + 8 * (p.common > 0)), 8)
        shared = p.padded_extent(part) * p.element_bytes * (stages * p.reads + (p.common if stages else 0)) + 1024
        resident = occupancy(target, threads, need, shared).blocks
        if not resident:
            continue
        ways = resident * target.units if cluster == 1 else target.sm.clusters(cluster, resident)
        if not ways:
            continue
        registers = min(need if not stages else target.sm.registers // (threads * resident) // 8 * 8, 248)
        if (p.rows >= 2 * ways) if stages else (p.rows < 4 * ways or len(depths) == 1):
            yield RowTile(
                threads, vector, 1, vectors, cluster, "registers", registers, stages, ways if stages else 0, packed, shared,
                p.unaligned,
            )  # fmt: skip


def _row_tasks(target: Target, p: Rows) -> Iterator[RowTile]:
    core = target.core
    assert core is not None
    vector = core.simd_bytes // max(4, p.element_bytes)
    row = p.length * p.element_bytes * (p.reads + p.writes)
    residency = home_level(target, row * target.units)
    for tasks in (4, 2, 1, 8, 16, 64):  # a few for each core, so that one held up does not hold up all
        yield RowTile(1, vector, max(1, ceil(p.rows / (tasks * target.units))), ceil(p.length / vector), 1, residency)


_END = 4  # instructions for an element at a row's end besides its own, which no other of the warp has


def row_work(target: Target, p: Rows, tile: RowTile) -> Work:
    """One read and one write of everything; more if rows do not stay on chip. A reduction stalls the loads of its block."""
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    padded = tile.cluster * round_up(p.padded_extent(ceil(p.length / tile.cluster)), tile.vector * tile.threads)
    flops = {u: n * p.rows * p.length for u, n in p.flops.items()}
    blocks = ceil(p.rows / tile.rows_per_block) * tile.cluster
    if target.core is not None:
        moved = {"l2_bytes" if tile.residency != "l1" else "shared_bytes": p.passes * once + written}
        reads = once * (p.passes if tile.residency == "dram" else 1)
        return Work(
            reads, written, flops=flops, blocks=blocks, lanes=p.length / padded, working_set=once + written, **moved
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
    reads, block = float(once), tile.threads * tile.rows_per_block
    resident = occupancy(target, max(32, block), tile.registers, tile.shared).blocks
    many = blocks > resident * target.units
    exposed = times.exposed_alone if resident == 1 else times.exposed_shared
    flight = min(tile.vectors, 8) * tile.vector * p.element_bytes * p.reads * p.length / padded
    if tile.residency == "memory":
        held = occupancy(target, block, tile.registers).blocks * target.units * tile.rows_per_block
        fits = held * p.length * p.element_bytes * p.reads < times.reread_fits * target.l2.bytes
        reads *= 1 + (times.reread_misses if fits else 1) * (passes - 1)
    reads *= 1 + _scattered(target, p, tile, rounds)
    return Work(
        dram_read=reads,
        dram_write=written - (times.unwritten * target.l2.bytes if tile.residency == "reload" else 0),
        l2_bytes=written + once * (passes if tile.residency == "memory" else 1),
        flops={**flops, "int": flops.get("int", 0) + shuffles},
        blocks=blocks,
        units=target.units
        if tile.cluster == 1
        else target.sm.clusters(tile.cluster, resident) * tile.cluster // resident,
        threads=block,
        registers=tile.registers,
        bytes_in_flight=flight,
        # a cluster meets before it starts; of the arithmetic, the loads of other blocks hide most
        stall_ns=(barrier * (max(1, passes - 1) + (tile.cluster > 1)) + 1e3 * exposed * _busy_us(target, p, tile))
        / rounds,
        lanes=p.length / padded,
        shared_per_block=tile.shared,
        serial_us=_left_over(target, p, tile, blocks, rounds)
        + (0.0 if many else times.element_us * p.passes * tile.vectors * tile.vector),
    )


def _left_over(target: Target, p: Rows, tile: RowTile, blocks: int, rounds: int) -> float:
    """Microseconds at the end of a kernel that only reads in which too little is on its way. Blocks end one after another
    over a share of the time that one is at work; and the last ones, where fewer are left than run at a time, go through their
    rows alone, which counts for less in later waves, when blocks no longer start together."""
    if p.writes or tile.cluster > 1:
        return 0.0
    block = tile.threads * tile.rows_per_block
    most = occupancy(target, max(32, block), tile.registers, tile.shared).blocks * target.units
    waves, rest = divmod(blocks, most)
    each = 1e6 * tile.rows_per_block * p.length * p.element_bytes * p.reads / target.dram.rate(target.units)
    ending = target.fit(RowTimes).ending * min(blocks / 2, most) * each
    if not waves or not rest:
        return ending
    alone = 1e-3 * rounds * (target.dram.latency_ns + target.fit(Barriers).block_ns)
    alone += _busy_us(target, p, tile) * target.sm.issued / min(target.sm.issued, block)
    return max(ending, (alone - rest * each) / waves)


def _scattered(target: Target, p: Rows, tile: RowTile, rounds: int) -> float:
    """The share by which reads slow down if blocks read at distant addresses, each in the middle of its row. It is larger
    if a block requests less at a time."""
    if rounds == 1:
        return 0.0
    piece = tile.threads * tile.vector * p.element_bytes * (tile.vectors if tile.threads >= 32 else 1)
    fit = target.fit(RowTimes)
    return fit.scatter / (1 + piece / fit.scatter_bytes)


def _busy_us(target: Target, p: Rows, tile: RowTile) -> float:
    """The time of a block's arithmetic on its rows on one SM, by issued instructions; the special function of an element
    counts as five."""
    issued = 2 * sum(n for u, n in p.flops.items() if u != "special") + 5 * p.flops.get("special", 0)
    return issued * p.length * tile.rows_per_block / tile.cluster / (target.sm.issued * target.clock_ghz * 1e3)


def _waiting(target: Target, p: Rows, tile: RowTile) -> Work:
    """Rows in shared memory: memory is idle for a share of the time that it moves data. If an SM has several blocks, the
    start, end and exchange of one hide behind the loads of the others. A block alone shows its arithmetic between its
    loads and stores. Operands that all rows share are read for each row, later in larger clusters."""
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    fit, resident = target.fit(SmemRows), occupancy(target, tile.threads, tile.registers, tile.shared).blocks
    common = fit.common * p.common * (1 + (tile.cluster - 1) / fit.common_blocks)
    if tile.cluster > 1:
        share = fit.cluster + common
        share += fit.cluster_block * (tile.cluster - 1) * max(0.0, fit.hiding_blocks / resident - 1)
    elif resident > 1:
        share = fit.several + fit.several_common * common
    else:
        share = fit.alone + common + fit.alone_pass * (p.passes - 2)
        share += fit.alone_special * max(0.0, p.flops.get("special", 0) - 1)
    share += fit.idle * max(0.0, fit.threads / (tile.threads * resident) - 1) + fit.unaligned * tile.unaligned
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

    A round of rows makes memory wait for a share of the time that it moves, however the rows are dealt out;
    Little's law with one row in flight a block turns that into time, as for all loads. With little arithmetic between them,
    loads and stores of many blocks meet; threads that others do not hide, and large clusters, wait longer. The
    last round has the memory for itself. Operands that all rows share are read once a block.
    """
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    blocks = tile.persistent_blocks * tile.cluster
    part = p.length / tile.cluster
    rounds = p.rows / tile.persistent_blocks
    move_us = (once + written) / target.dram.rate(target.units) * 1e6
    fit = target.fit(PersistentRows)
    share = fit.cluster if tile.cluster > 2 else fit.block
    if tile.cluster > 2 and p.writes:
        resident = occupancy(target, tile.threads, tile.registers, tile.shared).blocks
        idle = fit.idle * max(0.0, fit.threads / (tile.threads * resident) - 1) - fit.several * (resident > 1)
        waits = 1 + idle + fit.large * (tile.cluster > fit.large_blocks)
        share *= min(fit.most, fit.passes / (p.passes + 1)) * waits
    wait_ns = max(fit.latencies * target.dram.latency_ns, share * 1e3 * move_us / rounds)
    last_round = fit.last_round if p.writes and rounds > fit.last_rounds else 1
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
        serial_us=last_round * move_us * (ceil(rounds) / rounds - 1) + fit.start_us,
        shared_per_block=tile.shared,
    )


def row_cost(target: Target, problem: Rows, tile: RowTile) -> Prediction:
    work = row_work(target, problem, tile)
    found = predict(work, target)
    started = 1e-3 * target.fit(RowTimes).block_start_ns * work.blocks / target.units if target.sm is not None else 0.0
    more = started - max(found.terms[t] for t in found.terms if t != "launch")
    return replace(found, time_us=found.time_us + more, terms=found.terms | {"blocks": started}) if more > 0 else found


def choose(target: Target, *problems: Rows) -> list[Choice[RowTile]]:
    """All candidates, cheapest first; of several problems where rows can be read in several ways."""
    return ranked((Choice(t, row_cost(target, p, t)) for p in problems for t in row_candidates(target, p)), _effort)


def _effort(tile: RowTile) -> tuple[int, ...]:
    """A tie goes to the simpler tile."""
    threads = tile.threads * (tile.rows_per_block if tile.threads > 1 else 1)
    return tile.cluster, tile.stages, not tile.packed, threads, tile.registers
