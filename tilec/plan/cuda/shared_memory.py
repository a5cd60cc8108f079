"""Shared memory of a CUDA block, for any layout: at least as much as `stage` and `map` allocate.

An intermediate of a block is in registers if each thread holds all its elements at once (`Layout.whole`), and in shared
memory otherwise. Intermediates are tensors that one loop nest makes for a later one, and the states of reductions. Shared
memory also holds inputs that are transposed, rows that are prefetched or resident, and the words by which threads, warps
and blocks complete reductions and scans.
"""

# mypy: no-strict-optional
# mypy: disable-error-code="union-attr, var-annotated"

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilec.analysis.layout import Layout, make
from tilec.analysis.traffic import element_bytes, intermediates
from tilec.core.hardware import WARP
from tilec.core.target import Target
from tilec.cost.model import TooLarge, round_up
from tilec.kernels import KernelPlan
from tilec.kernels.rows import part_of
from tilec.kernels.threaded import laid_out
from tilec.plan.cuda.scan import fused_scan_results
from tilec.plan.cuda.view import View, power

ALIGN = 16  # bytes that every piece begins at a multiple of
MBARRIER_BYTES = 32  # bytes of the words that asynchronous stores to other blocks count on


@dataclass(frozen=True)
class Piece:
    """A tensor, or a block's part of one: the kernel dimensions that subscript it, and the bytes of an element. `nests`:
    the loop nests that read an input. `reduced`: the dimensions of a reduction that carries a state; `scans`: that of a
    scan."""

    dims: tuple[int, ...]
    element: int
    nests: int = 1
    reduced: frozenset[int] = frozenset()
    scans: int | None = None


@dataclass(frozen=True)
class OnChip:
    """All that a kernel's blocks may have in SRAM, whatever its layout."""

    made: tuple[Piece, ...]
    states: tuple[Piece, ...]
    inputs: tuple[Piece, ...]

    def bytes(self, kernel: KernelPlan) -> int:
        """In SRAM, as the kernel's tile and options say."""
        layout, o = layout_of(kernel), kernel.options
        sizes = [_size(layout, p) for p in (*self.made, *self.states) if not layout.whole(p.dims)]
        for p in self.inputs:
            if p.dims and p.dims[-1] in o.transposed_dims and layout.lane in p.dims:
                sizes += [_size(layout, p, pad=1)] * p.nests
            elif p.dims and p.dims[-1] == layout.lane and all(layout.extents[d] == 1 for d in p.dims[:-1]):
                sizes += self._rows(kernel, layout, p)
        for p in self.states:
            sizes += _exchanged(kernel, layout, p)
        if o.online:
            sizes += _exchanged(kernel, layout, replace(self.states[0], element=4))  # how many elements have been seen
        return sum(round_up(size, ALIGN) for size in sizes)

    def _rows(self, kernel: KernelPlan, layout: Layout, p: Piece) -> list[int]:
        """An input that is prefetched, or waits for a second loop nest."""
        o = kernel.options
        if stages := o.rows_in_flight:
            return [_size(layout, p) * (stages if set(p.dims) & set(kernel.grid) else 1)]
        if o.residency != "smem" or p.nests < 2:
            return []
        if o.hybrid_chunks:
            chunks = layout.chunks(layout.lane) - o.hybrid_chunks
            return [chunks * layout.chunk(layout.lane) * p.element]
        return [_size(layout, p)]


def on_chip(view: View) -> OnChip:
    """The intermediates, states and inputs of a kernel's operations."""
    nodes, dims = view.group.nodes, view.group.space.dims
    number = {n: view.nests[n.name] for n in nodes}
    states, made, read = [], [], {}
    carried = set()
    for node in nodes:
        for result in node.results:
            if any(d not in result.dims for d in node.reduced):
                carried.add(result.value)
                scans = dims[node][node.scan] if node.scan is not None else None
                reduced = frozenset(dims[node][d] for d in node.reduced)
                states.append(
                    Piece(_kernel_dims(dims[node], result), element_bytes(result.value.type), reduced=reduced, scans=scans)
                )
        for r in node.reads:
            read.setdefault((r.value, _kernel_dims(dims[node], r)), set()).add(number[node])
    spared = fused_scan_results(view)
    for node, value in intermediates(nodes, view.graph):
        readers = {number[n] for n in nodes if any(r.value == value for r in n.reads)}
        if value not in carried and value not in spared and readers != {number[node]}:
            result = next(r for r in node.results if r.value == value)
            made.append(Piece(_kernel_dims(dims[node], result), element_bytes(value.type)))
    own = {r.value for n in nodes for r in n.results}
    inputs = [Piece(p, element_bytes(value.type), len(nests)) for (value, p), nests in read.items() if value not in own]
    return OnChip(tuple(made), tuple(states), tuple(inputs))


def layout_of(kernel: KernelPlan) -> Layout:
    """The layout that a kernel's tile and options say, of a block's part of a row where blocks share it."""
    o, tile = kernel.options, dict(zip(kernel.grid, kernel.tile))
    extents = [min(tile.get(d, e), e) for d, e in sorted(kernel.extents.items())]
    if o.cluster_blocks > 1 and o.thread_order:
        lane = o.thread_order[0]
        extents[lane] = part_of(extents[lane], o.cluster_blocks, o.vectors[lane])
    return replace(o.layout(dict(enumerate(extents))), blocks_per_row=o.blocks_per_tile)


def fit(kernel: KernelPlan, target: Target) -> KernelPlan:
    """The kernel with a tile whose intermediates fit shared memory. Raises TooLarge if none does."""
    assert target.sm is not None and kernel.sram is not None
    while kernel.sram(kernel) > target.sm.shared_per_block:
        tile, o = dict(zip(kernel.grid, kernel.tile)), kernel.options
        d = max(kernel.grid, key=lambda d: min(tile[d], kernel.extents[d]), default=None)
        if d is None or min(tile[d], kernel.extents[d]) <= 1:
            raise TooLarge(f"{too_much(kernel, target)}, however small its tile")
        size = power(min(tile[d], kernel.extents[d])) // 2
        counts, vectors, steps = list(o.thread_counts), list(o.vectors), list(o.steps)
        vectors[d] = min(vectors[d], size)
        counts[d] = min(counts[d], size // vectors[d])
        order = tuple(e for e in o.thread_order if counts[e] > 1)
        extents = [size if e == d else min(tile.get(e, n), n) for e, n in sorted(kernel.extents.items())]
        layout = make(extents, order, counts, vectors, steps, o.is_unaligned and bool(order))
        sizes = tuple(size if e == d else t for e, t in tile.items())
        kernel = replace(kernel, tile=sizes, options=replace(o, **laid_out(layout)))
    return kernel


def too_much(kernel: KernelPlan, target: Target) -> str:
    room = target.sm.shared_per_block
    return (
        f"a block would take {kernel.sram(kernel):,} bytes of shared memory, and {target.name} has {room:,} for a block"
    )


def _exchanged(kernel: KernelPlan, layout: Layout, p: Piece) -> list[int]:
    """The bytes by which threads exchange a state: warps of a block, and blocks of a cluster."""
    if p.scans is not None:
        warps = layout.threads[p.scans] // WARP
        return [layout.steps[p.scans] * warps * p.element, p.element] if warps > 1 or layout.blocks_per_row > 1 else []
    slots = layout.slots(p.dims)
    across = [d for d in layout.order if d in p.reduced and layout.stride(d) * layout.threads[d] > WARP]
    each = {d: WARP if layout.stride(d) == 1 else 1 for d in across}  # threads that have one state
    sizes = [slots * layout.block // each[d] * p.element for d in across]
    if (blocks := kernel.options.cluster_blocks) > 1:
        sizes += [2 * blocks * slots * p.element, MBARRIER_BYTES]
    return sizes


def _size(layout: Layout, p: Piece, pad: int = 0) -> int:
    extents = [layout.extents[d] for d in p.dims]
    return p.element * (prod(extents[:-1]) * (extents[-1] + pad) if extents else 1)


def _kernel_dims(dims: tuple[int, ...], read: Any) -> tuple[int, ...]:
    return tuple(dims[d] for d in read.dims)
