"""map, for CUDA: the state of a kernel and of one of its operations, which the mappers of their parts share.

`passes/cuda/kernel.py` maps the kernel, `operation.py` an operation. The files beside it each map a part of an operation (a scan,
the states of an argmax, unaligned rows) and know both by these classes.
"""

from __future__ import annotations

from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.layout import Layout, tile_extents
from tilec.core import locations, mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import ir, memref
from tilec.kernels import Threaded
from tilec.passes.cuda.cluster import planned_spread, wait_for_cluster
from tilec.passes.cuda.memory_spaces import PRIVATE, SHARED, is_local, local, operand_dims, root, sizes_of, space_of
from tilec.passes.cuda.threaded.row_alignment import RowAlignment
from tilec.passes.loops import Position, Threads


class KernelContext:
    """A kernel, its layout and its tiles. `tiles` takes a block's private memory to this thread's part of it, and its
    dimensions. `looks_back`: its rows are shared by blocks that are no cluster (`look_back.py`)."""

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
        self.hybrid_chunks: dict[
            ir.Value, dict[int, ir.Value]
        ] = {}  # of a buffer, by chunk: tiles of chunks that are in registers
        self.buffers: list[ir.Value] = []  # in workgroup memory, that asynchronous copies fill
        self.phase: ir.Value | None = None  # 0 and 1 in alternation, in a loop over tiles
        self.tiles: dict[ir.Value, tuple[ir.Value, tuple[int, ...]]] = {}
        self.fills: dict[ir.Value, ir.Value] = {}
        self.threads: Threads  # once the grid's coordinates are known
        self.names = locations.loop_names(function)
        self.made_as: dict[ir.Value, str | None] = {}  # the source's name of a tile's values

    def wait_for_cluster(self) -> None:
        """Waits for the blocks of the cluster, once."""
        if self.spread and not self.cluster_ready:
            wait_for_cluster()
            self.cluster_ready = True

    def mbarriers(self, count: int) -> ir.Value:
        """Words in workgroup memory that asynchronous copies count on."""
        type_ = local([count], ir.IntegerType.get_signless(64), SHARED)
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)):
            return locations.named(memref.AllocOp(type_, [], []).result, "arrived")

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
        location = ir.Location.name(name) if name else ir.Location.current
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)), location:
            return memref.AllocaOp(local(shape, element, PRIVATE), [], []).result

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


class OperationContext:
    """An operation of a kernel: its dimensions, operands and states, and this thread's part of them."""

    def __init__(self, kernel: KernelContext, op: ir.Operation, threads: Threads):
        self.kernel, self.op, self.threads, self.layout = kernel, op, threads, threads.layout
        self.block = mlir.body_of(op)
        self.dims = tuple(mlir.get_integers(op, "tilec.dims"))
        self.operand_dims = [tuple(p) for p in operand_dims(op)]
        self.operands = list(op.operands)
        self.count = len(mlir.inputs_of(op))
        kinds = dict(zip(self.dims, mlir.iterators_of(op)))
        self.reduced = [d for d in self.dims if kinds[d] == "reduction"]
        used = {v for inner in mlir.traverse(op) for v in inner.operands}
        self.live = [a in used for a in self.block.arguments]
        outs = range(self.count, len(self.operands))
        self.states = [n for n in outs if set(self.reduced) - set(self.operand_dims[n])]
        along = mlir.get_integer(op, "tilec.scan")
        self.scanned = None if along is None else self.dims[along]
        self.tiles: dict[int, ir.Value] = {}
        self.kept: dict[ir.Operation, ir.Value] = {}  # tiles of wide loads, to which rounds of a loop along windows add elements
        self.chunk: dict[int, ir.Value] = {}
        self.sizes = sizes_of(self.operands, self.operand_dims)
        self.terms = BodyTerms(op)

    def compute(
        self,
        position: Position,
        far: ir.Value | None = None,
        number: int = 0,
        shared: dict[ir.Value, ir.Value] | None = None,
    ) -> None:
        """One element (`GenericMapper.compute`)."""
        raise NotImplementedError

    def compute_all(self, far: ir.Value | None = None) -> None:
        """One chunk."""
        raise NotImplementedError

    def fetch(self, value: ir.Value, dims: tuple[int, ...], tile: ir.Value | None = None) -> ir.Value:
        """This thread's part of memory, in registers: in `tile`, or in a new tile."""
        raise NotImplementedError

    def has_copies(self, n: int) -> bool:
        """Whether threads that hold the same elements of a result all store them in workgroup memory."""
        return space_of(self.operands[n]) == "workgroup" and self._is_shared(n)

    def _is_shared(self, n: int) -> bool:
        return not self.threads.alone([d for d in self.layout.order if d not in self.operand_dims[n]])

    def identity(self, n: int) -> ir.Value:
        """The start of a state."""
        initial = self.kernel.fills.get(root(self.operands[n]))
        if initial is None:
            raise InternalError(f"a reduction without an initial value: {self.op}", "map")
        return initial

    def out_tile(self, n: int) -> ir.Value:
        if space_of(self.operands[n]) == "private":
            return self.kernel.tile(self.operands[n], self.operand_dims[n])
        element = ir.MemRefType(self.operands[n].type).element_type
        return self.kernel.private(self.operand_dims[n], element, layout=self.layout)

    def access(self, value: ir.Value) -> int:
        """Elements of the layout's vectors that one access of 16 bytes at most takes."""
        lane = self.layout.lane_dim
        assert lane is not None
        size = max(8, ir.MemRefType(value.type).element_type.width)
        return min(self.layout.vectors[lane], 128 // size)

    def put(self, n: int, position: Position, value: ir.Value) -> None:
        if n in self.tiles:
            memref.StoreOp(value, self.tiles[n], self._slot(n, position))
        else:
            memref.StoreOp(value, self.operands[n], position.coordinates(self.operand_dims[n]))

    def _slot(self, n: int, position: Position) -> list[ir.Value]:
        """The position of an element in a tile. In a tile of the whole block the steps of earlier chunks come first."""
        whole = space_of(self.operands[n]) == "private" and self.layout is not self.kernel.layout
        return position.slot(self.operand_dims[n], chunk=self.chunk if whole else {})

    def element(self, n: int, position: Position) -> ir.Value:
        if n in self.tiles:
            return memref.LoadOp(self.tiles[n], self._slot(n, position)).result
        return memref.LoadOp(self.operands[n], position.coordinates(self.operand_dims[n])).result
