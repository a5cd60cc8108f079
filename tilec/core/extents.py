"""Extents that depend on sizes that vary: what the `?` of a type stands for.

    func @f(%x: tensor<?x1000xf32> {tilec.extents = ["M", "1000"]}) attributes {tilec.sizes = {M = array<i64: 1, 8192, 1>}} {
      %m = tensor.dim %x, 0                                // M
      %y = tensor.empty(%m) : tensor<?x1000xf32>           // extents M, 1000

An extent is a number, or a term over the program's sizes (`tilec/index`). It is written as a text in Python's notation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from math import isinf

from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.mlir import affine, arith, ir, memref, tensor
from tilec.core.varying import Varies, Varying, evaluated, names_in
from tilec.index.facts import NONE, minimum
from tilec.index.questions import multiple
from tilec.index.terms import Leaf, Term, leaf_of, size, sum_of, term

Extent = int | Term

EXTENTS = "tilec.extents"
SIZES = "tilec.sizes"


def set_sizes(function: ir.Operation, sizes: Mapping[str, Varying]) -> None:
    """Writes which sizes of a program, or of a kernel, vary."""
    table: dict[str, ir.Attribute] = {
        name: mlir.integers([v.low, v.high, v.multiple, *(1 for _ in range(v.invariant))]) for name, v in sizes.items()
    }
    function.attributes[SIZES] = ir.DictAttr.get(table)


def sizes_of(op: ir.Operation) -> dict[str, Varying]:
    """The sizes that vary, of the function that an operation is, or belongs to."""
    while SIZES not in op.attributes:
        if op.parent is None:
            return {}
        op = op.parent.operation
    return {e.name: _read(*ir.DenseI64ArrayAttr(e.attr)) for e in ir.DictAttr(op.attributes[SIZES])}


def _read(low: int, high: int, multiple: int, invariant: int = 0) -> Varying:
    return Varying(low, high, multiple, invariant=bool(invariant))


def terms_of(op: ir.Operation) -> dict[str, Term]:
    """The terms of these sizes, by name."""
    return {name: v.term(name) for name, v in sizes_of(op).items()}


def shape_of(value: ir.Value) -> tuple[Extent, ...]:
    """The extents of a tensor or of memory."""
    return tuple(extent_of(value, d) for d in range(ir.ShapedType(value.type).rank))


def known_shape(value: ir.Value) -> tuple[Extent | None, ...]:
    """The same; None for those that are no extents over sizes."""
    return tuple(_known(value, d) for d in range(ir.ShapedType(value.type).rank))


def _known(value: ir.Value, d: int) -> Extent | None:
    with suppress(Varies, InternalError):
        return extent_of(value, d)
    return None


def loops_of(op: ir.Operation) -> tuple[Extent, ...]:
    """The trip count of every iteration dimension of a linalg.generic."""
    maps = mlir.maps_of(op)
    found: list[Extent] = [0] * maps[0].n_dims
    for value, map_ in zip(op.operands, maps):
        for position, dim in enumerate(mlir.map_dims(map_)):
            found[dim] = extent_of(value, position)
    return tuple(found)


def known_loops(op: ir.Operation) -> tuple[Extent | None, ...]:
    """The same; None for those that are no extents over sizes, such as those of a part of a tile."""
    maps = mlir.maps_of(op)
    found: list[Extent | None] = [None] * maps[0].n_dims
    for value, map_ in zip(op.operands, maps):
        for position, dim in enumerate(mlir.map_dims(map_)):
            if (extent := _known(value, position)) is not None:
                found[dim] = extent
    return tuple(found)


def longest(op: ir.Operation, d: int) -> int:
    """The trip count of one iteration dimension, the largest that it may be. Raises Varies where that is not known."""
    if (found := known_loops(op)[d]) is None:
        raise Varies("the largest number that an extent may be")
    return highest(found)


def extent_of(value: ir.Value, d: int) -> Extent:
    """The extent of one dimension."""
    known = ir.ShapedType(value.type).shape[d]
    if known != mlir.DYNAMIC:
        return int(known)
    if isinstance(value, ir.BlockArgument):
        return _of_argument(value, d)
    op = mlir.definition(value)
    dynamic = [k for k, n in enumerate(ir.ShapedType(value.type).shape) if n == mlir.DYNAMIC]
    match op.name:
        case "tensor.empty" | "memref.alloc" | "memref.alloca":
            return value_of(op.operands[dynamic.index(d)])
        case "linalg.generic":
            return extent_of(mlir.outputs_of(op)[_number(op, value)], d)
        case "linalg.fill":
            return extent_of(op.operands[1], d)
        case "func.call":
            return extent_of(list(op.operands)[_number(op, value) - len(op.results)], d)
        case "scf.forall":
            return extent_of(list(op.operands)[_number(op, value) - len(op.results)], d)
        case "tensor.cast" | "memref.cast" | "bufferization.to_tensor":
            return extent_of(op.operands[0], d)
        case "tensor.extract_slice" | "memref.subview":
            sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
            at = mlir.kept_dims(op)[d]
            moving = list(op.operands)[1 + list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"])).count(mlir.DYNAMIC) :]
            return value_of(moving[sizes[:at].count(mlir.DYNAMIC)])
        case "tensor.collapse_shape" | "memref.collapse_shape":
            found: Extent = 1
            for k in _groups(op)[d]:
                found = found * extent_of(op.operands[0], k)
            return found
        case "tensor.expand_shape" | "memref.expand_shape":
            return value_of(list(op.operands)[1 + dynamic.index(d)])
        case "tensor.insert_slice":
            return extent_of(op.operands[1], d)
    raise InternalError(f"no extent is known of the result of '{op.name}'", "", str(op))


def _number(op: ir.Operation, value: ir.Value) -> int:
    return next(n for n, r in enumerate(op.results) if r == value)


def _groups(op: ir.Operation) -> list[list[int]]:
    return [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])]


def _of_argument(value: ir.BlockArgument, d: int) -> Extent:
    owner = value.owner.owner.operation
    if owner.name == "scf.forall":
        results = len(owner.results)
        at = value.arg_number - (len(value.owner.arguments) - results)
        return extent_of(list(owner.operands)[at - results], d)
    words = texts_of(owner, value.arg_number)
    if words is None:
        raise InternalError(f"no extents are known of argument {value.arg_number} of '{mlir.symbol(owner)}'", "", "")
    return _simple(evaluated(words[d], terms_of(owner)))


def texts_of(function: ir.Operation, argument: int) -> list[str] | None:
    """The texts of the extents of a function's argument, where any varies."""
    if "arg_attrs" not in function.attributes:
        return None
    own = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[argument])
    return [ir.StringAttr(w).value for w in ir.ArrayAttr(own[EXTENTS])] if EXTENTS in own else None


def _simple(x: Extent) -> Extent:
    return x if isinstance(x, int) or x.constant is None else x.constant


def value_of(value: ir.Value) -> Extent:
    """An index that is computed of sizes. Raises Varies where it depends on more."""
    if (known := mlir.constant_value(value)) is not None:
        return int(known)
    op = mlir.definition(value)
    if op is None:
        raise Varies("an index")
    operands = list(op.operands)
    match op.name:
        case "tensor.dim" | "memref.dim":
            return extent_of(operands[0], int(mlir.constant_value(operands[1])))
        case "arith.index_cast":
            return value_of(operands[0])
        case "arith.addi":
            return _simple(term(value_of(operands[0])) + value_of(operands[1]))
        case "arith.subi":
            return _simple(term(value_of(operands[0])) - value_of(operands[1]))
        case "arith.muli":
            return _simple(term(value_of(operands[0])) * value_of(operands[1]))
        case "arith.divui" | "arith.floordivsi":
            return _simple(term(value_of(operands[0])) // value_of(operands[1]))
        case "arith.minsi":
            return _simple(minimum(value_of(operands[0]), value_of(operands[1])))
        case "affine.apply":
            map_ = ir.AffineMapAttr(op.attributes["map"]).value
            return _simple(_of_map(map_.results[0], [term(value_of(v)) for v in operands], map_.n_dims))
    raise Varies(f"the result of '{op.name}'")


def _of_map(expr: ir.AffineExpr, values: Sequence[Term], dims: int) -> Term:
    match expr:
        case ir.AffineConstantExpr():
            return term(expr.value)
        case ir.AffineDimExpr():
            return values[expr.position]
        case ir.AffineSymbolExpr():
            return values[dims + expr.position]
    a, b = (_of_map(e, values, dims) for e in mlir.sides(expr))
    match expr:
        case ir.AffineAddExpr():
            return a + b
        case ir.AffineMulExpr():
            return a * b
        case ir.AffineModExpr():
            return a % b
        case ir.AffineFloorDivExpr():
            return a // b
    return -(-a // b)


def divides(number: int, extent: Extent) -> bool:
    """Whether an extent is a multiple of a number, whatever its sizes are."""
    return multiple(term(extent)) % number == 0


def has_pitches(value: ir.Value, number: int) -> bool:
    """Whether lines of memory, planes of lines and so on begin at multiples of a number of elements, whatever its sizes are. Of
    memory whose extents are numbers, plans know it."""
    shape = shape_of(value)
    pitches = [reduce(lambda a, b: a * b, shape[d:]) for d in range(1, len(shape))]
    return all(isinstance(n, int) for n in shape) or all(divides(number, p) for p in pitches if p != 1)


def text_of(extent: Extent, sizes: Mapping[str, Varying]) -> str:
    """The text of an extent."""
    if isinstance(extent, int):
        return str(extent)
    found = extent
    for name, v in sizes.items():
        (leaf,) = v.term(name).leaves
        if v.multiple > 1 and leaf in found.free:  # a symbol M/8 is no name
            whole = {m: f for m, f in found.parts.items() if m.count(leaf) == 1 and f % v.multiple == 0}
            rest = sum_of({m: f for m, f in found.parts.items() if m not in whole})
            factors = sum_of({tuple(x for x in m if x is not leaf): f // v.multiple for m, f in whole.items()})
            quotient = term(leaf_of("size", f"({name} // {v.multiple})"))
            found = NONE.rebuilt(factors, {leaf: quotient}) * size(name) + NONE.rebuilt(rest, {leaf: quotient})
    return str(found)


def amount(extent: Extent, sizes: Mapping[str, Varying]) -> int | str:
    """A number, or the text of an extent."""
    known = extent if isinstance(extent, int) else extent.constant
    return text_of(extent, sizes) if known is None else known


def amount_of(count: int | ir.Value, op: ir.Operation) -> int | str:
    """A number, or the text of what an operation's function computes of its sizes."""
    return count if isinstance(count, int) else amount(value_of(count), sizes_of(op))


def names_of(function: ir.Operation) -> list[str]:
    """The sizes that a kernel is given: those that extents of its arguments depend on."""
    found: dict[str, None] = {}
    for n in range(len(mlir.entry(function).arguments)):
        for text in texts_of(function, n) or ():
            found |= dict.fromkeys(names_in(text))
    return sorted(found)


def blocks_of(loop: ir.Operation) -> int | str:
    """How many blocks a loop over blocks has."""
    found: Extent = 1
    ends = list(loop.operands)
    for n in ir.DenseI64ArrayAttr(loop.attributes["staticUpperBound"]):
        found = (value_of(ends.pop(0)) if n == mlir.DYNAMIC else n) * found
    return amount(found, sizes_of(loop))


def blocks(kernel: ir.Operation) -> int | str:
    """The blocks of a kernel's launch (CUDA)."""
    attribute = kernel.attributes["tilec.blocks"]
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else ir.StringAttr(attribute).value


def block_count(kernel: ir.Operation) -> Extent:
    """The same, as an extent."""
    count = blocks(kernel)
    return count if isinstance(count, int) else _simple(evaluated(count, terms_of(kernel)))


def times(a: int | str, b: int) -> int | str:
    """An amount times a number."""
    return a * b if isinstance(a, int) else a if b == 1 else f"({a}) * {b}"


def set_blocks(kernel: ir.Operation, count: int | str) -> None:
    kernel.attributes["tilec.blocks"] = mlir.integer(count) if isinstance(count, int) else mlir.string(count)


def most(amount: int | str, sizes: Mapping[str, Varying]) -> int:
    """The largest number that an amount is."""
    if isinstance(amount, int):
        return amount
    return highest(term(evaluated(amount, {name: v.term(name) for name, v in sizes.items()})))


def highest(extent: Extent) -> int:
    """A number that an extent does not exceed. Raises Varies where there is none."""
    high = extent if isinstance(extent, int) else NONE.bounds(extent)[1]
    if isinf(high):
        raise Varies(f"how large {extent} may be")
    return int(high)


def lowest(extent: Extent) -> int:
    """A number that an extent is no less than."""
    return extent if isinstance(extent, int) else int(max(0, NONE.bounds(extent)[0]))


def lacking(wanted: Iterable[Extent], given: Sequence[ir.Value]) -> list[Leaf]:
    """The sizes that `emitted` finds in none of the tensors that are given, for extents that are wanted."""
    known = [n for v in given for n in (shape_of(v) if isinstance(v.type, ir.ShapedType) else ())]
    leaves = {leaf: None for x in wanted if not isinstance(x, int) and x not in known for leaf in x.free}
    return [leaf for leaf in leaves if not any(_tells(n, leaf) for n in known)]


def teller(leaf: Leaf, given: Sequence[ir.Value]) -> ir.Value:
    """The first of some tensors that tells a size. Raises Varies where none does."""
    for value in given:
        if any(_tells(n, leaf) for n in shape_of(value)):
            return value
    raise Varies(f"the size {leaf}")


def _tells(extent: Extent, leaf: Leaf) -> bool:
    factor, rest = term(extent).collect(leaf)
    return bool(factor.constant) and rest.constant is not None


def emitted(extent: Extent, given: Sequence[ir.Value]) -> ir.Value:
    """Operations that compute an extent of those of the tensors, or the memory, that are `given`. Raises Varies where none of them
    has a size that it depends on."""
    if isinstance(extent, int):
        return mlir.constant(extent, mlir.index_type())
    dims = [(v, d) for v in given for d, n in enumerate(_shape(v)) if n == mlir.DYNAMIC]
    for value, d in dims:
        if extent_of(value, d) is extent:
            return _dim(value, d)
    if (leaf := extent.leaf) is not None and leaf.is_symbol:
        for value, d in dims:
            factor, rest = term(extent_of(value, d)).collect(leaf)
            if (by := factor.constant) and (less := rest.constant) is not None:
                d0 = ir.AffineDimExpr.get(0)
                return _applied(ir.AffineExpr.get_floor_div(d0 - less, by), _dim(value, d))
        raise Varies(f"the size {extent}")
    if leaf is not None and leaf.op == "//":
        divided = arith.divui if NONE.proves(leaf.args[0]) else arith.floordivsi  # rounded up, a negative number is divided
        return divided(*(emitted(a, given) for a in leaf.args))
    if leaf is not None and leaf.op == "min":
        return reduce(arith.minsi, (emitted(a, given) for a in leaf.args))
    if leaf is not None:
        raise Varies(f"the extent {extent}")
    parts = [[emitted(term(x), given) for x in m] + [emitted(f, given)] * (f != 1 or not m) for m, f in extent.parts.items()]
    return reduce(arith.addi, (reduce(arith.muli, part) for part in parts))


def numbers(shape: Sequence[Extent]) -> ir.Attribute:
    """Extents as an attribute. Raises Varies where one is no number."""
    if not all(isinstance(n, int) for n in shape):
        raise Varies("a shape in numbers")
    return mlir.integers(int(n) for n in shape)  # type: ignore[arg-type]


def at_least(extent: Extent, least: int) -> bool:
    """Whether an extent is known to be no less than a number."""
    return extent >= least if isinstance(extent, int) else NONE.proves(extent - least)


def at_most(extent: Extent, most: int) -> bool:
    """Whether an extent is known to be no more than a number."""
    return extent <= most if isinstance(extent, int) else NONE.proves(most - extent)


def tensor_type(shape: Sequence[Extent], element: ir.Type) -> ir.RankedTensorType:
    """The type of tensors of such extents."""
    return mlir.tensor_type([n if isinstance(n, int) else mlir.DYNAMIC for n in shape], element)


def memory_type(shape: Sequence[Extent], element: ir.Type) -> ir.MemRefType:
    """The type of memory of such extents."""
    return ir.MemRefType.get([n if isinstance(n, int) else mlir.DYNAMIC for n in shape], element)


def argument_attributes(name: str, shape: Sequence[Extent], sizes: Mapping[str, Varying]) -> ir.DictAttr:
    """Those of a kernel's argument of this name."""
    found: dict[str, ir.Attribute] = {"tilec.name": mlir.string(name)}
    if not all(isinstance(n, int) for n in shape):
        found[EXTENTS] = ir.ArrayAttr.get([mlir.string(text_of(n, sizes)) for n in shape])
    return ir.DictAttr.get(found)


def empty(shape: Sequence[Extent], element: ir.Type) -> ir.Value:
    """An empty tensor, at the insertion point in a function whose arguments have all sizes that vary."""
    if all(isinstance(n, int) for n in shape):
        return tensor.empty([int(n) for n in shape], element)  # type: ignore[arg-type]
    given = _given(ir.InsertionPoint.current.block)
    return tensor.empty([n if isinstance(n, int) else emitted(n, given) for n in shape], element)


def value_at(extent: Extent) -> ir.Value:
    """An extent as a value, at the insertion point in such a function."""
    return emitted(extent, [] if isinstance(extent, int) else _given(ir.InsertionPoint.current.block))


def empty_like(value: ir.Value, element: ir.Type | None = None) -> ir.Value:
    """An empty tensor of a tensor's extents."""
    return empty(shape_of(value), element or ir.ShapedType(value.type).element_type)


def _given(block: ir.Block) -> list[ir.Value]:
    """The arguments of the function that a block belongs to."""
    op = block.owner.operation
    while op.name != "func.func":
        op = op.parent.operation
    return list(mlir.entry(op).arguments)


def _shape(value: ir.Value) -> Sequence[int]:
    return ir.ShapedType(value.type).shape if isinstance(value.type, ir.RankedTensorType | ir.MemRefType) else []


def _dim(value: ir.Value, d: int) -> ir.Value:
    made = tensor.dim if isinstance(value.type, ir.RankedTensorType) else memref.dim
    return made(value, mlir.constant(d, mlir.index_type()))


def _applied(expr: ir.AffineExpr, *operands: ir.Value) -> ir.Value:
    return affine.AffineApplyOp(ir.AffineMap.get(len(operands), 0, [expr]), operands).result


# ---- a program at some sizes -------------------------------------------------------------------------------------------

_INDICES = ("tensor.dim", "affine.apply", "arith.addi", "arith.subi", "arith.muli", "arith.divui", "arith.minsi")


def instance(function: ir.Operation, at: Mapping[str, int]) -> ir.Operation:
    """A copy of a program's function at some sizes, in no module: no type has a `?`. Its operations are those of the function, in
    the same order, but for those that compute extents, which are constants."""
    number, copy = _numbers(function, at), function.clone()
    pairs = [(function, copy), *zip(mlir.traverse(function), mlir.traverse(copy), strict=True)]
    types = [
        (new, mlir.tensor_type([number(x) for x in shape_of(old)], old.type.element_type))
        for a, b in pairs
        for old, new in zip(_values(a), _values(b), strict=True)
        if isinstance(old.type, ir.RankedTensorType) and mlir.DYNAMIC in old.type.shape
    ]
    known: list[tuple[ir.Operation, int]] = []
    for old, new in pairs:
        if old.name in _INDICES and isinstance(old.results[0].type, ir.IndexType):
            with suppress(Varies):
                known.append((new, number(value_of(old.results[0]))))
    for value, type_ in types:
        value.set_type(type_)
    for op, n in known:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(mlir.constant(n, mlir.index_type()))
        op.erase()
    for op in [o for o in mlir.traverse(copy) if o.name == "tensor.empty" and len(o.operands)]:
        shaped = ir.ShapedType(op.results[0].type)
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(tensor.empty(list(shaped.shape), shaped.element_type))
        op.erase()
    for op in [o for o in mlir.traverse(copy) if o.name == "tensor.expand_shape" and len(o.operands) > 1]:
        type_ = ir.RankedTensorType(op.results[0].type)
        with ir.InsertionPoint(op), op.location:
            made = tensor.ExpandShapeOp(type_, op.operands[0], op.attributes["reassociation"], [], list(type_.shape))
        op.results[0].replace_all_uses_with(made.result)
        op.erase()
    block = mlir.entry(copy)
    (*_, end) = block.operations
    signature = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in end.operands])
    if SIZES in copy.attributes:
        del copy.attributes[SIZES]
    copy.attributes["function_type"] = ir.TypeAttr.get(signature)
    for key in ("arg_attrs", "res_attrs"):
        if key in copy.attributes:
            rows = [{e.name: _at(e, at) for e in ir.DictAttr(a) if e.name != EXTENTS} for a in ir.ArrayAttr(copy.attributes[key])]
            copy.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])
    return copy


def _at(entry: ir.NamedAttribute, sizes: Mapping[str, int]) -> ir.Attribute:
    """An attribute of an argument at some sizes: the numbers of its shape in the source, for texts."""
    if entry.name != "tilec.shape" or not isinstance(entry.attr, ir.ArrayAttr):
        return entry.attr
    return mlir.integers(evaluated(ir.StringAttr(word).value, sizes) for word in entry.attr)


def _values(op: ir.Operation) -> list[ir.Value]:
    """What an operation makes, and the arguments of its blocks."""
    return [*op.results, *(a for region in op.regions for block in region.blocks for a in block.arguments)]


def _numbers(op: ir.Operation, at: Mapping[str, int]) -> Callable[[Extent], int]:
    """The function from extents to their numbers at some sizes."""
    leaves = {v.term(name).leaves[0]: term(at[name] // v.multiple) for name, v in sizes_of(op).items()}

    def number(x: Extent) -> int:
        found = NONE.rebuilt(term(x), leaves).constant
        assert found is not None, x
        return found

    return number
