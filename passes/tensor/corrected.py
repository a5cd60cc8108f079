"""corrected: sums of squares of distances from a mean, without what the mean's own error adds to them.

    m = sum(x) / n                            m = sum(x) / n
    s = sum((x - m)^2)                 ->     q = sum((x - m)^2),  r = sum(x - m)
                                              s = max(q - r r / n, 0)

Of numbers, r is 0. Of floats, it is n times the error of m, which adds n times its square to q. Source: Chan, Golub & LeVeque,
"Algorithms for computing the sample variance" (1983), formula 1.7.

Where r is exactly 0, so is what is taken away. Where q is not finite, nothing is. The distances may be scaled or widened, and come
from operations that are computed where they are read. `x` is a tensor of f32 or f64 in memory: to read it takes longer than to add
it up once more. Numbers of fewer bits differ by more than their mean errs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import isclose, prod

from tilec.analysis.expression import Expr, Reader, Unreadable
from tilec.core import mlir
from tilec.core.extents import empty_like, loops_of
from tilec.core.mlir import arith, ir
from tilec.passes.rebuild import Anew, added, operands_out, rebuild

_LINEAR = {"arith.extf", "arith.negf"}
_MOST = 3  # dimensions whose orders are tried


def correct_squares(module: ir.Operation) -> None:
    for op in [o for o in mlir.traverse(module) if _is_sum(o)]:
        if (distance := squared(op)) is not None and _adds_up_to_nothing(op, distance):
            _correct(op, distance)


def _is_sum(op: ir.Operation) -> bool:
    return (
        mlir.is_generic(op)
        and mlir.get_string(op, "tilec.reduce") == "sum"
        and "tilec.scan" not in op.attributes
        and len(op.results) == 1
        and isinstance(ir.ShapedType(op.results[0].type).element_type, ir.FloatType)
    )


def term_of(op: ir.Operation) -> ir.Value | None:
    """What a sum adds for each element."""
    (*_, end) = mlir.body_of(op).operations
    update, state = mlir.definition(end.operation.operands[0]), mlir.body_of(op).arguments[-1]
    if update is None or update.name != "arith.addf" or update.operands[0] != state:
        return None
    return update.operands[1]


def squared(op: ir.Operation) -> ir.Value | None:
    """The value whose squares a sum adds up."""
    term = term_of(op)
    product = mlir.definition(term) if term is not None else None
    if product is None or product.name != "arith.mulf" or product.operands[0] != product.operands[1]:
        return None
    return product.operands[0]


# ---- distances from a mean ---------------------------------------------------------------------------------------------


def _adds_up_to_nothing(op: ir.Operation, distance: ir.Value) -> bool:
    """Whether a value of a sum's body is a distance from the mean of what it is a distance of."""
    extents, kinds = loops_of(op), mlir.iterators_of(op)
    reduced = [d for d, kind in enumerate(kinds) if kind == "reduction"]
    try:
        x = expression_of(op, distance, tuple(range(len(kinds))))
    except Unreadable:
        return False
    while x.op in _LINEAR or (x.op == "arith.mulf" and x.args[1].number is not None):
        x = x.args[0]
    if x.op != "arith.subf":
        return False
    pairs, lengths = (x.args, x.args[::-1]), {d: n for d in reduced if isinstance(n := extents[d], int)}
    return len(lengths) == len(reduced) and any(_is_mean(a, z, reduced, lengths) for z, a in pairs if not a.dims & {*reduced})


def _is_mean(a: Expr, z: Expr, reduced: list[int], extents: dict[int, int]) -> bool:
    """Whether `a` is the sum of `z` over the dimensions `reduced`, divided by their number."""
    if z.op != "element" or z.args or z.type not in ("f32", "f64"):
        return False
    if a.op not in ("arith.mulf", "arith.divf") or a.args[1].number is None or len(reduced) > _MOST:
        return False
    number = a.args[1].number if a.op == "arith.mulf" else 1 / (a.args[1].number or 1)
    sums = a.args[0].key if a.args[0].op == "element" and not a.args[0].args else None
    made = mlir.definition(sums) if sums is not None else None
    if made is None or not _is_sum(made) or not isclose(number * prod(extents.values()), 1, rel_tol=1e-6):
        return False
    term = term_of(made)
    return term is not None and any(_reads(made, term, dims) == z for dims in _orders(made, a.args[0].own_dims, reduced))


def _orders(made: ir.Operation, own: tuple[int, ...], reduced: list[int]) -> Iterator[tuple[int, ...]]:
    """The dimensions that those of a sum may be, which is read at the dimensions `own`."""
    kept = mlir.map_dims(mlir.maps_of(made)[-1])
    rank = len(mlir.iterators_of(made))
    if rank == len(kept) + len(reduced):
        for order in permutations(reduced):
            following, at = iter(order), dict(zip(kept, own))
            yield tuple(at[d] if d in at else next(following) for d in range(rank))


def _reads(op: ir.Operation, value: ir.Value, dims: tuple[int, ...]) -> Expr | None:
    try:
        return expression_of(op, value, dims)
    except Unreadable:
        return None


def expression_of(op: ir.Operation, value: ir.Value, dims: tuple[int, ...]) -> Expr:
    """A value of an operation's body, through operations without reductions. Raises Unreadable."""
    return Reader({op: dims}, _elementwise, computed=True).value(op, value)


def _elementwise(value: ir.Value) -> tuple[ir.Operation, int] | None:
    made = mlir.definition(value)
    if made is None or not mlir.is_generic(made) or "reduction" in mlir.iterators_of(made):
        return None
    return made, list(made.results).index(value)


# ---- the correction ----------------------------------------------------------------------------------------------------


def _correct(op: ir.Operation, distance: ir.Value) -> None:
    squares, name = op.results[0], mlir.get_string(op, "tilec.name") or "sum"
    extents, kinds = loops_of(op), mlir.iterators_of(op)
    number = prod(e for e, kind in zip(extents, kinds) if kind == "reduction" and isinstance(e, int))
    kept, (out,) = mlir.map_dims(mlir.maps_of(op)[-1]), operands_out(op)
    with ir.InsertionPoint.after(op), op.location:
        rest = rebuild(op, body=lambda here: [arith.addf(here.value(out.instead), here.value(distance))], name=f"{name}.rest")
        rest.attributes["tilec.reduce"] = op.attributes["tilec.reduce"]
        read = [added(squares, kept), added(rest.results[0], kept)]

        def body(here: Anew) -> list[ir.Value]:
            q, r = (here.known[o.instead] for o in read)
            share = arith.mulf(r, arith.mulf(r, mlir.constant(1 / number, q.type)))
            nothing, infinite = (mlir.constant(v, q.type) for v in (0.0, float("inf")))
            corrected = arith.maximumf(arith.subf(q, share), nothing)
            return [arith.select(arith.cmpf(arith.CmpFPredicate.OLT, q, infinite), corrected, q)]

        target = added(empty_like(squares), kept)
        made = rebuild(op, kept, read, body, outputs=[target], iterators=["parallel"] * len(kept), name=name)
    squares.replace_all_uses_except(made.results[0], made)
    op.attributes["tilec.name"] = mlir.string(f"{name}.squares")
