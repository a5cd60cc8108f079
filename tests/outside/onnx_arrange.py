"""ONNX operators that arrange: views, joins, gathers, and tensors made of indices."""

from __future__ import annotations

from math import prod

import numpy as np

from tests.outside.onnx_table import Node, expressed
from tilec.torch.program import Graph, Tensor, Unsupported, literal


@expressed("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(g: Graph, n: Node) -> Tensor:
    return g.reshape(n.x(), n.shape())


@expressed("Transpose")
def transpose(g: Graph, n: Node) -> Tensor:
    x = n.x()
    order = n.attribute("perm") or list(range(len(x.shape)))[::-1]
    return g.view(x, [x.shape[p] for p in order], lambda i: [i[order.index(d)] for d in range(len(x.shape))])


@expressed("Expand")
def expand(g: Graph, n: Node) -> Tensor:
    x, shape = n.x(), n.shape()
    return g.emit(shape, x.dtype, lambda i: x.along(i, shape))


@expressed("Tile")
def tile(g: Graph, n: Node) -> Tensor:
    x = n.x()
    return g.view(x, n.shape(), lambda i: [f"{s} % {e}" for s, e in zip(i, x.shape)])


@expressed("Concat")
def concat(g: Graph, n: Node) -> Tensor:
    parts = [t for t in n.all() if 0 not in t.shape] or n.all()[:1]
    axis = n.attribute("axis") % len(parts[0].shape)
    if len(parts) > 12:
        raise Unsupported("joins of many tensors")

    def expression(i: list[str]) -> str:
        text, begin = "", 0
        for k, t in enumerate(parts):
            inside = t.at(*(f"{s} - {begin}" if d == axis and begin else s for d, s in enumerate(i)))
            end = begin + t.shape[axis]
            last = k == len(parts) - 1
            text += inside if last else f"{inside} if {i[axis]} < {end} else ("
            begin = end
        return text + ")" * (len(parts) - 1)

    return g.emit(n.shape(), parts[0].dtype, expression)


@expressed("Slice")
def slice_(g: Graph, n: Node) -> Tensor:
    x = n.x()
    if 1 in n:
        starts, ends = n.parameter(1), n.parameter(2)
        axes, steps = n.parameter(3), n.parameter(4)
    else:
        starts, ends = np.array(n.attribute("starts")), np.array(n.attribute("ends"))
        axes, steps = n.attribute("axes"), None
    axes = np.arange(len(starts)) if axes is None else np.asarray(axes)
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    first, step = [0] * len(x.shape), [1] * len(x.shape)
    for a, s, e, k in zip(axes, starts, ends, steps):
        axis = int(a) % len(x.shape)
        begin, _, stride = slice(int(s), int(e), int(k)).indices(x.shape[axis])
        first[axis], step[axis] = begin, stride
    return g.view(x, n.shape(), lambda i: [f"{b} + {s} * {k}" for s, b, k in zip(i, first, step)])


@expressed("Split")
def split(g: Graph, n: Node) -> list[Tensor]:
    x = n.x()
    axis = n.attribute("axis", 0) % len(x.shape)
    parts, begin = [], 0
    for k in range(len(n.proto.output)):
        shape = n.shape(k)
        parts.append(g.view(x, shape, lambda i, b=begin: [f"{s} + {b}" if d == axis else s for d, s in enumerate(i)]))
        begin += shape[axis]
    return parts


@expressed("Pad")
def pad(g: Graph, n: Node) -> Tensor:
    x, shape, mode = n.x(), n.shape(), n.attribute("mode", "constant")
    pads = np.asarray(n.parameter(1) if 1 in n else n.attribute("pads")).tolist()
    axes = n.parameter(3)
    axes = list(range(len(x.shape))) if axes is None else [int(a) % len(x.shape) for a in axes]
    before = [0] * len(x.shape)
    for axis, count in zip(axes, pads[: len(axes)]):
        before[axis] = int(count)
    places = [f"i{d} - {b}" if b >= 0 else f"i{d} + {-b}" for d, b in enumerate(before)]
    if mode == "constant":
        value = n.x(2).at(*("0" for _ in n.x(2).shape)) if 2 in n else "0"
        return g.emit(shape, x.dtype, lambda i: f"pad({x.at(*places)}, {value})")
    transposed = []
    for p, e in zip(places, x.shape):
        if mode == "edge":
            transposed.append(f"clamp({p}, 0, {e - 1})")
        elif mode == "wrap":
            transposed.append(f"({p}) % {e}")
        else:
            period = max(1, 2 * (e - 1))
            transposed.append(f"min(({p}) % {period}, {period} - ({p}) % {period})" if e > 1 else "0")
    return g.view(x, shape, lambda i: transposed)


@expressed("Gather")
def gather(g: Graph, n: Node) -> Tensor:
    x, places = n.x(0), n.x(1)
    axis = n.attribute("axis", 0) % len(x.shape)
    rank = len(places.shape)

    def expression(i: list[str]) -> str:
        place = places.at(*i[axis : axis + rank])
        index = f"({place} + {x.shape[axis]} if {place} < 0 else {place})"
        return x.at(*i[:axis], index, *i[axis + rank :])

    return g.emit(n.shape(), x.dtype, expression)


@expressed("GatherElements")
def gather_elements(g: Graph, n: Node) -> Tensor:
    x, places = n.x(0), n.x(1)
    axis = n.attribute("axis", 0) % len(x.shape)
    index = lambda i: f"({places.at(*i)} + {x.shape[axis]} if {places.at(*i)} < 0 else {places.at(*i)})"  # noqa: E731
    return g.view(x, n.shape(), lambda i: [index(i) if d == axis else s for d, s in enumerate(i)])


@expressed("GatherND")
def gather_nd(g: Graph, n: Node) -> Tensor:
    x, places, batch = n.x(0), n.x(1), n.attribute("batch_dims", 0)
    lead, depth = len(places.shape) - 1, places.shape[-1]

    def subscripts(i: list[str]) -> list[str]:
        chosen = [places.at(*i[:lead], str(k)) for k in range(depth)]
        chosen = [f"({c} + {x.shape[batch + k]} if {c} < 0 else {c})" for k, c in enumerate(chosen)]
        return [*i[:batch], *chosen, *i[lead:]]

    return g.view(x, n.shape(), subscripts)


@expressed("OneHot")
def one_hot(g: Graph, n: Node) -> Tensor:
    places, values = n.x(0), n.x(2)
    depth = int(np.asarray(n.parameter(1)).reshape(-1)[0])
    rank = len(places.shape) + 1
    axis = n.attribute("axis", -1) % rank
    at = lambda i: places.at(*(s for d, s in enumerate(i) if d != axis))  # noqa: E731
    text = lambda i: f"{values.at('1')} if i{axis} == i64({at(i)}) % {depth} else {values.at('0')}"  # noqa: E731
    inside = lambda i: f"i64({at(i)}) >= -{depth} and i64({at(i)}) < {depth}"  # noqa: E731
    return g.emit(n.shape(), values.dtype, lambda i: f"({text(i)}) if {inside(i)} else {values.at('0')}")


@expressed("Range")
def range_(g: Graph, n: Node) -> Tensor:
    start, step, dtype = n.x(0), n.x(2), n.dtype()
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    at = lambda t: t.at(*("0" for _ in t.shape))  # noqa: E731
    return g.emit(n.shape(), dtype, lambda i: f"{at(start)} + {wide}({i[0]}) * {at(step)}")


@expressed("ConstantOfShape")
def constant(g: Graph, n: Node) -> Tensor:
    from onnx import numpy_helper

    value = n.attribute("value")
    made = 0.0 if value is None else numpy_helper.to_array(value).reshape(-1)[0].item()
    return g.emit(n.shape(), n.dtype(), lambda i: literal(made, n.dtype()))


@expressed("Trilu")
def trilu(g: Graph, n: Node) -> Tensor:
    x = n.x()
    k = int(np.asarray(n.parameter(1, 0)).reshape(-1)[0])
    row, column = len(x.shape) - 2, len(x.shape) - 1
    test = f"i{column} - i{row} {'>=' if n.attribute('upper', 1) else '<='} {k}"
    return g.emit(x.shape, x.dtype, lambda i: f"{x.at(*i)} if {test} else {'false' if x.dtype == 'bool' else '0'}")


@expressed("EyeLike")
def eye(g: Graph, n: Node) -> Tensor:
    if 0 in n:
        n.x()
    k = n.attribute("k", 0)
    zero, one = ("false", "true") if n.dtype() == "bool" else ("0", "1")
    return g.emit(n.shape(), n.dtype(), f"{one} if i1 - i0 == {k} else {zero}")


@expressed("DepthToSpace", "SpaceToDepth")
def blocks(g: Graph, n: Node) -> Tensor:
    x, b = n.x(), n.attribute("blocksize")
    channels = x.shape[1]
    if n.proto.op_type == "SpaceToDepth" and n.attribute("mode", "DCR") == "CRD":
        return g.view(
            x, n.shape(), lambda i: ["i0", f"i1 // {b * b}", f"i2 * {b} + i1 // {b} % {b}", f"i3 * {b} + i1 % {b}"]
        )
    if n.proto.op_type == "SpaceToDepth":
        return g.view(
            x, n.shape(),
            lambda i: ["i0", f"i1 % {channels}", f"i2 * {b} + i1 // {channels * b}", f"i3 * {b} + i1 // {channels} % {b}"],
        )  # fmt: skip
    depth = channels // (b * b)
    if n.attribute("mode", "DCR") == "DCR":
        channel = f"(i2 % {b} * {b} + i3 % {b}) * {depth} + i1"
    else:
        channel = f"i1 * {b * b} + i2 % {b} * {b} + i3 % {b}"
    return g.view(x, n.shape(), lambda i: ["i0", channel, f"i2 // {b}", f"i3 // {b}"])


@expressed("ReverseSequence")
def reverse_sequence(g: Graph, n: Node) -> Tensor:
    x, lengths = n.x(0), n.x(1)
    time, batch = n.attribute("time_axis", 0), n.attribute("batch_axis", 1)
    length = lengths.at(f"i{batch}")
    place = f"({length} - 1 - i{time} if i{time} < {length} else i{time})"
    return g.view(x, x.shape, lambda i: [place if d == time else s for d, s in enumerate(i)])


@expressed("CenterCropPad")
def centre(g: Graph, n: Node) -> Tensor:
    x, shape = n.x(), n.shape()
    places = []
    for d, (have, want) in enumerate(zip(x.shape, shape)):
        before = (want - have) // 2 if want >= have else -((have - want) // 2)
        places.append(f"i{d} - {before}" if before >= 0 else f"i{d} + {-before}")
    return g.emit(shape, x.dtype, lambda i: f"pad({x.at(*places)}, 0)")


@expressed("ArrayFeatureExtractor")
def features(g: Graph, n: Node) -> Tensor:
    x, places = n.x(0), n.x(1)
    flat_places = g.reshape(places, (prod(places.shape),))
    return g.view(x, n.shape(), lambda i: [*i[:-1], flat_places.at(i[-1])])
