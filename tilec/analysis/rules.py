"""The table of rules: patterns of expressions, what takes their place, under which condition, how much it errs, and its source.

    exp(x)              ->  exp2(x log2(e) / 2)^2            the square reaches subnormal numbers, the instruction does not
    1 / (1 + exp(-x))   ->  e / (1 + e), e = exp(min(x, 60))
    x / 2.0             ->  x * 0.5                          exact
    x * 2.0 / 3.0       ->  x * (2 / 3)                      so that analyses find the number that `x` is multiplied by

Rules of `fuse` are approximations. `tilec/analysis/precision.py` allows them where a rounding hides their error, or where they stay
within a function's documented error. Approximate instructions have `fastmath<afn>`; quotients with `arcp` are products with an
approximate reciprocal. They are for CUDA; a CPU uses those for arguments within a known range: `near` and `below`. The rules of
`simplify` are exact, and hold everywhere. Those of `factor` and `chain` are for expressions that analyses read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilec.analysis import softmax_weights as weights
from tilec.analysis.expression import Expr, constant
from tilec.analysis.float_ranges import NEAR, is_shared, range_of
from tilec.analysis.patterns import (
    Condition,
    Found,
    Scalar,
    choice,
    compared,
    match,
    name_of,
    number,
    numeral,
    parts_of,
    read,
    type_of,
    variable,
)
from tilec.core import mlir
from tilec.core.coefficients import COS, ERF, ERFC, EXPM1_NEAR, LARGER, LOG1P, LOG1P_NEAR, LOG2_NEAR, SIN
from tilec.core.diagnostics import InternalError

Interval = tuple[float, float]
LOG2_E = math.log2(math.e)
SCALE = 2.0**64


@dataclass(frozen=True)
class Rule:
    """`pattern` becomes `replacement` of its variables where `condition` holds, for results of `type`, or of any, on targets of
    `kinds`; without kinds another analysis chooses it. `error` bounds the error beside the pattern's exact value: relative, or
    absolute if it says so. Where it is 0, so many `roundings` of f32, 2^-24 each, are within the function's documented error;
    without them every bit is the same. `arguments` are intervals of variables, of numbers of `argument_type`, for which that holds;
    or the numbers themselves, if they are not two. `saved`: instructions that it saves (SASS of sm_90)."""

    name: str
    pattern: Expr
    replacement: Callable[..., Expr]
    arguments: Mapping[str, tuple[float, ...]]
    source: str
    error: float = 0.0
    roundings: float = 0.0
    saved: int = 0
    argument_type: str = "f32"
    absolute: bool = False
    stage: str = "fuse"
    kinds: tuple[str, ...] = ("cuda",)
    type: str | None = "f32"
    condition: Condition = lambda _, __: True

    def replace(self, x: Scalar, found: Found) -> Expr:
        """What takes the place of `x`, in its type."""
        return replace(self.replacement(**{name: read(part) for name, part in found.items()}), type=type_of(x))


# ---- expressions ------------------------------------------------------------------------------------------------------

AFN, ARCP = (f"fastmath = #arith.fastmath<{flag}>" for flag in ("afn", "arcp"))
X, Y, Z, A, C = *map(variable, "xyz"), numeral("a"), numeral("c")
K = variable("k", "i1")
ONE = constant(1.0)


def _call(op: str, *args: Expr | float, key: str | None = None) -> Expr:
    """An operation on f32, or on its operands' type; numbers are constants of that type."""
    type_ = next((a.type for a in args if isinstance(a, Expr)), "f32")
    return Expr(op, tuple(a if isinstance(a, Expr) else constant(a, type_) for a in args), key, type=type_)


def _binary(op: str) -> Callable[[Expr | float, Expr | float], Expr]:
    return lambda a, b: _call(op, a, b)


def _unary(op: str) -> Callable[[Expr], Expr]:
    return lambda a: _call(op, a)


_times, _plus, _minus, _over = (_binary(f"arith.{name}f") for name in ("mul", "add", "sub", "div"))
_least, _largest = _binary("arith.minimumf"), _binary("arith.maximumf")
_negated, _absolute = _unary("arith.negf"), _unary("math.absf")


def _fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    return _call("math.fma", a, b, c)


def _approximate(op: str, x: Expr) -> Expr:
    """One approximate instruction."""
    return _call(f"math.{op}", x, key=AFN)


def _quotient(a: Expr | float, b: Expr) -> Expr:
    """By an approximate reciprocal."""
    return _call("arith.divf", a, b, key=ARCP)


OEQ, OGT, OLT = 1, 2, 4  # predicates of arith.cmpf


def _is_near(x: Expr, limit: float) -> Expr:
    return compared(OLT, _absolute(x), limit)


def _polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Coefficients lowest first."""
    value = constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = _fma(value, x, coefficient)
    return value


def _times_polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """x P(x)."""
    return _times(_polynomial(x, coefficients), x)


# ---- replacements -----------------------------------------------------------------------------------------------------


def _exp(x: Expr) -> Expr:
    half = _approximate("exp2", _times(x, LOG2_E / 2))
    return _times(half, half)


def _logistic(half: Expr, factor: Expr) -> Expr:
    """factor * half / (1 + half^2), in an order in which nothing overflows and subnormal results come out."""
    return _times(_quotient(half, _fma(half, half, 1.0)), factor)


def _sigmoid(x: Expr, **_: Expr) -> Expr:
    half = _approximate("exp2", _times(_least(x, 60.0), LOG2_E / 2))
    return _logistic(half, half)


def _one_plus_tanh(x: Expr) -> Expr:
    half = _approximate("exp2", _times(_least(x, 30.0), LOG2_E))
    return _logistic(half, _plus(half, half))


def _tanh_absolute(x: Expr) -> Expr:
    """Its error is that of numbers near 1, whatever x. Beyond the exponential's range the quotient is 0 or 1."""
    return _fma(_quotient(1.0, _plus(_approximate("exp2", _times(x, 2 * LOG2_E)), 1.0)), -2.0, 1.0)


def _one_plus_erf(x: Expr, c: Expr = ONE) -> Expr:
    """Of x c. The exponential is computed larger than it is, and the polynomial's coefficients as much smaller: the instruction
    gives no subnormal numbers, the product does."""
    factor = float(c.key)
    t = _quotient(1.0, _fma(_absolute(x), abs(factor) / 2, 1.0))
    scaled = _times(x, factor * math.sqrt(LOG2_E))
    larger = _approximate("exp2", _fma(scaled, _negated(scaled), LARGER))
    tail = _times(_times_polynomial(t, ERFC), larger)
    return choice(compared(OLT if factor > 0 else OGT, x, 0.0), tail, _minus(constant(2.0), tail))


def _erf(x: Expr) -> Expr:
    x = _least(_largest(x, -3.2), 3.2)
    top, below = (_polynomial(_times(x, x), coefficients) for coefficients in ERF)
    return _quotient(_times(top, x), below)


def _log(x: Expr) -> Expr:
    return _times(_approximate("log2", x), math.log(2))


def _log1p(x: Expr) -> Expr:
    return choice(_is_near(x, 0.125), _times_polynomial(x, LOG1P_NEAR), _log(_plus(x, 1.0)))


def _expm1(x: Expr) -> Expr:
    return choice(_is_near(x, 0.5), _times_polynomial(x, EXPM1_NEAR), _minus(_exp(x), ONE))


def _power(x: Expr, y: Expr) -> Expr:
    """An error of the logarithm counts as often as the result has binades, up to 150: 2^-19.2 relative to it is 2^-12.5. Beyond
    1/8 from 1 log2.approx has that."""
    from_one = _minus(x, ONE)
    far = _times(_approximate("log2", x), 0.5)
    half = choice(_is_near(from_one, 0.125), _times_polynomial(from_one, LOG2_NEAR), far)
    root = _approximate("exp2", _times(half, y))
    one = Expr("arith.ori", (compared(OEQ, x, 1.0), compared(OEQ, y, 0.0)), type="i1")
    return choice(one, ONE, _times(root, root))


def _divide_shared(x: Expr, y: Expr) -> Expr:
    """The scale and the reciprocal are the same for many elements, so that two products are left for each. The scale, a power of
    two, keeps the divisor from the ends of the range."""
    large, small = compared(OGT, _absolute(y), SCALE), compared(OLT, _absolute(y), 1 / SCALE)
    scale = choice(large, constant(1 / SCALE), choice(small, constant(SCALE), ONE))
    return _times(_times(x, scale), _quotient(1.0, _times(y, scale)))


# ---- conditions -------------------------------------------------------------------------------------------------------


def _range(x: Scalar) -> Interval:
    return (-math.inf, math.inf) if isinstance(x, Expr) else range_of(x)


def _within(low: float, high: float) -> Condition:
    """Whether x is known to be in an interval."""
    return lambda _, found: (known := _range(found["x"]))[0] >= low and known[1] <= high


def _not(condition: Condition) -> Condition:
    return lambda x, found: not condition(x, found)


def _is_bf16(_: Scalar, found: Found) -> bool:
    """Of bf16 alone: an f32 may be so near to 1 that the instruction has no digit."""
    return name_of(found["x"]) == "arith.extf" and type_of(parts_of(found["x"])[0]) == "bf16"


def _has_power(_: Scalar, found: Found) -> bool:
    """Of a negative number and a whole power a sign would be due."""
    exponent = number(found["y"])
    return (exponent is not None and not float(exponent).is_integer()) or _range(found["x"])[0] >= 0


def _has_factor(_: Scalar, found: Found) -> bool:
    return 2.0**-16 <= abs(number(found["c"]) or 0) <= 2.0**16


def _is_quotient(shared: bool, of_weights: bool | None = None) -> Condition:
    """Whether it is no sigmoid, and its divisor is one for many elements, such as a sum of weights."""

    def holds(x: Scalar, found: Found) -> bool:
        divisor = found["y"]
        if isinstance(divisor, Expr) or any(match(p, x) is not None for p in SIGMOIDS) or is_shared(divisor) != shared:
            return False
        return of_weights is None or weights.is_sum(divisor) == of_weights

    return holds


def _is_power_of_two(_: Scalar, found: Found) -> bool:
    """A subnormal inverse would round."""
    divisor = number(found["c"]) or 0
    if not math.isfinite(divisor) or abs(math.frexp(divisor)[0]) != 0.5:
        return False
    return 1e-30 < abs(1 / divisor) < 1e30


def _is_widened_zero(x: Scalar, found: Found) -> bool:
    """Whether the other choice is 0, and not -0.0, and nothing else reads what is widened."""
    zero, widened = number(found["z"]), parts_of(x)[1]
    if zero is None or zero != 0 or math.copysign(1, zero) < 0:
        return False
    return isinstance(widened, Expr) or len(mlir.uses(widened)) == 1


def _is_no_zero(_: Scalar, found: Found) -> bool:
    return all(number(part) != 0 for name, part in found.items() if name in "ac")


def _is_mask(_: Scalar, found: Found) -> bool:
    """Whether a positive number leaves the other choice what it is."""
    return (number(found["a"]) or 0) > 0 and number(found["z"]) in (math.inf, -math.inf)


# ---- the table --------------------------------------------------------------------------------------------------------

_SMALL = _call("math.exp", _negated(_absolute(X)))
SIGMOIDS = (
    _over(1.0, _plus(_call("math.exp", _negated(X)), 1.0)),
    _over(choice(compared(OLT, X, 0.0), _SMALL, ONE), _plus(_SMALL, 1.0)),
)
ALL: Interval = (-3e38, 3e38)
NORMAL: Interval = (2.0**-126, 3e38)
NUMBERS = tuple(sign * 1.7**n for n in range(-20, 20) for sign in (1, -1))
POWERS = tuple(sign * 2.0**n for n in range(-99, 100, 9) for sign in (1, -1))
CODE = "instructions of sm_90; errors of PTX ISA 8, `ex2.approx`, `lg2.approx`, `rcp.approx`, `tanh.approx`, `sqrt.approx`"
FIT = "`tilec/core/coefficients.py`"
DEVICE = "`tilec/runtime/cuda/device`"
_DIVIDE = _over(X, Y)


def _function(op: str) -> Expr:
    return _call(f"math.{op}", X)


def _instruction(op: str, error: float, saved: int, interval: Interval, **more: Any) -> Rule:
    """A function of which there is an approximate instruction."""
    return Rule(op, _function(op), lambda x: _approximate(op, x), {"x": interval}, CODE, error=error, saved=saved, **more)


def _form(op: str, form: str, error: float, saved: int, absolute: bool = False) -> Rule:
    """A function of the device, for arguments that are not known to be near 0; `passes/cuda/threaded/trig_fallback.py` sees to
    others than it is for."""
    return Rule(
        f"{op}_{form}", _function(op), lambda x: _call(f"math.{op}", x, key=f'tilec.form = "{form}"'), {"x": (-3e4, 3e4)}, DEVICE,
        error=error, saved=saved, absolute=absolute, condition=_not(_within(-NEAR, NEAR)),
    )  # fmt: skip


def _near(op: str, form: str, saved: int, **error: Any) -> Rule:
    """P(x^2), and x P(x^2), which keeps the sign of a zero, of numbers up to `NEAR`."""
    coefficients = {"cos": COS, "sin": SIN}[op][form]

    def polynomial(x: Expr) -> Expr:
        value = _polynomial(_times(x, x), coefficients)
        return _times(x, value) if op == "sin" else value

    kinds = ("cuda", "cpu") if form == "near" else ("cuda",)
    return Rule(
        f"{op}_{form}", _function(op), polynomial, {"x": (-NEAR, NEAR)}, FIT, saved=saved, condition=_within(-NEAR, NEAR),
        kinds=kinds, **error,
    )  # fmt: skip


def _factor(
    name: str, pattern: Expr, replacement: Callable[..., Expr], condition: Condition = _is_no_zero, **more: tuple[float, ...]
) -> Rule:
    """An expression as a product with a number."""
    arguments = {"x": (-1e8, 1e8)} | {leaf.key: NUMBERS for leaf in pattern.leaves if leaf.op == "numeral"} | more
    return Rule(name, pattern, replacement, arguments, "real numbers: the factor and the product are rounded", roundings=2.1,
                kinds=(), stage="factor", type=None, condition=condition)  # fmt: skip


RULES = (
    Rule("exp", _function("exp"), _exp, {"x": (-87, 88)}, CODE, error=2.0**-16, saved=5),
    Rule("exp_weight", _function("exp"), lambda x: _approximate("exp2", _times(x, LOG2_E)), {"x": (-16, 0)},
         "`tilec/analysis/softmax_weights.py`, which says of which sums it may be a term", error=weights.ERROR, saved=6, kinds=()),
    Rule("exp_below", _function("exp"), lambda x: _call("math.exp", x, key=f'{AFN}, tilec.form = "below"'), {"x": (-87, 0)},
         "`tilec/runtime/cpu/math.py`", roundings=2, saved=3, condition=_within(-math.inf, 0.0), kinds=("cpu",), type=None),
    Rule("expm1", _function("expm1"), _expm1, {"x": (-87, 88)}, FIT, error=2.0**-13, saved=17),
    _instruction("tanh", 2.0**-11, 14, ALL),
    Rule("tanh_absolute", _function("tanh"), _tanh_absolute, {"x": (-60, 60)}, CODE, error=2.0**-20.5, saved=9, absolute=True),
    Rule("erf", _function("erf"), _erf, {"x": (-20, 20)}, FIT, error=2.0**-13, saved=14),
    _instruction("sqrt", 2.0**-22, 4, NORMAL),
    Rule("log", _function("log"), _log, {"x": NORMAL}, CODE, error=2.0**-13, saved=20, argument_type="bf16", condition=_is_bf16),
    _instruction("log2", 2.0**-13, 22, NORMAL, argument_type="bf16", condition=_is_bf16),
    Rule("log1p_of_share", _function("log1p"), lambda x: _times_polynomial(x, LOG1P), {"x": (2.0**-100, 1)}, FIT, error=2.0**-13,
         saved=26, condition=_within(0.0, 1.0)),
    Rule("log1p", _function("log1p"), _log1p, {"x": (-0.999, 3e38)}, FIT, error=2.0**-13, saved=20,
         condition=_not(_within(0.0, 1.0))),
    _near("sin", "nearly", 11, error=2.0**-16), _near("sin", "near", 9, roundings=2.1),
    _near("cos", "nearly", 13, error=2.0**-13), _near("cos", "near", 11, roundings=2.1),
    _form("sin", "absolute", 2.0**-19, 8, absolute=True), _form("sin", "short", 2.0**-12, 2),
    _form("cos", "absolute", 2.0**-19, 8, absolute=True), _form("cos", "short", 2.0**-12, 2),
    Rule("power", _call("math.powf", X, Y), _power, {"x": NORMAL, "y": (-1.9, 1.9)}, FIT, error=2.0**-12, saved=42,
         condition=_has_power),
    Rule("sigmoid", SIGMOIDS[0], _sigmoid, {"x": (-87, 300)}, CODE, error=2.0**-16, saved=15),
    Rule("sigmoid", SIGMOIDS[1], _sigmoid, {"x": (-87, 300)}, CODE, error=2.0**-16, saved=15),
    Rule("sigmoid_rounded", SIGMOIDS[1], lambda x: _quotient(*SIGMOIDS[1].replace(lambda p: x if p == X else None).args),
         {"x": (-87, 300)}, "a divisor within [1, 2], of which `rcp.approx` is right to a unit", roundings=8, saved=6),
    Rule("divide", _DIVIDE, lambda x, y: _call("arith.divf", x, y, key=AFN), {"x": (-1e-7, 1e-7), "y": (1e-45, 1e18)},
         "PTX ISA 8, `div.full.f32`: 2 ulp in all of the range", error=2.0**-22, condition=_is_quotient(shared=False)),
    Rule("divide_weights", _DIVIDE, lambda x, y: _times(x, _quotient(1.0, y)), {"x": (-1e30, 1e30), "y": (1, 1e9)},
         "the divisor is 1 or more, and no more than there are elements; or infinite, or NaN", error=2.0**-22, saved=7,
         condition=_is_quotient(shared=True, of_weights=True)),
    Rule("divide_shared", _DIVIDE, _divide_shared, {"x": (-1e18, 1e18), "y": (1e-18, 1e18)}, CODE, error=2.0**-22, saved=6,
         condition=_is_quotient(shared=True, of_weights=False)),
    Rule("divide_rounded", _DIVIDE, lambda x, y: _call("arith.divf", x, y, key='tilec.form = "rounded"'),
         {"x": (-1e18, 1e18), "y": (1e-18, 1e18)}, "the nearest float: `_divide_rounded` in `tilec/runtime/cuda/device/scalar.py`",
         roundings=1, condition=_is_quotient(shared=True)),
    Rule("one_plus_tanh", _plus(_call("math.tanh", X), 1.0), _one_plus_tanh, {"x": (-43, 3e38)}, CODE, error=2.0**-16, saved=9),
    Rule("one_plus_erf", _plus(_call("math.erf", _times(X, C)), 1.0), _one_plus_erf,
         {"x": (-2.4, 40), "c": (0.5, 1.5)}, FIT, error=2.0**-13, saved=12, condition=_has_factor),
    Rule("one_plus_erf", _plus(_call("math.erf", X), 1.0), _one_plus_erf, {"x": (-3.6, 40)}, FIT, error=2.0**-13, saved=12),
    Rule("divided_by_power_of_two", _over(X, C), lambda x, c: _times(x, 1 / c.key), {"x": (-1e8, 1e8), "c": POWERS},
         "IEEE 754: both round the same number", condition=_is_power_of_two, kinds=(), stage="simplify", type=None),
    *(Rule("chosen_before_" + op, choice(K, Expr(op, (X,)), Z),
           lambda k, x, z, op=op: Expr(op, (choice(k, x, constant(0, x.type)),)), {"k": (0, 1), "x": (-100, 100), "z": (0.0,)},
           "an element, or 0, is then loaded under a condition; widening keeps every value", condition=_is_widened_zero, kinds=(),
           stage="simplify", type=None)
      for op in ("arith.extf", "arith.extsi")),
    _factor("product_of_product", _times(_times(X, A), C), lambda x, a, c: _times(x, a.key * c.key)),
    _factor("quotient_of_product", _over(_times(X, A), C), lambda x, a, c: _times(x, a.key / c.key)),
    _factor("quotient", _over(X, C), lambda x, c: _times(x, 1 / c.key)),
    _factor("negated_product", _negated(_times(X, A)), lambda x, a: _times(x, -a.key)),
    _factor("negated", _negated(X), lambda x: _times(x, -1.0)),
    *(_factor(name, choice(K, *(_times(X, A), numeral("z"))[::order]),
              lambda k, x, a, z, order=order: _times(replace(choice(k, *(x, z)[::order]), key=""), a),
              condition=_is_mask, k=(0, 1), z=(-math.inf, math.inf))
      for name, order in (("product_or_infinite", 1), ("infinite_or_product", -1))),
    *(Rule("common_factor", op(_times(X, Y), _times(X, Z)), lambda x, y, z, op=op: _times(x, op(y, z)),
           dict.fromkeys("xyz", (-1e6, 1e6)), "one rounding fewer", roundings=2.1, kinds=(), stage="chain")
      for op in (_plus, _minus)),
)  # fmt: skip
"""Of one operation the shortest first."""
NAMED = {rule.name: rule for rule in reversed(RULES)}
_BY_OPERATION: dict[tuple[str, str], list[Rule]] = {}
for _rule in RULES:
    _BY_OPERATION.setdefault((_rule.stage, _rule.pattern.op), []).append(_rule)


def rules_on(operation: str, stage: str) -> Sequence[Rule]:
    """The rules of a stage for expressions that an operation of this name computes."""
    return _BY_OPERATION.get((stage, operation), ())


def rules_for(x: Scalar, stage: str = "fuse", kind: str | None = "cuda") -> Iterator[tuple[Rule, Found]]:
    """The rules of a stage that an expression fits, in the table's order, with what their variables stand for; of `fuse` those for
    targets of a kind ("cuda", "cpu")."""
    for rule in rules_on(name_of(x), stage):
        able = (stage != "fuse" or kind in rule.kinds) and rule.type in (None, type_of(x))
        if able and (found := match(rule.pattern, x, rule.condition)) is not None:
            yield rule, found


def rewritten(x: Expr, stage: str) -> Expr:
    """An expression of which each part that a rule of a stage fits is what the rule makes of it; outer parts first."""
    return x.replace(lambda part: next((rule.replace(part, found) for rule, found in rules_for(part, stage)), None))


def replacement(name: str, x: Scalar) -> Expr:
    """What the rule of a name makes of an expression that it fits."""
    for rule in RULES:
        if rule.name == name and (found := match(rule.pattern, x)) is not None and rule.stage == "fuse":
            return rule.replace(x, found)
    raise InternalError(f"no rule `{name}` fits a '{name_of(x)}'", "fuse")
