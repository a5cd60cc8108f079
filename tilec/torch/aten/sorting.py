"""Sorts, and the largest or smallest elements: by ranks, which compare each pair of a row, or one element after the other.

NaN counts as the largest number, as in PyTorch. Of equal elements the one of the smaller index comes first; where PyTorch promises
no order of them, this is one that it may have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilec.core.dtypes import DTYPES
from tilec.torch import indices as ix
from tilec.torch.aten import costs
from tilec.torch.aten.pools import highest, lowest
from tilec.torch.aten.table import Call, Value, expresses, refused
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, literal, reduction

MOST_CHOSEN = 8
"""Elements that are found one after the other."""
TOO_LONG = "rows that are sorted sooner than their elements are compared with each other"


@dataclass(frozen=True)
class Rows:
    """A tensor along one of its dimensions."""

    call: Call
    x: Tensor
    axis: int

    @staticmethod
    def of(call: Call, x: Tensor) -> Rows:
        """Along the dimension that the call names; a tensor without dimensions is a row of one element."""
        x = x if x.shape else x.reshaped((1,))
        return Rows(call, x, int(call["dim"]) % len(x.shape))

    @property
    def length(self) -> int:
        return self.x.shape[self.axis]

    @property
    def count(self) -> int:
        return prod(self.x.shape) // self.length

    def at(self, i: Sequence[Index], position: Index) -> str:
        """An element of the row at `i`, in a type whose comparisons the language has."""
        text = self.x.at(*(position if d == self.axis else p for d, p in enumerate(i)))
        return f"i32({text})" if self.x.dtype == "bool" else text

    @property
    def has_nan(self) -> bool:
        return DTYPES[self.x.dtype].is_float

    def shape(self, extent: int) -> tuple[int, ...]:
        return tuple(extent if d == self.axis else n for d, n in enumerate(self.x.shape))

    def emit(self, extent: int, expression: Callable[[list[Index], Index], str], dtype: str = "i32") -> Tensor:
        """A tensor of `extent` elements for each row, by an expression of the row and the position."""
        return self.call.graph.emit(self.shape(extent), dtype, lambda i: expression(i, i[self.axis]))

    def reduced(self, kind: str, body: Callable[[Index], str]) -> str:
        """A reduction over the positions of a row."""
        return reduction(kind, [self.length], lambda k: body(k[0]))

    # ---- ranks ---------------------------------------------------------------------------------------------------------

    def ranks(self, descending: bool) -> Tensor:
        """How many elements of its row come before an element."""
        rows = self._stored()

        def rank(i: list[Index], a: Index) -> str:
            mine = rows.at(i, a)
            return rows.reduced("sum", lambda b: f"i32({rows._before(rows.at(i, b), b, mine, a, descending)})")

        return rows.emit(self.length, rank)

    def _stored(self) -> Rows:
        """The rows as a tensor of their own: each element is read as often as its row is long, and positions are one index."""
        x = self.x
        if x.positions is None and x.formula is None:
            return self
        every = range(len(x.shape))
        return replace(self, x=self.call.graph.emit(x.shape, x.dtype, lambda i: x.at(*i), x.nominal, every))

    def _before(self, other: str, b: Index, mine: str, a: Index, descending: bool) -> str:
        """Whether an element comes before mine: of an earlier position if no later in order, of a later one if mine is not."""
        order = ">=" if descending else "<="

        def ordered(x: str, y: str) -> str:
            number = x if descending else y  # the one that may be NaN and yet not be later
            return f"({x} {order} {y} or isnan({number}))" if self.has_nan else f"{x} {order} {y}"

        return f"{ordered(other, mine)} if {b} < {a} else not {ordered(mine, other)}"

    def of_ranks(self, ranks: Tensor, wanted: Callable[[list[Index], Index], str], extent: int) -> Tensor:
        """The positions whose ranks are wanted."""

        def position(i: list[Index], r: Index) -> str:
            rank = wanted(i, r)
            at = lambda a: ranks.at(*(a if d == self.axis else p for d, p in enumerate(i)))  # noqa: E731
            return self.reduced("sum", lambda a: f"i32({a}) if {at(a)} == {rank} else 0")

        return self.emit(extent, position)

    # ---- one after the other -------------------------------------------------------------------------------------------

    def chosen(self, count: int, largest: bool) -> tuple[Tensor, Tensor]:
        """The first `count` elements in order, and their positions."""
        found: list[tuple[Tensor, Tensor]] = []
        for _ in range(count):
            found.append(self._next([positions for _, positions in found], largest))

        def choice(part: int) -> Callable[[list[Index], Index], str]:
            def text(i: list[Index], r: Index) -> str:
                at = _at(i, self.axis)
                *rest, last = (f[part].at(*at) for f in found)
                for n, one in reversed([*enumerate(rest)]):
                    last = f"{one} if {r} == {n} else ({last})"
                return f"{last} != 0" if part == 0 and self.x.dtype == "bool" else last

            return text

        return self.emit(count, choice(0), self.x.dtype), self.emit(count, choice(1), "i64")

    def _next(self, found: Sequence[Tensor], largest: bool) -> tuple[Tensor, Tensor]:
        """The first element in order that is at none of the positions, and its position."""
        kind, n, dtype = "max" if largest else "min", self.length, "i32" if self.x.dtype == "bool" else self.x.dtype
        skips_nan = self.has_nan and not largest  # NaN comes last
        worst = lowest(dtype) if largest else highest(dtype)

        def left(i: list[Index], a: Index) -> list[str]:
            return [f"{a} != {positions.at(*_at(i, self.axis))}" for positions in found]

        def best(i: list[Index], _: Index) -> str:
            tests = lambda a: [*left(i, a), *([f"not isnan({self.at(i, a)})"] if skips_nan else [])]  # noqa: E731
            guard = lambda a: f" if {' and '.join(tests(a))} else {worst}" if tests(a) else ""  # noqa: E731
            return self.reduced(kind, lambda a: self.at(i, a) + guard(a))

        value = self.emit(1, best, dtype)

        def key(i: list[Index], a: Index) -> str:
            mine, most = self.at(i, a), value.at(*_at(i, self.axis))
            same = f"{mine} == {most}"
            if skips_nan:
                text = f"i32({a}) if {same} else i32({a}) + {n}"
            else:
                same = f"({same} or isnan({mine}) and isnan({most}))" if self.has_nan else same
                text = f"i32({a}) if {same} else {2 * n}"
            return f"({text}) if {' and '.join(left(i, a))} else {2 * n}" if found else text

        position = self.emit(1, lambda i, _: self.reduced("min", lambda a: key(i, a)))
        if not skips_nan:
            return value, position
        of = lambda t, i: t.at(*_at(i, self.axis))  # noqa: E731
        number = self.emit(1, lambda i, _: f"{of(value, i)} if {of(position, i)} < {n} else nan", dtype)
        return number, self.emit(1, lambda i, _: f"{of(position, i)} % {n}")

    # ---- results -------------------------------------------------------------------------------------------------------

    def taken(self, positions: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
        """The elements at positions of their rows, and the positions as PyTorch has them."""
        graph, last = self.call.graph, self.length - 1

        def element(i: list[Index]) -> str:
            position = ix.opaque(f"clamp({positions.at(*i)}, 0, {last})", (0, last)) if last else ix.number(0)
            return self.x.at(*(position if d == self.axis else p for d, p in enumerate(i)))

        values = graph.emit(positions.shape, dtype, element)
        return values, graph.emit(positions.shape, "i64", lambda i: positions.at(*i))

    def is_sortable(self) -> bool:
        return costs.sort_pays(self.call.device, self.count, self.length, self.x.dtype)


def _at(i: list[Index], axis: int) -> list[Index]:
    return [ix.number(0) if d == axis else p for d, p in enumerate(i)]


def _shaped(made: tuple[Tensor, Tensor], shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    values, positions = (t if t.shape == tuple(shape) else t.reshaped(shape) for t in made)
    return values, positions


@expresses("topk")
def topk(call: Call) -> Value:
    """By reductions one after the other, or by ranks where these are fewer operations."""
    rows, count, largest = Rows.of(call, call["self"]), int(call["k"]), bool(call["largest"])
    (shape, dtype), _ = call.results()
    few = count <= MOST_CHOSEN and costs.choice_pays(call.device, rows.count, rows.length, count, rows.x.dtype)
    if few and count * (count + 4) < 4 * rows.length:
        return _shaped(rows.chosen(count, largest), shape)
    if not rows.is_sortable():
        raise Unsupported(f"topk: {TOO_LONG}")
    positions = rows.of_ranks(rows.ranks(largest), lambda i, r: str(r), count)
    return _shaped(rows.taken(positions, dtype), shape)


@expresses("sort")
def sort(call: Call) -> Value:
    rows = Rows.of(call, call["self"])
    (shape, dtype), _ = call.results()
    if not rows.is_sortable():
        raise Unsupported(f"sort: {TOO_LONG}")
    ranks = rows.ranks(bool(call["descending"]))
    made = _shaped(rows.taken(rows.of_ranks(ranks, lambda i, r: str(r), rows.length), dtype), shape)
    call.graph.ranks[made[1].name] = ranks
    return made


@expresses("kthvalue")
def kthvalue(call: Call) -> Value:
    return _of_rank(call, lambda rows: lambda i: str(int(call["k"]) - 1))


@expresses("median nanmedian")
def median(call: Call) -> Value:
    """The lower one of two. Of a row with a NaN the first NaN, which is the largest number; `nanmedian` counts numbers alone."""

    def wanted(rows: Rows) -> Callable[[list[Index]], str]:
        n = rows.length
        if not rows.has_nan:
            return lambda i: str((n - 1) // 2)
        numbers = rows.emit(1, lambda i, _: rows.reduced("sum", lambda a: f"i32(not isnan({rows.at(i, a)}))"))
        count = lambda i: numbers.at(*_at(i, rows.axis))  # noqa: E731
        if call.name == "nanmedian":
            return lambda i: f"max({count(i)} - 1, 0) // 2"
        return lambda i: f"({(n - 1) // 2} if {count(i)} == {n} else {count(i)})"

    return _of_rank(call, wanted)


def _of_rank(call: Call, wanted: Callable[[Rows], Callable[[list[Index]], str]]) -> Value:
    """The element of each row that has a rank. Without a dimension, the tensor is one row, and there is no position."""
    x, pair = call["self"], isinstance(call.meta, tuple | list)
    if pair:
        rows = Rows.of(call, x)
        (shape, dtype), _ = call.results()
    else:
        rows = Rows(call, x.reshaped((prod(x.shape),)), 0)
        shape, dtype = call.shape, call.dtype
    if not rows.is_sortable():
        raise Unsupported(f"{call.name}: {TOO_LONG}")
    rank = wanted(rows)
    values, positions = _shaped(rows.taken(rows.of_ranks(rows.ranks(False), lambda i, _: rank(i), 1), dtype), shape)
    return (values, positions) if pair else values


@expresses("searchsorted bucketize")
def searchsorted(call: Call) -> Tensor:
    """How many of the numbers come before a value: for that, no `sorter` needs to put them in order."""
    numbers, value = call["boundaries" if call.name == "bucketize" else "sorted_sequence"], call["self"]
    right = bool(call["right"]) or call.get("side") == "right"
    n, single = numbers.shape[-1], len(numbers.shape) == 1
    if not costs.scatter_pays(call.device, n * prod(call.shape), 8 * (n + 2 * prod(call.shape))):
        raise Unsupported(f"{call.name}: as many numbers as a search halves sooner")
    order, compute = ">" if right else ">=", numbers.dtype

    def expression(i: list[Index]) -> str:
        lead = [] if single else i[:-1]
        own = value.at(*i) if isinstance(value, Tensor) else literal(value, compute)
        return reduction("sum", [n], lambda k: f"i32(not ({numbers.at(*lead, k[0])} {order} {own}))")

    return call.emit(call.shape, call.dtype, expression)


refused("the position of one of several elements, which PyTorch leaves open", "mode")
