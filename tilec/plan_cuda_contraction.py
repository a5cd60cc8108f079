"""Tiles and instructions for CUDA kernels that are a contraction and its epilogue.

The tile comes from `cost_contraction.choose`, among those that the passes can build; here it is laid over the dimensions
of the program: rows of C are the dimensions that only the left factor keeps, columns those of the right one,
and a block takes a box of each with at most `bm` and `bn` points. The roles are such that C is contiguous
along columns.

| option | meaning |
|---|---|
| `instruction` | "fma", "mma.sync" or "wgmma" |
| `multiplicand` | the type in which the factors are staged |
| `rows`, `columns`, `inner` | kernel dimensions: of C's rows and columns, and the reduced ones |
| `block`, `warps` | (bm, bn, bk) of a block, and how its warps lie over rows and columns |
| `stages` | tiles of the factors that shared memory holds |
| `raster` | rows of tiles that are walked together, so that what neighbouring blocks read stays in L2 |
| `left`, `right` | how a factor reaches shared memory, and the direction in which it lies there, see `Feed` |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from tilec import cost_contraction, mlir
from tilec.cost_contraction import BlockTile
from tilec.graph import Graph, Node
from tilec.grouping import Group, Remark, element_bytes, inputs_of, outputs_of
from tilec.matrix import multiplicand_of, stored
from tilec.mlir import ir
from tilec.plan import KernelPlan
from tilec.plan_cpu import extract_directions
from tilec.target import Target

WIDE = 16  # bytes of the widest memory access
DEEPEST = {"fma": 3, "mma.sync": 6, "wgmma": 8}  # stages; more hide no more latency
# Registers of a thread for data, beside those for addresses; fewer where it computes factors, or finds their
# elements, since what is known of a place before the loop over k is kept, 64 bits each.
HELD = {"copied": 168, "computed": 144, "gathered": 96}
BYTES = {"bf16": 2, "f16": 2, "f64": 8}


@dataclass(frozen=True)
class Feed:
    """How a factor reaches shared memory.

    `copy`: "tma" (a box at a time, by the hardware), "async" (16 bytes a thread, past the registers) or
    "registers", where threads compute it: a prologue, a gather, a conversion. `major`: 1 where it lies in
    shared memory with k contiguous, 0 with rows (or columns) contiguous; the direction in which it is
    contiguous in global memory.
    """

    copy: str
    major: int
    gathers: bool = False  # reads at computed subscripts


def choose_contraction(
    kernel: KernelPlan, g: Group, graph: Graph, target: Target
) -> tuple[KernelPlan, list[Remark]] | None:
    """The tile of a kernel that has a contraction; None where no tile fits."""
    (node,) = [n for n in g.nodes if n.contraction is not None]
    roles = _roles(node, g, graph)
    kind = multiplicand_of(node)
    kind = kind if kind in BYTES else "f32"
    feeds = {side: _feed(node, factor, side, roles, kind, g, graph, target) for side, factor in roles.factors.items()}
    problem = _problem(node, roles, kind, kernel, g, graph)
    choices = [
        c
        for c in cost_contraction.choose(target, problem, _instructions(kind, feeds, target))
        if _buildable(c.tile, feeds, kind)
    ]
    if not choices or 0 in kernel.extents.values():
        return None
    tile = _staged(choices[0].tile, feeds, kind, target)
    rows, columns = (
        _box([kernel.extents[d] for d in dims], size)
        for dims, size in ((roles.rows, tile.bm), (roles.columns, tile.bn))
    )
    sizes = dict(zip(roles.rows, rows)) | dict(zip(roles.columns, columns))
    feeds = {
        s: f if tile.instruction == "wgmma" or f.copy != "tma" else replace(f, copy="async") for s, f in feeds.items()
    }
    options = {
        "instruction": tile.instruction, "multiplicand": kind,
        "rows": roles.rows, "columns": roles.columns, "inner": roles.inner,
        "block": (tile.bm, tile.bn, tile.bk), "warps": (tile.warp_m, tile.warp_n), "threads": tile.threads,
        "stages": tile.stages, "raster": tile.group,
        **{f"{side}_copy": f.copy for side, f in feeds.items()},
        **{f"{side}_major": f.major for side, f in feeds.items()},
    }  # fmt: skip
    if tile.instruction == "wgmma":  # a block a multiprocessor, which goes through the tiles
        options["persistent"] = target.units
    kernel = replace(kernel, tile=tuple(sizes.get(d, 1) for d in kernel.grid), options=options)
    kernel = replace(kernel, work=cost_contraction.contraction_work(target, problem, tile))
    return kernel, _remarks(kernel, kind, tile, feeds, choices)


def _remarks(kernel: KernelPlan, kind: str, tile: BlockTile, feeds: dict[str, Feed], choices) -> list[Remark]:
    line = kernel.lines[-1] if kernel.lines else None
    others = tuple((_describe(c.tile), c.prediction.time_us) for c in choices[:4])
    why = f"{_describe(tile)} of {kind}, {tile.stages} stages, {tile.threads} threads; " + ", ".join(
        f"{side} by {f.copy}" for side, f in feeds.items()
    )
    return [Remark("tiled", kernel.name, why, line, others)]


def _describe(tile: BlockTile) -> str:
    return f"{tile.instruction} {tile.bm}x{tile.bn}x{tile.bk}"


# ---- roles -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roles:
    """Kernel dimensions by role, outermost first, and the factors: `left` has the rows."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    factors: dict[str, ir.Value]

    def order(self, side: str) -> tuple[int, ...]:
        return self.rows if side == "left" else self.columns


def _roles(node: Node, g: Group, graph: Graph) -> Roles:
    """Columns are the factor's dimensions along which the result is contiguous."""
    dims, c = g.space.dims[node], node.contraction
    order = _result_dims(node, g, graph)

    def kernel_dims(own) -> tuple[int, ...]:
        return tuple(sorted((dims[d] for d in own), key=lambda d: order.index(d) if d in order else d))

    m, n, k = kernel_dims(c.m), kernel_dims(c.n), tuple(dims[d] for d in c.k)
    if order and order[-1] in m:
        return Roles(n, m, k, {"left": c.right, "right": c.left})
    return Roles(m, n, k, {"left": c.left, "right": c.right})


def _result_dims(node: Node, g: Group, graph: Graph) -> list[int]:
    """The kernel dimensions of the largest tensor that the kernel writes, in its order."""
    written = outputs_of(g.nodes, graph)
    results = [(n, r) for n in g.nodes for r in n.results if r.value in written] or [(node, node.results[0])]
    maker, result = max(results, key=lambda pair: len(pair[1].dims))
    return [g.space.dims[maker][d] for d in result.dims]


# ---- feeds -------------------------------------------------------------------------------------------------


def _feed(
    node: Node, factor: ir.Value, side: str, roles: Roles, kind: str, g: Group, graph: Graph, target: Target
) -> Feed:
    own, dims = node.contraction, g.space.dims[node]
    plain = stored(factor)
    read = _read_of(plain, node)
    if read is None or (read.value in graph.producer and graph.producer[read.value].inlined):
        return _computed(factor, node)
    shape, size = (
        ir.ShapedType(read.value.type).shape,
        element_bytes(ir.ShapedType(read.value.type).element_type),
    )
    last = next((d for d, e in zip(reversed(read.dims), reversed(shape)) if e > 1), None)
    major = int(last in own.k)
    wide = {d for d in read.dims if node.extents[d] > 1}
    reduced = tuple(dims[d] for d in read.dims if d in own.k)
    place = [n for n, d in enumerate(read.dims) if d in own.k]
    flat = reduced == roles.inner and place == [*range(place[0], place[0] + len(place))]  # k is one dimension in memory
    single = len(wide & set(own.k)) <= 1 or flat
    same = str(plain.type) == kind and element_bytes(plain.type) == BYTES.get(kind, 4)
    run = prod(shape[p] for p in place) if major and flat else shape[-1]  # elements side by side
    if not same or not single or run * size % WIDE or last is None or not target.has("cp_async"):
        return Feed("registers", major)
    kept = [d for d in read.dims if d in wide and d not in own.k and d not in own.batch]
    tma = (
        target.has("tma")
        and kind in ("bf16", "f16")
        and len(shape) <= 5
        and len(wide & set(own.k)) <= 1
        and (major or len(kept) == 1)
    )
    tma = tma and kept == sorted(kept, key=lambda d: roles.order(side).index(dims[d]))
    return Feed("tma" if tma else "async", major)


def _read_of(value: ir.Value, node: Node):
    """The tensor and its subscripts, where a value of the body is an element of one."""
    if not isinstance(value.owner, ir.Block) or value.owner != mlir.body_of(node.op):
        return None
    number = ir.BlockArgument(value).arg_number
    tensor = mlir.inputs_of(node.op)[number]
    return next(
        (r for r in node.reads if r.value == tensor and r.dims == tuple(mlir.map_dims(mlir.maps_of(node.op)[number]))),
        None,
    )


def _computed(factor: ir.Value, node: Node) -> Feed:
    """A factor that threads compute; in the direction in which most that it reads is contiguous."""
    score: dict[int, float] = {}
    pending, seen = [factor], set()
    computed = extract_directions(node)
    while pending:
        value = pending.pop()
        owner = mlir.definition(value)
        if owner is None:
            if (read := _read_of(value, node)) and read.dims:
                score[read.dims[-1]] = score.get(read.dims[-1], 0) + 1
        elif owner not in seen and owner.block == mlir.body_of(node.op):
            seen.add(owner)
            pending += list(owner.operands)
            if owner.name == "tensor.extract":
                score |= {d: score.get(d, 0) + w for d, w in computed.items()}
    run = {
        d: s * min(32, node.extents[d]) for d, s in score.items() if node.extents[d] > 1
    }  # neighbours in a warp's access
    parallel = max((s for d, s in run.items() if d not in node.reduced), default=0)
    major = max((s for d, s in run.items() if d in node.reduced), default=0) > parallel
    return Feed("registers", int(major), any(op.name == "tensor.extract" for op in seen))


# ---- the tile ----------------------------------------------------------------------------------------------


def _problem(
    node: Node, roles: Roles, kind: str, kernel: KernelPlan, g: Group, graph: Graph
) -> cost_contraction.Contraction:
    m, n, k = (prod(kernel.extents[d] for d in dims) for dims in (roles.rows, roles.columns, roles.inner))
    written = outputs_of(g.nodes, graph)
    out = sum(element_bytes(ir.ShapedType(v.type).element_type) for v in written)
    epilogue = {
        "fma.f32": sum(x.flops for x in g.nodes if x is not node),
        "special": sum(x.special for x in g.nodes if x is not node),
    }
    others = [
        v
        for x in g.nodes
        if x is not node
        for v in inputs_of([x])
        if v not in graph.producer or graph.producer[v] not in g.nodes
    ]
    points = prod(node.extents[d] for d in range(len(node.extents)) if d not in node.reduced)
    reads = sum(
        prod(ir.ShapedType(v.type).shape) * element_bytes(ir.ShapedType(v.type).element_type) for v in others
    ) / max(1, points)
    result = {2: "bf16", 8: "f64"}.get(out, "f32")
    return cost_contraction.Contraction(m, n, k, points // (m * n), kind, result, reads=reads, epilogue=epilogue)


def _instructions(kind: str, feeds: dict[str, Feed], target: Target) -> list[str]:
    if kind not in ("bf16", "f16"):
        return []
    boxes = all(f.copy == "tma" for f in feeds.values())
    return ["mma.sync", "wgmma"] if boxes and "wgmma" in target.instructions(kind) else ["mma.sync"]


def _buildable(tile: BlockTile, feeds: dict[str, Feed], kind: str) -> bool:
    """Whether the passes have the code for a tile, and its threads the registers."""
    hardest = _hardest(feeds)
    if tile.split_k > 1 or tile.cluster > 1 or _held(tile, feeds, kind) > HELD[hardest]:
        return False
    if hardest != "copied" and tile.threads > 256:  # 128 registers a thread
        return False
    match tile.instruction:
        case "wgmma":
            majors = all((f.major or size % 64 == 0) for f, size in zip(feeds.values(), (tile.bm, tile.bn)))
            return majors and tile.bm in (64, 128) and tile.bn % 16 == 0
        case "mma.sync":
            m, n = tile.bm // tile.warp_m, tile.bn // tile.warp_n
            return m % 16 == 0 and n % 16 == 0 and tile.bk * 2 >= 64
    return tile.bk >= 16 or (tile.bm, tile.bn) == (32, 32)


def _hardest(feeds: dict[str, Feed]) -> str:
    computed = [f for f in feeds.values() if f.copy == "registers"]
    return "gathered" if any(f.gathers for f in computed) else "computed" if computed else "copied"


def _held(tile: BlockTile, feeds: dict[str, Feed], kind: str) -> int:
    """Registers of a thread for sums, for the factors of one step, and for what it fetches ahead."""
    words, threads = max(1, BYTES.get(kind, 4) // 4), 32 * tile.warps
    sums = tile.bm * tile.bn // threads
    fetched = sum(
        size * tile.bk // threads for f, size in zip(feeds.values(), (tile.bm, tile.bn)) if f.copy == "registers"
    )
    match tile.instruction:
        case "wgmma":
            return sums
        case "mma.sync":
            return sums + fetched + tile.bm // tile.warp_m // 4 + tile.bn // tile.warp_n // 4
    group = WIDE // (4 * words)
    return words * (sums + fetched + group * (tile.bm // (4 * tile.warp_m) + tile.bn // (8 * tile.warp_n)))


def _staged(tile: BlockTile, feeds: dict[str, Feed], kind: str, target: Target) -> BlockTile:
    """The tile with the stages that the passes' own use of shared memory leaves room for.

    Two where nothing arrives on its own, since threads then fetch the next tile while they compute this one.
    Lines of k for the vector units have a padding; wgmma keeps an epilogue's buffer beside its stages, the
    others lay it over them.
    """
    size = BYTES.get(kind, 4)
    pads = [WIDE // size if tile.instruction == "fma" and f.major else 0 for f in feeds.values()]
    lines = [(n, tile.bk + p) if f.major else (tile.bk, n) for n, p, f in zip((tile.bm, tile.bn), pads, feeds.values())]
    stage = size * sum(a * b for a, b in lines)
    room = target.sm.shared_per_block - 256  # barriers
    if tile.instruction == "wgmma":
        room -= 4 * tile.bm * next(c for c in (64, 32, 16) if tile.bn % c == 0)
    deepest = 2 if all(f.copy == "registers" for f in feeds.values()) else DEEPEST[tile.instruction]
    deepest = deepest if tile.instruction == "wgmma" else min(deepest, max(2, tile.stages))
    stages = min(deepest, room // stage)
    return replace(tile, stages=stages, shared=stages * stage)


def _box(extents: list[int], size: int) -> tuple[int, ...]:
    """Sizes of a box of at most `size` points, such that the fewest boxes cover the extents; then the longest
    inside.
    """
    best = min(
        _boxes(extents, size),
        key=lambda box: (prod(ceil(e / t) for e, t in zip(extents, box)), [-t for t in reversed(box)]),
    )
    return tuple(best)


def _boxes(extents: list[int], size: int) -> Iterator[list[int]]:
    if not extents:
        yield []
        return
    *outer, last = extents
    powers = {1 << p for p in range(size.bit_length()) if 1 << p < last}
    for inner in sorted(t for t in powers | {min(last, size)} if t <= size):
        for box in _boxes(outer, size // inner):
            yield [*box, inner]
