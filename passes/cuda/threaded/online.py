"""map, for CUDA: online reductions, which read one another, in one pass.

    s = generic sum(x)                         for chunk {
    a = generic (s / n)                          x1 = load x[chunk];  s1 = sum(x1)
    v = generic sum((x - a)^2)        ->         r1, v1 = sum(x1 - s1 / count), sum((x1 - s1 / count)^2)
                                                 s, r, v, count = s + s1, r + r1 + ..., v + v1 + ..., count + ...  }
                                               s, r, v, count = those of the other threads, likewise

The combination of states is derived from the dependences between the reductions (`tilec.analysis.online_reduction`). So
is the value that a
reduction reads in place of an earlier reduction that is not complete. A chunk is in registers, and every reduction goes
through it once. The states of the chunk are then combined with those of earlier chunks, of other threads and of other
blocks, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from tilec.analysis.carried import Carried, Online, Rescale
from tilec.analysis.expression import Expr, Reader, operation
from tilec.analysis.online_reduction import derive
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import arith, gpu, ir, memref
from tilec.passes.cuda.memory_spaces import root
from tilec.passes.cuda.threaded.context import KernelContext
from tilec.passes.cuda.threaded.operation import GenericMapper
from tilec.passes.cuda.threaded.reduce import across_threads
from tilec.passes.loops import EDGE, WHOLE, Position

Values = dict[int, ir.Value]


class OnlineMapper:
    """Maps the reductions `ops` of a kernel as one online reduction. Operations between them are mapped after it."""

    def __init__(self, kernel: KernelContext, ops: list[ir.Operation]) -> None:
        self.kernel, self.threads, self.layout = kernel, kernel.threads, kernel.layout
        self.mappers = [GenericMapper(kernel, op, kernel.threads) for op in ops]
        self.first = self.mappers[0]
        self.reduced = self.first.reduced
        self.online = self._derive(ops)
        self.carried = {c.total.number: c for c in self.online.carried}
        self.count = 1 + max(self.carried)  # the number of the state that counts elements
        self.counts = any(c.about is not None for c in self.online.carried)
        self.state_dims = self.online.carried[0].total.dims
        self.operand_dims = dict.fromkeys([*self.carried, *([self.count] if self.counts else [])], self.state_dims)
        self.tiles: Values = {}
        self.elements: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}  # registers by memory and place

    @property
    def chunk(self) -> dict[int, ir.Value]:
        return self.first.chunk

    def _derive(self, ops: list[ir.Operation]) -> Online:
        every = [o.operation for o in self.kernel.body.operations if mlir.is_generic(o.operation)]
        computed = [op for op in every if len(mlir.body_of(op).operations) > 1]  # copies are memory
        dims = {op: tuple(mlir.get_integers(op, "tilec.dims")) for op in computed}
        made = {root(v): (op, n) for op in computed for n, v in enumerate(mlir.outputs_of(op))}
        reader = Reader(dims, lambda value: made.get(root(value)))
        for op in ops:
            for n in range(len(mlir.outputs_of(op))):
                reader.result(op, n)
        online = derive(reader.totals, tuple(self.reduced), exact=True)
        if isinstance(online, str):
            raise InternalError(f"reductions that were planned as online reductions are none: {online}", "map")
        return online

    def build(self) -> None:
        for mapper in self.mappers:
            mapper.chunk = self.first.chunk
            self._load(mapper, lambda m, n: m.layout.whole(m.operand_dims[n]))
        self.first._enter(self.first.loops, self._reduce)
        if any(mapper.has_copies(n) for mapper, n in map(self._made_by, self.results)):
            gpu.BarrierOp()  # as after an operation alone: threads read each other's last stores

    def _load(self, mapper: GenericMapper, wanted: Callable[[GenericMapper, int], bool]) -> None:
        """Loads the operands of the reductions, except the states that they pass to each other."""
        leaves = {(x.key, x.own_dims) for c in self.carried.values() for x in c.term.leaves if x.op == "element"}
        for n, key in enumerate(zip(mapper.operands[: mapper.count], mapper.operand_dims)):
            if key in leaves and key not in self.elements and wanted(mapper, n):
                mapper._load([n])
                self.elements[key] = mapper.tiles[n]

    def _reduce(self) -> None:
        """One chunk of the parallel dimensions: what `GenericMapper` does for one reduction."""
        self.tiles = {n: self._state(c) for n, c in self.carried.items()}
        if self.counts:
            self.tiles[self.count] = self._array("%count")
            self.seen = self._counter("seen")
        self._clear(self.tiles)
        for mapper in self.mappers:
            self._load(mapper, lambda m, n: not set(m.operand_dims[n]) & set(m.reduced_loops))
        self.first._enter(self.first.reduced_loops, self._chunk)
        if self.counts:
            with self.threads.slots(self.state_dims, {}, None, lanes=True) as position:
                memref.StoreOp(_number(self.seen), self.tiles[self.count], position.slot(self.state_dims))
        across_threads(self, self)
        with self.threads.slots(self.state_dims, {}, None, lanes=True) as position:
            at = position.slot(self.state_dims)
            states = self._read(self.tiles, at)
            finals = {c.total.number: self._value(c.final, states, position) for c in self.results}
            for n, value in finals.items():
                memref.StoreOp(value, self.tiles[n], at)
        for c in self.results:
            mapper, n = self._made_by(c)
            mapper.tiles[n] = self.tiles[c.total.number]
            mapper._store_state(n)

    def _chunk(self) -> None:
        held = dict(self.elements)
        for mapper in self.mappers:
            self._load(mapper, lambda m, n: True)
        part = {n: self._array("%part") for n in self.carried}
        self._clear(part)
        counted = self._count() if self.counts else {}
        for wave in _waves(self.online.carried):
            rows = self._rows(part, wave, counted)
            for vectors in self.threads.parts(self.first.dims, WHOLE, EDGE):
                with self.threads.slots(
                    self.first.dims, self.chunk, self.first.sizes, lanes=True, part=vectors
                ) as position:
                    at = position.slot(self.state_dims)
                    known = {x: memref.LoadOp(tile, at).result for x, tile in rows.items()}
                    for c in wave:
                        term = self._value(c.term, {}, position, known)
                        self._add(c.total.combine, part[c.total.number], at, term)
        before = {self.count: _number(self.seen)} if self.counts else {}
        with self.threads.slots(self.state_dims, {}, None, lanes=True) as position:
            at, group = position.slot(self.state_dims), list(self.operand_dims)
            a = self._read({n: self.tiles[n] for n in self.carried}, at) | before
            b = self._read(part, at) | counted
            for n, value in zip(group, self.combine(group, [a[n] for n in group], [b[n] for n in group])):
                if n in self.carried:
                    memref.StoreOp(value, self.tiles[n], at)
        if self.counts:
            memref.StoreOp(arith.addf(before[self.count], counted[self.count]), self.seen, [mlir.index(0)])
        self.elements = held

    def _counter(self, name: str) -> ir.Value:
        """A number of elements that starts from 0."""
        counter = self.kernel.registers(1, ir.F32Type.get(), f"%{name}")
        memref.StoreOp(mlir.constant(0.0, ir.F32Type.get()), counter, [mlir.index(0)])
        return counter

    def _count(self) -> Values:
        """The number of this thread's elements in the chunk, which is the same for all its columns. One reciprocal replaces
        the divisions by it."""
        counter = self._counter("some")
        dims = tuple(self.reduced)
        for vectors in self.threads.parts(dims, WHOLE, EDGE):
            with self.threads.slots(dims, self.first.chunk, self.first.sizes, lanes=True, part=vectors):
                self._add("arith.addf", counter, [mlir.index(0)], mlir.constant(1.0, ir.F32Type.get()))
        return {self.count: _number(counter)}

    def _rows(self, part: Values, wave: list[Carried], counted: Values) -> dict[Expr, ir.Value]:
        """The values of earlier waves that the terms of a wave read, for this chunk: means, and references of exponents."""
        leaves = {x for c in wave for x in c.term.leaves if x.op in ("mean", "reference")}
        tiles = {x: self._array(f"%{x.op}") for x in sorted(leaves, key=lambda x: (x.op, x.key))}
        if tiles:
            with self.threads.slots(self.state_dims, {}, None, lanes=True) as position:
                at = position.slot(self.state_dims)
                states = self._read(part, at) | counted
                for x, tile in tiles.items():
                    memref.StoreOp(self._value(x, states, position), tile, at)
        return tiles

    # ---- states ------------------------------------------------------------------------------------------------------

    def tensor(self, n: int) -> str | None:
        """The source's name of a state; none of the number of elements."""
        return self.carried[n].total.name if n in self.carried else None

    def groups(self) -> list[list[int]]:
        """As of a `Combiner`: all states are combined together."""
        return [list(self.operand_dims)]

    def combine(self, group: list[int], a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        """Builds the combination of the states `a` and `b`, each with its count."""
        left, right = dict(zip(group, a)), dict(zip(group, b))
        made: dict[Any, ir.Value] = {}
        for c in [c for wave in _waves(self.online.carried) for c in wave]:
            n, sides = c.total.number, [left[c.total.number], right[c.total.number]]
            if c.rescale is not None:
                moved = [self._factor(c.rescale, old, made) for old in (left, right)]
                for _ in range(c.power):
                    sides = [arith.mulf(side, factor) for side, factor in zip(sides, moved)]
            made[n] = ir.Operation.create(c.total.combine, results=[a[0].type], operands=sides).results[0]
            if c.about is not None:
                made[self.count] = arith.addf(left[self.count], right[self.count])
                moved = [self._about(c, side, _mean(made, c.about, self.count)) for side in (left, right)]
                about = arith.addf(*moved)
                if c.rest != n:
                    limit = mlir.constant(inf, about.type)
                    about = arith.select(arith.cmpf(arith.CmpFPredicate.OLT, made[n], limit), about, made[n])
                made[n] = about
        return [made[n] for n in group]

    def _about(self, c: Carried, states: Values, mean: ir.Value) -> ir.Value:
        """A sum of distances from a mean, or of their squares, as one of those from another mean."""
        assert c.about is not None and c.rest is not None
        off, rest = arith.subf(_mean(states, c.about, self.count), mean), states[c.rest]
        share = arith.mulf(states[self.count], off)
        if c.rest == c.total.number:
            return arith.addf(rest, share)
        double = arith.addf(rest, arith.addf(rest, share))
        return arith.addf(states[c.total.number], arith.mulf(off, double))

    def _factor(self, rescale: Rescale, old: Values, new: Values) -> ir.Value:
        """The rescaling factor of a state from one reference to another; 0 if no element has been seen."""
        before = self._row(rescale, old)
        return operation(Expr(rescale.op), [arith.subf(_reference(self._row(rescale, new)), before)])

    def _row(self, rescale: Rescale, states: Values) -> ir.Value:
        """The exponent that a state is relative to, from the elements that its reductions have seen; infinite before the first."""
        row, seen = self._value(self.online.final(rescale.row), states, None), states[rescale.extreme]
        identity = mlir.constant(self.carried[rescale.extreme].identity, seen.type)
        nothing = arith.cmpf(arith.CmpFPredicate.OEQ, seen, identity)
        return arith.select(nothing, mlir.constant(inf, row.type), row)

    @property
    def results(self) -> list[Carried]:
        """Those that the program has."""
        return [c for c in self.carried.values() if c.total.number >= 0]

    def _state(self, c: Carried) -> ir.Value:
        if c.total.number < 0:
            return self._array(f"%{c.total.name}")
        mapper, n = self._made_by(c)
        return mapper._state_tile(n)

    def _made_by(self, c: Carried) -> tuple[GenericMapper, int]:
        """The operation of a reduction, and which of its operands the state is."""
        mapper = next(m for m in self.mappers if m.op == c.total.operation)
        same = sorted(t.total.number for t in self.results if t.total.operation == c.total.operation)
        return mapper, mapper.count + same.index(c.total.number)

    def _array(self, name: str) -> ir.Value:
        return self.kernel.private(self.state_dims, ir.F32Type.get(), name)

    def _clear(self, tiles: Values) -> None:
        with self.threads.slots(self.state_dims, {}, None, lanes=True) as position:
            for n, tile in tiles.items():
                identity = self.carried[n].identity if n in self.carried else 0.0
                memref.StoreOp(mlir.constant(identity, ir.F32Type.get()), tile, position.slot(self.state_dims))

    def _add(self, name: str, tile: ir.Value, at: list[ir.Value], value: ir.Value) -> None:
        before = memref.LoadOp(tile, at).result
        memref.StoreOp(ir.Operation.create(name, results=[value.type], operands=[before, value]).results[0], tile, at)

    @staticmethod
    def _read(tiles: Values, at: list[ir.Value]) -> Values:
        return {n: memref.LoadOp(tile, at).result for n, tile in tiles.items()}

    # ---- expressions -------------------------------------------------------------------------------------------------

    def _value(
        self, x: Expr, states: Values, position: Position | None, rows: dict[Expr, ir.Value] | None = None
    ) -> ir.Value:
        """An expression at a slot, from the states of all reductions; `rows` has leaves with known values."""
        known = dict(rows or {})

        def build(x: Expr) -> ir.Value:
            if x not in known:
                value = leaf(x)
                known[x] = operation(x, [build(a) for a in x.args]) if value is None else value
            return known[x]

        def leaf(x: Expr) -> ir.Value | None:
            match x.op:
                case "constant":
                    return mlir.constant(x.key, mlir.type_of(x.type))
                case "outer":
                    return x.key
                case "index":
                    assert position is not None
                    return position.coordinate(x.own_dims[0])
                case "element":
                    assert position is not None
                    return memref.LoadOp(self.elements[x.key, x.own_dims], position.slot(x.own_dims)).result
                case "state":
                    return states[x.key]
                case "count":
                    return states[self.count]
                case "mean":
                    return _mean(states, x.key, self.count)
                case "reference":
                    return _reference(self._row(self.online.rescales[x.key], states))
            return None

        return build(x)


def joined(body: ir.Block) -> list[ir.Operation]:
    """The reductions of a kernel that share one pass, in order."""
    generics = [o.operation for o in body.operations if mlir.is_generic(o.operation)]
    return [op for op in generics if "reduction" in mlir.iterators_of(op)]


def _waves(carried: tuple[Carried, ...]) -> list[list[Carried]]:
    """The reductions in waves: those whose terms read no others, then those whose terms read these, and so on."""
    depth: dict[int, int] = {}
    for c in sorted(carried, key=lambda c: (c.about is not None or c.rescale is not None, c.total.number)):
        read = {c.about} if c.about is not None else c.rescale.row.totals if c.rescale is not None else set()
        depth[c.total.number] = 1 + max((depth[n] for n in read), default=-1)
    return [[c for c in carried if depth[c.total.number] == d] for d in range(1 + max(depth.values()))]


def _reference(row: ir.Value) -> ir.Value:
    """The reference of terms; 0 as long as only the identity of a maximum has been seen."""
    nothing = arith.cmpf(arith.CmpFPredicate.OEQ, row, mlir.constant(inf, row.type))
    return arith.select(nothing, mlir.constant(0.0, row.type), row)


def _mean(states: Values, number: int, count: int) -> ir.Value:
    """The mean of a sum's elements; 0 if it has none."""
    return arith.mulf(states[number], _inverse(states[count]))


def _inverse(count: ir.Value) -> ir.Value:
    """The reciprocal of a count; 1 if the count is 0."""
    one = mlir.constant(1.0, count.type)
    return arith.divf(one, arith.select(arith.cmpf(arith.CmpFPredicate.OGT, count, one), count, one))


def _number(counter: ir.Value) -> ir.Value:
    return memref.LoadOp(counter, [mlir.index(0)]).result
