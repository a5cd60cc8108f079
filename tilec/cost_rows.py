"""The cost of kernels that reduce along rows, by how a row is dealt out to threads and kept between passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import ceil, log2

from tilec.cost import Choice, Prediction, Work, home_level, occupancy, predict, ranked, round_up
from tilec.target import Target


@dataclass(frozen=True)
class Rows:
    """A kernel that reduces along rows: `reads` and `writes` operands of `rows` x `length` elements of
    `element_bytes`.

    `live`: values an element that are kept between passes. `passes` over a row: reductions, and one to write.
    `flops`: operations an element, by unit.
    """

    rows: int
    length: int
    element_bytes: int = 4
    reads: int = 1
    writes: int = 1
    live: int = 1
    passes: int = 2
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class RowTile:
    """`threads` of a block that share a row, loads of `vector` elements, `vectors` of them a thread;
    `cluster` blocks that share a row. `keep`: where a row is between passes ("registers", "l1", "l2",
    "memory"). CPU: `rows_per_block` is a task.
    """

    threads: int
    vector: int
    rows_per_block: int
    vectors: int
    cluster: int = 1
    keep: str = "registers"
    registers: int = 32


def row_candidates(target: Target, problem: Rows) -> Iterator[RowTile]:
    """Every way to deal rows out to threads that fits registers; rows are read again where nothing holds
    them.
    """
    p = problem
    if target.core is not None:
        yield from _row_tasks(target, p)
        return
    row = p.length * p.element_bytes
    vector = next((w // p.element_bytes for w in (16, 8, 4, 2) if w >= p.element_bytes and row % w == 0), 1)
    words = max(1, p.element_bytes // 4)
    for threads, cluster in product((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), (1, 2, 4, 8, 16)):
        if cluster > 1 and (threads < 128 or not target.has("clusters")):
            continue
        vectors = ceil(p.length / (vector * threads * cluster))
        registers = 32 + vectors * vector * p.live * words
        keeps = [("registers", registers)] if registers <= 224 else []
        if cluster == 1 and vectors > 1:
            keeps.append(("memory", 40 + 4 * vector * words))
        for keep, count in keeps:
            for rows in {max(1, size // threads) for size in (threads, 128, 256)}:
                count = round_up(count, 8)
                if rows <= p.rows and occupancy(target, threads * rows, count).blocks:
                    yield RowTile(threads, vector, rows, vectors, cluster, keep, count)


def _row_tasks(target: Target, p: Rows) -> Iterator[RowTile]:
    core = target.core
    assert core is not None
    vector = core.simd_bytes // max(4, p.element_bytes)
    row = p.length * p.element_bytes * (p.reads + p.writes)
    keep = home_level(target, row * target.units)
    for tasks in (4, 2, 1, 8, 16, 64):  # a few for each core, so that one held up does not hold up all
        yield RowTile(1, vector, max(1, ceil(p.rows / (tasks * target.units))), ceil(p.length / vector), 1, keep)


_BARRIER_NS = {"warp": 60, "block": 160, "cluster": 1500}  # a reduction across; the last measured on an H200


def row_work(target: Target, p: Rows, tile: RowTile) -> Work:
    """One read and one write of everything; more where rows are not kept; a reduction stalls the loads of its
    block.
    """
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    padded = round_up(p.length, tile.vector * tile.threads * tile.cluster)
    flops = {u: n * p.rows * p.length for u, n in p.flops.items()}
    blocks = ceil(p.rows / tile.rows_per_block) * tile.cluster
    if target.core is not None:
        again = {"l2_bytes" if tile.keep != "l1" else "shared_bytes": p.passes * once + written}
        reads = once * (p.passes if tile.keep == "dram" else 1)
        return Work(
            reads,
            written,
            flops=flops,
            blocks=blocks,
            lanes=p.length / padded,
            working_set=once + written,
            **again,
        )
    span = "cluster" if tile.cluster > 1 else "block" if tile.threads > 32 else "warp"
    shuffles = 2.0 * p.rows * p.passes * tile.threads * tile.cluster * log2(max(2, min(32, tile.threads)))
    reads, block = once, tile.threads * tile.rows_per_block
    if tile.keep == "memory":
        held = occupancy(target, block, tile.registers).blocks * target.units * tile.rows_per_block
        misses = 0.5 if held * p.length * p.element_bytes * p.reads < 0.5 * target.l2.bytes else 1
        reads *= 1 + misses * (p.passes - 1)  # half at best: a block that reads again asks the memory for nothing new
    return Work(
        dram_read=reads,
        dram_write=written,
        l2_bytes=written + once * (p.passes if tile.keep == "memory" else 1),
        flops={**flops, "int": flops.get("int", 0) + shuffles},
        blocks=blocks,
        threads=block,
        registers=tile.registers,
        bytes_in_flight=min(tile.vectors, 8) * tile.vector * p.element_bytes * p.reads * p.length / padded,
        stall_ns=_BARRIER_NS[span] * max(1, p.passes - 1),
        lanes=p.length / padded,
    )


def row_cost(target: Target, problem: Rows, tile: RowTile) -> Prediction:
    return predict(row_work(target, problem, tile), target)


def choose(target: Target, problem: Rows) -> list[Choice[RowTile]]:
    """All candidates, cheapest first."""
    return ranked((Choice(t, row_cost(target, problem, t)) for t in row_candidates(target, problem)), _effort)


def _effort(tile: RowTile) -> tuple[int, ...]:
    """What breaks a tie: the simpler tile."""
    return tile.cluster, tile.threads * (tile.rows_per_block if tile.threads > 1 else 1), tile.registers
