"""Numbers at the edges of their types: written out in programs, and in what programs are given."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilec.core.dtypes import DType

ORDINARY = (1, 2, 0, 3, 7, 100)


def integers(dtype: DType) -> tuple[int, ...]:
    """Numbers of an integer type: its ends, their neighbours, powers of two around halves of it, a large odd factor."""
    info = np.iinfo(dtype.numpy)
    half = 1 << (dtype.bits // 2)
    found = {
        info.min,
        info.min + 1,
        -1,
        info.max // 2,
        info.max - 1,
        info.max,
        half - 1,
        half,
        0x9E3779B97F4A7C15 & info.max,
    }
    return tuple(sorted((n for n in found if info.min <= n <= info.max), key=lambda n: (abs(n), n)))


def floats(dtype: DType) -> np.ndarray:
    """Numbers of a float type: zeros of both signs, the ends of normal and of subnormal numbers, infinities, NaN of several
    payloads, and what rounds to narrower types by a hair."""
    info, made = ml_dtypes.finfo(dtype.numpy), dtype.numpy
    ends = [info.max, info.smallest_normal, info.smallest_subnormal, info.eps]
    around = [
        1 + float(info.eps),
        1 + 2.0**-8 + 2.0**-20,
        1 + 2.0**-11 + 2.0**-20,
        255.5,
        65504.0,
        2.0**31,
        2.0**63,
        1e30,
    ]
    with np.errstate(all="ignore"):
        numbers = np.array([0.0, 0.5, 1.0, *map(float, ends), *around, np.inf], np.float64)
        plain = np.concatenate([numbers, -numbers]).astype(made)
    return np.concatenate([plain, nans(dtype)])


def nans(dtype: DType) -> np.ndarray:
    """NaN with the least, the largest and the usual payload, of both signs."""
    info = ml_dtypes.finfo(dtype.numpy)
    bits, mantissa = info.bits, int(info.nmant)
    exponent = ((1 << (bits - 1)) - 1) >> mantissa << mantissa
    payloads = {exponent | 1, exponent | (1 << (mantissa - 1)), exponent | ((1 << mantissa) - 1)}
    patterns = [p | sign for p in sorted(payloads) for sign in (0, 1 << (bits - 1))]
    found = np.array(patterns, f"u{bits // 8}").view(dtype.numpy)
    return found[np.isnan(found.astype(np.float64))]


def integer_data(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Any numbers of an integer type, every third an end of something."""
    info = np.iinfo(dtype.numpy)
    anything = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    edges = rng.choice(np.array([*integers(dtype), 0, 1, 2], dtype.numpy), shape)
    return np.where(rng.random(shape) < 0.35, edges, anything).astype(dtype.numpy)


def float_data(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of every size of a float type, every third an end of something."""
    with np.errstate(all="ignore"):
        anything = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(dtype.numpy)
        return np.where(rng.random(shape) < 0.35, rng.choice(floats(dtype), shape), anything).astype(dtype.numpy)
