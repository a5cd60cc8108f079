"""Slice updates in place: a result in a donated input's memory that differs from it in one slice stores that slice alone.

    n[b, t, d] = v[b, d] if t == p else c[b, t, d]     ->     s[b, d] = v[b, d];  n = s inserted into c at t = p
    tilec.donated = [n, c]

Who calls the program promises that the result is written over the input (`tilec.donated`), so that the rest of it is there: so a
decoder writes its cache. What reads the result reads it in memory. A position outside of the dimension fails a run-time check, and
the slab nearest to it is written. Where the result is of another form, or something else reads the input, all of it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilec.core import mlir
from tilec.core.mlir import arith, cf, ir, tensor
from tilec.passes.emit import Body
from tilec.passes.rebuild import Anew, added, operands_in, operands_out, rebuild

POSITION = "tilec.position"
"""Of an operation whose result is a slab of another tensor: the dimension that it lacks, and its extent there."""
SLAB = "tilec.slab"
"""Of an operation whose result is a part of another tensor, at a place that the program says: where it begins along each dimension,
and the extents there."""
_EQUAL = 0  # of arith.cmpi


def store_slice_updates(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        pairs = mlir.get_integers(function, "tilec.donated")
        if pairs is None:
            continue
        del function.attributes["tilec.donated"]
        for result, number in zip(pairs[::2], pairs[1::2]):
            if (update := _slice_update(function, result, mlir.entry(function).arguments[number])) is not None:
                _store(update)


@dataclass(frozen=True)
class _SliceUpdate:
    """An operation that makes `old`, but for `new` where its dimension `dim` is `at`: values of its body. `needed` are the
    operations of the body that `new` and the body's checks depend on, `scalars` those that `at` does. `numbers` are tensors
    without dimensions, by the elements of them that the body has."""

    op: ir.Operation
    old: ir.Value
    new: ir.Value
    dim: int
    at: ir.Value
    needed: list[ir.Operation]
    scalars: list[ir.Operation]
    numbers: dict[ir.Value, ir.Value]


def _slice_update(function: ir.Operation, result: int, old: ir.Value) -> _SliceUpdate | None:
    (*_, end) = mlir.entry(function).operations
    value = end.operands[result]
    op = mlir.definition(value)
    if op is None or value.type != old.type or mlir.uses(old) != [op] or list(end.operands).count(value) > 1:
        return None
    if (
        not mlir.is_generic(op)
        or len(op.results) != 1
        or "reduction" in mlir.iterators_of(op)
        or "tilec.scan" in op.attributes
    ):
        return None
    body, maps, inputs = mlir.body_of(op), mlir.maps_of(op), mlir.inputs_of(op)
    if old not in inputs or not maps[-1].is_permutation or maps[inputs.index(old)] != maps[-1]:
        return None
    (*_, last) = body.operations
    chosen = mlir.definition(_cast_from(last.operands[0], "arith.truncf"))
    if chosen is None or chosen.name != "arith.select":
        return None
    condition, new, otherwise = chosen.operands
    if _cast_from(otherwise, "arith.extf") != body.arguments[inputs.index(old)]:
        return None
    numbers = {a: v for a, v, m in zip(body.arguments, inputs, maps) if not m.results and _is_number(v)}
    for dim, at in _equations(condition):
        scalars, needed = mlir.slice_of(body, at), _needed(body, new)
        moving = {a for a, m in zip(body.arguments, maps) if dim in mlir.map_dims(m)}
        if (
            all(map(_is_scalar, scalars))
            and not _reads(scalars, at, {*body.arguments} - numbers.keys())
            and not _reads(needed, new, moving)
            and not any(o.name == "linalg.index" and mlir.index_dim(o) == dim for o in needed)
        ):
            return _SliceUpdate(op, old, new, dim, at, needed, scalars, numbers)
    return None


def _cast_from(value: ir.Value, cast: str) -> ir.Value:
    """What a value is cast from, if it is."""
    owner = mlir.definition(value)
    return owner.operands[0] if owner is not None and owner.name == cast else value


def _equations(condition: ir.Value) -> Iterator[tuple[int, ir.Value]]:
    """The ways to see a condition as "an index is equal to a value": the index's dimension, and the value."""
    compared = mlir.definition(condition)
    if (
        compared is None
        or compared.name != "arith.cmpi"
        or ir.IntegerAttr(compared.attributes["predicate"]).value != _EQUAL
    ):
        return
    first, second = compared.operands
    for one, other in ((first, second), (second, first)):
        counted = mlir.definition(_cast_from(one, "arith.index_cast"))
        if counted is not None and counted.name == "linalg.index":
            yield mlir.index_dim(counted), other


def _needed(body: ir.Block, value: ir.Value) -> list[ir.Operation]:
    """The operations of a body that a value and all checks depend on, in order."""
    checks = [o.operation for o in body.operations if o.operation.name == "cf.assert"]
    found = {*checks, *(o for v in (value, *(c.operands[0] for c in checks)) for o in mlir.slice_of(body, v))}
    return [o.operation for o in body.operations if o.operation in found]


def _is_number(value: ir.Value) -> bool:
    """Whether a tensor without dimensions is computed from arguments of the program by operations on numbers."""
    op = mlir.definition(value)
    if op is None:
        return True
    if not mlir.is_generic(op) or len(op.results) != 1 or mlir.maps_of(op)[0].n_dims:
        return False
    return all(map(_is_number, mlir.inputs_of(op))) and all(map(_is_scalar, list(mlir.traverse(op))[:-1]))


def _is_scalar(op: ir.Operation) -> bool:
    """Whether it computes with numbers, or loads one from an argument of the program."""
    return op.name.startswith("arith.") or (op.name == "tensor.extract" and mlir.definition(op.operands[0]) is None)


def _reads(ops: list[ir.Operation], value: ir.Value, arguments: set[ir.Value]) -> bool:
    """Whether operations of a body, or a value that they make, depend on some of its arguments."""
    return any(v in arguments for v in (value, *(read for op in ops for read in mlir.operands_of(op))))


# ---- the slab --------------------------------------------------------------------------------------------------------


def _store(update: _SliceUpdate) -> None:
    op, dims = update.op, mlir.map_dims(mlir.maps_of(update.op)[-1])
    axis, shape = dims.index(update.dim), list(ir.ShapedType(update.old.type).shape)
    with ir.InsertionPoint(op), op.location:
        slab = _slab(update, axis, shape)
        at = arith.maxsi(arith.minsi(_position(update), mlir.index(shape[axis] - 1)), mlir.index(0))
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[axis], sizes[axis] = mlir.DYNAMIC, 1
        whole = tensor.InsertSliceOp(slab, update.old, [at], [], [], offsets, sizes, [1] * len(shape))
    op.results[0].replace_all_uses_with(whole.result)
    op.erase()


def _slab(update: _SliceUpdate, axis: int, shape: list[int]) -> ir.Value:
    """An operation without the dimension, which is the result's dimension `axis`, at the insertion point."""
    op, element = update.op, ir.ShapedType(update.old.type).element_type

    def body(here: Anew) -> list[ir.Value]:
        _check(op, _position(update), shape[axis])
        for needed in update.needed:
            here.copy(needed)
        value = here.value(update.new)
        return [value if value.type == element else arith.truncf(element, value)]

    kept = [d for d in range(len(mlir.iterators_of(op))) if d != update.dim]
    (out,) = operands_out(op)
    empty = tensor.empty([n for p, n in enumerate(shape) if p != axis], element)
    same = [o for o in operands_in(op) if update.dim not in o.dims]
    made = rebuild(op, kept, same, body, outputs=[added(empty, [d for d in out.dims if d in kept])])
    made.attributes[POSITION] = mlir.integers([axis, shape[axis]])
    return made.results[0]


def _check(op: ir.Operation, at: ir.Value, extent: int) -> None:
    file, line = mlir.source_line(op) or ("", 0)
    low, high = (
        arith.cmpi(predicate, at, mlir.index(end))
        for predicate, end in ((arith.CmpIPredicate.sge, 0), (arith.CmpIPredicate.slt, extent))
    )
    name = mlir.get_string(op, "tilec.name")
    cf.assert_(arith.andi(low, high), f"{file}:{line}: `{name}` is written outside of a dimension of {extent}")


def _position(update: _SliceUpdate) -> ir.Value:
    """The position as an index, computed at the insertion point from arguments of the program."""
    at = Body(mlir.body_of(update.op), known={a: _number(value) for a, value in update.numbers.items()}).value(update.at)
    return at if isinstance(at.type, ir.IndexType) else arith.index_cast(mlir.index_type(), at)


def _number(value: ir.Value) -> ir.Value:
    """The element of a tensor without dimensions."""
    op = mlir.definition(value)
    if op is None:
        return tensor.extract(value, [])
    (made,) = Body(mlir.body_of(op), lambda n: _number(mlir.inputs_of(op)[n])).values()
    return made
