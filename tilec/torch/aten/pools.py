"""Pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tilec.core.dtypes import DTYPES
from tilec.torch import indices as ix
from tilec.torch.aten import costs
from tilec.torch.aten.table import Call, Value, expresses
from tilec.torch.aten.windows import Window, counted, summed
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, indices, literal


def lowest(dtype: str) -> str:
    row = DTYPES[dtype]
    return "(-inf)" if row.is_float else literal(-(1 << row.bits - 1) if row.kind == "int" else 0, dtype)


def highest(dtype: str) -> str:
    row = DTYPES[dtype]
    return "inf" if row.is_float else literal((1 << row.bits - (row.kind == "int")) - 1, dtype)


def rank_of(call: Call) -> int:
    return int(call.name.partition("_pool")[2][:1])


def padded(call: Call, name: str, rank: int) -> Tensor:
    """An argument whose last dimensions are read beyond their ends."""
    x = call[name]
    return call.graph.solid(x, range(len(x.shape) - rank, len(x.shape)))


@dataclass(frozen=True)
class Pool:
    """Windows in the last dimensions of a tensor, whose extents are `spatial`; `lead` dimensions come before them."""

    x: Tensor
    window: Window
    lead: int
    spatial: tuple[int, ...]

    @staticmethod
    def of(call: Call, x: Tensor) -> Pool:
        rank, kernel = rank_of(call), tuple(call["kernel_size"])
        lead = len(x.shape) - rank
        return Pool(x, Window.of(call, kernel * rank if len(kernel) == 1 else kernel), lead, x.shape[lead:])

    def element(self, i: Sequence[Index], r: Sequence[Index], shape: Sequence[int], outside: str) -> str:
        """Element r of window i, of a result of this shape, and what it is beyond the tensor."""
        access = self.x.at(*i[: self.lead], *self.window.read(i[self.lead :], r))
        return f"pad({access}, {outside})" if self.window.leaves(shape[self.lead :], self.spatial) else access

    def counted(self) -> tuple[list[Index], str]:
        """The number of an element of a window, and its range."""
        return counted(indices(len(self.spatial), "r"), self.window.extent)


@expresses("max_pool2d_with_indices max_pool3d_with_indices")
def max_pool(call: Call) -> Value:
    """The largest element of each window, and its position in the input's row-major order: of NaNs the last, of others that are
    equal the first. A window without anything above the lowest value is at its first place behind the border, as in PyTorch, even
    if that is beyond the input's end. (PyTorch's kernel for channels-last images on a GPU says 0 of such a window.)"""
    pool = Pool.of(call, padded(call, "self", rank_of(call)))
    (shape, dtype), (_, position) = call.results()
    r, over = pool.counted()
    element = lambda i, r: pool.element(i, r, shape, lowest(dtype))  # noqa: E731
    value = call.graph.emit(shape, dtype, lambda i: f"max[{over}]({element(i, r)})" if over else element(i, r))
    if not call.reads(1):
        return value, None
    window, count = pool.window, prod(pool.window.extent)
    taps = ix.unflat(ix.name("k", count), window.extent)
    best = call.graph.emit(shape, "i64", lambda i: _first(value.at(*i), element(i, taps), count, dtype) if count > 1 else "0")
    if count > 1 and DTYPES[dtype].is_float:  # of NaNs the last
        counted = best
        best = call.graph.emit(
            shape, "i64", lambda i: f"{count - 1} - {counted.at(*i)} if isnan({value.at(*i)}) else {counted.at(*i)}"
        )

    def where(i: list[Index]) -> str:
        chosen = ix.unflat(ix.opaque(best.at(*i), (0, count - 1)) if count > 1 else ix.number(0), window.extent)
        at = [_inside(p, d) for p, d in zip(window.read(i[pool.lead :], chosen), window.dilation)]
        return " + ".join(f"{a} * {s}" if s > 1 else a for a, s in zip(at, ix.row_major(pool.spatial)))

    return value, call.graph.emit(shape, position, where)


def _first(largest: str, element: str, count: int, dtype: str) -> str:
    """The first of `count` elements that is the largest one; where that is NaN, how many elements follow the last NaN."""
    first = f"k if {element} == {largest} else {count}"
    if DTYPES[dtype].is_float:
        first = f"({count - 1} - k if isnan({element}) else {count}) if isnan({largest}) else ({first})"
    return f"min[k in 0:{count}]({first})"


def _inside(at: Index, step: int) -> str:
    """A position, or if that is less than 0, the first one that is not after so many steps."""
    if at.at_least(0):
        return str(at)
    return f"max({at.sum_text()}, 0)" if step == 1 else f"({at.sum_text()} if {at.sum_text()} >= 0 else {at % step})"


def _share(call: Call, window: Window, i: Sequence[Index], spatial: Sequence[int]) -> str:
    """What a window's sum is divided by: a number of elements, which is smaller where the window leaves the input."""
    if (divisor := call.get("divisor_override")) is not None:
        if not divisor:
            raise Unsupported("averages with a divisor of 0")  # an error in PyTorch
        return literal(float(divisor))
    parts, known = [], 1
    for w, s, p, k, n in zip(i, window.stride, window.padding, window.extent, spatial):
        begin = w * s - p
        most = n + p if call["count_include_pad"] else n
        if (begin + (k - 1)).below(most) and (call["count_include_pad"] or begin.at_least(0)):
            known *= k
            continue
        first = begin.sum_text() if call["count_include_pad"] or begin.at_least(0) else f"max({begin.sum_text()}, 0)"
        parts.append(f"(min({(begin + k).sum_text()}, {most}) - ({first}))")
    return " * ".join([literal(float(known)), *(f"f32({p})" for p in parts)]) if parts else literal(float(known))


@expresses("avg_pool1d avg_pool2d avg_pool3d")
def average_pool(call: Call) -> Tensor:
    pool = Pool.of(call, padded(call, "self", rank_of(call)))
    r, over = pool.counted()
    share = lambda i: _share(call, pool.window, i[pool.lead :], pool.spatial)  # noqa: E731
    return call.emit(
        call.shape, call.dtype, lambda i: f"{summed(over, pool.element(i, r, call.shape, '0'))} / ({share(i)})"
    )


def _inverse(window: Window, i: Sequence[Index]) -> tuple[list[Index], list[Index], str]:
    """The windows that a position may be in, and its places there."""
    spans = [(k - 1) * d + 1 for k, d in zip(window.extent, window.dilation)]
    t, over = counted(indices(len(spans), "t"), [ceil(k / s) for k, s in zip(spans, window.stride)])
    begins = [position + p for position, p in zip(i, window.padding)]
    windows = [b // s - u for b, s, u in zip(begins, window.stride, t)]
    inside = [b % s + u * s for b, s, u in zip(begins, window.stride, t)]
    return windows, inside, over


def folded(x: Tensor, window: Window, i: Sequence[Index], lead: int) -> str:
    """The sum of all elements of windows that lie at a position. `x` has, after its first `lead` dimensions, those of a window's
    elements, and then those of the windows."""
    windows, inside, over = _inverse(window, i[lead:])
    rank, counts = len(windows), x.shape[-len(windows) :]
    taps = [p // d for p, d in zip(inside, window.dilation)]
    tests = [f"{w.sum_text()} >= 0" for w in windows if not w.at_least(0)]
    tests += [f"{w.sum_text()} < {n}" for w, n in zip(windows, counts) if not w.below(n)]
    tests += [f"{t.sum_text()} < {k}" for t, k in zip(taps, window.extent) if not t.below(k)]
    tests += [f"{p % d} == 0" for p, d in zip(inside, window.dilation) if d > 1]
    known = [ix.within(p, n) for p, n in zip([*taps, *windows], x.shape[-2 * rank :])]
    text = x.at(*i[:lead], *known)
    return summed(over, f"pad({text}, 0) if {' and '.join(tests)} else 0" if tests else text)


@expresses("col2im", whole="a sum of the windows that a place is in, which PyTorch's decomposition writes to computed positions")
def col2im(call: Call) -> Tensor:
    x, kernel, image = call["self"], tuple(call["kernel_size"]), tuple(call["output_size"])
    lead = call.shape[:-2]
    window = Window.of(call, kernel)
    if not costs.reads_pay(call.device, prod(call.shape) * prod(ceil(k / s) for k, s in zip(kernel, window.stride))):
        raise Unsupported("col2im: as many columns as PyTorch's kernel adds up in vectors")
    counts = [(n + 2 * p - (k - 1) * d - 1) // s + 1 for n, p, k, d, s in
              zip(image, window.padding, kernel, window.dilation, window.stride)]  # fmt: skip
    whole = x.reshaped((*lead, *kernel, *counts))
    return call.emit(call.shape, call.dtype, lambda i: folded(whole, window, i, len(lead)))


@expresses("max_pool2d_with_indices_backward max_pool3d_with_indices_backward")
def max_pool_backward(call: Call) -> Tensor:
    """At each position the gradients of the windows whose largest element is there."""
    grad, chosen = (padded(call, name, rank_of(call)) for name in ("grad_output", "indices"))
    pool = Pool.of(call, call["self"])

    def expression(i: list[Index]) -> str:
        windows, _, over = _inverse(pool.window, i[pool.lead :])
        here = ix.flat(i[pool.lead :], ix.row_major(pool.spatial))
        element, asked = (t.at(*i[: pool.lead], *windows) for t in (grad, chosen))
        return summed(over, f"pad({element}, 0) if pad({asked}, -1) == {here} else 0")

    return call.emit(call.shape, call.dtype, expression)


@expresses("avg_pool2d_backward avg_pool3d_backward")
def average_pool_backward(call: Call) -> Tensor:
    grad, pool = padded(call, "grad_output", rank_of(call)), Pool.of(call, call["self"])

    def expression(i: list[Index]) -> str:
        windows, inside, over = _inverse(pool.window, i[pool.lead :])
        element = f"pad({grad.at(*i[: pool.lead], *windows)}, 0)"
        text = f"{element} / ({_share(call, pool.window, windows, pool.spatial)})"
        tests = [f"{p.sum_text()} < {k}" for p, k in zip(inside, pool.window.extent) if not p.below(k)]
        return summed(over, f"{text} if {' and '.join(tests)} else 0" if tests else text)

    return call.emit(call.shape, call.dtype, expression)
