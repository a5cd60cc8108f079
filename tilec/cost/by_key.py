"""The time of reductions by key on a GPU: of the sort of the keys, and of what reads each element once."""

from __future__ import annotations

from tilec.core.fitted import Barriers
from tilec.core.hardware import WARP, WORD
from tilec.core.target import Target

DIGIT_BITS = 4  # at most
OWN = 16  # neighbours among a tile's keys that a thread of the sort has
BARRIERS = 8  # of such a tile
MOST_THREADS = 512  # of a block that sorts: each has counts of digits in shared memory
SPARE = 128  # bytes at most by which arrays in shared memory are aligned
COMPARISON = 2  # operations for a pair of a key and an element, besides the reduction's


def digits_of(keys: int) -> tuple[int, int]:
    """The number of digits of numbers below `keys` by which they are sorted, and the bits of each."""
    bits = max(1, (keys - 1).bit_length())
    digits = -(-bits // DIGIT_BITS)
    return digits, -(-bits // digits)


def sorting_blocks(target: Target, keys: int) -> int:
    """As many as run at a time."""
    return min(keys, target.units)


def sorting_threads(target: Target, count: int, keys: int) -> int:
    """Those of a block, a power of two: each has some of the keys, as far as shared memory has room for what they count."""
    threads = max(WARP, min(MOST_THREADS, 1 << (max(1, count // OWN) - 1).bit_length()))
    each = -(-keys // sorting_blocks(target, keys))
    while threads > WARP and sort_bytes(each, threads) > target.multiprocessor.shared_per_block:
        threads //= 2
    return threads


def sort_bytes(keys: int, threads: int) -> int:
    """Shared memory of a block that sorts so many different keys."""
    digits, bits = digits_of(keys)
    base, held = 1 << bits, OWN * threads * (4 if digits > 1 else 3)
    padded = (held + base * threads) * (WARP + 1) // WARP
    return WORD * ((digits * base + 1) * (threads + 1) + padded + threads // WARP + base + 1) + SPARE


def sort_us(
    target: Target, count: int, keys: int, key_bytes: int, blocks: int | None = None, threads: int | None = None
) -> float:
    """Each block reads all keys twice, and sorts its own digit by digit; a tile of keys takes some barriers."""
    blocks, threads = blocks or sorting_blocks(target, keys), threads or sorting_threads(target, count, keys)
    digits, _ = digits_of(-(-keys // blocks))
    rounds = -(-blocks // target.units)
    rate = min(target.l2.rate(target.units) / target.units, target.l2.rate(1))
    reads = 1e6 * 2 * count * key_bytes / rate
    tiles = -(-count // (OWN * threads)) + digits - 1
    each = 1e-3 * (BARRIERS * target.fit(Barriers).block_ns + target.l2.latency_ns)
    return rounds * (reads + tiles * each)


def pairs_us(target: Target, pairs: int, operations: float) -> float:
    """Of looking at each pair of a key and an element, with so many operations of the reduction."""
    return 1e6 * (COMPARISON + operations) * pairs / target.peak("int")
