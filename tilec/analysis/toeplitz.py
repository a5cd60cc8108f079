"""Toeplitz tensors, the same along diagonals: which they are, and what they are computed from.

    t[i, j] = f(i - j);  u[i, j] = g(t[i, j])          t and u depend on i - j alone: they have N + M - 1 different elements

That follows from the operations: subscripts and numbers are sums of indices, in which i and j have the same factors everywhere, but
for a common one. Any two dimensions may meet so, by i + j or i - 2 * j, too, and tensors may have further dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod

from tilec.analysis.index_terms import BodyTerms
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.index import questions
from tilec.index.terms import Term, call

FEWER = 2  # times as many elements as diagonals, at least


@dataclass(frozen=True)
class Diagonal:
    """Where a tensor depends on its dimensions `first` and `second` through `factor` of the first, which is positive, and `other`
    of the second. They have `extents` elements."""

    first: int
    second: int
    factor: int
    other: int
    extents: tuple[int, int]

    @property
    def low(self) -> int:
        """The least sum."""
        return min(0, self.other * (self.extents[1] - 1))

    @property
    def count(self) -> int:
        return self.factor * (self.extents[0] - 1) + abs(self.other) * (self.extents[1] - 1) + 1

    @property
    def pays(self) -> bool:
        """Whether every sum is one of two indices, and there are far fewer than pairs of these."""
        whole = (self.factor == 1 and abs(self.other) <= self.extents[0]) or (
            abs(self.other) == 1 and self.factor <= self.extents[1]
        )
        return whole and FEWER * self.count <= prod(self.extents)


def toeplitz_tensors(function: ir.Operation) -> dict[str, tuple[str, ...]]:
    """The tensors that other operations read otherwise than by diagonals, by name: of each the operations that compute it, itself
    among them, of which each has its elements along diagonals."""
    found = find_diagonals(function)
    tensors = {}
    for value, diagonal in found.items():
        op = mlir.definition(value)
        if any(not follows(user, value, diagonal, found) for user in readers_of(value)):
            tensors[mlir.name_of(op)] = tuple(mlir.name_of(o) for o in _closure(value, diagonal, found))
    return tensors


def readers_of(value: ir.Value) -> list[ir.Operation]:
    """The operations of the function that compute with a tensor's elements, each once. What returns it, or gives it another shape,
    takes the tensor as a whole."""
    found = []
    for user in mlir.uses(value):
        while user.parent.operation.name != "func.func":
            user = user.parent.operation
        found += [user] if mlir.is_generic(user) else []
    return list(dict.fromkeys(found))


def follows(user: ir.Operation, value: ir.Value, diagonal: Diagonal, found: Mapping[ir.Value, Diagonal]) -> bool:
    """Whether a reader's own diagonals are those of a tensor that it reads."""
    own = found.get(user.results[0])
    return own is not None and value in dict(followed(user, own, found))


def _closure(value: ir.Value, diagonal: Diagonal, found: Mapping[ir.Value, Diagonal]) -> list[ir.Operation]:
    """The operation that makes a tensor, and those that make what it reads by its diagonals."""
    op = mlir.definition(value)
    behind = [o for v, d in followed(op, diagonal, found) for o in _closure(v, d, found)]
    return list(dict.fromkeys([*behind, op]))


def followed(
    op: ir.Operation, diagonal: Diagonal, found: Mapping[ir.Value, Diagonal]
) -> Iterator[tuple[ir.Value, Diagonal]]:
    """What an operation reads by its own diagonals; not operands that its body leaves alone."""
    for value, map_, argument in zip(mlir.inputs_of(op), mlir.maps_of(op), mlir.body_of(op).arguments):
        if {diagonal.first, diagonal.second} <= {*mlir.map_dims(map_)} and mlir.uses(argument):
            yield value, found[value]


def find_diagonals(function: ir.Operation) -> dict[ir.Value, Diagonal]:
    """The tensors that depend on two of their dimensions through a sum of these."""
    found: dict[ir.Value, Diagonal] = {}
    for op in [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]:
        if (diagonal := _diagonal_of(op, found)) is not None:
            found[op.results[0]] = diagonal
    return found


def _diagonal_of(op: ir.Operation, found: Mapping[ir.Value, Diagonal]) -> Diagonal | None:
    rank, block = mlir.maps_of(op)[-1].n_dims, mlir.body_of(op)
    states = list(block.arguments)[len(mlir.inputs_of(op)) :]
    inner = list(mlir.traverse(op))
    if len(op.results) != 1 or rank < 2 or "reduction" in mlir.iterators_of(op) or any(map(mlir.uses, states)):
        return None
    if mlir.map_dims(mlir.maps_of(op)[-1]) != [*range(rank)] or any(len(o.regions) for o in inner):
        return None
    if not any(o.name == "linalg.index" for o in inner) and found.keys().isdisjoint(mlir.inputs_of(op)):
        return None
    terms, extents = BodyTerms(op, leaf=lambda x: _element(terms, x, found)), mlir.extents_of(op)
    made = terms.of(mlir.yielded(op)[0])
    own = [
        {*mlir.map_dims(map_)}
        for value, map_, argument in zip(mlir.inputs_of(op), mlir.maps_of(op), block.arguments)
        if value not in found and mlir.uses(argument)
    ]
    for first, second in combinations(range(rank), 2):
        free = all(dims.isdisjoint({first, second}) for dims in own)
        factors = questions.diagonal(terms.dims[first], terms.dims[second], made) if free else None
        if factors is not None:
            found_here = Diagonal(first, second, *factors, (extents[first], extents[second]))
            if found_here.pays:
                return found_here
    return None


def _element(terms: BodyTerms, x: ir.Value, found: Mapping[ir.Value, Diagonal]) -> Term | None:
    """An element of a tensor that has diagonals: a call of the number of its diagonal, and of further subscripts."""
    if not isinstance(x.owner, ir.Block) or x.owner != terms.block:
        return None
    n = ir.BlockArgument(x).arg_number
    if (own := found.get(terms.op.operands[n])) is None:
        return None
    at = [terms.dims[d] for d in mlir.map_dims(terms.maps[n])]
    total = own.factor * at[own.first] + own.other * at[own.second]
    return call(f"element{n}", total, *(x for d, x in enumerate(at) if d not in (own.first, own.second)))
