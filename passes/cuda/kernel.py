"""map, for CUDA: the operations of a block become the code of its threads.

    generic [parallel, reduction] ins(x) outs(s) { add }
    ->
    s1 = 0
    for chunk { for step { x1[step] = load x[...]  (a vector) }
                for step, lane { s1 = s1 + x1[step, lane] } }
    s1 = s1 + shuffle(s1), ...

The layout (`tilec/analysis/layout.py`) says which elements are a thread's. A private tile shrinks to a thread's part of it.
Operations are mapped one after another, each by `passes/cuda/threaded/operation.py`.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilec.analysis.layout import Layout, tile_extents, transposed
from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import gpu, ir, memref
from tilec.kernels import ContractionChain, MatrixKernel, Threaded, planned_kernels
from tilec.passes.cuda.chain.kernel import map_chain
from tilec.passes.cuda.cluster import arrive, cluster_rank, planned_spread, wait_for_cluster
from tilec.passes.cuda.contraction.kernel import map_contraction
from tilec.passes.cuda.memory_spaces import is_local, root, space_of
from tilec.passes.cuda.threaded import transpose
from tilec.passes.cuda.threaded.look_back import split_rows
from tilec.passes.cuda.threaded.online import OnlineMapper, joined
from tilec.passes.cuda.threaded.operation import GenericMapper
from tilec.passes.cuda.threaded.persistent_rows import STAGES, Pipeline, copy_rows
from tilec.passes.cuda.threaded.unaligned import RowAlignment
from tilec.passes.loops import Threads, delinearise


def map_cuda(module: ir.Operation) -> None:
    for function, planned in planned_kernels(module):
        if planned.options.overlap_launch:
            function.attributes["tilec.overlap"] = ir.UnitAttr.get()
        match planned.options:
            case ContractionChain():
                map_chain(function, planned)
            case MatrixKernel():
                map_contraction(function, planned)
            case Threaded() as options:
                if (parts := options.blocks_per_tile) > 1:
                    layout = options.layout(planned.tiles)
                    split_rows(module, function, layout.lane, layout.vectors[layout.lane], parts)
                KernelMapper(function, planned.tiles, options, looks_back=parts > 1).build()


class KernelMapper:
    """Maps one kernel. `tiles` takes a block's private memory to this thread's part of it, and its dimensions.
    `looks_back`: its rows are shared by blocks that are no cluster (`passes/cuda/threaded/look_back.py`)."""

    def __init__(self, function: ir.Operation, tiles: dict[int, int], options: Threaded, looks_back: bool):
        self.function = function
        generics = [op for op in mlir.traverse(function) if mlir.is_generic(op)]
        self.spread = planned_spread(function)
        self.layout = options.layout(tile_extents(generics, tiles, self.spread))
        self.reduces = any("reduction" in mlir.iterators_of(op) for op in generics)
        self.alignment = RowAlignment(generics, self.layout) if self.layout.unaligned else None
        self.written = {root(v) for op in generics for v in mlir.outputs_of(op) if not is_local(v)}
        self.filled: set[ir.Value] = set()  # tiles that have something in all vectors of an unaligned row
        self.vector_buffers: set[ir.Value] = set()  # buffers that have vectors of unaligned rows as they are in memory
        self.grid = list(tiles)
        self.persistent_blocks = options.rows_at_work
        self.packed = options.is_packed
        self.on_chip = options.residency != "reload"
        self.known: set[ir.Value] = set()  # memory that an operation has read, where rows are read again
        self.trig_fast_path = options.trig_fast_path
        self.online = options.online
        self.body = mlir.entry(function)
        self.cluster_ready = False  # whether the blocks of the cluster have met at a barrier
        self.looks_back = looks_back
        self.rank: ir.Value | None = None  # of this block among those that share its rows
        self.row: ir.Value | None = None  # that blocks share, each of which looks back at those before it
        self.register_chunks: dict[
            ir.Value, dict[int, ir.Value]
        ] = {}  # of a buffer, by chunk: tiles of chunks that are in registers
        self.buffers: list[ir.Value] = []  # in workgroup memory, that asynchronous copies fill
        self.phase: ir.Value | None = None  # 0 and 1 in alternation, in a loop over tiles
        self.tiles: dict[ir.Value, tuple[ir.Value, tuple[int, ...]]] = {}
        self.fills: dict[ir.Value, ir.Value] = {}
        self.threads: Threads | None = None
        self.names = locations.loop_names(function)
        self.made_as: dict[ir.Value, str] = {}  # the source's name of a tile's values

    def build(self) -> None:
        function, each = self.function, self.spread.blocks if self.spread else 1
        function.attributes["tilec.blocks"] = mlir.integer(self._blocks() * each)
        function.attributes["tilec.cluster"] = mlir.integer(1 if self.looks_back else each)
        function.attributes["tilec.threads"] = mlir.integer(self.layout.block)
        block = self.body
        self._name_tiles([o.operation for o in block.operations if mlir.is_generic(o.operation)])
        online = joined(block) if self.online else []
        for op in [o.operation for o in block.operations]:
            if self.alignment and self.threads.misalignment is None and mlir.is_generic(op):
                with ir.InsertionPoint(op), op.location:
                    self.threads.misalignment = self.alignment.of(*self.alignment.found(block, op), self.threads)
                    self.threads.least = self.alignment.least(self.spread)
            if op in online:
                if op == online[0]:
                    self._define_before(op, online[1:])
                    with ir.InsertionPoint(op), _named(op):
                        OnlineMapper(self, online).build()
            elif op.name == "linalg.generic":
                with ir.InsertionPoint(op), _named(op):
                    self._generic(op)
                op.erase()
            elif op.name == "linalg.fill":
                self.fills[root(op.operands[1])] = op.operands[0]
                op.erase()
            elif op.name in ("memref.copy", "linalg.copy"):
                raise InternalError(f"a block copies memory: {op}", "map")
        for op in online:
            op.erase()
        for op in reversed([o.operation for o in block.operations]):
            if op.name in ("memref.alloc", "memref.subview") and not any(mlir.uses(op.results[0])):
                op.erase()
            elif transpose.MARK in op.attributes:
                del op.attributes[transpose.MARK]
        if self.spread:
            del function.attributes["tilec.spread"]

    def _define_before(self, first: ir.Operation, others: list[ir.Operation]) -> None:
        """What `others` write to is there before `first`, with which they become one pass."""
        before = list(self.body.operations)
        at = {o.operation: n for n, o in enumerate(before)}
        for value in (v for op in others for v in mlir.outputs_of(op)):
            makers, made = [], mlir.definition(value)
            while made is not None and at.get(made, 0) > at[first]:
                makers.append(made)
                made = mlir.definition(made.operands[0]) if made.name == "memref.subview" else None
            for made in reversed(makers):
                made.move_before(first)

    def _generic(self, op: ir.Operation) -> None:
        """One operation; a copy marked `tilec.transpose` in a layout of its own, for all threads to see."""
        if STAGES in op.attributes:
            return copy_rows(self, op, lambda chunk: GenericMapper(self, op, self.threads).fetched(0, chunk))
        along = mlir.get_integer(op, "tilec.transpose")
        if along is None:
            return GenericMapper(self, op, self._step_by_step(op) or self.threads).build()
        mark = transpose.mark_of(root(op.operands[1]))
        layout = transposed(self.layout, along, dense=mark is not None)
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)):
            threads = Threads(layout, names=self.names)
        mapper = GenericMapper(self, op, threads)
        transpose.write(mapper, mark) if mark else mapper.build()
        gpu.BarrierOp()
        return None

    def _step_by_step(self, op: ir.Operation) -> Threads | None:
        """For an operation at the end, on rows that are in registers or in SRAM: to load, compute and store one step after
        another takes fewer registers than all at once."""
        d, dims = self.layout.lane, mlir.get_integers(op, "tilec.dims")
        elementwise = "reduction" not in mlir.iterators_of(op) and "tilec.rests" not in op.attributes
        if not (self.persistent_blocks or self.reduces) or d is None or not elementwise or d not in dims:
            return None
        if not self.persistent_blocks and (d in self.grid or not self.layout.whole(dims)):
            return None
        if any(space_of(value) == "private" for value in mlir.outputs_of(op)):
            return None
        steps = [1 if e == d else s for e, s in enumerate(self.layout.steps)]
        return Threads(
            replace(self.layout, steps=tuple(steps)), self.threads.misalignment, self.threads.least, self.names
        )

    def _blocks(self) -> int:
        """The loop over blocks becomes this block's number; returns how many there are."""
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)), self.function.location:
            self.threads = Threads(self.layout, names=self.names)
            if self.looks_back:
                self.row, self.rank = delinearise(gpu.BlockIdOp(gpu.Dimension.x).result, [2, self.spread.blocks])
            elif self.spread:
                self.rank = cluster_rank()
                arrive()
        forall = next((o for o in mlir.entry(self.function).operations if o.operation.name == "scf.forall"), None)
        if forall is None:
            return 1
        counts = list(ir.DenseI64ArrayAttr(forall.attributes["staticUpperBound"]))
        block = forall.operation.regions[0].blocks[0]
        with ir.InsertionPoint(forall), self.function.location:
            if self.persistent_blocks:
                pipeline = Pipeline(self, forall.operation, self.persistent_blocks)
                self.body = pipeline.build()
                forall.operation.erase()
                self.function.attributes["tilec.persistent"] = ir.UnitAttr.get()
                return pipeline.most
            number = self.row
            if number is None:
                number = (gpu.ClusterIdOp if self.spread else gpu.BlockIdOp)(gpu.Dimension.x).result
            mapping = dict(zip(block.arguments, delinearise(number, counts, locations.variables(forall.operation))))
            for op in block.operations:
                if op.operation.name != "scf.forall.in_parallel":
                    mlir.clone_op(op.operation, mapping)
        forall.operation.erase()
        return prod(counts)

    def wait_for_cluster(self) -> None:
        """Waits for the blocks of the cluster, once."""
        if self.spread and not self.cluster_ready:
            wait_for_cluster()
            self.cluster_ready = True

    def mbarriers(self, count: int) -> ir.Value:
        """Words in workgroup memory that asynchronous copies count on."""
        space = ir.Attribute.parse("#gpu.address_space<workgroup>")
        type_ = ir.MemRefType.get([count], ir.IntegerType.get_signless(64), None, space)
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)):
            return locations.named(memref.AllocOp(type_, [], []).result, "arrived")

    def _name_tiles(self, generics: list[ir.Operation]) -> None:
        for op in generics:
            names = (mlir.get_string(op, "tilec.name") or "").split(",")
            for n, value in enumerate(mlir.outputs_of(op)):
                if names[0] and is_local(value):
                    self.made_as.setdefault(root(value), names[min(n, len(names) - 1)])
                elif is_local(value) and not is_local(op.operands[0]):
                    self.made_as.setdefault(root(value), self.name_of(op.operands[0]))

    def private(
        self, dims: tuple[int, ...], element: ir.Type, name: str | None = None, layout: Layout | None = None
    ) -> ir.Value:
        """Registers for a thread's part of a tile over `dims`: by step of each dimension, then lane."""
        layout = layout or self.layout
        shape = [layout.steps[d] for d in dims]
        return self._alloca(shape + [layout.vectors[d] for d in dims if d == layout.lane_dim], element, name)

    def registers(self, count: int, element: ir.Type, name: str) -> ir.Value:
        """That many of a thread's own."""
        return self._alloca([count], element, name)

    def _alloca(self, shape: list[int], element: ir.Type, name: str | None) -> ir.Value:
        space = ir.Attribute.parse("#gpu.address_space<private>")
        location = ir.Location.name(name) if name else ir.Location.current
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)), location:
            return memref.AllocaOp(ir.MemRefType.get(shape, element, None, space), [], []).result

    def name_of(self, value: ir.Value) -> str | None:
        """The source's name of global memory."""
        argument = root(value)
        if not isinstance(argument.owner, ir.Block):
            return None
        attributes = ir.ArrayAttr(self.function.attributes["arg_attrs"])
        names = ir.DictAttr(attributes[ir.BlockArgument(argument).arg_number])
        return ir.StringAttr(names["tilec.name"]).value if "tilec.name" in names else None

    def tile(self, value: ir.Value, dims: tuple[int, ...]) -> ir.Value:
        """This thread's part of private memory of the block."""
        key = root(value)
        if key not in self.tiles:
            self.tiles[key] = self.private(dims, ir.MemRefType(key.type).element_type, self.made_as.get(key)), dims
        found, known = self.tiles[key]
        if known != dims:
            raise InternalError(f"a tile over dimensions {known} is read over {dims}", "map", str(self.function))
        return found


def _named(op: ir.Operation) -> ir.Location:
    name = mlir.get_string(op, "tilec.name")
    return ir.Location.name(name, op.location) if name else op.location
