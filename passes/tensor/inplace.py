"""inplace: notes which results a kernel may write over which of its inputs.

    func @k(%p, %g, %q) { q = generic {parallel} p[i, j] - g[j, i] }        tilec.inplace = [0, 2]

Each element of such a result is made of the element of the input at the same place, by whoever reads that. An optimizer's step
updates parameters so, without a copy. Whoever calls the kernels decides where results lie (`runtime/program.py`).
"""

from __future__ import annotations

from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.passes.tensor.slice_updates import POSITION, SLAB

_MAKES_NOTHING = ("arith.constant", "tensor.empty")


def note_inplace(module: ir.Operation) -> None:
    for kernel in mlir.functions(module):
        if "tilec.kernel" in kernel.attributes and (pairs := _pairs(kernel)):
            kernel.attributes["tilec.inplace"] = mlir.integers(n for pair in pairs for n in pair)


def _pairs(kernel: ir.Operation) -> list[tuple[int, int]]:
    """Numbers of arguments: an input, and a result that may lie in its memory."""
    *body, end = [op.operation for op in mlir.entry(kernel).operations]
    work = [op for op in body if op.name not in _MAKES_NOTHING]
    if not all(map(mlir.is_generic, work)) or any(mark in op.attributes for op in work for mark in (POSITION, SLAB)):
        return []
    arguments, own = list(mlir.entry(kernel).arguments), [set(mlir.get_integers(op, "tilec.dims")) for op in work]
    # what others read, or what lacks a dimension of the kernel, several blocks may compute
    alone = [
        op
        for op, dims in zip(work, own)
        if dims == set().union(*own) and all(user == end for r in op.results for user in mlir.uses(r))
    ]
    begin, found = len(arguments) - len(end.operands), list[tuple[int, int]]()
    inputs = {argument: k for k, argument in enumerate(arguments[:begin])}
    for number, value in enumerate(end.operands):
        op = mlir.definition(value)
        if op not in alone:
            continue
        operands = list(op.operands)[: len(op.operands) - len(op.results)]
        needed = {operands[n] for n in _needed(mlir.body_of(op), list(op.results).index(value)) if n < len(operands)}
        read = sorted(inputs[v] for v in needed if v in inputs)
        found += [(k, begin + number) for k in read if _has_same_layout(op, value, arguments[k])]
    return found


def _has_same_layout(op: ir.Operation, value: ir.Value, read: ir.Value) -> bool:
    """Whether an operation alone reads a tensor, and makes each element of a result at the place of the tensor's that it reads."""
    if read.type != value.type:
        return False
    inputs, maps = len(op.operands) - len(op.results), mlir.maps_of(op)
    own, numbers = maps[inputs + list(op.results).index(value)], [n for n in range(inputs) if op.operands[n] == read]
    if "reduction" in mlir.iterators_of(op) or "tilec.scan" in op.attributes or not own.is_permutation:
        return False
    return all(maps[n] == own for n in numbers) and all(user == op for user in mlir.uses(read))


def _needed(body: ir.Block, made: int) -> set[int]:
    """Numbers of the operands whose elements an element of a result is made of."""
    *_, end = body.operations
    arguments, found, done = list(body.arguments), set[int](), set[ir.Value]()
    pending = [end.operation.operands[made]]
    while pending:
        value = pending.pop()
        if value in done:
            continue
        done.add(value)
        if value in arguments:
            found.add(arguments.index(value))
        elif (op := mlir.definition(value)) is not None:
            pending += list(op.operands)
    return found
