"""Fast approximations: functions whose error a rounding to 16 bits hides. On CUDA they take a few instructions.

A value that is rounded to bf16 or f16 has 8 or 11 bits, and f32 functions compute 22 and more. This module follows the
arithmetic backwards from every such rounding, with the relative error that may be added: an eighth of the type's unit in
the last place (ulp), so that a stored value is within 5/8 ulp instead of 1/2.

- Products and quotients share the error between their operands.
- Sums, and reductions that add, pass it on only where their terms cannot cancel.
- Functions pass on the share that their condition number leaves: `exp` passes on an absolute error, as do `sin` and `cos` near 0.
- A maximum errs by no more than what it is of. A factor that `using bf16` rounds is rounded as a stored value is.
- Comparisons, conversions, other reductions, and values that are stored as f32 allow no error.

A function is marked if its approximation, a rule of `tilec/analysis/rules.py`, errs by no more. Some approximations stay within the
error bound of `tilec/core/functions.py`, and need no rounding. Those for arguments within a known range are used on CPUs, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tilec.analysis import softmax_weights as weights
from tilec.analysis.float_ranges import range_of
from tilec.analysis.patterns import name_of
from tilec.analysis.products import factors_of, summed
from tilec.analysis.rules import NAMED, Rule, rules_for
from tilec.core import mlir
from tilec.core.functions import HIDDEN
from tilec.core.mlir import ir

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
            return self.gains(mlir.yielded(op)[result])
        if op.name == "tensor.extract" or len(op.regions):
            return True
        return _has_form(op) or any(self.gains(v) for v in op.operands)


def approximate_operations(function: ir.Operation, kind: str = "cuda") -> dict[ir.Operation, str]:
    """The operations that may have their approximate form on targets of this kind ("cpu", "cuda"), and which."""
    if kind == "cpu":
        ops = [op for op in mlir.traverse(function) if len(op.results) == 1]
        return {op: rule.name for op in ops for rule, _ in rules_for(op.results[0], kind=kind)}
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


def _generic(op: ir.Operation, state: _Analysis) -> None:
    block = mlir.body_of(op)
    reduces = "reduction" in mlir.iterators_of(op)
    sums: list[ir.Operation] = []
    kind = mlir.get_string(op, "tilec.multiplicand")
    if kind in HIDDEN and (factors := factors_of(op)) is not None:
        total = mlir.definition(mlir.yielded(op)[0])
        sums += [total, *(made for v in total.operands if (made := mlir.definition(v)) is not None)]
        for factor in factors:
            state.allow(factor, HIDDEN[kind])
    for view in reversed(list(block.operations)):
        inner = view.operation
        if inner.name == "linalg.yield":
            for n, (value, result) in enumerate(zip(inner.operands, op.results)):
                term = _term_of_sum(op, n) if reduces else None
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
    return name_of(value) in ("arith.maximumf", "arith.minimumf")


def _term_of_sum(op: ir.Operation, n: int) -> ir.Value | None:
    """The terms of a reduction's result `n`, if none is negative: such a sum errs by no more than its terms."""
    if (term := summed(op, n)) is None:
        return None
    found, arguments = range_of(term), list(mlir.body_of(op).arguments)
    if term in arguments:  # made by an operation before
        maker = mlir.definition(op.operands[arguments.index(term)])
        if maker is not None and mlir.is_generic(maker) and "reduction" not in mlir.iterators_of(maker):
            result = list(maker.results).index(op.operands[arguments.index(term)])
            found = range_of(mlir.yielded(maker)[result])
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
    rules = [rule for rule, _ in rules_for(op.results[0])] if op.results else []
    form = next((rule.name for rule in rules if _is_hidden(rule, error, absolute)), None)
    form = "exp_weight" if op in state.weights else form
    spent = 0.0
    if form is not None:
        state.found[op] = form
        spent = error if NAMED[form].absolute else NAMED[form].error
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


def _is_hidden(rule: Rule, error: float, absolute: float) -> bool:
    """Whether the allowed error covers a rule's error. A rounded operation leaves half of the allowed error to its
    operands."""
    if rule.absolute:
        return rule.error <= absolute
    return rule.error <= error / (2 if rule.name in (*_DIVISIONS, "sqrt") else 1)


def _has_form(op: ir.Operation) -> bool:
    return bool(op.results) and next(rules_for(op.results[0]), None) is not None


def _cannot_cancel(op: ir.Operation) -> bool:
    (a, b), (c, d) = (range_of(v) for v in op.operands)
    if op.name == "arith.subf":
        c, d = -d, -c
    return (a >= 0 and c >= 0) or (b <= 0 and d <= 0)
