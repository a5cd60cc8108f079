"""Convolutions, forward and backward, as sums of products over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, gcd, prod

from tilec.torch import indices as ix
from tilec.torch.aten.table import ROUNDED, Call, Value, expresses
from tilec.torch.indices import Index
from tilec.torch.program import Graph, Tensor, indices, ranges

Convolved = tuple[tuple[int, ...], str, Callable[[list[Index]], str]]  # a statement's shape, type and expression


@dataclass(frozen=True)
class Taps:
    """Of the positions with one remainder by a stride: the window that the first element is of, from that of the position; the
    first element, and how far the next is from it; by how many windows each goes back; and how many there are."""

    first: int
    tap: int
    step: int
    back: int
    count: int


@dataclass(frozen=True)
class Window:
    """Of each spatial dimension: distance of windows, border before the first, distance of elements, extent. `rounded` is the type
    that the factors of products over windows may be rounded to, if there is one."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    extent: tuple[int, ...]
    rounded: str = ""

    @staticmethod
    def of(call: Call, extent: Sequence[int], stride: str = "stride") -> Window:
        rank = len(extent)
        every = lambda name, otherwise: _each(call.get(name), rank, otherwise)  # noqa: E731
        around = every(stride, extent), every("padding", [0] * rank), every("dilation", [1] * rank)
        return Window(*around, tuple(extent), call.node.meta.get(ROUNDED, ""))

    def read(self, i: Sequence[Index], r: Sequence[Index]) -> list[Index]:
        """The position in the input of element r of window i."""
        return [w * s + e * d - p for w, e, s, p, d in zip(i, r, self.stride, self.padding, self.dilation)]

    @property
    def skips(self) -> bool:
        """Whether elements of a window and windows are both apart: a position's remainder by the stride decides which windows cover
        it, and with which elements. A sum over all elements would be of zeros but for these."""
        return any(d > 1 and s > 1 for d, s in zip(self.dilation, self.stride))

    def sums_by_remainder(self, channels: int) -> bool:
        """Whether a sum over so many channels is made for each remainder of positions by the strides: its factors are decided by no
        position. Those of a single sum are, where windows are no multiple of the strides, or positions do not begin with a whole
        window."""
        uneven = any(k % s for k, s in zip(self.extent, self.stride))
        begins = any(p % s for p, s in zip(self.padding, self.stride))
        return self.skips or (channels > 1 and any(s > 1 for s in self.stride) and (uneven or begins))

    def taps(self, d: int, remainder: int) -> Taps | None:
        """The elements of windows that cover the positions with this remainder by the stride, along one dimension; None where no
        element does. Element r of window j is at j * stride + r * dilation - padding: r has one remainder by stride / gcd(stride,
        dilation), or there is none."""
        stride, dilation, extent = self.stride[d], self.dilation[d], self.extent[d]
        at, step = remainder + self.padding[d], stride // gcd(stride, dilation)
        tap = next((r for r in range(min(step, extent)) if (at - r * dilation) % stride == 0), None)
        if tap is None:
            return None
        return Taps((at - tap * dilation) // stride, tap, step, dilation * step // stride, -(-(extent - tap) // step))

    def leaves(self, windows: Sequence[int], spatial: Sequence[int]) -> bool:
        """Whether an element of a window is outside of the input."""
        last = [(n - 1) * s + (k - 1) * d - p for n, s, k, d, p in
                zip(windows, self.stride, self.extent, self.dilation, self.padding)]  # fmt: skip
        return any(self.padding) or any(a >= n for a, n in zip(last, spatial))


def _each(given: Sequence[int] | int | None, rank: int, otherwise: Sequence[int]) -> tuple[int, ...]:
    given = [given] if isinstance(given, int) else list(given) if given is not None else []
    given = given or list(otherwise)
    return tuple(given * rank if len(given) == 1 else given)


def counted(names: Sequence[str], extents: Sequence[int]) -> tuple[list[Index], str]:
    """Indices to sum over, and their ranges as text: what has one element is 0, and has no range."""
    found = [ix.name(n, e) if e > 1 else ix.number(0) for n, e in zip(names, extents)]
    many = [(n, e) for n, e in zip(names, extents) if e > 1]
    return found, ranges([n for n, _ in many], [e for _, e in many])


def summed(over: str, text: str, narrow: str = "") -> str:
    """The sum; of products whose factors may be rounded to the type `narrow`, if there is one."""
    total = f"sum[{over}]({text})" if over else text
    return f"({total} using {narrow})" if over and narrow else total


def forward(
    graph: Graph, x: Tensor, w: Tensor, shape: tuple[int, ...], dtype: str, window: Window, groups: int
) -> Convolved:
    """Shape, type and expression of a convolution: w has output channels first."""
    x = graph.solid(x, range(2, len(x.shape)))
    per, each = w.shape[1], w.shape[0] // groups
    (c, *r), over = counted(["c", *indices(len(window.extent), "r")], [per, *window.extent])
    pads = window.leaves(shape[2:], x.shape[2:])

    def expression(i: list[Index]) -> str:
        channel = c if groups == 1 else i[1] // each * per + c
        element = x.at(i[0], channel, *window.read(i[2:], r))
        return summed(over, f"{f'pad({element}, 0)' if pads else element} * {w.at(i[1], c, *r)}", window.rounded)

    return shape, dtype, expression


def transposed(
    graph: Graph, x: Tensor, w: Tensor, shape: tuple[int, ...], dtype: str, window: Window, groups: int
) -> Convolved:
    """Of a convolution's transpose: w has input channels first. At a position every stride-th element of a window counts. Where no
    channels are summed, windows go forwards and the weight backwards: neighbours share a window's elements, and the weight is
    small."""
    x = graph.solid(x, range(2, len(x.shape)))
    from_each, to_each = w.shape[0] // groups, w.shape[1]
    assert not window.skips, "such a sum is made by `by_remainders`"
    steps = [ceil(k / s) for k, s in zip(window.extent, window.stride)]
    (c, *r), over = counted(["c", *indices(len(steps), "r")], [from_each, *steps])
    if from_each == 1:
        r = [n - 1 - t for n, t in zip(steps, r)]
    if any(k % s for k, s in zip(window.extent, window.stride)):
        w = graph.solid(w, range(2, len(w.shape)))

    def expression(i: list[Index]) -> str:
        channel = c if groups == 1 else i[1] // to_each * from_each + c
        begins = [position + p for position, p in zip(i[2:], window.padding)]
        at = [b // s - t * d for b, s, t, d in zip(begins, window.stride, r, window.dilation)]
        taps = [b % s + t * s for b, s, t in zip(begins, window.stride, r)]
        weight = w.at(channel, i[1] % to_each, *taps)
        if any(not t.below(k) for t, k in zip(taps, window.extent)):
            weight = f"pad({weight}, 0)"
        return summed(over, f"pad({x.at(i[0], channel, *at)}, 0) * {weight}", window.rounded)

    return shape, dtype, expression


def by_remainders(
    graph: Graph, x: Tensor, w: Tensor, shape: tuple[int, ...], dtype: str, window: Window, groups: int,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What is `transposed`, put together of a sum for each remainder of positions by the strides: it has taps of its own, where a
    single sum would have zeros for those of the others. `bias` is added to each."""
    spatial, order = range(len(window.extent)), graph.orders.get(shape)
    size = (*shape[:2], *(ceil(n / s) for n, s in zip(shape[2:], window.stride)))
    parts = replace(graph, orders={} if order is None else {size: order})
    sums = dict[tuple[int, ...], Tensor]()
    for remainders in product(*map(range, window.stride)):
        taps = [window.taps(d, remainder) for d, remainder in enumerate(remainders)]
        if all(t is not None for t in taps):
            _, _, text = _remainder(graph, x, w, size, dtype, [t for t in taps if t is not None], window, groups)
            sums[remainders] = parts.emit(size, dtype, text if bias is None else _plus(text, bias))

    def expression(i: list[Index]) -> str:
        text = "" if len(sums) == prod(window.stride) else "0" if bias is None else bias.at(i[1])
        for remainders, made in sums.items():
            tests = [f"{i[2 + d]} % {window.stride[d]} == {remainders[d]}" for d in spatial if window.stride[d] > 1]
            element = made.at(i[0], i[1], *(i[2 + d] // window.stride[d] for d in spatial))
            text = f"{element} if {' and '.join(tests)} else ({text})" if text else element
        return text

    return graph.emit(shape, dtype, expression, whole=range(len(shape)))


def _plus(text: Callable[[list[Index]], str], bias: Tensor) -> Callable[[list[Index]], str]:
    return lambda i: f"{text(i)} + {bias.at(i[1])}"


def _remainder(
    graph: Graph, x: Tensor, w: Tensor, shape: tuple[int, ...], dtype: str, taps: Sequence[Taps], window: Window, groups: int
) -> Convolved:  # fmt: skip
    """The sum of one remainder, whose taps are these."""
    from_each, to_each = w.shape[0] // groups, w.shape[1]
    (c, *r), over = counted(["c", *indices(len(taps), "r")], [from_each, *(t.count for t in taps)])
    pads = any(
        t.first < t.back * (t.count - 1) or size + t.first > have for t, size, have in zip(taps, shape[2:], x.shape[2:])
    )
    x = graph.solid(x, range(2, len(x.shape))) if pads else x

    def expression(i: list[Index]) -> str:
        channel = c if groups == 1 else i[1] // to_each * from_each + c
        element = x.at(i[0], channel, *(j + t.first - n * t.back for j, t, n in zip(i[2:], taps, r)))
        weight = w.at(channel, i[1] % to_each, *(n * t.step + t.tap for t, n in zip(taps, r)))
        return summed(over, f"{f'pad({element}, 0)' if pads else element} * {weight}", window.rounded)

    return shape, dtype, expression


def of_weight(
    graph: Graph, x: Tensor, grad: Tensor, shape: tuple[int, ...], dtype: str, window: Window, groups: int
) -> Convolved:
    """Of the gradient with respect to the weight: x is what the windows read, and `grad` has an element for each window."""
    x = graph.solid(x, range(2, len(x.shape)))
    per, each = shape[1], shape[0] // groups
    (n, *y), over = counted(["n", *indices(len(window.extent), "y")], [x.shape[0], *grad.shape[2:]])
    pads = window.leaves(grad.shape[2:], x.shape[2:])

    def expression(i: list[Index]) -> str:
        channel = i[1] if groups == 1 else i[0] // each * per + i[1]
        element = x.at(n, channel, *window.read(y, i[2:]))
        return summed(over, f"{grad.at(n, i[0], *y)} * {f'pad({element}, 0)' if pads else element}", window.rounded)

    return shape, dtype, expression


@expresses("convolution", switch="conv")
def convolution(call: Call) -> Tensor:
    x, w, bias = call["input"], call["weight"], call["bias"]
    window = Window.of(call, w.shape[2:])
    make = transposed if call["transposed"] else forward
    if call["transposed"] and window.sums_by_remainder(w.shape[0] // call["groups"]):
        return by_remainders(call.graph, x, w, call.shape, call.dtype, window, call["groups"], bias)
    shape, dtype, text = make(call.graph, x, w, call.shape, call.dtype, window, call["groups"])
    return call.emit(shape, dtype, text if bias is None else _plus(text, bias))


@expresses("convolution_backward", switch="conv")
def convolution_backward(call: Call) -> Value:
    """Gradients of the input, the weight and the bias, each a statement. The input's is a convolution the other way round."""
    grad, x, w, groups = call["grad_output"], call["input"], call["weight"], call["groups"]
    window, results = Window.of(call, w.shape[2:]), call.meta
    made: list[Value] = [None, None, None]
    types = [None if m is None else call.typed(m) for m in results]
    if types[0] is not None:
        make = forward if call["transposed"] else transposed
        if not call["transposed"] and window.sums_by_remainder(w.shape[0] // groups):
            made[0] = by_remainders(call.graph, grad, w, *types[0], window, groups)
        else:
            made[0] = _whole(call.graph, call.graph.emit(*make(call.graph, grad, w, *types[0], window, groups)))
    if types[1] is not None:
        windows, read = (x, grad) if call["transposed"] else (grad, x)
        made[1] = call.graph.emit(*of_weight(call.graph, read, windows, *types[1], window, groups))
    if types[2] is not None:
        rank = len(grad.shape) - 2
        (n, *y), over = counted(["n", *indices(rank, "y")], [grad.shape[0], *grad.shape[2:]])
        made[2] = call.graph.emit(*types[2], lambda i: summed(over, grad.at(n, i[0], *y)))
    return tuple(made)


def _whole(graph: Graph, x: Tensor) -> Tensor:
    """A tensor in its own shape. With strides it may be stored with an index for each part of a position: all that is computed
    from it would have as many, and no windows could be seen in it."""
    if len(graph.stored[x.name].shape) <= len(x.shape):
        return x
    return graph.emit(x.shape, x.dtype, lambda i: x.at(*i), x.nominal, range(len(x.shape)))
