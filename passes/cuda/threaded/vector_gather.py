"""Vector gathers: rows at computed subscripts, of which neighbouring lanes read neighbouring elements.

    for lane { y[lane] = table[ids[b], d + lane] }   ->   t = vector.load table[ids[b], d]; for lane { y[lane] = t[lane] }

A load can be a vector if its last subscript increases with the lanes and begins at a multiple of their number, and no other
subscript depends on the lanes. If a condition that is the same for all lanes selects the loaded element or a number, as `pad` does,
the vector is loaded under that condition, at subscripts that need no clamp. Single elements are loaded so, too:

    for lane { y[lane] = select(0 <= i < 9, x[min(max(i, 0), 8), lane], 0) }   ->   t = 0; if 0 <= i < 9 { t = vector.load x[i, 0] }

If a thread has neighbours (`Layout.dense`), and a load depends on their index i and on a window's index s by a sum of both alone,
the elements of all their windows are loaded once: `x[i + s]` of 4 neighbours and windows of 3 are 6 elements, and not 12. The same
along two dimensions: 2 x 4 neighbours and windows of 3 x 3 are 4 x 6 elements, and not 72. Where a loop goes along the windows, it
is written out, and each of its rounds loads the elements that no round before it had:

    for r { for i in 0..2 { y[i] += x[i + r] } }   ->   t[0..2] = x[0..2]; for r { t[r + 1] = x[r + 1]; ...  y[i] += t[i + r] }
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from math import prod

from tilec.analysis.index_terms import unclamped_value
from tilec.analysis.layout import Layout
from tilec.core import extents, mlir
from tilec.core.mlir import arith, ir, memref, vector
from tilec.index.questions import diagonal, is_adjacent
from tilec.index.terms import Term
from tilec.passes.cuda.memory_spaces import is_local, root
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.cuda.threaded.turns import choices, is_of_indices
from tilec.passes.emit import Body
from tilec.passes.loops import Position, Threads, loop, sum_of, when

ZEROS = ("0.0", "0", "False")  # but not -0.0


def wide_loads(generic: OperationContext) -> list[ir.Operation]:
    """The loads of a body that can move all lanes of a step at a time, or whose elements a thread's neighbours share."""
    lanes = _lanes(generic)
    loads = [o.operation for o in generic.block.operations if o.operation.name == "memref.load"]
    if lanes == 1:
        outside = [o for o in loads if len(o.operands) > 1 and not is_local(o.operands[0])]
        steps = prod(generic.layout.steps[d] for d in generic.dims)
        ahead = [o for o in outside if generic.reduced and steps > 1 and choices(o.operands[0])]  # a sum would wait for each
        alone = [o for o in outside if o in ahead or _guard_of(generic, o) or _is_guarded(generic, o)]
        return [o for o in outside if o in alone or _windows_of(generic, _conditions(generic, o))]
    return [o for o in loads if _is_wide(generic, o, lanes)]


def _is_guarded(generic: OperationContext, load: ir.Operation) -> bool:
    """Whether the load of each of several steps is behind a branch, at the tile's edge, which the next one waits for; and its
    subscripts are made of indices alone. Loads of their own are predicated."""
    cut = any(isinstance(generic.sizes[d], ir.Value) for d in generic.dims)
    steps = prod(generic.layout.steps[d] for d in generic.dims)
    if not cut or steps == 1:
        return False
    return all(is_of_indices(generic.block, v) for v in _conditions(generic, load))


def _lanes(generic: OperationContext) -> int:
    d = generic.layout.lane_dim
    return generic.layout.vectors[d] if d is not None and d in generic.dims else 1


def _is_wide(generic: OperationContext, load: ir.Operation, lanes: int) -> bool:
    value, *subscripts = load.operands
    if not subscripts or is_local(value) or not extents.divides(lanes, extents.shape_of(root(value))[-1]):
        return False
    *others, last = subscripts
    assert generic.layout.lane_dim is not None
    lane = index_of(generic, generic.layout.lane_dim)
    differ = any(_depends(generic, v) for v in (*others, *choices(value)))
    return not differ and is_adjacent(generic.terms.of(last), lane, lanes, lanes)


def _depends(generic: OperationContext, value: ir.Value) -> bool:
    """Whether a value of the body differs between lanes."""
    d = generic.layout.lane_dim
    return d is not None and d in generic.dims and index_of(generic, d).symbol in generic.terms.of(value).free


def index_of(generic: OperationContext, d: int) -> Term:
    """The index of a kernel dimension."""
    return generic.terms.dims[generic.dims.index(d)]


def is_index(generic: OperationContext, value: ir.Value, d: int | None) -> bool:
    """Whether a value is the index of a kernel dimension."""
    owner = mlir.definition(value)
    if owner is None or owner.name != "linalg.index":
        return False
    return generic.dims[mlir.index_dim(owner)] == d


def fetch(generic: OperationContext, load: ir.Operation) -> dict[ir.Operation, Gathered]:
    """This thread's part of a wide load, in registers, for the operations of the body whose results it has: the load, or the
    selection of the loaded element or a number."""
    value, *subscripts = load.operands
    guard = _guard_of(generic, load)
    if guard is not None:
        holds = generic.terms.holds(guard.operands[0])
        subscripts = [unclamped_value(generic.terms, index, holds) for index in subscripts]
    windows = _windows_of(generic, [*subscripts, *choices(value), *(guard.operands[:1] if guard else ())])
    threads, sizes = _unique(generic, windows)
    element = ir.MemRefType(value.type).element_type
    kernel, dims, lanes = generic.kernel, generic.dims, _lanes(generic)
    tile = generic.kept.get(load)
    if tile is None:
        whole = _layout(generic.layout, windows, [w.elements(generic.layout, w.length) for w in windows])
        tile = generic.kept[load] = kernel.private(dims, element, kernel.name_of(value), whole)
    width = min(lanes, 128 // max(8, element.width))
    type_ = ir.VectorType.get([width], element)
    with threads.slots(dims, generic.chunk, sizes, lanes=False) as position:
        for window in windows:
            window.move(generic, position)
        for begin in range(0, lanes, width):
            mapping: dict[ir.Value, ir.Value] = {}
            slot, condition = position.slot(dims, begin), None
            if guard is not None:
                with loop(width, name="lane") as lane:
                    at = [*slot[:-1], sum_of([(lane, 1)], begin)] if lanes > 1 else slot
                    memref.StoreOp(mlir.constant(0, element), tile, at)
                condition = evaluate(generic, guard.operands[0], position, begin, mapping)
            with nullcontext() if condition is None else when(condition):
                memory, *at = (evaluate(generic, v, position, begin, mapping) for v in (value, *subscripts))
                if lanes > 1:
                    vector.StoreOp(vector.LoadOp(type_, memory, at).result, tile, slot)
                else:
                    memref.StoreOp(memref.LoadOp(memory, at).result, tile, slot)
    if guard is not None and str(mlir.constant_value(guard.operands[2])) not in ZEROS:
        _select(generic, guard, tile, windows)
    return {guard or load: Gathered(tile, windows, dict(generic.chunk))}


def _select(generic: OperationContext, guard: ir.Operation, tile: ir.Value, windows: Sequence[Window]) -> None:
    """Puts the number that a selection takes in place of zeros into the elements of a tile that were not loaded."""
    threads, sizes = _unique(generic, windows)
    with threads.slots(generic.dims, generic.chunk, sizes, lanes=False) as position:
        for window in windows:
            window.move(generic, position)
        mapping: dict[ir.Value, ir.Value] = {}
        condition, otherwise = (evaluate(generic, guard.operands[n], position, 0, mapping) for n in (0, 2))
        for begin in range(_lanes(generic)):
            slot = position.slot(generic.dims, begin)
            memref.StoreOp(arith.select(condition, memref.LoadOp(tile, slot).result, otherwise), tile, slot)


@dataclass(frozen=True)
class Window:
    """A thread's neighbours along dimension `neighbour`, whose elements are `stride` places apart, and their windows of `length`
    elements along the reduced dimension `along`, `dilation` places apart. `slides`: a loop goes along the windows."""

    neighbour: int
    along: int
    stride: int
    dilation: int
    length: int
    slides: bool

    def elements(self, layout: Layout, length: int) -> int:
        """The places that the windows of all neighbours cover, or `length` elements of each window."""
        return self.stride * (layout.steps[self.neighbour] - 1) + self.dilation * (length - 1) + 1

    def begins(self, generic: OperationContext) -> int:
        """The first element of this round's windows that no round before it had."""
        first = not self.slides or mlir.constant_value(generic.chunk[self.along]) == 0
        return 0 if first else self.elements(generic.layout, 1) - self.dilation

    def move(self, generic: OperationContext, position: Position) -> None:
        """From a step along the neighbours to the place of an element: by steps of one place, along whichever of both has them."""
        d, along, begin = self.neighbour, self.along, self.begins(generic)
        step = position.steps[d]
        if self.stride > 1:
            position.bases[d] = sum_of([(position.bases[d], 1), (step, -1)])
            position.bases[along] = sum_of([(position.bases[along], 1), (step, 1)])
        position.bases[d] = sum_of([(position.bases[d], 1)], begin)
        position.steps[d] = sum_of([(step, 1), *self.round(generic.chunk)], begin)

    def round(self, chunk: dict[int, ir.Value]) -> list[tuple[ir.Value, int]]:
        """Where in the tile this round's windows begin."""
        return [(chunk[self.along], self.dilation)] if self.slides else []


def _layout(layout: Layout, windows: Sequence[Window], counts: Sequence[int]) -> Layout:
    """A layout in which steps along neighbours are elements of their windows, so many."""
    steps = list(layout.steps)
    for window, count in zip(windows, counts):
        steps[window.neighbour], steps[window.along] = count, 1
    return replace(layout, steps=tuple(steps))


def _unique(generic: OperationContext, windows: Sequence[Window]) -> tuple[Threads, dict[int, int | ir.Value]]:
    """Threads that have each element of the windows once, of those that were not loaded in earlier rounds; and sizes that leave out
    none of them which a window inside the tile has."""
    if not windows:
        return generic.threads, generic.sizes
    layout, threads, sizes = generic.layout, copy(generic.threads), dict(generic.sizes)
    lengths = [1 if w.slides else w.length for w in windows]
    counts = [w.elements(layout, n) - w.begins(generic) for w, n in zip(windows, lengths)]
    threads.layout = _layout(layout, windows, counts)
    for window in windows:
        d, size = window.neighbour, generic.sizes[window.neighbour]
        if isinstance(size, int) and size % layout.chunk(d) == 0:
            sizes[d] = threads.layout.chunk(d)
        else:  # neighbours outside the tile need none; what a round does not load, no later one does
            more = window.dilation * (window.length - 1) - window.begins(generic)
            earlier = [(value, -by) for value, by in window.round(generic.chunk)]
            inside = [(size, 1)] if isinstance(size, ir.Value) else [(mlir.index(size), 1)]
            sizes[d] = sum_of([*inside, *earlier], more)
        sizes[window.along] = 1
    return threads, sizes


@dataclass(frozen=True)
class Gathered:
    """The tile of a wide load; with `windows`, of the elements of a thread's windows. `chunk`: the round of each loop."""

    tile: ir.Value
    windows: Sequence[Window]
    chunk: dict[int, ir.Value]

    def element(self, position: Position, dims: tuple[int, ...]) -> ir.Value:
        at = position.slot(dims)
        for window in self.windows:
            here, along = (dims.index(d) for d in (window.neighbour, window.along))
            terms = [(at[here], window.stride), (at[along], window.dilation), *window.round(self.chunk)]
            at[here], at[along] = sum_of(terms), mlir.index(0)
        return memref.LoadOp(self.tile, at).result


def slides(generic: OperationContext, d: int) -> bool:
    """Whether a loop along windows is written out, as its rounds share elements."""
    if not generic.layout.dense or d not in generic.reduced:
        return False
    loads = wide_loads(generic)
    return any(w.slides and w.along == d for load in loads for w in _windows_of(generic, _conditions(generic, load)))


def _conditions(generic: OperationContext, load: ir.Operation) -> list[ir.Value]:
    """The values that decide which element a load reads, and whether."""
    guard = _guard_of(generic, load)
    memory, *subscripts = load.operands
    return [*subscripts, *choices(memory), *(guard.operands[:1] if guard else ())]


def _windows_of(generic: OperationContext, values: list[ir.Value]) -> list[Window]:
    """The neighbours and the windows of a load: the values that it is made by have their indices in one sum alone."""
    found: list[Window] = []
    for near in generic.layout.dense:
        window = _window_of(generic, values, near, {w.along for w in found})
        found += [window] if window else []
    return found


def _window_of(generic: OperationContext, values: list[ir.Value], near: int, taken: set[int]) -> Window | None:
    layout = generic.layout
    if layout.vectors[near] > 1 or near not in generic.dims or layout.steps[near] == 1:
        return None
    size = generic.sizes[near]
    for along in generic.reduced:
        if along in taken or layout.threads[along] > 1 or layout.vectors[along] > 1:
            continue
        sums = diagonal(index_of(generic, near), index_of(generic, along), *map(generic.terms.of, values))
        if sums is None:
            continue
        stride, dilation = sums
        length, loops = layout.extents[along], layout.chunks(along) > 1
        inside = any(layout.chunks(d) > 1 for d in generic.reduced[generic.reduced.index(along) + 1 :])
        if stride < 1 or dilation < 1 or (loops and (layout.steps[along] > 1 or stride > 1 or inside)):
            continue
        if stride > 1 and not (isinstance(size, int) and size % layout.chunk(near) == 0):
            continue  # a guard would count neighbours
        # every place that the windows cover is an element of one of them
        if (stride == 1 and dilation <= layout.steps[near]) or (dilation == 1 and stride <= length):
            return Window(near, along, stride, dilation, length, loops)
    return None


def _guard_of(generic: OperationContext, load: ir.Operation) -> ir.Operation | None:
    """The selection of a loaded element or a number, which alone reads it, by a condition that is the same for all lanes."""
    uses = mlir.uses(load.results[0])
    if len(uses) != 1 or uses[0].name != "arith.select" or uses[0].block != generic.block:
        return None
    condition, taken, otherwise = uses[0].operands
    number = taken == load.results[0] and mlir.constant_value(otherwise) is not None
    return uses[0] if number and not _depends(generic, condition) else None


def evaluate(
    generic: OperationContext, value: ir.Value, position: Position, lane: int, mapping: dict[ir.Value, ir.Value]
) -> ir.Value:
    """A value of the body that does not vary otherwise, such as a subscript, at one lane of a step; `mapping` has the values known
    of it."""
    coordinate = lambda d: position.coordinate(generic.dims[d], lane)  # noqa: E731
    return Body(generic.block, lambda n: generic.element(n, position), coordinate, mapping).value(value)


__all__ = ["evaluate", "fetch", "index_of", "is_index", "slides", "wide_loads"]
