"""CUDA kernels in which a layout (`tilec/analysis/layout.py`) maps the threads of a block to the elements of its tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilec.analysis.layout import Layout, make, padded_extent
from tilec.core.hardware import WARP
from tilec.core.target import Target
from tilec.kernels.base import Family, KernelPlan, Refusal, option

MOST_THREADS = 1024  # of a block
MOST_REGISTERS = 255  # of a thread
WIDEST = 8  # elements of a vector
UNROLLED = 256  # elements that a thread unrolls: more of a sine take the assembler minutes
RESIDENCIES = ("reload", "registers", "smem")


@dataclass(frozen=True)
class Threaded(Family, backend="cuda"):
    """Options of the layout hold one number for each kernel dimension."""

    thread_order: tuple[int, ...] = option(
        "the dimensions along which threads lie, in the order of thread numbers: consecutive threads lie along the first",
        dims=True,
    )
    thread_counts: tuple[int, ...] = option("threads along each dimension", by_dim=True)
    vectors: tuple[int, ...] = option(
        "elements of one load or store along each dimension", by_dim=True, shown="{} (elements of an access)"
    )
    steps: tuple[int, ...] = option(
        "unrolled accesses of a thread along each dimension", by_dim=True, shown="{} (unrolled accesses)"
    )
    registers: int | None = option("the limit of registers of a thread", default=None, shown="at most {} a thread")
    residency: str = option(
        "where data that a later pass reads again stay: `registers` (as far as these hold them), `smem` (shared memory), or "
        "`reload` (nowhere: each pass loads them from global memory)",
        default="registers", off="",
    )  # fmt: skip
    online: bool | None = option(
        "reductions that depend on each other share one pass over the data (online reduction)", default=None, off=False,
        shown="{}: reductions that depend on each other share one pass",
    )  # fmt: skip
    trig_fast_path: bool | None = option(
        "a thread computes sin and cos of all its elements by a form for small arguments, and repeats them by the full form "
        "where one argument was large",
        default=None, off=False,
    )  # fmt: skip
    overlap_launch: bool | None = option(
        "the kernel is launched while the kernel before it ends (programmatic dependent launch)",
        default=None,
        off=False,
    )

    @property
    def block_threads(self) -> int:
        return max(WARP, prod(self.thread_counts[d] for d in self.thread_order))

    def described(self, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        along = ", ".join(f"{self.thread_counts[d]} along {names[d]}" for d in self.thread_order)
        yield "threads", f"{self.block_threads} a block" + (f": {along}" if along else "")
        yield from self.options_in_use(names, without=("thread_order", "thread_counts"))

    @property
    def is_unaligned(self) -> bool:
        """Whether a row may begin in the middle of a vector."""
        return False

    @property
    def transposed_dims(self) -> tuple[int, ...]:
        """The dimensions along which the inputs that shared memory transposes are contiguous."""
        return ()

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster, which share a row."""
        return 1

    @property
    def rows_in_flight(self) -> int:
        """Rows of a block that are loaded ahead into shared memory (prefetch)."""
        return 0

    @property
    def rows_at_work(self) -> int:
        """The number of persistent blocks, or clusters; 0 where every row has a block of its own."""
        return 0

    @property
    def is_packed(self) -> bool:
        """Whether 16-bit elements stay packed, two in a register."""
        return False

    def layout(self, extents: dict[int, int]) -> Layout:
        """`extents` are the sizes of the block's tile, by kernel dimension."""
        sizes = [extents.get(d, 1) for d in range(len(self.thread_counts))]
        unaligned = self.is_unaligned and bool(self.thread_order)
        return make(sizes, self.thread_order, self.thread_counts, self.vectors, self.steps, unaligned)

    # ---- checks ----------------------------------------------------------------------------------------------------------

    def refuse(self, kernel: KernelPlan, planned: KernelPlan, target: Target) -> Refusal | None:
        return (
            self._refuse_lists(kernel)
            or self._refuse_tile(kernel)
            or self._refuse_registers(target)
            or self._refuse_unrolling(kernel, planned)
            or self.refuse_rows(kernel, target)
        )

    def refuse_rows(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        """Checks of one family; by default that `residency` is `registers` or `reload`."""
        if self.residency not in RESIDENCIES[:2]:
            return Refusal("residency", f"`residency` must be `registers` or `reload` here, not `{self.residency}`")
        return None

    def _refuse_lists(self, kernel: KernelPlan) -> Refusal | None:
        dims = len(kernel.extents)
        for key in ("thread_counts", "vectors", "steps"):
            if len(numbers := getattr(self, key)) != dims or any(n < 1 for n in numbers):
                return Refusal(key, f"`{key}` must have {dims} numbers of at least 1, one for each dimension")
        for key in ("thread_counts", "vectors"):
            if any(n & (n - 1) for n in getattr(self, key)):
                return Refusal(key, f"`{key}` must be powers of two")
        if prod(self.thread_counts) > MOST_THREADS:
            return Refusal(
                "thread_counts", f"a block has at most {MOST_THREADS} threads, not {prod(self.thread_counts)}"
            )
        if sorted(self.thread_order) != [d for d, n in enumerate(self.thread_counts) if n > 1]:
            return Refusal("thread_order", "`thread_order` must list the dimensions that have threads, each once")
        if sum(n > 1 for n in self.vectors) > 1 or max(self.vectors, default=1) > WIDEST:
            return Refusal("vectors", f"one dimension may have vectors, of up to {WIDEST} elements")
        return None

    def _refuse_tile(self, kernel: KernelPlan) -> Refusal | None:
        vectors, counts = self.vectors, self.thread_counts
        for d, n in enumerate(vectors):
            if kernel.extents[d] % n and not (self.is_unaligned and d not in kernel.grid):
                return Refusal("vectors", f"vectors of {n} elements do not divide a dimension of {kernel.extents[d]}")
        for d in self.transposed_dims:
            if kernel.extents[d] % max(vectors):
                why = f"vectors of {max(vectors)} elements do not divide a dimension of {kernel.extents[d]}"
                return Refusal("vectors", f"{why}, which is transposed")
            if (tile := dict(zip(kernel.grid, kernel.tile)).get(d, max(vectors))) % max(
                vectors
            ) and tile < kernel.extents[d]:
                return Refusal(
                    "tile", f"a tile of {tile} cuts vectors of {max(vectors)} elements, which are transposed"
                )
        for d, tile in zip(kernel.grid, kernel.tile):
            if tile % vectors[d] and tile < kernel.extents[d]:
                return Refusal("tile", f"a tile of {tile} elements cuts vectors of {vectors[d]} elements (`vectors`)")
            if self.is_unaligned and tile > counts[d]:  # where a row begins in a vector is found once
                why = f"with `unaligned`, a thread has one row, and a tile of {tile} rows needs more than {counts[d]} threads"
                return Refusal("tile", why)
        return None

    def _refuse_registers(self, target: Target) -> Refusal | None:
        if self.registers is None or target.sm is None:
            return None
        most = min(MOST_REGISTERS, target.sm.registers // self.block_threads)
        if not 16 <= self.registers <= most:
            return Refusal(
                "registers", f"`registers` must be from 16 to {most} for a block of {self.block_threads} threads"
            )
        return None

    def _refuse_unrolling(self, kernel: KernelPlan, planned: KernelPlan) -> Refusal | None:
        """`steps` that compilers would take minutes for, where the planner did not choose as many."""
        own = planned.options.unrolled(planned) if isinstance(planned.options, Threaded) else 0
        if (count := self.unrolled(kernel)) <= max(UNROLLED, own):
            return None
        vector = max(self.vectors, default=1)
        each = f", each of {vector} elements," if vector > 1 else ""
        why = f"`steps` {list(self.steps)}{each} would have a thread unroll {count} elements"
        return Refusal("steps", f"{why}, which takes minutes to compile; the limit is {UNROLLED}")

    def unrolled(self, kernel: KernelPlan) -> int:
        """Elements that a thread holds: steps stop where the tile does."""
        tile = dict(zip(kernel.grid, kernel.tile))
        sizes = {d: tile.get(d, extent) for d, extent in kernel.extents.items()}
        return self.layout(sizes).slots(range(len(sizes)))


@dataclass(frozen=True)
class Windowed(Threaded, backend="cuda"):
    """Kernels that are contiguous along a grid dimension, and may read windows along others."""

    adjacent_steps: int | None = option(
        "the dimension along which a thread's steps are neighbours, whose windows overlap: elements that several windows "
        "have are loaded once",
        dims=True, default=None, shown="along {}: their windows share elements",
    )  # fmt: skip

    def layout(self, extents: dict[int, int]) -> Layout:
        return replace(super().layout(extents), dense=self.adjacent_steps)

    def refuse_rows(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        if (d := self.adjacent_steps) is not None:
            tile = dict(zip(kernel.grid, kernel.tile)).get(d)
            if tile is None or self.vectors[d] > 1 or tile % self.thread_counts[d]:
                why = "must be a grid dimension without vectors, whose tile is a multiple of its threads"
                return Refusal("adjacent_steps", f"`adjacent_steps` {why}")
            if tile > self.thread_counts[d] * self.steps[d]:
                why = f"a tile of {tile} has more than {self.steps[d]} steps for each of {self.thread_counts[d]} threads"
                return Refusal("tile", f"{why}, which `adjacent_steps` does not allow")
        return super().refuse_rows(kernel, target)


@dataclass(frozen=True)
class Points(Windowed, name="points"):
    """Elementwise operations: each thread computes some elements of the results."""


@dataclass(frozen=True)
class Columns(Windowed, name="columns"):
    """A reduction across the contiguous dimension: threads lie along the contiguous dimension and along the reduced one."""


@dataclass(frozen=True)
class VectorContraction(Threaded, name="vector_contraction"):
    """A contraction without matrix units: every thread adds up outer products in registers."""


@dataclass(frozen=True)
class Transpose(Threaded, name="transpose"):
    """A transpose: inputs that are contiguous along another dimension than the results go through shared memory."""

    transposed: tuple[int, ...] = option(
        "the dimensions along which these inputs are contiguous", dims=True, fixed=True, off=()
    )

    @property
    def transposed_dims(self) -> tuple[int, ...]:
        return self.transposed


@dataclass(frozen=True)
class Rows(Threaded, name="rows"):
    """Reductions along the contiguous dimension: a block has one row or several, and a long row can have a cluster of blocks."""

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
    register_chunks: int | None = option(
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
        if (self.register_chunks or 0) < 0 or (self.register_chunks and (not smem or self.unaligned or self.online)):
            why = "`register_chunks` must be 0 unless `residency` is `smem`, and `unaligned` and `online` are false"
            return Refusal("register_chunks", why)
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
        chunks = self.register_chunks or 0
        if chunks and not (chunks < part // width and part * self.cluster == extent and part % width == 0):
            why = f"a block's part of {part} elements must be whole chunks of {width}, and more of them than `register_chunks`"
            return Refusal("register_chunks", why)
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


def laid_out(layout: Layout) -> dict[str, Any]:
    """A layout as options."""
    options: dict[str, Any] = {
        "thread_order": layout.order, "thread_counts": layout.threads, "vectors": layout.vectors, "steps": layout.steps
    }  # fmt: skip
    return options if layout.dense is None else options | {"adjacent_steps": layout.dense}


def part_of(extent: int, blocks: int, vector: int) -> int:
    """Elements of a block's part of a row that `blocks` share: whole vectors. The last block has the rest."""
    return -(-extent // (blocks * vector)) * vector
