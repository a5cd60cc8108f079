"""`tilec::rand`: uniform numbers as a function of a seed and of an element's place, as an operator of PyTorch.

    rand(seeds, k, [M, N])[i, j]  =  rand(seeds[k], i * pitch + j)         of the language; pitch: N rounded up to a multiple of 4

Nothing but the seed decides the numbers, so that backward may draw them again. Rows begin at multiples of 4, since four neighbours
share one run of the generator. The kernel here is for what PyTorch runs: its numbers are those of a partition, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import torch

from tilec.core.functions import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

LANES = 4  # numbers of one run of the generator
_WORD = (1 << 32) - 1


def pitches(shape: Sequence[int]) -> list[int]:
    """By how much the number of an element grows along each dimension. Dimensions of one element are as if they were not there."""
    steps, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        if shape[d] != 1:
            steps[d] = step
            step = step * shape[d] if step > 1 else -(-shape[d] // LANES) * LANES
    return steps


def _rand(seeds: torch.Tensor, number: int, size: Sequence[int]) -> torch.Tensor:
    """By whole runs of the generator, on integers of 64 bits, whose products wrap around."""
    row = next((n for n in reversed(size) if n != 1), 1)
    rows, runs = prod(size) // max(row, 1), -(-row // LANES)
    block = torch.arange(rows * runs, device=seeds.device)
    zero = torch.zeros_like(block)
    words = [block & _WORD, block >> 32, zero, zero]
    keys = [seeds[number] & _WORD, (seeds[number] >> 32) & _WORD]
    for _ in range(PHILOX_ROUNDS):
        first, second = (words[n] * m for n, m in zip((0, 2), PHILOX_MULTIPLIERS))
        words = [
            ((second >> 32) & _WORD) ^ words[1] ^ keys[0], second & _WORD,
            ((first >> 32) & _WORD) ^ words[3] ^ keys[1], first & _WORD,
        ]  # fmt: skip
        keys = [(key + w) & _WORD for key, w in zip(keys, PHILOX_WEYL)]
    made = torch.stack(words, 1).view(rows, runs * LANES)[:, :row]
    return ((made >> 8).float() * 2.0**-24).reshape(size)


def _fake(seeds: torch.Tensor, number: int, size: Sequence[int]) -> torch.Tensor:
    return seeds.new_empty(size, dtype=torch.float32)


@cache
def _library() -> torch.library.Library:
    library = torch.library.Library("tilec", "FRAGMENT")
    library.define("rand(Tensor seeds, int number, SymInt[] size) -> Tensor")
    for device in ("CPU", "CUDA"):
        library.impl("rand", _rand, device)
    torch.library.register_fake("tilec::rand", _fake, lib=library)
    return library


def operator() -> torch._ops.OpOverload:
    """What `torch.ops` has of it."""
    _library()
    return torch.ops.tilec.rand.default
