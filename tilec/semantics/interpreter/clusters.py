"""Clusters: blocks that reach each other's workgroup memory, their barrier, and stores that count where they arrive.

Memory of space 7 is the cluster's: its first subscript is the block that has it. It may be used only while that block is
known to have begun, and the block may end only when it knows that all such uses are over. `memref.dma_start` stores an
element there, which counts on a tag of the receiving block, an mbarrier in whose phases thread 0 arrives, as it is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.cuda.cluster import CLUSTER
from tilec.semantics.interpreter.asynchronous import Barrier
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, Waiting, dtype_of, operation, shape_of
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.flight import Threads
from tilec.semantics.interpreter.memory import View, read, write
from tilec.semantics.interpreter.races import Agent
from tilec.semantics.interpreter.threads import reserve

# ---- the cluster's barrier -------------------------------------------------------------------------------------------


class Meeting:
    """A round ends when all threads of the cluster have arrived, or ended. Who arrives goes on, and waits later."""

    def __init__(self, context: Threads):
        clocks, self.flight = context.clocks, context.flight
        self.arrived = np.full(self.flight.ended.shape, False)
        self.awaited = np.full(
            self.flight.ended.shape, -1
        )  # the round that a thread has arrived in, and not waited for
        self.round = 0
        self.known, self.handed = np.zeros(clocks.columns, np.int32), np.zeros(clocks.columns, np.int32)

    def arrive(self, op: ir.Operation, context: Threads, lanes: np.ndarray) -> None:
        row, threads = int(context.row_of[lanes[0]]), context.thread_of[lanes]
        repeated = self.awaited[row, threads] >= 0
        if repeated.any():
            what = "arrives at the cluster's barrier again without waiting there"
            raise Fault("invalid", op, what, context.names(lanes[repeated]))
        self.arrived[row, threads], self.awaited[row, threads] = True, self.round
        self.handed = np.maximum(self.handed, context.clocks.release(row, threads))
        self.flight.progress += 1
        self._end_round()

    def _end_round(self) -> None:
        if (self.arrived | self.flight.ended).all():
            self.round, self.arrived[:] = self.round + 1, False
            self.known, self.handed = self.handed, np.zeros_like(self.handed)

    def wait(self, op: ir.Operation, context: Threads, lanes: np.ndarray) -> Iterator[None]:
        row, threads = int(context.row_of[lanes[0]]), context.thread_of[lanes]
        missing = self.awaited[row, threads] < 0
        if missing.any():
            what = "waits at the cluster's barrier without arriving there"
            raise Fault("invalid", op, what, context.names(lanes[missing]))
        while (self.awaited[row, threads] == self.round).any():
            self._end_round()  # others may have ended
            if (self.awaited[row, threads] < self.round).all():
                break
            left = int((~self.arrived & ~self.flight.ended).sum())
            context.waits(lanes, op, f"at the cluster's barrier, {left} of {self.arrived.size} are missing", lanes)
            yield
        self.awaited[row, threads] = -1
        context.goes_on(lanes)
        context.clocks.acquire(row, threads, self.known)


def _meeting(context: Threads) -> Meeting:
    return context.flight.common("meeting", lambda: Meeting(context))


def _lanes(context: Threads, mask: Mask) -> np.ndarray:
    return np.arange(context.lanes) if mask is None else np.flatnonzero(mask)


@operation("nvvm.cluster.arrive")
def _arrive(code: Code, op: ir.Operation) -> Step:
    def step(values: Values, mask: Mask) -> None:
        _meeting(values[0]).arrive(op, values[0], _lanes(values[0], mask))

    return step


@operation("nvvm.cluster.wait")
def _wait(code: Code, op: ir.Operation) -> Waiting:
    def resume(values: Values, mask: Mask) -> Iterator[None]:
        yield from _meeting(values[0]).wait(op, values[0], _lanes(values[0], mask))

    return Waiting(resume)


# ---- memory and tags -------------------------------------------------------------------------------------------------


def is_clusters(type_: ir.MemRefType) -> bool:
    space = type_.memory_space
    return isinstance(space, ir.IntegerAttr) and ir.IntegerAttr(space).value == CLUSTER


def cluster_memory(code: Code, op: ir.Operation, name: str) -> Step:
    """Every block has a part, at the same address in each."""
    (r,), type_ = code.results(op), op.results[0].type
    (blocks, *part), dtype = shape_of(type_), dtype_of(type_)
    start = reserve(code, prod(part) * dtype.itemsize, dtype.itemsize)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        if blocks != context.kernel.cluster:
            raise Fault("invalid", op, f"memory of {blocks} blocks, where a cluster has {context.kernel.cluster}")
        buffer = context.common(r, lambda: context.workgroup(start, prod(part), dtype, name))
        buffer.across = prod(part)
        values[r] = View.whole(buffer, (blocks, *part))

    return step


def is_mbarrier(value: ir.Value) -> bool:
    """Whether asynchronous stores count on it."""
    return any(value in _mbarrier_of(user) for user in mlir.uses(value))


def _mbarrier_of(op: ir.Operation) -> list[ir.Value]:
    """The mbarriers of an asynchronous store, or of a wait for some; none for other operations."""
    operands = list(op.operands)
    if op.name == "memref.dma_wait":
        return operands[:1]
    if op.name != "memref.dma_start":
        return []
    target = 1 + ir.MemRefType(operands[0].type).rank
    mbarrier = target + 2 + ir.MemRefType(operands[target].type).rank
    return operands[mbarrier : mbarrier + 1]


class Mbarriers(list):
    """The mbarriers of one allocation, and how often every lane has waited for each."""

    def __init__(self, barriers: list[Barrier], lanes: int):
        super().__init__(barriers)
        self.waited = np.zeros((len(barriers), lanes), np.int64)


def mbarriers(code: Code, op: ir.Operation) -> Step:
    """One thread makes its words, for one arrival each."""
    (r,), (count,) = code.results(op), shape_of(op.results[0].type)
    first = code.barriers
    code.barriers += count
    reserve(code, 8 * count)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        values[r] = made = context.common(
            r, lambda: Mbarriers([Barrier(first + n, context.clocks.columns) for n in range(count)], context.lanes)
        )
        for barrier in made:
            barrier.make(context, 0, 1)

    return step


def _word(op: ir.Operation, group: Mbarriers, number: int, context: Threads, lane: int) -> Barrier:
    if not 0 <= number < len(group):
        raise Fault("outside", op, f"word {number} of a tag of {len(group)}", context.names(np.array([lane])))
    return group[number]


# ---- stores that count where they arrive -----------------------------------------------------------------------------


@operation("memref.dma_start")
def _start(code: Code, op: ir.Operation) -> Step:
    slots, operands = code.operands(op), list(op.operands)
    rank = ir.MemRefType(operands[0].type).rank
    source, at, to = slots[0], slots[1 : 1 + rank], 1 + rank
    rank = ir.MemRefType(operands[to].type).rank
    target, into, (count, mbarriers, word) = slots[to], slots[to + 1 : to + 1 + rank], slots[to + 1 + rank :]
    if not is_clusters(ir.MemRefType(operands[to].type)):
        raise Unsupported(op, "to memory outside the cluster")

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        if np.any(np.asarray(values[count]) != 1):
            raise Unsupported(op, "of several elements")
        view: View = values[target]
        given = read(
            values[source], values[source].offset_of([values[s] for s in at], op, context, mask), op, context, mask
        )
        offsets = np.broadcast_to(view.offset_of([values[s] for s in into], op, context, mask), context.lanes)
        rows, _ = view.buffer.rows(offsets, context.row_of)
        lanes = _lanes(context, mask)
        context.reach(op, rows[lanes, None], lanes)
        given, words = (np.broadcast_to(v, context.lanes) for v in (given, values[word]))
        for lane in lanes.tolist():
            self_row, thread, row = int(context.row_of[lane]), context.thread_of[[lane]], int(rows[lane])
            mine = _word(op, values[mbarriers], int(words[lane]), context, lane)
            barrier = _same_word(op, mine, values[mbarriers], context.flight.contexts[row].made.get(mbarriers), context)
            barrier.check(op, context, lane)
            known = context.clocks.release(self_row, thread)
            mine.copies += 1
            agent = context.kernel.counting(barrier.number, row)
            who = Agent(context.clocks, int(context.block_of[lane]), agent, mine.copies, known)
            context.flight.remote[int(who.ids)] = op
            only = np.zeros(context.lanes, np.bool_)
            only[lane] = True
            write(view, offsets, given, op, context, only, ordered=False)
            guard = view.buffer.guard
            assert guard is not None  # of workgroup memory
            guard.writes(guard.cells_of(view.buffer, *_spot(view, offsets[lane])), who, op, context)
            known[who.ids % context.clocks.columns] = mine.copies
            barrier.change(op, context, 0, -given.dtype.itemsize, known)

    return step


def _same_word(
    op: ir.Operation, mine: Barrier, own: Mbarriers, of_other: Mbarriers | None, context: Threads
) -> Barrier:
    """The word of another block's tag at the address of one's own."""
    if of_other is None:
        raise Fault("unwritten", op, f"mbarrier {mine.number} of another block is used before it is initialised")
    return of_other[mine.number - own[0].number]


def _spot(view: View, offset: int) -> tuple[np.ndarray, np.ndarray]:
    assert view.buffer.across is not None
    row, at = divmod(int(offset), view.buffer.across)
    return np.array([[at]]), np.array([[row]])


@operation("memref.dma_wait")
def _wait_for_mbarrier(code: Code, op: ir.Operation) -> Waiting:
    """Thread 0 says how many bytes come, and all wait for them; rounds alternate in parity."""
    mbarriers, word, count = code.operands(op)
    start = next(u for u in mlir.uses(op.operands[0]) if u.name == "memref.dma_start")
    size = dtype_of(start.operands[0].type).itemsize

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        context: Threads = values[0]
        lanes, group = _lanes(context, mask), values[mbarriers]
        words, counts = (np.broadcast_to(values[s], context.lanes) for s in (word, count))
        if 0 in context.thread_of[lanes]:
            lane = int(lanes[context.thread_of[lanes] == 0][0])
            barrier = _word(op, group, int(words[lane]), context, lane)
            barrier.check(op, context, lane)
            known = context.clocks.release(int(context.row_of[lane]), context.thread_of[[lane]])
            barrier.change(op, context, 1, size * int(counts[lane]), known)
        for n in np.unique(words[lanes]):
            waiting = lanes[words[lanes] == n]
            barrier = _word(op, group, int(n), context, int(waiting[0]))
            for lane in waiting[[0, -1]].tolist():
                barrier.check(op, context, lane)
            for parity in np.unique(group.waited[n, waiting] % 2):
                some = waiting[group.waited[n, waiting] % 2 == parity]
                yield from barrier.wait(op, context, some, int(parity))
                group.waited[n, some] += 1

    return Waiting(resume)
