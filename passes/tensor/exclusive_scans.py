"""exclusive_scans: a scan that is read one place before each of its reader's stores what it has before an element.

    s[j] = cumsum[j](x[j]);  y[j] = s[j - 1] if j >= 1 else 0    ->    y[j] = what s has before it adds x[j]

One kernel then reads `x` and stores `y`, where both lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.analysis.concatenation import around, is_elementwise
from tilec.analysis.index_terms import BodyTerms
from tilec.core import mlir
from tilec.core.extents import at_least, empty, loops_of, shape_of
from tilec.core.mlir import arith, ir, linalg, tensor
from tilec.index.facts import NONE
from tilec.index.questions import unclamped
from tilec.index.terms import index
from tilec.passes.emit import Body
from tilec.passes.rebuild import Operand, operands_in, operands_out, rebuild, replace
from tilec.passes.tensor.collapsed import as_operands


@dataclass(frozen=True)
class _Before:
    """A value of a reader's body: a scan's element before the one at the reader's dimensions `dims`, or the first state where there
    is none. Along the scan the reader has `extent` elements."""

    value: ir.Value
    dims: list[int]
    extent: int


def store_exclusive(module: ir.Operation) -> None:
    for scan in [o for o in mlir.traverse(module) if mlir.is_generic(o) and "tilec.scan" in o.attributes]:
        end = list(mlir.body_of(scan).operations)[-1].operation
        if len(scan.results) != 2 or end.operands[0] != end.operands[1] or mlir.uses(scan.results[1]):
            continue
        loads = mlir.uses(scan.results[0])
        if len(loads) == 1 and loads[0].name == "tensor.extract" and (found := _before(scan, loads[0])) is not None:
            _store(scan, around(loads[0]), found)


def _before(scan: ir.Operation, load: ir.Operation) -> _Before | None:
    reader, users, start = around(load), mlir.uses(load.results[0]), mlir.definition(mlir.outputs_of(scan)[1])
    if not is_elementwise(reader) or [u.name for u in users] != ["arith.select"] or start is None or start.name != "linalg.fill":
        return None
    terms, axis = BodyTerms(reader), mlir.get_integer(scan, "tilec.scan")
    subscripts = [unclamped(terms.of(s)) for s in list(load.operands)[1:]]
    subscripts[axis] = subscripts[axis] + 1
    if not all(s in terms.dims for s in subscripts) or len(set(subscripts)) < len(subscripts):
        return None
    dims, extents = [terms.dims.index(s) for s in subscripts], loops_of(reader)
    shape, (condition, *values) = shape_of(load.operands[0]), users[0].operands
    whole = all(extents[d] == e for n, (d, e) in enumerate(zip(dims, shape)) if n != axis)
    first = values.index(load.results[0]) ^ 1
    known, begin = mlir.constant_value(values[first]), mlir.constant_value(start.operands[0])
    along, end = dims[axis], extents[dims[axis]]
    exact = [_decided(reader, condition, along, piece) for piece in ((0, 1), (1, end))] == [first == 0, first == 1]
    if not isinstance(end, int) or not whole or not exact or end < 2 or known is None or known != begin or end > shape[axis] + 1:
        return None
    return _Before(users[0].results[0], dims, end)


def _decided(op: ir.Operation, condition: ir.Value, dim: int, piece: tuple[int, int]) -> bool | None:
    """Whether a condition holds where an index of an operation is in a piece of its dimension; None where that varies."""
    terms = BodyTerms(op)
    terms.dims[dim] = index(f"i{dim}", piece[1], piece[0])
    return NONE.decide(terms.holds(condition))


def _store(scan: ir.Operation, reader: ir.Operation, before: _Before) -> None:
    axis, out, read = mlir.get_integer(scan, "tilec.scan"), operands_out(scan), operands_in(scan)
    shaped, whole = ir.ShapedType(scan.results[0].type), shape_of(scan.results[0])
    shape = [before.extent if d == axis else e for d, e in enumerate(whole)]
    last, everywhere = whole[axis] - 1, _is_inside(scan, axis, before.extent)

    def at(d: int) -> ir.Value:
        found = linalg.IndexOp(d).result
        return found if d != axis or everywhere else arith.minsi(found, mlir.index(last))

    def body(here: Body) -> list[ir.Value]:
        element = lambda n: tensor.extract(read[n].value, [at(d) for d in read[n].dims])  # noqa: E731
        _, after = Body(mlir.body_of(scan), element, at, here.known).values()
        return [here.known[out[1].instead], after]

    with ir.InsertionPoint(reader), scan.location:
        stored = out[0].of(empty(shape, shaped.element_type))
        inside = [o for o in read if axis not in o.dims or before.extent == last + 1]
        made = rebuild(scan, operands=inside, body=body, outputs=[stored, out[1]], extents=shape)
    with ir.InsertionPoint(reader), reader.location:
        operands = [*operands_in(reader), Operand(made.results[0], before.dims, before.value)]
        replace(reader, rebuild(reader, operands=operands, body=Body.needed))
    scan.erase()
    as_operands(made)


def _is_inside(op: ir.Operation, d: int, extent: int) -> bool:
    """Whether an operation reads at the index of a dimension only tensors that have so many elements there."""
    if at_least(loops_of(op)[d] - extent, 0):
        return True
    own = [o.operation for o in mlir.body_of(op).operations if o.operation.name == "linalg.index"]
    found = [o.results[0] for o in own if mlir.index_dim(o) == d]
    uses = [(u, v) for v in found for u in mlir.uses(v)]
    return not any(d in o.dims for o in operands_in(op)) and all(
        u.name == "tensor.extract"
        and all(at_least(e - extent, 0) for e, s in zip(shape_of(u.operands[0]), list(u.operands)[1:]) if s == v)
        for u, v in uses
    )
