"""Reads of a contraction's result at computed subscripts, computed anew where they are few.

    s[i, v] = sum[k](x[i, k] * w[v, k])            g[i] = sum[k](x[i, k] * w[t[i], k])
    z[i] = f(s[i, t[i]])                     ->    z[i] = f(g[i])

The contraction's result then need not be in memory for such a read, so that it may stay on chip. Elementwise operations behind
the contraction are computed in the reader, of the one element.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilec.analysis.products import factors_of
from tilec.core import locations, mlir
from tilec.core.extents import at_least, empty, loops_of
from tilec.core.mlir import ir, linalg, tensor
from tilec.passes.emit import Body
from tilec.passes.rebuild import Operand, operands_in, rebuild, replace

PURE = ("arith", "math", "affine")


def gathered_reads(function: ir.Operation) -> Iterator[ir.Operation]:
    """Operations that `compute_anew` can rewrite, if that reads no more elements than the contraction's result has."""
    for op in [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]:
        read = _read_of(op)
        if read is None or (made := _contraction_of(read.operands[0])) is None:
            continue
        dims, known = set(), True
        for value in list(read.operands)[1:]:
            found = _dims_of(value, op)
            known = known and found is not None
            dims |= found or set()
        extents, inner = loops_of(op), loops_of(made)
        kinds = mlir.iterators_of(made)
        summed = prod(e for e, kind in zip(inner, kinds) if kind == "reduction")
        stored = prod(e for e, kind in zip(inner, kinds) if kind == "parallel")
        if known and at_least(stored - prod(extents[d] for d in dims) * summed, 0):
            yield op


def compute_anew(reader: ir.Operation) -> ir.Operation:
    """Rewrites the first such read of an operation; returns the reduction that computes the elements which it reads."""
    (read, made), function = _site(reader), reader.parent.operation
    subscripts = list(read.operands)[1:]
    dims = sorted({d for v in subscripts for d in _dims_of(v, reader) or ()})
    with ir.InsertionPoint(reader), reader.location:
        found = _Rewritten(reader, made, dims)
        with ir.InsertionPoint(read):
            value = found.element(read.operands[0], subscripts)
        read.results[0].replace_all_uses_with(value)
        read.erase()
        new = found.replace()
    _erase_unread(function)
    return new


def name_of_read(reader: ir.Operation) -> str:
    """The name of the reduction that `compute_anew` makes."""
    return ".".join(mlir.get_string(o, "tilec.name") or "op" for o in (reader, _site(reader)[1]))


def _site(reader: ir.Operation) -> tuple[ir.Operation, ir.Operation]:
    """The read that `gathered_reads` has found, and the contraction."""
    read = _read_of(reader)
    made = None if read is None else _contraction_of(read.operands[0])
    assert read is not None and made is not None
    return read, made


class _Rewritten:
    """A reader, the reduction `new` over `dims` of the reader and the contraction's own, and where the reader takes its result."""

    def __init__(self, reader: ir.Operation, made: ir.Operation, dims: list[int]):
        self.reader, self.made, self.dims = reader, made, dims
        self.new: ir.Operation | None = None
        self.block = mlir.body_of(reader)
        self.argument: ir.Value | None = None

    def element(self, value: ir.Value, subscripts: list[ir.Value]) -> ir.Value:
        """An element of a tensor in the reader's body, at the insertion point."""
        op = mlir.definition(value)
        if op is not None and op == self.made:
            with ir.InsertionPoint(self.reader):
                self.new = _reduction(self.reader, self.made, self.dims, subscripts)
            type_ = ir.ShapedType(self.new.results[0].type).element_type
            self.argument = self.block.add_argument(type_, self.reader.location)
            return self.argument
        if op is None or not _is_elementwise(op) or _contraction_of(value) is None:
            return tensor.ExtractOp(value, subscripts).result
        maps = [mlir.map_dims(m) for m in mlir.maps_of(op)]
        at, body = dict(zip(maps[-1], subscripts)), mlir.body_of(op)
        inputs = mlir.inputs_of(op)
        element = lambda n: self.element(inputs[n], [at[d] for d in maps[n]])  # noqa: E731
        (computed,) = Body(body, element, at.__getitem__).values()
        return computed

    def replace(self) -> ir.Operation:
        """Makes the reader anew, with the elements of `new` as its last input. Returns `new`."""
        assert self.new is not None and self.argument is not None, "after `element`"
        op, element = self.reader, Operand(self.new.results[0], self.dims, self.argument)
        replace(op, rebuild(op, operands=[*operands_in(op), element]))
        return self.new


def _reduction(reader: ir.Operation, made: ir.Operation, dims: list[int], subscripts: list[ir.Value]) -> ir.Operation:
    """The contraction at `subscripts` of the reader, before the reader."""
    kinds, extents = mlir.iterators_of(made), loops_of(made)
    summed = [d for d, kind in enumerate(kinds) if kind == "reduction"]
    rank, own = len(dims) + len(summed), {d: n for n, d in enumerate(dims)}
    inner = {d: len(dims) + n for n, d in enumerate(summed)}
    out = mlir.map_dims(mlir.maps_of(made)[-1])
    at = dict(zip(out, subscripts))
    bare = {d: own[b] for d, v in at.items() if (b := _bare(v)) is not None} | inner
    operands: list[tuple[ir.Value, tuple[int, ...]]] = []
    elements: dict[int, int] = {}  # of the contraction's inputs, those that are read at bare indices
    for n, (value, map_) in enumerate(zip(mlir.inputs_of(made), mlir.maps_of(made))):
        found = [bare[d] for d in mlir.map_dims(map_) if d in bare]
        if len(found) == len(mlir.map_dims(map_)) == len(set(found)):
            elements[n] = len(operands)
            operands.append((value, tuple(found)))
    needed = _arguments(subscripts, reader)
    for n in needed:
        read = tuple(own[d] for d in mlir.map_dims(mlir.maps_of(reader)[n]))
        operands.append((mlir.inputs_of(reader)[n], read))
    sizes = {own[d]: e for d, e in enumerate(loops_of(reader)) if d in own} | {inner[d]: extents[d] for d in summed}
    if missing := [d for d in range(rank) if not any(d in read for _, read in operands)]:
        operands.append((empty([sizes[d] for d in missing], mlir.type_of("i1")), tuple(missing)))
    with made.location:
        state = ir.ShapedType(made.results[0].type).element_type
        out_of = empty([sizes[d] for d in range(len(dims))], state)
        start_value = mlir.fill_value(mlir.outputs_of(made)[0])
        assert start_value is not None, "`_contraction_of` asks"
        start = mlir.fill(start_value, out_of)
        new, block = mlir.generic(
            [start.type], [v for v, _ in operands], [start],
            [*(mlir.projection(rank, read) for _, read in operands), mlir.projection(rank, range(len(dims)))],
            ["parallel"] * len(dims) + ["reduction"] * len(summed),
        )  # fmt: skip
        arguments = list(block.arguments)
        with ir.InsertionPoint(block):
            copied = dict(zip((mlir.body_of(reader).arguments[n] for n in needed), arguments[len(elements) :]))
            positions = {d: _copied(v, reader, own, copied) for d, v in at.items()}
            positions |= {d: linalg.IndexOp(n).result for d, n in inner.items()}
            elements[len(mlir.inputs_of(made))] = -1  # the sum so far

            def element(n: int) -> ir.Value:
                if n in elements:
                    return arguments[elements[n]]
                read = operands_in(made)[n]
                return tensor.ExtractOp(read.value, [positions[d] for d in read.dims]).result

            linalg.YieldOp(Body(mlir.body_of(made), element, positions.__getitem__).values())
    new.attributes["tilec.name"], new.attributes["tilec.reduce"] = mlir.string(name_of_read(reader)), mlir.string("sum")
    if (of_reader := locations.indices(reader)) and (of_made := locations.indices(made)):
        locations.set_indices(new.operation, [*(of_reader[d] for d in dims), *(of_made[d] for d in summed)])
    return new.operation


def _copied(value: ir.Value, reader: ir.Operation, own: dict[int, int], mapping: dict[ir.Value, ir.Value]) -> ir.Value:
    """A value of the reader's body, computed at the insertion point; `own` are the new numbers of the reader's dimensions."""
    op = mlir.definition(value)
    if value not in mapping and op is not None and op.block != reader.block:
        for operand in op.operands:
            _copied(operand, reader, own, mapping)
        if op.name == "linalg.index":
            mapping[value] = linalg.IndexOp(own[mlir.index_dim(op)]).result
        else:
            mlir.clone_op(op, mapping)
    return mapping.get(value, value)


# ---- what is read ----------------------------------------------------------------------------------------------------


def _read_of(op: ir.Operation) -> ir.Operation | None:
    """The first read of a contraction's result at computed subscripts."""
    reads = (o for o in mlir.traverse(op) if o.name == "tensor.extract")
    return next((o for o in reads if _contraction_of(o.operands[0]) is not None), None)


def _contraction_of(value: ir.Value) -> ir.Operation | None:
    """The contraction whose result a tensor is, or of whose elements its elements are computed, each of one."""
    op = mlir.definition(value)
    if op is None or not mlir.is_generic(op):
        return None
    if mlir.get_string(op, "tilec.reduce") == "sum" and "tilec.scan" not in op.attributes and factors_of(op) is not None:
        return op if mlir.fill_value(mlir.outputs_of(op)[0]) is not None else None
    if not _is_elementwise(op):
        return None
    found = [c for v in mlir.inputs_of(op) if (c := _contraction_of(v)) is not None]
    return found[0] if len(found) == 1 else None


def _is_elementwise(op: ir.Operation) -> bool:
    if not mlir.is_generic(op) or len(op.results) != 1 or "reduction" in mlir.iterators_of(op):
        return False
    states = list(mlir.body_of(op).arguments)[len(mlir.inputs_of(op)) :]
    return not any(map(mlir.uses, states)) and all(_is_pure(o) for o in mlir.traverse(op) if o != op)


def _is_pure(op: ir.Operation) -> bool:
    return op.name.partition(".")[0] in PURE or op.name in ("linalg.index", "linalg.yield")


def _bare(value: ir.Value) -> int | None:
    """The dimension of the operation whose number a subscript is."""
    op = mlir.definition(value)
    return mlir.index_dim(op) if op is not None and op.name == "linalg.index" else None


def _dims_of(value: ir.Value, reader: ir.Operation) -> set[int] | None:
    """The dimensions on which a value of the reader's body depends; None where it depends on what cannot be computed anew."""
    if isinstance(value.owner, ir.Block):
        if value.owner != mlir.body_of(reader):
            return set() if value.owner == reader.block else None
        n = ir.BlockArgument(value).arg_number
        return set(mlir.map_dims(mlir.maps_of(reader)[n])) if n < len(mlir.inputs_of(reader)) else None
    op = mlir.definition(value)
    if op.block == reader.block:  # from outside
        return set()
    if not _is_pure(op):
        return None
    if op.name == "linalg.index":
        return {mlir.index_dim(op)}
    found: set[int] = set()
    for operand in op.operands:
        if (more := _dims_of(operand, reader)) is None:
            return None
        found |= more
    return found


def _arguments(values: list[ir.Value], reader: ir.Operation) -> list[int]:
    """The numbers of the reader's inputs that values of its body depend on."""
    found, pending, body = set(), list(values), mlir.body_of(reader)
    while pending:
        value = pending.pop()
        if isinstance(value.owner, ir.Block):
            if value.owner == body:
                found.add(ir.BlockArgument(value).arg_number)
        elif mlir.definition(value).block != reader.block:
            pending += value.owner.operands
    return sorted(found)


def _erase_unread(function: ir.Operation) -> None:
    for op in reversed([o.operation for o in mlir.entry(function).operations]):
        unread = not any(mlir.uses(r) for r in op.results)
        if mlir.is_generic(op) and unread and not any(o.name == "cf.assert" for o in mlir.traverse(op)):
            op.erase()
