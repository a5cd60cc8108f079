"""Which operations each operation of a graph is computed from. Thousands of operations ask about each other, so the answers are
sets of bits, made once in the order of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from tilec.analysis.graph import Node


class Ancestors:
    """The operations that each of `nodes` is computed from, directly or through others. The way ends at operations for which
    `ends` holds: these are found, and what they are computed from is not."""

    def __init__(
        self, nodes: Iterable[Node], producers: Callable[[Node], Iterable[Node]], position: Mapping[Node, int],
        ends: Callable[[Node], bool] = lambda _: False,
    ):  # fmt: skip
        self._position, self._producers, self._ends = position, producers, ends
        self._found: dict[Node, int] = {}
        for node in nodes:  # each after those that it reads
            bits = 0
            for p in producers(node):
                bits |= 1 << position[p]
                if not ends(p):
                    bits |= self._found[p]
            self._found[node] = bits

    @cached_property
    def _followers(self) -> dict[Node, int]:
        """The operations that are computed from each."""
        found = dict.fromkeys(self._found, 0)
        for node in reversed(found):
            bits = 1 << self._position[node] | (0 if self._ends(node) else found[node])
            for p in self._producers(node):
                found[p] |= bits
        return found

    def has(self, node: Node, first: Node) -> bool:
        """Whether `node` is computed from `first`."""
        return bool(self._found[node] >> self._position[first] & 1)

    def between(self, first: Node, last: Node) -> int:
        """The operations that are computed from `first` and that `last` is computed from, as bits at their positions."""
        return self._followers[first] & self._found[last]
