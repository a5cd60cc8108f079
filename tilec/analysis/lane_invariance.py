"""Adjacent elements along a dimension that share a quotient: values that depend on the quotient alone are computed once
for a group.

    for lane { y[lane] = f(n + lane >> 2, n + lane & 3) }
    ->
    for group { b = n + 4 group >> 2; q = the part of f that b determines; y[4 group + 0] = f(q, 0); ...; y[4 group + 3] = f(q, 3) }

This is correct where `n` is known to be a multiple of the group's size. `rand` has such groups: one run of the generator
gives four numbers.
"""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd

from tilec.core import mlir
from tilec.core.mlir import ir

_SAME = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_ANY = 1 << 62  # what 0 is a multiple of
_MOST = 16
"""Elements that are computed together: the body is written that often, and with more of them little is won."""


@dataclass(frozen=True)
class LaneInvariance:
    """`size` elements that are computed together. `once`: the operations that are the same for all of them. `numbers`: the
    operations whose value is the element's number in the group, up to a mask."""

    size: int = 1
    once: frozenset[ir.Operation] = frozenset()
    numbers: dict[ir.Operation, int] = field(default_factory=dict)

    def clone(
        self, op: ir.Operation, number: int, mapping: dict[ir.Value, ir.Value], shared: dict[ir.Value, ir.Value]
    ) -> ir.Operation | None:
        """An operation of the body for one of the elements; None where nothing is to be done. `shared` is kept from the first
        to the last."""
        if op in self.numbers:
            mapping[op.results[0]] = mlir.constant(number & self.numbers[op], op.results[0].type)
            return None
        if number and op in self.once:
            mapping |= {r: shared[r] for r in op.results}
            return None
        copy = mlir.clone_op(op, mapping)
        if op in self.once:
            shared |= {r: mapping[r] for r in op.results}
        return copy


NONE = LaneInvariance()


def find_lane_invariance(
    block: ir.Block, is_lane: Callable[[ir.Value], bool], moves: Callable[[ir.Value], bool], most: int
) -> LaneInvariance:
    """Those of a body. `is_lane`: whether a value is the index that moves by one, from a multiple of `most` on; `moves`: whether
    an argument of the body differs between neighbours."""
    multiples = _Multiples(is_lane, most)
    operations = [o.operation for o in block.operations]
    quotients: dict[ir.Operation, int] = {}
    for op in operations:
        divisor = _divisor(op)
        if divisor and (form := multiples.of(op.operands[0])) and form[0] == 1:
            quotients[op] = gcd(divisor, form[1])
    size = gcd(_MOST, most, *quotients.values()) if quotients else 1
    if size == 1:
        return NONE
    differing = {a for a in block.arguments if moves(a)}
    once: set[ir.Operation] = set()
    for op in operations:
        operands = {v for inner in (op, *mlir.traverse(op)) for v in inner.operands}
        if op not in quotients and ((op.name == "linalg.index" and is_lane(op.results[0])) or operands & differing):
            differing |= set(op.results)
        elif op.name not in ("linalg.index", "linalg.yield"):
            once.add(op)
    numbers = {}
    for op in operations:
        mask = _mask(op)
        form = multiples.of(op.operands[0]) if mask is not None and mask < size else None
        if form is not None and form[0] == 1 and form[1] % size == 0:
            numbers[op] = mask
    return LaneInvariance(size, frozenset(once), numbers)


def _divisor(op: ir.Operation) -> int | None:
    """Of a division by a power of two, rounded down."""
    known = mlir.constant_value(op.operands[1]) if len(op.operands) == 2 else None
    if op.name in ("arith.shrui", "arith.shrsi") and known is not None:
        return 1 << int(known)
    power = known is not None and isinstance(known, int) and known > 0 and known & (known - 1) == 0
    return known if power and op.name in ("arith.divui", "arith.floordivsi") else None


def _mask(op: ir.Operation) -> int | None:
    """Of a remainder by a power of two, or of bits that are taken from a number."""
    known = mlir.constant_value(op.operands[1]) if len(op.operands) == 2 else None
    if op.name == "arith.andi" and isinstance(known, int) and known > 0:
        return known
    power = isinstance(known, int) and known > 0 and known & (known - 1) == 0
    return known - 1 if power and op.name == "arith.remui" else None


class _Multiples:
    """Integers as `lane` times 0 or 1 plus a multiple of a power of two: both numbers, or None."""

    def __init__(self, is_lane: Callable[[ir.Value], bool], most: int):
        self.is_lane, self.most = is_lane, most
        self._found: dict[ir.Value, tuple[int, int] | None] = {}

    def of(self, value: ir.Value) -> tuple[int, int] | None:
        """Each value is looked at once: operands are shared, in the rounds of `rand` so often that their paths are millions."""
        if value not in self._found:
            self._found[value] = self._of(value)
        return self._found[value]

    def _of(self, value: ir.Value) -> tuple[int, int] | None:
        if self.is_lane(value):
            return 1, self.most
        op, known = mlir.definition(value), mlir.constant_value(value)
        if isinstance(known, int):
            return 0, _power(known)
        if op is None:
            return 0, 1
        if op.name in _SAME:
            return self.of(op.operands[0])
        if op.name == "affine.apply":
            return self._linear(op, ir.AffineMapAttr(op.attributes["map"]).value)
        if op.name == "affine.min":
            map_ = ir.AffineMapAttr(op.attributes["map"]).value
            each = [ir.AffineMap.get(map_.n_dims, map_.n_symbols, [e]) for e in map_.results]
            found = [self._linear(op, e) for e in each]
            return (0, min(f[1] for f in found)) if all(f and f[0] == 0 for f in found) else None
        if op.name == "memref.dim":
            size = _size(*op.operands)
            return (0, 1) if size is None else self.of(size)
        operands = [self.of(v) for v in op.operands]
        if op.name == "arith.addi":
            return _sum(operands)
        if op.name == "arith.muli":
            factors = [mlir.constant_value(v) for v in op.operands]
            return _times(operands[0], operands[1], factors[1]) or _times(operands[1], operands[0], factors[0])
        return (0, 1) if all(o is not None and o[0] == 0 for o in operands) and not len(op.regions) else None

    def _linear(self, op: ir.Operation, map_: ir.AffineMap) -> tuple[int, int] | None:
        factors = mlir.linear(map_)
        if factors is None:
            return (0, 1) if all(self.of(v) and self.of(v)[0] == 0 for v in op.operands) else None
        terms = [_times(self.of(v), (0, _power(w)), w) for v, w in zip(op.operands, factors)]
        return _sum([*terms, (0, _power(factors[-1]))])


def _size(value: ir.Value, number: ir.Value) -> ir.Value | None:
    """The size of a part of a tensor along a dimension, as its cut has it."""
    cut, n = mlir.definition(value), mlir.constant_value(number)
    if cut is None or cut.name != "memref.subview" or n is None:
        return None
    sizes = list(ir.DenseI64ArrayAttr(cut.attributes["static_sizes"]))
    d = mlir.kept_dims(cut)[n]
    segments = list(ir.DenseI32ArrayAttr(cut.attributes["operandSegmentSizes"]))
    first = sum(segments[:2])
    return cut.operands[first + sum(s == mlir.DYNAMIC for s in sizes[:d])] if sizes[d] == mlir.DYNAMIC else None


def multiple(value: ir.Value) -> int:
    """A power of two that divides an index, the greatest that is known."""
    return _Multiples(lambda _: False, 1).of(value)[1]


def _power(number: int) -> int:
    """The greatest power of two that divides it."""
    return number & -number if number else _ANY


def _times(a: tuple[int, int] | None, b: tuple[int, int] | None, factor: int | float | None) -> tuple[int, int] | None:
    if a is None or b is None or b[0]:
        return None
    if a[0]:
        return a if factor == 1 else None
    return 0, min(_ANY, a[1] * b[1])


def _sum(terms: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    if None in terms or sum(t[0] for t in terms) > 1:
        return None
    return sum(t[0] for t in terms), min(t[1] for t in terms)
