"""Every example against what was written by hand for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import OTHER_ORDER, as_list, assert_close
from expectations import EXAMPLES, Bound, unit_roundoff

from tilec.core.dtypes import F32
from tilec.semantics.reference import reference

ALL = [pytest.param(example, id=name) for name, example in EXAMPLES.items()]


@pytest.mark.parametrize("example", ALL)
def test_reference_is_what_was_expected(example, rng):
    inputs = example.inputs(rng)
    results = as_list(reference(example.path, example.op)(**inputs))
    for result, expected in zip(results, example.expected(inputs), strict=True):
        assert_close(result, expected, OTHER_ORDER)


@pytest.mark.parametrize("example", ALL)
def test_declared_roundings_stay_within_the_bound(example, rng):
    inputs = example.inputs(rng)
    results = as_list(reference(example.path, example.op, rounded=True)(*inputs.values()))
    for result, expected in zip(results, example.expected(inputs), strict=True):
        assert_close(result, expected, example.bound())


@pytest.mark.parametrize("example", ALL)
def test_first_line_says_what_it_computes(example):
    first = example.path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ") and first.endswith(".")


def test_every_file_has_an_entry():
    folder = Path(next(iter(EXAMPLES.values())).path).parent
    assert {e.path for e in EXAMPLES.values()} == set(folder.glob("*.tile"))


def test_comparison_says_what_is_wrong():
    with pytest.raises(AssertionError, match=r"1 of 2 elements.*at \(1,\)"):
        assert_close(np.array([1.0, 2.0]), np.array([1.0, 2.1]), Bound(rtol=1e-3))
    with pytest.raises(AssertionError):
        assert_close(np.array([np.nan]), np.array([1.0]), Bound(rtol=1.0))
    assert_close(np.array([np.nan, np.inf]), np.array([np.nan, np.inf]))
    assert unit_roundoff(F32) == 2.0**-24
