"""What other programs take of this process's processors, while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")


class OtherLoad:
    """Within a `with` block: how many processors' time others took, of those that this process may run on. None where the system
    does not tell."""

    def __enter__(self) -> OtherLoad:
        self.cores: float | None = None
        self._begin, self._busy, self._own = time.perf_counter(), _busy_seconds(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, took = _busy_seconds(), time.process_time(), time.perf_counter() - self._begin
        if busy is not None and self._busy is not None:
            self.cores = max(0.0, (busy - self._busy) - (own - self._own)) / took


def _busy_seconds() -> float | None:
    try:
        return busy_ticks(STAT.read_text(), os.sched_getaffinity(0)) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):  # not Linux
        return None


def busy_ticks(text: str, processors: set[int]) -> int:
    """Of `/proc/stat`: all time of these processors but idle and waiting for disks. What a hypervisor gives to others (steal)
    counts; guests are in `user`."""
    total = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in processors:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (*map(int, fields[:8]), *[0] * (8 - len(fields[:8])))
            total += user + nice + system + irq + softirq + steal
    return total
