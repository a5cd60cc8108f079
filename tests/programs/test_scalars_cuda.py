"""Every operator, cast and reduction of every type at the ends of what the type holds, as CUDA kernels.

Numba-CUDA's own ideas of integers (what is signed, what wraps, what a comparison of NaN gives) show on a GPU only.
"""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.compare import check, expect, on_emulator, on_gpu, specialised
from fuzz.programs import Case

from tilec.core.dtypes import DTYPES
from tilec.core.functions import FUNCTIONS

WAYS = pytest.mark.parametrize("way", ["emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
INTEGERS = [n for n, t in DTYPES.items() if t.kind in ("int", "uint")]
FLOATS = [n for n, t in DTYPES.items() if t.is_float]
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
BINARY = {"add": "x[i] + z[i]", "sub": "x[i] - z[i]", "mul": "x[i] * z[i]", "low": "min(x[i], z[i])",
          "high": "max(x[i], z[i])", "inside": "clamp(x[i], z[i], x[0])", "neg": "-x[i]", "size": "abs(x[i])",
          "quo": "x[i] // z[i]", "rem": "x[i] % z[i]", "rest": "fmod(x[i], z[i])",
          "sign": "sign(x[i])", "square": "x[i] ** 2"}  # fmt: skip


BITS = {"both": "x[i] & z[i]", "either": "x[i] | z[i]", "one": "x[i] ^ z[i]", "other": "~x[i]", "up": "x[i] << z[i]",
        "down": "x[i] >> z[i]", "far_up": "x[i] << 3", "far_down": "x[i] >> 3", "beyond": "x[i] >> 64", "gone": "x[i] << 64"}


def of_pairs(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    x, z = np.meshgrid(values, values, indexing="ij")
    return {"x": np.ascontiguousarray(x).reshape(-1), "z": np.ascontiguousarray(z).reshape(-1)}


def run(name: str, results: dict[str, tuple[str, str]], inputs: dict[str, np.ndarray], way: str) -> None:
    """`results` are types (with dimensions) and expressions by name."""
    outputs = ", ".join(f"{n}: {declared}" for n, (declared, _) in results.items())
    body = "\n".join(
        f"    {n}{'[i]' if declared.endswith('[N]') else ''} = {text}" for n, (declared, text) in results.items()
    )
    program = f"op f({', '.join(f'{n}: {name}[N]' for n in inputs)}) -> ({outputs}) {{\n{body}\n}}"
    exact = frozenset(results) if name not in FLOATS else frozenset()
    check(Case(program, {"N": len(inputs["x"])}, inputs, exact), way)


@WAYS
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_integers(name, way):
    kind = DTYPES[name].numpy
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    values = np.array([low, low + 1, 0, 1, 2, 7, high // 2 + 1, high - 1, high, *([-1, -7] if low else [3])], kind)
    results = {n: (f"{name}[N]", text) for n, text in BINARY.items()}
    results |= {n: ("bool[N]", f"x[i] {sign} z[i]") for n, sign in COMPARISONS.items()}
    run(name, results, of_pairs(name, values), way)


@WAYS
@pytest.mark.parametrize("name", INTEGERS)
def test_bits_of_integers(name, way):
    kind = DTYPES[name]
    low, high = np.iinfo(kind.numpy).min, np.iinfo(kind.numpy).max
    ends = [low, low + 1, 0, 1, 5, kind.bits - 1, kind.bits, kind.bits + 1, high // 3, high, *([-1, -kind.bits] if low else [])]
    texts = {n: text for n, text in BITS.items() if "64" not in text or kind.bits == 64}
    run(name, {n: (f"{name}[N]", text) for n, text in texts.items()}, of_pairs(name, np.array(ends, kind.numpy)), way)


@WAYS
def test_bits_of_bools(way):
    texts = ("x[i] & z[i]", "x[i] | z[i]", "x[i] ^ z[i]", "~x[i]")
    run("bool", {f"y{n}": ("bool[N]", text) for n, text in enumerate(texts)}, of_pairs("bool", np.array([False, True])), way)


@WAYS
def test_parts_of_a_wide_product(way):
    """A product of two words is one instruction, and so is its lower word; what is narrower is less than that word."""
    values = np.array([0, 1, 2, 255, 0x8001, 0xFFFF, 0x12345, 2**31, 2**32 - 1], np.uint32)
    results = {f"as_{t}": ("f64[N]", f"f64({t}(u64(x[i]) * u64(z[i])))") for t in INTEGERS}
    results |= {"high": ("u64[N]", "u64(x[i]) * u64(z[i]) // u64(4294967296)")}
    run("u32", results, of_pairs("u32", values), way)


@WAYS
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_made_of_indices_without_a_sign(way):
    """An index less than 0 is a large number there, and what is made of it, too."""
    low = "(u64(i) - u64(5))"
    results = {
        "quotient": ("i64[N]", f"i64({low} // u64(1000)) // 7 + i64(x[i])"),
        "remainder": ("u64[N]", f"{low} % u64(1000) % u64(7)"),
        "extreme": ("i64[N]", f"i64(max({low}, u64(3)) // u64(2)) // 7"),
        "less": ("bool[N]", f"{low} // u64(3) < u64(9)"),
    }
    run("u64", results, {"x": np.arange(100, dtype=np.uint64)}, way)


@WAYS
@pytest.mark.parametrize("name", INTEGERS)
def test_casts_and_reductions_of_integers(name, way):
    kind = DTYPES[name].numpy
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    values = np.array([low, low + 1, 0, 1, 2, 7, high // 2 + 1, high - 1, high] * 4, kind)
    results = {f"as_{t}": (f"{t}[N]", f"{t}(x[i])") for t in (*INTEGERS, "f32", "f64", "bool")}
    results |= {"least": (name, "min[i](x[i])"), "most": (name, "max[i](x[i])"), "total": (name, "sum[i](x[i])"),
                "product": (name, "prod[i](x[i])"), "where_most": ("i64", "argmax[i](x[i])"),
                "where_least": ("i64", "argmin[i](x[i])"), "so_far": (f"{name}[N]", "cummax[i](x[i])"),
                "sums": (f"{name}[N]", "cumsum[i](x[i])"), "down": (f"{name}[N]", "cummin[i](x[i])")}  # fmt: skip
    run(name, results, {"x": values}, way)


@WAYS
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats(name, way):
    import ml_dtypes

    kind, info = DTYPES[name].numpy, ml_dtypes.finfo(DTYPES[name].numpy)
    most, least = float(info.max), float(info.smallest_subnormal)
    wide = [0.0, -0.0, 1.0, -1.5, 2.5, 7.0, most, -most, least, -least, np.inf, -np.inf, np.nan]
    values = np.array(wide).astype(kind)
    results = {n: (f"{name}[N]", text) for n, text in BINARY.items() if n != "square"}
    results |= {n: (f"{name}[N]", f"{n}(x[i])") for n in ("floor", "ceil", "round", "trunc", "sign")}
    results |= {n: (f"{name}[N]", f"{n}(x[i], z[i])") for n in ("fmod", "copysign", "atan2")}
    inverse = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc")
    results |= {n: (f"{name}[N]", f"{n}(x[i])") for n in inverse}
    results |= {n: ("bool[N]", f"{n}(x[i])") for n in ("isnan", "isinf", "isfinite")}
    results |= {n: ("bool[N]", f"x[i] {sign} z[i]") for n, sign in COMPARISONS.items()}
    results |= {"over": (f"{name}[N]", "x[i] / z[i]"), "picked": (f"{name}[N]", "x[i] if x[i] > z[i] else z[i]")}
    results |= {f"as_{t}": (f"{t}[N]", f"{t}(x[i])") for t in FLOATS}
    run(name, results, of_pairs(name, values), way)


@WAYS
@pytest.mark.parametrize("name", FLOATS)
def test_reductions_and_casts_of_floats(name, way):
    values = np.array([3, -2.5, 0.5, -7, 3, 1, -0.0, 0.0, -7] * 4).astype(DTYPES[name].numpy)
    results = {"least": (name, "min[i](x[i])"), "most": (name, "max[i](x[i])"), "total": ("f32", "sum[i](x[i])"),
               "where_most": ("i64", "argmax[i](x[i])"), "where_least": ("i64", "argmin[i](x[i])"),
               "so_far": (f"{name}[N]", "cummax[i](x[i])"), "some": ("bool", "any[i](x[i] > 2)"),
               "every": ("bool", "all[i](x[i] > -7)")}  # fmt: skip
    results |= {f"as_{t}": (f"{t}[N]", f"{t}(abs(x[i]))") for t in (*INTEGERS, "bool")}
    run(name, results, {"x": values}, way)


@WAYS
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_zeros(name, way):
    """Values are within their bounds; a value that is zero has the sign that NumPy's has."""
    functions = [f for f in FUNCTIONS.values() if f.arity.most == 1]
    outputs = ", ".join(f"y_{f.name}: {name}[N]" for f in functions)
    body = "\n".join(f"    y_{f.name}[i] = {f.name}(x[i])" for f in functions)
    x = np.array([0.0, -0.0], DTYPES[name].numpy)
    case = Case(f"op f(x: {name}[N]) -> ({outputs}) {{\n{body}\n}}", {"N": 2}, {"x": x})
    program = specialised(case)
    found = (on_gpu if way == "gpu" else on_emulator)(case, program)
    expect(case, program, found, "cuda")
    zeros = {f.name: want for f in functions if not (want := f.reference(x.astype(np.float64))).any()}
    assert {"sin", "tanh", "sqrt", "abs", "sign"} <= zeros.keys() and zeros.keys().isdisjoint({"cos", "acos", "acosh", "log"})
    for function, want in zeros.items():
        made = found[f"y_{function}"].astype(np.float64)
        np.testing.assert_array_equal(made, want, err_msg=function)
        np.testing.assert_array_equal(np.signbit(made), np.signbit(want), err_msg=function)
