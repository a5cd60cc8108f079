"""Collapsed dimensions: what reads several neighbouring dimensions as one reads the tensor in another shape.

    c[m, n] = sum[k](x[m, k // 24, k % 24] * w[n, k])    ->    z[m, k] is x[m, g, h];  c[m, n] = sum[k](z[m, k] * w[n, k])

No data move. A factor at bare indices is a box of its tensor, which hardware copies; what is computed of quotients is copied by
threads, an element after the other. A convolution behind a grouped one reads its input so. Rows at bare indices stay on chip, which
a softmax over all positions of an image needs. A sum over several indices goes along one, where one factor is read at that and the
other has the indices beside each other, such as the weights and the images of a linear layer behind a convolution:

    c[m, n] = sum[g, h](x[m, g, h] * w[n, g * 24 + h])     ->    z[m, k] is x[m, g, h];  c[m, n] = sum[k](z[m, k] * w[n, k])
"""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from math import prod

from tilec.analysis.directions import step_inside
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.products import factors_of, product_of
from tilec.core import mlir
from tilec.core.extents import Extent, at_least, empty, loops_of, shape_of
from tilec.core.mlir import affine, ir, tensor
from tilec.passes.emit import Body
from tilec.passes.rebuild import Anew, Operand, collapsed, expanded, operands_in, operands_out, rebuild, replace

ROW = 8  # elements that are worth a row of their own


def read_collapsed(module: ir.Operation) -> None:
    """Sums of products, and norms of rows that are several dimensions of a tensor: each of their operations reads it as rows."""
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if mlir.get_string(op, "tilec.reduce") == "sum" and product_of(op) is not None:
            _join(_along_one(op))
    readers = dict[ir.Value, list[tuple[ir.Operation, ir.Operation]]]()
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        for load in _loads(op):
            readers.setdefault(load.operands[0], []).append((op, load))
    for value, found in readers.items():
        if len(found) > 1 and any(_is_of_rows(*each) for each in found):  # what one operation reads is computed in it
            for op, _ in found:
                _join(op, value)


def _loads(op: ir.Operation) -> list[ir.Operation]:
    return [o.operation for o in mlir.body_of(op).operations if o.operation.name == "tensor.extract"]


def _is_of_rows(op: ir.Operation, load: ir.Operation) -> bool:
    """Whether a reduction along one dimension reads several of a tensor."""
    able = "reduction" in mlir.iterators_of(op) and "tilec.scan" not in op.attributes
    found = _joined(op, load) if able else None
    return found is not None and mlir.iterators_of(op)[mlir.index_dim(found[2])] == "reduction"


def read_expanded(module: ir.Operation) -> None:
    """Has operations that read one dimension of a tensor at two of their own read the tensor with two dimensions in its place:
    `x[n, g * 8 + c]` is then an element at bare indices. Not contractions, whose tiles are boxes of the tensor."""
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if "tilec.scan" not in op.attributes and not is_contraction(op):
            _separate(op)


def is_contraction(op: ir.Operation) -> bool:
    """Whether an operation sums products of which either factor has dimensions that the other lacks."""
    factors, terms = factors_of(op), BodyTerms(op)
    if "reduction" not in mlir.iterators_of(op) or factors is None:
        return False
    left, right = (frozenset(n for n, d in enumerate(terms.dims) if d.symbol in terms.of(f).free) for f in factors)
    return bool(left - right and right - left)


def _separate(op: ir.Operation) -> None:
    terms, extents = BodyTerms(op), loops_of(op)
    for load in _loads(op):
        value, *subscripts = load.operands
        shape, read, parts = list(shape_of(value)), list[int](), list[tuple[int, list[Extent]]]()
        for at, (e, x) in enumerate(zip(shape, map(terms.exact, subscripts))):
            if x in terms.dims and extents[terms.dims.index(x)] == e:
                read.append(terms.dims.index(x))
                continue
            own = list(terms.dims_of(x))
            if len(own) > 1:
                own.sort(key=lambda d: -step_inside(terms, x, d))
            sizes = [extents[d] for d in own]
            whole = reduce(lambda y, d: y * extents[d] + terms.dims[d], own[1:], terms.dims[own[0]]) if own else None
            if x is whole and prod(sizes) == e and (at + 1 < len(shape) or at_least(sizes[-1], ROW)):
                read += own
                parts.append((at, sizes))
        if parts and len(set(read)) == len(read) == len(shape) + sum(len(sizes) - 1 for _, sizes in parts):
            for at, sizes in reversed(parts):
                for n in range(1, len(sizes)):
                    value = expanded(value, at + n - 1, sizes[n - 1], prod(sizes[n:]))
            with ir.InsertionPoint(op), op.location:
                made = rebuild(op, operands=[*operands_in(op), Operand(value, read, load.results[0])], body=Body.needed)
            return _separate(replace(op, made))


def _along_one(op: ir.Operation) -> ir.Operation:
    """The sum along one index in place of several, if a tensor is read at it: all of its dimension, in order."""
    terms, extents, kinds = BodyTerms(op), loops_of(op), mlir.iterators_of(op)
    every = [*operands_in(op), *operands_out(op)]
    for load in _loads(op):
        value, *subscripts = load.operands
        for extent, subscript in zip(shape_of(value), subscripts):
            x = terms.exact(subscript)
            run = sorted(terms.dims_of(x))
            if not all(isinstance(extents[d], int) for d in run):
                continue
            if len(run) < 2 or prod(extents[d] for d in run) != extent or any(kinds[d] != "reduction" for d in run):
                continue
            along = [o.dims for o in every if not {*run}.isdisjoint(o.dims)]
            consecutive = all(run == [*dims][dims.index(run[0]) :][: len(run)] for dims in along if run[0] in dims)
            whole = reduce(lambda outer, d: outer * extents[d] + terms.dims[d], run[1:], terms.dims[run[0]])
            if x is whole and consecutive and all(run[0] in dims for dims in along):
                return _summed_along_one(op, run, subscript)
    return op


def _summed_along_one(op: ir.Operation, run: list[int], at: ir.Value) -> ir.Operation:
    """The sum with one dimension in place of the dimensions `run`, whose index the subscript `at` is."""
    first, *others = run
    extents = loops_of(op)
    lengths = {d: n for d in run if isinstance(n := extents[d], int)}

    def read(o: Operand) -> Operand:
        shape, dims = list(shape_of(o.value)), [d for d in o.dims if d not in others]
        if first not in o.dims:
            return o
        if mlir.is_empty(o.value):  # only tells trip counts
            sizes = [prod(extents[d] for d in run) if d == first else shape[[*o.dims].index(d)] for d in dims]
            return Operand(empty(sizes, ir.ShapedType(o.value.type).element_type), dims, o.instead)
        return Operand(reduce(lambda value, _: collapsed(value, dims.index(first)), others, o.value), dims, o.instead)

    def body(here: Anew) -> list[ir.Value]:
        def index(d: int) -> ir.Value:
            if d not in run:
                return here.own(d)
            behind = prod(lengths[n] for n in run if n > d)
            part = ir.AffineExpr.get_mod(ir.AffineExpr.get_floor_div(ir.AffineDimExpr.get(0), behind), lengths[d])
            return affine.apply(ir.AffineMap.get(1, 0, [part]), [here.own(first)])

        here.index = index
        here.known[at] = here.own(first)
        return here.values()

    with ir.InsertionPoint(op), op.location:
        kept = [d for d in range(len(extents)) if d not in others]
        return replace(op, rebuild(op, kept, [read(o) for o in operands_in(op)], body))


def _join(op: ir.Operation, only: ir.Value | None = None) -> None:
    """Of all tensors, or of one."""
    for load in _loads(op):
        if only is not None and load.operands[0] != only:
            continue
        while (found := _joined(op, load)) is not None:
            load = _in_one(load, *found)
        if _bare(op, load) is not None:
            return _join(_as_operand(op, load), only)


def as_operands(op: ir.Operation) -> None:
    """Has an operation read whole tensors at bare indices as inputs."""
    for load in _loads(op):
        if _bare(op, load) is not None:
            return as_operands(_as_operand(op, load))


def _joined(op: ir.Operation, load: ir.Operation) -> tuple[int, int, ir.Operation] | None:
    """The first subscript and the end of those that are quotients and rests of one index, by the extents of the dimensions behind
    each; and that index."""
    value, *subscripts = load.operands
    shape, extents, terms = list(shape_of(value)), loops_of(op), BodyTerms(op)
    indices = [o.operation for o in mlir.body_of(op).operations if o.operation.name == "linalg.index"]
    read = list(map(terms.exact, subscripts))
    for at, end in combinations(range(len(read) + 1), 2):
        if end == at + 1 or len(read[at].free) != 1 or any(x.free != read[at].free for x in read[at:end]):
            continue
        whole = reduce(lambda x, k: x * shape[k] + read[k], range(at + 1, end), read[at])
        for index in indices:
            d = mlir.index_dim(index)
            if whole is terms.dims[d] and extents[d] == prod(shape[at:end]):
                return at, end, index
    return None


def _in_one(load: ir.Operation, at: int, end: int, index: ir.Operation) -> ir.Operation:
    """The load from the tensor with these dimensions in one."""
    value, *subscripts = load.operands
    for _ in range(at + 1, end):
        value = collapsed(value, at)
    with ir.InsertionPoint(load), load.location:
        made = tensor.extract(value, [*subscripts[:at], index.results[0], *subscripts[end:]])
    load.results[0].replace_all_uses_with(made)
    load.erase()
    return mlir.definition(made)


def _bare(op: ir.Operation, load: ir.Operation) -> list[int] | None:
    """The dimensions that are the subscripts of a load, if these are all of the tensor's elements, each once. A dimension of one
    element, at which 0 is read, is one of the operation's."""
    value, *subscripts = load.operands
    extents, shape = loops_of(op), list(shape_of(value))
    owners = [mlir.definition(s) for s in subscripts]
    dims = [mlir.index_dim(o) if o is not None and o.name == "linalg.index" else None for o in owners]
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


__all__ = ["as_operands", "is_contraction", "read_collapsed", "read_expanded"]
