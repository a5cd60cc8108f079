"""Results put together of several tensors or of one with a border: joins, pads, replaced parts."""

from __future__ import annotations

from tilec.torch import indices as ix
from tilec.torch.aten.table import ONE, SUMS, Call, expresses, operand
from tilec.torch.aten.views import bounds
from tilec.torch.indices import Index
from tilec.torch.program import Tensor, Unsupported, literal

MOST_PARTS = 64


@expresses("cat", concatenates=True)
@expresses("stack", concatenates=True, whole="its positions stay indices, where PyTorch's decomposition joins flat tensors")
@expresses("concat concatenate")
def cat(call: Call) -> Tensor:
    """A choice by the position along the joined dimension."""
    parts = [t for t in call["tensors"] if 0 not in t.shape]
    if len(parts) > MOST_PARTS:
        raise Unsupported("joins of many tensors")
    axis = call["dim"] % len(call.shape)
    if call.name == "stack":
        parts = [t.seen(_with(t.shape, axis), lambda i: [p for d, p in enumerate(i) if d != axis]) for t in parts]
    dtype = call.dtype

    def expression(i: list[Index]) -> str:
        text, begin = "", 0
        for n, t in enumerate(parts):
            inside = [p - begin if d == axis else p for d, p in enumerate(i)]
            inside[axis] = ix.within(inside[axis], t.shape[axis]) if t.shape[axis] > 1 else ix.number(0)
            part = _cast(t, dtype, inside)
            begin += t.shape[axis]
            text += part if n == len(parts) - 1 else f"{part} if {i[axis]} < {begin} else ("
        return text + ")" * (len(parts) - 1)

    if call.joined():
        return call.formula(call.shape, dtype, lambda i: expression(list(i)))
    return call.emit(call.shape, dtype, expression, [axis])


def _with(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis:])


@expresses("constant_pad_nd")
def constant_pad(call: Call) -> Tensor:
    x, pads, shape, dtype = call["self"], call["pad"], call.shape, call.dtype
    before = [0] * (len(x.shape) - len(pads) // 2) + list(pads[::2])[::-1]
    value = literal(call["value"] or 0, dtype)
    if all(b <= 0 and m - b <= n for n, m, b in zip(x.shape, shape, before)):
        return x.seen(shape, lambda i: [p - b for p, b in zip(i, before)])
    x = call.graph.solid(x, [d for d, (n, m, b) in enumerate(zip(x.shape, shape, before)) if b > 0 or m - b > n])
    return call.emit(shape, dtype, lambda i: f"pad({x.at(*(p - b for p, b in zip(i, before)))}, {value})")


@expresses("reflection_pad1d reflection_pad2d reflection_pad3d", whole=SUMS)
@expresses("replication_pad1d replication_pad2d replication_pad3d", whole=SUMS)
def border(call: Call) -> Tensor:
    x, pads = call["self"], call["padding"]
    before = [0] * (len(x.shape) - len(pads) // 2) + list(pads[::2])[::-1]
    positions = lambda i: [_inside(call.name, p - b, n) for p, b, n in zip(i, before, x.shape)]  # noqa: E731
    return call.emit(call.shape, call.dtype, lambda i: x.at(*positions(i)))


def _inside(kind: str, position: Index, extent: int) -> Index | str:
    if position.fits(extent):
        return position
    if kind.startswith("replication"):
        return f"clamp({position.sum_text()}, 0, {extent - 1})"
    return f"reflect({position.sum_text()}, {extent})"


@expresses("slice_scatter", concatenates=True)
@expresses("select_scatter", concatenates=True, whole=ONE)
def replaced_part(call: Call) -> Tensor:
    """The tensor, but for a part that is another's."""
    x, part, shape = call["self"], call["src"], call.shape
    axis = call["dim"] % len(shape)
    if call.name == "select_scatter":
        at = call["index"] % shape[axis]
        inner = lambda i: _cast(part, x.torch_dtype, i[:axis] + i[axis + 1 :])  # noqa: E731
        return call.emit(shape, call.dtype, lambda i: f"{inner(i)} if {i[axis]} == {at} else {x.at(*i)}", [axis])
    begin, end, step = bounds(shape[axis], call["start"], call["end"], call["step"])
    if (begin, step) == (0, 1) and end >= shape[axis]:
        return part.expanded(shape)

    def expression(i: list[Index]) -> str:
        position = i[axis]
        tests = [f"{position} >= {begin}"] if begin else []
        tests += [f"{position} < {end}"] if end < shape[axis] else []
        tests += [f"{(position - begin) % step} == 0"] if step > 1 else []
        inside = [ix.within((p - begin) // step, part.shape[axis]) if d == axis else p for d, p in enumerate(i)]
        return f"{_cast(part, x.torch_dtype, inside)} if {' and '.join(tests)} else {x.at(*i)}"

    return call.emit(shape, call.dtype, expression, [axis])


@expresses("diagonal_scatter")
def replaced_diagonal(call: Call) -> Tensor:
    """The tensor, but for a diagonal that is another's."""
    x, part, offset = call["self"], call["src"], call["offset"]
    first, second = (call[d] % len(x.shape) for d in ("dim1", "dim2"))

    def expression(i: list[Index]) -> str:
        row, column = i[first] - max(-offset, 0), i[second] - max(offset, 0)
        rest = [p for d, p in enumerate(i) if d not in (first, second)]
        at = ix.within(row, part.shape[-1]) if part.shape[-1] > 1 else ix.number(0)
        return f"{_cast(part, x.torch_dtype, [*rest, at])} if {row} == {column} else {x.at(*i)}"

    return call.emit(call.shape, call.dtype, expression, [first, second])


def _cast(part: Tensor, dtype: str, at: list[Index]) -> str:
    return operand(part, dtype, lambda t: t.at(*at))


@expresses("tril triu", whole=ONE)
def triangle(call: Call) -> Tensor:
    x, k, dtype = call["self"], call["diagonal"], call.dtype
    sign, zero = "<=" if call.name == "tril" else ">=", literal(0, dtype)
    test = lambda i: f"{(i[-1] - i[-2]).sum_text()} {sign} {k}"  # noqa: E731
    return call.emit(x.shape, dtype, lambda i: f"{x.at(*i)} if {test(i)} else {zero}")
