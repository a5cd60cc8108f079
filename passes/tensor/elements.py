"""elements: a tensor with the same elements as another tensor is replaced by it.

    t[i] = -x[i];  y[i] = -t[i];  z[i] = exp(y[i])    ->    z[i] = exp(x[i])        and y is x

Every elementwise operation is written again in a function of scalars, which computes an element from elements of the
inputs. That function is folded. `plan` then sees no operation that a later stage would fold away. A tensor that is
computed like a result is replaced by the result. Other tensors that are computed alike stay separate: computing them once
is a matter of cost.
"""

from __future__ import annotations

from math import prod

from tilec.analysis.products import product_of
from tilec.core import mlir
from tilec.core.extents import at_least, loops_of, shape_of
from tilec.core.mlir import func, ir, tensor
from tilec.passes.emit import Body
from tilec.passes.tensor.collapsed import as_operands

DEEP = 32  # operations through which an element is followed at other places than its reader's own
SMALL = 8  # times as many elements make a tensor one that is small beside another
OFTEN = 4  # times as many elements as tensors: one may be read at many places


def forward_elements(module: ir.Operation) -> None:
    for function in mlir.functions(module):
        ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
        if len(elementwise := [op for op in ops if _is_elementwise(op)]) > 1:
            _forward(elementwise, OFTEN * len(ops), set(list(mlir.entry(function).operations)[-1].operands))


def read_through_copies(module: ir.Operation) -> None:
    """Has elements at computed subscripts be read from the tensor that another one is a copy of, where the copy has its dimensions
    in the same order, with others among them."""
    for load in [o for o in mlir.traverse(module) if o.name == "tensor.extract"]:
        while (kept := _copied(load.operands[0])) is not None:
            (source,) = mlir.inputs_of(mlir.definition(load.operands[0]))
            subscripts = list(load.operands)[1:]
            with ir.InsertionPoint(load), load.location:
                made = tensor.extract(source, [subscripts[d] for d in kept])
            load.results[0].replace_all_uses_with(made)
            load.erase()
            load = mlir.definition(made)


def compute_where_read(module: ir.Operation) -> None:
    """Has an element at computed subscripts be computed where a reduction reads it, as a pool whose windows lie side by side: of a
    tensor that nothing else reads, no element more than once, and that is computed of what is in memory in any case."""
    changed = dict[ir.Operation, None]()
    waiting = [o for o in mlir.traverse(module) if o.name == "tensor.extract" and mlir.is_generic(o.parent)]
    while waiting:
        load = waiting.pop()
        if _is_computed_there(load):
            changed[load.parent] = None
            waiting += _compute_there(load)
    for op in changed:
        as_operands(op)


def _is_computed_there(load: ir.Operation) -> bool:
    value, reader = load.operands[0], load.parent
    op, extents = mlir.definition(value), loops_of(reader)
    if op is None or not mlir.is_generic(op) or mlir.uses(value) != [load] or "tilec.scan" in reader.attributes:
        return False
    once = at_least(prod(shape_of(value)) - prod(extents), 0)
    reduced = "reduction" in mlir.iterators_of(reader) and product_of(reader) is None
    return once and reduced and _is_elementwise(op) and _is_made_of_memory(op)


def _is_made_of_memory(op: ir.Operation) -> bool:
    """Whether the large tensors of which an elementwise operation computes its own are arguments, or a reduction reads them."""
    for value in mlir.inputs_of(op):
        made, readers = mlir.definition(value), [u for u in mlir.uses(value) if mlir.is_generic(u)]
        small = at_least(prod(loops_of(op)) - SMALL * prod(shape_of(value)), 0)
        if made is None or small or any("reduction" in mlir.iterators_of(u) for u in readers):
            continue
        if len(readers) > 1 or not mlir.is_generic(made) or not _is_elementwise(made) or not _is_made_of_memory(made):
            return False
    return True


def _compute_there(load: ir.Operation) -> list[ir.Operation]:
    """Returns the elements that are read in its place."""
    value, *subscripts = load.operands
    op, made = mlir.definition(value), list[ir.Operation]()
    inputs, maps = mlir.inputs_of(op), [mlir.map_dims(m) for m in mlir.maps_of(op)]
    at = dict(zip(maps[-1], subscripts))

    def element(n: int) -> ir.Value:
        made.append(mlir.definition(tensor.extract(inputs[n], [at[d] for d in maps[n]])))
        return made[-1].results[0]

    with ir.InsertionPoint(load), load.location:
        (computed,) = Body(mlir.body_of(op), element, at.__getitem__).values()
    load.results[0].replace_all_uses_with(computed)
    for unread in (load, op):
        unread.erase()
    return made


def _copied(value: ir.Value) -> list[int] | None:
    """The dimensions of a tensor that are those of the one that it is a copy of, if it is one."""
    op = mlir.definition(value)
    if op is None or not mlir.is_generic(op) or not _is_elementwise(op) or len(mlir.inputs_of(op)) != 1:
        return None
    read, written = map(mlir.map_dims, mlir.maps_of(op))
    element, end = mlir.body_of(op).arguments[0], list(mlir.body_of(op).operations)[-1]
    kept = [written.index(d) for d in read]
    return kept if end.operands[0] == element and kept == sorted(set(kept)) else None


def _forward(ops: list[ir.Operation], most: int, results: set[ir.Value]) -> None:
    """Of elementwise operations, and of the program's results; `most` elements at places other than their reader's."""
    values = [o.results[0] for o in ops]
    scalars = ir.Module.create()
    with ir.InsertionPoint(scalars.body), ir.Location.unknown():
        function = func.FuncOp("elements", ([], []))
        elements = _Elements(function.add_entry_block(), set(ops), most)
        with ir.InsertionPoint(elements.block):
            found = [elements.of(v, _own(v)) for v in values]
            func.ReturnOp(found)
        types = ir.FunctionType.get([a.type for a in elements.block.arguments], [v.type for v in found])
        function.attributes["function_type"] = ir.TypeAttr.get(types)
    mlir.PassManager.parse("builtin.module(func.func(canonicalize,cse))").run(scalars.operation)
    block = mlir.entry(function.operation)
    known = {block.arguments[n]: value for n, value in enumerate(elements.read) if value is not None}
    for value, element in zip(values, list(block.operations)[-1].operands):
        first = known.get(element)
        if first is not None and first != value and first.type == value.type:
            value.replace_all_uses_with(first)
        elif value in results:
            known[element] = value


def _own(value: ir.Value) -> tuple[int, ...]:
    return tuple(range(ir.ShapedType(value.type).rank))


def _is_elementwise(op: ir.Operation) -> bool:
    """Whether each element of the one result is computed from elements alone, and nothing else is done."""
    if len(op.results) != 1 or "reduction" in mlir.iterators_of(op):
        return False
    states = list(mlir.body_of(op).arguments)[len(mlir.inputs_of(op)) :]
    return (
        not any(map(mlir.uses, states))
        and all(o.name.partition(".")[0] in ("arith", "math", "linalg") for o in mlir.traverse(op))
        and all(mlir.constant_value(v) is not None for v in mlir.captured(op))
    )


class _Elements:
    """Elements of tensors as scalars. A subscript names, for each dimension of a tensor, the reader's dimension."""

    def __init__(self, block: ir.Block, elementwise: set[ir.Operation], most: int):
        self.block, self.elementwise, self.most = block, elementwise, most
        self.made: dict[tuple[ir.Value | None, tuple[int, ...]], ir.Value] = {}
        self.read: list[ir.Value | None] = []  # of each argument the tensor, where it is its element at the same place

    def of(self, value: ir.Value, dims: tuple[int, ...], depth: int = 0) -> ir.Value:
        if (value, dims) not in self.made:
            op = mlir.definition(value)
            near = dims == _own(value) or (depth < DEEP and len(self.made) < self.most)
            if near and op in self.elementwise:
                self.made[value, dims] = self._computed(op, dims, depth + 1)
            else:
                self.made[value, dims] = self._argument(ir.ShapedType(value.type).element_type)
                self.read[-1] = value if dims == _own(value) else None
        return self.made[value, dims]

    def _computed(self, op: ir.Operation, own_dims: tuple[int, ...], depth: int) -> ir.Value:
        inputs, maps = mlir.inputs_of(op), [mlir.map_dims(m) for m in mlir.maps_of(op)]
        at = dict(zip(maps[-1], own_dims))
        constants: dict[ir.Value, ir.Value] = {}
        for value in dict.fromkeys(mlir.captured(op)):
            mlir.clone_op(mlir.definition(value), constants)
        element = lambda n: self.of(inputs[n], tuple(at[d] for d in maps[n]), depth)  # noqa: E731
        (computed,) = Body(mlir.body_of(op), element, lambda d: self._index(at[d]), constants).values()
        return computed

    def _index(self, dim: int) -> ir.Value:
        if (None, (dim,)) not in self.made:
            self.made[None, (dim,)] = self._argument(mlir.index_type())
        return self.made[None, (dim,)]

    def _argument(self, type_: ir.Type) -> ir.Value:
        self.read.append(None)
        return self.block.add_argument(type_, ir.Location.unknown())
