"""Conversions between types: rounded once, and saturated, whatever computes them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from fuzz.compare import check, on_cpu, specialised
from fuzz.programs import Case

import tilec
from tilec.core.conversions import to_float, to_integer
from tilec.core.dtypes import DTYPES
from tilec.semantics.comparison import compare
from tilec.semantics.error_bounds import enclose
from tilec.semantics.reference import reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FLOATS = [n for n, t in DTYPES.items() if t.is_float]
INTEGERS = [n for n, t in DTYPES.items() if t.is_integer]
NARROW = [n for n in FLOATS if DTYPES[n].bits < 32]


def ways(names: list[str], slow: tuple[str, ...]):
    """Every type on the CPU and on a GPU, and some in the interpreter and the emulator."""
    some = [(n, w) for n in slow for w in ("stages", "emulator")]
    gpu = [pytest.param(n, "gpu", marks=pytest.mark.gpu) for n in names]
    return pytest.mark.parametrize("name, way", [*((n, "cpu") for n in names), *some, *gpu])


def finite(name: str) -> np.ndarray:
    """All numbers of a narrow float type, as f64."""
    dtype = DTYPES[name]
    found = np.arange(1 << dtype.bits).astype(f"u{dtype.bytes}").view(dtype.numpy).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def sampled(name: str) -> np.ndarray:
    """Numbers of a narrow type in every binade, those about its ends, and what lies at and beside the middles between them."""
    numbers = finite(name)
    kept = numbers if len(numbers) < 1000 else np.concatenate([numbers[:4], numbers[::97], numbers[-4:]])
    places = np.searchsorted(numbers, kept)[:-1]
    middles = (numbers[places] + numbers[places + 1]) / 2
    beside = [middles * (1 + 2.0**-40), middles * (1 - 2.0**-40), np.nextafter(middles, 9), np.nextafter(middles, -9)]
    beyond = numbers[-1] + (numbers[-1] - numbers[-2]) * np.array([0.499999999, 0.5, 0.500000001, 1, 1e9])
    rest = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-320, -1e-300, 1e300]
    return np.concatenate([kept, middles, *beside, beyond, -beyond, rest])


def nearest(numbers: list[Fraction], value: Fraction, dtype) -> Fraction:
    """By the definition: the nearest, or of two the one whose last bit is 0."""
    apart = [abs(n - value) for n in numbers]
    least = min(apart)
    found = [n for n, d in zip(numbers, apart) if d == least]
    even = [n for n in found if not int(np.array([float(n)]).astype(dtype.numpy).view(f"u{dtype.bytes}")[0]) & 1]
    return found[0] if len(found) == 1 else even[0]


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_the_nearest_by_its_definition(name):
    dtype = DTYPES[name]
    numbers = [Fraction(n) for n in finite(name)]
    values = sampled(name)[::11]
    values = values[np.abs(values) <= float(numbers[-1])]
    integers = np.array([0, 1, 17, 19, 231, 233, 255, (1 << 7) + 4, (1 << 7) + 12], np.int64)
    for given in (values, integers):
        found = to_float(given, dtype.numpy).astype(np.float64)
        assert [Fraction(f) for f in found] == [nearest(numbers, Fraction(v), dtype) for v in given.tolist()]


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_wide_integers_are_rounded_once(name, kind):
    """Those midway between two numbers, and one beside: the last bits of 64 decide, which no f64 and no f32 holds."""
    bits, limits = DTYPES[name].mantissa, np.iinfo(kind)
    found, expected = [], []
    for power in range(bits + 2, limits.bits - (limits.min < 0)):
        if name == "f16" and power > 14:
            break
        unit = 1 << (power - bits + 1)
        for beside in (-1, 0, 1):
            for last in (0, 1):  # the last bit of the number below
                found.append((1 << power) + last * unit + unit // 2 + beside)
                up = beside > 0 or (beside == 0 and last == 1)
                expected.append(float((1 << power) + (last + up) * unit))
    rounded = to_float(np.array(found, kind), DTYPES[name].numpy).astype(np.float64)
    np.testing.assert_array_equal(rounded, expected)
    if limits.min < 0:
        np.testing.assert_array_equal(to_float(-np.array(found, kind), DTYPES[name].numpy).astype(np.float64), -rounded)


@ways(NARROW, ("bf16", "f8e4m3"))
def test_what_is_rounded_to_a_narrow_type(name, way):
    """From f64, and from 32 and 64 bits of integers, on every way the same, signs of zeros included."""
    x = sampled(name)
    x = x[:: 1 if way in ("cpu", "gpu") else max(1, len(x) // 60)]
    power = np.arange(3, 63, 1 if way in ("cpu", "gpu") else 7)
    middles = [(1 << int(p)) + (1 << max(0, int(p) - DTYPES[name].mantissa)) + d for p in power for d in (-1, 0, 1)]
    n = np.array([0, 1, -1, 2**63 - 1, -(2**63), *middles, *(-m for m in middles)], np.int64)
    u = np.array([2**64 - 1, 2**63, *middles], np.uint64)
    case = Case(
        f"""op f(x: f64[N], n: i64[M], u: u64[K]) -> (a: {name}[N], b: {name}[M], c: {name}[M], d: {name}[K], e: f32[N]) {{
            a[i] = x[i]
            b[i] = n[i]
            c[i] = i32(n[i])
            d[i] = u[i]
            e[i] = f32({name}(x[i] * 1.0)) + 1
        }}""",
        {"N": len(x), "M": len(n), "K": len(u)}, {"x": x, "n": n, "u": u}, frozenset("abcd"),
    )  # fmt: skip
    check(case, way)


def edges(dtype) -> np.ndarray:
    """Floats at the ends of the integers' types, beside them and far beyond, and what is no number."""
    powers = np.array([2.0**p for p in (0, 7, 8, 15, 16, 31, 32, 63, 64)])
    near = [
        powers,
        powers - 1,
        powers - 0.5,
        powers + 0.5,
        powers + 1,
        powers * (1 - 2.0**-24),
        powers * (1 - 2.0**-53),
    ]
    ends = np.concatenate([*near, [0.0, 0.5, 0.99, 1e-40, 1e10, 3e38, math.inf]])
    return to_float(np.concatenate([ends, -ends, [math.nan]]), dtype.numpy)


@pytest.mark.parametrize("name", FLOATS)
def test_saturation_by_its_definition(name):
    for value in edges(DTYPES[name]):
        for integer in INTEGERS:
            limits, wide = np.iinfo(DTYPES[integer].numpy), float(value)
            if math.isfinite(wide):
                expected = min(max(int(wide), limits.min), limits.max)
            else:
                expected = 0 if math.isnan(wide) else limits.max if wide > 0 else limits.min
            assert int(to_integer(np.asarray(value), DTYPES[integer].numpy)) == expected


@ways(FLOATS, ("f16", "f32", "f64"))
def test_floats_outside_of_an_integer_type(name, way):
    """As a declared result and as a cast; enough of them for vectors and for what is left over."""
    x = np.tile(edges(DTYPES[name]), 3)[:: 1 if way in ("cpu", "gpu") else 7]
    results = {f"y_{t}": f"{t}[N]" for t in (*INTEGERS, "bool")} | {f"z_{t}": "bool[N]" for t in ("u8", "i64")}
    body = "".join(f"y_{t}[i] = x[i]\n" for t in (*INTEGERS, "bool"))
    body += "z_u8[i] = u8(x[i]) == 255\nz_i64[i] = i64(x[i]) < 0\n"
    text = f"op f(x: {name}[N]) -> ({', '.join(f'{n}: {t}' for n, t in results.items())}) {{\n{body}}}"
    case = Case(text, {"N": len(x)}, {"x": x}, frozenset(results))
    check(case, way)
    special = specialised(case)
    assert all(np.array_equal(*enclose(special, case.inputs)[t.name]) for t in special.outputs)  # one value


def test_constants_are_converted_as_values_are():
    text = """op f() -> (a: i8, b: u8, c: i32, d: u64, e: u8, g: i64, h: u32) {
        a = i8(300.7)
        b = u8(-1.5)
        c = i32(1e20)
        d = u64(1e30)
        e = u8(f32(nan))
        g = i64(-inf)
        h = 3e9 + 2e9
    }"""
    expected = [127, 0, 2**31 - 1, 2**64 - 1, 0, -(2**63), 2**32 - 1]
    assert [int(v) for v in tilec.compile(text, target="cpu")()] == expected
    assert [int(v) for v in reference(text)()] == expected


def test_a_float_that_is_uncertain_gives_the_integers_that_it_may():
    """Saturated, too: the bounds of a conversion are not all of the type."""
    x = np.array([300.0, 2.5], np.float32)
    case = Case("op f(x: f32[N]) -> (y: u8[N]) { y[i] = exp(x[i]) }", {"N": 2}, {"x": x})
    found = enclose(specialised(case), case.inputs)["y"]
    assert found.low.tolist() == found.high.tolist() == [255, 12]
    assert compare(specialised(case), case.inputs, on_cpu(case, specialised(case)))["y"].unbounded == 0


def test_a_value_of_pad_is_computed_in_f32():
    """A declared type rounds, and `pad` declares none."""
    x = np.array([1, 2], DTYPES["f8e4m3"].numpy)
    text = """op f(x: f8e4m3[N]) -> (y: f32[N], z: f32[N], w: f32[N]) {
        y[i] = pad(x[i - 1], 0.3)
        z[i] = pad(x[i - 1], -inf)
        w[i] = pad(x[i - 1], 0.5)
    }"""
    for call in (tilec.compile(text, target="cpu"), reference(text)):
        found = [np.asarray(a, np.float32).tolist() for a in call(x)]
        assert found == [[np.float32(0.3), 1], [-math.inf, 1], [0.5, 1]]
