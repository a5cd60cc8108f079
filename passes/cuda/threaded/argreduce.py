"""argmax and argmin for CUDA: a thread meets its elements in ascending order.

    for j { take = x[j] > best | x[j] == best & j < place            for n, j { take = not (x[j] <= best) & best is a number
            best, place = take ? x[j], j : best, place }       ->               best, place = take ? x[j], n : best, place }
                                                                     place += this thread's first j

Elements come in ascending order, so that `j < position` is always false. A NaN is taken if no NaN was taken before. Two
comparisons remain. The state starts with the first index: an element there that equals the start value of `best` need not
be taken. Indices are 32-bit numbers, and constants in unrolled loops, since 64-bit indices of all elements would fill the
registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.analysis.expression import Expr
from tilec.analysis.patterns import compared, match, numeral, variable
from tilec.core import mlir
from tilec.core.mlir import arith, ir, memref
from tilec.index.questions import factor
from tilec.index.terms import term
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.cuda.threaded.vector_gather import evaluate, index_of, is_index
from tilec.passes.loops import Position, sum_of


@dataclass(frozen=True)
class Ascending:
    """State `state` is the index of an element along the kernel's dimension `along`: `own` is an element's index, `before`
    compares it with the state's, `choice` is the new index."""

    state: int
    along: int
    own: ir.Value
    before: ir.Operation
    choice: ir.Operation
    better: ir.Operation | None = None  # whether an element is beyond the state or, alone of the two, a NaN


def ascending(generic: OperationContext) -> list[Ascending]:
    """The states of an operation that are such indices."""
    if len(generic.reduced) != 1 or generic.scanned is not None:
        return []
    (along,) = generic.reduced
    if generic.layout.extents[along] >= 1 << 31:
        return []
    results = list(list(generic.block.operations)[-1].operands)
    found = (_running_index(generic, n, results[n - generic.count], along) for n in generic.states)
    return [a for a in found if a is not None]


def _running_index(generic: OperationContext, n: int, update: ir.Value, along: int) -> Ascending | None:
    choice, state = mlir.definition(update), generic.block.arguments[n]
    if choice is None or choice.name != "arith.select" or choice.operands[2] != state:
        return None
    own, others = choice.operands[1], [u for u in mlir.uses(state) if u != choice]
    if len(others) != 1 or factor(generic.terms.of(own), index_of(generic, along)) is not term(1):
        return None
    (before,) = others
    if before.name != "arith.cmpi" or list(before.operands) != [own, state]:
        return None
    if ir.IntegerAttr(before.attributes["predicate"]).value != arith.CmpIPredicate.slt:
        return None
    better = next((o.operation for o in generic.block.operations if _beyond(o.operation)), None)
    return Ascending(n, along, own, before, choice, better)


X, BEST = variable("x"), variable("best")
_NAN, _OTHER = (compared(arith.CmpFPredicate.UNE.value, v, v) for v in (X, BEST))
_ALONE = Expr("arith.andi", (_NAN, Expr("arith.xori", (_OTHER, numeral("true")))))
_BEYOND = {
    arith.CmpFPredicate.UGT: Expr("arith.ori", (compared(arith.CmpFPredicate.OGT.value, X, BEST), _ALONE)),
    arith.CmpFPredicate.ULT: Expr("arith.ori", (compared(arith.CmpFPredicate.OLT.value, X, BEST), _ALONE)),
}


def _beyond(op: ir.Operation) -> tuple[ir.Value, ir.Value, arith.CmpFPredicate] | None:
    """x, best and the comparison of x > best | isnan(x) & !isnan(best), or with <, with NaN on the other side of it."""
    for predicate, pattern in _BEYOND.items():
        if op.name == pattern.op and (found := match(pattern, op.results[0])) is not None:
            return found["x"], found["best"], predicate
    return None


def start(generic: OperationContext, a: Ascending) -> ir.Value:
    """Registers for the state while this thread goes through its elements, at its first index."""
    type_ = ir.IntegerType.get_signless(32)
    tile = generic.kernel.private(generic.operand_dims[a.state], type_, "%step_of_place", generic.layout)
    with generic.threads.slots(generic.operand_dims[a.state], {}, None, lanes=True) as position:
        memref.StoreOp(mlir.constant(0, type_), tile, position.slot(generic.operand_dims[a.state]))
    return tile


def step(
    generic: OperationContext, a: Ascending, op: ir.Operation, position: Position, mapping: dict[ir.Value, ir.Value]
) -> bool:
    """Builds the replacement of an operation of the body, if the operation is about the state's index."""
    better = a.better is not None and op == a.better
    if better:
        found = _beyond(op)
        assert found is not None
        *sides, predicate = found
        x, best = (mapping.get(v, v) for v in sides)
        number = arith.cmpf(arith.CmpFPredicate.OEQ, best, best)
        mapping[op.results[0]] = arith.andi(arith.cmpf(predicate, x, best), number)
    elif op == a.before:
        mapping[op.results[0]] = mlir.constant(False, op.results[0].type)
    elif op == a.choice:
        layout, d = generic.layout, a.along
        terms = [(generic.chunk[d], layout.chunk(d))] if d in generic.chunk else []
        terms.append((position.steps[d], layout.span(d)))
        if d == layout.lane_dim:
            assert position.lane is not None
            terms.append((position.lane, 1))
        here = arith.index_cast(ir.IntegerType.get_signless(32), sum_of(terms))
        take, _, kept = (mapping.get(v, v) for v in op.operands)
        mapping[op.results[0]] = arith.select(take, here, kept)
    return better or op in (a.before, a.choice)


def complete_index(generic: OperationContext, a: Ascending, tile: ir.Value) -> None:
    """The index among all, into `tile`, from the one among this thread's."""
    dims = generic.operand_dims[a.state]
    with generic.threads.slots(dims, generic.chunk, None, lanes=True) as position:
        operations = [o.operation for o in generic.block.operations if o.operation.name == "linalg.index"]
        mine = generic.threads.start.get(a.along, mlir.index(0))
        first = {o.results[0]: mine for o in operations if is_index(generic, o.results[0], a.along)}
        at, type_ = position.slot(dims), ir.MemRefType(tile.type).element_type
        count = arith.extsi(type_, memref.LoadOp(generic.tiles[a.state], at).result)
        memref.StoreOp(arith.addi(evaluate(generic, a.own, position, 0, first), count), tile, at)


__all__ = ["Ascending", "ascending", "complete_index", "start", "step"]
