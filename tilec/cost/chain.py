"""The cost of a contraction chain: O[rows, columns] = sum over j of w(Q K^T)[rows, j] V[j, columns]; or reductions of Q K^T
over j alone.

A block has `bm` rows, and loops over tiles of `bn` elements of j. The scores and O are in registers. The matrix units
limit the time, or the float and special units, by their operations for each score. Without a second contraction the factors
of Q K^T come in steps of one line of their inner dimension, so that it may be long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, prod

from tilec.core.fitted import ChainTimes, WarpgroupTimes
from tilec.core.hardware import LINE, ROWS, WIDE
from tilec.core.target import Target
from tilec.cost.block_tile import element_bytes, unit_type
from tilec.cost.chain_waits import Block, warpgroups_wait, warps_wait
from tilec.cost.contraction import COPY_LATENCIES, boosted, persistent_rounds
from tilec.cost.model import Choice, Prediction, Work, predict, ranked, round_up

MOST_PARTS = 256  # blocks that share rows
PARTS_WAVES = 8  # rounds of such blocks
DEEPEST = 8  # steps in shared memory; more hide no more latency
ANEW = 8  # registers of what computes rows of numbers without parts anew, in ptxas's schedule, which keeps scores for longer, too
CHAIN_ROWS = {"wgmma": (64, 128, 192), "mma.sync": (16, 32, 64, 128)}
"""Rows of a block, by the matrix instruction."""
WARP_ROWS = (16, 32)
"""Rows of a warp that multiplies by `mma.sync`. With 32 it reads a tile from shared memory half as often for each row."""


def product_depth(size: int) -> int:
    """Elements of `size` bytes along the inner dimension that products come in: at least the 16 columns of two fragments."""
    return max(16, 2 * WIDE // size)


def chain_line(unit: str, columns: int, size: int) -> int:
    """Elements of `size` bytes in a line of `columns` in shared memory: whole swizzled lines for `wgmma`, and with padding for
    `mma.sync`."""
    return round_up(columns, LINE // size) if unit == "wgmma" else round_up(columns, product_depth(size)) + WIDE // size


def reduction_depth(unit: str, inner: int, size: int) -> int:
    """Elements of `size` bytes of the inner dimension that one step of a reduced contraction has."""
    return LINE // size if unit == "wgmma" else min(LINE // size, round_up(inner, product_depth(size)))


@dataclass(frozen=True)
class ChainProblem:
    """A contraction chain: `batch` problems of `rows` rows, each with `length` elements between the contractions. Scores
    sum over `inner`, results have `columns`; 0 where no second contraction follows. `dtype`: in which the scores' factors are
    multiplied. `of_values`: in which weights and values are, where that is another type. `parts`: numbers of these types that are
    stored for one of the scores' factors, and for a value. `weight_terms`: the numbers that make up one weight. `pairs`: the
    products of such numbers that a product of a score takes, and one of a weight and a value (0: `weight_terms`). `share`: the
    share of scores in tiles that the mask does not exclude. `fma`, `special`: operations for each score. `out_bytes`: bytes of a
    result's element.
    `k_major`: which of the scores' factors are contiguous along `inner`.
    `units`: the matrix instructions that may multiply. `row_extents`: of the dimensions of rows, where they are several, and
    `head_groups`: for each of them the number that a block's part has to divide; 0 where any will do. `score_bytes`: what is read
    for each score, from operands of `operand_bytes`; `line_bytes`: of the lines that requests touch for it, where threads read
    apart. `factor_bytes`: of the factors, of which several heads may share some.
    `line_steps`: steps are a multiple of so many whole lines, since a factor lies along them; 0: of none. `listed`: a block lists
    the steps that data leave it.
    `pages`: elements of the length that lie side by side, by factor, where memory tells the place of each page.
    `by_data`: data tell how many steps a block has. `other_registers`: that the computation of weights takes.
    `score_registers`: for each score, that operands which are read ahead take. `more_inner`: what further contractions sum over,
    whose results meet the scores in the weights. `more_columns`: those of further results, each of weights of its own.
    `columns_of_rights`: the results whose values are the tiles of a score's right factor.
    """

    rows: int
    length: int
    inner: int
    columns: int
    batch: int
    dtype: str = "bf16"
    weight_terms: int = 1
    share: float = 1.0
    fma: float = 4
    special: float = 1
    out_bytes: int = 2
    k_major: tuple[bool, bool] = (True, True)
    units: tuple[str, ...] = ("wgmma",)
    row_extents: tuple[int, ...] = ()
    head_groups: tuple[int, ...] = ()
    score_bytes: int = 0
    operand_bytes: int = 0
    line_bytes: float = 0
    factor_bytes: int | None = None
    line_steps: int = 0
    listed: bool = False
    pages: tuple[int, ...] = ()
    by_data: bool = False
    other_registers: int = 0
    score_registers: float = 0
    more_inner: tuple[int, ...] = ()
    of_values: str = ""
    parts: tuple[int, int] = (1, 1)
    pairs: tuple[int, int] = (1, 0)
    more_columns: tuple[int, ...] = ()
    columns_of_rights: int = 0

    @property
    def bytes(self) -> int:
        """Of an element of the scores' factors."""
        return element_bytes(self.dtype)

    @property
    def value_bytes(self) -> int:
        """Of an element of the values."""
        return element_bytes(self.of_values or self.dtype)

    @property
    def step_bytes(self) -> int:
        """Of what each element of the length has of all factors."""
        return self.parts[0] * self.bytes * sum(self.firsts) + self.parts[1] * self.value_bytes * sum(self.products)

    @property
    def line(self) -> int:
        """Elements of a swizzled line."""
        return LINE // self.bytes

    @property
    def firsts(self) -> tuple[int, ...]:
        """What the contractions before the weights sum over."""
        return (self.inner, *self.more_inner)

    @property
    def products(self) -> tuple[int, ...]:
        """The columns of all results."""
        return (self.columns, *self.more_columns)

    def has_box(self, rows: int) -> bool:
        """Whether a block may have so many rows: not 16 where 24 go together."""
        return any(self._boxes(rows))

    def box(self, rows: int) -> tuple[int, ...]:
        """The part of every dimension of rows that a block of so many has: powers of two with this product, such that the fewest
        blocks cover the rows; then the longest inside."""
        return min(self._boxes(rows), key=lambda b: (self._blocks(b), [-t for t in reversed(b)]))

    def _boxes(self, rows: int) -> Iterator[tuple[int, ...]]:
        head_groups = self.head_groups or (0,) * max(1, len(self.row_extents))
        return (b for b in _boxes(len(head_groups), rows) if all(map(fits_head_group, b, head_groups)))

    def blocks(self, rows: int) -> int:
        """Of so many rows, for one problem."""
        return self._blocks(self.box(rows))

    def _blocks(self, box: tuple[int, ...]) -> int:
        extents = self.row_extents or (self.rows,)
        head_groups = self.head_groups or (0,) * len(extents)
        return prod(ceil(e / min(t, g or t)) for e, t, g in zip(extents, box, head_groups))


def fits_pages(step: int, pages: tuple[int, ...]) -> bool:
    """Whether a step of so many elements has whole pages, or is a part of one, as boxes are."""
    return all(step % page == 0 or page % step == 0 for page in pages)


def fits_head_group(size: int, head_group: int) -> bool:
    """Whether a block may have a box of this size along a dimension of which `head_group` elements go together: a part of these, or
    all of them and no more in a larger box."""
    return head_group == 0 or head_group % size == 0 or size > head_group


def _boxes(dims: int, points: int) -> Iterator[tuple[int, ...]]:
    """All boxes of so many points whose sizes are powers of two."""
    if dims == 1:
        yield (points,)
        return
    for size in (1 << p for p in range(points.bit_length()) if points % (1 << p) == 0):
        yield from ((size, *rest) for rest in _boxes(dims - 1, points // size))


@dataclass(frozen=True)
class ChainTile:
    """`stages`: tiles of K, and of V, in shared memory. By `wgmma`, `groups` warpgroups of 64 rows multiply, and one more loads.
    Without a second contraction: steps of Q and K, or of K alone where Q is kept (`kept_left`); the groups alternate
    (`ping_pong`). `parts` blocks share their rows. `persistent`: as many blocks as run at a time compute tile after tile.
    `launched`: how many persistent blocks, 0 where each unit has one. `row_stages`: tiles whose rows are in shared memory.
    `row_blocks`: of the rows of one problem, 0 for as few as there can be. `at_once`: weights are multiplied before the next step's
    scores, and values that are right factors, too, are loaded once."""

    bm: int
    bn: int
    stages: int
    registers: int
    shared: int
    kept_left: bool = True
    ping_pong: bool = True
    parts: int = 1
    unit: str = "wgmma"
    warp_rows: int = 16
    persistent: bool = False
    row_stages: int = 1
    launched: int = 0
    row_blocks: int = 0
    at_once: bool = False

    @property
    def groups(self) -> int:
        return self.bm // ROWS

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1) if self.unit == "wgmma" else 32 * self.warps

    @property
    def warps(self) -> int:
        """That multiply."""
        return self.bm // self.warp_rows


def chain_tiles(target: Target, p: ChainProblem) -> Iterator[ChainTile]:
    """Every tile that fits registers and shared memory."""
    several = False
    for unit in p.units:
        if several and p.columns and p.rows >= ROWS:  # mma.sync was at most 5% faster, of few short steps, or slower
            return
        for tile in (_product_tiles if p.columns else _reduction_tiles)(target, p, unit):
            if unit != "wgmma" or fits_pages(tile.bn, p.pages):
                several = True
                yield tile


def _blocks(p: ChainProblem, unit: str) -> Iterator[tuple[int, int]]:
    """Rows of a block, and of a warp."""
    least = CHAIN_ROWS[unit][0]
    for bm, own in product(CHAIN_ROWS[unit], WARP_ROWS if unit == "mma.sync" else WARP_ROWS[:1]):
        if own <= bm < max(2 * round_up(p.rows, least), least + 1) and p.has_box(bm):
            yield bm, own


def _product_tiles(target: Target, p: ChainProblem, unit: str) -> Iterator[ChainTile]:
    """Of a chain with a second contraction."""
    assert target.sm is not None
    fit, wide = target.fit(ChainTimes), unit == "wgmma"
    steps = range(32, (fit.step_elements if wide else min(fit.step_elements, fit.warp_step_elements)) + 1, 16)
    for (bm, own), bn in product(_blocks(p, unit), steps):
        if _is_no_step(bn, p, p.line_steps) or (p.more_inner and bn > fit.several_products_elements):
            continue
        most = fit.registers if bm < 3 * ROWS else fit.third_registers
        if not wide:
            most = fit.warp_registers if own == WARP_ROWS[0] else fit.tall_warp_registers
        at_once = wide and bool(p.more_columns) and _held(p, unit, own, bn) > most
        if _held(p, unit, own, bn, at_once) > most + at_once * fit.at_once_registers:
            continue
        registers = chain_registers(target, p, unit, bm, own, bn)
        one = ChainTile(bm, bn, 1, registers, 0, ping_pong=wide and bm > ROWS, unit=unit, warp_rows=own, at_once=at_once)
        for tile in _staged(target, p, one, (2, 3, 4) if wide else (1, 2)):
            if tile.stages <= 2 or p.rows < ROWS:  # deeper where the factors' bytes count, and not the products
                yield tile
                if wide and not p.by_data and not p.pages and p.blocks(bm) * p.batch > target.units:
                    each = (replace(tile, persistent=True, row_stages=n) for n in (2, 1))
                    sized = (replace(t, shared=chain_bytes(p, t)) for t in each)
                    yield next(t for t in sized if t.shared <= target.sm.shared_per_block)
            if p.blocks(bm) * p.batch < 2 * target.units and bn % 32 == 0:
                yield from (replace(tile, parts=parts) for parts in _parts(target, p, tile)[1:])


def _held(p: ChainProblem, unit: str, own: int, bn: int, at_once: bool = False) -> int:
    """Registers of a thread for data, whose warp has so many rows of its own."""
    scores, sums = own * bn // 32, sum(own * round_up(c, 16) // 32 for c in p.products)
    if not p.columns:
        return scores
    wide = unit == "wgmma" and not at_once  # else weights take the places of scores
    words = p.value_bytes * p.weight_terms  # of four weights
    weights = (words if wide else max(0, words - 4)) * scores // 4
    ahead = int(scores * p.score_registers) if unit == "wgmma" else 0
    anew = sums + scores + ANEW if p.parts[1] > 1 else 0  # each step's sums leave the matrix units
    return len(p.firsts) * scores + sums + anew + len(p.products) * weights + p.other_registers + ahead


def chain_registers(target: Target, p: ChainProblem, unit: str, bm: int, own: int, bn: int) -> int:
    """Of a thread at launch, of a block of `bm` rows, of which a warp has `own`, in steps of `bn` elements."""
    assert target.sm is not None
    if unit == "wgmma":
        return 168 if bm < 3 * ROWS or not p.columns else 128
    return min(target.sm.registers_per_thread, _held(p, unit, own, bn) + target.fit(ChainTimes).warp_other)


def _is_no_step(size: int, p: ChainProblem, lines: int) -> bool:
    """Whether half as many elements would do, or are no whole lines, a multiple of so many, where these are asked for."""
    least = lines * LINE // p.value_bytes
    return (lines > 0 and size % least > 0) or (size > (least or 32) and size >= 2 * round_up(p.length, 16))


def _staged(target: Target, p: ChainProblem, tile: ChainTile, depths: Iterable[int]) -> Iterator[ChainTile]:
    """The tile with those numbers of stages that fit shared memory."""
    assert target.sm is not None
    for stages in depths:
        if (shared := chain_bytes(p, replace(tile, stages=stages))) <= target.sm.shared_per_block:
            yield replace(tile, stages=stages, shared=shared)


def _reduction_tiles(target: Target, p: ChainProblem, unit: str) -> Iterator[ChainTile]:
    """Of reductions of the scores, whose factors come in steps of a line of `inner`."""
    assert target.sm is not None
    fit, wide, steps = target.fit(ChainTimes), unit == "wgmma", ceil(p.inner / p.line)
    for (bm, own), bn, kept in product(_blocks(p, unit), range(32, 257, 32), (True, False)):
        if _is_no_step(bn, p, wide and not p.k_major[1]) or (wide and (bm > 2 * ROWS or kept > p.k_major[0])):
            continue
        scores = own * bn // 32
        most = fit.warp_registers if own == WARP_ROWS[0] else fit.tall_warp_registers
        if not wide and scores > most:
            continue
        shares = wide or scores < most  # a part's number and place in memory take registers, too
        registers = chain_registers(target, p, unit, bm, own, bn)
        tile = ChainTile(bm, bn, 2, registers, 0, kept_left=kept, ping_pong=False, unit=unit, warp_rows=own)
        staged = [*_staged(target, p, tile, range(2, DEEPEST + 1) if wide else (2, 3, 4))]
        for one in staged[-1:] if wide else staged:
            for ping_pong in (False, True) if wide and bm > ROWS and kept else (False,):
                if not ping_pong or one.stages > steps:  # the first group's steps, while the second has not read them
                    parts = _parts(target, p, one) if shares else [1]
                    yield from (replace(one, ping_pong=ping_pong, parts=n) for n in parts)


def _parts(target: Target, p: ChainProblem, tile: ChainTile) -> list[int]:
    """The numbers of blocks that might share rows: one, and the few that leave the machine idle least."""
    blocks, steps = p.blocks(tile.bm) * p.batch, ceil(p.length / tile.bn)
    most = min(steps, MOST_PARTS, ceil(PARTS_WAVES * target.units / blocks))

    def rounds(parts: int) -> int:
        return ceil(blocks * parts / target.units) * ceil(steps / parts)

    return [1, *sorted(range(2, most + 1), key=lambda parts: (rounds(parts), parts))[:3]]


def stage_bytes(p: ChainProblem, tile: ChainTile) -> int:
    """Shared memory of one step: tiles of K and V; without a second contraction of K, and of Q unless it stays there."""
    if p.columns:
        inner = p.parts[0] * p.bytes * sum(chain_line(tile.unit, d, p.bytes) for d in p.firsts)
        loaded, size = p.products[_shared(p, tile) :], p.value_bytes
        return tile.bn * (inner + p.parts[1] * size * sum(chain_line(tile.unit, round_up(c, 16), size) for c in loaded))
    depth = reduction_depth(tile.unit, p.inner, p.bytes)
    left = 0 if tile.kept_left else _tile_bytes(p, tile.unit, tile.bm, depth, p.k_major[0])
    return left + _tile_bytes(p, tile.unit, tile.bn, depth, p.k_major[1])


def _shared(p: ChainProblem, tile: ChainTile) -> int:
    """Results whose values are not loaded, since they are right factors."""
    return p.columns_of_rights if tile.at_once else 0


def _tile_bytes(p: ChainProblem, unit: str, rows: int, depth: int, k_major: bool) -> int:
    """Of a factor's tile, in lines of its inner dimension (`k_major`) or of rows."""
    lines, columns = (rows, depth) if k_major else (depth, rows)
    return p.bytes * lines * chain_line(unit, columns, p.bytes)


def chain_bytes(p: ChainProblem, tile: ChainTile) -> int:
    """Shared memory of a block: its rows of Q if they stay there, and the stages; for TMA barriers, and alignment to 1024 bytes;
    and the list of its steps, where data choose them."""
    held = 0
    if p.columns:
        held = p.parts[0] * p.bytes * tile.bm * tile.row_stages * sum(chain_line(tile.unit, d, p.bytes) for d in p.firsts)
    elif tile.kept_left:
        whole = round_up(p.inner, reduction_depth(tile.unit, p.inner, p.bytes))
        held = _tile_bytes(p, tile.unit, tile.bm, whole, p.k_major[0])
    listed = 4 * (ceil(p.length / tile.bn) + 3) if p.listed else 0
    return held + tile.stages * stage_bytes(p, tile) + (2048 if tile.unit == "wgmma" else 0) + listed


def chain_work(target: Target, p: ChainProblem, tile: ChainTile) -> Work:
    """The work of one tiling, including the parts of tiles beyond the edges."""
    if not p.columns:
        return _reduction_work(target, p, tile)
    rows = tile.row_blocks or p.blocks(tile.bm)
    covered = round_up(p.length, tile.bn) * p.share
    cut = tile.bn * (p.length % tile.bn > 0)
    if p.share < 1:  # of the tiles that a mask cuts, it excludes half; they are fewest where blocks and steps are aligned
        aligned = max(tile.bm, tile.bn) % min(tile.bm, tile.bn) == 0
        across = max(tile.bm, tile.bn) if aligned else tile.bm + tile.bn
        covered, cut = covered + across / 2, cut + across
    scores = p.batch * rows * tile.bm * min(covered, round_up(p.length, tile.bn))
    fit, blocks = target.fit(ChainTimes), rows * p.batch * tile.parts
    own = ROWS if tile.unit == "wgmma" else tile.warp_rows
    inner, columns = (sum(round_up(d, 16) for d in dims) for dims in (p.firsts, p.products))
    own_columns = sum(round_up(c, 16) for c in p.products[_shared(p, tile) :])
    flops: dict[str, float] = {}
    of_scores, of_values = p.pairs[0] * inner, (p.pairs[1] or p.weight_terms) * columns
    for kind, depth in ((p.dtype, of_scores), (p.of_values or p.dtype, of_values)):
        unit = f"tensor.{unit_type(kind)}@{tile.unit}"
        flops[unit] = flops.get(unit, 0.0) + 2 * scores * depth
    further = len(p.products) * (1.5 * p.weight_terms + 4 * (p.weight_terms - 1))  # weights taken apart and packed
    loaded = scores * (p.parts[0] * p.bytes * inner + p.parts[1] * p.value_bytes * own_columns) / tile.bm
    once = p.batch * (p.parts[0] * p.bytes * p.rows * sum(p.firsts) + p.length * p.step_bytes)
    once = (once if p.factor_bytes is None else p.factor_bytes) + p.operand_bytes
    result = p.out_bytes * p.batch * p.rows * sum(p.products) / len(p.products)
    partial = 4 * p.batch * p.rows * tile.parts * (columns + 2) if tile.parts > 1 else 0
    work = Work(
        dram_read=once, dram_write=result, l2_bytes=loaded + scores * p.score_bytes + result + 2 * partial,
        shared_bytes=loaded + scores * ((p.bytes * of_scores + p.value_bytes * of_values) / own + p.line_bytes),
        flops={**flops, "fma.f32": 2 * scores * (p.fma + further), "special": scores * p.special},
        pace=dict.fromkeys(flops, fit.products) if tile.unit == "wgmma" else {},
        blocks=blocks, threads=tile.threads, registers=tile.registers, shared_per_block=tile.shared,
        bytes_in_flight=tile.shared / tile.threads * (1 - 1 / (tile.stages if tile.unit == "wgmma" else 2 * tile.stages)),
        serial_us=2e-3 * target.dram.latency_ns, launches=2 if tile.parts > 1 else 1,
    )  # fmt: skip
    steps, data = ceil(covered / tile.bn / tile.parts), inner + columns
    block = Block(tile.bm, tile.bn, steps, data, cut / tile.parts, p.share == 1, tile.persistent)
    serial = (warpgroups_wait if tile.unit == "wgmma" else warps_wait)(target, work, block)
    if tile.parts > 1:
        serial += fit.part_us * blocks
    waves = persistent_rounds(tile.launched, blocks, target.units) if tile.launched else ceil(blocks / target.units)
    if tile.unit == "wgmma" and tile.stages == 1:  # a step's copy begins when the one before is multiplied
        serial += waves * steps * COPY_LATENCIES * 1e-3 * target.dram.latency_ns
    work = replace(work, serial_us=work.serial_us + serial)
    return _longer(work, waves / ceil(blocks / target.units)) if tile.launched else work


def _longer(work: Work, times: float) -> Work:
    """Where blocks are so many times as many rounds as on all units."""
    pace, shared = {unit: times * work.pace.get(unit, 1.0) for unit in work.flops}, times * work.shared_bytes
    return replace(work, pace=pace, shared_bytes=shared, l2_bytes=times * work.l2_bytes, serial_us=times * work.serial_us)


def _reduction_work(target: Target, p: ChainProblem, tile: ChainTile) -> Work:
    """Some of the groups' arithmetic is under each other's products if they alternate, or several blocks share an SM. Otherwise the
    matrix units wait for it."""
    fit, own = target.fit(ChainTimes), ROWS if tile.unit == "wgmma" else tile.warp_rows
    rows, covered = tile.row_blocks or p.blocks(tile.bm), min(1.0, p.share + tile.bm / p.length * (p.share < 1))
    steps = ceil(ceil(p.length / tile.bn) * covered / tile.parts)  # of one block
    tiles, blocks = p.batch * rows * tile.parts * steps, p.batch * rows * tile.parts
    scores, inner = tiles * tile.bm * tile.bn, round_up(p.inner, p.line)
    loaded = tiles * inner * p.bytes * (tile.bn + (0 if tile.kept_left else tile.bm)) + p.bytes * p.batch * p.rows * inner
    result = p.out_bytes * p.batch * p.rows
    arithmetic = {"fma.f32": 2 * scores * p.fma, "special": scores * p.special}
    unit, flops = f"tensor.{unit_type(p.dtype)}@{tile.unit}", 2 * scores * inner
    waves = ceil(blocks / target.units)
    work = Work(
        dram_read=_reads(target, p, tile, waves, steps),
        dram_write=result,
        l2_bytes=loaded / (target.fit(WarpgroupTimes).l2 if tile.unit == "wgmma" else 1) + result,
        shared_bytes=loaded + p.bytes * scores * inner * (1 / own + 1 / tile.bn),
        flops={unit: flops, **arithmetic},
        pace={unit: boosted(target, unit, flops)},
        blocks=blocks, threads=tile.threads, registers=tile.registers, shared_per_block=tile.shared,
        bytes_in_flight=tile.stages * stage_bytes(p, tile) / tile.threads,
        serial_us=2e-3 * target.dram.latency_ns + (fit.part_us * blocks if tile.parts > 1 else 0.0),
        launches=2 if tile.parts > 1 else 1,
    )  # fmt: skip
    found = predict(work, target)
    terms, overlap = found.terms, tile.ping_pong
    idle = fit.reduced_step_us * steps * waves
    if tile.unit == "mma.sync":
        overlap = found.occupancy.blocks > 1 and blocks > target.units
        idle = fit.reduced_warp_step_us * steps * ceil(inner / p.line) * ceil(found.waves)
    computed = {u: terms[u] for u in ("fma", "special") if terms.get(u)}
    exposed = total = sum(computed.values())
    if overlap:
        exposed = fit.alternate * min(total, terms["tensor"]) + max(0.0, total - max(terms.values()))
    exposed_us = {u: us * exposed / total for u, us in computed.items()}
    return replace(work, serial_us=work.serial_us + idle, exposed_us=exposed_us)


def _reads(target: Target, p: ChainProblem, tile: ChainTile, waves: int, steps: int) -> float:
    """DRAM bytes of the factors. Each wave of blocks goes through the columns of its parts, and again through its rows at each
    step, if L2 does not hold them."""
    row = p.bytes * p.batch * p.inner
    left, right, room = row * p.rows, row * p.length, target.l2.bytes
    if left + right <= 0.5 * room:
        return left + right
    wave = min(p.blocks(tile.bm) * p.batch, target.units / tile.parts) * tile.bm * p.inner * p.bytes
    missed = 0 if tile.kept_left else max(0.0, wave - room)  # of each step, by all blocks of a wave
    return left + right * waves + missed * steps * waves


def chain_cost(target: Target, p: ChainProblem, tile: ChainTile) -> Prediction:
    return predict(chain_work(target, p, tile), target)


@lru_cache(maxsize=64)  # a program asks for one several times, and for each of its tiles
def choose_chain_tile(target: Target, p: ChainProblem) -> list[Choice[ChainTile]]:
    """All tiles, cheapest first; of equals, that with fewer and larger steps."""
    tiles = (Choice(t, chain_cost(target, p, t)) for t in chain_tiles(target, p))
    return ranked(tiles, lambda t: (-t.bm, -t.bn))
