"""How evenly persistent blocks share the tiles of a triangular chain: each later row of tiles has one step more."""

from __future__ import annotations

from functools import cache


@cache
def longest_share(rows: int, problems: int, group: int, blocks: int, tile_steps: float) -> float:
    """The most work of a block, as a multiple of the mean. The rows of `group` problems take turns, the longest first; `blocks`
    take tile after tile, in reverse order in every other round, as `ChainBlock` has it. The start and the end of a tile take as
    long as `tile_steps`."""
    lengths: list[int] = []
    for first in range(0, problems, group):
        size = min(group, problems - first)
        lengths += (rows - n for n in range(rows) for _ in range(size))
    shares = [0.0] * blocks
    for begin in range(0, len(lengths), blocks):
        part = lengths[begin : begin + blocks]
        for n, length in enumerate(part[::-1] if begin // blocks % 2 else part):
            shares[n] += length + tile_steps
    return max(shares) * blocks / sum(shares)
