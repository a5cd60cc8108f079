"""Splitting a reduction: parts that blocks compute on their own, then a small reduction of the parts.

    s = generic [red i] ins(x : 4096)       x2 = expand_shape x : 4096 -> 8 x 512
    s[] += x[i]                         ->   s.partial = generic [par p, red i] ins(x2)     s.partial[p] += x2[p, i]
                                             s = generic [red p] ins(s.partial)             s[] += s.partial[p]

A sum of distances from a row's value `a`, or of their squares, may be split together with the sum `s` that `a` depends on. A part
has the distances from its own value a.p: that is `a` with parts * s.partial[p] in place of `s`, the mean of the part where `a` is
that of all.

    r = sum (z - a)        r.partial[p] = sum (z - a.p)        r = sum[p] (r.partial + n (a.p - a))
    q = sum (z - a)^2      q.partial[p] = sum (z - a.p)^2      q = sum[p] (q.partial + (a.p - a) (2 r.partial + n (a.p - a)))

No part waits for all of `s` then: one pass makes all parts. Source: Chan, Golub & LeVeque, "Algorithms for computing the sample
variance" (1983), formula 2.1.

The order in which parts are combined is fixed, so the same program gives the same bits on every run. Upstream's
`split_reduction` is the same rewrite for operations of one result; this one also takes the (value, index) pairs of an
argmax, whose combination `Combiner` reads from the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilec.analysis.expression import Expr, Unreadable, parts_of
from tilec.core import locations, mlir
from tilec.core.extents import empty, shape_of
from tilec.core.mlir import affine, arith, ir, linalg
from tilec.passes.combiner import Combiner
from tilec.passes.emit import Expressions, emit, given
from tilec.passes.rebuild import NEW, Anew, Operand, added, expanded, operands_in, operands_out, rebuild
from tilec.passes.tensor.corrected import expression_of, squared, term_of


def refuse_split(op: ir.Operation, dim: int, parts: int) -> str | None:
    """Why dimension `dim` of a reduction cannot be cut into `parts`, or None where it can."""
    if mlir.iterators_of(op)[dim] != "reduction" or "tilec.scan" in op.attributes:
        return "only a reduction's own dimension can be split"
    extent = mlir.extents_of(op)[dim]
    if parts < 2 or extent % parts:
        return f"{extent} elements cannot be {parts} equal parts"
    if any(mlir.fill_value(v) is None for v in mlir.outputs_of(op)):
        return "it starts from a value that is not constant"
    return None


def split(
    op: ir.Operation, dim: int, parts: int, about: ir.Operation | None = None, rest: ir.Operation | None = None
) -> ir.Operation:
    """Rewrites the reduction; returns the operation that combines the parts. `about`: that which combines the parts of the sum that
    distances depend on; `rest`: that of the same distances, where `op` adds up their squares and the program has it."""
    assert refuse_split(op, dim, parts) is None
    with ir.InsertionPoint(op), op.location:
        if about is None:
            partial = _partial(op, dim, parts)
            combine = _combine(op, partial)
        else:
            distance, sums = distance_of(op, about.results[0]), _parts_of(about)
            assert distance is not None
            partial = _partial(op, dim, parts, (distance, sums))
            rest_parts = partial.results[0] if not distance.squared else _rest_parts(partial) if rest is None else _parts_of(rest)
            _move_before(mlir.definition(rest_parts), op)
            combine = _combine_distances(distance, partial, rest_parts, sums, parts)
    for before, after in zip(op.results, combine.results):
        before.replace_all_uses_with(after)
    op.erase()
    return combine


def _partial(op: ir.Operation, dim: int, parts: int, about: tuple[Distance, ir.Value] | None = None) -> ir.Operation:
    """`about`: distances, and the parts of the sum that they depend on."""
    kinds, chunk = mlir.iterators_of(op), mlir.extents_of(op)[dim] // parts
    operands, outputs = [], []
    if about is not None:
        distance, sums = about
        for x in distance.leaves:
            operands.append(added(sums, [NEW, *x.own_dims]) if x.key == distance.sums else added(x.key, x.own_dims))
    for read in operands_in(op):
        if about is not None and distance.alone(read.instead):
            continue
        if dim in read.dims:
            at = read.dims.index(dim)
            read = Operand(expanded(read.value, at, parts, chunk), [*read.dims[:at], NEW, *read.dims[at:]], read.instead)
        operands.append(read)
    for out in operands_out(op):
        start = mlir.fill_value(out.value)
        assert start is not None, "asked above"
        filled = mlir.fill(start, empty([parts, *shape_of(out.value)], ir.ShapedType(out.value.type).element_type))
        outputs.append(Operand(filled, [NEW, *out.dims], out.instead))

    def body(here: Anew) -> list[ir.Value]:
        def index(d: int) -> ir.Value:
            """The original index: the number of the part times the length of a part, plus the index in the part."""
            if d != dim:
                return here.own(d)
            whole = ir.AffineMap.get(2, 0, [ir.AffineDimExpr.get(0) * chunk + ir.AffineDimExpr.get(1)])
            return affine.AffineApplyOp(whole, [here.own(NEW), here.own(d)]).result

        here.index = index
        if about is None:
            return here.values()
        here.known[distance.row] = distance.value(here.known, _times(here.known[sums], parts))
        return here.needed()

    dims, name = [NEW, *range(len(kinds))], f"{mlir.get_string(op, 'tilec.name')}.partial"
    new = rebuild(op, dims, operands, body, outputs=outputs, iterators=["parallel", *kinds], name=name)
    if names := locations.indices(op):
        locations.set_indices(new, [f"{names[dim]}_part", *names])
    for key in ("tilec.reduce", "tilec.multiplicand"):
        if key in op.attributes:
            new.attributes[key] = op.attributes[key]
    new.attributes["tilec.part"] = ir.UnitAttr.get()
    return new


def _parts_of(combined: ir.Operation) -> ir.Value:
    """What an operation combines."""
    return mlir.inputs_of(combined)[0]


def _move_before(made: ir.Operation | None, op: ir.Operation) -> None:
    """Has an operation, and what it reads, stand before another one."""
    if made is not None and op.is_before_in_block(made):
        for value in (*made.operands, *(mlir.captured(made) if len(made.regions) else ())):
            _move_before(mlir.definition(value), op)
        made.move_before(op)


# ---- distances ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distance:
    """What a sum adds up, or the squares of which: the difference of an element's `own` value and a `row`'s, or, by `sign`, of the
    latter and the former. The row's is an `expression` of the results of others, `sums` among them."""

    op: ir.Operation
    sums: ir.Value
    squared: bool
    own: ir.Value
    row: ir.Value
    expression: Expr
    sign: int

    @property
    def leaves(self) -> list[Expr]:
        return list(dict.fromkeys(x for x in self.expression.leaves if x.op == "element"))

    def alone(self, element: ir.Value) -> bool:
        """Whether an element of an operand is read for the row's value alone."""
        row, other = (mlir.depends(mlir.body_of(self.op), v, element) for v in (self.row, self.own))
        return row and not other

    def value(self, known: Mapping[ir.Value, ir.Value], sums: ir.Value) -> ir.Value:
        """The row's value, for one of the sum; the other leaves are known."""

        def leaf(x: Expr) -> ir.Value | None:
            return sums if x.key == self.sums else known[x.key] if x.op == "element" else given(x)

        value = emit(self.expression, Expressions(leaf, {}))
        assert value is not None, "its leaves are known"
        return value


def distance_of(op: ir.Operation, sums: ir.Value) -> Distance | None:
    """How a sum is one of distances, or of their squares, from what depends on other `sums` and is the same for all that it adds
    up."""
    distance = squared(op)
    term = term_of(op) if distance is None else distance
    made = mlir.definition(term) if term is not None and mlir.get_string(op, "tilec.reduce") == "sum" else None
    if made is None or made.name != "arith.subf":
        return None
    sides = list(made.operands)
    kept, every = {*mlir.map_dims(mlir.maps_of(op)[-1])}, tuple(range(len(mlir.iterators_of(op))))
    for own, row, sign in ((*sides, 1), (*sides[::-1], -1)):
        try:
            x = expression_of(op, row, every)
        except Unreadable:
            continue
        found = Distance(op, sums, distance is not None, own, row, x, sign)
        read = [leaf.key for leaf in found.leaves]
        if x.dims <= kept and sums in read and len({*read}) == len(read) and all(map(_is_simple, parts_of(x))):
            return found
    return None


def _is_simple(x: Expr) -> bool:
    return x.op != "index" and not (x.op == "element" and x.args)


def _rest_parts(partial: ir.Operation) -> ir.Value:
    """The parts of the sum of the distances whose squares `partial` adds up."""
    (out,), distance = operands_out(partial), squared(partial)
    assert distance is not None
    name = f"{mlir.get_string(partial, 'tilec.name')}.rest"
    new = rebuild(partial, body=lambda here: [arith.addf(here.value(out.instead), here.value(distance))], name=name)
    for key in ("tilec.reduce", "tilec.part"):
        new.attributes[key] = partial.attributes[key]
    return new.results[0]


def _combine_distances(distance: Distance, partial: ir.Operation, rest_parts: ir.Value, sums: ir.Value, parts: int) -> ir.Operation:
    """The sum of what parts have of distances from their own values, as distances from the value of all. `sums`: the parts of what
    these values depend on."""
    op, kept = distance.op, mlir.map_dims(mlir.maps_of(distance.op)[-1])
    (out,), states = operands_out(op), list(dict.fromkeys([partial.results[0], rest_parts]))
    number = prod(e for e, kind in zip(mlir.extents_of(op), mlir.iterators_of(op)) if kind == "reduction") // parts
    (whole,) = [x for x in distance.leaves if x.key == distance.sums]

    def body(here: Anew) -> list[ir.Value]:
        state, rest = here.known[states[0]], here.known[states[-1]]
        sides = [distance.value(here.known, v) for v in (_times(here.known[sums], parts), here.known[distance.sums])]
        off = arith.subf(*sides[:: distance.sign])
        share = _times(off, number)
        if not distance.squared:
            return [arith.addf(here.known[out.instead], arith.addf(rest, share))]
        moved = arith.addf(state, arith.mulf(off, arith.addf(rest, arith.addf(rest, share))))
        is_finite = arith.cmpf(arith.CmpFPredicate.OLT, state, mlir.constant(float("inf"), state.type))
        return [arith.addf(here.known[out.instead], arith.select(is_finite, moved, state))]

    read = [*(added(v, [NEW, *kept]) for v in states), added(sums, [NEW, *whole.own_dims])]
    read += [added(x.key, x.own_dims) for x in distance.leaves]
    kinds = ["reduction", *["parallel"] * len(kept)]
    new = rebuild(op, [NEW, *kept], read, body, iterators=kinds, name=mlir.get_string(op, "tilec.name"))
    new.attributes["tilec.reduce"] = op.attributes["tilec.reduce"]
    if names := locations.indices(partial):
        locations.set_indices(new, [names[0], *(names[d + 1] for d in kept)])
    return new


def _times(x: ir.Value, number: float) -> ir.Value:
    return arith.mulf(x, mlir.constant(float(number), x.type))


# ---- the combination ---------------------------------------------------------------------------------------------------


def _combine(op: ir.Operation, partial: ir.Operation) -> ir.Operation:
    count = len(op.results)
    ranks = [len(ir.ShapedType(r.type).shape) for r in op.results]
    rank = max(ranks) + 1  # every output of a split reduction has the same parallel dimensions
    maps = [mlir.projection(rank, range(rank))] * count + [mlir.projection(rank, range(1, rank))] * count
    new, block = mlir.generic(
        [r.type for r in op.results], list(partial.results), mlir.outputs_of(op), maps,
        ["reduction"] + ["parallel"] * (rank - 1),
    )  # fmt: skip
    first = len(mlir.inputs_of(op))
    combiner = Combiner(op, list(range(first, first + count)))
    with ir.InsertionPoint(block):
        arguments = list(block.arguments)
        results: dict[int, ir.Value] = {}
        for group in combiner.groups():
            new_states = [arguments[n - first] for n in group]
            old_states = [arguments[count + n - first] for n in group]
            results.update(zip(group, combiner.combine(group, old_states, new_states)))
        linalg.YieldOp([results[n] for n in sorted(results)])
    for key in ("tilec.name", "tilec.reduce"):
        if key in op.attributes:
            new.attributes[key] = op.attributes[key]
    if names := locations.indices(partial):
        kept = mlir.map_dims(mlir.maps_of(op)[len(mlir.inputs_of(op))])
        locations.set_indices(new.operation, [names[0], *(names[d + 1] for d in kept)])
    return new.operation
