"""Complex numbers of a graph as pairs of real ones, such as the rotations of rotary embeddings.

    view_as_real(view_as_complex(x) * polar(1, a))   =   stack(x0 * cos(a) - x1 * sin(a), x0 * sin(a) + x1 * cos(a))

Operations on complex tensors become operations on real and imaginary parts (`complex_rules.py`). Whatever else reads the result of
one reads a view of both side by side, which lies in memory as PyTorch's result does. Parts of all other complex tensors are views.
So inputs, results and operations that PyTorch runs stay complex.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch import fx

from tilec.torch.aliases import function, is_view, node_at
from tilec.torch.aten.table import op_name, words
from tilec.torch.builder import Builder
from tilec.torch.complex_rules import KINDS, REAL, RULES, Call, Pair, kind_of, side_by_side

aten = torch.ops.aten
SPLITS = words("split split_with_sizes unbind")


def as_pairs(graph: fx.Graph) -> None:
    """Has the graph compute with real numbers, where that says the same."""
    if not any(kind_of(n) for n in graph.nodes):
        return
    pairs = _Pairs(graph)
    for node in list(graph.nodes):
        if node.op == "call_function":
            pairs.replace(node)
    graph.eliminate_dead_code()


def _is_negative(node: fx.Node) -> bool:
    """Whether it stands for the negative of what it has in memory."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_neg()


class _Pairs:
    def __init__(self, graph: fx.Graph):
        self.graph, self.known = graph, dict[fx.Node, Pair]()

    def replace(self, node: fx.Node) -> None:
        """Has an operation that a rule knows done on parts; what is a view stays, for whoever reads it as a complex tensor."""
        name, kind = op_name(node), kind_of(node)
        if name == "_neg_view":
            self._negated(node)
            return
        if name == "getitem" and op_name(node_at(node)) in SPLITS and kind_of(node):
            self._split(node)
            return
        if _is_negative(node) and not any(map(_is_negative, node.all_input_nodes)):
            values, named = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with Builder(self.graph, node).mode:
                node.meta["val"] = function(node)(*values, **named)
        read = [n for n in node.all_input_nodes if kind_of(n)]
        rule = RULES.get(name)
        if rule is None or not (read or kind) or not self._are_known(node) or (kind is None and name not in REAL):
            return
        if name == "view_as_real" and node.args[0] not in self.known:
            return  # it is a view of what is in memory
        made = rule(Call(self.of, node, kind or kind_of(read[0]) or torch.float32))
        if made is None:
            return
        if not isinstance(made, tuple):
            node.replace_all_uses_with(made)
            return
        pair = self.known[node] = made
        if not is_view(node):
            whole = self._whole(node, pair)
            node.replace_all_uses_with(whole)
            self.known[whole] = pair

    def _are_known(self, node: fx.Node) -> bool:
        """Whether all tensors that are read lie on one device, and those of floats have types of the language."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return False
        read = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        known = [v.layout is torch.strided and (not v.is_complex() or v.dtype in KINDS) for v in read]
        return all(known) and all(v.device == value.device for v in read)

    def _split(self, node: fx.Node) -> None:
        """One of several parts of a tensor is a view."""
        split, number = node_at(node), node.args[1]
        build = Builder(self.graph, node)
        parts = [build(function(split), p, *split.args[1:], **split.kwargs) for p in self.of(node_at(split), build)]
        re, im = (build(getitem, several, number) for several in parts)
        self.known[node] = re, im

    def _negated(self, node: fx.Node) -> None:
        """Operations read negative numbers, and results stay views that stand for such."""
        made = Builder(self.graph, node)(aten.neg.default, node.args[0])
        for user in [u for u in node.users if u.op == "call_function" and u is not made]:
            user.replace_input_with(node, made)

    def of(self, node: fx.Node, build: Builder) -> Pair:
        """The parts of a complex tensor."""
        if node not in self.known:
            is_conjugate = node.meta["val"].is_conj()
            both = build(aten.view_as_real.default, build(aten._conj.default, node) if is_conjugate else node)
            re, im = (build(aten.select.int, both, -1, k) for k in (0, 1))
            self.known[node] = re, build(aten.neg.default, im) if is_conjugate else im
        return self.known[node]

    def _whole(self, node: fx.Node, pair: Pair) -> fx.Node:
        """The complex tensor of these parts, which lies in memory as the node's value does."""
        build, value = Builder(self.graph, node), node.meta["val"]
        made = build(aten.view_as_complex.default, side_by_side(build, pair, value))
        if value.is_conj():
            made = build(aten._conj.default, build(aten.conj_physical.default, made))
        return made
