"""The stream of `rand`, by its definition: Philox4x32 on Python's integers."""

from __future__ import annotations

import numpy as np

from tilec.core.functions import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32, on Python's integers."""
    for _ in range(PHILOX_ROUNDS):
        first, second = (counter[2 * n] * m for n, m in enumerate(PHILOX_MULTIPLIERS))
        counter = (
            (second >> 32) ^ counter[1] ^ key[0], second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1], first & 0xFFFFFFFF,
        )  # fmt: skip
        key = tuple((k + w) & 0xFFFFFFFF for k, w in zip(key, PHILOX_WEYL))
    return counter


def expected(seed: int, start: int, count: int) -> np.ndarray:
    key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    values = []
    for n in range(count):
        block, place = divmod((start + n) % (1 << 64), 4)
        values.append((philox((block & 0xFFFFFFFF, block >> 32, 0, 0), key)[place] >> 8) * 2.0**-24)
    return np.array(values, np.float32)
