"""sin and cos of float32, for CUDA: the fast path for small arguments, and the full form if an argument was large.

    for j { y[j] = cos(x[j]) }    ->    for j { y[j] = cos_approx(x[j]); far | (|x[j]| > limit) }
                                        if far { for j { y[j] = cos(x[j]) } }

All elements of a thread share one branch, so that their instructions overlap. A branch for each element would separate them.
"""

from __future__ import annotations

from tilec.analysis.float_ranges import range_of
from tilec.core import mlir
from tilec.core.mlir import arith, ir, math, memref
from tilec.passes.cuda.memory_spaces import root
from tilec.passes.cuda.threaded.context import OperationContext
from tilec.passes.loops import when

LIMIT = 2.0**17  # of the approximate forms in runtime/cuda/device/trig.py


def is_trigonometric(op: ir.Operation) -> bool:
    return op.name in ("math.sin", "math.cos") and str(op.results[0].type) == "f32"


def has_fast_path(generic: OperationContext) -> bool:
    """Whether an operation of a kernel whose plan has the fast path computes such functions, accumulates nothing and
    overwrites no operand."""
    inputs = {root(v) for v, live in zip(generic.operands[: generic.count], generic.live) if live}
    written = {root(v) for v in generic.operands[generic.count :]}
    named = any(is_trigonometric(o.operation) for o in generic.block.operations)
    return named and bool(generic.kernel.trig_fast_path) and not generic.states and not inputs & written


def compute_with_fallback(generic: OperationContext) -> None:
    """Computes one chunk of an operation that `passes/cuda/threaded/operation.py` maps."""
    flag = ir.IntegerType.get_signless(1)
    far = generic.kernel.private((), flag, "%far")
    memref.StoreOp(mlir.constant(False, flag), far, [])
    generic.compute_all(far)
    with when(memref.LoadOp(far, []).result):
        generic.compute_all()


def mark_approximate(op: ir.Operation, far: ir.Value) -> None:
    """Makes an operation approximate, and tells `far` of an argument that it is not right for."""
    op.attributes["fastmath"] = ir.Attribute.parse("#arith.fastmath<afn>")
    (x,) = op.operands
    if max(map(abs, range_of(x))) > LIMIT:
        beyond = arith.cmpf(arith.CmpFPredicate.OGT, math.absf(x), mlir.constant(LIMIT, x.type))
        memref.StoreOp(arith.ori(memref.LoadOp(far, []).result, beyond), far, [])
