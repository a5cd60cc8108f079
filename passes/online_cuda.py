"""map, for CUDA: reductions that read one another, in one walk.

    s = generic sum(x)                         for chunk {
    a = generic (s / n)                          x1 = load x[chunk]
    v = generic sum((x - a)^2)        ->         s1 = sum(x1);  v1 = sum((x1 - s1 / count)^2)
                                                 s, v, count = s + s1, v + v1 + ..., count + ...  }
                                               s, v, count = those of the other threads, likewise

How states are combined is derived from how the reductions depend on each other (`tilec.online`), and so is what a
reduction reads in place of an earlier one that is not complete. A chunk, which is in registers, is gone through once
for every reduction; its states are then combined with those of the chunks before, of other threads and other blocks, in
an order that never varies.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec import mlir
from tilec.diagnostics import InternalError
from tilec.expression import Expr, Reader, operation
from tilec.mlir import arith, ir, memref
from tilec.online import Carried, Online, derive
from tilec.passes.generic_cuda import GenericMapper
from tilec.passes.loops import Place
from tilec.passes.reduce_cuda import across_threads
from tilec.passes.spaces import root

Values = dict[int, ir.Value]


class OnlineMapper:
    """Maps the reductions `ops` of a kernel as one; what stands between them is mapped after it."""

    def __init__(self, kernel, ops: list[ir.Operation]):
        self.kernel, self.threads, self.layout = kernel, kernel.threads, kernel.layout
        self.mappers = [GenericMapper(kernel, op, kernel.threads) for op in ops]
        self.first = self.mappers[0]
        self.reduced = self.first.reduced
        self.online = self._derive(ops)
        self.carried = {c.total.number: c for c in self.online.carried}
        self.count = 1 + max(self.carried)
        self.place = self.online.carried[0].total.place
        self.places = dict.fromkeys([*self.carried, self.count], self.place)
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
        (stream,) = self.reduced
        online = derive(reader.totals, stream, squares=True)
        if isinstance(online, str):
            raise InternalError(f"reductions that were planned as one walk are none: {online}", "map")
        return online

    def build(self) -> None:
        for mapper in self.mappers:
            mapper.chunk = self.first.chunk
            self._load(mapper, lambda m, n: m.layout.whole(m.places[n]))
        self.first._enter(self.first.loops, self._reduce)

    def _load(self, mapper: GenericMapper, wanted: Callable[[GenericMapper, int], bool]) -> None:
        """What the reductions read of memory, but for what they give each other."""
        leaves = {(x.key, x.place) for c in self.carried.values() for x in _leaves(c.term) if x.op == "element"}
        for n, key in enumerate(zip(mapper.operands[: mapper.count], mapper.places)):
            if key in leaves and key not in self.elements and wanted(mapper, n):
                mapper._load([n])
                self.elements[key] = mapper.tiles[n]

    def _reduce(self) -> None:
        """One chunk of the parallel dimensions: what `GenericMapper` does for one reduction."""
        self.tiles = {n: self._state(c) for n, c in self.carried.items()}
        self.tiles[self.count] = self._array("count")
        self._clear(self.tiles)
        for mapper in self.mappers:
            self._load(mapper, lambda m, n: not set(m.places[n]) & set(m.reduced_loops))
        self.first._enter(self.first.reduced_loops, self._chunk)
        across_threads(self, self)
        with self.threads.slots(self.place, {}, None, lanes=True) as place:
            at = place.slot(self.place)
            states = self._read(self.tiles, at)
            finals = {n: self._value(c.final, states, place) for n, c in self.carried.items()}
            for n, value in finals.items():
                memref.StoreOp(value, self.tiles[n], at)
        for c in self.carried.values():
            mapper, n = self._made_by(c)
            mapper.tiles[n] = self.tiles[c.total.number]
            mapper._finish(n)

    def _chunk(self) -> None:
        held = dict(self.elements)
        for mapper in self.mappers:
            self._load(mapper, lambda m, n: True)
        part = {n: self._array("part") for n in self.places}
        self._clear(part)
        done: list[Carried] = []
        for wave in _waves(self.online.carried):
            means = self._means(part, wave)
            with self.threads.slots(self.first.dims, self.chunk, self.first.sizes, lanes=True) as place:
                at = place.slot(self.place)
                for c in wave:
                    term = self._value(c.term, {}, place, {n: memref.LoadOp(m, at).result for n, m in means.items()})
                    self._add(c.total.combine, part[c.total.number], at, term)
                if not done:
                    self._add("arith.addf", part[self.count], at, mlir.constant(1.0, ir.F32Type.get()))
            done += wave
        with self.threads.slots(self.place, {}, None, lanes=True) as place:
            at, group = place.slot(self.place), list(self.places)
            a, b = ([memref.LoadOp(tiles[n], at).result for n in group] for tiles in (self.tiles, part))
            for n, value in zip(group, self.combine(group, a, b)):
                memref.StoreOp(value, self.tiles[n], at)
        self.elements = held

    def _means(self, part: Values, wave: list[Carried]) -> Values:
        """The means that the terms of a wave read, of this chunk."""
        means: Values = {}
        for number in {c.about for c in wave if c.about is not None}:
            means[number] = self._array("mean")
            with self.threads.slots(self.place, {}, None, lanes=True) as place:
                at = place.slot(self.place)
                memref.StoreOp(_mean(self._read(part, at), number, self.count), means[number], at)
        return means

    # ---- states ------------------------------------------------------------------------------------------------------

    def groups(self) -> list[list[int]]:
        """As of a `Combiner`: all states are combined together."""
        return [list(self.places)]

    def combine(self, group: list[int], a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        """Builds the combination of the states `a` and `b`, each with its count."""
        left, right = dict(zip(group, a)), dict(zip(group, b))
        count = arith.addf(left[self.count], right[self.count])
        made = {self.count: count}
        for n, c in self.carried.items():
            made[n] = ir.Operation.create(c.total.combine, results=[a[0].type], operands=[left[n], right[n]]).results[0]
            if c.about is not None:
                apart = arith.subf(_mean(right, c.about, self.count), _mean(left, c.about, self.count))
                share = arith.divf(arith.mulf(left[self.count], right[self.count]), _some(count))
                made[n] = arith.addf(made[n], arith.mulf(arith.mulf(apart, apart), share))
        return [made[n] for n in group]

    def _state(self, c: Carried) -> ir.Value:
        mapper, n = self._made_by(c)
        return mapper._state_tile(n)

    def _made_by(self, c: Carried) -> tuple[GenericMapper, int]:
        """The operation of a reduction, and which of its operands the state is."""
        mapper = next(m for m in self.mappers if m.op == c.total.operation)
        same = [t for t in self.carried.values() if t.total.operation == c.total.operation]
        return mapper, mapper.count + same.index(c)

    def _array(self, name: str) -> ir.Value:
        return self.kernel.private(self.place, ir.F32Type.get(), name)

    def _clear(self, tiles: Values) -> None:
        with self.threads.slots(self.place, {}, None, lanes=True) as place:
            for n, tile in tiles.items():
                identity = self.carried[n].identity if n in self.carried else 0.0
                memref.StoreOp(mlir.constant(identity, ir.F32Type.get()), tile, place.slot(self.place))

    def _add(self, name: str, tile: ir.Value, at: list[ir.Value], value: ir.Value) -> None:
        before = memref.LoadOp(tile, at).result
        memref.StoreOp(ir.Operation.create(name, results=[value.type], operands=[before, value]).results[0], tile, at)

    @staticmethod
    def _read(tiles: Values, at: list[ir.Value]) -> Values:
        return {n: memref.LoadOp(tile, at).result for n, tile in tiles.items()}

    # ---- expressions -------------------------------------------------------------------------------------------------

    def _value(self, x: Expr, states: Values, place: Place, means: Values | None = None) -> ir.Value:
        """An expression at a place; `states` are those of all reductions, `means` those of a chunk."""
        known: dict[Expr, ir.Value] = {}

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
                    return place.coordinate(x.place[0])
                case "element":
                    return memref.LoadOp(self.elements[x.key, x.place], place.slot(x.place)).result
                case "state":
                    return states[x.key]
                case "count":
                    return states[self.count]
                case "mean":
                    return means[x.key] if means else _mean(states, x.key, self.count)
            return None

        return build(x)


def joined(body: ir.Block) -> list[ir.Operation]:
    """The reductions of a kernel that one walk takes, in order."""
    generics = [o.operation for o in body.operations if mlir.is_generic(o.operation)]
    return [op for op in generics if "reduction" in mlir.iterators_of(op)]


def _waves(carried: tuple[Carried, ...]) -> list[list[Carried]]:
    """Reductions whose terms read none of the others, then those that read a mean."""
    waves = [[c for c in carried if c.about is None], [c for c in carried if c.about is not None]]
    return [w for w in waves if w]


def _mean(states: Values, number: int, count: int) -> ir.Value:
    """Of what a sum has added up; 0 where it is nothing."""
    return arith.divf(states[number], _some(states[count]))


def _some(count: ir.Value) -> ir.Value:
    """A count, as a divisor."""
    return arith.maximumf(count, mlir.constant(1.0, count.type))


def _leaves(x: Expr):
    if not x.args:
        yield x
    for a in x.args:
        yield from _leaves(a)
