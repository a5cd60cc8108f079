"""Sums in rounds: each round has a partial sum of some hundreds of terms, in memory where the sums are, or in registers.

    for i { for j { s[j] += x[i, j] } }   ->   for r by step { for j { p[j] = 0 }
                                                               for i in r .. r + step { for j { p[j] += x[i, j] } }
                                                               for j { s[j] += p[j] } }

n additions one after another err by up to n roundings, and rounds of sqrt(n) by 2 sqrt(n). A round adds one row to some hundreds.
Of the innermost loop over a reduction, LLVM makes vectors, each of whose lanes adds up a part.
Source: Higham, "The accuracy of floating point summation" (SIAM J. Sci. Comput. 1993).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod

from tilec.core import mlir
from tilec.core.extents import highest, known_loops
from tilec.core.mlir import affine, ir
from tilec.passes.cpu.lanes import MOST
from tilec.passes.cpu.memory import Size, allocated

FEWEST = 1024  # additions one after another, from which on there are rounds
LEAST = 256  # of a round


@dataclass(frozen=True)
class PartialSums:
    """The loop at `depth` of an operation's nest has rounds of `step` steps. `outs` are the positions of the sums among its
    operands, which the parallel loops `dims` inside subscript."""

    depth: int
    step: int
    outs: tuple[int, ...]
    dims: tuple[int, ...]

    @staticmethod
    def of(op: ir.Operation, outer: Sequence[int], inner: Sequence[int]) -> PartialSums | None:
        """Of loops over the dimensions `outer` and, within them, over reductions that registers hold."""
        kinds, extents, order = mlir.iterators_of(op), known_loops(op), [*outer, *inner]
        most = {depth: highest(n) for depth, d in enumerate(order) if kinds[d] == "reduction" and (n := extents[d]) is not None}
        loops = [depth for depth, d in enumerate(order) if kinds[d] == "reduction"]
        if len(most) < len(loops):
            return None
        lanes = {depth: MOST if inner and depth == len(order) - 1 else 1 for depth in loops}
        count = {depth: -(-most[depth] // lanes[depth]) for depth in loops}
        total = prod(count.values())
        size, terms = max(LEAST, 1 << isqrt(total).bit_length()), 1
        for depth in reversed(loops):
            if total >= FEWEST and terms * count[depth] > size:
                dims = tuple(d for d in order[depth + 1 :] if kinds[d] == "parallel")
                outs = tuple(n for n in _sums(op) if {*dims} <= {*mlir.map_dims(mlir.maps_of(op)[n])})
                return PartialSums(depth, max(1, size // terms) * lanes[depth], outs, dims) if outs else None
            terms *= count[depth]
        return None

    def memory(self, op: ir.Operation, most: Mapping[int, Size]) -> list[ir.Value]:
        """The partial sums of each output; `most` has the largest extents of dimensions."""
        found, shape = [], [most[d] for d in self.dims]
        names = (mlir.get_string(op, "tilec.name") or "sum").split(",")
        for n in self.outs:
            type_ = ir.ShapedType(op.operands[n].type).element_type
            name = names[min(n - len(mlir.inputs_of(op)), len(names) - 1)]
            found.append(allocated(shape, type_, f"{name}_part").result)
        return found

    def end(self, start: ir.Value, end: ir.Value) -> ir.Value:
        """Of the round that begins at a step."""
        known, after = mlir.constant_value(end), ir.AffineDimExpr.get(0) + self.step
        if known is not None and int(known) % self.step == 0:
            return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [after]), [start]).result
        return affine.AffineMinOp(ir.AffineMap.get(2, 0, [after, ir.AffineDimExpr.get(1)]), [start, end]).result


def _sums(op: ir.Operation) -> list[int]:
    """The outputs to which floats are added, and nothing else is done before they are complete."""
    block, first = mlir.body_of(op), len(mlir.inputs_of(op))
    end, found = list(block.operations)[-1].operation, []
    kinds = mlir.iterators_of(op)
    for n, value in enumerate(end.operands, first):
        state, made = block.arguments[n], mlir.definition(value)
        if made is None or made.name != "arith.addf" or state not in list(made.operands):
            continue
        alone = mlir.uses(state) == [made] and mlir.uses(value) == [end]
        if alone and all(kinds[d] == "parallel" for d in mlir.map_dims(mlir.maps_of(op)[n])):
            found.append(n)
    return found


__all__ = ["PartialSums"]
