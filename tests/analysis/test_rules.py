"""The table of rules: each row fits its pattern, and errs by no more than it says, on random and extreme numbers."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tilec.analysis.expression import Expr, constant
from tilec.analysis.patterns import match, variable
from tilec.analysis.rules import RULES, Rule, rules_for

COUNT = 4000
EXACT = {  # the same number, without the pattern's cancellation in f64
    "one_plus_tanh": lambda x: 2 / (1 + np.exp(-2 * x)),
    "one_plus_erf": lambda x, c=1.0: np.vectorize(math.erfc)(-x * c),
}
FUNCTIONS = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide, "arith.negf": np.negative,
    "arith.minimumf": np.minimum, "arith.maximumf": np.maximum, "arith.select": np.where, "arith.ori": np.logical_or,
    "arith.extf": lambda x: x, "arith.extsi": lambda x: x, "math.absf": np.abs, "math.fma": lambda a, b, c: a * b + c,
    "math.powf": np.power, "math.erf": np.vectorize(math.erf, otypes=[np.float64]),
} | {f"math.{name}": getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tanh")}
COMPARED = {1: np.equal, 2: np.greater, 4: np.less}
HARDWARE = {"math.exp2": 2.0**-22, "math.log2": 2.0**-22, "math.tanh": 2.0**-11 - 2.0**-24, "math.sqrt": 2.0**-23,
            "arith.divf": 2.0**-23}  # fmt: skip
"""Relative errors of approximate instructions before the result is rounded, PTX ISA 8; of lg2 absolute between 1/2 and 2."""


def evaluate(x: Expr, values: dict[str, np.ndarray], sign: int | None = None) -> np.ndarray:
    """At f64; or with `sign` as the device does: each operation rounded to f32, approximate ones as wrong as they may be."""
    if x.op == "variable":
        return values[x.key]
    if x.op == "constant":
        return np.float64(x.key if sign is None else np.float32(x.key))
    args = [evaluate(a, values, sign) for a in x.args]
    if x.op == "arith.cmpf":
        return COMPARED[int(x.key.removeprefix("predicate=").split()[0])](*args)
    found = FUNCTIONS[x.op](*args)
    if x.type == "i1" or sign is None:
        return found
    approximate = "fastmath" in (x.key or "") and "tilec.form" not in x.key
    error = HARDWARE[x.op] * sign if approximate else 0.0
    if "arcp" in (x.key or ""):
        return rounded(args[0] * rounded(1 / args[1] * (1 + error)))
    if approximate and x.op == "math.log2":
        return rounded(found + error * np.where((args[0] > 0.5) & (args[0] < 2) & (args[0] != 1), 1, np.abs(found)))
    return rounded(found * (1 + error))


def rounded(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float32).astype(np.float64)


def drawn(rule: Rule) -> dict[str, np.ndarray]:
    """Numbers of each variable's interval: the ends, evenly, and by magnitude."""
    rng, found = np.random.default_rng(0), {}
    for name, given in rule.arguments.items():
        if len(given) != 2 or name == "k" or np.isinf(given[0]):
            found[name] = rng.choice(given, 3 * COUNT)
            continue
        low, high = given
        sizes = 2.0 ** rng.uniform(-100, np.log2(max(abs(low), abs(high))), COUNT)
        small = np.clip(np.where(rng.random(COUNT) < 0.5, sizes, -sizes), low, high)
        even = [low, high, *np.linspace(low, high, COUNT - 2)]
        found[name] = rng.permutation(np.concatenate([even, small, rng.uniform(low, high, COUNT)]))
        kind = ml_dtypes.bfloat16 if rule.argument_type == "bf16" else np.float32
        found[name] = np.clip(found[name], low, high).astype(kind).astype(np.float64)
    return found


def variables(x: Expr) -> dict[str, Expr]:
    own = {x.key: x} if x.op in ("variable", "numeral") else {}
    return own | {k: v for a in x.args for k, v in variables(a).items()}


IDS = [f"{rule.name} {n}" for n, rule in enumerate(RULES)]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_every_rule_errs_by_no_more_than_it_says(rule):
    values = drawn(rule)
    assert rule.source and set(values) == set(variables(rule.pattern))
    terms, rng = variables(rule.pattern), np.random.default_rng(1)
    numerals = {k: values.pop(k) for k, part in terms.items() if part.op == "numeral"}  # the replacement is made of these numbers
    for _ in range(24 if numerals else 1):
        numbers = {k: float(rng.choice(np.unique(v))) for k, v in numerals.items()}
        terms = terms | {k: constant(v) for k, v in numbers.items()}
        x = rule.pattern.replace(lambda p, t=terms: t.get(p.key) if p.op in ("variable", "numeral") else None)
        now = rule.replace(rule.pattern, terms)
        with np.errstate(all="ignore"):
            if not (rule.error or rule.roundings):
                np.testing.assert_array_equal(evaluate(now, values, 0), evaluate(x, values, 0))
                continue
            want = EXACT[rule.name](**values, **numbers) if rule.name in EXACT else evaluate(x, values)
            for sign in (-1, 1):
                error = np.abs(evaluate(now, values, sign) - want)
                size = 1.0 if rule.absolute else np.abs(want)
                usual = (np.abs(want) >= 2.0**-126) & (np.abs(want) < 2.0**127) | (want == 0)
                allowed = (rule.error or rule.roundings * 2.0**-24) * size
                assert usual.any() and not np.any(error[usual] > np.broadcast_to(allowed, error.shape)[usual]), (
                    numbers, np.max((error / size)[usual & (want != 0)]), rule.error)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_every_rule_fits_its_own_pattern_alone(rule):
    own = variables(rule.pattern)
    leaves = {n: constant(3.0) if x.op == "numeral" else Expr("element", key=n, type=x.type) for n, x in own.items()}
    x = rule.pattern.replace(lambda p: leaves[p.key] if p.op in ("variable", "numeral") else None)
    assert match(rule.pattern, x) == leaves
    assert match(rule.pattern, Expr("math.ceil", (x,))) is None
    other = Expr(x.op, (*x.args[:-1], Expr("element", key="another")), x.key, type=x.type)
    if rule.pattern.args[-1].op != "variable":  # numerals are numbers alone
        assert match(rule.pattern, other) is None


def test_the_order_of_sums_and_products_does_not_matter():
    x, one = Expr("element", key="x"), constant(1.0)
    tanh = Expr("math.tanh", (x,))
    pattern = Expr("arith.addf", (Expr("math.tanh", (variable("x"),)), one))
    assert match(pattern, Expr("arith.addf", (one, tanh))) == match(pattern, Expr("arith.addf", (tanh, one))) == {"x": x}
    assert match(pattern, Expr("arith.subf", (tanh, one))) is None
    assert match(pattern, Expr("arith.addf", (tanh, constant(2.0)))) is None


def test_a_variable_stands_for_one_part():
    x, y = (Expr("element", key=n) for n in "xy")
    square = Expr("arith.mulf", (variable("x"), variable("x")))
    assert match(square, Expr("arith.mulf", (x, x))) == {"x": x} and match(square, Expr("arith.mulf", (x, y))) is None


@pytest.mark.parametrize(
    ("divisor", "fits"), [(2.0, True), (-0.25, True), (3.0, False), (0.0, False), (np.inf, False), (2.0**120, False)]
)
def test_exact_quotients(divisor, fits):
    x = Expr("arith.divf", (Expr("element", key="x"), constant(divisor)))
    assert [rule.name for rule, _ in rules_for(x, "simplify")] == ["divided_by_power_of_two"] * fits


@pytest.mark.parametrize(("zero", "fits"), [(0.0, True), (-0.0, False), (1.0, False)])
def test_choices_before_widening(zero, fits):
    narrow, condition = Expr("element", key="x", type="bf16"), Expr("element", key="k", type="i1")
    x = Expr("arith.select", (condition, Expr("arith.extf", (narrow,)), constant(zero)))
    found = list(rules_for(x, "simplify"))
    assert len(found) == fits
    for rule, now in found:
        chosen = Expr("arith.select", (condition, narrow, constant(0, "bf16")), type="bf16")
        assert rule.replace(x, now) == Expr("arith.extf", (chosen,))
