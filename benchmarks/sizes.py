"""python -m benchmarks sizes: ops and models whose sizes vary: what they lose beside exact sizes, first calls, stalls, and calls.

`--parts` chooses among these:

- `loss`: the time of an op that serves classes of sizes over that of an op compiled for exactly the size, at `--drawn` sizes of a
  program (40 on a CPU, 200 on a GPU), and how long a class takes to compile;
- `calls`: microseconds of a call of a known size, of a new size of a known class, and of an op of fixed sizes;
- `models`: 40 calls of a model with drawn sizes, by eager mode, torch.compile and tilec;
- `serving`: `--requests` requests to a model, of lengths with a long tail.

The rows of `loss` compile beside each other, and the others run in a process of their own each, with empty caches. `--only-prepare
--keep FOLDER` does the first alone, and a run with `--keep FOLDER` goes on from there. After `--limit` seconds no further row
begins; one that has begun ends within its own limit, which is `--row-limit`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import report, runner, size_report

PARTS = ("loss", "calls", "models", "serving")
WAYS = ("eager", "torch.compile", "tilec")
CACHES = ("TILEC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def device_of(options: argparse.Namespace) -> str:
    return (options.target or ["cpu"])[0]


def suite_of(options: argparse.Namespace) -> str:
    """As the files of results name it."""
    return f"{device_of(options)}-sizes"


def suite(options: argparse.Namespace) -> list[runner.Row]:
    """The rows of the chosen parts. A name says the part first."""
    from benchmarks import size_loss, size_models
    from benchmarks.size_programs import programs

    device, limit = device_of(options), options.row_limit
    count = options.drawn or (40 if device == "cpu" else 200)
    ways = [w for w in WAYS if w != "torch.compile" or not options.no_compile]
    loads = [("models", c) for c in size_models.loads(device)]
    loads += [("serving", size_models.serving(device, options.requests))]
    rows = []
    for p in programs(device):
        of = (p, count, device)
        rows.append(runner.Row(f"loss: {p.name}", partial(size_loss.loss, *of), limit, partial(size_loss.prepare, *of)))
    rows.append(runner.Row("calls: softmax", partial(size_loss.calls, device), limit))
    rows += [
        runner.Row(f"{part}: {c.name}, {way}", partial(size_models.measure, c, way, device, limit / 3), limit)
        for part, c in loads
        for way in ways
    ]
    return [r for r in rows if r.name.partition(":")[0] in (options.parts or PARTS)]


def run(options: argparse.Namespace) -> int:
    rows = suite(options)
    if runner.works(rows, options.worker, options.ahead):
        return 0
    rows = [r for r in rows if not options.only or any(o in r.name for o in options.only)]
    machine, console, facts = report.started(), Console(), list[dict]()
    kept, path = options.json or not (options.only or options.parts), None
    end = time.monotonic() + options.limit
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks", "sizes", "--target", device_of(options)]
    command += ["--row-limit", str(options.row_limit), "--requests", str(options.requests)]
    command += ["--drawn", str(options.drawn)] * bool(options.drawn) + ["--no-compile"] * options.no_compile
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as name:
        folder = Path(name).absolute()
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ |= {"BENCHMARKS_FOLDER": str(folder), "BENCHMARKS_PARENT": str(os.getpid())}
        with_caches = partial(_caches, folder)
        ahead = [r for r in rows if r.prepare is not None]
        if ahead:
            os.environ |= with_caches("loss")
            share = 1 if options.only_prepare else 0.5
            workers = machine["cores"] if options.workers is None else options.workers
            runner.prepare([*command, "--ahead"], ahead, workers, time.monotonic() + share * options.limit)
        if options.only_prepare:
            return 0
        for row in rows:
            own = "loss" if row.prepare is not None else row.name.replace(" ", "-").replace(":", "")
            (found,) = runner.run([*command, "--worker"], [row], end, with_caches(own))
            facts.append(found)
            path = report.save(suite_of(options), facts, options.json, machine) if kept else None
            console.print(size_report.line(found), highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, 150)
    for title, headings, cells in size_report.tables(facts):
        report.print_table(console, title, headings, cells)
    console.print(f"written to {path}" if path else "not written: a part of a suite needs --json FILE")
    return int(any(f.get("error") or f.get("right") is False for f in facts))


def _caches(folder: Path, name: str) -> dict[str, str]:
    """Environment variables: caches of a row's own."""
    place = folder / "caches" / name
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return dict.fromkeys(CACHES, str(place))


__all__ = ["run", "suite_of"]
