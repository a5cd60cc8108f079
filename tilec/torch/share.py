"""Operations of a joint graph that are done twice are done once.

So does `torch._functorch.compile_utils.fx_graph_cse`, by the same rules. It imports Inductor's pattern matcher, which takes 0.65 s.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import fx
from torch._ops import OpOverload

from tilec.torch.aliases import memory, tensors, writes
from tilec.torch.concrete import UNDECIDED, hint

FIXED = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
DIFFERENT = {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
UNEQUAL = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
"""What gives memory as it is found."""


def share_equal(graph: fx.Graph) -> None:
    """Has each operation with its arguments done once. One that draws random numbers is done as often as it stands there, as is one
    that gives what the graph returns, for results are tensors of their own; nothing is shared across a write."""
    returned = {memory(n) for n in graph.output_node().all_input_nodes if tensors(n)}
    found = dict[Hashable, fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if writes(node):
            found.clear()
        elif _is_repeatable(node) and memory(node) not in returned:
            try:
                first = found.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
            except TypeError:  # an argument that cannot be distinguished from another
                continue
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _is_repeatable(node: fx.Node) -> bool:
    """Whether the operation gives the same each time, of a size that is known."""
    if hint(node.meta.get("val")) is UNDECIDED:
        return False
    if not isinstance(node.target, OpOverload):
        return True
    return not DIFFERENT.intersection(node.target.tags) and node.target._schema.name not in UNEQUAL


def _key(value: object) -> Hashable:
    """What is equal for equal arguments alone: 1, 1.0 and True are not, nor are 0.0 and -0.0. Raises TypeError."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(_key, value))
    if isinstance(value, dict):
        return ("dict", *((name, _key(v)) for name, v in sorted(value.items())))
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    if value is None or isinstance(value, FIXED):
        return (type(value), repr(value))
    raise TypeError
