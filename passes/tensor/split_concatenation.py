"""Splits concatenations: what is computed of a tensor that joins others is computed of each of them.

    c[i, j] = s[i, j] if j < N else z[i]        (j <= N)        c.piece0[i, j] = s[i, j];    c.piece1[i] = z[i]
    m[i]    = max[j](c[i, j])                             ->    m.piece0[i] = max[j](c.piece0[i, j])
                                                                m[i]        = max(m.piece0[i], c.piece1[i])

A reduction over a join combines the reductions over its pieces, and a part of a join that lies in one piece is a part of that
piece. A piece of one element has no dimension of its own. What joins the scores of attention with a column, a sink, then reads the
scores element by element, so that they may stay on chip. `tilec/analysis/concatenation.py` finds the operations.

Reductions that leave the dimension of a join are made of those of the tensors that it joins, where others reduce these, too:

    c[i, j] = x[i, j] if j < N else y[i, j - N]           s.piece0[j] = sum[i](x[i, j]);   s.piece1[j] = sum[i](y[i, j])
    s[j]    = sum[i](c[i, j])                       ->    s[j]        = s.piece0[j] if j < N else s.piece1[j - N]

What is equal to an operation that is there already is not computed again.

The parts of a concatenation may be stored where they lie in it, by the kernels that compute them:

    c[i, j] = s[i, j] if i < N else t[i - N, j]           c.piece0[i, j] = s[i, j];    c.piece1[i, j] = t[i, j]
                                                   ->     c = c.piece0 and c.piece1, inserted at i = 0 and i = N
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from tilec.analysis.concatenation import (
    Concatenation,
    Parts,
    around,
    concatenation_of,
    ends_of,
    reduced_concatenations,
    stored_concatenations,
)
from tilec.analysis.products import combined
from tilec.core import locations, mlir
from tilec.core.extents import empty, empty_like, loops_of
from tilec.core.mlir import affine, arith, ir, linalg, tensor
from tilec.core.structure import NAMES, structure_of
from tilec.passes.rebuild import Anew, Operand, operands_in, operands_out, rebuild
from tilec.passes.tensor.bounds import fold_function
from tilec.passes.tensor.collapsed import as_operands


def concatenations_of(function: ir.Operation, deepest: int) -> list[ir.Operation]:
    """The tensors that `compute_in_pieces` may compute in pieces."""
    return [_join(pieces) for pieces in concatenation_of(function, deepest)]


def split_concatenations(function: ir.Operation, deepest: int, joins: Collection[str] | None = None) -> None:
    """Rewrites what `concatenation_of` finds, or of that the concatenations of these names, and folds what is known in a piece."""
    wanted = [p for p in list(concatenation_of(function, deepest)) if joins is None or mlir.name_of(_join(p)) in joins]
    _folded(function, [name for pieces in wanted for name in _Cut(pieces).carry_out()])


def _folded(function: ir.Operation, made: Collection[str]) -> None:
    """Folds what is known in pieces, the operations of these names."""
    fold = mlir.PassManager.parse("func.func(canonicalize,cse)")
    fold_function(function)
    fold.run(function)
    for op in [o for o in mlir.traverse(function) if mlir.is_generic(o) and mlir.name_of(o) in made]:
        as_operands(op)
    fold.run(function)


def store_parts(function: ir.Operation, names: Collection[str]) -> None:
    """Has what `stored_concatenations` finds under these names be made of parts, each of which a kernel stores in it."""
    parts = list[str]()
    for found in [c for c in stored_concatenations(function) if mlir.name_of(_join(c)) in names]:
        (((op, d),), cut) = found.operations, _Cut(found)
        with ir.InsertionPoint(op), op.location:
            shape, whole = list(ir.ShapedType(op.results[0].type).shape), empty_like(op.results[0])
            made = [_Piece(cut, op, d, n).make()[0] for n in range(len(found.pieces))]
            for value, (begin, end) in zip(made, found.pieces):
                offsets = [begin if n == d else 0 for n in range(len(shape))]
                sizes = [end - begin if n == d else size for n, size in enumerate(shape)]
                whole = tensor.InsertSliceOp(value, whole, [], [], [], offsets, sizes, [1] * len(shape)).result
        op.results[0].replace_all_uses_with(whole)
        parts += [_piece_name(op, n) for n in range(len(made))]
        op.erase()
    _folded(function, parts)


def _join(pieces: Concatenation) -> ir.Operation:
    """The operation that a set begins at."""
    return pieces.operations[0][0]


def _piece_name(op: ir.Operation, number: int) -> str:
    return f"{mlir.name_of(op)}.piece{number}"


def reduce_in_pieces(module: ir.Operation) -> None:
    """Rewrites what `reduced_concatenations` finds."""
    for function in mlir.functions(module):
        if found := reduced_concatenations(function):
            ops = [o.operation for o in mlir.entry(function).operations if mlir.is_generic(o.operation)]
            known = _Known(ops)
            for pieces, parts in found:
                _Cut(pieces, parts).reduce(known)


class _Known:
    """Operations by what they compute, and their places by their names: an operation's hash changes with its operands."""

    def __init__(self, ops: Sequence[ir.Operation]):
        self.position: dict[str, float] = {mlir.name_of(op): n for n, op in enumerate(ops)}
        self.first: dict[Hashable, ir.Operation] = {}
        for op in ops:
            self.first.setdefault(self._key(op), op)

    def once(self, made: ir.Operation, before: ir.Operation) -> ir.Value:
        """The result of an operation that was made before another one, or of an equal one that is there already."""
        first = self.first.setdefault(self._key(made), made)
        before_number = self.position[mlir.name_of(before)]
        if first is made or self.position[mlir.name_of(first)] >= before_number:
            self.position[mlir.name_of(made)] = before_number - 0.5
            return made.results[0]
        made.erase()
        return first.results[0]

    @staticmethod
    def _key(op: ir.Operation) -> Hashable:
        """Initial values are equal where they are filled with equal numbers."""
        structure, values = structure_of(op)
        starts = [mlir.fill_value(v) if v in mlir.outputs_of(op) else None for v in values]
        read = [v if start is None else mlir.constant_value(start) for v, start in zip(values, starts)]
        return structure, tuple("" if isinstance(v, ir.Value) and mlir.is_empty(v) else v for v in read)


class _Cut:
    """The operations of a set, made for each piece. `parts` has the pieces of a tensor, and the dimension that is cut; `whole` what
    takes the place of a reduction's result."""

    def __init__(self, found: Concatenation, parts: Parts | None = None):
        self.found = found
        self.parts = dict(parts or {})
        self.whole: dict[ir.Value, ir.Value] = {}

    def carry_out(self) -> list[str]:
        """Returns the names of the operations that read pieces."""
        names: list[str] = []
        for op, d in self.found.operations:
            with ir.InsertionPoint(op), op.location:
                made = [_Piece(self, op, d, n).make() for n in range(len(self.found.pieces))]
                if mlir.iterators_of(op)[d] == "reduction":
                    self.whole[op.results[0]] = self._combined(op, [results[0] for results in made])
                else:
                    for number, (value, map_) in enumerate(zip(op.results, mlir.maps_of(op)[len(mlir.inputs_of(op)) :])):
                        self.parts[value] = mlir.map_dims(map_).index(d), [results[number] for results in made]
            names += [_piece_name(op, n) for n in range(len(made))]
        for value, (p, pieces) in self.parts.items():
            for load in [o for o in mlir.uses(value) if o.name == "tensor.extract" and o.operands[0] == value]:
                names.append(mlir.name_of(around(load)))
                self._read_piece(load, p, pieces)
        for value, whole in self.whole.items():
            value.replace_all_uses_with(whole)
        for op, _ in reversed(self.found.operations):
            if not any(map(mlir.uses, op.results)):
                op.erase()
        return names

    def reduce(self, known: _Known) -> None:
        """The same where the joined tensors are known: what is left of the results, others read as joins."""
        names = {mlir.name_of(op) for op, _ in self.found.operations}
        for op, d in self.found.operations:
            with ir.InsertionPoint(op), op.location:
                made = (_Piece(self, op, d, n).make() for n in range(len(self.found.pieces)))
                self.parts[op.results[0]] = 0, [known.once(mlir.definition(value), op) for (value,) in made]
        for op, _ in self.found.operations:
            with ir.InsertionPoint(op), op.location:
                if not names.issuperset(map(mlir.name_of, mlir.uses(op.results[0]))):
                    op.results[0].replace_all_uses_with(self._concatenated(op))
        for op, _ in reversed(self.found.operations):
            op.erase()

    def _read_piece(self, load: ir.Operation, p: int, pieces: Sequence[ir.Value]) -> None:
        """Has an element be read in the piece in which it lies; what is to go is left as it is."""
        subscripts = list(load.operands)[1:]
        number = self.found.piece_of(ends_of(subscripts[p], around(load)))
        if number is None:
            return
        begin, end = self.found.pieces[number]
        with ir.InsertionPoint(load), load.location:
            at = [_less(subscripts[p], begin)] if end - begin > 1 else []
            element = tensor.extract(pieces[number], [*subscripts[:p], *at, *subscripts[p + 1 :]])
        load.results[0].replace_all_uses_with(element)
        load.erase()

    def _combined(self, op: ir.Operation, parts: list[ir.Value]) -> ir.Value:
        """A reduction of all elements, from those of the pieces."""
        found, type_ = combined(op), ir.ShapedType(op.results[0].type)
        assert found is not None
        update, term = found
        rank, whole = type_.rank, mlir.projection(type_.rank, range(type_.rank))
        out = empty_like(op.results[0])
        made, block = mlir.generic([type_], parts, [out], [whole] * (len(parts) + 1), ["parallel"] * rank)
        made.attributes["tilec.name"] = mlir.string(mlir.name_of(op))
        if names := locations.indices(op):
            dims = mlir.map_dims(mlir.maps_of(op)[-1])
            locations.set_indices(made.operation, [names[d] for d in dims])
        with ir.InsertionPoint(block):
            total, *others = list(block.arguments)[:-1]
            for other in others:
                copy = update.clone()
                for n, value in enumerate(update.operands):
                    copy.operands[n] = other if value == term else total
                total = copy.results[0]
            linalg.YieldOp([total])
        return made.results[0]

    def _concatenated(self, op: ir.Operation) -> ir.Value:
        """The result of an operation from those of the pieces, beside each other along its one dimension."""
        type_ = ir.ShapedType(op.results[0].type)
        out, own = empty_like(op.results[0]), mlir.projection(1, [0])
        made, block = mlir.generic([type_], [], [out], [own], ["parallel"])
        for key in (key for key in NAMES if key in op.attributes):
            made.attributes[key] = op.attributes[key]
        with ir.InsertionPoint(block):
            at = linalg.IndexOp(0).result
            found: ir.Value | None = None
            for (begin, end), piece in reversed([*zip(self.found.pieces, self.parts[op.results[0]][1])]):
                inside = arith.maxsi(arith.minsi(_less(at, begin), mlir.index(end - begin - 1)), mlir.index(0))
                here = tensor.extract(piece, [inside])
                below = arith.cmpi(arith.CmpIPredicate.slt, at, mlir.index(end))
                found = here if found is None else arith.select(below, here, found)
            assert found is not None, "it has pieces"
            linalg.YieldOp([found])
        return made.results[0]


class _Piece:
    """An operation for one piece of its dimension `cut`. Without more than one element there, it has no such dimension."""

    def __init__(self, all_: _Cut, op: ir.Operation, cut: int, number: int):
        self.all, self.op, self.cut, self.number = all_, op, cut, number
        self.begin, end = all_.found.pieces[number]
        self.length = end - self.begin
        rank = mlir.maps_of(op)[0].n_dims
        self.dims = [d for d in range(rank) if d != cut or self.length > 1]
        self.extents = [self.length if d == cut else e for d, e in enumerate(loops_of(op))]
        self.gathered: list[Operand] = []  # that the body reads at subscripts

    def make(self) -> list[ir.Value]:
        operands = [o for read in operands_in(self.op) if (o := self._operand(read)) is not None]
        outputs = [o.of(self._output(o)) for o in operands_out(self.op)]
        made = rebuild(self.op, self.dims, operands, self._body, outputs=outputs, extents=self.extents)
        made.attributes["tilec.name"] = mlir.string(_piece_name(self.op, self.number))
        for key in ("tilec.reduce", "tilec.multiplicand") if "reduction" not in mlir.iterators_of(made) else ():
            if key in made.attributes:
                del made.attributes[key]
        return list(made.results)

    def _operand(self, read: Operand) -> Operand | None:
        """What is read in an input's place at the dimensions that are left; None where the body reads it, or nothing does."""
        value = self.all.whole.get(read.value, read.value)
        if self.cut not in read.dims:
            return read.of(value)
        if value in self.all.parts:
            return read.of(self.all.parts[value][1][self.number])
        if mlir.uses(read.instead):
            self.gathered.append(read.of(value))
        return None

    def _output(self, written: Operand) -> ir.Value:
        shape = [self.extents[d] for d in written.dims if d in self.dims]
        out, start = empty(shape, ir.ShapedType(written.value.type).element_type), mlir.fill_value(written.value)
        return out if start is None or not self._reduces else mlir.fill(start, out)

    @property
    def _reduces(self) -> bool:
        return any(kind == "reduction" for d, kind in enumerate(mlir.iterators_of(self.op)) if d in self.dims)

    def _body(self, here: Anew) -> list[ir.Value]:
        def index(d: int) -> ir.Value:
            if d == self.cut and self.length == 1:
                return mlir.index(self.begin)
            if d != self.cut or not self.begin:
                return here.own(d)
            return affine.apply(ir.AffineMap.get(1, 0, [ir.AffineDimExpr.get(0) + self.begin]), [here.own(d)])

        here.index = index
        here.known |= {o.instead: tensor.extract(o.value, [index(d) for d in o.dims]) for o in self.gathered}
        found = here.values()
        if self._reduces or "reduction" not in mlir.iterators_of(self.op):
            return found
        update, state = mlir.definition(found[0]), here.known[list(here.block.arguments)[-1]]
        return [v for v in update.operands if v != state]  # of one element, the reduction is this


def _less(subscript: ir.Value, number: int) -> ir.Value:
    """A subscript less a number: affine, where it is affine, so that both fold to one."""
    owner = mlir.definition(subscript)
    if not number:
        return subscript
    if owner is None or owner.name not in ("linalg.index", "affine.apply"):
        return arith.subi(subscript, mlir.index(number))
    return affine.apply(ir.AffineMap.get(1, 0, [ir.AffineDimExpr.get(0) - number]), [subscript])


__all__ = ["concatenations_of", "reduce_in_pieces", "split_concatenations", "store_parts"]
