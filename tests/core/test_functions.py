"""The tables of scalar functions and reductions: complete, consistent, and true to the language's rules."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.core import dtypes
from tilec.core.functions import FUNCTIONS, IDENTITY
from tilec.core.mlir import arith, math
from tilec.core.reductions import REDUCTIONS, SCANS

NAMES = [
    "abs", "ceil", "floor", "round", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt",
    "sin", "cos", "tan", "tanh", "erf", "sigmoid", "trunc", "sign", "copysign", "fmod", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "min", "max", "clamp", "rand",
]  # fmt: skip


def _is_upstream(operation: str) -> bool:
    dialect, name = operation.split(".")
    return hasattr({"arith": arith, "math": math}[dialect], name)


def test_every_function_of_the_language_has_a_row():
    assert list(FUNCTIONS) == NAMES
    assert all(name == row.name for name, row in FUNCTIONS.items())


@pytest.mark.parametrize("name", NAMES)
def test_operations_exist_upstream(name):
    row = FUNCTIONS[name]
    assert _is_upstream(row.mlir)
    assert all(operation == IDENTITY or _is_upstream(operation) for operation in row.integer or ())


def test_arity():
    assert [n for n in range(6) if n in FUNCTIONS["exp"].arity] == [1]
    assert [n for n in range(6) if n in FUNCTIONS["clamp"].arity] == [3]
    assert [n for n in range(6) if n in FUNCTIONS["max"].arity] == [2, 3, 4, 5]
    assert str(FUNCTIONS["max"].arity) == "2 or more"


def test_round_goes_to_even():
    np.testing.assert_array_equal(FUNCTIONS["round"].reference([0.5, 1.5, 2.5, -0.5]), [0, 2, 2, 0])


def test_nan_propagates():
    for name, arguments in (("min", (1.0, np.nan, 2.0)), ("max", (np.nan, 1.0)), ("clamp", (1.0, np.nan, 2.0))):
        assert np.isnan(FUNCTIONS[name].reference(*arguments))


def test_sigmoid_keeps_its_left_tail():
    np.testing.assert_array_max_ulp(
        FUNCTIONS["sigmoid"].reference([-700.0, 0, 800]), np.array([np.exp(-700.0), 0.5, 1])
    )


COMPUTED = [dtype for dtype in dtypes.DTYPES.values() if dtype == dtypes.compute_type(dtype)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, t) for n in ("sum", "prod", "max", "min") for t in COMPUTED] + [(n, dtypes.BOOL) for n in ("any", "all")],
    ids=str,
)
def test_identity_is_the_reduction_of_nothing(name, dtype):
    row = REDUCTIONS[name]
    empty = row.reference(np.zeros((2, 0), dtype.numpy), 1)
    np.testing.assert_array_equal(empty, [row.identity(dtype)] * 2)


def test_empty_argmax_has_no_place():
    for name in ("argmax", "argmin"):
        with pytest.raises(ValueError):
            REDUCTIONS[name].reference(np.zeros((2, 0)), 1)


@pytest.mark.parametrize("dtype", [dtypes.F32, dtypes.I8, dtypes.U16], ids=str)
def test_combining_operations(dtype):
    for name in ("sum", "prod", "max", "min"):
        assert _is_upstream(REDUCTIONS[name].combine(dtype))
    assert REDUCTIONS["max"].combine(dtypes.U16) == "arith.maxui"
    assert REDUCTIONS["any"].combine(dtypes.BOOL) == "arith.ori"


def test_scans_refer_to_reductions():
    assert {name: row.name for name, row in SCANS.items()} == {f"cum{n}": n for n in ("sum", "prod", "max", "min")}
