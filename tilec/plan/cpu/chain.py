"""CPU kernels of several contractions, or of one and reductions of its result: legality, time and tiles.

A block has some rows of all operations, and one operation after another computes them (`passes/cpu/chain.py`). Results stay in
the core's L2. Each block packs the factors that belong to no row, so that more rows in a block mean less packing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, prod

from tilec.analysis.chain import Chain
from tilec.analysis.graph import Graph, Node
from tilec.analysis.space import Space
from tilec.analysis.traffic import bytes_of, element_bytes, intermediates, work_of
from tilec.core.mlir import ir
from tilec.core.quantities import by_sizes
from tilec.core.target import Target
from tilec.cost.model import Work, predict
from tilec.cost.panels import PanelProblem, panel_work
from tilec.kernels import KernelPlan, PanelChain, Panels
from tilec.kernels.cpu import INSTRUCTIONS
from tilec.plan.chain import chain_of
from tilec.plan.cpu.panels import blocking_of, contiguous_along, parts_of, predicted_us, problem_of, register_tile
from tilec.plan.groups import Group, Remark

MOST_ROWS = 512
TILE = 32  # rows of a matrix unit's sums
SIZE = {"f32": 4, "f64": 8}


def refuse_panel_chain(nodes: list[Node], space: Space, graph: Graph, target: Target) -> str | None:
    """Why a block of rows cannot compute all of the operations; None if it can."""
    if 0 in space.extents.values():
        return "an index has no values"
    contractions = [n for n in nodes if n.contraction is not None]
    for node in contractions:
        if isinstance(found := _roles(node, space), str):
            return found
    if len({_element(n) for n in contractions}) > 1 or _element(contractions[0]) not in SIZE:
        return "panels add up f32 or f64"
    if len({_dims(n, space)[0] for n in contractions}) > 1:
        return "the contractions have different rows"
    per_row = _held(nodes, graph, space)
    if per_row * min(MOST_ROWS, 8) > target.l2.bytes // 2:
        return f"the intermediates of 8 rows take {8 * per_row} bytes, and half of L2 has {target.l2.bytes // 2}"
    return None


def _element(node: Node) -> str:
    return str(ir.ShapedType(node.results[0].value.type).element_type)


def _roles(node: Node, space: Space) -> tuple[int, int, int] | str:
    """The kernel dimensions of a contraction's rows, columns and sum: rows are of the grid."""
    c, dims = node.contraction, space.dims[node]
    assert c is not None
    m, n = ({dims[d] for d in own if node.extents[d] > 1} for own in (c.m, c.n))
    rows, columns = (m, n) if m & set(space.grid) else (n, m)
    for found, what in ((rows, "rows"), (columns, "columns"), (c.k, "reduced indices")):
        if len(found) != 1:
            return f"the {what} of {node.name} are {len(found)} dimensions, not one"
    (row,), (column,), (inner,) = rows, columns, (dims[d] for d in c.k)
    if row not in space.grid or column in space.grid:
        return f"a block of rows does not have whole rows of {node.name}"
    if dims[node.results[0].dims[-1]] != column:
        return f"{node.name} is not contiguous along its columns"
    return row, column, inner


def _dims(node: Node, space: Space) -> tuple[int, int, int]:
    """`_roles` of a contraction that is not refused."""
    found = _roles(node, space)
    assert not isinstance(found, str)
    return found


def chain_us(nodes: list[Node], space: Space, graph: Graph, target: Target) -> float:
    """The predicted time: of each contraction in blocks of rows, and of the arithmetic between them, whose data are in L2."""
    rows = _rows(nodes, space, graph, target)
    contractions = [n for n in nodes if n.contraction is not None]
    between = predict(_others(nodes, graph, space, target), target).time_us
    return between + sum(predicted_us(n, target, rows) or inf for n in contractions)


def _others(nodes: list[Node], graph: Graph, space: Space, target: Target) -> Work:
    """The arithmetic between contractions."""
    found = work_of([n for n in nodes if n.contraction is None], graph, space, target)
    return replace(found, dram_read=0.0, dram_write=0.0, working_set=0.0)


@dataclass(frozen=True)
class ChainWork:
    """Weighs the kernels of a chain. `own`: what its operations read, write and compute; `others`: the arithmetic between the
    contractions, which `problems` are; `held`: bytes of a row's intermediates."""

    own: Work
    others: Work
    problems: tuple[PanelProblem, ...]
    held: int
    target: Target

    def __call__(self, kernel: KernelPlan) -> Work:
        """One contraction after another in blocks of rows, and the arithmetic between them. Intermediates that a core's cache does
        not hold come from the one that all cores share."""
        options, target, blocks = kernel.options, self.target, max(1, kernel.blocks)
        assert isinstance(options, PanelChain)
        flops, busy = dict(self.others.flops), dict(self.others.flops)
        tile = {d: min(t, kernel.extents[d]) for d, t in zip(kernel.grid, kernel.tile)}
        rows = max(1, tile[options.rows[0]])
        for n, problem in enumerate(self.problems):
            (unit, products), pace = self._products(options.contraction(n), problem, kernel.extents | tile)
            share = self._share(options, kernel.extents, rows)
            flops[unit] = flops.get(unit, 0.0) + share * products
            busy[unit] = busy.get(unit, 0.0) + share * products * pace
        whole = rows * self.held
        beyond = 2.0 * blocks * whole if whole > target.l2.bytes else 0.0
        return replace(
            self.own, blocks=blocks, flops=flops, pace={u: busy[u] / n for u, n in flops.items() if n}, l3_bytes=beyond
        )

    def _products(self, panels: Panels, problem: PanelProblem, sizes: dict[int, int]) -> tuple[tuple[str, float], float]:
        """Unit and number of a contraction's operations, and their pace, in blocks of rows and all columns."""
        work = panel_work(self.target, problem, blocking_of(panels, sizes))
        ((unit, products),) = work.flops.items()
        return (unit, products), work.pace[unit]

    @staticmethod
    def _share(options: PanelChain, extents: dict[int, int], rows: int) -> float:
        """Of the products, what a mask that cuts each row leaves of a block."""
        return cut_share(rows, extents[options.inner[-1]]) if options.bounds else 1.0


def cut_share(rows: int, between: int) -> float:
    return 0.5 + min(0.5, rows / between / 2)


def separate_us(groups: list[Group], nodes: list[Node], graph: Graph, target: Target) -> float:
    """The predicted time of kernels instead of a chain of the nodes: results between them leave L2."""
    total = 0.0
    for g in groups:
        contractions = [n for n in g.nodes if n.contraction is not None]
        alone = predicted_us(contractions[0], target) if len(contractions) == 1 else None
        total += g.time_us(graph, target) if alone is None else alone
    for node in nodes:
        for value in [r.value for r in node.results if not graph.is_returned(node)]:
            readers = [g for g in groups if any(r.value == value for n in g.nodes for r in n.reads)]
            if any(node not in g.nodes for g in readers):
                total += 1e6 * bytes_of(value) * (1 + len(readers)) / target.dram.rate(target.units)
    return total


def _held(nodes: list[Node], graph: Graph, space: Space) -> int:
    """Most bytes of intermediates at a time for one row: results take the place of what is read for the last time."""
    sizes: dict[ir.Value, int] = {}
    for node, value in intermediates(nodes, graph):
        result = next(r for r in node.results if r.value == value)
        inner = prod(node.extents[d] for d in result.dims if space.dims[node][d] not in space.grid)
        sizes[value] = inner * element_bytes(value.type)
    last = {r.value: n for n, node in enumerate(nodes) for r in node.reads if r.value in sizes}
    live, most = 0, 0
    for n, node in enumerate(nodes):
        made = sum(sizes.get(r.value, 0) for r in node.results)
        dead = sum(size for value, size in sizes.items() if last.get(value) == n)
        most = max(most, live + made - (min(made, dead) if node.contraction is None else 0))
        live += made - dead
    return most


def _rows(nodes: list[Node], space: Space, graph: Graph, target: Target) -> int:
    """A block's rows: no more than L2 has room for, and such that the contractions take the least time."""
    contractions = [n for n in nodes if n.contraction is not None]
    row, *_ = _dims(contractions[0], space)
    extent = space.extents[row]
    room = target.l2.bytes // 2 // max(1, _held(nodes, graph, space) + _weights(nodes, graph, space, target))
    most = max(1, min(MOST_ROWS, room, extent))
    parts = {max(ceil(extent / most), n) for n in (1, 2, 3, 4, 8, 16, 32)}
    candidates = {ceil(extent / n) for n in parts}
    tiles = {rows // TILE * TILE for rows in (most, *candidates)}  # a matrix unit computes whole tiles, but of a block of all rows
    tiles |= {extent} if most == extent else set()
    by_unit = any(register_tile(n, most, target).instruction == "amx" for n in contractions)
    found = sorted(tiles - {0} if by_unit and max(tiles) else candidates, reverse=True)
    between = space.extents[_dims(contractions[-1], space)[2]] if _bounds(nodes, space, graph) else 0

    def time(rows: int) -> float:
        """Of the contractions, with what a mask that cuts each row leaves of a block."""
        share = cut_share(rows, between) if between else 1
        return share * sum(predicted_us(n, target, rows) or 0 for n in contractions)

    return min(found, key=time)


def _weights(nodes: list[Node], graph: Graph, space: Space, target: Target) -> int:
    """Bytes of a row of factors that the chain computes, as a matrix unit takes them."""
    if not target.instructions("bf16"):
        return 0
    made = {r.value for n in nodes for r in n.results if not graph.is_returned(n)}
    inside = [n for n in nodes if n.contraction is not None and any(r.value in made for r in n.reads)]
    return sum(2 * space.extents[_dims(n, space)[2]] for n in inside if parts_of(n)[0] == 1)


def choose_chain(kernel: KernelPlan, g: Group, graph: Graph, target: Target) -> tuple[KernelPlan, list[Remark]]:
    """The kernel with its tile, and panels for each contraction."""
    space, contractions = g.space, [n for n in g.nodes if n.contraction is not None]
    element = _element(contractions[0])
    size = SIZE[element]
    assert target.core is not None
    lanes = target.core.simd_bytes // size
    found = [_dims(n, space) for n in contractions]
    rows = _rows(g.nodes, space, graph, target)
    tiles, depths, outer, along, matrix = [], [], [], [], []
    parts: list[int] = []
    for node, (row, column, _) in zip(contractions, found):
        panels, numbers = register_tile(node, rows, target), parts_of(node)
        tiles += [panels.mr, panels.nr]
        depths.append(panels.depth)
        matrix.append(INSTRUCTIONS.index(panels.instruction))
        parts += numbers
        outer.append(int(panels.columns_outer))
        own = {k: d for d, k in enumerate(space.dims[node])}
        along += [
            space.dims[node][contiguous_along(node, (own[a],), (own[b],))] for a, b in ((row, column), (column, row))
        ]
    options = PanelChain(
        rows=tuple(r for r, _, _ in found), columns=tuple(c for _, c, _ in found), inner=tuple(k for _, _, k in found),
        along=tuple(along), element=element, bounds=_bounds(g.nodes, space, graph), register_tiles=tuple(tiles), lanes=lanes,
        depths=tuple(depths), columns_outer=tuple(outer), matrix=tuple(matrix), parts=tuple(parts),
    )  # fmt: skip
    sizes = tuple(rows if d == found[0][0] else 1 for d in kernel.grid)
    weigh = ChainWork(kernel.work, _others(g.nodes, graph, space, target), tuple(map(problem_of, contractions)),
                      _held(g.nodes, graph, space), target)  # fmt: skip
    kernel = replace(kernel, tile=sizes, options=options, weigh=weigh).weighed(target)
    held = rows * _held(g.nodes, graph, space)
    why = f"blocks of {by_sizes(sizes)}, {held} bytes of intermediates, register tiles of {by_sizes(tuple(tiles[:2]))}"
    return kernel, [Remark("tiled", kernel.name, why, kernel.lines[-1] if kernel.lines else None)]


def _bounds(nodes: list[Node], space: Space, graph: Graph) -> tuple[int, ...]:
    """Masks that exclude the last elements of a row, by its number."""
    chain = chain_of(nodes, space, graph)
    if not isinstance(chain, Chain):
        return ()
    row, *_ = _dims(next(n for n in nodes if n.contraction is not None), space)
    found = list[int]()
    for leaves, number in (b for mask in chain.masks for b in mask.bounds):
        factors = {row: 0, chain.between: 0}
        for leaf, factor in leaves.items():
            if leaf.op != "index" or len(leaf.dims) != 1 or not leaf.dims <= set(factors):
                break
            (d,) = leaf.dims
            factors[d] += factor
        else:
            if factors[chain.between] < 0:
                found += [chain.between, row, factors[row], factors[chain.between], number]
    return tuple(found)


__all__ = ["chain_us", "choose_chain", "refuse_panel_chain", "separate_us"]
