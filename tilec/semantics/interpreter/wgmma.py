"""Device functions without an operation upstream (`tilec/core/opcodes.py`): products of a warpgroup, and
barriers by number.

A product is computed as it is printed: products of 64 x n x 32 bytes, one after another, of tiles in workgroup memory that matrix
descriptors name, with a swizzle of 128 bytes (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
"""

from __future__ import annotations

from itertools import product

import numpy as np

from tilec.core.hardware import LINE, ROWS
from tilec.core.mlir import ir
from tilec.core.opcodes import CopyArrive, NamedBarrier, Opcode, RemoteArrive, WarpgroupProduct, WarpgroupWait
from tilec.semantics.interpreter.asynchronous import copy_arrive, remote_arrive
from tilec.semantics.interpreter.boxes import boxed_elements
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, Waiting, dtype_of
from tilec.semantics.interpreter.faults import Fault, Unsupported, first
from tilec.semantics.interpreter.flight import Threads
from tilec.semantics.interpreter.races import Agent
from tilec.semantics.interpreter.threads import named_barrier
from tilec.semantics.interpreter.warps import left_matrix, multiplicands, rounded

SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "i8": 1, "u8": 1, "f8e4m3": 1, "f8e5m2": 1}  # of a factor's elements, in bytes


def device_function(code: Code, op: ir.Operation, opcode: Opcode | None) -> Step | Waiting:
    """The meaning of a call of a function that is only declared."""
    match opcode:
        case NamedBarrier(waits):
            return named_barrier(code, op, waits)
        case RemoteArrive():
            return remote_arrive(code, op)
        case CopyArrive():
            return copy_arrive(code, op)
        case WarpgroupProduct():
            return _Product(code, op, opcode).step
        case WarpgroupWait(running):
            return _wait(running)
    raise Unsupported(op, "a function that is only declared, by a call without an opcode")


class _Product:
    def __init__(self, code: Code, op: ir.Operation, opcode: WarpgroupProduct):
        self.op, self.n, self.depth, self.lines = op, opcode.n, opcode.k, opcode.slabs
        self.kind, self.in_registers = opcode.multiplicand, opcode.left_in_registers
        self.sums, self.left, self.right, *self.at, self.accumulate = code.operands(op)
        self.transposed = not opcode.left_k_major, not opcode.right_k_major
        self.dtype = dtype_of(op.operands[0].type)
        self.size = dtype_of(op.operands[2].type).itemsize
        if self.size != SIZES.get(opcode.multiplicand) or (self.size != 2 and any(self.transposed)):
            raise Unsupported(op, f"{opcode}, in elements of {8 * self.size} bits")

    def step(self, values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        for n, group in np.argwhere(context.whole_groups(self.op, mask, 128, "the warpgroup")):
            self._multiply(values, context, group, n * context.threads + 128 * group + np.arange(128))

    def _multiply(self, values: Values, context: Threads, group: int, lanes: np.ndarray) -> None:
        sums, row, products = values[self.sums], context.row_of[lanes[0]], context.flight.products
        total, part = sums.buffer, slice(int(sums.offset), int(sums.offset) + self.n // 2)
        tick = products[row, group] = products[row, group] + 1
        known = context.clocks.known[row, context.thread_of[lanes]].min(axis=0)
        agent = int(context.kernel.multiplying(group))
        who = Agent(context.clocks, int(context.block_of[lanes[0]]), agent, int(tick), known)
        if self.in_registers:
            a = self._from_registers(values, lanes, tick)
        else:
            a = self._tile(values, self.left, ROWS, 0, lanes, who)
        added = fragments(a @ self._tile(values, self.right, self.n, 1, lanes, who).T, self.n)
        if _same(self.op, values, self.accumulate, lanes):
            if not (total.written[lanes, part] == total.full).all():
                raise Fault(
                    "unwritten", self.op, f"{total.name} is added to, and nothing wrote it", context.names(lanes)
                )
            added += total.data[lanes, part].astype(np.float64)
        total.data[lanes, part], total.written[lanes, part] = rounded(added, self.dtype), total.full
        total.running = _last(total.running, context, lanes, tick)

    def _from_registers(self, values: Values, lanes: np.ndarray, tick: int) -> np.ndarray:
        """64 x k of a packed fragment: 4 words for each 32 bytes of k."""
        context, buffer = values[0], values[self.left].buffer
        start, word = int(_same(self.op, values, self.at[0], lanes)), 4 // self.size
        count = 4 * (self.depth * self.size // 32)
        part = slice(start * word, (start + count) * word)
        if not (buffer.written[lanes, part] == buffer.full).all():
            raise Fault("unwritten", self.op, f"{buffer.name} is multiplied before it is written", context.names(lanes))
        buffer.held = _last(buffer.held, context, lanes, tick)
        words = multiplicands(buffer.data[lanes, part], self.kind).reshape(4, 32, count // 4, 4, word)
        steps = left_matrix(words.swapaxes(1, 2))  # warp, step, 16 rows, 32 bytes of k
        return steps.swapaxes(1, 2).reshape(ROWS, self.depth)

    def _tile(self, values: Values, slot: int, rows: int, side: int, lanes: np.ndarray, who: Agent) -> np.ndarray:
        """rows x k of a tile, as a matrix descriptor finds them."""
        context, view, size = values[0], values[slot], self.size
        start = int(_agreed(self.op, np.broadcast_to(view.offset, context.lanes)[lanes], context, lanes)) * size
        row, k = np.meshgrid(np.arange(rows), np.arange(self.depth), indexing="ij")
        line, along = (k, row) if self.transposed[side] else (row, k)
        length, count = LINE // size, self.lines[side]
        if self.transposed[side] or count:  # k without slabs stays within a line
            slab = along // length * (self.depth if count is None else count)
            line, along = line + slab, along % length
        buffer, block = view.buffer, context.row_of[lanes[0]]
        bytes_ = (line * LINE + along * size).reshape(-1)
        offsets = boxed_elements(self.op, buffer, start + buffer.start, bytes_, LINE)
        layouts = context.flight.layouts[block, buffer.pieces(offsets)]
        if (wrong := (layouts != 0) & (layouts != LINE)).any():
            n = first(wrong)
            at = f"{buffer.name} at byte {buffer.start + int(offsets[n]) * size} of workgroup memory"
            what = f"{at} was copied with a swizzle of {layouts[n]} bytes, and is read with one of {LINE}"
            raise Fault("invalid", self.op, what, context.names(lanes))
        guard = buffer.guard
        guard.reads(guard.cells_of(buffer, offsets[None], np.array([[block]])), who, self.op, context)
        found = multiplicands(buffer.data[block, offsets], self.kind)
        # rows beyond the tensor's are never loaded; their results are NaN here, and must not be stored
        found[buffer.written[block, offsets] != buffer.full] = np.nan
        return found.reshape(rows, self.depth)


def _last(products: np.ndarray | None, context: Threads, lanes: np.ndarray, tick: int) -> np.ndarray:
    products = np.zeros(context.lanes, np.int32) if products is None else products
    products[lanes] = tick
    return products


def _same(op: ir.Operation, values: Values, slot: int, lanes: np.ndarray) -> np.ndarray:
    return _agreed(op, np.broadcast_to(values[slot], values[0].lanes)[lanes], values[0], lanes)


def _agreed(op: ir.Operation, found: np.ndarray, context: Threads, lanes: np.ndarray) -> np.ndarray:
    """A value that all threads of a warpgroup must agree on."""
    if (found != found[0]).any():
        raise Fault("diverged", op, "the threads of a warpgroup do not agree", context.names(lanes))
    return found[0]


def fragments(matrix: np.ndarray, n: int) -> np.ndarray:
    """64 x n sums as 128 threads hold them: two neighbours of every 8 columns, in two rows."""
    thread = np.arange(128)
    held = np.zeros((128, n // 8, 2, 2))
    for j, half, column in product(range(n // 8), range(2), range(2)):
        row = 16 * (thread // 32) + 8 * half + thread % 32 // 4
        held[:, j, half, column] = matrix[row, 8 * j + 2 * (thread % 4) + column]
    return held.reshape(128, -1)


def _wait(running: int) -> Step:
    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        rows, threads = context.row_of[lanes], context.thread_of[lanes]
        groups = threads // 128
        over = context.flight.products[rows, groups] - running
        ranks = rows % context.kernel.cluster
        agents = ranks * context.kernel.agents + context.kernel.multiplying(groups)
        known = context.clocks.known
        known[rows, threads, agents] = np.maximum(known[rows, threads, agents], over)
        context.completed[lanes] = np.maximum(context.completed[lanes], over)

    return step
