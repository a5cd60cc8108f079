"""Packed factors: which factors of contractions a kernel stores first, in the layout and type that matrix units read; and which
factors of other sums of products it stores with the dimension last along which neighbouring threads lie."""

# mypy: no-strict-optional
# mypy: disable-error-code="arg-type, union-attr"

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, prod

from tilec.analysis import parts
from tilec.analysis.directions import has_windows
from tilec.analysis.graph import Graph, Node, dims_of
from tilec.analysis.multiplicands import multiplicand_of
from tilec.analysis.products import factors_of, stored
from tilec.analysis.traffic import bytes_of
from tilec.core import mlir
from tilec.core.fitted import WarpgroupTimes
from tilec.core.hardware import LINE, RANK, WIDE
from tilec.core.mlir import ir
from tilec.core.quantities import duration
from tilec.core.target import Target
from tilec.cost import contraction
from tilec.cost.contraction import unit_type
from tilec.cost.model import Work, predict, round_up
from tilec.kernels.matrix import BYTES
from tilec.passes.tensor.pack import factor, pack
from tilec.plan.chain import is_contraction_chain
from tilec.plan.groups import Group, Remark
from tilec.plan.model import Pack
from tilec.plan.unchosen import unchosen

GAIN = 1.05  # what storing must promise
FEW = 16  # reads of each element, at least, of a factor that is stored in another order
UNFOLDED = 2  # times as many elements as are read: beyond, a window would be stored once for each place it covers


def choose_packs(groups: list[Group], graph: Graph, target: Target) -> tuple[list[Pack], list[Remark]]:
    """Those that make a contraction faster by more than they take."""
    packs: list[Pack] = []
    remarks: list[Remark] = []
    for g in groups:
        contractions = [n for n in g.nodes if n.contraction is not None]
        if not contractions and target.kind == "cuda":
            ordered, reasons = _choose_ordered(g, graph, target)
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


def _choose_ordered(g: Group, graph: Graph, target: Target) -> tuple[list[Pack], list[Remark]]:
    packs: list[Pack] = []
    remarks: list[Remark] = []
    for node in g.nodes:
        if node.vector_product is None or node.part or not has_windows(node):
            continue
        names = [n.name for n in g.nodes]
        known = graph.once(("ordered", names.index(node.name)), g.nodes, partial(_ordered, node, g, graph, target))
        if known.result is not None:
            found, reason = known.result
            packs += (own := [replace(p, name=node.name) for p in found])
            remarks.append(Remark("packed", ", ".join(p.stored for p in own), known.reason(reason, names), node.line))
    return packs, remarks


def _ordered(node: Node, g: Group, graph: Graph, target: Target) -> tuple[list[Pack], str] | None:
    """The factors in which neighbouring threads lie apart, where lines that they touch take longer than to store them in order."""
    from tilec.plan.cuda.choose import choose
    from tilec.plan.cuda.lines import line_bytes
    from tilec.plan.cuda.shared_memory import layout_of
    from tilec.plan.cuda.view import View, accesses

    kernel, _ = choose(unchosen(g, graph, "", target), g, graph, target)
    layout, own = layout_of(kernel), {kernel_dim: d for d, kernel_dim in enumerate(g.space.dims[node])}
    apart = line_bytes(View(kernel, g, graph, target, accesses(kernel, g, graph)), layout)
    lane = own.get(layout.lane)
    work, packs, stored_us = kernel.work, [], 0.0
    for side, value in enumerate(factors_of(node.op)):
        dims, kind = dims_of(value, node), str(stored(value).type)
        sources = {*read_by(node, side, kind)}
        if lane in dims and not sources.isdisjoint(apart) and prod(node.extents[d] for d in dims) * FEW < node.iterations:
            p = Pack(node.name, side, (*sorted(dims - {lane}), lane), kind)
            packs.append(p)
            stored_us += _time(node, p, ir.ShapedType(next(iter(sources)).type).element_type.width // 8, target)
            work = replace(work, shared_bytes=work.shared_bytes - sum(apart.get(v, 0.0) for v in sources))
    before, after = predict(kernel.work, target).time_us, predict(work, target).time_us + stored_us
    if not packs or before < GAIN * after:
        return None
    names = " and ".join(p.stored for p in packs)
    return packs, f"{duration(before)} where threads read apart, {duration(after)} with {names} stored in their order first"


def _packs(node: Node, g: Group, graph: Graph, target: Target) -> tuple[list[Pack], str] | str | None:
    from tilec.plan.cuda.contraction import tiles_by, tiles_of

    kind, c = multiplicand_of(node, target), node.contraction
    size = BYTES.get(kind, 0)
    if "wgmma" not in target.instructions(unit_type(kind)) or _has_checks(node):
        return None
    now = tiles_by(kind, node, g, graph, target)
    wanted = [s for s, f in enumerate((c.left, c.right)) if now.operand(f).copy != "tma"]
    own = {kernel_dim: d for d, kernel_dim in enumerate(g.space.dims[node])}
    inner = tuple(own[d] for d in now.roles.inner)  # in the order in which most factors are copied
    k = (*(d for d in c.k if d not in inner), *inner)
    align = not _boxes(node, k, LINE // size)
    if align and (kind == parts.KIND or not all(now.operand((c.left, c.right)[s]).alignable for s in wanted)):
        return None
    problem = replace(now.problem, staged=(0, 0))
    if align:
        steps = prod(-(-g.space.extents[d] // n) for d, n in now.roles.boxes(LINE // size).items())
        problem = replace(problem, overhang=steps / -(-problem.k // (LINE // size)))
    tiles = contraction.choose(target, problem, ["wgmma"])
    best = next((t for t in tiles if t.tile.cluster == (1, 1)), None)
    if best is None:
        return None
    majors = [size != 2 or bool(now.operand(f).major) for f in (c.left, c.right)]
    packs = [Pack(node.name, s, () if align else _dims(node, s, majors[s], k), kind) for s in wanted]
    if not packs or any(sum(node.extents[d] > 1 for d in p.dims) > RANK for p in packs):
        return None
    if not align and any(node.extents[p.dims[-1]] % (WIDE // size) for p in packs):
        if kind == parts.KIND or node.extracts:
            return None
        packs = _padded(node, kind, majors, packs, k)
    choices = (now if now.choices else tiles_of(node, g, graph, target)).choices
    before = choices[0].prediction.time_us if choices else inf
    after = best.prediction.time_us
    after += sum(_time(node, p, size * (parts.COUNT if kind == parts.KIND else 1), target) for p in packs)
    stored = " and ".join(p.stored for p in packs)
    as_they_are = f"{duration(before)} unpacked" if before < inf else "no tile fits the factors unpacked"
    if (target.fit(WarpgroupTimes).parts if kind == parts.KIND else GAIN) * after > before:
        return f"{as_they_are}, {duration(after)} with {stored} packed first"
    for p in packs:
        if p.dims and prod(node.extents[d] for d in p.dims) > UNFOLDED * sum(map(elements, read_by(node, p.side, p.kind))):
            return f"{p.stored} would have more than {UNFOLDED} times as many elements as its sources"
    return packs, f"{as_they_are}, {duration(after)} with copies that TMA can load"


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


def _time(node: Node, p: Pack, size: int, target: Target) -> float:
    """Everything read once, and the copy written."""
    values = read_by(node, p.side, p.kind)
    points = prod(node.extents[d] for d in p.dims) if p.dims else sum(map(elements, values))
    work = Work(
        dram_read=sum(map(bytes_of, values)), dram_write=points * size, flops={}, threads=128,
        blocks=max(1, points * size // (16 * 128)),
    )  # fmt: skip
    return predict(work, target).time_us


def elements(value: ir.Value) -> int:
    return prod(ir.ShapedType(value.type).shape)


def read_by(node: Node, side: int, kind: str) -> list[ir.Value]:
    """The tensors that a factor is computed from."""
    inside = mlir.slice_of(mlir.body_of(node.op), factor(node.op, side, kind))
    arguments = list(mlir.body_of(node.op).arguments)
    values = [factor(node.op, side, kind), *(v for o in inside for v in mlir.operands_of(o))]
    inputs = mlir.inputs_of(node.op)
    found = [inputs[arguments.index(v)] for v in values if v in arguments and arguments.index(v) < len(inputs)]
    return list(dict.fromkeys([*found, *(o.operands[0] for o in inside if o.name == "tensor.extract")]))


def apply_packs(function: ir.Operation, packs: list[Pack]) -> None:
    """Carries the choices out in a function, as `fuse` will."""
    for p in packs:
        by_name = {mlir.get_string(op, "tilec.name"): op for op in mlir.traverse(function) if mlir.is_generic(op)}
        stored, _ = pack(by_name[p.name], p.side, p.dims, p.kind, p.extents)
        stored.attributes["tilec.stored"] = ir.UnitAttr.get()
