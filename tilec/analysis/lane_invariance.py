"""Adjacent elements along a dimension that share a quotient: values that depend on the quotient alone are computed once
for a group.

    for lane { y[lane] = f(n + lane >> 2, n + lane & 3) }
    ->
    for group { b = n + 4 group >> 2; q = the part of f that b determines; y[4 group + 0] = f(q, 0); ...; y[4 group + 3] = f(q, 3) }

This is correct where `n` is known to be a multiple of the group's size. `rand` has such groups: one run of the generator
gives four numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from tilec.analysis.index_terms import BITS, BodyTerms, ValueTerms
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.index import questions
from tilec.index.questions import factor, is_shared, lane_numbers, period
from tilec.index.terms import Term, term

_MOST = 16
"""Elements that are computed together: the body is written that often, and with more of them little is won."""
_QUOTIENTS = ("arith.shrui", "arith.shrsi", "arith.divui", "arith.floordivsi")


@dataclass(frozen=True)
class LaneInvariance:
    """`size` elements that are computed together. `once`: the operations that are the same for all of them. `numbers`: the
    operations whose values for them are these numbers."""

    size: int = 1
    once: frozenset[ir.Operation] = frozenset()
    numbers: dict[ir.Operation, tuple[int, ...]] = field(default_factory=dict)

    def clone(
        self, op: ir.Operation, number: int, mapping: dict[ir.Value, ir.Value], shared: dict[ir.Value, ir.Value]
    ) -> ir.Operation | None:
        """An operation of the body for one of the elements; None where nothing is to be done. `shared` is kept from the first
        to the last."""
        if op in self.numbers:
            mapping[op.results[0]] = mlir.constant(self.numbers[op][number], op.results[0].type)
            return None
        if number and op in self.once:
            mapping |= {r: shared[r] for r in op.results}
            return None
        copy = mlir.clone_op(op, mapping)
        if op in self.once:
            shared |= {r: mapping[r] for r in op.results}
        return copy


NONE = LaneInvariance()


def find_lane_invariance(terms: BodyTerms, lane: Term, most: int) -> LaneInvariance:
    """Those of a body, along the index `lane`, from a multiple of `most` on (0: of any number)."""
    operations = [o.operation for o in terms.block.operations if o.operation.name not in ("linalg.index", "linalg.yield")]
    asked = [o for o in operations if o.name in _QUOTIENTS and factor(terms.of(o.operands[0]), lane) is term(1)]
    periods = [period(lane, terms.of(op.results[0])).constant or 0 for op in asked]  # 0: all elements share it
    size = gcd(_MOST, most, *quotients) if (quotients := [p for p in periods if p != 1]) else 1
    if size == 1:
        return NONE
    values = {op: [terms.of(r) for r in op.results] for op in operations}
    once = frozenset(op for op, xs in values.items() if all(is_shared(x, lane, size) for x in xs))
    integers = [op for op in operations if op not in once and len(op.results) == 1 and str(op.results[0].type) in BITS]
    numbers = {op: found for op in integers if (found := lane_numbers(values[op][0], lane, size)) is not None}
    return LaneInvariance(size, once, numbers)


def multiple(value: ir.Value) -> int:
    """The largest number that is known to divide an index; 0 of 0."""
    return questions.multiple(ValueTerms(_part_size).of(value))


def _part_size(value: ir.Value) -> Term | None:
    """The size of a part of a tensor along a dimension, as its cut has it."""
    op = mlir.definition(value)
    if op is None or op.name != "memref.dim":
        return None
    cut, n = mlir.definition(op.operands[0]), mlir.constant_value(op.operands[1])
    if cut is None or cut.name != "memref.subview" or n is None:
        return None
    sizes = list(ir.DenseI64ArrayAttr(cut.attributes["static_sizes"]))
    d = mlir.kept_dims(cut)[n]
    segments = list(ir.DenseI32ArrayAttr(cut.attributes["operandSegmentSizes"]))
    first = sum(segments[:2])
    dynamic = cut.operands[first + sum(s == mlir.DYNAMIC for s in sizes[:d])] if sizes[d] == mlir.DYNAMIC else None
    return None if dynamic is None else ValueTerms(_part_size).of(dynamic)
