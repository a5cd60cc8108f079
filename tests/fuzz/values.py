"""What the generator knows of an expression: enough to keep every program free of undefined or ill-conditioned results.

A value is *exact* if it is a multiple of 2^-grain that the type it is computed in holds without rounding. Only exact
values are compared, rounded to whole numbers or converted to integers, so that no rounding error can change a branch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes

from tilec.core.dtypes import BOOL, I32, DType, compute_type, join

WILD = 2.0**20
"""A float that may be larger is clamped before it is used again."""


@dataclass(frozen=True)
class Value:
    """An expression's text and type; `bound` on its magnitude; `grain` of the exact ones, None where rounding may have
    happened; whether it may be infinite or NaN, or negative.
    """

    text: str
    dtype: DType
    bound: float
    grain: int | None = 0
    finite: bool = True
    negative: bool = True

    @property
    def exact(self) -> bool:
        return self.grain is not None

    @property
    def kind(self) -> str:
        return "float" if self.dtype.is_float else "bool" if self.dtype is BOOL else "int"


def limit(dtype: DType) -> float:
    """The largest magnitude that a type holds."""
    if dtype.is_float:
        return float(ml_dtypes.finfo(dtype.numpy).max)
    return 2.0 ** (dtype.bits - (dtype.kind == "int"))


def computed(value: Value) -> Value:
    """The value after an operation in its type: rounded or wrapped around where it does not fit."""
    if value.dtype.is_float:
        fits = (
            value.exact
            and value.grain < 64
            and value.bound * 2.0**value.grain <= 2.0 ** compute_type(value.dtype).mantissa
        )
        return value if fits else replace(value, grain=None)
    if value.bound < limit(value.dtype) and (value.dtype.kind == "int" or not value.negative):
        return value
    return replace(value, bound=limit(value.dtype), negative=value.dtype.kind == "int")


def tame(value: Value, most: float) -> Value:
    """The value, clamped where it may be larger."""
    if value.bound <= most:
        return value
    if value.dtype is BOOL:
        return value
    most = int(most) if most >= 1 else most
    low = 0 if value.dtype.kind == "uint" else -most
    return replace(value, text=f"clamp({value.text}, {low}, {most})", bound=float(most))


def converted(value: Value, dtype: DType, wild: bool = False) -> Value | None:
    """The value as it is stored in `dtype`; the text is what to convert, without the cast. None where that depends on rounding."""
    if dtype is BOOL:
        return (
            Value(value.text, BOOL, 1, value.grain and 0, True, False) if value.exact or value.kind == "bool" else None
        )
    if dtype.is_float:
        if value.kind != "float":
            exact = (
                value.exact and value.bound <= 2.0 ** compute_type(dtype).mantissa and value.bound <= limit(dtype) / 2
            )
            return replace(value, dtype=dtype, grain=0 if exact else None, bound=value.bound * 1.1)
        if wild:
            return replace(value, dtype=dtype, grain=None, finite=False, bound=float("inf"))
        value = tame(value, min(limit(dtype) / 2, WILD))
        if not value.exact:
            return replace(value, dtype=dtype, bound=value.bound * 1.1)
        info = ml_dtypes.finfo(dtype.numpy)
        finest = int(info.nmant - info.minexp)
        return replace(value, dtype=dtype, grain=min(value.grain, finest), bound=value.bound * 1.1)
    if value.kind == "float":
        if not value.exact:
            return None
        if wild:  # to the nearest end, and 0 for NaN
            return replace(value, dtype=dtype, grain=0, bound=limit(dtype), finite=True, negative=dtype.kind == "int")
        if not value.finite:
            return None
        value = tame(value, min(100, limit(dtype) - 1))
        if dtype.kind == "uint" and value.negative:
            value = replace(value, text=f"abs({value.text})", negative=False)
        return replace(value, dtype=dtype, grain=0)
    return computed(replace(value, dtype=dtype))


def cast(value: Value, dtype: DType, wild: bool = False) -> Value | None:
    """The value, cast. `wild`: as it is, be it beyond the type."""
    made = converted(value, dtype, wild)
    return made and replace(made, text=f"{dtype}({made.text})", dtype=compute_type(dtype))


def meeting(a: Value, b: Value) -> DType:
    """The type of arithmetic between two values."""
    dtype = join(a.dtype, b.dtype)
    return I32 if dtype is BOOL else dtype


def operand(value: Value, dtype: DType) -> Value:
    """The value where it meets another in `dtype`: integers become floats there, narrow integers wide ones."""
    if value.dtype is dtype or value.kind == "float":
        return replace(value, dtype=dtype)
    if dtype.is_float:
        exact = value.exact and value.bound <= 2.0**dtype.mantissa
        return replace(value, dtype=dtype, grain=0 if exact else None)
    return computed(replace(value, dtype=dtype))


def accumulated(dtype: DType) -> DType:
    if dtype.is_float:
        return compute_type(dtype)
    return dtype if dtype.bits >= 32 and dtype is not BOOL else I32


def worst(*values: Value) -> int | None:
    """The finest grain, None if any has none."""
    return None if any(not v.exact for v in values) else max(v.grain for v in values)
