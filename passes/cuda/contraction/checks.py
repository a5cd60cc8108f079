"""The program's run-time checks in kernels of contractions: subscripts that depend on data are inside their tensors.

    assert 0 <= p[t] < S        for each row t of a block's tile, once, before its products; the threads that multiply share them

A factor's element is read many times, where threads or TMA need it. What a check asks depends on few of the indices.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import prod

from tilec.analysis.products import dims_of
from tilec.core import mlir
from tilec.core.mlir import cf, ir
from tilec.passes.cuda.contraction.problem import FLAT, Problem, all_of, below
from tilec.passes.loops import delinearise, loop, sum_of, when


def check_subscripts(problem: Problem, number: ir.Value, threads: int) -> None:
    """All checks of a block's tile, by so many threads, of which this is `number`."""
    sides = (problem.left, problem.right)
    extents = {d: size for side in sides for d, size in zip(side.dims, side.box)} | dict(zip(problem.options.inner, problem.inner))
    for op in [o.operation for o in problem.body.operations if o.operation.name == "cf.assert"]:
        (condition,) = mlir.operands_of(op)
        found = {problem.dims[d] for d in dims_of(problem.body, condition, problem.operand_dims)}
        dims = [d for d in extents if d in found or (FLAT in found and d in problem.options.inner)]
        sizes = [extents[d] for d in dims]
        count = prod(sizes)
        with loop(-(-count // threads), name="check") as i:
            position = sum_of([(i, threads), (number, 1)])
            at = dict.fromkeys(problem.dims, mlir.index(0)) | dict(zip(dims, delinearise(position, sizes)))
            steps = [prod(problem.inner[n + 1 :]) for n in range(len(problem.inner))]
            at[FLAT] = sum_of([(at[d], step) for d, step in zip(problem.options.inner, steps)])
            edge = [below(at[d], size) for d in dims if isinstance(size := problem.sizes[d], ir.Value)]
            exists = all_of([*([below(position, count)] if count % threads else []), *edge])
            with nullcontext() if exists is None else when(exists):
                (holds,) = problem.copied([condition], at)
                cf.AssertOp(holds, ir.StringAttr(op.attributes["msg"]).value)



