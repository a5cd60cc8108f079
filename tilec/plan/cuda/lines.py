"""Lines of memory that the requests of warps touch, where neighbouring threads read apart.

The L1 cache serves one line of 128 bytes a cycle, as shared memory does. A warp's request for elements side by side takes as many
cycles as it has lines of data. One for elements that lie apart takes up to 32, however few bytes it asks for.
"""

from __future__ import annotations

from math import ceil, prod

from tilec.analysis.graph import Node
from tilec.analysis.layout import Layout
from tilec.analysis.traffic import element_bytes
from tilec.core.hardware import LINE, WARP
from tilec.core.mlir import ir
from tilec.plan.cuda.view import Numbers, View

UNCOALESCED = 2  # times as many lines as side by side: fewer cost little


def line_bytes(view: View, layout: Layout) -> dict[ir.Value, float]:
    """For each tensor that requests read whose threads lie apart in it: the bytes of all lines that they touch, each as often as
    it is touched."""
    found: dict[ir.Value, float] = {}
    for node, value, strides in view.reads:
        if value in view.ordered:
            continue
        element = element_bytes(ir.ShapedType(value.type).element_type)
        width = _width(layout, strides, element)
        touched = _touched(layout, strides, width * element)
        different = min(WARP, prod(layout.threads[d] for d in layout.order if d in strides))
        if touched > UNCOALESCED * ceil(different * width * element / LINE):
            moved = LINE * touched * _requests(view, layout, node, strides) / width
            found[value] = found.get(value, 0.0) + moved
    return found


def _requests(view: View, layout: Layout, node: Node, strides: Numbers) -> float:
    """Of all warps: an element is in a thread's registers for all steps along dimensions that it does not depend on."""
    others = set(view.group.space.dims[node]) - strides.keys()
    held = prod(min(layout.steps[d] * layout.vectors[d], max(1, view.extents[d])) for d in others)
    return node.iterations / (WARP * held)


def _touched(layout: Layout, strides: Numbers, size: int) -> int:
    """Different lines that the threads of a warp touch by one access of so many bytes."""
    offsets = [0]  # of threads in order, as many as a warp has
    for d in layout.order:
        step, threads = strides.get(d, 0) * layout.strides(d)[0], min(layout.threads[d], ceil(WARP / len(offsets)))
        offsets = [offset + n * step for n in range(threads) for offset in offsets]
    return len({at // LINE for offset in offsets[:WARP] for at in (offset, offset + size - 1)})


def _width(layout: Layout, strides: Numbers, element: int) -> int:
    """Elements of an access."""
    lane = layout.lane_dim
    return layout.vectors[lane] if lane is not None and strides.get(lane) == element else 1
