"""CPU kernels: nests of loops, some of which transpose operands in registers, and contractions by panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilec.kernels.base import Family, Refusal, option

if TYPE_CHECKING:
    from tilec.plan_model import KernelPlan
    from tilec.target import Target

LANES = (2, 4, 8, 16)  # of a tile that is transposed in registers: `load_tile_2` and so on in `runtime/cpu_tile.py`
VECTORS = (16, 32, 64)  # bytes of a vector: `fma_f32x4` and so on in `runtime/cpu_vector.py`
BYTES = {"f32": 4, "f64": 8}
MOST_SUMS = 64  # vectors of sums: each is written out in a kernel


@dataclass(frozen=True)
class LoopNest(Family, name="loop_nest", backend="cpu"):
    """Loops over a block's tile, in the order that `loops` gives for each operation."""

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        return None


@dataclass(frozen=True)
class RegisterTranspose(Family, name="register_transpose", backend="cpu"):
    """Loops over a tile whose inputs, or results, are contiguous along another dimension: they are transposed in registers."""

    transposed: tuple[int, ...] = option("dimensions along which those are contiguous", dims=True)
    lanes: int = option("the side of a tile that is transposed at once: 2, 4, 8 or 16 elements")

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        if self.lanes not in LANES:
            why = f"`lanes` is one of {_listed(LANES)}, not {self.lanes}: the side of a tile that is transposed"
            return Refusal("lanes", why)
        allowed = planned.options.transposed if isinstance(planned.options, RegisterTranspose) else ()
        if not set(self.transposed) <= set(allowed):
            return Refusal("transposed", f"`transposed` can be {list(allowed)}, or some of these dimensions")
        return None


@dataclass(frozen=True)
class Panels(Family, name="panels", backend="cpu"):
    """A contraction from packed panels of its factors, whose sums are in registers."""

    rows: tuple[int, ...] = option("dimensions of C's rows, the lanes' one last", dims=True, fixed=True)
    columns: tuple[int, ...] = option("dimensions of C's columns, the lanes' one last", dims=True, fixed=True)
    inner: tuple[int, ...] = option("dimensions that are summed over", dims=True, fixed=True)
    along: tuple[int, ...] = option(
        "dimensions along which the left and the right factor are contiguous", dims=True, fixed=True
    )
    element: str = option("the type of its sums", fixed=True)
    register_tile: tuple[int, ...] = option("rows and columns whose sums are in registers at a time")
    lanes: int = option("columns of one vector")
    depths: tuple[int, ...] = option("how much of each of `inner` is packed at a time")

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        tile, lanes = self.register_tile, self.lanes
        allowed = tuple(n // BYTES[self.element] for n in VECTORS)
        if lanes not in allowed:
            why = f"`lanes` is one of {_listed(allowed)}, not {lanes}: the {self.element} elements of a vector"
            return Refusal("lanes", why)
        if len(tile) != 2 or min(tile) < 1 or tile[1] % lanes:
            why = f"`register_tile` is rows and columns, the columns a multiple of `lanes`, {lanes}"
            return Refusal("register_tile", why)
        if tile[0] * tile[1] // lanes > MOST_SUMS:
            return Refusal("register_tile", f"`register_tile` can hold at most {MOST_SUMS} vectors of sums")
        if len(self.depths) != len(self.inner) or min(self.depths, default=1) < 1:
            why = f"`depths` is a number of at least 1 for each of `inner`, {len(self.inner)} in all"
            return Refusal("depths", why)
        return self._refuse_gaps([kernel.extents[d] for d in self.inner])

    def _refuse_gaps(self, extents: list[int]) -> Refusal | None:
        """A panel has the products of one step side by side, so a step that is cut short along one dimension is of one place
        along those before it."""
        for n, (depth, extent) in enumerate(zip(self.depths, extents)):
            if depth > max(1, extent):
                return Refusal("depths", f"`depths` has {depth} of a dimension of {extent}")
            if extent % depth and any(d > 1 for d in self.depths[:n]):
                why = f"`depths` has {depth}, which does not divide a dimension of {extent}: the numbers before it must be 1"
                return Refusal("depths", why)
        return None


def _listed(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}"
