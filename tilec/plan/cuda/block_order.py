"""The order of the blocks of a CUDA kernel: those that read the same elements run beside each other, where these would leave the L2
cache in between.

    y[b, c, x] = x[b, c, x] * w[c, x]     blocks in the order b, c, x read all of w for each b; in the order c, x, b only once
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import TYPE_CHECKING

from tilec.cost.tile_order import STAYS

if TYPE_CHECKING:
    from tilec.plan.cuda.view import View


def reread_bytes(view: View, grid: Sequence[int], tile: Sequence[int]) -> int:
    """Bytes that come from memory more than once, where blocks go along the dimensions `grid`, the last one first."""
    blocks = {d: ceil(view.extents[d] / t) for d, t in zip(grid, tile)}
    total = 0
    for access in view.accesses:
        shared = [d for d in grid if d not in access.dims and blocks[d] > 1]
        times = prod(blocks[d] for d in shared if _between(view, grid[: grid.index(d) + 1]) > STAYS * view.target.l2.bytes)
        total += 0 if access.written else access.bytes * (times - 1)
    return total


def _between(view: View, outer: Sequence[int]) -> float:
    """Bytes that blocks read and write before the next element along the last of these dimensions."""
    return sum(a.bytes / prod(view.extents[d] for d in outer if d in a.dims) for a in view.accesses)


def order_of_blocks(view: View, tile: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of the grid in the order in which the fewest bytes come from memory again."""
    grid, sizes = view.kernel.grid, dict(zip(view.kernel.grid, tile))
    read = [a.dims for a in view.accesses if not a.written]
    orders = [grid, *((*(d for d in grid if d in own), *(d for d in grid if d not in own)) for own in read)]
    return min(orders, key=lambda order: reread_bytes(view, order, [sizes[d] for d in order]))
