"""Reductions by key: each element of a result is that of the elements whose key is its number.

    y[v, d] = sum[t](x[t, d] if key[t] == v else 0)

An element is reduced into one of the results along `v`, and changes none of the others. So a kernel that looks at every pair of t
and v may look at each t once instead, after the keys have been sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.analysis import products
from tilec.core import mlir
from tilec.core.mlir import ir

EQUAL = 0  # predicate of arith.cmpi
NEUTRAL = {
    "arith.addf": 0, "arith.addi": 0, "arith.mulf": 1, "arith.muli": 1, "arith.ori": 0, "arith.maximumf": float("-inf"),
    "arith.maxnumf": float("-inf"), "arith.minimumf": float("inf"), "arith.minnumf": float("inf"),
}  # fmt: skip
"""By the operation that combines elements: what changes nothing."""
CONVERSIONS = {
    "arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp", "arith.fptosi",
    "arith.index_cast",
}  # fmt: skip
NARROWEST = 32  # bits of a key: narrower ones would wrap around


@dataclass(frozen=True)
class ByKey:
    """`compared`: the body's comparison of `key` with an index. `keys` is the dimension of that index, `along` the reduced one."""

    compared: ir.Operation
    key: ir.Value
    keys: int
    along: int


def by_key(op: ir.Operation) -> ByKey | None:
    """The reduction by key that an operation is, if it is one."""
    reduced = [d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"]
    if len(reduced) != 1 or len(mlir.outputs_of(op)) != 1 or "tilec.scan" in op.attributes:
        return None
    if any(inner.name in ("cf.assert", "scf.if") for inner in mlir.traverse(op)):
        return None  # what an element checks is checked for all of them
    (along,), kept = reduced, set(mlir.map_dims(mlir.maps_of(op)[-1]))
    for compared, key, number in _comparisons(op):
        keys = _index(number)
        if keys in kept and _dims_of(op, key) == {along} and _only_where(op, compared):
            return ByKey(compared, key, keys, along)
    return None


def comparison_of(op: ir.Operation, along: int) -> tuple[ir.Operation, ir.Value]:
    """Of a reduction by key that blocks compute: the comparison, and the key, where the other number is that of a block."""
    return next(
        (compared, key)
        for compared, key, number in _comparisons(op)
        if _dims_of(op, key) == {along} and along not in _dims_of(op, number) and _only_where(op, compared)
    )


def _comparisons(op: ir.Operation) -> list[tuple[ir.Operation, ir.Value, ir.Value]]:
    """Each comparison for equality of integers, either way round."""
    found = []
    for view in mlir.body_of(op).operations:
        made = view.operation
        if made.name == "arith.cmpi" and ir.IntegerAttr(made.attributes["predicate"]).value == EQUAL:
            a, b = made.operands
            if isinstance(a.type, ir.IndexType) or a.type.width >= NARROWEST:
                found += [(made, a, b), (made, b, a)]
    return found


def _index(value: ir.Value) -> int | None:
    """The dimension whose index a value is."""
    made = mlir.definition(value)
    while made is not None and made.name == "arith.index_cast":
        made = mlir.definition(made.operands[0])
    return mlir.index_dim(made) if made is not None and made.name == "linalg.index" else None


def _dims_of(op: ir.Operation, value: ir.Value) -> frozenset[int]:
    return products.dims_of(mlir.body_of(op), value, [mlir.map_dims(m) for m in mlir.maps_of(op)])


def _only_where(op: ir.Operation, compared: ir.Operation) -> bool:
    """Whether an element for which the comparison is false leaves the state as it is."""
    block = mlir.body_of(op)
    (made,), state = mlir.yielded(op), block.arguments[len(block.arguments) - 1]
    update = mlir.definition(made)
    if update is None or update.name not in NEUTRAL or state not in list(update.operands):
        return False
    element = next((v for v in update.operands if v != state), None)
    return element is not None and _without(element, compared) == NEUTRAL[update.name]


def _without(value: ir.Value, compared: ir.Operation) -> float | None:
    """The number that a value is where the comparison is false; None if it is no known one."""
    made = mlir.definition(value)
    if made is None:
        return None
    if made == compared:
        return 0
    if made.name == "arith.constant":
        return mlir.constant_value(value)
    if made.name in CONVERSIONS:
        return _without(made.operands[0], compared)
    if made.name == "arith.select":
        chosen = _without(made.operands[0], compared)
        return None if chosen is None else _without(made.operands[1 if chosen else 2], compared)
    if made.name == "arith.andi":
        return 0 if any(_without(v, compared) == 0 for v in made.operands) else None
    return None
