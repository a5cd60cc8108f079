"""The loops of a thread over its elements: unrolled steps, and guards where a tile is not full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce

from tilec.analysis.layout import Layout
from tilec.core import locations, mlir
from tilec.core.mlir import affine, arith, gpu, ir, scf

Count = int | ir.Value
"""A number, or one that a kernel computes of sizes that vary."""


@contextmanager
def loop(
    extent: Count,
    always: bool = False,
    unroll: bool = False,
    rolled: bool = False,
    start: int = 0,
    name: str | None = None,
) -> Iterator[ir.Value]:
    """A loop of `extent` iterations from `start` on; of one iteration none, unless `always`. `rolled`: LLVM does not unroll it.

    `unroll`: printed without the loop. LLVM leaves loops with branches inside, and the arrays that they subscript then
    are memory, not registers.
    """
    if isinstance(extent, int) and extent == 1 and not always:
        yield mlir.index(start)
        return
    made = locations.named(scf.ForOp(mlir.index(start), mlir.index(plus(extent, start)), mlir.index(1)), name)
    if unroll:
        made.attributes["tilec.unroll"] = ir.UnitAttr.get()
    elif rolled:
        made.attributes["tilec.rolled"] = ir.UnitAttr.get()
    with ir.InsertionPoint(made.body):
        yield made.induction_variable
        scf.YieldOp([])


@contextmanager
def states(
    count: int, values: Sequence[ir.Value], name: str, *carried: str | None
) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
    """An unrolled loop that carries values: the body changes the list, which has the last ones behind the loop."""
    made = locations.named(scf.ForOp(mlir.index(0), mlir.index(count), mlir.index(1), list(values)), name, *carried)
    made.operation.attributes["tilec.unroll"] = ir.UnitAttr.get()
    now = list(made.inner_iter_args)
    with ir.InsertionPoint(made.body):
        yield made.induction_variable, now
        scf.YieldOp(now)
    now[:] = list(made.results)


@contextmanager
def when(condition: ir.Value) -> Iterator[scf.IfOp]:
    made = scf.IfOp(condition)
    with ir.InsertionPoint(made.then_block):
        yield made
        scf.YieldOp([])


def all_of(conditions: Sequence[ir.Value]) -> ir.Value | None:
    return reduce(arith.andi, conditions) if conditions else None


def below(value: ir.Value, limit: ir.Value | int) -> ir.Value:
    limit = mlir.index(limit)
    return arith.cmpi(arith.CmpIPredicate.slt, value, limit)


def _least(value: ir.Value, least: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.sge, value, mlir.index(least))


def sum_of(terms: list[tuple[ir.Value, int]], constant: int = 0) -> ir.Value:
    """constant + the sum of value * factor, as one `affine.apply`; known values are folded."""
    kept = []
    for value, factor in terms:
        known = mlir.constant_value(value)
        if known is None:
            kept.append((value, factor))
        else:
            constant += int(known) * factor
    if not kept:
        return mlir.index(constant)
    if len(kept) == 1 and kept[0][1] == 1 and constant == 0:
        return kept[0][0]
    expression: ir.AffineExpr = ir.AffineConstantExpr.get(constant)
    for n, (_, factor) in enumerate(kept):
        expression = ir.AffineDimExpr.get(n) * factor + expression
    return affine.AffineApplyOp(ir.AffineMap.get(len(kept), 0, [expression]), [v for v, _ in kept]).result


def counts_of(forall: ir.Operation) -> list[Count]:
    """How many blocks there are along each dimension of a loop over blocks."""
    ends = list(forall.operands)
    return [ends.pop(0) if n == mlir.DYNAMIC else n for n in ir.DenseI64ArrayAttr(forall.attributes["staticUpperBound"])]


def times(a: Count, b: Count) -> Count:
    """The product of two numbers, one that is computed if one of them is."""
    if a == 1 or b == 1:
        return b if a == 1 else a
    return a * b if isinstance(a, int) and isinstance(b, int) else arith.muli(mlir.index(a), mlir.index(b))


def product(counts: Iterable[Count]) -> Count:
    found: Count = 1
    for count in counts:
        found = times(found, count)
    return found


def plus(a: Count, b: Count) -> Count:
    """The sum of two numbers, one that is computed if one of them is."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return sum_of([(mlir.index(a), 1), (mlir.index(b), 1)])


def least(a: Count, b: Count) -> Count:
    """The lesser one."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else arith.minsi(mlir.index(a), mlir.index(b))


def quotient_up(a: Count, by: int) -> Count:
    """How many parts of `by` have all of a number, the last of which may not be full."""
    if isinstance(a, int) or by == 1:
        return a if isinstance(a, ir.Value) else -(-a // by)
    parts = ir.AffineExpr.get_ceil_div(ir.AffineDimExpr.get(0), by)
    return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [parts]), [a]).result


def delinearise(number: ir.Value, counts: Sequence[Count], names: Sequence[str | None] = ()) -> list[ir.Value]:
    """A number's digits in the mixed radix `counts`, the last the fastest. With `names` they are called so."""
    digits: list[ir.Value] = []
    below: Count = 1
    for n in range(len(counts) - 1, -1, -1):
        digit = number if below == 1 else arith.divui(number, mlir.index(below))
        if counts[n] == 1:
            digit = mlir.index(0)
        elif any(isinstance(c, ir.Value) or c > 1 for c in counts[:n]):
            digit = arith.remui(digit, mlir.index(counts[n]))
        digits.append(digit)
        if n < len(names):
            locations.named(digit, names[n])
        below = times(below, counts[n])
    return digits[::-1]


INNER, WHOLE, EDGE, TOUCHED = "inner", "whole", "edge", "touched"


@dataclass(frozen=True)
class Part:
    """Steps of a nest over an unaligned row from `low` to before `high`, and the kind of vectors: those within the row
    (WHOLE), those partly within it (EDGE), or both (TOUCHED). INNER: all vectors are within the row."""

    kind: str
    low: int
    high: int


@dataclass
class Position:
    """One slot of a thread: the step and lane along every dimension of a loop nest, and its coordinates in the block's
    tile. `misalignment`: the number of elements in front of the row's first element. `inside`: whether an element at the edge of an
    unaligned row is within it, where the nest has no guard for that."""

    layout: Layout
    steps: dict[int, ir.Value]
    bases: dict[int, ir.Value]
    lane: ir.Value | None
    misalignment: ir.Value | None = None
    inside: ir.Value | None = None

    def slot(self, dims: tuple[int, ...], lane: int = 0, chunk: dict[int, ir.Value] | None = None) -> list[ir.Value]:
        """Indices of this slot in a private tile over `dims`; in one that holds all chunks, of the one that is given."""
        at = [self.steps[d] for d in dims]
        for n, d in enumerate(dims):
            if chunk and d in chunk:
                at[n] = sum_of([(chunk[d], self.layout.steps[d]), (at[n], 1)])
        if self.layout.lane_dim in dims:
            at.append(mlir.index(lane) if self.lane is None else self.lane)
        return at

    def offset_lane(self, number: int) -> Position:
        """The same slot, some lanes further."""
        if not number:
            return self
        assert self.lane is not None
        return replace(self, lane=sum_of([(self.lane, 1)], number))

    def coordinate(self, d: int, lane: int = 0) -> ir.Value:
        if d != self.layout.lane_dim:
            return self.bases[d]
        terms = [(self.bases[d], 1)] if self.lane is None else [(self.bases[d], 1), (self.lane, 1)]
        return sum_of(terms if self.misalignment is None else [*terms, (self.misalignment, -1)], lane)

    def coordinates(self, dims: tuple[int, ...], lane: int = 0) -> list[ir.Value]:
        """Indices of this slot in the block's tile over `dims`."""
        return [self.coordinate(d, lane) for d in dims]


def flat_slot(position: Position, dims: tuple[int, ...]) -> ir.Value:
    """The number of a slot among those of its tile."""
    layout = position.layout
    sizes = [layout.steps[d] for d in dims] + [layout.vectors[d] for d in dims if d == layout.lane_dim]
    terms, below = [], 1
    for index, size in reversed(list(zip(position.slot(dims), sizes))):
        terms.append((index, below))
        below *= size
    return sum_of(terms)


class Threads:
    """This thread's coordinate along every dimension. `misalignment`: see `Position`. Each block has at least `least`
    elements of an unaligned row. `inner` is true while nests are built for chunks whose vectors are all within the row.
    `names`: of loops by dimension."""

    def __init__(
        self,
        layout: Layout,
        misalignment: ir.Value | None = None,
        least: int = 0,
        names: Mapping[int, str] | None = None,
    ):
        self.layout, self.misalignment, self.least, self.inner = layout, misalignment, least, False
        self.names = names or {}
        self.number = gpu.ThreadIdOp(gpu.Dimension.x).result
        self.thread_index = {d: self._thread_index(d) for d in layout.order}
        self.start = {d: sum_of([(v, layout.strides(d)[0])]) for d, v in self.thread_index.items()}

    def _thread_index(self, d: int) -> ir.Value:
        """A few bits of the thread's number. Thread counts are powers of two."""
        layout, value = self.layout, self.number
        if layout.threads[d] == 1:
            return mlir.index(0)
        if layout.stride(d) > 1:
            value = arith.shrui(value, mlir.index(layout.stride(d).bit_length() - 1))
        if layout.stride(d) * layout.threads[d] < layout.block:
            value = arith.andi(value, mlir.index(layout.threads[d] - 1))
        if value != self.number:
            locations.named(value, self.name(d, "thread"))
        return value

    def name(self, d: int, part: str) -> str | None:
        """Of a loop over chunks, steps or lanes of a dimension: the index alone where nothing else tells its values apart."""
        layout, name = self.layout, self.names.get(d)
        others = {
            "chunk": layout.chunks(d), "thread": layout.threads[d], "step": layout.steps[d], "lane": layout.vectors[d]
        }  # fmt: skip
        alone = all(count == 1 for other, count in others.items() if other != part)
        return name if alone or name is None else f"{name}_{part}"

    def alone(self, dims: list[int]) -> bool:
        """Whether two threads always differ in a coordinate outside `dims`."""
        return self._bits(dims) == 0

    def _bits(self, dims: list[int]) -> int:
        """Those of a thread's number that say where along `dims` it is, or whose work it repeats."""
        bits = sum((self.layout.threads[d] - 1) * self.layout.stride(d) for d in dims)
        return bits | self.layout.block - self.layout.used  # both powers of two: the bits above those in use

    def first(self, dims: list[int]) -> ir.Value | None:
        """Whether this thread is the first along `dims`, and none that only repeats others' work."""
        bits = self._bits(dims)
        if bits == 0:
            return None
        masked = self.number
        if bits != self.layout.block - 1:
            masked = arith.andi(self.number, mlir.index(bits))
        return arith.cmpi(arith.CmpIPredicate.eq, masked, mlir.index(0))

    @contextmanager
    def slots(
        self, dims: tuple[int, ...], chunk: dict[int, ir.Value], sizes: dict[int, int | ir.Value] | None, *,
        lanes: bool, owner: ir.Value | None = None, lane_stride: int = 1, part: Part | None = None,
        where: Callable[[Position], ir.Value] | None = None, masked: bool = False,
    ) -> Iterator[Position]:  # fmt: skip
        """Loops over this thread's steps and lanes along `dims`, guarded to `sizes` where they are given; only over every
        lane that is `lane_stride` from the next.

        Where vectors are used every vector is inside or outside as a whole, so that one guard a step is enough; but for
        unaligned rows, of which a nest takes the vectors that `part` says (and `where`), and each lane at the edges has its guard;
        with `masked`, `Position.inside` instead.
        """
        layout, kind = self.layout, part.kind if part else None
        position = Position(layout, {}, {}, None, self.misalignment)
        with ExitStack() as stack:
            if owner is not None:
                stack.enter_context(when(owner))
            # of neighbours, guards that all steps share stand around them
            for d in sorted(dims, key=lambda d: layout.steps[d] > 1) if layout.dense else dims:
                mine = part if d == layout.lane_dim else None
                cut = sizes is not None and isinstance(sizes[d], ir.Value) and (mine is None or kind != INNER)
                guarded = d in layout.dense and sizes is not None and any(self._partial(e, sizes[e]) for e in dims)
                unroll = cut or guarded or (mine is not None and (kind == EDGE or where is not None))
                low, high = (mine.low, mine.high) if mine else (0, layout.steps[d])
                step = position.steps[d] = stack.enter_context(
                    loop(high - low, unroll=unroll, start=low, name=self.name(d, "step"))
                )
                start = [(self.start[d], 1)] if d in self.start else []
                outer = [(chunk[d], layout.chunk(d))] if d in chunk else []
                position.bases[d] = sum_of([*outer, *start, (step, layout.strides(d)[1])])
                if mine is not None and kind == INNER:
                    pass
                elif mine is not None:
                    assert sizes is not None
                    inside = self._within(position, d, sizes[d], kind)
                    stack.enter_context(when(inside if where is None else arith.andi(inside, where(position))))
                elif sizes is not None:
                    stack.enter_context(self._guard(position, d, sizes[d]))
            if lanes and layout.lane_dim in dims:
                count, name = layout.vectors[layout.lane_dim] // lane_stride, self.name(layout.lane_dim, "lane")
                number = stack.enter_context(loop(count, unroll=kind == EDGE, name=name))
                position.lane = sum_of([(number, lane_stride)])
                if kind == EDGE:
                    assert sizes is not None
                    element, d = position.coordinate(layout.lane_dim), layout.lane_dim
                    inside = arith.andi(_least(element, 0), below(element, sizes[d]))
                    if masked:
                        position.inside = inside
                    else:
                        stack.enter_context(when(inside))
            yield position

    def parts(self, dims: tuple[int, ...], *kinds: str) -> list[Part | None]:
        """The `part`s that nests over `dims` take between them: of `kinds`, and the inner ones."""
        d = self.layout.lane_dim
        if not self._is_unaligned(d) or d not in dims:
            return [None]
        steps, around = self.layout.steps[d], self.layout.chunks(d) > 1
        low, high = (0, steps if self.inner else 0) if around else self._inner(steps, self.layout.span(d))
        parts = [Part(INNER, low, high)] if high > low else []
        return [*parts, *(Part(kind, a, b) for a, b in ((0, low), (high, steps)) if a < b for kind in kinds)]

    def ranges(self, d: int) -> list[tuple[int, int, bool]]:
        """The chunks along a dimension from where to before where, and whether all vectors in them are within an unaligned row."""
        chunks = self.layout.chunks(d)
        if not self._is_unaligned(d):
            return [(0, chunks, False)]
        low, high = self._inner(chunks, self.layout.chunk(d))
        return [(a, b, a == low < high) for a, b in ((0, low), (low, high), (high, chunks)) if a < b]

    def _inner(self, count: int, size: int) -> tuple[int, int]:
        """Which of `count` pieces of `size` elements each have no vector at a row's ends."""
        return min(1, count), max(min(1, count), min(count, self.least // size))

    def _is_unaligned(self, d: int | None) -> bool:
        return self.misalignment is not None and d == self.layout.lane_dim

    def _within(self, position: Position, d: int, size: int | ir.Value, part: str | None) -> ir.Value:
        """Whether the vector of a step is such a part of an unaligned row."""
        first, vector = position.coordinate(d), self.layout.vectors[d]
        last = sum_of([(first, 1)], vector - 1)
        if part == WHOLE:
            return arith.andi(_least(first, 0), below(last, size))
        touched = arith.andi(_least(last, 0), below(first, size))
        if part == TOUCHED:
            return touched
        begins = arith.cmpi(arith.CmpIPredicate.slt, first, mlir.index(0))
        limit = size if isinstance(size, ir.Value) else mlir.index(size)
        return arith.andi(touched, arith.ori(begins, arith.cmpi(arith.CmpIPredicate.sge, last, limit)))

    @contextmanager
    def lanes(self, position: Position, sizes: dict[int, int | ir.Value]) -> Iterator[Position]:
        """The lanes of one step, where it is inside."""
        with ExitStack() as stack:
            for d in position.bases:
                stack.enter_context(self._guard(position, d, sizes[d]))
            inner = Position(self.layout, position.steps, position.bases, None)
            if self.layout.lane_dim in position.bases:
                d = self.layout.lane_dim
                inner.lane = stack.enter_context(loop(self.layout.vectors[d], name=self.name(d, "lane")))
            yield inner

    def _guard(self, position: Position, d: int, size: int | ir.Value) -> AbstractContextManager[object]:
        if not self._partial(d, size):
            return nullcontext()
        return when(below(position.bases[d], size))

    def _partial(self, d: int, size: int | ir.Value) -> bool:
        return isinstance(size, ir.Value) or size % self.layout.chunk(d) != 0


__all__ = [
    "EDGE",
    "INNER",
    "TOUCHED",
    "WHOLE",
    "Part",
    "Position",
    "Threads",
    "below",
    "delinearise",
    "flat_slot",
    "loop",
    "sum_of",
    "when",
]
