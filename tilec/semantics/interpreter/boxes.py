"""TMA: boxes of tensors that are copied to workgroup memory, of one block or of several of a cluster, and back.

Data is there as soon as a copy starts; whoever uses it without waiting for the copy gets a race (`races`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.semantics.interpreter.asynchronous import Barrier, barrier_of, each_lane
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, dtype_of, operation
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.flight import Threads
from tilec.semantics.interpreter.memory import Buffer, View, read, write
from tilec.semantics.interpreter.races import Agent, Copies

PLAIN = 16  # bytes that stay together: the "swizzle" of a tile that lies as it is
SWIZZLES = {"none": PLAIN, "swizzle_32b": 32, "swizzle_64b": 64, "swizzle_128b": 128}  # bytes of a line


@dataclass(frozen=True)
class Box:
    """A tensor that copies take boxes of, of every so many-th element along each dimension, to lie in lines of so many bytes whose
    pieces are exchanged; `rounded` to the nearest tf32."""

    tensor: View
    shape: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...]
    rounded: bool


def swizzled(offset: np.ndarray, line: int) -> np.ndarray:
    """Where a byte of a tile lies: the 16-byte pieces of a line are exchanged by the number of its 128 bytes."""
    return offset ^ (offset >> 7 & line // 16 - 1) << 4


@operation("nvgpu.tma.create.descriptor")
def _descriptor(code: Code, op: ir.Operation) -> Step:
    (tensor, *box), (r,) = code.operands(op), code.results(op)
    (name,) = re.findall(r"swizzle = (\w+)", str(op.results[0].type))
    swizzle = SWIZZLES[name]
    steps = tuple(mlir.get_integers(op, "tilec.element_steps") or [1] * len(box))

    def step(values: Values, mask: Mask) -> None:
        values[r] = Box(values[tensor], tuple(int(values[s]) for s in box), swizzle, steps, "tilec.rounded" in op.attributes)

    return step


def _check_beginning(op: ir.Operation, byte: int) -> None:
    """TMA copies boxes that begin at multiples of 16 bytes in a line of the tensor: others are illegal instructions on hardware."""
    if byte % PLAIN:
        raise Fault("misaligned", op, f"a box that begins at byte {byte} of a line")


@operation("nvgpu.tma.async.load")
def _load(code: Code, op: ir.Operation) -> Step:
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    slots = code.operands(op)
    target, group, box = slots[:3]
    coordinates, number = slots[3 : 3 + segments[3]], slots[3 + segments[3]]
    if segments[6]:
        raise Unsupported(op, "with a condition")
    blocks = slots[4 + segments[3] :]  # a mask of those of the cluster that get the box
    dtype = dtype_of(op.operands[0].type)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        for lane, n, *at in each_lane(values, mask, number, *coordinates, *blocks):
            _check_beginning(op, at[0] * dtype.itemsize)
            made = _boxed(values[box], at[: len(coordinates)][::-1], op, context)
            view: View = values[target]
            start = int(np.broadcast_to(view.offset, context.lanes)[lane]) * dtype.itemsize + view.buffer.start
            swizzle = values[box].swizzle
            offsets = boxed_elements(op, view.buffer, start, np.arange(made.size) * dtype.itemsize, swizzle)
            row, thread = int(context.row_of[lane]), context.thread_of[[lane]]
            mine: Barrier = values[group][n]
            for other in _masked(at[-1], row, context) if blocks else [row]:
                barrier = barrier_of(op, values, group, n, lane, other)
                mine.copies += 1
                known = context.clocks.release(row, thread)
                agent = context.kernel.counting(barrier.number, other % context.kernel.cluster)
                who = Agent(context.clocks, int(context.block_of[lane]), agent, mine.copies, known)
                if other != row:
                    context.reach(op, np.array([[other]]), np.array([lane]))
                    context.flight.remote[int(who.ids)] = op
                buffer, guard, cells = view.buffer, view.buffer.guard, view.buffer.written
                assert cells is not None and guard is not None  # of workgroup memory it is known
                guard.writes(guard.cells_of(buffer, offsets[None], np.array([[other]])), who, op, context)
                buffer.data[other, offsets], cells[other, offsets] = made.reshape(-1), buffer.full
                context.flight.layouts[other, buffer.pieces(offsets)] = swizzle
                known[who.ids % context.clocks.columns] = mine.copies
                barrier.change(op, context, 0, -made.nbytes, known)

    return step


def _masked(mask: int, row: int, context: Threads) -> list[int]:
    """The rows of a cluster's blocks whose bits are set."""
    first = row - row % context.kernel.cluster
    return [first + n for n in range(context.kernel.cluster) if mask >> n & 1]


@operation("nvgpu.tma.async.store")
def _store(code: Code, op: ir.Operation) -> Step:
    """A box of workgroup memory to a tensor; what lies outside it goes nowhere."""
    source, box, *coordinates = code.operands(op)
    if list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[3]:
        raise Unsupported(op, "with a condition")
    dtype = dtype_of(op.operands[0].type)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        for lane, *at in each_lane(values, mask, *coordinates):
            _check_beginning(op, at[0] * dtype.itemsize)
            view, found = values[source], values[box]
            start = int(np.broadcast_to(view.offset, context.lanes)[lane]) * dtype.itemsize + view.buffer.start
            count = prod(found.shape)
            offsets = boxed_elements(op, view.buffer, start, np.arange(count) * dtype.itemsize, found.swizzle)
            row, lanes = int(context.row_of[lane]), np.array([lane])
            guard, cells = view.buffer.guard, view.buffer.written
            assert cells is not None  # of workgroup memory it is known
            each = lanes.repeat(count * guard.width(view.buffer))
            who = Copies(context.clocks, context, each, context.commits[lane] + 1)
            guard.reads(guard.cells_of(view.buffer, offsets[None], np.array([[row]])), who, op, context)
            inside, in_tensor = _inside(found, at[::-1])
            written = cells[row, offsets].reshape(found.shape)[inside] == view.buffer.full
            if not written.all():
                raise Fault("unwritten", op, f"a box of {view.buffer.name} that nothing wrote", context.names(lanes))
            data = view.buffer.data[row, offsets].reshape(found.shape)[inside]
            only = np.zeros(context.lanes, np.bool_)
            only[lane] = True
            write(found.tensor, in_tensor.reshape(1, -1), data.reshape(1, -1), op, context, only)

    return step


def _inside(box: Box, start: list[int]) -> tuple[tuple[Any, ...], Any]:
    """The elements of a box that lie inside its tensor: their subscripts in the box, and where they are in memory."""
    along = [s + step * np.arange(n) for s, n, step in zip(start, box.shape, box.steps)]
    inside = [(at >= 0) & (at < extent) for at, extent in zip(along, box.tensor.shape)]
    index = np.ix_(*(at[i] for at, i in zip(along, inside)))
    offsets = sum((i * s for i, s in zip(index, box.tensor.strides)), np.int64(box.tensor.offset))
    return np.ix_(*inside), offsets


def _boxed(box: Box, start: list[int], op: ir.Operation, context: Threads) -> np.ndarray:
    """A box of a tensor; what is outside is zero."""
    made = np.zeros(box.shape, box.tensor.buffer.data.dtype)
    inside, offsets = _inside(box, start)
    if offsets.size:
        made[inside] = read(box.tensor, offsets.reshape(1, -1), op, context, None).reshape(offsets.shape)
    return nearest_tf32(made) if box.rounded else made


def nearest_tf32(values: np.ndarray) -> np.ndarray:
    """Float32 numbers with 10 bits of mantissa, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    rounded = ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


def boxed_elements(op: ir.Operation, buffer: Buffer, start: int, offsets: np.ndarray, swizzle: int) -> np.ndarray:
    """The elements of a buffer that bytes behind `start` of workgroup memory are, as the hardware lays tiles out."""
    if start % max(128, 8 * swizzle):
        raise Fault("misaligned", op, f"a tile at byte {start} of workgroup memory")
    at = swizzled(start + offsets, swizzle)
    elements = (at - buffer.start) // buffer.data.dtype.itemsize
    if elements.size and (elements.min() < 0 or elements.max() >= buffer.data.shape[-1]):
        raise Fault("outside", op, f"a tile from byte {start} leaves {buffer.name or 'its buffer'}")
    return elements
