"""Merges `linalg.generic` operations over one iteration space into one operation. The plan decides which ones."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.core import mlir
from tilec.core.mlir import ir, linalg
from tilec.kernels.attributes import carry_over
from tilec.passes.emit import Body


def merge(ops: Sequence[ir.Operation], dims: Sequence[dict[int, int]]) -> ir.Operation:
    """One pass over a common iteration space for several operations; `dims` takes the dimensions of each to the first's.

    %e = generic(x) { exp }                  ->   %e, %s = generic(x) { exp; add }
    %s = generic(%e) { add }
    """
    rank = mlir.maps_of(ops[0])[0].n_dims
    maps = [
        [mlir.projection(rank, [to[d] for d in mlir.map_dims(m)]) for m in mlir.maps_of(o)] for o, to in zip(ops, dims)
    ]
    produced: dict[ir.Value, int] = {}
    read, outputs, out_maps = [], [], []
    for op, renamed in zip(ops, maps):
        inputs = mlir.inputs_of(op)
        read += [(v, m) for v, m in zip(inputs, renamed) if v not in produced]
        outputs += mlir.outputs_of(op)
        out_maps += renamed[len(inputs) :]
        produced |= {result: len(produced) + n for n, result in enumerate(op.results)}
    operands = list(dict.fromkeys(read))
    kinds = [_reordered(mlir.iterators_of(op), to) for op, to in zip(ops, dims)]
    iterators = ["reduction" if "reduction" in kind else "parallel" for kind in zip(*kinds)]
    with ir.InsertionPoint(ops[-1]), mlir.fused_location(ops):
        merged, block = mlir.generic(
            [value.type for value in produced],
            [v for v, _ in operands],
            outputs,
            [m for _, m in operands] + out_maps,
            iterators,
        )
        carry_over(ops[0], merged)
        element = dict(zip(operands, block.arguments))
        states = iter(list(block.arguments)[len(operands) :])
        with ir.InsertionPoint(block):
            yielded: list[ir.Value] = []
            for op, renamed, to in zip(ops, maps, dims):
                inner = [
                    yielded[produced[v]] if produced.get(v, len(yielded)) < len(yielded) else element[v, m]
                    for v, m in zip(mlir.inputs_of(op), renamed)
                ]
                inner += [next(states) for _ in mlir.outputs_of(op)]
                yielded += clone_with_indices(mlir.body_of(op), dict(zip(mlir.body_of(op).arguments, inner)), to)
            linalg.YieldOp(yielded)
    for before, after in zip(produced, merged.results):
        before.replace_all_uses_with(after)
    for op in reversed(ops):
        op.erase()
    return merged.operation


def clone_with_indices(
    block: ir.Block, mapping: dict[ir.Value, ir.Value], dims: dict[int, int] | tuple[int, ...]
) -> list[ir.Value]:
    """What a body yields, whose dimensions change their numbers."""
    return Body(block, index=lambda d: linalg.IndexOp(dims[d]).result, known=mapping).values()


def _reordered(iterators: list[str], dims: dict[int, int]) -> list[str]:
    return [iterators[old] for _, old in sorted((new, old) for old, new in dims.items())]
