"""The fits of the polynomials of `runtime/cpu/math.py`: weighted minimax approximation. Prints
`runtime/cpu/math_tables.py`; needs mpmath.

    python -m tilec.runtime.cpu.math_fit > runtime/cpu/math_tables.py

Each row states a function f of t, an interval and a weight: the polynomial P of the given number of coefficients makes
the largest |weight (P - f)| on the interval as small as it can be (Remez exchange; E. Ya. Remez, 1934; see J.-M.
Muller, Elementary Functions, chapter 3). Weights turn the error of P into the relative error of the whole function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mpmath as mp
import numpy as np

mp.mp.prec = 240
Real = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    meaning: str
    function: Real
    weight: Real
    low: mp.mpf
    high: mp.mpf
    terms: tuple[int, int]
    """Coefficients for f32 and for f64."""


def _expm1(r: mp.mpf) -> mp.mpf:
    return mp.nsum(lambda n: r ** int(n) / mp.factorial(n + 2), [0, 40], method="direct")


def _sin(z: mp.mpf) -> mp.mpf:
    return mp.nsum(lambda n: (-z) ** int(n) / -mp.factorial(2 * n + 3), [0, 40], method="direct")


def _odd(function: Real) -> tuple[Real, Real]:
    """P(x^2) of function(x) = x + x^3 P(x^2), and the weight of its error in the function's relative error."""

    def rest(z: mp.mpf) -> mp.mpf:
        return (function(mp.sqrt(z)) / mp.sqrt(z) - 1) / z

    def weight(z: mp.mpf) -> mp.mpf:
        return z * mp.sqrt(z) / function(mp.sqrt(z))

    return rest, weight


def _log(z: mp.mpf) -> mp.mpf:
    return mp.nsum(lambda n: 2 * z ** int(n) / (2 * n + 3), [0, 110], method="direct")


def _erfc(t: mp.mpf) -> mp.mpf:
    x = 4 * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)


def _erf(x: mp.mpf) -> mp.mpf:
    return -mp.log(mp.erfc(x)) / x - 1


def _erf_weight(x: mp.mpf) -> mp.mpf:
    return x * mp.erfc(x) / mp.erf(x)


_TINY = mp.mpf(2) ** -40
_HALF_LN2, _QUARTER = mp.log(2) / 2 * mp.mpf("1.001"), mp.pi / 4 * mp.mpf("1.01")
_HALF, _LOG = mp.pi / 2 * mp.mpf("1.01"), (3 - 2 * mp.sqrt(2)) ** 2

FITS = {
    "EXPM1": Fit(
        "exp(r) = 1 + r + r^2 P(r) for |r| <= ln 2 / 2",
        _expm1, lambda r: abs(r), -_HALF_LN2, _HALF_LN2, (6, 11),
    ),
    "TANH": Fit(
        "tanh(x) = x + x^3 P(x^2) for |x| <= 0.55",
        *_odd(mp.tanh), _TINY, mp.mpf("0.305"), (5, 11),
    ),
    "SIN": Fit(
        "sin(r) = r + r^3 P(r^2) for |r| <= pi/2",
        _sin, lambda z: z, _TINY, _HALF**2, (4, 8),
    ),
    "TAN": Fit(
        "tan(r) = r + r^3 P(r^2) for |r| <= pi/4",
        *_odd(mp.tan), _TINY, _QUARTER**2, (6, 14),
    ),
    "LOG": Fit(
        "log((1 + s) / (1 - s)) = 2 s + s^3 P(s^2) for s^2 <= (3 - 2 sqrt 2)^2",
        _log, lambda z: z, _TINY, _LOG, (3, 7),
    ),
    "ATAN": Fit(
        "atan(t) = t + t^3 P(t^2) for |t| <= 1",
        *_odd(mp.atan), _TINY, mp.mpf(1), (9, 20),
    ),
    "ASIN": Fit(
        "asin(t) = t + t^3 P(t^2) for |t| <= 1/2",
        *_odd(mp.asin), _TINY, mp.mpf("0.25"), (5, 13),
    ),
    "ERFC": Fit(
        "erfc(x) = exp(-x^2) / (1 + 2 x) P((x - 4) / (x + 4)) for 0 <= x <= 28",
        _erfc, lambda t: 1 / _erfc(t), mp.mpf(-1), mp.mpf("0.75"), (0, 23),
    ),
    "LOG_LONG": Fit(
        "the same for pow, which needs more of it; the first coefficient is 2/3 and is used so",
        _log, lambda z: z, _TINY, _LOG, (0, 9),
    ),
}  # fmt: skip
ERF = (
    Fit("1 - erf(x) = exp(-x - x P(x)) for 0 <= x <= 4 (f32), 6 (f64)",
        _erf, _erf_weight, _TINY, mp.mpf(4), (9, 0)),
    Fit("", _erf, _erf_weight, _TINY, mp.mpf(6), (0, 24)),
)  # fmt: skip


def remez(fit: Fit, terms: int, rounds: int = 12, points: int = 1501) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients, lowest first, and the error reached; extrema are looked for on a Chebyshev grid."""
    centre, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
    grid = [centre - half * mp.cos(mp.pi * i / points) for i in range(points + 1)]
    target, weight = [fit.function(t) for t in grid], [fit.weight(t) for t in grid]
    chosen = [round(points * (i + 0.5) / (terms + 1)) for i in range(terms + 1)]
    for _ in range(rounds):
        rows = [
            [((grid[i] - centre) / half) ** k for k in range(terms)] + [(-1) ** n / weight[i]]
            for n, i in enumerate(chosen)
        ]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([target[i] for i in chosen]))
        scaled = list(solution)[:terms]
        error = [w * (mp.polyval(scaled[::-1], (t - centre) / half) - f) for t, f, w in zip(grid, target, weight)]
        chosen = _alternation(error, terms + 1)
    return _shifted(scaled, centre, half), max(abs(e) for e in error)


def _alternation(error: list[mp.mpf], count: int) -> list[int]:
    """The places of `count` extrema of alternating sign, among them the largest."""
    runs: list[int] = []
    for i, e in enumerate(error):
        if runs and (error[runs[-1]] >= 0) == (e >= 0):
            if abs(e) > abs(error[runs[-1]]):
                runs[-1] = i
        else:
            runs.append(i)
    while len(runs) > count:
        runs.pop(0 if abs(error[runs[0]]) < abs(error[runs[-1]]) else -1)
    return runs


def _shifted(scaled: list[mp.mpf], centre: mp.mpf, half: mp.mpf) -> list[mp.mpf]:
    """Coefficients of t of a polynomial of (t - centre) / half."""
    result = [mp.mpf(0)]
    for c in reversed(scaled):
        grown = [mp.mpf(0), *(r / half for r in result)]
        for i, r in enumerate(result):
            grown[i] -= r * centre / half
        grown[0] += c
        result = grown
    return result[: len(scaled)]


def rounded(fit: Fit, terms: int, dtype: type) -> tuple[list[mp.mpf], mp.mpf]:
    """Of f32: coefficients are rounded one by one, lowest first, and the rest fitted again to make up for it."""
    coefficients: list[mp.mpf] = []
    if dtype is np.float64 or fit.low < 0:  # their rounding counts less than that of the evaluation
        return remez(fit, terms)
    while len(coefficients) < terms:
        rest, error = remez(_without(fit, coefficients), terms - len(coefficients))
        coefficients.append(mp.mpf(float(dtype(float(rest[0])))))
    return coefficients, error


def _without(fit: Fit, known: list[mp.mpf]) -> Fit:
    """The fit of the rest of the polynomial: P = known + t^n Q, so Q's error weighs t^n as much."""
    n = len(known)
    return replace(
        fit,
        function=lambda t: (fit.function(t) - mp.polyval(known[::-1], t)) / t**n if n else fit.function(t),
        weight=lambda t: fit.weight(t) * abs(t) ** n,
    )


def _row(name: str, fit: Fit, terms: int, dtype: type) -> str:
    coefficients, error = rounded(fit, terms, dtype)
    numbers = "".join(f"    {float(dtype(float(c)))!r},\n" for c in coefficients)
    bits = np.dtype(dtype).name.replace("float", "F")
    return f"{name}_{bits} = (  # error 2^{float(mp.log(error, 2)):.1f}\n{numbers})\n"


def main() -> None:
    print('"""Coefficients of the polynomials of `runtime/cpu/math.py`, lowest first. Printed by `runtime/cpu/math_fit.py`."""\n')
    for name, fit in FITS.items():
        print(f"# {fit.meaning}")
        print("".join(_row(name, fit, n, t) for n, t in zip(fit.terms, (np.float32, np.float64)) if n))
    print(f"# {ERF[0].meaning}")
    print(_row("ERF", ERF[0], ERF[0].terms[0], np.float32) + _row("ERF", ERF[1], ERF[1].terms[1], np.float64), end="")


if __name__ == "__main__":
    main()
