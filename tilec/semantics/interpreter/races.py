"""Accesses of memory: which are ordered, and which race.

Every thread has a clock, which ticks when it publishes its accesses. It also knows, for every other thread, the last tick that
it is ordered after (vector clocks, as in FastTrack: Flanagan and Freund, 2009). A barrier orders all threads of a block, a
warp's barrier those of the warp, and an mbarrier orders those that wait after those that arrive. Asynchronous work is an agent
with a clock of its own: the copies of a thread, the copies that an mbarrier counts, the products of a warpgroup. Blocks of one
cluster can be ordered; of other blocks a thread knows what one of theirs knew at a fence before it assigned a word, once it has
read the word and passed a fence itself.

For every element of memory the last write and the last two reads by different agents are kept. An access races with one
of them if it is not ordered after it, and one of the two is a write that changes the value: threads that hold copies of one
result may all store it.
"""

from __future__ import annotations

import numpy as np

from tilec.core.mlir import ir
from tilec.semantics.interpreter.code import Context, Index, Mask, differs
from tilec.semantics.interpreter.faults import Fault, first
from tilec.semantics.interpreter.memory import Buffer

Published = tuple[int, np.ndarray]
"""The number of a cluster, and the ticks of its agents."""


class Clocks:
    """`known[block, thread, column]`: the last tick that a thread knows of, with a column for each agent of the
    thread's cluster: those of its first block, then those of the next. An agent's number is its block's times `agents`
    and its place in the block, so that its remainder by `columns` is its column."""

    def __init__(self, blocks: int, threads: int, agents: int, cluster: int = 1):
        self.threads, self.agents, self.columns = threads, agents, cluster * agents
        self.known = np.zeros((blocks, threads, self.columns), np.int32)
        self.own = np.arange(blocks)[:, None] % cluster * agents + np.arange(threads)
        self._tick(np.arange(blocks)[:, None], np.arange(threads))
        self.foreign: dict[int, np.ndarray] = {}  # `known` of the agents of other clusters, by the cluster's number
        self.fenced: np.ndarray | None = None  # `known` at a thread's last fence
        self.seen: list[tuple[np.ndarray, np.ndarray, Published]] = []  # by threads of rows, that have passed no fence since

    def _tick(self, rows: Index, threads: Index) -> None:
        self.known[rows, threads, self.own[rows, threads]] += 1

    def barrier(self, rows: np.ndarray) -> None:
        """All threads of each of these blocks tell each other."""
        self.known[rows] = self.known[rows].max(axis=1, keepdims=True)
        self._tick(rows[:, None], np.arange(self.threads))

    def warp_barrier(self, rows: np.ndarray, warps: np.ndarray) -> None:
        """Threads of each of these warps tell each other."""
        by_warp = self.known.reshape(len(self.known), -1, 32, self.columns)
        by_warp[rows, warps] = by_warp[rows, warps].max(axis=1, keepdims=True)
        self._tick(rows[:, None], 32 * warps[:, None] + np.arange(32))

    def release(self, row: int, threads: np.ndarray) -> np.ndarray:
        """What these threads of a block hand on."""
        handed = self.known[row, threads].max(axis=0)
        self._tick(row, threads)
        return handed

    def fence(self, rows: np.ndarray, threads: np.ndarray) -> None:
        """Of these threads."""
        if self.fenced is None:
            self.fenced = np.zeros_like(self.known)
        self.fenced[rows, threads] = self.known[rows, threads]
        self._tick(rows, threads)
        fences, seen = np.zeros(self.known.shape[:2], np.bool_), self.seen
        fences[rows, threads], self.seen = True, []
        for at, of, published in seen:
            cluster, ticks = published
            now = fences[at, of]
            known = self.foreign.setdefault(cluster, np.full_like(self.known, -1))
            known[at[now], of[now]] = np.maximum(known[at[now], of[now]], ticks)
            self.seen += [(at[~now], of[~now], published)] if not now.all() else []

    def publish(self, row: int, thread: int, cluster: int) -> Published | None:
        """What a word brings that this thread of a cluster assigns."""
        return None if self.fenced is None else (cluster, self.fenced[row, thread].copy())

    def acquire(self, row: int, threads: np.ndarray, known: np.ndarray) -> None:
        self.known[row, threads] = np.maximum(self.known[row, threads], known)


class Guard:
    """Watches one buffer, or all of workgroup memory. `cells` of it are distinguished; `cell` is the bytes of one."""

    def __init__(self, cells: int, cell: int, shared: bool):
        self.cell, self.shared, self.cells = cell, shared, cells
        self.clocks: Clocks  # of the flight that runs, which sets them
        self.name = "workgroup memory" if shared else ""
        self._clear(cells)

    def _clear(self, cells: int) -> None:
        self.writer, self.written_at = np.full(cells, -1, np.int64), np.zeros(cells, np.int32)
        self.readers = [np.full(cells, -1, np.int64) for _ in range(2)]
        self.read_at = [np.zeros(cells, np.int32) for _ in range(2)]

    # ---- by threads --------------------------------------------------------------------------------------------------

    def read(self, buffer: Buffer, offset: Index, op: ir.Operation, context: Context, mask: Mask) -> None:
        lanes, offsets = spread(offset, context, mask)
        rows, offsets = buffer.rows(offsets, context.row_of[lanes][:, None])
        if buffer.across is not None:
            context.reach(op, rows, lanes)
        who = _Threads(self.clocks, context, lanes.repeat(offsets.shape[1] * self.width(buffer)))
        self.reads(self.cells_of(buffer, offsets, rows), who, op, context)

    def write(self, buffer: Buffer, offset: Index, value: object, op: ir.Operation, context: Context, mask: Mask) -> None:
        lanes, offsets = spread(offset, context, mask)
        width = self.width(buffer)
        given = np.asarray(value)
        if given.ndim == 0 or given.shape[0] == 1:
            given = np.broadcast_to(given.reshape(1, -1), offsets.shape)
        else:
            given = np.broadcast_to(given[lanes].reshape(len(lanes), -1), offsets.shape)
        rows, offsets = buffer.rows(offsets, context.row_of[lanes][:, None])
        if buffer.across is not None:
            context.reach(op, rows, lanes)
        index = (rows, offsets) if self.shared else offsets
        changed = _bits(np.ascontiguousarray(given)) != _bits(buffer.data[index])
        if buffer.written is not None:
            changed |= buffer.written[index] != buffer.full
        who = _Threads(self.clocks, context, lanes.repeat(offsets.shape[1] * width))
        cells, changed = self.cells_of(buffer, offsets, rows), changed.reshape(-1).repeat(width)
        self.writes(cells, who, op, context, changed)
        self._at_once(buffer, rows, given, offsets, lanes, op, context)
        if self.shared and context.kernel.boxes:
            context.flight.layouts[rows, buffer.pieces(offsets)] = 0

    def _at_once(
        self, buffer: Buffer, rows: np.ndarray, given: np.ndarray, offsets: np.ndarray, lanes: np.ndarray, op: ir.Operation,
        context: Context,
    ) -> None:  # fmt: skip
        """Two lanes that store different values at one place, at once. All NaNs are one value: a GPU's arithmetic makes one alone,
        and the host's keeps the bits of an operand's, which lanes of a shuffled sum have in another order."""
        flat = offsets + (rows * buffer.data.shape[-1] if self.shared else 0)
        order = np.argsort(flat, axis=None, kind="stable")
        sorted_offsets, values = flat.reshape(-1)[order], _bits(np.ascontiguousarray(given)).reshape(-1)[order]
        nan = (given != given).reshape(-1)[order]
        conflicts = (sorted_offsets[1:] == sorted_offsets[:-1]) & (values[1:] != values[:-1]) & ~(nan[1:] & nan[:-1])
        if conflicts.any():
            n = first(conflicts)
            pair = np.broadcast_to(lanes[:, None], offsets.shape).reshape(-1)[order[n : n + 2]]
            what = f"{buffer.name or self.name} at element {int(offsets.reshape(-1)[order[n]])} is written by two threads at once"
            raise Fault("race", op, what, context.names(pair))

    def width(self, buffer: Buffer) -> int:
        return buffer.data.dtype.itemsize // self.cell

    def cells_of(self, buffer: Buffer, offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The cells of elements, [lanes, positions], of blocks [lanes, 1 or positions]."""
        width = self.width(buffer)
        cells = (offsets.reshape(len(offsets), -1, 1) * width + np.arange(width)).reshape(len(offsets), -1)
        if self.shared:
            per_block = self.cells // len(self.clocks.known)
            rows = np.broadcast_to(rows, offsets.shape).repeat(width, axis=1)
            cells = cells + buffer.start // self.cell + rows * per_block
        return cells.reshape(-1)

    # ---- by anyone ---------------------------------------------------------------------------------------------------

    def reads(self, cells: np.ndarray, who: _Threads | Agent, op: ir.Operation, context: Context) -> None:
        self._check(cells, self.writer, self.written_at, who, op, context, ("written", "read"))
        moved = self.readers[0][cells] != who.ids
        for kept in (self.readers, self.read_at):
            kept[1][cells] = np.where(moved, kept[0][cells], kept[1][cells])
        self.readers[0][cells], self.read_at[0][cells] = who.ids, who.ticks
        several = self.readers[0][cells] != who.ids  # of one instruction
        if several.any():
            ids, ticks = (np.broadcast_to(v, cells.shape)[several] for v in (who.ids, who.ticks))
            self.readers[1][cells[several]], self.read_at[1][cells[several]] = ids, ticks

    def writes(
        self, cells: np.ndarray, who: _Threads | Agent, op: ir.Operation, context: Context, changed: np.ndarray | bool = True
    ) -> None:
        """`changed`: where another value than before is written."""
        self._check(cells, self.writer, self.written_at, who, op, context, ("written", "written"), changed)
        for readers, at in zip(self.readers, self.read_at):
            self._check(cells, readers, at, who, op, context, ("read", "written"), changed)
        self.writer[cells], self.written_at[cells] = who.ids, who.ticks

    def _check(
        self, cells: np.ndarray, others: np.ndarray, at: np.ndarray, who: _Threads | Agent, op: ir.Operation,
        context: Context, words: tuple[str, str], changed: np.ndarray | bool = True,
    ) -> None:  # fmt: skip
        ids = others[cells]
        races = (ids >= 0) & (ids != who.ids) & changed
        if races.any():
            races &= at[cells] > who.knows(ids)
        if races.any():
            n = first(races)
            mine = int(np.broadcast_to(who.ids, cells.shape)[n])
            other = int(ids[n])
            columns = self.clocks.columns
            divergent = (
                "in another block" if other // columns != mine // columns else "without synchronisation between the two"
            )
            by = context.agent_name(other), context.agent_name(mine)
            what = (
                f"{self._name_of(int(cells[n]), context)} is {words[0]} by {by[0]} and {words[1]} by {by[1]}, {divergent}"
            )
            raise Fault("race", op, what)

    def _name_of(self, cell: int, context: Context) -> str:
        """A cell in words."""
        if not self.shared:
            return f"{self.name or 'memory'} at element {cell}"
        row, cell = divmod(cell, self.cells // len(self.clocks.known))
        of = f" of block {context.flight.first + row}" if context.kernel.cluster > 1 else ""
        return f"{self.name} at byte {cell * self.cell}{of}"

    # ---- a block of a cluster ends -----------------------------------------------------------------------------------

    def ends(self, row: int, op: ir.Operation, context: Context) -> None:
        """Nobody else may use a block's memory whose last thread does not know that it is done."""
        count, known = self.cells // len(self.clocks.known), self.clocks.known[row].max(axis=0)
        cells = np.arange(row * count, (row + 1) * count)
        words = ("written", "read", "read")
        for others, at, word in zip((self.writer, *self.readers), (self.written_at, *self.read_at), words):
            ids = others[cells]
            unordered = (ids >= 0) & (at[cells] > known[ids % self.clocks.columns])
            if unordered.any():
                n = first(unordered)
                cell, by = self._name_of(int(cells[n]), context), context.agent_name(int(ids[n]))
                what = f"{cell} is {word} by {by}, without synchronisation before the block's end"
                raise Fault("race", context.flight.remote.get(int(ids[n]), op), what)


def spread(offset: Index, context: Context, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """The lanes that take part, and the offsets of each: [lanes, positions]."""
    assert context.lanes is not None
    lanes = np.arange(context.lanes) if mask is None else np.flatnonzero(mask)
    if not differs(offset):
        return lanes, np.full((len(lanes), 1), int(offset))
    if offset.ndim == 1:
        return lanes, offset[lanes][:, None]
    return lanes, (offset[lanes] if offset.shape[0] > 1 else np.broadcast_to(offset, (len(lanes), offset.shape[1])))


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as integers, so that NaN equals itself."""
    return values if values.dtype == np.bool_ else values.view(f"u{values.dtype.itemsize}")


class _Threads:
    """Accesses by threads, one lane for each cell."""

    def __init__(self, clocks: Clocks, context: Context, lanes: np.ndarray):
        self.clocks, self.rows, self.threads = clocks, context.row_of[lanes], context.thread_of[lanes]
        self.ids = context.block_of[lanes] * clocks.agents + self.threads
        self.ticks = clocks.known[self.rows, self.threads, clocks.own[self.rows, self.threads]]

    def knows(self, ids: np.ndarray) -> np.ndarray:
        """Up to which tick each accessor knows of each agent."""
        columns = self.clocks.columns
        known = self.clocks.known[self.rows, self.threads, ids % columns]
        found = np.where(ids // columns == self.ids // columns, known, -1)
        for cluster, known in self.clocks.foreign.items():
            found = np.where(ids // columns == cluster, known[self.rows, self.threads, ids % columns], found)
        return found


class Agent:
    """Accesses by one agent of one block, which knows of the ticks `known`."""

    def __init__(self, clocks: Clocks, block: int, agent: int, tick: int, known: np.ndarray):
        self.columns, self.known = clocks.columns, known
        self.ids, self.ticks = np.int64(block * clocks.agents + agent), np.int32(tick)

    def knows(self, ids: np.ndarray) -> np.ndarray:
        return np.where(ids // self.columns == self.ids // self.columns, self.known[ids % self.columns], -1)


class Copies(_Threads):
    """Accesses by the asynchronous copies of threads."""

    def __init__(self, clocks: Clocks, context: Context, lanes: np.ndarray, ticks: np.ndarray):
        super().__init__(clocks, context, lanes)
        self.ids, self.ticks = self.ids + clocks.threads, ticks
