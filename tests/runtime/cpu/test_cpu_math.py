"""The CPU's functions: within their documented bounds, right at special values, and vectorised in loops."""

from __future__ import annotations

import math
from functools import cache

import ml_dtypes
import numba
import numpy as np
import pytest

import tilec
from tilec.core.dtypes import F32
from tilec.core.functions import FUNCTIONS, POWER
from tilec.runtime.cpu import intrinsics
from tilec.runtime.cpu import math as cpu_math
from tilec.runtime.cpu.math_trig import CODY_WAITE_LIMIT
from tilec.semantics.comparison import compare_array
from tilec.semantics.interval_reductions import Total, reduce
from tilec.semantics.intervals import point

POLYNOMIALS = [name for name, row in FUNCTIONS.items() if row.ulp.f32 > 0 and row.cpu and 1 in row.arity]
BY_MPMATH = ("erf", "erfc")  # long double has none
QUICK = ["sin_approx", "cos_approx", "tan_approx"]
TYPES = [np.float32, np.float64]
INF, NAN = math.inf, math.nan


@cache
def loop(name: str, result: type | None = None):
    """A compiled elementwise loop over an intrinsic."""
    function = getattr(cpu_math, name, None) or getattr(intrinsics, name)

    @numba.njit
    def one(x, out):
        for i in range(len(x)):
            out[i] = function(x[i])

    @numba.njit
    def two(x, y, out):
        for i in range(len(x)):
            out[i] = function(x[i], y[i])

    def run(*arrays):
        out = np.empty(arrays[0].shape, result or arrays[0].dtype)
        (one if len(arrays) == 1 else two)(*arrays, out)
        return out

    run.compiled = one
    return run


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """The function to more digits than x has: in f64 for f32, in long double for f64."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    name = {"round_even": "round"}.get(name, name.removesuffix("_approx"))
    with np.errstate(all="ignore"):
        if name in BY_MPMATH and wide is np.longdouble:
            mpmath = pytest.importorskip("mpmath")
            with mpmath.workprec(90):
                numbers = map(float, np.clip(x, -200, 200))  # beyond, nothing changes, and mpmath cannot count its terms
                return np.array([wide(mpmath.nstr(getattr(mpmath, name)(v), 25)) for v in numbers])
        return np.asarray(FUNCTIONS[name].reference(x.astype(wide)))


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distances in units in the last place of the wanted values; inf where only one of the two is NaN or infinite."""
    with np.errstate(all="ignore"):
        near = want.astype(got.dtype)
        error = np.abs(got.astype(want.dtype) - want) / np.abs(np.spacing(near)).astype(want.dtype)
        next_to_inf = np.isinf(near) != np.isinf(got)
    error = np.where(np.isfinite(near) & np.isfinite(got), error, INF)
    same = (got == near) & ~np.isfinite(near) | (np.isnan(got) & np.isnan(near))
    largest = np.finfo(got.dtype).max
    error = np.where(next_to_inf & (np.minimum(np.abs(got), np.abs(near)) == largest), 1, error)
    return np.where(same, 0, error)


def samples(dtype: type, count: int) -> np.ndarray:
    """All exponents, the ranges where the functions live, and the neighbourhoods of 1 and of multiples of pi / 2."""
    rng = np.random.default_rng(7)
    word = np.uint32 if dtype is np.float32 else np.uint64
    parts = [
        rng.integers(0, np.iinfo(word).max, count, dtype=word).view(dtype),
        rng.standard_normal(count), 20 * rng.standard_normal(count), 1 + rng.standard_normal(count) / 100,
        rng.uniform(-110, 110, count), rng.uniform(-760, 760, count), rng.uniform(-1e5, 1e5, count),
        np.arange(-3000, 3000) * np.pi / 2, [0.0, -0.0, 1, -1, 0.5, INF, -INF, NAN],
    ]  # fmt: skip
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.concatenate(parts).astype(dtype)


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [*POLYNOMIALS, *QUICK])
def test_documented_bound(name, dtype):
    if dtype is np.float64 and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("needs an 80-bit long double")
    x = samples(dtype, 400_000 if dtype is np.float32 else 2_000 if name in BY_MPMATH else 30_000)
    if name in QUICK:
        x = x[~(np.abs(x) > CODY_WAITE_LIMIT["f32" if dtype is np.float32 else "f64"])]
    error = ulps(loop(name)(x), exact(name, x))
    worst = np.argmax(error)
    bound = FUNCTIONS[name.removesuffix("_approx")].ulp
    assert error[worst] <= (bound.f32 if dtype is np.float32 else bound.f64), x[worst]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("exp", [0.0, -INF, INF, 1000, -1000], [1, 0, INF, INF, 0]),
        ("exp2", [-1.0, 10, 0, 2000, -2000, INF, -INF], [0.5, 1024, 1, INF, 0, INF, 0]),
        ("expm1", [0.0, -0.0, INF, -INF], [0, -0.0, INF, -1]),
        ("log", [1.0, 0, -0.0, -1, INF, -INF], [0, -INF, -INF, NAN, INF, NAN]),
        ("log2", [8.0, 0.25, 0, -1, INF], [3, -2, -INF, NAN, INF]),
        ("log1p", [0.0, -0.0, -1, -2, INF], [0, -0.0, -INF, NAN, INF]),
        ("sqrt", [-0.0, 4, -1, INF], [-0.0, 2, NAN, INF]),
        ("rsqrt", [0.0, -0.0, 4, -1, INF], [INF, -INF, 0.5, NAN, 0]),
        ("sin", [0.0, -0.0, INF, -INF], [0, -0.0, NAN, NAN]),
        ("cos", [0.0, -0.0, INF, -INF], [1, 1, NAN, NAN]),
        ("tan", [0.0, -0.0, INF, -INF], [0, -0.0, NAN, NAN]),
        ("sin_approx", [0.0, -0.0, INF], [0, -0.0, NAN]),
        ("tanh", [0.0, -0.0, INF, -INF], [0, -0.0, 1, -1]),
        ("erf", [0.0, -0.0, INF, -INF], [0, -0.0, 1, -1]),
        ("erfc", [0.0, -0.0, INF, -INF, 30, -30], [1, 1, 0, 2, 0, 2]),
        ("asin", [0.0, -0.0, 2, -INF], [0, -0.0, NAN, NAN]),
        ("acos", [1.0, 2, -INF], [0, NAN, NAN]),
        ("atan", [0.0, -0.0], [0, -0.0]),
        ("sinh", [0.0, -0.0, INF, -INF, 1000, -1000], [0, -0.0, INF, -INF, INF, -INF]),
        ("cosh", [0.0, -0.0, INF, -INF, 1000], [1, 1, INF, INF, INF]),
        ("asinh", [0.0, -0.0, INF, -INF], [0, -0.0, INF, -INF]),
        ("acosh", [1.0, 0.5, -1e10, INF, -INF], [0, NAN, NAN, INF, NAN]),
        ("atanh", [0.0, -0.0, 1, -1, 1.5, INF], [0, -0.0, INF, -INF, NAN, NAN]),
        ("trunc", [-0.5, 0.5, -1.5, 1.5, INF], [-0.0, 0, -1, 1, INF]),
        ("round_even", [0.5, 1.5, 2.5, -0.5, INF], [0, 2, 2, -0.0, INF]),
        ("floor", [-0.5, 1.5], [-1, 1]),
        ("ceil", [-0.5, 1.5], [-0.0, 2]),
        ("absolute", [-0.0, -2], [0, 2]),
    ],
)
def test_special_values(name, x, want, dtype):
    got = loop(name)(np.array([*x, NAN], dtype))
    np.testing.assert_array_equal(got, np.array([*want, NAN], dtype))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[:-1])[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("dtype", TYPES)
def test_exp_below_is_exp(dtype):
    x = np.concatenate([-np.abs(samples(dtype, 40_000)), [0.0, -0.0, -INF, NAN]]).astype(dtype)
    np.testing.assert_array_equal(loop("exp_below")(x), loop("exp")(x))


@pytest.mark.parametrize("dtype", TYPES)
def test_odd_functions_of_tiny_arguments(dtype):
    tiny = np.array([np.finfo(dtype).smallest_subnormal, np.finfo(dtype).tiny], dtype)
    for name in ("log1p", "sin", "tan", "tanh", "sinh", "asin", "atan", "asinh", "atanh"):
        np.testing.assert_array_equal(loop(name)(tiny), tiny)


# ---- angles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_atan2(dtype):
    rng = np.random.default_rng(5)
    y, x = (samples(dtype, 40_000) for _ in range(2))
    x = rng.permutation(x)
    y[::3] = (x[::3] * np.exp(rng.standard_normal(len(y[::3])))).astype(dtype)
    with np.errstate(all="ignore"):
        want = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    bound = FUNCTIONS["atan2"].ulp
    assert np.max(ulps(loop("atan2")(y, x), want)) <= (bound.f32 if dtype is np.float32 else bound.f64)


@pytest.mark.parametrize("dtype", TYPES)
def test_two_arguments_at_the_ends(dtype):
    values = np.array([0.0, -0.0, 1, -1, 2.5, -2.5, INF, -INF, NAN, 1e30, -1e-30, np.finfo(dtype).smallest_subnormal], dtype)
    x, y = (v.ravel().copy() for v in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        for name, reference in (("atan2", np.arctan2), ("copysign", np.copysign)):
            got, want = loop(name)(y, x), reference(y.astype(np.longdouble), x.astype(np.longdouble))
            assert np.max(ulps(got, want)) <= FUNCTIONS[name].ulp.f32
            assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


# ---- powers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_pow(dtype):
    rng = np.random.default_rng(3)
    x = np.exp(rng.uniform(-80, 80, 40_000)).astype(dtype)
    x[::2] = np.exp(rng.uniform(-1, 1, 20_000))
    limit = 87 if dtype is np.float32 else 700
    y = (rng.uniform(-limit, limit, 40_000) / np.log(x.astype(float))).astype(dtype)
    got = loop("pow")(x, y)
    if dtype is np.float32:
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    else:
        mpmath = pytest.importorskip("mpmath")
        x, y, got = x[:4000], y[:4000], got[:4000]
        with mpmath.workprec(150):
            want = np.array([np.longdouble(mpmath.nstr(mpmath.power(float(a), float(b)), 25)) for a, b in zip(x, y)])
    assert np.max(ulps(got, want)) <= (POWER.ulp.f32 if dtype is np.float32 else POWER.ulp.f64)


@pytest.mark.parametrize("dtype", TYPES)
def test_pow_special_values(dtype):
    values = [0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, INF, -INF, NAN, 1e30, -1e30, 1e-30, 1.5, -1.5]
    for x in np.array(values, dtype):
        for y in np.array(values, dtype):
            got = loop("pow")(np.array([x]), np.array([y]))[0]
            with np.errstate(over="ignore"):
                want = dtype(_c_pow(float(x), float(y)))
            assert ulps(np.array([got]), np.array([want])) <= (
                POWER.ulp.f32 if dtype is np.float32 else POWER.ulp.f64 + 1
            )
            assert np.isnan(want) or np.signbit(got) == np.signbit(want), (x, y)


def _c_pow(x: float, y: float) -> float:
    """math.pow with C99's values where Python raises."""
    odd = y == round(y) and y % 2 == 1 if math.isfinite(y) else False
    try:
        return math.pow(x, y)
    except OverflowError:
        return -INF if x < 0 and odd else INF
    except ValueError:
        return NAN if x != 0 else math.copysign(INF, x) if odd else INF


# ---- loops vectorise -------------------------------------------------------------------------------------------------


def _vectorised(dispatcher) -> bool:
    """Whether arithmetic on whole vectors of floats occurs; scalar instructions end in `ss` and `sd`."""
    (text,) = dispatcher.inspect_asm().values()
    words = text.split()
    return any(w.startswith("v") and w.endswith(("ps", "pd")) and "mov" not in w for w in words)


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [*POLYNOMIALS, *QUICK, "round_even", "floor"])
def test_loops_over_pointers_vectorise(name, dtype):
    function = getattr(cpu_math, name)
    pointer = intrinsics.f32_pointer if dtype is np.float32 else intrinsics.f64_pointer

    @numba.njit
    def kernel(args):
        x = pointer(args[0])
        y = pointer(args[1])
        for i in range(1000):
            y[i] = function(x[i])

    x = np.random.default_rng(0).uniform(0.1, 2, 1000).astype(dtype)
    y = np.zeros_like(x)
    kernel(np.array([x.ctypes.data, y.ctypes.data]))
    np.testing.assert_array_equal(y, loop(name)(x))  # whose bound is tested above
    assert _vectorised(kernel)


@pytest.mark.parametrize(
    ("combine", "kind", "first"),
    [("reassoc_add", "sum", 0.0), ("reassoc_mul", "prod", 1.0), ("maximum", "max", -INF), ("minimum", "min", INF)],
)
def test_reductions_vectorise(combine, kind, first):
    function, f32_pointer = getattr(intrinsics, combine), intrinsics.f32_pointer

    @numba.njit
    def kernel(address, n):
        x = f32_pointer(address)
        total = np.float32(first)
        for i in range(n):
            total = function(total, x[i])
        return total

    x = np.random.default_rng(0).uniform(0.5, 1.5, 1001).astype(np.float32)
    allowed = reduce(kind, point(x.astype(np.float64)), Total.reduction(x.shape, (0,)), F32)
    assert compare_array(np.array([kernel(x.ctypes.data, 1001)]), allowed).within
    assert _vectorised(kernel)
    if combine in ("maximum", "minimum"):
        x[500] = NAN
        assert np.isnan(kernel(x.ctypes.data, 1001))


# ---- intrinsics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", *(f"{s}{b}" for s in "iu" for b in (8, 16, 32, 64)), "f32", "f64"])
def test_pointers_load_and_store(name):
    pointer = getattr(intrinsics, f"{name}_pointer")

    @numba.njit
    def copy(source, target, n):
        x, y = pointer(source), pointer(target)
        for i in range(-1, n - 1):
            y[i] = x[i]

    dtype = np.dtype(numba.np.numpy_support.as_dtype(intrinsics._POINTED[name]))
    x = np.array([0, 1, 1, 0, 1] if name == "bool" else [0, 1, 100, 3, 127], dtype)
    y = np.zeros_like(x)
    copy(x.ctypes.data + dtype.itemsize, y.ctypes.data + dtype.itemsize, 5)
    np.testing.assert_array_equal(x, y)


NARROW = {
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "f16": (np.float16, np.uint16),
    "f8e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "f8e5m2": (ml_dtypes.float8_e5m2, np.uint8),
}


@pytest.mark.parametrize("name", NARROW)
def test_narrow_floats_agree_with_ml_dtypes(name):
    dtype, word = NARROW[name]
    patterns = np.arange(np.iinfo(word).max + 1).astype(word)
    decoded = loop(f"f32_from_{name}", np.float32)(patterns)
    np.testing.assert_array_equal(decoded, patterns.view(dtype).astype(np.float32))
    known = np.sort(decoded[np.isfinite(decoded)])
    between = ((known[1:].astype(float) + known[:-1]) / 2).astype(np.float32)
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = [np.nextafter(between, np.float32(s * INF)) for s in (1, -1)]
    special = np.array([INF, -INF, NAN, 448, 464, 465, 480, 57344, 61439.9, 61440, 65519, 65520, 1e38], np.float32)
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0xFFFF8000], np.uint32).view(np.float32)
    x = np.concatenate([known, between, *near, anything, special, nans])
    with np.errstate(all="ignore"):
        want = x.astype(dtype)
    got = loop(f"{name}_from_f32", word)(x)
    finite = ~np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(got[finite], want.view(word)[finite])
    assert np.isnan(got.view(dtype).astype(np.float32)[~finite]).all()


def test_a_bf16_that_went_through_f32_needs_no_rounding():
    patterns = np.arange(1 << 16).astype(np.uint16)
    np.testing.assert_array_equal(
        loop("bf16_from_exact", np.uint16)(loop("f32_from_bf16", np.float32)(patterns)), patterns
    )


def test_floor_division():
    values = np.array([-7, -6, -1, 1, 2, 6, 7, 2**40])
    a, b = (m.ravel().copy() for m in np.meshgrid(values, values))
    np.testing.assert_array_equal(loop("floor_divide")(a, b), a // b)
    np.testing.assert_array_equal(loop("floor_modulo")(a, b), a % b)
    a, b = np.array([200, 7], np.uint8), np.array([7, 200], np.uint8)
    np.testing.assert_array_equal(loop("floor_divide")(a, b), a // b)


def test_integer_powers():
    a, b = np.array([3, -2, 2, 1, -1, 7, 0]), np.array([70, 5, -1, -4, -3, 0, 0])
    np.testing.assert_array_equal(loop("ipow")(a, b), [int(np.int64(3) ** np.int64(70)), -32, 0, 1, -1, 1, 1])


def test_select_and_fma():
    select, fma, fmod = intrinsics.select, intrinsics.fma, intrinsics.fmod

    @numba.njit
    def both(a, b):
        return select(a < b, a, b), fma(a, a, -(a * a)), fmod(-b, a)

    smaller, error, rest = both(1 + 2.0**-30, 5.5)
    assert (smaller, error) == (1 + 2.0**-30, 2.0**-60)
    assert rest == math.fmod(-5.5, 1 + 2.0**-30)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_argument_beyond_the_quick_forms_takes_the_full_ones(dtype):
    limit = dtype(CODY_WAITE_LIMIT["f32" if dtype is np.float32 else "f64"])
    op = tilec.compile("y[i, j] = cos(x[i, j])", target="cpu")
    for large in (limit, np.nextafter(limit, dtype(INF)), -2 * limit, dtype(1e30), dtype(NAN), dtype(INF)):
        x = np.linspace(-9, 9, 200, dtype=dtype).reshape(2, 100)
        x[1, 70] = large
        np.testing.assert_array_equal(op(x).ravel(), loop("cos")(x.ravel()))
