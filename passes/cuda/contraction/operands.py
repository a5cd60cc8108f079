"""Factors in shared memory: their layout, and the loads and stores of a block's threads.

    for i { cp.async stage[slot, line, column ^ swizzle], x[row, k] }      // a plain tensor: 16 bytes each
    for i { held[i] = gelu(x[row, k]) } ... for i { stage[...] = held[i] } // computed: around the products

The lines of a tile run along the direction in which the factor is contiguous: lines of k, one for each row (k-major),
or lines of rows, one for each k. Matrix units load 8 lines at a time at the same columns. Their 16-byte pieces are
swizzled: exchanged within 128 bytes by exclusive or with the line's number, so that the 8 pieces are in different
banks. 32-bit elements in lines of rows are read one by one, 8 of each of 4 lines; padding separates their banks.
Threads that multiply by fma read along lines; short lines get padding instead of a swizzle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

from tilec.core import locations, mlir
from tilec.core.extents import Extent, divides, has_pitches, shape_of
from tilec.core.hardware import LINE, WARPGROUP, WIDE
from tilec.core.mlir import arith, ir, memref, scf, vector
from tilec.core.varying import Varies
from tilec.kernels.matrix import ASYNC, padding
from tilec.passes.cuda.contraction.problem import FLAT, Problem, Side, Thread
from tilec.passes.cuda.memory_spaces import SHARED, is_local, local, registers, root
from tilec.passes.cuda.ring import LineTiles, start_copy
from tilec.passes.loops import all_of, loop, sum_of, when

GROUP = 4
"""Vectors of a thread that are loaded before the first is stored, where one warpgroup fills tiles."""
ALONE = 8
"""Elements, where each is loaded alone."""


def piece_location(i: ir.Value, thread: Thread, threads: int, per_line: int) -> tuple[ir.Value, ir.Value]:
    """Of this thread's piece `i` of a tile, of so many threads: its line, and its number among the pieces of a line."""
    if threads % per_line == 0:  # what differs between a thread's pieces is added to what they have in common
        line = sum_of([(i, threads // per_line), (arith.divui(thread.number, mlir.index(per_line)), 1)])
        return line, arith.remui(thread.number, mlir.index(per_line))
    if per_line % threads == 0:
        parts = mlir.index(per_line // threads)
        return arith.divui(i, parts), sum_of([(arith.remui(i, parts), threads), (thread.number, 1)])
    index = sum_of([(i, threads), (thread.number, 1)])
    return arith.divui(index, mlir.index(per_line)), arith.remui(index, mlir.index(per_line))


class Stage:
    """One factor's tiles in shared memory. Tile `number` of k gets to a slot by `copy`, or by `fetch` and `put`.

    `tiles`: lines of 128 bytes for products of warpgroups, which the producer's warpgroup fills (`fill`); else the block's threads
    fill lines as long as a tile is.
    """

    def __init__(self, problem: Problem, side: Side, thread: Thread, slots: int, tiles: LineTiles | None = None):
        self.problem, self.side, self.thread, self.tiles = problem, side, thread, tiles
        self.bytes = side.element.width // 8
        self.lines, self.width = (side.size, problem.depth) if side.major else (problem.depth, side.size)
        self.threads = WARPGROUP if tiles else problem.options.block_threads
        self.line = LINE // self.bytes if tiles else self.width
        if tiles:
            self.tile, self.swizzled = tiles.memory, True
        else:
            pad = padding(problem.options.instruction, self.bytes, side.major)
            self.swizzled = problem.options.instruction != "fma" and not pad
            self.tile = memref.AllocOp(local([slots, self.lines, self.width + pad], side.element, SHARED), [], []).result
            locations.named(self.tile, f"{problem.tensor(side)}_tiles")
        self.asynchronous = side.copy in ASYNC
        self.unsigned = problem.is_unsigned(side)
        self.vector = ASYNC[side.copy] // self.bytes if self.asynchronous else self._fetched_vector()
        if self.asynchronous and not self._has_pieces():
            raise Varies(f"whether {problem.tensor(side)} has lines of whole pieces of {ASYNC[side.copy]} bytes")
        self.one_by_one = self.vector == 1
        if self.one_by_one and not self.asynchronous:
            self.vector = self._run()
        self.held: ir.Value | None = None

    def _has_pieces(self) -> bool:
        """Whether what is copied at once exists at once, and is aligned."""
        access = self.problem.access(self.side)
        tensor = root(access.tensor if access.operand is None else self.problem.operands[access.operand])
        return has_pitches(tensor, self.vector) and (len(shape := shape_of(tensor)) != 1 or divides(self.vector, shape[-1]))

    # ---- places --------------------------------------------------------------------------------------------

    def column(self, line: ir.Value, column: ir.Value) -> ir.Value:
        """Where an element (or a piece of 16 bytes) of a line lies in it."""
        if not self.swizzled:
            return column
        pieces = min(8, self.line * self.bytes // WIDE)
        mixed = line
        if pieces < 8:  # shorter lines: several share 128 bytes, and differ by where they are in them
            mixed = arith.shrui(line, mlir.index((8 // pieces).bit_length() - 1))
        which = arith.andi(mixed, mlir.index(pieces - 1))
        return arith.xori(column, arith.muli(which, mlir.index(WIDE // self.bytes)))

    def _location(self, slot: ir.Value, line: ir.Value, column: ir.Value) -> list[ir.Value]:
        """Where an element of a tile lies in shared memory."""
        per_line, at = self.width // self.vector, line
        if self.threads % (8 * per_line) == 0:  # a thread's lines are multiples of 8 apart, by which swizzles repeat
            line = arith.divui(self.thread.number, mlir.index(per_line))
        if self.line < self.width:  # slabs, one after another
            at = sum_of([(arith.divui(column, mlir.index(self.line)), self.lines), (at, 1)])
            column = arith.remui(column, mlir.index(self.line))
        return [slot, at, self.column(line, column)]

    @property
    def _share(self) -> tuple[int, int]:
        """Vectors in all, and of one thread."""
        total = self.lines * self.width // self.vector
        return total, -(-total // self.threads)

    def _coordinates(self, i: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value, dict[int, ir.Value], ir.Value]:
        """Line and column of this thread's vector `i`, its coordinates in tile `number`, and its number along k."""
        line, number_in_line = piece_location(i, self.thread, self.threads, self.width // self.vector)
        column = arith.muli(number_in_line, mlir.index(self.vector))
        row, k = (line, column) if self.side.major else (column, line)
        at, k = self.problem.position_in_k(number, k)
        return line, column, self.problem.coordinates((self.side, row)) | at, k

    def _inside(self, at: dict[int, ir.Value], k: ir.Value) -> ir.Value | None:
        """When an element exists; None where all do."""
        return all_of(self.problem.inside(self.side, at) + self.problem.inside_k(at, k))

    def _exists(self, at: dict[int, ir.Value], k: ir.Value) -> ir.Value | None:
        """When an element of a tensor exists, and is not 0 by the program's own bounds; None where all are."""
        return all_of(
            self.problem.inside(self.side, at) + self.problem.inside_k(at, k) + self.problem.bounds(self.side, at)
        )

    def _mine(self, stack: ExitStack, i: ir.Value) -> None:
        """Threads beyond the last vector do nothing."""
        total, _ = self._share
        if total % self.threads:
            index = sum_of([(i, self.threads), (self.thread.number, 1)])
            stack.enter_context(when(arith.cmpi(arith.CmpIPredicate.slt, index, mlir.index(total))))

    # ---- asynchronous copies -------------------------------------------------------------------------------

    def copy(self, slot: ir.Value, number: ir.Value) -> None:
        """Starts the copy of a tile; what is outside becomes zeros."""
        _, count = self._share
        with ExitStack() as stack:
            i = self._pieces(stack, count)
            self._mine(stack, i)
            line, column, at, k = self._coordinates(i, number)
            source, subscripts = self.problem.source(self.side, at)
            start_copy(self.tile, self._location(slot, line, column), source, subscripts, self.vector, self._exists(at, k))

    def _pieces(self, stack: ExitStack, count: int) -> ir.Value:
        """Over so many pieces. Those of a group lie constants apart. What is known of rows of several dimensions before the loop
        over k is kept, as long as registers have room for it."""
        group = next(n for n in (8, 7, 6, 5, 4, 3, 2, 1) if count % n == 0)
        few = self.side.major and len(self.side.dims) > 1 and count <= 8
        if self.tiles is None or few or count < 2 * group or group < 4:
            return stack.enter_context(loop(count, unroll=self.tiles is not None and few, name="piece"))
        first = stack.enter_context(loop(count // group, rolled=True, name="group"))
        i = stack.enter_context(loop(group, unroll=True, name="piece"))
        return sum_of([(first, group), (i, 1)])

    def fill(self, slot: ir.Value, number: ir.Value) -> bool:
        """Brings a tile to a slot, or starts the copies that do. Returns whether threads store elements themselves."""
        if self.asynchronous:
            self.copy(slot, number)
            return False
        _, count = self._share
        most = max(1, ALONE // self.vector) if self.one_by_one else GROUP
        group = next(n for n in range(most, 0, -1) if count % n == 0)
        with loop(count // group, rolled=True, name="group") as first:
            for action in (self._fetch, partial(self._put, slot)):
                with ExitStack() as stack:
                    i = stack.enter_context(loop(group, name="piece"))
                    action(sum_of([(first, group), (i, 1)]), number, self._registers(group), i, stack)
        return True

    # ---- through registers ---------------------------------------------------------------------------------

    def fetch(self, number: ir.Value) -> None:
        """Computes this thread's part of a tile into registers."""
        _, count = self._share
        held = self._registers(count)
        with ExitStack() as stack:
            i = stack.enter_context(loop(count, name="piece"))
            self._fetch(i, number, held, i, stack)

    @property
    def _fetched(self) -> ir.Value:
        """The registers, once there are some."""
        assert self.held is not None
        return self.held

    def _registers(self, count: int) -> ir.Value:
        """For so many vectors."""
        if self.held is None:
            self.held = registers([count, self.vector], f"%{self.side.name}_fetched", self.problem.element)
        return self.held

    def _fetch(self, i: ir.Value, number: ir.Value, held: ir.Value, to: ir.Value, stack: ExitStack) -> None:
        """This thread's vector `i` of a tile into the registers `to`."""
        self._mine(stack, i)
        _, _, at, k = self._coordinates(i, number)
        if not self.one_by_one:
            with self._or_zero(self._inside(at, k), to, []):
                self._evaluate(to, at)
            return
        lane = stack.enter_context(loop(self.vector, name="element"))
        at = self._further(at, lane)
        k = sum_of([(k, 1), (lane, 1)]) if self.side.major else k
        if self.problem.is_loaded(self.side):
            self._load(to, lane, at, k)
        else:
            with self._or_zero(self._inside(at, k), to, [lane]):
                memref.StoreOp(self.problem.evaluate(self.problem.factor(self.side), at), held, [to, lane])

    def _load(self, i: ir.Value, lane: ir.Value, at: dict[int, ir.Value], k: ir.Value) -> None:
        """One element, or 0. Nothing but a load is under the condition, so that loads do not wait for one another."""
        source, subscripts = self.problem.source(self.side, at)
        condition = self._exists(at, k)
        if condition is not None:
            memref.StoreOp(mlir.constant(0, self.problem.element), self._fetched, [i, lane])
        with nullcontext() if condition is None else when(condition):
            memref.StoreOp(memref.LoadOp(source, subscripts).result, self._fetched, [i, lane])

    @contextmanager
    def _or_zero(self, condition: ir.Value | None, i: ir.Value, lane: list[ir.Value]) -> Iterator[None]:
        """What is outside is 0: one lane of vector `i`, or all of it."""
        if condition is None:
            yield
            return
        choice = scf.IfOp(condition, has_else=True)
        with ir.InsertionPoint(choice.else_block):
            with nullcontext(lane[0]) if lane else loop(self.vector, name="element") as each:
                memref.StoreOp(mlir.constant(0, self.problem.element), self._fetched, [i, each])
            scf.YieldOp([])
        with ir.InsertionPoint(choice.then_block):
            yield
            scf.YieldOp([])

    def _evaluate(self, i: ir.Value, at: dict[int, ir.Value]) -> None:
        factor = self.problem.factor(self.side)
        fetched = {n: self._vector_of(n, at) for n in self.problem.arguments(factor)}
        with loop(self.vector, name="element") as lane:
            elements = {n: memref.LoadOp(tile, [lane]).result for n, tile in fetched.items() if tile is not None}
            memref.StoreOp(self.problem.evaluate(factor, self._further(at, lane), elements), self._fetched, [i, lane])

    def _vector_of(self, n: int, at: dict[int, ir.Value]) -> ir.Value | None:
        """An operand's elements along a vector in registers; None where it is the same for all of them."""
        value = self.problem.operands[n]
        if not self._is_along(self.problem.operand_dims[n]):
            return None
        element = ir.MemRefType(value.type).element_type
        tile = registers([self.vector], locations.argument(root(value)) or "", element)
        width = min(self.vector, WIDE * 8 // max(8, element.width))
        for begin in range(0, self.vector, width):
            subscripts = self.problem.subscripts(n, self._further(at, mlir.index(begin)))
            loaded = vector.LoadOp(ir.VectorType.get([width], element), value, subscripts).result
            vector.StoreOp(loaded, tile, [mlir.index(begin)])
        return tile

    @property
    def _along(self) -> int:
        """The kernel dimension in which lines run."""
        return self.problem.options.inner[-1] if self.side.major else self.side.dims[-1]

    def _is_along(self, dims: Sequence[int]) -> bool:
        """Whether lines run along one of these dimensions of the operation: of several reduced ones, k itself."""
        return any(self.problem.dims[d] in (self._along, *([FLAT] if self.side.major else [])) for d in dims)

    def _further(self, at: dict[int, ir.Value], lane: ir.Value) -> dict[int, ir.Value]:
        """The coordinates so many elements further along the line."""
        moved = (self._along, FLAT) if self.side.major and FLAT in at else (self._along,)
        return {**at, **{d: sum_of([(at[d], 1), (lane, 1)]) for d in moved}}

    def _fetched_vector(self) -> int:
        """Elements that a thread may fetch side by side: all that it reads is contiguous, inside and aligned
        together.
        """
        problem, side = self.problem, self.side
        factor = problem.factor(side)
        extent: Extent = problem.inner_extents[-1] if side.major else side.box[-1]
        if any(o.name in ("memref.load", "linalg.index", "scf.if") for o in mlir.slice_of(problem.body, factor)):
            return 1
        width = WIDE // self.bytes
        lengths = [extent] if side.major or len(side.dims) == 1 else [extent, side.size]
        lengths += [problem.inner_box[-1]] if side.major and problem.is_boxed else []
        for n in problem.arguments(factor):
            dims, value = problem.operand_dims[n], problem.operands[n]
            if self._is_along(dims):
                if not self._is_along(dims[-1:]) or is_local(value):
                    return 1
                lengths.append(shape_of(root(value))[-1])
        total = self.lines * self.width
        fits = total % (width * self.threads) == 0
        return width if fits and all(divides(width, e) for e in lengths) else 1

    def _run(self) -> int:
        """Neighbours that a thread takes one by one, but that share what is computed for their line."""
        inner = self.problem.inner_box[-1] if self.problem.is_boxed else self.problem.depth
        extents = (self.problem.inner_extents[-1], inner) if self.side.major else (self.side.box[-1],)
        if any(o.name == "linalg.index" for o in mlir.slice_of(self.problem.body, self.problem.factor(self.side))):
            total = self.lines * self.width
            most = min(4, WIDE // self.bytes)
            fits = (w for w in (4, 2) if w <= most and total % (w * self.threads) == 0)
            return next((w for w in fits if all(divides(w, e) for e in extents)), 1)
        return 1

    def put(self, slot: ir.Value, number: ir.Value) -> None:
        """What was fetched into shared memory."""
        _, count = self._share
        with ExitStack() as stack:
            i = stack.enter_context(loop(count, name="piece"))
            self._put(slot, i, number, self._registers(count), i, stack)

    def _put(self, slot: ir.Value, i: ir.Value, number: ir.Value, held: ir.Value, of: ir.Value, stack: ExitStack) -> None:
        """This thread's vector `i` of a tile from the registers `of`."""
        self._mine(stack, i)
        line, column, _, _ = self._coordinates(i, number)
        subscripts = self._location(slot, line, column)
        if self.vector == 1:
            memref.StoreOp(memref.LoadOp(held, [of, mlir.index(0)]).result, self.tile, subscripts)
        else:
            type_ = ir.VectorType.get([self.vector], self.problem.element)
            vector.StoreOp(vector.LoadOp(type_, held, [of, mlir.index(0)]).result, self.tile, subscripts)
