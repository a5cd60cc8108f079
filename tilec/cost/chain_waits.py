"""Time of a contraction chain beside the busiest unit's, while its blocks begin and end, and between products."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilec.core.fitted import ChainTimes
from tilec.core.target import Target
from tilec.cost.model import OVERHEAD, Work, predict

ROW_TILE = 128 * 256  # elements of 128 rows of two factors of 128


@dataclass(frozen=True)
class Block:
    """A block of `rows` takes so many `steps` of `size` elements. `data`: elements of a row of all factors. `cut`: elements of the
    steps that a mask cuts. `even`: all blocks have as many. `persistent`: a block has several tiles."""

    rows: int
    size: int
    steps: int
    data: int
    cut: float
    even: bool
    persistent: bool

    def rounds(self, blocks: float) -> float:
        """Of blocks, so many for each place that they have; short blocks of masked rows fill the last round."""
        return ceil(blocks) if self.even else max(1.0, blocks)


def _busy(terms: dict[str, float]) -> tuple[float, float]:
    """The longest time of a computing unit, and of a memory."""
    computes = ("tensor", "fma", "special", "shared")
    computed = max(terms.get(t, 0.0) for t in computes)
    return computed, max(us for t, us in terms.items() if t not in (*computes, *OVERHEAD))


def warpgroups_wait(target: Target, work: Work, block: Block) -> float:
    """By `wgmma`, where copies go on: between a step's products, and before a tile's first one and after its last one. The latter
    grows with the elements of a tile's rows, which are loaded, wait for each other, and leave."""
    fit, (computed, copied) = target.fit(ChainTimes), _busy(predict(work, target).terms)
    waves, size = block.rounds(work.blocks / target.units), block.rows * block.data / ROW_TILE
    start = fit.block_us + fit.start_us * size
    further = fit.tile_us + fit.next_us * size if block.persistent else start
    idle = waves * (fit.step_us * block.steps + fit.cut_us * block.cut) + start + (waves - 1) * further
    return max(0.0, idle - max(0.0, copied - computed))


def warps_wait(target: Target, work: Work, block: Block) -> float:
    """By `mma.sync`, where a warp does one thing after another. Its products hide a part of what it reads from shared memory and of
    its arithmetic, and the copies of later steps: the blocks of a round begin, compute and end together."""
    fit, found = target.fit(ChainTimes), predict(work, target)
    terms, (computed, copied) = found.terms, _busy(found.terms)
    waves, rounds = (block.rounds(work.blocks / target.units / n) for n in (1, found.occupancy.blocks))
    own = terms["tensor"] + fit.warp_shared * terms.get("shared", 0.0)
    own += fit.warp_arithmetic * (terms.get("fma", 0.0) + terms.get("special", 0.0))
    own += rounds * fit.warp_step_us * block.steps + waves * fit.cut_us * block.cut
    first = min(1.0, (block.rows + fit.warp_first_steps * block.size) / (block.rows + block.steps * block.size))
    whole = max(copied / fit.warp_copies, own + first * terms.get("dram", 0.0))
    return whole - max(computed, copied)
