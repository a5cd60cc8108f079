"""What all tests share: the examples, seeded numbers, comparison within a bound, and which tests can run."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import warnings
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from expectations import EXACT, Bound

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before OpenMP is loaded: several processes of tests share the cores

settings.register_profile("tilec", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
settings.load_profile("tilec")

# as a shell begins jobs in the background; the processes that tests interrupt would inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    parser.addoption("--whole", action="store_true", help="run every combination of crossed parameters")


def pytest_collection_modifyitems(config, items):
    """Leaves out what shall not run now, or not on this machine; slow tests run with --slow or when chosen by `-m slow`."""
    slow = config.getoption("--slow") or "slow" in (config.getoption("-m") or "")
    if not config.getoption("--whole"):
        from tools.crossed import thin

        thin(items)
    left_out = {i for i in items if i.get_closest_marker("whole") or (i.get_closest_marker("slow") and not slow)}
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = [i for i in items if i not in left_out]
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA driver with a device"))


def pytest_collection_finish(session):
    """From here on a garbage collection looks at what tests make: modules and cases are a million objects that all stay."""
    from tools import guarded_calls  # which imports much of tilec

    guarded_calls.install()
    gc.freeze()
    gc.set_threshold(10_000, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Whatever a test calls, and fixtures for it, run once more among canary bytes."""
    from tools import guarded_calls

    guarded_calls.active = item.get_closest_marker("unguarded") is None


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers that are the same on every run, and others for every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def fresh_torch():
    """A fresh PyTorch compiler, seeded numbers, and the back end by its name, whose failures are errors where PyTorch makes up for
    them. (A second conftest.py would hide this one from tests that import it.)"""
    torch = pytest.importorskip("torch")
    from tilec.torch import reports
    from tilec.torch.backend import register
    from tilec.torch.failures import FallbackWarning

    warnings.simplefilter("error", FallbackWarning)

    register()
    reports.forget()  # of graphs that a test compiled for a back end of its own
    logging.getLogger("torch.__trace").propagate = False  # of thousands of lines
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


NOT_NUMPY = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
"""Types that NumPy lacks, with PyTorch's names."""


def from_torch(tensor) -> np.ndarray:
    """A tensor's array, of types that NumPy has not, too."""
    import torch

    from tilec.core.dtypes import DTYPES

    for name, own in NOT_NUMPY.items():
        if tensor.dtype == getattr(torch, own):
            dtype = DTYPES[name].numpy
            return tensor.view(torch.int16 if dtype.itemsize == 2 else torch.int8).cpu().numpy().view(dtype)
    return tensor.cpu().numpy()


def to_gpu(array: np.ndarray):
    """The array as PyTorch's, on the GPU."""
    torch = pytest.importorskip("torch")
    from tilec.core.dtypes import from_numpy

    if (own := NOT_NUMPY.get(from_numpy(array.dtype).name)) is not None:
        words = array.view(np.int16 if array.dtype.itemsize == 2 else np.int8)
        return torch.from_numpy(words).view(getattr(torch, own)).cuda()
    return torch.from_numpy(array).cuda()


OTHER_ORDER = Bound(rtol=1e-12, atol=1e-12)
"""What two ways of computing the same at f64 may differ by: NumPy by hand and the reference. No compiled code is held to it."""


def as_list(results) -> list:
    return list(results) if isinstance(results, tuple | list) else [results]


class Within:
    """What the results of a program may be on these inputs: called with them, it asserts that they are.

    `source` is what `tilec.compile` takes; `inputs` are arrays in the op's order, or by name. `expected` is the same
    by hand, in NumPy at f64: what the program means must be that.
    """

    def __init__(self, source, inputs, op=None, sizes=None, kind=None, expected=None):
        from tilec.core.dtypes import from_numpy
        from tilec.core.source import read_source
        from tilec.dsl.parse import parse
        from tilec.dsl.specialise import choose_op, specialise
        from tilec.semantics.error_bounds import enclose
        from tilec.semantics.reference import evaluate

        program = parse(read_source(source))
        names = [t.name for t in choose_op(program, op).inputs]
        given = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=True))
        given = {n: np.asarray(given[n], np.float32 if type(given[n]) is float else None) for n in names}
        special = specialise(program, op, [(from_numpy(a.dtype), a.shape) for a in given.values()], sizes)
        self.outputs, self.allowed = special.outputs, enclose(special, given, kind)
        if expected is not None:
            meant = evaluate(special, given)
            for tensor, value in zip(special.outputs, as_list(expected), strict=True):
                assert_close(meant[tensor.name], value, OTHER_ORDER)

    def __call__(self, results) -> None:
        """Of an array, or the outputs in order, or by name."""
        from tilec.semantics.comparison import compare_array

        results = list(results.values()) if isinstance(results, dict) else as_list(results)
        for tensor, found in zip(self.outputs, map(np.asarray, results), strict=True):
            assert found.dtype == tensor.dtype.numpy, f"{found.dtype} where `{tensor.name}` is {tensor.dtype}"
            comparison = compare_array(found, self.allowed[tensor.name])
            assert comparison.within, f"{tensor.name}: {comparison}"


def assert_within(source, inputs, results, op=None, sizes=None, kind=None, expected=None) -> None:
    """The results of a program are what it may compute on these inputs: see `Within`."""
    Within(source, inputs, op, sizes, kind, expected)(results)


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
    if actual.size == 0:
        return
    with np.errstate(invalid="ignore"):
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
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
