"""Lines of memory that the requests of warps touch, where neighbouring threads read apart.

The L1 cache serves one line of 128 bytes a cycle, as shared memory does. A warp's request for elements side by side takes as many
cycles as it has lines of data. One for elements that lie apart takes up to 32, however few bytes it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod

from tilec.analysis.directions import step_inside
from tilec.analysis.graph import Node
from tilec.analysis.layout import Layout
from tilec.analysis.traffic import element_bytes, inputs_of
from tilec.core import mlir
from tilec.core.hardware import LINE, WARP
from tilec.core.mlir import ir
from tilec.plan.cuda.view import View

APART = 2  # times as many lines as side by side: fewer cost little
Strides = dict[int, int]  # bytes, by kernel dimension


def line_bytes(view: View, layout: Layout) -> dict[ir.Value, float]:
    """For each tensor that requests read whose threads lie apart in it: the bytes of all lines that they touch, each as often as
    it is touched."""
    found: dict[ir.Value, float] = {}
    for node in view.group.nodes:
        for value, strides in _reads(view, node):
            if value in view.ordered:
                continue
            element = element_bytes(ir.ShapedType(value.type).element_type)
            width = _width(layout, strides, element)
            touched = _touched(layout, strides, width * element)
            different = min(WARP, prod(layout.threads[d] for d in layout.order if d in strides))
            if touched > APART * ceil(different * width * element / LINE):
                moved = LINE * touched * _requests(view, layout, node, strides) / width
                found[value] = found.get(value, 0.0) + moved
    return found


def _reads(view: View, node: Node) -> Iterator[tuple[ir.Value, Strides]]:
    """What an operation reads of global memory, and the strides of that."""
    outside, dims = set(inputs_of(view.group.nodes)), view.group.space.dims[node]
    for read in node.reads:
        if read.value in outside:
            yield read.value, _strides(read.value, [{dims[d]: 1} for d in read.dims])
    for op in (o.operation for o in mlir.body_of(node.op).operations):
        if op.name == "tensor.extract" and len(op.operands) > 1:
            value, *subscripts = op.operands
            yield value, _strides(value, [{dims[d]: step_inside(s, d) for d in range(len(dims))} for s in subscripts])


def _strides(value: ir.Value, steps: Sequence[Strides]) -> Strides:
    shaped = ir.ShapedType(value.type)
    size, found = element_bytes(shaped.element_type), dict[int, int]()
    for n, moved in enumerate(steps):
        for d, step in moved.items():
            found[d] = found.get(d, 0) + step * size * prod(shaped.shape[n + 1 :])
    return {d: stride for d, stride in found.items() if stride}


def _requests(view: View, layout: Layout, node: Node, strides: Strides) -> float:
    """Of all warps: an element is in a thread's registers for all steps along dimensions that it does not depend on."""
    apart = set(view.group.space.dims[node]) - strides.keys()
    held = prod(min(layout.steps[d] * layout.vectors[d], max(1, view.extents[d])) for d in apart)
    return node.iterations / (WARP * held)


def _touched(layout: Layout, strides: Strides, size: int) -> int:
    """Different lines that the threads of a warp touch by one access of so many bytes."""
    lines = set[int]()
    for thread in range(min(WARP, layout.block)):
        offset = 0
        for d in layout.order:
            offset += strides.get(d, 0) * layout.strides(d)[0] * (thread % layout.threads[d])
            thread //= layout.threads[d]
        lines |= {offset // LINE, (offset + size - 1) // LINE}
    return len(lines)


def _width(layout: Layout, strides: Strides, element: int) -> int:
    """Elements of an access."""
    lane = layout.lane_dim
    return layout.vectors[lane] if lane is not None and strides.get(lane) == element else 1
