"""States and sums of a contraction chain of numbers that have no parts (`tilec/analysis/bf16_split.py`): of the numbers themselves.

Such numbers are marked, so that scores of them are NaN, and with these the weights and all sums of a row. So are sums of an
infinite value and a weight that is a sum of several numbers, of which some are 0. A thread whose sums are not finite computes its
rows anew at the end: the states, by a pass over the elements for those that read others, and the sums. A look at each tile's scores
would keep them in registers for longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tilec.analysis.carried import Carried
from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref
from tilec.passes.cuda.chain.fragments import Fragments, Sums
from tilec.passes.cuda.chain.masks import number_of
from tilec.passes.cuda.chain.states import reference_of
from tilec.passes.cuda.chain.values import At, combine, halves, selected
from tilec.passes.cuda.contraction.anew import Unfinished, add_anew, unless_finite
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.cuda.ring import carried_loop
from tilec.passes.loops import all_of, loop, sum_of


class WholeNumbers:
    """Of the fragments and states of a thread."""

    def __init__(self, own: Fragments):
        self.own, self.chain, self.values = own, own.chain, own.values

    def compute_anew(self) -> None:
        """The complete states, and the sums, of rows whose sums are not finite."""
        for result in self.own.results:
            with unless_finite(result.sums) as unfinished:
                self.hidden = _zero_of(unfinished.met)
                with halves(self.own.rows) as half:
                    self._complete(half, unfinished)
                weight, value = partial(self._weight, result), partial(self._value, result)
                add_anew(unfinished, result.sums, self._elements, weight, value)

    def _complete(self, half: ir.Value, unfinished: Unfinished) -> None:
        """All states of a row."""
        states = self.own.states
        self._reduce([c for c in states.rows if c.rescale is None], half, unfinished)
        for s in self.chain.online.rescales:
            new = reference_of(self.values, self.chain.online.reference(s), At({}, half))
            unfinished.store(new, self.values.references[s.number], [half], half)
        self._reduce([c for c in states.rows if c.rescale is not None], half, unfinished)

    def _value(self, result: Sums, j: ir.Value, lane: ir.Value, k: ir.Value) -> ir.Value:
        """Of a column and an element of j."""
        zero, columns, f32 = mlir.index(0), result.product.columns, ir.F32Type.get()
        count = self.own.block.sizes[columns]
        column = sum_of([(lane, 1), (j, 8), (self.own.column, 1), (self.hidden, 1)])
        column = column if result.wide == count else arith.minsi(column, mlir.index(count - 1))
        at = At(self._row(zero) | {self.chain.between: k, columns: column}, zero)
        value = self.values.build(result.product.whole_values, at)
        value = value if value.type == f32 else arith.extf(f32, value)
        if self.own.tiles.even:
            return value
        exists = arith.cmpi(arith.CmpIPredicate.slt, k, mlir.index(self.own.block.length))  # others are read at the last one
        return selected(exists, value, 0.0)

    def _reduce(self, carried: list[Carried], half: ir.Value, unfinished: Unfinished) -> None:
        """States that read no others than those that are complete."""
        if not carried:
            return
        tiles = {c: self.values.states[c.total.number] for c in carried}
        for c, tile in tiles.items():
            unfinished.store(mlir.constant(c.identity, ir.F32Type.get()), tile, [half], half)
        with self._elements() as k:
            at, inside = self._scores(half, k)
            for c, tile in tiles.items():
                term = selected(inside, self.values.build(c.term, at), c.identity)
                total = combine(c.total.combine, memref.LoadOp(tile, [half]).result, term)
                unfinished.store(total, tile, [half], half)

    def _weight(self, result: Sums, half: ir.Value, k: ir.Value) -> ir.Value:
        """Of a row and an element of j."""
        at, inside = self._scores(half, k)
        return selected(inside, self.values.build(result.product.weights, at), 0.0)

    def _row(self, half: ir.Value) -> dict[int, ir.Value]:
        return self.own.block.rows_at(sum_of([(half, 8), (self.own.row, 1), (self.hidden, 1)]))

    @contextmanager
    def _elements(self) -> Iterator[ir.Value]:
        """Over the elements of j of the block's tiles."""
        tiles, size = self.own.tiles, self.own.bn
        with carried_loop(tiles.begin, tiles.end, []) as (number, _), loop(size, always=True, rolled=True, name="element") as n:
            yield sum_of([(tiles.first_line(number), 1), (n, 1)])

    def _scores(self, half: ir.Value, k: ir.Value) -> tuple[At, ir.Value | None]:
        """A row and an element of j with what the first contractions have there, and whether no mask excludes it."""
        chain, zero, rows = self.chain, mlir.index(0), self._row(half) | {self.chain.between: k}
        at = At(rows, half)
        for first in chain.firsts:
            total, kind = registers([1], "%score", first.term.type), mlir.type_of(first.term.type)
            memref.StoreOp(mlir.constant(0, kind), total, [zero])
            with loop(self.own.block.sizes[first.inner], always=True, rolled=True, name="depth") as d:
                term = self.values.build(first.term, At(rows | {first.inner: d}, half))
                memref.StoreOp(combine(first.total.combine, memref.LoadOp(total, [zero]).result, term), total, [zero])
            at.scores[first.total.number] = memref.LoadOp(total, [zero]).result
        inside = []
        for leaves, number in self.own.bounds():
            least = sum_of([(number_of(self.values, leaf, at), f) for leaf, f in leaves.items()], number)
            inside.append(arith.cmpi(arith.CmpIPredicate.sge, least, zero))
        score = self.values.build(chain.score, at)
        return At(rows, half, at.scores | {chain.scores.number: score}), all_of(inside)


def _zero_of(x: ir.Value) -> ir.Value:
    """0: by how much the exponent of a NaN is above the largest. Compilers do not know it, and compute no address from it before
    they have the NaN: addresses would fill the registers of the loop over tiles."""
    i32 = ir.IntegerType.get_signless(32)
    exponent = arith.andi(arith.shrui(arith.bitcast(i32, x), mlir.constant(23, i32)), mlir.constant(255, i32))
    return arith.index_cast(ir.IndexType.get(), arith.subi(exponent, mlir.constant(255, i32)))
