"""Every construct of the language, compiled for the CPU, against plain NumPy written by hand.

Programs of `tools.construct_cases` run at a middling size, at ones, with an empty dimension, and at primes large enough for
several blocks. Single values, computed subscripts and calls have test files of their own, `test_construct_*.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_close
from tools.construct_cases import CASES, GIVEN, SIZES, compiled, expected_of, f32, inf, inputs_of, run, softmax

import tilec
from tilec import CallError, TileError
from tilec.core.dtypes import DTYPES


@pytest.mark.crossed
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_case(name, size, rng):
    program, described, numpy = CASES[name]
    z = SIZES[size]
    arrays = inputs_of(rng, described, z)
    expected = expected_of(numpy, arrays, z)
    if expected is None:
        pytest.skip("NumPy has no value for this size")
    given = {n: z[n] for n in GIVEN.get(name, "")}
    run(program, *arrays, sizes=given, op="f" if program.count("op ") > 1 else None, expected=expected)


# ---- words -----------------------------------------------------------------------------------------------------------


def test_comments_white_space_and_semicolons():
    program = "# one\ny[i]=x[i]# two\n+1 ; z[\n i ] = y[i]*2 # end"
    assert_close(run(program, f32(1, 2)), f32(4, 6))


def test_numbers():
    run("y[i] = x[i] * 12 + 1.5 + 1e-5 * 1e5", f32(1), expected=f32(14.5))
    assert_close(run("y[i] = x[i] + inf; z[i] = x[i] * nan; w[i] = -inf if x[i] > 0 else 0", f32(1))[0], f32(inf))
    assert np.isnan(run("y[i] = x[i] * nan", f32(1)))


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_stored_as_it_is(name, rng):
    dtype = DTYPES[name].numpy
    x = rng.integers(0, 256, 64 * dtype.itemsize, dtype=np.uint8).view(dtype)
    x = x.astype(bool) if name == "bool" else x
    if name == "bool":
        x = rng.integers(0, 2, 64).astype(bool)
    y = run(f"op f(x: {name}[N]) -> (y: {name}[N]) {{ y[i] = x[i] }}", x)
    assert y.dtype == dtype and y.tobytes() == x.tobytes()


def test_a_size_used_twice_must_be_equal():
    op = compiled("op f(x: f32[M, N], v: f32[N]) -> (y: f32[M, N]) { y[i, j] = x[i, j] + v[j] }")
    with pytest.raises(CallError, match=r"N") as error:
        op(np.zeros((2, 3), np.float32), np.zeros(4, np.float32))
    assert "x" in str(error.value) and "v" in str(error.value) and "3" in str(error.value) and "4" in str(error.value)


def test_arithmetic_of_sizes():
    program = "op f(x: f32[M, 2 * K + 1]) -> (y: f32[M // 2, K]) { y[i, k] = x[2 * i, 2 * k + 1] }"
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    assert_close(run(program, x), x[::2, 1::2][:2])


# ---- statements ------------------------------------------------------------------------------------------------------


def test_import(tmp_path):
    (tmp_path / "parts.tile").write_text(
        "def twice(x) { return 2 * x }\nop one(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }\n"
    )
    main = tmp_path / "main.tile"
    main.write_text('import "parts.tile"\nop main(x: f32[N]) -> (y: f32[N]) { z = one(x)  y[i] = twice(z[i]) }\n')
    assert_close(tilec.compile(main, op="main", target="cpu")(f32(1, 2)), f32(4, 6))


REFUSED = {
    "defined twice": "y[i] = x[i]; y[i] = x[i] + 1",
    "read before defined": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i]  z[i] = x[i] }",
    "result never defined": "op f(x: f32[N]) -> (y: f32[N], z: f32[N]) { y[i] = x[i] }",
    "index twice on the left": "y[i, i] = x[i]",
    "unknown function": "y[i] = nosuch(x[i])",
    "outside": "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i + 1] }",
    "and does not guard": "op f(x: f32[N]) -> (y: bool[N]) { y[i] = i > 0 and x[i - 1] > 0 }",
    "no range": "op f(x: f32[N]) -> (y: f32) { y = sum[k](x[k + 1] * x[k - 1]) }",
    "ranges disagree": "op f(x: f32[N], z: f32[M]) -> (y: f32[N]) { y[i] = x[i] + z[i] }",
    "two indices in argmax": "y = argmax[i, j](x[i, j])",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_place(name):
    with pytest.raises(TileError) as error:
        compiled(REFUSED[name])(*(np.zeros((3, 3), np.float32),) * 1)
    assert "<program>:1" in str(error.value) and "^" in str(error.value)


def test_all_mistakes_at_once():
    with pytest.raises(TileError) as error:
        compiled("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i + 1]\n z[i] = nosuch(x[i]) }")
    assert "<program>:1" in str(error.value) and "<program>:2" in str(error.value)


# ---- expect ----------------------------------------------------------------------------------------------------------

SOFTMAX = """op s(x: f32[M, N]) -> (y: f32[M, N]) {
    e[i, j] = exp(x[i, j])  t[i] = sum[j](e[i, j])  y[i, j] = e[i, j] / t[i]
    %s
}"""


@pytest.mark.parametrize(
    "condition", ["kernels == 1", "fused(e, y)", "traffic <= 1.05 * minimal", "kernels >= 1 and kernels < 2"]
)
def test_expectation_met(condition, rng):
    x = rng.standard_normal((64, 96)).astype(np.float32)
    run(SOFTMAX % f"expect {condition}", x, expected=softmax(x.astype(np.float64)))


@pytest.mark.parametrize("condition", ["kernels == 2", "traffic < minimal", "not fused(e, y)"])
def test_expectation_not_met(condition):
    with pytest.raises(TileError, match="expect") as error:
        run(SOFTMAX % f"expect {condition}", np.zeros((64, 96), np.float32))
    assert "<program>:3" in str(error.value)
