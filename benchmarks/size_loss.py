"""Ops for classes of sizes beside ops for exact sizes: time, compile time, and calls. Parts of `python -m benchmarks sizes`."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import tilec
from benchmarks.device import alone
from benchmarks.measure import host_time, on_cpu, on_gpu
from benchmarks.size_programs import SOFTMAX, Drawn
from tilec.core.source import read_source
from tilec.dsl.parse import parse
from tilec.dsl.specialise import specialise

Facts = dict[str, Any]
ERROR = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7}
"""Of the largest element: the most by which results of two kernels differ, each of which rounds in its own order."""
FIRST = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1 }"  # has the compilers loaded
KNOWN, NEW = 8, 100  # sizes that calls go around, and those that are called once


def processor_s() -> float:
    """Seconds of processors that this process and those it has started took so far: other programs make a compilation longer, and
    not more work."""
    parents, used = dict[int, int](), dict[int, float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(words[1])
        used[int(stat.parent.name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def ours(process: int) -> bool:
        while process and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return sum(s for process, s in used.items() if ours(process))


class Both:
    """The op for classes, and one for each of some sizes. `device`: "cpu" or "cuda"."""

    def __init__(self, load: Drawn, count: int, device: str):
        self.load, self.device, self.sizes = load, device, load.sizes(count)
        self.op = tilec.compile(load.text, sizes=load.fixed, varies=load.varies, target=device)
        self.exact = [tilec.compile(load.text, sizes=sizes, target=device) for sizes in self.sizes]

    def compiled(self) -> Facts:
        """Compiles all of them. Seconds of each class and of each exact op, and how many classes and kernels there are."""
        _ready(tilec.compile(FIRST, target=self.device), N=3)
        classes, exact = [], []
        for sizes in self.sizes:
            before, known = processor_s(), len(self.op.classes())
            _ready(self.op, **sizes)
            if len(self.op.classes()) > known:
                classes.append([self.op.classes()[-1].sizes, processor_s() - before])
        for op in self.exact:
            before = processor_s()
            _ready(op)
            exact.append(processor_s() - before)
        served = self.op.classes()
        refused = sorted({why for s in served for _, why in s.refused})
        return {"classes": classes, "exact_s": exact, "kernels": sum(s.kernels for s in served), "refused": refused}

    def timed(self) -> list[Facts]:
        """Of every size: microseconds of a call of both, of the exact one once more, and by how much results differ."""
        return [self._at(sizes, op) for sizes, op in zip(self.sizes, self.exact)]

    def _at(self, sizes: dict[str, int], exact: tilec.Op) -> Facts:
        tensors = _tensors(self.load, sizes, self.device)
        made, want = self.op(*tensors), exact(*tensors)
        differs = ((made.float() - want.float()).abs().max() / want.float().abs().max().clamp_min(1e-30)).item()
        calls = {
            "class": lambda: self.op(*tensors, out=made),
            "exact": lambda: exact(*tensors, out=want),
            "again": lambda: exact(*tensors, out=want),
        }
        if self.device == "cpu":  # a busy machine makes no round shorter
            us = {k: t.low for k, t in on_cpu(calls, 7, 0.003).items()}
        else:
            us = {k: t.median for k, t in on_gpu(calls, 4, 0.02).items()}
        right = differs <= ERROR[made.dtype] and bool(torch.isfinite(made).all())
        return {"sizes": {n: sizes[n] for n in self.load.varies}, "times_us": us, "differs": differs, "right": right}


def _ready(op: tilec.Op, **sizes: int) -> None:
    """Compiles an op as far as it goes without a call: for a GPU, its assembler has run, too."""
    executable = op.build(**sizes)._latest
    assert executable is not None
    executable.complete()


def _tensors(load: Drawn, sizes: dict[str, int], device: str) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for t in specialise(parse(read_source(load.text)), None, None, sizes).inputs:
        drawn = torch.randn([n.value for n in t.shape], device=device, generator=generator)
        made.append(drawn.to(torch.bfloat16 if t.dtype.name == "bf16" else torch.float32))
    return made


def _left(load: Drawn) -> Path:
    return Path(os.environ["BENCHMARKS_FOLDER"]) / f"compiled-{re.sub(r'[^a-z]+', '-', load.name, flags=re.I)}.json"


def prepare(load: Drawn, count: int, device: str) -> Facts:
    """Compiles all ops of a row into the cache on disk, and leaves how long that took."""
    found = Both(load, count, device).compiled()
    _left(load).write_text(json.dumps(found))
    return {}


def loss(load: Drawn, count: int, device: str) -> Facts:
    """A row: times at all sizes, and what compiling took when the caches were empty."""
    if not _left(load).exists():
        prepare(load, count, device)
    both = Both(load, count, device)
    both.compiled()
    with alone():
        points = both.timed()
    return {"points": points, "right": all(p["right"] for p in points)} | json.loads(_left(load).read_text())


# ---- calls -----------------------------------------------------------------------------------------------------------


def calls(device: str) -> Facts:
    """Microseconds of the host for a call of an op of fixed sizes, of one whose sizes vary, and that at sizes it has not had."""
    fixed = tilec.compile(SOFTMAX, target=device)
    op = tilec.compile(SOFTMAX, varies={"M": (1, 16384)}, target=device)
    x = torch.randn(129 + KNOWN + NEW, 8, device=device)
    rows = [x[:m] for m in range(129, 129 + KNOWN + NEW)]
    outs = [torch.empty_like(r) for r in rows]
    known, one = list(zip(rows, outs))[:KNOWN], (rows[0], outs[0])
    for given, out in known:
        op(given, out=out)
    fixed(one[0], out=one[1])
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def around() -> None:
        for given, out in known:
            op(given, out=out)

    with alone():
        us = {
            "fixed size": host_time(lambda: fixed(one[0], out=one[1]), wait),
            "the same size": host_time(lambda: op(one[0], out=one[1]), wait),
            "known sizes in turn": host_time(around, wait, 500) / KNOWN,
        }
        taken = []
        for given, out in list(zip(rows, outs))[KNOWN:]:
            wait()
            start, classes = time.perf_counter(), len(op.classes())
            op(given, out=out)
            if len(op.classes()) == classes:
                taken.append(1e6 * (time.perf_counter() - start))
    us |= {"a new size of a known class": statistics.median(taken), "the slowest of these": max(taken)}
    right = all(torch.allclose(out, torch.softmax(r, 1), atol=1e-5) for r, out in zip(rows, outs))
    return {"times_us": us, "right": right}


__all__ = ["Both", "calls", "loss", "prepare", "processor_s"]
