"""Rows on CUDA: how the threads of a block, or of a cluster of blocks, share them, and where they are kept.

`cost_rows` enumerates and predicts; this file says what a kernel's rows are, and what its operations rule out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from tilec import cost_rows
from tilec.cost import Choice, Work, pick
from tilec.graph import Node
from tilec.mlir import ir
from tilec.plan_cuda_online import online_reductions
from tilec.plan_cuda_view import widest
from tilec.quantities import count

if TYPE_CHECKING:
    from tilec.plan_cuda_view import View

SHOWN = 4  # alternatives, of those that differ in kind


@dataclass(frozen=True)
class RowPlan:
    """The choice for one kernel, with what it does and what else there was. `alone`: the rows are all that a block walks, so
    that the work is the kernel's. `shifts`: they could be read by vectors that begin before them; `beside`: be in SRAM and
    registers both."""

    tile: cost_rows.RowTile
    work: Work
    alternatives: tuple[tuple[str, float], ...]
    alone: bool = True
    shifts: bool = False
    beside: bool = False


def choose_rows(view: View, lane: int, vector: int) -> RowPlan:
    problem = row_problem(view, lane, vector)
    wide = shifted_vector(view, lane, vector)
    problems = [problem, *([replace(problem, vector=wide, shifted=True)] if wide else [])]
    choices = cost_rows.choose(view.target, *problems)
    best = pick(choices, view.pick)
    problem = problems[best.shifted]
    return RowPlan(
        best,
        cost_rows.row_work(view.target, problem, best),
        _alternatives(choices),
        shifts=bool(wide),
        beside=any(c.tile.beside for c in choices),
    )


def shifted_vector(view: View, lane: int, vector: int) -> int:
    """Elements of the vectors that rows can be read by wherever they begin; 0 where that is no wider than `vector`, or rows
    cannot be."""
    along = [a for a in view.accesses if len(a.dims) > 1 and a.dims[-1] == lane]
    rows = {d for d in view.kernel.grid if view.extents[d] > 1}
    nodes = [view.group.space.dims[n] for n in view.group.nodes if lane in view.group.space.dims[n]]
    if not along or refuse_streams(view, lane) or not all(rows <= set(dims) for dims in nodes):
        return 0
    wide = widest(along)
    return wide if wide > vector and view.extents[lane] >= 2 * wide else 0


def alone(view: View, lane: int) -> bool:
    """Whether the rows are all that a block walks."""
    return not any(d != lane and view.extents[d] > 1 for d in view.reduced)


def row_tiles(view: View, lane: int, vector: int) -> list[cost_rows.RowTile]:
    """The ways to deal out rows that are part of what a block walks, the best first as far as the rows go."""
    return [c.tile for c in cost_rows.choose(view.target, row_problem(view, lane, vector))]


def row_problem(view: View, lane: int, vector: int) -> cost_rows.Rows:
    """What the model is asked about a kernel."""
    rows = max(1, prod(view.extents[d] for d in view.kernel.grid))
    along = [a for a in view.accesses if lane in a.dims and set(a.dims) & set(view.kernel.grid)] or [
        a for a in view.accesses if lane in a.dims
    ]
    reads, writes = [a for a in along if not a.written], [a for a in along if a.written]
    common = [a for a in view.accesses if lane in a.dims and a not in along and not a.written]
    nodes = [n for n in view.group.nodes if lane in view.group.space.dims[n]]
    flops = {"fma.f32": sum(n.flops for n in nodes), "special": sum(n.special for n in nodes)}
    size = max((a.element for a in reads), default=4)
    sweeps = 1 + max(view.kernel.sweeps[n.name] for n in nodes)
    live, made = _live(view, lane, nodes)
    simple = not refuse_streams(view, lane)
    joint = {view.kernel.sweeps[n.name] for n in online_reductions(view)}
    joined = max(joint) - min(joint) if joint else 0
    return cost_rows.Rows(
        rows, max(1, view.extents[lane]), size, max(1, len(reads)), len(writes), live, made, sweeps, joined, flops,
        len(common), vector, simple and not refuse_cluster(view, lane), simple,
    )  # fmt: skip


def refuse_streams(view: View, lane: int) -> str | None:
    """Why the rows of a kernel cannot pass one after another through blocks that stay."""
    others = [d for d in view.reduced if d != lane and view.extents[d] > 1]
    if others:
        return "several dimensions are walked inside a block"
    if lane in view.scanned:
        return "a scan goes along the rows"
    if not any(
        lane in view.group.space.dims[n] and view.group.space.dims[n].index(lane) in n.reduced for n in view.group.nodes
    ):
        return "nothing is reduced along the rows"
    return None


def refuse_cluster(view: View, lane: int) -> str | None:
    """Why blocks cannot share a row of this kernel."""
    for node in view.group.nodes:
        dims = view.group.space.dims[node]
        if lane not in dims or dims.index(lane) not in node.reduced:
            continue
        for result in node.results:
            element = ir.ShapedType(result.value.type).element_type
            if not (isinstance(element, (ir.F32Type, ir.F64Type)) or str(element) in ("i32", "i64", "index")):
                return f"the state of {node.name} is of {element}; blocks exchange 32 and 64 bits"
    return None


def ruled_out_rows(view: View, lane: int) -> dict[str, str]:
    """The options that the operations of a kernel rule out, with the reason."""
    streams = refuse_streams(view, lane)
    found = {"prefetched_rows": streams, "residency": streams, "cluster": streams or refuse_cluster(view, lane)}
    return {option: why for option, why in found.items() if why is not None}


def _live(view: View, lane: int, nodes: list[Node]) -> tuple[int, int]:
    """32-bit values an element that are kept from sweep to sweep: inputs that are read again and intermediates; how
    many of the latter."""
    sweep = {n: view.kernel.sweeps[n.name] for n in nodes}
    spans: dict[ir.Value, list[int]] = {}
    for n in nodes:
        places = view.group.space.dims[n]
        for read in n.reads:
            if lane in (places[d] for d in read.dims):
                spans.setdefault(read.value, []).append(sweep[n])
        for result in n.results:
            if lane in (places[d] for d in result.dims):
                spans.setdefault(result.value, []).append(sweep[n])
    last = max(sweep.values())
    made = {r.value for n in nodes for r in n.results}

    def most(values: Any) -> int:
        kept = [(min(spans[v]), max(spans[v])) for v in values]
        return max(sum(a <= s < b for a, b in kept) for s in range(last + 1))

    return max(1, most(spans)), most(made & spans.keys())


def _alternatives(choices: list[Choice[cost_rows.RowTile]]) -> tuple[tuple[str, float], ...]:
    """The best of each kind, the chosen one first."""
    kinds: dict[tuple, tuple[str, float]] = {}
    for choice in choices:
        tile = choice.tile
        kinds.setdefault((tile.cluster, tile.stages > 0, tile.keep), (describe(tile), choice.prediction.time_us))
    return tuple(list(kinds.values())[:SHOWN])


def describe(tile: cost_rows.RowTile) -> str:
    """One way to deal rows out, in words."""
    where = {"registers": "in registers", "sram": "in SRAM"}.get(tile.keep, "read by every sweep")
    where += f" and, {tile.beside * tile.vectors} accesses of a thread, in registers" if tile.beside else ""
    where += ", two elements in one" if tile.packed else ""
    where += ", shifted" if tile.shifted else ""
    shared = f" in each of {tile.cluster} blocks" if tile.cluster > 1 else ""
    ahead = f", {tile.stages} ahead in SRAM" if tile.stages else ""
    beside = f", {tile.rows_per_block} rows a block" if tile.rows_per_block > 1 else ""
    return f"{tile.threads} threads{shared}, {count(tile.vector, 'element')} an access{beside}, rows {where}{ahead}"
