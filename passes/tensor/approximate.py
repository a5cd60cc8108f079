"""approximate: functions marked `tilec.approximate` become fast approximations of a few operations.

exp(x)              ->  exp2(x log2(e) / 2)^2           the square reaches subnormal numbers, the instruction does not
                        on a CPU one of x <= 0 alone, where that is known
exp(x - max x)      ->  exp2((x - max x) log2(e))       for weights of which only the sum matters
(`tilec/analysis/softmax_weights.py`)
1 / (1 + exp(-x))   ->  e / (1 + e), e = exp(min(x, 60))
tanh(x)             ->  1 - 2 / (1 + exp(2 x)) where an absolute error will do
1 + tanh(x)         ->  2 e / (1 + e), e = exp(2 min(x, 30))
1 + erf(x)          ->  erfc(-x) = t P(t) exp(-x^2) or 2 less that, t = 1 / (1 + |x| / 2)
log1p(x)            ->  x P(x) for |x| < 1/8, and wherever 0 <= x <= 1 is known, else log2(1 + x) ln 2
expm1(x)            ->  x P(x) for |x| < 1/2, else exp(x) - 1
erf(x)              ->  x P(x^2) / Q(x^2), x within [-3.2, 3.2]
log(x)              ->  log2(x) ln 2
x ** y              ->  exp2(y log2(x) / 2)^2, the logarithm by a polynomial where |x - 1| < 1/8
cos(x), sin(x)      ->  P(x^2), x P(x^2) for |x| <= 1 + 2^-10; elsewhere a shorter reduction, or one right to an absolute error
x / y               ->  (x s) (1 / (y s)) where y is one for many elements: s, a power of two, keeps y s from the ends of the range
x / y               ->  x (1 / y) where y is a sum of weights: at least 1, and no more than their number
x / y               ->  the same quotient without a branch where y is one for many elements: a function of the device

Operations with `fastmath<afn>` are printed as one approximate instruction, quotients with `arcp` as the product with an
approximate reciprocal. `tilec/analysis/precision.py` has the error bounds, and decides. All forms are for CUDA. A CPU uses the
forms for arguments within a known range: `near` and `below`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilec.analysis.precision import argument_of
from tilec.core import mlir
from tilec.core.coefficients import COS, ERF, ERFC, EXPM1_NEAR, LARGER, LOG1P, LOG1P_NEAR, LOG2_NEAR, SIN
from tilec.core.mlir import arith, ir
from tilec.core.mlir import math as math_ops

SCALE = 2.0**64


def approximate(module: ir.Operation) -> None:
    marked = [o for o in mlir.traverse(module) if "tilec.approximate" in o.attributes]
    for op in reversed(marked):  # readers first: the range of an argument is unknown once it is approximated
        name = mlir.get_string(op, "tilec.approximate")
        with ir.InsertionPoint(op), op.location:
            value = _FORMS[name](argument_of(op), op)
        if value == op.results[0]:
            del op.attributes["tilec.approximate"]
        else:
            op.results[0].replace_all_uses_with(value)
            op.erase()


def _flagged(value: ir.Value, flag: str = "afn") -> ir.Value:
    value.owner.attributes["fastmath"] = ir.Attribute.parse(f"#arith.fastmath<{flag}>")
    return value


def _number(value: float) -> ir.Value:
    return mlir.constant(value, ir.F32Type.get())


def _half_exp(x: ir.Value) -> ir.Value:
    """exp(x / 2)."""
    return _flagged(math_ops.exp2(arith.mulf(x, _number(math.log2(math.e) / 2))))


def _exp(x: ir.Value, _: ir.Operation) -> ir.Value:
    half = _half_exp(x)
    return arith.mulf(half, half)


def _exp_weight(x: ir.Value, _: ir.Operation) -> ir.Value:
    return _flagged(math_ops.exp2(arith.mulf(x, _number(math.log2(math.e)))))


def _logistic(half: ir.Value, reciprocal: ir.Value) -> ir.Value:
    """again * half / (1 + half^2), in an order in which nothing overflows and subnormal results come out."""
    share = _flagged(arith.divf(half, math_ops.fma(half, half, _number(1))), "arcp")
    return arith.mulf(share, reciprocal)


def _sigmoid(x: ir.Value, _: ir.Operation) -> ir.Value:
    half = _half_exp(arith.minimumf(x, _number(60)))
    return _logistic(half, half)


def _one_plus_tanh(x: ir.Value, _: ir.Operation) -> ir.Value:
    half = _flagged(math_ops.exp2(arith.mulf(arith.minimumf(x, _number(30)), _number(math.log2(math.e)))))
    return _logistic(half, arith.addf(half, half))


def _tanh_absolute(x: ir.Value, _: ir.Operation) -> ir.Value:
    """Its error is that of numbers near 1, whatever x. Beyond the exponential's range the quotient is 0 or 1."""
    e = _flagged(math_ops.exp2(arith.mulf(x, _number(2 * math.log2(math.e)))))
    share = _flagged(arith.divf(_number(1), arith.addf(e, _number(1))), "arcp")
    return math_ops.fma(share, _number(-2), _number(1))


def _one_plus_erf(x: ir.Value, _: ir.Operation) -> ir.Value:
    """The exponential is computed larger than it is, and the polynomial's coefficients as much smaller: the instruction gives
    no subnormal numbers, the product does."""
    x, factor = _without_factor(x)
    below = math_ops.fma(math_ops.absf(x), _number(abs(factor) / 2), _number(1))
    t = _flagged(arith.divf(_number(1), below), "arcp")
    scaled = arith.mulf(x, _number(factor * math.sqrt(math.log2(math.e))))
    larger = _flagged(math_ops.exp2(math_ops.fma(scaled, arith.negf(scaled), _number(LARGER))))
    tail = arith.mulf(_times_polynomial(t, ERFC), larger)
    left = arith.cmpf(arith.CmpFPredicate.OLT if factor > 0 else arith.CmpFPredicate.OGT, x, _number(0))
    return arith.select(left, tail, arith.subf(_number(2), tail))


def _without_factor(x: ir.Value) -> tuple[ir.Value, float]:
    """A product with a constant as its two factors: a form's own factor can absorb the constant."""
    op = mlir.definition(x)
    factor = mlir.constant_value(op.operands[1]) if op is not None and op.name == "arith.mulf" else None
    return (op.operands[0], float(factor)) if factor and 2.0**-16 <= abs(factor) <= 2.0**16 else (x, 1.0)


def _erf(x: ir.Value, _: ir.Operation) -> ir.Value:
    x = arith.minimumf(arith.maximumf(x, _number(-3.2)), _number(3.2))
    top, below = (_polynomial(arith.mulf(x, x), coefficients) for coefficients in ERF)
    return _flagged(arith.divf(arith.mulf(top, x), below), "arcp")


def _log1p_of_share(x: ir.Value, _: ir.Operation) -> ir.Value:
    return _times_polynomial(x, LOG1P)


def _log1p(x: ir.Value, _: ir.Operation) -> ir.Value:
    far = arith.mulf(_flagged(math_ops.log2(arith.addf(x, _number(1)))), _number(math.log(2)))
    return arith.select(_is_near(x, 0.125), _times_polynomial(x, LOG1P_NEAR), far)


def _expm1(x: ir.Value, op: ir.Operation) -> ir.Value:
    far = arith.subf(_exp(x, op), _number(1))
    return arith.select(_is_near(x, 0.5), _times_polynomial(x, EXPM1_NEAR), far)


def _is_near(x: ir.Value, limit: float) -> ir.Value:
    return arith.cmpf(arith.CmpFPredicate.OLT, math_ops.absf(x), _number(limit))


def _polynomial(x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """Coefficients lowest first."""
    value = _number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = math_ops.fma(value, x, _number(coefficient))
    return value


def _times_polynomial(x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """x P(x)."""
    return arith.mulf(_polynomial(x, coefficients), x)


def _log(x: ir.Value, _: ir.Operation) -> ir.Value:
    return arith.mulf(_flagged(math_ops.log2(x)), _number(math.log(2)))


def _power(x: ir.Value, op: ir.Operation) -> ir.Value:
    """An error of the logarithm counts as often as the result has binades, up to 150: 2^-19.2 relative to it is 2^-12.5. Beyond
    1/8 from 1 log2.approx has that."""
    y = op.operands[1]
    from_one = arith.subf(x, _number(1))
    far = arith.mulf(_flagged(math_ops.log2(x)), _number(0.5))
    half = arith.select(_is_near(from_one, 0.125), _times_polynomial(from_one, LOG2_NEAR), far)
    root = _flagged(math_ops.exp2(arith.mulf(half, y)))
    equal = arith.CmpFPredicate.OEQ
    one = arith.ori(arith.cmpf(equal, x, _number(1)), arith.cmpf(equal, y, _number(0)))
    return arith.select(one, _number(1), arith.mulf(root, root))


def _cos(name: str) -> Callable[[ir.Value, ir.Operation], ir.Value]:
    return lambda x, _: _polynomial(arith.mulf(x, x), COS[name])


def _sin(name: str) -> Callable[[ir.Value, ir.Operation], ir.Value]:
    return lambda x, _: arith.mulf(x, _polynomial(arith.mulf(x, x), SIN[name]))


def _divide_shared(x: ir.Value, op: ir.Operation) -> ir.Value:
    """The scale and the reciprocal are the same for many elements, so that two products are left for each."""
    y = op.operands[1]
    large = arith.cmpf(arith.CmpFPredicate.OGT, math_ops.absf(y), _number(SCALE))
    small = arith.cmpf(arith.CmpFPredicate.OLT, math_ops.absf(y), _number(1 / SCALE))
    scale = arith.select(large, _number(1 / SCALE), arith.select(small, _number(SCALE), _number(1)))
    inverse = _flagged(arith.divf(_number(1), arith.mulf(y, scale)), "arcp")
    return arith.mulf(arith.mulf(x, scale), inverse)


def _divide_weights(x: ir.Value, op: ir.Operation) -> ir.Value:
    """The divisor is 1 or more, and no more than there are elements; or infinite, or NaN."""
    return arith.mulf(x, _flagged(arith.divf(_number(1), op.operands[1]), "arcp"))


def _reciprocal(_: ir.Value, op: ir.Operation) -> ir.Value:
    """Of a divisor within [1, 2]."""
    return _flagged(op.results[0], "arcp")


def _marked(_: ir.Value, op: ir.Operation) -> ir.Value:
    """`passes/cuda/threaded/trig_fallback.py` sees to arguments that the form is not for."""
    op.attributes["tilec.form"] = mlir.string(mlir.get_string(op, "tilec.approximate").partition("_")[2])
    return op.results[0]


def _divide_rounded(_: ir.Value, op: ir.Operation) -> ir.Value:
    """The nearest float as before: `_divide_rounded` in runtime/cuda/device/scalar.py."""
    op.attributes["tilec.form"] = mlir.string("rounded")
    return op.results[0]


def _below(x: ir.Value, op: ir.Operation) -> ir.Value:
    return _flagged(_marked(x, op))


def _same(_: ir.Value, op: ir.Operation) -> ir.Value:
    """One instruction does it."""
    return _flagged(op.results[0])


_FORMS = {
    "exp": _exp, "exp_weight": _exp_weight,
    "sigmoid": _sigmoid, "one_plus_tanh": _one_plus_tanh, "tanh_absolute": _tanh_absolute,
    "one_plus_erf": _one_plus_erf, "erf": _erf,
    "expm1": _expm1, "log1p_of_share": _log1p_of_share,
    "log1p": _log1p, "log": _log,
    "log2": _same, "tanh": _same, "sqrt": _same, "divide": _same,
    "divide_shared": _divide_shared, "divide_weights": _divide_weights, "divide_rounded": _divide_rounded,
    "sigmoid_rounded": _reciprocal, "power": _power,
    "exp_below": _below, **{f"cos_{n}": _cos(n) for n in COS}, **{f"sin_{n}": _sin(n) for n in SIN},
    **{f"{f}_{n}": _marked for f in ("sin", "cos") for n in ("short", "absolute")},
}  # fmt: skip
