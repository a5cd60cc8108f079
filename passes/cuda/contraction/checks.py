"""The program's run-time checks in kernels of contractions: subscripts that depend on data are inside their tensors.

    assert 0 <= p[t] < S                   for each row t of a block's tile
    assert 0 <= table[b, j // 16] < G      for each page of a block's keys

The threads that multiply share them, before the products: an element is read many times, where threads or TMA need it, and what a
check asks depends on few of the indices, and on some by a quotient alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import prod

from tilec.analysis.products import dims_of
from tilec.core import mlir
from tilec.core.mlir import cf, ir
from tilec.core.varying import Varies
from tilec.passes.cuda.contraction.problem import FLAT, Problem
from tilec.passes.loops import all_of, below, delinearise, loop, sum_of, when


def check_subscripts(problem: Problem, number: ir.Value, threads: int) -> None:
    """All checks of a block's tile, by so many threads, of which this is `number`."""
    sides, inner = (problem.left, problem.right), problem.options.inner
    asserts = [o.operation for o in problem.body.operations if o.operation.name == "cf.assert"]
    extents = {d: size for side in sides for d, size in zip(side.dims, side.box)}
    known = {d: n for d, n in zip(inner, problem.inner) if isinstance(n, int)}
    steps = [prod(known.get(d, 1) for d in inner[n + 1 :]) for n in range(len(inner))]
    for op in asserts:
        (condition,) = mlir.operands_of(op)
        found = {problem.dims[d] for d in dims_of(problem.body, condition, problem.operand_dims)}
        needed = {d for d in inner if d in found or FLAT in found}
        if not known.keys() >= needed:
            raise Varies("how many elements a sum has, of which each one's subscript is checked")
        counts = {d: size for d, size in (extents | known).items() if d in found | needed}

        def holds(at: dict[int, ir.Value], condition: ir.Value = condition) -> ir.Value:
            whole = dict.fromkeys(problem.dims, mlir.index(0)) | at
            whole[FLAT] = sum_of([(whole[d], step) for d, step in zip(inner, steps)])
            return problem.copied([condition], whole)[0]

        check_each(counts, problem.sizes, number, threads, holds, ir.StringAttr(op.attributes["msg"]).value)


def check_each(
    counts: Mapping[int, int], sizes: Mapping[int, int | ir.Value], number: ir.Value, threads: int,
    holds: Callable[[dict[int, ir.Value]], ir.Value], message: str, steps: Mapping[int, int] | None = None,
) -> None:  # fmt: skip
    """One check at so many places along each of these dimensions, `steps` apart, by so many threads, of which this is `number`.
    `sizes`: the elements that a block has, fewer at the edge of the grid. `holds` builds the condition at coordinates."""
    total = prod(counts.values())
    with loop(-(-total // threads), name="check") as i:
        position = sum_of([(i, threads), (number, 1)])
        digits = zip(counts, delinearise(position, list(counts.values())))
        at = {d: sum_of([(n, steps[d] if steps else 1)]) for d, n in digits}
        edge = [below(at[d], size) for d in at if isinstance(size := sizes.get(d), ir.Value)]
        exists = all_of([*([below(position, total)] if total % threads else []), *edge])
        with nullcontext() if exists is None else when(exists):
            cf.AssertOp(holds(at), message)
