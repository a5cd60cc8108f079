"""Memory that records which elements were written, and by whom; tensors are memory that is written once.

A `Buffer` is a line of elements: one for all, one a lane (private memory), or one a block (workgroup memory). A `View` is
where a memref or a tensor lies in it. Every access is checked against the view's shape, and every read against the elements
written so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Context, Index, Mask, differs, merge
from tilec.semantics.interpreter.faults import Fault, first


class Buffer:
    """`data` has shape [elements], or [rows, elements] where `row_of` tells each lane's row. Where `written` is None,
    everything is. `guard` watches accesses of several threads."""

    def __init__(self, data: np.ndarray, written: np.ndarray | None, name: str = "", readonly: bool = False):
        self.data, self.written, self.name, self.readonly = data, written, name, readonly
        self.row_of: np.ndarray | None = None
        self.private = False
        self.full: bool | int = True  # what `written` holds where an element is written
        self.running: np.ndarray | None = None  # by lane, the number of the last product that writes here,
        self.held: np.ndarray | None = None  # and of the last one that reads it
        self.product: np.ndarray | None = None  # the number of that product among its warpgroup's
        self.guard: Any = None
        self.start = 0  # bytes before it in workgroup memory
        self.across: int | None = None  # elements of each block's part, where places go over the blocks of a cluster
        self.owner: np.ndarray | None = None  # the block that wrote an element last
        self.published: dict[int, Any] = {}  # by element, what blocks know that see what was assigned there last

    @staticmethod
    def empty(count: int, dtype: np.dtype, name: str = "") -> Buffer:
        return Buffer(np.zeros(count, dtype), np.zeros(count, np.bool_), name)

    def index(self, offset: Index) -> Index | tuple[slice | np.ndarray, Index]:
        """Of elements by lane and, for vectors, by position; `offset` is a number, [lanes], or [lanes or 1, positions]."""
        if self.row_of is None:
            return offset
        if self.across is not None:
            return np.divmod(offset, self.across)
        if not differs(offset):
            return (slice(None) if self.private else self.row_of), offset
        return (self.row_of if offset.ndim == 1 else self.row_of[:, None]), offset

    def rows(self, offsets: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of offsets, and where in them; of memory that is not a cluster's it is each lane's `own`."""
        return (own, offsets) if self.across is None else np.divmod(offsets, self.across)

    def pieces(self, offsets: np.ndarray) -> np.ndarray:
        """The 16-byte pieces of workgroup memory that elements lie in."""
        return (self.start + offsets * self.data.dtype.itemsize) // 16


@dataclass(frozen=True)
class View:
    """A shaped part of a buffer. Offset, shape and strides are in elements; each may differ from lane to lane."""

    buffer: Buffer
    offset: Index
    shape: tuple
    strides: tuple

    @staticmethod
    def whole(buffer: Buffer, shape: tuple[int, ...]) -> View:
        return View(buffer, 0, tuple(shape), row_major(shape))

    def static_shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.shape)

    def offsets(self) -> np.ndarray:
        """Of all elements, in row-major order."""
        found = np.full((1,), int(self.offset), np.int64)
        for extent, stride in zip(self.shape, self.strides):
            found = (found[:, None] + int(stride) * np.arange(int(extent), dtype=np.int64)).reshape(-1)
        return found

    def array(self) -> np.ndarray:
        return self.buffer.data[self.offsets()].reshape(self.static_shape())

    def written(self) -> np.ndarray:
        if self.buffer.written is None:
            return np.ones(self.static_shape(), np.bool_)
        return self.buffer.written[self.offsets()].reshape(self.static_shape())

    def offset_of(
        self, subscripts: list, op: ir.Operation, context: Context, mask: Mask, vector: tuple[int, ...] = ()
    ) -> Index:
        """Where an element lies, or the first one of a vector that runs along the last dimensions."""
        found, plain = self.offset, len(subscripts) - len(vector)
        for d, (subscript, extent, stride) in enumerate(zip(subscripts, self.shape, self.strides)):
            last = extent - (vector[d - plain] if d >= plain else 1)
            if (type(subscript) is not int and differs(subscript)) or (type(last) is not int and differs(last)):
                outside = (subscript < 0) | (subscript > last)
                if mask is not None:
                    outside = outside & mask
                if outside.any():
                    self._outside(op, d, subscript, extent, outside, context, vector)
            elif not 0 <= subscript <= last:
                wrong = np.ones(context.lanes or 1, np.bool_) if mask is None else mask
                self._outside(op, d, subscript, extent, wrong, context, vector)
            if type(subscript) is not int or subscript:
                found = found + subscript * stride
        return np.where(mask, found, 0) if mask is not None and differs(found) else found

    def _outside(
        self,
        op: ir.Operation,
        d: int,
        subscript: Index,
        extent: Index,
        wrong: np.ndarray,
        context: Context,
        vector: tuple[int, ...],
    ) -> None:
        lane = first(wrong)
        at, size = (int(v[lane]) if differs(v) else int(v) for v in (subscript, extent))
        length = f", {vector} elements from there" if vector else ""
        what = f"subscript {at} of dimension {d}{length}, where {self.buffer.name or 'memory'} has {size}"
        raise Fault("outside", op, what, context.names(np.flatnonzero(wrong)))


def filled(shape: Sequence[int], given: Sequence[Index]) -> tuple[int, ...]:
    """A type's shape, with numbers in place of its `?`."""
    numbers = iter(given)
    return tuple(int(next(numbers)) if n == mlir.DYNAMIC else n for n in shape)


def row_major(shape: tuple) -> tuple:
    strides: list = []
    below = 1
    for extent in reversed(shape):
        strides.insert(0, below)
        below = below * extent
    return tuple(strides)


def copy_of(view: View) -> View:
    """New memory with the same elements, as far as they were written."""
    buffer = Buffer(view.array().reshape(-1).copy(), view.written().reshape(-1).copy(), view.buffer.name)
    return View.whole(buffer, view.static_shape())


# ---- reading and writing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen(View):
    """By lane, this view or another one of the same layout."""

    condition: np.ndarray
    otherwise: View

    @staticmethod
    def of(condition: np.ndarray, then: View, otherwise: View) -> Chosen:
        return Chosen(then.buffer, then.offset, then.shape, then.strides, condition, otherwise)


def read(view: View, offset: Index, op: ir.Operation, context: Context, mask: Mask) -> np.ndarray:
    """The elements at an offset; what nothing wrote is a fault."""
    if isinstance(view, Chosen):
        parts = [View(view.buffer, view.offset, view.shape, view.strides), view.otherwise]
        return np.asarray(merge(view.condition, *(read(v, offset, op, context, mask) for v in parts)))
    buffer = view.buffer
    if buffer.data.size == 0:  # no lane gets here
        return np.zeros(np.shape(offset), buffer.data.dtype)
    index = buffer.index(offset)
    if buffer.written is not None:
        known = buffer.written[index] == buffer.full
        if not (known.all() if known.ndim else known):
            _unwritten(view, offset, known, op, context, mask)
    if buffer.running is not None:
        _complete(buffer, buffer.running, "read while a product that writes", op, context, mask)
    if buffer.guard is not None:
        buffer.guard.read(buffer, offset, op, context, mask)
    elif buffer.owner is not None and context.lanes is None:
        _same_block(view, offset, op, context)
    found = buffer.data[index]
    return found if found.base is None else found.copy()  # a slice would follow later stores


def _complete(buffer: Buffer, products: np.ndarray, how: str, op: ir.Operation, context: Context, mask: Mask) -> None:
    """Registers are to be left alone until the products that use them are known to be over."""
    wrong = products > context.completed
    lanes = np.flatnonzero(wrong if mask is None else wrong & mask)
    if len(lanes):
        raise Fault("race", op, f"{buffer.name} is {how} it may still run", context.names(lanes))


def _unwritten(view: View, offset: Index, known: np.ndarray, op: ir.Operation, context: Context, mask: Mask) -> None:
    wrong = ~known
    while wrong.ndim > 1 or (wrong.ndim == 1 and context.lanes is None):
        wrong = np.logical_or.reduce(wrong, axis=-1)
    if mask is not None:
        wrong = wrong & mask
    if not wrong.any():
        return
    lanes = np.flatnonzero(np.broadcast_to(wrong, context.lanes or 1))
    at = _element(view, np.asarray(offset).reshape(-1)[min(int(lanes[0]), np.asarray(offset).size - 1)])
    raise Fault(
        "unwritten", op, f"{view.buffer.name or 'memory'}{at} is read, and nothing wrote it", context.names(lanes)
    )


def _element(view: View, offset: Index) -> str:
    if view.buffer.across is None:
        return f" at element {int(offset)}"
    rank, at = divmod(int(offset), view.buffer.across)
    return f" at element {at} of the cluster's block {rank}"


def write(
    view: View, offset: Index, value: object, op: ir.Operation, context: Context, mask: Mask, ordered: bool = True
) -> None:
    """Stores values. If the access is not `ordered` with others by its thread, the caller tells the guard."""
    buffer = view.buffer
    if buffer.readonly:
        raise Fault("invalid", op, f"{buffer.name or 'an input'} is written, and is an input")
    if buffer.held is not None:
        _complete(buffer, buffer.held, "written while a product that reads", op, context, mask)
    if buffer.guard is not None and ordered:
        buffer.guard.write(buffer, offset, value, op, context, mask)
    elif context.lanes is None and context.first_block <= context.block:
        _own(view, offset, op, context)
    if context.lanes is None:
        buffer.data[offset] = value
        if buffer.written is not None:
            buffer.written[offset] = buffer.full
        return
    if buffer.row_of is None and not differs(offset):
        offset = np.full(context.lanes, offset)
    elif buffer.row_of is None and differs(offset) and offset.shape[0] == 1:  # all lanes store a vector at one place
        offset = np.broadcast_to(offset, (context.lanes, *offset.shape[1:]))
    index = buffer.index(offset)
    if mask is not None:
        lanes = np.flatnonzero(mask)
        rows = lanes if buffer.row_of is None else buffer.row_of[lanes]
        if differs(offset) and offset.shape[0] > 1:
            offset = offset[lanes]
        if differs(value) and value.shape[0] > 1:
            value = value[lanes]
        if buffer.across is not None:
            index = np.divmod(offset, buffer.across)
        else:
            index = offset if buffer.row_of is None else ((rows if np.ndim(offset) < 2 else rows[:, None]), offset)
    buffer.data[index] = value
    if buffer.written is not None:
        buffer.written[index] = buffer.full


def may_read(view: View, context: Context) -> bool:
    """Whether `read` finds no fault at any of a view's elements, and finds none after further writes by the same block."""
    buffer = view.buffer
    if buffer.row_of is not None or buffer.running is not None or buffer.guard is not None or not buffer.data.size:
        return False
    at = view.offsets()
    if buffer.written is not None and not (buffer.written[at] == buffer.full).all():
        return False
    return buffer.owner is None or context.lanes is not None or not _others(buffer.owner[at], context).any()


def may_write(view: View, context: Context) -> bool:
    """Whether `write` finds no fault at any of a view's elements; they belong to the block from now on."""
    buffer = view.buffer
    if buffer.row_of is not None or buffer.held is not None or buffer.guard is not None or buffer.readonly:
        return False
    if context.lanes is None and context.first_block <= context.block:
        at = view.offsets()
        if buffer.owner is None:
            buffer.owner = np.zeros(buffer.data.shape, np.int32)
        if _others(buffer.owner[at], context).any():
            return False
        buffer.owner[at] = context.block
    return True


# ---- blocks of one loop ----------------------------------------------------------------------------------------------


def _own(view: View, offset: Index, op: ir.Operation, context: Context) -> None:
    """An element belongs to the block of a parallel loop that writes it."""
    buffer = view.buffer
    if buffer.owner is None:
        buffer.owner = np.zeros(buffer.data.shape, np.int32)
    _same_block(view, offset, op, context)
    buffer.owner[offset] = context.block


def _same_block(view: View, offset: Index, op: ir.Operation, context: Context) -> None:
    assert view.buffer.owner is not None
    owner = view.buffer.owner[offset]
    other = _others(owner, context)
    if other.any() if other.ndim else other:
        at = np.asarray(offset).reshape(-1)[first(np.atleast_1d(other).reshape(-1))]
        number = int(np.atleast_1d(owner)[np.atleast_1d(other)].flat[0]) - context.first_block
        mine = context.block - context.first_block
        what = f"{view.buffer.name or 'memory'}{_element(view, at)} is written by block {number} of a parallel loop"
        raise Fault("race", op, f"{what}, and block {mine} uses it")


def _others(owner: np.ndarray, context: Context) -> np.ndarray:
    """Which elements another block of the loop that runs has written."""
    return (owner >= context.first_block) & (owner != context.block)


def part(
    view: View, offsets: list, sizes: list, steps: list, kept: list[int], op: ir.Operation, context: Context, mask: Mask
) -> View:
    """A view of a view; `kept` are the dimensions that stay."""
    start, strides = view.offset, []
    for d, (offset, size, step, extent, stride) in enumerate(zip(offsets, sizes, steps, view.shape, view.strides)):
        last = offset + (size - 1) * step
        outside = np.asarray((size < 0) | ((size > 0) & ((offset < 0) | (last >= extent) | (last < 0))))
        if mask is not None:
            outside = outside & mask
        if outside.any():
            lane = first(np.atleast_1d(outside))
            shown = [int(v[lane]) if differs(v) else int(v) for v in (offset, size, step, extent)]
            what = f"{shown[1]} elements from {shown[0]} by {shown[2]} in dimension {d}, which has {shown[3]}"
            lanes = np.flatnonzero(np.broadcast_to(outside, context.lanes or 1))
            raise Fault("outside", op, what, context.names(lanes))
        start = start + offset * stride
        strides.append(step * stride)
    return replace(view, offset=start, shape=tuple(sizes[d] for d in kept), strides=tuple(strides[d] for d in kept))
