"""map, for CUDA contractions on Hopper: persistent blocks in which some warps load and the others multiply.

    if warpgroup 0 { for tile, k { wait until slot is empty; start the copies of a[k], b[k] into it } }
    else { for tile { for k { wait until slot is full; c += a[slot] * b[slot]; the slot before is empty }
                      c's epilogue } }

One thread of the first warpgroup starts all copies (TMA: boxes of the tensors, swizzled on the way, outside
it zeros); it runs ahead by the number of slots, over the edge from one tile to the next, so that the epilogue
of one is under the loads of the other. Each slot has two barriers: `full` counts bytes, `empty` the
warpgroups that have finished with it. Both sides walk the slots in the same order; a barrier's parity says
how often it has been passed.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" (fragments; matrix descriptors, in units
of 16 bytes) and "cp.async.bulk.tensor"; CUTLASS and fast.cu for the division of work.
"""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilec import mlir
from tilec.diagnostics import InternalError
from tilec.kernels import WarpgroupContraction
from tilec.mlir import arith, func, gpu, ir, memref, nvgpu, nvvm, scf, vector
from tilec.passes.contract_epilogue import Epilogue, buffer
from tilec.passes.contract_problem import PRIVATE, SHARED, Blocks, Problem, Side, Thread, local
from tilec.passes.contract_tile import Chunk, chunk_columns, fragment_place
from tilec.passes.loops import delinearise, loop, sum_of, when
from tilec.passes.spaces import root

SWIZZLE = 128  # bytes of a line in shared memory
LOADS, MULTIPLIES = 40, 232  # registers of a thread that loads, and of one that multiplies, of 168 at launch


def map_wgmma(
    function: ir.Operation, options: WarpgroupContraction, blocks: Blocks, grid: list[int], tiles: dict[int, int]
) -> None:
    count = min(options.persistent_blocks, blocks.count)
    function.attributes["tilec.blocks"] = mlir.integer(count)
    function.attributes["tilec.threads"] = mlir.integer(options.block_threads)
    thread = Thread()
    first = gpu.BlockIdOp(gpu.Dimension.x).result
    shape = _Shape(options, thread)
    sample = blocks.enter(first, grid)  # the operands' types, which are the same for every tile
    ring = _Ring(Problem(options, tiles, _contraction(sample)), shape, function)
    _erase(sample)
    start = [mlir.index(0), mlir.index(0)]  # the first slot, at parity 0
    choice = scf.IfOp(arith.cmpi(arith.CmpIPredicate.eq, shape.warpgroup, mlir.index(0)), has_else=True)
    with ir.InsertionPoint(choice.then_block):
        shape.registers(LOADS, more=False)
        only = arith.cmpi(arith.CmpIPredicate.eq, thread.number, mlir.index(0))
        with when(only), _tiles(blocks, first, count, start) as (number, state):
            operations = blocks.enter(number, grid)
            state[:] = ring.load(Problem(options, tiles, _contraction(operations)), state)
            _erase(operations)
        scf.YieldOp([])
    with ir.InsertionPoint(choice.else_block):
        shape.registers(MULTIPLIES, more=True)
        with _tiles(blocks, first, count, start) as (number, state):
            _multiply_tile(function, options, tiles, blocks.enter(number, grid), ring, shape, state)
        scf.YieldOp([])


def _multiply_tile(
    function: ir.Operation,
    options: WarpgroupContraction,
    tiles: Any,
    operations: Any,
    ring: _Ring,
    shape: _Shape,
    state: list[ir.Value],
) -> None:
    from tilec.passes.contract_cuda import Block

    block = Block(operations)
    problem = Problem(options, tiles, block.contraction)
    with ir.Location.name(mlir.get_string(block.contraction, "tilec.name") or "c", block.contraction.location):
        state[:] = ring.multiply(problem, state)
    with (block.after or [block.contraction])[-1].location:
        warp = sum_of([(shape.thread.warp, 1)], -4)  # among those that multiply
        Epilogue(problem, block.after, shape.thread, ring.buffer, warp).store(shape.chunks(ring.sums))
    _erase(operations)


def _contraction(operations: list[ir.Operation]) -> ir.Operation:
    return next(o for o in operations if "tilec.reduce" in o.attributes)


def _erase(operations: list[ir.Operation]) -> None:
    for op in reversed(operations):
        if op.name.startswith("linalg.") or (
            op.name in ("memref.alloc", "memref.subview") and not any(mlir.uses(op.results[0]))
        ):
            op.erase()


@contextmanager
def _tiles(blocks: Blocks, first: ir.Value, count: int, state: list[ir.Value]) -> Iterator:
    """The loop over a block's tiles; `state` is carried through it, in a list that the body writes."""
    made = scf.ForOp(first, mlir.index(blocks.count), mlir.index(count), state)
    with ir.InsertionPoint(made.body):
        carried = list(made.inner_iter_args)
        yield made.induction_variable, carried
        scf.YieldOp(carried)


class _Shape:
    """Who multiplies what: warpgroups from 1 have 64 rows each; a thread two adjacent columns of every 8, in
    two rows.
    """

    def __init__(self, options: WarpgroupContraction, thread: Thread):
        self.thread, self.wide = thread, options.block[1] // 8
        self.groups = options.warps[0] * options.warps[1] // 4
        self.warpgroup = arith.shrui(thread.number, mlir.index(7))

    def registers(self, count: int, more: bool) -> None:
        """Moves registers to those that need them; with one warpgroup that multiplies there are enough."""
        if self.groups > 1:
            action = ir.Attribute.parse(f"#nvvm<action {'increase' if more else 'decrease'}>")
            nvvm.SetMaxRegisterOp(count, action)

    @property
    def half(self) -> ir.Value:
        """Which 64 rows are this warpgroup's."""
        return mlir.index(0) if self.groups == 1 else sum_of([(self.warpgroup, 1)], -1)

    def chunks(self, sums: ir.Value) -> list[Chunk]:
        """A warp has 16 of its warpgroup's rows and all columns."""
        columns = chunk_columns(8 * self.wide)
        firsts = range(0, 8 * self.wide, columns)
        return [
            Chunk(16, columns, partial(self._spill, sums, first, columns), partial(self._place, first))
            for first in firsts
        ]

    def _spill(self, sums: ir.Value, first: int, columns: int, put: Callable[..., None]) -> None:
        with loop(2) as half, loop(columns // 8) as j:
            at = [sum_of([(j, 1)], first // 8), half, mlir.index(0)]
            value = vector.LoadOp(ir.VectorType.get([2], ir.MemRefType(sums.type).element_type), sums, at).result
            put(value, *fragment_place(self.thread, half, j))

    def _place(self, first: int, row: ir.Value, column: ir.Value) -> tuple[ir.Value, ir.Value]:
        warp = arith.andi(self.thread.warp, mlir.index(3))
        return sum_of([(self.half, 64), (warp, 16), (row, 1)]), sum_of([(column, 1)], first)


@dataclass
class _Boxes:
    """One factor's slots: a slot is one box of the tensor, or several of 64 columns where it lies in lines of
    rows.
    """

    side: Side
    tile: ir.Value
    map: ir.Value
    box: list[int]
    slabs: int

    @property
    def bytes(self) -> int:
        size = 1
        for extent in (self.slabs, *self.box):
            size *= extent
        return size * ir.MemRefType(self.tile.type).element_type.width // 8


class _Ring:
    """Slots in shared memory with their barriers. What goes round is a slot's number and a parity."""

    def __init__(self, problem: Problem, shape: _Shape, function: ir.Operation):
        self.problem, self.shape, self.function, self.slots = problem, shape, function, problem.options.stages
        self.parts = [self._boxes(side) for side in (problem.left, problem.right)]
        kind = f"!nvgpu.mbarrier.group<memorySpace = #gpu.address_space<{SHARED}>, num_barriers = {self.slots}>"
        self.full, self.empty = (nvgpu.MBarrierCreateOp(ir.Type.parse(kind)).result for _ in range(2))
        self.sums = memref.AllocaOp(local([shape.wide, 2, 2], problem.accumulator, PRIVATE), [], []).result
        self.buffer = buffer(shape.chunks(self.sums), 4 * shape.groups, problem.accumulator, overlay=False)
        with when(arith.cmpi(arith.CmpIPredicate.eq, shape.thread.number, mlir.index(0))):
            with loop(self.slots) as slot:
                nvgpu.MBarrierInitOp(self.full, mlir.index(1), slot)
                nvgpu.MBarrierInitOp(self.empty, mlir.index(shape.groups), slot)
            nvvm.FenceMbarrierInitOp()
        gpu.BarrierOp()

    def _boxes(self, side: Side) -> _Boxes:
        """Slots for a factor, and the tensor map that fills them."""
        problem = self.problem
        n = problem.plain(side)
        if n is None:
            raise InternalError(f"the {side.name} factor is computed: it is no box of a tensor", "map")
        tensor = root(problem.operands[n])
        line = SWIZZLE * 8 // problem.element.width
        sizes = dict(zip(side.dims, side.box)) if side.major else {side.dims[-1]: line}
        sizes |= {problem.options.inner[-1]: problem.depth}
        box = [sizes.get(problem.dims[d], 1) for d in problem.places[n]]
        slabs = 1 if side.major else side.size // line
        element = problem.element
        # rows that the box lacks are never loaded, and never stored
        lines = side.size if side.major else slabs * problem.depth
        tile = memref.AllocOp(local([self.slots, lines, line], element, SHARED), [], []).result
        inside = "x".join(map(str, box))
        kind = f"!nvgpu.tensormap.descriptor<tensor = memref<{inside}x{element}, #gpu.address_space<{SHARED}>>"
        kind += ", swizzle = swizzle_128b, l2promo = l2promo_128b, oob = zero, interleave = none>"
        unranked = memref.CastOp(ir.Type.parse(f"memref<*x{element}>"), tensor).result
        map_ = nvgpu.TmaCreateDescriptorOp(ir.Type.parse(kind), unranked, [mlir.index(b) for b in box]).result
        return _Boxes(side, tile, map_, box, slabs)

    def _next(self, state: list[ir.Value]) -> list[ir.Value]:
        """The slot after this one; the parity turns with every round."""
        slot, parity = state
        following = sum_of([(slot, 1)], 1)
        last = arith.cmpi(arith.CmpIPredicate.eq, following, mlir.index(self.slots))
        turned = arith.xori(parity, mlir.index(1))
        return [arith.select(last, mlir.index(0), following), arith.select(last, turned, parity)]

    def _wait(self, barriers: ir.Value, slot: ir.Value, parity: ir.Value, of: int) -> None:
        """Until the barrier's phase of this parity is over."""
        phase = arith.cmpi(arith.CmpIPredicate.ne, parity, mlir.index(of))
        nvgpu.MBarrierTryWaitParityOp(barriers, phase, mlir.index(10_000_000), slot)

    @contextmanager
    def _steps(self, state: list[ir.Value]) -> Iterator:
        made = scf.ForOp(mlir.index(0), mlir.index(self.problem.steps), mlir.index(1), state)
        with ir.InsertionPoint(made.body):
            carried = list(made.inner_iter_args)
            yield made.induction_variable, carried
            scf.YieldOp(carried)
        state[:] = list(made.results)

    # ---- loading -------------------------------------------------------------------------------------------

    def load(self, problem: Problem, state: list[ir.Value]) -> list[ir.Value]:
        """All copies of one tile of C. The first wait on an empty slot is for a phase before the first, so it
        passes.
        """
        state = list(state)
        with self._steps(state) as (step, now):
            slot, parity = now
            self._wait(self.empty, slot, parity, of=1)
            nvgpu.MBarrierArriveExpectTxOp(self.full, mlir.index(sum(b.bytes for b in self.parts)), slot)
            for boxes, side in zip(self.parts, (problem.left, problem.right)):
                with loop(boxes.slabs) as slab:
                    self._copy(problem, boxes, side, step, slot, slab)
            now[:] = self._next(now)
        return state

    def _copy(
        self, problem: Problem, boxes: _Boxes, side: Side, step: ir.Value, slot: ir.Value, slab: ir.Value
    ) -> None:
        n = problem.plain(side)
        lines = boxes.bytes // boxes.slabs // SWIZZLE
        target = _view(boxes.tile, slot, sum_of([(slab, problem.depth)]), lines, boxes.box)
        at = {d: mlir.index(0) for d in problem.dims}
        at |= zip(problem.options.inner, delinearise(sum_of([(step, problem.depth)]), problem.inner))
        if not side.major:
            at |= zip(side.dims, delinearise(sum_of([(slab, SWIZZLE * 8 // problem.element.width)]), list(side.box)))
        place = [sum_of([(a, 1), (o, 1)]) for a, o in zip(problem.subscripts(n, at), _offsets(problem.operands[n]))]
        nvgpu.TmaAsyncLoadOp(target, self.full, boxes.map, place[::-1], slot)

    # ---- multiplying ---------------------------------------------------------------------------------------

    def multiply(self, problem: Problem, state: list[ir.Value]) -> list[ir.Value]:
        """One tile of C. A product may still run when the next is issued; then the slot before is known to be
        free.
        """
        state = list(state)
        last = [mlir.index(0)]
        whole = [*state, *last]
        with self._steps(whole) as (step, now):
            slot, parity, before = now
            self._wait(self.full, slot, parity, of=0)
            self._product(slot, step)
            self._wait_for_sums(1)
            with when(arith.cmpi(arith.CmpIPredicate.sgt, step, mlir.index(0))):
                self._release(before)
            now[:] = [*self._next([slot, parity]), slot]
        self._wait_for_sums(0)
        self._release(whole[2])
        return whole[:2]

    def _release(self, slot: ir.Value) -> None:
        """This warpgroup has read the slot: one of its threads says so."""
        lane = arith.andi(self.shape.thread.number, mlir.index(127))
        with when(arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))):
            nvgpu.MBarrierArriveOp(self.empty, slot)

    def _product(self, slot: ir.Value, step: ir.Value) -> None:
        """sums (+)= 64 rows of left times all of right, for the k of one slot; from zero in the first step.

        A call of what is no operation upstream: `nvgpu.warpgroup.mma` takes only one order of the right
        factor's dimensions, and gives no access to its sums.
        """
        left, right = self.parts
        own = 64 if left.side.major else self.problem.depth
        views = [
            _view(left.tile, slot, sum_of([(self.shape.half, own)]), own),
            _view(right.tile, slot, mlir.index(0), None),
        ]
        n = right.side.size
        order = ("mk" if left.side.major else "km") + "_" + ("nk" if right.side.major else "kn")
        kind = self.problem.options.multiplicand
        self._call(f"wgmma_64x{n}x{self.problem.depth}_{kind}_{order}", [self.sums, *views, step])

    def _wait_for_sums(self, running: int) -> None:
        """Until at most so many products run."""
        self._call(f"wgmma_wait_{running}_{8 * self.shape.wide}", [self.sums])

    def _call(self, name: str, arguments: list[ir.Value]) -> None:
        """Calls a device function that is declared at the module's start."""
        body = self.function.parent.regions[0].blocks[0]
        known = {ir.StringAttr(o.attributes["sym_name"]).value for o in body.operations if "sym_name" in o.attributes}
        if name not in known:
            with ir.InsertionPoint.at_block_begin(body):
                func.FuncOp(name, ([v.type for v in arguments], []), visibility="private")
        func.CallOp([], name, arguments)


def _view(
    tile: ir.Value, slot: ir.Value, line: ir.Value, lines: int | None, shape: list[int] | None = None
) -> ir.Value:
    """Lines of one slot, as they lie or in the shape of the box that fills them."""
    _, all_lines, width = ir.MemRefType(tile.type).shape
    sizes = [1, lines or all_lines, width]
    strides, _ = ir.MemRefType(tile.type).get_strides_and_offset()
    type_ = ir.MemRefType(tile.type)
    known = mlir.constant_value(line)
    dynamic = [slot] if known is not None else [slot, line]
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, strides[1:])
    flat = ir.MemRefType.get(sizes[1:], type_.element_type, layout, type_.memory_space)
    place = [mlir.DYNAMIC, mlir.DYNAMIC if known is None else int(known), 0]
    view = memref.SubViewOp(flat, tile, dynamic, [], [], place, sizes, [1] * 3).result
    if shape is None or shape == sizes[1:]:
        return view
    rank = len(shape)
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.insert(0, steps[0] * extent)
    boxed = ir.MemRefType.get(
        shape, type_.element_type, ir.StridedLayoutAttr.get(mlir.DYNAMIC, steps), type_.memory_space
    )
    return memref.ExpandShapeOp(boxed, view, [[*range(rank - 1)], [rank - 1]], [], shape).result


def _offsets(view: ir.Value) -> list[ir.Value]:
    """Where a block's part of a tensor begins."""
    owner = mlir.definition(view)
    if owner is None:
        return [mlir.index(0)] * len(ir.MemRefType(view.type).shape)
    if owner.name != "memref.subview" or mlir.definition(owner.operands[0]) is not None:
        raise InternalError(f"a factor is no part of a tensor: {owner}", "map")
    dynamic = iter(list(owner.operands)[1:])
    return [
        next(dynamic) if o == mlir.DYNAMIC else mlir.index(o)
        for o in ir.DenseI64ArrayAttr(owner.attributes["static_offsets"])
    ]
