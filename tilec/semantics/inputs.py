"""The data of `tilec run`: random inputs from a seed, inputs from files, and results as files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import prod
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from tilec.core.conversions import to_float
from tilec.core.diagnostics import CallError
from tilec.core.dtypes import F64, DType
from tilec.dsl import ast
from tilec.dsl.specialise import Specialised

Arrays = dict[str, np.ndarray]


# ---- inputs ----------------------------------------------------------------------------------------------


def random_inputs(specialised: Specialised, seed: int, given: Mapping[str, np.ndarray]) -> Arrays:
    """Normal floats, small integers, coins; an integer that subscripts a tensor stays inside it.

    Every input has a generator of its own, so that giving one changes no other.
    """
    limits = subscript_limits(specialised)
    arrays: Arrays = {}
    for number, tensor in enumerate(specialised.inputs):
        rng = np.random.default_rng([seed, number])
        if tensor.name in given:
            arrays[tensor.name] = given[tensor.name]
            continue
        if prod(shape_of(tensor)) * ast.dtype_of(tensor).bytes >= 1 << 48:
            raise CallError(f"`{tensor.name}` is too large to run: {list(shape_of(tensor))}")
        arrays[tensor.name] = _draw(rng, ast.dtype_of(tensor), shape_of(tensor), limits.get(tensor.name))
    return arrays


def _draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], limit: int | None) -> np.ndarray:
    if dtype.is_float:
        kind = np.float64 if dtype is F64 else np.float32
        return np.asarray(rng.standard_normal(shape, kind), kind).astype(dtype.numpy)
    if dtype.kind == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    low, high = (0, max(1, limit)) if limit is not None else (0 if dtype.kind == "uint" else -8, 8)
    return np.asarray(rng.integers(low, min(high, np.iinfo(dtype.numpy).max), shape)).astype(dtype.numpy)


def subscript_limits(specialised: Specialised) -> dict[str, int]:
    """Of each tensor that is read inside a subscript, the smallest dimension that it subscripts."""
    shapes = {t.name: shape_of(t) for t in specialised.inputs}
    shapes |= {e.name: ast.extents_of(e) for e in specialised.equations}
    limits: dict[str, int] = {}
    for equation in specialised.equations:
        for access in (n for n in ast.traverse(equation.value) if isinstance(n, ast.Access)):
            for extent, subscript in zip(shapes.get(access.tensor, ()), access.subscripts):
                for inner in (n for n in ast.traverse(subscript) if isinstance(n, ast.Access)):
                    limits[inner.tensor] = min(limits.get(inner.tensor, extent), extent)
    return limits


def shape_of(tensor: ast.Tensor) -> tuple[int, ...]:
    return ast.extents_of(tensor)


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
        if not path:
            raise CallError(f"--input '{item}' names no file", hint="--input NAME=FILE, or --input FILE.npz")
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
    except (ValueError, EOFError, BadZipFile) as error:
        pickled = "allow_pickle" in str(error)  # NumPy takes whatever it does not know for a pickle
        why = "it holds Python objects, or something other than arrays" if pickled else error
        raise CallError(f"'{path}' is not a .npy or .npz file of arrays: {why}") from None
    except TypeError:  # a plain array is not a context manager
        return _named(name, np.load(path, allow_pickle=False), path)


def _named(name: str, array: np.ndarray, path: Path) -> Arrays:
    if not name:
        raise CallError(f"'{path}' holds one array without a name", hint=f"say which input it is: --input NAME={path}")
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
        fitted = to_float(array, dtype.numpy)
        if (lost := np.isfinite(array) & ~np.isfinite(fitted)).any():
            raise CallError(f"`{name}` is {dtype}, which cannot hold {array[lost].flat[0]!s}, a number of its file")
        return fitted
    if dtype.is_float and array.dtype.kind == "V" and array.dtype.itemsize == dtype.bytes:
        return array.view(dtype.numpy)  # as NumPy stores the types of ml_dtypes
    raise CallError(f"`{name}` is {dtype}, but its file holds {array.dtype}")


def npz(arrays: Arrays) -> bytes:
    """A .npz file with the arrays by name. It holds floats narrower than f16 as f32, which keeps their values.

    Not by `np.savez`, whose arguments are the names: it has none for an array called `file` or `allow_pickle`.
    """
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            known = array.dtype.kind != "V" and array.dtype.name in np.sctypeDict
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array if known else array.astype(np.float32)))
    return buffer.getvalue()
