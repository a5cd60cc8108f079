"""merged: neighbouring dimensions over which a norm reduces, and over which its result is stored, become one.

    m[n, c] = mean[h, w](x[n, c, h, w]);  y[n, c, h, w] = x[n, c, h, w] - m[n, c]
                                          ->      m[n, c] = mean[k](x[n, c, k]);  y[n, c, k] = x[n, c, k] - m[n, c]

No data move. A row is then all that a norm reduces, which the blocks of a cluster may keep. The dimensions of all tensors and
operations that depend on one another are merged together, or stay: an operation that reads one of the two alone keeps both. A
convolution keeps both, and stores its result: others read it with the two in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilec.core import mlir
from tilec.core.extents import Extent, at_least, at_most, empty, loops_of, numbers, shape_of
from tilec.core.mlir import ir
from tilec.passes.rebuild import Operand, collapsed, operands_in, operands_out, rebuild
from tilec.passes.tensor.collapsed import is_contraction

MOST = 1 << 20  # elements of a row: blocks of a cluster keep no longer ones, and for those that they keep one dimension is enough
Pair = tuple[ir.Operation, int, int]
"""Two dimensions of an operation, the outer one first."""
Boundary = tuple[ir.Value, int]
"""Of a tensor: between dimension n and the next."""


class _Separate(Exception):
    """Something needs the two dimensions."""


def merge_reduced(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        while (found := _mergeable(function)) is not None:
            _merge(function, *found)


def _mergeable(function: ir.Operation) -> tuple[dict[ir.Operation, tuple[int, int]], dict[ir.Value, int]] | None:
    """The dimensions of operations, and the boundaries of tensors, that are merged together: those of a reduction and of what is
    stored of the same elements."""
    returned = {v for v in list(mlir.entry(function).operations)[-1].operands if mlir.DYNAMIC in v.type.shape}
    separate = set[Pair]()
    for op in [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]:
        kinds = mlir.iterators_of(op)
        if not at_most(prod(e for e, kind in zip(loops_of(op), kinds) if kind == "reduction"), MOST):
            continue
        for read in operands_in(op):
            row = _row(read.value)
            for at, (outer, inner) in enumerate(zip(read.dims, read.dims[1:])):
                if kinds[outer] == kinds[inner] == "reduction" or at == row:
                    found = _closure((op, outer, inner), separate)
                    if found is None or not returned.isdisjoint(found[1]):
                        continue
                    if any(mlir.iterators_of(o)[d] == "parallel" for o, (d, _) in found[0].items()):
                        return found
                    separate |= _pairs(found[0])
    return None


def _row(value: ir.Value) -> int | None:
    """Of a computed tensor that is read in another shape: the dimension that is written as this one and the next."""
    seen = mlir.definition(value)
    if seen is None or seen.name != "tensor.expand_shape":
        return None
    made = mlir.definition(seen.operands[0])
    if made is None or not (mlir.is_generic(made) or made.name == "tensor.expand_shape"):
        return None
    before, after = (shape_of(v) for v in (seen.operands[0], value))
    return next(n for n, (a, b) in enumerate(zip(before, after)) if a != b)


def _closure(seed: Pair, separate: set[Pair]) -> tuple[dict[ir.Operation, tuple[int, int]], dict[ir.Value, int]] | None:
    """All that depends on two dimensions; None where something needs both. `separate` has pairs that are known to stay."""
    ops, values, waiting = dict[ir.Operation, tuple[int, int]](), dict[ir.Value, int](), [seed]
    try:
        while waiting:
            op, outer, inner = pair = waiting.pop()
            if pair in separate or ops.setdefault(op, (outer, inner)) != (outer, inner):
                raise _Separate
            for value, at in _boundaries(op, outer, inner):
                if value not in values:
                    values[value] = at
                    waiting += _neighbours(value, at)
                elif values[value] != at:
                    raise _Separate
    except _Separate:
        separate |= _pairs(ops)
        return None
    return ops, values


def _pairs(ops: dict[ir.Operation, tuple[int, int]]) -> set[Pair]:
    return {(op, *dims) for op, dims in ops.items()}


def _boundaries(op: ir.Operation, outer: int, inner: int) -> Iterator[Boundary]:
    """The boundaries of an operation's tensors that are between two of its dimensions."""
    kinds, extents = mlir.iterators_of(op), loops_of(op)
    indices = [o for o in mlir.traverse(op) if o.name == "linalg.index"]
    if (
        kinds[outer] != kinds[inner]
        or "tilec.scan" in op.attributes
        or "tilec.position" in op.attributes
        or not all(at_least(e, 1) for e in extents)
        or any(mlir.index_dim(i) in (outer, inner) for i in indices)
    ):
        raise _Separate
    for number, operand in enumerate((*operands_in(op), *operands_out(op))):
        dims = list(operand.dims)
        if outer not in dims and inner not in dims:
            continue
        if [outer, inner] not in [dims[n : n + 2] for n in range(len(dims))]:
            raise _Separate
        inputs = len(mlir.inputs_of(op))
        yield operand.value if number < inputs else op.results[number - inputs], dims.index(outer)


def _neighbours(value: ir.Value, at: int) -> list[Pair]:
    """The dimensions of the operations that make and read a tensor, on both sides of a boundary of it."""
    owner, found = mlir.definition(value), list[Pair]()
    if owner is not None and mlir.is_generic(owner):
        number = list(owner.results).index(value)
        dims = operands_out(owner)[number].dims
        if not _needs_both(owner, dims[at], dims[at + 1]):
            found.append((owner, dims[at], dims[at + 1]))
    elif owner is not None and owner.name == "tensor.empty":
        return []  # each operation has one of its own
    elif owner is not None and owner.name != "tensor.expand_shape":
        raise _Separate
    for user in mlir.uses(value):
        if user.name == "func.return":
            continue
        if not mlir.is_generic(user):
            raise _Separate
        found += [(user, o.dims[at], o.dims[at + 1]) for o in operands_in(user) if o.value == value]
    return found


def _needs_both(op: ir.Operation, outer: int, inner: int) -> bool:
    """Whether a contraction needs both dimensions, as a convolution does: its result is in memory, where others read them as one.
    That of a window of each channel, as of a depthwise convolution, is not in memory if what reads it is computed beside it."""
    if not is_contraction(op):
        return False
    try:
        return not [*_boundaries(op, outer, inner)]
    except _Separate:
        return True


def _merge(function: ir.Operation, ops: dict[ir.Operation, tuple[int, int]], values: dict[ir.Value, int]) -> None:
    shapes = [shape_of(v) for v in list(mlir.entry(function).operations)[-1].operands]
    merged = dict[ir.Value, ir.Value]()
    for value, at in values.items():
        owner = mlir.definition(value)
        if owner is None or owner.name == "tensor.expand_shape" or (mlir.is_generic(owner) and owner not in ops):
            merged[value] = collapsed(value, at)
    in_order = [o.operation for o in mlir.entry(function).operations if o.operation in ops]
    for op, (outer, inner) in [(op, ops[op]) for op in in_order]:

        def shown(operand: Operand, outer: int = outer) -> Operand:
            dims = list(operand.dims)
            if outer not in dims:
                return operand
            value = merged.get(operand.value)
            return operand.of(_empty(operand.value, dims.index(outer)) if value is None else value)

        with ir.InsertionPoint(op), op.location:
            dims = [d for d in range(len(mlir.iterators_of(op))) if d != inner]
            new = rebuild(op, dims, [*map(shown, operands_in(op))], outputs=[*map(shown, operands_out(op))])
        for before, after in zip(op.results, new.results):
            merged[after] = after
            before.replace_all_uses_with(after)
        op.erase()
    _show_results(function, shapes)


def _empty(value: ir.Value, at: int) -> ir.Value:
    """A tensor like an empty or a full one, with two dimensions in one."""
    owner, shape = mlir.definition(value), shape_of(value)
    made = empty([*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]], ir.ShapedType(value.type).element_type)
    return mlir.fill(owner.operands[0], made) if owner.name == "linalg.fill" else made


def _show_results(function: ir.Operation, shapes: list[tuple[Extent, ...]]) -> None:
    """Has the function return what it has now, and know the shapes of the source."""
    results = list(list(mlir.entry(function).operations)[-1].operands)
    inputs = [a.type for a in mlir.entry(function).arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, [r.type for r in results]))
    attributes = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["res_attrs"])]
    for n, (value, shape) in enumerate(zip(results, shapes)):
        if shape_of(value) != shape and "tilec.shape" not in attributes[n]:
            named = {a.name: a.attr for a in attributes[n]} | {"tilec.shape": numbers(shape)}
            attributes[n] = ir.DictAttr.get(named)
    function.attributes["res_attrs"] = ir.ArrayAttr.get(attributes)
