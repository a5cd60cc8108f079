"""Blocks that share the rows of a chain with a product: each stores the states of its part of j, and a kernel combines them.

    block of rows and part: m[part], l[part], o[part] = states of the part's elements
    combine: for element of the rows' results { m = max over parts of m[part]
                                                l = sum over parts of l[part] exp2(...), o likewise; results }

The order of combination is the order of parts. The rules are those by which a block rescales its states along j
(`tilec/analysis/online_reduction.py`). Row states alone, a word or two for each row, are combined by the last block instead
(`parts.py`): sums of a product are many, and want more threads than those that hold a row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import reduce
from math import inf, prod

from tilec.analysis.carried import Carried, Rescale
from tilec.analysis.expression import Expr
from tilec.core import locations, mlir
from tilec.core.mlir import arith, func, gpu, ir, memref, vector
from tilec.kernels import ContractionChain, Planned
from tilec.passes.cuda.chain.block import ChainBlock
from tilec.passes.cuda.chain.fragments import Fragments
from tilec.passes.cuda.chain.values import At, Values, combine, halves
from tilec.passes.cuda.contraction.problem import below
from tilec.passes.cuda.memory_spaces import erase_unused
from tilec.passes.loops import delinearise, loop, states, sum_of, when

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
        *_, row_states, sums = mlir.entry(block.function).arguments
        first = arith.cmpi(arith.CmpIPredicate.eq, own.column, mlir.index(0))
        with halves(own.rows) as half, ExitStack() as inside:
            rows = block.rows_at(locations.named(sum_of([(half, 8), (own.row, 1)]), "row"))
            for d, last in own.values.limits.items():
                if d in rows:
                    inside.enter_context(when(arith.cmpi(arith.CmpIPredicate.sle, rows[d], last)))
            position = [block.number, block.part, *rows.values()]
            with when(first):
                for n, c in enumerate(own.states.rows):
                    value = memref.LoadOp(own.values.states[c.total.number], [half]).result
                    memref.StoreOp(value, row_states, [mlir.index(n), *position])
            with loop(own.wide // 8, name="fragment") as j:
                column = sum_of([(j, 8), (own.column, 1)])
                type_ = ir.VectorType.get([2], ir.F32Type.get())
                pair = vector.LoadOp(type_, own.sums, [j, half, mlir.index(0)]).result
                vector.StoreOp(pair, sums, [*position, column])


def split(function: ir.Operation, planned: Planned) -> Callable[[ChainBlock], None]:
    """Prepares the kernel that combines parts, from the kernel that makes them as it is before it is mapped. The result, called
    with that kernel's block, builds it."""
    with ir.InsertionPoint(function):
        copy = function.clone()
    name = ir.StringAttr(function.attributes["sym_name"]).value
    copy.attributes["sym_name"] = mlir.string(f"{name}_combined")
    copy.move_after(function)
    if "tilec.overlap" in copy.attributes:
        del copy.attributes["tilec.overlap"]
    assert isinstance(planned.options, ContractionChain)
    if planned.options.overlap_combination:
        copy.attributes["tilec.overlap"] = ir.UnitAttr.get()

    def build(block: ChainBlock) -> None:
        f32, chain = ir.F32Type.get(), block.chain
        assert chain.columns is not None
        wide = -(-block.sizes[chain.columns] // 16) * 16
        counts = [block.count, block.parts, *(planned.tiles[d] for d in block.box)]
        shapes = ([len(chain.online.carried) - 1, *counts], [*counts, wide])
        _share_memory(function, copy, [ir.MemRefType.get(shape, f32) for shape in shapes])
        _Combined(copy, planned).build()

    return build


def _share_memory(function: ir.Operation, after: ir.Operation, types: list[ir.Type]) -> None:
    """Gives two kernels memory as their last arguments. The program calls the second one after the first, with its arguments."""
    names = [ir.DictAttr.get({"tilec.name": mlir.string(name)}) for name in ("states", "sums")]
    for kernel in (function, after):
        block = mlir.entry(kernel)
        for type_ in types:
            block.add_argument(type_, kernel.location)
        arguments = [a.type for a in block.arguments]
        kernel.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(arguments, []))
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([*ir.ArrayAttr(kernel.attributes["arg_attrs"]), *names])
    first, second = (ir.StringAttr(kernel.attributes["sym_name"]).value for kernel in (function, after))
    for call in [op for op in mlir.traverse(function.parent) if op.name == "func.call"]:
        if ir.FlatSymbolRefAttr(call.attributes["callee"]).value == first:
            with ir.InsertionPoint(call), call.location:
                memory = [memref.AllocOp(type_, [], []).result for type_ in types]
                for name in (first, second):
                    func.CallOp([], name, [*call.operands, *memory])
            call.erase()


class _Combined:
    """A thread has one element of the product's results."""

    def __init__(self, function: ir.Operation, planned: Planned):
        self.function, self.planned = function, planned
        self.view = next(o for o in mlir.entry(function).operations if o.operation.name == "scf.forall")

    def build(self) -> None:
        with ir.InsertionPoint(self.view), self.function.location:
            self._build()
        self.view.operation.erase()
        erase_unused(self.function)

    def _build(self) -> None:
        thread, number = gpu.ThreadIdOp(gpu.Dimension.x).result, gpu.BlockIdOp(gpu.Dimension.x).result
        *_, self.row_states, self.sums = mlir.entry(self.function).arguments
        length, _, *extents = ir.MemRefType(self.sums.type).shape
        blocks = -(-prod(extents) // THREADS)  # of one tile
        tile, piece = arith.divui(number, mlir.index(blocks)), arith.remui(number, mlir.index(blocks))
        self.block = block = ChainBlock(self.function, self.planned, self.view.operation, tile)
        self.function.attributes["tilec.blocks"] = mlir.integer(length * blocks)
        self.function.attributes["tilec.threads"] = mlir.integer(THREADS)
        chain = block.chain
        assert chain.columns is not None
        element = sum_of([(piece, THREADS), (thread, 1)])
        *self.rows, self.column = delinearise(element, extents, [None] * len(extents))
        self.values = Values(chain.scores.number, None, {})
        at = {**dict(zip(block.box, self.rows)), chain.columns: self.column}
        conditions = [below(at[d], block.sizes[d]) for d in at]
        conditions = conditions if prod(extents) % THREADS == 0 else [below(element, prod(extents)), *conditions]
        with when(reduce(arith.andi, conditions)):
            self._combine(At(at, mlir.index(0)))
        block.erase()

    def _combine(self, at: At) -> None:
        chain = self.block.chain
        order = [c for c in chain.online.carried if c is not chain.product]
        numbers = {c.total.number: n for n, c in enumerate(order)}
        for c in chain.online.carried:
            at.known[_state(c)] = self._total(c, numbers, at)
        for output in self.block.outputs:
            final = chain.online.final(output.value)
            subscripts = [at.coordinates.get(d, mlir.index(0)) for d in output.dims]
            if chain.columns in output.dims:
                memref.StoreOp(self.values.build(final, at), output.view, subscripts)
            else:
                with when(arith.cmpi(arith.CmpIPredicate.eq, self.column, mlir.index(0))):
                    known = At(at.coordinates, at.half, known=dict(at.known))
                    memref.StoreOp(self.values.build(final, known), output.view, subscripts)

    def _load(self, c: Carried, numbers: dict[int, int], part: ir.Value) -> ir.Value:
        """The state of one part."""
        tile, n = self.block.number, numbers.get(c.total.number)
        if n is None:
            return memref.LoadOp(self.sums, [tile, part, *self.rows, self.column]).result
        return memref.LoadOp(self.row_states, [mlir.index(n), tile, part, *self.rows]).result

    def _total(self, c: Carried, numbers: dict[int, int], at: At) -> ir.Value:
        """The state of all parts."""
        start = mlir.constant(c.identity, ir.F32Type.get())
        if c.rescale is not None:
            new, _ = self._reference(c.rescale, at)
            at.known[Expr("reference", key=c.rescale.number, own_dims=_dims(c.rescale))] = new
        with states(self.block.parts, [start], "part", c.total.name) as (part, now):
            value = self._load(c, numbers, part)
            if c.rescale is not None:
                (extreme,) = [e for e in self.block.chain.online.carried if e.total.number == c.rescale.extreme]
                its = At(at.coordinates, at.half, known={_state(extreme): self._load(extreme, numbers, part)})
                _, old = self._reference(c.rescale, its)
                moved = Expr("math.exp2", (Expr("arith.subf", (_NEW, _OLD)),))
                factor = self.values.build(moved, At({}, at.half, known={_NEW: new, _OLD: old}))
                value = arith.mulf(value, factor)
            now[0] = combine(c.total.combine, now[0], value)
        return now[0]

    def _reference(self, s: Rescale, at: At) -> tuple[ir.Value, ir.Value]:
        """The reference of states `at`; while their maximum has seen nothing, as a new one 0, and as an old one such that the sums
        relative to it count nothing."""
        (extreme,) = [c for c in self.block.chain.online.carried if c.total.number == s.extreme]
        now, f32 = self.values.build(self.block.chain.online.reference(s), at), ir.F32Type.get()
        seen = at.known[_state(extreme)]
        nothing = arith.cmpf(arith.CmpFPredicate.OEQ, seen, mlir.constant(extreme.identity, f32))
        new, old = (arith.select(nothing, mlir.constant(other, f32), now) for other in (0.0, inf))
        return new, old


def _state(c: Carried) -> Expr:
    return Expr("state", key=c.total.number, own_dims=c.total.dims)


def _dims(s: Rescale) -> tuple[int, ...]:
    return tuple(sorted(s.row.dims))


_NEW, _OLD = Expr("outer", key="new"), Expr("outer", key="old")
