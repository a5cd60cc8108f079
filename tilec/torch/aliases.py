"""What nodes of a graph have in common: memory, elements, readers, producers. Traversals of graphs are written here, and nowhere
else.

Each takes a test `through`, which says of a node whether it stands for what it reads: a view, what moves no data, a cast.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.fx.node import Argument

Test = Callable[[fx.Node], bool]
BOUNDS = ("placeholder", "get_attr", "output")


def schema_of(node: fx.Node) -> torch._C.FunctionSchema | None:
    """The schema of the operator that a node calls, or None."""
    return getattr(node.target, "_schema", None)


def schema(node: fx.Node) -> torch._C.FunctionSchema:
    """The same, of a node that calls an operator."""
    found = schema_of(node)
    assert found is not None, node.format_node()
    return found


def function(node: fx.Node) -> Callable[..., torch.Tensor]:
    """What a node calls, a method's name aside."""
    assert not isinstance(node.target, str), node.format_node()
    return node.target


def node_at(node: fx.Node, number: int = 0) -> fx.Node:
    """An argument of an operation that is a node."""
    found = node.args[number]
    assert isinstance(found, fx.Node), node.format_node()
    return found


def returns(graph: fx.Graph) -> list[Argument]:
    """What a graph returns, of which some may be None."""
    (found,) = graph.output_node().args
    assert isinstance(found, tuple | list)
    return list(found)


def set_returns(graph: fx.Graph, values: Sequence[Argument]) -> None:
    output = graph.output_node()
    output.args = (tuple(values) if isinstance(output.args[0], tuple) else list(values),)


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by their names in the operator's schema, with the defaults of those that are not given."""
    found = {}
    for k, argument in enumerate(schema(node).arguments):
        default = argument.default_value if argument.has_default_value() else None
        found[argument.name] = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name, default)
    return found


def tensors(node: fx.Node) -> list[torch.Tensor]:
    """The values of a node that are tensors, fake ones: of one result, or of several."""
    return [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]


# ---- what a node does --------------------------------------------------------------------------------------------------


def is_view(node: fx.Node) -> bool:
    """Whether the operation's results are memory of its first argument, or the node is one of several results."""
    if node.target is operator.getitem:
        return True
    if (schema := schema_of(node)) is None:
        return False
    aliases = [r.alias_info for r in schema.returns]
    return schema.name == "aten::_unsafe_view" or (bool(aliases) and all(a is not None and not a.is_write for a in aliases))


def is_opaque(node: fx.Node) -> bool:
    """Whether the node calls a function that is no operator, and no arithmetic of Python's: it may write, and draw numbers."""
    known = node.op in BOUNDS or schema_of(node) is not None
    return not known and getattr(node.target, "__module__", "") != operator.getitem.__module__


def writes(node: fx.Node) -> bool:
    """Whether the operation may write a tensor that it is given."""
    return is_opaque(node) if (schema := schema_of(node)) is None else schema.is_mutable


def draws(node: fx.Node) -> bool:
    """Whether the operation may take random numbers; such operations stay in the graph's order."""
    return is_opaque(node) or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_pointwise(node: fx.Node) -> bool:
    """Whether PyTorch says of the operation that an element of its result is computed from those at its position."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


# ---- towards producers -------------------------------------------------------------------------------------------------


def maker(node: fx.Node) -> fx.Node:
    """The operation that a node is, or is one of the results of."""
    return source(node, lambda n: n.target is operator.getitem)


def source(node: fx.Node, through: Test) -> fx.Node:
    """The first node that stands for none, from a node on by first arguments."""
    while node.op == "call_function" and through(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def memory(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows."""
    return source(node, lambda n: is_view(maker(n)))


def ancestors(nodes: Iterable[fx.Node], through: Test = lambda n: True) -> dict[fx.Node, None]:
    """The nodes, what they read, and what those read that `through` holds of, as long as it holds."""
    found, pending = dict.fromkeys(nodes), list[fx.Node]()
    pending += found
    while pending:
        for n in pending.pop().all_input_nodes:
            if n not in found:
                found[n] = None
                pending += [n] if through(n) else []
    return found


def behind_inputs(
    node: fx.Node, done: Container[fx.Node], reads: Callable[[fx.Node], Sequence[fx.Node]] = lambda n: n.all_input_nodes
) -> Iterator[fx.Node]:
    """The node and what it is computed from, each behind what it reads, without what is `done`. Who takes a node has it done."""
    pending = [node]
    while pending:
        n = pending[-1]
        if n not in done and (waiting := [m for m in reads(n) if m not in done]):
            pending += waiting
            continue
        pending.pop()
        if n not in done:
            yield n


# ---- towards readers ---------------------------------------------------------------------------------------------------


def reached(node: fx.Node, through: Test = is_view) -> dict[fx.Node, None]:
    """What reads a node's value, itself or by what stands for it, which is among these."""
    found, pending = dict[fx.Node, None](), [node]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found[user] = None
                pending += [user] if through(user) else []
    return found


def readers(node: fx.Node, through: Test = is_view) -> list[fx.Node]:
    """What reads a node's value, without what stands for it."""
    return [n for n in reached(node, through) if not through(n)]


def only_readers(node: fx.Node) -> Iterator[fx.Node]:
    """The one reader of a node, the one reader of that, and so on, until there are several or none."""
    while len(node.users) == 1:
        (node,) = node.users
        yield node
