"""ONNX operators that PyTorch has as well: they are equations by the translator table of the back end."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tests.outside.onnx_table import Node, expressed
from tests.outside.traced import by_torch
from tilec.torch.program import Graph, Tensor, Unsupported


def through(g: Graph, call: Callable[..., Any], *operands: Tensor) -> Tensor:
    (made,) = by_torch(g, call, *operands)
    return made


@expressed("GridSample")
def grid_sample(g: Graph, n: Node) -> Tensor:
    import torch.nn.functional as F

    mode = n.attribute("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    outside, corners = n.attribute("padding_mode", "zeros"), bool(n.attribute("align_corners", 0))
    return through(g, lambda x, grid: F.grid_sample(x, grid, mode, outside, corners), n.x(0), n.x(1))


@expressed("ConvTranspose")
def transposed_convolution(g: Graph, n: Node) -> Tensor:
    """All of the sums, and of these what is inside of the pads."""
    import torch
    import torch.nn.functional as F

    x, w, out = n.x(0), n.x(1), n.shape()
    rank = len(x.shape) - 2
    strides, dilations = (n.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    extra = n.attribute("output_padding") or [0] * rank
    whole = [(a - 1) * s + (k - 1) * d + 1 for a, s, k, d in zip(x.shape[2:], strides, w.shape[2:], dilations)]
    auto, pads = n.attribute("auto_pad", "NOTSET"), n.attribute("pads") or [0] * 2 * rank
    if auto in ("SAME_UPPER", "SAME_LOWER") or n.attribute("output_shape"):
        total = [max(0, have + e - m) for have, e, m in zip(whole, extra, out[2:])]
        pads = [t // 2 if auto != "SAME_LOWER" else t - t // 2 for t in total]

    def call(x: Any, w: Any, bias: Any = None) -> Any:
        y = torch.conv_transpose2d if rank == 2 else torch.conv_transpose1d if rank == 1 else torch.conv_transpose3d
        y = y(x, w, stride=strides, dilation=dilations, groups=n.attribute("group", 1))
        for d, (begin, count, have) in enumerate(zip(pads, out[2:], whole), 2):
            y = y.narrow(d, begin, min(count, have - begin))
        y = F.pad(y, [v for d in reversed(range(2, rank + 2)) for v in (0, out[d] - y.shape[d])])
        return y if bias is None else y + bias.reshape(-1, *[1] * rank)

    return through(g, call, *n.all())


@expressed("TopK")
def top_k(g: Graph, n: Node) -> list[Tensor]:
    import torch

    count = int(np.asarray(n.parameter(1)).reshape(-1)[0]) if 1 in n else n.attribute("k")
    axis, largest = n.attribute("axis", -1), bool(n.attribute("largest", 1))
    return by_torch(g, lambda x: torch.topk(x, count, axis, largest), n.x(0))


REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@expressed("ScatterElements", "Scatter")
def scatter(g: Graph, n: Node) -> Tensor:
    import torch

    kind = n.attribute("reduction", "none")

    def call(x: Any, index: Any, updates: Any) -> Any:
        axis = n.attribute("axis", 0) % x.dim()
        index = torch.where(index < 0, index + x.shape[axis], index).long()
        if kind == "none":
            return x.scatter(axis, index, updates)
        return x.scatter_reduce(axis, index, updates, REDUCED[kind])

    return through(g, call, *n.all())


@expressed("ScatterND")
def scatter_nd(g: Graph, n: Node) -> Tensor:
    import torch

    kind = n.attribute("reduction", "none")

    def call(x: Any, index: Any, updates: Any) -> Any:
        depth = index.shape[-1]
        rows, places = prod(x.shape[:depth]), torch.zeros(index.shape[:-1], dtype=torch.int64)
        for d in range(depth):
            at = index[..., d].long()
            places = places * x.shape[d] + torch.where(at < 0, at + x.shape[d], at)
        flat, places, updates = x.reshape(rows, -1), places.reshape(-1), updates.reshape(places.numel(), -1)
        if kind == "none":
            return flat.index_copy(0, places, updates).reshape(x.shape)
        if kind == "add":
            return flat.index_add(0, places, updates).reshape(x.shape)
        return flat.index_reduce(0, places, updates, REDUCED[kind]).reshape(x.shape)

    return through(g, call, *n.all())


@expressed("MaxUnpool")
def max_unpool(g: Graph, n: Node) -> Tensor:
    """Positions count in the whole tensor, of the shape that the windows give."""
    import torch
    import torch.nn.functional as F

    kernel, out = n.attribute("kernel_shape"), n.shape()
    rank = len(kernel)
    strides, pads = n.attribute("strides") or [1] * rank, n.attribute("pads") or [0] * 2 * rank

    def call(x: Any, index: Any) -> Any:
        spatial = [(x.shape[2 + d] - 1) * strides[d] - pads[d] - pads[rank + d] + kernel[d] for d in range(rank)]
        shape = [*x.shape[:2], *spatial]
        y = torch.zeros(prod(shape), dtype=x.dtype).scatter(0, index.reshape(-1), x.reshape(-1)).reshape(shape)
        return F.pad(y, [v for d in reversed(range(len(shape))) for v in (0, out[d] - shape[d])])

    return through(g, call, n.x(0), n.x(1))


@expressed("DeformConv")
def deformable_convolution(g: Graph, n: Node) -> Tensor:
    """A sum of products of weights with samples at positions that are data."""
    import torch
    import torch.nn.functional as F

    w = n.x(1)
    kernel, groups, shared = w.shape[2:], n.attribute("group", 1), n.attribute("offset_group", 1)
    if len(kernel) != 2:
        raise Unsupported("DeformConv: ONNX defines no more than two dimensions")
    strides, dilations = (n.attribute(k) or [1, 1] for k in ("strides", "dilations"))
    pads, out = n.attribute("pads") or [0] * 4, n.shape()[2:]

    def call(x: Any, w: Any, offset: Any, *rest: Any) -> Any:
        bias = rest[0] if 3 in n else None
        mask = rest[-1] if 4 in n else None
        batch, taps = x.shape[0], prod(kernel)
        offset = offset.reshape(batch, shared, taps, 2, *out)
        at = []
        for d, (k, e, s, p) in enumerate(zip(kernel, dilations, strides, pads)):
            tap = torch.arange(taps) // kernel[1] if d == 0 else torch.arange(taps) % k
            place = (torch.arange(out[d]) * s - p).reshape([-1, 1] if d == 0 else [1, -1])
            at.append(offset[:, :, :, d] + place + (tap * e).reshape(-1, 1, 1))
        grid = [2 * a / (size - 1) - 1 for a, size in zip(at, x.shape[2:])]
        each, columns = x.shape[1] // shared, []
        for k in range(shared):
            places = torch.stack([grid[1][:, k], grid[0][:, k]], -1).reshape(batch, taps * out[0], out[1], 2)
            part = F.grid_sample(x[:, k * each : (k + 1) * each], places.to(x.dtype), align_corners=True)
            part = part.reshape(batch, each, taps, *out)
            columns.append(part if mask is None else part * mask.reshape(batch, shared, 1, taps, *out)[:, k])
        found = torch.cat(columns, 1).reshape(batch, groups, -1, prod(out))
        weights = w.reshape(groups, w.shape[0] // groups, -1)
        y = torch.einsum("gok,bgkp->bgop", weights, found).reshape(batch, w.shape[0], *out)
        return y if bias is None else y + bias.reshape(-1, 1, 1)

    return through(g, call, *n.all())


@expressed("RoiAlign")
def roi_align(g: Graph, n: Node) -> Tensor:
    """Means or largest ones of samples in parts of regions."""
    import torch

    out = n.shape()[2:]
    count = n.attribute("sampling_ratio", 0)
    if count <= 0:
        raise Unsupported("RoiAlign: as many samples as the data say")
    scale = n.attribute("spatial_scale", 1.0)
    half = n.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"

    def call(x: Any, rois: Any, images: Any) -> Any:
        off, axes, sizes = (0.5 if half else 0.0), [], x.shape[2:]
        inside: Any = None
        for d, column in ((0, 1), (1, 0)):
            begin, end = rois[:, column] * scale - off, rois[:, column + 2] * scale - off
            extent = end - begin if half else torch.clamp(end - begin, min=1.0)
            part = extent / out[d]
            steps = torch.arange(out[d])[:, None] + (torch.arange(count) + 0.5)[None] / count
            at = begin[:, None] + part[:, None] * steps.reshape(1, -1).to(x.dtype)
            good = (at >= -1) & (at <= sizes[d])
            at = at.clamp(0, sizes[d] - 1)
            low = at.floor().clamp(max=sizes[d] - 1).long()
            share = at - low
            axes.append([(low, 1 - share), ((low + 1).clamp(max=sizes[d] - 1), share)])
            good = good[:, :, None] if d == 0 else good[:, None, :]
            inside = good if inside is None else inside & good
        parts = []
        for row, high in axes[0]:
            for column, wide in axes[1]:
                found = x[images[:, None, None], :, row[:, :, None], column[:, None, :]]
                parts.append(found * (high[:, :, None] * wide[:, None, :] * inside)[..., None])
        if n.attribute("mode", "avg") == "avg":
            samples = parts[0] + parts[1] + parts[2] + parts[3]
        else:
            samples = torch.maximum(torch.maximum(parts[0], parts[1]), torch.maximum(parts[2], parts[3]))
        samples = samples.reshape(samples.shape[0], out[0], count, out[1], count, -1)
        found = samples.mean((2, 4)) if n.attribute("mode", "avg") == "avg" else samples.amax((2, 4))
        return found.permute(0, 3, 1, 2)

    return through(g, call, *n.all())


LARGEST_MATRIX = 4  # whose determinant is written out: 24 products


@expressed("Det")
def determinant(g: Graph, n: Node) -> Tensor:
    size = n.x().shape[-1]
    if size > LARGEST_MATRIX:
        raise Unsupported("Det: elimination, of which each step reads the step before, is no equation of an element")

    def minor(x: Any, row: int, columns: tuple[int, ...]) -> Any:
        if not columns:
            return 1
        total = 0
        for k, c in enumerate(columns):
            total = total + (-1) ** k * x[..., row, c] * minor(x, row + 1, columns[:k] + columns[k + 1 :])
        return total

    return through(g, lambda x: minor(x, 0, tuple(range(size))), n.x())


# ---- training --------------------------------------------------------------------------------------------------------


def _each(n: Node, states: int) -> list[list[Tensor]]:
    """The operands of each tensor that is trained: the tensor, its gradient, and what is kept of it."""
    given = n.all()[2:]
    count = len(given) // (2 + states)
    return [given[k::count] for k in range(count)]


def _trained(g: Graph, n: Node, states: int, call: Callable[..., Any]) -> list[Tensor]:
    made = [by_torch(g, call, n.x(0), n.x(1), *operands) for operands in _each(n, states)]
    return [tensor for kind in zip(*made) for tensor in kind]


@expressed("Momentum")
def momentum(g: Graph, n: Node) -> list[Tensor]:
    import torch

    alpha, beta, norm = (n.attribute(k, 0.0) for k in ("alpha", "beta", "norm_coefficient"))

    def step(rate: Any, t: Any, x: Any, grad: Any, v: Any) -> Any:
        whole = norm * x + grad
        v = alpha * v + torch.where(t > 0, beta, 1.0).to(x.dtype) * whole
        return x - rate * (v if n.attribute("mode") == "standard" else whole + alpha * v), v

    return _trained(g, n, 1, step)


@expressed("Adagrad")
def adagrad(g: Graph, n: Node) -> list[Tensor]:
    norm, decay, epsilon = (n.attribute(k, v) for k, v in (("norm_coefficient", 0.0), ("decay_factor", 0.0), ("epsilon", 1e-6)))

    def step(rate: Any, t: Any, x: Any, grad: Any, h: Any) -> Any:
        whole = norm * x + grad
        h = h + whole * whole
        return x - rate / (1 + t.to(x.dtype) * decay) * whole / (h.sqrt() + epsilon), h

    return _trained(g, n, 1, step)


@expressed("Adam")
def adam(g: Graph, n: Node) -> list[Tensor]:
    import torch

    alpha, beta, epsilon = (n.attribute(k, v) for k, v in (("alpha", 0.9), ("beta", 0.999), ("epsilon", 1e-6)))
    before, after = (n.attribute(k, 0.0) for k in ("norm_coefficient", "norm_coefficient_post"))

    def step(rate: Any, t: Any, x: Any, grad: Any, v: Any, h: Any) -> Any:
        whole = before * x + grad
        v, h = alpha * v + (1 - alpha) * whole, beta * h + (1 - beta) * whole * whole
        at = t.to(x.dtype)
        rate = torch.where(t > 0, rate * torch.sqrt(1 - beta**at) / (1 - alpha**at), rate)
        return (1 - after) * (x - rate * (v / (h.sqrt() + epsilon))), v, h

    return _trained(g, n, 2, step)
