"""Packed factors: which factors of contractions a kernel stores first, in the layout and type that matrix units read; and which
factors of other sums of products it stores in order (`tilec/plan/ordered_factors.py`)."""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, union-attr"

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import TYPE_CHECKING

from tilec.analysis import parts
from tilec.analysis.access import access_of
from tilec.analysis.graph import Graph, Node, dims_of
from tilec.analysis.multiplicands import multiplicand_of, scales_of
from tilec.core import mlir
from tilec.core.fitted import WarpgroupTimes
from tilec.core.hardware import LINE, RANK, WIDE
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost import contraction
from tilec.cost.block_tile import unit_type
from tilec.cost.model import round_up
from tilec.kernels.matrix import BYTES, ELEMENTS
from tilec.passes.tensor.pack import factor, pack, zeros_behind
from tilec.plan.chain import is_contraction_chain
from tilec.plan.groups import Group, Remark
from tilec.plan.model import Pack
from tilec.plan.ordered_factors import GAIN, choose_ordered, elements, read_by, time_to_store

if TYPE_CHECKING:
    from tilec.plan.cuda.contraction import Tiles

UNFOLDED = 2  # times as many elements as are read: beyond, a window would be stored once for each place it covers


def choose_packs(groups: list[Group], graph: Graph, target: Target) -> tuple[list[Pack], list[Remark]]:
    """Those that make a contraction faster by more than they take."""
    packs: list[Pack] = []
    remarks: list[Remark] = []
    for g in groups:
        contractions = [n for n in g.nodes if n.contraction is not None]
        if not contractions and target.kind == "cuda":
            ordered, reasons = choose_ordered(g, graph, target)
            packs, remarks = packs + ordered, remarks + reasons
        if len(contractions) != 1 or target.kind != "cuda" or not target.has("tma") or 0 in contractions[0].extents:
            continue
        if is_contraction_chain(g.nodes):
            continue
        (node,) = contractions
        known, names = graph.once("packs", g.nodes, partial(_packs, node, g, graph, target)), [n.name for n in g.nodes]
        found = known.result
        if isinstance(found, str):
            remarks.append(Remark("refused", f"packing factors of {node.name}", known.reason(found, names), node.line))
        elif found:
            own = [replace(p, name=node.name) for p in found[0]]
            packs += own
            remarks.append(Remark("packed", ", ".join(p.stored for p in own), known.reason(found[1], names), node.line))
    return packs, remarks


def _packs(node: Node, g: Group, graph: Graph, target: Target) -> tuple[list[Pack], str] | str | None:
    from tilec.plan.cuda.contraction import tiles_by, tiles_of

    kind = multiplicand_of(node, target)
    if "wgmma" not in target.instructions(unit_type(kind)) or _has_checks(node):
        return None
    now = tiles_by(kind, node, g, graph, target)
    if not (ways := _ways(node, kind, now, g, graph)):
        return None
    depth = LINE // BYTES[kind]
    steps = prod(-(-g.space.extents[d] // n) for d, n in now.roles.boxes(depth).items())
    problem = replace(now.problem, staged=(0, 0), overhang=steps / -(-now.problem.k // depth))
    tiles = contraction.choose(target, problem, ["wgmma"])
    best = next((t for t in tiles if t.tile.cluster == (1, 1)), None)
    if best is None:
        return None
    width = BYTES[kind] * (parts.COUNT if kind == parts.KIND else 1)
    times = [best.prediction.time_us + sum(time_to_store(node, p, width, target) for p in packs) for packs in ways]
    after, packs = min(zip(times, ways), key=lambda way: (any(_unfolds(node, p) for p in way[1]), way[0]))
    choices = (now if now.choices else tiles_of(node, g, graph, target)).choices
    before = choices[0].prediction.time_us if choices else inf
    stored = " and ".join(p.stored for p in packs)
    as_they_are = f"{duration(before)} unpacked" if before < inf else "no tile fits the factors unpacked"
    if (target.fit(WarpgroupTimes).parts if kind == parts.KIND else GAIN) * after > before:
        return f"{as_they_are}, {duration(after)} with {stored} packed first"
    for p in packs:
        if _unfolds(node, p):
            return f"{p.stored} would have more than {UNFOLDED} times as many elements as its sources"
    return packs, f"{as_they_are}, {duration(after)} with copies that TMA can load"


def _ways(node: Node, kind: str, now: Tiles, g: Group, graph: Graph) -> list[list[Pack]]:
    """Of packing the factors that TMA does not copy: over their dimensions, or, where boxes hang over lines of k, as tensors in
    aligned rows."""
    c, size = node.contraction, BYTES[kind]
    factors = [now.operand(f) for f in (c.left, c.right)]
    wanted = [s for s, f in enumerate(factors) if f.copy != "tma"]
    if not wanted:
        return []
    own = {kernel_dim: d for d, kernel_dim in enumerate(g.space.dims[node])}
    inner = tuple(own[d] for d in now.roles.inner)  # in the order in which most factors are copied
    k = (*(d for d in c.k if d not in inner), *inner)
    found, whole = [], _boxes(node, k, LINE // size)
    if not whole and kind != parts.KIND and all(factors[s].alignable for s in wanted):
        found.append([Pack(node.name, s, (), kind) for s in wanted])
    majors = [size != 2 or bool(f.major) for f in factors]
    packs = [Pack(node.name, s, _dims(node, s, majors[s], k), kind) for s in wanted]
    if any(sum(node.extents[d] > 1 for d in p.dims) > RANK for p in packs) or (scales_of(node) and not whole):
        return found  # steps number k of sums that are scaled
    if any(node.extents[p.dims[-1]] % (WIDE // size) for p in packs):
        if kind == parts.KIND or node.extracts:
            return found
        packs = _padded(node, kind, majors, packs, k)
    return found if any(_lies_so(node, p, graph) for p in packs) else [*found, packs]


def _lies_so(node: Node, p: Pack, graph: Graph) -> bool:
    """Whether a factor lies in memory as it would be stored: TMA would not copy that either."""
    found = access_of(node.op, factor(node.op, p.side, p.kind))
    if found is None or found.operand is None or str(found.element) != ELEMENTS.get(p.kind, p.kind):
        return False
    if p.kind in ("tf32", parts.KIND) or ((made := graph.producer.get(found.tensor)) is not None and made.inlined):
        return False
    now = mlir.map_dims(mlir.maps_of(node.op)[found.operand])
    return not p.extents and [d for d in now if node.extents[d] > 1] == [d for d in p.dims if node.extents[d] > 1]


def _unfolds(node: Node, p: Pack) -> bool:
    """Whether it would have too many elements for what it is made of."""
    sources = sum(map(elements, read_by(node, p.side, p.kind)))
    return bool(p.dims) and prod(node.extents[d] for d in p.dims) > UNFOLDED * sources


def _has_checks(node: Node) -> bool:
    """Whether the operation has run-time checks, which its own kernel carries out, beside what it multiplies."""
    return any(o.name == "cf.assert" for o in mlir.traverse(node.op))


def _padded(node: Node, kind: str, majors: list[bool], packs: list[Pack], inner: tuple[int, ...]) -> list[Pack]:
    """With zeros at the end of lines, since TMA wants them at multiples of 16 bytes. Lines of k are as long in both factors: the
    further products are 0."""
    k, wide, step = inner[-1], WIDE // BYTES[kind], LINE // BYTES[kind]
    longer = any(p.dims[-1] == k and node.extents[k] % wide for p in packs)
    found = []
    for side in (0, 1) if longer else [p.side for p in packs]:
        dims = _dims(node, side, majors[side], inner)
        padded = {d for d in {k, dims[-1]} if (longer if d == k else node.extents[d] % wide)}
        extents = tuple(round_up(node.extents[d], step) if d in padded else node.extents[d] for d in dims)
        found.append(Pack(node.name, side, dims, kind, extents if padded else ()))
    return found


def _boxes(node: Node, k: tuple[int, ...], depth: int) -> bool:
    """Whether tiles of k, its dimensions in this order, are boxes of a tensor."""
    wide = [node.extents[d] for d in k if node.extents[d] > 1]
    return len(wide) <= 1 or node.extents[k[-1]] % depth == 0


def _dims(node: Node, side: int, major: bool, k: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of the packed factor: the batch, then k in the order in which it is walked and the factor's own dimensions,
    with the currently contiguous one last (matrix units read both orders of 16-bit elements). Others have k last in any case."""
    c = node.contraction
    value, own = (c.left, c.m) if side == 0 else (c.right, c.n)
    batch = tuple(d for d in c.batch if d in dims_of(value, node))
    return (*batch, *own, *k) if major else (*batch, *k, *own)


def apply_packs(function: ir.Operation, packs: list[Pack]) -> None:
    """Carries the choices out in a function, as `fuse` will."""
    by_name = {mlir.get_string(op, "tilec.name"): op for op in mlir.traverse(function) if mlir.is_generic(op)}
    for p in packs:
        stored, by_name[p.name] = pack(by_name[p.name], p.side, p.dims, p.kind, p.extents)
        stored.attributes["tilec.stored"] = mlir.integer(0 if p.dims else zeros_behind(stored))
