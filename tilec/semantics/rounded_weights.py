"""Weights: values of 16 bits that a sum adds up, and that depend on reductions over what it sums over.

    m[i]       = max[j](s[i, j])
    p[i, j]: bf16 = exp(s[i, j] - m[i]) / l[i]         a weight of the sum over j: it reads m and l, rows' values
    o[i, d]    = sum[j](p[i, j] * v[j, d])

A compiled chain of contractions rounds a weight before it knows the rows' values: in another place by a factor of the row. Each
of the two roundings errs by a unit roundoff of the weight, so that they are two apart at most.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilec.core.dtypes import DType
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
        made: ast.Expr = expr
        if isinstance(expr, ast.Access) and expr.tensor in self.equations:
            made = self.equations[expr.tensor].value
        source = made.operand.dtype if isinstance(made, ast.Cast) else None
        if source is None or made.dtype is None or made.dtype.name not in SMALLEST or source.bits <= made.dtype.bits:
            return False
        return any(self._reads_row(expr, index) for index in summed)

    def _reads_row(self, expr: ast.Expr, index: str) -> bool:
        """Whether it varies with the index, and reads the result of a reduction that does not."""
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


def _names(expr: ast.Expr) -> set[str]:
    own = {expr.name} if isinstance(expr, ast.Name) else set()
    found = own.union(*map(_names, ast.children(expr)))
    return found - {r.index for r in expr.ranges} if isinstance(expr, ast.Reduce) else found


def rounded_elsewhere(x: Enclosure, dtype: DType) -> Enclosure:
    """What a weight of this type may be where it is rounded before a row's factor is applied."""
    unit = unit_roundoff(dtype)
    low, high = (
        np.where(np.isfinite(end), 2 * unit * (1 + 2 * unit) * np.abs(end) + SMALLEST[dtype.name], 0) for end in x
    )
    zero = (x.low == 0) & (x.high == 0)
    return Enclosure(np.where(zero, x.low, x.low - low), np.where(zero, x.high, x.high + high))
