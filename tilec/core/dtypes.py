"""The element types of the language: one row each, read by the checker, the reference, MLIR, the emitters and launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np  # takes 0.1 s to import, and none of this needs it but for arrays


@dataclass(frozen=True)
class DType:
    """`name` as in the source; `mlir` the MLIR type; `bits` of storage; `mantissa` bits of precision, for floats."""

    name: str
    kind: Literal["bool", "int", "uint", "float"]
    bits: int
    mlir: str
    mantissa: int = 0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype; `ml_dtypes` supplies those that NumPy lacks."""
        return _numpy(self.name)


@cache
def _numpy(name: str) -> np.dtype:
    import numpy as np

    match name:
        case "bool":
            return np.dtype(np.bool_)
        case "bf16" | "f8e4m3" | "f8e5m2":
            import ml_dtypes

            return np.dtype(
                {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}[name]
            )
    return np.dtype({"i": "int", "u": "uint", "f": "float"}[name[0]] + name[1:])


BOOL = DType("bool", "bool", 8, "i1")
I8, I16, I32, I64 = (DType(f"i{b}", "int", b, f"i{b}") for b in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{b}", "uint", b, f"i{b}") for b in (8, 16, 32, 64))
F8E4M3 = DType("f8e4m3", "float", 8, "f8E4M3FN", 4)
F8E5M2 = DType("f8e5m2", "float", 8, "f8E5M2", 3)
F16 = DType("f16", "float", 16, "f16", 11)
BF16 = DType("bf16", "float", 16, "bf16", 8)
F32 = DType("f32", "float", 32, "f32", 24)
F64 = DType("f64", "float", 64, "f64", 53)

DTYPES: dict[str, DType] = {
    t.name: t for t in (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F8E4M3, F8E5M2, F16, BF16, F32, F64)
}

OTHER_NAMES = {
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "int": "i64", "long": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "f16", "half": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32", "fp32": "f32", "float": "f32",
    "float64": "f64", "fp64": "f64", "double": "f64", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
"""Other projects' names of the types; for hints."""


def from_numpy(dtype: np.dtype) -> DType | None:
    """The row for a NumPy dtype, or None where the language has none."""
    import numpy as np

    return _by_numpy().get(np.dtype(dtype))


@cache
def _by_numpy() -> dict[np.dtype, DType]:
    return {t.numpy: t for t in DTYPES.values()}


def compute_type(dtype: DType) -> DType:
    """Floats narrower than f32 are computed in f32; everything else in itself."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def join(a: DType, b: DType) -> DType:
    """The type of arithmetic between `a` and `b`: the wider operand; an integer that meets a float is that float.

    Between integers of one width the unsigned wins, as in NumPy's same-kind rules; bool gives way to anything.
    """
    if a == b:
        return compute_type(a)
    if a.kind == "bool" or b.kind == "bool":
        return compute_type(b if a.kind == "bool" else a)
    if a.is_float != b.is_float:
        return compute_type(a if a.is_float else b)
    if a.is_float:
        return max((compute_type(a), compute_type(b)), key=lambda t: t.bits)
    return max((a, b), key=lambda t: (t.bits, t.kind == "uint"))
