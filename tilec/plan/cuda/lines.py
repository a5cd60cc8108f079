"""Lines of memory that the requests of warps touch, where neighbouring threads read apart.

The L1 cache serves one line of 128 bytes a cycle, as shared memory does. A warp's request for elements side by side takes as many
cycles as it has lines of data. One for elements that lie apart takes up to 32, however few bytes it asks for.
"""

from __future__ import annotations

from math import ceil, gcd, prod

from tilec.analysis.directions import selected_among
from tilec.analysis.graph import Node
from tilec.analysis.layout import Layout
from tilec.analysis.traffic import element_bytes
from tilec.core.hardware import LINE, SECTOR, SLOT, WARP
from tilec.core.mlir import ir
from tilec.plan.cuda.view import Access, Numbers, View, strides_of

UNCOALESCED = 2  # times as many lines as side by side: fewer cost little


def line_bytes(view: View, layout: Layout, near: int) -> dict[ir.Value, float]:
    """For each tensor that requests read that touch more than `near` times as many lines as they would side by side: the bytes of
    all lines that they touch, each as often as it is touched."""
    found: dict[ir.Value, float] = {}
    lanes = lanes_at_work(layout)
    for node, value, strides in view.reads:
        if value in view.ordered:
            continue
        element, width = element_bytes(value.type), access_width(layout, strides, value)
        touched = _touched(layout, strides, width * element)
        different = min(WARP, prod(layout.threads[d] for d in layout.order if d in strides))
        if touched > near * ceil(different * width * element / LINE):
            moved = LINE * touched * requests(view, layout, node, strides) / (width * lanes * selected_among(node).get(value, 1))
            found[value] = found.get(value, 0.0) + moved
    return found


def slot_bytes(view: View, layout: Layout) -> float:
    """Bytes that the L2 cache could move while it serves requests of warps for pieces of lines, besides those of the pieces: a
    slice of it moves 64 bytes of a line a clock (NVIDIA, "A100 Tensor Core GPU Architecture", L2 cache)."""
    more = 0.0
    for access in view.accesses:
        if access.value is None or not access.dims:
            continue
        strides = strides_of(access.value, access.dims)
        size = access_width(layout, strides, access.value) * access.element
        sectors = {at // SECTOR for start in _offsets(layout, strides) for at in range(start, start + size, min(size, SECTOR))}
        slots = {sector // (SLOT // SECTOR) for sector in sectors}
        more += access.bytes * (SLOT * len(slots) / (SECTOR * len(sectors)) - 1)
    return more


def stored_across(view: View, lane: int) -> list[Access]:
    """The results that have the rows' dimension, and are contiguous along another one."""
    return [a for a in view.accesses if a.written and a.value is not None and lane in a.dims[:-1]]


def cut_sectors(view: View, layout: Layout, lane: int) -> float:
    """Sectors of memory of which a warp's request writes a part, where results are contiguous along another dimension than rows."""
    cut = 0.0
    for access in stored_across(view, lane):
        assert access.value is not None
        inner = access.dims[-1]
        strides = strides_of(access.value, access.dims)
        before = prod(layout.threads[d] for d in layout.order[: layout.order.index(inner)]) if inner in layout.order else WARP
        run = max(1, min(layout.threads[inner], WARP // before)) * layout.vectors[inner] * access.element
        gap = gcd(run, SECTOR, *(step for d, step in strides.items() if d != inner))
        each = (run + SECTOR - gap - max(0, run + gap - SECTOR)) / SECTOR
        cut += each * access.bytes / run
    return cut


def requests(view: View, layout: Layout, node: Node, strides: Numbers) -> float:
    """Of all warps: an element is in a thread's registers for all steps along dimensions that it does not depend on."""
    others = set(view.group.space.dims[node]) - strides.keys()
    held = prod(min(layout.steps[d] * layout.vectors[d], max(1, view.extents[d])) for d in others)
    return node.iterations / (WARP * held)


def _touched(layout: Layout, strides: Numbers, size: int) -> int:
    """Different lines that the threads of a warp touch by one access of so many bytes."""
    found = _offsets(layout, strides)
    return len({at // LINE for offset in found for at in (offset, offset + size - 1)})


def _offsets(layout: Layout, strides: Numbers) -> list[int]:
    """Bytes from the first thread's access to those of a warp's other threads that have elements."""
    offsets: list[int | None] = [0]  # of threads in order, as many as a warp has
    for d in layout.order:
        step, threads = strides.get(d, 0) * layout.strides(d)[0], min(layout.threads[d], ceil(WARP / len(offsets)))
        busy = _busy(layout, d)
        offsets = [None if offset is None or n >= busy else offset + n * step for n in range(threads) for offset in offsets]
    return [offset for offset in offsets[:WARP] if offset is not None]


def access_width(layout: Layout, strides: Numbers, value: ir.Value) -> int:
    """Elements of an access of a tensor."""
    lane = layout.lane_dim
    return layout.vectors[lane] if lane is not None and strides.get(lane) == element_bytes(value.type) else 1


def _busy(layout: Layout, d: int) -> int:
    """Threads along a dimension that have elements of the tile."""
    return min(layout.threads[d], ceil(layout.extents[d] / layout.vectors[d]))


def lanes_at_work(layout: Layout) -> float:
    """The share of the lanes that have an element, of all warps in which any has: a warp without elements issues nothing."""
    share, lanes = min(1.0, layout.used / WARP), 1
    for d in layout.order:  # warps are threads in this order
        inside = min(layout.threads[d], WARP // lanes)
        accesses = max(1, ceil(layout.extents[d] / layout.vectors[d]))
        rounds, rest = divmod(accesses, layout.threads[d])
        share *= accesses / (inside * (rounds * layout.threads[d] // inside + ceil(rest / inside)))
        lanes *= inside
    return share
