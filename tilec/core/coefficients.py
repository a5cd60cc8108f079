"""Coefficients of the polynomials that quick functions are computed by, and what printed kernels call them.

A kernel says `fma_f32(COS_NEAR_4, t, COS_NEAR_3)`, not `fma_f32(float32(2.4117243810906075e-05), t, ...)`: the number of a
coefficient is the power that it belongs to.
"""

from __future__ import annotations

import math

import numpy as np

LOG1P = (0.9999915957450867, -0.4993613362312317, 0.3252065181732178, -0.21004821360111237, 0.10122176259756088,
         -0.023868946358561516)  # fmt: skip
"""log1p(x) = x P(x) on [0, 1], relative error 2^-16.9; `math_fit.remez` of log1p(x) / x with weight x / log1p(x)."""

LOG1P_NEAR = (0.9999938011169434, -0.49998900294303894, 0.33649423718452454, -0.25311529636383057)
"""The same on [-1/8, 1/8], 2^-17.3."""
EXPM1_NEAR = (0.9999361038208008, 0.5000540018081665, 0.1687484234571457, 0.04166799411177635)
"""expm1(x) = x P(x) on [-1/2, 1/2], 2^-13.9."""
ERF = (
    (1.1283810138702393, 0.1539735645055771, 0.04328145831823349, 0.0007540623773820698),
    (1.0, 0.46982717514038086, 0.09481695294380188, 0.009328929707407951),
)
"""erf(x) = x P(x^2) / Q(x^2) on [-3.2, 3.2], 2^-17: a linearised fit, weighted by its error again and again (Lawson)."""
LARGER = 24.0
_ERFC = (0.27992749214172363, 0.3107096552848816, 0.10957908630371094, 0.46997299790382385, -0.17010925710201263)
ERFC = tuple(c * 2.0**-LARGER for c in _ERFC)
"""2^-24 of the coefficients of erfc(x) = exp(-x^2) t P(t) for x >= 0, t = 1 / (1 + x / 2), relative error 2^-13.6: likewise.
After Abramowitz & Stegun, 7.1.26, who have the absolute error small instead. The factor keeps subnormal results: the
exponential that they meet is as much larger."""

LOG2_NEAR = (0.7213475108146667, -0.360664427280426, 0.24043580889701843, -0.182714581489563, 0.1466514617204666)
"""log2(1 + x) / 2 = x P(x) on [-1/8, 1/8], 2^-21.5."""
COS = {
    "near": (1.0, -0.4999999701976776, 0.041666459292173386, -0.001388293458148837, 2.4117243810906075e-05),  # 2^-30
    "nearly": (1.0, -0.49934297800064087, 0.039682045578956604),  # 2^-13.7
}
"""cos(x) = P(x^2) for |x| <= 1 + 2^-10, relative errors; as `ERF`."""
SIN = {
    "near": (1.0, -0.1666661500930786, 0.008330230601131916, -0.00019312239601276815),  # 2^-25.1
    "nearly": (1.0, -0.16657979786396027, 0.00805743783712387),  # 2^-16.8
}
"""sin(x) = x P(x^2), likewise: a product keeps the sign of a zero."""

_TABLES = {
    "LOG1P": LOG1P, "LOG1P_NEAR": LOG1P_NEAR, "EXPM1_NEAR": EXPM1_NEAR, "ERF_P": ERF[0], "ERF_Q": ERF[1], "ERFC": ERFC,
    "LOG2_NEAR": LOG2_NEAR, **{f"COS_{k.upper()}": c for k, c in COS.items()}, **{f"SIN_{k.upper()}": c for k, c in SIN.items()},
}  # fmt: skip
_SHORT = 1 << 16  # of which the bits of 1.0 and of -0.5 are multiples


def _named() -> dict[str, np.float32]:
    found = {f"{name}_{n}": np.float32(c) for name, table in _TABLES.items() for n, c in enumerate(table)}
    found |= {"LOG2_E": np.float32(math.log2(math.e)), "HALF_LOG2_E": np.float32(math.log2(math.e) / 2)}
    found["LN_2"] = np.float32(math.log(2))
    return {name: value for name, value in found.items() if int(value.view(np.uint32)) % _SHORT}


NAMED = _named()
"""The f32 constants that have a name; not those that a number says as well, as 1 and -1/2."""
_NAMES = {float(value): name for name, value in reversed(NAMED.items())}


def name_of(value: float) -> str | None:
    """The name of an f32 in kernels, if it has one."""
    return _NAMES.get(float(np.float32(value)))
