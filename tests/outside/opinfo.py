"""PyTorch's sample inputs (`OpInfo`) for functions that both have; what is expected is PyTorch's result at f64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tests.outside.common import Inexpressible, Program
from tests.outside.graph import Graph, Tensor
from tests.outside.onnx_compute import UNARY, number
from tests.outside.onnx_layers import matmul

TYPES = ("float32", "float64")

ELEMENTWISE = {
    **{name: UNARY[name.title()] for name in ("ceil", "floor", "round", "exp", "log", "sqrt", "sin", "cos", "tan", "tanh",
                                              "erf", "sigmoid", "abs", "neg", "reciprocal", "sign", "cosh", "sinh")},
    "exp2": "exp2({0})", "expm1": "expm1({0})", "log2": "log2({0})", "log1p": "log1p({0})", "rsqrt": "rsqrt({0})",
    "square": "{0} * {0}", "trunc": "floor({0}) if {0} >= 0 else ceil({0})", "nn.functional.relu": "max({0}, 0)",
    "nn.functional.silu": "silu({0})", "nn.functional.softsign": "{0} / (1 + abs({0}))", "positive": "{0}",
    "nn.functional.mish": "{0} * tanh(softplus({0}))", "nn.functional.relu6": "clamp({0}, 0, 6)",
    "nn.functional.hardsigmoid": "clamp({0} + 3, 0, 6) / 6", "nn.functional.hardswish": "{0} * clamp({0} + 3, 0, 6) / 6",
    "nn.functional.logsigmoid": "-softplus(-{0})", "nn.functional.tanhshrink": "{0} - tanh({0})",
    "isnan": "{0} != {0}", "isinf": "abs({0}) == inf", "isfinite": "abs({0}) < inf", "logical_not": "not bool({0})",
    "signbit": "{0} < 0", "deg2rad": "{0} * 0.017453292519943295", "rad2deg": "{0} * 57.29577951308232",
    "relu": "max({0}, 0)", "frac": "{0} - (floor({0}) if {0} >= 0 else ceil({0}))",
}  # fmt: skip

BINARY = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "true_divide": "{0} / {1}",
    "remainder": "{0} % {1}", "floor_divide": "{0} // {1}", "maximum": "max({0}, {1})", "minimum": "min({0}, {1})",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "pow": "{0} ** {1}", "rsub": "{1} - {0}", "fmax": "({0} if {1} != {1} else ({1} if {0} != {0} else max({0}, {1})))",
    "fmin": "({0} if {1} != {1} else ({1} if {0} != {0} else min({0}, {1})))", "logical_and": "bool({0}) and bool({1})",
    "logical_or": "bool({0}) or bool({1})", "logical_xor": "bool({0}) != bool({1})",
    "heaviside": "0 if {0} < 0 else (1 if {0} > 0 else ({1} if {0} == 0 else {0}))",
    "hypot": "sqrt({0} * {0} + {1} * {1})", "logaddexp": "max({0}, {1}) + log1p(exp(-abs({0} - {1})))",
}  # fmt: skip

REDUCED = {
    "sum": ("sum", "{0}", "{0}"), "mean": ("mean", "{0}", "{0}"), "prod": ("prod", "{0}", "{0}"), "amax": ("max", "{0}", "{0}"),
    "amin": ("min", "{0}", "{0}"), "any": ("any", "{0} != 0", "{0}"), "all": ("all", "{0} != 0", "{0}"),
    "logsumexp": ("logsumexp", "{0}", "{0}"), "argmax": ("argmax", "{0}", "{0}"), "argmin": ("argmin", "{0}", "{0}"),
}  # fmt: skip
SCANS = {"cumsum": "cumsum", "cumprod": "cumprod"}
SOFTMAXES = {"softmax": "softmax", "log_softmax": "log_softmax", "nn.functional.softmin": "softmax"}
PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot", "__rmatmul__", "inner")


def cases() -> Iterator[tuple[str, Callable[[], Program]]]:
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        translator = _translator(info.name)
        for name in TYPES:
            dtype = getattr(torch, name)
            if translator is None or info.variant_test_name or dtype not in info.dtypes:
                continue
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for count, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
                    yield f"{info.name} {name} {count}", partial(translate, translator, info, sample)
    missing = [info.name for info in op_db if _translator(info.name) is None]
    for name in missing:
        yield f"{name}", partial(_refuse, "functions that only PyTorch has, or that are not translated")


def _refuse(reason: str) -> Program:
    raise Inexpressible(reason)


def _translator(name: str) -> Callable | None:
    if name in ELEMENTWISE:
        return partial(_elementwise, ELEMENTWISE[name])
    if name in BINARY:
        return partial(_elementwise, BINARY[name])
    if name in REDUCED:
        return partial(_reduction, name)
    if name in SCANS:
        return partial(_scan, SCANS[name])
    if name in SOFTMAXES:
        return partial(_softmax, SOFTMAXES[name], "-" if name.endswith("softmin") else "")
    if name in PRODUCTS:
        return partial(_product, name)
    return {
        "clamp": _clamp, "where": _where, "addmm": _addmm, "nn.functional.linear": _linear, "t": _transpose,
        "nn.functional.leaky_relu": partial(_slope, "negative_slope", 0.01), "nn.functional.gelu": _gelu,
        "transpose": _swap, "nn.functional.elu": partial(_curve, "alpha", 1.0), "cumulative_trapezoid": None,
    }.get(name)  # fmt: skip


def translate(translator: Callable, info, sample) -> Program:
    import torch

    tensors: list = [sample.input, *sample.args]
    if not isinstance(sample.input, torch.Tensor):
        raise Inexpressible("a first argument that is no tensor")
    for value in [*tensors, *sample.kwargs.values()]:
        if isinstance(value, torch.Tensor) and value.dtype.is_complex:
            raise Inexpressible("complex numbers")
    options = {k: v for k, v in sample.kwargs.items() if v is not None}
    graph = Graph()
    operands = [graph.input(v.numpy()) if isinstance(v, torch.Tensor) else v for v in tensors]
    options = {k: graph.input(v.numpy()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    result = translator(graph, operands, options)
    wide = lambda v: v.double() if isinstance(v, torch.Tensor) and v.dtype.is_floating_point else v  # noqa: E731
    expected = info.op(wide(sample.input), *map(wide, sample.args), **{k: wide(v) for k, v in sample.kwargs.items()})
    if not isinstance(expected, torch.Tensor):
        raise Inexpressible("several results")
    expected = expected.numpy()
    single = sample.input.dtype == torch.float32
    rtol, atol = (1.3e-6, 1e-5) if single else (1e-7, 1e-7)  # of torch.testing.assert_close
    return Program(graph.program([result]), list(graph.inputs.values()), [expected], rtol, atol)


def _only(options: dict, *names: str) -> None:
    if unknown := sorted(options.keys() - set(names)):
        raise Inexpressible(f"option {unknown[0]}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number(value) if isinstance(value, float) else f"({value})" if value < 0 else str(value)
    raise Inexpressible(f"an argument of type {type(value).__name__}")


def _elementwise(template: str, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options)
    operands = operands[: (template.count("{1}") and 2) or 1] if len(operands) <= 2 else operands
    tensors = [o for o in operands if isinstance(o, Tensor)]
    if len(operands) > 2:
        raise Inexpressible("more arguments")
    places, text = iter(range(len(tensors))), template
    filled = [f"{{{next(places)}}}" if isinstance(o, Tensor) else _text(o) for o in operands]
    text = template.replace("{0}", "\0").replace("{1}", "\1").replace("\0", filled[0])
    text = text.replace("\1", filled[1]) if len(filled) > 1 else text
    test = any(t in template for t in ("==", "!=", "<", ">", " and ", " or ", "not ")) and " if " not in template
    dtype = "bool" if test else _widest(tensors)
    return g.map(text, *tensors, dtype=dtype)


def _widest(tensors: list[Tensor]) -> str:
    from tilec.core.dtypes import DTYPES

    return max((t.dtype for t in tensors), key=lambda d: (DTYPES[d].is_float, DTYPES[d].bits))


def _axes(value, rank: int) -> list[int]:
    if value is None or (isinstance(value, tuple | list) and not value):
        return list(range(rank))
    return [v % rank for v in (value if isinstance(value, tuple | list) else [value])] if rank else []


def _reduction(name: str, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "dim", "keepdim")
    kind, body, after = REDUCED[name]
    x, *rest = operands
    options = {**dict(zip(("dim", "keepdim"), rest)), **options}
    axes, keep = _axes(options.get("dim"), len(x.shape)), bool(options.get("keepdim", False))
    dtype = "bool" if kind in ("any", "all") else "i64" if kind.startswith("arg") else x.dtype
    if not x.shape:
        raise Inexpressible("reductions of a scalar")
    if kind.startswith("arg") and len(axes) > 1:
        if keep:
            raise Inexpressible("a place in all dimensions, kept")
        x, axes = g.reshape(x, (int(np.prod(x.shape)),)), [0]
    return g.reduce(kind, x, axes, keep, body, dtype, after)


def _scan(kind: str, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "dim")
    x, *rest = operands
    axis = options.get("dim", rest[0] if rest else 0)
    if not x.shape:
        raise Inexpressible("reductions of a scalar")
    return g.emit(x.shape, x.dtype, lambda i: f"{kind}[i{axis % len(x.shape)}]({x.at(*i)})")


def _softmax(name: str, sign: str, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "dim")
    x, *rest = operands
    axis = options.get("dim", rest[0] if rest else None)
    if not x.shape or axis is None:
        raise Inexpressible("reductions of a scalar")
    return g.emit(x.shape, x.dtype, lambda i: f"{name}[i{axis % len(x.shape)}]({sign}{x.at(*i)})")


def _product(name: str, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options)
    a, b = operands if name != "__rmatmul__" else operands[::-1]
    if name == "inner":
        if not a.shape or not b.shape:
            return g.map("{0} * {1}", a, b)
        shape = (*a.shape[:-1], *b.shape[:-1])
        split = len(a.shape) - 1
        text = lambda i: f"{a.at(*i[:split], 'k')} * {b.at(*i[split:], 'k')}"  # noqa: E731
        return g.emit(shape, a.dtype, lambda i: f"sum[k in 0:{a.shape[-1]}]({text(i)})")
    return matmul(g, a, b, a.dtype)


def _clamp(g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "min", "max")
    x, *rest = operands
    low, high = (*rest, None, None)[:2]
    low, high = options.get("min", low), options.get("max", high)
    tensors, text = [x], "{0}"
    for bound, function in ((low, "max"), (high, "min")):
        if bound is None:
            continue
        if isinstance(bound, Tensor):
            tensors.append(bound)
            text = f"{function}({text}, {{{len(tensors) - 1}}})"
        else:
            text = f"{function}({text}, {_text(bound)})"
    return g.map(text, *tensors)


def _where(g: Graph, operands: list, options: dict) -> Tensor:
    _only(options)
    x, condition, y = operands
    if not isinstance(condition, Tensor) or not isinstance(y, Tensor):
        raise Inexpressible("a first argument that is no tensor")
    return g.map("{1} if {0} else {2}", condition, x, y, dtype=_widest([x, y]))


def _addmm(g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "alpha", "beta")
    c, a, b = operands
    alpha, beta = (_text(options.get(k, 1.0)) for k in ("alpha", "beta"))
    return g.map(f"{beta} * {{0}} + {alpha} * {{1}}", c, matmul(g, a, b, a.dtype))


def _linear(g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "bias")
    x, w, *rest = operands
    bias = options.get("bias", rest[0] if rest else None)
    turned = g.view(w, w.shape[::-1], lambda i: i[::-1])
    y = matmul(g, x, turned, x.dtype)
    return g.map("{0} + {1}", y, bias) if bias is not None else y


def _transpose(g: Graph, operands: list, options: dict) -> Tensor:
    (x,) = operands
    return g.view(x, x.shape[::-1], lambda i: i[::-1])


def _swap(g: Graph, operands: list, options: dict) -> Tensor:
    x, *axes = operands
    axes = [a % len(x.shape) for a in (*axes, *options.values())] if x.shape else []
    order = list(range(len(x.shape)))
    if axes:
        order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
    return g.view(x, [x.shape[p] for p in order], lambda i: [i[p] for p in order])


def _slope(option: str, otherwise: float, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, option, "inplace")
    x, *rest = operands
    slope = _text(float(options.get(option, rest[0] if rest else otherwise)))
    return g.map(f"{{0}} if {{0}} >= 0 else {slope} * {{0}}", x)


def _curve(option: str, otherwise: float, g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, option, "inplace")
    x, *rest = operands
    alpha = _text(float(options.get(option, rest[0] if rest else otherwise)))
    return g.map(f"{{0}} if {{0}} > 0 else {alpha} * expm1({{0}})", x)


def _gelu(g: Graph, operands: list, options: dict) -> Tensor:
    _only(options, "approximate")
    return g.map("gelu_tanh({0})" if options.get("approximate") == "tanh" else "gelu({0})", operands[0])
