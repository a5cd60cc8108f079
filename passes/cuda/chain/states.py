"""States of a contraction chain in registers: what a thread carries along j for its rows, the sums of the product apart.

A sum is carried in four chains, over halves and the two columns, and added up over the four threads that share a row only when it
is complete. A maximum has to be known after every tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf

from tilec.analysis.carried import Carried, Online, Rescale
from tilec.analysis.expression import Expr
from tilec.core import mlir
from tilec.core.mlir import arith, ir, math, memref
from tilec.passes.cuda.chain.values import (
    QUAD,
    At,
    Values,
    combine,
    fill,
    halves,
    pairs,
    shuffle,
    statements,
)
from tilec.passes.cuda.memory_spaces import registers
from tilec.passes.loops import loop, sum_of, when

SLACK = 8  # powers of 2 by which a weight may exceed what it is relative to, before sums are rescaled
ROOM = 1 << 15  # an f16 weight is less


class Positions:
    """The least index of an element that is a row's extreme, for each of a thread's `rows`: among its own elements, and at the end
    among all. It is looked for only in tiles that have such an element.
    """

    def __init__(self, carried: list[Carried], extremes: list[Carried], values: Values, rows: int):
        self.carried, self.values, self.count = carried, values, rows
        self.extremes = {c.total.number: registers([rows], "%extreme") for c in extremes if self.of(c)}
        if carried:
            self.found = registers([rows], "%found", "i32")
        for c in carried:
            values.states[c.total.number] = registers([rows], "%position", "i32")

    def of(self, extreme: Carried) -> list[Carried]:
        return [c for c in self.carried if c.locates == extreme.total.number]

    def clear(self) -> None:
        for c in self.carried:
            fill(self.values.states[c.total.number], c.identity)

    def update(self, c: Carried, extreme: Carried, count: int, locate: Callable, term: Callable) -> None:
        """A tile's elements, of which the extreme is known, and the state's still is that before."""
        state, hits = self.values.states[c.total.number], []
        for n in range(self.count):
            half = mlir.index(n)
            here, before = (memref.LoadOp(a, [half]).result for a in self._extremes(extreme))
            now = combine(extreme.total.combine, before, here)
            kept = arith.select(same(before, now), memref.LoadOp(state, [half]).result, none_of(c))
            memref.StoreOp(kept, state, [half])
            hits.append(same(here, now))
        with when(reduce(arith.ori, hits)):
            first = self._search(c, extreme, count, locate, term)
            for n, hit in enumerate(hits):
                half = mlir.index(n)
                old, offset = (memref.LoadOp(a, [half]).result for a in (state, self.found))
                hit = arith.andi(hit, arith.cmpi(arith.CmpIPredicate.ne, offset, none_of(c)))
                new = arith.select(hit, arith.minsi(old, arith.addi(offset, first)), old)
                memref.StoreOp(new, state, [half])

    def _search(self, c: Carried, extreme: Carried, count: int, locate: Callable, term: Callable) -> ir.Value:
        """A thread's first elements of a tile that are its extreme, of each row: `found`, offsets from the index that is returned.

        From the last element back, so that the first is left. If an element is a NaN, so is the extreme.
        """
        i32, (dim,) = ir.IntegerType.get_signless(32), c.term.args[0].own_dims
        fill(self.found, c.identity)
        with loop(count, name="fragment") as step, halves(self.count) as half, loop(2, unroll=True, name="pair") as back:
            at = locate(sum_of([(step, -1)], count - 1), half, sum_of([(back, -1)], 1))
            x, here = term(extreme, at), memref.LoadOp(self.extremes[extreme.total.number], [half]).result
            equal, unordered = arith.CmpFPredicate.OEQ, arith.CmpFPredicate.UNE
            own = arith.ori(arith.cmpf(equal, x, here), arith.cmpf(unordered, x, x))
            old = memref.LoadOp(self.found, [half]).result
            memref.StoreOp(arith.select(own, arith.index_cast(i32, at.parts[dim][1]), old), self.found, [half])
        zero = mlir.index(0)
        return arith.index_cast(i32, locate(zero, zero, zero).parts[dim][0])

    def _extremes(self, extreme: Carried) -> tuple[ir.Value, ir.Value]:
        return self.extremes[extreme.total.number], self.values.states[extreme.total.number]

    def take(self, extreme: Carried) -> None:
        """The tile's extreme into the state."""
        with halves(self.count) as half:
            here, before = (memref.LoadOp(a, [half]).result for a in self._extremes(extreme))
            memref.StoreOp(combine(extreme.total.combine, before, here), self.values.states[extreme.total.number], [half])

    def complete(self) -> None:
        for c in self.carried:
            with halves(self.count) as half:
                value = memref.LoadOp(self.values.states[c.total.number], [half]).result
                for distance in QUAD:
                    value = arith.minsi(value, shuffle(value, distance))
                memref.StoreOp(value, self.values.states[c.total.number], [half])


def same(a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether two numbers are equal, or both NaN."""
    unordered = arith.andi(*(arith.cmpf(arith.CmpFPredicate.UNE, x, x) for x in (a, b)))
    return arith.ori(arith.cmpf(arith.CmpFPredicate.OEQ, a, b), unordered)


def none_of(c: Carried) -> ir.Value:
    """The position of nothing."""
    return mlir.constant(int(c.identity), ir.IntegerType.get_signless(32))


class States:
    """What is `carried` along j for a thread's `rows`: all but the products' sums. A reference may lag by `slack` powers of 2
    behind what it follows, so that it rarely moves, and the sums of a product with it."""

    def __init__(self, online: Online, carried: list[Carried], values: Values, rows: int, slack: int = 0):
        self.online, self.values, self.count, self.slack = online, values, rows, slack
        self.rows = [c for c in carried if c.locates is None]
        self.positions = Positions([c for c in carried if c.locates is not None], self.rows, values, rows)
        for c in self.rows:
            shape = [rows] if self.whole(c) else [rows, 2]
            values.states[c.total.number] = registers(shape, f"%running_{_kind(c)}")
        for s in online.rescales:
            values.references[s.number] = registers([rows], "%reference")
        self.factors = {s.number: registers([rows], "%rescaling") for s in online.rescales}
        self.totals = {c.total.number: registers([rows], c.total.name) for c in self.rows if not self.whole(c)}
        self.parts = {c.total.number: registers([rows, 2], f"%{_kind(c)}_of_pairs") for c in self.rows if self.whole(c)}

    @staticmethod
    def whole(c: Carried) -> bool:
        """Whether all threads of a row know the value after each tile."""
        return c.total.combine != "arith.addf"

    def clear(self) -> None:
        for c in self.rows:
            fill(self.values.states[c.total.number], c.identity)
        for s in self.online.rescales:
            fill(self.values.references[s.number], 0.0)
        self.positions.clear()

    def collect(self, count: int, locate: Callable, term: Callable[[Carried, At], ir.Value]) -> None:
        """The reductions that read no other, over the elements of a tile: `locate(j, half, lane)` of `count` groups."""
        direct = [c for c in self.rows if c.rescale is None]
        if direct:
            with statements(c.total for c in direct):
                self._collect(direct, count, locate, term)

    def _collect(self, direct: list[Carried], count: int, position: Callable, term: Callable) -> None:
        for c in filter(self.whole, direct):
            if self.positions.of(c):  # the extreme of the tile alone
                fill(self.parts[c.total.number], c.identity)
                continue
            with pairs(self.count) as (half, lane):
                value = memref.LoadOp(self.values.states[c.total.number], [half]).result
                memref.StoreOp(value, self.parts[c.total.number], [half, lane])
        with loop(count, name="fragment") as j, pairs(self.count) as (half, lane):
            at = position(j, half, lane)
            for c in direct:
                self.add_one(c, half, lane, term(c, at))
        for c in direct:
            if self.whole(c):
                found = self.positions.of(c)
                target = self.positions.extremes[c.total.number] if found else self.values.states[c.total.number]
                self._reduce_threads(c, self.parts[c.total.number], target)
                for own in found:
                    self.positions.update(own, c, count, position, term)
                if found:
                    self.positions.take(c)

    def add_one(self, c: Carried, half: ir.Value, lane: ir.Value, value: ir.Value) -> None:
        target = self.parts[c.total.number] if self.whole(c) else self.values.states[c.total.number]
        at = [half, lane]
        memref.StoreOp(combine(c.total.combine, memref.LoadOp(target, at).result, value), target, at)

    def _reduce_threads(self, c: Carried, parts: ir.Value, state: ir.Value) -> None:
        """Over the two columns, then over the threads that share a row."""
        with halves(self.count) as half:
            a, b = (memref.LoadOp(parts, [half, mlir.index(lane)]).result for lane in range(2))
            value = combine(c.total.combine, a, b)
            for distance in QUAD:
                value = combine(c.total.combine, value, shuffle(value, distance))
            memref.StoreOp(value, state, [half])

    def rescale(self) -> None:
        """Moves references to where the states are now, and rescales the sums that are relative to them."""
        for s in self.online.rescales:
            row = self.online.reference(s)
            with halves(self.count) as half:
                here = [half]
                new = reference_of(self.values, row, At({}, half))
                old = memref.LoadOp(self.values.references[s.number], here).result
                new = self._lagging(new, old) if self.slack else new
                memref.StoreOp(moved(self.values, new, old, half), self.factors[s.number], here)
                memref.StoreOp(new, self.values.references[s.number], here)
        for c in self.rows:
            if c.rescale is not None:
                with pairs(self.count) as (half, lane):
                    state, at = self.values.states[c.total.number], [half, lane]
                    scaled = arith.mulf(memref.LoadOp(state, at).result, self.factor(c, half))
                    memref.StoreOp(scaled, state, at)

    def _lagging(self, new: ir.Value, old: ir.Value) -> ir.Value:
        """The old reference, unless it is further above the new one than it may be, or below it, as that of nothing may be."""
        middle = mlir.constant(self.slack / 2, new.type)
        off = math.absf(arith.addf(arith.subf(new, old), middle))
        return arith.select(arith.cmpf(arith.CmpFPredicate.OLE, off, middle), old, new)

    def moves(self, rescale: Rescale) -> ir.Value:
        """Whether one of the thread's references has just moved."""
        one = mlir.constant(1.0, ir.F32Type.get())
        factors = (memref.LoadOp(self.factors[rescale.number], [mlir.index(n)]).result for n in range(self.count))
        return reduce(arith.ori, (arith.cmpf(arith.CmpFPredicate.UNE, f, one) for f in factors))

    def factor(self, c: Carried, half: ir.Value) -> ir.Value:
        assert c.rescale is not None
        return memref.LoadOp(self.factors[c.rescale.number], [half]).result

    def add(self, at: At, lane: ir.Value, term: Callable[[Carried, At], ir.Value]) -> None:
        """One element into the sums that read earlier reductions."""
        for c in self.rows:
            if c.rescale is not None:
                self.add_one(c, at.half, lane, term(c, at))

    def complete(self) -> None:
        """Sums over all threads of a row, in both of its places."""
        for c in self.rows:
            if not self.whole(c):
                state = self.values.states[c.total.number]
                whole = self.totals[c.total.number]
                self._reduce_threads(c, state, whole)
                self.values.states[c.total.number] = whole
        self.positions.complete()


def reference_of(values: Values, row: Expr, at: At) -> ir.Value:
    """What sums are relative to: 0 where it would be infinite."""
    now = values.build(row, at)
    infinite = arith.cmpf(arith.CmpFPredicate.OEQ, math.absf(now), mlir.constant(inf, now.type))
    return arith.select(infinite, mlir.constant(0.0, now.type), now)


def moved(values: Values, new: ir.Value, old: ir.Value, half: ir.Value) -> ir.Value:
    """What a sum is multiplied by when its reference moves. A reference falls, but from the 0 that it is before anything: then
    the sum is 0."""
    fall = arith.minimumf(arith.subf(new, old), mlir.constant(0.0, new.type))
    return values.build(Expr("math.exp2", (_MOVED,)), At({}, half, known={_MOVED: fall}))


def _kind(c: Carried) -> str:
    return {"arith.addf": "sum", "arith.mulf": "product", "arith.maximumf": "maximum"}.get(c.total.combine, "minimum")


_MOVED = Expr("outer", key="moved")
