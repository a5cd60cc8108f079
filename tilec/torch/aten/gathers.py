"""Gathers: elements at positions that are data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilec.torch import indices as ix
from tilec.torch.aten.table import Call, expresses, operand
from tilec.torch.indices import Index
from tilec.torch.program import Inexpressible, Tensor


def wrapped(text: str, extent: int) -> Index:
    """A position that counts from the end where it is negative."""
    return ix.opaque(f"{text} + {extent} if {text} < 0 else {text}", (0, extent - 1))


def plain(text: str, extent: int) -> Index:
    return Index(((ix.Atom(text, (0, extent - 1)), 1),))


def element(positions: Tensor, at: Sequence[Index], extent: int, wraps: bool = True) -> Index:
    """What `positions` has at `at` as a position of a dimension; one that is negative counts from the end, if it `wraps`."""
    known = positions.index_at(*at)
    if known is not None and 0 <= known.range[0] <= known.range[1] < extent:
        return known
    return (wrapped if wraps else plain)(positions.at(*at), extent)


@expresses("embedding")
def embedding(call: Call) -> Tensor:
    table, positions = call["weight"], call["indices"]
    rank = len(positions.shape)
    return call.emit(call.shape, call.dtype, lambda i: table.at(element(positions, i[:rank], table.shape[0], False), i[-1]))


@expresses("index_select")
def index_select(call: Call) -> Tensor:
    x, positions = call["self"], call["index"]
    if not x.shape:
        return call.emit((), call.dtype, x.at())
    axis = call["dim"] % len(x.shape)
    at = lambda i: element(positions, [i[axis]] if positions.shape else [], x.shape[axis], False)  # noqa: E731
    return call.emit(call.shape, call.dtype, lambda i: x.at(*(at(i) if d == axis else p for d, p in enumerate(i))))


@expresses("gather")
def gather(call: Call) -> Tensor:
    x, positions = call["self"], call["index"]
    if not x.shape:
        return x.expanded(call.shape)
    axis = call["dim"] % len(x.shape)
    if not positions.shape:
        return call.emit((), call.dtype, x.at(plain(positions.at(), x.shape[0])))
    at = lambda i: element(positions, i, x.shape[axis], False)  # noqa: E731
    return call.emit(call.shape, call.dtype, lambda i: x.at(*(at(i) if d == axis else p for d, p in enumerate(i))))


@expresses("take")
def take(call: Call) -> Tensor:
    x, positions = call["self"], call["index"]
    total = int(np.prod(x.shape))
    whole = x.reshaped((total,))
    return call.emit(call.shape, call.dtype, lambda i: whole.at(element(positions, i, total)))


@expresses("index _unsafe_index")
def index(call: Call) -> Tensor:
    """NumPy's advanced indexing: the positions are broadcast together, and stand where they began if they are neighbours."""
    x, given = call["self"], list(call["indices"])
    given += [None] * (len(x.shape) - len(given))
    chosen = [d for d, t in enumerate(given) if t is not None]
    if any(given[d].dtype in ("bool", "u8") for d in chosen):
        raise Inexpressible("index: a result whose shape depends on data")
    together = np.broadcast_shapes(*(given[d].shape for d in chosen))
    neighbours = chosen == list(range(chosen[0], chosen[-1] + 1))
    first = chosen[0] if neighbours else 0

    def expression(i: list[Index]) -> str:
        at, rest = i[first : first + len(together)], iter(i[:first] + i[first + len(together) :])
        of = lambda t, n: element(t, t.aligned(at, together), n)  # noqa: E731
        return x.at(*(next(rest) if t is None else of(t, n) for t, n in zip(given, x.shape)))

    return call.emit(call.shape, call.dtype, expression)


@expresses("_unsafe_masked_index")
def masked_index(call: Call) -> Tensor:
    x, mask, given, fill = (call[n] for n in ("self", "mask", "indices", "fill"))
    shape = call.shape
    given = [*given, *[None] * (len(x.shape) - len(given))]
    if any(t is None for t in given):
        raise Inexpressible("a masked gather of rows")

    def expression(i: list[Index]) -> str:
        positions = [element(t, t.aligned(i, shape), n) for t, n in zip(given, x.shape)]
        return f"{x.at(*positions)} if {mask.along(i, shape)} else {operand(fill, call.dtype, lambda t: t.at())}"

    return call.emit(shape, call.dtype, expression)
