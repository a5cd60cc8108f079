"""The error analysis: what arithmetic in f32 may give is within, what it cannot give is not, and ties stay open."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tools.enclosures import holds

import tilec
from tilec.core.dtypes import DTYPES, I32, from_numpy
from tilec.core.functions import FUNCTIONS
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise
from tilec.semantics import intervals as on
from tilec.semantics.comparison import compare, compare_array
from tilec.semantics.error_bounds import enclose
from tilec.semantics.intervals import Enclosure, point

nan, inf = np.nan, np.inf
f32 = np.float32


def specialised(program: str, **inputs):
    return specialise(parse(read_source(program)), None, [(from_numpy(a.dtype), a.shape) for a in inputs.values()], None)


def of(program: str, **inputs) -> Enclosure:
    """What the only output may be."""
    special = specialised(program, **inputs)
    return enclose(special, inputs)[special.outputs[0].name]


# ---- sharp: what correct compilations cannot give is outside ---------------------------------------------------------


def test_exact_arithmetic_has_one_result(rng):
    x, z = (rng.standard_normal(100).astype(f32) for _ in range(2))
    programs = {
        "y[i] = x[i] + z[i]": x + z,
        "y[i] = x[i] / z[i]": x / z,
        "y[i] = x[i] - max(x[i], z[i])": x - np.maximum(x, z),
        "y[i] = x[i] - floor(z[i])": x - np.floor(z),
        "y[i] = sqrt(abs(x[i])) + 0 * z[i]": np.sqrt(abs(x)),
        "op f(x: f32[N], z: f32[N]) -> (y: f32[N]) { y[i] = x[i] * z[i] }": x * z,
        "y[i] = x[i] + z[i] / 3 - 0.1": x + z / f32(3) - f32(0.1),
    }
    for program, value in programs.items():
        found = of(program, x=x, z=z)
        np.testing.assert_array_equal([found.low, found.high], [value, value])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_unit_too_much_is_noticed(dtype, rng):
    x = rng.standard_normal(50).astype(dtype)
    special = specialised("y[i] = 1 / x[i] + 1", x=x)
    y = 1 / x + 1
    assert compare(special, {"x": x}, {"y": y})["y"].within
    y[7] = np.nextafter(y[7], dtype(inf))
    found = compare(special, {"x": x}, {"y": y})["y"]
    assert not found.within and found.index == (7,) and found.wrong == 1 and "OUT OF BOUNDS" in str(found)


def test_a_lost_element_is_noticed(rng):
    a, b = rng.standard_normal((40, 300)).astype(f32), rng.standard_normal((300, 30)).astype(f32)
    special = specialised("y[i, j] = sum[k](a[i, k] * b[k, j])", a=a, b=b)
    assert compare(special, {"a": a, "b": b}, {"y": a @ b})["y"].within
    wrong = compare(special, {"a": a, "b": b}, {"y": a[:, 1:] @ b[1:]})["y"]
    assert not wrong.within and wrong.wrong > 1100


def test_nan_and_infinity_are_distinguished():
    x = np.array([nan, inf, 1.0, 0.0], f32)
    allowed = of("y[i] = x[i] - x[i] if x[i] != 0 else 1 / x[i]", x=x)
    assert compare_array(np.array([nan, nan, 0, inf], f32), allowed).within
    for n, wrong in enumerate([0, inf, nan, -inf]):
        found = np.array([nan, nan, 0, inf], f32)
        found[n] = wrong
        assert not compare_array(found, allowed).within


def test_shapes_differ():
    with pytest.raises(ValueError, match=r"\(3,\).*\(4,\)"):
        compare_array(np.zeros(3), point(np.zeros(4)))


# ---- open: where documented errors decide ----------------------------------------------------------------------------


def test_a_tie_of_a_declared_type_has_two_roundings():
    x = np.array([1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8], f32)  # two of them halfway between bf16 numbers
    program = "op f(x: f32[N]) -> (y: bf16[N]) { y[i] = exp(log(x[i])) }"
    found = of(program, x=x)
    np.testing.assert_array_equal(found.low, [1, 1, 1 + 2**-7])
    np.testing.assert_array_equal(found.high, [1, 1 + 2**-7, 1 + 2**-6])
    far = of(program, x=np.array([1.0 + 2.0**-9], f32))
    assert far.low == far.high == 1


def test_a_comparison_within_the_error_is_open():
    x = np.array([0.0, 1.0, -1.0], f32)
    found = of("y[i] = 5 if sin(x[i]) + 1 - 1 > sin(x[i]) * (1 + 1e-7) else 7", x=x)
    assert (found.low[1], found.high[1]) == (5, 7)
    found = of("y[i] = 5 if sin(x[i]) > 0.5 else 7", x=x)
    np.testing.assert_array_equal(found.low, [7, 5, 7])
    np.testing.assert_array_equal(found.high, [7, 5, 7])


def test_a_whole_number_within_the_error_is_open():
    x = np.array([8.0, 9.0], f32)
    found = of("y[i] = i32(floor(log2(x[i])))", x=x)
    assert (*found.low, *found.high) == (2, 3, 3, 3)


def test_places_of_near_equals_are_open():
    x = np.array([[3.0, 1.0, 3.0, 0.0], [1.0, 2.0, 1.0, 0.0]], f32)
    found = of("y[i] = argmax[j](exp(x[i, j]))", x=x)
    np.testing.assert_array_equal([found.low, found.high], [[0, 1], [2, 1]])
    exact = of("y[i] = argmax[j](x[i, j])", x=x)
    np.testing.assert_array_equal([exact.low, exact.high], [[0, 1], [0, 1]])
    table = np.array([10.0, 20.0, 30.0, 40.0], f32)
    read = of("p[i] = argmax[j](exp(x[i, j])); y[i] = pad(t[p[i]], 0)", x=x, t=table)
    np.testing.assert_array_equal([read.low, read.high], [[0, 20], [40, 20]])


def test_a_square_is_not_negative(rng):
    x = rng.standard_normal((20, 3)).astype(f32)
    x[:, 1:] = x[:, :1]
    found = of("m[i] = mean[j](x[i, j]); v[i] = mean[j]((x[i, j] - m[i]) * (x[i, j] - m[i])); y[i] = sqrt(v[i])", x=x)
    assert np.isfinite(found.low).all() and (found.low >= 0).all() and (found.high < 1e-6).all()


def test_products_of_which_there_are_none():
    x = np.ones(4, f32)
    found = of(
        "op f(x: f32[K], v: f32[M]) -> (y: f32[K]) { y[i] = sum[j in 0:M](cumprod[i](x[i] + v[j])) }", x=x, v=x[:0]
    )
    assert found.low.tolist() == found.high.tolist() == [0] * 4


def test_overflow_on_the_way_is_open():
    x = np.array([1.0, 3e30], f32)  # the square of the second is no f32: inf, unless it is added to unrounded
    found = of("y[i] = x[i] * x[i] / (1 + x[i] * x[i])", x=x)
    assert found.low[0] == found.high[0] == 0.5 and on.is_anything(found)[1]
    assert compare_array(np.array([0.5, nan], f32), found).unbounded == 1
    certain = of("y[i] = exp(x[i]) / exp(x[i])", x=np.array([100], f32))
    assert np.isnan(certain.low[0])


def test_a_wide_program_of_f64_is_held_to_f64(rng):
    x = rng.standard_normal((30, 20))
    special = specialised("y[i] = sum[j](exp(x[i, j]))", x=x)
    assert compare(special, {"x": x}, {"y": np.exp(x).sum(1)})["y"].within
    assert not compare(special, {"x": x}, {"y": np.exp(x).sum(1) * (1 + 1e-13)})["y"].within


def test_integers_wrap_as_they_do():
    x = np.array([2**31 - 1, -5], np.int32)
    found = of("y[i] = x[i] * 2 + 1", x=x)
    np.testing.assert_array_equal(found.low, x * np.int32(2) + np.int32(1))
    assert found.is_point and from_numpy(found.low.dtype) is I32


def test_bf16_inputs_are_exact(rng):
    x = rng.standard_normal(30).astype(ml_dtypes.bfloat16)
    special = specialised("op f(x: bf16[N]) -> (y: bf16[N]) { y[i] = x[i] * 3 }", x=x)
    found = enclose(special, {"x": x}, "cpu")["y"]
    np.testing.assert_array_equal(found.low, (x.astype(f32) * 3).astype(ml_dtypes.bfloat16).astype(np.float64))
    assert np.array_equal(found.low, found.high)


def test_a_sigmoid_far_left_is_small_and_not_nothing():
    x = np.array([-88.8, -100, -103, -1000, 0, 88.8, inf, -inf, nan], f32)
    y = tilec.compile("y[i] = sigmoid(x[i])", target="cpu")(x)
    assert compare(specialised("y[i] = sigmoid(x[i])", x=x), {"x": x}, {"y": y}, "cpu")["y"].within
    assert (y[:3] > 0).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_value_of_a_16_bit_type(name):
    """All functions, compiled, on all values: rounded correctly but for the few that are within their bound of a tie."""
    names = [n for n, row in FUNCTIONS.items() if 1 in row.arity]
    outputs = ", ".join(f"y_{n}: {name}[N]" for n in names)
    body = "; ".join(f"y_{n}[i] = {n}(x[i])" for n in names)
    program = f"op f(x: {name}[N]) -> ({outputs}) {{ {body} }}"
    x = np.arange(1 << 16).astype(np.uint16).view(DTYPES[name].numpy)
    results = tilec.compile(program, target="cpu")(x)
    special = specialised(program, x=x)
    for found in compare(special, {"x": x}, results._asdict(), "cpu").values():
        assert found.within, found
    allowed = enclose(special, {"x": x}, "cpu")
    for n in names:
        low, high = allowed[f"y_{n}"]
        assert np.count_nonzero(low < high) < 400, n


def test_powers_by_a_tensor_of_one_element():
    x, e = np.array([[1.5, -2.0]], f32), np.array([[2.0]], f32)
    found = of("y[i, j] = x[i, j] ** e[0, 0]", x=x, e=e)
    assert ((found.low <= x**2) & (x**2 <= found.high)).all()


def test_multiplicands_are_rounded_next_to_infinities_too(rng):
    """A row with an infinity once took the permission to round the factors from all others."""
    a, b = rng.standard_normal((3, 40)).astype(f32), rng.standard_normal(40).astype(f32)
    program = "y[i] = sum[k](a[i, k] * b[k]) using bf16"
    finite = of(program, a=a, b=b)
    a[0, 7], a[1, 3] = inf, nan
    found = of(program, a=a, b=b)
    assert np.isinf(found.low[0]) and np.isnan(found.low[1])
    rounded = np.dot(
        a[2].astype(ml_dtypes.bfloat16).astype(np.float64), b.astype(ml_dtypes.bfloat16).astype(np.float64)
    )
    assert found.low[2] <= rounded <= found.high[2]
    width, wide = found.high[2] - found.low[2], finite.high[2] - finite.low[2]
    assert abs(width - wide) <= 0.01 * wide


def test_what_a_rounding_hides_counts_on_cuda_only():
    """Half a unit and an eighth: 1 + 1/256 is midway between 1 and 1 + 1/128."""
    source = "op f(x: f32[N]) -> (y: bf16[N]) { y[i] = exp2(x[i]) }"
    exact = 1 + np.array([0.9, 1.0, 1.1, 1.3, 1.9, 2.1]) / 256
    inputs = {"x": np.log2(exact).astype(f32)}
    lower, upper = np.float64(1), np.float64(1 + 1 / 128)
    for kind, ends in {"cpu": "lower both upper upper upper upper", "cuda": "both both both upper upper upper"}.items():
        special = specialised(source, **inputs)
        allowed = enclose(special, inputs, kind)["y"]
        for end, low, high in zip(ends.split(), allowed.low, allowed.high, strict=True):
            assert (low, high) == {"lower": (lower,) * 2, "upper": (upper,) * 2, "both": (lower, upper)}[end]


def test_a_power_of_one_index_with_one_value():
    """The exponent is an array with axes, and one element."""
    program = "op f(x: f32[M], v: f32[N]) -> (y: f32[M, N]) { y[i, j] = x[i] ** (-2 * f32(j + 1)) + 0 * v[j] }"
    found = of(program, x=np.array([2, 4], f32), v=np.zeros(1, f32))
    assert holds(found, [[0.25], [0.0625]]).all()


@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("scale", [1, 2e-22, 2e19])
def test_products_narrower_than_their_sum(rng, n, scale):
    """Each is rounded to f32, where it may be subnormal or infinite, or goes unrounded into the sum."""
    a, b = ((scale * rng.uniform(1, 2, n)).astype(f32) for _ in range(2))
    with np.errstate(all="ignore"):
        rounded, exact = (a * b).astype(np.float64).sum(), np.dot(a.astype(np.float64), b.astype(np.float64))
    body = "y = sum[k](a[k] * b[k]) in f64; z = f64(sum[k](a[k] * b[k]))"
    source = f"op f(a: f32[N], b: f32[N]) -> (y: f64, z: f64) {{ {body} }}"
    special, inputs = specialised(source, a=a, b=b), {"a": a, "b": b}
    for found in (enclose(special, inputs)[name] for name in "yz"):
        assert holds(found, rounded) and holds(found, exact) and not holds(found, exact * (1 - 1e-4) - n * 1e-45)
    results = tilec.compile(source, target="cpu")(a, b)._asdict()
    assert all(c.within for c in compare(special, inputs, results, "cpu").values())


def test_products_of_f64_that_are_subnormal():
    """A kernel may take them unrounded into the sum, and NumPy has rounded them."""
    a, b = np.full(5, 1.3e-160), np.full(5, 7.82e-162)
    source = "op f(a: f64[N], b: f64[N]) -> (y: f64) { y = sum[k](a[k] * b[k]) }"
    special, inputs = specialised(source, a=a, b=b), {"a": a, "b": b}
    found = enclose(special, inputs)["y"]
    assert holds(found, 5 * (a[0] * b[0])) and holds(found, 5 * a[0] * b[0]) and found.high < 1.01 * 5 * a[0] * b[0]
    assert all(
        c.within for c in compare(special, inputs, {"y": tilec.compile(source, target="cpu")(a, b)}, "cpu").values()
    )
