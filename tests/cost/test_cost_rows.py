"""The cost model of rows: measured times that it must reproduce, and the tiles that it chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.machines import CARDS, CPU, H200

from tilec.core.targets import load
from tilec.cost import rows as cost_rows
from tilec.cost.model import occupancy, predict
from tilec.cost.rows import Rows, row_candidates, row_cost, row_work

rows = st.builds(
    Rows, rows=st.integers(1, 10**6), length=st.integers(1, 300000),
    element_bytes=st.sampled_from([1, 2, 4, 8]), reads=st.integers(1, 3), writes=st.integers(0, 2),
    live=st.integers(1, 3), passes=st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from([*CARDS, CPU]))
def test_chosen_row_tiles_fit_and_cover(problem, card):
    choices = cost_rows.choose(card, problem)
    assert choices
    for tile in (c.tile for c in choices):
        assert (
            tile.residency in ("memory", "sram")
            or tile.threads * tile.cluster * tile.vectors * tile.vector >= problem.length
        )
        if card.kind == "cuda":
            assert problem.length % tile.vector == 0 and tile.vector * problem.element_bytes <= 16
            block = max(32, tile.threads * tile.rows_per_block)
            assert occupancy(card, block, tile.registers, tile.shared).blocks >= 1


@pytest.mark.parametrize(
    ("length", "bytes", "threads", "cluster", "stages", "measured"),
    [
        (1024, 2, 32, 1, 0, 258),
        (16384, 2, 512, 1, 0, 265),
        (16384, 4, 512, 1, 0, 271),
        (32768, 2, 512, 1, 1, 283),
        (32768, 4, 1024, 1, 1, 284),
        (65536, 2, 512, 2, 1, 285),
        (65536, 2, 512, 4, 1, 299),
        (65536, 4, 512, 8, 1, 287),
        (262144, 2, 512, 8, 1, 311),
        (262144, 4, 512, 16, 1, 301),
    ],
)
def test_softmax_rows_are_near_the_measured_time(length, bytes, threads, cluster, stages, measured):
    """Microseconds of 512 MiB in and out on an H200."""
    problem = Rows((1 << 29) // bytes // length, length, bytes, passes=3, flops={"special": 1, "fma.f32": 6})
    tile = next(
        t for t in row_candidates(H200, problem)
        if (t.threads, t.cluster, t.stages, t.rows_per_block, t.residency) == (threads, cluster, stages, 1, "registers")
    )  # fmt: skip
    assert row_cost(H200, problem, tile).time_us == pytest.approx(measured, rel=0.1)


def test_long_rows_are_shared_and_streamed():
    """They wait in SRAM, unless this is needed for what all rows share."""
    for length, cluster in ((65536, 2), (262144, 8)):
        rows = Rows((1 << 28) // length, length, 2, passes=3, flops={"special": 1}, common=2)
        tile = cost_rows.choose(H200, rows)[0].tile
        assert (tile.cluster, tile.residency) == (cluster, "registers") and tile.stages
        tile = cost_rows.choose(H200, replace(rows, common=0))[0].tile
        assert tile.residency == "sram" and not tile.stages
        assert tile.cluster > 1 if length > 65536 else tile.hybrid_chunks  # a part in registers: two whole rows an SM
        few = cost_rows.choose(H200, replace(rows, rows=1, common=0))[0].tile
        assert few.residency == "registers" and not few.stages and few.cluster > 1


@pytest.mark.parametrize(
    "length, bytes, special, common, passes, threads, cluster, measured",
    [
        (16384, 2, 1, 0, 3, 512, 1, 134.4),
        (65536, 2, 0, 1, 2, 1024, 1, 136.9),
        (65536, 2, 1, 0, 3, 512, 2, 142.7),
        (65536, 2, 2, 0, 3, 1024, 1, 152.3),
        (65536, 2, 2, 0, 3, 256, 4, 143.3),
        (65536, 4, 1, 0, 3, 256, 8, 142.3),
        (65536, 4, 0, 1, 2, 512, 4, 150.1),
        (262144, 2, 1, 0, 3, 256, 16, 142.2),
        (262144, 4, 1, 0, 3, 512, 16, 153.6),
    ],
)
def test_rows_in_sram_are_near_the_measured_time(length, bytes, special, common, passes, threads, cluster, measured):
    """Microseconds of 256 MiB in and out on an H200."""
    flops = {"special": special, "fma.f32": 6}
    problem = Rows((1 << 28) // bytes // length, length, bytes, passes=passes, flops=flops, common=common)
    tiles = [
        t for t in row_candidates(H200, problem) if (t.threads, t.cluster, t.residency) == (threads, cluster, "sram")
    ]
    assert row_cost(H200, problem, tiles[0]).time_us == pytest.approx(measured, rel=0.04)


def test_a_cluster_that_waits_for_another_costs_its_time():
    """Of clusters of 16 blocks that fill an SM each, an H200 runs 7 at a time."""
    p = Rows(1, 2**18, 2, 1, 1, {"fma.f32": 4}, passes=2, prefetches=True, spreads=True)
    tile = cost_rows.RowTile(1024, 8, 1, 2, 16, "registers", 56)
    seven, eight = (predict(row_work(load("h200"), replace(p, rows=n), tile), load("h200")).time_us for n in (7, 8))
    assert eight > 1.15 * seven
    tile = cost_rows.RowTile(512, 8, 1, 4, 16, "registers", 64)  # two fit an SM
    seven, eight = (predict(row_work(load("h200"), replace(p, rows=n), tile), load("h200")).time_us for n in (7, 8))
    assert eight < 1.1 * seven


def test_threads_of_few_rows_have_less_to_do_alone():
    """1024 rows of 1024 are faster by 128 threads than by a warp (7.3 and 7.9 us, H200); many rows hide what one takes."""
    few, many = (Rows(n, 1024, 4, passes=3, flops={"fma.f32": 12, "special": 2}) for n in (1024, 65536))
    assert cost_rows.choose(H200, few)[0].tile.threads > cost_rows.choose(H200, many)[0].tile.threads == 32


def test_packed_rows_take_half_the_registers():
    """So a thread may hold twice as much of them, where a warp or more has a row."""
    held = {
        t.threads: t.packed
        for t in row_candidates(H200, Rows(8192, 16384, 2, passes=3))
        if t.vectors == 8 and t.cluster == 1 and not t.stages and t.residency == "registers"
    }
    assert held == {256: True}


def test_rows_that_nothing_keeps_are_read_again():
    problem = Rows(4096, 65536, 2, passes=3)
    kept, again = (
        next(t for t in row_candidates(H200, problem) if t.residency == residency)
        for residency in ("registers", "memory")
    )
    assert row_work(H200, problem, again).dram_read > row_work(H200, problem, kept).dram_read == 2 * 4096 * 65536


LOG_SUM = {"passes": 2, "joined": 1, "writes": 0, "flops": {"special": 1, "fma.f32": 6}}


@pytest.mark.parametrize(
    ("length", "bytes", "threads", "rows", "vectors", "residency", "registers", "measured"),
    [
        (1024, 2, 32, 1, 4, "registers", 40, 84),  # blocks of one warp: their starts limit them
        (1024, 2, 32, 4, 4, "registers", 40, 72),
        (16384, 2, 512, 1, 4, "registers", 48, 80),
        (16384, 2, 256, 1, 8, "registers", 80, 72),
        (16384, 2, 128, 1, 4, "memory", 48, 73.5),
        (65536, 2, 256, 1, 8, "memory", 80, 75),
        (65536, 2, 512, 1, 2, "memory", 32, 77.7),
        (262144, 2, 256, 1, 4, "memory", 48, 75),
        (262144, 2, 256, 1, 8, "memory", 80, 93),  # 396 blocks run at a time, and 116 after them
        (65536, 4, 512, 1, 8, "memory", 48, 73.4),
        (262144, 4, 256, 1, 8, "memory", 48, 73.4),
    ],
)
def test_a_log_sum_is_near_the_measured_time(length, bytes, threads, rows, vectors, residency, registers, measured):
    """Microseconds of 256 MiB in on an H200."""
    problem = Rows((1 << 28) // bytes // length, length, bytes, **LOG_SUM)
    tile = cost_rows.RowTile(threads, 16 // bytes, rows, vectors, 1, residency, registers)
    assert row_cost(H200, problem, tile).time_us == pytest.approx(measured, rel=0.09)


@pytest.mark.parametrize("length", [65536, 262144])
@pytest.mark.parametrize("bytes", [2, 4])
def test_what_one_pass_reads_is_not_held(length, bytes):
    problem = Rows((1 << 28) // bytes // length, length, bytes, **LOG_SUM)
    (best, *_) = cost_rows.choose(H200, problem)
    assert best.tile.residency == "memory" and best.tile.cluster == 1
    assert row_work(H200, problem, best.tile).dram_read < 1.05 * (1 << 28)
    apart = cost_rows.choose(H200, replace(problem, joined=0))[0].tile
    assert apart.residency == "registers"  # where two walks would read
