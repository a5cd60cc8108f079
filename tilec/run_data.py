"""The data of `tilec run`: seeded or given inputs, the reference's results, and how far a result may be from
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from tilec.diagnostics import CallError
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised
from tilec.dtypes import BF16, F32, F64, DType

Arrays = dict[str, np.ndarray]
STEPS = 16  # roundings of the scalar operations and functions on the way to one element


# ---- inputs ----------------------------------------------------------------------------------------------


def random_inputs(specialised: Specialised, seed: int, given: Mapping[str, np.ndarray]) -> Arrays:
    """Normal floats, small integers, coins; an integer that subscripts a tensor stays inside it.

    Every input has a generator of its own, so that giving one changes no other.
    """
    limits = _subscript_limits(specialised)
    arrays: Arrays = {}
    for number, tensor in enumerate(specialised.inputs):
        rng = np.random.default_rng([seed, number])
        if tensor.name in given:
            arrays[tensor.name] = given[tensor.name]
            continue
        if prod(shape_of(tensor)) * tensor.dtype.bytes >= 1 << 48:
            raise CallError(f"`{tensor.name}` is too large to run: {list(shape_of(tensor))}")
        arrays[tensor.name] = _draw(rng, tensor.dtype, shape_of(tensor), limits.get(tensor.name))
    return arrays


def _draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], limit: int | None) -> np.ndarray:
    if dtype.is_float:
        kind = np.float64 if dtype is F64 else np.float32
        return np.asarray(rng.standard_normal(shape, kind), kind).astype(dtype.numpy)
    if dtype.kind == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    low, high = (0, max(1, limit)) if limit is not None else (0 if dtype.kind == "uint" else -8, 8)
    return np.asarray(rng.integers(low, min(high, np.iinfo(dtype.numpy).max), shape)).astype(dtype.numpy)


def _subscript_limits(specialised: Specialised) -> dict[str, int]:
    """Of each tensor that is read inside a subscript, the smallest dimension that it subscripts."""
    shapes = {t.name: shape_of(t) for t in specialised.inputs}
    shapes |= {e.name: tuple(r.high.value for r in e.ranges) for e in specialised.equations}
    limits: dict[str, int] = {}
    for equation in specialised.equations:
        for access in (n for n in ast.walk(equation.value) if isinstance(n, ast.Access)):
            for extent, subscript in zip(shapes.get(access.tensor, ()), access.subscripts):
                for inner in (n for n in ast.walk(subscript) if isinstance(n, ast.Access)):
                    limits[inner.tensor] = min(limits.get(inner.tensor, extent), extent)
    return limits


def shape_of(tensor: ast.Tensor) -> tuple[int, ...]:
    return tuple(s.value for s in tensor.shape)


# ---- files -----------------------------------------------------------------------------------------------


def read_inputs(items: list[str]) -> Arrays:
    """`x=file.npy`, `x=file.npz` (its array of that name, or its only one), or `file.npz` for all that it
    holds.
    """
    arrays: Arrays = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals:
            name, path = "", item
        arrays |= _read(name, Path(path))
    return arrays


def _read(name: str, path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as loaded:
            if isinstance(loaded, np.ndarray):
                return _named(name, loaded, path)
            return _from_archive(name, {key: loaded[key] for key in loaded.files}, path)
    except OSError as error:
        raise CallError(f"cannot read '{path}': {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise CallError(f"'{path}' is no .npy or .npz file: {error}") from None
    except TypeError:  # a plain array is no context manager
        return _named(name, np.load(path, allow_pickle=False), path)


def _named(name: str, array: np.ndarray, path: Path) -> Arrays:
    if not name:
        raise CallError(f"which input is '{path}'?", hint=f"--input NAME={path}")
    return {name: array}


def _from_archive(name: str, arrays: Arrays, path: Path) -> Arrays:
    if not name:
        return arrays
    if name in arrays:
        return {name: arrays[name]}
    if len(arrays) == 1:
        return {name: next(iter(arrays.values()))}
    raise CallError(f"'{path}' has no array `{name}`", hint=f"it has {', '.join(arrays)}")


def fit_types(arrays: Arrays, tensors: tuple[ast.Tensor, ...]) -> Arrays:
    """Arrays as the declared types where nothing but precision changes: .npy files have no bf16."""
    fitted: Arrays = {}
    declared = {t.name: t for t in tensors}
    for name, array in arrays.items():
        if name not in declared:
            raise CallError(f"there is no input `{name}`", hint=f"the inputs are {', '.join(declared)}")
        dtype = declared[name].dtype
        if dtype is not None and array.dtype != dtype.numpy:
            array = _converted(array, dtype, name)
        fitted[name] = np.ascontiguousarray(array) if array.ndim else array
    return fitted


def _converted(array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    if dtype.is_float and array.dtype.kind == "f":
        return array.astype(dtype.numpy)
    if dtype.is_float and array.dtype.kind == "V" and array.dtype.itemsize == dtype.bytes:
        return array.view(dtype.numpy)  # as NumPy stores the types of ml_dtypes
    raise CallError(f"`{name}` is {dtype}, and its file holds {array.dtype}")


def saved(results: Arrays) -> Arrays:
    """What a .npz file can hold: floats narrower than f16 as f32, which keeps their values."""
    return {
        n: a.astype(np.float32) if a.dtype.kind == "V" or a.dtype.name not in np.sctypeDict else a
        for n, a in results.items()
    }


# ---- how far from the reference --------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """An output's worst error, what is allowed there, and whether every element is within its bound."""

    error: float
    allowed: float
    within: bool


def compare(specialised: Specialised, inputs: Arrays, results: Arrays) -> dict[str, Comparison]:
    """Results against the reference at f64.

    A float may be off by u(output) * |reference| for its own rounding, and by (n + 16) * u(f32) * max
    |reference| for the arithmetic before it, n being the longest chain of reductions; where names on the way
    are declared narrower, by four times what rounding them changes in the reference. Integers and bools must
    be equal.
    """
    from tilec.evaluate import evaluate

    exact = evaluate(specialised, inputs)
    rounded = evaluate(specialised, inputs, rounded=True) if _rounds_inside(specialised) else exact
    chain = _chains(specialised)
    unit = _unit(specialised)
    return {
        t.name: _compare(results[t.name], exact[t.name], rounded[t.name], t.dtype, (chain[t.name] + STEPS) * unit)
        for t in specialised.outputs
    }


def _compare(actual: np.ndarray, exact: np.ndarray, rounded: np.ndarray, dtype: DType, relative: float) -> Comparison:
    if actual.size == 0:
        return Comparison(0.0, 0.0, True)
    if not dtype.is_float:
        wrong = int(np.count_nonzero(actual != exact))
        return Comparison(float(wrong), 0.0, wrong == 0)
    found, exact = actual.astype(np.float64), exact.astype(np.float64)
    with np.errstate(all="ignore"):
        overflow = np.abs(exact) > _largest(dtype)
        same = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (overflow & ~np.isfinite(found))
        finite = np.abs(exact[np.isfinite(exact)])
        scale = float(finite.max(initial=0.0))
        drift = np.abs(rounded.astype(np.float64) - exact)
        allowed = 2.0**-dtype.mantissa * np.abs(exact) + relative * scale
        allowed += 4 * float(drift[np.isfinite(drift)].max(initial=0.0))
        error = np.where(same, 0.0, np.abs(found - exact))
        share = np.where(error == 0, 0.0, error / np.where(np.isfinite(allowed), allowed, 0))
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, share)))
    at = error.flat[worst], allowed.flat[worst]
    return Comparison(float(at[0]), float(at[1]), bool(at[0] <= at[1]))


def _rounds_inside(specialised: Specialised) -> bool:
    """Whether a value is rounded to less than f32 before it is used again, and not only as a result."""
    values = [e.value for e in specialised.equations]
    read = {n.tensor for v in values for n in ast.walk(v) if isinstance(n, ast.Access)}
    for equation in specialised.equations:
        for node in ast.walk(equation.value):
            narrow = isinstance(node, ast.Cast) and node.dtype.is_float and node.dtype.bits < 32
            if narrow and (node is not equation.value or equation.name in read):
                return True
    return False


def _largest(dtype: DType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy).max)


def _chains(specialised: Specialised) -> dict[str, int]:
    """The elements that go into each tensor's longest chain of reductions."""
    lengths = {t.name: 0 for t in specialised.inputs}
    for equation in specialised.equations:
        nodes = list(ast.walk(equation.value))
        ranges = [r for n in nodes if isinstance(n, ast.Reduce) for r in n.ranges]
        ranges += [n.range for n in nodes if isinstance(n, ast.Scan)]
        own = prod(max(1, r.high.value - r.low.value) for r in ranges) if ranges else 0
        read = [lengths.get(n.tensor, 0) for n in nodes if isinstance(n, ast.Access)]
        lengths[equation.name] = own + max(read, default=0)
    return lengths


def _unit(specialised: Specialised) -> float:
    """The unit roundoff of the arithmetic: that of f32, unless all floats are f64; more where `using` allows
    it.
    """
    nodes = [n for e in specialised.equations for n in ast.walk(e.value)]
    floats = {n.dtype for n in nodes if n.dtype is not None and n.dtype.is_float}
    unit = 2.0 ** -(F64 if floats == {F64} else F32).mantissa
    used = [n.multiplicand for n in nodes if isinstance(n, ast.Reduce) and n.multiplicand is not None]
    return max([unit, *(2.0**-m.mantissa / STEPS * 2 for m in used if m.mantissa <= BF16.mantissa + 3)])
