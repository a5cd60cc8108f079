"""regroup: the factors of a sum's products, in an order in which matrix units can multiply.

    sum[k](a[m, k] * s[m] * b[k, n] * t[n])             ->   sum[k](a[m, k] * b[k, n]) * s[m] * t[n]
    sum[k](a[m, k] * b[k, n] * s[m, k // 128])          ->   sum[k]((a[m, k] * s[m, k // 128]) * b[k, n])

A factor that no reduced dimension changes is applied to the sum. Others go to the side whose dimensions they have, so that the
product is one of two factors (`tilec/analysis/products.py`), in which a contraction's kernel finds what it stages and what it may
apply to the sum over several places of k.

Only products of two narrow numbers and further factors are regrouped: what f32 numbers would be multiplied to on the way may
overflow where the program's own order does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tilec.analysis.products import dims_of, factors_of, leaves_of, narrow, period_of, product_of
from tilec.core import locations, mlir
from tilec.core.mlir import arith, ir, linalg, tensor


def regroup(module: ir.Operation) -> None:
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if mlir.get_string(op, "tilec.reduce") == "sum" and "tilec.scan" not in op.attributes and len(op.results) == 1:
            _regroup(op)


def _regroup(op: ir.Operation) -> None:
    product, body = product_of(op), mlir.body_of(op)
    if product is None or len(leaves := leaves_of(product.results[0])) < 3:
        return
    operand_dims = [mlir.map_dims(m) for m in mlir.maps_of(op)]
    extents = mlir.extents_of(op)
    reduced = {d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"}
    dims = {leaf: dims_of(body, leaf, operand_dims) for leaf in leaves}
    outside = [leaf for leaf in leaves if not dims[leaf] & reduced]
    inside = [leaf for leaf in leaves if dims[leaf] & reduced]
    order = [(d, extents[d]) for d in sorted(reduced)]
    cores = [leaf for leaf in inside if period_of(body, leaf, operand_dims, order) == 1]
    if len(cores) != 2 or not all(_is_narrow(leaf) for leaf in cores):
        return
    own = [dims[core] - reduced - (dims[cores[0]] & dims[cores[1]]) for core in cores]
    if not all(own):
        return
    sides: list[list[ir.Value]] = [[core] for core in cores]
    for leaf in inside:
        if leaf not in cores:
            fitting = [n for n in (0, 1) if not dims[leaf] & own[1 - n]]
            if not fitting:
                return
            sides[fitting[0]].append(leaf)
    given = [set(leaves_of(f)) for f in factors_of(op) or ()]
    if not outside and given == [set(side) for side in sides]:
        return
    with ir.InsertionPoint(product), op.location:
        left, right = (reduce(arith.mulf, side) for side in sides)
        regrouped = arith.mulf(left, right)
    product.results[0].replace_all_uses_with(regrouped)
    if outside:
        _apply(op, outside)


def _is_narrow(leaf: ir.Value) -> bool:
    """Whether a factor is a number of at most 16 bits, widened."""
    plain = narrow(leaf)
    return plain != leaf and plain.type.width <= 16


def _apply(op: ir.Operation, outside: Sequence[ir.Value]) -> None:
    """Multiplies a sum by factors that are the same for all of its terms."""
    body, name = mlir.body_of(op), mlir.get_string(op, "tilec.name")
    maps = mlir.maps_of(op)
    kept = mlir.map_dims(maps[-1])
    own = {d: n for n, d in enumerate(kept)}
    needed = dict.fromkeys(o for leaf in outside for o in mlir.slice_of(body, leaf))
    operations = [o.operation for o in body.operations if o.operation in needed]
    read = {*outside, *(v for o in operations for v in mlir.operands_of(o))}
    operands = [(v, m, a) for v, m, a in zip(mlir.inputs_of(op), maps, body.arguments) if a in read]
    type_ = ir.RankedTensorType(op.results[0].type)
    with ir.InsertionPoint.after(op), op.location:
        out = tensor.empty(list(type_.shape), type_.element_type)
        whole = mlir.projection(len(kept), range(len(kept)))
        inner = [mlir.projection(len(kept), [own[d] for d in mlir.map_dims(m)]) for _, m, _ in operands]
        made, block = mlir.generic(
            [type_], [op.results[0], *(v for v, _, _ in operands)], [out], [whole, *inner, whole], ["parallel"] * len(kept)
        )
        with ir.InsertionPoint(block):
            mapping: dict[ir.Value, ir.Value] = {a: b for (_, _, a), b in zip(operands, list(block.arguments)[1:])}
            mlir.map_indices(operations, mapping, lambda d: linalg.IndexOp(own[d]).result)
            mlir.clone_all(operations, mapping)
            linalg.YieldOp([reduce(arith.mulf, [block.arguments[0], *(mapping.get(leaf, leaf) for leaf in outside)])])
    op.results[0].replace_all_uses_except(made.results[0], made.operation)
    made.attributes["tilec.name"] = mlir.string(name or "sum")
    op.attributes["tilec.name"] = mlir.string(f"{name}.terms")
    if names := locations.indices(op):
        locations.set_indices(made.operation, [names[d] for d in kept])


__all__ = ["regroup"]
