"""Products that several contractions read, computed for each of them anew: each may then keep its own on chip.

    s = q k;  p = f(s);  a = p v;  b = p w        ->        s = q k;      p = f(s);      a = p v
                                                            s.b = q k;    p.b = f(s.b);  b = p.b w

Such a product and what is computed elementwise from it (`p`) would else be in memory, where they may be far larger than all that
the program reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from tilec.analysis.products import product_of
from tilec.core import mlir
from tilec.core.extents import at_least, at_most, loops_of, shape_of
from tilec.core.mlir import ir


def copies_for(function: ir.Operation, deepest: int) -> dict[ir.Operation, list[str]]:
    """The contractions that `copy_for_readers` can give copies, and the names of these."""
    found = {reader: [_name(op, reader) for op, copied in ops if copied] for reader, ops in _plan(function, deepest)}
    return {reader: names for reader, names in found.items() if names}


def copy_for_readers(function: ir.Operation, deepest: int, readers: Collection[str]) -> None:
    """Gives contractions of these names their own products of at most `deepest` terms, and what lies between."""
    steps = []
    for reader, ops in _plan(function, deepest):
        wanted = mlir.get_string(reader, "tilec.name") in readers
        steps.append((reader, [(op, copied and wanted) for op, copied in ops]))
    read = [[list(op.operands) for op, _ in ops] for _, ops in steps]  # an operation's hash changes with its operands
    for (reader, ops), operands in zip(steps, read):
        own: dict[ir.Value, ir.Value] = {}
        for (op, copied), values in zip(ops, operands):
            made = op
            if copied:
                with ir.InsertionPoint.after(op):
                    made = op.clone()
                made.attributes["tilec.name"] = mlir.string(_name(op, reader))
                own[op.results[0]] = made.results[0]
            for n, value in enumerate(values):
                made.operands[n] = own.get(value, value)
        for n, value in enumerate(list(reader.operands)):
            reader.operands[n] = own.get(value, value)


def _name(op: ir.Operation, reader: ir.Operation) -> str:
    return ".".join(mlir.get_string(o, "tilec.name") or "op" for o in (op, reader))


def _plan(function: ir.Operation, deepest: int) -> list[tuple[ir.Operation, list[tuple[ir.Operation, bool]]]]:
    """For each contraction that reads products which others read, too: what of them and behind them it reads, in order, and whether
    it is to have a copy of it, as an earlier contraction has the operation itself."""
    ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
    between = _between(ops, deepest)
    read: list[tuple[ir.Operation, list[ir.Operation]]] = []
    for op in ops:
        if product_of(op) is None or op in between:
            continue
        found, pending = set[ir.Operation](), [op]
        while pending:
            near = [p for v in pending.pop().operands if (p := mlir.definition(v)) in between and p not in found]
            found.update(near)
            pending += near
        if found:
            read.append((op, [o for o in ops if o in found]))
    taken, steps = set[ir.Operation](), []
    for reader, needed in read:
        steps.append((reader, [(op, op in taken) for op in needed]))
        taken.update(needed)
    return steps if any(copied for _, made in steps for _, copied in made) else []


def _between(ops: list[ir.Operation], deepest: int) -> set[ir.Operation]:
    """Products that are larger than their factors, and what is computed elementwise from them, where nothing but that and other
    contractions read them."""
    found = {op for op in ops if _is_large_product(op, deepest)}
    for op in ops:
        elementwise = "reduction" not in mlir.iterators_of(op) and len(op.results) == 1
        if elementwise and any(mlir.definition(v) in found for v in mlir.inputs_of(op)):
            found.add(op)
    for op in reversed(ops):
        if op in found and not all(_may_read(user, op, found) for user in mlir.uses(op.results[0])):
            found.discard(op)
    for op in ops:  # of what is kept for others, nothing is to be computed anew
        if op in found and not _is_large_product(op, deepest) and not any(mlir.definition(v) in found for v in mlir.inputs_of(op)):
            found.discard(op)
    return found


def _may_read(user: ir.Operation, op: ir.Operation, found: set[ir.Operation]) -> bool:
    if user in found:
        return True
    return mlir.is_generic(user) and product_of(user) is not None and op.results[0] in mlir.inputs_of(user)


def _is_large_product(op: ir.Operation, deepest: int) -> bool:
    if product_of(op) is None or len(op.results) != 1 or "tilec.scan" in op.attributes:
        return False
    kinds = mlir.iterators_of(op)
    summed = prod(e for e, kind in zip(loops_of(op), kinds) if kind == "reduction")
    used = {v for inner in mlir.traverse(op) for v in inner.operands}
    read = [v for v, argument in zip(mlir.inputs_of(op), mlir.body_of(op).arguments) if argument in used]
    read += [inner.operands[0] for inner in mlir.traverse(op) if inner.name == "tensor.extract"]
    types = [ir.ShapedType(v.type) for v in dict.fromkeys(read)]
    narrow = all(str(t.element_type) in ("bf16", "f16") for t in types)
    return narrow and at_least(summed, 1) and at_most(summed, deepest) and _may_be_larger(op.results[0], dict.fromkeys(read))


def _may_be_larger(value: ir.Value, others: Iterable[ir.Value]) -> bool:
    """Whether a tensor has more elements than all of the others together, or that depends on sizes: then the plan has decided."""
    size, rest = prod(shape_of(value)), [prod(shape_of(v)) for v in others]
    return not at_most(size - sum(rest), 0)
