"""Reductions by key for CUDA, whose keys are sorted first: right for any keys, and the same bits in any order of threads."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_within
from tools import cuda_emulator
from tools.cuda_kernels import compiled
from tools.emulation import run_printed
from tools.lowering import lowered, planned

import tilec
from tilec.kernels import ByKey
from tilec.plan.cuda import by_key
from tilec.semantics.interpreted import interpret_stage

SUM = "op f(x: {0}[T, D], k: i64[T]) -> (y: {0}[{1}, D]) {{ y[v, d] = sum[t](x[t, d] if k[t] == v else 0) where v in 0:{1} }}"
GIVEN = "op f(x: f32[T, D], k: i64[T]) -> (y: f32[11, D]) {{ y[v, d] = {} where v in 0:11 }}"
FORMS = {
    "another order": GIVEN.format("sum[t](x[t, d] if v == k[t] else 0)"),
    "what is made of it": """op f(x: f32[T, D], k: i64[T], w: f32[11, D]) -> (y: f32[11, D]) {
        s[v, d] = sum[t](x[t, d] * x[t, d] if k[t] == v else 0) where v in 0:11
        y[v, d] = sqrt(s[v, d]) + w[v, d] * v }""",
    "a condition more": GIVEN.format("sum[t](x[t, d] if k[t] == v and x[t, d] > 0 else 0)"),
    "computed keys": GIVEN.format("sum[t](x[t, d] if k[t] * 2 + 1 == v else 0)").replace("i64", "i32"),
    "counts": "op f(k: i64[T]) -> (y: i32[11]) { y[v] = sum[t](i32(k[t] == v)) where v in 0:11 }",
    "the largest": GIVEN.format("max[t](x[t, d] if k[t] == v else -inf)"),
    "columns of keys": """op f(x: f32[T, D], k: i64[T]) -> (y: f32[D, 11]) {
        y[d, v] = sum[t](x[t, d] if k[t] == v else 0) where v in 0:11 }""",
    "several other dimensions": """op f(x: f32[A, T, D], k: i64[T]) -> (y: f32[A, 11, D]) {
        y[a, v, d] = sum[t](x[a, t, d] if k[t] == v else 0) where v in 0:11 }""",
    "a scale of the key": """op f(x: f32[T, D], k: i64[T], w: f32[11]) -> (y: f32[11, D]) {
        y[v, d] = sum[t](x[t, d] * w[v] if k[t] == v else 0) where v in 0:11 }""",
}


@pytest.fixture(autouse=True)
def sorts(monkeypatch):
    """Keys of small programs are sorted, too, by few blocks."""
    monkeypatch.setattr(by_key, "pairs_us", lambda *given: float("inf"))
    monkeypatch.setattr(by_key, "sorting_blocks", lambda target, keys: min(keys, 3))


def keys(kind: str, count: int, numbers: int, rng: np.random.Generator) -> np.ndarray:
    return {
        "random": lambda: rng.integers(0, numbers, count),
        "all equal": lambda: np.full(count, numbers // 2),
        "all different": lambda: rng.permutation(max(count, numbers))[:count],
        "few": lambda: rng.integers(0, 3, count) * 4,
        "none": lambda: np.full(count, -1),
        "some outside": lambda: rng.integers(-numbers, 2 * numbers, count),
        "the ends": lambda: np.where(rng.random(count) < 0.5, 0, numbers - 1),
    }[kind]()


def made(source: str, given: dict[str, np.ndarray], seed: int = 0) -> np.ndarray:
    special, result = lowered(source, None, given, by_keys)
    token = cuda_emulator.SEED.set(seed)
    try:
        (found,), failed = run_printed(special, result, given)
    finally:
        cuda_emulator.SEED.reset(token)
    assert not any(failed)
    return found


def by_keys(plan):
    assert [type(k.options) for k in plan.kernels] == [ByKey]
    return plan


KINDS = ["random", "all equal", "all different", "few", "none", "some outside", "the ends"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers, count", [(11, 75), (37, 20)])
def test_whatever_the_keys_are(kind, numbers, count, rng):
    given = {"x": rng.standard_normal((count, 8)).astype(np.float32), "k": keys(kind, count, numbers, rng)}
    source = SUM.format("f32", numbers)
    assert_within(source, list(given.values()), made(source, given))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form, rng):
    arrays = {
        "x": rng.standard_normal((2, 75, 8) if "[A, T" in FORMS[form] else (75, 8)).astype(np.float32),
        "k": rng.integers(-1, 5, 75).astype(np.int32 if "i32[T]" in FORMS[form] else np.int64),
        "w": rng.standard_normal((11, 8) if "[11, D])" in FORMS[form].split("->")[0] else (11,)).astype(np.float32),
    }
    header = FORMS[form].split("->")[0]
    given = {name: a for name, a in arrays.items() if f"{name}: " in header}
    assert_within(FORMS[form], list(given.values()), made(FORMS[form], given))


@pytest.mark.parametrize("dtype", ["bf16", "f64", "i32"])
@pytest.mark.parametrize("width", [3, 40])
def test_types_and_widths(dtype, width, rng):
    kind = {"bf16": ml_dtypes.bfloat16, "f64": np.float64, "i32": np.int32}[dtype]
    given = {"x": rng.integers(-9, 9, (50, width)).astype(kind), "k": rng.integers(0, 5, 50)}
    source = SUM.format(dtype, 7)
    assert_within(source, list(given.values()), made(source, given))


def test_the_same_bits_in_any_order_of_threads(rng):
    given = {"x": rng.standard_normal((100, 4)).astype(np.float32), "k": rng.integers(0, 2, 100)}
    first, *others = (made(SUM.format("f32", 5), given, seed) for seed in (0, 1, 2))
    assert all(first.tobytes() == other.tobytes() for other in others)


def test_keys_of_several_digits(rng):
    """Of 100 keys in a block, by two digits."""
    given = {"x": rng.standard_normal((60, 4)).astype(np.float32), "k": rng.integers(0, 300, 60)}
    source = SUM.format("f32", 300)
    assert_within(source, list(given.values()), made(source, given))


@pytest.mark.parametrize("kind", ["random", "all equal"])
def test_interpreted(kind, rng):
    """After `map`, with the interpreter's tests for races."""
    given = {"x": rng.standard_normal((70, 4)).astype(np.float32), "k": keys(kind, 70, 5, rng)}
    special, result = lowered(SUM.format("f32", 5), None, given, by_keys)
    (found,) = interpret_stage(special, result.texts, "map", given).values()
    assert_within(SUM.format("f32", 5), list(given.values()), found)


@pytest.mark.parametrize(
    "body",
    ["sum[t](x[t, d] if k[t] <= v else 0)", "sum[t](x[t, d] if k[t] == v else 1)", "sum[t](x[t, d] if m[t, d] == v else 0)",
     "max[t](x[t, d] if k[t] == v else 0)"],
)  # fmt: skip
def test_what_is_no_reduction_by_key(body):
    source = f"op f(x: f32[T, D], k: i64[T], m: i64[T, D]) -> (y: f32[9, D]) {{ y[v, d] = {body} where v in 0:9 }}"
    plan = planned(source, None, {"T": 70, "D": 8})
    assert not any(isinstance(k.options, ByKey) for k in plan.kernels)


def test_two_sums_by_the_same_keys_are_two_kernels():
    source = """op f(x: f32[T, D], k: i64[T]) -> (y: f32[9, D], n: f32[9, D]) {
        y[v, d] = sum[t](x[t, d] if k[t] == v else 0) where v in 0:9
        n[v, d] = sum[t](x[t, d] * x[t, d] if k[t] == v else 0) where v in 0:9 }"""
    plan = planned(source, None, {"T": 70, "D": 8})
    assert [type(k.options) for k in plan.kernels] == [ByKey, ByKey]


def test_keys_that_are_checked(rng):
    """All of them are, by a kernel of their own: also those of elements that no result takes."""
    source = """op f(x: f32[T, D], k: i64[T], table: i64[20]) -> (y: f32[9, D]) {
        p[t] = table[k[t]]
        y[v, d] = sum[t](x[t, d] if p[t] == v else 0) where v in 0:9 }"""
    given = {"x": rng.standard_normal((70, 4)).astype(np.float32), "k": rng.integers(0, 20, 70), "table": np.arange(20)}
    special, result = lowered(source, None, given)
    assert ByKey in [type(k.options) for k in result.plan.kernels]
    (found,), failed = run_printed(special, result, given)
    assert not any(failed)
    assert_within(source, list(given.values()), found)
    given["k"][69] = 20
    assert any(run_printed(special, result, given)[1])


@pytest.mark.parametrize("option, value", [("piece", 1), ("sorting_blocks", 0), ("sorting_threads", 48), ("tile", [2, 8])])
def test_options_that_are_refused(option, value):
    from tools.plans import scheduled

    given = {"x": np.zeros((70, 8), np.float32), "k": np.zeros(70, np.int64)}
    table = {"tile": value} if option == "tile" else {"by_key": {option: value}}
    with pytest.raises(tilec.CallError, match=option if option != "tile" else "one key"):
        lowered(SUM.format("f32", 9), None, given, scheduled(kernels={"f_y": table}), end="plan", emit=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_no_spills(dtype):
    source = SUM.format(dtype, 5000)
    result = lowered(source, None, {"T": 4096, "D": 1024}, by_keys)[1]
    assert len(compiled(result.emitted, "sm_90a")) == 4
