"""Splitting a reduction: parts that blocks compute on their own, then a small reduction of the parts.

    s = generic [red i] ins(x : 4096)       x2 = expand_shape x : 4096 -> 8 x 512
    s[] += x[i]                         ->   s.partial = generic [par p, red i] ins(x2)     s.partial[p] += x2[p, i]
                                             s = generic [red p] ins(s.partial)             s[] += s.partial[p]

The order in which parts are combined is fixed, so the same program gives the same bits on every run. Upstream's
`split_reduction` is the same rewrite for operations of one result; this one also takes the (value, index) pairs of an
argmax, whose combination `Combiner` reads from the body.
"""

from __future__ import annotations

from tilec.core import locations, mlir
from tilec.core.mlir import affine, ir, linalg, tensor
from tilec.passes.combiner import Combiner
from tilec.passes.rebuild import NEW, Anew, Operand, expanded, operands_in, operands_out, rebuild


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


def split(op: ir.Operation, dim: int, parts: int) -> tuple[ir.Operation, ir.Operation]:
    """Rewrites the reduction; returns the operation that makes the parts and the one that combines them."""
    assert refuse_split(op, dim, parts) is None
    with ir.InsertionPoint(op), op.location:
        partial = _partial(op, dim, parts)
        combine = _combine(op, partial)
    for before, after in zip(op.results, combine.results):
        before.replace_all_uses_with(after)
    op.erase()
    return partial, combine


def _partial(op: ir.Operation, dim: int, parts: int) -> ir.Operation:
    kinds, chunk = mlir.iterators_of(op), mlir.extents_of(op)[dim] // parts
    operands, outputs = [], []
    for read in operands_in(op):
        if dim in read.dims:
            at = read.dims.index(dim)
            read = Operand(expanded(read.value, at, parts, chunk), [*read.dims[:at], NEW, *read.dims[at:]], read.instead)
        operands.append(read)
    for out in operands_out(op):
        shaped = ir.ShapedType(out.value.type)
        start = mlir.fill_value(out.value)
        assert start is not None, "asked above"
        filled = mlir.fill(start, tensor.empty([parts, *shaped.shape], shaped.element_type))
        outputs.append(Operand(filled, [NEW, *out.dims], out.instead))

    def body(here: Anew) -> list[ir.Value]:
        def index(d: int) -> ir.Value:
            """The original index: the number of the part times the length of a part, plus the index in the part."""
            if d != dim:
                return here.own(d)
            whole = ir.AffineMap.get(2, 0, [ir.AffineDimExpr.get(0) * chunk + ir.AffineDimExpr.get(1)])
            return affine.AffineApplyOp(whole, [here.own(NEW), here.own(d)]).result

        here.index = index
        return here.values()

    dims, name = [NEW, *range(len(kinds))], f"{mlir.get_string(op, 'tilec.name')}.partial"
    new = rebuild(op, dims, operands, body, outputs=outputs, iterators=["parallel", *kinds], name=name)
    if names := locations.indices(op):
        locations.set_indices(new, [f"{names[dim]}_part", *names])
    for key in ("tilec.reduce", "tilec.multiplicand"):
        if key in op.attributes:
            new.attributes[key] = op.attributes[key]
    return new


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
