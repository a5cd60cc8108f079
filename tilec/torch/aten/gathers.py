"""Gathers: elements at positions that are data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from torch.fx import Node

from tilec.torch import indices as ix
from tilec.torch.aliases import arguments, node_at, only_readers, source
from tilec.torch.aten.table import Call, expresses, op_name, operand, shows
from tilec.torch.extents import broadcast, extent
from tilec.torch.indices import Index
from tilec.torch.program import Graph, Tensor, Unsupported


class Positions:
    """Positions that are data, in one dimension of a tensor, which may be a view. One that is negative counts from the end, if it
    `wraps`. One that is outside is an error. A view may have something else there, which would be read: then positions are read
    by way of a table of the dimension's, as a gather is, which is checked. `of` is the tensor to read: where a view has one
    element in the place of all along the dimension, it is a copy of each of them."""

    def __init__(self, call: Call, x: Tensor, dim: int, wraps: bool = True):
        self.graph, self.extent, self.wraps = call.graph, x.shape[dim], wraps
        here = ix.name("here", self.extent)
        at = [here if d == dim else ix.name(f"p{d}", n) for d, n in enumerate(x.shape)]
        if not re.search(r"\bhere\b", x.at(*at)):
            view = x
            x = call.graph.emit(x.shape, x.dtype, lambda i: view.at(*i), x.nominal, whole=[dim])
        self.of, self.checked = x, ends_are_seen(call.graph, x, here, self.extent, at)
        self.table: Tensor | None = None

    def __call__(self, positions: Tensor, at: Sequence[Index], node: Node | None = None) -> Index:
        """What `positions` has at `at`, as a subscript. `node` made the positions."""
        found = element(positions, at, self.extent, self.wraps, node)
        return found if self.checked or is_known(positions, at, self.extent, node) else self.looked_up(found)

    def looked_up(self, position: Index) -> Index:
        if self.table is None:
            self.table = table(self.graph, self.extent)
        return ix.opaque(self.table.at(position), (0, self.extent - 1))


def table(graph: Graph, extent: int) -> Tensor:
    """The positions of a dimension, as a tensor: what reads it outside is reported."""
    return graph.emit((extent,), "i32", lambda i: i[0].sum_text(), whole=[0])


def ends_are_seen(graph: Graph, x: Tensor, here: Index, size: int, at: Sequence[Index]) -> bool:
    """Whether positions before the first or behind the last one of a dimension of this size, which `at` has as `here`, are outside
    of what is stored."""
    x = x.origin[0] if x.formula is not None and x.origin is not None else x
    stored = graph.stored.get(x.name) or graph.inputs.get(x.name)
    if x.formula is not None or stored is None:
        return False
    for subscript, own in zip(x.positions(at) if x.positions is not None else at, stored.shape):
        ends = [ix.where(subscript, here, value) for value in (-1, size)]
        if all((-end).at_least(1) or end.at_least(own) for end in ends):
            return True
    return False


def is_known(positions: Tensor, at: Sequence[Index], extent: int, node: Node | None = None) -> bool:
    """Whether a position is inside, whatever the data are."""
    known = positions.index_at(*at)
    if known is not None and known.fits(extent):
        return True
    return node is not None and (most := bound(node)) is not None and most <= extent


def element(positions: Tensor, at: Sequence[Index], extent: int, wraps: bool = True, node: Node | None = None) -> Index:
    """What `positions` has at `at` as a position of a dimension; one that is negative counts from the end, if it `wraps`. `node`
    made the positions."""
    if is_known(positions, at, extent, node):
        known = positions.index_at(*at)
        if known is not None and known.fits(extent):
            return known
        most = bound(node) if node is not None else None
        assert most is not None
        return ix.opaque(f"clamp({positions.at(*at)}, 0, {most - 1})", (0, most - 1)) if most > 1 else ix.number(0)
    text = positions.at(*at)
    if wraps:
        return ix.opaque(f"{text} + {extent} if {text} < 0 else {text}", (0, extent - 1))
    return ix.element(text, (0, extent - 1))


def bound(node: Node) -> int | None:
    """What all elements of a tensor of positions are below, and none below 0, where the operation that makes them says so."""
    node = source(node, shows)
    if node.op == "call_function" and op_name(node) == "getitem" and node.args[1] == 1:
        node = node_at(node)
        if op_name(node) in ("sort", "topk", "max", "min", "kthvalue", "median"):
            shape, dim = node_at(node).meta["val"].shape, arguments(node)["dim"]
            return extent(shape[dim]) if len(shape) else 1
    return None


def _is_summed(node: Node) -> bool:
    """Whether the one reader adds the elements up, each of them once: it reads them where they are gathered from."""
    for user in only_readers(node):
        if not shows(user) or op_name(user) in ("expand", "clone"):
            return op_name(user) in ("sum", "mean")
    return False


@expresses("embedding")
def embedding(call: Call) -> Tensor:
    weight, positions = call["weight"], call["indices"]
    rank, row = len(positions.shape), Positions(call, weight, 0, wraps=False)
    return call.emit(call.shape, call.dtype, lambda i: row.of.at(row(positions, i[:rank]), i[-1]))


@expresses("index_select")
def index_select(call: Call) -> Tensor:
    x, positions = call["self"], call["index"]
    if not x.shape:
        return call.emit((), call.dtype, x.at())
    axis = call["dim"] % len(x.shape)
    chosen = Positions(call, x, axis, wraps=False)
    at = lambda i: chosen(positions, [i[axis]] if positions.shape else [])  # noqa: E731
    return call.emit(call.shape, call.dtype, lambda i: chosen.of.at(*(at(i) if d == axis else p for d, p in enumerate(i))))


@expresses("gather")
def gather(call: Call) -> Tensor:
    x, positions = call["self"], call["index"]
    if not x.shape:
        return x.expanded(call.shape)
    axis = call["dim"] % len(x.shape)
    at = Positions(call, x, axis, wraps=False)
    if not positions.shape:
        return call.emit((), call.dtype, lambda i: at.of.at(at(positions, [])))
    return call.emit(call.shape, call.dtype, lambda i: at.of.at(*(at(positions, i) if d == axis else p for d, p in enumerate(i))))


@expresses("take")
def take(call: Call) -> Tensor:
    x, positions = call["self"], call["index"]
    whole = x.reshaped((prod(x.shape),))
    at = Positions(call, whole, 0)
    return call.emit(call.shape, call.dtype, lambda i: at.of.at(at(positions, i)))


class Advanced:
    """NumPy's advanced indexing: positions are broadcast to `index_shape`, and stand at the dimension `first` of the result,
    where they began if they are neighbours, and else before all others. By dimension of the tensor, `given` has the
    positions or None, and `nodes` what makes them; `chosen` are the dimensions that have some. Raises Unsupported with the reason
    `masks` for masks."""

    def __init__(self, call: Call, masks: str):
        rank, given = len(call["self"].shape), call["indices"]
        none = [None] * (rank - len(given))
        of = call.node.args[1]
        assert isinstance(of, list | tuple)
        self.given, self.nodes = [*given, *none], [n if isinstance(n, Node) else None for n in (*of, *none)]
        self.chosen = [d for d, t in enumerate(self.given) if t is not None]
        if any(self.given[d].dtype in ("bool", "u8") for d in self.chosen):
            raise Unsupported(f"{call.name}: {masks}")
        self.index_shape = broadcast(*(self.given[d].shape for d in self.chosen))
        are_neighbours = self.chosen == list(range(self.chosen[0], self.chosen[-1] + 1))
        self.first = self.chosen[0] if are_neighbours else 0


@expresses("index _unsafe_index")
def index(call: Call) -> Tensor:
    x, by = call["self"], Advanced(call, "a result whose shape depends on data")
    given, nodes, chosen, index_shape, first = by.given, by.nodes, by.chosen, by.index_shape, by.first
    chosen_at = dict[int, Positions]()
    for d in chosen:
        chosen_at[d] = Positions(call, x, d)
        x = chosen_at[d].of

    def expression(i: list[Index]) -> str:
        at, rest = i[first : first + len(index_shape)], iter(i[:first] + i[first + len(index_shape) :])
        of = lambda d, t: chosen_at[d](t, t.aligned(at, index_shape), nodes[d])  # noqa: E731
        return x.at(*(next(rest) if t is None else of(d, t) for d, t in enumerate(given)))

    if _is_summed(call.node):
        return Tensor("", call.shape, x.dtype, x.nominal, formula=lambda i: expression([*i]))
    made = call.emit(call.shape, call.dtype, expression)
    if chosen == [0] and len(x.shape) == 2 and len(index_shape) == 1 and made.positions is None:
        call.graph.rows[made.name] = x, lambda t: chosen_at[0](given[0], [t], nodes[0])
    return made


@expresses("_unsafe_masked_index")
def masked_index(call: Call) -> Tensor:
    x, mask, given, fill = (call[n] for n in ("self", "mask", "indices", "fill"))
    shape = call.shape
    given = [*given, *[None] * (len(x.shape) - len(given))]
    if any(t is None for t in given):
        raise Unsupported("a masked gather of rows")

    def expression(i: list[Index]) -> str:
        positions = [element(t, t.aligned(i, shape), n) for t, n in zip(given, x.shape)]
        return f"{x.at(*positions)} if {mask.along(i, shape)} else {operand(fill, call.dtype, lambda t: t.at())}"

    return call.emit(shape, call.dtype, expression)
