"""An order of things that need each other."""

from __future__ import annotations

from collections.abc import Sequence, Set
from heapq import heappop, heappush


def topological(needs: Sequence[Set[int]]) -> list[int]:
    """Numbers in an order in which each comes after those that it needs, the smallest possible first. Raises ValueError for
    a cycle."""
    missing = [len(n) for n in needs]
    needed_by: list[list[int]] = [[] for _ in needs]
    for k, before in enumerate(needs):
        for other in before:
            needed_by[other].append(k)
    ready = [k for k, count in enumerate(missing) if not count]
    found = []
    while ready:
        found.append(heappop(ready))
        for k in needed_by[found[-1]]:
            missing[k] -= 1
            if not missing[k]:
                heappush(ready, k)
    if len(found) < len(needs):
        raise ValueError("a cycle")
    return found
