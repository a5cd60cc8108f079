"""Quick functions: where a rounding hides them and where not, and what they give for every 16-bit value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tools.lowering import lowered

from tilec.analysis import softmax_weights
from tilec.analysis.float_ranges import NEAR
from tilec.analysis.rules import NAMED
from tilec.core.coefficients import COS, LOG2_NEAR, SIN
from tilec.core.functions import HIDDEN

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "erf", "sigmoid",
    "gelu", "gelu_tanh", "silu", "softplus",
]  # fmt: skip


def planned(source: str, target: str = "h200"):
    _, result = lowered(source, target=target)
    return sorted(set(result.plan.approximations.values())), result


def elementwise(body: str, kind: str = "bf16", out: str | None = None) -> str:
    return f"op f(x: {kind}[64]) -> (y: {out or kind}[64]) {{ y[i] = {body} }}"


@pytest.mark.parametrize(
    ("body", "forms"),
    [
        ("exp(x[i])", ["exp"]),
        ("tanh(x[i]) * 3", ["tanh"]),
        ("tanh(x[i]) * x[i]", ["tanh"]),
        ("tanh(x[i]) * exp(x[i])", ["exp"]),  # a product shares the error, and tanh's form takes all of it
        ("-abs(sqrt(x[i]) * exp(x[i]))", ["exp", "sqrt"]),
        ("exp(x[i]) + sqrt(x[i])", ["exp", "sqrt"]),  # both positive: nothing cancels
        ("exp(x[i]) - sqrt(x[i])", []),
        ("exp(x[i]) - x[i]", []),
        ("cos(exp(x[i]))", ["cos_short"]),  # an error of the argument has an unbounded condition
        ("exp(tanh(x[i]))", ["exp", "tanh_absolute"]),
        ("exp(20 * tanh(x[i] / 20))", ["divide_rounded", "exp", "tanh_absolute"]),
        ("exp(1000 * tanh(x[i]))", ["exp"]),
        ("gelu(x[i])", ["one_plus_erf"]),
        ("gelu_tanh(x[i])", ["one_plus_tanh"]),
        ("silu(x[i])", ["sigmoid"]),
        ("softplus(x[i])", ["exp", "log1p_of_share"]),
        ("log1p(x[i])", ["log1p"]),
        ("erf(x[i])", ["erf"]),
        ("expm1(x[i]) * 2", ["expm1"]),
        ("log(x[i])", ["log"]),
        ("log(x[i] * 3)", []),  # no longer a bf16: as near to 1 as an f32 can be
        ("x[i] ** 1.7", ["power"]),
        ("x[i] ** 7", []),  # of a negative number a sign would be due
        ("abs(x[i]) ** x[i]", ["power"]),
        ("x[i] / 3", ["divide_shared"]),
        ("3 / x[i]", ["divide"]),
        ("gelu(x[i]) / 3", ["divide_shared", "one_plus_erf"]),
        ("sin(x[i])", ["sin_short"]),
        ("cos(cos(x[i]))", ["cos_absolute", "cos_nearly"]),
        ("sin(sin(x[i]))", ["sin_nearly", "sin_short"]),  # near 0 the outer one is its argument
        ("exp(3 * cos(x[i]))", ["cos_absolute", "exp"]),
        ("exp(cos(x[i]) + sin(x[i]))", ["cos_absolute", "exp", "sin_absolute"]),
        ("cos(cos(x[i])) - x[i]", ["cos_near"]),
        ("sigmoid(x[i]) - x[i]", ["sigmoid_rounded"]),
        ("1 if exp(x[i]) > 2 else 0", []),
    ],
)
def test_what_rounding_hides(body, forms):
    found, lowered = planned(elementwise(body))
    assert found == forms
    remarks = [r for r in lowered.plan.remarks if r.verb == "approximated"]
    assert bool(remarks) == bool(forms)
    assert {f for f in planned(elementwise(body, out="f32"))[0] if NAMED[f].error} == set()
    near = {form.replace("nearly", "near") for form in forms if "near" in form}
    assert {*planned(elementwise(body), "cpu")[0]} - {"exp_below"} == near  # a CPU takes the forms that add no error


def test_f16_hides_less_than_bf16():
    assert planned(elementwise("tanh(x[i])", "f16"))[0] == []
    assert planned(elementwise("log(x[i])", "f16"))[0] == []
    assert planned(elementwise("exp(x[i])", "f16"))[0] == ["exp"]


def test_reductions_and_second_readers_keep_all_bits():
    both = "op f(x: bf16[8, 8]) -> (y: bf16[8, 8], s: f32[8]) { e[i, j] = exp(x[i, j]) y[i, j] = e[i, j] s[i] = sum[j](e[i, j]) }"
    assert planned(both)[0] == []
    alone = "op f(x: bf16[8, 8]) -> (y: bf16[8, 8]) { e[i, j] = exp(x[i, j]) y[i, j] = e[i, j] * 2 }"
    assert planned(alone)[0] == ["exp"]


@pytest.mark.parametrize(
    ("largest", "weight", "division"),
    [
        ("max[j](x[i, j])", "exp(x[i, j] - m[i])", "divide_weights"),
        ("max[j](x[i, j])", "exp(x[i, j])", "divide_shared"),  # not from the maximum
        ("max[j](x[i, j])", "exp(m[i] - x[i, j])", "divide_shared"),
        ("max[j](x[i, j] * 2)", "exp(x[i, j] - m[i])", "divide_shared"),  # of something else
        ("min[j](x[i, j])", "exp(x[i, j] - m[i])", "divide_shared"),
        ("max[j](x[i, j])", "exp(x[i, j] - m[i]) * 2", "divide_shared"),
    ],
)
@pytest.mark.parametrize("n", [64, 16384])  # the weight inlined, and not
def test_sums_of_weights_are_divisors_without_extremes(largest, weight, division, n):
    source = f"""op f(x: bf16[300, {n}]) -> (y: bf16[300, {n}]) {{
        m[i] = {largest}  e[i, j] = {weight}  s[i] = sum[j](e[i, j])  y[i, j] = e[i, j] / s[i] }}"""
    assert [q for q in planned(source)[0] if q.startswith("divide")] == [division]


ENDS = np.array(
    [0, 1, 3, 2.0**-149, 2.0**-127, 2.0**-126, 2.0**-64, 2.0**-63, 2.0**100, 2.0**127, 3.4028235e38, np.inf, np.nan], np.float32
)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_quotients_by_a_divisor_of_many_are_rounded_correctly(kind, rng):
    """But for those below 2^-126, which are rounded twice. Zeros have their sign."""
    import torch

    import tilec

    bits = rng.integers(0, 2**32, 60000, dtype=np.uint32).view(np.float32)
    divisors = np.concatenate([ENDS, -ENDS, bits[:400], rng.uniform(1, 2, 100).astype(np.float32)])
    x = np.tile(np.concatenate([ENDS, -ENDS, bits[400:5400]]), (divisors.size, 1))
    x = np.concatenate([x, divisors[:, None] * np.arange(1, 50, dtype=np.float32)], axis=1)  # whole quotients
    given = [torch.from_numpy(v).cuda().to(torch.bfloat16 if kind == "bf16" else torch.float32) for v in (x, divisors)]
    op = tilec.compile(f"op f(x: {kind}[N, M], d: {kind}[N]) -> (y: f32[N, M]) {{ y[i, j] = x[i, j] / d[i] }}")
    got = op(*given).cpu().numpy()
    x, d = (v.float().cpu().numpy() for v in given)
    want = x / d[:, None]
    same = (got.view(np.int32) == want.view(np.int32)) | (np.isnan(got) & np.isnan(want))
    tiny = np.abs(want) < 2.0**-126
    assert np.all(same | tiny)
    assert np.max(np.abs(got.astype(np.float64) - want)[tiny]) <= 2.0**-149


def test_a_divisor_of_many_has_no_branch():
    """Whether it is a dimension's, a constant or one element; another divisor keeps the division of PTX."""
    source = "op f(x: f32[64, 64], d: f32[64], s: bf16[1]) -> (y: f32[64, 64]) {{ y[i, j] = x[i, j] / {} }}"
    for divisor in ("d[i]", "3", "s[0]", "sqrt(d[i])"):
        forms, result = planned(source.format(divisor))
        assert "divide_rounded" in forms and "divide_rounded_f32(" in result.emitted.module
    assert planned(source.format("d[j]"))[0] == []


def f32(x) -> np.ndarray:
    return np.asarray(x, np.float32)


def polynomial(x: np.ndarray, coefficients) -> np.ndarray:
    """By fused multiply-adds of f32: each rounded once from f64."""
    value = f32(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = f32(value.astype(np.float64) * x + np.float64(f32(c)))
    return value


@pytest.mark.parametrize("form", ["near", "nearly"])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_forms_near_zero(name, form):
    x = np.concatenate([np.linspace(2.0**-20, NEAR, 1 << 20), 2.0 ** -np.arange(0, 120, 0.01)]).astype(np.float32)
    found = polynomial(f32(x * x), {"sin": SIN, "cos": COS}[name][form])
    found = f32(x * found) if name == "sin" else found
    want = getattr(np, name)(x.astype(np.float64))
    error = np.max(np.abs(found - want) / want)
    assert error <= max(NAMED[f"{name}_{form}"].error, 2.1 * 2.0**-24)
    assert np.max(np.abs(found)) <= NEAR


@pytest.mark.parametrize("sign", [-1, 1])
def test_powers(sign):
    """Errors of the two instructions at their documented most, in one direction or the other, on every bf16 against others."""
    x = np.abs(np.arange(1, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32))
    for y in (0.3, 1.7, -2.5, 17.25, -300.0, 20000.0):
        beside = f32(x - f32(1))
        near = f32(polynomial(np.minimum(beside, 1), LOG2_NEAR) * beside)
        exact = np.log2(x.astype(np.float64))
        error = np.where((x > 0.5) & (x < 2), 2.0**-22, 2.0**-22 * np.abs(exact))
        half = np.where(np.abs(beside) < 0.125, near, f32((exact + sign * error) / 2))
        with np.errstate(over="ignore"):
            root = f32(np.exp2(f32(half * f32(y)).astype(np.float64)) * (1 + sign * 2.0**-22))
            found, want = f32(root * root), np.float64(x) ** np.float64(f32(y))
        inside = (want > 2.0**-126) & (want < 2.0**127)
        assert np.max(np.abs(found[inside] / want[inside] - 1)) <= NAMED["power"].error


# ---- values ----------------------------------------------------------------------------------------------------------


def every(kind: str) -> np.ndarray:
    return np.arange(65536, dtype=np.uint16).view(TYPES[kind])


def units(got: np.ndarray, want: np.ndarray, kind: str) -> np.ndarray:
    """Errors in units in the last place of the type, in which infinity is one unit past the largest value; inf where NaN
    is missing or not due."""
    dtype, info = TYPES[kind], ml_dtypes.finfo(TYPES[kind])
    last = float(info.max) - float(np.nextafter(info.max, dtype(0)))
    got, want = (np.clip(v.astype(np.float64), -float(info.max) - last, float(info.max) + last) for v in (got, want))
    _, exponent = np.frexp(want)
    unit = np.minimum(np.ldexp(1.0, np.maximum(exponent - 1, info.minexp) - info.nmant), last)
    error = np.where(np.isnan(got) == np.isnan(want), np.abs(got - want) / unit, np.inf)
    return np.nan_to_num(error, nan=0.0, posinf=np.inf)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind", TYPES)
def test_units_of_roundings(kind):
    x = np.concatenate(
        [every(kind).astype(np.float64), [1e300, -1e300, float(ml_dtypes.finfo(TYPES[kind]).max) * 1.001]]
    )
    with np.errstate(all="ignore"):
        for factor in (1, 1.001, 3.14159):
            assert np.max(units((x * factor).astype(TYPES[kind]), x * factor, kind)) <= 0.5
    assert np.max(units(np.array([1.0], TYPES[kind]), np.array([1.25]), kind)) > 0.5


def wanted(name: str, x: np.ndarray) -> np.ndarray:
    """The exact values of a function and of the compositions in `std.tile`, in f64 and without cancellation."""
    import math

    from tilec.core.functions import FUNCTIONS

    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    with np.errstate(all="ignore"):
        logistic = lambda v: np.where(v < 0, np.exp(np.minimum(v, 0)), 1) / (1 + np.exp(-np.abs(v)))  # noqa: E731
        match name:
            case "gelu":
                return 0.5 * x * erfc(-x * 0.7071067811865476)
            case "gelu_tanh":
                return x * logistic(2 * 0.7978845608028654 * (x + 0.044715 * x**3))
            case "silu":
                return x * logistic(x)
            case "softplus":
                return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
        return FUNCTIONS[name].reference(x)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", UNARY)
def test_every_16_bit_value(name, kind):
    import torch

    import tilec

    if (name, kind) == ("gelu", "f16"):
        pytest.skip("1 + erf(x) cancels in f32: f16 hides too little for the form that does not")
    x = every(kind)
    op = tilec.compile(f"op f(x: {kind}[N]) -> (y: {kind}[N]) {{ y[i] = {name}(x[i]) }}")
    device = torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16 if kind == "bf16" else torch.float16)
    got = op(device).view(torch.int16).cpu().numpy().view(TYPES[kind])
    error = units(got, wanted(name, x.astype(np.float64)), kind)
    slack = {"gelu": 2.0**-6, "gelu_tanh": 2.0**-6}.get(name, 0.0)  # of the f32 steps before the quick function
    worst = np.argmax(error)
    assert error[worst] <= 0.5 + HIDDEN[kind] * 2 ** ml_dtypes.finfo(TYPES[kind]).nmant * 2 + slack, (
        x[worst],
        got[worst],
    )


SUMS = {  # a sum, whether its terms are weights
    "m[i] = max[j](x[i, j])  y[i] = sum[j](exp(x[i, j] - m[i]))": True,
    "y[i] = logsumexp[j](x[i, j])": True,
    "m = max[i, j](x[i, j])  y[i] = sum[j](exp(x[i, j] - m))": False,  # of a row far below the largest they all are small
    "m[i] = max[j](x[i, j])  y[i] = sum[j](exp(x[i, j] + m[i]))": False,
    "m[i] = min[j](x[i, j])  y[i] = sum[j](exp(x[i, j] - m[i]))": False,
    "m[i] = max[j](2 * x[i, j])  y[i] = sum[j](exp(x[i, j] - m[i]))": False,
    "m[i] = max[j](x[i, j])  y[i] = max[j](exp(x[i, j] - m[i]))": False,
    "m[i] = max[j](x[i, j])  y[i] = sum[j](x[i, j] * exp(x[i, j] - m[i]))": False,
    "m[i] = max[j](x[i, j])  e[i, j] = exp(x[i, j] - m[i])  y[i] = sum[j](e[i, j]) * e[i, 0]": False,
}


@pytest.mark.parametrize("body", SUMS)
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_terms_that_are_weights(body, kind):
    source = "op f(x: {}[4, {}]) -> (y: f32[4]) {{ {} }}"
    assert planned(source.format(kind, 256, body))[0] == ["exp_weight"] * SUMS[body]
    assert planned(source.format(kind, 255, body))[0] == []  # too few to hide what they err by
    assert planned(source.format(kind, 256, body), "cpu")[0] in ([], ["exp_below"])


@pytest.mark.parametrize("count", [softmax_weights.LEAST, 4096, 2**20])
@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0, 100.0])
def test_a_sum_of_weights_errs_by_less_than_it_is_held_to(count, spread, rng):
    """With the product rounded to f32 and an instruction that errs by 2^-22 in one direction, the worst there is."""
    x = f32(rng.normal(0, spread, count))
    for row in (x, np.where(np.arange(count) == 0, f32(0), f32(-np.log(count)))):
        apart = row - row.max()
        exact = np.exp(apart.astype(np.float64)).sum()
        powers = np.exp2(f32(apart * f32(np.log2(np.e))).astype(np.float64))
        powers[powers < 2.0**-126] = 0
        for least in (1 - 2.0**-22, 1 + 2.0**-22):
            assert abs((powers * least).sum() / exact - 1) <= min(softmax_weights.ERROR, count * 2.0**-24 / 8)
