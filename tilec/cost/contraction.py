"""The cost of a contraction on a GPU by its tiles: C[batch, m, n] = A[batch, m, k] B[batch, k, n]."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import groupby, product
from math import ceil, log2, prod
from operator import itemgetter

from tilec.core.fitted import Barriers, ContractionTimes, WarpgroupTimes
from tilec.core.hardware import LINE, SECTOR
from tilec.core.target import Target
from tilec.cost.block_tile import BlockTile, Contraction, element_bytes
from tilec.cost.model import Choice, Prediction, Work, balance, least, occupancy, predict, round_up
from tilec.cost.ranking import Ranked, Ranking
from tilec.cost.stream_k import l2_speed, parts_us, shared_rounds, shared_tiles
from tilec.cost.tile_order import dram_reads, grouped, reads_once

Shape = tuple[int, int, int, int, int, int]
"""Rows, columns and inner elements of a block; its warps over rows and over columns that compute, and those that only load."""


def contraction_candidates(
    target: Target, problem: Contraction, instructions: Collection[str] | None = None
) -> Iterator[BlockTile]:
    """Every tile worth predicting; each fits registers and shared memory.

    `instructions`: those that the caller can emit, of "wgmma" and "mma.sync"; None for both. Without any, "fma".
    """
    for instruction in _instructions(target, problem, instructions):
        for shape in block_shapes(instruction, element_bytes(problem.dtype)):
            yield from _shaped(target, problem, instruction, shape)


def _instructions(target: Target, p: Contraction, wanted: Collection[str] | None) -> Sequence[str]:
    able = (i for i in target.instructions(p.unit_type) if i in _SHAPES)
    return [i for i in able if wanted is None or i in wanted] or ("fma",)


def _shaped(target: Target, p: Contraction, instruction: str, shape: Shape) -> Iterator[BlockTile]:
    yield from _staged(target, p, instruction, *shape)
    for inner in INNER_WARPS if instruction == "mma.sync" else ():
        yield from _staged(target, p, instruction, *shape, inner)


def _wgmma_shapes(size: int) -> Iterator[Shape]:
    """Shapes of up to three warpgroups of 64 rows and a producer; K in steps of one 128-byte swizzle."""
    for bm, bn in product((64, 128, 192), (16, 32, 64, 96, 128, 160, 192, 224, 256)):
        yield bm, bn, 128 // size, bm // 16, 1, 4


def _mma_shapes(size: int) -> Iterator[Shape]:
    """Warps of at least 16 x 16, at most 64 x 128; every warp loads and computes."""
    sizes = (16, 32, 64, 128, 256)
    for bm, bn, bk, (wm, wn) in product(sizes, sizes, (64, 128), ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2))):
        if 16 <= bm // wm <= 64 and 16 <= bn // wn <= 128:
            yield bm, bn, bk // size, wm, wn, 0


def _fma_shapes(size: int) -> Iterator[Shape]:
    """4 x 8 threads a warp with 4 to 8 rows and 4 to 16 columns each."""
    for bm, bn, bk, tm, tn in product((16, 32, 64, 128), (32, 64, 128, 256), (8, 16, 32), (4, 8), (4, 8, 16)):
        if bm % (4 * tm) == 0 and bn % (8 * tn) == 0 and 2 <= (warps := bm * bn // (32 * tm * tn)) <= MOST_WARPS:
            yield bm, bn, bk, bm // (4 * tm), warps // (bm // (4 * tm)), 0


def block_shapes(instruction: str, size: int) -> Iterator[Shape]:
    """Of the blocks that an instruction is used with, for elements of `size` bytes."""
    return _SHAPES.get(instruction, _fma_shapes)(size)


_SHAPES = {"wgmma": _wgmma_shapes, "mma.sync": _mma_shapes}


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
    inner: int = 1,
) -> Iterator[BlockTile]:
    """Pipeline depths and clusters of one block shape, as far as they fit."""
    if _too_large(p, bm, bn):
        return
    sm, bk, tiles = target.sm, bk * inner, ceil(p.m / bm) * ceil(p.n / bn) * p.batch
    assert sm is not None
    if inner > 1 and (wm * wn * inner > 8 or bk > p.k or tiles > 2 * target.units):
        return
    accumulators, own, registers = block_registers(target, p, instruction, bm, bn, wm * wn, producers)
    stage = round((p.widths[0] * bm + p.widths[1] * bn) * bk * p.bytes)
    spare = bm * 64 * 4 if producers else 0  # sums leave 64 columns at a time
    deepest = min(DEEPEST[instruction], max(0, sm.shared_per_block - spare - 1024) // stage, max(2, ceil(p.k / bk)))
    least = min(3, max(2, ceil(p.k / bk))) if producers and p.parts == 1 else 2  # as in DeepGEMM; steps of parts are long
    if own > sm.registers_per_thread - 7 or deepest < least:
        return
    shapes = CLUSTERS if producers and target.has("clusters") else CLUSTERS[:1]
    clusters = [c for c in shapes if ceil(p.m / bm) % c[0] == 0 == ceil(p.n / bn) % c[1]]
    depths = {deepest} if producers else {2, min(3, deepest), min(4, deepest), deepest} & set(range(2, deepest + 1))
    depths -= {2} if min(p.widths) < 1 and deepest > 2 else set()
    group, across = grouped(target, bm, bn, p)
    for stages, cluster in product(sorted(depths), clusters):
        shared = stages * stage + spare
        if occupancy(target, 32 * (wm * wn * inner + producers), registers, shared).blocks:
            tile = BlockTile(
                bm, bn, bk, stages, instruction, wm, wn, producers, cluster, group, registers, shared, inner_warps=inner,
                across=across,
            )  # fmt: skip
            yield tile
            if instruction == "wgmma" and (not p.two_level or (p.two_level == bk and p.parts == 1 and accumulators <= 64)):
                rounds = shared_rounds(tiles, reached(target, tile), ceil(p.k / bk))
                yield from (replace(tile, stream_k=n) for n in rounds)
            if instruction == "wgmma" and prod(cluster) == 1 and _kept_fits(target, p, bm, bn):
                yield from _kept(target, p, tile)


def block_registers(
    target: Target, p: Contraction, instruction: str, bm: int, bn: int, warps: int, producers: int
) -> tuple[int, int, int]:
    """Registers of a thread for sums, all that it takes, and those that it is launched with: threads that load need fewer."""
    assert target.sm is not None
    accumulators = bm * bn * max(4, p.bytes if instruction == "fma" else 4) // 4 // (32 * warps)
    own = accumulators + (accumulators // 8 + 32 if producers or instruction == "fma" else accumulators // 4 + 48)
    own += accumulators if p.two_level else 0  # partial sums
    registers = round_up(-(-(own * warps + 40 * producers) // (warps + producers)), 8)
    most = target.sm.registers // (32 * (warps + producers)) // 8 * 8
    return accumulators, own, min(registers, most) if p.two_level else registers


def _too_large(p: Contraction, bm: int, bn: int) -> bool:
    """Whether most of a block's rows, or of its columns, lie beyond the edges of C."""
    return (bm >= 4 * p.m and bm > 64) or (bn >= 4 * p.n and bn > 32)


def _kept_fits(target: Target, p: Contraction, bm: int, bn: int) -> bool:
    """Whether all blocks have the same columns, and each has several tiles."""
    return p.batch == 1 and bn >= p.n and ceil(p.m / bm) >= 2 * target.units


def _kept(target: Target, p: Contraction, tile: BlockTile) -> Iterator[BlockTile]:
    """With all of B in shared memory beside the stages of A, where that leaves enough of them."""
    assert target.sm is not None
    held, stage = round_up(p.k, tile.bk) * tile.bn * p.bytes, tile.bm * tile.bk * p.bytes
    spare = tile.shared - tile.stages * (tile.bm + tile.bn) * tile.bk * p.bytes
    stages = min(8, (target.sm.shared_per_block - spare - 1024 - held) // stage)
    if stages >= 4 and not p.two_level:
        yield replace(tile, stages=stages, shared=stages * stage + spare + held, kept=True)


LEAST_STAGES = 3  # that hide the latency of copies
COPY_LATENCIES = 1.5  # of memory, that pass from where a stage is free until its next factors are there
DEEPEST = {"fma": 3, "mma.sync": 6, "wgmma": 8}
"""Stages; more hide no more latency."""
INNER_WARPS = (2, 4)  # that divide a step of k, where there are few tiles
MOST_WARPS = 16  # that multiply
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))  # blocks along m and n


def contraction_work(target: Target, p: Contraction, tile: BlockTile) -> Work:
    """The work of one tiling, including the parts of tiles beyond the edges of C."""
    rows, columns = ceil(p.m / tile.bm), ceil(p.n / tile.bn)
    tiles = rows * columns * p.batch
    fit, warpgroups, idle, partial = target.fit(WarpgroupTimes), tile.instruction == "wgmma", {}, 0.0
    k = round(round_up(p.k, tile.bk) * (p.overhang if warpgroups else 1))
    lines = [(1 + fit.unaligned * (warpgroups and u)) * s for u, s in zip(p.unaligned, p.sectors)]
    left = tiles * k * p.bytes * p.widths[0] * round_up(tile.bm, p.copied[0])
    right = (min(tiles, target.units) if tile.kept else tiles) * k * p.bytes * p.widths[1] * round_up(tile.bn, p.copied[1])
    loaded = lines[0] * left / tile.cluster[1] + lines[1] * right / tile.cluster[0]  # L2 to SRAM
    result = p.batch * p.m * p.n * p.out_bytes * p.stored
    flops = 2.0 * tiles * tile.bm * tile.bn * k * p.products
    unit = p.vector_unit if tile.instruction == "fma" else f"tensor.{p.unit_type}@{tile.instruction}"
    other = {u: n * p.batch * p.m * p.n for u, n in p.epilogue.items()}
    exposed: dict[str, float] = {}
    if any(p.staged):
        operations = _staging(target, p, tile, tiles)
        singly = sum(s * size for s, size, alone in zip(p.staged, (tile.bm, tile.bn), p.alone) if alone)
        other["int"] = other.get("int", 0) + tiles * k * max(0.0, operations - singly)
        if singly:
            exposed["int"] = 1e6 * tiles * k * singly / target.peak("int") / balance(tiles, target.units)
    if any(p.uncoalesced):
        touched = tiles * k * sum(n * size for n, size in zip(p.uncoalesced, (tile.bm, tile.bn)))
        exposed["shared"] = 1e6 * LINE * touched / target.shared_rate
    if p.two_level:
        other["fma.f32"] = other.get("fma.f32", 0) + 2.0 * tiles * tile.bm * tile.bn * ceil(k / p.two_level)
    further = _further(p)
    shared = left + right + _operand_reads(tile, tiles * k * p.bytes * p.products / p.parts) + (2 * result if tile.producers else 0)
    if warpgroups:
        slower = _rounds(target, tile, tiles) * (1 + fit.cluster * (prod(tile.cluster) > 1))
        speed = l2_speed(fit, shared_tiles(tiles, reached(target, tile), tile.stream_k) / tiles) if tile.stream_k else fit.l2
        loaded, shared = slower * loaded / speed, slower * shared / fit.smem
        pace = {unit: slower * boosted(target, unit, flops + p.neighbours)}
        idle = _between_tiles(target, p, tile, tiles)
        serial = fit.start_us + fit.cluster_us * (prod(tile.cluster) > 1)
    else:
        serial, pace = _fill_and_drain(target, p, tile, tiles), {}
    if tile.stream_k:
        idle["waits"] += parts_us(fit, tiles, reached(target, tile), tile.stream_k, tile.bm * tile.bn)
        partial = 2 * 4.0 * target.units * tile.bm * tile.bn  # written, and read
    return Work(
        dram_read=dram_reads(target, p, tile) + further,
        dram_write=result,
        l2_bytes=loaded + result + partial + further + cut_bytes(target, p),
        shared_bytes=shared,
        flops={unit: flops, **{u: n + (flops if u == unit else 0) for u, n in other.items()}},
        pace=pace,
        blocks=round_up(tiles, target.units) if tile.stream_k else tiles,
        threads=tile.threads,
        registers=tile.registers,
        shared_per_block=tile.shared,
        bytes_in_flight=(tile.stages - 1) * (p.widths[0] * tile.bm + p.widths[1] * tile.bn) * tile.bk * p.bytes / tile.threads,
        lanes=_busy_lanes(target, tile, tiles, unit) if tile.instruction == "fma" else 1.0,
        serial_us=serial,
        exposed_us=exposed,
        idle_us=idle,
    )


def _busy_lanes(target: Target, tile: BlockTile, blocks: int, unit: str) -> float:
    """The share of the vector units' speed that is left. Products of f32 take a clock each: blocks wait at a barrier in each step,
    at two of them with two stages; schedulers wait for shared memory where they have few warps, and issue more loads for fewer
    products of a thread."""
    fit, sm = target.fit(ContractionTimes), target.multiprocessor
    if unit != "fma.f32":
        return fit.warp_wait ** log2(tile.warps)
    resident = min(occupancy(target, tile.threads, tile.registers, tile.shared).blocks, ceil(blocks / target.units))
    step_ns = 2e9 * resident * tile.bm * tile.bn * tile.bk * target.units / target.peak(unit)
    barriers = target.fit(Barriers).block_ns * (1 + (tile.stages == 2)) * (1 + log2(tile.warps) / 4)
    few = min(1.0, (1 + fit.few_warps / 2) / (1 + fit.few_warps * sm.schedulers / (resident * tile.warps)))
    high, wide = tile.bm // (4 * tile.warp_m), tile.bn // (8 * tile.warp_n)  # of a thread
    loads = 1 + fit.load_clocks * (high / 2 + wide / 4) / (high * wide)  # in pairs along k, and in fours
    return few / (loads * (1 + barriers / step_ns))


def cut_bytes(target: Target, p: Contraction) -> float:
    """Bytes that L2 could move while sectors are written of which a part is: it fetches the rest of them."""
    return target.fit(ContractionTimes).cut_sectors * SECTOR * p.cut * p.batch * p.m * p.n * p.stored


def _further(p: Contraction) -> float:
    """Bytes that an epilogue reads."""
    return p.reads * p.batch * p.m * p.n


def boosted(target: Target, unit: str, flops: float) -> float:
    """The share of their usual time that products of warpgroups take: before power limits the clock they are faster."""
    fit, usual = target.fit(WarpgroupTimes), 1e6 * flops / target.peak(unit)
    return max(1 / fit.products, 1 - (fit.products - 1) * fit.boost_us / max(usual, 1e-9))


def _staging(target: Target, p: Contraction, tile: BlockTile, blocks: int) -> float:
    """Integer operations of a block for a step of one along k. Each warp converts and loads what it multiplies; where there are
    few, or one block, which waits at its barriers, nothing hides what they wait for."""
    if min(p.widths) == 1:
        return tile.bm * p.staged[0] + tile.bn * p.staged[1]
    left, right = (s if w < 1 else 1 for s, w in zip(p.staged, p.widths))
    resident = min(occupancy(target, tile.threads, tile.registers, tile.shared).blocks, blocks / target.units)
    assert target.sm is not None
    waits = 1 / max(1, resident) + 1 / max(1, resident * tile.warps / target.sm.schedulers)
    longer = 1 + target.fit(ContractionTimes).byte_wait * waits
    return longer * (tile.bm * tile.warp_n * left + tile.bn * tile.warp_m * right)


def reached(target: Target, tile: BlockTile) -> int:
    """Units that the blocks of clusters are on."""
    size = prod(tile.cluster)
    units = target.units if size == 1 or target.sm is None else target.sm.clusters(size, 1) * size
    return min(units, tile.launched or units)


def _rounds(target: Target, tile: BlockTile, blocks: int) -> float:
    """Rounds of clusters over those of single blocks: clusters do not reach all units. Rounds that blocks share are not whole."""
    if tile.stream_k:
        return target.units / reached(target, tile)
    return max(1.0, rounds(target, tile, blocks) / ceil(blocks / target.units))


def rounds(target: Target, tile: BlockTile, tiles: int) -> int:
    """Tiles that the slowest unit computes one after another. Persistent blocks that are more than the units wait for others to
    end, and then have as many tiles as these."""
    at_once = reached(target, tile)
    return persistent_rounds(tile.launched or at_once, tiles, at_once)


def persistent_rounds(launched: int, tiles: int, at_once: int) -> int:
    """Of so many blocks, of which `at_once` run at a time."""
    launched = max(1, min(launched, tiles))
    return ceil(launched / at_once) * ceil(tiles / launched)


def _between_tiles(target: Target, p: Contraction, tile: BlockTile, blocks: int) -> dict[str, float]:
    """Time, by cause, in which the matrix units of an SM wait while sums leave registers; the next tile's loads go on."""
    fit, waves = target.fit(WarpgroupTimes), rounds(target, tile, blocks)
    elements, alone = tile.bm * tile.bn, fit.alone if tile.bm == 64 else 1
    times = {u.partition(".")[0]: fit.epilogue * 1e6 * n * elements * target.units / target.peak(u) for u, n in p.epilogue.items()}
    times["waits"] = elements * max(2, p.out_bytes) / (128 * 256 * 2) * fit.tile_us
    if tile.stages < LEAST_STAGES:  # a step's copy then begins when the one before is multiplied
        steps = ceil(p.k * p.overhang / tile.bk)
        each = 1e6 * 2 * tile.bm * tile.bn * tile.bk * p.products * target.units / target.peak(f"tensor.{p.unit_type}@wgmma")
        times["waits"] += steps * max(0.0, COPY_LATENCIES * 1e-3 * target.dram.latency_ns - (tile.stages - 1) * each) / alone
    return {cause: waves * alone * us for cause, us in times.items() if us}


def _fill_and_drain(target: Target, p: Contraction, tile: BlockTile, blocks: int) -> float:
    """Every wave waits for its first loads and stores its last tile; an SM's other blocks hide some."""
    resident = occupancy(target, tile.threads, tile.registers, tile.shared).blocks
    waves = ceil(blocks / (target.units * resident))
    store = 1e6 * resident * tile.bm * tile.bn * p.out_bytes / target.l2.rate(1)
    return (waves * (1e-3 * target.dram.latency_ns + store)) / min(resident, waves * resident, 8)


def _operand_reads(tile: BlockTile, elements: float) -> float:
    """SRAM bytes that the instruction reads: wgmma A once, B per 64 rows; warps theirs each."""
    if tile.instruction == "wgmma":
        return elements * (tile.bm + tile.bn * (tile.bm // 64))
    return elements * (tile.bm * tile.warp_n + tile.bn * tile.warp_m)


def least_us(target: Target, p: Contraction, instruction: str) -> float:
    """The time of the products alone, where all units are busy all the time."""
    unit = p.vector_unit if instruction == "fma" else f"tensor.{p.unit_type}@{instruction}"
    return 1e6 * 2 * p.batch * p.m * p.n * p.k * p.products / target.peak(unit)


def contraction_cost(target: Target, problem: Contraction, tile: BlockTile) -> Prediction:
    """max(L2, SRAM, DRAM, operations, each over its rate) / wave efficiency, as in DeepGEMM."""
    return predict(contraction_work(target, problem, tile), target)


@dataclass(frozen=True, eq=False)
class Family:
    """Tiles of one instruction that have as many rows and columns. `tile` has what none of them is better by: the fewest warps, and
    the shortest steps. `number`: of the sizes, in the order of tiles. `least_us`, `least_rank`: a time and a rank that none of the
    tiles is below, for the problem or one of more rows and columns that take more blocks."""

    target: Target
    problem: Contraction
    tile: BlockTile
    shapes: tuple[Shape, ...]
    number: int
    least_us: float
    least_rank: float

    @cached_property
    def choices(self) -> list[Ranked[Choice[BlockTile]]]:
        """With what decides between them: the rank, and of equals the simpler tile."""
        instruction, kind = self.tile.instruction, _kind(self.tile)
        tiles = (t for shape in self.shapes for t in _shaped(self.target, self.problem, instruction, shape))
        found = ((n, Choice(t, contraction_cost(self.target, self.problem, t))) for n, t in enumerate(tiles) if _kind(t) == kind)
        return [((round(c.rank, 4), *_effort(c.tile), self.number, n), c) for n, c in found]


def _kind(tile: BlockTile) -> tuple[bool, bool]:
    return tile.kept, tile.stream_k > 0


@lru_cache(maxsize=256)  # a program asks for several products of one kind, and for each before and after it packs
def families(target: Target, problem: Contraction, instruction: str) -> tuple[Family, ...]:
    """All candidates of an instruction."""
    found = []
    for number, ((bm, bn), shapes) in enumerate(_by_sizes(instruction, element_bytes(problem.dtype))):
        if _too_large(problem, bm, bn):
            continue
        warpgroups, (_, _, bk, wm, wn, producers) = instruction == "wgmma", shapes[0]
        group, across = grouped(target, bm, bn, problem)
        warps = (wm, wn) if warpgroups else (1, 1)
        stages = LEAST_STAGES if warpgroups else 2
        tile = BlockTile(bm, bn, bk, stages, instruction, *warps, producers, group=group, across=across)
        kinds = [(tile, work := _least_work(target, problem, tile))]
        if warpgroups:  # shared steps leave no unit idle
            kinds.append((replace(tile, stream_k=1), replace(work, blocks=round_up(work.blocks, target.units))))
        if warpgroups and _kept_fits(target, problem, bm, bn):
            kinds.append((kept := replace(tile, kept=True), _least_work(target, problem, kept)))
        for kind, work in kinds:
            time, rank = ((1 - 1e-9) * bound for bound in least(work, target))  # rounding may go either way
            found.append(Family(target, problem, kind, shapes, number, time, rank))
    return tuple(found)


def _least_work(target: Target, p: Contraction, tile: BlockTile) -> Work:
    """Of no tile of a family is it less: as if clusters left nothing to load from L2, and DRAM was read once."""
    p = p if min(p.widths) == 1 else replace(p, staged=(0, 0))  # of which it takes all warps to know what they wait for
    work, waits = contraction_work(target, p, tile), target.fit(ContractionTimes).warp_wait
    return replace(
        work, dram_read=reads_once(p) + _further(p), serial_us=work.serial_us if tile.producers else 0,
        l2_bytes=0 if tile.producers else work.l2_bytes, lanes=max(1.0, waits) ** log2(MOST_WARPS),
    )  # fmt: skip


@cache
def _by_sizes(instruction: str, size: int) -> list[tuple[tuple[int, int], tuple[Shape, ...]]]:
    """The shapes of blocks by their rows and columns."""
    return [((bm, bn), tuple(shapes)) for (bm, bn), shapes in groupby(block_shapes(instruction, size), itemgetter(0, 1))]


def choose(
    target: Target, problem: Contraction, instructions: Collection[str] | None = None
) -> Ranking[Choice[BlockTile]]:
    """All candidates of `instructions`, or of all instructions of the target, cheapest first."""
    ranking = Ranking[Choice[BlockTile]]()
    for at, instruction in enumerate(_instructions(target, problem, instructions)):
        for family in families(target, problem, instruction):
            ranking.add(round(family.least_rank, 4), partial(_numbered, family, at))
    return ranking


def _numbered(family: Family, at: int) -> list[Ranked[Choice[BlockTile]]]:
    return [((*numbers[:-2], at, *numbers[-2:]), choice) for numbers, choice in family.choices]


def _effort(tile: BlockTile) -> tuple[float, ...]:
    """A tie goes to the simpler tile."""
    return tile.stream_k, prod(tile.cluster), tile.threads, tile.shared
