"""Results of contractions that leave by TMA: a warp's part of a result in shared memory, copied to the tensor as one box.

    wait until the copy before the last has read its buffer
    shared[warp, slot] = c[chunk]        // 16 rows in lines of at most 128 bytes, swizzled
    fence; copy the box shared[warp, slot] to y[...]; end of the group

The copy runs beside the threads, under the next chunk and the next tile's products, and leaves out what is outside the tensor.
A warp waits for nobody else, since its own copies come one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilec.core import locations, mlir
from tilec.core.extents import Extent, divides, shape_of
from tilec.core.hardware import WIDE
from tilec.core.mlir import arith, ir, memref, nvgpu, nvvm
from tilec.index.facts import NONE
from tilec.index.terms import term
from tilec.kernels import WarpgroupContraction
from tilec.kernels.contraction import boxes_of
from tilec.passes.cuda.contraction.problem import Problem, Side, Thread
from tilec.passes.cuda.memory_spaces import SHARED, is_local, local, root
from tilec.passes.cuda.ring import as_box, offsets_of, part_of, show_stores, tensor_map
from tilec.passes.loops import sum_of, when

HEIGHT = 16  # rows of a box: those of a warp
MOST = 64
"""Operations on an element, of which a function counts as `FUNCTION`: code is written out for each of a thread's sums."""
FUNCTION = 20


@dataclass(frozen=True)
class Use:
    """An operand of an operation, by kernel dimensions."""

    value: ir.Value
    dims: tuple[int, ...]


def uses_of(op: ir.Operation) -> list[Use]:
    dims = mlir.get_integers(op, "tilec.dims")
    return [Use(v, tuple(dims[d] for d in mlir.map_dims(m))) for v, m in zip(op.operands, mlir.maps_of(op))]


def result_boxes(problems: list[list[Problem]], after: list[list[ir.Operation]], warps: int) -> list[ResultBoxes]:
    """Of each result, from its products and what follows them, in one memory; none if not all leave in boxes of one type."""
    found = [use for own, then in zip(problems, after) if (use := boxed_result(own, then)) is not None]
    if len(found) < len(problems) or len({ir.MemRefType(use.value.type).element_type for use in found}) > 1:
        return []
    first = ResultBoxes(problems[0][0], found[0], warps)
    return [first, *(ResultBoxes(own[0], use, warps, first.buffer) for own, use in zip(problems[1:], found[1:]))]


def boxed_result(problems: list[Problem], after: list[ir.Operation]) -> Use | None:
    """The only result that leaves a tile, if warps hold boxes of it, and can finish it where they hold it: without operands
    that have rows and columns, which threads load better in the order of memory."""
    problem, operations = problems[0], [*(p.op for p in problems), *after]
    stored = [u for op in operations for u in uses_of(op)[len(mlir.inputs_of(op)) :] if not is_local(u.value)]
    read = [u for op in after for u in uses_of(op)[: len(mlir.inputs_of(op))] if not is_local(u.value)]
    both = any(set(u.dims) & set(problem.left.dims) and set(u.dims) & set(problem.right.dims) for u in read)
    inner = [o.operation for op in after for o in mlir.body_of(op).operations]
    if len(stored) != 1 or both or sum(map(_weight, inner)) > MOST or any(o.regions or o.name == "memref.load" for o in inner):
        return None
    (use,) = stored
    type_ = ir.MemRefType(root(use.value).type)
    size, shape = type_.element_type.width // 8, shape_of(root(use.value))
    if size not in (2, 4) or len(shape) > 5 or not divides(WIDE // size, shape[-1]) or use.dims[-1:] != problem.right.dims[-1:]:
        return None
    columns, _ = boxes_of(problem.right.size, size, 1)
    lengths = dict(zip(use.dims, shape)) | {d: end - begin for d, (begin, end) in zip(use.dims, part_of(use.value))}
    runs = ((problem.left, HEIGHT), (problem.right, columns))
    return use if all(_is_run(side, run, lengths) for side, run in runs) else None


def _weight(op: ir.Operation) -> int:
    """Instructions, roughly."""
    one = op.name == "math.fma" or "afn" in str(op.attributes.get("fastmath"))
    return FUNCTION if op.name.startswith("math.") and not one else 1


def _is_run(side: Side, run: int, lengths: dict[int, Extent]) -> bool:
    """Whether so many neighbours of a block's rows or columns are one run of the tensor, or lie outside it."""
    if not side.dims or any(d not in lengths for d in side.dims):
        return False
    outermost = next((n for n, size in enumerate(side.box) if size > 1), 0)
    ends = side.full or NONE.proves(side.box[outermost] - term(lengths[side.dims[outermost]]))
    return ends and (side.box[-1] % run == 0 or outermost == len(side.dims) - 1)


class ResultBoxes:
    """The buffers of every warp that holds a part of the result, and the tensor's map."""

    def __init__(self, problem: Problem, use: Use, warps: int, buffer: ir.Value | None = None):
        self.dims, self.tensor = use.dims, root(use.value)
        self.element = ir.MemRefType(self.tensor.type).element_type
        assert isinstance(problem.options, WarpgroupContraction)
        self.columns, self.slots = boxes_of(problem.right.size, self.element.width // 8, problem.options.result_boxes)
        if buffer is None:
            made = memref.AllocOp(local([warps, self.slots, HEIGHT, self.columns], self.element, SHARED), [], []).result
            buffer = locations.named(made, f"{locations.argument(self.tensor) or 'result'}_boxes")
        self.buffer = buffer
        line = self.columns * self.element.width // 8
        self.pieces = line // WIDE
        box = {problem.left.dims[-1]: HEIGHT, problem.right.dims[-1]: self.columns}
        self.box = [box.get(d, 1) for d in self.dims]
        self.map = tensor_map(self.tensor, self.box, line, ends=[end for _, end in part_of(use.value)])

    def put(self, warp: ir.Value, chunk: ir.Value, row: ir.Value, column: ir.Value) -> list[ir.Value]:
        """The subscripts of an element of a chunk: pieces of 16 bytes are exchanged as TMA reads them."""
        each = WIDE * 8 // self.element.width
        line = arith.shrui(row, mlir.index((8 // self.pieces).bit_length() - 1)) if self.pieces < 8 else row
        swizzle = arith.muli(arith.andi(line, mlir.index(self.pieces - 1)), mlir.index(each))
        return [warp, self._slot(chunk), row, arith.xori(column, swizzle)]

    def _slot(self, chunk: ir.Value) -> ir.Value:
        return arith.remui(chunk, mlir.index(self.slots)) if self.slots > 1 else mlir.index(0)

    def begin(self, thread: Thread) -> None:
        """The buffer of the next chunk is free again."""
        self._by_one(thread, lambda: nvvm.CpAsyncBulkWaitGroupOp(self.slots - 1, read=True))
        synchronise()

    def end(self, view: ir.Value, warp: ir.Value, thread: Thread, chunk: ir.Value, at: dict[int, ir.Value]) -> None:
        """Starts the copy of a chunk that a warp has put there, whose first element is at these coordinates of a block's tile."""
        show_stores()
        synchronise()
        source = self._box(warp, chunk)
        coordinates = [sum_of([(at[d], 1), (o, 1)]) for d, o in zip(self.dims, offsets_of(view))]

        def copy() -> None:
            nvgpu.TmaAsyncStoreOp(source, self.map, coordinates[::-1])
            nvvm.CpAsyncBulkCommitGroupOp()

        self._by_one(thread, copy)

    def wait(self, thread: Thread) -> None:
        """A block may end only when its copies have read their buffers."""
        self._by_one(thread, lambda: nvvm.CpAsyncBulkWaitGroupOp(0, read=True))

    def _box(self, warp: ir.Value, chunk: ir.Value) -> ir.Value:
        shape = [HEIGHT, self.columns]
        type_ = ir.MemRefType(self.buffer.type)
        layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, [self.columns, 1])
        flat = ir.MemRefType.get(shape, self.element, layout, type_.memory_space)
        slot = self._slot(chunk)
        known = mlir.constant_value(slot)
        at = [mlir.DYNAMIC, mlir.DYNAMIC if known is None else int(known), 0, 0]
        dynamic = [warp] if known is not None else [warp, slot]
        view = memref.SubViewOp(flat, self.buffer, dynamic, [], [], at, [1, 1, *shape], [1] * 4).result
        return as_box(view, self.box)

    @staticmethod
    def _by_one(thread: Thread, action: Callable[[], object]) -> None:
        """By the warp's first lane, whose groups count."""
        first = arith.cmpi(arith.CmpIPredicate.eq, thread.lane, mlir.index(0))
        with when(locations.named(first, "is_first_lane")):
            action()


def synchronise() -> None:
    nvvm.SyncWarpOp(mlir.constant(-1, ir.IntegerType.get_signless(32)))
