"""Products that a sum adds: their factors, and what an error analysis says of factors that are rounded or regrouped."""

from __future__ import annotations

from math import prod

import numpy as np

from tilec.dsl import ast
from tilec.semantics import intervals as on
from tilec.semantics.interval_reductions import unit_roundoff
from tilec.semantics.intervals import Enclosure, point


def _leaves(expr: ast.Expr) -> list[ast.Expr]:
    if isinstance(expr, ast.Binary) and expr.op == "*" and expr.dtype.is_float:
        return [*_leaves(expr.left), *_leaves(expr.right)]
    return [expr]


def is_narrow(expr: ast.Expr) -> bool:
    """Whether a factor is a number of at most 16 bits, widened."""
    return isinstance(expr, ast.Cast) and expr.operand.dtype.bits < 32


def regrouped(product: ast.Binary) -> list[ast.Expr] | None:
    """The factors of a product that a compiler may regroup (`passes/tensor/regroup.py`): three or more, of which two are narrow
    numbers; the narrow ones first."""
    leaves = _leaves(product)
    narrow = [x for x in leaves if is_narrow(x)]
    return [*narrow, *(x for x in leaves if not is_narrow(x))] if len(leaves) > 2 and len(narrow) > 1 else None


def sides(leaves: list[Enclosure]) -> tuple[Enclosure, Enclosure]:
    """All factors as two, at f64: the first two, each with those of the others that make it grow least."""
    found = [[leaves[0]], [leaves[1]]]
    for leaf in leaves[2:]:
        sizes = [prod(np.broadcast_shapes(*(x.low.shape for x in (*side, leaf)))) - prod(
            np.broadcast_shapes(*(x.low.shape for x in side))) for side in found]  # fmt: skip
        found[int(np.argmin(sizes))].append(leaf)
    left, right = (_multiplied(side) for side in found)
    return left, right


def _multiplied(factors: list[Enclosure]) -> Enclosure:
    result, *others = factors
    for x in others:
        if result.is_point and x.is_point:
            result = point(result.low * x.low)
            continue
        ends = np.stack(np.broadcast_arrays(*(a * b for a in result for b in x)))
        result = Enclosure(ends.min(axis=0), ends.max(axis=0))
    return result


def using(expr: ast.Reduce) -> float:
    """The relative error of a multiplicand."""
    return 0.0 if expr.multiplicand in (None, ast.F22) else unit_roundoff(expr.multiplicand)


def ball(x: Enclosure, relative: float) -> tuple[np.ndarray, np.ndarray]:
    """Middles and radii; a radius grows by the rounding of multiplicands, and by that of the middle itself."""
    middle = x.low if x.is_point else (x.low + x.high) / 2
    radius = np.zeros_like(middle)
    if not x.is_point:
        radius = np.where(x.low == x.high, 0.0, (x.high - x.low) / 2 + 2.0**-52 * np.abs(middle))
    return middle, radius + relative * (np.abs(middle) + radius)


def multiplicand(x: Enclosure, relative: float) -> Enclosure:
    """The enclosure of a factor after its rounding, with infinities and NaN among its elements."""
    low, high = (np.where(np.isfinite(end), relative * np.abs(end), 0) for end in x)
    return Enclosure(x.low - low, x.high + high)


def least(sizes: np.ndarray) -> float:
    """The smallest but zeros."""
    return float(np.min(sizes, where=sizes > 0, initial=np.inf))


def any_of(tensor: Enclosure) -> Enclosure:
    """What any element of a tensor may be."""
    if tensor.low.size == 0:
        return point(np.zeros((), tensor.low.dtype))
    if tensor.low.dtype.kind == "f" and np.isnan(tensor.low).any():
        return on.ANYTHING
    found = Enclosure(tensor.low.min(), tensor.high.max())
    return on.of_either_sign(found, np.asarray(True)) if tensor.low.dtype.kind == "f" else found
