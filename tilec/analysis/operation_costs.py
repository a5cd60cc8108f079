"""What one operation of a body costs: floating-point operations, and instructions of a GPU."""


from __future__ import annotations

from collections.abc import Mapping

from tilec.analysis import products
from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.lane_invariance import find_lane_invariance
from tilec.analysis.rules import NAMED
from tilec.core import mlir
from tilec.core.functions import FUNCTIONS, POWER
from tilec.core.mlir import ir

# Floating-point operations (or issue slots) of one operation; others cost 1.
VECTOR = 8  # elements of the widest access
_COST = {
    "arith.divf": 8,
    "arith.remf": 20,
    "math.sqrt": 8,
    "math.rsqrt": 8,
    "math.powf": 60,
    "math.tanh": 25,
    "math.erf": 25,
}
FREE = {
    "linalg.index",
    "linalg.yield",
    "arith.constant",
    "arith.index_cast",
    "affine.apply",
    "arith.extf",
    "arith.truncf",
}
_GPU_COST = {row.mlir: row.cost for row in (*FUNCTIONS.values(), POWER) if row.mlir.startswith("math.")} | {
    "arith.divf": 8, "arith.remf": 20, "arith.extf": 1, "arith.truncf": 0.5, "arith.minimumf": 2, "arith.maximumf": 2,
}  # fmt: skip
SPECIAL = {
    "math.exp",
    "math.exp2",
    "math.expm1",
    "math.log",
    "math.log2",
    "math.log1p",
    "math.sin",
    "math.cos",
    "math.tan",
}


def issued(op: ir.Operation) -> list[ir.Operation]:
    """The operations of a body that a GPU's threads carry out. A reduction that keeps a place is met by each thread in ascending
    order (`passes/cuda/threaded/argreduce.py`): the comparisons that break ties between places are dropped."""
    block = mlir.body_of(op)
    (*inner, end) = [o.operation for o in block.operations]
    states = list(block.arguments)[len(mlir.inputs_of(op)) :] if "reduction" in mlir.iterators_of(op) else []
    false = {o.results[0] for o in inner if o.name == "arith.cmpi" and not {*states}.isdisjoint(o.operands)}
    for o in inner if false else ():
        if o.name == "arith.andi" and not false.isdisjoint(o.operands):
            false.add(o.results[0])
    needed = {*end.operands}
    for o in reversed(inner):
        if not needed.isdisjoint(o.results) or not len(o.results):
            needed |= {v for v in mlir.operands_of(o) if v not in false}
    return [o for o in inner if (o.results and o.results[0] in needed - false) or not len(o.results)]


def cost_of(op: ir.Operation) -> float:
    if op.name in FREE or op.name in SPECIAL:
        return 0
    return _COST.get(op.name, 1)


def instructions_of(op: ir.Operation, approximate: Mapping[ir.Operation, str]) -> float:
    """Those of one operation on a GPU, in its approximate form if it has one."""
    saved = NAMED[approximate[op]].saved if op in approximate else 0
    return _GPU_COST.get(op.name, 0 if op.name in FREE else 1) - saved


def shared_operations(op: ir.Operation) -> dict[ir.Operation, int]:
    """Over how many elements side by side an operation of the body is shared, where it is: see
    `tilec/analysis/lane_invariance.py`."""
    last, block = len(mlir.iterators_of(op)) - 1, mlir.body_of(op)
    maps = dict(zip(block.arguments, mlir.maps_of(op)))
    if last < 0:
        return {}
    terms, extent = BodyTerms(op), mlir.extents_of(op)[last]
    found = find_lane_invariance(terms, terms.dims[last], max(1, extent & -extent))
    return dict.fromkeys(found.once, found.size) if found.once else _same_in_vectors(op, maps)


def _same_in_vectors(op: ir.Operation, maps: dict[ir.Value, ir.AffineMap]) -> dict[ir.Operation, int]:
    """Operations that are the same for all elements of a vector, where vectors lie along the last subscript of all accesses at
    computed subscripts: the subscripts themselves, and the conditions of padding."""
    body = mlir.body_of(op)
    lasts = [mlir.definition(list(o.operands)[-1]) for o in body.operations if o.operation.name == "tensor.extract"]
    lanes = {mlir.index_dim(o) if o is not None and o.name == "linalg.index" else None for o in lasts}
    lane = lanes.pop() if len(lanes) == 1 else None
    if lane is None:
        return {}
    dims = products.dims_of_each(body, [mlir.map_dims(m) for m in maps.values()])
    extent = mlir.extents_of(op)[lane]
    shared = [o.operation for o in body.operations if len(o.results) == 1]
    found = [o for o in shared if lane not in dims[o.results[0]]]
    return dict.fromkeys(found, max(1, min(VECTOR, extent & -extent)))
