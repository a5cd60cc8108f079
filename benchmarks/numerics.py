"""The errors of the compiled scalar functions, measured: every value of the 16-bit types, dense samples of f32 and f64.

    python -m benchmarks numerics                  on the CPU, and on the GPU where there is one
    python -m benchmarks numerics --only exp sin   some functions
    python -m benchmarks numerics --target cuda    on the GPU alone

Truth is NumPy at f64 for f16, bf16 and f32; long double for f64, and mpmath where that has no such function. The
samples of f32 are evenly spaced bit patterns, so every binade has as many, with the neighbourhoods of points where
functions change: zeros, ones, multiples of pi / 2, limits of overflow, subnormals, infinities and NaN.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import tilec
from tilec.core.dtypes import BF16, DTYPES, F16, F32, F64, DType
from tilec.core.functions import FUNCTIONS, Function
from tilec.core.host import available_cores
from tilec.runtime.cuda.driver import device_info
from tilec.semantics.intervals import ulp

TYPES = (F16, BF16, F32, F64)
BY_MPMATH = ("erf", "erfc")
INF, NAN = np.inf, np.nan
POINTS = [0, 1, 0.5, 2, 88.72, 103.97, 87.33, 709.78, 745.13, 128, 149, 1024, 1074, 9.01, 18.7, 0.35, 3.92, 5.92, 1e5]


def functions() -> list[Function]:
    """Those of one float argument."""
    return [f for f in FUNCTIONS.values() if f.arity.least == 1 and f.signature is None]


# ---- samples and truth -----------------------------------------------------------------------------------------------


def samples(dtype: DType, count: int) -> np.ndarray:
    """All values of a 16-bit type, or some `count` of a wider one."""
    word = np.dtype(f"u{dtype.bytes}")
    if dtype.bits == 16:
        return np.arange(1 << 16).astype(word).view(dtype.numpy)
    rng = np.random.default_rng(7)
    even = np.arange(count, dtype=np.uint64) * np.uint64(np.iinfo(word).max // count)
    even ^= rng.integers(0, 1 << (16 if dtype is F32 else 40), count, dtype=np.uint64)  # no pattern in the last bits
    spread = count // 4
    parts = [
        even.astype(word).view(dtype.numpy),
        rng.uniform(-110, 110, spread), rng.uniform(-760, 760, spread), 3 * rng.standard_normal(spread),
        1 + rng.standard_normal(spread) / 100, np.arange(-3000, 3001) * np.pi / 2,
        *(np.float64(dtype.numpy.type(s * p)) * (1 + k * 2.0**-dtype.mantissa)
          for p in POINTS for s in (1, -1) for k in (np.arange(-200, 201),)),
        np.arange(-200, 201) * float(ulp(np.float64(0), dtype)), [INF, -INF, NAN, -0.0],
    ]  # fmt: skip
    with np.errstate(all="ignore"):  # signalling NaNs, overflow
        return np.concatenate([np.asarray(p).astype(dtype.numpy) for p in parts])


def truth(function: Function, x: np.ndarray, dtype: DType) -> np.ndarray:
    """The function to more digits than `dtype` has."""
    with np.errstate(all="ignore"):
        if dtype is not F64:
            return np.asarray(function.reference(x.astype(np.float64)))
        if function.name in BY_MPMATH:
            import mpmath

            numbers = map(float, np.clip(x, -200, 200))  # beyond, nothing changes, and mpmath cannot count its terms
            with mpmath.workprec(90):
                exact = np.array([np.longdouble(mpmath.nstr(getattr(mpmath, function.name)(v), 25)) for v in numbers])
            if function.name == "erfc":
                return exact
            return np.where(x == 0, x, exact)  # mpmath has one zero
        return np.asarray(function.reference(x.astype(np.longdouble)))


def ulps(got: np.ndarray, want: np.ndarray, dtype: DType) -> np.ndarray:
    """Distances in units in the last place; inf where only one is NaN, or infinite but next to the largest number."""
    with np.errstate(all="ignore"):
        near = want.astype(dtype.numpy).astype(np.float64)
        found = got.astype(want.dtype)
        least = ulp(np.float64(0), dtype) if dtype.bits > 16 else float(_smallest(dtype))
        unit = np.maximum(np.ldexp(1.0, np.frexp(want.astype(np.float64))[1] - dtype.mantissa), least)
        error = np.abs(found - want) / unit
        beside = np.isinf(near) != np.isinf(found)
        largest = np.maximum(*(np.where(np.isinf(v), 0, np.abs(v)) for v in (near, found)))
        top = float(_finfo(dtype).max)
    error = np.where(beside & (largest >= top * (1 - 2.0 ** (2 - dtype.mantissa))), 1, error)
    same = (np.isnan(want) & np.isnan(found)) | (np.isinf(near) & (near == found))
    return np.where(same, 0, np.where(np.isnan(error), INF, error)).astype(np.float64)


def _finfo(dtype: DType):
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy)


def _smallest(dtype: DType):
    return _finfo(dtype).smallest_subnormal


# ---- measuring -------------------------------------------------------------------------------------------------------


def run(function: Function, x: np.ndarray, dtype: DType, target: str) -> np.ndarray:
    program = f"op f(x: {dtype}[N]) -> (y: {dtype}[N]) {{ y[i] = {function.name}(x[i]) }}"
    op = tilec.compile(program, target="cpu" if target == "cpu" else None)
    if target == "cpu":
        return op(x)
    import torch

    word = {16: torch.int16, 32: torch.int32, 64: torch.int64}[dtype.bits]
    kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}[dtype.name]
    on_gpu = torch.from_numpy(x.view(f"i{dtype.bytes}")).cuda().view(kind)
    return op(on_gpu).view(word).cpu().numpy().view(dtype.numpy)


def measure(function: Function, dtype: DType, target: str, count: int) -> dict:
    """The largest error and where it is; how many results are wrong beyond counting, or leave the documented image."""
    slow = dtype is F64 and function.name in BY_MPMATH
    x = samples(dtype, 2_000 if slow else count // 16 if dtype is F64 else count)
    got, want = run(function, x, dtype, target), truth(function, x, dtype)
    error = ulps(got, want, dtype)
    worst = int(np.argmax(error))
    low, high = function.image
    outside = (got.astype(np.float64) < low) | (got.astype(np.float64) > high)
    zeros = (want == 0) & (got == 0) & (np.signbit(want) != np.signbit(got.astype(np.float64)))
    return {
        "name": function.name, "type": dtype.name, "samples": len(x), "ulp": round(float(error[worst]), 4),
        "at": float(x[worst]), "bound": bound(function, dtype, target), "outside": int(np.count_nonzero(outside)),
        "zeros": int(np.count_nonzero(zeros)), "misrounded": int(np.count_nonzero(error > 0.5 + 2.0**-20)),
    }  # fmt: skip


def bound(function: Function, dtype: DType, target: str) -> float:
    """The documented bound in units of the type: that of f32, or of a quick form, and the rounding to what is narrower."""
    if dtype.bits > 16:
        return function.units(dtype, target)
    units = function.units(F32, target)
    if target == "cuda" and units > 0.5:  # a quick form, see tilec/analysis/precision.py
        return 0.625
    return 0.5 + units * 2.0 ** (dtype.mantissa - F32.mantissa + 1) if units > 0.5 else units and 0.5


def suite(only: list[str], targets: list[str], count: int = 1 << 21) -> Iterator[dict]:
    """Rows for the targets, or all of this machine's where none is named, in order; several are measured at a time."""
    targets = targets or ["cpu", *(["cuda"] if device_info().devices else [])]
    tasks = [
        (target, function.name, dtype.name, count)
        for target in targets for function in functions() if not only or function.name in only for dtype in TYPES
    ]  # fmt: skip
    with ProcessPoolExecutor(min(16, available_cores()), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_row, tasks)


def _row(task: tuple[str, str, str, int]) -> dict:
    target, name, dtype, count = task
    try:
        return {"target": target, **measure(FUNCTIONS[name], DTYPES[dtype], target, count)}
    except Exception as error:  # a row that cannot be measured is told, and the others go on
        return {"target": target, "name": name, "type": dtype, "error": str(error)}


def right(row: dict) -> bool:
    return "error" not in row and row["ulp"] <= row["bound"] and not row["outside"] and not row["zeros"]


# ---- the table -------------------------------------------------------------------------------------------------------


def described(facts: dict) -> list[list[str]]:
    """For the documentation: a function's largest errors by type, and its bounds beside those that are not exact."""
    rows = {(r["name"], r["type"]): r for r in facts["rows"]}
    names = list(dict.fromkeys(name for name, _ in rows))

    def cell(row: dict | None) -> str:
        if row is None or "error" in row:
            return ""
        return "exact" if row["ulp"] == row["bound"] == 0 else f"{row['ulp']:.3g} of {row['bound']:.3g}"

    return [[f"`{n}`", *(cell(rows.get((n, t.name))) for t in TYPES)] for n in names]


__all__ = ["bound", "described", "functions", "measure", "right", "samples", "suite", "truth", "ulps"]
