"""Weights: values of 16 bits that a sum adds up, and that depend on reductions over what it sums over.

    m[i]       = max[j](s[i, j])
    p[i, j]: bf16 = exp(s[i, j] - m[i]) / l[i]         a weight of the sum over j: it reads m and l, rows' values
    o[i, d]    = sum[j](p[i, j] * v[j, d])

A compiled chain of contractions rounds a weight before it knows the rows' values: in another place by a factor of the row. Each
of the two roundings errs by a unit roundoff of the weight, so that they are two apart at most.

A weight in f32 whose value is an f16 becomes two f16 there, which hold no less than 2^-25 of the row's largest weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilec.core.dtypes import F16, F32, DType
from tilec.dsl import ast
from tilec.semantics.interval_reductions import unit_roundoff
from tilec.semantics.intervals import Enclosure

SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133}
"""The smallest positive numbers of the types that weights are rounded to."""


class Weights:
    """Which expressions of a program are weights. `equations` are all of them."""

    def __init__(self, equations: Iterable[ast.Equation]):
        self.equations = {e.name: e for e in equations}

    def is_weight(self, expr: ast.Expr, summed: Iterable[str]) -> bool:
        """Whether `expr`, in a sum over these indices, is a value that is rounded to 16 bits and reads a row's value."""
        made = self._made(expr)
        source = made.operand.dtype if isinstance(made, ast.Cast) else None
        if source is None or made.dtype is None or made.dtype.name not in SMALLEST or source.bits <= made.dtype.bits:
            return False
        return self.reads_row(expr, summed)

    def _made(self, expr: ast.Expr) -> ast.Expr:
        return self.equations[expr.tensor].value if isinstance(expr, ast.Access) and expr.tensor in self.equations else expr

    def unrounded(self, expr: ast.Expr) -> ast.Expr | None:
        """What a weight is rounded from, in the indices of the sum; None where it was computed in others, or in more."""
        if isinstance(expr, ast.Access):
            names = [s.name if isinstance(s, ast.Name) else "" for s in expr.subscripts]
            if names != [*self.equations[expr.tensor].indices]:
                return None
        made = self._made(expr)
        assert isinstance(made, ast.Cast)
        if made is not expr and _binds(made.operand):
            return None
        return made.operand

    def in_two_parts(self, factors: Sequence[ast.Expr], summed: Iterable[str]) -> list[bool]:
        """Which factors of a sum's products are f32 weights of f16 values."""
        values = any(_narrow(f) is F16 for f in factors)
        return [values and f.dtype is F32 and _narrow(f) is F32 and self.reads_row(f, summed) for f in factors]

    def reads_row(self, expr: ast.Expr, summed: Iterable[str]) -> bool:
        """Whether it varies with one of the indices, and reads the result of a reduction that does not."""
        return any(self._reads_row(expr, index) for index in summed)

    def _reads_row(self, expr: ast.Expr, index: str) -> bool:
        match expr:
            case ast.Access(tensor, subscripts) if tensor in self.equations:
                equation = self.equations[tensor]
                own = [i for i, s in zip(equation.indices, subscripts) if isinstance(s, ast.Name) and s.name == index]
                if own:
                    return any(self._reads_row(equation.value, i) for i in own)
                return index not in _names(expr) and self._reduces(equation.value)
            case ast.Reduce() if index not in _names(expr):
                return True
        return any(self._reads_row(child, index) for child in ast.children(expr))

    def _reduces(self, expr: ast.Expr) -> bool:
        if isinstance(expr, ast.Access) and expr.tensor in self.equations:
            return self._reduces(self.equations[expr.tensor].value)
        return isinstance(expr, ast.Reduce) or any(map(self._reduces, ast.children(expr)))


def _binds(expr: ast.Expr) -> bool:
    """Whether it has indices of its own."""
    return isinstance(expr, ast.Reduce | ast.Scan) or any(map(_binds, ast.children(expr)))


def _names(expr: ast.Expr) -> set[str]:
    own = {expr.name} if isinstance(expr, ast.Name) else set()
    found = own.union(*map(_names, ast.children(expr)))
    return found - {r.index for r in expr.ranges} if isinstance(expr, ast.Reduce) else found


def _narrow(factor: ast.Expr) -> DType | None:
    """The type of a factor before it was widened."""
    while isinstance(factor, ast.Cast):
        factor = factor.operand
    return factor.dtype


def rounded_elsewhere(x: Enclosure, dtype: DType, unrounded: Enclosure | None) -> Enclosure:
    """What a weight of this type may be where it is rounded before a row's factor is applied; 0 where it was 0 already."""
    unit = unit_roundoff(dtype)
    low, high = (np.where(np.isfinite(end), 2 * unit * (1 + 2 * unit) * np.abs(end) + SMALLEST[dtype.name], 0) for end in x)
    return _widened(x, low, high, _zeros(unrounded) if unrounded is not None else False)


def in_two_parts(x: Enclosure, axes: tuple[int, ...]) -> Enclosure:
    """What an f32 weight may be that two f16 stand for; `axes` are those of a row's weights."""
    ends = [np.where(np.isfinite(end), np.abs(end), 0) for end in x]
    radius = 2.0**-25 * np.maximum(*ends).max(axis=axes, keepdims=True, initial=0)
    return _widened(x, radius, radius, _zeros(x))


def _zeros(x: Enclosure) -> np.ndarray:
    return (x.low == 0) & (x.high == 0)


def _widened(x: Enclosure, below: np.ndarray, above: np.ndarray, same: np.ndarray | bool) -> Enclosure:
    return Enclosure(np.where(same, x.low, x.low - below), np.where(same, x.high, x.high + above))
