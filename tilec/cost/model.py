"""The cost model: a pure function from the work of a kernel and a machine to a predicted time. It does not see the IR.

`predict` turns the `Work` of one kernel into a time and its terms. `tilec/cost/contraction.py` and `tilec/cost/rows.py`
enumerate the tiles of
their problems, and predict each as a `Choice`. `ranked` sorts the choices, cheapest first, so that `explain` can show the
alternatives; `tilec/cost/ranking.py` does so without predicting most of them.

Sources: Williams, Waterman & Patterson, "Roofline" (CACM 2009); NVIDIA's CUDA occupancy calculator and matrix
multiplication background guide (tile and wave quantisation); Little's law, as applied by Volkov ("Better
performance at lower occupancy", GTC 2010); DeepGEMM and tritonBLAS (tile choice by a short model); Goto & van
de Geijn, "Anatomy of high-performance matrix multiplication" (TOMS 2008); Low et al., "Analytical modeling is
enough for high-performance BLIS" (TOMS 2016). Times are microseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, hypot, inf
from typing import Generic, TypeVar

from tilec.core.fitted import Barriers
from tilec.core.target import Level, Target


@dataclass(frozen=True)
class Work:
    """The work of one kernel.

    `l3_bytes`: those that pass through the cache that all cores share, where data stay in memory. `flops`: operations by unit
    ("fma.f32", "tensor.bf16@mma.sync", "special", "int"), a fused multiply-add being two. `pace`: by unit, the time of its
    operations over that at its peak rate, where it is another.
    `bytes_in_flight`: of each thread, its independent loads times their size; 0 for no limit.
    `latency_ns`: of memory, where it is not that of the machine under load. `stall_ns`: of each block, time in which none of its
    loads is in flight (barriers, exchanges). `warp_clocks`: clocks between two instructions of one warp, in which others have
    theirs; 0 where the work says otherwise what waits.
    `serial_us`: time in which all units wait (filling a pipeline, storing the last tile). `exposed_us`: the same of known
    causes, by unit: arithmetic under which nothing else goes on. `idle_us`: by cause, time in which matrix units and shared
    memory wait while copies go on; a cause is a unit, or "waits". `lanes`: share of
    the vector lanes that do useful work. `working_set`: bytes that the last kernel may have left in a cache;
    0 where all comes from memory. `tiled`: whether `blocks` are those of a chosen tile, and not as many as there can be.
    `launches`: kernels that the work takes. `overlaps`: the kernel starts while the one before ends. `units`: those that its
    blocks can be on, as clusters do not reach all; 0: all. On a CPU a block is one task of the parallel loop, and
    threads and registers say nothing; `loops_us` is the time of the innermost loops of all blocks on one core, vectors or
    not (`tilec/cost/loop_nest.py`), `waits_us` that in which it waits meanwhile for lines of memory that nothing foresees
    (`tilec/cost/loops.py`).
    """

    dram_read: float = 0
    dram_write: float = 0
    l2_bytes: float = 0
    l3_bytes: float = 0
    shared_bytes: float = 0
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    pace: Mapping[str, float] = field(default_factory=dict, hash=False)
    blocks: int = 1
    threads: int = 128
    registers: int = 32
    shared_per_block: int = 0
    bytes_in_flight: float = 64
    stall_ns: float = 0
    latency_ns: float = 0
    warp_clocks: float = 0
    serial_us: float = 0
    exposed_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    idle_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    lanes: float = 1.0
    working_set: float = 0
    launches: int = 1
    tiled: bool = True
    overlaps: bool = False
    units: int = 0
    loops_us: float = 0
    waits_us: float = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Occupancy:
    """The blocks that one SM holds, their limit ("threads", "registers", ...), and the share of the SM's threads that they
    fill. `limits`: the blocks that each resource has room for."""

    blocks: int
    limiter: str
    fraction: float
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Prediction:
    """`terms`: microseconds that each resource is busy. They overlap: the time is the largest of them, plus "launch" (the machine
    starts the kernel) and "waits" (within the kernel, while all resources are idle: pipelines that fill, arithmetic between
    steps). "blocks" is one where the starts of blocks take longest. `bound`: "memory", "compute" or "overhead", by the largest
    term. `waves`: rounds of resident blocks."""

    time_us: float
    terms: dict[str, float] = field(hash=False)
    bound: str
    occupancy: Occupancy
    waves: float
    wave_efficiency: float

    @property
    def limiter(self) -> str:
        """The largest term."""
        return max(self.terms, key=lambda t: self.terms[t])


T = TypeVar("T")

MEMORY = ("dram", "l3", "l2", "l1", "shared")
OVERHEAD = ("launch", "blocks", "waits")


def occupancy(target: Target, threads: int, registers: int = 32, shared: int = 0) -> Occupancy:
    """How many blocks of `threads` one SM holds: the least of four quotients (CUDA occupancy calculator).

    Registers are allocated a warp at a time, rounded up to `register_unit`; shared memory with the driver's
    part of each block. 0 blocks where one does not fit. A CPU core runs one task.
    """
    sm = target.sm
    if sm is None:
        return Occupancy(1, "cores", 1.0)
    warps = ceil(threads / sm.warp)
    warp_registers = round_up(registers * sm.warp, sm.register_unit)
    limits = {
        "threads": sm.threads // (warps * sm.warp) if threads <= sm.threads_per_block else 0,
        "registers": sm.registers // warp_registers // warps if registers <= sm.registers_per_thread else 0,
        "shared": sm.shared_bytes // (shared + sm.shared_reserved) if shared <= sm.shared_per_block else 0,
        "blocks": sm.blocks,
    }
    limiter = min(limits, key=lambda k: limits[k])
    return Occupancy(limits[limiter], limiter, limits[limiter] * warps * sm.warp / sm.threads, limits)


def balance(blocks: int, units: int) -> float:
    """The share of the units' time that blocks use if they are distributed evenly: blocks / (units x ceil(blocks / units)).

    This is wave quantisation, waves / ceil(waves), for one block an SM. Several blocks on an SM slow each other down, so
    that the number of blocks on the fullest SM counts, and not the number of rounds.
    """
    return blocks / (units * ceil(blocks / units)) if blocks else 1.0


def predict(work: Work, target: Target) -> Prediction:
    """Time = launch + the largest of the terms; each term is an amount over a rate.

    Throughput units (vector, matrix, special, shared) run at peak x wave efficiency x issue, where issue is
    below 1 with less than a warp to each of an SM's schedulers; for vector units also with fewer warps than hide each other's
    latencies (`warp_clocks`). Memory runs at its rate or at Little's, see `_transfer_us`. The blocks of an SM start one after
    another, however short they are. Back to back, kernels follow each other no faster than the host launches them. On a CPU only a
    loop of several blocks is launched; one block runs in the caller's thread.
    """
    occ = occupancy(target, work.threads, work.registers, work.shared_per_block)
    if occ.blocks == 0:
        raise ValueError(f"a block does not fit {target.name}: too many {occ.limiter}")
    units = work.units or target.units
    efficiency, waves = balance(work.blocks, target.units), work.blocks / (units * occ.blocks)
    resident = work.blocks / max(1, ceil(waves))  # blocks at work at a time, on average over the waves
    issue, hidden = 1.0, 1.0
    if target.sm is not None:
        here = max(
            1, min(occ.blocks, ceil(work.blocks / target.units))
        )  # an empty grid has one, too, that does nothing
        issue = min(1.0, here * work.threads / target.sm.issued)
        warps = here * work.threads / target.sm.issued  # of a scheduler
        hidden = min(issue, warps / work.warp_clocks) if work.warp_clocks else issue
    flight = resident * work.threads * work.bytes_in_flight if target.kind == "cuda" else 0
    terms = _terms(work, target, efficiency, issue, hidden, min(target.units, resident), flight)
    starts = 0.0
    if work.tiled and target.kind == "cuda":
        starts = 1e-3 * target.fit(Barriers).start_ns * work.blocks / target.units
    if starts > max(terms.values(), default=0.0):
        terms["blocks"] = starts
    total, body, _ = _times(terms, work, target)
    waits = min(total - body, work.serial_us + sum(work.exposed_us.values()))
    terms |= {"launch": total - body - waits} | ({"waits": waits} if waits else {})
    limiter = max(terms, key=lambda t: terms[t])
    bound = "overhead" if limiter in OVERHEAD else "memory" if limiter in MEMORY else "compute"
    return Prediction(total, terms, bound, occ, waves, efficiency)


def least(work: Work, target: Target) -> tuple[float, float]:
    """What time, in microseconds, and `rank` are at least, for all kernels that do so much work or more: whatever their threads,
    registers, shared memory and bytes in flight are, no more than all units load, no more than all schedulers issue, and no load
    waits."""
    terms = _terms(work, target, balance(work.blocks, target.units), 1.0, 1.0, target.units, inf)
    total, _, ramp = _times(terms, work, target)
    return total, rank(total, terms | {"launch": ramp})  # which may be longer, but then the others are by less


def rank(time_us: float, terms: Mapping[str, float]) -> float:
    """By the predicted time and a tenth of the other terms, which never hide wholly."""
    return time_us + 0.1 * (sum(terms.values()) - max(terms.values()))


def _terms(
    work: Work, target: Target, efficiency: float, issue: float, hidden: float, units: float, flight: float
) -> dict[str, float]:
    """Microseconds that each resource is busy. `issue`, `hidden`: shares of the clocks in which matrix units and vector units have
    an instruction; `units` that load, with so many bytes in `flight`."""
    terms = _memory_terms(work, target, units, flight)
    for unit, amount in work.flops.items():
        lanes = 1.0 if unit.startswith("tensor") else work.lanes
        name = unit.partition(".")[0]
        busy = issue if unit.startswith("tensor") else hidden
        time = 1e6 * amount * work.pace.get(unit, 1.0) / (target.peak(unit) * efficiency * busy * lanes)
        terms[name] = terms.get(name, 0.0) + time
    if work.loops_us or work.waits_us:
        terms["loops"] = (work.loops_us + work.waits_us) / (target.units * efficiency)
    for name in ("tensor", "shared"):
        if name in terms:
            terms[name] += sum(work.idle_us.values())
    return terms


def _times(terms: Mapping[str, float], work: Work, target: Target) -> tuple[float, float, float]:
    """The predicted time, that of the resources alone, and the least that the launch adds."""
    body, serial = max(terms.values(), default=0.0), work.serial_us + sum(work.exposed_us.values())
    ramp = target.launch.ramp_us * work.launches + serial
    overhead = target.launch.overhead_us * work.launches
    if work.overlaps and target.launch.overlap_us:  # the host has launched it meanwhile
        ramp, overhead = target.launch.overlap_us + serial, 0.0
    if target.kind == "cpu":  # nothing else goes on while the threads are woken and waited for
        return body + ramp + (overhead if work.blocks > 1 else 0.0), body, ramp
    return max(body + ramp, overhead), body, ramp


def _transfer_us(amount: float, loads: float, rate: float, flight: float, latency_ns: float) -> float:
    """hypot(bytes / rate, loads x latency / bytes in flight): the bandwidth's time and Little's.

    Only loads wait. The larger of the two alone would call a memory full as soon as latency x rate is in
    flight; requests come in bursts, and it takes three times that for 95%, as measured with rows kept in
    registers (one block an SM or two, with and without the barriers of a cluster between loads).
    """
    return 1e6 * hypot(amount / rate, 1e-9 * loads * latency_ns / (flight or inf))


def _memory_terms(work: Work, target: Target, units: float, flight: float) -> dict[str, float]:
    """Microseconds of each level of memory."""

    def time(name: str, amount: float) -> float:
        level: Level = getattr(target, name)
        loads = max(0.0, amount - work.dram_write)
        latency_ns = work.latency_ns if work.latency_ns and name == "dram" else level.latency_ns
        return _transfer_us(amount, loads, level.rate(units), flight, latency_ns + work.stall_ns)

    traffic = work.dram_read + work.dram_write
    home = home_level(target, work.working_set)
    terms = {home: time(home, traffic)} if traffic else {}
    if work.l3_bytes and home in ("dram", "l3"):
        beyond = "dram" if target.l3 is None else "l3"
        terms[beyond] = max(terms.get(beyond, 0.0), time(beyond, max(work.l3_bytes, traffic)))
    if l2 := max(work.l2_bytes, traffic if target.kind == "cuda" else 0):
        terms["l2"] = max(terms.get("l2", 0.0), time("l2", l2))
    if work.shared_bytes and target.sm is not None:
        terms["shared"] = 1e6 * work.shared_bytes / (target.shared_rate * balance(work.blocks, target.units))
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


@dataclass(frozen=True)
class Roofline:
    """Of the busiest `unit` and the `level` of memory that the data come from (DRAM, or a cache where they stay: Ilic, Pratas and
    Sousa, "Cache-aware roofline model", 2014). `intensity` and `ridge`: operations per byte that is moved, and the intensity from
    which the machine is compute-bound. `time_us`: of the bytes, or of that unit's operations, whichever takes longer."""

    unit: str
    level: str
    intensity: float
    ridge: float
    time_us: float


def roofline(work: Work, target: Target) -> Roofline:
    level = home_level(target, work.working_set)
    rate = getattr(target, level).rate(target.units)
    busy = {u: n * work.pace.get(u, 1.0) / target.peak(u) for u, n in work.flops.items()}
    traffic, main = work.dram_read + work.dram_write, max(busy, key=lambda u: busy[u], default="fma.f32")
    flops = work.flops.get(main, 0.0)
    intensity = flops / traffic if traffic else inf if flops else 0.0
    ridge = target.peak(main) / work.pace.get(main, 1.0) / rate
    return Roofline(main, level, intensity, ridge, 1e6 * max(traffic / rate, busy.get(main, 0.0)))


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A tile and its predicted cost."""

    tile: T
    prediction: Prediction

    @cached_property
    def rank(self) -> float:
        return rank(self.prediction.time_us, self.prediction.terms)


def ranked(choices: Iterable[Choice[T]], effort: Callable[[T], tuple[int, ...]]) -> list[Choice[T]]:
    """Cheapest first, by `rank`; of equals the tile of least `effort`."""
    return sorted(choices, key=lambda c: (round(c.rank, 4), effort(c.tile)))


class NoFurtherChoice(Exception):
    """There is no `n`-th cheapest."""


class TooLarge(NoFurtherChoice):
    """The intermediates of a kernel's blocks do not fit on chip, whatever its tile. The text has their size."""


def pick(choices: Sequence[Choice[T]], n: int) -> T:
    """The tile of the `n`-th cheapest choice. 0 is the planner's choice; `tune` measures the others."""
    try:
        return choices[n].tile
    except IndexError:
        raise NoFurtherChoice from None


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step
