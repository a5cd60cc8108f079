"""python -m benchmarks models --cold: how long models take until their first step is done, compiled in a new process.

Each way of a row is a process of its own with empty caches: what one has imported, traced or kept on disk serves no other. The
seconds count from the first call to its end, less a later call; the model is made and PyTorch's driver started before. Python's
files of bytecode are made before, as an installation does. A library's files that a model is the first to need come from a slower
disk: the ways take turns in being the first of a model. `--workers` rows run at a time (by default one for each four processors, so
that each has four).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import models_report, report, runner
from benchmarks.model_loads import Load
from benchmarks.model_rows import Setting, Task, first_call, wait

WAYS = ("tilec", "torch.compile")
CACHES = ("TILEC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PROCESSORS = 4  # of a row
SECONDS = 300.0  # of a way


def rows(tasks: Sequence[tuple[Load, str]], setting: Setting) -> list[runner.Row]:
    """A row for each way of each task; `gather` puts those of a task together."""
    return [
        runner.Row(f"{load.name}, {task}, {way}", partial(measure, load, task, setting, way), SECONDS)
        for load, task in tasks
        for way in WAYS
    ]


def measure(load: Load, task: str, setting: Setting, way: str) -> dict[str, Any]:
    """The seconds of a first step in this process."""
    import torch

    if setting.device == "cuda":
        torch.cuda.init()
    state = Task(load, task, setting, judged=False)
    wait(setting.device)
    function, seconds = first_call(state, way)
    state.before()
    start = time.perf_counter()
    state.call(function)
    wait(state.device)
    return {"seconds": round(seconds - (time.perf_counter() - start), 3)}


def run(options: argparse.Namespace, tasks: Sequence[tuple[Load, str]], setting: Setting, command: list[str]) -> int:
    """Measures, shows and saves."""
    made = rows(tasks, setting)
    if options.worker is not None:
        runner.work(made, options.worker)
        return 0
    machine, console, found = report.started(), Console(), []
    workers = min(options.workers or max(1, machine["cores"] // PROCESSORS), max(1, len(tasks)))
    machine |= {"at_once": workers}
    end = time.monotonic() + options.limit
    threads = str(max(1, machine["cores"] // workers))
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": threads, "PYTHONDONTWRITEBYTECODE": ""}
    named = {row.name: row for row in made}

    def one(number: int, load: Load, task: str) -> dict[str, Any]:
        turn = WAYS if number % 2 == 0 else WAYS[::-1]
        found = {way: _alone(command, named[f"{load.name}, {task}, {way}"], end) for way in turn}
        each = {way: found[way] for way in WAYS}
        facts = {"name": f"{load.name}, {task}", "group": task, "kind": load.kind}
        if errors := {way: f["error"] for way, f in each.items() if f.get("error")}:
            facts["errors"] = errors
        return facts | {"compile_s": {way: f["seconds"] for way, f in each.items() if "seconds" in f}}

    path, order = None, [f"{load.name}, {task}" for load, task in tasks]
    with ThreadPoolExecutor(workers) as pool:
        _compile_bytecode()
        _alone(command, made[0], end)  # what its import makes on disk
        for done in as_completed([pool.submit(one, number, *each) for number, each in enumerate(tasks)]):
            found.append(done.result())
            found.sort(key=lambda f: order.index(f["name"]))
            path = report.save("models-cold", found, options.json, machine)
            console.print(models_report.cold_line(done.result()), highlight=False, markup=False, soft_wrap=True)
    models_report.show_cold(found, console)
    console.print(f"written to {path}")
    return int(any("errors" in f for f in found))


def _compile_bytecode() -> None:
    """Of all modules that can be imported, where their folders can be written."""
    folders = [folder for folder in sys.path if os.path.isdir(folder)]
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-q", "-j", "0", *folders], check=False)


def _alone(command: list[str], row: runner.Row, end: float) -> dict[str, Any]:
    """A row in a new process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / name) for name in CACHES}
        for path in caches.values():
            os.mkdir(path, mode=0o700)
        (facts,) = runner.run([*command, "--worker"], [row], end, caches)
        return facts


def command(options: argparse.Namespace) -> list[str]:
    """What runs rows in another process."""
    given = [sys.executable, "-W", "ignore", "-m", "benchmarks", "models", "--cold", "--target", *(options.target or ["cuda"])]
    return given + (["--layers", str(options.layers)] if options.layers else [])


__all__ = ["command", "run"]
