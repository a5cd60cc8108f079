"""Collapsed dimensions: a sum of products that reads two neighbouring dimensions as one reads the tensor in another shape.

    c[m, n] = sum[k](x[m, k // 24, k % 24] * w[n, k])    ->    z[m, k] is x[m, g, h];  c[m, n] = sum[k](z[m, k] * w[n, k])

No data move. A factor at bare indices is a box of its tensor, which hardware copies; what is computed of quotients is copied by
threads, an element after the other. A convolution behind a grouped one reads its input so.
"""

from __future__ import annotations

from itertools import pairwise

from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.products import factors_of, index_dim, product_of
from tilec.core import mlir
from tilec.core.mlir import ir, tensor
from tilec.passes.emit import Body
from tilec.passes.rebuild import Operand, collapsed, expanded, operands_in, rebuild, replace

ROW = 8  # elements that are worth a row of their own


def read_collapsed(module: ir.Operation) -> None:
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if mlir.get_string(op, "tilec.reduce") == "sum" and product_of(op) is not None:
            _join(op)


def read_expanded(module: ir.Operation) -> None:
    """Has operations that read one dimension of a tensor at two of their own read the tensor with two dimensions in its place:
    `x[n, g * 8 + c]` is then an element at bare indices. Not contractions, whose tiles are boxes of the tensor."""
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if "tilec.scan" not in op.attributes and not _is_contraction(op):
            _separate(op)


def _is_contraction(op: ir.Operation) -> bool:
    """Whether an operation sums products of which either factor has dimensions that the other lacks."""
    factors, terms = factors_of(op), BodyTerms(op)
    if "reduction" not in mlir.iterators_of(op) or factors is None:
        return False
    left, right = (frozenset(n for n, d in enumerate(terms.dims) if d.symbol in terms.of(f).free) for f in factors)
    return bool(left - right and right - left)


def _separate(op: ir.Operation) -> None:
    terms, extents = BodyTerms(op), mlir.extents_of(op)
    for load in [o.operation for o in mlir.body_of(op).operations if o.operation.name == "tensor.extract"]:
        value, *subscripts = load.operands
        shape, read, parts = list(ir.ShapedType(value.type).shape), list[int](), list[tuple[int, int, int]]()
        for at, (e, x) in enumerate(zip(shape, map(terms.exact, subscripts))):
            pair = [(a, b) for a in terms.dims_of(x) for b in terms.dims_of(x) if x is terms.dims[a] * extents[b] + terms.dims[b]]
            if x in terms.dims and extents[terms.dims.index(x)] == e:
                read.append(terms.dims.index(x))
            elif pair and extents[pair[0][0]] * extents[pair[0][1]] == e and (at + 1 < len(shape) or extents[pair[0][1]] >= ROW):
                read += pair[0]
                parts.append((at, extents[pair[0][0]], extents[pair[0][1]]))
        if parts and len(set(read)) == len(read) == len(shape) + len(parts):
            for at, outer, inner in reversed(parts):
                value = expanded(value, at, outer, inner)
            with ir.InsertionPoint(op), op.location:
                made = rebuild(op, operands=[*operands_in(op), Operand(value, read, load.results[0])], body=Body.needed)
            return _separate(replace(op, made))


def _join(op: ir.Operation) -> None:
    for load in [o.operation for o in mlir.body_of(op).operations if o.operation.name == "tensor.extract"]:
        while (found := _joined(op, load)) is not None:
            load = _in_one(load, *found)
        if _bare(op, load) is not None:
            return _join(_as_operand(op, load))


def as_operands(op: ir.Operation) -> None:
    """Has an operation read whole tensors at bare indices as inputs."""
    for load in [o.operation for o in mlir.body_of(op).operations if o.operation.name == "tensor.extract"]:
        if _bare(op, load) is not None:
            return as_operands(_as_operand(op, load))


def _joined(op: ir.Operation, load: ir.Operation) -> tuple[int, ir.Value] | None:
    """The first subscript of two that are the quotient and the rest of one index, by the extent of the second dimension; and that
    index."""
    value, *subscripts = load.operands
    shape, extents, terms = list(ir.ShapedType(value.type).shape), mlir.extents_of(op), BodyTerms(op)
    indices = [o.operation for o in mlir.body_of(op).operations if o.operation.name == "linalg.index"]
    for at, (first, second) in enumerate(pairwise(map(terms.exact, subscripts))):
        whole = first * shape[at + 1] + second
        for index in indices if first.free == second.free == whole.free else ():
            d = index_dim(index)
            if whole is terms.dims[d] and extents[d] == shape[at] * shape[at + 1]:
                return at, index.results[0]
    return None


def _in_one(load: ir.Operation, at: int, index: ir.Value) -> ir.Operation:
    """The load from the tensor with both dimensions in one."""
    value, *subscripts = load.operands
    with ir.InsertionPoint(load), load.location:
        made = tensor.extract(collapsed(value, at), [*subscripts[:at], index, *subscripts[at + 2 :]])
    load.results[0].replace_all_uses_with(made)
    load.erase()
    return mlir.definition(made)


def _bare(op: ir.Operation, load: ir.Operation) -> list[int] | None:
    """The dimensions that are the subscripts of a load, if these are all of the tensor's elements, each once. A dimension of one
    element, at which 0 is read, is one of the operation's."""
    value, *subscripts = load.operands
    extents, shape = mlir.extents_of(op), list(ir.ShapedType(value.type).shape)
    owners = [mlir.definition(s) for s in subscripts]
    dims = [index_dim(o) if o is not None and o.name == "linalg.index" else None for o in owners]
    single = iter([d for d, e in enumerate(extents) if e == 1 and d not in dims])
    read = [next(single, None) if d is None and mlir.constant_value(s) == 0 and e == 1 else d
            for d, s, e in zip(dims, subscripts, shape)]  # fmt: skip
    found = [d for d in read if d is not None]
    whole = len({*found}) == len(read) and [extents[d] for d in found] == shape
    return found if whole else None


def _as_operand(op: ir.Operation, load: ir.Operation) -> ir.Operation:
    """The operation with the tensor of a load as an input."""
    dims = _bare(op, load)
    assert dims is not None
    with ir.InsertionPoint(op), op.location:
        return replace(op, rebuild(op, operands=[*operands_in(op), Operand(load.operands[0], dims, load.results[0])]))


__all__ = ["as_operands", "read_collapsed", "read_expanded"]
