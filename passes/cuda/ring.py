"""map, for CUDA: rings of stages in shared memory, which asynchronous copies fill ahead of what reads them.

Where warps divide the work (Hopper), one thread copies and warpgroups multiply (`Ring`):

    producer:   for step { wait until empty[stage]; start the copies, which fill full[stage]; next stage }
    consumers:  for step { wait until full[stage]; multiply what is there; empty[stage] is free; next stage }

A ring has so many stages in shared memory. The producer runs ahead by their number. Each stage has two barriers: `full` counts the
bytes that arrive, `empty` the consumers that are done. Both sides go through the stages in the same order; in every round over
all of them the phase alternates between 0 and 1, which is how a wait tells one round's completion from the next one's.

A tile lies in lines of 128 bytes, swizzled, as matrix descriptors name them. It consists of slabs: each is one box that TMA copies
from the tensor, with zeros outside it. Where no box fits, all threads of the producer's warpgroup fill the tile (`filled`): each
arrives at `full` when its own copies are complete. Consumers do not know which it was.

Where all threads copy their share and multiply (`CopyRing`), counts of copies take the place of barriers.

Sources: PTX ISA, "mbarrier", "cp.async.bulk.tensor" and "setmaxnreg"; CUTLASS, `PipelineTmaAsync`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from itertools import pairwise
from math import prod

from tilec.core import locations, mlir, opcodes
from tilec.core.diagnostics import InternalError
from tilec.core.extents import has_pitches
from tilec.core.hardware import LINE, WARPGROUP, WIDE
from tilec.core.mlir import arith, ir, memref, nvgpu, nvvm, scf
from tilec.core.opcodes import CopyArrive
from tilec.core.varying import Varies
from tilec.passes.cuda.contraction.clusters import Cluster
from tilec.passes.cuda.contraction.problem import Thread
from tilec.passes.cuda.memory_spaces import SHARED, local, root
from tilec.passes.loops import Count, below, loop, sum_of, when

TICKS = 10_000_000  # ns that one wait may take before it is tried again
UNROLLED = 4  # steps of a product: more of them stay a loop


class LineTiles:
    """Tiles of a tensor in shared memory, one for each stage, in `lines` lines of 128 bytes."""

    def __init__(self, tensor: str, element: mlir.Element, lines: int, stages: int):
        self.tensor, self.element = tensor, element
        self.memory = memref.AllocOp(local([stages, lines, LINE * 8 // element.width], element, SHARED), [], []).result
        locations.named(self.memory, f"{tensor}_tiles")

    def lines(self, stage: ir.Value, first: ir.Value, count: int | None = None) -> ir.Value:
        """So many lines of a tile, all from the first one on by default, as the matrix units read them."""
        return _lines(self.memory, stage, first, count)


class RingTiles(LineTiles):
    """Tiles that TMA copies, each as `slabs` boxes. A box has every `steps[d]`-th element along dimension d, each by default.
    `kept`: its dimensions; the tensor has one element along the others. `rounded`: the type that copies round elements to, as
    matrix units multiply them."""

    def __init__(
        self, view: ir.Value, box: Sequence[int], slabs: int, lines: int, stages: int, steps: Sequence[int] = (),
        kept: Sequence[int] = (), rounded: str | None = None,
    ):  # fmt: skip
        self.view, self.kept, self.slabs = view, list(kept or range(len(box))), slabs
        self.box, self.steps = [box[d] for d in self.kept], [steps[d] if steps else 1 for d in self.kept]
        super().__init__(locations.argument(root(view)) or "factor", ir.MemRefType(view.type).element_type, lines, stages)
        self.rounded = rounded
        self.map = tensor_map(view, self.box, steps=self.steps, kept=self.kept, rounded=rounded)

    def of(self, view: ir.Value, box: Sequence[int], steps: Sequence[int] = (), kept: Sequence[int] = ()) -> RingTiles:
        """Tiles of another tensor in the same memory, whose boxes have as many elements."""
        other = copy(self)
        other.view, other.kept = view, list(kept or range(len(box)))
        other.box, other.steps = [box[d] for d in other.kept], [steps[d] if steps else 1 for d in other.kept]
        assert prod(other.box) == prod(self.box) and ir.MemRefType(view.type).element_type == self.element
        other.map = tensor_map(view, other.box, steps=other.steps, kept=other.kept, rounded=self.rounded)
        return other

    @property
    def bytes(self) -> int:
        """That the copies of one tile bring."""
        return self.slabs * prod(self.box) * self.element.width // 8

    @property
    def box_lines(self) -> int:
        return self.bytes // self.slabs // LINE

    def target(self, stage: ir.Value, line: ir.Value) -> ir.Value:
        """Where a box that begins at a line of the tile goes."""
        return _lines(self.memory, stage, line, self.box_lines, self.box)


def tensor_map(
    view: ir.Value, box: Sequence[int], swizzle: int = LINE, steps: Sequence[int] = (), kept: Sequence[int] = (),
    rounded: str | None = None, ends: Sequence[int] = (),
) -> ir.Value:  # fmt: skip
    """What tells the hardware how a view's tensor lies, and a box of it in shared memory, in lines of `swizzle` bytes; `kept` are
    the tensor's dimensions that the box has, all by default. What is behind `ends`, by default those of the tensor, is left out."""
    element, tensor = ir.MemRefType(view.type).element_type, root(view)
    kind = f"!nvgpu.tensormap.descriptor<tensor = memref<{'x'.join(map(str, box))}x{element}, #gpu.address_space<{SHARED}>>"
    kind += f", swizzle = swizzle_{swizzle}b, l2promo = l2promo_{LINE}b, oob = zero, interleave = none>"
    type_ = ir.MemRefType(tensor.type)
    if 0 < len(kept) < type_.rank:
        groups = [[*range(*ends)] for ends in pairwise([0, *kept[1:], type_.rank])]
        shape = [type_.shape[d] for d in kept]
        tensor = memref.CollapseShapeOp(ir.MemRefType.get(shape, element), tensor, groups).result
    if not has_pitches(tensor, WIDE * 8 // element.width):
        raise Varies(f"whether lines of {locations.argument(root(view)) or 'a factor'} begin at multiples of {WIDE} bytes")
    if ends and list(ends) != list(type_.shape):
        layout = ir.StridedLayoutAttr.get(0, type_.get_strides_and_offset()[0])
        cut = ir.MemRefType.get(list(ends), element, layout)
        tensor = memref.SubViewOp(cut, tensor, [], [], [], [0] * type_.rank, list(ends), [1] * type_.rank).result
    unranked = memref.CastOp(ir.Type.parse(f"memref<*x{element}>"), tensor).result
    made = nvgpu.TmaCreateDescriptorOp(ir.Type.parse(kind), unranked, [mlir.index(b) for b in box])
    if any(step > 1 for step in steps):
        made.attributes["tilec.element_steps"] = mlir.integers(steps)
    if rounded:
        made.attributes["tilec.rounded"] = mlir.string(rounded)
    return made.result


def offsets_of(view: ir.Value) -> list[ir.Value]:
    """Where a block's part of a tensor begins."""
    owner = mlir.definition(view)
    if owner is None:
        return [mlir.index(0)] * len(ir.MemRefType(view.type).shape)
    if owner.name != "memref.subview":
        raise InternalError(f"a factor is no part of a tensor: {owner}", "map")
    dynamic = iter(list(owner.operands)[1:])
    own = [next(dynamic) if o == mlir.DYNAMIC else mlir.index(o) for o in ir.DenseI64ArrayAttr(owner.attributes["static_offsets"])]
    if mlir.definition(owner.operands[0]) is None:
        return own
    return [sum_of([(a, 1), (b, 1)]) for a, b in zip(offsets_of(owner.operands[0]), own, strict=True)]


def part_of(view: ir.Value) -> list[tuple[int, int]]:
    """Where the part of a tensor that a kernel stores begins and ends along each dimension; nothing if it stores all."""
    while (owner := mlir.definition(view)) is not None and owner.name == "memref.subview":
        view = owner.operands[0]
        entries = [list(ir.DenseI64ArrayAttr(owner.attributes[f"static_{n}"])) for n in ("offsets", "sizes")]
        if mlir.definition(view) is None and not any(mlir.DYNAMIC in group for group in entries):
            return [(offset, offset + size) for offset, size in zip(*entries)]
    return []


class Ring:
    """The barriers of `stages` stages, each of which holds one tile of every one of `tiles`, which TMA copies, and tiles that
    threads fill (`filled`). `spare`: with a further barrier, at which no wait lasts (`wait_full_if`, `branch`)."""

    def __init__(
        self, tiles: Sequence[RingTiles], stages: int, consumers: int, cluster: Cluster | None = None, filled: bool = False,
        spare: bool = False,
    ):  # fmt: skip
        self.tiles, self.stages, self.consumers, self.cluster, self.filled = tiles, stages, consumers, cluster, filled
        self.spare = spare
        kind = f"!nvgpu.mbarrier.group<memorySpace = #gpu.address_space<{SHARED}>, num_barriers = {stages + spare}>"
        of = f"{tiles[0].tensor}_" if len(tiles) == 1 and not filled else ""  # several rings are named by their tensors
        self.full, self.empty = (
            locations.named(nvgpu.MBarrierCreateOp(ir.Type.parse(kind)).result, f"{of}{name}")
            for name in ("full", "empty")
        )

    def initialise(self) -> None:
        """By one thread of the block, which then fences."""
        with loop(self.stages, name="barrier") as stage:
            nvgpu.MBarrierInitOp(self.full, mlir.index(bool(self.tiles) + self.filled * WARPGROUP), stage)
            nvgpu.MBarrierInitOp(self.empty, mlir.index(self.consumers * (self.cluster.peers if self.cluster else 1)), stage)
        if self.spare:
            nvgpu.MBarrierInitOp(self.full, mlir.index(1), mlir.index(self.stages))

    def next(self, stage: ir.Value, phase: ir.Value) -> list[ir.Value]:
        """The stage after this one, and its phase."""
        after, last = _after(stage, self.stages)
        flipped = arith.xori(phase, mlir.index(1))
        return [arith.select(last, mlir.index(0), after), arith.select(last, flipped, phase)]

    def after(self, state: list[ir.Value], steps: int | ir.Value, times: ir.Value) -> list[ir.Value]:
        """The stage and its phase so many steps after those of `state`, or none where `times` is 0."""
        stage, phase = state
        if isinstance(steps, ir.Value):
            later, stages = sum_of([(stage, 1), (arith.muli(steps, times), 1)]), mlir.index(self.stages)
            flips = arith.andi(arith.divui(later, stages), mlir.index(1))
            return [arith.remui(later, stages), arith.xori(phase, flips)]
        rounds, rest = divmod(steps, self.stages)
        later = sum_of([(stage, 1), (times, rest)])
        around = arith.cmpi(arith.CmpIPredicate.sge, later, mlir.index(self.stages))
        flips = arith.addi(arith.select(around, mlir.index(1), mlir.index(0)), arith.muli(times, mlir.index(rounds % 2)))
        first = arith.select(around, sum_of([(later, 1)], -self.stages), later)
        return [first, arith.xori(phase, arith.andi(flips, mlir.index(1)))]

    # ---- the producer's ----------------------------------------------------------------------------------------------

    def wait_empty(self, stage: ir.Value, phase: ir.Value) -> None:
        """The first wait on a stage is for the phase before the first one, so it passes."""
        _wait(self.empty, stage, phase, 1)

    def expect(self, stage: ir.Value) -> None:
        """The stage is full when the copies of all its tiles have arrived."""
        nvgpu.MBarrierArriveExpectTxOp(self.full, mlir.index(sum(t.bytes for t in self.tiles)), stage)

    def arrive(self, function: ir.Operation, stage: ir.Value, stored: bool) -> None:
        """By each thread of the producer's warpgroup that fills tiles: its part of the stage is full when its copies are
        complete. `stored`: it has also stored elements itself, which the products see after a fence."""
        if stored:
            show_stores()
        opcodes.call(function, CopyArrive(), [self.full, stage])

    def copy(
        self, tiles: RingTiles, stage: ir.Value, target: ir.Value, coordinates: Sequence[ir.Value],
        blocks: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Starts the copy of the tensor's box at `coordinates`, its subscripts, to `target`; of these `blocks` of the cluster."""
        kept = [coordinates[d] for d in tiles.kept]
        nvgpu.TmaAsyncLoadOp(target, self.full, tiles.map, kept[::-1], stage, multicastMask=blocks)

    def fill(
        self, steps: int | ir.Value, state: list[ir.Value], copy: Callable[[ir.Value, ir.Value], None], name: str = "step",
        one: Callable[[], AbstractContextManager] = nullcontext, first: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """The copies of steps up to this one: `copy(stage, step)` starts those of a step, for which `one` has one thread of several
        say what is expected. `first`: the first step, by default 0."""
        with carried_loop(first or mlir.index(0), mlir.index(steps), state, name=name, opaque=_is_long(steps)) as (step, now):
            stage, phase = now
            self.wait_empty(stage, phase)
            if self.tiles:
                with one():
                    self.expect(stage)
            copy(stage, step)
            now[:] = self.next(stage, phase)

    # ---- the consumers' ----------------------------------------------------------------------------------------------

    def wait_full(self, stage: ir.Value, phase: ir.Value) -> None:
        """Where threads copy (cp.async), a fence follows: products of warpgroups read memory by another proxy (PTX ISA)."""
        _wait(self.full, stage, phase, 0)
        if self.filled:
            show_stores()

    def wait_full_if(self, condition: ir.Value, stage: ir.Value, phase: ir.Value) -> None:
        """The same without a branch, past which the assembler would move nothing: else the wait is at the spare barrier, for the
        phase before its first one, which is over."""
        at, of = mlir.index(self.stages), mlir.index(1)
        self.wait_full(arith.select(condition, stage, at), arith.select(condition, phase, of))

    def branch(self) -> None:
        """A wait that is over, at the spare barrier: a branch, past which the assembler moves nothing. A second wait for a stage
        would not do: as soon as the first warp of a warpgroup has released the stage, it may be filled again, and a warp that is
        behind would wait for a phase that has come and gone."""
        _wait(self.full, mlir.index(self.stages), mlir.index(1), 0)

    def multiply(
        self, steps: int | ir.Value, state: list[ir.Value], thread: Thread, product: Callable[[ir.Value, ir.Value], None],
        wait: Callable[[int], None], running: int = 1, alternate: Callable[[str], None] | None = None, name: str = "step",
    ) -> None:  # fmt: skip
        """The products of so many steps: `product(stage, step)` starts those of a step, which are `running`; `wait(running)` waits
        until at most so many run. Products may still run when the next are issued; then the stage before is known to be free.
        `alternate`: warpgroups alternate (`ping_pong`)."""
        whole, zero = [*state, mlir.index(0)], mlir.index(0)
        if alternate:  # a wait for a stage is for its next phase: none may be between
            alternate("sync")
        with carried_loop(zero, mlir.index(steps), whole, name=name, opaque=_is_long(steps)) as (step, now):
            stage, phase, before = now
            self.wait_full(stage, phase)
            product(stage, step)
            wait(running)
            with when(arith.cmpi(arith.CmpIPredicate.sgt, step, zero)):
                self.release(before, thread)
            now[:] = [*self.next(stage, phase), stage]
        if alternate:
            alternate("arrive")
        wait(0)
        self.release(whole[2], thread)
        state[:] = whole[:2]

    def release(self, stage: ir.Value, thread: Thread) -> None:
        """This warpgroup has read the stage: one of its threads says so, or one to each block that copies to this one."""
        lane = arith.andi(thread.number, mlir.index(WARPGROUP - 1))
        if self.cluster:
            with when(below(lane, self.cluster.peers)):
                self.cluster.release(self.empty, stage, lane)
            return
        first = arith.cmpi(arith.CmpIPredicate.eq, lane, mlir.index(0))
        with when(locations.named(first, "is_first_of_group")):
            nvgpu.MBarrierArriveOp(self.empty, stage)


def show_stores() -> None:
    """Shows what threads have stored in shared memory to what reads it otherwise than by loads: products of warpgroups, and TMA."""
    nvvm.FenceProxyOp(ir.Attribute.parse("#nvvm.proxy_kind<async.shared>"), space=ir.Attribute.parse("#nvvm.shared_space<cta>"))


def _wait(barriers: ir.Value, stage: ir.Value, phase: ir.Value, of: int) -> None:
    """Until the barrier's phase of this parity is over."""
    over = arith.cmpi(arith.CmpIPredicate.ne, phase, mlir.index(of))
    nvgpu.MBarrierTryWaitParityOp(barriers, over, mlir.index(TICKS), stage)


def _after(stage: ir.Value, stages: int) -> tuple[ir.Value, ir.Value]:
    """The number after a stage's, and whether it is one too many."""
    after = locations.named(sum_of([(stage, 1)], 1), "next_stage")
    return after, locations.named(arith.cmpi(arith.CmpIPredicate.eq, after, mlir.index(stages)), "around")


def start_copy(
    tile: ir.Value, at: list[ir.Value], source: ir.Value, subscripts: list[ir.Value], count: int,
    exists: ir.Value | None = None,
) -> None:  # fmt: skip
    """Starts a thread's copy of so many adjacent elements (cp.async); zeros take the place of those that do not exist."""
    elements = None if exists is None else arith.select(exists, mlir.index(count), mlir.index(0))
    whole = count * ir.MemRefType(tile.type).element_type.width == 8 * WIDE
    nvgpu.DeviceAsyncCopyOp(tile, at, source, subscripts, count, srcElements=elements, bypassL1=whole)


class CopyRing:
    """A ring that all threads fill (cp.async) and empty, for `steps` steps. Each thread's copies of one step are a group. Groups
    complete in the order in which they were started, so that their number takes the place of barriers; a barrier of the block shows
    copies to the threads that did not make them."""

    def __init__(self, stages: int, steps: int | ir.Value):
        self.stages, self.steps = stages, steps

    def start(self, step: ir.Value, copy: Callable[[], None], exists: bool = False) -> None:
        """Starts the copies of a step, if there is one (`exists`: there is). A group ends either way, so that counts stay even."""
        with nullcontext() if exists else when(below(step, self.steps)):
            copy()
        nvvm.CpAsyncCommitGroupOp()

    def wait(self, ahead: int) -> None:
        """Until this thread's copies are complete, but for those of the last `ahead` steps."""
        nvvm.CpAsyncWaitGroupOp(ahead)

    def stage_of(self, step: ir.Value) -> ir.Value:
        return locations.named(arith.remui(step, mlir.index(self.stages)), "stage")

    def next(self, stage: ir.Value) -> ir.Value:
        """The stage after this one."""
        if self.stages == 1:
            return stage
        after, last = _after(stage, self.stages)
        return arith.select(last, mlir.index(0), after)


def make_ready(rings: Sequence[Ring], thread: Thread) -> None:
    """One thread makes all barriers; the block's own barrier has to follow."""
    first = arith.cmpi(arith.CmpIPredicate.eq, thread.number, mlir.index(0))
    with when(locations.named(first, "is_first_thread")):
        for ring in rings:
            ring.initialise()
        nvvm.FenceMbarrierInitOp()


def _is_long(steps: int | ir.Value) -> bool:
    """Whether a loop of so many steps stays one. Few of them are unrolled, which spares what differs in the first step."""
    return not isinstance(steps, int) or steps > UNROLLED


@contextmanager
def carried_loop(
    first: ir.Value, end: ir.Value, state: list[ir.Value], step: Count = 1, name: str = "tile",
    carried_names: Sequence[str] = ("stage", "phase", "previous_stage", "previous_phase"), opaque: bool = False,
) -> Iterator[tuple[ir.Value, list[ir.Value]]]:  # fmt: skip
    """A loop that carries stages and phases; the body writes what goes on into the list that it gets. `opaque`: LLVM does not
    unroll it. Products of warpgroups run while the next are issued, so that a loop costs them nothing, and the assembler takes
    most of its time for copies of them (CUTLASS does not unroll its main loops either)."""
    made = scf.ForOp(first, end, mlir.index(step), state)
    locations.named(made, name, *carried_names[: len(state)])
    if opaque:
        made.operation.attributes["tilec.opaque_end"] = ir.UnitAttr.get()
    with ir.InsertionPoint(made.body):
        carried = list(made.inner_iter_args)
        yield made.induction_variable, carried
        scf.YieldOp(carried)
    state[:] = list(made.results)


# ---- lines in shared memory --------------------------------------------------------------------------------------------


def _lines(
    memory: ir.Value, stage: ir.Value, first: ir.Value, count: int | None, shape: Sequence[int] | None = None
) -> ir.Value:  # fmt: skip
    """Lines of one stage, as they lie or in the shape of the box that fills them."""
    type_ = ir.MemRefType(memory.type)
    _, all_lines, width = type_.shape
    sizes = [1, count or all_lines, width]
    strides, _ = type_.get_strides_and_offset()
    known = mlir.constant_value(first)
    dynamic = [stage] if known is not None else [stage, first]
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, strides[1:])
    flat = ir.MemRefType.get(sizes[1:], type_.element_type, layout, type_.memory_space)
    coordinates = [mlir.DYNAMIC, mlir.DYNAMIC if known is None else int(known), 0]
    view = memref.SubViewOp(flat, memory, dynamic, [], [], coordinates, sizes, [1] * 3).result
    return view if shape is None else as_box(view, shape)


def as_box(lines: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Lines in the shape of a box, whose last dimension is a line."""
    type_, rank = ir.MemRefType(lines.type), len(shape)
    if list(shape) == list(type_.shape):
        return lines
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.insert(0, steps[0] * extent)
    layout = ir.StridedLayoutAttr.get(mlir.DYNAMIC, steps)
    boxed = ir.MemRefType.get(list(shape), type_.element_type, layout, type_.memory_space)
    return memref.ExpandShapeOp(boxed, lines, [[*range(rank - 1)], [rank - 1]], [], list(shape)).result
