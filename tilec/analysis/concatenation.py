"""Concatenations: tensors that join others along a dimension, and what is computed of them piece by piece.

    c[i, j] = s[i, j] if j < 64 else z[i]        j in 0:65; pieces 0:64 and 64:65
    e[i, j] = exp(c[i, j])                       is computed in the same pieces
    l[i]    = sum[j](e[i, j])                    combines the sums of its pieces
    o[i]    = sum[j in 0:64](e[i, j] * v[j])     reads one piece

Reductions of a concatenation along other dimensions are those of its parts beside each other (`reduced_concatenations`): so the
norm of a dense block, whose channels another norm has read but for the last ones.

    c[i, j] = x[i, j] if j < 64 else y[i, j - 64]
    m[j]    = sum[i](c[i, j])                    is sum[i](x[i, j]) in 0:64, and sum[i](y[i, j]) behind

Kernels may store the parts of a concatenation where they lie in it (`stored_concatenations`).

A set of operations (`Concatenation`) begins at an operation that joins the result of a product with something else. It ends at
reductions over the dimension, and at reads that lie in one piece. Where anything else reads one of its tensors, this must be in
memory as a whole, and the set is none.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tilec.analysis.by_key import by_key
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.products import combined, product_of
from tilec.core import mlir
from tilec.core.extents import at_most, loops_of, shape_of
from tilec.core.hardware import SECTOR
from tilec.core.mlir import ir
from tilec.index.facts import NONE, Ends
from tilec.index.questions import thresholds
from tilec.index.terms import index

SINGLE = 8  # the most elements of a piece that becomes as many pieces of one element each
MOST = 16  # pieces
COMBINED = {"arith.addf", "arith.mulf", "arith.maximumf", "arith.minimumf", "arith.addi", "arith.muli", "arith.andi", "arith.ori",
            "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui"}  # fmt: skip


Piece = tuple[int, int]
"""Begin and end."""


@dataclass(frozen=True)
class Concatenation:
    """Operations, in order, with the dimension of each that is cut into `pieces`."""

    operations: tuple[tuple[ir.Operation, int], ...]
    pieces: tuple[Piece, ...]

    def piece_of(self, at: Ends) -> int | None:
        """The piece in which all places of a range lie."""
        return next((n for n, (a, b) in enumerate(self.pieces) if a <= at[0] and at[1] < b), None)


def concatenation_of(function: ir.Operation, deepest: int) -> Iterator[Concatenation]:
    """Sets that begin at a join of the result of a product of at most `deepest` terms."""
    ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
    position = {op: n for n, op in enumerate(ops)}
    made, taken = _made_of_products(ops, deepest), set[int]()
    for op in ops:
        starts = {} if position[op] in taken else dict.fromkeys(_joined(op, made))
        for d in starts:
            found = _Growth(ops, position).of(op, d)
            if found is not None and taken.isdisjoint(position[o] for o, _ in found.operations):
                taken.update(position[o] for o, _ in found.operations)
                yield found


Parts = Mapping[ir.Value, tuple[int, list[ir.Value]]]
"""By tensor, the dimension that is cut, and the tensors that its pieces are."""


def reduced_concatenations(function: ir.Operation) -> list[tuple[Concatenation, Parts]]:
    """Concatenations of whole tensors, each with these: those of which one is reduced elsewhere, too, alone or in another
    concatenation. The operations are reductions that leave the dimension that is cut, and what is computed of these alone."""
    ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
    found, times = [], Counter[ir.Value]()
    for n, op in enumerate(ops):
        joined = next(((d, parts) for d in dict.fromkeys(_joined(op)) if len(parts := _parts(op, d)) > 1), None)
        if joined is None:
            times.update({v for v in mlir.inputs_of(op) if _leaves_one(op)})
        elif reduced := _reduced(op.results[0], joined[0], ops[n + 1 :]):
            pieces, tensors = zip(*joined[1])
            found.append((Concatenation(tuple(reduced.items()), pieces), {op.results[0]: (joined[0], list(tensors))}))
            times.update(set(tensors))
    return [(c, parts) for c, parts in found if any(times[t] > 1 for _, tensors in parts.values() for t in tensors)]


def stored_concatenations(function: ir.Operation) -> Iterator[Concatenation]:
    """Concatenations of which kernels may store the parts where they lie, each as one operation. One part is of the result of a
    product. Parts are made of what nothing else reads, but for one, which is computed as the whole was; none is copied."""
    ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
    made = _made_of_products(ops, sys.maxsize)
    for op in ops:
        whole = [*range(len(mlir.extents_of(op)))]
        if len(whole) < 2 or not is_elementwise(op) or mlir.map_dims(mlir.maps_of(op)[-1]) != whole or not _may_be_cut(op, 0):
            continue
        for d in dict.fromkeys(_joined(op, made)):
            extent = mlir.extents_of(op)[d]
            pieces = tuple(pairwise(sorted({0, extent, *(p for p in _points(op, d) if 0 < p < extent)})))
            found = [] if len(pieces) > MOST else [_has_its_own(op, _value_in(op, d, piece)) for piece in pieces]
            size = max(1, ir.ShapedType(op.results[0].type).element_type.width // 8)
            # what is contiguous behind a part is so in the whole; else lines of parts begin where accesses do
            aligned = d < whole[-1] or all(end * size % SECTOR == 0 for _, end in pieces)
            long = aligned and len(found) > 1 and min(b - a for a, b in pieces) > 1
            if long and None not in found and found.count(True) >= len(found) - 1:
                yield Concatenation(((op, d),), pieces)
                break


def _has_its_own(op: ir.Operation, value: ir.Value) -> bool | None:
    """Whether a value of an operation's body is made of a tensor that is computed for it alone; None if it is another's element."""
    loads = [o for o in mlir.slice_of(mlir.body_of(op), value) if o.name == "tensor.extract"]
    made = [o for o in loads if (maker := mlir.definition(o.operands[0])) is not None and _stores_anywhere(maker)]
    own = any(all(u.name != "func.return" and around(u) == op for u in mlir.uses(o.operands[0])) for o in made)
    return own or (None if mlir.definition(value) in loads or isinstance(value, ir.BlockArgument) else False)


def _stores_anywhere(op: ir.Operation) -> bool:
    """Whether its kernel, of any family, has one result, of which each block stores its part."""
    return mlir.is_generic(op) and len(op.results) == 1 and "tilec.scan" not in op.attributes and by_key(op) is None


def _value_in(op: ir.Operation, d: int, piece: Piece) -> ir.Value:
    """The result of an operation's body where the index of a dimension is in a piece of it."""
    terms = BodyTerms(op)
    terms.dims[d] = index(f"i{d}", piece[1], piece[0])
    (value,) = list(mlir.body_of(op).operations)[-1].operands
    while (owner := mlir.definition(value)) is not None and owner.name == "arith.select":
        value = owner.operands[1 if NONE.decide(terms.holds(owner.operands[0])) else 2]
    return value


def _parts(op: ir.Operation, d: int) -> list[tuple[Piece, ir.Value]]:
    """The pieces along a dimension of an operation that joins whole tensors, and these tensors; none of another one."""
    extents, parts = loops_of(op), list[tuple[Piece, ir.Value]]()
    length = extents[d]
    assert isinstance(length, int), "`_joined` finds no others"
    for begin, end in pairwise(sorted({0, length, *(p for p in _points(op, d) if 0 < p < length)})):
        terms = BodyTerms(op)
        terms.dims[d] = index(f"i{d}", end, begin)
        owner = mlir.definition(_value_in(op, d, (begin, end)))
        if owner is None or owner.name != "tensor.extract":
            return []
        tensor, *subscripts = owner.operands
        at = [x - begin if n == d else x for n, x in enumerate(terms.dims)]
        shape = [end - begin if n == d else e for n, e in enumerate(extents)]
        same = all(NONE.simplified(terms.exact(s)) is NONE.simplified(x) for s, x in zip(subscripts, at))
        if not same or list(shape_of(tensor)) != shape:
            return []
        parts.append(((begin, end), tensor))
    return parts if mlir.map_dims(mlir.maps_of(op)[-1]) == [*range(len(extents))] else []


def _reduced(joined: ir.Value, d: int, ops: Sequence[ir.Operation]) -> dict[ir.Operation, int]:
    """The reductions of a tensor that leave its dimension `d` alone, and what is computed of their results and of it alone. Each
    has the dimension that this is."""
    along, found = {joined: d}, dict[ir.Operation, int]()
    for op in ops:
        read = [(v, dims) for v, dims in _inputs(op) if v in along]
        at = {dims[along[v]] for v, dims in read}
        if len(at) == 1 and _leaves_one(op) and all(v in along for v, dims in _inputs(op) if not at.isdisjoint(dims)):
            (own,) = at
            if mlir.map_dims(mlir.maps_of(op)[-1]) == [own]:
                found[op], along[op.results[0]] = own, 0
    return found


def _leaves_one(op: ir.Operation) -> bool:
    """Whether it has one result of one dimension, and is computed of elements at bare indices alone."""
    if len(op.results) != 1 or ir.ShapedType(op.results[0].type).rank != 1 or "tilec.scan" in op.attributes:
        return False
    start = mlir.definition(mlir.outputs_of(op)[0])
    initial = start is not None and start.name in ("tensor.empty", "linalg.fill")
    return initial and not any(o.name in ("tensor.extract", "linalg.index") for o in mlir.traverse(op))


def ends_of(value: ir.Value, op: ir.Operation, dim: int = -1, piece: Piece | None = None) -> Ends:
    """The least and the greatest value of an integer in an operation's body, where an index of it has those of a piece alone."""
    terms = BodyTerms(op)
    if piece is not None:
        terms.dims[dim] = index(f"i{dim}", piece[1], piece[0])
    return NONE.bounds(terms.exact(value))


def around(op: ir.Operation) -> ir.Operation:
    """The operation on tensors whose body has `op`."""
    while not mlir.is_generic(op):
        op = op.parent.operation
    return op


def is_elementwise(op: ir.Operation) -> bool:
    return len(op.results) == 1 and "reduction" not in mlir.iterators_of(op) and "tilec.scan" not in op.attributes


def _made_of_products(ops: Sequence[ir.Operation], deepest: int) -> set[ir.Value]:
    """Results of products of so many terms, and what is computed from them element by element."""
    found = set[ir.Value]()
    for op in ops:
        kinds = mlir.iterators_of(op)
        summed = prod(e for e, kind in zip(loops_of(op), kinds) if kind == "reduction")
        is_product = "reduction" in kinds and product_of(op) is not None and "tilec.scan" not in op.attributes
        if (is_product and at_most(summed, deepest)) or (is_elementwise(op) and any(v in found for v in mlir.inputs_of(op))):
            found.update(op.results)
    return found


def _joined(op: ir.Operation, made: Set[ir.Value] | None = None) -> Iterator[int]:
    """Dimensions of which an operation has more elements than a tensor (of `made`) that it reads along them."""
    if not is_elementwise(op):
        return
    extents, terms = loops_of(op), BodyTerms(op)
    for load in [o for o in mlir.traverse(op) if o.name == "tensor.extract" and (made is None or o.operands[0] in made)]:
        for length, subscript in zip(shape_of(load.operands[0]), list(load.operands)[1:]):
            dims = terms.dims_of(terms.of(subscript))
            own = {d: n for d in dims if isinstance(n := extents[d], int)}
            yield from (d for d, n in own.items() if len(dims) == 1 and isinstance(length, int) and length < n)


class _Growth:
    """Finds the operations of a set, by their places: `dims` has the dimension that is cut of those of which nothing is left as a
    whole, `further` of those that others read in pieces, too."""

    def __init__(self, ops: Sequence[ir.Operation], position: Mapping[ir.Operation, int]):
        self.ops, self.position = ops, position
        self.dims, self.further = dict[int, int](), dict[int, int]()
        self.loads: list[tuple[ir.Operation, int]] = []  # of cut tensors, with the dimension that is cut

    def of(self, start: ir.Operation, d: int) -> Concatenation | None:
        self.dims[self.position[start]] = d
        if not (self._add_readers() and self._add_producers()):
            return None
        extent = loops_of(start)[d]
        if not isinstance(extent, int):
            return None
        joins = ((self.ops[n], at) for n, at in self.dims.items() if at in _joined(self.ops[n]))
        points = {p for op, at in joins for p in _points(op, at) if 0 < p < extent}
        pieces = tuple(_pieces(sorted({0, *points, extent})))
        order = sorted((self.dims | self.further).items())
        found = Concatenation(tuple((self.ops[n], at) for n, at in order), pieces)
        fits = 1 < len(pieces) <= MOST and any(b - a > 1 for a, b in pieces)
        return found if fits and all(self._lies_in_one(found, *load) for load in self.loads) else None

    def _add_readers(self) -> bool:
        """Whether all that reads the tensors of `dims` can be cut, or may lie in one piece."""
        pending = list(self.dims)
        while pending:
            op, d = self.ops[n := pending.pop()], self.dims[n]
            if not _may_be_cut(op, d):
                return False
            if mlir.iterators_of(op)[d] == "reduction":
                continue
            for value, p in _cut_results(op, d):
                for reader in mlir.uses(value):
                    if reader.name == "tensor.extract" and reader.operands[0] == value:
                        self.loads.append((reader, p))
                        continue
                    if not mlir.is_generic(reader) or value in mlir.outputs_of(reader):
                        return False
                    for at in {m[p] for v, m in _inputs(reader) if v == value}:
                        known = self.dims.get(self.position[reader])
                        if known is None:
                            self.dims[self.position[reader]] = at
                            pending.append(self.position[reader])
                        elif known != at:
                            return False
        return True

    def _add_producers(self) -> bool:
        """Adds what makes other tensors element by element that the operations read along the dimension."""
        pending = list(self.dims.items())
        while pending:
            n, d = pending.pop()
            for value, dims in _inputs(self.ops[n]):
                maker = mlir.definition(value)
                if d not in dims or maker not in self.position or not is_elementwise(maker):
                    continue
                at = mlir.map_dims(mlir.maps_of(maker)[-1])[dims.index(d)]
                known = (self.dims | self.further).get(self.position[maker])
                if known is None and _may_be_cut(maker, at):
                    self.further[self.position[maker]] = at
                    pending.append((self.position[maker], at))
                elif known is not None and known != at:
                    return False
        return True

    def _lies_in_one(self, found: Concatenation, load: ir.Operation, p: int) -> bool:
        """Whether an element that is read at a subscript lies in one piece, in each of the pieces of its reader."""
        reader, subscript = around(load), list(load.operands)[1 + p]
        n = self.position[reader]
        d = self.dims.get(n, self.further.get(n))
        inside = [] if d is None else [ends_of(subscript, reader, d, piece) for piece in found.pieces]
        outside = [] if n in self.dims else [ends_of(subscript, reader)]
        return all(found.piece_of(at) is not None for at in (*inside, *outside))


def _inputs(op: ir.Operation) -> list[tuple[ir.Value, list[int]]]:
    return [(v, mlir.map_dims(m)) for v, m in zip(mlir.inputs_of(op), mlir.maps_of(op))]


def _cut_results(op: ir.Operation, d: int) -> Iterator[tuple[ir.Value, int]]:
    """Results of an operation with the dimension of each that is its dimension `d`."""
    for value, map_ in zip(op.results, mlir.maps_of(op)[len(mlir.inputs_of(op)) :]):
        yield value, mlir.map_dims(map_).index(d)


def _may_be_cut(op: ir.Operation, d: int) -> bool:
    if mlir.get_integer(op, "tilec.scan") == d or "tilec.position" in op.attributes:
        return False
    starts = [mlir.definition(v) for v in mlir.outputs_of(op)]
    if any(o is None or o.name not in ("tensor.empty", "linalg.fill") for o in starts):
        return False
    if mlir.iterators_of(op)[d] == "reduction":
        update, state = (combined(op) or (None,))[0], list(mlir.body_of(op).arguments)[-1]
        able = len(op.results) == 1 and starts[0].name == "linalg.fill" and update is not None and update.name in COMBINED
        return able and mlir.uses(state) == [update]
    return product_of(op) is None or "reduction" not in mlir.iterators_of(op)  # a factor of a product is a whole


def _points(op: ir.Operation, d: int) -> Iterator[int]:
    """Where along a dimension the outcome of a comparison of its index with a number changes."""
    terms = BodyTerms(op)
    for asked in [o for o in mlir.traverse(op) if o.name == "arith.cmpi"]:
        condition = terms.condition(asked.results[0])
        points = () if condition is None else thresholds(condition, terms.dims[d])
        yield from (p.constant for p in points if p.constant is not None)


def _pieces(points: Sequence[int]) -> Iterator[Piece]:
    for a, b in pairwise(points):
        yield from ((n, n + 1) for n in range(a, b)) if b - a <= SINGLE else [(a, b)]


__all__ = [
    "Concatenation",
    "Parts",
    "around",
    "concatenation_of",
    "ends_of",
    "is_elementwise",
    "reduced_concatenations",
    "stored_concatenations",
]
