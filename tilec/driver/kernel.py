"""A compiled kernel, as `Op.kernels` shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel of a compiled op: its Numba source and its launch. `grid` is the number of blocks (on the CPU: of tasks),
    `block` the threads of a block, `shared_bytes` the shared memory of a block. `predicted_us` is the cost model's time."""

    name: str
    source: str
    grid: int
    block: int
    shared_bytes: int
    predicted_us: float
