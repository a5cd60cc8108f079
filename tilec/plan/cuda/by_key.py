"""Reductions by key (`tilec/analysis/by_key.py`): whether keys are sorted first, and how a block deals out the results of one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isqrt

from tilec.analysis.by_key import ByKey as Found
from tilec.analysis.by_key import by_key
from tilec.analysis.graph import Node
from tilec.analysis.traffic import element_bytes
from tilec.core.fitted import Layouts
from tilec.core.hardware import WARP
from tilec.core.target import Target
from tilec.cost.by_key import pairs_us, sort_bytes, sort_us, sorting_blocks, sorting_threads
from tilec.cost.model import Work
from tilec.kernels import ByKey, KernelPlan
from tilec.kernels.threaded import laid_out
from tilec.plan.cuda.view import View, lay_out, power, widest
from tilec.plan.groups import Remark

KERNELS = 4  # that a reduction by key takes
MOST_THREADS = 256  # along the results of one key
ACCESSES = 4  # of a thread at a time: a block waits for a position, an element's number and the element one after another
LEAST_PIECE = 32
LEAST_REGISTERS = 32  # of a thread, besides the elements that it loads and those that it has reduced
LEAST_HELD = 8


def sorts_keys(node: Node, target: Target) -> Found | None:
    """The reduction by key whose keys are sorted first, if an operation is one, and looking at all pairs takes longer."""
    if target.kind != "cuda" or target.sm is None:
        return None
    key = "by key", target.name
    if key not in node.facts:
        node.facts[key] = _pays(node, target)
    return by_key(node.op) if node.facts[key] else None


def _pays(node: Node, target: Target) -> bool:
    found = by_key(node.op)
    if found is None or len(node.results) != 1 or max(node.extents, default=0) >= 1 << 31 or 0 in node.extents:
        return False
    moved = node.iterations // node.extents[found.keys] + node.iterations // node.extents[found.along]
    size = element_bytes(node.results[0].value.type)
    own = 1e6 * moved * size / target.dram.rate(target.units) + _sort_us(node, found, target)
    return own + KERNELS * target.launch.ramp_us < pairs_us(target, node.iterations, node.flops)


def _sort_us(node: Node, found: Found, target: Target) -> float:
    keys, count = node.extents[found.keys], node.extents[found.along]
    return sort_us(target, count, keys, found.key.type.width // 8)


def refuse_by_key(nodes: list[Node], dims: dict[Node, tuple[int, ...]], target: Target) -> str | None:
    """Why operations of which one sorts keys cannot be one kernel; in order."""
    first = next((n for n in nodes if sorts_keys(n, target)), None)
    if first is None:
        return None
    kept = {dims[first][d] for d in range(len(first.extents)) if d not in first.reduced}
    for n in nodes:
        if n is not first and (n.reduced or {*dims[n]} != kept or nodes.index(n) < nodes.index(first)):
            return f"{first.name} reduces by key, and {n.name} is not made of its results, element by element"
    return None


# ---- the kernel ------------------------------------------------------------------------------------------------------


def choose_by_key(view: View, node: Node) -> tuple[KernelPlan, list[Remark]]:
    """The kernel of a reduction whose keys are sorted, and of what is made of its results."""
    found, target, extents = sorts_keys(node, view.target), view.target, view.extents
    assert found is not None
    dims = view.group.space.dims[node]
    keys, along = dims[found.keys], dims[found.along]
    count, lane = extents[along], _lane(view, keys, along)
    threads, vector, steps = 1, 1, 1
    if lane is not None:
        near = [a for a in view.accesses if a.dims and a.dims[-1] == lane]
        vector = widest(near)
        while extents[lane] % vector:
            vector //= 2
        accesses = -(-extents[lane] // vector)
        steps = max(1, min(ACCESSES, accesses // WARP))
        threads = min(MOST_THREADS, power(accesses / steps))
    counts = {lane: threads} if lane is not None and threads > 1 else {}
    if threads < WARP:  # threads of a warp share the elements, too
        counts[along] = WARP // threads
    tile = {} if lane is None else {lane: min(extents[lane], threads * vector * steps)}
    step = {} if lane is None else {lane: steps}
    layout = lay_out(view, counts, {} if lane is None else {lane: vector}, step, tile)
    options = ByKey(
        **laid_out(layout), keys=keys, along=along, sorting_blocks=sorting_blocks(target, extents[keys]),
        sorting_threads=sorting_threads(target, count, extents[keys]),
        piece=max(LEAST_PIECE, power(isqrt(count) / 4)), overlap_sorting=bool(target.launch.overlap_us) or None,
        registers=LEAST_REGISTERS + 2 * max(LEAST_HELD, layout.slots(range(len(layout.steps)))),
    )  # fmt: skip
    kernel = replace(
        view.kernel, tile=tuple(tile.get(d, 1) for d in view.kernel.grid), options=options, sram=_shared_bytes,
        weigh=partial(_work, view, node, found.key.type.width // 8),
    )  # fmt: skip
    why = f"{extents[keys]} keys of {count} elements are sorted first, by {options.sorting_blocks} blocks"
    line = kernel.lines[-1] if kernel.lines else None
    return kernel.weighed(target), [Remark("tiled", kernel.name, why, line)]


def _lane(view: View, keys: int, along: int) -> int | None:
    """The dimension along which most of what is read and written is contiguous, but for the two of the pairs."""
    score: dict[int, int] = {}
    for a in view.accesses:
        if a.dims and a.dims[-1] not in (keys, along) and view.extents[a.dims[-1]] > 1:
            score[a.dims[-1]] = score.get(a.dims[-1], 0) + a.bytes
    return max(score, key=lambda d: (score[d], d)) if score else None


def _shared_bytes(kernel: KernelPlan) -> int:
    options = kernel.options
    assert isinstance(options, ByKey)
    return sort_bytes(-(-kernel.extents[options.keys] // options.sorting_blocks), options.sorting_threads)


def _work(view: View, node: Node, key_bytes: int, kernel: KernelPlan) -> Work:
    """Of all its kernels: each element is read once, and each result is written once."""
    options, target, extents = kernel.options, view.target, kernel.extents
    assert isinstance(options, ByKey)
    read = sum(a.bytes for a in view.accesses if not a.written)
    written = sum(a.bytes for a in view.accesses if a.written)
    count, keys = extents[options.along], extents[options.keys]
    element = max(a.element for a in view.accesses)
    held = max(options.steps) * max(options.vectors)
    launch = target.launch.overlap_us if options.overlap_sorting else target.launch.ramp_us
    sort = sort_us(target, count, keys, key_bytes, options.sorting_blocks, options.sorting_threads)
    return Work(
        dram_read=read, dram_write=written, blocks=kernel.blocks, threads=options.block_threads,
        registers=options.registers or LEAST_REGISTERS + 2 * held, bytes_in_flight=held * element,
        flops={"fma.f32": node.flops * node.iterations / max(1, keys)}, latency_ns=target.fit(Layouts).latency_ns,
        stall_ns=2 * target.l2.latency_ns, serial_us=sort + (KERNELS - 1) * launch,
    )  # fmt: skip
