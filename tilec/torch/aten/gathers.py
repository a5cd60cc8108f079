"""Gathers: elements at positions that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilec.torch import indices as ix
from tilec.torch.aten.table import SEEN_THROUGH, Call, expresses, op_name, operand
from tilec.torch.indices import Index
from tilec.torch.program import Inexpressible, Tensor

if TYPE_CHECKING:
    from torch.fx import Node


def wrapped(text: str, extent: int) -> Index:
    """A position that counts from the end where it is negative."""
    return ix.opaque(f"{text} + {extent} if {text} < 0 else {text}", (0, extent - 1))


def plain(text: str, extent: int) -> Index:
    return Index(((ix.Atom(text, (0, extent - 1)), 1),))


def element(positions: Tensor, at: Sequence[Index], extent: int, wraps: bool = True, node: Node | None = None) -> Index:
    """What `positions` has at `at` as a position of a dimension; one that is negative counts from the end, if it `wraps`. `node`
    made the positions."""
    known = positions.index_at(*at)
    if known is not None and 0 <= known.range[0] <= known.range[1] < extent:
        return known
    if node is not None and (most := bound(node)) is not None and most <= extent:
        return ix.opaque(f"clamp({positions.at(*at)}, 0, {most - 1})", (0, most - 1)) if most > 1 else ix.number(0)
    return (wrapped if wraps else plain)(positions.at(*at), extent)


def bound(node: Node) -> int | None:
    """What all elements of a tensor of positions are below, and none below 0, where the operation that makes them says so."""
    while op_name(node) in SEEN_THROUGH and node.op == "call_function":
        node = node.all_input_nodes[0]
    if node.op == "call_function" and op_name(node) == "getitem" and node.args[1] == 1:
        node = node.args[0]
        if op_name(node) in ("sort", "topk", "max", "min", "kthvalue", "median"):
            shape, dim = node.args[0].meta["val"].shape, _argument(node, "dim", -1)
            return int(shape[dim]) if len(shape) else 1
    return None


def _argument(node: Node, name: str, otherwise: int) -> int:
    for n, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            return node.args[n] if n < len(node.args) else node.kwargs.get(name, otherwise)
    return otherwise


def _is_summed(node: Node) -> bool:
    """Whether the one reader adds the elements up, each of them once: it reads them where they are gathered from."""
    while len(node.users) == 1:
        (node,) = node.users
        if node.op != "call_function" or op_name(node) not in SEEN_THROUGH - {"expand", "clone"}:
            return node.op == "call_function" and op_name(node) in ("sum", "mean")
    return False


@expresses("embedding")
def embedding(call: Call) -> Tensor:
    table, positions = call["weight"], call["indices"]
    rank = len(positions.shape)
    return call.emit(
        call.shape, call.dtype, lambda i: table.at(element(positions, i[:rank], table.shape[0], False), i[-1])
    )


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
    nodes = [*call.node.args[1], *[None] * (len(x.shape) - len(given))]
    given += [None] * (len(x.shape) - len(given))
    chosen = [d for d, t in enumerate(given) if t is not None]
    if any(given[d].dtype in ("bool", "u8") for d in chosen):
        raise Inexpressible("index: a result whose shape depends on data")
    together = np.broadcast_shapes(*(given[d].shape for d in chosen))
    neighbours = chosen == list(range(chosen[0], chosen[-1] + 1))
    first = chosen[0] if neighbours else 0

    def expression(i: list[Index]) -> str:
        at, rest = i[first : first + len(together)], iter(i[:first] + i[first + len(together) :])
        of = lambda t, n, node: element(t, t.aligned(at, together), n, node=node)  # noqa: E731
        return x.at(*(next(rest) if t is None else of(t, n, node) for t, n, node in zip(given, x.shape, nodes)))

    if _is_summed(call.node):
        return Tensor("", call.shape, x.dtype, x.nominal, formula=lambda i: expression([*i]))
    made = call.emit(call.shape, call.dtype, expression)
    if chosen == [0] and len(x.shape) == 2 and len(together) == 1 and made.positions is None:
        call.graph.rows[made.name] = x, lambda t: element(given[0], [t], x.shape[0], node=nodes[0])
    return made


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
