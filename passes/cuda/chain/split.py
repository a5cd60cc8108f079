"""Blocks that share the rows of a chain: each stores the states of its part of j, and a kernel combines them.

    block of rows and part: m[part], l[part], o[part] = states of the part's elements
    combine: for element of the rows' results { m = max over parts of m[part]
                                                l = sum over parts of l[part] exp2(...), o likewise; results }

The order of combination is the order of parts. The rules are those by which a block rescales its states along j
(`tilec/analysis/online_reduction.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

from tilec.analysis.carried import Carried, Rescale
from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.extents import Extent, amount, set_blocks, shape_of, sizes_of, times, value_of
from tilec.core.mlir import arith, gpu, ir, memref, vector
from tilec.kernels import ContractionChain, Planned
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.fragments import Fragments
from tilec.passes.cuda.chain.states import moved, none_of, reference_of, same
from tilec.passes.cuda.chain.values import At, Values, combine
from tilec.passes.cuda.contraction.grid import erase, tiles_of
from tilec.passes.cuda.memory_spaces import erase_unused
from tilec.passes.cuda.messages import add_memory
from tilec.passes.loops import below, delinearise, loop, states, sum_of, when

THREADS = 128  # of a block that combines


class PartialStates:
    """The states of a block's part, `own`, in global memory; where one block has all of its rows' elements, their results."""

    def __init__(self, own: Fragments):
        self.own, self.block = own, own.block
        own.tiles.share(self.block.part, self.block.parts)

    def store(self) -> None:
        own, block = self.own, self.block
        if block.parts == 1:
            own.store()
            return
        arguments = list(mlir.entry(block.function).arguments)
        sums = arguments.pop() if block.chain.products else None
        first = arith.cmpi(arith.CmpIPredicate.eq, own.column, mlir.index(0))
        with block.existing_rows(own.row, own.rows, own.values) as (half, rows):
            position = [block.number, block.part, *rows.values()]
            with when(first):
                for n, c in enumerate(block.chain.row_states):
                    value = memref.LoadOp(own.values.states[c.total.number], [half]).result
                    bits = arith.bitcast(ir.F32Type.get(), value) if c.locates is not None else value
                    memref.StoreOp(bits, arguments[-1], [mlir.index(n), *position])
            for n, r in enumerate(own.results):
                assert sums is not None
                with loop(r.wide // 8, name="fragment") as j:
                    column = sum_of([(j, 8), (own.column, 1)], n * widest(block))
                    type_ = ir.VectorType.get([2], ir.F32Type.get())
                    pair = vector.LoadOp(type_, r.sums, [j, half, mlir.index(0)]).result
                    vector.StoreOp(pair, sums, [*position, column])


def widest(block: ChainBlock) -> int:
    """Columns of the widest product, which each of them has in memory."""
    return max(-(-block.sizes[d] // 16) * 16 for d in block.chain.columns.values())


def split(function: ir.Operation, planned: Planned) -> Callable[[ChainBlock], None]:
    """Prepares the kernel that combines parts, from the kernel that makes them as it is before it is mapped. The result, called
    with that kernel's block, builds it."""
    with ir.InsertionPoint(function):
        copy = function.clone()
    name = mlir.symbol(function)
    copy.attributes["sym_name"] = mlir.string(f"{name}_combined")
    copy.move_after(function)
    if "tilec.overlap" in copy.attributes:
        del copy.attributes["tilec.overlap"]
    assert isinstance(planned.options, ContractionChain)
    if planned.options.overlap_combination:
        copy.attributes["tilec.overlap"] = ir.UnitAttr.get()

    def build(block: ChainBlock) -> None:
        chain = block.chain
        count = block.count if isinstance(block.count, int) else value_of(block.count)
        counts = [count, block.parts, *(planned.tiles[d] for d in block.box)]
        shapes: dict[str, list[Extent]] = {"states": [len(chain.row_states), *counts]}
        if chain.products:
            shapes["sums"] = [*counts, len(chain.products) * widest(block)]
        add_memory([function, copy], {name: (shape, ir.F32Type.get()) for name, shape in shapes.items()})
        _Combined(copy, planned).build()

    return build


class _Combined:
    """A thread has one element of the results: of a row, or of a row and a column of a product."""

    def __init__(self, function: ir.Operation, planned: Planned):
        self.function, self.planned = function, planned
        (self.forall,) = tiles_of(function)

    def build(self) -> None:
        with ir.InsertionPoint(self.forall), self.function.location:
            self._build()
        self.forall.erase()
        erase_unused(self.function)

    def _build(self) -> None:
        thread, number = gpu.ThreadIdOp(gpu.Dimension.x).result, gpu.BlockIdOp(gpu.Dimension.x).result
        arguments, options = list(mlir.entry(self.function).arguments), self.planned.options
        assert isinstance(options, ContractionChain)
        self.sums = arguments.pop() if options.has_product else None
        self.row_states = arguments[-1]
        length = shape_of(self.row_states)[1]
        extents = list(ir.MemRefType(self.row_states.type).shape)[3:]
        extents += [] if self.sums is None else ir.MemRefType(self.sums.type).shape[-1:]
        blocks = -(-prod(extents) // THREADS)  # of one tile
        tile, piece = arith.divui(number, mlir.index(blocks)), arith.remui(number, mlir.index(blocks))
        self.block = block = ChainBlock(self.function, self.planned, self.forall, tile)
        set_blocks(self.function, times(amount(length, sizes_of(self.function)), blocks))
        self.function.attributes["tilec.threads"] = mlir.integer(THREADS)
        element = sum_of([(piece, THREADS), (thread, 1)])
        self.coordinates = delinearise(element, extents, [None] * len(extents))  # a row, and a column
        self.values = Values({})
        at, columns = dict(zip(block.box, self.coordinates)), list(block.chain.columns.values())
        for column in dict.fromkeys(columns) or (None,):
            own, conditions = at, list[ir.Value]()
            if column is not None and (first := columns.index(column) * widest(block)):
                own = at | {column: sum_of([(self.coordinates[-1], 1)], -first)}
                conditions.append(arith.cmpi(arith.CmpIPredicate.sge, own[column], mlir.index(0)))
            elif column is not None:
                own = at | {column: self.coordinates[-1]}
            conditions += [below(own[d], block.sizes[d]) for d in own]
            conditions = conditions if prod(extents) % THREADS == 0 else [below(element, prod(extents)), *conditions]
            with when(reduce(arith.andi, conditions)):
                self._combine(At(own, mlir.index(0)), column, first=column in (None, *columns[:1]))
        erase(block.operations)

    def _combine(self, at: At, column: int | None, first: bool) -> None:
        """The results of this dimension of columns; of the `first`, also those without columns."""
        chain = self.block.chain
        for c in chain.online.carried:
            if chain.columns.get(c.total.number, column) == column:
                at.known[_state(c)] = self._total(c, at)
        for output in self.block.outputs:
            final = chain.online.final(output.value)
            subscripts = [at.coordinates.get(d, mlir.index(0)) for d in output.dims]
            if column is None or column in output.dims:
                memref.StoreOp(self.values.build(final, at), output.view, subscripts)
            elif first and not {*output.dims} & {*chain.columns.values()}:
                with when(arith.cmpi(arith.CmpIPredicate.eq, self.coordinates[-1], mlir.index(0))):
                    known = At(at.coordinates, at.half, known=dict(at.known))
                    memref.StoreOp(self.values.build(final, known), output.view, subscripts)

    def _load(self, c: Carried, part: ir.Value) -> ir.Value:
        """The state of one part."""
        tile, chain = self.block.number, self.block.chain
        order = chain.row_states
        if c not in order:
            assert self.sums is not None
            products = list(chain.columns.values())
            same = products.index(chain.columns[c.total.number])  # the first of these columns
            number = next(n for n, p in enumerate(chain.products) if p.carried is c)
            *rows, column = self.coordinates
            return memref.LoadOp(self.sums, [tile, part, *rows, sum_of([(column, 1)], (number - same) * widest(self.block))]).result
        rows = self.coordinates[: len(self.block.box)]
        value = memref.LoadOp(self.row_states, [mlir.index(order.index(c)), tile, part, *rows]).result
        return arith.bitcast(ir.IntegerType.get_signless(32), value) if c.locates is not None else value

    def _total(self, c: Carried, at: At) -> ir.Value:
        """The state of all parts."""
        f32, rescale = ir.F32Type.get(), c.rescale
        if rescale is not None:
            new = self._reference(rescale, at)
            at.known[Expr("reference", key=rescale.number, own_dims=tuple(sorted(rescale.row.dims)))] = new
        start = mlir.constant(c.identity, f32) if c.locates is None else none_of(c)
        with states(self.block.parts, [start], "part", c.total.name) as (part, now):
            value = self._load(c, part)
            if rescale is not None:
                extreme = self._carried(rescale.extreme)
                its = At(at.coordinates, at.half, known={_state(extreme): self._load(extreme, part)})
                value = arith.mulf(value, moved(self.values, new, self._reference(rescale, its), at.half))
            if c.locates is None:
                now[0] = combine(c.total.combine, now[0], value)
            else:
                extreme = self._carried(c.locates)
                here = same(self._load(extreme, part), at.known[_state(extreme)])
                now[0] = arith.minsi(now[0], arith.select(here, value, none_of(c)))
        return now[0]

    def _carried(self, number: int) -> Carried:
        """The state of a reduction."""
        return next(c for c in self.block.chain.online.carried if c.total.number == number)

    def _reference(self, s: Rescale, at: At) -> ir.Value:
        """What the sums of states `at` are relative to."""
        return reference_of(self.values, self.block.chain.online.reference(s), at)


def _state(c: Carried) -> Expr:
    return Expr("state", key=c.total.number, own_dims=c.total.dims, type="f32" if c.locates is None else "i32")
