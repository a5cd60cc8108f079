"""Blocks of a mapped kernel that run at the same time: their threads, memory and clocks.

The threads of a block run in lockstep, as lanes; so do several blocks if no block waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilec.core import extents, mlir
from tilec.core.mlir import ir
from tilec.core.varying import number
from tilec.semantics.interpreter.code import Code, Context, Index, Mask
from tilec.semantics.interpreter.faults import Fault, Unsupported
from tilec.semantics.interpreter.memory import Buffer, View
from tilec.semantics.interpreter.races import Clocks, Guard
from tilec.semantics.interpreter.sizes import sizes_at

LANES = 8192  # threads that run in step
KNOWN = 1 << 23  # ticks that their clocks may hold
VIEWS = ("memref.subview", "memref.cast", "memref.collapse_shape", "memref.expand_shape")


def is_mapped(function: ir.Operation) -> bool:
    """Whether a kernel is written for each thread of a GPU."""
    return "tilec.threads" in function.attributes


def launch(code: Code, arguments: list[View], sizes: Mapping[str, int]) -> None:
    """Runs a mapped kernel of a program at some sizes."""
    threads = mlir.get_integer(code.function, "tilec.threads")
    own = sizes_at(code.function, [v.static_shape() for v in arguments])
    blocks = number(extents.blocks(code.function), {**sizes, **own})
    kernel = Kernel(code, blocks, threads)
    guards = []
    for n in kernel.stored:
        guards.append(Guard(arguments[n].buffer.data.size, arguments[n].buffer.data.dtype.itemsize, shared=False))
        guards[-1].name = arguments[n].buffer.name
        arguments[n].buffer.guard = guards[-1]
    if blocks % kernel.cluster:
        raise Fault("invalid", code.function, f"{blocks} blocks cannot be divided into clusters of {kernel.cluster}")
    for start in range(0, blocks, kernel.blocks_at_once):
        Flight(kernel, range(start, min(blocks, start + kernel.blocks_at_once)), guards).run(arguments)
    for n in kernel.stored:
        arguments[n].buffer.guard = None


class Kernel:
    """Facts that a kernel's blocks share: the arguments that it writes, and the agents of a block besides threads."""

    def __init__(self, code: Code, blocks: int, threads: int):
        self.blocks, self.threads, self.code = blocks, threads, code
        self.cluster = mlir.get_integer(code.function, "tilec.cluster") or 1
        self.waits = code.body.waits or self.cluster > 1  # whether a block may wait for others
        arguments = {a: n for n, a in enumerate(mlir.entry(code.function).arguments)}
        stores = [op for op in mlir.traverse(code.function) if op.name in ("memref.store", "vector.store")]
        targets = {_root(op.operands[1]) for op in stores} | {_root(op.operands[0]) for op in _stored_boxes(code.function)}
        self.stored = sorted(arguments[r] for r in targets if r in arguments)
        self.copies = threads if {"nvgpu.device_async_copy", "nvgpu.tma.async.store"} & set(code.uses) else 0
        self.barriers = code.barriers
        self.boxes = "nvgpu.tma.async.load" in code.uses
        self.groups = threads // 128 if "func.call" in code.uses else 0
        counted = self.barriers * self.cluster  # an agent for each mbarrier of each block of the cluster
        self.agents = threads + self.copies + counted + self.groups
        limit = min(LANES // threads, KNOWN // (threads * self.agents))
        self.blocks_at_once = self.cluster if self.waits or self.barriers else max(1, limit)

    def counting(self, barrier: int, rank: int = 0) -> int:
        """The place in its block of the agent of copies that count on an mbarrier of the cluster's block `rank`."""
        return self.threads + self.copies + barrier * self.cluster + rank

    def multiplying(self, group: Index) -> Index:
        """That of the products of a warpgroup."""
        return self.agents - self.groups + group


def _stored_boxes(function: ir.Operation) -> list[ir.Operation]:
    """The maps of tensors that boxes are stored to."""
    return [mlir.definition(op.operands[1]) for op in mlir.traverse(function) if op.name == "nvgpu.tma.async.store"]


def _root(value: ir.Value) -> ir.Value:
    while (owner := mlir.definition(value)) is not None and owner.name in VIEWS:
        value = owner.operands[0]
    return value


class Flight:
    """Blocks that run together, and their common state: clocks, memory, the barrier of a cluster. Blocks
    that never wait run in step; others go on each at its own pace."""

    def __init__(self, kernel: Kernel, blocks: range, guards: list[Guard]):
        self.kernel, self.first, self.count = kernel, blocks.start, len(blocks)
        self.clocks = Clocks(len(blocks), kernel.threads, kernel.agents, kernel.cluster)
        size = -(-kernel.code.shared // 16) * 16
        cell = kernel.code.cell
        self.bytes = np.zeros((len(blocks), size), np.uint8)
        self.bytes_written = np.zeros((len(blocks), size), np.uint8)
        self.layouts = np.zeros(
            (len(blocks), size // 16), np.uint8
        )  # the swizzle with which TMA wrote each piece of 16 bytes
        self.guard = Guard(len(blocks) * size // cell, cell, shared=True)
        for guard in (self.guard, *guards):
            guard.clocks = self.clocks
        self.products = np.zeros((len(blocks), max(1, kernel.groups)), np.int32)  # by warpgroup
        self.remote: dict[int, ir.Operation] = {}  # where each agent used another block's memory last
        self.ended = np.zeros((len(blocks), kernel.threads), np.bool_)
        self.made: dict[str | int, Any] = {}
        self.progress = 0
        self.waiting: dict[int, tuple[ir.Operation, str, Threads, np.ndarray]] = {}
        alone = [[n] for n in blocks] if kernel.waits else [blocks]
        self.contexts = [Threads(self, np.array(numbers)) for numbers in alone]

    def run(self, arguments: list[View]) -> None:
        code = self.kernel.code
        if not self.kernel.waits:
            (context,) = self.contexts
            code.body.run(code.frame(context, arguments), None)
            return
        tasks = []
        for context in self.contexts:
            for mask in context.paces(code.divergent):
                tasks.append((context, mask, code.body.resume(code.frame(context, arguments), mask)))
        while tasks:
            before = self.progress
            for task in tasks:
                context, mask, steps = task
                try:
                    next(steps)
                except StopIteration:
                    tasks = [t for t in tasks if t is not task]
                    self._end(context, mask)
            if tasks and self.progress == before:
                self._stuck()

    def _end(self, context: Threads, mask: Mask) -> None:
        self.progress += 1
        row = int(context.row_of[0])
        self.ended[row, slice(None) if mask is None else mask] = True
        if self.kernel.cluster > 1 and self.ended[row].all():
            self.guard.ends(row, self.kernel.code.function, context)

    def _stuck(self) -> None:
        """Everyone waits, and nothing has happened since all were asked last."""
        waiting = []
        for _, what, context, lanes in self.waiting.values():
            block, thread = context.names(lanes)[0]
            of = f" of block {block}" if self.count > 1 else ""
            waiting.append(f"{what}, {len(lanes)} threads from {thread}{of}")
        op, _, context, lanes = next(iter(self.waiting.values()))
        raise Fault("stuck", op, "all threads wait forever: " + "; ".join(waiting), context.names(lanes))

    def common(self, key: str | int, make: Callable[[], Any]) -> Any:
        """A value that the first block makes for all blocks."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


class Threads(Context):
    """The threads of some blocks of a flight. Lane n is thread n % threads of the block n // threads among them."""

    lanes: int

    def __init__(self, flight: Flight, blocks: np.ndarray):
        kernel = flight.kernel
        super().__init__(len(blocks) * kernel.threads)
        self.threads, self.blocks, self.kernel, self.flight = kernel.threads, len(blocks), kernel, flight
        self.block_of = np.repeat(blocks, kernel.threads)
        self.row_of = self.block_of - flight.first
        self.thread_of = np.tile(np.arange(kernel.threads), len(blocks))
        self.clocks = flight.clocks
        self.commits = np.zeros(self.lanes, np.int32)  # groups of copies, by lane
        self.completed = np.zeros(self.lanes, np.int32)  # of products, the last that each thread knows to be over
        self.made: dict[int, Any] = {}  # workgroup memory and barriers, which all threads make and have in common

    def paces(self, divergent: bool) -> list[Mask]:
        """The threads that go on together, of one block."""
        size = next(n for n in (128, 32, self.threads) if self.threads % n == 0) if divergent else self.threads
        groups = [self.thread_of // size == n for n in range(self.threads // size)]
        return [None if g.all() else g for g in groups]

    def common(self, number: int, make: Callable[[], Any]) -> Any:
        """A value that the first thread makes for all threads of the block."""
        if number not in self.made:
            self.made[number] = make()
        return self.made[number]

    def waits(self, key: object, op: ir.Operation, what: str, lanes: np.ndarray) -> None:
        """Says for what these lanes wait; `goes_on` takes it back."""
        self.flight.waiting[id(key)] = op, what, self, lanes

    def goes_on(self, key: object) -> None:
        self.flight.waiting.pop(id(key), None)
        self.flight.progress += 1

    def names(self, lanes: np.ndarray) -> list[tuple[int, int]]:
        return [(int(self.block_of[n]), int(self.thread_of[n])) for n in lanes]

    def agent_name(self, number: int) -> str:
        kernel = self.kernel
        block, agent = divmod(number, kernel.agents)
        if agent < kernel.threads:
            return f"thread {agent} of block {block}"
        agent -= kernel.threads
        if agent < kernel.copies:
            return f"the asynchronous copy of thread {agent} of block {block}"
        agent -= kernel.copies
        if agent < kernel.barriers * kernel.cluster:
            barrier, rank = divmod(agent, kernel.cluster)
            into = f"; by block {block}" if kernel.cluster > 1 else ""
            return f"the copies that count on mbarrier {barrier} of block {block // kernel.cluster * kernel.cluster + rank}{into}"
        return f"the product of warpgroup {agent - kernel.barriers * kernel.cluster} of block {block}"

    # ---- blocks of a cluster -----------------------------------------------------------------------------------------

    def reach(self, op: ir.Operation, rows: np.ndarray, lanes: np.ndarray) -> None:
        """These lanes use memory of the flight's blocks `rows`, [lanes, 1 or positions]: of others only while they run."""
        own = self.row_of[lanes][:, None]
        for row in np.unique(rows[rows != own]) if (rows != own).any() else ():
            using = lanes[((rows == row) & (rows != own)).any(axis=1)]
            block = f"block {self.flight.first + row} of the cluster"
            started = self.clocks.known[self.row_of[using], self.thread_of[using], self.clocks.own[row, 0]] > 0
            if not started.all():
                what = f"memory of {block} is used before it is known to have started"
                raise Fault("race", op, what, self.names(using[~started]))
            if self.flight.ended[row].all():
                raise Fault("race", op, f"memory of {block} is used after its end", self.names(using))
            agents = self.block_of[using] * self.kernel.agents + self.thread_of[using]
            self.flight.remote |= dict.fromkeys(agents.tolist(), op)

    def workgroup(self, start: int, count: int, dtype: np.dtype, name: str) -> Buffer:
        """Elements of workgroup memory from byte `start`; nothing of them is written."""
        size, flight = count * dtype.itemsize, self.flight
        flight.bytes_written[np.unique(self.row_of), start : start + size] = 0
        data = flight.bytes[:, start : start + size].view(dtype)
        written = flight.bytes_written[:, start : start + size].view(f"u{dtype.itemsize}")
        buffer = Buffer(data, written, name)
        buffer.full = np.dtype(f"u{dtype.itemsize}").type(int.from_bytes(b"\1" * dtype.itemsize, "little"))
        buffer.row_of, buffer.guard, buffer.start = self.row_of, flight.guard, start
        return buffer

    def whole_groups(self, op: ir.Operation, mask: Mask, size: int, name: str) -> np.ndarray:
        """Which groups of `size` threads take part, of each block; a group does as a whole, or not at all."""
        if self.threads % size:
            raise Unsupported(op, f"in a block of {self.threads} threads")
        if mask is None:
            return np.ones((self.blocks, self.threads // size), np.bool_)
        by_group = mask.reshape(self.blocks, -1, size)
        some, every = np.logical_or.reduce(by_group, axis=2), np.logical_and.reduce(by_group, axis=2)
        if (some != every).any():
            present = np.repeat(some & ~every, size, axis=1).reshape(-1) & mask
            absent = np.repeat(some & ~every, size, axis=1).reshape(-1) & ~mask
            missing = int(self.thread_of[np.flatnonzero(absent)[0]])
            what = f"not all threads of {name} get here: thread {missing} does not"
            raise Fault("diverged", op, what, self.names(np.flatnonzero(present)))
        return every
