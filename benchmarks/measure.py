"""Timing several ways of doing one thing: in interleaved rounds, so that a change of the machine meets them all.

A round calls every candidate several times and keeps one figure (on the CPU the fastest call, which other programs
disturb least; on a GPU the median); the result is the median over the rounds. One candidate may be given twice, under
two names: the difference of their times is the noise.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Microseconds: the median of the rounds, and the fastest and slowest round."""

    median: float
    low: float
    high: float


def _times(rounds: list[float]) -> Times:
    return Times(statistics.median(rounds), min(rounds), max(rounds))


def on_cpu(candidates: dict[str, Callable], rounds: int = 9, budget: float = 0.03) -> dict[str, Times]:
    """`budget` seconds for a candidate in a round, at least two calls. The first call of a turn is not timed."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                call()
                taken: list[float] = []
                while len(taken) < 2 or (sum(taken) < budget and len(taken) < 200):
                    start = time.perf_counter()
                    call()
                    taken.append(time.perf_counter() - start)
                samples[name].append(1e6 * min(taken))
    finally:
        gc.enable()
    return {name: _times(s) for name, s in samples.items()}


class Flushed:
    """256 MiB written, then as many others read: L2 holds nothing of a call's operands, nor lines that are yet to be written to
    memory. Those a kernel would have to write back for others before it can read; a copy leaves as many behind itself."""

    def __init__(self, clean: bool = True):
        import torch

        self.written = torch.empty(64 << 20, dtype=torch.float32, device="cuda")
        self.read = torch.zeros_like(self.written) if clean else None
        self.sum = torch.empty((), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        import torch

        self.written.zero_()
        if self.read is not None:
            torch.sum(self.read, (0,), out=self.sum)


def on_gpu(
    candidates: dict[str, Callable], rounds: int = 4, budget: float = 0.1, flush: Callable[[], None] | None = None
) -> dict[str, Times]:
    """By CUDA events on the current stream, each call after `flush`, by default `Flushed()`."""
    flush = flush or Flushed()
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    counts: dict[str, int] = {}
    for name, call in candidates.items():
        call()
        counts[name] = max(3, min(200, int(budget / max(1e-6, _events(call, 3, flush) / 1e6))))
    for _ in range(rounds):
        for name, call in candidates.items():
            samples[name].append(_events(call, counts[name], flush))
    return {name: _times(s) for name, s in samples.items()}


def _events(call: Callable, count: int, flush: Callable[[], None]) -> float:
    """Median microseconds of `count` calls."""
    import torch

    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for begin, end in pairs:
        flush()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(b.elapsed_time(e) for b, e in pairs)


def host_time(call: Callable, synchronise: Callable, count: int = 2000) -> float:
    """Microseconds that the host is busy with one call, the device running behind."""
    for _ in range(50):
        call()
    rounds = []
    for _ in range(5):
        synchronise()
        start = time.perf_counter()
        for _ in range(count // 5):
            call()
        rounds.append(1e6 * (time.perf_counter() - start) / (count // 5))
        synchronise()
    return statistics.median(rounds)


def in_turn(
    candidates: dict[str, Callable], before: Callable[[], None], device: str, rounds: int = 9, budget: float = 0.03
) -> dict[str, Times]:
    """Of long calls that follow each other, as steps of a model do: for each round, `budget` seconds of each candidate's, three
    calls at least, after `before`. On a GPU by CUDA events: what the host takes longer is in them."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    counts: dict[str, int] = {}
    for name, call in candidates.items():
        before()
        counts[name] = max(3, min(50, int(budget / max(1e-6, 1e-6 * _row(call, 3, device)))))
    for _ in range(rounds):
        for name, call in candidates.items():
            before()
            samples[name].append(_row(call, counts[name], device))
    return {name: _times(s) for name, s in samples.items()}


def _row(call: Callable, count: int, device: str) -> float:
    """Microseconds of one of `count` calls that follow each other."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(count):
            call()
        return 1e6 * (time.perf_counter() - start) / count
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / count
