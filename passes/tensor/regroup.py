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

from tilec.analysis.index_terms import BodyTerms
from tilec.analysis.products import arguments_of, dims_of, factors_of, leaves_of, narrow, period_of, product_of
from tilec.core import mlir
from tilec.core.extents import empty_like, loops_of
from tilec.core.mlir import arith, ir
from tilec.passes.rebuild import added, operands_in, rebuild


def regroup(module: ir.Operation) -> None:
    for op in [o for o in mlir.traverse(module) if mlir.is_generic(o)]:
        if mlir.get_string(op, "tilec.reduce") == "sum" and "tilec.scan" not in op.attributes and len(op.results) == 1:
            _regroup(op)


def _regroup(op: ir.Operation) -> None:
    product, body = product_of(op), mlir.body_of(op)
    if product is None or len(leaves := leaves_of(product.results[0])) < 3:
        return
    operand_dims = [mlir.map_dims(m) for m in mlir.maps_of(op)]
    extents = loops_of(op)
    reduced = {d for d, kind in enumerate(mlir.iterators_of(op)) if kind == "reduction"}
    dims = {leaf: dims_of(body, leaf, operand_dims) for leaf in leaves}
    outside = [leaf for leaf in leaves if not dims[leaf] & reduced]
    inside = [leaf for leaf in leaves if dims[leaf] & reduced]
    order = [(d, extents[d]) for d in sorted(reduced)]
    terms = BodyTerms(op)
    cores = [leaf for leaf in inside if period_of(terms, leaf, order) == 1]
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
    name, total = mlir.get_string(op, "tilec.name"), op.results[0]
    kept = mlir.map_dims(mlir.maps_of(op)[-1])
    read = {n for leaf in outside for n in arguments_of(mlir.body_of(op), leaf)}
    operands = [added(total, kept), *(o for n, o in enumerate(operands_in(op)) if n in read)]
    with ir.InsertionPoint.after(op), op.location:
        out = added(empty_like(total), kept)
        made = rebuild(
            op, kept, operands, lambda here: [reduce(arith.mulf, map(here.value, [total, *outside]))], outputs=[out],
            name=name or "sum",
        )  # fmt: skip
    total.replace_all_uses_except(made.results[0], made)
    op.attributes["tilec.name"] = mlir.string(f"{name}.terms")


__all__ = ["regroup"]
