"""Pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tilec.core.dtypes import DTYPES
from tilec.torch import indices as ix
from tilec.torch.aten.table import Call, Value, expresses
from tilec.torch.aten.windows import Window, counted, summed
from tilec.torch.indices import Index
from tilec.torch.program import Inexpressible, Tensor, literal


def lowest(dtype: str) -> str:
    row = DTYPES[dtype]
    return "(-inf)" if row.is_float else literal(-(1 << row.bits - 1) if row.kind == "int" else 0, dtype)


def _split(x: Tensor, rank: int) -> tuple[int, tuple[int, ...]]:
    """How many dimensions come before those of windows, and the extents of these."""
    return len(x.shape) - rank, x.shape[len(x.shape) - rank :]


def _padded(call: Call, name: str, rank: int) -> Tensor:
    """An argument whose last dimensions are read beyond their ends."""
    x = call[name]
    return call.graph.solid(x, range(len(x.shape) - rank, len(x.shape)))


def _rank(call: Call) -> int:
    return int(call.name.partition("_pool")[2][:1])


def _extents(call: Call, rank: int) -> tuple[int, ...]:
    given = tuple(call["kernel_size"])
    return given * rank if len(given) == 1 else given


@expresses("max_pool2d_with_indices max_pool3d_with_indices")
def max_pool(call: Call) -> Value:
    """The largest element of each window, and its position in the input's row-major order."""
    rank = _rank(call)
    x = _padded(call, "self", rank)
    window = Window.of(call, _extents(call, rank))
    lead, spatial = _split(x, rank)
    (shape, dtype), (_, position) = call.results()
    r, over = counted([f"r{d}" for d in range(rank)], window.extent)
    pads = window.leaves(shape[lead:], spatial)

    def element(i: Sequence[Index], r: Sequence[Index]) -> str:
        access = x.at(*i[:lead], *window.read(i[lead:], r))
        return f"pad({access}, {lowest(dtype)})" if pads else access

    value = call.graph.emit(shape, dtype, lambda i: f"max[{over}]({element(i, r)})" if over else element(i, r))
    if not call.reads(1):
        return value, None
    inner = ix.name("k", (count := _product(window.extent)))
    taps = ix.unflat(inner, window.extent)
    best = call.graph.emit(shape, "i64", lambda i: f"argmax[k in 0:{count}]({element(i, taps)})" if count > 1 else "0")

    def where(i: list[Index]) -> str:
        chosen = ix.unflat(ix.opaque(best.at(*i), (0, count - 1)) if count > 1 else ix.number(0), window.extent)
        at = [f"clamp({p.sum_text()}, 0, {n - 1})" for p, n in zip(window.read(i[lead:], chosen), spatial)]
        return " + ".join(f"{a} * {s}" if s > 1 else a for a, s in zip(at, ix.row_major(spatial)))

    return value, call.graph.emit(shape, position, where)


def _product(extents: Sequence[int]) -> int:
    total = 1
    for n in extents:
        total *= n
    return total


def _share(call: Call, window: Window, i: Sequence[Index], spatial: Sequence[int]) -> str:
    """What a window's sum is divided by: a number of elements, which is smaller where the window leaves the input."""
    if call.get("divisor_override"):
        return literal(float(call["divisor_override"]))
    parts, known = [], 1
    for w, s, p, k, n in zip(i, window.stride, window.padding, window.extent, spatial):
        begin = w * s - p
        most = n + p if call["count_include_pad"] else n
        if begin.range[1] + k <= most and (call["count_include_pad"] or begin.range[0] >= 0):
            known *= k
            continue
        first = begin.sum_text() if call["count_include_pad"] or begin.range[0] >= 0 else f"max({begin.sum_text()}, 0)"
        parts.append(f"(min({(begin + k).sum_text()}, {most}) - ({first}))")
    return " * ".join([literal(float(known)), *(f"f32({p})" for p in parts)]) if parts else literal(float(known))


@expresses("avg_pool1d avg_pool2d avg_pool3d")
def average_pool(call: Call) -> Tensor:
    rank = _rank(call)
    x = _padded(call, "self", rank)
    window = Window.of(call, _extents(call, rank))
    lead, spatial = _split(x, rank)
    r, over = counted([f"r{d}" for d in range(rank)], window.extent)
    pads = window.leaves(call.shape[lead:], spatial)

    def expression(i: list[Index]) -> str:
        access = x.at(*i[:lead], *window.read(i[lead:], r))
        return f"{summed(over, f'pad({access}, 0)' if pads else access)} / ({_share(call, window, i[lead:], spatial)})"

    return call.emit(call.shape, call.dtype, expression)


def _inverse(window: Window, i: Sequence[Index]) -> tuple[list[list[Index]], list[Index], list[Index], str]:
    """The windows that a position may be in, and its places there."""
    spans = [(k - 1) * d + 1 for k, d in zip(window.extent, window.dilation)]
    t, over = counted([f"t{d}" for d in range(len(spans))], [ceil(k / s) for k, s in zip(spans, window.stride)])
    begins = [position + p for position, p in zip(i, window.padding)]
    windows = [b // s - u for b, s, u in zip(begins, window.stride, t)]
    inside = [b % s + u * s for b, s, u in zip(begins, window.stride, t)]
    return [begins], windows, inside, over


@expresses("max_pool2d_with_indices_backward max_pool3d_with_indices_backward")
def max_pool_backward(call: Call) -> Tensor:
    """At each position the gradients of the windows whose largest element is there."""
    rank = _rank(call)
    grad, chosen = _padded(call, "grad_output", rank), _padded(call, "indices", rank)
    window = Window.of(call, _extents(call, rank))
    lead, spatial = _split(call["self"], rank)

    def expression(i: list[Index]) -> str:
        _, windows, _, over = _inverse(window, i[lead:])
        here = ix.flat(i[lead:], ix.row_major(spatial))
        element, asked = (t.at(*i[:lead], *windows) for t in (grad, chosen))
        return summed(over, f"pad({element}, 0) if pad({asked}, -1) == {here} else 0")

    return call.emit(call.shape, call.dtype, expression)


@expresses("avg_pool2d_backward avg_pool3d_backward")
def average_pool_backward(call: Call) -> Tensor:
    rank = _rank(call)
    grad = _padded(call, "grad_output", rank)
    window = Window.of(call, _extents(call, rank))
    lead, spatial = _split(call["self"], rank)

    def expression(i: list[Index]) -> str:
        _, windows, inside, over = _inverse(window, i[lead:])
        text = f"pad({grad.at(*i[:lead], *windows)}, 0) / ({_share(call, window, windows, spatial)})"
        tests = [f"{p.sum_text()} < {k}" for p, k in zip(inside, window.extent) if p.range[1] >= k]
        return summed(over, f"{text} if {' and '.join(tests)} else 0" if tests else text)

    return call.emit(call.shape, call.dtype, expression)


def _adaptive(i: Index, extent: int, count: int) -> tuple[Index, Index, int]:
    """Begin and end of window i of so many, and the largest extent of one."""
    begin, end = i * extent // count, (i * extent + (extent + count - 1)) // count
    widest = max(-(-(n + 1) * extent // count) - n * extent // count for n in range(count))
    return begin, end, widest


def _windows(
    call: Call, i: Sequence[Index], spatial: Sequence[int]
) -> tuple[list[Index], list[Index], list[str], str, str]:
    """Of an adaptive window: positions and numbers of its elements, conditions that they are in it, ranges, their count."""
    lead = len(call["self"].shape) - len(spatial)
    counts = (call.meta[0] if isinstance(call.meta, tuple) else call.meta).shape[lead:]
    found = [_adaptive(w, n, m) for w, n, m in zip(i, spatial, counts)]
    r, over = counted([f"r{d}" for d in range(len(spatial))], [widest for _, _, widest in found])
    tests, sizes = [], []
    for (begin, end, widest), e, n, m in zip(found, r, spatial, counts):
        if n % m:
            tests.append(f"{(begin + e).sum_text()} < {end}")
            sizes.append(f"f32({(end - begin).sum_text()})")
        else:
            sizes.append(literal(float(widest)))
    return [begin + e for (begin, _, _), e in zip(found, r)], r, tests, over, " * ".join(sizes)


@expresses("_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d")
def adaptive_average_pool(call: Call) -> Tensor:
    rank = _rank(call)
    x = _padded(call, "self", rank)
    lead, spatial = _split(x, rank)

    def expression(i: list[Index]) -> str:
        at, _, tests, over, size = _windows(call, i[lead:], spatial)
        access = x.at(*i[:lead], *at)
        text = f"pad({access}, 0) if {' and '.join(tests)} else 0" if tests else access
        return f"{summed(over, text) if over else f'({text})'} / ({size})"

    return call.emit(call.shape, call.dtype, expression)


@expresses("adaptive_max_pool2d adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> Value:
    rank = _rank(call)
    x = _padded(call, "self", rank)
    lead, spatial = _split(x, rank)
    (shape, dtype), (_, position) = call.results()
    low = lowest(dtype)

    def value(i: list[Index]) -> str:
        at, _, tests, over, _ = _windows(call, i[lead:], spatial)
        access = x.at(*i[:lead], *at)
        text = f"pad({access}, {low}) if {' and '.join(tests)} else {low}" if tests else access
        return f"max[{over}]({text})" if over else text

    largest = call.graph.emit(shape, dtype, value)
    if call.reads(1):
        raise Inexpressible("positions in windows of several extents")
    del position
    return largest, None
