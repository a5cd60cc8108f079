"""Operations put into a graph before one of its nodes, with values for the partitioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from tilec.torch.aliases import tensors

if TYPE_CHECKING:
    from torch.fx.node import Argument

ORIGIN_KEYS = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "seq_nr", "ac_graph_id")
"""What nodes tell of where in the model they come from."""


class Builder:
    """`build(target, *args)` appends an operation before a node. `made` has all of them, `origin` what they tell of the model."""

    def __init__(self, graph: fx.Graph, before: fx.Node):
        self.graph, self.before, self.made = graph, before, list[fx.Node]()
        self.origin = {k: v for k, v in before.meta.items() if k in ORIGIN_KEYS}
        value = tensors(before)[0]
        assert isinstance(value, FakeTensor)
        self.mode = value.fake_mode

    def __call__(self, target: Callable[..., object], *args: Argument, **options: Argument) -> fx.Node:
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, options)
        values, named = fx.map_arg((args, options), lambda n: n.meta["val"])
        node.meta = dict(self.origin)
        with self.mode:
            node.meta["val"] = target(*values, **named)
        self.made.append(node)
        return node
