"""ONNX's Resize and Upsample: along each dimension an element is a sum of elements times weights. Which and how much, sizes say:
these are tables of the program."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.outside.onnx_compute import number
from tests.outside.onnx_table import Node, expressed
from tilec.torch.program import Graph, Tensor, Unsupported


@expressed("Resize")
def resize(g: Graph, n: Node) -> Tensor:
    x, out = n.x(0), n.shape()
    axes = [a % len(x.shape) for a in n.attribute("axes") or range(len(x.shape))]
    roi, scales = (np.asarray(v) if (v := n.parameter(k)) is not None and np.size(v) else None for k in (1, 2))
    if scales is None:
        factors = {a: out[a] / x.shape[a] for a in axes}
        policy = n.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            sizes = dict(zip(axes, n.parameter(3).tolist()))
            ratio = (min if policy == "not_larger" else max)(sizes[a] / x.shape[a] for a in axes)
            factors = dict.fromkeys(axes, ratio)
    else:
        factors = {a: float(s) for a, s in zip(axes, scales)}
    regions = {a: (0.0, 1.0) if roi is None else (float(roi[k]), float(roi[len(axes) + k])) for k, a in enumerate(axes)}
    for axis in axes:
        if factors[axis] != 1 or x.shape[axis] != out[axis] or regions[axis] != (0, 1):
            x = _along(g, n, x, axis, out[axis], factors[axis], regions[axis])
    return g.map("{0}", x, dtype=n.dtype())


@expressed("Upsample")
def upsample(g: Graph, n: Node) -> Tensor:
    x = n.x()
    if n.attribute("mode", "nearest") != "nearest":
        raise Unsupported("Upsample: of an old operator set, which nothing defines but for the nearest element")
    return g.view(x, n.shape(), lambda i: [f"{s} * {have} // {want}" for s, have, want in zip(i, x.shape, n.shape())])


def _along(g: Graph, n: Node, x: Tensor, axis: int, count: int, scale: float, region: tuple[float, float]) -> Tensor:
    size, mode = x.shape[axis], n.attribute("mode", "nearest")
    centres = _positions(n, size, count, scale, region)
    outside = (centres < 0) | (centres > size - 1)
    if mode == "nearest":
        at, weights = _nearest(centres, n.attribute("nearest_mode", "round_prefer_floor"))[:, None], np.ones((count, 1))
    else:
        at, weights = _neighbours(n, centres, scale, mode)
    if n.attribute("exclude_outside", 0):
        weights = np.where((at < 0) | (at >= size), 0, weights)
        weights /= weights.sum(1, keepdims=True)
    wide = "f64" if x.dtype == "f64" else "f32"
    taps, at = at.shape[1], np.clip(at, 0, size - 1)
    places, shares = g.input(at), g.input(weights.astype(np.float64 if wide == "f64" else np.float32))
    shape = [count if d == axis else e for d, e in enumerate(x.shape)]
    here = f"i{axis}"

    def element(tap: str) -> str:
        return x.at(*(places.at(here, tap) if d == axis else f"i{d}" for d in range(len(shape))))

    if n.attribute("coordinate_transformation_mode") == "tf_crop_and_resize" and outside.any():
        gone, value = g.input(outside), number(n.attribute("extrapolation_value", 0.0))
        after = f"{value} if {gone.at(here)} else "
    else:
        after = ""
    if mode == "nearest":
        return g.emit(shape, x.dtype, lambda i: after + element("0"))
    return g.emit(shape, wide, lambda i: f"{after}sum[t in 0:{taps}]({wide}({element('t')}) * {shares.at(here, 't')})")


def _positions(n: Node, size: int, count: int, scale: float, region: tuple[float, float]) -> np.ndarray:
    """Where the elements of the result lie in the operand."""
    here, wide, (begin, end) = np.arange(count, dtype=np.float64), scale * size, region
    kind = n.attribute("coordinate_transformation_mode", "half_pixel")
    if kind == "align_corners":
        return here * 0 if wide == 1 else here * (size - 1) / (wide - 1)
    if kind == "asymmetric":
        return here / scale
    if kind == "tf_crop_and_resize":
        steps = here * 0 + 0.5 if wide == 1 else here / (wide - 1)
        return (begin + steps * (end - begin)) * (size - 1)
    if kind == "pytorch_half_pixel" and wide == 1:
        return here * 0 - 0.5
    off = size / 2 * (1 - count / wide) if kind == "half_pixel_symmetric" else 0.0
    return off + (here + 0.5) / scale - 0.5


def _nearest(centres: np.ndarray, mode: str) -> np.ndarray:
    halves = {"round_prefer_floor": np.ceil(centres - 0.5), "round_prefer_ceil": np.floor(centres + 0.5)}
    rounded: Any = halves.get(mode, np.floor(centres) if mode == "floor" else np.ceil(centres))
    return rounded.astype(np.int64)


def _neighbours(n: Node, centres: np.ndarray, scale: float, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights by the distance: a triangle, or cubic convolution. Where it is to be smooth, what is made smaller has
    wider ones."""
    wide = min(1.0, scale) if n.attribute("antialias", 0) else 1.0
    reach = (2 if mode == "cubic" else 1) / wide
    first = int(np.floor(-reach) + 1)
    begin = np.floor(centres).astype(np.int64)
    at = begin[:, None] + np.arange(first, 2 - first)[None]
    off = np.abs(at - centres[:, None]) * wide
    if mode == "linear":
        weights = np.clip(1 - off, 0, None)
    else:
        a = n.attribute("cubic_coeff_a", -0.75)
        near, far = ((a + 2) * off - (a + 3)) * off * off + 1, ((a * off - 5 * a) * off + 8 * a) * off - 4 * a
        weights = np.where(off <= 1, near, np.where(off < 2, far, 0))
    return at, weights / weights.sum(1, keepdims=True) if wide < 1 else weights
