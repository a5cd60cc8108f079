"""Toeplitz tensors, the same along diagonals: which they are, and what they are computed from.

    t[i, j] = f(i - j);  u[i, j] = g(t[i, j])          t and u depend on i - j alone: they have N + M - 1 different elements

That follows from the operations: subscripts and numbers are sums of indices, in which i and j have the same factors everywhere, but
for a common one. Any two dimensions may meet so, by i + j or i - 2 * j, too, and tensors may have further dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import gcd, prod

from tilec.core import mlir
from tilec.core.mlir import ir

MOST = 1 << 20  # of numbers in sums that are far from wrapping around
_SUMS = ("arith.index_cast", "arith.addi", "arith.subi")
FEWER = 2  # times as many elements as diagonals, at least
Factors = dict[int, int]  # by dimension


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
            tensors[name_of(op)] = tuple(name_of(o) for o in _closure(value, diagonal, found))
    return tensors


def name_of(op: ir.Operation) -> str:
    return mlir.get_string(op, "tilec.name") or "op"


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
    """What an operation reads by its own diagonals."""
    for value, map_ in zip(mlir.inputs_of(op), mlir.maps_of(op)):
        if {diagonal.first, diagonal.second} <= {*mlir.map_dims(map_)}:
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
    used, extents = _used_sums(block), mlir.extents_of(op)
    read = [
        (value, mlir.map_dims(map_))
        for value, map_, argument in zip(mlir.inputs_of(op), mlir.maps_of(op), block.arguments)
        if mlir.uses(argument)
    ]
    for first, second in combinations(range(rank), 2):
        sums = [(f.get(first, 0), f.get(second, 0)) for f in used]
        for value, dims in read:
            own, at = found.get(value), [dims.index(d) for d in (first, second) if d in dims]
            if own is not None and len(at) == 2 and {own.first, own.second} == {*at}:
                factors = {own.first: own.factor, own.second: own.other}
                sums.append((factors[at[0]], factors[at[1]]))
            elif at:
                sums.append((1, 0))  # it is another one for each index
        directions = {_direction(s) for s in sums if s != (0, 0)}
        if len(directions) == 1:
            (factor, other) = directions.pop()
            made = Diagonal(first, second, factor, other, (extents[first], extents[second]))
            if factor and other and made.pays:
                return made
    return None


def _direction(factors: tuple[int, int]) -> tuple[int, int]:
    """Factors without a common one, of which the first that is not 0 is positive."""
    common = gcd(*factors) * (-1 if (factors[0] or factors[1]) < 0 else 1)
    return factors[0] // common, factors[1] // common


def _used_sums(block: ir.Block) -> list[Factors]:
    """The sums of indices that a body uses otherwise than in further sums: all that its results depend on of indices. Integers may
    wrap around in sums, which then are the same for the same total."""
    used: list[Factors] = []
    sums: dict[ir.Value, Factors] = {}
    exact: set[ir.Value] = set()  # sums of indices and numbers alone, which do not wrap around

    def use(factors: Factors) -> Factors:
        used.append({d: f for d, f in factors.items() if f})
        return {}

    def affine_sum(e: ir.AffineExpr, operands: Sequence[Factors], dims: int) -> Factors:
        match e:
            case ir.AffineConstantExpr():
                return {}
            case ir.AffineDimExpr():
                return operands[e.position]
            case ir.AffineSymbolExpr():
                return operands[dims + e.position]
        left, right = (affine_sum(side, operands, dims) for side in mlir.sides(e))
        match e:
            case ir.AffineAddExpr():
                return _added(left, right)
            case ir.AffineMulExpr() if isinstance(e.rhs, ir.AffineConstantExpr):
                return _added({}, left, e.rhs.value)
        return use(left) | use(right)

    for op in [o.operation for o in block.operations]:
        own = [sums.get(v, {}) for v in op.operands]
        numbers = [mlir.constant_value(v) for v in op.operands]
        match op.name:
            case "arith.cmpi" if _is_signed(op) and all(v in exact or n is not None for v, n in zip(op.operands, numbers)):
                made = use(_added(own[0], own[1], -1))
            case "linalg.index":
                made = {int(ir.IntegerAttr(op.attributes["dim"]).value): 1}
            case "arith.index_cast" | "arith.trunci" if str(op.operands[0].type) in ("index", "i64"):
                made = own[0]
            case "arith.addi" | "arith.subi":
                made = _added(own[0], own[1], 1 if op.name == "arith.addi" else -1)
            case "arith.muli" if None not in numbers[1:]:
                made = _added({}, own[0], int(numbers[1]))
            case "affine.apply":
                map_ = ir.AffineMapAttr(op.attributes["map"]).value
                made = affine_sum(map_.results[0], own, map_.n_dims)
            case _:
                made = reduce(lambda _, factors: use(factors), own, {})
        for result in op.results:
            sums[result] = made
        small = (v in exact or (n is not None and abs(n) < MOST) for v, n in zip(op.operands, numbers))
        if op.name == "linalg.index" or (op.name in _SUMS and all(small)):
            exact |= {r for r in op.results if str(r.type) in ("index", "i64")}
    return [f for f in used if f]


def _is_signed(comparison: ir.Operation) -> bool:
    return ir.IntegerAttr(comparison.attributes["predicate"]).value < 6


def _added(a: Factors, b: Factors, times: int = 1) -> Factors:
    return {d: a.get(d, 0) + times * b.get(d, 0) for d in a | b}
