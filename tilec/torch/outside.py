"""An index outside of its tensor, reported in the words of the model: the operation, its module and line, the tensor, and the
index.

A kernel leaves only the number of a check. The index is found after the failure: what it is computed from is computed again by
PyTorch, and PyTorch's own operation then raises its own error, whose type is that of eager mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from tilec.core.diagnostics import CheckError
from tilec.torch.aliases import behind_inputs, function, schema
from tilec.torch.constants import on_cpu
from tilec.torch.origins import called, module_path, operation, source_code, source_line, tensor_name
from tilec.torch.types import Call, Results, Value
from tilec.torch.write import Written, line_of, named

MOST = 1 << 28  # elements that are computed again: the answer is not worth more
SHOWN = 4  # operations that an error lists
NEGATIVE = {"index", "index_put", "index_fill", "take", "put", "_unsafe_index", "_unsafe_index_put"}
"""Operators whose indices from -n on count from the end."""


def checking(call: Call, written: Written) -> Call:
    """The call of a partition's values, which raises a failed check as eager mode raises its error."""

    def checked(*values: Value) -> Results:
        try:
            return call(*values)
        except CheckError as error:
            raise (deferred(error) if error.deferred else explained(error, written, values)) from None

    return checked


def explained(error: CheckError, written: Written, values: Sequence[Value]) -> Exception:
    """The error of a call on these values."""
    nodes = named(error.diagnostics[0].message, written)
    if not nodes:
        return IndexError(str(error))
    found, eager = _found(nodes[0], values)
    words = f" (PyTorch: {eager})" if eager is not None else ""
    if found is None:
        lines = [f"an index is outside of {_checked(nodes[0])}{words}"]
    else:
        lines = [
            f"index {found.index} is outside of {found.tensor}{words}",
            f"the index is at {found.position} of {found.indices}" if found.position else f"the index is {found.indices}",
        ]
    return (IndexError if eager is None else type(eager))("\n  ".join([*lines, f"in {_location(nodes[0])}"]))


# ---- checks that a later call raises ---------------------------------------------------------------------------------

_remembered: dict[str, dict[int, list[str]]] = {}  # by kernels' text and line of the program, tensors and operations
_former: dict[str, dict[int, list[str]]] = {}  # those of before the latest `forget`: a GPU may still be at their checks


def forget() -> None:
    """For a reset, which PyTorch tells several times: what was remembered since the one before is kept until the next one."""
    global _remembered, _former
    if _remembered:
        _remembered, _former = {}, _remembered


def remember(module: str, sites: Sequence[str], written: Written) -> None:
    """Keeps what `deferred` tells of the checks `sites` in these kernels."""
    if not sites:
        return
    own = _remembered.setdefault(module, {})
    for site in sites:
        line = line_of(site)
        for node in named(site, written)[:1] if line is not None else ():
            reported = own.setdefault(line or 0, [])
            text = f"an index is outside of {_checked(node)}\n  in {_location(node)}"
            if text not in reported:
                reported.append(text)


def deferred(error: CheckError) -> IndexError:
    """The error of an earlier call, whose values are gone. Where several partitions have one program, each of them is reported."""
    message = error.diagnostics[0].message
    line = line_of(message) or 0
    reported = [*dict.fromkeys(text for kept in (_remembered, _former) for text in kept.get(error.program, {}).get(line, ()))]
    if not reported:
        return IndexError(str(error))
    more = [f"  or {len(reported) - SHOWN} others"] if len(reported) > SHOWN else []
    why = "  in an earlier call: calls wait for no GPU. The same call on the CPU tells the index"
    return IndexError("\n".join(["\n  or ".join(reported[:SHOWN]), *more, why]))


# ---- the index -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Index:
    """An index that is outside: its place in the tensor `indices`, and what it is outside of."""

    index: int
    position: list[int]
    indices: str
    tensor: str


def _location(node: fx.Node) -> str:
    path, line, code = module_path(node), source_line(node), source_code(node)
    where = f"{called(node)}{f' of the module {path}' if path else ''}{f', {line}' if line else ''}"
    return f"{where}: {code}" if code else where


def _checked(node: fx.Node) -> str:
    """The tensor that an operation reads or writes at indices, with its shape."""
    tensor = next((n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)), None)
    return "its tensor" if tensor is None else f"{tensor_name(tensor)}, whose shape is {list(tensor.meta['val'].shape)}"


def _found(node: fx.Node, values: Sequence[Value]) -> tuple[_Index | None, Exception | None]:
    """The first index outside, and the error of PyTorch's operation if it is the one that the model calls."""
    known = _Values(node.graph, values)
    try:
        arguments, keywords = fx.map_arg((node.args, node.kwargs), known.argument)
        accesses = list(_accesses(node, arguments))
    except Exception:  # an operation that has no kernel here: the failure itself must still be reported
        return None, None
    found = next(filter(None, (_outside(node, access) for access in accesses)), None)
    try:
        function(node)(*arguments, **keywords)
    except (IndexError, RuntimeError) as error:
        return found, error if called(node) == operation(node) else None
    except Exception:
        pass
    return found, None


class _Values:
    """The values of a graph's nodes on the CPU, as far as they are asked for."""

    def __init__(self, graph: fx.Graph, values: Sequence[Value]):
        placeholders = graph.find_nodes(op="placeholder")
        self.known = {n: v.detach().cpu() if isinstance(v, torch.Tensor) else v for n, v in zip(placeholders, values)}
        self.left = MOST

    def argument(self, node: fx.Node) -> Value:
        """An argument of the operation: of what is no index, the shape alone takes part."""
        like = node.meta.get("val")
        if isinstance(like, torch.Tensor) and (like.dtype.is_floating_point or like.dtype.is_complex):
            return torch.zeros((), dtype=like.dtype).expand(tuple(like.shape))
        return self.of(node)

    def of(self, node: fx.Node) -> Value:
        for n in behind_inputs(node, self.known):
            like = n.meta.get("val")
            self.left -= like.numel() if isinstance(like, torch.Tensor) else 0
            if self.left < 0:
                raise MemoryError
            self.known[n] = on_cpu(n, self.known.__getitem__)
        return self.known[node]


@dataclass(frozen=True)
class _Access:
    """Indices `source`, whose values are `index`, of a dimension of a tensor, or of all its elements (None): from `least` to below
    `size` they are inside."""

    tensor: fx.Node
    source: fx.Node
    index: torch.Tensor
    dim: int | None
    size: int
    least: int


def _accesses(node: fx.Node, arguments: Sequence[Any]) -> Iterator[_Access]:
    """The operation's, by the names of its arguments in the operator's schema."""
    names = [a.name for a in schema(node).arguments]
    nodes, given = dict[str, Any](zip(names, node.args)), dict(zip(names, arguments))
    tensor, shape, negative = nodes[names[0]], tuple(given[names[0]].shape), operation(node) in NEGATIVE
    if isinstance(given.get("indices"), list | tuple):
        for d, (source, index) in enumerate(zip(nodes["indices"], given["indices"])):
            if source is not None:
                yield _Access(tensor, source, index, d, shape[d], -shape[d] if negative else 0)
        return
    dim: int | None
    if "dim" in given and "index" in given:
        which, dim, size = "index", given["dim"] % max(len(shape), 1), shape[given["dim"]] if shape else 1
    elif "index" in given:  # of all elements in a row
        which, dim, size = "index", None, prod(shape)
    elif "weight" in given or "num_weights" in given:
        which, dim, size = "indices", 0, given.get("num_weights", shape[0])
    else:
        return
    if isinstance(given[which], torch.Tensor):
        yield _Access(tensor, nodes[which], given[which], dim, size, -size if negative else 0)


def _outside(node: fx.Node, access: _Access) -> _Index | None:
    """The first index of an access that is outside."""
    index = access.index
    if index.dtype in (torch.bool, torch.uint8):
        return None
    found = ((index < access.least) | (index >= access.size)).nonzero()
    if not len(found):
        return None
    position, source, tensor = found[0], _before(node, access.source), _before(node, access.tensor)
    value, shape = int(index[tuple(position)]), tuple(source.meta["val"].shape)
    if shape != tuple(index.shape):
        number = sum(int(k) * prod(index.shape[d + 1 :]) for d, k in enumerate(position))
        position = torch.tensor([number // prod(shape[d + 1 :]) % n for d, n in enumerate(shape)])
    if access.dim is None or tensor is not access.tensor:
        what = f"{tensor_name(tensor)}, where {access.size} are counted"
    else:
        what = f"dimension {access.dim} of {tensor_name(tensor)}, whose size is {access.size}"
    return _Index(value, position.tolist(), tensor_name(source), what)


def _before(node: fx.Node, made: fx.Node) -> fx.Node:
    """The tensor that the operation is given by the model, where `made` has its elements in their order, and PyTorch's tracing made
    it for the operation."""
    whole, size = str(node.meta.get("original_aten")), made.meta["val"].numel()  # copies of operators are not equal
    while made.op == "call_function" and str(made.meta.get("original_aten")) == whole:
        dtype = made.meta["val"].dtype
        given = [n for n in made.all_input_nodes if isinstance(v := n.meta.get("val"), torch.Tensor) and v.dtype == dtype]
        if len(given := [n for n in given if n.meta["val"].numel() == size]) != 1:
            break
        made = given[0]
    return made
