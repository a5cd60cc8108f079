"""stage, for CUDA: elementwise operations on a scan's results alone become part of the scan.

    generic scan ins(x) outs(t)                     generic scan ins(x) outs(y) { yield f(t + x) }
    generic ins(t) outs(y) { yield f(t) }     ->

The scan then stores no intermediate elements (`passes/cuda/threaded/scan.py`).
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir, linalg
from tilec.passes.cuda.memory_spaces import is_local


def fuse_scan_epilogues(function: ir.Operation) -> None:
    for op in [o for o in mlir.traverse(function) if mlir.is_generic(o) and "tilec.scan" in o.attributes]:
        inputs = len(mlir.inputs_of(op))
        reduced = {d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"}
        whole = [n for n, m in enumerate(mlir.maps_of(op)) if n >= inputs and reduced <= set(mlir.map_dims(m))]
        users = [u for n in whole for u in mlir.uses(op.operands[n]) if u != op]
        if len(whole) != 1 or len(users) != 1 or not is_local(op.operands[whole[0]]):
            continue
        if is_scan_epilogue(users[0]) and mlir.get_integers(users[0], "tilec.dims") == mlir.get_integers(
            op, "tilec.dims"
        ):
            _fuse(op, users[0], whole[0])


def is_scan_epilogue(op: ir.Operation) -> bool:
    """Whether an operation makes one result of one operand, element by element."""
    if not mlir.is_generic(op) or len(op.operands) != 2 or set(mlir.iterators_of(op)) != {"parallel"}:
        return False
    plain = all(mlir.map_dims(m) == list(range(len(mlir.iterators_of(op)))) for m in mlir.maps_of(op))
    effects = ("memref.load", "tensor.extract", "linalg.index", "cf.assert", "scf.if")
    return plain and not any(o.name in effects for o in mlir.traverse(op))


def _fuse(scan: ir.Operation, op: ir.Operation, out: int) -> None:
    block, other = mlir.body_of(scan), mlir.body_of(op)
    end = list(block.operations)[-1].operation
    values, position = list(end.operands), out - len(mlir.inputs_of(scan))
    with ir.InsertionPoint(end), op.location:
        mapping = {other.arguments[0]: values[position]}
        for inner in list(other.operations)[:-1]:
            mlir.clone_op(inner.operation, mapping)
        result = list(other.operations)[-1].operands[0]
        values[position] = mapping.get(result, result)
        operands = [*list(scan.operands)[:out], op.operands[1], *list(scan.operands)[out + 1 :]]
    with ir.InsertionPoint(op), scan.location:
        inputs = len(mlir.inputs_of(scan))
        maps, iterators = mlir.maps_of(scan), mlir.iterators_of(scan)
        made, body = mlir.generic([], operands[:inputs], operands[inputs:], maps, iterators)
        for name in ("tilec.dims", "tilec.scan", "tilec.reduce", "tilec.name"):
            if name in scan.attributes:
                made.attributes[name] = scan.attributes[name]
        with ir.InsertionPoint(body):
            mapping = dict(zip(block.arguments, body.arguments))
            for inner in list(block.operations)[:-1]:
                mlir.clone_op(inner.operation, mapping)
            linalg.YieldOp([mapping.get(v, v) for v in values])
    op.erase()
    scan.erase()


__all__ = ["fuse_scan_epilogues", "is_scan_epilogue"]
