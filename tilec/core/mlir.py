"""MLIR for the rest of tilec: the bindings (`bindings`), which no other module imports, and small helpers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tilec.core.bindings import (
    VALUE_TYPES,
    PassManager,
    affine,
    arith,
    bufferization,
    cf,
    context,
    func,
    gpu,
    ir,
    linalg,
    math,
    memref,
    nvgpu,
    nvvm,
    plain_values,
    reading_context,
    scf,
    tensor,
    vector,
)  # fmt: skip
from tilec.core.diagnostics import Span

__all__ = [
    "VALUE_TYPES", "PassManager", "affine", "arith", "bufferization", "cf", "context", "func", "gpu", "ir", "linalg", "math",
    "memref", "nvgpu", "nvvm", "plain_values", "reading_context", "scf", "tensor", "vector",
]  # fmt: skip

Element = ir.IntegerType | ir.FloatType
"""What the tensors of a program hold."""
DYNAMIC = ir.ShapedType.get_dynamic_size()


def parse(text: str) -> ir.Module:
    """The module that a dump holds, in the current context. Raises ir.MLIRError with MLIR's own message."""
    return ir.Module.parse(text)


def text(module: ir.Module, locations: bool = False) -> str:
    return module.operation.get_asm(enable_debug_info=locations, pretty_debug_info=False) + ("\n" if locations else "")


# ---- locations -------------------------------------------------------------------------------------------------------


def location(span: Span) -> ir.Location:
    if span is Span.none():
        return ir.Location.unknown()
    return ir.Location.file(span.source.shown, span.line, span.column)


def source_line(op: ir.Operation) -> tuple[str, int] | None:
    """File and line of the innermost source position of an operation's location."""
    return _file_line(op.location)


def _file_line(loc: ir.Location) -> tuple[str, int] | None:
    match loc:
        case ir.FileLineColLoc():
            return loc.filename, loc.start_line
        case ir.NameLoc():
            return _file_line(loc.child_loc)
        case ir.FusedLoc():
            return next((found for inner in loc.locations if (found := _file_line(inner))), None)
    return None


def fused_location(ops: Iterable[ir.Operation]) -> ir.Location:
    """All source positions of several operations, the last one first: it names the result that the source defines."""
    locations = list(dict.fromkeys(op.location for op in ops))
    return locations[-1] if len(locations) == 1 else ir.Location.fused(locations[::-1])


# ---- types, constants, attributes ------------------------------------------------------------------------------------


def index_type() -> ir.Type:
    return ir.IndexType.get()


def type_of(name: str) -> Any:
    """The type that a text names."""
    return ir.Type.parse(name)


def tensor_type(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), element)


def constant(value: int | float | bool, type_: ir.Type) -> ir.Value:
    if isinstance(type_, (ir.IndexType, ir.IntegerType)):
        width = 64 if isinstance(type_, ir.IndexType) else type_.width
        value = int(value)
        if value >= 1 << (width - 1):  # signless: only the bits count
            value -= 1 << width
        attribute: ir.Attribute = ir.IntegerAttr.get(type_, value)
    else:
        attribute = ir.FloatAttr.get(type_, float(value))
    return ir.Operation.create("arith.constant", [type_], attributes={"value": attribute}).result


def fill(value: ir.Value, out: ir.Value) -> Any:
    """`linalg.fill`, without the bindings' language for such operations, which takes ten times as long; its result for a tensor."""
    results = [out.type] if isinstance(out.type, ir.RankedTensorType) else []
    op = linalg.FillOp(results, [value], [out])
    linalg.fill_builtin_region(op.operation)
    return op.results[0] if results else None


def definition(value: ir.Value) -> ir.Operation | Any:
    """The operation that makes a value; None for the arguments of blocks. Callers that know of an operation need not ask."""
    return None if isinstance(value, ir.BlockArgument) else value.owner.operation


SHOWN = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.insert_slice")
"""Operations of the program that make no data: their first operand is in memory, and so is what they return."""


def fill_value(value: ir.Value) -> ir.Value | None:
    """The constant that a tensor is full of."""
    owner = definition(value)
    return owner.operands[0] if owner is not None and owner.name == "linalg.fill" else None


def is_empty(value: ir.Value) -> bool:
    """Whether a tensor tells a size alone."""
    owner = definition(value)
    return owner is not None and owner.name == "tensor.empty"


def sources_of(value: ir.Value) -> list[ir.Value]:
    """The tensors behind a value that only shows them: one with another shape, or those that are parts of its memory."""
    owner = definition(value)
    if owner is None or owner.name not in SHOWN:
        return [value]
    before = definition(owner.operands[1]) if owner.name == "tensor.insert_slice" else None
    further = sources_of(owner.operands[1]) if before is not None and before.name == owner.name else []
    return [*sources_of(owner.operands[0]), *further]


def constant_value(value: ir.Value) -> Any:
    """The number that a value is known to be."""
    owner = definition(value)
    if owner is None or owner.name != "arith.constant":
        return None
    attribute = owner.attributes["value"]
    return attribute.value if hasattr(attribute, "value") else None


def index(value: int | ir.Value) -> ir.Value:
    """A number as a constant; a value as it is."""
    return value if isinstance(value, ir.Value) else constant(value, index_type())


def string(value: str) -> ir.Attribute:
    return ir.StringAttr.get(value)


def integers(values: Iterable[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


def integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


# An attribute that is not there is None. Passes know which ones are, so that the type checker sees no None.


def get_string(op: ir.Operation, name: str) -> Any:
    return ir.StringAttr(op.attributes[name]).value if name in op.attributes else None


def get_integer(op: ir.Operation, name: str) -> Any:
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else None


def get_integers(op: ir.Operation, name: str) -> Any:
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else None


# ---- linalg.generic --------------------------------------------------------------------------------------------------


def projection(rank: int, dims: Sequence[int]) -> ir.AffineMap:
    """(d0, ..., d{rank-1}) -> (d_i for i in dims)."""
    return ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(d) for d in dims])


def sides(expression: ir.AffineExpr) -> tuple[ir.AffineExpr, ir.AffineExpr]:
    """The operands of a sum, a product, a quotient or a remainder."""
    assert isinstance(expression, ir.AffineBinaryExpr)
    return expression.lhs, expression.rhs


def map_dims(map_: ir.AffineMap) -> list[int]:
    """The dimensions that a projected permutation picks; tilec builds no other operand maps."""
    return [ir.AffineDimExpr(e).position for e in map_.results]


def generic(
    results: Sequence[ir.Type],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    maps: Sequence[ir.AffineMap],
    iterators: Sequence[str],
    loc: ir.Location | None = None,
) -> tuple[ir.OpView, ir.Block]:
    """An empty linalg.generic and its block, whose arguments are the elements of inputs, then outputs."""
    op = linalg.GenericOp(
        results,
        inputs,
        outputs,
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{i}>") for i in iterators]),
        loc=loc,
    )
    elements = [ir.ShapedType(v.type).element_type for v in (*inputs, *outputs)]
    block = op.regions[0].blocks.append(*elements)
    return op, block


def name_of(op: ir.Operation) -> str:
    """The name of what an operation of the program makes."""
    return get_string(op, "tilec.name") or "op"


def index_dim(op: ir.Operation | ir.OpView) -> int:
    """The dimension whose number a `linalg.index` is."""
    return ir.IntegerAttr(op.attributes["dim"]).value


def is_generic(op: ir.Operation | ir.OpView) -> bool:
    return op.name == "linalg.generic"


def maps_of(op: ir.Operation) -> list[ir.AffineMap]:
    return [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]


def iterators_of(op: ir.Operation) -> list[str]:
    text = str(op.attributes["iterator_types"])  # a list: to have each as an attribute takes ten times as long
    return ["reduction" if "reduction" in word else "parallel" for word in text.split(",") if "<" in word]


def inputs_of(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[: _count_of_inputs(op)]


def outputs_of(op: ir.Operation) -> list[ir.Value]:
    return list(op.operands)[_count_of_inputs(op) :]


def _count_of_inputs(op: ir.Operation) -> int:
    return ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]


def body_of(op: ir.Operation) -> ir.Block:
    return op.regions[0].blocks[0]


def yielded(op: ir.Operation) -> list[ir.Value]:
    """What its body yields."""
    return list(list(body_of(op).operations)[-1].operation.operands)


def extents_of(op: ir.Operation) -> list[int]:
    """Static trip count of every iteration dimension (DYNAMIC where it is not static)."""
    maps = maps_of(op)
    extents = [0] * maps[0].n_dims
    for value, map_ in zip(op.operands, maps):
        if dims := map_dims(map_):
            for dim, extent in zip(dims, ir.ShapedType(value.type).shape):
                extents[dim] = extent
    return extents


def kept_dims(op: ir.Operation) -> list[int]:
    """Source dimensions that a slice or subview keeps: a rank-reducing one drops some of size 1."""
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    shape = list(ir.ShapedType(op.results[0].type).shape)
    kept, wanted = [], list(shape)
    for d, size in enumerate(sizes):
        droppable = size == 1 and len(sizes) - d > len(wanted)
        if wanted and size == wanted[0] and not droppable:
            kept.append(d)
            wanted.pop(0)
    return kept


def clone_op(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> ir.Operation:
    """Copies one operation to the insertion point with its operands (those inside its regions too) mapped."""
    copy = op.clone()
    if mapping:
        _map_operands(copy, mapping)
    for old, new in zip(op.results, copy.results):
        mapping[old] = new
    return copy


def _map_operands(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> None:
    for position, value in enumerate(op.operands):
        if value in mapping:
            op.operands[position] = mapping[value]
    for region in op.regions:
        for block in region:
            for inner in block.operations:
                _map_operands(inner.operation, mapping)


def traverse(op: ir.Operation | ir.OpView) -> Iterator[ir.Operation]:
    """All operations inside `op`, outer before inner."""
    pending = [_inside(op)]
    while pending:
        for inner in pending[-1]:
            found = inner.operation
            yield found
            if len(found.regions):
                pending.append(_inside(found))
                break
        else:
            pending.pop()


def _inside(op: ir.Operation | ir.OpView) -> Iterator[ir.OpView]:
    for region in op.regions:
        for block in region:
            yield from block.operations


def operands_of(op: ir.Operation) -> list[ir.Value]:
    """The operands of an operation and of the operations inside it."""
    return [*op.operands, *(v for inner in traverse(op) for v in inner.operands)]


def slice_of(block: ir.Block, value: ir.Value, known: Collection[ir.Value] = ()) -> list[ir.Operation]:
    """The operations of a block that a value depends on, in order, without those that only `known` values depend on."""
    needed, pending = set(), [value]
    while pending:
        value = pending.pop()
        owner = None if value in known else definition(value)
        if owner is not None and owner.block == block and owner not in needed:
            needed.add(owner)
            pending += operands_of(owner)
    return [o.operation for o in block.operations if o.operation in needed]


def depends(block: ir.Block, value: ir.Value, wanted: ir.Value, known: Collection[ir.Value] = ()) -> bool:
    """Whether a value is another one, or computed from it in a block otherwise than through `known` values."""
    return value == wanted or any(wanted in operands_of(o) for o in slice_of(block, value, known))


def captured(op: ir.Operation) -> list[ir.Value]:
    """Values from outside that the body of an operation uses."""
    inside = {*body_of(op).arguments, *(r for inner in traverse(op) for r in inner.results)}
    return [v for inner in traverse(op) for v in inner.operands if v not in inside]


def functions(module: ir.Module | ir.Operation) -> list[ir.Operation]:
    """The functions of a module, which a pass gets as a plain operation; not those that are only declared."""
    found = [
        op.operation for op in module.operation.regions[0].blocks[0].operations if op.operation.name == "func.func"
    ]
    return [op for op in found if len(op.regions[0].blocks)]


def uses(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def symbol(function: ir.Operation | ir.OpView) -> str:
    """The name of a function."""
    return ir.StringAttr(function.attributes["sym_name"]).value


def callee(call: ir.Operation | ir.OpView) -> str:
    """The name of the function that is called."""
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def entry(function: ir.Operation | ir.OpView) -> ir.Block:
    return function.regions[0].blocks[0]
