"""Normalisations: by mean and deviation, in f32 at least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tilec.torch import indices as ix
from tilec.torch.aten.table import Call, Value, expresses
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, count, literal, reducing


def wide_of(x: Tensor) -> str:
    return "f64" if x.dtype == "f64" else "f32"


def statistics(call: Call, x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the variance and the reciprocal deviation, with one element along the axes."""
    wide, number = wide_of(x), prod(x.shape[d] for d in axes)
    mean = call.graph.emit(*reducing("mean", x, axes, True, "{0}", wide))
    off = lambda k: f"({x.at(*k)} - {mean.along(k, x.shape)})"  # noqa: E731
    squares = lambda k: f"{off(k)} * {off(k)}"  # noqa: E731
    variance = call.graph.emit(*reducing("sum", x, axes, True, squares, wide, f"{{0}} / {count(number, wide)}"))
    inverse = call.graph.emit(mean.shape, wide, lambda i: f"rsqrt({variance.at(*i)} + {literal(float(epsilon))})")
    return mean, variance, inverse


def _ratio(a: int, b: int) -> str:
    """A quotient of counts as text."""
    return literal(a / b) if isinstance(a, int) else f"{count(a)} / {count(b)}"


def _result(call: Call, value: Tensor, n: int) -> Tensor:
    """A statistic as PyTorch gives it: of its shape, and perhaps rounded."""
    shape, dtype = call.results()[n]
    value = value if value.shape == shape else value.reshaped(shape)
    return value if value.dtype == dtype else replace(value, nominal=dtype)


At = Callable[[list[Index]], str]


def _normal(
    call: Call, x: Tensor, mean: At, inverse: At, own: Callable[[list[Index]], Sequence[Index]] = lambda i: [i[1]]
) -> Tensor:
    """The first result. `own` are the subscripts of weight and bias: by default channels, which are dimension 1."""
    weight, bias = call["weight"], call["bias"]

    def expression(i: list[Index]) -> str:
        text = f"({x.at(*i)} - {mean(i)}) * {inverse(i)}"
        text += f" * {weight.at(*own(i))}" if weight is not None else ""
        return text + (f" + {bias.at(*own(i))}" if bias is not None else "")

    return call.graph.emit(x.shape, call.results()[0][1], expression)


@expresses("native_layer_norm", smooth=True)
def layer_norm(call: Call) -> Value:
    x = call["input"]
    lead = len(x.shape) - len(call["normalized_shape"])
    mean, _, inverse = statistics(call, x, list(range(lead, len(x.shape))), call["eps"])

    mean_at, inverse_at = (lambda i, t=t: t.along(i, x.shape) for t in (mean, inverse))
    made = _normal(call, x, mean_at, inverse_at, lambda i: i[lead:])
    return made, _result(call, mean, 1), _result(call, inverse, 2)


@expresses("native_group_norm", smooth=True)
def group_norm(call: Call) -> Value:
    x, groups = call["input"], call["group"]
    samples, channels = x.shape[:2]
    parts = x.reshaped((samples, groups, channels // groups, *x.shape[2:]))
    mean, _, inverse = statistics(call, parts, list(range(2, len(parts.shape))), call["eps"])
    each = channels // groups

    at = lambda i: [i[0], i[1] // each, *(ix.number(0) for _ in parts.shape[2:])]  # noqa: E731
    made = _normal(call, x, lambda i: mean.at(*at(i)), lambda i: inverse.at(*at(i)))
    return made, _result(call, mean, 1), _result(call, inverse, 2)


def _by_given(call: Call, mean: Tensor, variance: Tensor) -> Tensor:
    epsilon = literal(float(call["eps"]))
    return _normal(call, call["input"], lambda i: mean.at(i[1]), lambda i: f"rsqrt({variance.at(i[1])} + {epsilon})")


@expresses("_native_batch_norm_legit_no_training", smooth=True)
def batch_norm_inference(call: Call) -> Value:
    return _by_given(call, call["running_mean"], call["running_var"]), None, None


@expresses("_native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm")
def batch_norm(call: Call) -> Value:
    x = call["input"]
    old_mean, old_variance = (call.get(n) for n in ("running_mean", "running_var"))
    if not call["training"]:
        if old_mean is None or old_variance is None:
            raise Unsupported("a batch norm without statistics")
        return (_by_given(call, old_mean, old_variance), None, None, old_mean, old_variance)[: len(call.meta)]
    axes = [0, *range(2, len(x.shape))]
    mean, spread, inverse = statistics(call, x, axes, call["eps"])
    at = lambda t, c: t.at(*(c if d == 1 else ix.number(0) for d in range(len(x.shape))))  # noqa: E731
    made = _normal(call, x, lambda i: at(mean, i[1]), lambda i: at(inverse, i[1]))
    results: list[Value] = [made, _result(call, mean, 1), _result(call, inverse, 2)]
    if call.name == "_native_batch_norm_legit_functional":
        if old_mean is None or old_variance is None:
            raise Unsupported("a batch norm without statistics")
        momentum, number = float(call["momentum"]), prod(x.shape[d] for d in axes)
        old, enter = literal(1 - momentum), literal(momentum)
        unbiased = _ratio(number, number - 1) if number > 1 else "inf"
        (shape, dtype), (_, other) = call.results()[3:]
        text = f"{old} * {{}} + {enter} * {{}}"
        results.append(call.graph.emit(shape, dtype, lambda i: text.format(old_mean.at(i[0]), at(mean, i[0]))))
        wider = lambda i: f"{at(spread, i[0])} * {unbiased}"  # noqa: E731
        results.append(call.graph.emit(shape, other, lambda i: text.format(old_variance.at(i[0]), wider(i))))
    return tuple(results)
