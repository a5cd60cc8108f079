"""The cost of a contraction on a CPU from packed panels: C[batch, rows, columns] = left[batch, rows, k] right[batch, k, columns].

A block computes a box of C. It packs both factors, a part of k at a time, and computes register tiles from the panels. Of one
side, the inner one, all panels are packed first; each panel of the other side is packed and multiplied by all of them.

Sources: Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al.,
"Analytical modeling is enough for high-performance BLIS" (TOMS 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tilec.core.fitted import PanelTimes
from tilec.core.target import Target
from tilec.cost.model import Work

AMX_SIDE = 16  # rows of a tile of AMX, and f32 sums of a row
CACHED_SUMS = 1 << 17  # of a block, which several steps along k add to in memory of its own: half a megabyte
AMX_STEP = 32  # products along k of an instruction
AMX_LATENCY, AMX_LOAD = 52, 8  # clocks from one sum of a tile to the next one, and of a tile's load: Intel's optimization manual
STORE = 2  # loads of a vector that take as long as its store: two in a clock and one, of AVX-512 (Intel's optimization manual)
BF16 = 2  # bytes
MOST_PARTS = 3  # bf16 of which a number is the sum: all bits of an f32


@dataclass(frozen=True)
class PanelProblem:
    """`rows`, `columns`, `inner`: extents of the dimensions of each role, the lanes' one last; `batch`: how many such
    products. `size`: bytes of a sum; `parts`: of how many bf16 a matrix unit takes each number of the left and of the right
    factor as the sum; `packed`: how the left and the right factor lie, "along", "across" or "gathered". `across`: the result is
    contiguous along rows, and registers transpose the sums. `reads`, `writes`: bytes that come from memory once, and that go
    there."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]
    batch: int
    size: int
    parts: tuple[int, int]
    packed: tuple[str, str]
    across: bool = False
    reads: float = 0
    writes: float = 0

    @property
    def unit(self) -> str:
        return "fma.f64" if self.size == 8 else "fma.f32"


@dataclass(frozen=True)
class Blocking:
    """`rows` and `columns` are boxes; `depth` products are packed at a time, along each dimension of `depths`.
    `columns_outer`: each panel of columns is packed and multiplied by all of the rows, and not each panel of rows."""

    instruction: str
    mr: int
    nr: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: int
    depths: tuple[int, ...] = ()
    columns_outer: bool = False

    def __str__(self) -> str:
        rows, columns = ("x".join(map(str, box)) for box in (self.rows, self.columns))
        blocks = f"panels: blocks of {rows} rows and {columns} columns, {self.depth} inner elements at a time"
        by = "" if self.instruction == "fma" else f" by {self.instruction}"
        return f"{blocks}, register tiles of {self.mr}x{self.nr}{by}"


@dataclass(frozen=True)
class BlockTimes:
    """Of one block, in nanoseconds: its products, its packing, and the sums that it stores and adds to."""

    products: float
    packing: float
    sums: float


def panel_us(target: Target, p: PanelProblem, b: Blocking) -> float:
    """Of the core with most blocks: register passes, packing, the tile of C for every part of k."""
    blocks, times = _blocks(p, b), block_times(target, p, b)
    start = target.launch.overhead_us if blocks > 1 else 0
    each = target.fit(PanelTimes).block_us + 1e-3 * (times.products + times.packing + times.sums)
    return start + ceil(blocks / target.units) * each


def panel_work(target: Target, p: PanelProblem, b: Blocking) -> Work:
    """Of all blocks. Products, packing and sums are instructions of one core, of which none hides another: they lengthen the time
    of the products (`pace`). Panels that a core's cache does not hold come from farther away, again and again."""
    times, blocks = block_times(target, p, b), _blocks(p, b)
    m, n = _padded(b)
    flops = 2.0 * blocks * m * n * prod(p.inner)
    unit = p.unit if b.instruction == "fma" else f"tensor.bf16@{b.instruction}"
    busy = times.products + times.packing + times.sums + 1e3 * target.fit(PanelTimes).block_us
    ideal = 1e9 * flops / max(1, blocks) / (target.peak(unit) / target.units)
    read, far = _traffic(target, p, b, blocks)
    return Work(
        dram_read=read, dram_write=p.writes, l3_bytes=far, flops={unit: flops}, pace={unit: busy / ideal if ideal else 1.0},
        blocks=max(1, blocks), threads=1, working_set=p.reads + p.writes,
    )  # fmt: skip


def _traffic(target: Target, p: PanelProblem, b: Blocking, blocks: int) -> tuple[float, float]:
    """Bytes from memory, and from the cache that all cores share: each block reads its rows and its columns. The next block has the
    same rows and other columns, so that rows are read again from the shared cache, and columns if it holds all of them."""
    k, shared = prod(p.inner), target.l3.bytes if target.l3 is not None else target.l2.bytes
    each = blocks * k * p.size * (prod(b.rows) + prod(b.columns))
    whole = p.reads / max(1, p.batch)
    if whole <= 0.75 * shared:
        return p.reads, max(each, p.reads)
    columns = blocks * k * p.size * prod(b.columns)  # of which the next row of blocks finds nothing in a cache
    return max(p.reads, columns), max(each, p.reads)


def _blocks(p: PanelProblem, b: Blocking) -> int:
    sides = zip((*p.rows, *p.columns), (*b.rows, *b.columns))
    return p.batch * prod(ceil(e / t) for e, t in sides)


def _padded(b: Blocking) -> tuple[int, int]:
    """Rows and columns of a block, in whole panels."""
    m, n = (prod(box[:-1]) * -(-box[-1] // width) * width for box, width in ((b.rows, b.mr), (b.columns, b.nr)))
    return m, n


def block_times(target: Target, p: PanelProblem, b: Blocking) -> BlockTimes:
    k, (m, n), fit = prod(p.inner), _padded(b), target.fit(PanelTimes)
    products = (m // b.mr) * (n // b.nr) * k * step_ns(target, b, p.size, p.parts, m if b.columns_outer else n)
    depths = b.depths or depths_of(p.inner, b.depth)
    steps = prod(ceil(e / d) for e, d in zip(p.inner, depths))
    if len(p.inner) > 1 and any(e % d for e, d in zip(p.inner, depths)):
        steps += steps // 2  # of steps that are cut short, panels are read as far apart as those of others
    each = {"along": fit.pack_along_ns, "across": fit.pack_across_ns, "gathered": fit.gather_ns}
    packing = k * sum(length * each[how] for length, how in zip((m, n), p.packed))
    if b.instruction != "fma":
        packing += k * fit.split_ns * sum(length * count for length, count in zip((m, n), p.parts) if count > 1)
        kept = steps > 1 and m * n <= CACHED_SUMS  # sums that a core's cache holds until they are complete: half the time
        share = b.mr * b.nr / (2 * AMX_SIDE) ** 2 if b.instruction == "dot" else 1
        packing += share * fit.unit_tile_ns * (m // b.mr) * (n // b.nr) * (1 + steps / 2 if kept else steps)
    sums = 2 * m * n * p.size * steps / (target.l2.unit_gbs or 32)
    return BlockTimes(products, packing, sums + (m * n * steps * fit.store_across_ns if p.across else 0.0))


def step_ns(target: Target, b: Blocking, size: int, parts: tuple[int, int], inner: int) -> float:
    """One product of a registers' tile: its FMAs, its loads, the latency of a sum, and what comes from L2, the panels of so many
    rows or columns of the inner side where they do not fit L1. What does not fit L2 comes from beyond it."""
    assert target.l1 is not None
    from_l2 = target.l2.unit_gbs * target.l2.achievable or 32
    if b.instruction == "amx":
        sums, tiles = b.mr * b.nr // AMX_SIDE**2, (b.mr + b.nr) // AMX_SIDE
        busy = 2e9 * AMX_SIDE**2 / (target.peak(f"tensor.bf16@{b.instruction}") / target.units)
        clocks = max(AMX_LATENCY, AMX_LOAD * tiles) / AMX_STEP
        left, right = 2 * parts[0] * b.mr, 2 * parts[1]
        far = right * b.nr * (b.depth * (left + right * inner) > target.l1.bytes) + left * (2 * b.depth * left > target.l1.bytes)
        products = len(part_products(*parts)) * max(busy * sums, clocks / target.clock_ghz)
        return products + target.fit(PanelTimes).unit_exposed_l2 * far / from_l2
    core, fit = target.core, target.fit(PanelTimes)
    assert core is not None
    whole = core.simd_bytes // size
    vectors = ceil(b.nr / whole)  # whatever vectors a kernel has: LLVM joins them, or takes them apart
    unit, number, at_once = ("fma.f64" if size == 8 else "fma.f32"), size, 1
    if b.instruction == "dot":
        unit, number, at_once = "tensor.bf16@dot", BF16, 2
    fma = 1e9 * 2 * whole * b.mr * vectors / (target.peak(unit) / target.units)
    spilled = max(0, b.mr * vectors + vectors + 1 - core.vector_registers)  # stored, and loaded again
    latency = core.fma_latency + (fit.forward_clocks if spilled else 0)
    clocks = max((b.mr + vectors + (1 + STORE) * spilled) / fit.loads_per_clock, latency) / at_once
    panel = b.mr if b.columns_outer else b.nr
    held = b.depth * inner * number
    far = number * panel * (held > target.l1.bytes)
    other = number * (b.nr if b.columns_outer else b.mr)
    far += other * (b.depth * other > target.l1.bytes)
    beyond = 0.0
    if held > target.l2.bytes and target.l3 is not None:
        beyond = number * panel / (target.l3.unit_gbs * target.l3.achievable or 16)
    return max(fma, clocks / target.clock_ghz) + fit.exposed_l2 * far / from_l2 + beyond


def depths_of(extents: Sequence[int], budget: int) -> tuple[int, ...]:
    """How much of each reduced dimension: inner ones whole while they fit, then an even part."""
    depths: list[int] = []
    for extent in reversed(extents):
        parts = ceil(extent / max(1, budget))
        depths.insert(0, max(1, ceil(extent / max(1, parts))))
        budget = budget // max(1, extent) if parts <= 1 else 1
    return tuple(depths)


def even(depths: tuple[int, ...], extents: Sequence[int]) -> tuple[int, ...]:
    """Depths of which the last is a multiple of the products that a matrix unit adds up at a time, or all there are."""
    return (*depths[:-1], min(extents[-1], -(-depths[-1] // AMX_STEP) * AMX_STEP))


def part_products(left: int, right: int) -> list[tuple[int, int]]:
    """The parts of two factors that are multiplied, the largest product last; most have a factor of the product before."""
    pairs = [(i, j) for i in range(left) for j in reversed(range(right)) if i + j < MOST_PARTS]
    return [*(p for p in pairs if p != (0, 0)), (0, 0)]
