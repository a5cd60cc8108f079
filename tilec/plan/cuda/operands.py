"""The factors of a contraction: their order over rows, columns and k, and their way into shared memory.

Rows of C are the dimensions that only the left factor has, columns those that only the right factor has; C is contiguous
along columns. A factor that is an element of a tensor at affine subscripts (`tilec/analysis/access.py`) is copied without
registers: as boxes by TMA, or in pieces of 16 bytes by cp.async. Threads compute all other factors.
"""

# mypy: no-strict-optional

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from operator import itemgetter
from typing import Any

from tilec.analysis import bf16_split
from tilec.analysis.access import Access, Subscript, access_of
from tilec.analysis.directions import extract_directions
from tilec.analysis.factor_access import FactorAccess
from tilec.analysis.graph import Graph, Node, dims_of
from tilec.analysis.isomorphic import of_operation
from tilec.analysis.multiplicands import converted, scaled_factor, scales_of
from tilec.analysis.traffic import outputs_of
from tilec.core import mlir
from tilec.core.hardware import BOX, LINE, RANK, WIDE
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.kernels.matrix import ASYNC, BYTES, ELEMENTS
from tilec.passes.tensor.pack import aligned
from tilec.plan.groups import Group


@dataclass(frozen=True)
class Operand:
    """How a factor reaches shared memory.

    `copy`: "tma" (a box at a time, by the hardware), a key of `ASYNC` (a piece a thread, past the registers) or "registers",
    where threads compute it: a prologue, a conversion. `major`: 1 where it lies in shared memory with k contiguous, 0 with rows
    (or columns) contiguous; the direction in which it is contiguous in global memory. `unaligned`: its rows there begin within
    lines of L2.
    """

    copy: str
    major: int
    gathers: bool = False  # reads at computed subscripts that are no sums of indices
    windows: bool = False  # reads at computed subscripts
    pieces: str = ""  # the key of `ASYNC` by which cp.async can copy it
    boxed_pieces: str = ""  # the same where a step along k is a box
    unaligned: bool = False
    alignable: bool = False  # TMA could copy it if the tensor's rows began at multiples of 16 bytes
    stored: str = ""  # its type in shared memory, if threads convert it where they load it from there
    one_by_one: bool = False  # threads load its elements one at a time: narrow ones whose rows begin anywhere, and windows'
    longest: int = BOX  # rows (or columns) of a box along one dimension
    step: int = 0  # bytes from an element to its neighbour along rows (or columns); 0 where that is not known


@dataclass(frozen=True)
class Roles:
    """Kernel dimensions by role, outermost first, and the factors: `left` has the rows."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    factors: dict[str, ir.Value] = field(hash=False)
    inner_box: tuple[int, ...] = ()
    """Of `inner`, the elements of one step that TMA copies; empty where a step is along the last dimension only."""
    result: tuple[int, ...] = ()
    """The dimensions of the largest tensor that the kernel writes, in its order, but for those of one element."""

    def boxes(self, depth: int) -> dict[int, int]:
        """The elements of a step of `depth` along each dimension of k."""
        return dict(zip(self.inner, self.inner_box or [*(1 for _ in self.inner[1:]), depth]))

    def order(self, side: str) -> tuple[int, ...]:
        return self.rows if side == "left" else self.columns


def arrange(node: Node, kind: str, g: Group, graph: Graph, target: Target) -> tuple[Roles, dict[str, Operand]]:
    """Roles and feeds of a contraction whose factors are staged as `kind`.

    Any order of the reduced dimensions is right; the one in which most factors can be copied is taken.
    """
    found = []
    ease = {"tma": 2, "registers": 0} | dict.fromkeys(ASYNC, 1)

    def add(roles: Roles) -> dict[str, Operand]:
        operands = {s: operand_of(node, f, s, roles, kind, g, graph, target) for s, f in roles.factors.items()}
        if not all(f.major for f in operands.values()):  # threads that convert load both factors along k
            operands = {s: replace(f, copy="registers", pieces="", stored="") if f.stored else f for s, f in operands.items()}
        found.append((sum(ease[f.copy] + 0.01 * f.alignable for f in operands.values()), roles, operands))
        return operands

    for roles in _roles(node, g, graph):
        operands = add(roles)
        by_lines = len(roles.inner) > 1 and not scales_of(node) and not any(f.major for f in operands.values())
        if by_lines and found[-1][0] < 2 * ease["tma"]:
            for box in _inner_boxes([g.space.extents[d] for d in roles.inner], LINE // BYTES[kind]):
                add(replace(roles, inner_box=box))
    _, roles, operands = max(found, key=itemgetter(0))
    return roles, operands


def warpgroup_copies(operands: Mapping[str, Operand]) -> tuple[str, str]:
    """How factors reach tiles that warpgroups multiply, whose steps along k are boxes if TMA copies one of them."""
    left, right = operands["left"], operands["right"]
    boxed = "tma" in (left.copy, right.copy)

    def copy(f: Operand) -> str:
        pieces = "" if f.stored else f.boxed_pieces if boxed else f.pieces
        return "tma" if f.copy == "tma" else pieces or "registers"

    return copy(left), copy(right)


def _inner_boxes(extents: list[int], depth: int) -> list[tuple[int, ...]]:
    """Boxes of `depth` elements over the dimensions of k, the fewest that cover it first."""
    powers = [[1 << p for p in range(depth.bit_length()) if 1 << p < 2 * e] for e in extents]
    boxes = [box for box in product(*powers) if prod(box) == depth]
    return sorted(boxes, key=lambda box: (prod(-(-e // b) for e, b in zip(extents, box)), box))[:16]


def _roles(node: Node, g: Group, graph: Graph) -> list[Roles]:
    """Columns are the factor's dimensions along which the result is contiguous. One for each order of k that may help:
    the program's, and those that end in a dimension along which a factor is contiguous."""
    dims, c = g.space.dims[node], node.contraction
    order = [d for d in _result_dims(node, g, graph) if g.space.extents[d] > 1]

    def kernel_dims(own: Sequence[int]) -> tuple[int, ...]:
        wide = [dims[d] for d in own if node.extents[d] > 1]
        return tuple(sorted(wide, key=lambda d: order.index(d) if d in order else d))

    m, n, left, right = kernel_dims(c.m), kernel_dims(c.n), c.left, c.right
    if not n or (order and order[-1] in m):  # of the result's dimensions of one element there is none to store along
        m, n, left, right = n, m, right, left
    k = [dims[d] for d in c.k if node.extents[d] > 1] or [dims[c.k[-1]]]
    read = (made_of.parts[0] if (made_of := bf16_split.parted(f)) else f for f in (left, right))
    found = (factor_access(node, f, g) for f in read)
    ends = [d for factor in found if factor is not None and (d := factor.contiguous) in k and not scales_of(node)]
    orders = [tuple(k), *((*(d for d in k if d != end), end) for end in ends)]
    factors = {"left": left, "right": right}
    return [Roles(m, n, inner, factors, result=tuple(order)) for inner in dict.fromkeys(orders)]


def _result_dims(node: Node, g: Group, graph: Graph) -> list[int]:
    """The kernel dimensions of the largest tensor that the kernel writes, in its order."""
    written = outputs_of(g.nodes, graph)
    results = [(n, r) for n in g.nodes for r in n.results if r.value in written] or [(node, node.results[0])]
    maker, result = max(results, key=lambda pair: len(pair[1].dims))
    return [g.space.dims[maker][d] for d in result.dims]


def operand_of(
    node: Node, factor: ir.Value, side: str, roles: Roles, kind: str, g: Group, graph: Graph, target: Target
) -> Operand:
    """How the factor of this side reaches shared memory as `kind`."""
    if kind == bf16_split.KIND:
        if made_of := bf16_split.parted(factor):
            return operand_of(node, made_of.parts[0], side, roles, "bf16", g, graph, target)
        return Operand("registers", operand_of(node, factor, side, roles, "f32", g, graph, target).major)
    if kind != str(factor.type):  # its scales are applied to sums
        factor = scaled_factor(node, factor).core
    found = factor_access(node, factor, g)
    made = graph.producer.get(found.access.tensor) if found else None
    if found is None or not found.access.exact or (made is not None and made.inlined):
        computed = _computed(factor, node, kind)
        return computed if roles.order(side) else replace(computed, major=1)
    along, size = found.contiguous, BYTES[kind]
    major = int(along in roles.inner or not roles.order(side))  # a single row is stored along k, wherever its elements lie
    gathers = not found.access.is_affine
    if size == 1 and not major:  # of which matrix units take lines of k only
        return Operand("registers", 1, gathers)
    own = roles.order(side)
    step = found.stride(own[-1]) if own else 0
    if major and kind in ("bf16", "f16") and (narrow := converted(node, factor, target)) and target.has("cp_async"):
        pieces = "async" if found.is_pieces(roles.inner[-1], roles.inner, WIDE) else ""
        return Operand(pieces or "registers", major, gathers, pieces=pieces, stored=narrow if pieces else "", step=step)
    if str(found.access.element) != ELEMENTS.get(kind, kind) or along is None or not target.has("cp_async"):
        return Operand("registers", major, gathers, step=step)
    line, varying = (roles.inner[-1], own) if major else (own[-1], own[-1:])
    steps = {d: size for d, size in roles.boxes(LINE // size).items() if size > 1}
    lines = size == 2 or (major and kind not in ("f32", "i32", "f64"))  # as matrix units read them
    widths = {key: wide // size for key, wide in ASYNC.items() if wide >= 2 * size}
    pieces = next((key for key, wide in widths.items() if found.is_pieces(line, roles.inner, wide)), "")
    last = roles.boxes(LINE // size)[roles.inner[-1]]
    boxed = next((key for key, wide in widths.items() if found.is_pieces(line, None, wide) and (not major or last % wide == 0)), "")
    unaligned = found.shape[-1] * size % LINE != 0
    k = roles.inner
    in_order = not scales_of(node) or len(k) == 1 or found.extents[k[-1]] % (LINE // size) == 0  # steps number k
    windows = found.access.operand is None
    others: dict[str, Any] = {"gathers": gathers, "windows": windows, "pieces": pieces, "boxed_pieces": boxed}
    others["unaligned"] = unaligned
    able = target.has("tma") and lines and in_order and (not major or line in steps)
    order = (*varying, *steps) if major else (*steps, *varying)
    others["alignable"] = able and in_aligned_rows(found).is_box(order, steps)
    if able and found.is_box(order, steps):
        longest = BOX // max((at.get(d, 1) for at in found.factors for d in varying), default=1)
        return Operand("tma", major, longest=longest, **others)
    alone = not pieces and (size < 4 or windows)
    return Operand(pieces or "registers", major, one_by_one=alone, step=step, **others)


def factor_access(node: Node, factor: ir.Value, g: Group) -> FactorAccess | None:
    if (access := _access(node, factor)) is None:
        return None
    own = tuple(g.space.dims[node])
    wide = [p for p, extent in enumerate(access.shape) if extent > 1 or access.operand is None]
    return FactorAccess(
        access, tuple(access.shape[p] for p in wide), tuple(access.subscripts[p] for p in wide), own,
        dict(zip(own, node.extents)), max(1, access.element.width // 8),
        trails=bool(wide) and wide[-1] < len(access.shape) - 1, zeros=_zeros(access.tensor),
    )  # fmt: skip


def in_aligned_rows(found: FactorAccess) -> FactorAccess:
    """The same of the tensor that `passes/tensor/pack.py` makes of it."""
    *outer, last = found.shape or (1,)
    whole = aligned(last, found.bytes)
    return replace(found, shape=(*outer, whole), zeros=whole - last)


def in_order(found: FactorAccess, own: tuple[int, ...], line: int, size: int) -> tuple[FactorAccess, tuple[int, ...]]:
    """The same of the tensor that has elements of `size` bytes, and a dimension that `line` moves last: those that the dimensions
    `own` move are in their order. And the order of the tensor's dimensions. Of more than TMA takes the first are one: those that no
    dimension of `own` moves."""
    position = [max((own.index(d) for d in at if d in own), default=-1) for at in found.factors]
    last = [p for p, at in enumerate(found.factors) if line in at][:1]
    others = [p for p in range(len(found.shape)) if p not in last]
    moved = iter(sorted((p for p in others if position[p] >= 0), key=position.__getitem__))
    if len(found.shape) > RANK:
        others.sort(key=lambda p: position[p] >= 0)
    order = [next(moved) if position[p] >= 0 else p for p in others] + last
    access = found.access
    whole = [p for p, extent in enumerate(access.shape) if extent > 1 or access.operand is None]
    ones = [p for p in range(len(access.shape)) if p not in whole]
    *outer, row = (found.shape[p] for p in order)
    guarded, at = [order.index(p) for p in access.guarded], [found.subscripts[p] for p in order]
    while len(outer) >= RANK and not {0, 1} & {*guarded}:
        at[:2] = [Subscript(at[0].term * outer[1] + at[1].term, at[1].dims)]
        outer[:2], guarded = [prod(outer[:2])], [p - 1 for p in guarded]
    stored = replace(
        found, access=replace(access, guarded=frozenset(guarded)), shape=(*outer, aligned(row, size)), subscripts=tuple(at),
        bytes=size, trails=False, zeros=aligned(row, size) - row,
    )  # fmt: skip
    return stored, (*ones, *(whole[p] for p in order))


@of_operation
def _access(node: Node, factor: ir.Value) -> Access | None:
    return access_of(node.op, factor)


def _zeros(value: ir.Value) -> int:
    """Behind each row of a tensor that the plan has a kernel store for a contraction."""
    owner = mlir.definition(value)
    while owner is not None and owner.name == "tensor.collapse_shape":
        owner = mlir.definition(owner.operands[0])
    return (mlir.get_integer(owner, "tilec.stored") or 0) if owner is not None else 0


def _computed(factor: ir.Value, node: Node, kind: str) -> Operand:
    """A factor that threads compute; in the direction in which most that it reads is contiguous."""
    score: dict[int, float] = {}
    pending, seen = [factor], set()
    computed, points = extract_directions(node), prod(node.extents[d] for d in dims_of(factor, node))
    while pending:
        value = pending.pop()
        owner = mlir.definition(value)
        if owner is None:
            dims = [s.bare for s in access.subscripts] if (access := _access(node, value)) else []
            if dims:
                score[dims[-1]] = score.get(dims[-1], 0) + prod(node.extents[d] for d in dims)
        elif owner not in seen and owner.block == mlir.body_of(node.op):
            seen.add(owner)
            pending += list(owner.operands)
            if owner.name == "tensor.extract":
                score |= {d: score.get(d, 0) + w * points for d, w in computed.items()}
    run = {
        d: s * min(32, node.extents[d]) for d, s in score.items() if node.extents[d] > 1
    }  # neighbours in a warp's access
    parallel = max((s for d, s in run.items() if d not in node.reduced), default=0)
    major = max((s for d, s in run.items() if d in node.reduced), default=0) > parallel
    return Operand("registers", int(major or BYTES[kind] == 1), any(op.name == "tensor.extract" for op in seen))
