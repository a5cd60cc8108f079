"""Epilogues of contractions: elementwise operations on the elements of C that a warp holds, and the stores.

    for chunk {                      // a few rows and columns: every index of a register is constant
        shared[warp] = c[chunk]      // in the order in which the matrix units left them
        for row, column {            // in the order of memory: neighbours for one access
            c1 = shared[warp, row, column : column + 8]
            for lane { y1[lane] = gelu(c1[lane] + b1[lane]) }
            y[...] = y1 } }

The operations of the epilogue have the same elements as C, so that each is computed where its operands are. No
intermediate goes to global memory. The exchange through shared memory gives accesses of 16 bytes, and keeps the
code short: sums in registers can only be addressed by constants, so that code on them is written out once for
each sum of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from tilec.analysis.operation_costs import instructions_of
from tilec.core import locations, mlir
from tilec.core.extents import Extent, divides, shape_of
from tilec.core.hardware import WIDE
from tilec.core.mlir import arith, ir, memref, vector
from tilec.passes.cuda.contraction.fragments import Chunks, Sums
from tilec.passes.cuda.contraction.problem import Problem, Thread
from tilec.passes.cuda.contraction.result_boxes import ResultBoxes, Use, synchronise, uses_of
from tilec.passes.cuda.memory_spaces import SHARED, is_local, local, registers, root
from tilec.passes.emit import Body
from tilec.passes.loops import all_of, loop, sum_of, when

LONG = 24  # instructions of an element, which take longer to wait for than to issue
SIDE_BY_SIDE = 8  # elements that hide what each waits for
Where = tuple[ir.Value, ir.Value]
"""A row and a column."""


def buffer(chunks: Chunks, warps: int, element: ir.Type, overlay: bool, products: int = 1) -> ir.Value:
    """Shared memory for one chunk of every warp, rows of so many products one after another; with `overlay`, where staged tiles
    were."""
    made = memref.AllocOp(local([warps, products * chunks.rows, chunks.columns], element, SHARED), [], [])
    locations.named(made, "epilogue")
    if overlay:
        made.operation.attributes["tilec.overlay"] = ir.UnitAttr.get()
    return made.result


class Epilogue:
    """`store(chunks)` applies the epilogue to the elements of C that a warp holds, and stores them. `problems`: the products that
    meet there, usually one."""

    def __init__(
        self, problems: list[Problem], after: list[ir.Operation], thread: Thread, buffer: ir.Value | ResultBoxes, warp: ir.Value
    ):
        self.problem, self.after, self.thread, self.warp = problems[0], after, thread, warp
        self.products = [p.op for p in problems]
        self.boxes = buffer if isinstance(buffer, ResultBoxes) else None
        self.buffer: Any = buffer
        self.lane_dim = self.problem.right.dims[-1]
        self.results = [p.operands[-1] for p in problems]
        self.tiles: dict[tuple[Use, int], ir.Value] = {}
        self.piece = 0  # of those that are finished side by side

    def store(self, chunks: Chunks) -> None:
        if self.boxes:
            self._store_boxes(chunks, self.boxes)
            return
        width = self._width(chunks)
        per_row = chunks.columns // width
        with loop(chunks.count, unroll=True, name="chunk") as chunk:
            synchronise()  # the chunk before has been read
            chunks.spill(chunk, self._put)
            synchronise()
            store = self._pieces_of_columns if 32 % per_row == 0 and chunks.rows * per_row > 32 else self._pieces_of_both
            store(chunks, chunk, width, per_row)

    def _pieces_of_both(self, chunks: Chunks, chunk: ir.Value, width: int, per_row: int) -> None:
        count = chunks.rows * per_row // 32
        at_once = self._at_once(count, width)
        with loop(count // at_once, name="piece") as i:
            pieces = list[tuple[Where, Where]]()
            for n in range(at_once):
                number = sum_of([(i, 32 * at_once), (self.thread.lane, 1)], 32 * n)
                if self._rows_first(width):
                    row, column = arith.remui(number, mlir.index(chunks.rows)), arith.divui(number, mlir.index(chunks.rows))
                else:
                    row, column = arith.divui(number, mlir.index(per_row)), arith.remui(number, mlir.index(per_row))
                within = locations.named(row, "row"), locations.named(arith.muli(column, mlir.index(width)), "column")
                pieces.append((chunks.coordinates(chunk, *within), within))
            if at_once > 1:
                self._several_elements(pieces, width)
            else:
                self._elements(*pieces[0], width, {}, "left", "right")

    def _at_once(self, count: int, width: int) -> int:
        """Pieces of so many that a thread finishes side by side: of long operations, each of which waits for the one before."""
        bodies = [o for op in self.after for o in mlir.traverse(op)]
        long = sum(instructions_of(o, {}) for o in bodies) >= LONG and not any(o.name == "memref.load" for o in bodies)
        if not long or width == 1 or not all(self._wide(u, width) for u in self._written()):
            return 1
        return next((n for n in (8, 4, 2) if n * width <= SIDE_BY_SIDE and count % n == 0), 1)

    def _several_elements(self, pieces: list[tuple[Where, Where]], width: int) -> None:
        """Those from several pieces on: what is beyond the edge is computed, too, and not stored."""
        problem, inside, found = self.problem, list[ir.Value | None](), list[dict[int, ir.Value]]()
        for (m, n), _ in pieces:
            at = problem.coordinates((problem.left, m), (problem.right, n))
            inside.append(all_of([c for side in (problem.left, problem.right) for c in problem.inside(side, at)]))
            found.append(self._within(at, width))
        held = list[tuple[dict[Use, ir.Value], list[ir.Value]]]()
        for self.piece, (at, (_, within)) in enumerate(zip(found, pieces)):
            sums = [self._sums(n, self._swizzled(*within), width) for n in range(len(self.products))]
            held.append((self._load(at, width, {}), sums))
        made = list[dict[Use, ir.Value]]()
        for self.piece, (at, (loaded, sums)) in enumerate(zip(found, held)):
            elements = [partial(lambda tile, lane: memref.LoadOp(tile, [lane]).result, tile) for tile in sums]
            made.append(self._compute(at, elements, loaded, width))
        for condition, at, stored in zip(inside, found, made):
            with nullcontext() if condition is None else when(condition):
                self._store_tiles(stored, at, width)
        self.piece = 0

    def _rows_first(self, width: int) -> bool:
        """Whether a result goes on along rows where a thread's neighbours end, so that lanes lie along rows: of y[n, o, h, w, 2]
        with columns of o and the last dimension."""
        left, last = self.problem.left, self.lane_dim
        return (
            width > 1
            and width == self._extent()
            and left.box[-1] > 1
            and all(u.dims[-2:] == (left.dims[-1], last) for u in self._written())
        )

    def _pieces_of_columns(self, chunks: Chunks, chunk: ir.Value, width: int, per_row: int) -> None:
        """All pieces of a thread have the same columns: what lies along columns alone is loaded once, and compilers compute once
        what follows from it alone."""
        lane = self.thread.lane
        column = locations.named(arith.muli(arith.remui(lane, mlir.index(per_row)), mlir.index(width)), "column")
        _, n = chunks.coordinates(chunk, mlir.index(0), column)
        across = self.problem.coordinates((self.problem.right, n))
        if not any(across.keys() >= {*use.dims} for use in self._vectors(width)):
            self._pieces_of_both(chunks, chunk, width, per_row)  # a column at hand would be a register more
            return
        condition = all_of(self.problem.inside(self.problem.right, across))
        with nullcontext() if condition is None else when(condition):
            loaded = self._load(across, width, {})
            with loop(chunks.rows * per_row // 32, name="piece") as i:
                number = sum_of([(i, 32), (lane, 1)])
                within = locations.named(arith.divui(number, mlir.index(per_row)), "row"), column
                self._elements(chunks.coordinates(chunk, *within), within, width, loaded, "left")

    def _store_boxes(self, chunks: Chunks, boxes: ResultBoxes) -> None:
        """Each element is finished in the thread that has its sum, two columns at a time."""
        with loop(chunks.count, unroll=True, name="chunk") as chunk:
            boxes.begin(self.thread)

            def put(sums: Sums, row: ir.Value, column: ir.Value, chunk: ir.Value = chunk) -> None:
                m, n = chunks.coordinates(chunk, row, column)
                at = self._within(self.problem.coordinates((self.problem.left, m), (self.problem.right, n)))
                elements = [s.element for s in (sums, *sums.further)]
                ((_, tile),) = self._compute(at, elements, self._load(at, 2, {}), 2).items()
                pair = vector.LoadOp(ir.VectorType.get([2], boxes.element), tile, [mlir.index(0)]).result
                vector.StoreOp(pair, boxes.buffer, boxes.put(self.warp, chunk, row, column))

            chunks.spill(chunk, put)
            m, n = chunks.coordinates(chunk, mlir.index(0), mlir.index(0))
            at = self.problem.coordinates((self.problem.left, m), (self.problem.right, n))
            view = next(u.value for op in (*self.products, *self.after) for u in uses_of(op) if root(u.value) == boxes.tensor)
            boxes.end(view, self.warp, self.thread, chunk, at)

    def _within(self, at: dict[int, ir.Value], width: int = 2) -> dict[int, ir.Value]:
        """Coordinates that exist, since elements beyond them are loaded and computed, too, though never copied."""
        found = dict(at)
        for side in (self.problem.left, self.problem.right):
            for d, size in self.problem.limits(side):
                last = width if d == self.lane_dim else 1
                most = mlir.index(size - last) if isinstance(size, int) else sum_of([(size, 1)], -last)
                found[d] = arith.minsi(at[d], most)
        return found

    def _swizzled(self, row: ir.Value, column: ir.Value) -> list[ir.Value]:
        """Rows are swizzled by 8 columns against each other, so that those that a warp writes at a time lie in
        other banks.
        """
        period = min(4, ir.MemRefType(self.buffer.type).shape[2] // 8)
        swizzle = arith.muli(arith.andi(row, mlir.index(period - 1)), mlir.index(8))
        return [self.warp, row, arith.xori(column, swizzle)]

    def _put(self, sums: Sums, row: ir.Value, column: ir.Value) -> None:
        for number, each in enumerate((sums, *sums.further)):
            value, subscripts = each.all(), self._of_product(number, self._swizzled(row, column))
            if isinstance(value.type, ir.VectorType):
                vector.StoreOp(value, self.buffer, subscripts)
            else:
                memref.StoreOp(value, self.buffer, subscripts)

    def _of_product(self, number: int, subscripts: list[ir.Value]) -> list[ir.Value]:
        """The subscripts of an element of the first product in a further one's rows, which are a multiple of the swizzle's."""
        warp, row, column = subscripts
        rows = ir.MemRefType(self.buffer.type).shape[1] // len(self.products)
        return [warp, sum_of([(row, 1)], number * rows), column] if number else subscripts

    def _width(self, chunk: Chunks) -> int:
        """Elements that a thread finishes side by side: neighbours along one dimension, inside together."""
        side, extent = self.problem.right, self._extent()
        bits = min(max(8, ir.MemRefType(u.value.type).element_type.width) for u in self._written())
        sizes = [side.box[-1], extent, chunk.columns] + ([side.size] if len(side.dims) > 1 else [])
        widest = min(8, 8 * WIDE // bits, chunk.rows * chunk.columns // 32)
        return next(w for w in (8, 4, 2, 1) if w <= widest and all(divides(w, s) for s in sizes))

    def _written(self) -> list[Use]:
        """What leaves the kernel."""
        found = (u for op in (*self.products, *self.after) for u in uses_of(op)[len(mlir.inputs_of(op)) :])
        return [u for u in found if not is_local(u.value)]

    def _extent(self) -> Extent:
        """The whole extent of the innermost column dimension; 1 where it is not known."""
        for op in (self.problem.op, *self.after):
            for use in uses_of(op):
                for d, size in zip(use.dims, shape_of(root(use.value)) if not is_local(use.value) else ()):
                    if d == self.lane_dim:
                        return size
        return 1

    def _elements(
        self, where: tuple[ir.Value, ir.Value], within: tuple[ir.Value, ir.Value], width: int, loaded: dict[Use, ir.Value],
        *sides: str,
    ) -> None:  # fmt: skip
        """Those from a place on: `where` in the block's tile, `within` the chunk; of which what is `loaded` is at hand. It
        is checked that they exist along `sides`."""
        problem, (m, n) = self.problem, where
        at = problem.coordinates((problem.left, m), (problem.right, n))
        condition = all_of([c for name in sides for c in problem.inside(getattr(problem, name), at)])
        subscripts = self._swizzled(*within)
        with nullcontext() if condition is None else when(condition):
            self._store_elements(at, subscripts, width, loaded)

    # ---- elements that exist -------------------------------------------------------------------------------

    def _store_elements(
        self, at: dict[int, ir.Value], subscripts: list[ir.Value], width: int, loaded: dict[Use, ir.Value]
    ) -> None:
        loaded = loaded | self._load(at, width, loaded)
        held = [self._sums(n, subscripts, width) for n in range(len(self.products))]
        elements = [partial(lambda sums, lane: memref.LoadOp(sums, [lane]).result, sums) for sums in held]
        self._store_tiles(self._compute(at, elements, loaded, width), at, width)

    def _store_tiles(self, stored: dict[Use, ir.Value], at: dict[int, ir.Value], width: int) -> None:
        for use, tile in stored.items():
            for begin, type_, subscripts in self._pieces(use, at, width):
                vector.StoreOp(vector.LoadOp(type_, tile, [mlir.index(begin)]).result, use.value, subscripts)

    def _compute(
        self, at: dict[int, ir.Value], elements: Sequence[Callable[[ir.Value], ir.Value]], loaded: dict[Use, ir.Value], width: int
    ) -> dict[Use, ir.Value]:
        """What is stored of neighbours from a place on, whose sums of each product are at hand: results that can be stored
        together."""
        stored: dict[Use, ir.Value] = {}
        with loop(width, name="element") as lane:
            along = {**at, self.lane_dim: sum_of([(at[self.lane_dim], 1), (lane, 1)])}
            known = {root(result): element(lane) for result, element in zip(self.results, elements)}
            for op, result in zip(self.products, self.results):
                (use,) = [u for u in uses_of(op) if u.value == result]
                self._store_result(use, known[root(result)], along, lane, width, stored)
            for op in self.after:
                self._operation(op, known, loaded, along, lane, width, stored)
        return stored

    def _pieces(self, use: Use, at: dict[int, ir.Value], width: int) -> Iterator[tuple[int, ir.VectorType, list[ir.Value]]]:
        """Accesses of at most 16 bytes: first element, type and subscripts of each."""
        element = ir.MemRefType(use.value.type).element_type
        piece = min(width, 8 * WIDE // max(8, element.width))
        for begin in range(0, width, piece):
            along = {**at, self.lane_dim: sum_of([(at[self.lane_dim], 1)], begin)}
            yield begin, ir.VectorType.get([piece], element), [along[d] for d in use.dims]

    def _sums(self, product: int, subscripts: list[ir.Value], width: int) -> ir.Value:
        """A thread's sums of a product out of shared memory, by accesses of at most 16 bytes."""
        element, subscripts = ir.MemRefType(self.buffer.type).element_type, self._of_product(product, subscripts)
        tile = self._tile(Use(self.buffer, (self.lane_dim, product)), width)
        piece = min(width, 8 * WIDE // element.width)
        if width == 1:
            memref.StoreOp(memref.LoadOp(self.buffer, subscripts).result, tile, [mlir.index(0)])
        for begin in range(0, width if width > 1 else 0, piece):
            at = [*subscripts[:-1], sum_of([(subscripts[-1], 1)], begin)]
            loaded = vector.LoadOp(ir.VectorType.get([piece], element), self.buffer, at).result
            vector.StoreOp(loaded, tile, [mlir.index(begin)])
        return tile

    def _operation(
        self, op: ir.Operation, known: dict[ir.Value, ir.Value], loaded: Mapping[Use, ir.Value], at: Mapping[int, ir.Value],
        lane: ir.Value, width: int, stored: dict[Use, ir.Value],
    ) -> None:  # fmt: skip
        body, count = mlir.body_of(op), len(mlir.inputs_of(op))
        uses, dims = uses_of(op), mlir.get_integers(op, "tilec.dims")
        here = Body(body, lambda n: self._element(uses[n], known, loaded, at, lane), lambda d: at[dims[d]])
        for argument in filter(mlir.uses, list(body.arguments)[:count]):
            here.value(argument)  # all loads before what is computed of them
        for use, value in zip(uses[count:], here.values()):
            known[root(use.value)] = value
            self._store_result(use, value, at, lane, width, stored)

    def _element(
        self, use: Use, known: Mapping[ir.Value, ir.Value], loaded: Mapping[Use, ir.Value], at: Mapping[int, ir.Value],
        lane: ir.Value,
    ) -> ir.Value:  # fmt: skip
        if root(use.value) in known:
            return known[root(use.value)]
        if use in loaded:
            return memref.LoadOp(loaded[use], [lane]).result
        return memref.LoadOp(use.value, [at[d] for d in use.dims]).result

    def _store_result(
        self, use: Use, value: ir.Value, at: Mapping[int, ir.Value], lane: ir.Value, width: int, stored: dict[Use, ir.Value]
    ) -> None:
        """A result that leaves the kernel goes to memory, several elements at a time where it can."""
        if is_local(use.value):
            return
        if width > 1 and self._wide(use, width):
            stored[use] = self._tile(use, width)
            memref.StoreOp(value, stored[use], [lane])
        else:
            memref.StoreOp(value, use.value, [at[d] for d in use.dims])

    def _load(self, at: dict[int, ir.Value], width: int, known: dict[Use, ir.Value]) -> dict[Use, ir.Value]:
        """What the epilogue reads of global memory at these coordinates, as vectors where elements are neighbours, and what is not
        known."""
        found: dict[Use, ir.Value] = {}
        for use in self._vectors(width):
            if use not in found and use not in known and at.keys() >= {*use.dims}:
                found[use] = self._tile(use, width)
                for begin, type_, subscripts in self._pieces(use, at, width):
                    vector.StoreOp(vector.LoadOp(type_, use.value, subscripts).result, found[use], [mlir.index(begin)])
        return found

    def _vectors(self, width: int) -> Iterator[Use]:
        """What the epilogue reads of global memory in vectors of `width` elements."""
        for op in self.after if width > 1 else ():
            live = {v for inner in mlir.traverse(op) for v in inner.operands}
            for use, argument in zip(uses_of(op)[: len(mlir.inputs_of(op))], mlir.body_of(op).arguments):
                read = argument in live and not is_local(use.value) and use.value not in self.results
                if read and self._wide(use, width):
                    yield use

    def _wide(self, use: Use, width: int) -> bool:
        """Whether one access moves a slot's elements: neighbours in memory, aligned, not too many bits."""
        if not use.dims or use.dims[-1] != self.lane_dim or self.lane_dim in use.dims[:-1]:
            return False
        type_ = ir.MemRefType(root(use.value).type)
        return divides(width, shape_of(root(use.value))[-1]) and width * max(8, type_.element_type.width) >= 16

    def _tile(self, use: Use, width: int) -> ir.Value:
        key = use, self.piece
        if key not in self.tiles:
            element = ir.MemRefType(use.value.type).element_type
            self.tiles[key] = registers([width], locations.argument(root(use.value)) or "%finished", element)
        return self.tiles[key]
