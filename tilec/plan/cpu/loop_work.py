"""The loops of a CPU kernel as the cost model sees them, with any tile, order of loops and options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilec.analysis.directions import steps_of_extracts
from tilec.analysis.graph import Graph, Node
from tilec.analysis.loop_bodies import nest_time_us
from tilec.analysis.loop_groups import GroupedOp, loop_nests
from tilec.analysis.traffic import element_bytes, intermediates, strides
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.cost.loops import Access, LoopProblem, Nest, Tiling, loop_lines
from tilec.cost.model import Work
from tilec.kernels import KernelPlan, RegisterTranspose
from tilec.plan.groups import Group


@dataclass(frozen=True)
class LoopsWork:
    """Weighs the kernels of one group of operations; `own`: what they read, write and compute."""

    own: Work
    group: Group
    graph: Graph
    target: Target

    def __call__(self, kernel: KernelPlan) -> Work:
        tile = {d: min(t, kernel.extents[d]) for d, t in zip(kernel.grid, kernel.tile)}
        merged = self._merged(kernel)
        orders = tuple(
            kernel.loops.get(kernel.nodes[n], tuple(range(len(self._nests[n].dims)))) for n in merged
        )
        problem = replace(self._problem, nests=tuple(merged.values()))
        options = kernel.options
        transposed = options.transposed if isinstance(options, RegisterTranspose) else ()
        square = options.lanes if isinstance(options, RegisterTranspose) else 1
        lines = loop_lines(self.target, problem, Tiling(tile, orders, transposed, square))
        own, loops = self.own, self._innermost_us(kernel, tile)
        return replace(
            own, blocks=max(1, kernel.blocks), loops_us=loops, waits_us=lines.waits_us, l2_bytes=lines.l2, l3_bytes=lines.l3,
            dram_read=max(own.dram_read, lines.dram - own.dram_write),
        )  # fmt: skip

    def _innermost_us(self, kernel: KernelPlan, tile: dict[int, int]) -> float:
        """Of one core: the innermost loops of all blocks."""
        cut = prod(kernel.extents[d] / max(1, t) for d, t in tile.items())
        whole, loops = prod(-(-kernel.extents[d] // max(1, t)) for d, t in tile.items()), 0.0
        for name, node in zip(kernel.nodes, self.group.nodes):
            sizes = tuple(tile.get(d, kernel.extents[d]) for d in kernel.dims[name])
            along = [d for d, k in enumerate(kernel.dims[name]) if k in getattr(kernel.options, "transposed", ())]
            loops += nest_time_us(node, kernel.loops[name], sizes, self.target, along)
        return min(cut, whole) * loops

    def _merged(self, kernel: KernelPlan) -> dict[int, Nest]:
        """The loop nests, by the number of each one's first operation: operations of one nest load an element once."""
        nodes = self.group.nodes
        ops = [
            GroupedOp(
                kernel.loop_groups.get(name, 0), dims, frozenset(dims[d] for d in node.reduced), node.scan is not None
            )
            for name, node, dims in zip(kernel.nodes, nodes, kernel.dims.values())
        ]
        found: dict[int, Nest] = {}
        for number, nest in zip(loop_nests(ops, "cpu"), self._nests):
            first = found.setdefault(number, nest)
            more = tuple(a for a in nest.accesses if a not in first.accesses)
            found[number] = replace(first, accesses=first.accesses + more)
        return found

    @cached_property
    def _nests(self) -> list[Nest]:
        space, kept = self.group.space, {value for _, value in intermediates(self.group.nodes, self.graph)}
        numbers: dict[ir.Value, int] = {}
        return [_nest(node, space.dims[node], kept, space.grid, numbers) for node in self.group.nodes]

    @cached_property
    def _problem(self) -> LoopProblem:
        return LoopProblem((), dict(self.group.space.extents), tuple(self.group.space.grid))


def _nest(
    node: Node, dims: tuple[int, ...], kept: set[ir.Value], grid: tuple[int, ...], numbers: dict[ir.Value, int]
) -> Nest:
    found = []
    for read in (*node.reads, *node.results):
        found.append(_access(read.value, [{dims[d]: 1} for d in read.dims], read.value in kept, grid, numbers))
    for number, subscripts in steps_of_extracts(node):
        steps = [{dims[d]: step for d, step in enumerate(s) if step} for s in subscripts]
        found.append(_access(node.outside[number], steps, False, grid, numbers))
    return Nest(dims, tuple(found))


def _access(
    value: ir.Value, subscripts: list[dict[int, int]], kept: bool, grid: tuple[int, ...], numbers: dict[ir.Value, int]
) -> Access:
    moved = strides(value, subscripts)
    if kept:  # a block has its own part, at one place
        moved = {d: step for d, step in moved.items() if d not in grid}
    return Access(numbers.setdefault(value, len(numbers)), element_bytes(value.type), moved, kept)
