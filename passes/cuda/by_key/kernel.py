"""map, for CUDA: a reduction by key becomes the kernels that compute it.

    y[v, d] = sum[t](x[t, d] if key[t] == v else 0)
    ->
    order    the numbers t by key                                                              (`order.py`)
    pieces   part[c, d] = sum of x[order[n], d] for the places n of piece c                    of keys with many elements
    joined   y[v, d] = sum of part[c, d] for the pieces c of v                                 of the same keys
    y[v, d] = sum of x[order[n], d] for n from starts[v] to before starts[v + 1]               of all others, those of none included

Keys of `piece` elements or more have pieces. One begins with the key's first element, the others begin at multiples of `piece`
places. So none has twice as many elements, and the multiple of `piece` that a piece contains is its number. The order of a
sum follows from the keys alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

from tilec.analysis.by_key import comparison_of
from tilec.core import locations, mlir
from tilec.core.mlir import arith, gpu, ir, linalg, memref, scf
from tilec.kernels import ByKey, Planned
from tilec.passes.combiner import Combiner
from tilec.passes.cuda.by_key.order import Sort, Sorted, pieces_of, sorted_memory
from tilec.passes.cuda.contraction.grid import enter, erase, tiles_of
from tilec.passes.cuda.memory_spaces import erase_unused, is_local, operand_dims, root
from tilec.passes.cuda.messages import add_memory
from tilec.passes.cuda.stage import copy_of_tile
from tilec.passes.cuda.threaded.kernel import KernelMapper
from tilec.passes.cuda.threaded.operation import GenericMapper
from tilec.passes.emit import Body
from tilec.passes.loops import Position, Threads, below, delinearise, sum_of, when

PIECE = 2, 4  # steps of a thread along the elements of a piece, and threads that share them
JOINED = 4, 16  # the same of the pieces of a key


def map_by_key(function: ir.Operation, planned: Planned) -> None:
    options, extents = planned.options, _extents(function)
    assert isinstance(options, ByKey)
    reduction, count = reduction_of(function), extents[options.along]
    parts = -(-count // options.piece) if count > options.piece else 0
    order, *split = (_copy(function, name, options) for name in ("order", *(["pieces", "joined"] if parts else [])))
    if options.overlap_sorting:
        function.attributes["tilec.overlap"] = ir.UnitAttr.get()
    memory = sorted_memory(count, extents[options.keys])
    if parts:
        shape = [parts if d == options.keys else extents[d] for d in operand_dims(reduction)[-1]]
        element = ir.MemRefType(reduction.operands[len(reduction.operands) - 1].type).element_type
        memory["parts"] = shape, element
    add_memory([order, *split, function], memory)
    _sort(order, options, count, extents[options.keys], len(memory))
    kinds: list[type[_Segments]] = [Pieces, Joined, Whole] if parts else [Whole]
    for kernel, kind in zip([*split, function], kinds):
        kind(kernel, planned, extents, parts, len(memory)).build()


def reduction_of(function: ir.Operation | ir.Block) -> ir.Operation:
    (found,) = [op for op in _generics(function) if "reduction" in mlir.iterators_of(op)]
    return found


def _generics(function: ir.Operation | ir.Block) -> list[ir.Operation]:
    if isinstance(function, ir.Block):
        return [o.operation for o in function.operations if mlir.is_generic(o.operation)]
    return [op for op in mlir.traverse(function) if mlir.is_generic(op)]


def _extents(function: ir.Operation) -> dict[int, int]:
    """Of the kernel's dimensions, from the tensors that it reads and writes."""
    found: dict[int, int] = {}
    for op in _generics(function):
        for value, dims in zip(op.operands, operand_dims(op)):
            if not is_local(value):
                found |= zip(dims, ir.MemRefType(root(value).type).shape)
    return found


def _copy(function: ir.Operation, suffix: str, options: ByKey) -> ir.Operation:
    """Another kernel of the same operations."""
    with ir.InsertionPoint(function):
        copy = function.clone().operation
    copy.attributes["sym_name"] = mlir.string(f"{ir.StringAttr(function.attributes['sym_name']).value}_{suffix}")
    if suffix != "order" and options.overlap_sorting:
        copy.attributes["tilec.overlap"] = ir.UnitAttr.get()
    return copy


def _sort(function: ir.Operation, options: ByKey, count: int, keys: int, memories: int) -> None:
    (forall,) = tiles_of(function)
    each, memory = -(-keys // options.sorting_blocks), _memory(function, memories)
    function.attributes["tilec.blocks"] = mlir.integer(-(-keys // each))
    function.attributes["tilec.threads"] = mlir.integer(options.sorting_threads)
    with ir.InsertionPoint(forall), function.location:
        tile = enter(forall, [mlir.index(0)] * len(ir.DenseI64ArrayAttr(forall.attributes["staticUpperBound"])))
        (op,) = [o for o in tile if mlir.is_generic(o) and "reduction" in mlir.iterators_of(o)]
        along = mlir.get_integers(op, "tilec.dims").index(options.along)
        _, key = comparison_of(op, along)

        def key_at(t: ir.Value) -> ir.Value:
            element = lambda n: memref.LoadOp(op.operands[n], [t]).result  # noqa: E731
            found = Body(mlir.body_of(op), element, lambda d: t).value(key)
            return found if isinstance(found.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), found)

        fields = Sorted.__dataclass_fields__
        Sort(key_at, count, keys, each, options.sorting_threads, Sorted(**{n: memory[n] for n in fields})).build()
        erase(tile)
    forall.erase()
    erase_unused(function)


def _memory(function: ir.Operation, count: int) -> dict[str, ir.Value]:
    """The memory that the kernels share, by name."""
    names = [ir.StringAttr(ir.DictAttr(a)["tilec.name"]).value for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
    return dict(list(zip(names, mlir.entry(function).arguments))[len(names) - count :])


class _Listed(Threads):
    """Threads along whose dimension `along` elements lie at places that data tell."""

    def __init__(self, kernel: _Segments):
        super().__init__(kernel.layout, names=kernel.names)
        self.kernel = kernel

    @contextmanager
    def slots(  # type: ignore[override]  # whatever else it takes
        self, dims: tuple[int, ...], chunk: dict[int, ir.Value], sizes: dict[int, int | ir.Value] | None, **options: bool
    ) -> Iterator[Position]:
        along = self.kernel.along
        with super().slots(dims, chunk, sizes, **options) as position:  # type: ignore[arg-type]
            if along in dims:
                position.bases[along] = self.kernel.element_at(position.bases[along])
            yield position


class _Segment(GenericMapper):
    """A reduction of `count` elements along one dimension, which data tell."""

    def __init__(self, kernel: _Segments, op: ir.Operation, threads: Threads, count: ir.Value):
        super().__init__(kernel, op, threads)
        self.along, self.number = kernel.along, count
        self.sizes[kernel.along] = count

    def _enter(self, loops: list[int], body: Callable[[], None]) -> None:
        if loops[:1] != [self.along]:
            return super()._enter(loops, body)
        rounds = pieces_of(self.number, self.layout.chunk(self.along))
        made = locations.named(scf.ForOp(mlir.index(0), rounds, mlir.index(1)), self.threads.name(self.along, "chunk"))
        with ir.InsertionPoint(made.body):
            tiles = dict(self.tiles)
            self.chunk[self.along] = made.induction_variable
            super()._enter(loops[1:], body)
            self.tiles = tiles
            scf.YieldOp([])
        del self.chunk[self.along]
        return None


class _Segments(KernelMapper):
    """A kernel whose blocks each reduce the elements of a key, or of a part of one: `count` elements from place `first` on."""

    first: ir.Value
    count: ir.Value

    def __init__(self, function: ir.Operation, planned: Planned, extents: dict[int, int], parts: int, memories: int):
        options = planned.options
        assert isinstance(options, ByKey)
        self.keys, self.along, self.piece, self.extents, self.parts = options.keys, options.along, options.piece, extents, parts
        self.memory = _memory(function, memories)
        _take_all(reduction_of(function), self.along)
        super().__init__(function, planned.tiles, self.shared(options), looks_back=False)

    def shared(self, options: ByKey) -> ByKey:
        """With the threads that share a block's elements."""
        return options

    @contextmanager
    def segment(self, number: ir.Value) -> Iterator[ir.Value]:
        """Where a block of this number has something to do: its key."""
        raise NotImplementedError

    def numbers(self) -> int:
        """How many there are of the segments' numbers."""
        return self.parts

    def element_at(self, position: ir.Value) -> ir.Value:
        return self.index_at("order", arith.addi(self.first, position))

    def change(self, block: ir.Block, offsets: dict[int, ir.Value], number: ir.Value) -> None:
        """Has the operations of a block do the kernel's part."""

    def index_at(self, name: str, at: ir.Value) -> ir.Value:
        return arith.index_cast(ir.IndexType.get(), memref.LoadOp(self.memory[name], [at]).result)

    def _blocks(self) -> int:
        with ir.InsertionPoint.at_block_begin(mlir.entry(self.function)), self.function.location:
            self.threads = Threads(self.layout, names=self.names)
        (forall,) = tiles_of(self.function)
        counts = dict(zip(self.grid, ir.DenseI64ArrayAttr(forall.attributes["staticUpperBound"])))
        counts[self.keys] = self.numbers()
        with ir.InsertionPoint(forall), self.function.location:
            number = gpu.BlockIdOp(gpu.Dimension.x).result
            at = dict(zip(counts, delinearise(number, list(counts.values()), locations.variables(forall))))
            mine = at[self.keys]
            with self.segment(mine) as key:
                at[self.keys] = key
                offsets = {d: sum_of([(at[d], self.layout.extents[d])]) for d in self.grid if d != self.keys}
                enter(forall, [at[d] for d in self.grid])
                self.body = ir.InsertionPoint.current.block
                self.change(self.body, offsets, mine)
        forall.erase()
        return prod(counts.values())

    def _generic(self, op: ir.Operation) -> None:
        if "reduction" not in mlir.iterators_of(op):
            return super()._generic(op)
        return _Segment(self, op, _Listed(self), self.count).build()

    def part_of(self, tile: ir.Value, dims: list[int], offsets: dict[int, ir.Value], number: ir.Value | None) -> ir.Value:
        """The block's part of what pieces make: of the piece of this number, or of all pieces."""
        memory, shape = self.memory["parts"], list(ir.MemRefType(tile.type).shape)
        type_ = ir.MemRefType(memory.type)
        sizes = [memref.DimOp(tile, mlir.index(n)).result for n, s in enumerate(shape) if s == mlir.DYNAMIC]
        if number is None:
            shape[dims.index(self.keys)] = self.parts
        starts = {**offsets, self.keys: mlir.index(0) if number is None else number}
        strides, _ = type_.get_strides_and_offset()
        layout = ir.StridedLayoutAttr.get(ir.ShapedType.get_dynamic_stride_or_offset(), strides)
        view = ir.MemRefType.get(shape, type_.element_type, layout)
        rank = len(dims)
        return memref.SubViewOp(
            view, memory, [starts[d] for d in dims], sizes, [], [mlir.DYNAMIC] * rank, shape, [1] * rank
        ).result


class Whole(_Segments):
    """The results of keys of few elements."""

    def numbers(self) -> int:
        return self.extents[self.keys]

    @contextmanager
    def segment(self, number: ir.Value) -> Iterator[ir.Value]:
        self.first = self.index_at("starts", number)
        self.count = arith.subi(self.index_at("starts", sum_of([(number, 1)], 1)), self.first)
        with when(below(self.count, self.piece) if self.parts else mlir.constant(True, ir.IntegerType.get_signless(1))):
            yield number


class Pieces(_Segments):
    """What the pieces of keys of many elements are reduced to."""

    def shared(self, options: ByKey) -> ByKey:
        return options.of_pieces(*PIECE)

    @contextmanager
    def segment(self, number: ir.Value) -> Iterator[ir.Value]:
        with self.key_of(number) as (key, first, end, position):
            after = sum_of([(position, 1)], self.piece)
            self.first = arith.select(self.is_first(first, position), first, position)
            self.count = arith.subi(arith.minsi(end, after), self.first)
            yield key

    @contextmanager
    def key_of(self, number: ir.Value) -> Iterator[tuple[ir.Value, ir.Value, ir.Value, ir.Value]]:
        """The key at a multiple of `piece` places, if it has pieces: the places of its elements, and that one."""
        position = locations.named(sum_of([(number, self.piece)]), "position")
        with when(below(position, self.index_at("starts", mlir.index(self.extents[self.keys])))):
            key = locations.named(self.index_at("keys", position), "key")
            first, end = self.index_at("starts", key), self.index_at("starts", sum_of([(key, 1)], 1))
            few = below(arith.subi(end, first), self.piece)
            with when(arith.cmpi(arith.CmpIPredicate.eq, few, mlir.constant(False, few.type))):
                yield key, first, end, position

    def is_first(self, first: ir.Value, position: ir.Value) -> ir.Value:
        """Whether no earlier piece of the key contains a multiple of `piece`."""
        return arith.cmpi(arith.CmpIPredicate.sgt, sum_of([(first, 1)], self.piece), position)

    def change(self, block: ir.Block, offsets: dict[int, ir.Value], number: ir.Value) -> None:
        """The reduction's result is stored as it is, and nothing is made of it."""
        reduction = reduction_of(block)
        for op in _generics(block):
            if op != reduction:
                op.erase()
        dims, tile = operand_dims(reduction)[-1], reduction.operands[len(reduction.operands) - 1]
        copy_of_tile(tile, self.part_of(tile, dims, offsets, number), dims, reduction)


class Joined(Pieces):
    """The results of keys of many elements, from those of their pieces."""

    def shared(self, options: ByKey) -> ByKey:
        return options.of_pieces(*JOINED)

    @contextmanager
    def segment(self, number: ir.Value) -> Iterator[ir.Value]:
        with self.key_of(number) as (key, first, end, position), when(self.is_first(first, position)):
            self.first = number
            self.count = arith.subi(pieces_of(end, self.piece), number)
            yield key

    def element_at(self, position: ir.Value) -> ir.Value:
        return arith.addi(self.first, position)

    def change(self, block: ir.Block, offsets: dict[int, ir.Value], number: ir.Value) -> None:
        """The reduction reads pieces."""
        reduction = reduction_of(block)
        dims, tile = operand_dims(reduction)[-1], reduction.operands[len(reduction.operands) - 1]
        own, rank = mlir.get_integers(reduction, "tilec.dims"), len(mlir.iterators_of(reduction))
        with ir.InsertionPoint(reduction), reduction.location:
            parts = self.part_of(tile, dims, offsets, None)
            into = mlir.projection(rank, [own.index(d) for d in dims])
            read = mlir.projection(rank, [own.index(self.along if d == self.keys else d) for d in dims])
            made, body = mlir.generic([], [parts], [tile], [read, into], mlir.iterators_of(reduction))
            for name in ("tilec.dims", "tilec.name", "tilec.reduce"):
                if name in reduction.attributes:
                    made.attributes[name] = reduction.attributes[name]
            state = len(reduction.operands) - 1
            with ir.InsertionPoint(body):
                combined = Combiner(reduction, [state]).combine([state], [body.arguments[1]], [body.arguments[0]])
                linalg.YieldOp(combined)
        reduction.erase()


def _take_all(op: ir.Operation, along: int) -> None:
    """Takes the comparison with the key out of a reduction whose elements all have it."""
    compared, _ = comparison_of(op, mlir.get_integers(op, "tilec.dims").index(along))
    with ir.InsertionPoint(compared):
        compared.results[0].replace_all_uses_with(mlir.constant(True, compared.results[0].type))
    block = mlir.body_of(op)
    for inner in reversed([o.operation for o in block.operations][:-1]):
        if inner.name == "arith.select" and mlir.constant_value(inner.operands[0]) is True:
            inner.results[0].replace_all_uses_with(inner.operands[1])
        if len(inner.results) and not any(mlir.uses(r) for r in inner.results):
            inner.erase()
