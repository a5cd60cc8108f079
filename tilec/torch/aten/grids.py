"""Sampling of images at positions that are data (`grid_sample`): nearest, linear between two neighbours in each dimension, or cubic
between four."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from tilec.torch import indices as ix
from tilec.torch.aten import costs
from tilec.torch.aten.resampling import CUBIC, cubic_weights
from tilec.torch.aten.table import Call, expresses
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported

LINEAR, NEAREST = 0, 1  # of PyTorch's numbers for interpolations; cubic is the third
ZEROS, BORDER = 0, 1  # and for what is outside; reflection is the third


def _reflected(text: str, wide: str, low: float, high: float) -> str:
    """A position mirrored at both ends until it is between them."""
    span = high - low
    if not span:
        return f"{wide}(0)"
    off = f"abs({text} - {low})"
    return f"({low} + {off} % {span} if {off} // {span} % 2 == 0 else {high} - {off} % {span})"


def _padded(text: str, wide: str, extent: int, mode: int, corners: bool) -> str:
    """A position as the mode for what is outside has it. One far outside stays outside, and finite: it has weights."""
    if mode == ZEROS:
        return f"clamp({text}, -2, {extent + 1})"
    if mode != BORDER:
        text = _reflected(text, wide, *((0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)))
    return f"clamp({text}, 0, {extent - 1})"


@expresses("grid_sampler_2d grid_sampler_3d")
def grid_sampler(call: Call) -> Tensor:
    x, grid = call["input"], call["grid"]
    kind, mode, corners = (int(call[n]) for n in ("interpolation_mode", "padding_mode", "align_corners"))
    spatial, wide = x.shape[2:], "f64" if grid.dtype == "f64" else "f32"
    rank = len(spatial)
    if not costs.reads_pay(call.device, prod(call.shape) * (1 if kind == NEAREST else 2 if kind == LINEAR else 4) ** rank):
        raise Unsupported(f"{call.name}: as many samples as PyTorch's kernel reads in vectors")
    x = call.graph.solid(x, range(2, 2 + rank))

    def position(d: int) -> Callable[[list[Index]], str]:
        """Positions in dimension d: -1 and 1 are the centres of the outermost elements, or their outer edges."""
        n = spatial[d]

        def text(i: list[Index]) -> str:
            given = f"{wide}({grid.at(*i, ix.number(rank - 1 - d))})"
            at = f"(({given} + 1) * {(n - 1) / 2})" if corners else f"((({given} + 1) * {n} - 1) * 0.5)"
            return at if kind not in (LINEAR, NEAREST) else _padded(at, wide, n, mode, bool(corners))

        return text

    positions = [call.graph.emit(grid.shape[:-1], wide, position(d)) for d in range(rank)]

    def taps(d: int, i: Sequence[Index]) -> list[tuple[str, str]]:
        """Positions in dimension d that are read, and their weights."""
        at = positions[d].at(i[0], *i[2:])
        if kind == NEAREST:
            return [(f"i64(round({at}))", "")]
        if kind == LINEAR:
            begin, share = f"i64(floor({at}))", f"({at} - floor({at}))"
            return [(begin, f"(1 - {share})"), (f"{begin} + 1", share)]
        weights = cubic_weights(f"({at} - floor({at}))", CUBIC)
        found = [_padded(f"(floor({at}) + {t})", wide, spatial[d], mode, bool(corners)) for t in (-1, 0, 1, 2)]
        return [(f"i64({p})", w) for p, w in zip(found, weights)]

    def expression(i: list[Index]) -> str:
        parts = []
        for chosen in product(*(taps(d, i) for d in range(rank))):
            element = f"pad({x.at(i[0], i[1], *(ix.opaque(p) for p, _ in chosen))}, 0)"
            parts.append(" * ".join([element, *(w for _, w in chosen if w)]))
        return " + ".join(parts)

    return call.emit(call.shape, call.dtype, expression)
