"""Reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log2, prod

from tilec.core.dtypes import DTYPES
from tilec.torch.aten import costs
from tilec.torch.aten.table import ONE, Call, Value, expresses, operand
from tilec.torch.extents import most
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, count, literal, reducing, reduction

SIMPLE = {  # the reduction, and of bools
    "sum": ("sum", "sum"), "mean": ("mean", "mean"), "prod": ("prod", "prod"), "amax": ("max", "any"), "amin": ("min", "all"),
    "max": ("max", "any"), "min": ("min", "all"), "any": ("any", "any"), "all": ("all", "all"), "logsumexp": ("logsumexp", ""),
}  # fmt: skip


def element(x: Tensor, dtype: str) -> str:
    """The template of an element in the type that is reduced; what is computed in f32 anyway needs no cast."""
    narrow = dtype in ("f16", "bf16", "f32") and x.dtype in ("f16", "bf16", "f32")
    return "{0}" if narrow or x.dtype == dtype else f"{dtype}({{0}})"


def reduced(call: Call, kind: str, x: Tensor, axes: Sequence[int], body: str, dtype: str, after: str = "{0}") -> Tensor:
    keepdim = bool(call.get("keepdim"))
    return call.emit(*reducing(kind, x, axes, keepdim, body, dtype, after))


@expresses("sum mean", smooth=True)
@expresses("prod amax amin max min any all")
@expresses("logsumexp", whole=ONE)
def reduce(call: Call) -> Value:
    x = call["self"]
    if isinstance(call.get("other"), Tensor):
        raise Unsupported(f"{call.name} of two tensors: not decomposed")
    kind, of_bools = SIMPLE[call.name]
    axes = call.axes(call.get("dim"), len(x.shape))
    if isinstance(call.meta, tuple | list):
        return _with_position(call, kind, x, axes)
    dtype = call.dtype
    if x.dtype == "bool" and dtype == "bool":
        return reduced(call, of_bools, x, axes, "{0}", dtype)
    body = element(x, "bool" if kind in ("any", "all") else dtype)
    after = f"{dtype}({{0}})" if kind in ("any", "all") and dtype != "bool" else "{0}"
    return reduced(call, kind, x, axes, body, dtype, after)


def _with_position(call: Call, kind: str, x: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """The largest or smallest element and where it is."""
    (_, dtype), (_, position) = call.results()
    keepdim = bool(call["keepdim"])
    body = "i32({0})" if x.dtype == "bool" else "{0}"
    logic = {"max": "any", "min": "all"}[kind] if x.dtype == "bool" else kind
    value = call.graph.emit(*reducing(logic, x, axes, keepdim, "{0}", dtype), x.nominal)
    where = call.graph.emit(*_positions(kind, x, axes, keepdim, body, position))
    return value, where


def _positions(kind: str, x: Tensor, axes: list[int], keepdim: bool, body: str, dtype: str) -> tuple:
    if not axes:
        shape = list(x.shape)
        return shape, dtype, "0"
    return reducing(f"arg{kind}", x, axes, keepdim, body, dtype)


@expresses("argmax argmin")
def position(call: Call) -> Tensor:
    x, dim = call["self"], call["dim"]
    if x.dtype == "bool":
        raise Unsupported(f"{call.name} of bools")
    if dim is None and x.shape:
        whole, keepdim = x.reshaped((prod(x.shape),)), bool(call["keepdim"])
        shape, _, expression = reducing(call.name, whole, [0], False)
        return call.graph.emit([1] * len(x.shape) if keepdim else shape, "i64", lambda i: expression([]))
    axes = call.axes(dim, len(x.shape)) if x.shape else []
    return call.graph.emit(*_positions(call.name[3:], x, axes, bool(call["keepdim"]), "{0}", "i64"))


@expresses("var var_mean", smooth=True)
@expresses("std std_mean", smooth=True, whole="squares are added up in f64, and neither overflow nor vanish in f32")
def variance(call: Call) -> Value:
    """In two passes: of the differences from the mean, whose own error the compiler takes out again (`passes/tensor/corrected.py`).

    Squares for a deviation are added up in f64, where they neither overflow nor vanish. Other differences are scaled by a power of
    two near 1 / sqrt(n): the sum of their squares is about as large as the variance, and does not overflow before it does. Of a row
    whose length varies, n is its greatest length."""
    x = call["self"]
    correction = call.get("correction")
    if correction is None:
        correction = 1 if call.get("unbiased") in (None, True) else 0
    axes, keepdim = call.axes(call.get("dim"), len(x.shape)), bool(call.get("keepdim"))
    number, deviation = prod(x.shape[d] for d in axes), call.name.startswith("std")
    wide = "f64" if x.dtype == "f64" else "f32"
    widest = "f64" if deviation else wide
    pair = isinstance(call.meta, tuple | list)
    shape, dtype = call.results()[0] if pair else (call.shape, call.dtype)
    mean = call.graph.emit(*reducing("mean", x, axes, True, element(x, wide), wide), "" if dtype == wide else dtype)
    scale = 2.0 ** -ceil(log2(max(most(number), 1)) / 2)
    if widest == wide:
        scaled = (lambda text: f"({text} * {literal(scale)})") if scale < 1 else (lambda text: text)
    else:
        scale, scaled = 1.0, lambda text: f"{widest}({text})"
    off = lambda k: f"({x.at(*k)} - {mean.along(k, x.shape)})"  # noqa: E731
    squares = call.graph.emit(*reducing("sum", x, axes, True, lambda k: f"{scaled(off(k))} * {scaled(off(k))}", widest))
    divisor = number - correction

    def expression(i: list[Index]) -> str:
        total = squares.at(*i)
        if not divisor > 0:
            text = f"{total} * inf"
        elif isinstance(divisor, int | float):
            text = f"{total} / {literal(float(divisor) * scale**2)}"
        else:
            text = f"{total} / ({count(divisor, widest)} * {literal(scale**2)})"
        return f"{dtype}(sqrt({text}))" if deviation else text

    made = call.emit(squares.shape, dtype, expression)
    made, mean = (t if keepdim else t.reshaped(shape) for t in (made, mean))
    return (made, mean) if pair else made


@expresses("linalg_vector_norm norm")
def norm(call: Call) -> Tensor:
    x = call["self"]
    order = call["ord"] if "ord" in call else call["p"]
    order = 2.0 if order is None else float(order)
    axes, dtype = call.axes(call.get("dim"), len(x.shape)), call.dtype
    e = element(x, dtype)
    if order in (inf, -inf):
        return reduced(call, "max" if order > 0 else "min", x, axes, f"abs({e})", dtype)
    if order == 0:
        return reduced(call, "sum", x, axes, f"{'f64' if dtype == 'f64' else 'f32'}({{0}} != 0)", dtype)
    if order == 1:
        return reduced(call, "sum", x, axes, f"abs({e})", dtype)
    if order == 2:
        return reduced(call, "sum", x, axes, f"{e} * {e}", dtype, "sqrt({0})")
    return reduced(call, "sum", x, axes, f"abs({e}) ** {literal(order)}", dtype, f"({{0}}) ** {literal(1 / order)}")


@expresses("cumsum cumprod")
def scan(call: Call) -> Tensor:
    x, dtype = call["self"], call.dtype
    if not x.shape:
        return call.emit((), dtype, element(x, dtype).format(x.at()))
    axis, body = call["dim"] % len(x.shape), element(x, dtype)
    if x.shape[axis] == 1:
        return call.emit(x.shape, dtype, lambda i: body.format(x.at(*i)))
    return call.emit(x.shape, dtype, lambda i: f"{call.name}[{i[axis]}]({body.format(x.at(*i))})", [axis])


def softmax_axis(call: Call) -> tuple[Tensor, int | None]:
    """What is normalised and along which dimension; None where that has one element."""
    x = call["self"]
    if not DTYPES[x.dtype].is_float:
        raise Unsupported(f"{call.name} of integers")
    axis = call["dim"] % len(x.shape) if x.shape else None
    return x, axis if axis is not None and x.shape[axis] > 1 else None


@expresses("_softmax", smooth=True, softmax=True)
@expresses("_safe_softmax", smooth=True, softmax=True, whole=ONE)
@expresses("_log_softmax", smooth=True)
@expresses("softmax log_softmax")
def softmax(call: Call) -> Tensor:
    x, axis = softmax_axis(call)
    name = call.name.lstrip("_")
    if axis is None:  # of one number: 1 and 0, and of an infinite one NaN; a safe softmax of -inf is 0
        text = "{0} - {0}" if name.startswith("log") else "{0} - {0} + 1"
        text = f"{literal(0, call.dtype)} if {{0}} == -inf else {text}" if name.startswith("safe") else text
        return call.emit(call.shape, call.dtype, lambda i: text.format(x.at(*i)))
    return call.emit(call.shape, call.dtype, lambda i: f"{name}[{i[axis]}]({x.at(*i)})", [axis])


@expresses("cummax cummin")
def extremes(call: Call) -> Value:
    """The largest or smallest elements so far, and the last positions where an element was one, or a NaN."""
    x, ((shape, dtype), (_, index)) = call["self"], call.results()
    if not shape or shape[call["dim"] % len(shape)] == 1:
        return x, call.graph.emit(shape, index, "0")
    if not costs.reads_pay(call.device, 2 * prod(shape)):
        raise Unsupported(f"{call.name}: rows so long that PyTorch's scan of values and positions is sooner")
    axis, wide = call["dim"] % len(shape), "i32" if x.dtype == "bool" else x.dtype
    element = lambda i: operand(x, wide, lambda t: t.at(*i))  # noqa: E731
    best = call.graph.emit(shape, wide, lambda i: f"{call.name}[{i[axis]}]({element(i)})", whole=[axis])

    def last(i: list[Index]) -> str:
        test = f"{element(i)} == {best.at(*i)}"
        test += f" or isnan({element(i)})" if DTYPES[wide].is_float else ""
        return f"cummax[{i[axis]}]({i[axis]} if {test} else 0)"

    positions = call.graph.emit(shape, index, last, whole=[axis])
    return (best if wide == dtype else call.graph.emit(shape, dtype, lambda i: f"{dtype}({best.at(*i)})")), positions


EXPONENTIAL = 8
"""Operations of an exponential and a sum, in pairs of a comparison and a choice."""


@expresses("logcumsumexp")
def logcumsumexp(call: Call) -> Tensor:
    """A reduction for each element over those before it: a scan of exponentials would overflow."""
    x, shape = call["self"], call.shape
    if not shape or shape[call["dim"] % len(shape)] == 1:
        return call.emit(shape, call.dtype, lambda i: x.at(*i))
    axis = call["dim"] % len(shape)
    count = shape[axis]
    if not costs.scatter_pays(call.device, EXPONENTIAL * prod(shape) * count, 8 * prod(shape)):
        raise Unsupported("logcumsumexp: rows so long that PyTorch's scan is sooner")

    def expression(i: list[Index]) -> str:
        at = lambda k: x.at(*(k if d == axis else p for d, p in enumerate(i)))  # noqa: E731
        return reduction("logsumexp", [count], lambda k: f"{at(k[0])} if {k[0]} <= {i[axis]} else -inf")

    return call.emit(shape, call.dtype, expression, [axis])
