"""Rows on CUDA: the threads of a block, or of a cluster of blocks, that share a row, and the residency of rows.

`tilec/cost/rows.py` enumerates and predicts the choices. This module describes a kernel's rows to it, and the options that the
kernel's operations rule out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from tilec.analysis.graph import Node
from tilec.core.mlir import ir
from tilec.core.quantities import count
from tilec.cost import rows as cost_rows
from tilec.cost.model import Choice, pick
from tilec.plan.cuda.online import online_reductions
from tilec.plan.cuda.view import widest

if TYPE_CHECKING:
    from tilec.plan.cuda.view import View

SHOWN = 4  # alternatives, of those that differ in kind


@dataclass(frozen=True)
class RowPlan:
    """The choice for one kernel, and the alternatives.

    `problem`: the rows, where a block reduces along them only. `unaligned`: the rows could be unaligned. `hybrid_chunks`: rows in
    shared memory could have a part in registers.
    """

    tile: cost_rows.RowTile
    alternatives: tuple[tuple[str, float], ...]
    problem: cost_rows.Rows | None = None
    unaligned: bool = False
    hybrid_chunks: bool = False


def choose_rows(view: View, lane: int, vector: int) -> RowPlan:
    problem = row_problem(view, lane, vector)
    wide = unaligned_vector(view, lane, vector)
    problems = [problem, *([replace(problem, vector=wide, unaligned=True)] if wide else [])]
    choices = cost_rows.choose(view.target, *problems)
    return RowPlan(
        pick(choices, view.pick),
        _alternatives(choices),
        problem,
        unaligned=bool(wide),
        hybrid_chunks=any(c.tile.hybrid_chunks for c in choices),
    )


def unaligned_vector(view: View, lane: int, vector: int) -> int:
    """Elements of the vectors of unaligned rows; 0 if they are no wider than `vector`, or the rows cannot be read so."""
    along = [a for a in view.accesses if len(a.dims) > 1 and a.dims[-1] == lane]
    rows = {d for d in view.kernel.grid if view.extents[d] > 1}
    nodes = [view.group.space.dims[n] for n in view.group.nodes if lane in view.group.space.dims[n]]
    if not along or refuse_prefetch(view, lane) or not all(rows <= set(dims) for dims in nodes):
        return 0
    wide = widest(along)
    return wide if wide > vector and view.extents[lane] >= 2 * wide else 0


def alone(view: View, lane: int) -> bool:
    """Whether a block reduces along the rows only."""
    return not any(d != lane and view.extents[d] > 1 for d in view.reduced)


def row_tiles(view: View, lane: int, vector: int) -> list[cost_rows.RowTile]:
    """Row tiles of a block that also reduces along other dimensions, the best first as far as the rows are concerned."""
    return [c.tile for c in cost_rows.choose(view.target, row_problem(view, lane, vector))]


def row_problem(view: View, lane: int, vector: int) -> cost_rows.Rows:
    """A kernel's rows as the cost model sees them."""
    rows = max(1, prod(view.extents[d] for d in view.kernel.grid))
    along = [a for a in view.accesses if lane in a.dims and set(a.dims) & set(view.kernel.grid)] or [
        a for a in view.accesses if lane in a.dims
    ]
    reads, writes = [a for a in along if not a.written], [a for a in along if a.written]
    common = [a for a in view.accesses if lane in a.dims and a not in along and not a.written]
    nodes = [n for n in view.group.nodes if lane in view.group.space.dims[n]]
    flops = {"fma.f32": sum(n.flops for n in nodes), "special": sum(n.special for n in nodes)}
    size = max((a.element for a in reads), default=4)
    passes = 1 + max(view.kernel.loop_groups[n.name] for n in nodes)
    live, made = _live(view, lane, nodes)
    simple = not refuse_prefetch(view, lane)
    joint = {view.kernel.loop_groups[n.name] for n in online_reductions(view)}
    joined = max(joint) - min(joint) if joint else 0
    return cost_rows.Rows(
        rows, max(1, view.extents[lane]), size, max(1, len(reads)), len(writes), live, made, passes, joined, flops,
        len(common), vector, simple and not refuse_cluster(view, lane), simple,
    )  # fmt: skip


def refuse_prefetch(view: View, lane: int) -> str | None:
    """Why persistent blocks cannot compute a kernel row after row; None if they can."""
    others = [d for d in view.reduced if d != lane and view.extents[d] > 1]
    if others:
        return "a block reduces along several indices"
    if lane in view.scanned:
        return "a scan goes along the rows"
    if not any(
        lane in view.group.space.dims[n] and view.group.space.dims[n].index(lane) in n.reduced for n in view.group.nodes
    ):
        return "nothing is reduced along the rows"
    return None


def refuse_cluster(view: View, lane: int) -> str | None:
    """Why blocks cannot share a row of this kernel; None if they can."""
    for node in view.group.nodes:
        dims = view.group.space.dims[node]
        if lane not in dims or dims.index(lane) not in node.reduced:
            continue
        for result in node.results:
            element = ir.ShapedType(result.value.type).element_type
            if not (isinstance(element, (ir.F32Type, ir.F64Type)) or str(element) in ("i32", "i64", "index")):
                return f"blocks exchange values of 32 and 64 bits, and {node.name} has a result of {element}"
    return None


def ruled_out_rows(view: View, lane: int) -> dict[str, str]:
    """The options that the operations of a kernel rule out, with the reason."""
    prefetch = refuse_prefetch(view, lane)
    found = {"prefetched_rows": prefetch, "residency": prefetch, "cluster": prefetch or refuse_cluster(view, lane)}
    return {option: why for option, why in found.items() if why is not None}


def _live(view: View, lane: int, nodes: list[Node]) -> tuple[int, int]:
    """32-bit values of each element that are kept between passes (inputs that are read again, and intermediates), and the
    intermediates among them."""
    loop_group = {n: view.kernel.loop_groups[n.name] for n in nodes}
    spans: dict[ir.Value, list[int]] = {}
    for n in nodes:
        dims = view.group.space.dims[n]
        for read in n.reads:
            if lane in (dims[d] for d in read.dims):
                spans.setdefault(read.value, []).append(loop_group[n])
        for result in n.results:
            if lane in (dims[d] for d in result.dims):
                spans.setdefault(result.value, []).append(loop_group[n])
    last = max(loop_group.values())
    made = {r.value for n in nodes for r in n.results}

    def most(values: Iterable[ir.Value]) -> int:
        kept = [(min(spans[v]), max(spans[v])) for v in values]
        return max(sum(a <= s < b for a, b in kept) for s in range(last + 1))

    return max(1, most(spans)), most(made & spans.keys())


def _alternatives(choices: list[Choice[cost_rows.RowTile]]) -> tuple[tuple[str, float], ...]:
    """The best of each kind, the chosen one first."""
    kinds: dict[tuple, tuple[str, float]] = {}
    for choice in choices:
        tile = choice.tile
        kinds.setdefault((tile.cluster, tile.stages > 0, tile.residency), (describe(tile), choice.prediction.time_us))
    return tuple(list(kinds.values())[:SHOWN])


def describe(tile: cost_rows.RowTile) -> str:
    """A row tile in words."""
    where = {"registers": "rows in registers", "sram": "rows in shared memory"}.get(
        tile.residency, "every pass reloads rows"
    )
    where += (
        f" and, {tile.hybrid_chunks * tile.vectors} accesses of each thread, in registers"
        if tile.hybrid_chunks
        else ""
    )
    where += ", packed" if tile.packed else ""
    where += ", unaligned" if tile.unaligned else ""
    threads = f"{count(tile.threads, 'thread')} a row"
    if tile.cluster > 1:
        threads = f"a cluster of {tile.cluster} blocks of {tile.threads} threads a row"
    ahead = f", {count(tile.stages, 'row')} prefetched by persistent blocks" if tile.stages else ""
    rows = f", {tile.rows_per_block} rows a block" if tile.rows_per_block > 1 else ""
    return f"{threads}{rows}, {count(tile.vector, 'element')} an access, {where}{ahead}"
