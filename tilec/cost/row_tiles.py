"""The ways to deal rows out to threads, blocks and clusters, and where rows stay between passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import ceil, gcd

from tilec.core.fitted import RowRegisters, RowTimes
from tilec.core.hardware import WARP
from tilec.core.target import Target
from tilec.cost.model import home_level, occupancy, round_up


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

    @property
    def period(self) -> int:
        """After so many rows one begins at the same place in a vector again."""
        return self.vector // gcd(self.length, self.vector) if self.unaligned else 1

    def padded_extent(self, part: int) -> int:
        """Elements that a part of a row takes, with the unused elements of its first and last vectors (unaligned rows)."""
        return round_up(part + self.vector - 1, self.vector) if self.unaligned else part


@dataclass(frozen=True)
class RowTile:
    """`threads` of a block that share a row, loads of `vector` elements, `vectors` of them a thread;
    `cluster` blocks that share a row. `residency`: where a row is between passes ("registers", "sram", "l1", "l2",
    "memory"). `stages`: rows that may be on their way into SRAM while one is worked on, by `persistent_blocks` blocks (or
    clusters) that go on to further rows; 0: a block for every row. `packed`: kept as stored, in 16 bits.
    `hybrid_chunks`: of rows in SRAM, how many times `vectors` of a thread are in registers instead. `rows_each`: rows that a
    thread has one after another. CPU: `rows_per_block` is a task.
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
    hybrid_chunks: int = 0
    rows_each: int = 1

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * max(1, self.rows_per_block // self.rows_each)


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
        if is_reread(target, p) and threads >= 256 and vectors <= 4 and threads * vectors * vector == p.length:
            registers = 16 + vectors * vector * p.element_bytes // 2 + 8 * (p.element_bytes == 2)
            yield RowTile(threads, vector, 1, vectors, 1, "reload", registers)
        for rows in sorted({max(1, n // threads) for n in (threads, 128, 256)}):
            if rows > p.rows and rows > 1:
                continue
            for packed in (False, True) if halves else (False,):
                registers = held_registers(target, p, vectors * vector, packed)
                most = registers + 16 * p.common * p.unaligned  # operands common to all rows are prepared ahead of time
                elements = vectors * vector
                half = fit.elements if threads >= 32 and p.writes and not p.unaligned else fit.packed_elements
                fits = elements * words <= fit.elements or (packed and elements <= half)
                if fits and occupancy(target, max(32, threads * rows), most).blocks:
                    yield RowTile(
                        threads, vector, rows, vectors, 1, "registers", registers, packed=packed, unaligned=p.unaligned
                    )  # fmt: skip
            for held in sorted({min(vectors, n) for n in ((some + 1) // 2, some)} if single else {min(vectors, some)}):
                registers = loop_registers(target, p, threads, held * vector)
                fits = held < vectors and held * vector * (size if single else words) <= fit.elements
                if fits and occupancy(target, max(32, threads * rows), registers + 16 * p.common * p.unaligned).blocks:
                    yield RowTile(threads, vector, rows, held, 1, "memory", registers, unaligned=p.unaligned)
    yield from _shared_rows(target, p)
    yield from _waiting_rows(target, p)


def short_rows(target: Target, p: Rows) -> Iterator[RowTile]:
    """Rows of which a warp has a part of each of as many as it has threads, in registers."""
    fit, vector = target.fit(RowRegisters), p.access
    for threads in (1 << n for n in range(6)):
        vectors = ceil(p.length / (vector * threads))
        registers = held_registers(target, p, vectors * vector, packed=False)
        if threads * vector < 2 * p.length and vectors * vector * max(1, p.element_bytes // 4) * 2 <= fit.elements:
            yield RowTile(threads, vector, WARP, vectors, 1, "registers", registers)


def held_registers(target: Target, p: Rows, elements: int, packed: bool) -> int:
    """Of a thread that keeps so many elements of a row until the last pass."""
    fit = target.fit(RowRegisters)
    kept = elements * (p.made + p.reads / 2 if packed else max(1, p.element_bytes // 4))
    return round_up(int((fit.packed if packed and p.writes else fit.base) - 8 + kept), 8)


def loop_registers(target: Target, p: Rows, threads: int, elements: int) -> int:
    """Of a thread that goes through a row in steps of so many elements."""
    fit, single = target.fit(RowRegisters), p.passes == p.joined + 1
    only_loop = single and not p.unaligned and p.length % (threads * elements) == 0
    stored = only_loop and not p.joined  # sums of elements on arrival are loaded as they are stored
    values = elements * p.element_bytes // 4 if stored else elements * max(1, p.element_bytes // 4)
    return round_up((fit.whole_loop if only_loop else fit.loop) - 8 + values, 8)


def waiting_bytes(p: Rows, kept: int) -> int:
    """Of shared memory of a block, where rows wait from pass to pass: so many elements of each."""
    return p.padded_extent(kept) * (p.element_bytes * p.reads + 4 * p.made) + 1024


def staged_bytes(p: Rows, part: int, stages: int) -> int:
    """Of shared memory of a block that has such a part of a row, and loads so many rows ahead."""
    return p.padded_extent(part) * p.element_bytes * (stages * p.reads + (p.common if stages else 0)) + 1024


def persistent_ways(target: Target, cluster: int, resident: int) -> int:
    """Blocks, or clusters, that run at a time, where an SM holds so many blocks."""
    assert target.sm is not None
    return resident * target.units if cluster == 1 else target.sm.clusters(cluster, resident)


def is_reread(target: Target, p: Rows) -> bool:
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
    if p.passes < 2 or not p.writes or (p.unaligned and p.element_bytes > 2):
        return  # unaligned rows of 32 bits were slower than in registers (H200)
    accesses = [fit.smem_accesses // (2 if p.unaligned else 1)]  # their ends take registers
    for cluster, threads, vectors in product(
        _clusters(target, p), (128, 256, 512, 1024), [*accesses, 1] if p.unaligned and p.common else accesses
    ):
        part, least = round_up(ceil(p.length / cluster), vector), fit.smem - 8 * (vectors == 1)
        chunk, most = vectors * threads * vector, 0
        if part < chunk or part * p.element_bytes < fit.smem_bytes or p.rows * cluster < 4 * target.units:
            continue
        cut = cluster == 1 and part % chunk == 0 and p.element_bytes > 1 and not (p.made or p.unaligned)
        for chunks in range(part // chunk if cut else 1):  # as few as let one more block in; clusters gain little
            held = chunks * vectors * vector * p.reads * p.element_bytes // 4
            shared = waiting_bytes(p, part - chunks * chunk)
            blocks = min(occupancy(target, threads, least + held, shared).blocks, sm.threads // threads)
            registers = min(64, sm.registers // (threads * max(1, blocks)) // 8 * 8)
            if blocks > most and registers >= least + held:
                most, packed = blocks, p.unaligned or (chunks > 0 and p.element_bytes == 2)
                yield RowTile(
                    threads, vector, 1, vectors, cluster, "sram", registers, 0, 0, packed, shared, p.unaligned, chunks
                )  # fmt: skip


def _clusters(target: Target, p: Rows) -> tuple[int, ...]:
    return (1, 2, 4, 8, 16) if p.spreads and target.has("clusters") else (1,)


def _shared_rows(target: Target, p: Rows) -> Iterator[RowTile]:
    """Rows that the blocks of a cluster share, and rows that come through SRAM ahead of time."""
    sm = target.sm
    assert sm is not None
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
        shared = staged_bytes(p, part, stages)
        resident = occupancy(target, threads, need, shared).blocks
        if not resident:
            continue
        ways = persistent_ways(target, cluster, resident)
        if not ways:
            continue
        if stages and p.common and ways > p.period:  # operands that all rows share are then moved to their place once
            ways -= ways % p.period
        registers = min(need if not stages else sm.registers // (threads * resident) // 8 * 8, 248)
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
