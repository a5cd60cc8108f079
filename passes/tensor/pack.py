"""Packed factors: a contraction's factor is computed once, and stored in the layout that matrix units read.

    c[m, n] += f(a[m, k]) * b[k, n]   ->   c.left[m, k] = f(a[m, k])          // in the type that is multiplied
                                           c.right[n, k] = b[k, n]            // k last
                                           c[m, n] += c.left[m, k] * c.right[n, k]

Where lines are no multiple of what TMA can copy, factors are stored with zeros at the end of each line. If these are lines of k,
then k is as long in both factors, and the further products are 0.

A factor that is an element of a tensor at computed subscripts, such as a window's, is no smaller than the tensor. Where rows of
that tensor do not begin at multiples of 16 bytes, it is *aligned*: stored with longer rows, and read at the same subscripts. It may
be stored with its dimensions in another order, too, such as images with their channels last:

    c[n, h, k] += x[n, c, h + r] * w[k, c, r]   ->   c.left[n, h, c] = x[n, c, h]
                                                     c[n, h, k] += c.left[n, h + r, c] * w[k, c, r]

Words of 32 bits that meet weights in registers are stored with *evens first*: of any two neighbours along k a thread has either
both weights or none, and of a product it has every fourth place of k.

    o[i, d] += p[i, j] * v[j, d]   ->   o.right[j % 2, d, j / 2] = v[j, d];   o[i, d] += p[i, j] * o.right[j % 2, d, j / 2]

Every tile of columns needs the factor of M x K elements. If threads compute it again for each tile (a conversion, a
prologue, another order in memory), that takes longer than the products. TMA can copy a factor that is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

from tilec.analysis import bf16_split
from tilec.analysis.access import Access, access_of
from tilec.analysis.products import arguments_of, factors_of, narrow, product_of, scaled, stored
from tilec.core import locations, mlir
from tilec.core.extents import Extent, empty, loops_of, shape_of, value_at
from tilec.core.hardware import RANK, WIDE
from tilec.core.mlir import arith, ir, linalg, tensor
from tilec.core.varying import Varies
from tilec.index.questions import multiple
from tilec.index.terms import Term, term
from tilec.kernels.matrix import ELEMENTS
from tilec.passes.rebuild import Anew, Operand, added, collapsed, expanded, operands_in, rebuild, replace

E = TypeVar("E", int, Extent)
SIDES = ("left", "right")  # the factors of a product in the order in which the body has them


def pack(
    op: ir.Operation, side: int, dims: tuple[int, ...], kind: str, extents: tuple[Extent, ...] = (), order: tuple[int, ...] = (),
    known: ir.Operation | None = None, evens_first: bool = False,
) -> tuple[ir.Operation, ir.Operation]:  # fmt: skip
    """Stores factor `side` of a sum of products as `kind`, over the operation's `dims` in that order. `extents`: along
    them, with the zeros that follow, or none; those of k must be the same for both factors. Without any dimension, the tensor that
    the factor is an element of is aligned, and with an `order`, stored as `kind` with its dimensions in this order; `known` has
    stored it so already. `evens_first`: a further, first dimension has the elements of even number along the last one, then the
    others.

    Returns the operation that computes it and the contraction that reads it instead.
    """
    with ir.InsertionPoint(op), op.location:
        if not dims:
            return _store_tensor(op, side, kind, order, known, evens_first)
        made = _store(op, side, dims, kind, extents or tuple(loops_of(op)[d] for d in dims))
        if kind == bf16_split.KIND:
            _read_factor(op, side, kind, made, dims)
            return made, op
        return made, _read(op, factor(op, side, kind), made.results[0], dims, extents)


def factor(op: ir.Operation, side: int, kind: str) -> ir.Value:
    """What is stored as `kind` of a factor of the product that the operation adds to its sum: all but what scales sums."""
    factors = factors_of(op)
    assert factors is not None, "a sum of products, as the plan found"
    extents = loops_of(op)
    inner = [(d, extents[d]) for d, k in enumerate(mlir.iterators_of(op)) if k == "reduction"]
    if kind == str(factors[side].type):
        return factors[side]
    return scaled(op, factors[side], inner).core


def read_from(op: ir.Operation, side: int, kind: str) -> ir.Value:
    """The tensor that a factor is an element of."""
    found = access_of(op, factor(op, side, kind))
    assert found is not None, "an element of a tensor, as the plan found"
    return found.tensor


def _store_tensor(
    op: ir.Operation, side: int, kind: str, order: tuple[int, ...], known: ir.Operation | None, evens_first: bool
) -> tuple[ir.Operation, ir.Operation]:  # fmt: skip
    value = factor(op, side, kind)
    found = access_of(op, value)
    assert found is not None, "an element of a tensor, as the plan found"
    new = known or (_with_evens_first if evens_first else _in_aligned_rows)(found, kind, order)
    if known is None:
        new.attributes["tilec.name"] = mlir.string(f"{mlir.get_string(op, 'tilec.name')}.{SIDES[side]}")
    as_factor = kind == bf16_split.KIND or ir.ShapedType(new.results[0].type).element_type.width > found.element.width
    if found.operand is not None and as_factor:
        _read_factor(op, side, kind, new, [mlir.map_dims(mlir.maps_of(op)[found.operand])[p] for p in order])
        return new, op
    if found.operand is not None:
        _with_element(op, found.operand, new.results[0], order, evens_first)
        return new, op
    owner = mlir.definition(narrow(value))
    read = owner if owner.name == "tensor.extract" else mlir.definition(stored(owner.operands[1]))
    _, *at = read.operands
    if as_factor:
        guard = None if owner is read or owner == read else owner.operands[0]
        _read_factor(op, side, kind, new, [at[p] for p in order], guard)
        return new, op
    with ir.InsertionPoint(read):
        element = _element(new.results[0], [at[p] for p in order or range(len(at))], evens_first)
        read.results[0].replace_all_uses_with(_widened(element, read.results[0]))
    read.erase()
    return new, op


def _in_aligned_rows(found: Access, kind: str, order: tuple[int, ...]) -> ir.Operation:
    """A tensor with its dimensions in an order, as `kind`, or as it is; zeros follow its rows."""
    element = mlir.type_of(ELEMENTS.get(kind, kind)) if order else found.element
    rank, order = len(found.extents), order or tuple(range(len(found.extents)))
    *outer, last = (found.extents[p] for p in order)
    whole, positions = aligned(last, element.width // 8), [order.index(p) for p in range(rank)]
    outs = [empty([*outer, whole], element) for _ in range(_stored_count(kind))]
    own, read = mlir.projection(rank, range(rank)), mlir.projection(rank, positions)
    as_long, end = term(whole) is term(last), _amount(last)
    inputs, maps = ([found.tensor], [read]) if as_long else ([], [])
    new, block = mlir.generic([o.type for o in outs], inputs, outs, [*maps, *(own for _ in outs)], ["parallel"] * rank)
    with ir.InsertionPoint(block):
        if inputs:
            results = _stored_as(block.arguments[0], element, kind)
        else:
            *at, index = (linalg.IndexOp(d).result for d in range(rank))
            at.append(arith.minsi(index, _before(end)))
            inside = arith.cmpi(arith.CmpIPredicate.slt, index, mlir.index(end))
            results = _stored_as(tensor.extract(found.tensor, [at[d] for d in positions]), element, kind)
            results = [arith.select(inside, r, mlir.constant(0, element)) for r in results]
        linalg.YieldOp(results)
    return new.operation


def _with_evens_first(found: Access, kind: str, order: tuple[int, ...]) -> ir.Operation:
    """The same, with the elements of even number along the last dimension before the others."""
    *outer, at = order
    element, rank = mlir.type_of(ELEMENTS.get(kind, kind)), len(order) + 1
    source = expanded(found.tensor, at, _half(found.extents[at]), 2)
    loops = {p: n + 1 for n, p in enumerate(order)}
    read = [d for p in range(len(order)) for d in ([loops[p], 0] if p == at else [loops[p]])]
    out = empty([2, *(found.extents[p] for p in outer), _half(found.extents[at])], element)
    maps = [mlir.projection(rank, read), mlir.projection(rank, range(rank))]
    new, block = mlir.generic([out.type], [source], [out], maps, ["parallel"] * rank)
    with ir.InsertionPoint(block):
        linalg.YieldOp([_rounded(block.arguments[0], element, kind)])
    return new.operation


def _half(extent: Extent) -> Extent:
    if isinstance(extent, Term) and multiple(extent) % 2:
        raise Varies("whether rows have elements of even number alone")
    return extent // 2


def _amount(extent: Extent) -> int | ir.Value:
    """What an operation's body may use: a number, or a value that is computed before."""
    return extent if isinstance(extent, int) else value_at(extent)


def _before(end: int | ir.Value) -> ir.Value:
    return mlir.index(end - 1) if isinstance(end, int) else arith.subi(end, mlir.index(1))


def zeros_behind(made: ir.Operation, order: tuple[int, ...]) -> Extent:
    """How many zeros follow each row of a tensor that was stored in this order, or as it was."""
    for read in mlir.traverse(made):
        if read.name == "tensor.extract":
            longer, rows = (shape_of(v) for v in (made.results[0], read.operands[0]))
            return longer[-1] - rows[order[-1] if order else -1]
    return 0


def aligned(extent: E, size: int) -> E:
    """The least length of rows of so many elements of `size` bytes that all begin at multiples of 16 bytes."""
    each = WIDE // size
    return (extent + each - 1) // each * each


def _with_element(op: ir.Operation, number: int, longer: ir.Value, order: tuple[int, ...], evens_first: bool) -> None:
    """Has an operation read a tensor at subscripts in place of an operand, which tells the extents of dimensions alone then."""
    body, dims, extents = mlir.body_of(op), mlir.map_dims(mlir.maps_of(op)[number]), loops_of(op)
    argument = body.arguments[number]
    with ir.InsertionPoint.at_block_begin(body):
        element = _element(longer, [linalg.IndexOp(dims[p]).result for p in order or range(len(dims))], evens_first)
        argument.replace_all_uses_with(_widened(element, argument))
    with ir.InsertionPoint(op):
        op.operands[number] = empty([extents[d] for d in dims], argument.type)


def _store(op: ir.Operation, side: int, dims: tuple[int, ...], kind: str, whole: tuple[Extent, ...]) -> ir.Operation:
    element, value = mlir.type_of(ELEMENTS.get(kind, kind)), factor(op, side, kind)
    value = stored(value) if stored(value).type == element else value
    read = set(arguments_of(mlir.body_of(op), value))
    operands = [o for n, o in enumerate(operands_in(op)) if n in read]
    lengths = {d: n for o in operands for d, n in zip(o.dims, shape_of(o.value))}
    longer = {d for d, extent in zip(dims, whole) if term(lengths.get(d, extent)) is not term(extent)}
    ends = {d: _amount(lengths[d]) for d in dims if d in longer}
    beyond = [o for o in operands if not ends.keys().isdisjoint(o.dims)]  # read where they exist
    operands = [o for o in operands if o not in beyond]

    def body(here: Anew) -> list[ir.Value]:
        at = {d: here.own(d) for d in dims} if ends else {}
        exists = [arith.cmpi(arith.CmpIPredicate.slt, at[d], mlir.index(end)) for d, end in ends.items()]
        at |= {d: arith.minsi(at[d], _before(end)) for d, end in ends.items()}
        here.known |= {o.instead: tensor.extract(o.value, [at[d] for d in o.dims]) for o in beyond}
        here.index = at.__getitem__ if ends else here.own
        results = _stored_as(here.value(value), element, kind)
        inside = reduce(arith.andi, exists) if exists else None
        return results if inside is None else [arith.select(inside, r, mlir.constant(0, element)) for r in results]

    outs = [added(empty(whole, element), dims) for _ in range(_stored_count(kind))]
    name = f"{mlir.get_string(op, 'tilec.name')}.{SIDES[side]}"
    new = rebuild(op, dims, operands, body, outputs=outs, iterators=["parallel"] * len(dims), name=name)
    if names := locations.indices(op):
        locations.set_indices(new, [names[d] for d in dims])
    return new


def _stored_count(kind: str) -> int:
    """The tensors in which a factor is stored. bf16 parts have one each: a further dimension could be one too many for TMA."""
    return bf16_split.COUNT if kind == bf16_split.KIND else 1


def _stored_as(value: ir.Value, element: ir.Type, kind: str) -> list[ir.Value]:
    """What each of them has of a factor's value."""
    return bf16_split.split(value) if kind == bf16_split.KIND else [_rounded(value, element, kind)]


def _rounded(value: ir.Value, element: ir.Type, kind: str) -> ir.Value:
    if kind == "tf32":  # to nearest, ties away from zero: the matrix units would cut the last bits off
        away = ir.Attribute.parse("4 : i32")
        return arith.extf(element, arith.TruncFOp(ir.FloatTF32Type.get(), value, roundingmode=away).result)
    if value.type == element:
        return value
    wider = ir.FloatType(value.type).width < ir.FloatType(element).width
    return (arith.extf if wider else arith.truncf)(element, value)


def _read(
    op: ir.Operation, old: ir.Value, packed: ir.Value, dims: tuple[int, ...], extents: tuple[Extent, ...]
) -> ir.Operation:  # fmt: skip
    """The contraction made anew, with the stored value as its last input and without what only that value read. A value that is
    longer than the result along the result's own dimensions is read at subscripts; an empty tensor tells how long k is."""
    (*_, end) = [o.operation for o in mlir.body_of(op).operations]
    live = {o for v in end.operands for o in mlir.slice_of(mlir.body_of(op), v, (old,))}
    kept = {v for o in live for v in mlir.operands_of(o)} - {old}
    own, iterators = loops_of(op), mlir.iterators_of(op)
    within = any(iterators[d] == "parallel" and term(n) is not term(own[d]) for d, n in zip(dims, extents))
    inner = {d: n for d, n in zip(dims, extents) if iterators[d] == "reduction"}
    trips = empty([*inner.values()], ir.ShapedType(packed.type).element_type) if within else packed
    read = Operand(trips, [*inner] if within else dims, old)

    def body(here: Anew) -> list[ir.Value]:
        element = tensor.extract(packed, [here.own(d) for d in dims]) if within else here.known[old]
        here.known[old] = _widened(element, old)
        return [here.value(v) for v in end.operands]

    return replace(op, rebuild(op, operands=[*(o for o in operands_in(op) if o.instead in kept), read], body=body))


def _read_factor(
    op: ir.Operation, side: int, kind: str, made: ir.Operation, at: Sequence[int | ir.Value], guard: ir.Value | None = None
) -> None:  # fmt: skip
    """The factor becomes what is stored of it at dimensions or subscripts, or the sum of its stored parts; 0 where a condition does
    not hold."""
    product = product_of(op)
    assert product is not None, "a sum of products, as the plan found"
    with ir.InsertionPoint(product), op.location:
        subscripts = [linalg.IndexOp(d).result if isinstance(d, int) else d for d in at]
        found = [_element(stored, subscripts) for stored in made.results]
        if guard is not None:
            found = [arith.select(guard, part, mlir.constant(0, part.type)) for part in found]
        old = product.operands[side]
        product.operands[side] = bf16_split.joined(old, found) if kind == bf16_split.KIND else _widened(found[0], old)


def _element(stored: ir.Value, at: Sequence[ir.Value], evens_first: bool = False) -> ir.Value:
    """One of what is stored, of which the first of more dimensions than TMA takes are read as one."""
    if evens_first:
        *outer, last = at
        two = mlir.index(2)
        return tensor.extract(stored, [arith.remui(last, two), *outer, arith.divui(last, two)])
    first, *others = at
    while len(others) >= RANK:
        second, *others = others
        length = _amount(shape_of(stored)[1])
        first, stored = arith.addi(arith.muli(first, mlir.index(length)), second), collapsed(stored, 0)
    return tensor.extract(stored, [first, *others])


def _widened(element: ir.Value, factor: ir.Value) -> ir.Value:
    """A stored element in the type of the factor that it stands for."""
    if element.type == factor.type:
        return element
    if isinstance(factor.type, ir.FloatType):
        return arith.extf(factor.type, element)
    return (arith.extui if mlir.definition(factor).name == "arith.extui" else arith.extsi)(factor.type, element)


__all__ = ["SIDES", "aligned", "factor", "pack", "read_from", "zeros_behind"]
