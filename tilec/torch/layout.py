"""Memory orders: a strided tensor as the row-major array that holds its elements once.

Kernels read and write row-major arrays. A tensor whose elements fill memory in another order of dimensions (channels last, a
transposed weight, an expanded bias) is such an array seen through a permutation, and no element moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilec.torch.extents import shape as extents_of


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new tensor, in elements, as PyTorch computes them: a size of 0 counts as 1."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor of `shape` and `strides` are: dimension `order[k]` is dimension k of the row-major array.
    Dimensions that are not in `order` have one element in memory: size 1, or expanded."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether the tensor itself is the row-major array."""
        return self.order == tuple(range(len(self.shape)))

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of the row-major array."""
        return tuple(self.shape[d] for d in self.order)

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides of the row-major array."""
        return self.strides if self.plain else tuple(self.strides[d] for d in self.order)


def layout(shape: Sequence[int], strides: Sequence[int]) -> Layout | None:
    """The layout of a tensor; None where its elements have gaps between them or overlap otherwise than by expanding, so that
    only a copy is row-major. Of a row-major tensor every dimension is kept."""
    shape, strides = extents_of(shape), extents_of(strides)
    whole = tuple(range(len(shape)))
    dense = row_major(shape)
    if prod(shape) <= 1 or all(n == 1 or s == d for n, s, d in zip(shape, strides, dense)):
        return Layout(shape, strides, whole)
    order = tuple(sorted((d for d in whole if shape[d] != 1 and strides[d] != 0), key=lambda d: -strides[d]))
    step = 1
    for d in reversed(order):
        if strides[d] != step:
            return None
        step *= shape[d]
    return Layout(shape, strides, order)
