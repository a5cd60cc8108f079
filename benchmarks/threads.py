"""python -m benchmarks threads: calls a second of one process, and of several that have the processors together.

Each process calls the same function on its own arrays, on as many threads as there are processors, for half a second from one
moment on. `tilec` is an op of ours on tensors, `eager` the same by PyTorch's own operations, `tilec, a thread` it on one thread.
A figure is the sum over the processes, the median of those rounds in which others had little of the processors; in brackets, how
many these are. The ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from tilec.core.host import available_threads

SOFTMAX = """op f(x: f32[M, N]) -> (y: f32[M, N]) {
  e[i, j] = exp(x[i, j] - max[k](x[i, k]))
  y[i, j] = e[i, j] / sum[k](e[i, k])
}"""
SHAPES = {"small": (512, 512), "large": (2048, 2048)}
"""Of a softmax: some 75 us and some 2 ms of one core."""
WAYS = ("tilec", "eager", "tilec, a thread")
PROCESSES = (1, 2, 4)
ROUNDS, SECONDS = 9, 0.5
CALM = 0.05
"""The share of the processors' time that others have in a round that counts."""


def worker(way: str) -> None:
    """Counts calls of a turn whenever a line comes, which says on which shape, and for how many seconds."""
    import torch

    call = _call(way)
    inputs = {shape: torch.randn(sizes) for shape, sizes in SHAPES.items()}
    for x in inputs.values():
        torch.testing.assert_close(call(x), torch.softmax(x, 1))
    print("ready", flush=True)
    for line in sys.stdin:
        shape, seconds = line.split()
        x, calls, end = inputs[shape], 0, time.perf_counter() + float(seconds)
        while time.perf_counter() < end:
            call(x)
            calls += 1
        print(calls, flush=True)


def _call(way: str) -> Callable[..., Any]:
    import torch

    import tilec

    if way == "eager":
        return lambda x: torch.softmax(x, 1)
    tilec.set_threads(1 if "thread" in way else None)
    return tilec.compile(SOFTMAX, target="cpu")


class _Process:
    def __init__(self, way: str):
        command = [sys.executable, "-m", "benchmarks", "threads", "--worker", way]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def write(self, text: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{text}\n")
        self.child.stdin.flush()

    def read(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def used(self) -> int:
        """Ticks of the processors' time."""
        words = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])


def _busy() -> int:
    """Ticks that the processors were busy, for whomever."""
    words = [int(w) for w in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(words[:3]) + sum(words[5:8])


def _turn(busy: list[_Process], shape: str) -> tuple[float, float]:
    """Calls a second, and the share of the processors' time that others had."""
    before, own = _busy(), sum(p.used() for p in busy)
    for process in busy:
        process.write(f"{shape} {SECONDS}")
    calls = sum(int(p.read()) for p in busy)
    others = _busy() - before - (sum(p.used() for p in busy) - own)
    return calls / SECONDS, others / (SECONDS * os.sysconf("SC_CLK_TCK") * available_threads())


def suite(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each shape and number of processes."""
    names = {(s, c): f"{s} softmax, {c} process{'es' * (c > 1)}" for s in SHAPES for c in PROCESSES}
    names = {key: n for key, n in names.items() if not options.only or any(o in n for o in options.only)}
    processes = {way: [_Process(way) for _ in range(max(c for _, c in names))] for way in WAYS}
    right = all([p.read() == "ready" for some in processes.values() for p in some])
    rounds: dict[str, dict[str, list[tuple[float, float]]]] = {n: {way: [] for way in WAYS} for n in names.values()}
    for _ in range(ROUNDS):
        for (shape, count), name in names.items():
            for way in WAYS:
                rounds[name][way].append(_turn(processes[way][:count], shape))
    for some in processes.values():
        for process in some:
            process.child.communicate()
    for name, found in rounds.items():
        calm = {way: [rate for rate, others in each if others < CALM] for way, each in found.items()}
        rates = {way: round(statistics.median(each or [r for r, _ in found[way]])) for way, each in calm.items()}
        counts = {way: len(each) for way, each in calm.items()}
        yield {"name": name, "group": "threads", "right": right, "rates": rates, "calm": counts, "rounds": found}


def run(options: argparse.Namespace) -> int:
    machine, console, rows = report.started(), Console(), []
    table = Table(
        "calls a second, of all processes", *WAYS, title=f"processes that share {available_threads()} processors"
    )
    for row in suite(options):
        rows.append(row)
        table.add_row(row["name"], *(f"{row['rates'][way]:,} ({row['calm'][way]})" for way in WAYS))
    kept = options.json or not options.only
    console.print(table)
    console.print(f"written to {report.save('threads', rows, options.json, machine)}" if kept else json.dumps(rows))
    return int(any(not r["right"] for r in rows))


__all__ = ["run", "worker"]
