"""Mapped kernels: the threads of a block walk in step, as lanes; several blocks at once where they do not wait.

`gpu` operations, barriers and workgroup memory. A barrier that only some threads reach is a fault, as it is on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from tilec import mlir
from tilec.interpreter.code import Code, Context, Mask, Step, Values, Waiting, operation
from tilec.interpreter.faults import Fault, Unsupported
from tilec.interpreter.memory import Buffer, View
from tilec.interpreter.races import Clocks, Guard
from tilec.mlir import ir

LANES = 8192  # threads that walk together
KNOWN = 1 << 23  # ticks that their clocks may hold
VIEWS = ("memref.subview", "memref.cast", "memref.collapse_shape", "memref.expand_shape")


def is_mapped(function: ir.Operation) -> bool:
    """Whether a kernel is what each thread of a GPU does."""
    return "tilec.threads" in function.attributes


def launch(code: Code, arguments: list[View]) -> None:
    """Runs a mapped kernel."""
    blocks, threads = (mlir.get_integer(code.function, f"tilec.{n}") for n in ("blocks", "threads"))
    kernel = _Kernel(code, threads)
    guards = []
    for n in kernel.stored:
        guards.append(Guard(arguments[n].buffer.data.size, arguments[n].buffer.data.dtype.itemsize, shared=False))
        guards[-1].name = arguments[n].buffer.name
        arguments[n].buffer.guard = guards[-1]
    for start in range(0, blocks, kernel.together):
        Threads(kernel, range(start, min(blocks, start + kernel.together)), guards).run(code, arguments)
    for n in kernel.stored:
        arguments[n].buffer.guard = None


class _Kernel:
    """What a kernel's blocks share: which arguments it writes, and who acts in a block besides threads."""

    def __init__(self, code: Code, threads: int):
        self.threads, self.code = threads, code
        arguments = {a: n for n, a in enumerate(mlir.entry(code.function).arguments)}
        stores = [op for op in mlir.walk(code.function) if op.name in ("memref.store", "vector.store")]
        self.stored = sorted({arguments[r] for op in stores if (r := _root(op.operands[1])) in arguments})
        self.copies = threads if "nvgpu.device_async_copy" in code.uses else 0
        self.barriers = code.barriers
        self.groups = threads // 128 if "func.call" in code.uses else 0
        self.agents = threads + self.copies + self.barriers + self.groups
        limit = min(LANES // threads, KNOWN // (threads * self.agents))
        self.together = 1 if self.barriers or code.apart else max(1, limit)


def _root(value: ir.Value) -> ir.Value:
    while (owner := mlir.definition(value)) is not None and owner.name in VIEWS:
        value = owner.operands[0]
    return value


class Threads(Context):
    """The threads of some blocks. Lane n is thread n % threads of block n // threads."""

    def __init__(self, kernel: _Kernel, blocks: range, guards: list[Guard]):
        super().__init__(len(blocks) * kernel.threads)
        self.threads, self.blocks, self.kernel = kernel.threads, len(blocks), kernel
        self.row_of = np.repeat(np.arange(len(blocks)), kernel.threads)
        self.block_of = self.row_of + blocks.start
        self.thread_of = np.tile(np.arange(kernel.threads), len(blocks))
        self.clocks = Clocks(len(blocks), kernel.threads, kernel.agents)
        size = -(-kernel.code.shared // 16) * 16
        cell = kernel.code.cell
        self.bytes = np.zeros((len(blocks), size), np.uint8)
        self.bytes_written = np.zeros((len(blocks), size), np.uint8)
        self.guard = Guard(len(blocks) * size // cell, cell, shared=True)
        for guard in (self.guard, *guards):
            guard.clocks = self.clocks
        self.commits = np.zeros(self.lanes, np.int32)  # groups of copies, by lane
        self.products = np.zeros((len(blocks), max(1, kernel.groups)), np.int32)  # by warpgroup
        self.finished = np.zeros(self.lanes, np.int32)  # of those products, the last that each thread knows to be over
        self.made: dict[int, Any] = {}  # workgroup memory and barriers, which all threads make and have in common
        self.progress = 0
        self.waiting: dict[int, tuple[ir.Operation, str, np.ndarray]] = {}

    def run(self, code: Code, arguments: list[View]) -> None:
        if not code.apart:
            code.body.run(code.frame(self, arguments), None)
            return
        size = next(n for n in (128, 32, self.threads) if self.threads % n == 0)
        groups = [self.thread_of // size == n for n in range(self.threads // size)]
        tasks = [code.body.resume(code.frame(self, arguments), None if g.all() else g) for g in groups]
        while tasks:
            before = self.progress
            for task in list(tasks):
                try:
                    next(task)
                except StopIteration:
                    tasks.remove(task)
                    self.progress += 1
            if tasks and self.progress == before:
                self._stuck()

    def common(self, number: int, make: Callable[[], Any]) -> Any:
        """What the first thread that gets there makes for all."""
        if number not in self.made:
            self.made[number] = make()
        return self.made[number]

    def _stuck(self) -> None:
        """Everyone waits, and nothing has happened since all were asked last."""
        told = [
            f"{what}, {len(lanes)} threads from {self.names(lanes)[0][1]}" for _, what, lanes in self.waiting.values()
        ]
        op, _, lanes = next(iter(self.waiting.values()))
        raise Fault("stuck", op, "all threads wait for ever: " + "; ".join(told), self.names(lanes))

    def names(self, lanes: np.ndarray) -> list[tuple[int, int]]:
        return [(int(self.block_of[n]), int(self.thread_of[n])) for n in lanes]

    def agent_name(self, number: int, agents: int) -> str:
        block, agent = divmod(number, agents)
        kinds = (
            ("thread", self.threads), ("the asynchronous copy of thread", self.kernel.copies),
            ("the copies that count on mbarrier", self.kernel.barriers), ("the product of warpgroup", self.kernel.groups),
        )  # fmt: skip
        for kind, count in kinds:
            if agent < count:
                return f"{kind} {agent} of block {block}"
            agent -= count
        raise AssertionError(number)

    def workgroup(self, start: int, count: int, dtype: np.dtype, name: str) -> Buffer:
        """Elements of workgroup memory from byte `start`; nothing of them is written."""
        size = count * dtype.itemsize
        self.bytes_written[:, start : start + size] = 0
        data = self.bytes[:, start : start + size].view(dtype)
        written = self.bytes_written[:, start : start + size].view(f"u{dtype.itemsize}")
        buffer = Buffer(data, written, name)
        buffer.full = np.dtype(f"u{dtype.itemsize}").type(int.from_bytes(b"\1" * dtype.itemsize, "little"))
        buffer.row_of, buffer.guard, buffer.start = self.row_of, self.guard, start
        return buffer

    def whole_groups(self, op: ir.Operation, mask: Mask, size: int, name: str) -> np.ndarray:
        """Which groups of `size` threads take part, of each block; a group does as a whole, or not at all."""
        if self.threads % size:
            raise Unsupported(op, f"in a block of {self.threads} threads")
        if mask is None:
            return np.ones((self.blocks, self.threads // size), np.bool_)
        by_group = mask.reshape(self.blocks, -1, size)
        some, every = by_group.any(axis=2), by_group.all(axis=2)
        if (some != every).any():
            present = np.repeat(some & ~every, size, axis=1).reshape(-1) & mask
            absent = np.repeat(some & ~every, size, axis=1).reshape(-1) & ~mask
            missing = int(self.thread_of[np.flatnonzero(absent)[0]])
            what = f"not all threads of {name} get here: thread {missing} does not"
            raise Fault("diverged", op, what, self.names(np.flatnonzero(present)))
        return every


# ---- who am I --------------------------------------------------------------------------------------------------------


@operation("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim")
def _identity(code: Code, op: ir.Operation) -> Step:
    (r,) = code.results(op)
    of_x = str(op.attributes["dimension"]).endswith("x>")

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        if context.lanes is None:
            raise Unsupported(op, "outside of a mapped kernel")
        match op.name:
            case "gpu.thread_id":
                values[r] = context.thread_of if of_x else 0
            case "gpu.block_id":
                values[r] = context.block_of if of_x else 0
            case "gpu.block_dim":
                values[r] = context.threads if of_x else 1
            case _:
                values[r] = mlir.get_integer(code.function, "tilec.blocks") if of_x else 1

    return step


# ---- barriers --------------------------------------------------------------------------------------------------------


class Meeting:
    """A barrier of some threads of a block. A round ends when as many have come; not all of them need to wait for it."""

    def __init__(self, agents: int):
        self.rounds, self.count = 0, 0
        self.heard, self.handed = np.zeros(agents, np.int32), np.zeros(agents, np.int32)

    def arrive(self, context: Threads, lanes: np.ndarray, expected: int) -> None:
        threads, known = context.thread_of[lanes], context.clocks.known[0]
        self.handed = np.maximum(self.handed, known[threads].max(axis=0))
        known[threads, threads] += 1
        self.count += len(lanes)
        context.progress += 1
        if self.count >= expected:
            self.heard, self.handed = self.handed, np.zeros_like(self.handed)
            self.rounds, self.count = self.rounds + 1, self.count - expected

    def wait(self, op: ir.Operation, context: Threads, lanes: np.ndarray, expected: int, name: str) -> Iterator[None]:
        mine = self.rounds
        self.arrive(context, lanes, expected)
        if self.rounds > mine:
            yield  # who comes last goes on last, so that those that prepare something get ahead
        while self.rounds == mine:
            context.waiting[id(lanes)] = op, f"at {name}, {expected - self.count} of {expected} are missing", lanes
            yield
        context.waiting.pop(id(lanes), None)
        context.progress += 1
        context.clocks.acquire(0, context.thread_of[lanes], self.heard)


@operation("gpu.barrier", "nvvm.barrier0")
def _barrier(code: Code, op: ir.Operation) -> Step | Waiting:
    number = code.fresh()

    def step(values: Values, mask: Mask) -> None:
        context: Threads = values[0]
        blocks = context.whole_groups(op, mask, context.threads, "the block")[:, 0]
        context.clocks.barrier(slice(None) if blocks.all() else blocks)

    def resume(values: Values, mask: Mask) -> Iterator[None]:
        context: Threads = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        meeting = context.common(number, lambda: Meeting(context.kernel.agents))
        yield from meeting.wait(op, context, lanes, context.threads, "a barrier of the block")

    return Waiting(resume) if code.apart else step


def named_barrier(code: Code, op: ir.Operation, waits: bool) -> Step | Waiting:
    """`bar.sync` and `bar.arrive`: a barrier by number, of so many threads."""
    number, expected = code.operands(op)

    def meetings(values: Values, mask: Mask) -> Iterator[tuple[Meeting, int, np.ndarray, int]]:
        context: Threads = values[0]
        context.whole_groups(op, mask, 32, "the warp")
        lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
        numbers, counts = (np.broadcast_to(values[s], context.lanes)[lanes] for s in (number, expected))
        for n in np.unique(numbers):
            meeting = context.common(-1 - int(n), lambda: Meeting(context.kernel.agents))
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
        context.clocks.warp_barrier(context.whole_groups(op, mask, 32, "the warp"))

    return step


@operation("nvvm.setmaxregister", "nvvm.fence.mbarrier.init", "nvvm.fence.proxy")
def _no_meaning(code: Code, op: ir.Operation) -> None:
    """Nothing that can be seen in memory; what fences order is ordered by the clocks of those that wait."""


# ---- workgroup memory ------------------------------------------------------------------------------------------------


def reserve(code: Code, size: int, cell: int = 8, overlay: bool = False) -> int:
    """Where bytes of workgroup memory lie, laid out as they are printed; what is an `overlay` lies over the start."""
    code.cell = min(code.cell, cell)
    if overlay:
        code.shared = max(code.shared, size)
        return 0
    start, code.shared = code.shared, code.shared + -(-size // 16) * 16
    return start


def workgroup_memory(code: Code, op: ir.Operation, shape: tuple[int, ...], dtype: np.dtype, name: str) -> Step:
    (r,) = code.results(op)
    start = reserve(code, prod(shape) * dtype.itemsize, dtype.itemsize, "tilec.overlay" in op.attributes)

    def step(values: Values, mask: Mask) -> None:
        context = values[0]
        buffer = context.common(r, lambda: context.workgroup(start, prod(shape), dtype, name))
        values[r] = View.whole(buffer, shape)

    return step
