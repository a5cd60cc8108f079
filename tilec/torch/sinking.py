"""Sinks operations into later partitions than levels give them, where fewer bytes then pass between partitions.

Backward begins by computing again what forward has not saved: element by element, for all layers. Levels have that in the first
partition. Where an operation that PyTorch runs follows it, all of these tensors would be stored before any is read, as in

    d = f32(x) - mean        # x: a saved tensor of 16 bits        partition 2
    ...                      # an operation of PyTorch's
    g = sum(dy * d)          #                                     partition 4

An operation moves with those whose results it alone reads. One that reads memory that is written stays.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Set

from torch import fx

from tilec.torch.aliases import is_opaque, maker, memory, readers, tensors, writes
from tilec.torch.concrete import NUMBERS, Known
from tilec.torch.partition import Decision, Part


def sink(graph: fx.Graph, decision: Decision, known: Mapping[fx.Node, Known]) -> None:
    """Changes `decision`. `known` is what `decide` was given."""
    if len(decision.parts) > 1 and not any(map(is_opaque, decision.reasons)):
        _Parts(graph, decision, known).sink()


class _Parts:
    def __init__(self, graph: fx.Graph, decision: Decision, known: Mapping[fx.Node, Known]):
        self.nodes, self.decision, self.known = list(graph.nodes), decision, known
        self.written = {memory(n.all_input_nodes[0]) for n in decision.reasons if writes(n)}

    def sink(self) -> None:
        for node in reversed(self.nodes):
            if node.target is not operator.getitem and (part := self._sunk_to(node)) is not None:
                found = self._with_producers(node, part)
                if self._passed(found, part) > 0:
                    for n in found:
                        self._put(n, part)
        order = {n: k for k, n in enumerate(self.nodes)}
        for part in self.decision.parts:
            part.nodes = sorted((n for n, owner in self.decision.owner.items() if owner is part), key=order.__getitem__)
        self.decision.parts = [p for p in self.decision.parts if p.nodes]

    def _put(self, node: fx.Node, part: Part) -> None:
        for n in (node, *(u for u in node.users if u.target is operator.getitem)):
            self.decision.owner[n], self.decision.level[n] = part, part.level

    def _sunk_to(self, node: fx.Node, least: int = 0, among: Set[fx.Node] = frozenset()) -> Part | None:
        """The last partition behind its own, not before level `least`, that is early enough for all readers but those `among`."""
        own = self.decision.owner.get(node)
        if own is None or any(memory(n) in self.written for n in node.all_input_nodes):
            return None
        most = min((self._level(u, own) for u in self._readers(node) if u not in among), default=least)
        fit = [p for p in self.decision.parts if p.device == own.device and max(own.level + 1, least) <= p.level <= most]
        return fit[-1] if fit else None

    def _level(self, reader: fx.Node, part: Part) -> int:
        """The last level of a partition of the same device that a reader finds the results of."""
        owner = self.decision.owner.get(reader)
        if owner is not None:
            return owner.level if owner.device == part.device else owner.level - 1
        return self.decision.level[reader] - 1 if reader in self.decision.reasons else 0

    def _with_producers(self, node: fx.Node, part: Part) -> set[fx.Node]:
        """The operation, and those whose results only it and they read, or later ones."""
        found, pending = {node}, [node]
        while pending:
            for n in self._producers(pending.pop()):
                here = n in self.decision.owner and self.decision.owner[n].device == part.device
                if here and n not in found and self._sunk_to(n, part.level, found) is not None:
                    found.add(n)
                    pending.append(n)
        return found

    def _passed(self, found: Set[fx.Node], part: Part) -> int:
        """How many bytes fewer pass to a partition if it computes these operations."""
        leave = [n for n in found if any(u not in found for u in self._readers(n))]
        read = {p for n in found for p in self._producers(n)} - found
        level = lambda u: self.decision.owner[u].level if u in self.decision.owner else 0  # noqa: E731
        enter = [n for n in read if all(level(u) < part.level for u in self._readers(n))]
        return sum(map(self._bytes, leave)) - sum(map(self._bytes, enter))

    def _producers(self, node: fx.Node) -> Iterator[fx.Node]:
        """The operations whose results it reads, itself or by what moves no data."""
        for n in node.all_input_nodes:
            made = maker(n)
            if made in self.decision.light:
                yield from self._producers(made)
            elif made in self.decision.owner or made in self.decision.reasons:
                yield made

    def _readers(self, node: fx.Node) -> set[fx.Node]:
        """What computes with a result or returns it, by what moves no data, too."""
        moves_none = lambda n: n in self.decision.light and not isinstance(self.known[n], NUMBERS)  # noqa: E731
        return set(readers(node, lambda n: n.target is operator.getitem or moves_none(n)))

    def _bytes(self, node: fx.Node) -> int:
        known = self.known[node]
        return sum(v.numel() * v.element_size() for v in tensors(known if isinstance(known, fx.Node) else node))
