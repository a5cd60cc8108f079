"""`gpu` operations: thread and block numbers, barriers, and workgroup memory.

A barrier that only some threads reach is a fault, as it is on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tilec.core import extents
from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, Waiting, operation, shape_of
from tilec.semantics.interpreter.faults import Unsupported
from tilec.semantics.interpreter.flight import Kernel, Threads
from tilec.semantics.interpreter.memory import View, filled

# ---- who am I --------------------------------------------------------------------------------------------------------


NUMBERS: dict[str, Callable[[Threads], Any]] = {
    "gpu.thread_id": lambda c: c.thread_of,
    "gpu.block_id": lambda c: c.block_of,
    "gpu.cluster_id": lambda c: c.block_of // c.kernel.cluster,
    "gpu.cluster_block_id": lambda c: c.block_of % c.kernel.cluster,
}
COUNTS: dict[str, Callable[[Kernel], int]] = {
    "gpu.block_dim": lambda k: k.threads,
    "gpu.grid_dim": lambda k: k.blocks,
    "gpu.cluster_dim": lambda k: k.blocks // k.cluster,
    "gpu.cluster_dim_blocks": lambda k: k.cluster,
}


@operation(*NUMBERS, *COUNTS)
def _identity(code: Code, op: ir.Operation) -> Step:
    (r,) = code.results(op)
    of_x = str(op.attributes["dimension"]).endswith("x>")

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        if context.lanes is None:
            if context.rank is None or op.name != "gpu.cluster_block_id":
                raise Unsupported(op, "outside of a mapped kernel")
            values[r] = context.rank if of_x else 0
            return
        if op.name in NUMBERS:
            values[r] = NUMBERS[op.name](context) if of_x else 0
        else:
            values[r] = COUNTS[op.name](context.kernel) if of_x else 1

    return step


# ---- barriers --------------------------------------------------------------------------------------------------------


class Meeting:
    """A barrier of some threads of a block. A round ends when as many have come; not all of them need to wait for it."""

    def __init__(self, columns: int):
        self.rounds, self.count = 0, 0
        self.known, self.handed = np.zeros(columns, np.int32), np.zeros(columns, np.int32)

    def arrive(self, context: Threads, lanes: np.ndarray, expected: int) -> None:
        row = int(context.row_of[lanes[0]])
        self.handed = np.maximum(self.handed, context.clocks.release(row, context.thread_of[lanes]))
        self.count += len(lanes)
        context.flight.progress += 1
        if self.count >= expected:
            self.known, self.handed = self.handed, np.zeros_like(self.handed)
            self.rounds, self.count = self.rounds + 1, self.count - expected

    def wait(self, op: ir.Operation, context: Threads, lanes: np.ndarray, expected: int, name: str) -> Iterator[None]:
        mine = self.rounds
        self.arrive(context, lanes, expected)
        if self.rounds > mine:
            yield  # who comes last goes on last, so that those that prepare something get ahead
        while self.rounds == mine:
            context.waits(lanes, op, f"at {name}, {expected - self.count} of {expected} are missing", lanes)
            yield
        context.goes_on(lanes)
        context.clocks.acquire(int(context.row_of[lanes[0]]), context.thread_of[lanes], self.known)


@operation("gpu.barrier", "nvvm.barrier0")
def _barrier(code: Code, op: ir.Operation) -> Step | Waiting:
    number = code.fresh()

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        blocks = context.whole_groups(op, mask, context.threads, "the block")[:, 0]
        context.clocks.barrier(context.row_of[:: context.threads][blocks])

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        context: Threads = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        meeting = context.common(number, lambda: Meeting(context.clocks.columns))
        yield from meeting.wait(op, context, lanes, context.threads, "a barrier of the block")

    return Waiting(resume) if code.divergent else step


def named_barrier(code: Code, op: ir.Operation, waits: bool) -> Step | Waiting:
    """`bar.sync` and `bar.arrive`: a barrier by number, of so many threads."""
    number, expected = code.operands(op)

    def meetings(values: Values, mask: Mask) -> Iterator[tuple[Meeting, int, np.ndarray, int]]:
        context: Threads = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        numbers, counts = (np.broadcast_to(values[s], context.lanes)[lanes] for s in (number, expected))
        for n in np.unique(numbers):
            meeting = context.common(-1 - int(n), lambda: Meeting(context.clocks.columns))
            yield meeting, int(n), lanes[numbers == n], int(counts[numbers == n][0])

    def arrive(values: Values, mask: Mask) -> None:
        for meeting, _, lanes, count in meetings(values, mask):
            meeting.arrive(values[0], lanes, count)

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        for meeting, n, lanes, count in meetings(values, mask):
            yield from meeting.wait(op, values[0], lanes, count, f"named barrier {n}")

    return Waiting(resume) if waits else arrive


@operation("nvvm.bar.warp.sync")
def _warp_barrier(code: Code, op: ir.Operation) -> Step:
    (lanes,) = code.operands(op)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        if np.any(np.asarray(values[lanes]) != -1):
            raise Unsupported(op, "for some lanes of a warp")
        rows, warps = np.nonzero(context.whole_groups(op, mask, 32, "the warp"))
        context.clocks.warp_barrier(rows + context.row_of[0], warps)

    return step


@operation("nvvm.memory.barrier")
def _fence(code: Code, op: ir.Operation) -> Step:
    """Orders what a thread does before and after, as other blocks see it."""

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        context.clocks.fence(context.row_of[lanes], context.thread_of[lanes])

    return step


@operation("nvvm.setmaxregister", "nvvm.fence.proxy")
def _no_meaning(code: Code, op: ir.Operation) -> None:
    """No effect on memory; the clocks of waiting threads have the order that fences give."""


# ---- workgroup memory ------------------------------------------------------------------------------------------------


def reserve(code: Code, size: int, cell: int = 8, overlay: bool = False) -> int:
    """The addresses of workgroup memory, laid out as they are printed; an `overlay` lies over the start."""
    code.cell = min(code.cell, cell)
    if overlay:
        code.shared = max(code.shared, size)
        return 0
    start, code.shared = code.shared, code.shared + -(-size // 16) * 16
    return start


def workgroup_memory(code: Code, op: ir.Operation, dtype: np.dtype, name: str, sizes: Sequence[int]) -> Step:
    """`sizes`: the slots of the operands that stand for `?`. As much is reserved as they may be."""
    (r,), shape = code.results(op), shape_of(ir.MemRefType(op.results[0].type))
    most = prod(map(extents.highest, extents.shape_of(op.results[0]))) if sizes else prod(shape)
    start = reserve(code, most * dtype.itemsize, dtype.itemsize, "tilec.overlay" in op.attributes)

    def step(values: Values, mask: Mask) -> None:
        context, whole = values[0], filled(shape, [values[s] for s in sizes])
        buffer = context.common(r, lambda: context.workgroup(start, prod(whole), dtype, name))
        values[r] = View.whole(buffer, whole)

    return step
