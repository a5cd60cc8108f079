"""A kernel as people look at it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel of a compiled op: its Numba source and how it is launched. `predicted_us` is the cost model's time."""

    name: str
    source: str
    grid: int
    block: int
    sram_bytes: int
    predicted_us: float
