"""Softmax weights: terms of a sum that are exponentials of differences from the maximum, as in softmax and log-sum-exp.

A weight exp(x - m) whose exponent is rounded errs by |x - m| roundings, relative to itself. Relative to the sum that is
little: the mean of |x - m| by weight is at most the logarithm of their number, as an entropy is, since one of them is 1.
So n weights may be powers of 2 of one product, which flush to zero below 2^-126: the sum errs by (4 + 1.25 ln n) 2^-24. A
sum of n terms in f32 is held to n 2^-24 (`tilec/semantics/interval_reductions.py`), an eighth of which covers that from
`LEAST` terms
on.
"""

from __future__ import annotations

from math import inf, prod

from tilec.analysis.expression import Expr, constant
from tilec.analysis.patterns import match, variable
from tilec.analysis.products import stored, summed
from tilec.core import mlir
from tilec.core.mlir import ir

LEAST = 256
ERROR = 2.0**-19
"""Relative to the sum, of up to four million weights; of more it is a smaller share of what the sum may err by."""


_WEIGHT = Expr("math.exp", (Expr("arith.subf", (variable("x"), variable("maximum"))),))
_SIZE = Expr("math.absf", (variable("x"),))
_FINITE = Expr("arith.select", (Expr("arith.cmpf", (_SIZE, constant(inf))), variable("x"), constant(0)))


def is_weight(term: ir.Operation, reader: ir.Operation, result: int) -> bool:
    """Whether `term`, an operation in the body of the sum `reader`, is a weight of those that are added to its result with
    this number, and these are many."""
    if len(term.results) != 1 or str(term.results[0].type) != "f32":
        return False
    maps, extents = [mlir.map_dims(m) for m in mlir.maps_of(reader)], mlir.extents_of(reader)
    kept = maps[len(mlir.inputs_of(reader)) + result]
    if mlir.DYNAMIC in extents or prod(e for d, e in enumerate(extents) if d not in kept) < LEAST:
        return False
    maximum_dims = _dims_of_weight(term.results[0])
    return maximum_dims is not None and sorted(maximum_dims) == sorted(kept)


def is_sum(value: ir.Value) -> bool:
    """Whether an argument of a body is a sum of weights: at least 1, as the maximum's own is, and at most their number; or
    infinite or NaN, where the maximum is."""
    reader = ir.BlockArgument(value).owner.owner.operation if mlir.definition(value) is None else None
    if reader is None or not mlir.is_generic(reader) or value not in list(mlir.body_of(reader).arguments):
        return False
    sums = reader.operands[list(mlir.body_of(reader).arguments).index(value)]
    maker = mlir.definition(sums)
    if maker is None or not mlir.is_generic(maker) or "reduction" not in mlir.iterators_of(maker):
        return False
    number, maps = list(maker.results).index(sums), [mlir.map_dims(m) for m in mlir.maps_of(maker)]
    inputs, arguments = len(mlir.inputs_of(maker)), list(mlir.body_of(maker).arguments)
    if (term := summed(maker, number)) is None:
        return False
    dims = {d: d for d in range(len(mlir.iterators_of(maker)))}
    if term in arguments[:inputs]:  # made by an operation before, whose dimensions are these
        made = maker.operands[arguments.index(term)]
        before = mlir.definition(made)
        if before is None or not mlir.is_generic(before) or "reduction" in mlir.iterators_of(before):
            return False
        result = list(before.results).index(made)
        made_dims = mlir.map_dims(mlir.maps_of(before)[len(mlir.inputs_of(before)) + result])
        dims, term = dict(zip(made_dims, maps[arguments.index(term)])), mlir.yielded(before)[result]
    maximum_dims = _dims_of_weight(term)
    return maximum_dims is not None and sorted(dims.get(d, -1) for d in maximum_dims) == sorted(maps[inputs + number])


def _dims_of_weight(term: ir.Value) -> list[int] | None:
    """The dimensions of the maximum that a weight's exponent is a difference from; None of another term."""
    found = match(_WEIGHT, term)
    return None if found is None else dims_of_maximum(found["x"], found["maximum"], or_zero=True)


def dims_of_maximum(value: ir.Value, largest: ir.Value, or_zero: bool = False) -> list[int] | None:
    """The dimensions at which `largest` is read, where one operation reads it and `value`, and it is the maximum of elements
    of a tensor of which that is one; None where it is not. With `or_zero` also what stands for an infinite maximum by 0."""
    value, largest = stored(value), stored(largest)
    reader = ir.BlockArgument(value).owner.owner.operation if mlir.definition(value) is None else None
    arguments = [] if reader is None or not mlir.is_generic(reader) else list(mlir.body_of(reader).arguments)
    if reader is None or value not in arguments or largest not in arguments:
        return None
    (tensor, tensor_dims), (result, short) = (
        (reader.operands[n], mlir.map_dims(mlir.maps_of(reader)[n])) for n in map(arguments.index, (value, largest))
    )
    maker = mlir.definition(result)
    if or_zero and maker is not None and mlir.is_generic(maker) and (finite := _finite(maker)) is not None:
        maker = mlir.definition(finite)
    if maker is None or not mlir.is_generic(maker) or len(maker.operands) != 2 or maker.operands[0] != tensor:
        return None
    made = mlir.definition(mlir.yielded(maker)[0])
    if made is None or made.name != "arith.maximumf":
        return None
    if {stored(v) for v in made.operands} != {*mlir.body_of(maker).arguments}:
        return None
    full, kept = (mlir.map_dims(m) for m in mlir.maps_of(maker))
    if len(full) != len(tensor_dims) or not {*kept} <= {*full} or [tensor_dims[full.index(d)] for d in kept] != short:
        return None
    return short


def _finite(op: ir.Operation) -> ir.Value | None:
    """x of an operation that yields x where |x| is not infinite, at the same place, and 0 elsewhere."""
    if len(op.results) != 1 or "reduction" in mlir.iterators_of(op):
        return None
    if (found := match(_FINITE, mlir.yielded(op)[0])) is None:
        return None
    taken, arguments, maps = found["x"], list(mlir.body_of(op).arguments), mlir.maps_of(op)
    n = arguments.index(taken) if taken in arguments else len(maps)
    return op.operands[n] if n < len(mlir.inputs_of(op)) and maps[n] == maps[-1] else None
