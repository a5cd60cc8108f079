"""Graphs with symbolic sizes as graphs of numbers: the same operations, for the sizes of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tilec.torch.aliases import function, node_at
from tilec.torch.types import Attribute, Number, Size, Symbol, Value

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

T = TypeVar("T")


class Expression(Protocol):
    """A number that sizes are made of, as sympy has it."""

    is_Symbol: bool
    is_Integer: bool
    free_symbols: set[Expression]
    args: tuple[Expression, ...]

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
NUMBERS = (bool, int, float)


SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int, torch.ops.aten.sym_numel.default)


class Undecided:
    """Stands for a value whose size depends on data, so that nobody knows it before the graph runs."""


UNDECIDED = Undecided()
Known: TypeAlias = fx.Node | Number | Undecided
"""What stands for a node in a graph of known sizes: a node there, a number, or UNDECIDED."""


def is_symbolic(graph: fx.Graph) -> bool:
    """Whether a size, a stride or a number in the graph is a symbol."""
    return any(_has_symbol(n.meta.get("val")) for n in graph.nodes)


def _has_symbol(value: object) -> bool:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, SYMBOLS):
            return True
        if isinstance(leaf, torch.Tensor) and any(isinstance(n, SYMBOLS) for n in (*leaf.shape, *_strides(leaf))):
            return True
    return False


def _strides(tensor: torch.Tensor) -> Sequence[Size]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def size_by_inputs(graph: fx.Graph) -> None:
    """Has sizes of computed tensors computed from those of the graph's inputs, where these decide them: nothing then waits for a
    tensor whose size alone it reads."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    placeholders = graph.find_nodes(op="placeholder")
    computed = [n for n in graph.nodes if n.target in SIZES and node_at(n).op != "placeholder"]
    asked = [(n, expression) for n in computed if (expression := _expression(n)) is not None]
    if not asked:
        return
    known: dict[Expression, fx.Proxy] = {}
    tracer = fx.proxy.GraphAppendingTracer(graph)
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for node in placeholders:
        value = node.meta.get("val")
        if _is_symbol(symbol := _expression(node)):
            known[symbol] = fx.Proxy(node, tracer)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            for d, size in enumerate(value.shape):
                symbol = size.node.expr if isinstance(size, torch.SymInt) else None
                if _is_symbol(symbol) and symbol not in known:
                    with graph.inserting_before(first):
                        read = graph.call_function(torch.ops.aten.sym_size.int, (node, d))
                    read.meta["val"] = size
                    known[symbol] = fx.Proxy(read, tracer)
    found: dict[Expression, fx.Node | Number] = {}
    for node, expression in asked:
        before = node.prev
        if expression not in found and expression.free_symbols <= known.keys():
            with graph.inserting_before(node):
                made = sympy_interp(PythonReferenceAnalysis, known, expression)
            found[expression] = made.node if isinstance(made, fx.Proxy) else made
            while (before := before.next) is not node:
                before.meta["val"] = before.target(*fx.map_arg(before.args, lambda n: n.meta["val"]))
        if expression in found:
            node.replace_all_uses_with(found[expression])
            graph.erase_node(node)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.target is not torch.ops.aten.sym_size.int)


def _is_symbol(expression: Expression | None) -> TypeGuard[Expression]:
    return bool(getattr(expression, "is_Symbol", False))


def _expression(node: fx.Node) -> Expression | None:
    """The expression of an integer that is a symbol."""
    value = node.meta.get("val")
    return value.node.expr if isinstance(value, torch.SymInt) else None


def hint(value: T | Symbol) -> T | Number | Undecided:
    """The number that a symbol had when it was traced; no guard is made. UNDECIDED where data decides it."""
    if not isinstance(value, SYMBOLS):
        return value
    try:
        found = value.node.hint
    except Exception:  # what it raises differs between versions of PyTorch
        return UNDECIDED
    return UNDECIDED if found is None else found


def hints(sizes: Sequence[Size]) -> list[int] | None:
    """Sizes or strides as they were when they were traced; None where data decides one."""
    found = [hint(n) for n in sizes]
    return None if UNDECIDED in found else [n for n in found if isinstance(n, int)]


def traced(value: Value, mode: FakeTensorMode) -> torch.Tensor | Number | Undecided | None:
    """A value of a placeholder, of the sizes that its symbols had when they were traced."""
    if not isinstance(value, torch.Tensor):
        return hint(value)
    if value.layout is not torch.strided:
        return value
    shape, strides = hints(value.shape), hints(value.stride())
    if shape is None or strides is None:
        return UNDECIDED
    with mode:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def concrete(
    graph: fx.Graph, values: Sequence[Value | Undecided], mode: FakeTensorMode, attribute: Attribute
) -> tuple[fx.Graph, dict[fx.Node, Known]]:
    """The graph for these values of its placeholders (fake tensors of `mode`, numbers), and what became of each of its nodes: a
    node whose `meta["val"]` is a fake tensor of known sizes (or a tuple of them), a number, or UNDECIDED. `attribute` gives
    the graph's constants by name."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedOperatorException,
    )

    made = fx.Graph()
    became: dict[fx.Node, Any] = {}
    found: dict[fx.Node, Any] = {}
    given = iter(values)

    def value_of(node: fx.Node) -> Any:
        if node.op == "placeholder":
            return next(given)
        if node.op == "get_attr":
            value = attribute(str(node.target))
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
        if any(found[n] is UNDECIDED for n in node.all_input_nodes):
            return UNDECIDED
        args, kwargs = fx.map_arg((node.args, node.kwargs), found.__getitem__)
        try:
            return function(node)(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException):
            return UNDECIDED

    with mode:
        for node in graph.nodes:
            if node.op == "output":
                break
            value = found[node] = value_of(node)
            if value is UNDECIDED or isinstance(value, NUMBERS):
                became[node] = value
                if node.op == "placeholder":
                    made.node_copy(node).meta = {**node.meta, "val": value}
                continue
            became[node] = new = made.node_copy(node, became.__getitem__)
            new.meta = {**node.meta, "val": value}
    return made, became
