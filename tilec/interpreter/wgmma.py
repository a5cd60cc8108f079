"""Products of a warpgroup: calls of functions that upstream's dialects have no operation for.

`wgmma_64x{n}x{k}_{type}_{mk|km}_{nk|kn}(sums, left, right, keep)` is what is printed for it: k / 16 products of 64 x n x 16,
one after another, of tiles in workgroup memory that matrix descriptors name (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"). `wgmma_wait_{n}_{registers}(sums)` waits until at most n of them run. Where two factors' letters are turned
(`km`, `kn`) a line of the tile holds rows, else k.

With `_{lines}_{lines}` behind it, a factor that is longer than a line lies in slabs of so many lines. `rk` is a left factor in
registers: `(sums, left, right, first word, keep)`. `wgmma_wait_{n}_{registers}_{words}(sums, left)` hands those back, too.
`named_barrier` and `named_barrier_arrive` only say who multiplies first: they order nothing here, so nothing may rest on them.
"""

from __future__ import annotations

import re
from itertools import product

import numpy as np

from tilec.interpreter.asynchronous import LINE, boxed_places
from tilec.interpreter.code import Code, Mask, Step, Values, dtype_of
from tilec.interpreter.faults import Fault, Unsupported
from tilec.interpreter.memory import Buffer, View
from tilec.interpreter.races import Agent
from tilec.interpreter.threads import Threads
from tilec.mlir import ir

PRODUCT = re.compile(r"wgmma_64x(\d+)x(\d+)_(\w+?)_(mk|km|rk)_(nk|kn)(?:_(\d+)_(\d+))?")
WAIT = re.compile(r"wgmma_wait_(\d+)_\d+(?:_\d+)?")


def device_function(code: Code, op: ir.Operation, name: str) -> Step:
    """The meaning of a call of a function that is only declared."""
    if match := PRODUCT.fullmatch(name):
        n, depth, _, left, right, *slabs = match.groups()
        lines = [int(s) if s else int(depth) for s in slabs]
        return _product(code, op, int(n), int(depth), left, right, lines)
    if match := WAIT.fullmatch(name):
        return _wait(code, op, int(match[1]))
    if name in ("named_barrier", "named_barrier_arrive"):
        return _turn(op)
    raise Unsupported(op, f"no meaning is known of '{name}'")


def _product(code: Code, op: ir.Operation, n: int, depth: int, first: str, second: str, lines: list[int]) -> Step:
    sums, left, right, *word, keep = code.operands(op)
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
            if first == "rk":
                begin = int(_same(op, values, word[0], lanes))
                a = _registers(op, values[left], depth, begin, lanes, context)
                _start(values[left].buffer, lanes, tick, context)
            else:
                a = _operand(op, values, left, 64, depth, first == "km", lines[0], lanes, who)
            b = _operand(op, values, right, n, depth, second == "kn", lines[1], lanes, who)
            added = fragments(a @ b.T, n)
            if _same(op, values, keep, lanes):
                added += total.buffer.data[lanes].astype(np.float64)
            total.buffer.data[lanes] = added.astype(dtype)
            total.buffer.written[lanes] = True
            _start(total.buffer, lanes, tick, context)

    return step


def _start(buffer: Buffer, lanes: np.ndarray, tick: int, context: Threads) -> None:
    """Registers that a product has until it is waited for."""
    if buffer.running is None:
        buffer.running, buffer.product = np.zeros(context.lanes, np.bool_), np.zeros(context.lanes, np.int64)
    buffer.running[lanes], buffer.product[lanes] = True, tick


def _turn(op: ir.Operation) -> Step:
    def step(values: Values, mask: Mask) -> None:
        values[0].whole_groups(op, mask, 128, "the warpgroup")

    return step


def _registers(op, view: View, depth: int, word: int, lanes: np.ndarray, context: Threads) -> np.ndarray:
    """64 x depth elements that 128 threads hold: for each 16 of k, four words of two (the opposite of `fragments`)."""
    buffer = view.buffer
    places = 2 * word + np.arange(depth // 2)
    if not buffer.written[lanes][:, places].all():
        raise Fault("unwritten", op, f"{buffer.name} is multiplied before all of it is written", context.names(lanes))
    held = buffer.data[lanes][:, places].astype(np.float64).reshape(128, depth // 16, 2, 2, 2)
    matrix, thread = np.zeros((64, depth)), np.arange(128)
    for step, high, half, column in product(range(depth // 16), range(2), range(2), range(2)):
        row = 16 * (thread // 32) + 8 * half + thread % 32 // 4
        matrix[row, 16 * step + 8 * high + 2 * (thread % 4) + column] = held[:, step, high, half, column]
    return matrix


def _same(op: ir.Operation, values: Values, slot: int, lanes: np.ndarray):
    """A value that all threads of a warpgroup must agree on."""
    found = np.broadcast_to(values[slot], values[0].lanes)[lanes]
    if (found != found[0]).any():
        raise Fault("diverged", op, "the threads of a warpgroup do not agree", values[0].names(lanes))
    return found[0]


def _operand(
    op, values: Values, slot: int, rows: int, depth: int, turned: bool, lines: int, lanes: np.ndarray, who: Agent
) -> np.ndarray:
    """rows x depth elements of a tile, as a matrix descriptor finds them; a slab of the tile has so many `lines`."""
    context, view = values[0], values[slot]
    offsets = np.broadcast_to(view.offset, context.lanes)[lanes]
    if (offsets != offsets[0]).any():
        raise Fault("diverged", op, "the threads of a warpgroup name different tiles", context.names(lanes))
    buffer = view.buffer
    size = buffer.data.dtype.itemsize
    if size != 2:
        raise Unsupported(op, "of elements that have not 16 bits")
    row, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    line, along = (k, row) if turned else (row, k)
    column, slab = along % 64, along // 64 * lines * LINE
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
    given = code.operands(op)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        groups = context.whole_groups(op, mask, 128, "the warpgroup")
        for row, group in np.argwhere(groups):
            lanes = row * context.threads + 128 * group + np.arange(128)
            agent = context.threads + context.kernel.copies + context.kernel.barriers + group
            known = context.clocks.known[row, context.thread_of[lanes]]
            known[:, agent] = np.maximum(known[:, agent], context.products[row, group] - running)
            context.clocks.known[row, context.thread_of[lanes]] = known
            for buffer in (values[slot].buffer for slot in given):
                if buffer.running is not None:
                    buffer.running[lanes] &= buffer.product[lanes] > context.products[row, group] - running

    return step
