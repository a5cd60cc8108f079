"""What one step of an operation's loops does, as the model of loop nests takes it (`tilec/cost/loop_nest.py`), and their order."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from tilec.analysis.directions import extract_directions
from tilec.analysis.graph import Node, Read, element_bytes
from tilec.analysis.isomorphic import of_structure
from tilec.analysis.operation_costs import cost_of
from tilec.analysis.products import dims_of_each
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.loop_nest import LoopAccess, LoopBody, LoopOperation, nest_us, transposing_us
from tilec.index.questions import step
from tilec.index.terms import total

LATENCY = 0.65  # of an addition, for each operation between two states: some of them go beside each other
SPECIAL_OPERATIONS = 20  # vector operations of an exponential or a cosine, by polynomials
COSTS = {
    "arith.maximumf": 4, "arith.minimumf": 4, "arith.extf": 1, "arith.truncf": 6, "arith.divsi": 8, "arith.remsi": 8,
    "arith.divui": 8, "arith.remui": 8, "arith.floordivsi": 10, "arith.ceildivsi": 10,
}  # fmt: skip
"""Of a CPU, where they are no additions: NaN and zeros of both signs for a maximum, a rounding for a narrower float."""


@of_structure
def loop_body_of(node: Node) -> LoopBody:
    block = mlir.body_of(node.op)
    rank, inputs = len(node.extents), len(mlir.inputs_of(node.op))
    accesses = [
        LoopAccess(_steps(read, rank), element_bytes(read.value.type), stores)
        for reads, stores in ((node.reads, False), (node.results, True))
        for read in reads
    ]  # fmt: skip
    operations, dims = list[LoopOperation](), _dims(node, block, inputs)
    for view in block.operations:
        op = view.operation
        if op.name == "tensor.extract":
            accesses.append(_extract(op, node))
        elif len(op.results) == 1 and (count := _count(op)):
            result = op.results[0]
            widths = [element_bytes(v.type) for v in (result, *op.operands) if not isinstance(v.type, ir.IndexType)]
            operations.append(LoopOperation(dims[result], count, max([1, *widths])))
    states = list(block.arguments)[inputs:]
    latencies = 1.0
    if node.scan is not None:
        made = [o.operation for o in block.operations if len(o.results) == 1]
        latencies = LATENCY * sum(_count(o) for o in made if any(mlir.depends(block, o.results[0], s) for s in states))
    choices = _choices(node, block, inputs) if node.scan is None else 0
    return LoopBody(node.extents, node.reduced, tuple(accesses), tuple(operations), node.scan, choices, latencies)


def _dims(node: Node, block: ir.Block, inputs: int) -> dict[ir.Value, frozenset[int]]:
    """The dimensions that each value depends on; of what depends on a state, all that the operation reduces, too."""
    of_operands = [frozenset(mlir.map_dims(m)) for m in mlir.maps_of(node.op)]
    return dims_of_each(block, [dims if n < inputs else dims | node.reduced for n, dims in enumerate(of_operands)])


def _steps(read: Read, rank: int) -> tuple[int, ...]:
    shape = list(ir.ShapedType(read.value.type).shape)
    steps = [0] * rank
    for position, d in enumerate(read.dims):
        steps[d] += prod(shape[position + 1 :]) if shape[position] > 1 else 0
    return tuple(steps)


def _extract(op: ir.Operation, node: Node) -> LoopAccess:
    value, *subscripts = op.operands
    shape = list(ir.ShapedType(value.type).shape)
    terms = node.terms
    address = total([terms.of(s) * prod(shape[n:]) for n, s in enumerate(subscripts, 1)])
    steps = (step(address, d) for d in terms.dims)
    return LoopAccess(tuple(None if s is None else s.constant for s in steps), element_bytes(value.type))


def _count(op: ir.Operation) -> float:
    """Additions that an operation takes as long as; none for indices, but for quotients and remainders of them."""
    if op.name.startswith("math."):
        return cost_of(op) or SPECIAL_OPERATIONS
    if isinstance(op.results[0].type, ir.IndexType) and op.name not in COSTS:
        return 0
    if op.name == "arith.muli" and element_bytes(op.results[0].type) == 8:
        return 4
    return COSTS.get(op.name, cost_of(op))


def _choices(node: Node, block: ir.Block, inputs: int) -> int:
    """Bytes of the states of a reduction, where some are chosen by comparisons with others."""
    states, results = list(block.arguments)[inputs:], list(list(block.operations)[-1].operands)
    dependent = any(s != t and mlir.depends(block, r, t) for s, r in zip(states, results) for t in states)
    return sum(element_bytes(s.type) for s in states) if node.reduced and dependent else 0


def nest_time_us(
    node: Node, order: tuple[int, ...], sizes: tuple[int, ...], target: Target, along: Collection[int] = ()
) -> float:
    """Microseconds of one core that a nest over so many indices takes, with these loops, outermost first. What lies along one of
    the dimensions `along`, and not along the innermost one, is transposed before."""
    body = loop_body_of(node)
    if not along or not order:
        return nest_us(body, order, sizes, target)
    return nest_us(body.transposed(order[-1], along), order, sizes, target) + transposing_us(body, order[-1], along, sizes, target)


def loop_order(node: Node) -> tuple[int, ...]:
    """The node's own dimensions, outermost first: the one that most operands are contiguous along goes innermost.

    Reductions and scans stand inside parallel loops, so that a sum stays in a register, unless the contiguous dimension
    is parallel: then they stand just outside it and the sums are a row in cache, which SIMD adds to. The parallel ones come in
    the order of the tensor that is read most: a core waits for loads, not for stores.
    """
    rank = len(node.extents)
    if rank == 0:
        return ()
    score = [0.0] * rank
    for read in (*node.reads, *node.results):  # a row's sum says little beside the row
        if read.dims:
            score[read.dims[-1]] += prod(node.extents[d] for d in read.dims) / max(1, node.iterations)
    for d, weight in extract_directions(node).items():
        score[d] += weight
    inner = max(range(rank), key=lambda d: (score[d] if node.extents[d] > 1 else -1, d))
    order = _order_of_largest(node)
    parallel = sorted((d for d in range(rank) if d not in node.reduced and d != inner), key=order.index)
    reduced = [d for d in range(rank) if d in node.reduced and d != inner]
    return (*parallel, *reduced, inner)


def _order_of_largest(node: Node) -> list[int]:
    """The node's dimensions in the order of its largest read; dimensions that the read lacks come first."""
    largest = max(node.reads, key=lambda r: prod(node.extents[d] for d in r.dims), default=None)
    dims = [] if largest is None else list(largest.dims)
    return [d for d in range(len(node.extents)) if d not in dims] + dims


__all__ = ["loop_body_of", "loop_order", "nest_time_us"]
