"""The order in which blocks compute the tiles of a contraction (its rasterization), and the DRAM bytes of A and B that it takes.

    group 2, 4 x 3 tiles, in order:     0  2  4      A wave of blocks computes neighbours in this order: about a square of tiles,
                                        1  3  5      which reads the fewest rows of A and columns of B for its number.
                                        6  8 10
                                        7  9 11
"""

from __future__ import annotations

from math import ceil

from tilec.core.target import Target
from tilec.cost.block_tile import BlockTile, Contraction

STAYS = 0.5  # of L2: what is read again is there
GROUPS = (1, 2, 4, 8, 16)  # rows of tiles


def grouped(target: Target, bm: int, bn: int, p: Contraction) -> tuple[int, bool]:
    """Rows of tiles that are computed together so that one wave reads the fewest bytes: about a square of `units` tiles. And
    whether they go on from one batch to the next, which may share B with it: where a batch has few rows, and L2 would have lost
    B before the next one."""
    rows = ceil(p.m / bm)
    across = p.recurring and rows < GROUPS[-1] and not _stays(target, p)
    most = rows * p.batch if across else rows
    return min((g for g in GROUPS if g <= most), key=lambda g: g * bm + target.units / g * bn), across


def _stays(target: Target, p: Contraction) -> bool:
    """Whether L2 holds B of a batch until the next one."""
    return p.k * p.n * p.bytes <= STAYS * target.l2.bytes


def reads_once(p: Contraction) -> float:
    """DRAM bytes of A and B if nothing is read twice."""
    a, b = p.shared
    return p.batch * p.k * (a * p.m + b * p.n) * p.bytes


def dram_reads(target: Target, p: Contraction, tile: BlockTile) -> float:
    """DRAM bytes of A and B: once if they stay in L2, else once a wave of grouped tiles."""
    a, b = p.shared
    whole = p.k * p.n * p.bytes
    once = reads_once(p)
    rows, columns = ceil(p.m / tile.bm), ceil(p.n / tile.bn)
    if p.recurring and not _stays(target, p):
        if not tile.across:
            return once + (1 - b) * p.batch * whole
        bands = rows * p.batch / min(tile.group, rows * p.batch)
        return max(once, p.batch * a * p.k * p.m * p.bytes + (ceil(bands) + b * p.batch) * whole)
    if once / p.batch <= STAYS * target.l2.bytes:
        return once
    high = min(tile.group, rows)
    wide = min(columns, max(1.0, target.units / high))
    waves = rows * columns * p.batch / (high * wide)
    return max(once, waves * p.k * p.bytes * (a * high * tile.bm + b * wide * tile.bn))
