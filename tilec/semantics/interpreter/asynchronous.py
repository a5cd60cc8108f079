"""Asynchronous copies: `cp.async`, TMA, and the mbarriers that count them.

Data is there as soon as a copy starts; an access that did not wait for the copy is reported as a race (`races`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Code, Mask, Step, Values, Waiting, operation
from tilec.semantics.interpreter.faults import Fault
from tilec.semantics.interpreter.flight import Threads
from tilec.semantics.interpreter.memory import Buffer, read, write
from tilec.semantics.interpreter.races import Copies, spread
from tilec.semantics.interpreter.threads import reserve

# ---- cp.async --------------------------------------------------------------------------------------------------------


@operation("nvgpu.device_async_copy")
def _copy(code: Code, op: ir.Operation) -> Step:
    """`dstElements` elements, of which those behind `srcElements` become zeros."""
    _, rank, _, indices, given = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    slots = code.operands(op)
    target, into = slots[0], slots[1 : 1 + rank]
    source, at = slots[1 + rank], slots[2 + rank : 2 + rank + indices]
    count = ir.IntegerAttr(op.attributes["dstElements"]).value

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        to, origin = values[target], values[source]
        wanted = np.broadcast_to(values[slots[-1]] if given else count, context.lanes)
        copied = np.zeros((context.lanes, count), to.buffer.data.dtype)
        for n in range(count):
            reading = wanted > n if mask is None else (wanted > n) & mask
            if reading.any():
                subscripts = [values[s] for s in at]
                subscripts[-1] = subscripts[-1] + n
                offset = origin.offset_of(subscripts, op, context, reading)
                if n == 0:
                    _aligned(op, origin.buffer, offset, count, context, reading)
                copied[:, n] = np.where(reading, read(origin, offset, op, context, reading), 0)
        start = to.offset_of([values[s] for s in into], op, context, mask, (count,))
        _aligned(op, to.buffer, start, count, context, mask)
        where = np.reshape(start, (-1, 1)) + np.arange(count)
        write(to, where, copied, op, context, mask, ordered=False)
        guard = to.buffer.guard
        lanes, spots = spread(where, context, mask)
        each = lanes.repeat(count * guard.width(to.buffer))
        who = Copies(context.clocks, context, each, context.commits[each] + 1)
        guard.writes(guard.cells_of(to.buffer, spots, context.row_of[lanes][:, None]), who, op, context)

    return step


def _aligned(op: ir.Operation, buffer: Buffer, offset: np.ndarray, count: int, context: Threads, mask: Mask) -> None:
    size = buffer.data.dtype.itemsize
    at = np.broadcast_to(offset, context.lanes) * size + buffer.start
    wrong = at % (size * count) != 0 if mask is None else (at % (size * count) != 0) & mask
    if wrong.any():
        raise Fault("misaligned", op, f"a copy of {size * count} bytes", context.names(np.flatnonzero(wrong)))


@operation("nvvm.cp.async.commit.group", "nvvm.cp.async.bulk.commit.group")
def _commit(code: Code, op: ir.Operation) -> Step:
    def step(values: Values, mask: Mask) -> None:
        values[0].commits += 1 if mask is None else mask

    return step


@operation("nvvm.cp.async.wait.group", "nvvm.cp.async.bulk.wait_group")
def _wait_for_group(code: Code, op: ir.Operation) -> Step:
    """A thread knows that all but the newest groups of its own copies are done; of copies out of shared memory, that they have
    read it. Both kinds count in one row, as no thread makes both."""
    running = ir.IntegerAttr(op.attributes["n" if "n" in op.attributes else "group"]).value

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        if not context.kernel.copies:
            return
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        rows, threads = context.row_of[lanes], context.thread_of[lanes]
        known = context.clocks.known
        agents = context.clocks.own[rows, threads] + context.threads
        known[rows, threads, agents] = np.maximum(known[rows, threads, agents], context.commits[lanes] - running)

    return step


# ---- mbarriers -------------------------------------------------------------------------------------------------------


class Barrier:
    """A phase ends when all have arrived and all announced bytes have (PTX ISA, "mbarrier")."""

    def __init__(self, number: int, columns: int):
        self.number = number
        self.expected: int | None = None
        self.left = self.bytes = self.phase = self.copies = 0
        self.made: tuple[int, int, int] = (0, 0, 0)  # the row and the thread of who made it, and at which tick,
        self.shown: int | None = None  # and at which tick a fence showed it to the cluster
        self.known, self.handed = np.zeros(columns, np.int32), np.zeros(columns, np.int32)

    def make(self, context: Threads, lane: int, expected: int) -> None:
        self.expected = self.left = expected
        row, thread = int(context.row_of[lane]), int(context.thread_of[lane])
        self.made = row, thread, int(context.clocks.known[row, thread, context.clocks.own[row, thread]])

    def check(self, op: ir.Operation, context: Threads, lane: int) -> None:
        """That it exists, and that a thread knows it to be made."""
        names = context.names(np.array([lane]))
        if self.expected is None:
            raise Fault("unwritten", op, f"mbarrier {self.number} is used before it is initialised", names)
        (row, maker, tick), mine, thread = self.made, int(context.row_of[lane]), int(context.thread_of[lane])
        known = context.clocks.known[mine, thread, context.clocks.own[row, maker]]
        if (row, maker) != (mine, thread) and known < tick:
            what = f"mbarrier {self.number} is initialised by thread {maker}, and no synchronisation orders this use after it"
            raise Fault("race", op, what, names)
        if row != mine and (self.shown is None or known < self.shown):
            block = context.flight.first + row
            what = (
                f"mbarrier {self.number} of block {block} is used without a fence that makes it visible to the cluster"
            )
            raise Fault("race", op, what, names)

    def change(self, op: ir.Operation, context: Threads, arrivals: int, size: int, known: np.ndarray) -> None:
        self.left, self.bytes = self.left - arrivals, self.bytes + size
        self.handed = np.maximum(self.handed, known)
        context.flight.progress += 1
        if self.left < 0:
            raise Fault(
                "invalid", op, f"more threads arrive at mbarrier {self.number} than the {self.expected} that it expects"
            )
        if self.left == 0 and self.bytes == 0:
            assert self.expected is not None
            self.phase, self.left = self.phase + 1, self.expected
            self.known, self.handed = np.maximum(self.known, self.handed), np.zeros_like(self.handed)

    def is_over(self, parity: int) -> bool:
        """Whether the phase of this parity is over; the phase before the first counts as one of parity 1."""
        return self.phase % 2 != parity

    def wait(self, op: ir.Operation, context: Threads, lanes: np.ndarray, parity: int) -> Iterator[None]:
        """Waits until the phase of this parity is over: then these lanes are ordered after the arrivals in it."""
        while not self.is_over(parity):
            missing = f"{self.left} of {self.expected} arrivals and {self.bytes} bytes are missing"
            context.waits(lanes, op, f"at mbarrier {self.number}, {missing}", lanes)
            yield
        context.goes_on(lanes)
        context.clocks.acquire(int(context.row_of[lanes[0]]), context.thread_of[lanes], self.known)


@operation("nvgpu.mbarrier.create")
def _create(code: Code, op: ir.Operation) -> Step:
    (r,) = code.results(op)
    written = re.search(r"num_barriers = (\d+)", str(op.results[0].type))
    count = 1 if written is None else int(written[1])
    first = code.barriers
    code.barriers += count
    reserve(code, 8 * count)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        values[r] = context.common(r, lambda: [Barrier(first + n, context.clocks.columns) for n in range(count)])

    return step


def each_lane(values: Values, mask: Mask, *slots: int) -> Iterator[tuple]:
    """The lanes that take part, each with its values."""
    context: Threads = values[0]
    lanes = range(context.lanes) if mask is None else np.flatnonzero(mask)
    wide = [np.broadcast_to(values[s], context.lanes) for s in slots]
    for lane in lanes:
        yield (int(lane), *(int(w[lane]) for w in wide))


def _barrier(op: ir.Operation, values: Values, slot: int, number: int, lane: int) -> Barrier:
    """An mbarrier that exists, and that this thread knows to be made."""
    return barrier_of(op, values, slot, number, lane, int(values[0].row_of[lane]))


def barrier_of(op: ir.Operation, values: Values, slot: int, number: int, lane: int, row: int) -> Barrier:
    """The same of the block in this row of the flight."""
    context: Threads = values[0]
    group = values[slot] if row == int(context.row_of[lane]) else context.flight.contexts[row].made.get(slot)
    if group is None:
        raise Fault("unwritten", op, f"mbarrier {number} of another block is used before it is initialised")
    if not 0 <= number < len(group):
        raise Fault("outside", op, f"mbarrier {number} of {len(group)}", context.names(np.array([lane])))
    barrier: Barrier = group[number]
    barrier.check(op, context, lane)
    return barrier


@operation("nvvm.fence.proxy")
def _fence(code: Code, op: ir.Operation) -> Step:
    """Shows a thread's stores to workgroup memory to asynchronous copies and products, which see all stores at once here."""
    return lambda values, mask: None


@operation("nvvm.fence.mbarrier.init")
def _show(code: Code, op: ir.Operation) -> Step:
    """Shows the mbarriers that a thread has made to its cluster."""

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        makers = {(int(context.row_of[n]), int(context.thread_of[n])) for n in lanes}
        for made in context.made.values():
            for barrier in made if isinstance(made, list) else ():
                row, thread, _ = barrier.made
                if barrier.expected is not None and barrier.shown is None and (row, thread) in makers:
                    barrier.shown = int(context.clocks.known[row, thread, context.clocks.own[row, thread]])

    return step


@operation("nvgpu.mbarrier.init")
def _init(code: Code, op: ir.Operation) -> Step:
    group, count, number = code.operands(op)[:3]

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        for lane, wanted, n in each_lane(values, mask, count, number):
            values[group][n].make(context, lane, wanted)

    return step


@operation("nvgpu.mbarrier.arrive", "nvgpu.mbarrier.arrive.expect_tx")
def _arrive(code: Code, op: ir.Operation) -> Step:
    group, *rest = code.operands(op)
    announces = op.name.endswith("expect_tx")
    *sizes, number = rest[:2] if announces else rest[:1]

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        for lane, n, *bytes_ in each_lane(values, mask, number, *sizes):
            barrier = _barrier(op, values, group, n, lane)
            handed = context.clocks.release(int(context.row_of[lane]), context.thread_of[[lane]])
            barrier.change(op, context, 1, sum(bytes_), handed)

    return step


@operation("nvgpu.mbarrier.try_wait.parity")
def _wait(code: Code, op: ir.Operation) -> Waiting:
    group, parity, _, number = code.operands(op)

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        context: Threads = values[0]
        waits: dict[tuple[int, int], list[int]] = {}
        for lane, n, phase in each_lane(values, mask, number, parity):
            waits.setdefault((n, phase), []).append(lane)
        for (n, phase), lanes in waits.items():
            barrier = _barrier(op, values, group, n, lanes[0])
            yield from barrier.wait(op, context, np.array(lanes), phase)

    return Waiting(resume)


def remote_arrive(code: Code, op: ir.Operation) -> Step:
    """An arrival at an mbarrier of another block of the cluster."""
    group, number, block = code.operands(op)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        for lane, n, to in each_lane(values, mask, number, block):
            row = int(context.row_of[lane])
            other = row - row % context.kernel.cluster + to
            if not 0 <= to < context.kernel.cluster:
                raise Fault("outside", op, f"block {to} of a cluster of {context.kernel.cluster}", context.names(np.array([lane])))
            barrier = barrier_of(op, values, group, n, lane, other)
            handed = context.clocks.release(row, context.thread_of[[lane]])
            barrier.change(op, context, 1, 0, handed)

    return step


def copy_arrive(code: Code, op: ir.Operation) -> Step:
    """An arrival when the copies that a thread has started are complete: it hands on what the thread knows, and these copies. They
    are a group of their own, so that later ones are distinguished from them."""
    group, number = code.operands(op)

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        clocks = context.clocks
        for lane, n in each_lane(values, mask, number):
            barrier = _barrier(op, values, group, n, lane)
            row, thread = int(context.row_of[lane]), context.thread_of[[lane]]
            handed = clocks.release(row, thread)
            context.commits[lane] += 1
            if context.kernel.copies:
                handed[clocks.own[row, thread[0]] + context.threads] = context.commits[lane]
            barrier.change(op, context, 1, 0, handed)

    return step
