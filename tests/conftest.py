"""What all tests share: the examples, seeded numbers, comparison within a bound, and which tests can run."""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from expectations import EXACT, Bound


@cache
def has_gpu() -> bool:
    """Whether an NVIDIA driver sees a device; asks the driver alone, so that nothing else is loaded."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config, items):
    """Skips what this machine cannot run; slow tests run with --slow or when chosen by `-m slow`."""
    slow = config.getoption("--slow") or "slow" in (config.getoption("-m") or "")
    for item in items:
        if "gpu" in item.keywords and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA driver with a device"))
        if "slow" in item.keywords and not slow:
            item.add_marker(pytest.mark.skip(reason="slow: add --slow"))


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers that are the same on every run, and others for every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def assert_within(source, inputs, results, op=None, sizes=None, kind=None) -> None:
    """The results of a program are what it may compute on these inputs (an array, or the outputs in order).

    `source` is what `tilec.compile` takes; `inputs` are arrays in the op's order, or by name.
    """
    from tilec.api import read_source
    from tilec.dsl.parse import parse
    from tilec.dsl.specialise import choose_op, specialise
    from tilec.dtypes import from_numpy
    from tilec.error_bounds import compare

    program = parse(read_source(source))
    names = [t.name for t in choose_op(program, op).inputs]
    given = {n: np.asarray(inputs[n]) for n in names} if isinstance(inputs, dict) else dict(zip(names, inputs))
    special = specialise(program, op, [(from_numpy(a.dtype), a.shape) for a in given.values()], sizes)
    results = [np.asarray(r) for r in (results if isinstance(results, tuple | list) else [results])]
    for tensor, found in zip(special.outputs, results, strict=True):
        assert found.dtype == tensor.dtype.numpy, f"{found.dtype} where `{tensor.name}` is {tensor.dtype}"
    named = dict(zip([t.name for t in special.outputs], results))
    for name, found in compare(special, given, named, kind).items():
        assert found.within, f"{name}: {found}"


def assert_close(actual, expected, bound: Bound = EXACT) -> None:
    """`actual` has the shape of `expected` and is within the bound of it; NaN and infinity must be the same.

    Integers and bools must be equal and of one kind. Says where the worst element is.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if expected.dtype.kind in "iub":
        assert actual.dtype.kind in "iub", f"{actual.dtype} where {expected.dtype} was expected"
        np.testing.assert_array_equal(actual, expected)
        return
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    if actual.size == 0:
        return
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected)
        allowed = bound.rtol * np.abs(expected) + bound.atol
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    excess = np.where(same, 0, np.where(np.isfinite(error), error - allowed, np.inf))
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 0, (
        f"{np.count_nonzero(excess > 0)} of {excess.size} elements are out of bounds; the worst, at "
        f"{tuple(map(int, worst))}, is {actual[worst]} where {expected[worst]} was expected: an error of "
        f"{error[worst]:.3g}, {allowed[worst]:.3g} allowed ({bound})"
    )
