"""Resampling with antialiasing: sums of all elements near a position, by weights that depend on distances alone.

    y[i] = sum[j](w[i, j] * x[j]) / sum[j](w[i, j])        w[i, j] = filter(|b (2 j + 1) - a (2 i + 1)| / (2 max(a, b)))

A position in the input is a / b of one in the result: a filter reaches over as many elements as one of the result stands for. One
dimension follows the other; the gradient has the same weights, from the other side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tilec.core.dtypes import DTYPES
from tilec.torch.aten.resampling import cubic_weights, inside, scales
from tilec.torch.aten.table import Call, expresses
from tilec.torch.aten.windows import counted, summed
from tilec.torch.indices import Index
from tilec.torch.program import Graph, Tensor, Unsupported

CUBIC = -0.5
"""The slope at distance 1 of the cubic convolution with antialiasing."""


@dataclass(frozen=True)
class _Filter:
    reach: int  # where it becomes 0
    weight: Callable[[str], str]  # at a distance


def _cubic(distance: str) -> str:
    """Weights of what is up to 1 and up to 2 apart are those of the second and the first neighbour of a position."""
    _, near, _, _ = cubic_weights(f"({distance})", CUBIC)
    far, *_ = cubic_weights(f"({distance} - 1)", CUBIC)
    return f"({near} if {distance} < 1 else {far} if {distance} < 2 else 0)"


FILTERS = {"bilinear": _Filter(1, lambda distance: f"max(1 - {distance}, 0)"), "bicubic": _Filter(2, _cubic)}


@dataclass(frozen=True)
class _Near:
    """The elements j of `extent` that a filter reaches from elements i of `count`."""

    count: int
    extent: int
    a: int
    b: int
    filter: _Filter

    @property
    def transposed(self) -> _Near:
        return _Near(self.extent, self.count, self.b, self.a, self.filter)

    @property
    def most(self) -> int:
        return min(self.extent, -(-2 * self.filter.reach * max(self.a, self.b) // self.b) if self.b else self.extent)

    def at(self, i: Index, t: Index) -> Index:
        """The element t of those of i. It may be outside."""
        if self.most == self.extent:
            return t
        first = (i * (2 * self.a) + (self.a - self.b - 2 * self.filter.reach * max(self.a, self.b))) // (2 * self.b) + 1
        return first + t

    def weights(self, graph: Graph, dtype: str) -> Tensor:
        """Of each element of `count` and of those near it; 0 outside."""

        def weight(at: list[Index]) -> str:
            i, j = at[0], self.at(*at)
            distance = j * (2 * self.b) - i * (2 * self.a) + (self.b - self.a)
            text = self.filter.weight(f"({dtype}(abs({distance.sum_text()})) / {float(2 * max(self.a, self.b))})")
            low, high = j.range
            tests = [f"{j.sum_text()} >= 0"] * (low < 0) + [f"{j.sum_text()} < {self.extent}"] * (high >= self.extent)
            return f"{text} if {' and '.join(tests)} else 0" if tests else text

        return graph.emit((self.count, self.most), dtype, weight)


def _near(call: Call, before: tuple[int, ...], after: tuple[int, ...], filter: _Filter) -> list[_Near]:
    """Of each dimension the elements of the input that are near those of the result."""
    found = []
    for n, m, s in zip(before, after, scales(call, before)):
        if call["align_corners"]:
            ratio = Fraction(n - 1, m - 1) if m > 1 else Fraction(0)
        else:
            ratio = Fraction(1 / s).limit_denominator(1 << 16) if s else Fraction(n, m)
        found.append(_Near(m, n, ratio.numerator, ratio.denominator, filter))
    return found


def _sums(graph: Graph, weights: Tensor, dtype: str) -> Tensor:
    """Of each element's weights."""
    count, most = weights.shape
    t, over = counted(["t0"], [most])
    return graph.emit((count,), dtype, lambda i: summed(over, weights.at(*i, *t)))


def _summed(call: Call, x: Tensor, axis: int, near: _Near, weights: Tensor, dtype: str) -> Tensor:
    """Along one dimension. What has no weight takes no part, whatever it is."""
    shape = tuple(near.count if d == axis else n for d, n in enumerate(x.shape))
    (t,), over = counted(["t0"], [near.most])

    def expression(i: list[Index]) -> str:
        weight = weights.at(i[axis], t)
        element = x.at(*i[:axis], inside(near.at(i[axis], t), near.extent), *i[axis + 1 :])
        return summed(over, f"({weight} * {element} if {weight} != 0 else 0)")

    return call.graph.emit(shape, dtype, expression)


def _resampled(call: Call, x: Tensor, near: list[_Near], backward: bool) -> Tensor:
    if not DTYPES[x.dtype].is_float:
        raise Unsupported(f"{call.name} of integers")
    wide = "f64" if x.dtype == "f64" else "f32"
    axes = [d for d, each in enumerate(near) if each.a != each.b or each.count != each.extent]
    axes.sort(key=lambda d: Fraction(near[d].count, near[d].extent), reverse=backward)  # what makes it smaller comes first
    for axis in axes:
        each = near[axis]
        raw = each.weights(call.graph, wide)
        sums = _sums(call.graph, raw, wide)
        if backward:
            each = each.transposed
            raw = each.weights(call.graph, wide)

        def normal(i: list[Index], raw: Tensor = raw, sums: Tensor = sums, each: _Near = each) -> str:
            of = inside(each.at(*i), each.extent) if backward else i[0]
            return f"{raw.at(*i)} / {sums.at(of)}"

        weights = call.graph.emit(raw.shape, wide, normal)
        x = _summed(call, x, axis + 2, each, weights, wide)
    return call.emit(call.shape, call.dtype, lambda i: x.at(*i))


@expresses("_upsample_bilinear2d_aa _upsample_bicubic2d_aa")
def antialiased(call: Call) -> Tensor:
    x = call["input"] if "input" in call else call["self"]
    return _resampled(call, x, _near(call, x.shape[2:], call.shape[2:], _filter(call)), False)


@expresses("_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward")
def antialiased_backward(call: Call) -> Tensor:
    gradient = call["grad_output"]
    return _resampled(call, gradient, _near(call, call.shape[2:], gradient.shape[2:], _filter(call)), True)


def _filter(call: Call) -> _Filter:
    return next(f for name, f in FILTERS.items() if name in call.name)


__all__ = ["antialiased", "antialiased_backward"]
