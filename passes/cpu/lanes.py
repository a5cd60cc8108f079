"""argmax and other reductions whose states depend on each other: each lane of some vectors reduces the elements that it meets.

    for j iter(best, place) { take = x[j] > best | ...; select(take, x[j], best), select(take, j, place) }

Each step waits for the comparison before it, and compilers make no SIMD code of that. Elements of a memory of `lanes` states
wait for none of their neighbours; halves of the memory are combined at the end (`passes/combiner.py`):

    for l in lanes { bests[l], places[l] = best, place }
    for j0 by lanes { for l in lanes { take = x[j0 + l] > bests[l] | ...; bests[l] = select(take, x[j0 + l], bests[l]); ... } }
    for l in lanes / 2 { bests[l], places[l] = the better of lane l and lane l + lanes / 2 } ...

A lane meets its elements in their order, and what is combined has no order: the first place wins of equal elements, NaN as the
body says. Lanes begin with the state before the loop, which counts once however often it is combined; sums and products, where an
operation has such states, too, begin with 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilec.core import locations, mlir
from tilec.core.mlir import affine, ir, memref, scf
from tilec.passes.combiner import Combiner
from tilec.passes.cpu.memory import allocated
from tilec.passes.loops import sum_of

MOST, LEAST = 64, 16  # lanes: four vectors of f32, whose steps overlap, and one
ROUNDS = 4  # of elements, from which the lanes are worth their combination

NEUTRAL = {
    "arith.addf": -0.0, "arith.subf": -0.0, "arith.addi": 0, "arith.subi": 0, "arith.mulf": 1.0, "arith.muli": 1, "arith.xori": 0,
}  # fmt: skip
IDEMPOTENT = {
    "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.maxsi", "arith.minsi", "arith.maxui",
    "arith.minui", "arith.ori", "arith.andi",
}  # fmt: skip

States = list[ir.Value]


@dataclass(frozen=True)
class Lanes:
    """States that are reduced in lanes: by output, None where a lane begins with the state before the loop, or what it begins
    with."""

    combiner: Combiner
    groups: list[list[int]]
    neutral: dict[int, float | None]

    @staticmethod
    def of(op: ir.Operation, ordered: bool = False) -> Lanes | None:
        """None where LLVM makes SIMD code of the loop itself, or where nothing is known that combines two states. `ordered`: it
        must not choose the order of sums."""
        block, first = mlir.body_of(op), len(mlir.inputs_of(op))
        outs = list(block.arguments)[first:]
        results = list(list(block.operations)[-1].operands)
        if any(o.regions or o.operation.name in ("cf.assert", "memref.load") for o in block.operations):
            return None
        combiner = Combiner(op, list(range(first, first + len(outs))))
        groups = combiner.groups()
        made_by = {made.name for made in map(mlir.definition, results) if made is not None}
        if all(len(g) == 1 for g in groups) and not (ordered and made_by & {"arith.addf", "arith.mulf"}):
            return None
        neutral: dict[int, float | None] = {}
        for group in groups:
            if len(group) > 1 and not _is_choice(combiner, group, outs, results, first):
                return None
            for n in group:
                made = mlir.definition(results[n - first])
                if len(group) > 1:
                    neutral[n] = None
                elif made is None or outs[n - first] not in list(made.operands):
                    return None
                elif made.name in IDEMPOTENT:
                    neutral[n] = None
                elif made.name in NEUTRAL and made.operands[0] == outs[n - first]:
                    neutral[n] = NEUTRAL[made.name]
                else:
                    return None
        return Lanes(combiner, groups, neutral)

    def memory(self, count: int) -> list[ir.Value]:
        """A state for each lane, of each output."""
        found = []
        for n, state in self.combiner.state.items():
            found.append(allocated([count], state.type, f"{self.combiner.tensor(n) or 'state'}_lanes").result)
        return found

    def begin(self, memory: list[ir.Value], states: States, count: int) -> None:
        for n, lanes, state in zip(self.neutral, memory, states):
            value = self.neutral[n]
            first = state if value is None else mlir.constant(value, state.type)
            with _over(count, "lane") as lane:
                memref.StoreOp(first, lanes, [lane])

    def end(self, memory: list[ir.Value], states: States, count: int) -> States:
        """The states of all lanes together."""
        order = list(self.neutral)
        at = {n: k for k, n in enumerate(order)}
        halve = ir.AffineMap.get(1, 0, [ir.AffineExpr.get_floor_div(ir.AffineDimExpr.get(0), 2)])
        levels = scf.ForOp(mlir.index(0), mlir.index(count.bit_length() - 1), mlir.index(1), [mlir.index(count // 2)])
        locations.named(levels, "level", "half")
        with ir.InsertionPoint(levels.body):
            (half,) = levels.inner_iter_args
            with _over(half, "lane") as lane:
                other = sum_of([(lane, 1), (half, 1)])
                for group in self.groups:
                    a, b = ([memref.LoadOp(memory[at[n]], [index]).result for n in group] for index in (lane, other))
                    for n, value in zip(group, self.combiner.combine(group, a, b)):
                        memref.StoreOp(value, memory[at[n]], [lane])
            scf.YieldOp([affine.AffineApplyOp(halve, [half]).result])
        found = [memref.LoadOp(lanes, [mlir.index(0)]).result for lanes in memory]
        for group in self.groups:
            if any(self.neutral[n] is not None for n in group):
                a, b = ([values[at[n]] for n in group] for values in (states, found))
                for n, value in zip(group, self.combiner.combine(group, a, b)):
                    found[at[n]] = value
        return found


def _is_choice(combiner: Combiner, group: list[int], outs: list[ir.Value], results: list[ir.Value], first: int) -> bool:
    """Whether each state of a group is replaced by the element's or kept, on a condition of these alone."""
    known = {outs[n - first] for n in group}
    for n in group:
        made = mlir.definition(results[n - first])
        if made is None or made.name != "arith.select" or outs[n - first] not in list(made.operands)[1:]:
            return False
        _, taken, kept = made.operands
        known.add(taken if kept == outs[n - first] else kept)
    pending, seen = [results[n - first] for n in group], set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in known or value in seen:
            continue
        seen.add(value)
        made = mlir.definition(value)
        if made is None or made.name == "linalg.index":
            return False
        pending += [v for v in mlir.operands_of(made)] if made.block == combiner.block else []
    return True


@contextmanager
def _over(count: int | ir.Value, name: str) -> Iterator[ir.Value]:
    end = mlir.index(count)
    made = locations.named(scf.ForOp(mlir.index(0), end, mlir.index(1), []), name)
    with ir.InsertionPoint(made.body):
        yield made.induction_variable
        scf.YieldOp([])


def count_for(extent: int | None) -> int:
    """The lanes of a loop over so many elements, None where that is not known; 0 where none are worth it."""
    if extent is None:
        return MOST
    count = MOST
    while count >= LEAST and extent < ROUNDS * count:
        count //= 2
    return count if count >= LEAST else 0


__all__ = ["Lanes", "count_for"]
