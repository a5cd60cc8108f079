"""Packed factors: which factors of contractions a kernel stores first, in the layout and type that matrix units read; and which
factors of other sums of products it stores in order (`tilec/plan/ordered_factors.py`)."""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, union-attr"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import TYPE_CHECKING

from tilec.analysis import bf16_split
from tilec.analysis.access import access_of
from tilec.analysis.graph import Graph, Node, dims_of
from tilec.analysis.multiplicands import multiplicand_of, scales_of
from tilec.core import mlir
from tilec.core.extents import loops_of
from tilec.core.fitted import WarpgroupTimes
from tilec.core.hardware import BOX, LINE, RANK, WIDE
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost import contraction
from tilec.cost.block_tile import unit_type
from tilec.cost.model import round_up
from tilec.kernels.matrix import BYTES, ELEMENTS
from tilec.passes.tensor.pack import SIDES, factor, pack, read_from, zeros_behind
from tilec.plan import ordered_factors
from tilec.plan.chain import is_contraction_chain
from tilec.plan.groups import Group, Remark
from tilec.plan.ordered_factors import GAIN, elements, read_by, stored_elements, time_to_store
from tilec.plan.rewrite import Found
from tilec.plan.steps import Applied, Pack, Step

if TYPE_CHECKING:
    from tilec.plan.cuda.contraction import Tiles
    from tilec.plan.cuda.operands import FactorAccess, Operand, Roles

UNFOLDED = 2  # times as many elements as are read: beyond, a window would be stored once for each place it covers


@dataclass(frozen=True)
class Offer:
    """Factors that can be stored, the times that tell whether this pays, and why it does not. `kernel_us` is without the times to
    store them (`stored_us`). `unfolds`: one would have too many elements."""

    packs: tuple[Pack, ...]
    reason: str
    refused: str
    before_us: float
    kernel_us: float
    stored_us: tuple[float, ...]
    unfolds: bool


def find(groups: list[Group], graph: Graph, target: Target) -> Found:
    """The factors that make kernels faster by more than storing them takes."""
    steps: list[Applied] = []
    remarks: list[Remark] = []
    products = [_product(g, target) for g in groups]
    shared = _shared([(n, _known(n, g, graph, target)) for g, n in zip(groups, products) if n is not None])
    for g, node in zip(groups, products):
        if node is None:
            taken = ordered_factors.offered(g, graph, target) if _may_have_order(g, target) else ()
            taken = taken if taken and ordered_factors.ordered(g, graph, target).pays else ()
        else:
            taken, refused = _offered(node, g, graph, target)
            if node in shared:
                taken = tuple(replace(a, reason=shared[node]) for a in taken)
            elif refused:
                remarks.append(Remark("refused", f"packing factors of {node.name}", refused, node.line))
                continue
        steps += taken
        if taken:
            stored = ", ".join(a.step.stored for a in taken if isinstance(a.step, Pack))
            remarks.append(Remark("packed", stored, taken[0].reason, taken[0].line))
    return Found(tuple(steps), tuple(remarks))


def _shared(offers: list[tuple[Node, Offer | None]]) -> dict[Node, str]:
    """The products of which one tensor, stored once in another order, makes all faster by more than that takes; with the reason."""
    readers: dict[object, list[tuple[Node, Offer, float]]] = {}
    for node, offer in offers:
        for p, us in zip(offer.packs, offer.stored_us) if offer is not None and not offer.unfolds else ():
            own = offer.kernel_us + sum(offer.stored_us) - us
            if p.order and own < offer.before_us:
                key = read_from(node.op, p.number, p.kind), p.order, p.kind
                readers.setdefault(key, []).append((node, offer, us))
    found: dict[Node, str] = {}
    for reads in readers.values():
        before = sum(offer.before_us for _, offer, _ in reads)
        after = sum(offer.kernel_us + sum(offer.stored_us) - us for _, offer, us in reads) + max(us for *_, us in reads)
        if len(reads) > 1 and GAIN * after <= before:
            reason = f"{duration(before)} unpacked, {duration(after)} with a copy that {len(reads)} kernels read"
            found |= {node: reason for node, offer, _ in reads if offer.refused}
    return found


def named(groups: list[Group], graph: Graph, target: Target) -> tuple[Applied, ...]:
    """The factors that can be stored, whether that pays or not."""
    found: list[Applied] = []
    for g in groups:
        if (node := _product(g, target)) is not None:
            found += _offered(node, g, graph, target)[0]
        elif _may_have_order(g, target):
            found += ordered_factors.offered(g, graph, target)
    return tuple(found)


def _may_have_order(g: Group, target: Target) -> bool:
    return target.kind == "cuda" and all(n.contraction is None for n in g.nodes)


def _product(g: Group, target: Target) -> Node | None:
    """The only contraction of a kernel whose factors TMA may copy."""
    contractions = [n for n in g.nodes if n.contraction is not None]
    if len(contractions) != 1 or target.kind != "cuda" or not target.has("tma") or 0 in contractions[0].extents:
        return None
    return None if is_contraction_chain(g.nodes) else contractions[0]


def _offered(node: Node, g: Group, graph: Graph, target: Target) -> tuple[tuple[Applied, ...], str]:
    """The factors of a product that can be stored, and why this does not pay."""
    if (offer := _known(node, g, graph, target)) is None:
        return (), ""
    packs = [replace(p, operation=node.name) for p in offer.packs]
    return tuple(Applied("pack", p, offer.reason, node.line) for p in packs), offer.refused


def packed_us(node: Node, g: Group, graph: Graph, target: Target) -> float:
    """The time of a product's kernel with its factors stored first, that included; inf where they are not."""
    offer = _known(node, g, graph, target) if graph.may_pack and _product(g, target) is node else None
    return inf if offer is None or offer.refused else offer.kernel_us + sum(offer.stored_us)


def _known(node: Node, g: Group, graph: Graph, target: Target) -> Offer | None:
    """The offer of this kernel, or that of an isomorphic one with its own names in the reasons."""
    known, names = graph.memoise("packs", g.nodes, partial(_offer, node, g, graph, target)), [n.name for n in g.nodes]
    if (offer := known.result) is None:
        return None
    return replace(offer, reason=known.reason(offer.reason, names), refused=known.reason(offer.refused, names))


def _offer(node: Node, g: Group, graph: Graph, target: Target) -> Offer | None:
    from tilec.plan.cuda.contraction import tiles_by, tiles_of

    kind = multiplicand_of(node, target)
    if "wgmma" not in target.instructions(unit_type(kind)) or node.has_checks:
        return None
    now = tiles_by(kind, node, g, graph, target)
    if all(f.copy == "tma" for f in now.operands.values()):
        return None
    width = BYTES[kind] * (bf16_split.COUNT if kind == bf16_split.KIND else 1)
    ways = [*_as_factors(node, kind, now, g, graph, target), *_in_order(node, kind, now, g, graph, target)]
    stored_us = [tuple(time_to_store(node, p, width, target) for p in packs) for _, packs in ways]
    times = [us + sum(own) for (us, _), own in zip(ways, stored_us)]
    if not ways:
        return None
    unfolds, after, number = min((any(_unfolds(node, p) for p in packs), times[n], n) for n, (_, packs) in enumerate(ways))
    kernel_us, packs = ways[number]
    choices = (now if now.choices else tiles_of(node, g, graph, target)).choices
    before = choices[0].prediction.time_us if choices else inf
    as_they_are = f"{duration(before)} unpacked" if before < inf else "no tile fits the factors unpacked"
    stored, refused = " and ".join(p.stored for p in packs), ""
    if (target.fit(WarpgroupTimes).parts if kind == bf16_split.KIND else GAIN) * after > before:
        refused = f"{as_they_are}, {duration(after)} with {stored} packed first"
    elif large := next((p.stored for p in packs if _unfolds(node, p)), ""):
        refused = f"{large} would have more than {UNFOLDED} times as many elements as its sources"
    reason = f"{as_they_are}, {duration(after)} with copies that TMA can load"
    return Offer(tuple(packs), reason, refused, before, kernel_us, stored_us[number], unfolds)


Way = tuple[float, list[Pack]]
"""The microseconds of a product's kernel, without storing them, and the factors that are stored for it."""


def _as_factors(node: Node, kind: str, now: Tiles, g: Group, graph: Graph, target: Target) -> list[Way]:
    """The ways to store the factors that TMA does not copy, with the order of k as it is."""
    from tilec.plan.cuda.contraction import overhang

    if not (ways := _ways(node, kind, now, g, graph)):
        return []
    problem = replace(now.problem, staged=(0, 0), sectors=(1, 1), overhang=overhang(kind, now.roles, now.problem.k, g))
    tiles = contraction.choose(target, problem, ["wgmma"])
    best = next((t for t in tiles if t.tile.cluster == (1, 1)), None)
    return [(best.prediction.time_us, packs) for packs in ways] if best is not None else []


def _in_order(node: Node, kind: str, now: Tiles, g: Group, graph: Graph, target: Target) -> list[Way]:
    """The ways to store tensors that factors are elements of, at computed subscripts, with another dimension last: one that a
    dimension of k moves, and no dimension of the result. TMA then copies boxes along it, where windows move the others, and
    cp.async pieces. Of few channels zeros make a piece, in both factors."""
    from tilec.plan.cuda.contraction import overhang, ranked_tiles, with_operands

    if not node.extracts or scales_of(node):
        return []
    found: list[Way] = []
    for line in now.roles.inner:
        roles = replace(now.roles, inner=(*(d for d in now.roles.inner if d != line), line), inner_box=())
        extent = g.space.extents[line]
        whole = round_up(extent, WIDE // BYTES[kind])
        longer = Group(g.nodes, replace(g.space, extents=g.space.extents | {line: whole}))
        stored = {s: _stored_in_order(node, s, roles, kind, longer, graph, target) for s in roles.factors}
        sides = [s for s in stored.values() if s is not None]
        if len(sides) < 2 or not any(p.order for _, packs in sides for p in packs):
            continue
        operands = dict(zip(stored, (f for f, _ in sides)))
        problem = replace(now.problem, k=now.problem.k // extent * whole)
        problem = replace(problem, overhang=overhang(kind, roles, problem.k, longer))
        problem = with_operands(problem, kind, operands, target)
        tiles = ranked_tiles(kind, roles, operands, problem, longer, graph, target)
        able = ("wgmma", "mma.sync") if all(f.pieces for f, _ in sides) else ("wgmma",)
        best = next((c for c in tiles.choices if c.tile.instruction in able), None)
        if best is not None:
            found.append((best.prediction.time_us, [p for _, packs in sides for p in packs]))
    return found


def _stored_in_order(
    node: Node, role: str, roles: Roles, kind: str, g: Group, graph: Graph, target: Target
) -> tuple[Operand, list[Pack]] | None:
    """How a factor is copied in lines along the last dimension of k, and what is stored for that; None where it cannot be. That
    dimension may be longer in `g` than in the program: zeros follow."""
    from tilec.plan.cuda.operands import Operand, factor_access, in_order, operand_of

    value, own, line, size = roles.factors[role], roles.order(role), roles.inner[-1], BYTES[kind]
    numbers = {kernel_dim: d for d, kernel_dim in enumerate(g.space.dims[node])}
    whole = g.space.extents[line]
    padded = whole > node.extents[numbers[line]]
    now = operand_of(node, value, role, roles, kind, g, graph, target)
    if now.copy == "tma" and now.major and not padded:
        return now, []
    side = 0 if value == node.contraction.left else 1
    core = factor(node.op, side, kind)
    found = factor_access(node, core, g)
    made = graph.producer.get(found.access.tensor) if found else None
    if found is not None and found.access.exact and not (made is not None and made.inlined) and _is_stored(found, kind):
        longer = replace(found, extents={**found.extents, line: whole})
        stored, order = in_order(longer, own, line, size)
        moved = [p for p in order if found.access.shape[p] > 1]
        if moved == sorted(moved) and not stored.zeros and str(found.access.element) == ELEMENTS.get(kind, kind):
            return now, []  # it lies so: a copy of it would be no kernel
        boxed = stored.is_box((*own, line), {line: LINE // size}) and stored.offset(line) % (WIDE // size) == 0
        pieces = "async" if stored.is_pieces(line, None, WIDE // size) else ""
        ends = stored.shape[-1] - stored.zeros == node.extents[numbers[line]]  # else other elements follow, not zeros
        if (boxed or pieces) and (not padded or (ends and found.access.operand is None)):
            longest = BOX // max((at.get(d, 1) for at in stored.factors for d in own), default=1)
            unaligned = stored.shape[-1] * size % LINE != 0
            loaded = Operand("tma" if boxed else pieces, 1, pieces=pieces, longest=longest, unaligned=unaligned, windows=True)
            return loaded, [Pack(node.name, SIDES[side], (), kind, (), order)]
    p = Pack(node.name, SIDES[side], _dims(node, side, True, tuple(numbers[d] for d in roles.inner)), kind)
    rank = sum(node.extents[d] > 1 for d in p.dims)
    if whole % (WIDE // size) or rank > RANK or _unfolds(node, p) or (padded and kind == bf16_split.KIND):
        return None
    if padded and any(o.name == "tensor.extract" for o in mlir.slice_of(mlir.body_of(node.op), value)):
        return None  # what is read at subscripts may go on behind the line
    if padded:
        p = replace(p, extents=tuple(whole if d == numbers[line] else node.extents[d] for d in p.dims))
    if _lies_so(node, p, graph):
        return now, []
    return Operand("tma", 1, pieces="async", unaligned=whole * size % LINE != 0), [p]


def _is_stored(found: FactorAccess, kind: str) -> bool:
    """Whether the tensor that a factor is an element of may be stored as `kind`: its elements are of that type, or are rounded to
    it. One of narrower elements would be read as they are."""
    element = found.access.element
    rounded = isinstance(element, ir.FloatType) and found.bytes > BYTES[kind]
    return bool(found.shape) and (rounded or str(element) == ELEMENTS.get(kind, kind))


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
    if not whole and kind != bf16_split.KIND and all(factors[s].alignable for s in wanted):
        found.append([Pack(node.name, SIDES[s], (), kind) for s in wanted])
    majors = [size != 2 or bool(f.major) for f in factors]
    packs = [Pack(node.name, SIDES[s], _dims(node, s, majors[s], k), kind) for s in wanted]
    if any(sum(node.extents[d] > 1 for d in p.dims) > RANK for p in packs) or (scales_of(node) and not whole):
        return found  # steps number k of sums that are scaled
    if any(node.extents[p.dims[-1]] % (WIDE // size) for p in packs):
        if node.extracts:
            return found
        packs = [_aligned(node, p) for p in packs] if kind == bf16_split.KIND else _padded(node, kind, majors, packs, k)
    return found if any(_lies_so(node, p, graph) for p in packs) else [*found, packs]


def _lies_so(node: Node, p: Pack, graph: Graph) -> bool:
    """Whether a factor lies in memory as it would be stored: TMA would not copy that either."""
    found = access_of(node.op, factor(node.op, p.number, p.kind))
    if found is None or found.operand is None or str(found.element) != ELEMENTS.get(p.kind, p.kind):
        return False
    if p.kind in ("tf32", bf16_split.KIND) or ((made := graph.producer.get(found.tensor)) is not None and made.inlined):
        return False
    now = mlir.map_dims(mlir.maps_of(node.op)[found.operand])
    return not p.extents and [d for d in now if node.extents[d] > 1] == [d for d in p.dims if node.extents[d] > 1]


def _unfolds(node: Node, p: Pack) -> bool:
    """Whether it would have too many elements for what it is made of. Zeros up to a whole piece of 16 bytes do not count."""
    sources, wide = sum(map(elements, read_by(node, p.number, p.kind))), WIDE // BYTES[p.kind]
    whole = prod(round_up(node.extents[d], wide) if n > node.extents[d] else n for d, n in zip(p.dims, p.extents))
    points = prod(node.extents[d] for d in p.dims) * (stored_elements(node, p) // whole if p.extents else 1)
    return bool(p.dims) and points > UNFOLDED * sources


def _padded(node: Node, kind: str, majors: list[bool], packs: list[Pack], inner: tuple[int, ...]) -> list[Pack]:
    """With zeros at the end of lines, since TMA wants them at multiples of 16 bytes. Lines of k are as long in both factors: the
    further products are 0."""
    k, wide, step = inner[-1], WIDE // BYTES[kind], LINE // BYTES[kind]
    longer = any(p.dims[-1] == k and node.extents[k] % wide for p in packs)
    found = []
    for side in (0, 1) if longer else [p.number for p in packs]:
        dims = _dims(node, side, majors[side], inner)
        padded = {d for d in {k, dims[-1]} if (longer if d == k else node.extents[d] % wide)}
        extents = tuple(round_up(node.extents[d], step) if d in padded else node.extents[d] for d in dims)
        found.append(Pack(node.name, SIDES[side], dims, kind, extents if padded else ()))
    return found


def _aligned(node: Node, p: Pack) -> Pack:
    """With zeros at the end of lines that are read no further than they go without."""
    *outer, last = (node.extents[d] for d in p.dims)
    return replace(p, extents=(*outer, round_up(last, WIDE // BYTES[p.kind]))) if last % (WIDE // BYTES[p.kind]) else p


def _boxes(node: Node, k: tuple[int, ...], depth: int) -> bool:
    """Whether tiles of k, its dimensions in this order, are boxes of a tensor."""
    wide = [node.extents[d] for d in k if node.extents[d] > 1]
    return len(wide) <= 1 or node.extents[k[-1]] % depth == 0


def _dims(node: Node, side: int, major: bool, k: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of the packed factor: the batch, then k in the order in which the loop goes and the factor's own dimensions,
    with the currently contiguous one last (matrix units read both orders of 16-bit elements). Others have k last in any case."""
    c = node.contraction
    value, own = (c.left, c.m) if side == 0 else (c.right, c.n)
    batch = tuple(d for d in c.batch if d in dims_of(value, node))
    return (*batch, *own, *k) if major else (*batch, *k, *own)


def lacking(function: ir.Operation, packs: Sequence[Step]) -> str:
    """What is missing beside packs: lines of k are as long in both factors. The further products are 0 only where both are."""
    by_name = {mlir.get_string(op, "tilec.name"): op for op in mlir.traverse(function) if mlir.is_generic(op)}
    given = [p for p in packs if isinstance(p, Pack) and p.kind != bf16_split.KIND]
    for p in given:
        extents, kinds = mlir.extents_of(by_name[p.operation]), mlir.iterators_of(by_name[p.operation])
        longer = {d: n for d, n in zip(p.dims, p.extents) if n > extents[d] and kinds[d] == "reduction"}
        others = [q for q in given if q.operation == p.operation and q.side != p.side]
        longs = [dict(zip(q.dims, q.extents)) for q in others if not q.order]  # a tensor in order has zeros behind its lines
        if any(long.get(d) != n for d, n in longer.items() for long in longs or [{}] * (not others)):
            return f"`{p.stored}` has longer lines than `{p.operation}` multiplies, and the other factor has not"
    return ""


def apply_packs(function: ir.Operation, packs: Sequence[Step]) -> None:
    """Stores factors. A tensor that several products read in one order is stored once, before the first of them."""
    by_name = {mlir.get_string(op, "tilec.name"): op for op in mlir.traverse(function) if mlir.is_generic(op)}
    position, known = {name: n for n, name in enumerate(by_name)}, dict[object, ir.Operation]()
    for p in sorted(packs, key=lambda p: position[p.operation]):
        assert isinstance(p, Pack)
        op = by_name[p.operation]
        key = (read_from(op, p.number, p.kind), p.order, p.kind, p.evens_first) if p.order else None
        extents = loops_of(op)
        stored, by_name[p.operation] = pack(op, p.number, p.dims, p.kind, p.extents, p.order, known.get(key), p.evens_first)
        in_parts = p.kind == bf16_split.KIND and p.extents
        zeros = p.extents[-1] - extents[p.dims[-1]] if in_parts else 0 if p.dims else zeros_behind(stored, p.order)
        stored.attributes["tilec.stored"] = mlir.integer(zeros if isinstance(zeros, int) else 0)  # an instance tells their number
        if key is not None:
            known[key] = stored
