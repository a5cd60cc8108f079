"""Expressions of a contraction chain as operations on registers: elements of a fragment, and rows.

A thread has two rows (`half` 0 and 1, eight apart) of every 16 of its warp's, and in each of every 8 columns two adjacent ones.
Row values are arrays over halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tilec.analysis.chain_masks import linear
from tilec.analysis.expression import Expr, Total
from tilec.core import mlir
from tilec.core.mlir import arith, gpu, ir, math, memref
from tilec.passes.emit import Expressions, emit, given
from tilec.passes.loops import loop, sum_of

EXACT = 1 << 24  # integers below are exact floats
QUAD = (1, 2)  # distances of the threads that share a row


@dataclass
class At:
    """One place: kernel dimensions as numbers, and the elements there of the first contractions' results (`scores`) and of the sums
    of the last ones' (`products`), by number. `known` keeps
    what has been computed. `parts` has numbers as sums of one that all of a thread's elements share, and of one that is known when
    the kernel is compiled."""

    coordinates: dict[int, ir.Value]
    half: ir.Value
    scores: dict[int, ir.Value] = field(default_factory=dict)
    products: dict[int, ir.Value] = field(default_factory=dict)
    known: dict[Expr, ir.Value] = field(default_factory=dict)
    parts: dict[int, tuple[ir.Value, ir.Value]] = field(default_factory=dict)


class Values:
    """Builds expressions at the insertion point. `states` and `references` hold one register array each, by number. `limits`: the
    last numbers along dimensions of which a tile may have fewer elements. No index is beyond `largest`."""

    def __init__(self, limits: dict[int, ir.Value], largest: int = 1 << 24):
        self.limits, self.largest = limits, largest
        self.states: dict[int, ir.Value] = {}
        self.references: dict[int, ir.Value] = {}

    def build(self, x: Expr, at: At) -> ir.Value:
        found = emit(x, Expressions(lambda part: self._leaf(part, at), at.known))
        assert found is not None, "all leaves are known"
        return found

    def _leaf(self, x: Expr, at: At) -> ir.Value | None:
        match x.op:
            case "constant" | "outer":
                return given(x)
            case "index":
                return at.coordinates.get(x.own_dims[0]) or mlir.index(0)
            case "element" if x.args:
                return memref.LoadOp(x.key, self._subscripts(x, at)).result
            case "element":
                return memref.LoadOp(x.key, self.coordinates(x, at)).result
            case "total":
                return at.scores[x.key]
            case "state" if x.key in at.products:
                return at.products[x.key]
            case "state":
                state = self.states[x.key]
                rest = [mlir.index(0)] * (len(ir.MemRefType(state.type).shape) - 1)
                return memref.LoadOp(state, [at.half, *rest]).result
            case "reference":
                return memref.LoadOp(self.references[x.key], [at.half]).result
            case "arith.sitofp":
                return self._distance(x, at)
            case "math.exp2" if x.template is None:  # ours: the exponent of a weight, at most 0
                return math.Exp2Op(self.build(x.args[0], at), fastmath=ir.Attribute.parse("#arith.fastmath<afn>")).result
        return None

    def coordinates(self, x: Expr, at: At) -> list[ir.Value]:
        """Of an element at bare subscripts."""
        return [self._inside(d, at) for d in x.own_dims]

    def _distance(self, x: Expr, at: At) -> ir.Value | None:
        """An integer that is linear in indices as a float, where it is exact: only the part that a thread's elements share is
        converted."""
        inner, kind = x.args[0], mlir.type_of(x.type)
        found = linear(inner.args[0] if inner.op == "math.absi" else inner)
        if found is None or not at.parts or x.type != "f32":
            return None
        leaves, number = found
        known = [leaf for leaf in leaves if leaf.op == "index" or (leaf.op == "outer" and is_of_one_index(leaf.key))]
        if len(known) < len(leaves) or abs(number) + sum(map(abs, leaves.values())) * self.largest >= EXACT:
            return None
        shared, more = [], []
        for leaf, f in leaves.items():
            first, offset = at.parts.get(leaf.own_dims[0], (None, None)) if leaf.op == "index" else (None, None)
            shared.append((as_index(self.build(leaf, at) if first is None else first), f))
            more += [] if offset is None else [(offset, f)]
        i32 = ir.IntegerType.get_signless(32)
        parts = [arith.sitofp(kind, arith.index_cast(i32, sum_of(terms, n))) for terms, n in ((shared, number), (more, 0))]
        total = arith.addf(*parts)
        return math.absf(total) if inner.op == "math.absi" else total

    def _subscripts(self, x: Expr, at: At) -> list[ir.Value]:
        """Of an element at computed places, where memory may be read."""
        inside = At({d: self._inside(d, at) for d in at.coordinates}, at.half)
        return [self.build(a, inside) for a in x.args]

    def _inside(self, d: int, at: At) -> ir.Value:
        """A coordinate at which memory may be read: rows and columns beyond the edge repeat the last one."""
        coordinate = at.coordinates.get(d)
        if coordinate is None:
            return mlir.index(0)
        return arith.minsi(coordinate, self.limits[d]) if d in self.limits else coordinate


def is_of_one_index(value: ir.Value) -> bool:
    """Whether a number from before the operations is an index, or where a block begins along it."""
    owner = mlir.definition(value)
    return owner is None or owner.name != "affine.apply" or len(owner.operands) == 1


def as_index(value: ir.Value) -> ir.Value:
    return value if isinstance(value.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), value)


def fill(array: ir.Value, value: float) -> None:
    with ExitStack() as stack:
        names = iter(("half", "pair"))
        point = [stack.enter_context(loop(n, name=next(names))) for n in ir.MemRefType(array.type).shape]
        memref.StoreOp(mlir.constant(value, ir.MemRefType(array.type).element_type), array, point)


@contextmanager
def halves(count: int) -> Iterator[ir.Value]:
    """Over a thread's rows, of which there are `count`."""
    with loop(count, unroll=True, name="half") as half:
        yield half


@contextmanager
def pairs(count: int) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Over a thread's rows, and in each over two adjacent columns."""
    with halves(count) as half, loop(2, unroll=True, name="pair") as lane:
        yield half, lane


def rows_of(fragments: ir.Value) -> int:
    """The rows that a thread has of fragments: two of every 16."""
    return ir.MemRefType(fragments.type).shape[1]


def statements(totals: Iterable[Total]) -> ir.Location:
    """The statements of the source that some reductions serve."""
    return ir.Location.fused([ir.Location.name(t.name, t.operation.location) for t in totals])


def combine(name: str, a: ir.Value, b: ir.Value) -> ir.Value:
    return ir.Operation.create(name, results=[a.type], operands=[a, b]).results[0]


def shuffle(value: ir.Value, distance: int) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    offset, width = mlir.constant(distance, i32), mlir.constant(32, i32)
    return gpu.ShuffleOp(value, offset, width, gpu.ShuffleMode.XOR).results[0]


def selected(condition: ir.Value | None, value: ir.Value, otherwise: float) -> ir.Value:
    """`value` where the condition holds, or there is none."""
    if condition is None:
        return value
    return arith.select(condition, value, mlir.constant(otherwise, value.type))


def hoisted(x: Expr, varies: Callable[[Expr], bool]) -> Iterable[Expr]:
    """The largest parts that do not vary: computed once, before a loop."""
    if not varies(x):
        return [x] if x.args else []
    return [p for a in x.args for p in hoisted(a, varies)]
