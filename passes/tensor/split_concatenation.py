"""Splits concatenations: what is computed of a tensor that joins others is computed of each of them.

    c[i, j] = s[i, j] if j < N else z[i]        (j <= N)        c.piece0[i, j] = s[i, j];    c.piece1[i] = z[i]
    m[i]    = max[j](c[i, j])                             ->    m.piece0[i] = max[j](c.piece0[i, j])
                                                                m[i]        = max(m.piece0[i], c.piece1[i])

A reduction over a join combines the reductions over its pieces, and a part of a join that lies in one piece is a part of that
piece. A piece of one element has no dimension of its own. What joins the scores of attention with a column, a sink, then reads the
scores element by element, so that they may stay on chip. `tilec/analysis/concatenation.py` finds the operations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilec.analysis.concatenation import Concatenation, around, concatenation_of, ends_of
from tilec.analysis.products import combined
from tilec.core import locations, mlir
from tilec.core.mlir import affine, arith, ir, linalg, tensor
from tilec.passes.rebuild import Anew, Operand, operands_in, operands_out, rebuild
from tilec.passes.tensor.bounds import fold_function
from tilec.passes.tensor.collapsed import as_operands


def concatenations_of(function: ir.Operation, deepest: int) -> list[ir.Operation]:
    """The tensors that `compute_in_pieces` may compute in pieces."""
    return [_join(pieces) for pieces in concatenation_of(function, deepest)]


def split_concatenations(function: ir.Operation, deepest: int, joins: Collection[str] | None = None) -> None:
    """Rewrites what `concatenation_of` finds, or of that the concatenations of these names, and folds what is known in a piece."""
    wanted = [p for p in list(concatenation_of(function, deepest)) if joins is None or _name(_join(p)) in joins]
    made = [name for pieces in wanted for name in _Cut(pieces).carry_out()]
    fold = mlir.PassManager.parse("func.func(canonicalize,cse)")
    fold_function(function)
    fold.run(function)
    for op in [o for o in mlir.traverse(function) if mlir.is_generic(o) and _name(o) in made]:
        as_operands(op)
    fold.run(function)


def _join(pieces: Concatenation) -> ir.Operation:
    """The operation that a set begins at."""
    return pieces.operations[0][0]


def _piece_name(op: ir.Operation, number: int) -> str:
    return f"{_name(op)}.piece{number}"


def _name(op: ir.Operation) -> str:
    return mlir.get_string(op, "tilec.name") or "op"


class _Cut:
    """The operations of a set, made for each piece. `parts` has the pieces of a tensor, and the dimension that is cut; `whole` what
    takes the place of a reduction's result."""

    def __init__(self, found: Concatenation):
        self.found = found
        self.parts: dict[ir.Value, tuple[int, list[ir.Value]]] = {}
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
                names.append(_name(around(load)))
                self._read_piece(load, p, pieces)
        for value, whole in self.whole.items():
            value.replace_all_uses_with(whole)
        for op, _ in reversed(self.found.operations):
            if not any(map(mlir.uses, op.results)):
                op.erase()
        return names

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
        out = tensor.empty(list(type_.shape), type_.element_type)
        made, block = mlir.generic([type_], parts, [out], [whole] * (len(parts) + 1), ["parallel"] * rank)
        made.attributes["tilec.name"] = mlir.string(_name(op))
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


class _Piece:
    """An operation for one piece of its dimension `cut`. Without more than one element there, it has no such dimension."""

    def __init__(self, all_: _Cut, op: ir.Operation, cut: int, number: int):
        self.all, self.op, self.cut, self.number = all_, op, cut, number
        self.begin, end = all_.found.pieces[number]
        self.length = end - self.begin
        rank = mlir.maps_of(op)[0].n_dims
        self.dims = [d for d in range(rank) if d != cut or self.length > 1]
        self.extents = [self.length if d == cut else e for d, e in enumerate(mlir.extents_of(op))]
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
        out, start = tensor.empty(shape, ir.ShapedType(written.value.type).element_type), mlir.fill_value(written.value)
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


__all__ = ["concatenations_of", "split_concatenations"]
