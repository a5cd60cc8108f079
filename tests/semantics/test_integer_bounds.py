"""Bounds of reductions of integers hold whatever the elements are, and are no wider than they need to be."""

import itertools

import numpy as np
import pytest

from tilec.core.dtypes import DTYPES
from tilec.semantics.interval_reductions import Total, reduce
from tilec.semantics.intervals import Enclosure

UFUNCS = {"sum": np.add, "prod": np.multiply}


def intervals(rng, dtype, shape, widest):
    limits = np.iinfo(dtype)
    low = rng.integers(max(limits.min, -widest), widest, shape, endpoint=True)
    high = np.minimum(low + rng.integers(0, 3, shape) * rng.integers(0, 2, shape), min(limits.max, 2**62))
    return Enclosure(low.astype(dtype), high.astype(dtype))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("kind", UFUNCS)
@pytest.mark.parametrize("name", ["i8", "u8", "i32", "i64", "u64"])
def test_reductions_of_integers_within_are_within(name, kind, scan, rng):
    dtype, narrow = DTYPES[name], 0
    limits = np.iinfo(dtype.numpy)
    for trial in range(60):
        n = int(rng.integers(1, 5))
        x = intervals(rng, dtype.numpy, (n,), (3, 12, min(limits.max, 2**62) // 3)[trial % 3])
        total = Total.scan((n,), 0) if scan else Total.reduction((n,), (0,))
        found = reduce(kind, x, total, dtype).map(np.atleast_1d)
        every = [np.arange(int(b) - int(a) + 1).astype(dtype.numpy) + a for a, b in zip(*x)]
        picks = np.array(list(itertools.product(*every)), dtype.numpy).reshape(-1, n)
        ufunc = UFUNCS[kind].accumulate if scan else UFUNCS[kind].reduce
        seen = ufunc(picks, axis=1, dtype=dtype.numpy).reshape(len(picks), -1)
        low, high = seen.min(axis=0), seen.max(axis=0)
        assert np.all(found.low <= low) and np.all(high <= found.high), (x, found)
        exact = (found.low == low) & (found.high == high)
        assert np.all(exact | (found.low == limits.min) & (found.high == limits.max)), (x, found)
        narrow += int(np.sum(exact & (low != high)))
    assert narrow > 5


@pytest.mark.parametrize("low, high, wanted", [
    ([2, -3, 1], [3, -1, 1], (-9, -2)),
    ([-2, -3], [1, 2], (-4, 6)),
    ([-1, 0, 2**20], [4, 0, 2**30], (0, 0)),
    ([1] * 30, [2] * 30, (1, 2**30)),
    ([1] * 31, [2] * 31, (-(2**31), 2**31 - 1)),
])  # fmt: skip
def test_an_interval_of_a_product_of_integers(low, high, wanted):
    """It was any integer where one factor was uncertain. A factor that may be left out, as under `if`, is from 1 to itself."""
    x = Enclosure(np.array(low, np.int32), np.array(high, np.int32))
    found = reduce("prod", x, Total.reduction((len(low),), (0,)), DTYPES["i32"])
    assert (int(found.low[0]), int(found.high[0])) == wanted
