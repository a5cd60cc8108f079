"""python -m benchmarks models: whole models beside eager PyTorch and torch.compile: time, memory, errors; `--cold`: compile time.

Three rows for a model of `benchmarks/model_loads.py`: inference, a training step (forward and backward), and for some decoders
the step of one token with a static cache. Each row is a process of its own, with empty caches. So many rows as there are workers
compile beside each other; when all of these have compiled, one after another is checked and timed, with nothing else at work.

`--only` takes words of a row's name, one or several that follow each other: `--only t5`, `--only "resnet50 NHWC" bert`. After
`--limit` seconds no further row begins; one that has begun ends within its own limit, which is ten minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import model_cold, models_report, report, runner
from benchmarks import model_loads as loads
from benchmarks.model_rows import COMPILE_S, Setting, measure

TASKS = ("inference", "decoding", "training")
ROW_S = 600.0  # with what the other rows take that compile beside it


def tasks() -> list[tuple[loads.Load, str]]:
    """By task, then by model: the first rows are the most telling."""
    return [(load, task) for task in TASKS for load in loads.loads() if task != "decoding" or load.decodes]


def suite(setting: Setting) -> list[runner.Row]:
    return [
        runner.Row(f"{load.name}, {task}", partial(measure, load, task, setting), ROW_S) for load, task in tasks()
    ]


def setting_of(options: argparse.Namespace) -> Setting:
    device = (options.target or ["cuda"])[0]
    return Setting(device, device == "cpu", options.layers, not options.no_compile, options.autotune)


def suite_of(options: argparse.Namespace) -> str:
    """As the files of results name it."""
    return "cpu-models" if options.target[:1] == ["cpu"] else "models"


def is_reported(words: str, name: str) -> bool:
    """Whether a row's name has these words, one after another: `resnet50` has no `t5`."""
    wanted, found = (re.findall(r"[^\s,]+", text) for text in (words, name))
    return any(found[n : n + len(wanted)] == wanted for n in range(len(found)))


def run(options: argparse.Namespace) -> int:
    chosen = lambda name: (  # noqa: E731
        (not options.only or any(is_reported(o, name) for o in options.only))
        and (options.task is None or name.endswith(f", {options.task}"))
    )
    if options.cold:
        asked = [(load, task) for load, task in tasks() if chosen(f"{load.name}, {task}")]
        return model_cold.run(options, asked, setting_of(options), model_cold.command(options))
    rows = suite(setting_of(options))
    if options.worker is not None:
        runner.work(rows, options.worker)
        return 0
    rows = [r for r in rows if chosen(r.name)]
    if options.missing:
        known = report.measured(suite_of(options))
        rows = [r for r in rows if r.name not in known]
    machine, console, facts = report.started(), Console(), []
    workers = min(options.workers or max(1, machine["cores"] // 2), len(rows))
    machine |= {"at_once": workers}
    end = time.monotonic() + options.limit
    kept = options.json or not (options.only or options.missing or options.task)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks", "models", "--target", *(options.target or ["cuda"])]
    command += ["--no-compile"] * options.no_compile + ["--autotune"] * options.autotune
    command += ["--layers", str(options.layers)] if options.layers else []
    threads = str(max(1, machine["cores"] // max(1, workers)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers or 1) as pool:
        os.environ |= {"BENCHMARKS_FOLDER": folder, "BENCHMARKS_PARENT": str(os.getpid())}
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = threads
        path = None
        for first in range(0, len(rows), max(1, workers)):
            wave = rows[first : first + workers]
            for done in as_completed([pool.submit(_in_process, command, row, Path(folder), end) for row in wave]):
                facts.append(found := done.result())
                order = {r.name: n for n, r in enumerate(rows)}
                facts.sort(key=lambda f: order[f["name"]])
                path = report.save(suite_of(options), facts, options.json, machine) if kept else None
                console.print(models_report.line(found), highlight=False, markup=False, soft_wrap=True)
    models_report.show(facts, console)
    console.print(f"written to {path}" if kept else "not written: a part of a suite needs --json FILE")
    return int(any(f.get("error") or f.get("right") is False for f in facts))


def _in_process(command: list[str], row: runner.Row, folder: Path, end: float) -> dict:
    """One row, with caches of its own."""
    caches = folder / row.name.replace(" ", "-").replace(",", "")
    caches.mkdir(mode=0o700, exist_ok=True)
    names = ("TILEC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    begin = time.monotonic()
    (found,) = runner.run([*command, "--worker"], [row], end, dict.fromkeys(names, str(caches)))
    if str(found.get("error", "")).endswith(f"status {-signal.SIGALRM}"):
        found["error"] = f"not compiled within {COMPILE_S} s"
    return found | {"row_s": round(time.monotonic() - begin, 1)}


__all__ = ["run"]
