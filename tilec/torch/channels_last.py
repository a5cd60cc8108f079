"""What a training step's forward graph saves of convolutions lies with its channels last.

A GPU's program has the results of convolutions, and what is computed of them, with their channels last, whatever PyTorch's order is
(`memory_orders` in aten/orders.py). Of a model in PyTorch's order, forward would transpose such a value to save it, and backward,
whose kernels load neighbouring channels at once as forward's do, would read it element by element. So it is saved as it lies:

    forward    y = relu(x)   saves y    ->    forward    y = relu(x); saved = clone(y, channels_last)
    backward   reads y                  ->    backward   y = clone(saved, contiguous_format)

Partitions take such a clone for the thing itself, and nothing is moved. To PyTorch it is a copy: every other node has the strides
that it was traced with, whoever computes it. On a CPU, programs store convolutions in PyTorch's order, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import getitem

import torch
from torch import fx

from tilec.torch.aliases import is_view, maker, memory, reached, returns, set_returns, tensors
from tilec.torch.aten import orders, refusal
from tilec.torch.aten.table import op_name
from tilec.torch.builder import ORIGIN_KEYS
from tilec.torch.concrete import is_symbolic

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""PyTorch's orders of memory with channels last, by the number of dimensions."""
SAME = ("alias", "detach")  # views of all elements where they are


def save(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Changes both graphs. The first outputs of `forward` are `results` of the function, and the others are saved. Sizes that are
    symbols are left as they are."""
    if is_symbolic(forward.graph) or is_symbolic(backward.graph):
        return
    output, given = forward.graph.output_node(), backward.graph.find_nodes(op="placeholder")
    returned = returns(forward.graph)
    saved_in = [memory(n) for n in returned if isinstance(n, fx.Node)]
    refused = cache(refusal)
    convolved = _convolved(forward.graph, refused)
    for k, read in zip(range(results, len(returned)), given):
        value = returned[k]
        if not isinstance(value, fx.Node) or value not in convolved or value.name != read.name or not _is_transposed(value):
            continue
        if saved_in.count(memory(value)) > 1:  # another output has that memory: there would be two of it
            continue
        touching = {maker(value), *reached(value), *reached(read)} - {output}
        if any(n.op != "call_function" or refused(n) for n in touching):  # PyTorch has it in PyTorch's order
            continue
        with forward.graph.inserting_after(value):
            returned[k] = stored = _clone(forward.graph, value, FORMATS[value.meta["val"].dim()])
        with backward.graph.inserting_after(given[-1]):
            copy = _clone(backward.graph, read, torch.contiguous_format)
        read.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
        read.meta["val"] = stored.meta["val"]
    set_returns(forward.graph, returned)
    forward.recompile()
    backward.recompile()


def _is_transposed(node: fx.Node) -> bool:
    """Whether a value that is stored with its channels last would be moved to lie in PyTorch's order."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() not in FORMATS:
        return False
    return value.is_contiguous() and not value.is_contiguous(memory_format=FORMATS[value.dim()])


def _convolved(graph: fx.Graph, refused: Callable[[fx.Node], str | None]) -> set[fx.Node]:
    """The operations on images that depend by such operations alone on a convolution whose result has its channels last."""
    found = set[fx.Node]()
    for node in graph.nodes:
        if node.op != "call_function" or _rank(node) not in FORMATS:
            continue
        if orders.sums_channels(node):
            depends = orders.reorders(node.meta["val"].device) and not refused(node)
        elif node.target is getitem:
            depends = node.args[0] in found
        elif is_view(node) and op_name(node) not in SAME:
            depends = False
        else:
            depends = any(n in found and _rank(n) == _rank(node) for n in node.all_input_nodes)
        if depends:
            found.add(node)
    return found


def _rank(node: fx.Node) -> int:
    """The number of dimensions of what an operation makes, or of the first of several results."""
    return next((v.dim() for v in tensors(node)), 0)


def _clone(graph: fx.Graph, node: fx.Node, order: torch.memory_format) -> fx.Node:
    made = graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": order})
    made.meta = {k: v for k, v in node.meta.items() if k in ORIGIN_KEYS}
    value = node.meta["val"]
    with value.fake_mode:
        made.meta["val"] = value.clone(memory_format=order)
    return made
