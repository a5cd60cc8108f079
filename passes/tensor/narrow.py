"""narrow: a conversion to a narrower type that every reader of a tensor makes is made once, where the tensor is computed.

    q[i]: f32 = ...;  s = ... bf16(q[i]) ...;  t = ... bf16(q[k]) ...    ->    q[i]: bf16 = bf16(...);  s = ... q[i] ...

The bits are the same: fewer of them are stored and loaded, and a product's factor has the type in which matrix units multiply it.

A factor of a product `using bf16` counts as converted on CUDA, where matrix units multiply bf16. On a CPU it does not: vectors
multiply f32, and a kernel would round numbers that it need not round. A reader may negate an element before it converts it, or
choose between it and another number, which changes no rounding. Where the tensor is the result of a reduction, whose accumulator
stays wide, an elementwise operation converts it.

Not changed are results of the program, tensors of which one reader converts nothing, and a tensor with one reader that computes the
same elements: the two are one kernel, and nothing would be stored between them.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.analysis.products import factors_of, stored
from tilec.core import locations, mlir
from tilec.core.extents import empty_like
from tilec.core.mlir import ir, linalg
from tilec.core.target import Target

_KEPT = ("arith.negf", "math.absf", "arith.select")  # conversions before them and after them give the same bits
_WIDER = {"arith.truncf": "arith.extf", "arith.trunci": "arith.extsi"}


def narrow(module: ir.Operation) -> None:
    _narrow_all(module, using=False)


def narrow_multiplicands(module: ir.Operation) -> None:
    """The same, where matrix units multiply what `using` names."""
    _narrow_all(module, using=True)


def narrow_for(target: Target | None) -> Callable[[ir.Operation], None]:
    """The pass for a target."""
    return narrow_multiplicands if target is not None and target.kind == "cuda" else narrow


def _narrow_all(module: ir.Operation, using: bool) -> None:
    for function in mlir.functions(module):
        ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
        names = {mlir.get_string(op, "tilec.name") for op in ops}
        for op in reversed(ops):  # what a reader does not convert any more may be converted by its own producer
            if len(op.results) == 1 and (type_ := _narrow_type(op, using)) is not None:
                _narrow(op, type_, names)


def _narrow_type(op: ir.Operation, using: bool) -> ir.Type | None:
    """The type to which all readers of an operation's result convert each element."""
    (value,) = op.results
    readers = list(dict.fromkeys(mlir.uses(value)))
    if not readers or (len(readers) == 1 and _computes_same_elements(readers[0], value)):
        return None
    found: set[ir.Type | None] = set()
    for element in _elements(value):
        found |= {None} if element is None else _conversions(element, using)
    if len(found) != 1 or (type_ := found.pop()) is None:
        return None
    return type_ if _is_converted(op) else None


def _is_converted(op: ir.Operation) -> bool:
    """Whether a conversion can follow what an operation computes."""
    if "reduction" in mlir.iterators_of(op):
        return "tilec.scan" not in op.attributes
    return not mlir.uses(list(mlir.body_of(op).arguments)[-1])


def _computes_same_elements(reader: ir.Operation, value: ir.Value) -> bool:
    """Whether an operation makes one element of each element of a tensor."""
    if not mlir.is_generic(reader) or "reduction" in mlir.iterators_of(reader):
        return False
    maps = [m for v, m in zip(mlir.inputs_of(reader), mlir.maps_of(reader)) if v == value]
    return len(maps) == len(mlir.uses(value)) and all(len(mlir.map_dims(m)) == m.n_dims for m in maps)


def _elements(value: ir.Value) -> list[ir.Value | None]:
    """A tensor's elements in the bodies of its readers; None for a reader that does not take it apart."""
    found: list[ir.Value | None] = []
    for use in value.uses:
        owner = use.owner.operation
        if owner.name == "tensor.extract":
            found.append(owner.results[0])
        elif mlir.is_generic(owner) and use.operand_number < len(mlir.inputs_of(owner)):
            found.append(mlir.body_of(owner).arguments[use.operand_number])
        else:
            found.append(None)
    return found


def _conversions(element: ir.Value, using: bool) -> set[ir.Type | None]:
    """The types that a body converts a value to; None among them where it uses the value itself."""
    found: set[ir.Type | None] = set()
    for user in dict.fromkeys(mlir.uses(element)):
        if user.name in _WIDER:
            found.add(user.results[0].type if user.results[0].type.width >= 8 else None)  # a bool is stored as a byte
        elif user.name in _KEPT and not (user.name == "arith.select" and user.operands[0] == element):
            found |= _conversions(user.results[0], using)
        else:
            found.add(_multiplied_as(user, element) if using else None)
    return found


def _multiplied_as(user: ir.Operation, factor: ir.Value) -> ir.Type | None:
    """The type to which `using` allows a factor to be rounded that is `factor`."""
    reader = user.block.owner.operation
    if not mlir.is_generic(reader) or mlir.get_string(reader, "tilec.multiplicand") != "bf16":
        return None
    pair = factors_of(reader)
    if pair != tuple(user.operands) or str(factor.type) != "f32" or any(str(stored(f).type) == "f16" for f in pair):
        return None  # with an f16, a factor may rather be an f16 itself, in a chain
    return ir.BF16Type.get()


def _narrow(op: ir.Operation, type_: ir.Type, names: set[str]) -> None:
    """Stores the operation's result in a narrower type, and has its readers widen it, which folds away with their conversions."""
    (value,) = op.results
    shape, wide = ir.ShapedType(value.type).shape, ir.ShapedType(value.type).element_type
    if "reduction" in mlir.iterators_of(op):
        op = _epilogue(op, names)
        elements = _elements(op.results[0])
        (value,) = op.results
    else:
        elements = _elements(value)
    convert = "arith.truncf" if isinstance(wide, ir.FloatType) else "arith.trunci"
    body = mlir.body_of(op)
    end = list(body.operations)[-1].operation
    with ir.InsertionPoint(op), op.location:
        op.operands[len(op.operands) - 1] = empty_like(value, type_)
    with ir.InsertionPoint(end), op.location:
        end.operands[0] = ir.Operation.create(convert, results=[type_], operands=[end.operands[0]]).results[0]
    list(body.arguments)[-1].set_type(type_)
    value.set_type(ir.RankedTensorType.get(shape, type_))
    for element in elements:
        assert element is not None
        _widen(element, type_, convert)


def _widen(element: ir.Value, type_: ir.Type, convert: str) -> None:
    wide, users = element.type, mlir.uses(element)
    element.set_type(type_)
    if not users:
        return
    owner = mlir.definition(element)
    at = ir.InsertionPoint.at_block_begin(element.owner) if owner is None else ir.InsertionPoint.after(owner)
    with at, users[0].location:
        widened = ir.Operation.create(_WIDER[convert], results=[wide], operands=[element])
    element.replace_all_uses_except(widened.results[0], widened)


def _epilogue(op: ir.Operation, names: set[str]) -> ir.Operation:
    """An elementwise operation between a reduction and its readers."""
    (value,) = op.results
    name = mlir.get_string(op, "tilec.name")
    type_ = ir.RankedTensorType(value.type)
    whole = mlir.projection(type_.rank, range(type_.rank))
    with ir.InsertionPoint.after(op), op.location:
        out = empty_like(value)
        made, block = mlir.generic([type_], [value], [out], [whole, whole], ["parallel"] * type_.rank)
        with ir.InsertionPoint(block):
            linalg.YieldOp([block.arguments[0]])
    value.replace_all_uses_except(made.results[0], made.operation)
    made.attributes["tilec.name"] = mlir.string(name)
    op.attributes["tilec.name"] = mlir.string(_unused(f"{name}.{mlir.get_string(op, 'tilec.reduce')}", names))
    if indices := locations.indices(op):
        kept = mlir.map_dims(mlir.maps_of(op)[-1])
        locations.set_indices(made.operation, [indices[d] for d in kept])
    return made.operation


def _unused(name: str, names: set[str]) -> str:
    number, found = 0, name
    while found in names:
        number += 1
        found = f"{name}.{number}"
    names.add(found)
    return found
