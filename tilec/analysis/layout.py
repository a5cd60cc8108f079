"""Layouts: the map from the threads of a block to the elements of its tile.

Along every kernel dimension a coordinate of the block's tile is

    ((chunk * steps + step) * threads + thread) * vector + lane

`thread` is the thread's coordinate along the dimension, a few bits of its number. One memory access has `vector`
neighbouring elements. `steps` are unrolled, so that a thread can hold their elements in registers. `chunks` are a loop.

All operations of a kernel use one layout, so that a thread reads the values that it made itself, without a barrier.
Threads along a dimension that an operation lacks do the same work and hold the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilec.core import mlir
from tilec.core.extents import longest


@dataclass(frozen=True)
class Layout:
    """Numbers by kernel dimension. `order` lists the dimensions that have threads, the fastest bits first.

    `extents` are the sizes of the block's tile: the plan's tile along grid dimensions, all of the others. `blocks_per_row` blocks
    share them along the dimension of the fastest threads. `unaligned`: positions along that dimension begin where a vector
    does, before a row's first element by up to a vector less one; extents count positions
    (`passes/cuda/threaded/unaligned.py`). Along
    the dimensions `dense` a thread's steps lie side by side.
    """

    extents: tuple[int, ...]
    order: tuple[int, ...]
    threads: tuple[int, ...]
    vectors: tuple[int, ...]
    steps: tuple[int, ...]
    blocks_per_row: int = 1
    unaligned: bool = False
    dense: tuple[int, ...] = ()

    @property
    def block(self) -> int:
        """Threads of a block, at least a warp. Threads beyond the layout repeat the work of others."""
        return max(32, prod(self.threads[d] for d in self.order))

    @property
    def used(self) -> int:
        return prod(self.threads[d] for d in self.order)

    def stride(self, d: int) -> int:
        """The difference of thread numbers between neighbouring coordinates along `d`."""
        return prod(self.threads[e] for e in self.order[: self.order.index(d)])

    def span(self, d: int) -> int:
        """Elements that all threads hold in one step."""
        return self.threads[d] * self.vectors[d]

    def strides(self, d: int) -> tuple[int, int]:
        """The differences of a coordinate between neighbouring threads, and between steps."""
        if d in self.dense:
            return -(-self.extents[d] // self.threads[d]), self.vectors[d]
        return self.vectors[d], self.span(d)

    def chunk(self, d: int) -> int:
        return self.span(d) * self.steps[d]

    def chunks(self, d: int) -> int:
        return -(-self.extents[d] // (self.chunk(d) * (self.blocks_per_row if d == self.lane else 1)))

    @property
    def lane_dim(self) -> int | None:
        """The one dimension along which memory is accessed in vectors."""
        return next((d for d, v in enumerate(self.vectors) if v > 1), None)

    @property
    def lane(self) -> int | None:
        """The dimension along which the fastest threads lie."""
        return self.order[0] if self.order else None

    def whole(self, dims: Iterable[int]) -> bool:
        """Whether a thread holds all its elements over these dimensions at once."""
        return all(self.chunks(d) == 1 for d in dims)

    def slots(self, dims: Iterable[int]) -> int:
        """Elements over these dimensions that a thread holds at once."""
        return prod(self.steps[d] * self.vectors[d] for d in dims)

    def partial(self, d: int) -> bool:
        """Whether some threads have nothing to do in some step, even where the tile is whole."""
        return self.extents[d] % self.chunk(d) != 0


def make(
    extents: Sequence[int],
    order: Sequence[int],
    threads: Sequence[int],
    vectors: Sequence[int],
    steps: Sequence[int],
    unaligned: bool = False,
) -> Layout:
    """A layout whose steps stop where the tile does."""
    if unaligned:
        extents = [padded_extent(e, v) if d == order[0] else e for d, (e, v) in enumerate(zip(extents, vectors))]
    least = [max(1, min(s, -(-e // (t * v)))) for e, t, v, s in zip(extents, threads, vectors, steps)]
    return Layout(tuple(extents), tuple(order), tuple(threads), tuple(vectors), tuple(least), unaligned=unaligned)


def padded_extent(extent: int, vector: int) -> int:
    """Of `extent` elements that begin anywhere in a vector: all of the vectors that they may lie in."""
    return -(-(extent + vector - 1) // vector) * vector


def transposed(layout: Layout, d: int, dense: bool = False) -> Layout:
    """The layout in which the fastest threads, and the vectors, of `layout` lie along `d` instead. `dense`: its steps along
    the others' dimension lie side by side."""
    fast = layout.order[0]
    threads, vectors = list(layout.threads), list(layout.vectors)
    threads[d], threads[fast] = threads[fast], threads[d]
    vectors[d], vectors[fast] = vectors[fast], vectors[d]
    order = (d, *(e for e in layout.order if e not in (d, fast)), fast)
    order = tuple(e for e in order if threads[e] > 1)
    made = make(layout.extents, order, threads, vectors, layout.extents)
    return replace(made, dense=(fast,)) if dense else made


def tile_extents(ops: Iterable[Any], tiles: dict[int, int], spread: Any = None) -> dict[int, int]:
    """The sizes of a block's tile by kernel dimension: of the operations where static, else as planned, in `tiles`; of what varies
    and is not cut into tiles, the largest."""
    found = dict(tiles)
    if spread is not None:
        found[spread.dim] = spread.part
    for op in ops:
        for d, extent in zip(mlir.get_integers(op, "tilec.dims"), mlir.extents_of(op)):
            if extent != mlir.DYNAMIC:
                found[d] = extent
            elif d not in found:
                found[d] = longest(op, mlir.get_integers(op, "tilec.dims").index(d))
    return found
