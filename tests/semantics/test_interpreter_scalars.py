"""The interpreter computes scalar operations as MLIR defines them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilec.core.dtypes import DTYPES, from_numpy
from tilec.semantics.interpreter import Fault, interpret
from tilec.semantics.interpreter.elementary import fused_multiply_add

nan, inf = np.nan, np.inf


def evaluate(operation: str, *arrays: np.ndarray, result: str | None = None) -> np.ndarray:
    """An operation on every element; `{0}` and `{1}` stand for the operands."""
    kinds = [{"bool": "i1"}.get(str(a.dtype)) or DTYPES[from_numpy(a.dtype).name].mlir for a in arrays]
    result = result or kinds[0]
    names = [f"%x{n}" for n in range(len(arrays))]
    inputs = ", ".join(names) + " : " + ", ".join(f"tensor<{len(arrays[0])}x{k}>" for k in kinds)
    arguments = ", ".join(f"{n}: tensor<{len(arrays[0])}x{k}>" for n, k in zip(names, kinds))
    elements = ", ".join(f"%e{n}: {k}" for n, k in enumerate(kinds))
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(arrays) + 1))
    text = f"""func.func @f({arguments}) -> tensor<{len(arrays[0])}x{result}> {{
        %empty = tensor.empty() : tensor<{len(arrays[0])}x{result}>
        %y = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
          ins({inputs}) outs(%empty : tensor<{len(arrays[0])}x{result}>) {{
          ^bb0({elements}, %out: {result}):
            %r = {operation.format(*(f"%e{n}" for n in range(len(arrays))))}
            linalg.yield %r : {result}
          }} -> tensor<{len(arrays[0])}x{result}>
        return %y : tensor<{len(arrays[0])}x{result}> }}"""
    return next(iter(interpret(text, list(arrays)).values()))


SEVENS = np.array([7, -7, 7, -7, -128, 127, 0, 1], np.int8)
TWOS = np.array([2, 2, -2, -2, -1, 3, 5, -3], np.int8)
INTEGERS = {
    "arith.addi": [9, -5, 5, -9, 127, -126, 5, -2], "arith.muli": [14, -14, -14, 14, -128, 125, 0, -3],
    "arith.subi": [5, -9, 9, -5, -127, 124, -5, 4], "arith.divsi": [3, -3, -3, 3, -128, 42, 0, 0],
    "arith.floordivsi": [3, -4, -4, 3, -128, 42, 0, -1], "arith.ceildivsi": [4, -3, -3, 4, -128, 43, 0, 0],
    "arith.remsi": [1, -1, 1, -1, 0, 1, 0, 1], "arith.divui": [3, 124, 0, 0, 0, 42, 0, 0],
    "arith.remui": [1, 1, 7, -7, -128, 1, 0, 1], "arith.maxsi": [7, 2, 7, -2, -1, 127, 5, 1],
    "arith.minui": [2, 2, 7, -7, -128, 3, 0, 1], "arith.maxui": [7, -7, -2, -2, -1, 127, 5, -3],
    "arith.xori": [5, -5, -7, 7, 127, 124, 5, -4], "arith.andi": [2, 0, 6, -8, -128, 3, 0, 1],
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_and_divide(name):
    np.testing.assert_array_equal(
        evaluate(f"{name} {{0}}, {{1}} : i8", SEVENS, TWOS), np.array(INTEGERS[name], np.int8)
    )


def test_shifts_and_powers():
    ones = np.array([1, 3, 7, 1, 2, 1, 1, 1], np.int8)
    shifted = evaluate("arith.shrui {0}, {1} : i8", SEVENS, ones)
    np.testing.assert_array_equal(shifted, [3, 31, 0, 124, 32, 63, 0, 0])
    np.testing.assert_array_equal(evaluate("arith.shrsi {0}, {1} : i8", SEVENS, ones), SEVENS >> ones)
    np.testing.assert_array_equal(evaluate("arith.shli {0}, {1} : i8", SEVENS, ones), [14, -56, -128, -14, 0, -2, 0, 2])
    base, exponent = np.array([2, -1, 1, 3, 0, -1, 5, 10], np.int8), np.array([3, -3, -9, -1, -1, 4, 0, 3], np.int8)
    np.testing.assert_array_equal(evaluate("math.ipowi {0}, {1} : i8", base, exponent), [8, -1, 1, 0, 0, 1, 1, -24])


def test_division_by_zero_has_no_result():
    with pytest.raises(Fault, match="division by zero"):
        evaluate("arith.divsi {0}, {1} : i8", SEVENS, TWOS * 0)


def test_comparisons_of_not_a_number():
    x, y = np.array([1, nan, 2, inf], np.float32), np.array([1, 1, nan, inf], np.float32)
    expected = {"oeq": [1, 0, 0, 1], "une": [0, 1, 1, 0], "one": [0] * 4, "ueq": [1] * 4, "ult": [0, 1, 1, 0],
                "ole": [1, 0, 0, 1], "ord": [1, 0, 0, 1], "uno": [0, 1, 1, 0], "true": [1] * 4, "false": [0] * 4}  # fmt: skip
    for name, truth in expected.items():
        np.testing.assert_array_equal(evaluate(f"arith.cmpf {name}, {{0}}, {{1}} : f32", x, y, result="i1"), truth)
    bools = np.array([True, False, True, False]), np.array([True, True, False, False])
    np.testing.assert_array_equal(evaluate("arith.cmpi slt, {0}, {1} : i1", *bools, result="i1"), [0, 0, 1, 0])
    np.testing.assert_array_equal(evaluate("arith.cmpi ult, {0}, {1} : i1", *bools, result="i1"), [0, 1, 0, 0])


def test_extrema_and_not_a_number():
    x, y = np.array([1, nan, 2], np.float32), np.array([2, 1, nan], np.float32)
    np.testing.assert_array_equal(evaluate("arith.maximumf {0}, {1} : f32", x, y), [2, nan, nan])
    np.testing.assert_array_equal(evaluate("arith.minnumf {0}, {1} : f32", x, y), [1, 1, 2])


def test_conversions():
    bools, bytes_ = np.array([True, False]), np.array([-1, 5], np.int8)
    np.testing.assert_array_equal(evaluate("arith.extsi {0} : i1 to i32", bools, result="i32"), [-1, 0])
    np.testing.assert_array_equal(evaluate("arith.extui {0} : i8 to i32", bytes_, result="i32"), [255, 5])
    np.testing.assert_array_equal(evaluate("arith.uitofp {0} : i8 to f32", bytes_, result="f32"), [255, 5])
    wide = np.array([0x1_0000_0102, -1], np.int64)
    np.testing.assert_array_equal(evaluate("arith.trunci {0} : i64 to i8", wide, result="i8"), [2, -1])
    np.testing.assert_array_equal(evaluate("arith.trunci {0} : i64 to i1", wide, result="i1"), [False, True])
    halves = np.array([1.5, -1.5, 2.0**-9, 1 + 2.0**-8], np.float32)
    narrow = evaluate("arith.truncf {0} : f32 to bf16", halves, result="bf16")
    np.testing.assert_array_equal(narrow, halves.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(evaluate("arith.fptosi {0} : f32 to i8", halves, result="i8"), [1, -1, 0, 1])


def test_arithmetic_is_done_in_its_type(rng):
    x, y = (rng.standard_normal(100, dtype=np.float32) for _ in range(2))
    np.testing.assert_array_equal(evaluate("arith.mulf {0}, {1} : f32", x, y), x * y)
    x, y = x.astype(ml_dtypes.bfloat16), y.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(evaluate("arith.addf {0}, {1} : bf16", x, y), x + y)


def test_functions_are_rounded_once(rng):
    x = rng.standard_normal(1000, dtype=np.float32)
    np.testing.assert_array_equal(evaluate("math.exp {0} : f32", x), np.exp(x.astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(
        evaluate("math.roundeven {0} : f32", np.array([0.5, 1.5, -2.5], np.float32)), [0, 2, -2]
    )


def test_fused_multiply_add(rng):
    """Against exact arithmetic of whole numbers, at places where rounding twice would differ."""
    from fractions import Fraction

    a, b = (rng.integers(1 << 23, 1 << 24, 2000).astype(np.float32) for _ in range(2))
    c = rng.choice([2.0**-1, -(2.0**-1), 2.0**-12, 2.0**22, -(2.0**22), 1.0, -3.0], 2000).astype(np.float32)
    for x, y, z, found in zip(a, b, c, fused_multiply_add(a, b, c, np.dtype(np.float32))):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = [np.nextafter(found, np.float32(-inf)), found, np.nextafter(found, np.float32(inf))]
        errors = [abs(Fraction(float(n)) - exact) for n in near]
        assert errors[1] == min(errors)
    assert fused_multiply_add(
        np.float64(1 + 2.0**-52), np.float64(1 - 2.0**-52), np.float64(-1), np.dtype(np.float64)
    ) == -(2.0**-104)
