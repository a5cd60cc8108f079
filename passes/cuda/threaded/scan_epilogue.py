"""stage, for CUDA: elementwise operations on a scan's results alone become part of the scan.

    generic scan ins(x) outs(t)                     generic scan ins(x) outs(y) { yield f(t + x) }
    generic ins(t) outs(y) { yield f(t) }     ->

The scan then stores no intermediate elements (`passes/cuda/threaded/scan.py`).
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.cuda.memory_spaces import is_local
from tilec.passes.emit import Body
from tilec.passes.rebuild import operands_out, rebuild


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
    outputs, number = operands_out(scan), out - len(mlir.inputs_of(scan))
    outputs[number] = outputs[number].of(op.operands[1])

    def body(here: Body) -> list[ir.Value]:
        values = here.values()
        (values[number],) = Body(mlir.body_of(op), lambda _: values[number]).values()
        return values

    with ir.InsertionPoint(op), scan.location:
        rebuild(scan, outputs=outputs, body=body)
    op.erase()
    scan.erase()


__all__ = ["fuse_scan_epilogues", "is_scan_epilogue"]
