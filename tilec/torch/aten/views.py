"""Views: accesses to elements of another tensor, which nothing stores."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilec.torch import indices as ix
from tilec.torch.aliases import node_at
from tilec.torch.aten.table import SUMS, Call, Value, expresses
from tilec.torch.program import Tensor, Unsupported


@expresses("view _unsafe_view reshape squeeze unsqueeze", shows="order")
@expresses("_reshape_alias flatten view_copy squeeze_copy unsqueeze_copy")
def view(call: Call) -> Tensor:
    x = call["self"]
    if "dtype" in call and call["dtype"] is not None:
        raise Unsupported("bits of one type as another's")
    return x if call.shape == x.shape else x.reshaped(call.shape)


@expresses("expand", shows="order")
@expresses("expand_copy")
def expand(call: Call) -> Tensor:
    return call["self"].expanded(call.shape)


@expresses("permute", shows="elements")
@expresses("permute_copy")
def permute(call: Call) -> Tensor:
    x = call["self"]
    return x.permuted([d % len(x.shape) for d in call["dims"]])


@expresses("t transpose", shows="elements")
@expresses("t_copy transpose_copy")
def transpose(call: Call) -> Tensor:
    x = call["self"]
    order = list(range(len(x.shape)))
    first, second = (call["dim0"], call["dim1"]) if "dim0" in call else (0, -1)
    if order:
        order[first], order[second] = order[second], order[first]
    return x.permuted(order)


@expresses("slice slice_copy")
def slice_(call: Call) -> Tensor:
    x, axis = call["self"], call["dim"] % len(call["self"].shape)
    begin, step = bounds(x.shape[axis], call["start"], call["end"], call["step"])[0], call["step"]
    return x.seen(call.shape, lambda i: [p * step + begin if d == axis else p for d, p in enumerate(i)])


def bounds(extent: int, start: int | None, end: int | None, step: int | None) -> tuple[int, int, int]:
    """The first position, the one behind the last, and the step of a slice, whose step is positive."""
    if all(isinstance(n, int) for n in (extent, start or 0, end or 0)):
        return slice(start, end, step).indices(extent)
    first, behind = (max(n + extent, 0) if n < 0 else min(n, extent) for n in (start or 0, extent if end is None else end))
    return first, behind, step or 1


@expresses("select select_copy")
def select(call: Call) -> Tensor:
    x = call["self"]
    axis, position = call["dim"] % len(x.shape), call["index"]
    if isinstance(position, Tensor):
        raise Unsupported("a position that is known when it runs")
    at = ix.number(position + x.shape[axis] if position < 0 else position)
    return x.seen(call.shape, lambda i: [*i[:axis], at, *i[axis:]])


@expresses("narrow narrow_copy")
def narrow(call: Call) -> Tensor:
    x, begin = call["self"], call["start"]
    axis = call["dim"] % len(x.shape)
    begin = begin % x.shape[axis] if begin < 0 else begin
    return x.seen(call.shape, lambda i: [p + begin if d == axis else p for d, p in enumerate(i)])


@expresses(
    "split_with_sizes split split_copy unsafe_split unsafe_split_with_sizes chunk unbind tensor_split "
    "split_with_sizes_copy unbind_copy"
)
def split(call: Call) -> Value:
    x = call["self"]
    axis = call["dim"] % len(x.shape)
    parts: list[Tensor] = []
    begin = 0
    for n, (shape, _) in enumerate(call.results()):
        if call.name.startswith("unbind"):
            parts.append(x.seen(shape, lambda i, n=n: [*i[:axis], ix.number(n), *i[axis:]]))
            continue
        parts.append(x.seen(shape, lambda i, b=begin: [p + b if d == axis else p for d, p in enumerate(i)]))
        begin += shape[axis]
    return tuple(parts)


@expresses("getitem")
def getitem(call: Call) -> Value:
    values, position = call.args
    found = values[position]
    if found is None:
        raise Unsupported("a result that is not computed")
    return found


@expresses("diagonal diagonal_copy")
def diagonal(call: Call) -> Tensor:
    x, offset = call["self"], call["offset"]
    first, second = (call[d] % len(x.shape) for d in ("dim1", "dim2"))

    def positions(i: Sequence[ix.Index]) -> list[ix.Index]:
        rest = iter(i[:-1])
        found = {first: i[-1] + max(-offset, 0), second: i[-1] + max(offset, 0)}
        return [found[d] if d in found else next(rest) for d in range(len(x.shape))]

    return x.seen(call.shape, positions)


@expresses("unfold unfold_copy")
def unfold(call: Call) -> Tensor:
    """Windows along a dimension: their number there, and their positions as a new last dimension."""
    x, step = call["self"], call["step"]
    if not x.shape:
        return x.seen(call.shape, lambda i: [])
    axis = call["dimension"] % len(x.shape)
    return x.seen(call.shape, lambda i: [p * step + i[-1] if d == axis else p for d, p in enumerate(i[:-1])])


@expresses("flip")
def flip(call: Call) -> Tensor:
    x = call["self"]
    axes = [d % len(x.shape) for d in call["dims"]] if x.shape else []
    return x.seen(call.shape, lambda i: [-p + (n - 1) if d in axes else p for d, (p, n) in enumerate(zip(i, x.shape))])


@expresses("roll", whole=SUMS)
def roll(call: Call) -> Tensor:
    x, amounts, axes = call["self"], call["shifts"], call["dims"]
    if not axes:
        whole = x.reshaped((prod(x.shape),))
        total = prod(x.shape)
        return whole.seen((total,), lambda i: [(i[0] - amounts[0] % total + total) % total]).reshaped(x.shape)
    by = [0] * len(x.shape)
    for axis, amount in zip(axes, amounts):
        by[axis % len(x.shape)] += amount
    return x.seen(x.shape, lambda i: [(p + (-b % n)) % n if b % n else p for p, b, n in zip(i, by, x.shape)])


@expresses("repeat")
def repeat(call: Call) -> Tensor:
    x, shape = call["self"], call.shape
    lead = len(shape) - len(x.shape)
    return x.seen(shape, lambda i: [p % n for p, n in zip(list(i)[lead:], x.shape)])


@expresses("as_strided as_strided_copy")
def as_strided(call: Call) -> Tensor:
    """Of a tensor that fills its memory in the order of its strides: positions in memory are positions in it."""
    x, node = call["self"], node_at(call.node)
    given = node.meta["val"]
    size, stride, offset = given.shape, given.stride(), given.storage_offset()
    order = sorted(range(len(size)), key=lambda d: (-stride[d], size[d] == 1, d))
    dense = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != dense:
            raise Unsupported("as_strided of a tensor with gaps")
        dense *= size[d]
    begin = (call["storage_offset"] if call["storage_offset"] is not None else offset) - offset
    last = begin + sum((n - 1) * s for n, s in zip(call.shape, call["stride"]))
    if begin < 0 or last >= dense:
        raise Unsupported("as_strided beyond its tensor")
    straight = x.permuted(order)
    strides = list(call["stride"])
    return straight.seen(call.shape, lambda i: ix.unflat(ix.flat(i, strides, begin), straight.shape))
