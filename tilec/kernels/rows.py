"""CUDA kernels of rows: reductions and scans along the contiguous dimension."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilec.analysis.layout import padded_extent
from tilec.core.hardware import WARP
from tilec.core.target import Target
from tilec.kernels.base import KernelPlan, Refusal, option
from tilec.kernels.threaded import RESIDENCIES, Threaded, residency


@dataclass(frozen=True)
class Rows(Threaded, name="rows"):
    """Reductions along the contiguous dimension: a block has one row or several, and a long row can have a cluster of blocks."""

    residency: str = residency(modelled=True)
    cluster: int = option(
        "blocks that share a row and combine the results of its reductions through distributed shared memory: 1, 2, 4, 8 or 16",
        default=1, shown="{} blocks share a row",
    )  # fmt: skip
    prefetched_rows: int = option(
        "rows that a block loads ahead into shared memory while it computes one, 0 to 4; above 0 the blocks are persistent",
        default=0, shown="{} loaded ahead into shared memory",
    )  # fmt: skip
    persistent_blocks: int = option(
        "blocks (or clusters) that are launched, each of which computes row after row; 0 where `prefetched_rows` is 0: then "
        "every row has a block",
        default=0,
    )
    packed: bool = option(
        "rows of 16-bit elements stay packed, two elements in a register",
        default=False,
        shown="{}: two elements a register",
    )
    hybrid_chunks: int | None = option(
        "where `residency` is `smem`: how many chunks at a row's end are in registers instead (a chunk: `steps` accesses of "
        "all threads)",
        default=None, off=0, shown="{} chunks of each row are in registers",
    )  # fmt: skip
    unaligned: bool | None = option(
        "rows may begin in the middle of a vector: whole vectors are loaded, and elements beside the row are ignored",
        default=None, off=False, shown="{}: rows may begin in the middle of a vector",
    )  # fmt: skip

    @property
    def is_unaligned(self) -> bool:
        return bool(self.unaligned)

    @property
    def cluster_blocks(self) -> int:
        return self.cluster

    @property
    def rows_in_flight(self) -> int:
        return self.prefetched_rows

    @property
    def rows_at_work(self) -> int:
        return self.persistent_blocks

    @property
    def is_packed(self) -> bool:
        return self.packed

    def refuse_rows(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        return self._refuse_values(target) or self._refuse_sharing(kernel, target)

    def _refuse_values(self, target: Target) -> Refusal | None:
        smem = self.residency == "smem"
        if self.cluster not in (1, 2, 4, 8, 16):
            return Refusal("cluster", f"a cluster has 1, 2, 4, 8 or 16 blocks, not {self.cluster}")
        if self.cluster > 1 and not target.has("clusters"):
            return Refusal("cluster", f"{target.name} has no clusters of blocks")
        if not 0 <= self.prefetched_rows <= 4:
            return Refusal("prefetched_rows", "`prefetched_rows` must be from 0 to 4")
        if self.persistent_blocks < 0 or bool(self.prefetched_rows) != bool(self.persistent_blocks):
            return Refusal(
                "persistent_blocks", "`persistent_blocks` must be above 0 if `prefetched_rows` is, and 0 otherwise"
            )
        if self.residency not in RESIDENCIES or (smem and self.prefetched_rows):
            return Refusal(
                "residency", "`residency` must be `registers` or `reload`, or `smem` if `prefetched_rows` is 0"
            )
        if (self.hybrid_chunks or 0) < 0 or (self.hybrid_chunks and (not smem or self.unaligned or self.online)):
            why = "`hybrid_chunks` must be 0 unless `residency` is `smem`, and `unaligned` and `online` are false"
            return Refusal("hybrid_chunks", why)
        return None

    def _refuse_sharing(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        """Rows that several blocks share, or that lie in shared memory."""
        smem = self.residency == "smem"
        if self.cluster == 1 and not self.prefetched_rows and not smem:
            return None
        for key, asked in (
            ("cluster", self.cluster > 1),
            ("prefetched_rows", self.prefetched_rows > 0),
            ("residency", smem),
        ):
            if asked and key in kernel.ruled_out:
                return Refusal(key, f"`{key}` cannot be {getattr(self, key)}: {kernel.ruled_out[key]}")
        if (self.prefetched_rows or smem) and not target.has("cp_async"):
            key = "prefetched_rows" if self.prefetched_rows else "residency"
            return Refusal(key, f"{target.name} has no asynchronous copies (cp.async)")
        if len(self.thread_order) != 1 or (lane := self.thread_order[0]) in kernel.grid:
            return Refusal(
                "thread_order", "all threads must lie along a row that is in shared memory or shared by blocks"
            )
        if any(t != 1 for t in kernel.tile):
            return Refusal(
                "tile",
                f"the tile must be {[1] * len(kernel.tile)} (one row) if rows are shared by blocks or are in shared memory",
            )
        return self._refuse_parts(kernel.extents[lane], lane)

    def _refuse_parts(self, extent: int, lane: int) -> Refusal | None:
        threads, vector, steps = self.block_threads, self.vectors[lane], self.steps[lane]
        width, part = threads * vector * steps, part_of(extent, self.cluster, vector)
        chunks = self.hybrid_chunks or 0
        if chunks and not (chunks < part // width and part * self.cluster == extent and part % width == 0):
            why = f"a block's part of {part} elements must be whole chunks of {width}, and more of them than `hybrid_chunks`"
            return Refusal("hybrid_chunks", why)
        if prod(self.thread_counts) < WARP:
            why = f"a row in shared memory, or shared by blocks, needs a warp or more, not {prod(self.thread_counts)} threads"
            return Refusal("thread_counts", why)
        needed = padded_extent(part, vector) if self.unaligned else part
        if self.prefetched_rows and width < needed:
            why = f"{threads} threads with {steps} steps hold {width} elements, and a block's part of a row has {part}"
            return Refusal("steps", why)
        if part * (self.cluster - 1) >= extent:
            return Refusal("cluster", f"a row of {extent} elements is too short for {self.cluster} blocks")
        return None


@dataclass(frozen=True)
class Scan(Threaded, name="scan"):
    """A scan along rows: by a warp, by the warps of a block, or by several blocks with decoupled look-back."""

    blocks_per_row: int | None = option(
        "blocks that share a row, each of which reads the sums of the blocks before it (decoupled look-back)", default=None,
        off=1,
    )  # fmt: skip

    @property
    def blocks_per_tile(self) -> int:
        return self.blocks_per_row or 1

    def refuse_rows(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        if (refusal := super().refuse_rows(kernel, target)) is not None:
            return refusal
        if (why := kernel.ruled_out.get("blocks_per_row")) is not None:
            wide = any(n > WARP for d, n in enumerate(self.thread_counts) if d not in kernel.grid)
            why = f"at most {WARP} threads (a warp) can scan a row here: {why}"
            return Refusal("thread_counts", why) if wide else None
        if self.blocks_per_row is None:
            return None
        (lane,) = [d for d in kernel.extents if d not in kernel.grid]
        threads, vector, steps = self.thread_counts[lane], self.vectors[lane], self.steps[lane]
        extent, blocks = kernel.extents[lane], self.blocks_per_row
        if blocks == 1 and threads <= WARP:
            return None
        if blocks < 1:
            return Refusal("blocks_per_row", f"`blocks_per_row` must be at least 1, not {blocks}")
        if self.thread_order != (lane,):
            why = "all threads of a block must lie along the row if warps or blocks share it"
            return Refusal("thread_order", why)
        if any(t != 1 for t in kernel.tile):
            return Refusal(
                "tile", f"the tile must be {[1] * len(kernel.tile)} (one row) if warps or blocks share a row"
            )
        if threads < WARP or steps * threads > WARP * WARP:
            why = f"a block scans at most {WARP} partial totals (warps x steps), not those of {threads} threads with {steps} steps"
            return Refusal("steps", why)
        part = part_of(extent, blocks, vector)
        if blocks > 1 and threads * vector * steps < part:
            return Refusal(
                "steps", f"{threads} threads with {steps} steps cannot hold a block's part of {part} elements"
            )
        if part * (blocks - 1) >= extent:
            return Refusal("blocks_per_row", f"a row of {extent} elements is too short for {blocks} blocks")
        return None


def part_of(extent: int, blocks: int, vector: int) -> int:
    """Elements of a block's part of a row that `blocks` share: whole vectors. The last block has the rest."""
    return -(-extent // (blocks * vector)) * vector
