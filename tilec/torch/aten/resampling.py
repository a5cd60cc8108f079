"""Resampling: nearest, linear and cubic, by whole-number arithmetic where scales are ratios."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np

from tilec.torch import indices as ix
from tilec.torch.aten.table import SUMS, Call, expresses
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported


def scales(call: Call, spatial: tuple[int, ...]) -> list[float | None]:
    """How many times larger the result is, where the call says it."""
    given = call.get("scale_factors")
    if given is None:
        names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}[len(spatial)]
        given = [call.get(n) for n in names]
    return [None if s is None else float(s) for s in given]


@expresses("upsample_nearest1d upsample_nearest2d upsample_nearest3d", whole=SUMS)
@expresses("_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d", whole=SUMS)
def nearest(call: Call) -> Tensor:
    x = call["input"] if "input" in call else call["self"]
    spatial, half = x.shape[2:], 0.5 if "exact" in call.name else 0.0
    chosen = []
    for n, m, s in zip(spatial, call.shape[2:], scales(call, spatial)):
        by = np.float32(1 / s) if s else np.float32(n) / np.float32(m)
        theirs = np.minimum(np.floor((np.arange(m, dtype=np.float32) + np.float32(half)) * by), n - 1).astype(np.int64)
        doubled = int(2 * half)
        mine = np.minimum((2 * np.arange(m) + doubled) * n // (2 * m), n - 1)
        if (theirs != mine).any():
            raise Unsupported("nearest elements by a scale that is no ratio of the sizes")
        chosen.append(lambda p, n=n, m=m, doubled=doubled: (p * (2 * n) + doubled * n) // (2 * m))
    return x.seen(call.shape, lambda i: [*i[:2], *(at(p) for at, p in zip(chosen, i[2:]))])


def ratios(call: Call, spatial: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """For each dimension three numbers: of element i of the result the position is (i * first + second) / third."""
    found = []
    for n, m, s in zip(spatial, call.shape[2:], scales(call, spatial)):
        if call["align_corners"]:
            found.append((n - 1, 0, max(m - 1, 1)))
            continue
        by = Fraction(1 / s).limit_denominator(1 << 16) if s else Fraction(n, m)
        found.append((2 * by.numerator, by.numerator - by.denominator, 2 * by.denominator))
    return found


Neighbours = Callable[[Index, str], list[tuple[int, str]]]


def _interpolated(call: Call, neighbours: Neighbours) -> Tensor:
    """Sums of neighbours, of which those outside are the last ones inside. The position of an element in each dimension is a ratio:
    its whole part chooses, and its rest weighs, by which `neighbours` tells steps from there with weights."""
    x = call["input"] if "input" in call else call["self"]
    spatial = x.shape[2:]
    wide = "f64" if x.dtype == "f64" else "f32"

    def expression(i: list[Index]) -> str:
        taps = []
        for p, n, (factor, offset, over) in zip(i[2:], spatial, ratios(call, spatial)):
            position = p * factor + offset
            begin, rest = position // over, position % over
            if n == 1 or rest.constant == 0:
                taps.append([(inside(begin, n), "")])
                continue
            found = neighbours(position, f"{wide}({rest.sum_text()}) / {float(over)}")
            taps.append([(inside(begin + step, n), weight) for step, weight in found])
        return _weighed(x, i, taps)

    return call.emit(call.shape, call.dtype, expression)


@expresses("upsample_linear1d upsample_bilinear2d upsample_trilinear3d")
def linear(call: Call) -> Tensor:
    """Between two neighbours in each dimension."""

    def neighbours(position: Index, share: str) -> list[tuple[int, str]]:
        if not position.at_least(0):  # before the first element: the first element
            share = f"({share} if {position.sum_text()} > 0 else 0)"
        return [(0, f"(1 - {share})"), (1, f"({share})")]

    return _interpolated(call, neighbours)


def _weighed(x: Tensor, i: list[Index], taps: list[list[tuple[Index, str]]]) -> str:
    """The sum of elements times weights, of each choice of a position in each dimension."""
    parts = []
    for chosen in product(*taps):
        weights = [w for _, w in chosen if w]
        parts.append(" * ".join([*weights, x.at(*i[:2], *(at for at, _ in chosen))]))
    return " + ".join(parts)


CUBIC = -0.75
"""The slope at distance 1 of the cubic convolution that PyTorch has."""


def cubic_weights(t: str, a: float) -> list[str]:
    """Weights of the four neighbours of a position that is `t` behind the second of them (Keys, "Cubic convolution interpolation
    for digital image processing", 1981), as polynomials of t."""
    rest = f"(1 - {t})"
    far = lambda s: f"(({a} * {s} + {-2 * a}) * {s} + {a}) * {s}"  # noqa: E731
    near = lambda s: f"((({a + 2} * {s} - {a + 3}) * {s}) * {s} + 1)"  # noqa: E731
    return [f"({far(t)})", near(t), near(rest), f"({far(rest)})"]


@expresses("upsample_bicubic2d")
def cubic(call: Call) -> Tensor:
    """Between four neighbours in each dimension."""
    return _interpolated(call, lambda _, share: [*zip((-1, 0, 1, 2), cubic_weights(f"({share})", CUBIC))])


def inside(position: Index, extent: int) -> Index:
    if position.fits(extent):
        return position
    return ix.element(f"clamp({position.sum_text()}, 0, {extent - 1})", (0, extent - 1))
