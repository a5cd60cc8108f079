"""Which operations each operation of a graph is computed from. Thousands of operations ask about each other, so the answers are
sets of bits, made once in the order of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tilec.analysis.graph import Node


class Ancestors:
    """The operations that each of `nodes` is computed from, directly or through others. The way ends at operations for which
    `ends` holds: these are found, and what they are computed from is not."""

    def __init__(
        self, nodes: Iterable[Node], producers: Callable[[Node], Iterable[Node]], position: Mapping[Node, int],
        ends: Callable[[Node], bool] = lambda _: False,
    ):  # fmt: skip
        self._position = position
        self._found: dict[Node, int] = {}
        for node in nodes:  # each after those that it reads
            bits = 0
            for p in producers(node):
                bits |= 1 << position[p]
                if not ends(p):
                    bits |= self._found[p]
            self._found[node] = bits

    def has(self, node: Node, first: Node) -> bool:
        """Whether `node` is computed from `first`."""
        return bool(self._found[node] >> self._position[first] & 1)
