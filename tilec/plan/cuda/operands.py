"""The factors of a contraction: their order over rows, columns and k, and their way into shared memory.

Rows of C are the dimensions that only the left factor has, columns those that only the right factor has; C is contiguous
along columns. A factor that is a plain tensor is copied without registers, if its memory consists of runs of at least 16
bytes. Threads compute all other factors.
"""

# mypy: no-strict-optional

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tilec.analysis.graph import Graph, Node, Read, dims_of, extract_directions
from tilec.analysis.products import stored
from tilec.analysis.traffic import outputs_of
from tilec.core import mlir
from tilec.core.hardware import LINE, WIDE
from tilec.core.mlir import ir
from tilec.core.target import Target
from tilec.kernels.contraction import BYTES, ELEMENTS
from tilec.plan.groups import Group


@dataclass(frozen=True)
class Operand:
    """How a factor reaches shared memory.

    `copy`: "tma" (a box at a time, by the hardware), "async" (16 bytes a thread, past the registers) or
    "registers", where threads compute it: a prologue, a gather, a conversion. `major`: 1 where it lies in
    shared memory with k contiguous, 0 with rows (or columns) contiguous; the direction in which it is
    contiguous in global memory.
    """

    copy: str
    major: int
    gathers: bool = False  # reads at computed subscripts


@dataclass(frozen=True)
class Roles:
    """Kernel dimensions by role, outermost first, and the factors: `left` has the rows."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    factors: dict[str, ir.Value]

    def order(self, side: str) -> tuple[int, ...]:
        return self.rows if side == "left" else self.columns


def arrange(node: Node, kind: str, g: Group, graph: Graph, target: Target) -> tuple[Roles, dict[str, Operand]]:
    """Roles and feeds of a contraction whose factors are staged as `kind`.

    Any order of the reduced dimensions is right; the one in which most factors can be copied is taken.
    """
    found = []
    for roles in _roles(node, g, graph):
        operands = {s: _operand(node, f, s, roles, kind, g, graph, target) for s, f in roles.factors.items()}
        found.append((roles, operands))
    ease = {"tma": 2, "async": 1, "registers": 0}
    return max(found, key=lambda pair: sum(ease[f.copy] for f in pair[1].values()))


def _roles(node: Node, g: Group, graph: Graph) -> list[Roles]:
    """Columns are the factor's dimensions along which the result is contiguous. One for each order of k that may help:
    the program's, and those that end in a dimension along which a factor is contiguous."""
    dims, c = g.space.dims[node], node.contraction
    order = _result_dims(node, g, graph)

    def kernel_dims(own: Any) -> tuple[int, ...]:
        return tuple(sorted((dims[d] for d in own), key=lambda d: order.index(d) if d in order else d))

    m, n, left, right = kernel_dims(c.m), kernel_dims(c.n), c.left, c.right
    if order and order[-1] in m:
        m, n, left, right = n, m, right, left
    lasts = [read.dims[-1] for f in (left, right) if (read := read_of(stored(f), node)) and read.dims]
    ends = [d for d in lasts if d in c.k]
    orders = [c.k, *((*(d for d in c.k if d != end), end) for end in ends)]
    factors = {"left": left, "right": right}
    return [Roles(m, n, tuple(dims[d] for d in k), factors) for k in dict.fromkeys(orders)]


def _result_dims(node: Node, g: Group, graph: Graph) -> list[int]:
    """The kernel dimensions of the largest tensor that the kernel writes, in its order."""
    written = outputs_of(g.nodes, graph)
    results = [(n, r) for n in g.nodes for r in n.results if r.value in written] or [(node, node.results[0])]
    maker, result = max(results, key=lambda pair: len(pair[1].dims))
    return [g.space.dims[maker][d] for d in result.dims]


def _operand(
    node: Node, factor: ir.Value, side: str, roles: Roles, kind: str, g: Group, graph: Graph, target: Target
) -> Operand:
    plain = stored(factor)
    read = read_of(plain, node)
    if read is None or (read.value in graph.producer and graph.producer[read.value].inlined):
        return _computed(factor, node, kind)
    shape = ir.ShapedType(read.value.type).shape
    dims = [g.space.dims[node][d] for d in read.dims]
    last = next((p for p, e in zip(reversed(dims), reversed(shape)) if e > 1), None)
    major = int(last in roles.inner)
    size = BYTES[kind]
    if size == 1 and not major:  # of which matrix units take lines of k only
        return Operand("registers", 1)
    if str(plain.type) != ELEMENTS.get(kind, kind) or last is None or not target.has("cp_async"):
        return Operand("registers", major)
    extents = dict(zip(dims, shape))
    wide = [d for d in roles.inner if extents.get(d, 1) > 1]
    run = shape[-1]
    if major and _is_flat(dims, roles.inner):
        run = prod(extents[d] for d in roles.inner)
    elif (major and last != roles.inner[-1]) or (not major and last != roles.order(side)[-1]):
        return Operand("registers", major)
    if run * size % WIDE:
        return Operand("registers", major)
    depth = LINE // size  # of k, in one box
    together = len(wide) <= 1 or (wide[-1] == roles.inner[-1] and extents[wide[-1]] % depth == 0)
    kept = [d for d in dims if d in roles.order(side) and extents[d] > 1]
    ordered = kept == sorted(kept, key=roles.order(side).index)
    lines = size == 2 or (major and kind not in ("f32", "i32", "f64"))  # as matrix units read them
    tma = target.has("tma") and lines and len(shape) <= 5 and together and ordered
    return Operand("tma" if tma else "async", major)


def _is_flat(dims: list[int], inner: tuple[int, ...]) -> bool:
    """Whether all reduced dimensions are adjacent in a tensor, in order: k is one dimension of its memory."""
    first = dims.index(inner[0]) if inner[0] in dims else len(dims)
    return tuple(dims[first : first + len(inner)]) == inner


def read_of(value: ir.Value, node: Node) -> Read | None:
    """The tensor and its subscripts, where a value of the body is an element of one."""
    if not isinstance(value.owner, ir.Block) or value.owner != mlir.body_of(node.op):
        return None
    number = ir.BlockArgument(value).arg_number
    tensor = mlir.inputs_of(node.op)[number]
    return next(
        (r for r in node.reads if r.value == tensor and r.dims == tuple(mlir.map_dims(mlir.maps_of(node.op)[number]))),
        None,
    )


def _computed(factor: ir.Value, node: Node, kind: str) -> Operand:
    """A factor that threads compute; in the direction in which most that it reads is contiguous."""
    score: dict[int, float] = {}
    pending, seen = [factor], set()
    computed, points = extract_directions(node), prod(node.extents[d] for d in dims_of(factor, node))
    while pending:
        value = pending.pop()
        owner = mlir.definition(value)
        if owner is None:
            if (read := read_of(value, node)) and read.dims:
                score[read.dims[-1]] = score.get(read.dims[-1], 0) + prod(node.extents[d] for d in read.dims)
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
