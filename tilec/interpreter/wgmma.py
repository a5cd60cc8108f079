"""Products of a warpgroup: calls of functions that upstream's dialects have no operation for.

`wgmma_64x{n}x{k}_{type}_{mk|km}_{nk|kn}(sums, left, right, keep)` is what is printed for it: k / 16 products of 64 x n x 16,
one after another, of tiles in workgroup memory that matrix descriptors name (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"). `wgmma_wait_{n}_{registers}(sums)` waits until at most n of them run. Where two factors' letters are turned
(`km`, `kn`) a line of the tile holds rows, else k.
"""

from __future__ import annotations

import re
from itertools import product

import numpy as np

from tilec.interpreter.asynchronous import LINE, boxed_places
from tilec.interpreter.code import Code, Mask, Step, Values, dtype_of
from tilec.interpreter.faults import Fault, Unsupported
from tilec.interpreter.memory import View
from tilec.interpreter.races import Agent
from tilec.interpreter.threads import Threads
from tilec.mlir import ir

PRODUCT = re.compile(r"wgmma_64x(\d+)x(\d+)_(\w+?)_(mk|km)_(nk|kn)")
WAIT = re.compile(r"wgmma_wait_(\d+)_\d+")


def device_function(code: Code, op: ir.Operation, name: str) -> Step:
    """The meaning of a call of a function that is only declared."""
    if match := PRODUCT.fullmatch(name):
        n, depth, _, left, right = match.groups()
        return _product(code, op, int(n), int(depth), left == "km", right == "kn")
    if match := WAIT.fullmatch(name):
        return _wait(code, op, int(match[1]))
    raise Unsupported(op, f"no meaning is known of '{name}'")


def _product(code: Code, op: ir.Operation, n: int, depth: int, left_turned: bool, right_turned: bool) -> Step:
    sums, left, right, keep = code.operands(op)
    dtype = dtype_of(op.operands[0].type)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        total: View = values[sums]
        groups = context.whole_groups(op, mask, 128, "the warpgroup")
        for row, group in np.argwhere(groups):
            lanes = row * context.threads + 128 * group + np.arange(128)
            tick = context.products[row, group] = context.products[row, group] + 1
            heard = context.clocks.known[row, context.thread_of[lanes]].min(axis=0)
            agent = context.threads + context.kernel.copies + context.kernel.barriers + group
            who = Agent(context.clocks, int(context.block_of[lanes[0]]), int(agent), int(tick), heard)
            a = _operand(op, values, left, 64, depth, left_turned, lanes, who)
            b = _operand(op, values, right, n, depth, right_turned, lanes, who)
            added = fragments(a @ b.T, n)
            if _same(op, values, keep, lanes):
                added += total.buffer.data[lanes].astype(np.float64)
            total.buffer.data[lanes] = added.astype(dtype)
            total.buffer.written[lanes] = True
            if total.buffer.running is None:
                total.buffer.running = np.zeros(context.lanes, np.bool_)
            total.buffer.running[lanes] = True

    return step


def _same(op: ir.Operation, values: Values, slot: int, lanes: np.ndarray):
    """A value that all threads of a warpgroup must agree on."""
    found = np.broadcast_to(values[slot], values[0].lanes)[lanes]
    if (found != found[0]).any():
        raise Fault("diverged", op, "the threads of a warpgroup do not agree", values[0].names(lanes))
    return found[0]


def _operand(
    op, values: Values, slot: int, rows: int, depth: int, turned: bool, lanes: np.ndarray, who: Agent
) -> np.ndarray:
    """rows x depth elements of a tile, as a matrix descriptor finds them."""
    context, view = values[0], values[slot]
    offsets = np.broadcast_to(view.offset, context.lanes)[lanes]
    if (offsets != offsets[0]).any():
        raise Fault("diverged", op, "the threads of a warpgroup name different tiles", context.names(lanes))
    buffer = view.buffer
    size = buffer.data.dtype.itemsize
    if size != 2:
        raise Unsupported(op, "of elements that have not 16 bits")
    row, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    line, column, slab = (k, row % 64, row // 64 * depth * LINE) if turned else (row, k, 0)
    bytes_ = slab + line * LINE + column * size
    places = boxed_places(op, buffer, int(offsets[0]) * size + buffer.start, bytes_.reshape(-1), swizzled=True)
    block = context.row_of[lanes[0]]
    if not (buffer.written[block, places] == buffer.full).all():
        raise Fault("unwritten", op, f"{buffer.name} is multiplied before all of it is written", context.names(lanes))
    guard = buffer.guard
    guard.reads(guard.places(buffer, places[None], np.array([block])), who, op, context)
    return buffer.data[block, places].astype(np.float64).reshape(rows, depth)


def fragments(matrix: np.ndarray, n: int) -> np.ndarray:
    """64 x n sums as 128 threads hold them: two neighbours of every 8 columns, in two rows."""
    thread = np.arange(128)
    held = np.zeros((128, n // 8, 2, 2))
    for j, half, column in product(range(n // 8), range(2), range(2)):
        row = 16 * (thread // 32) + 8 * half + thread % 32 // 4
        held[:, j, half, column] = matrix[row, 8 * j + 2 * (thread % 4) + column]
    return held.reshape(128, -1)


def _wait(code: Code, op: ir.Operation, running: int) -> Step:
    sums = code.operands(op)[0]

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        groups = context.whole_groups(op, mask, 128, "the warpgroup")
        for row, group in np.argwhere(groups):
            lanes = row * context.threads + 128 * group + np.arange(128)
            agent = context.threads + context.kernel.copies + context.kernel.barriers + group
            known = context.clocks.known[row, context.thread_of[lanes]]
            known[:, agent] = np.maximum(known[:, agent], context.products[row, group] - running)
            context.clocks.known[row, context.thread_of[lanes]] = known
            if running == 0 and values[sums].buffer.running is not None:
                values[sums].buffer.running[lanes] = False

    return step
