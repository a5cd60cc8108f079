"""The cost of stream-k: blocks share the steps along k of the tiles in the last rounds (`passes/cuda/contraction/stream_k.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, sqrt

from tilec.core.fitted import WarpgroupTimes
from tilec.cost.model import balance

EVEN = 0.95  # share of the units' time that blocks use if there is nothing to share


def shared_rounds(tiles: int, blocks: int, steps: int) -> Iterator[int]:
    """Rounds of tiles that may be shared: the last one, or a full one with it, so that a block has at least a tile's steps."""
    if balance(tiles, blocks) < EVEN:
        yield from (n for n in (1, 2) if n <= ceil(tiles / blocks) and shared_tiles(tiles, blocks, n) * steps >= blocks)


def shared_tiles(tiles: int, blocks: int, rounds: float) -> int:
    """In the last rounds of so many blocks; none where the last one is full."""
    return round(tiles % blocks + (rounds - 1) * blocks) if tiles % blocks else 0


def rounds_of(shared: int, tiles: int, blocks: int) -> float:
    """The rounds of so many blocks that `shared` tiles are the last ones of."""
    whole, rest = divmod(shared - tiles % blocks, blocks)
    return whole + 1 if rest == 0 else (shared - tiles % blocks) / blocks + 1


def l2_speed(fit: WarpgroupTimes, shared: float) -> float:
    """Speed of L2 over its `achievable`, where so large a share of the tiles is shared: blocks that begin anywhere along k ask for
    different parts of the same rows at a time. In the whole tiles behind, they come into step again."""
    return 1 / (shared + (1 - shared) / sqrt(fit.l2))


def parts_us(fit: WarpgroupTimes, tiles: int, blocks: int, rounds: float, elements: int) -> float:
    """Time in which a block stores the sums of a part of a tile of so many elements, and adds those of others to its own."""
    shared, us = shared_tiles(tiles, blocks, rounds), fit.part_us * elements / (128 * 256)
    return us + ceil(blocks / shared) * (fit.part_wait_us + us) if shared else 0.0
