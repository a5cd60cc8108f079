"""Floor division, remainders, signs of zeros, means of integers, and extremes of nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fuzz.compare import check, on_cpu, on_emulator, specialised
from fuzz.programs import Case

import tilec
from tilec.core.dtypes import DTYPES
from tilec.core.operators import OPERATORS
from tilec.core.source import read_source
from tilec.semantics.comparison import compare
from tilec.semantics.error_bounds import enclose
from tilec.semantics.reference import reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
WAYS = pytest.mark.parametrize("way", ["cpu", "stages", "emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
SPECIAL = [0.0, -0.0, 1, -1, 0.1, -0.1, 2.5, -2.5, 7, -7, 1e-45, -1e-45, 1e10, 3e38, math.inf, -math.inf, math.nan]


def pairs(dtype) -> tuple[np.ndarray, np.ndarray]:
    values = np.array(SPECIAL).astype(dtype)
    a, b = np.meshgrid(values, values)
    return a.reshape(-1).copy(), b.reshape(-1).copy()


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN where NaN is, and signs of zeros alike."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(*(np.signbit(v) | np.isnan(v) for v in (a, b)))


def test_floor_division_and_remainder_are_pythons():
    for a, b in zip(*(v.tolist() for v in pairs(np.float64))):
        for operator, python in (("//", float.__floordiv__), ("%", float.__mod__)):
            if b:
                assert same(OPERATORS[operator](np.float64(a), np.float64(b)), python(a, b)), (a, operator, b)


@pytest.mark.crossed
@WAYS
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_floor_division_and_remainder_everywhere(name, way):
    """The comparison looks at signs of zeros; constants are folded as values are computed."""
    a, b = pairs(DTYPES[name].numpy)
    if way in ("stages", "emulator"):
        a, b = a[:: 3 if name == "f32" else 17], b[:: 3 if name == "f32" else 17]
    wide = "f64" if name == "f64" else "f32"
    constants = {"p": "-1.0 // inf", "q": "-0.0 % 3.0", "r": "-0.0 // 3.0", "s": "7.0 % -inf", "t": "6.0 % -3.0"}
    results = {n: f"{n}: {wide}[N]" for n in ("y", "z", "u", "v", *constants)}
    text = f"""op f(a: {name}[N], b: {name}[N]) -> ({", ".join(results.values())}) {{
        y[i] = a[i] // b[i]
        z[i] = a[i] % b[i]
        u[i] = a[i] // 2.5
        v[i] = a[i] % -0.1
        {" ".join(f"{n}[i] = {e} + 0 * i" if n in "pst" else f"{n}[i] = {e}" for n, e in constants.items())}
    }}"""
    check(Case(text, {"N": len(a)}, {"a": a, "b": b}, frozenset("yzu")), way)


def test_kernels_that_differ_in_a_zero_are_two():
    text = "op f(x: f32[N]) -> (y: f32[N], z: f32[M]) { y[i] = -0.0; z[i] = 0.0 where i in 0:M }"
    y, z = tilec.compile(text, sizes={"M": 3}, target="cpu")(np.ones(3, np.float32))
    assert np.signbit(y).all() and not np.signbit(z).any()


def test_floor_division_in_numpys_own_type():
    for dtype in (np.float32, np.float64):
        a, b = pairs(dtype)
        y = tilec.compile("y[i] = a[i] // b[i]; z[i] = a[i] % b[i]", target="cpu")(a, b)
        assert same(y[0], a // b) and same(y[1], a % b)


@pytest.mark.parametrize("text, inputs", [
    ("y[i] = x[2 * i + 1] // (abs(z[i]) + 0.5) where i in 0:2", {"x": [0, -1, 0, -math.inf, 1], "z": [math.inf, 1]}),
    ("y[i] = x[i] // (abs(x[0]) + 0.5)", {"x": [-math.inf, -math.inf, 0, -1]}),
    ("y[i] = (x[i] // (abs(z[i]) + 0.5)) < (z[i] * x[i])", {"x": [-math.inf, 2, -3, math.inf], "z": [1, math.inf, 5, 2]}),
    ("y[i] = x[i] // (abs(sum[k in 0:1](z[i])) + 0.5)", {"x": [-math.inf, 2, -3, math.inf, -1], "z": [1, math.inf, 5, 2, 0]}),
])  # fmt: skip
def test_infinities_of_floor_division_are_in_bounds(text, inputs):
    """What fuzzers found: kernels were right, and the bounds were not."""
    arrays = {name: np.array(values, np.float32) for name, values in inputs.items()}
    case = Case(text, {}, arrays)
    for run in (on_cpu, on_emulator):
        for comparison in compare(specialised(case), arrays, run(case, specialised(case))).values():
            assert comparison.within, comparison


# ---- signs of zeros --------------------------------------------------------------------------------------------------

SIGNED = "-x[i]|abs(x[i])|x[i] * z[i]|x[i] / z[i]|x[i] + z[i]|x[i] - z[i]|floor(x[i])|ceil(x[i])|round(x[i])|sqrt(x[i])"
SIGNED += "|x[i] if z[i] > 0 else -0.0|f64(x[i])|bf16(x[i])|pad(x[i - 1], -0.0)|x[i] // 3.0|x[i] % z[i]|min(x[i], z[i])"


@WAYS
def test_signs_of_zeros(way):
    """Held to by the comparison, in all that the documents promise."""
    a, b = pairs(np.float32)
    a, b = (a, b) if way in ("cpu", "gpu") else (a[::4], b[::4])
    texts = SIGNED.split("|")
    outputs = ", ".join(f"y{n}: {'bf16' if 'bf16' in t else 'f32'}[N]" for n, t in enumerate(texts))
    body = "\n".join(f"y{n}[i] = {t}" for n, t in enumerate(texts))
    check(Case(f"op f(x: f32[N], z: f32[N]) -> ({outputs}) {{\n{body}\n}}", {"N": len(a)}, {"x": a, "z": b}), way)


def test_a_wrong_sign_of_zero_is_out_of_bounds():
    x = np.array([-0.0, 0.0, 2], np.float32)

    def verdict(text: str, *found: float):
        case = Case(text, {}, {"x": x})
        return compare(specialised(case), case.inputs, {"y": np.array(found, np.float32)})["y"]

    assert verdict("y[i] = x[i] * 1.5", -0.0, 0, 3).within
    wrong = verdict("y[i] = x[i] * 1.5", 0.0, 0, 3)
    assert not wrong.within and wrong.wrong == 1 and wrong.index == (0,)
    assert all(verdict("y[i] = max(x[i], 0)", zero, 0, 2).within for zero in (0.0, -0.0))
    for open_ in ("y[i] = cumsum[i](x[i])", "y[i] = cummax[i](x[i])", "y[i] = sum[k in 0:1](x[i])"):
        for zero in (0.0, -0.0):  # the order is the compiler's
            assert verdict(open_, zero, zero, 2).within, open_
    kept = enclose(specialised(case := Case("y[i] = max(x[i], 3)", {}, {"x": x})), case.inputs)["y"]
    assert kept.is_point


def test_a_comparison_says_of_what_it_says_nothing():
    """NaN for certain is one value; an infinity that may or may not be reached is any; bools and integers are counted, too."""
    x = np.array([math.nan, 3e30, 1], np.float32)
    case = Case("y[i] = x[i]; z[i] = x[i] * x[i] / (1 + x[i] * x[i]); b[i] = z[i] > 2; n[i]: i8 = z[i]", {}, {"x": x})
    program = specialised(case)
    found = {"y": x, "z": np.array([math.nan, 7, 0.5], np.float32), "b": np.zeros(3, bool), "n": np.zeros(3, np.int8)}
    verdicts = compare(program, case.inputs, {t.name: found[t.name] for t in program.outputs})
    assert all(c.within for c in verdicts.values())
    assert str(verdicts["y"]) == "0 of 0 allowed, within the bound"
    assert [verdicts[n].unbounded for n in ("b", "n")] == [1, 1]
    assert str(verdicts["n"]).endswith("; 1 of its elements are unbounded")


# ---- means -----------------------------------------------------------------------------------------------------------

MEANS = {
    "i32": [2_000_000_000] * 2, "u32": [2**32 - 1] * 3, "i64": [2**62, 2**62, 2**62 + 2**40], "u64": [2**64 - 1] * 3,
    "i8": [-128] * 5, "u8": [255, 0, 255], "i16": [-(2**15)] * 9, "u16": [2**16 - 1] * 40_000, "bool": [1, 0, 1, 1],
}  # fmt: skip


@pytest.mark.parametrize("way", ["cpu", "emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_integers_is_one(name, way):
    x = np.array(MEANS[name][: 100 if way == "emulator" else None], DTYPES[name].numpy)
    case = Case(f"op f(x: {name}[N]) -> (y: f32) {{ y = mean[i](x[i]) }}", {"N": len(x)}, {"x": x})
    check(case, way)
    expected = sum(x.tolist()) / len(x)
    found = enclose(specialised(case), case.inputs)["y"]
    assert np.isclose(found.low, expected, 1e-6) and np.isclose(found.high, expected, 1e-6)
    assert np.isclose(reference(case.text)(x), expected, 1e-12)


@pytest.mark.parametrize("number, dtype", [(255, np.uint8), (-(2**31) + 1, np.int32)])
def test_the_mean_of_one_number_is_that_number(number, dtype):
    assert tilec.compile("y = mean[i](x[i])", target="cpu")(np.full(10**6 + 3, number, dtype)) == np.float32(number)


@pytest.mark.parametrize("name, count, accumulator", [
    ("u8", 1000, "i32"), ("u8", 2**24, "i64"), ("i16", 2**16 - 2, "i32"), ("i16", 2**16, "i64"), ("bool", 2**20, "i32"),
    ("i32", 2, "i64"), ("u32", 2**31, "i64"), ("u32", 2**32, "f64"), ("i64", 1, "f64"), ("u64", 9, "f64"),
])  # fmt: skip
def test_what_a_mean_accumulates_in(name, count, accumulator):
    """The narrowest type that cannot overflow."""
    from tilec.dsl.ast import Reduce, traverse
    from tilec.dsl.parse import parse
    from tilec.dsl.specialise import specialise

    program = parse(read_source(f"op f(x: {name}[N]) -> (y: f32) {{ y = mean[i](x[i]) }}"))
    special = specialise(program, None, [(DTYPES[name], (count,))])
    (total,) = [e for e in traverse(special.equations[0].value) if isinstance(e, Reduce)]
    assert str(total.dtype) == accumulator


def test_a_mean_obeys_the_accumulator_that_is_written():
    x = np.array([2_000_000_000] * 2, np.int32)
    assert tilec.compile("y = mean[i](x[i]) in i32", target="cpu")(x) == np.float32((4_000_000_000 - 2**32) / 2)


# ---- extremes of nothing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, t in DTYPES.items() if t.is_integer])
def test_extremes_of_nothing_are_the_types_own(name):
    text = f"""op f(x: {name}[M, N]) -> (y: {name}, z: {name}, w: i64[M], v: {name}[M, N]) {{
        y = max[i, j](x[i, j])
        z = min[i, j](x[i, j])
        w[i] = max[j](x[i, j])
        v[i, j] = cummax[j](x[i, j])
    }}"""
    limits, x = np.iinfo(DTYPES[name].numpy), np.zeros((2, 0), DTYPES[name].numpy)
    for call in (tilec.compile(text, target="cpu"), reference(text)):
        y, z, w, _ = call(x)
        assert (int(y), int(z)) == (limits.min, limits.max)
        assert w[0] == limits.min
    case = Case(text, {"M": 2, "N": 0}, {"x": x}, frozenset("yzw"))
    check(case, "emulator")
