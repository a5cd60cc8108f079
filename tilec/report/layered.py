"""A layered drawing of a directed graph without cycles (Sugiyama, Tagawa and Toda, 1981).

Nodes lie on layers, each below all that it reads. An edge over several layers bends at a point on each. Nodes of a layer are
ordered by the mean of their neighbours, and then moved as near to that mean as the distance between them allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

ROUNDS = 8  # of ordering and of moving, down and up
GAP = 18.0  # between neighbours of a layer
BEND = 6.0  # width of an edge that passes a layer


@dataclass(frozen=True)
class Drawing:
    """`centres`: of each node, its horizontal centre and its layer. `paths`: of each edge, the points that it passes."""

    centres: dict[str, tuple[float, int]]
    paths: dict[tuple[str, str], list[tuple[float, int]]]
    width: float
    layers: int


def layered(widths: Mapping[str, float], edges: Iterable[tuple[str, str]]) -> Drawing:
    """Of nodes with these widths, in an order in which each comes after those that it reads. Edges lead to readers."""
    edges = list(dict.fromkeys(edges))
    level = _levels(list(widths), edges)
    sizes, routes = dict(widths), dict[tuple[str, str], list[str]]()
    layers: list[list[str]] = [[] for _ in range(1 + max(level.values(), default=-1))]
    for name in widths:
        layers[level[name]].append(name)
    for number, (a, b) in enumerate(edges):
        bends = [f"\0{number}.{k}" for k in range(level[a] + 1, level[b])]
        for k, bend in enumerate(bends, level[a] + 1):
            layers[k].append(bend)
            sizes[bend] = BEND
        routes[a, b] = [a, *bends, b]
    above: dict[str, list[str]] = {name: [] for name in sizes}
    below: dict[str, list[str]] = {name: [] for name in sizes}
    for route in routes.values():
        for a, b in pairwise(route):
            above[b].append(a)
            below[a].append(b)
    x = _packed(layers, sizes)
    for step in range(2 * ROUNDS):
        down = step % 2 == 0
        for layer in layers if down else layers[::-1]:
            wanted = {n: _mean([x[m] for m in (above if down else below)[n]], x[n]) for n in layer}
            if step < ROUNDS:
                layer.sort(key=lambda n: wanted[n])
            x.update(zip(layer, _spread([wanted[n] for n in layer], [sizes[n] for n in layer])))
    left = min((x[n] - sizes[n] / 2 for n in x), default=0.0)
    right = max((x[n] + sizes[n] / 2 for n in x), default=0.0)
    points = {name: (x[name] - left, number) for number, layer in enumerate(layers) for name in layer}
    return Drawing(
        {n: points[n] for n in widths}, {e: [points[n] for n in route] for e, route in routes.items()}, right - left, len(layers)
    )


def _levels(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The layer of each node; those that read nothing lie right above their first reader."""
    level = dict.fromkeys(nodes, 0)
    order = {n: k for k, n in enumerate(nodes)}
    for a, b in sorted(edges, key=lambda e: order[e[1]]):
        level[b] = max(level[b], level[a] + 1)
    reads = {b for _, b in edges}
    for name in nodes:
        readers = [level[b] for a, b in edges if a == name]
        if name not in reads and readers:
            level[name] = min(readers) - 1
    return level


def _packed(layers: Sequence[Sequence[str]], sizes: Mapping[str, float]) -> dict[str, float]:
    """Centres side by side."""
    x = {}
    for layer in layers:
        at = -sum(sizes[n] + GAP for n in layer) / 2
        for name in layer:
            x[name] = at + sizes[name] / 2
            at += sizes[name] + GAP
    return x


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spread(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Centres in this order, without overlaps, whose squared distances from `wanted` sum to the least: pool-adjacent-violators."""
    offsets = [0.0]
    for a, b in pairwise(sizes):
        offsets.append(offsets[-1] + (a + b) / 2 + GAP)
    pools: list[tuple[float, int]] = []  # sum and number
    for target, offset in zip(wanted, offsets):
        pool = (target - offset, 1)
        while pools and pools[-1][0] / pools[-1][1] > pool[0] / pool[1]:
            total, number = pools.pop()
            pool = (total + pool[0], number + pool[1])
        pools.append(pool)
    return [total / number + offset for (total, number), offset in zip(((t, n) for t, n in pools for _ in range(n)), offsets)]
