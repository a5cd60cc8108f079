"""rebuild: an operation made anew with other dimensions, operands and body.

    y[i] = sum[j](a[i, j] * b[j])    with b read at subscripts     ->    y[i] = sum[j](a[i, j] * extract b[j])

`Operand.instead` says which value of the body an operand's element takes the place of. The rest of the body is emitted at the new
operation's elements and indices (`tilec/passes/emit.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.core import locations, mlir
from tilec.core.extents import Extent, emitted, empty, loops_of, shape_of, tensor_type
from tilec.core.mlir import ir, linalg, tensor
from tilec.kernels.attributes import carry_over
from tilec.passes.emit import Body

NEW = -1  # a dimension that the operation before does not have


@dataclass(frozen=True)
class Operand:
    """A value that is read or written at the indices of `dims`, numbers of the dimensions before. `instead`: the value of the body
    before in whose place its element is."""

    value: ir.Value
    dims: Sequence[int]
    instead: ir.Value

    def of(self, value: ir.Value) -> Operand:
        """Another value, read or written in its place."""
        return Operand(value, self.dims, self.instead)


def added(value: ir.Value, dims: Sequence[int]) -> Operand:
    """One in whose place the body before has nothing."""
    return Operand(value, dims, value)


class Anew(Body):
    """The body of an operation that is made anew. `own` tells the new operation's indices, by the dimensions' numbers before."""

    def __init__(self, block: ir.Block, own: Callable[[int], ir.Value], known: dict[ir.Value, ir.Value]):
        super().__init__(block, index=own, known=known)
        self.own = own


def operands_in(op: ir.Operation) -> list[Operand]:
    return _operands(op)[: len(mlir.inputs_of(op))]


def operands_out(op: ir.Operation) -> list[Operand]:
    return _operands(op)[len(mlir.inputs_of(op)) :]


def _operands(op: ir.Operation) -> list[Operand]:
    elements = mlir.body_of(op).arguments
    return [Operand(v, mlir.map_dims(m), a) for v, m, a in zip(op.operands, mlir.maps_of(op), elements)]


def rebuild(
    op: ir.Operation, dims: Sequence[int] | None = None, operands: Sequence[Operand] | None = None,
    body: Callable[[Anew], Sequence[ir.Value]] = Body.values, *, outputs: Sequence[Operand] | None = None,
    iterators: Sequence[str] | None = None, extents: Sequence[Extent] | None = None, name: str | None = None,
) -> ir.Operation:  # fmt: skip
    """An operation over the dimensions `dims` of another one, in that order, at the insertion point; all that is not given is as
    before. `operands` are its inputs; an empty tensor tells the extents of dimensions that no operand has. `body` yields the
    results: it gets the body before, in which the operands' elements and the indices of `dims` are known. The new operation has the
    other one's attributes, or only a `name` of its own; none if that is empty.
    """
    kinds, own = mlir.iterators_of(op), {d: n for n, d in enumerate(range(len(mlir.iterators_of(op))) if dims is None else dims)}
    read = operands_in(op) if operands is None else list(operands)
    written = operands_out(op) if outputs is None else list(outputs)
    covered = {d for o in (*read, *written) for d in o.dims}
    if missing := [d for d in own if d not in covered]:
        sizes = loops_of(op) if extents is None else extents
        read.append(added(empty([sizes[d] for d in missing], mlir.type_of("i1")), missing))
    every = [*read, *written]
    made, block = mlir.generic(
        [o.value.type for o in written if isinstance(o.value.type, ir.RankedTensorType)],
        [o.value for o in read], [o.value for o in written],
        [mlir.projection(len(own), [own[d] for d in o.dims if d in own]) for o in every],
        [kinds[d] for d in own] if iterators is None else iterators,
    )  # fmt: skip
    new = made.operation
    if name is None:
        carry_over(op, new)
    elif name:
        new.attributes["tilec.name"] = mlir.string(name)
    if (names := locations.indices(op)) and dims is not None and NEW not in own:
        locations.set_indices(new, [names[d] for d in own])
    known = {o.instead: a for o, a in zip(every, block.arguments)}
    with ir.InsertionPoint(block):
        linalg.YieldOp(list(body(Anew(mlir.body_of(op), lambda d: linalg.IndexOp(own[d]).result, known))))
    return new


def replace(op: ir.Operation, new: ir.Operation) -> ir.Operation:
    """Has another operation take the place of one, which goes."""
    for before, after in zip(op.results, new.results):
        before.replace_all_uses_with(after)
    op.erase()
    return new


def expanded(value: ir.Value, at: int, parts: Extent, chunk: Extent) -> ir.Value:
    """The tensor with one dimension written as two: no data moves. The same value for all that read the tensor so, which may
    be one kernel."""
    shape, element = shape_of(value), ir.ShapedType(value.type).element_type
    new = (*shape[:at], parts, chunk, *shape[at + 1 :])
    groups = [[d] if d < at else [at, at + 1] if d == at else [d + 1] for d in range(len(shape))]
    owner = mlir.definition(value)
    if mlir.is_empty(value):  # only tells a trip count
        return empty(new, element)
    for user in mlir.uses(value):
        if user.name == "tensor.expand_shape" and shape_of(user.results[0]) == new:
            return user.results[0]
    with ir.InsertionPoint.at_block_begin(value.owner) if owner is None else ir.InsertionPoint.after(owner):
        return _expand(value, new, element, groups)


def _expand(value: ir.Value, shape: Sequence[Extent], element: ir.Type, groups: list[list[int]]) -> ir.Value:
    type_ = tensor_type(shape, element)
    varying = [emitted(n, [value]) for n in shape if not isinstance(n, int)]
    return tensor.ExpandShapeOp(type_, value, groups, varying, list(type_.shape)).result


def collapsed(value: ir.Value, at: int) -> ir.Value:
    """The tensor with two dimensions in one: the same value for all of its readers."""
    shape, element = shape_of(value), ir.ShapedType(value.type).element_type
    new = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    groups = [[d] if d < at else [at, at + 1] if d == at else [d + 1] for d in range(len(new))]
    for user in mlir.uses(value):
        if user.name == "tensor.collapse_shape" and shape_of(user.results[0]) == new:
            return user.results[0]
    owner = mlir.definition(value)
    if owner is not None and owner.name == "tensor.expand_shape":
        source = owner.operands[0]
        if shape_of(source) == new:
            return source
        read = [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(owner.attributes["reassociation"])]
        if any(at in g and at + 1 in g for g in read):
            fewer = [[d - (d > at) for d in g if d != at + 1] for g in read]
            with ir.InsertionPoint(owner):
                return _expand(source, new, element, fewer)
    with ir.InsertionPoint.at_block_begin(value.owner) if owner is None else ir.InsertionPoint.after(owner):
        return tensor.CollapseShapeOp(tensor_type(new, element), value, groups).result
