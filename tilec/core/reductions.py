"""The reductions of the language: one row each, read by checker, reference, builders and printers.

A NaN in the range makes `max` and `min` NaN, and `argmax` and `argmin` return the index of the first NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilec.core.dtypes import DType


@dataclass(frozen=True)
class Reduction:
    """A reduction.

    `reference(array, axis)` is the meaning, in the array's own type. `identity(dtype)` is the result of an empty range
    and the start of an accumulator. The others name the upstream operation that combines two values, by
    type; None where the type does not take part. `any` and `all` are of bool.

    The state of `argmax` and `argmin` is a value and its index. It starts from the identity and the largest
    index. Indices come in ascending order in a loop, where equals lose; in a tree over threads they may not, so equals compare
    their indices.
    """

    name: str
    reference: Callable[..., np.ndarray]
    identity: Callable[[DType], int | float | bool]
    float: str | None
    signed: str | None
    unsigned: str | None

    @property
    def is_arg(self) -> bool:
        return self.name.startswith("arg")

    def combine(self, dtype: DType) -> str:
        """The upstream operation that combines two values of this type."""
        by_kind = {"float": self.float, "int": self.signed, "uint": self.unsigned, "bool": self.unsigned}
        operation = by_kind[dtype.kind]
        assert operation is not None, f"{self.name} of {dtype}"
        return operation


def lowest(dtype: DType) -> int | float | bool:
    """The smallest value of the type."""
    if dtype.is_float:
        # f8e4m3 has no infinity; it is a type of storage only, so accumulators never are of it
        return -np.inf
    return {"bool": False, "uint": 0}.get(dtype.kind, -(1 << (dtype.bits - 1)))


def highest(dtype: DType) -> int | float | bool:
    """The largest value of the type."""
    if dtype.is_float:
        return np.inf
    return {"bool": True, "uint": (1 << dtype.bits) - 1}.get(dtype.kind, (1 << (dtype.bits - 1)) - 1)


def _number(value: int) -> Callable[[DType], int | float | bool]:
    """0 or 1 in the type."""
    return lambda dtype: float(value) if dtype.is_float else bool(value) if dtype.kind == "bool" else value


def _numpy(ufunc: np.ufunc, identity: Callable[[np.dtype], object] | None = None) -> Callable[..., np.ndarray]:
    """The ufunc's reduction in the array's own type; `identity` where NumPy has none."""

    def reference(array: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
        array = np.asarray(array)
        named: dict[str, Any] = {} if array.dtype == np.bool_ else {"dtype": array.dtype}
        if identity is not None:
            named["initial"] = identity(array.dtype)
        return ufunc.reduce(array, axis=axis, **named)

    return reference


def _extreme(dtype: np.dtype, high: bool) -> object:
    """The dtype's largest or smallest value."""
    if dtype == np.bool_:
        return high
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).max if high else np.iinfo(dtype).min
    return np.inf if high else -np.inf


_max = _numpy(np.maximum, partial(_extreme, high=False))
_min = _numpy(np.minimum, partial(_extreme, high=True))

# NumPy's argmax and argmin keep the language's rules: the first NaN, else the first of equals, else ValueError
_ROWS = [
    Reduction("sum", _numpy(np.add), _number(0), "arith.addf", "arith.addi", "arith.addi"),
    Reduction("prod", _numpy(np.multiply), _number(1), "arith.mulf", "arith.muli", "arith.muli"),
    Reduction("max", _max, lowest, "arith.maximumf", "arith.maxsi", "arith.maxui"),
    Reduction("min", _min, highest, "arith.minimumf", "arith.minsi", "arith.minui"),
    Reduction("any", _numpy(np.logical_or), _number(0), None, None, "arith.ori"),
    Reduction("all", _numpy(np.logical_and), _number(1), None, None, "arith.andi"),
    Reduction("argmax", np.argmax, lowest, "arith.maximumf", "arith.maxsi", "arith.maxui"),
    Reduction("argmin", np.argmin, highest, "arith.minimumf", "arith.minsi", "arith.minui"),
]

REDUCTIONS: dict[str, Reduction] = {row.name: row for row in _ROWS}

SCANS: dict[str, Reduction] = {f"cum{kind}": REDUCTIONS[kind] for kind in ("sum", "prod", "max", "min")}
"""Inclusive scans, by the reduction that gives each prefix."""
