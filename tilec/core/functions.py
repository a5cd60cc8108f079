"""The scalar functions of the language: one row each, read by checker, reference, builders and printers.

Functions keep the type of floats (those narrower than f32 are computed in f32). On integers those with
`integer` operations keep the type, too; the others compute in f32. A NaN among the arguments of `min`, `max` and
`clamp` is the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from tilec.core.dtypes import DType


class Ulp(NamedTuple):
    """The largest error of a compiled function, in units in the last place of the exact result."""

    f32: float
    f64: float


class Arity(NamedTuple):
    """How many arguments a function takes; `most` is None where there is no limit. `n in arity` asks."""

    least: int
    most: int | None

    def __contains__(self, count: object) -> bool:
        return isinstance(count, int) and self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


class Integer(NamedTuple):
    """The operations on signed and unsigned integers; `IDENTITY` where the function changes nothing."""

    signed: str
    unsigned: str


class Signature(NamedTuple):
    """The types of the language that a function takes and gives, whatever its arguments' are."""

    takes: str
    gives: str


IDENTITY = "identity"
EXACT = Ulp(0, 0)
ROUNDED = Ulp(0.5, 0.5)
INF = math.inf
HIDDEN = {"bf16": 2.0**-11, "f16": 2.0**-14}
"""The relative error that functions on CUDA may add to a value that is then rounded to the type: see `tilec.analysis.precision`."""
ONE, TWO, THREE, MANY = Arity(1, 1), Arity(2, 2), Arity(3, 3), Arity(2, None)


@dataclass(frozen=True)
class Function:
    """A scalar function.

    `reference` is the meaning, on NumPy arrays. `mlir` is the upstream operation on floats; where `expansion` is
    set it is the last of the several operations that build the function. `integer` holds its operations on
    integers, None where integers are cast to f32 first. `cost` counts the instructions of its f32 form on a GPU, on the
    path that ordinary data takes (SASS of sm_90; a division is 8). `cpu` is the name in `tilec.runtime.cpu.support`, `cuda` that in
    `tilec.runtime.cuda.intrinsics` without its type suffix; None where only the expansion exists. A function of
    many arguments (`min`, `max`) folds its operation from the left. One that is `added` came after version 1 of
    the language: a program's own function of the same name takes precedence.

    `ulp` and `cuda_ulp` bound the errors of the compiled function, and `image` its results: no error leads out of it.
    These are the documented bounds, and the only ones: error bounds of programs (`tilec.semantics.error_bounds`) are made of them.
    """

    name: str
    arity: Arity
    reference: Callable[..., np.ndarray]
    mlir: str
    cost: float
    cpu: str | None
    cuda: str | None
    ulp: Ulp
    cuda_ulp: Ulp
    image: tuple[float, float] = (-INF, INF)
    integer: Integer | None = None
    expansion: str = ""
    signature: Signature | None = None
    added: bool = False

    def units(self, dtype: DType, kind: str | None = None) -> float:
        """The bound for f32 or f64 on targets of a kind ("cpu", "cuda"), or on all."""
        bounds = {"cpu": (self.ulp,), "cuda": (self.cuda_ulp,), None: (self.ulp, self.cuda_ulp)}[kind]
        return max(getattr(bound, dtype.name) for bound in bounds)


def _fold(binary: np.ufunc) -> Callable[..., np.ndarray]:
    return lambda *arguments: reduce(binary, arguments)


def _clamp(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """`high` wins where the bounds cross."""
    return np.minimum(np.maximum(x, low), high)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Of a non-positive exponent only, which cannot overflow and keeps its precision in the left tail."""
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) < 0, e, 1) / (1 + e)


def _sign(x: np.ndarray) -> np.ndarray:
    """0 of a NaN, as PyTorch has it, and of either zero."""
    x = np.asarray(x)
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


PHILOX_ROUNDS = 7
PHILOX_MULTIPLIERS, PHILOX_WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def _rand(seed: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Word `counter` % 4 of block `counter` // 4 of Philox4x32-7: its upper 24 bits, as a fraction of 1.

    Key: the seed. Block: the quotient in the two lower words, 0 in the others. Seven rounds are the fewest that pass
    BigCrush. Source: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    seed, counter = (np.asarray(v).astype(np.int64).view(np.uint64) for v in (seed, counter))
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    within, block = counter & np.uint64(3), counter >> np.uint64(2)
    words = [block & mask, block >> shift, np.zeros_like(block), np.zeros_like(block)]
    keys = [seed & mask, seed >> shift]
    for _ in range(PHILOX_ROUNDS):
        first, second = (words[n] * np.uint64(m) for n, m in zip((0, 2), PHILOX_MULTIPLIERS))
        words = [
            (second >> shift) ^ words[1] ^ keys[0],
            second & mask,
            (first >> shift) ^ words[3] ^ keys[1],
            first & mask,
        ]
        keys = [(key + np.uint64(w)) & mask for key, w in zip(keys, PHILOX_WEYL)]
    word = np.select([within == n for n in range(3)], words[:3], words[3])
    return (word >> np.uint64(8)).astype(np.float64) * 2.0**-24


_erf, _erfc = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))

_UNCHANGED = Integer(IDENTITY, IDENTITY)
_MIN = Integer("arith.minsi", "arith.minui")
_MAX = Integer("arith.maxsi", "arith.maxui")


_REMAINDER = Integer("arith.select", "arith.subi")
QUARTER = float(np.nextafter(np.float32(math.pi / 2), np.float32(2)))
"""No less than a quarter of a turn is in any type that functions are computed in."""


def _added(row: Function) -> Function:
    return replace(row, added=True)


def _published(f32: float, f64: float) -> Ulp:
    """Of NVIDIA's tables, which count from the correctly rounded result: half a unit more from the exact one.

    Source: CUDA C++ Programming Guide, "Mathematical Functions", tables of maximum errors of the standard functions.
    """
    return Ulp(f32 + 0.5, f64 + 0.5)


# CUDA's are NVIDIA's, but for sin and cos of f32 (`runtime/cuda/device/trig.py`)
_ROWS = [
    Function("abs", ONE, np.abs, "math.absf", 1, "absolute", "fabs", EXACT, EXACT, (0, INF),
             Integer("math.absi", IDENTITY)),
    Function("ceil", ONE, np.ceil, "math.ceil", 1, "ceil", "ceil", EXACT, EXACT, integer=_UNCHANGED),
    Function("floor", ONE, np.floor, "math.floor", 1, "floor", "floor", EXACT, EXACT, integer=_UNCHANGED),
    # half to even, in MLIR, NumPy and C's rint alike
    Function("round", ONE, np.round, "math.roundeven", 1, "round_even", "rint", EXACT, EXACT, integer=_UNCHANGED),
    Function("exp", ONE, np.exp, "math.exp", 8, "exp", "exp", Ulp(1, 1), _published(2, 1), (0, INF)),
    Function("exp2", ONE, np.exp2, "math.exp2", 4, "exp2", "exp2", Ulp(1.1, 1.1), _published(2, 1), (0, INF)),
    Function("expm1", ONE, np.expm1, "math.expm1", 27, "expm1", "expm1", Ulp(1.6, 2), _published(1, 1), (-1, INF)),
    Function("log", ONE, np.log, "math.log", 25, "log", "log", Ulp(1, 1), _published(1, 1)),
    Function("log2", ONE, np.log2, "math.log2", 26, "log2", "log2", Ulp(1, 1), _published(1, 1)),
    Function("log1p", ONE, np.log1p, "math.log1p", 33, "log1p", "log1p", Ulp(1.5, 1.5), _published(1, 1)),
    Function("sqrt", ONE, np.sqrt, "math.sqrt", 8, "sqrt", "sqrt", ROUNDED, ROUNDED, (0, INF)),
    Function("rsqrt", ONE, lambda x: 1 / np.sqrt(x), "math.rsqrt", 5, "rsqrt", "rsqrt", Ulp(1.5, 1.5), _published(2, 1)),
    Function("sin", ONE, np.sin, "math.sin", 15, "sin", "sin", Ulp(2.1, 2), Ulp(2.1, 2.5)),
    Function("cos", ONE, np.cos, "math.cos", 16, "cos", "cos", Ulp(2.1, 2), Ulp(2.1, 2.5)),
    Function("tan", ONE, np.tan, "math.tan", 25, "tan", "tan", Ulp(2.1, 2), _published(4, 2)),
    Function("tanh", ONE, np.tanh, "math.tanh", 15, "tanh", "tanh", Ulp(1.5, 1.5), _published(2, 1), (-1, 1)),
    Function("erf", ONE, _erf, "math.erf", 27, "erf", "erf", Ulp(1.8, 1.8), _published(2, 2), (-1, 1)),
    Function("sigmoid", ONE, _sigmoid, "arith.divf", 34, None, None, Ulp(3.5, 3.5), Ulp(6.5, 4.5), (0, 1),
             expansion="e / (1 + e) or 1 / (1 + e), e = exp(-abs(x))"),
    *map(_added, [
        Function("trunc", ONE, np.trunc, "math.trunc", 1, "trunc", "trunc", EXACT, EXACT, integer=_UNCHANGED),
        Function("sign", ONE, _sign, "arith.select", 4, None, None, EXACT, EXACT, (-1, 1),
                 Integer("arith.select", "arith.select"), "1 if x > 0 else -1 if x < 0 else 0"),
        Function("copysign", TWO, np.copysign, "math.copysign", 2, "copysign", "copysign", EXACT, EXACT),
        Function("fmod", TWO, np.fmod, "arith.remf", 20, "fmod", "fmod", EXACT, EXACT, integer=_REMAINDER),
        Function("asin", ONE, np.arcsin, "math.asin", 25, "asin", "asin", Ulp(2.6, 2.6), _published(2, 2), (-QUARTER, QUARTER)),
        Function("acos", ONE, np.arccos, "math.acos", 25, "acos", "acos", Ulp(1.5, 1.5), _published(2, 2), (0, 2 * QUARTER)),
        Function("atan", ONE, np.arctan, "math.atan", 25, "atan", "atan", Ulp(1.7, 2.2), _published(2, 2), (-QUARTER, QUARTER)),
        Function("atan2", TWO, np.arctan2, "math.atan2", 35, "atan2", "atan2", Ulp(2, 2.5), _published(3, 2),
                 (-2 * QUARTER, 2 * QUARTER)),
        Function("sinh", ONE, np.sinh, "math.sinh", 35, "sinh", "sinh", Ulp(3, 3), _published(3, 2)),
        Function("cosh", ONE, np.cosh, "math.cosh", 18, "cosh", "cosh", Ulp(1.6, 1.6), _published(2, 1), (1, INF)),
        Function("asinh", ONE, np.arcsinh, "math.asinh", 50, "asinh", "asinh", Ulp(2.5, 2.5), _published(3, 3)),
        Function("acosh", ONE, np.arccosh, "math.acosh", 45, "acosh", "acosh", Ulp(2.5, 2.5), _published(4, 3), (0, INF)),
        Function("atanh", ONE, np.arctanh, "math.atanh", 45, "atanh", "atanh", Ulp(2.5, 2.5), _published(3, 2)),
        Function("erfc", ONE, _erfc, "math.erfc", 40, "erfc", "erfc", Ulp(0.6, 4), _published(4, 5), (0, 2)),
    ]),
    Function("min", MANY, _fold(np.minimum), "arith.minimumf", 1, "minimum", "minimum", EXACT, EXACT, integer=_MIN),
    Function("max", MANY, _fold(np.maximum), "arith.maximumf", 1, "maximum", "maximum", EXACT, EXACT, integer=_MAX),
    Function("clamp", THREE, _clamp, "arith.minimumf", 2, None, None, EXACT, EXACT, integer=_MIN,
             expansion="min(max(x, low), high)"),
    # a round is two wide multiplications, two xors and two additions to the key, for four numbers
    Function("rand", TWO, _rand, "arith.mulf", 2 * PHILOX_ROUNDS + 4, None, None, EXACT, EXACT, (0, 1),
             expansion="Philox4x32-7", signature=Signature("i64", "f32"), added=True),
]  # fmt: skip

FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}

POWER = Function("**", Arity(2, 2), np.power, "math.powf", 60, "pow", "pow", Ulp(0.6, 1.5), _published(4, 2))
"""The operator, where its exponent is no small whole number that makes it a product."""
