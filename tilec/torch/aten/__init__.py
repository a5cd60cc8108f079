"""The translator table: nodes of ATen graphs as equations. One function says whether a node can be translated, and translates it.

translate(graph, node, values)    appends statements, and returns the node's value
refusal(node)                     why that cannot be, or would take longer than PyTorch's kernels; or None
decompositions()                  the table that graphs are to be traced with
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilec.process.interrupts import pass_on
from tilec.torch.aten import (  # noqa: F401
    adaptive,
    antialiasing,
    concatenations,
    contractions,
    costs,
    creation,
    gathers,
    grids,
    groups,
    norms,
    overwrites,
    pointwise,
    polygamma,
    pools,
    random,
    reductions,
    resampling,
    scatters,
    sorting,
    unsupported,
    views,
    windows,
)
from tilec.torch.aten.decompositions import decompositions
from tilec.torch.aten.orders import memory_orders
from tilec.torch.aten.table import (
    Call,
    Value,
    dtype_of,
    op_name,
    scratch,
    statement_name,
    translator,
)
from tilec.torch.failures import report
from tilec.torch.program import Graph, Tensor, Unsupported, reason

if TYPE_CHECKING:
    from torch.fx import Node

__all__ = ["Tensor", "Unsupported", "decompositions", "dtype_of", "op_name", "refusal", "translate"]


def translate(graph: Graph, node: Node, values: Mapping[Node, Value]) -> Value:
    """Appends the node's statements to the graph. `values` has what the nodes are that it reads. Returns a tensor, or a tuple of
    them for a node of several results (None for one that is not read). Raises Unsupported with the reason, and then the graph
    may have statements of it that nothing reads."""
    graph.hint, graph.orders = statement_name(node), memory_orders(node, values)
    call = Call(graph, node, values)
    try:
        return call.checked(translator(node)(call))
    finally:
        graph.orders = {}


def refusal(node: Node) -> str | None:
    """Why no partition is to have a node, without building it: it is translated into a graph of its own."""
    try:
        graph, values = scratch(node)
        with costs.cutting():
            translate(graph, node, values)
    except Unsupported as error:
        return reason(error)
    except Exception as error:
        pass_on(error)
        report([node], error)
        return reason(error)
    return None
