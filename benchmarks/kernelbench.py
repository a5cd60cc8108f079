"""python -m benchmarks kernelbench FOLDER: the problems of a checkout of KernelBench, as they stand or with other numbers.

Each problem is a process of its own. Other processes compile kernels of problems that follow, without their memory; problems are
judged beside each other, and one at a time is timed, the others stopped. `--predict TARGET` plans the problems for a target,
without a GPU, and shows predicted times beside the least.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import kernelbench_report, report, runner
from benchmarks.kernelbench_problems import Problem, problems

TYPES = {"f32": "float32", "bf16": "bfloat16"}
AT_ONCE = 6  # rows, of which one is timed
ROW_S = 240.0


def chosen(options: argparse.Namespace) -> list[Problem]:
    """The problems that the options name. `--share K/N`: every N-th of a fixed random order, from the K-th on."""
    found = problems(Path(options.folder), options.level, options.vary)
    found = [p for p in found if not options.only or any(o in p.name for o in options.only)]
    if options.share:
        number, of = map(int, options.share.split("/"))
        found = random.Random(0).sample(found, len(found))[number - 1 :: of]
    return found


def suite(options: argparse.Namespace) -> list[runner.Row]:
    import torch

    from benchmarks.kernelbench_rows import measure, predict, prepare

    dtype, rows = getattr(torch, TYPES[options.dtype]), []
    for problem in chosen(options):
        if options.predict:
            rows.append(runner.Row(problem.name, partial(predict, problem, options.predict, dtype), ROW_S))
        else:
            run = partial(measure, problem, dtype, not options.no_compile)
            rows.append(runner.Row(problem.name, run, ROW_S, partial(prepare, problem, dtype)))
    return rows


def command(options: argparse.Namespace) -> list[str]:
    """Of a worker that has these options."""
    found = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks",
        "kernelbench",
        str(options.folder),
        "--dtype",
        options.dtype,
    ]
    found += ["--vary", str(options.vary)] if options.vary is not None else []
    found += ["--predict", options.predict] if options.predict else []
    return found + ["--no-compile"] * options.no_compile


def run(options: argparse.Namespace) -> int:
    if options.worker is not None or options.ahead is not None:
        rows = suite(options)
        if options.worker is not None:
            runner.work(rows, options.worker)
        else:
            runner.work_ahead(rows, options.ahead)
        return 0
    rows = [runner.Row(p.name, dict, ROW_S, dict) for p in chosen(options)]
    if not rows:
        raise SystemExit(f"no problem's name contains any of {options.only}")
    machine, console, facts = report.started(), Console(), dict[str, dict]()
    end, order = time.monotonic() + options.limit, {r.name: n for n, r in enumerate(rows)}
    whole = not (options.only or options.share or options.level or options.predict)
    kept = options.json or whole
    name = f"kernelbench{'-bf16' * (options.dtype == 'bf16')}{'-varied' * (options.vary is not None)}"
    console.print(f"{len(rows)} problems", highlight=False)
    at_once = (options.workers or machine["cores"]) if options.predict else AT_ONCE
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        os.environ |= {"BENCHMARKS_FOLDER": folder, "BENCHMARKS_PARENT": str(os.getpid())}
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/torchinductor"
        ahead, known = None, dict[str, dict]()
        if not options.predict:
            workers = max(1, machine["cores"] - AT_ONCE) if options.workers is None else options.workers

            def compile_all() -> None:
                known.update(runner.prepare([*command(options), "--ahead"], rows, workers, end))

            ahead = threading.Thread(target=compile_all)
            ahead.start()
        alone = [*command(options), "--worker"]
        asked = [pool.submit(lambda own: next(iter(runner.run(alone, [own], end))), row) for row in rows]
        for done in as_completed(asked):
            found = done.result()
            facts[found["name"]] = found
            if kept:
                path = report.save(name, [facts[n] for n in sorted(facts, key=order.__getitem__)], options.json, machine)
            console.print(kernelbench_report.line(found), highlight=False, markup=False, soft_wrap=True)
        if ahead is not None:
            ahead.join()
        listed = [known.get(n, {}) | facts[n] for n in sorted(facts, key=order.__getitem__)]
        path = report.save(name, listed, options.json, machine) if kept else None
    for text in kernelbench_report.predicted(listed) if options.predict else kernelbench_report.summary(listed):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print(f"written to {path}" if kept else "not written: a part of the problems needs --json FILE")
    return int(any(f.get("error") or f.get("right") is False for f in listed))


__all__ = ["run"]
