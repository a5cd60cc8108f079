"""How evenly blocks share the tiles of a triangular chain: each later row of tiles has one step more."""

from __future__ import annotations

from functools import cache
from heapq import heapify, heapreplace


@cache
def longest_share(rows: int, problems: int, group: int, blocks: int, tile_steps: float) -> float:
    """The most work of a block, as a multiple of the mean. The rows of `group` problems take turns, the longest first; `blocks`
    take tile after tile, in reverse order in every other round, as `ChainBlock` has it. The start and the end of a tile take as
    long as `tile_steps`."""
    lengths = _lengths(rows, problems, group)
    shares = [0.0] * blocks
    for begin in range(0, len(lengths), blocks):
        part = lengths[begin : begin + blocks]
        for n, length in enumerate(part[::-1] if begin // blocks % 2 else part):
            shares[n] += length + tile_steps
    return max(shares) * blocks / sum(shares)


@cache
def last_end(rows: int, problems: int, group: int, resident: int, tile_steps: float) -> float:
    """When the last tile ends if each has a block of its own, of which so many are `resident` at a time, as a multiple of the mean:
    a block begins where another one has ended. Rows take turns as for `longest_share`."""
    lengths, ends = _lengths(rows, problems, group), [0.0] * resident
    heapify(ends)
    for length in lengths:
        heapreplace(ends, ends[0] + length + tile_steps)
    return max(ends) * resident / sum(ends)


def _lengths(rows: int, problems: int, group: int) -> list[int]:
    """The steps of all tiles in the order in which they begin."""
    sizes = (min(group, problems - first) for first in range(0, problems, group))
    return [rows - n for size in sizes for n in range(rows) for _ in range(size)]
