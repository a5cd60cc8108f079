"""Pooling in windows whose extents are what the result's size makes them, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilec.core.dtypes import DTYPES
from tilec.torch import indices as ix
from tilec.torch.aten import costs
from tilec.torch.aten.pools import lowest, padded, rank_of
from tilec.torch.aten.table import Call, Value, expresses
from tilec.torch.aten.windows import counted, summed
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, indices, literal


def _adaptive(i: Index, extent: int, count: int) -> tuple[Index, Index, int]:
    """Begin and end of window i of so many, and the largest extent of one."""
    begin, end = i * extent // count, (i * extent + (extent + count - 1)) // count
    return begin, end, _widest(extent, count)


def _widest(extent: int, count: int) -> int:
    return max(-(-(n + 1) * extent // count) - n * extent // count for n in range(count))


def _windows(
    call: Call, i: Sequence[Index], spatial: Sequence[int], taps: Sequence[Index] | None = None
) -> tuple[list[Index], list[str], str, str]:
    """Of an adaptive window: positions of its elements, conditions that they are in it, ranges, their count."""
    lead = len(call["self"].shape) - len(spatial)
    counts = (call.meta[0] if isinstance(call.meta, tuple) else call.meta).shape[lead:]
    found = [_adaptive(w, n, m) for w, n, m in zip(i, spatial, counts)]
    r, over = counted(indices(len(spatial), "r"), [widest for _, _, widest in found])
    r = list(taps) if taps is not None else r
    tests, sizes = [], []
    for (begin, end, widest), e, n, m in zip(found, r, spatial, counts):
        if n % m:
            tests.append(f"{(begin + e).sum_text()} < {end}")
            sizes.append(f"f32({(end - begin).sum_text()})")
        else:
            sizes.append(literal(float(widest)))
    return [begin + e for (begin, _, _), e in zip(found, r)], tests, over, " * ".join(sizes)


@expresses("_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d")
def adaptive_average_pool(call: Call) -> Tensor:
    x, rank = padded(call, "self", rank_of(call)), rank_of(call)
    lead, spatial = len(x.shape) - rank, x.shape[-rank:]

    def expression(i: list[Index]) -> str:
        at, tests, over, size = _windows(call, i[lead:], spatial)
        access = x.at(*i[:lead], *at)
        text = f"pad({access}, 0) if {' and '.join(tests)} else 0" if tests else access
        return f"{summed(over, text) if over else f'({text})'} / ({size})"

    return call.emit(call.shape, call.dtype, expression)


@expresses("adaptive_max_pool2d adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> Value:
    """The largest element of each window, and its position: of NaNs the last, of others that are equal the first."""
    x, rank = padded(call, "self", rank_of(call)), rank_of(call)
    lead, spatial = len(x.shape) - rank, x.shape[-rank:]
    (shape, dtype), (_, index) = call.results()
    low = lowest(dtype)

    def element(i: Sequence[Index], r: Sequence[Index] | None = None) -> tuple[str, str]:
        at, tests, over, _ = _windows(call, i[lead:], spatial, r)
        access = x.at(*i[:lead], *at)
        return (f"pad({access}, {low}) if {' and '.join(tests)} else {low}" if tests else access), over

    def value(i: list[Index]) -> str:
        text, over = element(i)
        return f"max[{over}]({text})" if over else text

    largest = call.graph.emit(shape, dtype, value)
    if not call.reads(1):
        return largest, None
    if not costs.reads_pay(call.device, 2 * prod(x.shape)):
        raise Unsupported(f"{call.name}: so many positions that PyTorch's one pass for values and positions is sooner")
    extents = [_widest(n, m) for n, m in zip(spatial, shape[lead:])]
    count = prod(extents)
    taps = ix.unflat(ix.name("k", count), extents)
    if count == 1:
        best = call.graph.emit(shape, "i64", "0")
    else:
        best = call.graph.emit(shape, "i64", lambda i: f"argmax[k in 0:{count}]({element(i, taps)[0]})")
    if count > 1 and DTYPES[dtype].is_float:  # argmax takes the first NaN
        first, tap = best, ix.name("k", count)
        last = call.graph.emit(
            shape, "i64", lambda i: f"max[k in 0:{count}]({tap} if isnan({element(i, taps)[0]}) else -1)"
        )
        best = call.graph.emit(shape, "i64", lambda i: f"{last.at(*i)} if {last.at(*i)} >= 0 else {first.at(*i)}")

    def where(i: list[Index]) -> str:
        chosen = ix.unflat(ix.opaque(best.at(*i), (0, count - 1)) if count > 1 else ix.number(0), extents)
        at, *_ = _windows(call, i[lead:], spatial, chosen)
        return ix.flat(at, ix.row_major(spatial)).sum_text()

    return largest, call.graph.emit(shape, index, where)


def _containing(i: Sequence[Index], spatial: Sequence[int], counts: Sequence[int]) -> tuple[list[Index], str]:
    """The windows that a position may be in, and ranges."""
    most = [max(-(-(p + 1) * m // n) - p * m // n for p in range(n)) for n, m in zip(spatial, counts)]
    t, over = counted(indices(len(spatial), "t"), most)
    return [p * m // n + u for p, u, n, m in zip(i, t, spatial, counts)], over


@expresses("adaptive_max_pool2d_backward adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(call: Call) -> Tensor:
    """At each position the gradients of the windows whose largest element is there."""
    rank = rank_of(call)
    grad, chosen = (padded(call, name, rank) for name in ("grad_output", "indices"))
    lead, spatial = len(grad.shape) - rank, call.shape[-rank:]

    def expression(i: list[Index]) -> str:
        windows, over = _containing(i[lead:], spatial, grad.shape[lead:])
        here = ix.flat(i[lead:], ix.row_major(spatial))
        element, asked = (t.at(*i[:lead], *windows) for t in (grad, chosen))
        return summed(over, f"pad({element}, 0) if pad({asked}, -1) == {here} else 0")

    return call.emit(call.shape, call.dtype, expression)


@expresses("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward")
def adaptive_average_pool_backward(call: Call) -> Tensor:
    """At each position the gradients of the windows that it is in, over their counts of elements."""
    rank = rank_of(call)
    grad = padded(call, "grad_output", rank)
    lead, spatial, counts = len(grad.shape) - rank, call.shape[-rank:], grad.shape[-rank:]

    def expression(i: list[Index]) -> str:
        windows, over = _containing(i[lead:], spatial, counts)
        tests, sizes = [], []
        for w, p, n, m in zip(windows, i[lead:], spatial, counts):
            begin, end, widest = _adaptive(w, n, m)
            sizes.append(f"f32({(end - begin).sum_text()})" if n % m else literal(float(widest)))
            tests += [f"{p} >= {begin} and {p} < {end}"] if n % m or not w.below(m) else []
        text = f"pad({grad.at(*i[:lead], *windows)}, 0) / ({' * '.join(sizes)})"
        return summed(over, f"{text} if {' and '.join(tests)} else 0" if tests else text)

    return call.emit(call.shape, call.dtype, expression)
