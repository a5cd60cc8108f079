"""ONNX operators that compute element by element, and those that reduce and scan."""

from __future__ import annotations

import numpy as np

from tests.outside.onnx_table import EXPRESSED, RANDOM, Node, expressed
from tilec.torch.program import Graph, Tensor, Unsupported

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def number(value: float) -> str:
    """A literal."""
    if np.isnan(value):
        return "nan"
    if np.isinf(value):
        return "inf" if value > 0 else "(-inf)"
    text = repr(float(value))
    return f"({text})" if text.startswith("-") else text


def _unary(template: str):
    return lambda g, n: g.map(template, n.x(), dtype=n.dtype())


UNARY = {
    "Ceil": "ceil({0})", "Floor": "floor({0})", "Round": "round({0})", "Exp": "exp({0})", "Log": "log({0})",
    "Sqrt": "sqrt({0})", "Sin": "sin({0})", "Cos": "cos({0})", "Tan": "tan({0})", "Tanh": "tanh({0})", "Erf": "erf({0})",
    "Sigmoid": "sigmoid({0})", "Abs": "abs({0})", "Neg": "-{0}", "Reciprocal": "1 / {0}", "Relu": "max({0}, 0)",
    "Softplus": "softplus({0})", "Softsign": "{0} / (1 + abs({0}))", "Identity": "{0}", "Not": "not {0}",
    "Sign": "sign({0})", "IsNaN": "isnan({0})", "Asin": "asin({0})", "Acos": "acos({0})", "Atan": "atan({0})",
    "Asinh": "asinh({0})", "Acosh": "acosh({0})", "Atanh": "atanh({0})", "BitwiseNot": "~{0}", "Mish": "{0} * tanh(softplus({0}))",
    "HardSwish": "{0} * clamp({0} / 6 + 0.5, 0, 1)", "Cosh": "cosh({0})", "Sinh": "sinh({0})",
}  # fmt: skip
for _name, _template in UNARY.items():
    EXPRESSED[_name] = _unary(_template)

BINARY = {
    "Add": "{0} + {1}", "Sub": "{0} - {1}", "Mul": "{0} * {1}", "And": "{0} and {1}", "Or": "{0} or {1}", "Xor": "{0} != {1}",
    "Equal": "{0} == {1}", "Less": "{0} < {1}", "LessOrEqual": "{0} <= {1}", "Greater": "{0} > {1}",
    "GreaterOrEqual": "{0} >= {1}", "BitwiseAnd": "{0} & {1}", "BitwiseOr": "{0} | {1}", "BitwiseXor": "{0} ^ {1}",
    "PRelu": "{0} if {0} >= 0 else {0} * {1}",
}  # fmt: skip
for _name, _template in BINARY.items():
    EXPRESSED[_name] = lambda g, n, t=_template: g.map(t, n.x(0), n.x(1), dtype=n.dtype())


@expressed("Div")
def divide(g: Graph, n: Node) -> Tensor:
    if n.dtype() not in INTEGERS:
        return g.map("{0} / {1}", n.x(0), n.x(1), dtype=n.dtype())
    if n.dtype().startswith("u"):
        return g.map("{0} // {1}", n.x(0), n.x(1))
    return g.map("{0} // {1} if ({0} >= 0) == ({1} > 0) else -((-{0}) // {1})", n.x(0), n.x(1))


@expressed("Mod")
def modulo(g: Graph, n: Node) -> Tensor:
    template = "{0} % {1}"
    if n.attribute("fmod", 0):
        template = "fmod({0}, {1})"
    return g.map(template, n.x(0), n.x(1), dtype=n.dtype())


@expressed("BitShift")
def shift(g: Graph, n: Node) -> Tensor:
    return g.map("{0} << {1}" if n.attribute("direction", b"LEFT") in (b"LEFT", "LEFT") else "{0} >> {1}", n.x(0), n.x(1))


@expressed("Pow")
def power(g: Graph, n: Node) -> Tensor:
    x, y = n.x(0), n.x(1)
    if x.dtype in INTEGERS and y.dtype not in INTEGERS:
        return g.map("{2}(f32({0}) ** {1})".replace("{2}", n.dtype()), x, y, dtype=n.dtype())
    return g.map(f"{{0}} ** {n.dtype()}({{1}})" if x.dtype != y.dtype else "{0} ** {1}", x, y, dtype=n.dtype())


@expressed("Sum", "Mean", "Max", "Min")
def fold(g: Graph, n: Node) -> Tensor:
    operands = n.all()
    places = [f"{{{k}}}" for k in range(len(operands))]
    kind = n.proto.op_type
    if kind in ("Max", "Min"):
        text = f"{kind.lower()}({', '.join(places)})" if len(places) > 1 else places[0]
    else:
        text = " + ".join(places)
        text = f"({text}) / {len(places)}" if kind == "Mean" else text
    return g.map(text, *operands, dtype=n.dtype())


@expressed("Where")
def where(g: Graph, n: Node) -> Tensor:
    return g.map("{1} if {0} else {2}", *n.all(), dtype=n.dtype())


@expressed("Clip")
def clip(g: Graph, n: Node) -> Tensor:
    operands, text = [n.x()], "{0}"
    for place, attribute, function in ((1, "min", "max"), (2, "max", "min")):
        if place in n:
            operands.append(n.x(place))
            text = f"{function}({text}, {{{len(operands) - 1}}})"
        elif attribute in n.attributes:
            text = f"{function}({text}, {number(n.attribute(attribute))})"
    return g.map(text, *operands)


def _with(template: str, **defaults: float):
    """Elementwise with attributes."""

    def emit(g: Graph, n: Node) -> Tensor:
        values = {k: number(n.attribute(k, v)) for k, v in defaults.items()}
        text = template
        for key, value in values.items():
            text = text.replace(f"<{key}>", value)
        return g.map(text, n.x(), dtype=n.dtype())

    return emit


EXPRESSED |= {
    "LeakyRelu": _with("{0} if {0} >= 0 else <alpha> * {0}", alpha=0.01),
    "Elu": _with("{0} if {0} >= 0 else <alpha> * expm1({0})", alpha=1.0),
    "Selu": _with(
        "<gamma> * ({0} if {0} > 0 else <alpha> * expm1({0}))",
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Celu": _with("max({0}, 0) + min(0, <alpha> * expm1({0} / <alpha>))", alpha=1.0),
    "HardSigmoid": _with("clamp(<alpha> * {0} + <beta>, 0, 1)", alpha=0.2, beta=0.5),
    "ThresholdedRelu": _with("{0} if {0} > <alpha> else 0", alpha=1.0),
    "Swish": _with("{0} * sigmoid(<alpha> * {0})", alpha=1.0),
    "Shrink": _with("{0} + <bias> if {0} < -<lambd> else ({0} - <bias> if {0} > <lambd> else 0)", bias=0.0, lambd=0.5),
    "Binarizer": _with("1 if {0} > <threshold> else 0", threshold=0.0),
}


@expressed("Gelu")
def gelu(g: Graph, n: Node) -> Tensor:
    return g.map("gelu_tanh({0})" if n.attribute("approximate", "none") == "tanh" else "gelu({0})", n.x())


@expressed("IsInf")
def is_infinite(g: Graph, n: Node) -> Tensor:
    signs = [s for s, a in (("inf", "detect_positive"), ("-inf", "detect_negative")) if n.attribute(a, 1)]
    text = " or ".join(f"{{0}} == {s}" for s in signs) or "{0} != {0} and {0} == {0}"
    return g.map(text, n.x(), dtype="bool")


@expressed("Cast", "CastLike")
def cast(g: Graph, n: Node) -> Tensor:
    x, to = n.x(), n.dtype()
    if to in ("f8e4m3", "f8e5m2") and n.attribute("saturate", 1):
        top = {"f8e4m3": 448, "f8e5m2": 57344}[to]
        return g.map(f"{to}(clamp(f32({{0}}), -{top}, {top}))", x, dtype=to)
    return g.map(f"{to}({{0}})", x, dtype=to)


@expressed("Dropout")
def dropout(g: Graph, n: Node):
    training = n.parameter(2, np.bool_(False))
    if bool(training) and float(n.parameter(1, 0.5)) != 0:
        raise Unsupported(f"Dropout: {RANDOM}")
    x = n.x()
    return g.map("{0}", x), g.map("{0} == {0} or true", x, dtype="bool")


@expressed("BitCast")
def bits(g: Graph, n: Node) -> Tensor:
    if n.x().dtype not in (*INTEGERS, "bool") or n.dtype() not in INTEGERS:
        raise Unsupported("BitCast: the bits of a float are no number of the language")
    return g.map(f"{n.dtype()}({{0}})", n.x(), dtype=n.dtype())


# ---- reductions ------------------------------------------------------------------------------------------------------

REDUCED = {  # reduction, of what, and what follows
    "ReduceSum": ("sum", "{0}", "{0}"), "ReduceMean": ("mean", "{0}", "{0}"), "ReduceMax": ("max", "{0}", "{0}"),
    "ReduceMin": ("min", "{0}", "{0}"), "ReduceProd": ("prod", "{0}", "{0}"), "ReduceL1": ("sum", "abs({0})", "{0}"),
    "ReduceL2": ("sum", "{0} * {0}", "sqrt({0})"), "ReduceLogSum": ("sum", "{0}", "log({0})"),
    "ReduceLogSumExp": ("logsumexp", "{0}", "{0}"), "ReduceSumSquare": ("sum", "{0} * {0}", "{0}"),
}  # fmt: skip


@expressed(*REDUCED)
def reduce(g: Graph, n: Node) -> Tensor:
    x = n.x()
    kind, body, after = REDUCED[n.proto.op_type]
    axes = n.axes(1, len(x.shape))
    if not axes and not n.attribute("noop_with_empty_axes", 0):
        axes = list(range(len(x.shape)))
    if not axes:
        after = "log({0})" if kind == "logsumexp" else after
        body = "exp({0})" if kind == "logsumexp" else body
        return g.map(after.format(body), x)
    if x.dtype == "bool":
        kind = {"max": "any", "min": "all"}[kind]
    if x.dtype in ("i8", "u8", "i16", "u16") and kind in ("max", "min"):
        after = f"{x.dtype}({after})"
    return g.reduce(kind, x, axes, bool(n.attribute("keepdims", 1)), body, n.dtype(), after)


@expressed("ArgMax", "ArgMin")
def place(g: Graph, n: Node) -> Tensor:
    x, kind = n.x(), n.proto.op_type.lower()
    axis = n.attribute("axis", 0) % len(x.shape)
    if not n.attribute("select_last_index", 0):
        return g.reduce(kind, x, [axis], bool(n.attribute("keepdims", 1)), dtype="i64")
    last = x.shape[axis] - 1
    back = g.view(x, x.shape, lambda i: [f"{last} - {s}" if d == axis else s for d, s in enumerate(i)])
    return g.reduce(kind, back, [axis], bool(n.attribute("keepdims", 1)), dtype="i64", after=f"{last} - {{0}}")


@expressed("CumSum", "CumProd")
def scan(g: Graph, n: Node) -> Tensor:
    x, kind = n.x(), n.proto.op_type.lower()
    axis = int(np.asarray(n.parameter(1)).reshape(())) % len(x.shape)
    last = x.shape[axis] - 1

    def transposed(t: Tensor) -> Tensor:
        return g.view(t, t.shape, lambda i: [f"{last} - {s}" if d == axis else s for d, s in enumerate(i)])

    x = transposed(x) if n.attribute("reverse", 0) else x
    done = g.emit(x.shape, x.dtype, lambda i: f"{x.dtype}({kind}[i{axis}]({x.at(*i)}))")
    if n.attribute("exclusive", 0):
        neutral = "0" if kind == "cumsum" else "1"
        full = done
        before = [f"i{d} - 1" if d == axis else f"i{d}" for d in range(len(x.shape))]
        done = g.emit(x.shape, x.dtype, lambda i: f"pad({full.at(*before)}, {neutral})")
    return transposed(done) if n.attribute("reverse", 0) else done


@expressed("Softmax", "LogSoftmax")
def softmax(g: Graph, n: Node) -> Tensor:
    x = n.x()
    axis = n.attribute("axis", -1) % len(x.shape)
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[n.proto.op_type]
    return g.emit(x.shape, x.dtype, lambda i: f"{name}[i{axis}]({x.at(*i)})")


@expressed("Hardmax")
def hardmax(g: Graph, n: Node) -> Tensor:
    x = n.x()
    axis = n.attribute("axis", -1) % len(x.shape)
    first = g.reduce("argmax", x, [axis], True, dtype="i64")
    return g.emit(x.shape, x.dtype, lambda i: f"1 if i{axis} == {first.along(i, x.shape)} else 0")
