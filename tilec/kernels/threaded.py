"""CUDA kernels in which a layout (`tilec/analysis/layout.py`) maps the threads of a block to the elements of its tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilec.analysis.layout import Layout, make
from tilec.core.hardware import WARP
from tilec.core.target import Target
from tilec.cost.by_key import MOST_THREADS as MOST_SORTING_THREADS
from tilec.cost.by_key import sort_bytes
from tilec.kernels.base import Family, KernelPlan, Refusal, option

MOST_THREADS = 1024  # of a block
MOST_REGISTERS = 255  # of a thread
HELD = 64  # elements that such a thread loads at a time
MOST_SHARING = 512  # threads of a block that share the elements of a key: with more they would have too few registers
WIDEST = 8  # elements of a vector
UNROLLED = 256  # elements that a thread unrolls: more of a sine take the assembler minutes
RESIDENCIES = ("reload", "registers", "smem")


def residency(modelled: bool) -> Any:
    """The option of this name."""
    return option(
        "where data that a later pass reads again stay: `registers` (as far as these hold them), `smem` (shared memory), or "
        "`reload` (nowhere: each pass loads them from global memory)",
        default="registers", off="", modelled=modelled,
    )  # fmt: skip


def thread_order(modelled: bool = True) -> tuple[int, ...]:
    what = "the dimensions along which threads lie, in the order of thread numbers: consecutive threads lie along the first"
    made: tuple[int, ...] = option(what, dims=True, modelled=modelled)
    return made


@dataclass(frozen=True)
class Threaded(Family, backend="cuda"):
    """Options of the layout hold one number for each kernel dimension."""

    thread_order: tuple[int, ...] = thread_order()
    thread_counts: tuple[int, ...] = option("threads along each dimension", by_dim=True)
    vectors: tuple[int, ...] = option(
        "elements of one load or store along each dimension", by_dim=True, shown="{} (elements of an access)"
    )
    steps: tuple[int, ...] = option(
        "unrolled accesses of a thread along each dimension", by_dim=True, shown="{} (unrolled accesses)"
    )
    registers: int | None = option("the limit of registers of a thread", default=None, shown="at most {} a thread", orders=False)
    residency: str = residency(modelled=False)
    online: bool | None = option(
        "reductions that depend on each other share one pass over the data (online reduction)", default=None, off=False,
        shown="{}: reductions that depend on each other share one pass",
    )  # fmt: skip
    trig_fast_path: bool | None = option(
        "a thread computes sin and cos of all its elements by a form for small arguments, and repeats them by the full form "
        "where one argument was large",
        default=None, off=False, modelled=False,
    )  # fmt: skip
    overlap_launch: bool | None = option(
        "the kernel is launched while the kernel before it ends (programmatic dependent launch)",
        default=None,
        off=False, orders=False,
    )

    def by_row(self) -> Threaded:
        return replace(self, trig_fast_path=False) if self.trig_fast_path else self

    @property
    def steps_last(self) -> bool:
        return True

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

    adjacent_steps: tuple[int, ...] | None = option(
        "the dimensions along which a thread's steps are neighbours, whose windows overlap: elements that several windows "
        "have are loaded once",
        dims=True, default=None, shown="along {}: their windows share elements",
    )  # fmt: skip

    def layout(self, extents: dict[int, int]) -> Layout:
        return replace(super().layout(extents), dense=self.adjacent_steps or ())

    def refuse_rows(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        for d in self.adjacent_steps or ():
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

    def order(self) -> tuple[object, ...]:
        return (self.name,)  # no element is a sum


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
class ByKey(Threaded, name="by_key"):
    """A reduction by key: a kernel sorts the keys, others reduce the elements of each key. Results of many elements are made of
    those of pieces."""

    keys: int = option("the dimension that keys count", dims=True, fixed=True, shown="of {}")
    along: int = option("the reduced dimension, along which keys lie", dims=True, fixed=True, shown="along {}")
    sorting_blocks: int = option("blocks that sort, each the keys of a part of their range")
    sorting_threads: int = option("threads of such a block")
    piece: int = option("elements from which on those of one key are reduced in pieces", modelled=False)
    thread_order: tuple[int, ...] = thread_order(modelled=False)
    overlap_sorting: bool | None = option(
        "each of the kernels is launched while the one before it ends", default=None, off=False
    )

    def of_pieces(self, steps: int, threads: int) -> ByKey:
        """The options of kernels in which so many threads, with so many steps each, share the elements of one key; fewer where
        registers have no room for more."""
        own = self.thread_counts[self.along]
        most = max(own, min(threads, MOST_SHARING // self.block_threads * own))
        counts = tuple(most if d == self.along else n for d, n in enumerate(self.thread_counts))
        order = (*(d for d in self.thread_order if d != self.along), *([self.along] if most > 1 else []))
        room = max(1, HELD // (max(self.vectors) * max(self.steps)))
        wide = tuple(min(steps, room) if d == self.along else n for d, n in enumerate(self.steps))
        return replace(self, thread_counts=counts, thread_order=order, steps=wide)

    def refuse_rows(self, kernel: KernelPlan, target: Target) -> Refusal | None:
        if self.thread_counts[self.keys] > 1 or dict(zip(kernel.grid, kernel.tile))[self.keys] > 1:
            return Refusal("tile", "a block has the results of one key: the tile along its dimension must be 1")
        for d, tile in zip(kernel.grid, kernel.tile):
            if tile > self.thread_counts[d] * self.vectors[d] * self.steps[d]:
                return Refusal("tile", f"a tile of {tile} has more elements than its threads hold at once")
        if not (WARP <= self.sorting_threads <= MOST_SORTING_THREADS and self.sorting_threads & (self.sorting_threads - 1) == 0):
            return Refusal("sorting_threads", f"`sorting_threads` must be a power of two from {WARP} to {MOST_SORTING_THREADS}")
        if not 1 <= self.sorting_blocks <= kernel.extents[self.keys]:
            return Refusal("sorting_blocks", f"`sorting_blocks` must be from 1 to {kernel.extents[self.keys]}, the number of keys")
        most = target.multiprocessor.shared_per_block
        if (size := sort_bytes(-(-kernel.extents[self.keys] // self.sorting_blocks), self.sorting_threads)) > most:
            why = f"blocks of {self.sorting_threads} threads that sort take {size} bytes of shared memory, and have {most}"
            return Refusal("sorting_threads", why)
        if any(n > 1 for d, n in enumerate(self.vectors) if d in (self.keys, self.along)):
            return Refusal("vectors", "elements of one key lie anywhere: vectors are along other dimensions")
        if self.piece < 2:
            return Refusal("piece", "`piece` must be at least 2")
        return super().refuse_rows(kernel, target)


def laid_out(layout: Layout) -> dict[str, Any]:
    """A layout as options."""
    options: dict[str, Any] = {
        "thread_order": layout.order, "thread_counts": layout.threads, "vectors": layout.vectors, "steps": layout.steps
    }  # fmt: skip
    return options | {"adjacent_steps": layout.dense} if layout.dense else options
