"""Fast approximations: functions whose error a rounding to 16 bits hides. On CUDA they take a few instructions.

A value that is rounded to bf16 or f16 has 8 or 11 bits, and f32 functions compute 22 and more. This module follows the
arithmetic backwards from every such rounding, with the relative error that may be added: an eighth of the type's unit in
the last place (ulp), so that a stored value is within 5/8 ulp instead of 1/2.

- Products and quotients share the error between their operands.
- Sums, and reductions that add, pass it on only where their terms cannot cancel.
- Functions pass on the share that their condition number leaves: `exp` passes on an absolute error, as do `sin` and `cos` near 0.
- A maximum errs by no more than what it is of. A factor that `using bf16` rounds is rounded as a stored value is.
- Comparisons, conversions, other reductions, and values that are stored as f32 allow no error.

A function is marked if its approximation (`passes/tensor/approximate.py`) errs by no more. Some approximations stay within the
error bound of `tilec/core/functions.py`, and need no rounding. Those for arguments within a known range are used on CPUs, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tilec.analysis import softmax_weights as weights
from tilec.analysis.products import factors_of
from tilec.core import mlir
from tilec.core.functions import FUNCTIONS, HIDDEN
from tilec.core.mlir import ir

APPROXIMATION_ERRORS = {
    "exp": 2.0**-16, "expm1": 2.0**-13, "tanh": 2.0**-11, "erf": 2.0**-13, "sqrt": 2.0**-22, "divide": 2.0**-22,
    "divide_shared": 2.0**-22, "divide_weights": 2.0**-22, "divide_rounded": 0.0,
    "sigmoid": 2.0**-16, "sigmoid_rounded": 0.0, "one_plus_tanh": 2.0**-16,
    "one_plus_erf": 2.0**-13, "log": 2.0**-13, "log2": 2.0**-13, "log1p": 2.0**-13, "log1p_of_share": 2.0**-13,
    "sin_near": 0.0, "cos_near": 0.0, "sin_nearly": 2.0**-16, "cos_nearly": 2.0**-13, "sin_short": 2.0**-12, "cos_short": 2.0**-12,
    "power": 2.0**-12,
    "sin_absolute": 2.0**-19, "cos_absolute": 2.0**-19, "exp_below": 0.0, "exp_weight": weights.ERROR,
    "tanh_absolute": 2.0**-20.5,
}  # fmt: skip
"""The largest relative errors of the approximate forms; those of `ABSOLUTE` are absolute. `log` and `log2` of bf16 values,
`log1p_of_share` of [0, 1], `near` and `nearly` up to `NEAR`, and `power` only of numbers that are not negative or to a power that
is no whole number."""
ABSOLUTE = ("sin_absolute", "cos_absolute", "tanh_absolute")
SAVED = {
    "exp": 5, "expm1": 17, "tanh": 14, "erf": 14, "sqrt": 4, "divide": 0, "divide_shared": 6, "divide_weights": 7,
    "divide_rounded": 0, "sigmoid": 15,
    "sigmoid_rounded": 6, "one_plus_tanh": 9, "one_plus_erf": 12, "log": 20, "log2": 22, "log1p": 20, "log1p_of_share": 26,
    "sin_near": 9, "cos_near": 11, "sin_nearly": 11, "cos_nearly": 13, "sin_short": 2, "cos_short": 2, "sin_absolute": 8,
    "cos_absolute": 8, "power": 42, "exp_below": 3, "exp_weight": 6, "tanh_absolute": 9,
}  # fmt: skip
"""Instructions that approximate forms save (SASS of sm_90)."""
NEAR = 1.0 + 2.0**-10
"""Sines and cosines are no larger, whatever their errors, and those of such numbers need no reduction."""
_IMAGES = {row.mlir: row.image for row in FUNCTIONS.values() if row.mlir.startswith("math.")}
OLT = 4  # the predicate of arith.cmpf: ordered and less
_SAME = {"arith.negf", "math.absf", "arith.extf", "arith.maximumf", "arith.minimumf"}


@dataclass
class _Analysis:
    """The error that every value may have: relative to the value, or absolute if that is more."""

    allowed: dict[ir.Value, float] = field(default_factory=dict)
    absolute: dict[ir.Value, float] = field(default_factory=dict)
    found: dict[ir.Operation, str] = field(default_factory=dict)
    inexact: dict[ir.Value, bool] = field(default_factory=dict)
    weights: set[ir.Operation] = field(default_factory=set)  # exponentials of which the sum alone matters

    def allow(self, value: ir.Value, error: float, absolute: float = 0.0) -> None:
        self.allowed[value] = min(error, self.allowed.get(value, math.inf))
        self.absolute[value] = min(absolute, self.absolute.get(value, math.inf))

    def gains(self, value: ir.Value) -> bool:
        """Whether a value is made with functions that have approximate forms, and so can use an error."""
        if value not in self.inexact:
            self.inexact[value] = self._gains(value)
        return self.inexact[value]

    def _gains(self, value: ir.Value) -> bool:
        op = mlir.definition(value)
        if op is None:  # an argument of a body, or of the program
            owner = value.owner.owner.operation
            if not mlir.is_generic(owner):
                return False
            number = ir.BlockArgument(value).arg_number
            return number < len(mlir.inputs_of(owner)) and self.gains(owner.operands[number])
        if mlir.is_generic(op):
            result = list(op.results).index(value)
            return self.gains(list(mlir.body_of(op).operations)[-1].operands[result])
        if op.name == "tensor.extract" or len(op.regions):
            return True
        return bool(approximate_forms(op)) or any(self.gains(v) for v in op.operands)


def approximate_operations(function: ir.Operation, kind: str = "cuda") -> dict[ir.Operation, str]:
    """The operations that may have their approximate form on targets of this kind ("cpu", "cuda"), and which."""
    if kind == "cpu":
        forms = {op: _form_on_cpu(op) for op in mlir.traverse(function)}
        return {op: form for op, form in forms.items() if form is not None}
    state = _Analysis()
    operations = [o.operation for o in mlir.entry(function).operations]
    for op in mlir.traverse(function):  # each after those that it depends on: their allowances are known
        for result in op.results if not mlir.is_generic(op) else ():
            state.gains(result)
    for op in reversed(operations):
        if mlir.is_generic(op):
            _generic(op, state)
        else:  # results of the program, and what is reshaped, sliced, ...: all bits count
            for operand in op.operands:
                state.allow(operand, 0.0)
    return state.found


def _form_on_cpu(op: ir.Operation) -> str | None:
    """One that adds no error, for arguments within a range that is known."""
    if op.name == "math.exp":
        return "exp_below" if range_of(op.operands[0])[1] <= 0 else None
    return next((f for f in approximate_forms(op) if f in ("sin_near", "cos_near")), None)


def _generic(op: ir.Operation, state: _Analysis) -> None:
    block = mlir.body_of(op)
    reduces = "reduction" in mlir.iterators_of(op)
    sums: list[ir.Operation] = []
    kind = mlir.get_string(op, "tilec.multiplicand")
    if kind in HIDDEN and (factors := factors_of(op)) is not None:
        total = mlir.definition(list(block.operations)[-1].operands[0])
        sums += [total, *(made for v in total.operands if (made := mlir.definition(v)) is not None)]
        for factor in factors:
            state.allow(factor, HIDDEN[kind])
    for view in reversed(list(block.operations)):
        inner = view.operation
        if inner.name == "linalg.yield":
            for n, (value, result) in enumerate(zip(inner.operands, op.results)):
                term = _term_of_sum(op, value, n) if reduces else None
                if term is not None:
                    sums.append(mlir.definition(value))
                    value, made = term, mlir.definition(term)
                    if made is not None and len(mlir.uses(term)) == 1 and weights.is_weight(made, op, n):
                        state.weights.add(made)
                kept = not reduces or term is not None or _is_extreme(value)
                error, absolute = state.allowed.get(result, 0.0), state.absolute.get(result, 0.0)
                state.allow(value, error if kept else 0.0, absolute if kept and term is None else 0.0)
        elif inner not in sums:
            _scalar(inner, state)
    for value, argument in zip(op.operands, block.arguments):
        if argument in state.allowed:
            state.allow(value, state.allowed[argument], state.absolute[argument])


def _is_extreme(value: ir.Value) -> bool:
    """Whether a reduction's new state is the larger or the smaller of two."""
    made = mlir.definition(value)
    return made is not None and made.name in ("arith.maximumf", "arith.minimumf")


def _term_of_sum(op: ir.Operation, value: ir.Value, n: int) -> ir.Value | None:
    """The terms of a reduction's result `n`, if none is negative: such a sum errs by no more than its terms."""
    add, fill = mlir.definition(value), mlir.definition(mlir.outputs_of(op)[n])
    arguments = list(mlir.body_of(op).arguments)
    so_far = arguments[len(mlir.inputs_of(op)) + n]
    if add is None or add.name != "arith.addf" or so_far not in list(add.operands):
        return None
    if fill is None or fill.name != "linalg.fill" or mlir.constant_value(fill.operands[0]) != 0:
        return None
    term = add.operands[1] if add.operands[0] == so_far else add.operands[0]
    found = range_of(term)
    if term in arguments:  # made by an operation before
        maker = mlir.definition(op.operands[arguments.index(term)])
        if maker is not None and mlir.is_generic(maker) and "reduction" not in mlir.iterators_of(maker):
            result = list(maker.results).index(op.operands[arguments.index(term)])
            found = range_of(list(mlir.body_of(maker).operations)[-1].operands[result])
    return term if found[0] >= 0 else None


def _scalar(op: ir.Operation, state: _Analysis) -> None:
    """The errors that one operation allows its operands, given its result's; marks it if its approximate form errs less."""
    error = min((state.allowed.get(r, 0.0) for r in op.results), default=0.0)
    absolute = min((state.absolute.get(r, 0.0) for r in op.results), default=0.0)
    operands = list(op.operands)
    for nested in mlir.traverse(op) if len(op.regions) else ():
        for operand in nested.operands:
            state.allow(operand, 0.0)
    if absolute and op.results:
        error = max(error, absolute / (max(map(abs, range_of(op.results[0]))) or 1.0))
    form = next((f for f in approximate_forms(op) if _is_hidden(f, error, absolute)), None)
    form = "exp_weight" if op in state.weights else form
    spent = 0.0
    if form is not None:
        state.found[op] = form
        spent = error if form in ABSOLUTE else APPROXIMATION_ERRORS[form]
    shares, passed = [0.0] * len(operands), [0.0] * len(operands)
    match op.name:
        case "arith.truncf" if str(operands[0].type) == "f32":  # a value of f64 is rounded unchanged
            shares = [HIDDEN.get(str(op.results[0].type), 0.0)]
        case name if name in _SAME:
            shares, passed = [error] * len(operands), [absolute] * len(operands)
        case "arith.select":
            shares, passed = [0.0, error, error], [0.0, absolute, absolute]
        case "arith.mulf" | "arith.divf" if form is None or form in _DIVISIONS:
            gain, number = [state.gains(v) for v in operands], mlir.constant_value(operands[1])
            if op.name == "arith.mulf" and number:  # constants are second operands
                passed = [absolute / abs(number), 0.0]
            shares = [(error - spent) / max(1, sum(gain)) if g else 0.0 for g in gain]
        case "math.sqrt" | "math.rsqrt":
            shares = [error / 2]
        case "math.exp":  # an error of the exponent is one relative to the result
            passed = [error - spent]
        case "math.tanh" | "math.erf":  # their conditions are at most 1
            shares = [error - spent]
        case "math.sin" | "math.cos" if form is not None and "near" in form:
            shares = [(error - spent) / 1.6]  # tan(NEAR) = 1.56, and that times NEAR
            passed = shares if op.name == "math.cos" else passed
        case "math.log1p" if form == "log1p_of_share":
            shares = [error / 2]
        case "arith.addf" | "arith.subf":
            shares = [(error / 2 if absolute else error) if _cannot_cancel(op) else 0.0] * 2
            passed = [absolute / 2] * 2
    for operand, share, rest in zip(operands, shares, passed):
        state.allow(operand, max(0.0, share), max(0.0, rest))


_DIVISIONS = ("divide", "divide_shared", "divide_weights", "divide_rounded")


def _is_hidden(form: str, error: float, absolute: float) -> bool:
    """Whether the allowed error covers a form's error. A rounded operation leaves half of the allowed error to its
    operands."""
    if form in ABSOLUTE:
        return APPROXIMATION_ERRORS[form] <= absolute
    return APPROXIMATION_ERRORS[form] <= error / (2 if form in (*_DIVISIONS, "sqrt") else 1)


def approximate_forms(op: ir.Operation) -> list[str]:
    """The names of an operation's approximate forms, the shortest first, whether or not their errors are hidden."""
    if not op.results or str(op.results[0].type) != "f32":
        return []
    match op.name:
        case "math.exp" | "math.expm1" | "math.erf" | "math.sqrt":
            return [op.name.removeprefix("math.")]
        case "math.tanh":
            return ["tanh", "tanh_absolute"]
        case "math.log" | "math.log2" if _is_bf16(op.operands[0]):
            return [op.name.removeprefix("math.")]
        case "math.sin" | "math.cos":
            name = op.name.removeprefix("math.")
            near = _within(range_of(op.operands[0]), -NEAR, NEAR)
            return [f"{name}_{f}" for f in (("nearly", "near") if near else ("absolute", "short"))]
        case "math.powf":
            exponent = mlir.constant_value(op.operands[1])
            fraction = exponent is not None and not float(exponent).is_integer()
            return ["power"] if fraction or range_of(op.operands[0])[0] >= 0 else []
        case "math.log1p":
            share = _within(range_of(op.operands[0]), 0.0, 1.0)
            return ["log1p_of_share" if share else "log1p"]
        case "arith.divf" if _sigmoid_of(op) is not None:
            return ["sigmoid", "sigmoid_rounded"] if mlir.constant_value(op.operands[0]) != 1 else ["sigmoid"]
        case "arith.divf":
            if not is_shared(op.operands[1]):
                return ["divide"]
            return ["divide_weights" if weights.is_sum(op.operands[1]) else "divide_shared", "divide_rounded"]
        case "arith.addf":
            one, other = _one_and_other(op)
            owner = mlir.definition(other) if one else None
            if owner is not None and owner.name in ("math.tanh", "math.erf"):
                return [f"one_plus_{owner.name.removeprefix('math.')}"]
    return []


def argument_of(op: ir.Operation) -> ir.Value:
    """The argument of the function that an operation's approximate forms compute."""
    match op.name:
        case "arith.divf":
            return _sigmoid_of(op) or op.operands[0]
        case "arith.addf":
            return mlir.definition(_one_and_other(op)[1]).operands[0]
    return op.operands[0]


def is_shared(value: ir.Value) -> bool:
    """Whether a value of a body is the same for many elements, since its operands lack a dimension."""
    op = mlir.definition(value)
    if op is None:
        owner = value.owner.owner.operation
        if not mlir.is_generic(owner):
            return True
        dims = mlir.map_dims(mlir.maps_of(owner)[ir.BlockArgument(value).arg_number])
        return len(mlir.iterators_of(owner)) - 1 not in dims
    if op.name == "linalg.index":
        return ir.IntegerAttr(op.attributes["dim"]).value != len(mlir.iterators_of(op.parent.operation)) - 1
    operands = list(op.operands)[1:] if op.name == "tensor.extract" else op.operands  # one element of any tensor
    return not len(op.regions) and all(is_shared(v) for v in operands)


def _sigmoid_of(op: ir.Operation) -> ir.Value | None:
    """x of 1 / (1 + exp(-x)), and of (exp(-|x|) if x < 0 else 1) / (1 + exp(-|x|))."""
    top, below = op.operands
    total = mlir.definition(below)
    one, other = _one_and_other(total) if total is not None and total.name == "arith.addf" else (False, below)
    negated = _operand_of(_operand_of(other, "math.exp"), "arith.negf") if one else None
    if negated is None or mlir.constant_value(top) == 1:
        return negated
    x, choice = _operand_of(negated, "math.absf"), mlir.definition(top)
    if x is None or choice is None or choice.name != "arith.select":
        return None
    condition, left, right = choice.operands
    asked = mlir.definition(condition)
    below_zero = (
        asked is not None
        and asked.name == "arith.cmpf"
        and ir.IntegerAttr(asked.attributes["predicate"]).value == OLT
        and asked.operands[0] == x
        and mlir.constant_value(asked.operands[1]) == 0
    )
    return x if below_zero and left == other and mlir.constant_value(right) == 1 else None


def _operand_of(value: ir.Value | None, name: str) -> ir.Value | None:
    """The operands of the operation of this name that makes a value."""
    owner = None if value is None else mlir.definition(value)
    return owner.operands[0] if owner is not None and owner.name == name else None


def _one_and_other(op: ir.Operation) -> tuple[bool, ir.Value]:
    a, b = op.operands
    if mlir.constant_value(a) == 1:
        return True, b
    return mlir.constant_value(b) == 1, a


def _is_bf16(value: ir.Value) -> bool:
    owner = mlir.definition(value)
    return owner is not None and owner.name == "arith.extf" and str(owner.operands[0].type) == "bf16"


# ---- ranges of floats ------------------------------------------------------------------------------------------------

Range = tuple[float, float]


def _cannot_cancel(op: ir.Operation) -> bool:
    (a, b), (c, d) = (range_of(v) for v in op.operands)
    if op.name == "arith.subf":
        c, d = -d, -c
    return (a >= 0 and c >= 0) or (b <= 0 and d <= 0)


def _within(found: Range, low: float, high: float) -> bool:
    return low <= found[0] and found[1] <= high


def range_of(value: ir.Value) -> Range:
    """The least and the greatest value that a float may have, NaN apart."""
    everything = (-math.inf, math.inf)
    known = mlir.constant_value(value)
    if known is not None:
        return float(known), float(known)
    op = mlir.definition(value)
    if op is None or not str(value.type).startswith(("f", "bf")):
        return everything
    inner: Callable[[int], Range] = lambda n: range_of(op.operands[n])  # noqa: E731
    match op.name:
        case "arith.negf":
            low, high = inner(0)
            return -high, -low
        case "arith.extf" | "arith.truncf":
            return inner(0)
        case "arith.maximumf" | "arith.minimumf":
            pick = max if op.name == "arith.maximumf" else min
            (a, b), (c, d) = inner(0), inner(1)
            return pick(a, c), pick(b, d)
        case "arith.select":
            (a, b), (c, d) = inner(1), inner(2)
            return min(a, c), max(b, d)
        case "arith.subf" if weights.dims_of_maximum(*op.operands) is not None:
            return -math.inf, 0.0
        case "arith.mulf" if op.operands[0] == op.operands[1]:
            return 0.0, math.inf
        case "arith.mulf" | "arith.divf" | "arith.addf" if inner(0)[0] >= 0 and inner(1)[0] >= 0:
            return 0.0, math.inf
        case "math.exp" | "math.exp2" if inner(0)[1] <= 0:
            return 0.0, 1.0
        case "math.log1p" if inner(0)[0] >= 0:
            return 0.0, math.inf
        case "math.sin" | "math.cos":
            return -NEAR, NEAR
        case "arith.uitofp":
            return 0.0, math.inf
    return _IMAGES.get(op.name, everything)
