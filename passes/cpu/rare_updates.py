"""argmax and other reductions whose state seldom changes: whole runs of elements are compared first.

    for j iter(best, place) { take = x[j] > best | ...; select(take, x[j], best), select(take, j, place) }

Each step waits for the comparison before it, and compilers make no SIMD code of that. But a run of elements changes
nothing if none of them would be taken with the state before the run. That test is a reduction without such a dependence:

    for j0 by 32 iter(best, place) {
        found = for j in j0 : j0 + 32 iter(found) { found | take(x[j], best, place) }
        if found { for j in j0 : j0 + 32 iter(best, place) { ... } } }

If elements are in random order, run n changes the state with probability 1 / n. The result is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.core import mlir
from tilec.core.mlir import arith, ir, scf

RUN = 32  # elements: four vectors of f32, so that there is something to do between branches

States = list[ir.Value]


def taken(block: ir.Block, states: list[ir.Value]) -> tuple[ir.Value, frozenset[int]] | None:
    """The condition on which states of a reduction's body are replaced, if it depends on these, and which states are."""
    found: dict[ir.Value, list[int]] = {}
    for n, value in enumerate(list(block.operations)[-1].operands):
        owner = mlir.definition(value)
        if owner is not None and owner.name == "arith.select" and owner.operands[2] == states[n]:
            found.setdefault(owner.operands[0], []).append(n)
    for condition, numbers in found.items():
        if any(mlir.depends(block, condition, states[n]) for n in numbers):
            return condition, frozenset(numbers)
    return None


def run(
    states: States,
    kept: list[bool],
    over: Callable[[States, Callable[[States], States]], States],
    take: Callable[[], ir.Value],
    body: Callable[[States], States],
) -> States:
    """The states after a run of elements. `over` makes a loop over the elements. `take` tells whether an element would be
    taken with the `states` before the run. `body` is a step of the reduction. `kept` are the states that stay if no
    element is taken."""
    false = mlir.constant(False, ir.IntegerType.get_signless(1))
    (found,) = over([false], lambda flags: [arith.ori(flags[0], take())])
    choice = scf.IfOp(found, [s.type for s in states], has_else=True)
    with ir.InsertionPoint(choice.then_block):
        scf.YieldOp(over(states, body))

    def filled(others: States) -> States:
        rest = iter(others)
        return [s if k else next(rest) for s, k in zip(states, kept)]

    def others(all_states: States) -> States:
        return [s for s, k in zip(all_states, kept) if not k]

    with ir.InsertionPoint(choice.else_block):
        more = others(states)
        scf.YieldOp(filled(over(more, lambda new: others(body(filled(new))))) if more else states)
    return list(choice.results)


__all__ = ["RUN", "run", "taken"]
