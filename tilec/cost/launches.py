"""The cost of kernels that share a launch: the blocks of one beside those of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.core.target import Target
from tilec.cost.model import Prediction, Work, predict


def launch_time(works: Sequence[Work], target: Target) -> Prediction:
    """Of kernels as one launch: it takes as long as all bytes and operations do on the blocks of all, and as the slowest kernel
    does. Each block has the threads of the largest, the registers of the largest thread and the shared memory of all."""
    registers, shared = max(w.registers for w in works), sum(w.shared_per_block for w in works)
    overlaps = all(w.overlaps for w in works)
    equalised = [replace(w, registers=registers, shared_per_block=shared, overlaps=overlaps) for w in works]
    whole = predict(launch_work(equalised), target)
    slowest = max((whole, *(predict(w, target) for w in equalised)), key=lambda p: p.time_us)
    return replace(slowest, occupancy=whole.occupancy, waves=whole.waves, wave_efficiency=whole.wave_efficiency)


def launch_work(works: Sequence[Work]) -> Work:
    """The work of all kernels of a launch."""
    blocks, threads = sum(w.blocks for w in works), max(w.threads for w in works)
    flops = _added(w.flops for w in works)
    busy = _added({unit: n * w.pace.get(unit, 1.0) for unit, n in w.flops.items()} for w in works)
    return replace(
        works[0],
        dram_read=sum(w.dram_read for w in works),
        dram_write=sum(w.dram_write for w in works),
        l2_bytes=sum(w.l2_bytes for w in works),
        shared_bytes=sum(w.shared_bytes for w in works),
        flops=flops,
        pace={unit: busy[unit] / n for unit, n in flops.items() if n},
        blocks=blocks,
        threads=threads,
        bytes_in_flight=sum(w.bytes_in_flight * w.threads * w.blocks for w in works) / max(1, blocks * threads),
        stall_ns=max(w.stall_ns for w in works),
        latency_ns=max(w.latency_ns for w in works) if all(w.latency_ns for w in works) else 0,
        warp_clocks=max(w.warp_clocks for w in works),
        serial_us=max(w.serial_us for w in works),
        exposed_us=_most(w.exposed_us for w in works),
        idle_us=_most(w.idle_us for w in works),
        lanes=min(w.lanes for w in works),
        working_set=sum(w.working_set for w in works) if all(w.working_set for w in works) else 0,
    )


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for unit, amount in part.items():
            found[unit] = found.get(unit, 0.0) + amount
    return found


def _most(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for cause, time in part.items():
            found[cause] = max(found.get(cause, 0.0), time)
    return found
