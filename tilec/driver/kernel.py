"""A compiled kernel, as `Op.kernels` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Printer(Protocol):
    """IPython's pretty printer, as far as it is used."""

    def text(self, text: str, /) -> None: ...


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

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        """IPython shows the source as lines."""
        printer.text(f"# {self.name}: {self.predicted_us:.1f} us predicted, grid {self.grid}, block {self.block}\n{self.source}")
