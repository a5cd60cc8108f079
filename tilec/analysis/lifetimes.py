"""How many bytes of temporaries a program needs at once, in any order of its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilec.analysis.graph import Graph, Node
from tilec.analysis.traffic import bytes_of


@dataclass(frozen=True)
class Lifetimes:
    """What kernels leave for later ones: the bytes of each temporary, the kernel that makes it, and those that need it, of which
    `begin` says where they begin in `readers`. The maker is among them."""

    sizes: np.ndarray
    makers: np.ndarray
    readers: np.ndarray
    begin: np.ndarray

    @staticmethod
    def of(kernels: Sequence[Sequence[Node]], graph: Graph) -> Lifetimes:
        """Results of the program are no temporaries."""
        number = {node: k for k, nodes in enumerate(kernels) for node in nodes}
        sizes, makers, begin, readers = list[int](), list[int](), list[int](), list[int]()
        for node, k in number.items():
            later = {number[n] for n in _readers(node, graph) if n in number} - {k}
            size = sum(bytes_of(r.value) for r in node.results if not graph.is_result(r.value))
            if later and size:
                sizes.append(size)
                makers.append(k)
                begin.append(len(readers))
                readers += [k, *later]
        return Lifetimes(*(np.array(row, np.int64) for row in (sizes, makers, readers, begin)))

    def peak(self, positions: np.ndarray) -> int:
        """The most bytes that live at once where kernels run in the order of `positions`, those at one position together."""
        if not len(self.sizes):
            return 0
        distinct, rank = np.unique(positions, return_inverse=True)
        last = np.maximum.reduceat(rank[self.readers], self.begin)
        born = np.bincount(rank[self.makers], self.sizes, len(distinct) + 1)
        gone = np.bincount(last + 1, self.sizes, len(distinct) + 1)
        return int(np.cumsum(born - gone).max())


def _readers(node: Node, graph: Graph) -> Iterable[Node]:
    """Inlined operations read for those that they are inlined into."""
    pending, found = [node], set[Node]()
    while pending:
        for reader in graph.consumers(pending.pop()):
            if reader not in found:
                found.add(reader)
                if reader.inlined:
                    pending.append(reader)
    return found
