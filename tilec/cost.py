"""The cost model: work and a machine in, numbers out. Pure, and blind to the IR.

`predict` turns the `Work` of one kernel into a time and its reasons. `choose` enumerates the tiles of a
`Contraction` or of `Rows`, predicts each, and returns all of them, cheapest first, so that what was not
chosen can be shown.

Sources: Williams, Waterman & Patterson, "Roofline" (CACM 2009); NVIDIA's CUDA occupancy calculator and matrix
multiplication background guide (tile and wave quantisation); Little's law, as applied by Volkov ("Better
performance at lower occupancy", GTC 2010); DeepGEMM and tritonBLAS (tile choice by a short model); Goto & van
de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al., "Analytical modeling is
enough for high-performance BLIS" (TOMS 2016). Times are microseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import ceil, hypot, inf, log2

from tilec.target import Level, Target


@dataclass(frozen=True)
class Work:
    """What one kernel does, in all.

    `flops`: operations by unit ("fma.f32", "tensor.bf16@mma.sync", "special", "int"), a fused multiply-add
    being two. `bytes_in_flight`: of each thread, its independent loads times their size; 0 for no limit.
    `stall_ns`: of each block, time in which none of its loads is in flight (barriers, exchanges).
    `serial_us`: time in which all units wait (filling a pipeline, storing the last tile). `lanes`: share of
    the vector lanes that do useful work. `working_set`: bytes that the last kernel may have left in a cache;
    0 where all comes from memory. `launches`: kernels that the work takes. On a CPU a block is one task of
    the parallel loop, and threads and registers say nothing.
    """

    dram_read: float = 0
    dram_write: float = 0
    l2_bytes: float = 0
    shared_bytes: float = 0
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    blocks: int = 1
    threads: int = 128
    registers: int = 32
    shared_per_block: int = 0
    bytes_in_flight: float = 64
    stall_ns: float = 0
    serial_us: float = 0
    lanes: float = 1.0
    working_set: float = 0
    launches: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Occupancy:
    """Blocks that one SM holds, what limits them ("threads", "registers", ...), share of its threads."""

    blocks: int
    limiter: str
    fraction: float


@dataclass(frozen=True)
class Prediction:
    """`terms`: microseconds that each resource is busy; they overlap: the time is the largest and the launch.

    `intensity` and `ridge`: operations a byte of DRAM traffic, and where the machine turns compute-bound.
    `roofline_share`: of the speed that the roofline allows this intensity. `waves`: rounds of resident
    blocks.
    """

    time_us: float
    terms: dict[str, float] = field(hash=False)
    bound: str
    occupancy: Occupancy
    waves: float
    wave_efficiency: float
    intensity: float
    ridge: float
    roofline_share: float

    @property
    def limiter(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda t: self.terms[t])


_MEMORY = ("dram", "l3", "l2", "l1", "shared")


def occupancy(target: Target, threads: int, registers: int = 32, shared: int = 0) -> Occupancy:
    """How many blocks of `threads` one SM holds: the least of four quotients (CUDA occupancy calculator).

    Registers are allocated a warp at a time, rounded up to `register_unit`; shared memory with the driver's
    part of each block. 0 blocks where one does not fit. A CPU core runs one task.
    """
    sm = target.sm
    if sm is None:
        return Occupancy(1, "cores", 1.0)
    warps = ceil(threads / sm.warp)
    warp_registers = _round_up(registers * sm.warp, sm.register_unit)
    limits = {
        "threads": sm.threads // (warps * sm.warp) if threads <= sm.threads_per_block else 0,
        "registers": sm.registers // warp_registers // warps if registers <= sm.registers_per_thread else 0,
        "shared": sm.shared_bytes // (shared + sm.shared_reserved) if shared <= sm.shared_per_block else 0,
        "blocks": sm.blocks,
    }
    limiter = min(limits, key=lambda k: limits[k])
    return Occupancy(limits[limiter], limiter, limits[limiter] * warps * sm.warp / sm.threads)


def balance(blocks: int, units: int) -> float:
    """Share of the units' time used by blocks dealt out evenly: blocks / (units x ceil(blocks / units)).

    This is wave quantisation, waves / ceil(waves), for one block an SM. Of several that share an SM each is
    the slower for it, so that what counts is how many blocks the fullest SM gets, not in how many rounds.
    """
    return blocks / (units * ceil(blocks / units)) if blocks else 1.0


def predict(work: Work, target: Target) -> Prediction:
    """Time = launch + the largest of the terms; each term is an amount over a rate.

    Throughput units (vector, matrix, special, shared) run at peak x wave efficiency x issue, where issue is
    below 1 with less than a warp to each of an SM's four schedulers. Memory runs at its rate or at Little's,
    see `_transfer_us`. Back to back, kernels follow each other no faster than the host launches them.
    """
    occ = occupancy(target, work.threads, work.registers, work.shared_per_block)
    if occ.blocks == 0:
        raise ValueError(f"a block does not fit {target.name}: too many {occ.limiter}")
    efficiency, waves = balance(work.blocks, target.units), work.blocks / (target.units * occ.blocks)
    resident = work.blocks / max(1, ceil(waves))  # blocks at work at a time, on average over the waves
    issue = 1.0
    if target.sm is not None:
        issue = min(1.0, min(occ.blocks, ceil(work.blocks / target.units)) * work.threads / (4 * target.sm.warp))
    terms = _memory_terms(work, target, resident)
    for unit, amount in work.flops.items():
        lanes = 1.0 if unit.startswith("tensor") else work.lanes
        name = unit.partition(".")[0]
        time = 1e6 * amount / (target.peak(unit) * efficiency * issue * lanes)
        terms[name] = terms.get(name, 0.0) + time
    body = max(terms.values(), default=0.0)
    ramp = target.launch.ramp_us * work.launches + work.serial_us
    total = max(body + ramp, target.launch.overhead_us * work.launches)
    limiter = max(terms, key=lambda t: terms[t], default="launch")
    bound = "launch" if total - body > body else "memory" if limiter in _MEMORY else "compute"
    intensity, ridge, ideal = _roofline(work, target)
    terms["launch"] = total - body
    return Prediction(total, terms, bound, occ, waves, efficiency, intensity, ridge, min(1.0, ideal / total))


def _transfer_us(amount: float, loads: float, rate: float, flight: float, latency_ns: float) -> float:
    """hypot(bytes / rate, loads x latency / bytes in flight): the bandwidth's time and Little's.

    Only loads wait. The larger of the two alone would call a memory full as soon as latency x rate is in
    flight; requests come in bursts, and it takes three times that for 95%, as measured with rows kept in
    registers (one block an SM or two, with and without the barriers of a cluster between loads).
    """
    return 1e6 * hypot(amount / rate, 1e-9 * loads * latency_ns / (flight or inf))


def _memory_terms(work: Work, target: Target, resident: float) -> dict[str, float]:
    """Microseconds of each level of memory."""
    units = min(target.units, resident)
    flight = resident * work.threads * work.bytes_in_flight if target.kind == "cuda" else 0

    def time(name: str, amount: float) -> float:
        level: Level = getattr(target, name)
        loads = max(0.0, amount - work.dram_write)
        return _transfer_us(amount, loads, level.rate(units), flight, level.latency_ns + work.stall_ns)

    traffic = work.dram_read + work.dram_write
    home = home_level(target, work.working_set)
    terms = {home: time(home, traffic)} if traffic else {}
    if l2 := max(work.l2_bytes, traffic if target.kind == "cuda" else 0):
        terms["l2"] = max(terms.get("l2", 0.0), time("l2", l2))
    if work.shared_bytes and target.sm is not None:
        rate = 1e9 * target.clock_ghz * target.sm.shared_bytes_per_clock * target.units
        terms["shared"] = 1e6 * work.shared_bytes / (rate * balance(work.blocks, target.units))
    elif work.shared_bytes and target.l1 is not None:  # the nearest memory of a core
        terms["l1"] = max(terms.get("l1", 0.0), time("l1", work.shared_bytes))
    return terms


def home_level(target: Target, working_set: float) -> str:
    """The level that a working set stays in: the nearest that holds it with a quarter to spare. 0 bytes:
    "dram".
    """
    for name in ("l1", "l2", "l3") if working_set else ():
        level: Level | None = getattr(target, name)
        if level is not None and working_set <= 0.75 * level.bytes * (target.units if level.private else 1):
            return name
    return "dram"


def _roofline(work: Work, target: Target) -> tuple[float, float, float]:
    """Intensity and ridge in operations a byte, and the ideal time, max of bytes and operations."""
    dram = target.dram.rate(target.units)
    traffic, flops = work.dram_read + work.dram_write, sum(work.flops.values())
    busy = max((n / target.peak(u) for u, n in work.flops.items()), default=0.0)
    main = max(work.flops, key=lambda u: work.flops[u] / target.peak(u), default="fma.f32")
    intensity = flops / traffic if traffic else inf if flops else 0.0
    return intensity, target.peak(main) / dram, 1e6 * max(traffic / dram, busy)


# ---- contractions ----


@dataclass(frozen=True)
class Contraction:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n], of element type `dtype` ("bf16"), C of type `out`.

    `tf32` allows f32 operands on the matrix units; `reads` and `epilogue` are further bytes and operations
    per element of C that are fused behind (a bias, an activation).
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    out: str = ""
    tf32: bool = False
    reads: float = 0
    epilogue: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def bytes(self) -> int:
        return element_bytes(self.dtype)

    @property
    def out_bytes(self) -> int:
        return element_bytes(self.out or self.dtype)

    @property
    def unit_type(self) -> str:
        """The row of the peak tables: both 8-bit floats are "f8"."""
        return "tf32" if self.dtype == "f32" and self.tf32 else "f8" if self.dtype.startswith("f8") else self.dtype

    @property
    def vector_unit(self) -> str:
        return "int" if self.dtype[0] in "iu" else f"fma.{self.dtype}"


@dataclass(frozen=True)
class BlockTile:
    """A GPU block's part of C and how it is computed.

    `warps` that compute, as `warp_m` x `warp_n` over the block; `producers`: further warps that only load.
    `cluster`: blocks along m that share their B tile by multicast. `split_k`: blocks that share one tile of
    C. `group`: rows of tiles that are walked together, for L2. `registers`: a thread, as launched.
    """

    bm: int
    bn: int
    bk: int
    stages: int
    instruction: str
    warp_m: int
    warp_n: int
    producers: int = 0
    cluster: int = 1
    split_k: int = 1
    group: int = 8
    registers: int = 128
    shared: int = 0

    @property
    def warps(self) -> int:
        return self.warp_m * self.warp_n

    @property
    def threads(self) -> int:
        return 32 * (self.warps + self.producers)


@dataclass(frozen=True)
class CacheTile:
    """CPU blocking in Goto's terms: an `mr` x `nr` tile of C in registers, a `kc` x `nr` panel of B in L1, an
    `mc` x `kc` block of A in L2, a `kc` x `nc` panel of B in L3 (or memory).
    """

    mc: int
    kc: int
    nc: int
    mr: int
    nr: int


Tile = BlockTile | CacheTile


def element_bytes(dtype: str) -> int:
    """Storage of an element type of the language, or tf32."""
    from tilec.dtypes import DTYPES

    return DTYPES["f32" if dtype == "tf32" else dtype].bytes


def contraction_candidates(
    target: Target, problem: Contraction, instructions: Collection[str] | None = None
) -> Iterator[Tile]:
    """Every tile worth predicting; each fits registers and shared memory (or the caches).

    `instructions`: those that the caller can emit, of "wgmma", "tcgen05", "mma.sync"; None for all. Without
    any, "fma".
    """
    if target.kind == "cpu":
        yield from _cache_tiles(target, problem)
        return
    matrix = [i for i in target.instructions(problem.unit_type) if instructions is None or i in instructions]
    for instruction in matrix or ("fma",):
        for shape in _SHAPES.get(instruction, _fma_shapes)(problem):
            yield from _staged(target, problem, instruction, *shape)


def _wgmma_shapes(p: Contraction) -> Iterator[tuple[int, int, int, int, int, int]]:
    """One or two warpgroups of 64 (or 128) rows beside a producer; K in steps of one 128-byte swizzle."""
    for bm, bn in product((64, 128, 256), (16, 32, 64, 96, 128, 160, 192, 224, 256)):
        yield bm, bn, 128 // p.bytes, 4 * min(2, bm // 64), 1, 4


def _mma_shapes(p: Contraction) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Warps of at least 16 x 16, at most 64 x 128; every warp loads and computes."""
    sizes = (16, 32, 64, 128, 256)
    for bm, bn, bk, (wm, wn) in product(sizes, sizes, (64, 128), ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2))):
        if 16 <= bm // wm <= 64 and 16 <= bn // wn <= 128:
            yield bm, bn, bk // p.bytes, wm, wn, 0


def _fma_shapes(p: Contraction) -> Iterator[tuple[int, int, int, int, int, int]]:
    """4 x 8 threads a warp with 4 to 8 rows and columns each."""
    for bm, bn, bk, tm, tn in product((32, 64, 128), (32, 64, 128), (8, 16, 32), (4, 8), (4, 8)):
        if bm % (4 * tm) == 0 and bn % (8 * tn) == 0 and 2 <= (warps := bm * bn // (32 * tm * tn)) <= 16:
            yield bm, bn, bk, bm // (4 * tm), warps // (bm // (4 * tm)), 0


_SHAPES = {"wgmma": _wgmma_shapes, "tcgen05": _wgmma_shapes, "mma.sync": _mma_shapes}


def _staged(
    target: Target,
    p: Contraction,
    instruction: str,
    bm: int,
    bn: int,
    bk: int,
    wm: int,
    wn: int,
    producers: int,
) -> Iterator[BlockTile]:
    """Pipeline depth, clusters and split reductions of one block shape, as far as they fit."""
    if (bm >= 4 * p.m and bm > 64) or (bn >= 4 * p.n and bn > 32):
        return
    sm = target.sm
    assert sm is not None
    accumulators = bm * bn * max(4, p.bytes if instruction == "fma" else 4) // 4 // (32 * wm * wn)
    own = accumulators + (accumulators // 8 + 32 if producers or instruction == "fma" else accumulators // 4 + 48)
    if instruction == "tcgen05":
        own = 128  # the accumulators are in tensor memory, 512 columns of 128 lanes of 4 bytes
    registers = _round_up(-(-(own * wm * wn + 40 * producers) // (wm * wn + producers)), 8)
    stage, spare = (bm + bn) * bk * p.bytes, bm * bn * p.out_bytes if producers else 0
    deepest = min(8, max(0, sm.shared_per_block - spare - 1024) // stage, max(2, ceil(p.k / bk)))
    tiles = ceil(p.m / bm) * ceil(p.n / bn) * p.batch
    least = min(3, max(2, ceil(p.k / bk))) if producers else 2  # as in DeepGEMM
    if (
        own > sm.registers_per_thread - 7
        or deepest < least
        or (instruction == "tcgen05" and bn * (bm // 128 or 1) > 512)
    ):
        return
    splits = [s for s in (1, 2, 4, 8, 16) if s == 1 or (tiles * s <= 2 * target.units and p.k >= s * 4 * bk)]
    clusters = (1, 2) if producers and target.has("clusters") and ceil(p.m / bm) % 2 == 0 else (1,)
    depths = {deepest} if producers else {2, min(3, deepest), min(4, deepest), deepest} & set(range(2, deepest + 1))
    for stages, cluster, split in product(sorted(depths), clusters, splits):
        shared = stages * stage + spare
        if occupancy(target, 32 * (wm * wn + producers), registers, shared).blocks:
            group = _group(target, bm, bn, p)
            yield BlockTile(
                bm, bn, bk, stages, instruction, wm, wn, producers, cluster, split, group, registers, shared
            )


def _group(target: Target, bm: int, bn: int, p: Contraction) -> int:
    """Rows of tiles walked together, so that one wave reads least: about a square of `units` tiles."""
    rows = ceil(p.m / bm)
    return min((g for g in (1, 2, 4, 8, 16) if g <= rows), key=lambda g: g * bm + target.units / g * bn)


def contraction_work(target: Target, p: Contraction, tile: Tile) -> Work:
    """The amounts of one tiling; what hangs over the edges of C is computed, too."""
    if isinstance(tile, CacheTile):
        return _cpu_contraction(target, p, tile)
    rows, columns = ceil(p.m / tile.bm), ceil(p.n / tile.bn)
    tiles = rows * columns * p.batch
    k = _round_up(p.k, tile.bk * tile.split_k)
    loaded = tiles * k * p.bytes * (tile.bm + tile.bn / tile.cluster)  # L2 to SRAM
    staged = tiles * k * p.bytes * (tile.bm + tile.bn)
    result = p.batch * p.m * p.n * p.out_bytes
    partial = 2 * 4 * tile.split_k * p.batch * p.m * p.n if tile.split_k > 1 else 0  # written and read again, in f32
    flops = 2.0 * tiles * tile.bm * tile.bn * k
    unit = p.vector_unit if tile.instruction == "fma" else f"tensor.{p.unit_type}@{tile.instruction}"
    other = {u: n * p.batch * p.m * p.n for u, n in p.epilogue.items()}
    further = p.reads * p.batch * p.m * p.n
    return Work(
        dram_read=_contraction_reads(target, p, tile) + further,
        dram_write=result + (0 if partial <= target.l2.bytes else partial),
        l2_bytes=loaded + result + partial + further,
        shared_bytes=staged + _operand_reads(tile, tiles * k * p.bytes) + (2 * result if tile.producers else 0),
        flops={unit: flops, **{u: n + (flops if u == unit else 0) for u, n in other.items()}},
        blocks=tiles * tile.split_k,
        threads=tile.threads,
        registers=tile.registers,
        shared_per_block=tile.shared,
        bytes_in_flight=(tile.stages - 1) * (tile.bm + tile.bn) * tile.bk * p.bytes / tile.threads,
        serial_us=_fill_and_drain(target, p, tile, tiles * tile.split_k),
        launches=1 if tile.split_k == 1 else 2,
    )


def _fill_and_drain(target: Target, p: Contraction, tile: BlockTile, blocks: int) -> float:
    """Every wave waits for its first loads and stores its last tile; an SM's other blocks hide some."""
    resident = occupancy(target, tile.threads, tile.registers, tile.shared).blocks
    waves = ceil(blocks / (target.units * resident))
    store = 1e6 * resident * tile.bm * tile.bn * p.out_bytes / target.l2.rate(1)
    return (waves * (1e-3 * target.dram.latency_ns + store)) / min(resident, waves * resident, 8)


def _operand_reads(tile: BlockTile, elements: float) -> float:
    """SRAM bytes that the instruction reads: wgmma A once, B per 64 rows; warps theirs each."""
    match tile.instruction:
        case "tcgen05":
            return elements * (tile.bm + tile.bn)
        case "wgmma":
            return elements * (tile.bm + tile.bn * (tile.bm // 64))
    return elements * (tile.bm * tile.warp_n + tile.bn * tile.warp_m)


def _contraction_reads(target: Target, p: Contraction, tile: BlockTile) -> float:
    """DRAM bytes of A and B: once if they stay in L2, else once a wave of grouped tiles."""
    once = p.batch * p.k * (p.m + p.n) * p.bytes
    if once / p.batch <= 0.5 * target.l2.bytes:
        return once
    rows, columns = ceil(p.m / tile.bm), ceil(p.n / tile.bn)
    high = min(tile.group, rows)
    wide = min(columns, max(1.0, target.units / high))
    waves = rows * columns * p.batch / (high * wide)
    return max(once, waves * p.k * p.bytes * (high * tile.bm + wide * tile.bn))


def contraction_cost(target: Target, problem: Contraction, tile: Tile) -> Prediction:
    """max(L2, SRAM, DRAM, operations, each over its rate) / wave efficiency, as in DeepGEMM."""
    return predict(contraction_work(target, problem, tile), target)


def _cache_tiles(target: Target, p: Contraction) -> Iterator[CacheTile]:
    """Low et al. 2016: mr x nr fills the registers and hides the FMA latency, kc fits L1, mc L2, nc L3.

    L1 holds a panel of B and two of A (one in use, one coming); L2 gives two of its ways, L3 half, to what
    streams by.
    """
    core, l1, l2 = target.core, target.l1, target.l2
    assert core is not None and l1 is not None
    size, lanes = max(4, p.bytes), core.simd_bytes // max(4, p.bytes)
    outer = target.l3.bytes // 2 if target.l3 else 1 << 23
    for v in (1, 2, 3, 4):
        highest = (core.vector_registers - 1 - v) // v
        nr = v * lanes
        for mr in {highest, highest - highest % 2, highest - highest % 4, min(highest, p.m)} - {0}:
            deepest = l1.bytes // ((nr + 2 * mr) * size)
            for kc in {min(p.k, max(32, deepest // part // 8 * 8)) for part in (1, 2)}:
                most = max(mr, l2.bytes * max(1, l2.ways - 2) // l2.ways // (kc * size) // mr * mr)
                nc = max(nr, min(_round_up(p.n, nr), outer // (kc * size) // nr * nr))
                even = (_round_up(ceil(p.m / (target.units * part)), mr) for part in (1, 2, 4, 8))
                for mc in {min(most, _round_up(p.m, mr)), *(min(most, rows) for rows in even)}:
                    yield CacheTile(mc, kc, nc, mr, nr)


def _cpu_contraction(target: Target, p: Contraction, tile: CacheTile) -> Work:
    """A goes to L2 once per panel of B, C in and out once per kc; a load, even of a scalar, is a vector's."""
    core = target.core
    assert core is not None
    vectors = tile.nr * max(4, p.bytes) // core.simd_bytes
    m, n = _round_up(p.m, tile.mc), _round_up(p.n, tile.nr)  # others wait for whole blocks
    flops = 2.0 * p.batch * m * n * p.k
    a, b, c = p.m * p.k * p.bytes, p.k * p.n * p.bytes, p.m * p.n * p.out_bytes
    steps = p.batch * (m // tile.mr) * (n // tile.nr) * p.k
    passes = ceil(p.k / tile.kc)
    other = {u: v * p.batch * p.m * p.n for u, v in p.epilogue.items()}
    return Work(
        dram_read=p.batch * (a * ceil(p.n / tile.nc) + 2 * b + c * (passes - 1 + p.reads / p.out_bytes)),
        dram_write=p.batch * (b + c * passes),
        l2_bytes=p.batch * a * (n // tile.nr),
        shared_bytes=steps * (vectors + tile.mr) * core.simd_bytes,
        flops={
            p.vector_unit: flops,
            **{u: v + (flops if u == p.vector_unit else 0) for u, v in other.items()},
        },
        blocks=p.batch * ceil(p.m / tile.mc) * ceil(p.n / tile.nc),
        lanes=min(1.0, tile.mr * vectors / (core.fma_units * core.fma_latency)),
        working_set=p.batch * (a + 2 * b + c),
    )


# ---- rows ----


@dataclass(frozen=True)
class Rows:
    """A kernel that reduces along rows: `reads` and `writes` operands of `rows` x `length` elements of
    `element_bytes`.

    `live`: values an element that are kept between passes. `passes` over a row: reductions, and one to write.
    `flops`: operations an element, by unit.
    """

    rows: int
    length: int
    element_bytes: int = 4
    reads: int = 1
    writes: int = 1
    live: int = 1
    passes: int = 2
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class RowTile:
    """`threads` of a block that share a row, loads of `vector` elements, `vectors` of them a thread;
    `cluster` blocks that share a row. `keep`: where a row is between passes ("registers", "l1", "l2",
    "memory"). CPU: `rows_per_block` is a task.
    """

    threads: int
    vector: int
    rows_per_block: int
    vectors: int
    cluster: int = 1
    keep: str = "registers"
    registers: int = 32


def row_candidates(target: Target, problem: Rows) -> Iterator[RowTile]:
    """Every way to deal rows out to threads that fits registers; rows are read again where nothing holds
    them.
    """
    p = problem
    if target.core is not None:
        yield from _row_tasks(target, p)
        return
    row = p.length * p.element_bytes
    vector = next((w // p.element_bytes for w in (16, 8, 4, 2) if w >= p.element_bytes and row % w == 0), 1)
    words = max(1, p.element_bytes // 4)
    for threads, cluster in product((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), (1, 2, 4, 8, 16)):
        if cluster > 1 and (threads < 128 or not target.has("clusters")):
            continue
        vectors = ceil(p.length / (vector * threads * cluster))
        registers = 32 + vectors * vector * p.live * words
        keeps = [("registers", registers)] if registers <= 224 else []
        if cluster == 1 and vectors > 1:
            keeps.append(("memory", 40 + 4 * vector * words))
        for keep, count in keeps:
            for rows in {max(1, size // threads) for size in (threads, 128, 256)}:
                count = _round_up(count, 8)
                if rows <= p.rows and occupancy(target, threads * rows, count).blocks:
                    yield RowTile(threads, vector, rows, vectors, cluster, keep, count)


def _row_tasks(target: Target, p: Rows) -> Iterator[RowTile]:
    core = target.core
    assert core is not None
    vector = core.simd_bytes // max(4, p.element_bytes)
    row = p.length * p.element_bytes * (p.reads + p.writes)
    keep = home_level(target, row * target.units)
    for tasks in (4, 2, 1, 8, 16, 64):  # a few for each core, so that one held up does not hold up all
        yield RowTile(1, vector, max(1, ceil(p.rows / (tasks * target.units))), ceil(p.length / vector), 1, keep)


_BARRIER_NS = {"warp": 60, "block": 160, "cluster": 1500}  # a reduction across; the last measured on an H200


def row_work(target: Target, p: Rows, tile: RowTile) -> Work:
    """One read and one write of everything; more where rows are not kept; a reduction stalls the loads of its
    block.
    """
    once, written = (p.rows * p.length * p.element_bytes * n for n in (p.reads, p.writes))
    padded = _round_up(p.length, tile.vector * tile.threads * tile.cluster)
    flops = {u: n * p.rows * p.length for u, n in p.flops.items()}
    blocks = ceil(p.rows / tile.rows_per_block) * tile.cluster
    if target.core is not None:
        again = {"l2_bytes" if tile.keep != "l1" else "shared_bytes": p.passes * once + written}
        reads = once * (p.passes if tile.keep == "dram" else 1)
        return Work(
            reads,
            written,
            flops=flops,
            blocks=blocks,
            lanes=p.length / padded,
            working_set=once + written,
            **again,
        )
    span = "cluster" if tile.cluster > 1 else "block" if tile.threads > 32 else "warp"
    shuffles = 2.0 * p.rows * p.passes * tile.threads * tile.cluster * log2(max(2, min(32, tile.threads)))
    reads, block = once, tile.threads * tile.rows_per_block
    if tile.keep == "memory":
        held = occupancy(target, block, tile.registers).blocks * target.units * tile.rows_per_block
        misses = 0.5 if held * p.length * p.element_bytes * p.reads < 0.5 * target.l2.bytes else 1
        reads *= 1 + misses * (p.passes - 1)  # half at best: a block that reads again asks the memory for nothing new
    return Work(
        dram_read=reads,
        dram_write=written,
        l2_bytes=written + once * (p.passes if tile.keep == "memory" else 1),
        flops={**flops, "int": flops.get("int", 0) + shuffles},
        blocks=blocks,
        threads=block,
        registers=tile.registers,
        bytes_in_flight=min(tile.vectors, 8) * tile.vector * p.element_bytes * p.reads * p.length / padded,
        stall_ns=_BARRIER_NS[span] * max(1, p.passes - 1),
        lanes=p.length / padded,
    )


def row_cost(target: Target, problem: Rows, tile: RowTile) -> Prediction:
    return predict(row_work(target, problem, tile), target)


# ---- choice ----


@dataclass(frozen=True)
class Choice:
    """A tile and what it is predicted to cost."""

    tile: Tile | RowTile
    prediction: Prediction

    @property
    def rank(self) -> float:
        terms = self.prediction.terms
        return self.prediction.time_us + 0.1 * (sum(terms.values()) - max(terms.values()))


def choose(target: Target, problem: Contraction | Rows, instructions: Collection[str] | None = None) -> list[Choice]:
    """All candidates, cheapest first: by the predicted time and a tenth of the other terms, which never hide
    wholly.
    """
    if isinstance(problem, Rows):
        choices = [Choice(t, row_cost(target, problem, t)) for t in row_candidates(target, problem)]
    else:
        tiles = contraction_candidates(target, problem, instructions)
        choices = [Choice(t, contraction_cost(target, problem, t)) for t in tiles]
    return sorted(choices, key=lambda c: (round(c.rank, 4), _effort(c.tile)))


def _effort(tile: Tile | RowTile) -> tuple[int, ...]:
    """What breaks a tie: the simpler tile."""
    match tile:
        case BlockTile():
            return tile.split_k, tile.cluster, tile.threads, tile.shared
        case RowTile():
            return (
                tile.cluster,
                tile.threads * (tile.rows_per_block if tile.threads > 1 else 1),
                tile.registers,
            )
        case CacheTile():
            return (-tile.kc, -tile.mc)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
