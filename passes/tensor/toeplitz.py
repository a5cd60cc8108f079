"""Toeplitz compression: a tensor that is the same along diagonals is stored as one element for each diagonal.

    t[i, j] = f(i - j)            ->    t.diagonals[d] = f(d - (N - 1))
    y[h, i, j] = x[h, t[i, j]]          y[h, i, j]     = x[h, t.diagonals[i - j + N - 1]]

Distances of positions are such tensors, and what is computed or gathered by them: buckets of distances, places, biases.
`tilec/analysis/toeplitz.py` finds them. All operations that compute such a tensor are made anew over its diagonals. Integers of 64
bits become such of 32 where they fit, as places do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.toeplitz import Diagonal, find_diagonals, followed, follows, readers_of
from tilec.core import mlir
from tilec.core.diagnostics import InternalError
from tilec.core.extents import empty, empty_like, loops_of, shape_of, tensor_type
from tilec.core.mlir import affine, arith, ir, tensor
from tilec.index.facts import NONE
from tilec.passes.rebuild import Anew, Operand, added, operands_in, rebuild, replace

SUFFIX = ".diagonals"


def compress_toeplitz(function: ir.Operation, names: Sequence[str]) -> None:
    """Has readers of the tensors of these names read what is stored for each diagonal, which may have diagonals in turn."""
    while names:
        found = find_diagonals(function)
        wanted = [v for v in found if mlir.name_of(mlir.definition(v)) in names]
        if len(wanted) < len(names):
            raise InternalError(f"of {', '.join(names)}, not all are the same along diagonals", "plan")
        made = _Made(found)
        for value in wanted:
            diagonal = found[value]
            readers = [u for u in readers_of(value) if not follows(u, value, diagonal, found)]
            stored = made.of(value)
            for reader in readers:
                _read_by_diagonal(reader, value, stored, diagonal)
        for value in reversed(found):
            if value in made.known and not mlir.uses(value):
                mlir.definition(value).erase()
        further = find_diagonals(function)
        names = [n for v in further if (n := mlir.name_of(mlir.definition(v))) in map(diagonal_name, names)]


def diagonal_name(name: str) -> str:
    return f"{name}{SUFFIX}"


class _Made:
    """Operations over diagonals, by what they stand for."""

    def __init__(self, found: Mapping[ir.Value, Diagonal]):
        self.found, self.known = found, dict[ir.Value, ir.Value]()

    def of(self, value: ir.Value) -> ir.Value:
        """The tensor that has one element for each diagonal of another one: in place of the first of its two dimensions, without
        the second."""
        if value not in self.known:
            op = mlir.definition(value)
            before = {v: self.of(v) for v, _ in followed(op, self.found[value], self.found)}
            with ir.InsertionPoint(op), op.location:
                self.known[value] = self._operation(op, self.found[value], before)
        return self.known[value]

    def _operation(self, op: ir.Operation, diagonal: Diagonal, before: Mapping[ir.Value, ir.Value]) -> ir.Value:
        extents = loops_of(op)
        kept = [d for d in range(len(extents)) if d != diagonal.second]
        shape = [diagonal.count if d == diagonal.first else extents[d] for d in kept]
        direct, gathered = [], []
        for read in operands_in(op):
            if read.value in before and _is_same_way(self.found[read.value], read.dims, diagonal):
                dims = [d for n, d in enumerate(read.dims) if n != self.found[read.value].second]
                dims = [diagonal.first if d == diagonal.second else d for d in dims]
                direct.append(Operand(before[read.value], dims, read.instead))
            elif read.value in before:
                gathered.append(read)
            elif not {diagonal.first, diagonal.second} & {*read.dims}:  # others tell extents alone
                direct.append(read)

        def body(here: Anew) -> list[ir.Value]:
            total = _affine({0: 1}, diagonal.low, [here.own(diagonal.first)])
            unit = diagonal.first if diagonal.factor == 1 else diagonal.second  # the other one is 0, as a sum of these two has it
            at = {
                unit: total if diagonal.factor == 1 else _affine({0: diagonal.other}, 0, [total]),
                diagonal.first + diagonal.second - unit: mlir.index(0),
            }
            index = here.index = lambda d: at[d] if d in at else here.own(d)
            here.known |= {o.instead: _widened(here.known[o.instead], o.instead.type) for o in direct}
            for o in gathered:
                position = _at_diagonal(self.found[o.value], [index(d) for d in o.dims])
                here.known[o.instead] = _widened(tensor.extract(before[o.value], position), o.instead.type)
            return here.values()

        out = added(empty(shape, ir.ShapedType(op.results[0].type).element_type), kept)
        name, kinds = diagonal_name(mlir.name_of(op)), ["parallel"] * len(kept)
        return _in_words(rebuild(op, kept, direct, body, outputs=[out], iterators=kinds, name=name))


def _in_words(op: ir.Operation) -> ir.Value:
    """The result, in 32 bits where it has integers of 64 that fit: places are such."""
    (value,), body = op.results, mlir.body_of(op)
    end, i32 = list(body.operations)[-1].operation, mlir.type_of("i32")
    (made,) = end.operands
    if str(made.type) != "i64" or not NONE.fits(BodyTerms(op).exact(made), 32):
        return value
    type_ = tensor_type(shape_of(value), i32)
    with ir.InsertionPoint(op):
        op.operands[len(op.operands) - 1] = empty_like(value, i32)
    with ir.InsertionPoint(end):
        end.operands[0] = arith.trunci(i32, made)
    list(body.arguments)[-1].set_type(i32)
    value.set_type(type_)
    return value


def _widened(element: ir.Value, like: ir.Type) -> ir.Value:
    return element if element.type == like else arith.extsi(like, element)


def _is_same_way(own: Diagonal, dims: Sequence[int], diagonal: Diagonal) -> bool:
    """Whether what is read has its diagonals in the order of the reader's."""
    factors = {dims[own.first]: own.factor, dims[own.second]: own.other}
    return (factors[diagonal.first], factors[diagonal.second]) == (diagonal.factor, diagonal.other)


def _read_by_diagonal(reader: ir.Operation, value: ir.Value, stored: ir.Value, diagonal: Diagonal) -> None:
    """Has an operation read elements of what is stored."""
    for op in list(mlir.traverse(reader)):
        if op.name == "tensor.extract" and op.operands[0] == value:
            with ir.InsertionPoint(op), op.location:
                element = _widened(tensor.extract(stored, _at_diagonal(diagonal, list(op.operands)[1:])), op.results[0].type)
            op.results[0].replace_all_uses_with(element)
            op.erase()
    operands = operands_in(reader)
    if not any(o.value == value for o in operands):
        return

    def body(here: Anew) -> list[ir.Value]:
        for o in operands:
            if o.value == value:
                element = tensor.extract(stored, _at_diagonal(diagonal, [here.own(d) for d in o.dims]))
                here.known[o.instead] = _widened(element, o.instead.type)
        return here.values()

    with ir.InsertionPoint(reader), reader.location:
        replace(reader, rebuild(reader, operands=[o for o in operands if o.value != value], body=body))


def _at_diagonal(diagonal: Diagonal, position: Sequence[ir.Value]) -> list[ir.Value]:
    """The subscripts of what is stored for a tensor's element at these places."""
    pair = [position[diagonal.first], position[diagonal.second]]
    d = _affine({0: diagonal.factor, 1: diagonal.other}, -diagonal.low, pair)
    return [d if n == diagonal.first else p for n, p in enumerate(position) if n != diagonal.second]


def _affine(factors: dict[int, int], number: int, values: Sequence[ir.Value]) -> ir.Value:
    """A sum of values times numbers, and a number."""
    if all((made := mlir.definition(v)) is not None and made.name in ("linalg.index", "affine.apply") for v in values):
        terms = sum((ir.AffineExpr.get_dim(n) * f for n, f in factors.items()), ir.AffineExpr.get_constant(number))
        return affine.apply(ir.AffineMap.get(len(values), 0, [terms]), values)
    total = mlir.index(number)
    for n, f in factors.items():
        total = arith.addi(total, values[n] if f == 1 else arith.muli(values[n], mlir.index(f)))
    return total
