"""ONNX operators of whole layers: contractions, windows, normalisations, losses."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from tests.outside.onnx_compute import number
from tests.outside.onnx_table import Node, expressed
from tilec.dsl.einsum import fit, spelling
from tilec.torch.program import Graph, Tensor, Unsupported, indices, ranges

# ---- contractions ----------------------------------------------------------------------------------------------------


def matmul(g: Graph, a: Tensor, b: Tensor, dtype: str) -> Tensor:
    """NumPy's, of operands of any rank."""
    if len(a.shape) == 1:
        a, squeeze_row = g.reshape(a, (1, *a.shape)), True
    else:
        squeeze_row = False
    squeeze_column = len(b.shape) == 1
    if squeeze_column:
        b = g.reshape(b, (*b.shape, 1))
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape, depth = (*lead, a.shape[-2], b.shape[-1]), a.shape[-1]
    wide = "i32" if dtype in ("i8", "u8", "i32") else "f32" if dtype in ("f16", "bf16", "f32") else dtype

    def expression(i: list[str]) -> str:
        left = a.along([*i[:-2], i[-2], "k"], [*shape[:-1], depth])
        right = b.along([*i[:-2], "k", i[-1]], [*lead, depth, shape[-1]])
        return f"sum[k in 0:{depth}]({wide}({left}) * {wide}({right}))"

    product_ = g.emit(shape, dtype, expression)
    if squeeze_row or squeeze_column:
        kept = [
            s
            for d, s in enumerate(shape)
            if not ((squeeze_row and d == len(shape) - 2) or (squeeze_column and d == len(shape) - 1))
        ]
        return g.reshape(product_, kept)
    return product_


@expressed("MatMul")
def matmul_node(g: Graph, n: Node) -> Tensor:
    return matmul(g, n.x(0), n.x(1), n.dtype())


@expressed("Gemm")
def gemm(g: Graph, n: Node) -> Tensor:
    a, b = n.x(0), n.x(1)
    if n.attribute("transA", 0):
        a = g.view(a, a.shape[::-1], lambda i: [i[1], i[0]])
    if n.attribute("transB", 0):
        b = g.view(b, b.shape[::-1], lambda i, b=b: [i[1], i[0]])
    y = matmul(g, a, b, n.dtype())
    alpha, beta = (number(n.attribute(k, 1.0)) for k in ("alpha", "beta"))
    if 2 in n:
        return g.map(f"{alpha} * {{0}} + {beta} * {{1}}", y, n.x(2))
    return g.map(f"{alpha} * {{0}}", y)


@expressed("Einsum")
def einsum(g: Graph, n: Node) -> Tensor:
    fitted = fit(spelling(n.attribute("equation")), [t.shape for t in n.all()])
    names, extents, outer = fitted.operands, fitted.extents, fitted.result
    inner = [i for i in dict.fromkeys(i for term in names for i in term) if i not in outer]

    def expression(i: list[str]) -> str:
        renamed = dict(zip(outer, i))
        factors = [
            t.at(*("0" if s == 1 and extents[d] != 1 else renamed.get(d, d) for d, s in zip(term, t.shape)))
            for t, term in zip(n.all(), names)
        ]
        over = ranges(inner, [extents[k] for k in inner])
        return f"sum[{over}]({' * '.join(factors)})" if inner else " * ".join(factors)

    operands = n.all()  # inputs first
    return g.emit([extents[o] for o in outer], operands[0].dtype, expression)


# ---- windows ---------------------------------------------------------------------------------------------------------


def _window(n: Node, spatial: tuple[int, ...], kernel: list[int], out: tuple[int, ...]):
    """Strides, dilations and the pads before each axis."""
    rank = len(spatial)
    strides = n.attribute("strides") or [1] * rank
    dilations = n.attribute("dilations") or [1] * rank
    pads = n.attribute("pads") or [0] * 2 * rank
    auto = n.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max(0, (o - 1) * s + (k - 1) * d + 1 - x) for o, s, k, d, x in zip(out, strides, kernel, dilations, spatial)
        ]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        pads = [*before, *(t - b for t, b in zip(total, before))]
    return strides, dilations, pads


def _places(strides, dilations, pads, kernel, taps: list[str] | None = None) -> list[str]:
    taps = taps or indices(len(kernel), "r")
    return [f"i{d + 2} * {s} + {t} * {e} - {p}" for d, (s, e, p, t) in enumerate(zip(strides, dilations, pads, taps))]


@expressed("Conv")
def convolution(g: Graph, n: Node) -> Tensor:
    return convolved(g, n, n.x(0), n.x(1), n.x(2) if 2 in n else None, n.dtype())


def convolved(g: Graph, n: Node, x: Tensor, w: Tensor, bias: Tensor | None, dtype: str) -> Tensor:
    """The convolution of two tensors as the node's attributes have it."""
    out, kernel, groups = n.shape(), list(w.shape[2:]), n.attribute("group", 1)
    strides, dilations, pads = _window(n, x.shape[2:], kernel, out[2:])
    per, each = w.shape[1], w.shape[0] // groups
    over = ranges(["c", *indices(len(kernel), "r")], [per, *kernel])
    places = _places(strides, dilations, pads, kernel)
    channel = "c" if groups == 1 else f"i1 // {each} * {per} + c"
    body = f"pad({x.at('i0', channel, *places)}, 0) * {w.at('i1', 'c', *indices(len(kernel), 'r'))}"
    after = f" + {bias.at('i1')}" if bias else ""
    return g.emit(out, dtype, lambda i: f"sum[{over}]({body}){after}")


@expressed("MaxPool", "AveragePool", "LpPool")
def pool(g: Graph, n: Node):
    x, out, kind = n.x(), n.shape(), n.proto.op_type
    kernel = n.attribute("kernel_shape")
    strides, dilations, pads = _window(n, x.shape[2:], kernel, out[2:])
    over = ranges(indices(len(kernel), "r"), kernel)
    access = x.at("i0", "i1", *_places(strides, dilations, pads, kernel))
    if kind == "MaxPool":
        low = {"u8": "0", "i8": "-128"}.get(x.dtype, "-inf")
        largest = g.emit(out, x.dtype, lambda i: f"{x.dtype}(max[{over}](pad({access}, {low})))")
        if len(n.proto.output) == 1:
            return largest
        taps = [f"k // {prod(kernel[d + 1 :])} % {size}" for d, size in enumerate(kernel)]
        elements = x.at("i0", "i1", *_places(strides, dilations, pads, kernel, taps))
        first = g.emit(out, "i64", lambda i: f"argmax[k in 0:{prod(kernel)}](pad({elements}, {low}))")
        taps = [f"{first.at(*i)} // {prod(kernel[d + 1 :])} % {size}" for i in [indices(len(out))] for d, size in enumerate(kernel)]
        axes = list(range(len(kernel)))[:: -1 if n.attribute("storage_order", 0) else 1]
        steps = {d: prod(x.shape[2 + e] for e in axes[k + 1 :]) for k, d in enumerate(axes)}
        at = [f"({p}) * {steps[d]}" for d, p in enumerate(_places(strides, dilations, pads, kernel, taps))]
        plane = f"(i0 * {x.shape[1]} + i1) * {prod(x.shape[2:])}"
        return largest, g.emit(out, "i64", lambda i: " + ".join([plane, *at]))
    if kind == "LpPool":
        p = n.attribute("p", 2)
        return g.emit(out, x.dtype, lambda i: f"sum[{over}](abs(pad({access}, 0)) ** {p}) ** (1 / {p})")
    if n.attribute("count_include_pad", 0):
        counts = [  # of places inside the padded input: with ceil_mode a window may reach beyond it
            [sum(s * o + r * e < size + b + a for r in range(k)) for o in range(count)]
            for s, e, size, b, a, k, count in zip(
                strides, dilations, x.shape[2:], pads, pads[len(kernel) :], kernel, out[2:]
            )
        ]
    else:
        counts = [
            [sum(0 <= s * o + r * e - b < size for r in range(k)) for o in range(count)]
            for s, e, size, b, k, count in zip(strides, dilations, x.shape[2:], pads, kernel, out[2:])
        ]
    shares = np.ones(out[2:], np.float32)
    for place_ in product(*map(range, out[2:])):
        shares[place_] = prod(c[o] for c, o in zip(counts, place_))
    share = g.input(shares)
    return g.emit(out, x.dtype, lambda i: f"sum[{over}](pad({access}, 0)) / {share.at(*i[2:])}")


@expressed("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(g: Graph, n: Node) -> Tensor:
    x = n.x()
    axes = range(2, len(x.shape))
    if n.proto.op_type == "GlobalLpPool":
        p = n.attribute("p", 2)
        return g.reduce("sum", x, axes, True, f"abs({{0}}) ** {p}", after=f"({{0}}) ** (1 / {p})")
    return g.reduce({"GlobalAveragePool": "mean", "GlobalMaxPool": "max"}[n.proto.op_type], x, axes, True)


@expressed("LRN")
def local_response(g: Graph, n: Node) -> Tensor:
    x, size = n.x(), n.attribute("size")
    alpha, beta, bias = (n.attribute(k, v) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    first = -((size - 1) // 2)
    access = x.at("i0", f"i1 + k + {first}" if first >= 0 else f"i1 + k - {-first}", *indices(len(x.shape))[2:])
    text = f"sum[k in 0:{size}](pad({access}, 0) * pad({access}, 0))"
    return g.emit(x.shape, x.dtype, lambda i: f"{x.at(*i)} / ({bias} + {alpha / size!r} * {text}) ** {beta}")


# ---- normalisations --------------------------------------------------------------------------------------------------


def _normal(g: Graph, x: Tensor, axes: list[int], epsilon: float, centre: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised, with the means and reciprocal deviations, in f32 at least."""
    wide = "f64" if x.dtype == "f64" else "f32"
    mean = g.reduce("mean", x, axes, True, dtype=wide)
    off = g.map("{0} - {1}" if centre else f"{wide}({{0}})", *((x, mean) if centre else (x,)), dtype=wide)
    inverse = g.reduce("mean", off, axes, True, "{0} * {0}", wide, f"1 / sqrt({{0}} + {number(epsilon)})")
    return g.map("{0} * {1}", off, inverse), mean, inverse


@expressed("LayerNormalization")
def layer_normalization(g: Graph, n: Node):
    x = n.x(0)
    axis = n.attribute("axis", -1) % len(x.shape)
    y, mean, inverse = _normal(g, x, list(range(axis, len(x.shape))), n.attribute("epsilon", 1e-5))
    operands = [y, *(n.x(k) for k in (1, 2) if k in n)]
    text = " + ".join(["{0} * {1}", *(["{2}"] if 2 in n else [])])
    return g.map(text, *operands, dtype=n.dtype()), mean, inverse


@expressed("RMSNormalization")
def rms_normalization(g: Graph, n: Node) -> Tensor:
    x = n.x(0)
    axis = n.attribute("axis", -1) % len(x.shape)
    y, _, _ = _normal(g, x, list(range(axis, len(x.shape))), n.attribute("epsilon", 1e-5), centre=False)
    return g.map("{0} * {1}", y, n.x(1), dtype=n.dtype())


@expressed("InstanceNormalization")
def instance_normalization(g: Graph, n: Node) -> Tensor:
    x, scale, bias = n.x(0), n.x(1), n.x(2)
    y, _, _ = _normal(g, x, list(range(2, len(x.shape))), n.attribute("epsilon", 1e-5))
    return g.emit(x.shape, x.dtype, lambda i: f"{y.at(*i)} * {scale.at('i1')} + {bias.at('i1')}")


@expressed("GroupNormalization")
def group_normalization(g: Graph, n: Node) -> Tensor:
    x, groups = n.x(0), n.attribute("num_groups")
    scale, bias = n.x(1), n.x(2)
    if scale.shape[0] != x.shape[1]:
        raise Unsupported("scales by group, of an old operator set")
    parts = g.reshape(x, (x.shape[0], groups, prod(x.shape[1:]) // groups))
    y, _, _ = _normal(g, parts, [2], n.attribute("epsilon", 1e-5))
    y = g.reshape(y, x.shape)
    return g.emit(x.shape, x.dtype, lambda i: f"{y.at(*i)} * {scale.at('i1')} + {bias.at('i1')}")


@expressed("MeanVarianceNormalization")
def mean_variance(g: Graph, n: Node) -> Tensor:
    x = n.x()
    axes = [int(a) for a in n.attribute("axes", [0, 2, 3])]
    mean = g.reduce("mean", x, axes, True)
    off = g.map("{0} - {1}", x, mean)
    deviation = g.reduce("mean", off, axes, True, "{0} * {0}", after="sqrt({0})")
    return g.map("{0} / ({1} + 1e-9)", off, deviation)


@expressed("BatchNormalization")
def batch_normalization(g: Graph, n: Node):
    x, scale, bias, mean, variance = (n.x(k) for k in range(5))
    epsilon = number(n.attribute("epsilon", 1e-5))
    extra = []
    if n.attribute("training_mode", 0):
        axes = [0, *range(2, len(x.shape))]
        old_mean, old_variance, momentum = mean, variance, n.attribute("momentum", 0.9)
        mean = g.reduce("mean", x, axes, False)
        off = g.emit(x.shape, x.dtype, lambda i: f"{x.at(*i)} - {mean.at('i1')}")
        variance = g.reduce("mean", off, axes, False, "{0} * {0}")
        blend = f"{{0}} * {momentum!r} + {{1}} * {1 - momentum!r}"
        extra = [g.map(blend, old_mean, mean), g.map(blend, old_variance, variance)]
    channel = lambda t: t.at("i1")  # noqa: E731
    text = lambda i: (  # noqa: E731
        f"{channel(scale)} * ({x.at(*i)} - {channel(mean)}) / sqrt({channel(variance)} + {epsilon}) + {channel(bias)}"
    )
    return (g.emit(x.shape, x.dtype, text), *extra)


@expressed("LpNormalization")
def lp_normalization(g: Graph, n: Node) -> Tensor:
    x = n.x()
    axis, p = n.attribute("axis", -1) % len(x.shape), n.attribute("p", 2)
    body, after = ("abs({0})", "{0}") if p == 1 else ("{0} * {0}", "sqrt({0})")
    norm = g.reduce("sum", x, [axis], True, body, after=after)
    return g.map("0 if {1} == 0 else {0} / {1}", x, norm)


# ---- losses ----------------------------------------------------------------------------------------------------------


def _loss(g: Graph, n: Node, x: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    """The negative entries of x along axis 1 at the targets, weighted, and reduced as the attribute says."""
    ignored = n.attribute("ignore_index")
    shape = target.shape

    def place(i: list[str]) -> str:
        return target.at(*i)

    def weighed(i: list[str]) -> str:
        inside = "1" if weight is None else f"pad({weight.at(place(i))}, 0)"
        return inside if ignored is None else f"(0 if {place(i)} == {ignored} else {inside})"

    factor = g.emit(shape, x.dtype, lambda i: weighed(i))
    loss = g.emit(shape, x.dtype, lambda i: f"-pad({x.at(i[0], place(i), *i[1:])}, 0) * {factor.at(*i)}")
    kind = n.attribute("reduction", "mean")
    if kind == "none":
        return loss
    axes = range(len(shape))
    total = g.reduce("sum", loss, axes, False)
    if kind == "sum":
        return total
    return g.map("{0} / {1}", total, g.reduce("sum", factor, axes, False))


@expressed("NegativeLogLikelihoodLoss")
def negative_log_likelihood(g: Graph, n: Node) -> Tensor:
    return _loss(g, n, n.x(0), n.x(1), n.x(2) if 2 in n else None)


@expressed("SoftmaxCrossEntropyLoss")
def cross_entropy(g: Graph, n: Node):
    x = n.x(0)
    log = g.emit(x.shape, x.dtype, lambda i: f"log_softmax[i1]({x.at(*i)})")
    return _loss(g, n, log, n.x(1), n.x(2) if 2 in n else None), log
