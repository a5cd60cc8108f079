"""`linalg` and `tensor`: whole operations over their index space, and tensors as memory that each operation makes anew.

The parallel points of a `linalg.generic` are lanes: its body runs once for all of them at every step of its reduction
dimensions, which loops go through in order. That is the order of a sequential loop for every result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import (
    Code,
    Context,
    Index,
    Mask,
    Shared,
    Step,
    Values,
    differs,
    dtype_of,
    operation,
    shape_of,
)
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.memory import (
    Buffer,
    View,
    copy_of,
    filled,
    may_read,
    may_write,
    part,
    read,
    write,
)  # fmt: skip
from tilec.semantics.interpreter.ranks import shared_dim

# ---- linalg ----------------------------------------------------------------------------------------------------------


@operation("linalg.fill")
def _fill(code: Code, op: ir.Operation) -> Step:
    (value, target), results = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        _alone(op, values)
        view = copy_of(values[target]) if results else values[target]
        write(view, view.offsets(), values[value], op, values[0], None)
        for r in results:
            values[r] = view

    return step


@operation("linalg.transpose", "linalg.copy", "bufferization.materialize_in_destination")
def _copy(code: Code, op: ir.Operation) -> Step:
    """Elements in another order of dimensions, or in the same."""
    (source, target), results = code.operands(op), code.results(op)
    order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"])) if op.name == "linalg.transpose" else None

    def step(values: Values, mask: Mask) -> None:
        _alone(op, values)
        one, other = values[source], copy_of(values[target]) if results else values[target]
        if order is not None:
            one = replace(one, shape=tuple(one.shape[d] for d in order), strides=tuple(one.strides[d] for d in order))
        if one.static_shape() != other.static_shape():
            raise Fault("outside", op, f"shape {one.static_shape()} is copied to {other.static_shape()}")
        write(other, other.offsets(), read(one, one.offsets(), op, values[0], None), op, values[0], None)
        for r in results:
            values[r] = other

    return step


@operation("linalg.index")
def _index(code: Code, op: ir.Operation) -> Step:
    dims = code.dims[op.parent.operation]
    source, (r,) = dims[mlir.index_dim(op)], code.results(op)

    def step(values: Values, mask: Mask) -> None:
        values[r] = values[source]

    return step


@operation("linalg.generic")
def _generic(code: Code, op: ir.Operation) -> Step:
    generic = _Generic(code, op)

    def step(values: Values, mask: Mask) -> None:
        generic.step(values, mask)

    if (d := shared_dim(op)) is not None:
        return Shared(step, partial(generic.hand_on, d))
    return step


class _Generic:
    def __init__(self, code: Code, op: ir.Operation):
        self.op, self.results = op, code.results(op)
        self.operands = code.operands(op)
        self.inputs = len(mlir.inputs_of(op))
        try:
            self.maps = [mlir.map_dims(m) for m in mlir.maps_of(op)]
        except (ValueError, TypeError) as error:
            raise Unsupported(op, "an indexing map that is not a projection") from error
        kinds = mlir.iterators_of(op)
        self.rank = len(kinds)
        self.parallel = [d for d, k in enumerate(kinds) if k == "parallel"]
        self.reduced = [d for d, k in enumerate(kinds) if k != "parallel"]
        block = mlir.body_of(op)
        self.used = [any(True for _ in a.uses) for a in block.arguments]
        self.dims = code.dims[op] = [code.fresh() for _ in kinds]
        self.block = code.block(block)

    def step(self, values: Values, mask: Mask) -> None:
        _alone(self.op, values)
        views: list[View] = [values[s] for s in self.operands]
        if self.results:
            views[self.inputs :] = [copy_of(v) for v in views[self.inputs :]]
        extents = self._extents(views)
        points = prod(extents[d] for d in self.parallel)
        if prod(extents):
            self._run(values, views, extents, points)
        for r, view in zip(self.results, views[self.inputs :]):
            values[r] = view

    def hand_on(self, d: int, frames: list[Values]) -> None:
        """A reduction whose dimension `d` is spread over the blocks of a cluster: each goes on from the state of the one
        before, and all get the last."""
        outputs = [o for o, dims in zip(self.operands[self.inputs :], self.maps[self.inputs :]) if d not in dims]
        for n, frame in enumerate(frames):
            if n:
                _give(frames[n - 1], frame, outputs)
            self.step(frame, None)
        for frame in frames[:-1]:
            _give(frames[-1], frame, outputs)

    def _extents(self, views: list[View]) -> list[int]:
        found: dict[int, int] = {}
        for view, dims in zip(views, self.maps):
            for d, extent in zip(dims, view.shape):
                if found.setdefault(d, int(extent)) != int(extent):
                    what = f"dimension {d} is {found[d]} long in one operand, and {int(extent)} in another"
                    raise Fault("outside", self.op, what)
        return [found[d] for d in range(self.rank)]

    def _run(self, values: Values, views: list[View], extents: list[int], points: int) -> None:
        outer = values[0]
        context = values[0] = Points(outer, None if points == 1 else points)
        shape = [extents[d] for d in self.parallel]
        coordinates = np.indices(shape, np.int64).reshape(len(shape), points)
        starts, offsets = [], []
        for view, dims in zip(views, self.maps):
            stride = dict(zip(dims, view.strides))
            start = sum((int(stride.get(d, 0)) * c for d, c in zip(self.parallel, coordinates)), int(view.offset))
            starts.append(int(np.asarray(start).reshape(-1)[0]) if points == 1 else np.broadcast_to(start, points))
            by = tuple(int(stride.get(d, 0)) for d in self.reduced)
            offsets.append(View(view.buffer, 0, tuple(extents[d] for d in self.reduced), by).offsets().tolist())
        for d, c in zip(self.parallel, coordinates):
            values[self.dims[d]] = int(c[0]) if points == 1 else c
        loads = [
            (slot, s, by, view, may_read(view, context))
            for slot, used, s, by, view in zip(self.block.arguments, self.used, starts, offsets, views) if used
        ]  # fmt: skip
        stores = [
            (slot, s, by, view, may_write(view, context))
            for slot, s, by, view in zip(self.block.ends, *(x[self.inputs :] for x in (starts, offsets, views)))
        ]  # fmt: skip
        for step, point in enumerate(product(*(range(extents[d]) for d in self.reduced))):
            for d, index in zip(self.reduced, point):
                values[self.dims[d]] = index
            for slot, start, by, view, free in loads:
                at = start + by[step]
                values[slot] = view.buffer.data[at] if free else read(view, at, self.op, context, None)
            self.block.run(values, None)
            for slot, start, by, view, free in stores:
                at, buffer = start + by[step], view.buffer
                if not free:
                    write(view, at, values[slot], self.op, context, None)
                    continue
                buffer.data[at] = values[slot]
                if buffer.written is not None:
                    buffer.written[at] = buffer.full
        values[0] = outer


def _give(one: Values, other: Values, slots: list[int]) -> None:
    """Copies one block's own memory to another block."""
    for slot in slots:
        source, target = one[slot], other[slot]
        target.buffer.data[target.offsets()] = source.array().reshape(-1)
        if target.buffer.written is not None:
            target.buffer.written[target.offsets()] = source.written().reshape(-1)


class Points(Context):
    """The parallel points of an operation; they belong to the block that it runs in."""

    def __init__(self, outer: Context, points: int | None):
        super().__init__(points)
        self.block, self.first_block = outer.block, outer.first_block


def _alone(op: ir.Operation, values: Values) -> None:
    if values[0].lanes is not None:
        raise Unsupported(op, "inside of another, or in a thread")


# ---- tensor ----------------------------------------------------------------------------------------------------------


@operation("tensor.empty")
def _empty(code: Code, op: ir.Operation) -> Step:
    sizes, (r,) = code.operands(op), code.results(op)
    type_ = op.results[0].type
    shape, dtype = shape_of(type_), dtype_of(type_)

    def step(values: Values, mask: Mask) -> None:
        whole = filled(shape, [values[s] for s in sizes])
        values[r] = View.whole(Buffer.empty(prod(whole), dtype), whole)

    return step


@operation("bufferization.to_tensor")
def _to_tensor(code: Code, op: ir.Operation) -> Step:
    (source,), (r,) = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        values[r] = copy_of(values[source])

    return step


def slicing(code: Code, op: ir.Operation, skip: int) -> Callable[[Values], Any]:
    """A function that gives a slice's offsets, sizes and steps; its first dynamic one is operand `skip`."""
    slots = iter(code.operands(op)[skip:])
    groups = []
    for name in ("offsets", "sizes", "strides"):
        entries = list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"]))
        groups.append([(next(slots), None) if e == mlir.DYNAMIC else (None, e) for e in entries])
    return lambda values: [[values[s] if s is not None else e for s, e in group] for group in groups]


@operation("tensor.extract_slice", "memref.subview")
def _slice(code: Code, op: ir.Operation) -> Step:
    source, (r,) = code.operands(op)[0], code.results(op)
    entries = slicing(code, op, 1)
    kept = mlir.kept_dims(op)

    def step(values: Values, mask: Mask) -> None:
        offsets, sizes, steps = entries(values)
        values[r] = part(values[source], offsets, sizes, steps, kept, op, values[0], mask)

    return step


@operation("tensor.parallel_insert_slice")
def _insert_in_parallel(code: Code, op: ir.Operation) -> Step:
    source, target = code.operands(op)[:2]
    result = code.targets[target]
    entries = slicing(code, op, 2)

    def step(values: Values, mask: Mask) -> None:
        offsets, sizes, steps = entries(values)
        _insert(op, values, values[result], values[source], offsets, sizes, steps, mask)

    return step


@operation("tensor.insert_slice")
def _insert_slice(code: Code, op: ir.Operation) -> Step:
    (source, target), (r,) = code.operands(op)[:2], code.results(op)
    entries = slicing(code, op, 2)

    def step(values: Values, mask: Mask) -> None:
        offsets, sizes, steps = entries(values)
        values[r] = copy_of(values[target])
        _insert(op, values, values[r], values[source], offsets, sizes, steps, mask)

    return step


def _insert(
    op: ir.Operation, values: Values, whole: View, piece: View, offsets: list[Index], sizes: list[Index], steps: list[Index],
    mask: Mask,
) -> None:  # fmt: skip
    target = part(whole, offsets, sizes, steps, list(range(len(sizes))), op, values[0], mask)
    if prod(piece.static_shape()) != prod(target.static_shape()):
        raise Fault("outside", op, f"a slice of shape {piece.static_shape()} goes into {target.static_shape()}")
    targets = target.offsets()
    write(target, targets, piece.array().reshape(-1), op, values[0], None)
    if target.buffer.written is not None:
        target.buffer.written[targets] = piece.written().reshape(-1)


@operation("tensor.expand_shape", "memref.expand_shape")
def _expand(code: Code, op: ir.Operation) -> Step:
    (source, *sizes), (r,) = code.operands(op), code.results(op)
    groups, extents = _groups(op), shape_of(op.results[0].type)

    def step(values: Values, mask: Mask) -> None:
        view: View = values[source]
        shape = filled(extents, [values[s] for s in sizes])
        if sizes and any(prod(shape[d] for d in group) != n for group, n in zip(groups, view.static_shape())):
            raise Fault("invalid", op, f"shape {view.static_shape()} is not {shape}")
        strides = list(shape)
        for group, stride in zip(groups, view.strides):
            for d in reversed(group):
                strides[d], stride = stride, stride * shape[d]
        values[r] = View(view.buffer, view.offset, shape, tuple(strides))

    return step


@operation("tensor.collapse_shape", "memref.collapse_shape")
def _collapse(code: Code, op: ir.Operation) -> Step:
    source, (r,) = code.operands(op)[0], code.results(op)
    groups = _groups(op)

    def step(values: Values, mask: Mask) -> None:
        view: View = values[source]
        shape, strides = [], []
        for group in groups:
            long = [d for d in group if differs(view.shape[d]) or view.shape[d] != 1] or group[-1:]
            for d, below in pairwise(long):
                if np.any(view.strides[d] != view.strides[below] * view.shape[below]):
                    raise Fault("invalid", op, f"dimensions {d} and {below} do not lie behind one another")
            shape.append(prod(view.shape[d] for d in long) if len(long) > 1 else view.shape[long[0]])
            strides.append(view.strides[long[-1]])
        values[r] = View(view.buffer, view.offset, tuple(shape), tuple(strides))

    return step


def _groups(op: ir.Operation) -> list[list[int]]:
    return [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])]


@operation("tensor.dim", "memref.dim")
def _dim(code: Code, op: ir.Operation) -> Step:
    (source, d), (r,) = code.operands(op), code.results(op)

    def step(values: Values, mask: Mask) -> None:
        values[r] = values[source].shape[int(values[d])]

    return step
