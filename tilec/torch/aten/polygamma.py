"""Derivatives of digamma: the Euler-Maclaurin formula behind the first terms of the series, and reflection below 0."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import factorial, pi

from tilec.torch.aten.promotion import elementwise
from tilec.torch.aten.table import Call, expresses
from tilec.torch.program import Tensor, Unsupported

BERNOULLI = (Fraction(1, 6), Fraction(-1, 30), Fraction(1, 42), Fraction(-1, 30), Fraction(5, 66), Fraction(-691, 2730),
             Fraction(7, 6), Fraction(-3617, 510))  # fmt: skip
TERMS, HIGHEST = 10, 6
"""Terms of the series that are added one by one, and the order up to which the formula then leaves out less than a rounding."""


@expresses("polygamma")
def polygamma(call: Call) -> Tensor:
    order = int(call["n"])
    if order > HIGHEST:
        raise Unsupported(f"polygamma: an order of more than {HIGHEST}, for which the series has other terms")
    if not order:
        return elementwise(call, "digamma({0})", ["self"], "float")
    name = f"polygamma_{order}"
    call.graph.functions[name] = name, _text(name, order)
    return elementwise(call, f"{name}({{0}})", ["self"], "float", known=[name])


@cache
def _text(name: str, order: int) -> str:
    """The function as text: (-1)^(n + 1) n! times the sum of (x + k)^-(n + 1) over all k."""
    s = order + 1
    lines = [f"def {name}(x) {{", "    z = 1 - x if x < 0 else x", f"    w = z + {TERMS}", "    u = 1 / w", "    v = u * u"]
    series, product = "0", Fraction(s)
    factors = []
    for j, number in enumerate(BERNOULLI, 1):  # B_2j / (2j)! s (s + 1) ... (s + 2j - 2)
        factors.append(float(number / factorial(2 * j) * product))
        product *= (s + 2 * j - 1) * (s + 2 * j)
    for factor in reversed(factors):
        series = f"({factor} + v * {series})" if series != "0" else f"({factor})"
    lines.append(f"    tail = {_power('u', s - 1)} * ({1 / (s - 1)} + u * (0.5 + u * {series}))")
    terms = " + ".join(f"1 / {_power(f'(z + {k})', s)}" for k in reversed(range(1, TERMS)))
    lines.append(f"    sum_ = tail + {terms} + 1 / {_power('z', s)}")
    sign = 1 if order % 2 else -1
    lines.append(f"    plain = {float(sign * factorial(order))} * sum_")
    lines += ["    r = x - round(x)", f"    c = cos({pi} * r) / sin({pi} * r)"]
    mirrored = f"{'plain' if order % 2 == 0 else '-plain'} - {pi ** (order + 1)} * {_cotangent(order)}"
    lines.append(f"    mirrored = {'' if sign > 0 else '-'}inf if r == 0 else {mirrored}")
    lines += ["    return mirrored if x < 0 else plain", "}"]
    return "\n".join(lines)


def _power(base: str, exponent: int) -> str:
    return f"({' * '.join([base] * exponent)})"


def _cotangent(order: int) -> str:
    """The derivative of that order of cot(y), as a polynomial of c = cot(y): the derivative of c is -(1 + c c)."""
    found = [0, 1]
    for _ in range(order):
        slope = [k * a for k, a in enumerate(found)][1:]
        found = [-(a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope])]
    text = str(float(found[-1]))
    for a in reversed(found[:-1]):
        text = f"({text} * c + {float(a)})" if a else f"({text} * c)"
    return text
