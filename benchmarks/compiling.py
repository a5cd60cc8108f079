"""python -m benchmarks compile: how long programs take to become ready to launch, for the CPU and, without one, for a GPU.

Of every example, at the sizes of the benchmarks:

- warm: in a process that has compiled before, without the cache; and how much of that is tilec's own work, the rest being
  Numba's, LLVM's and the assembler's;
- new process, cache empty: imports included;
- new process, cache filled: imports included, and without them (with all modules loaded before, that are used).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from rich.console import Console

from benchmarks import report

TARGETS = ("cpu", "sm_90a")
HEADINGS = ["program", "target", "kernels", "warm, own", "warm", "new process", "from cache", "imports aside"]
KEYS = ("own", "warm", "fresh", "cached", "aside")
WANTED = {"own": 0.3e6, "warm": 1e6, "fresh": 3e6, "aside": 0.03e6}  # us

HEAD = """
import importlib, json, sys, time
sys.path.insert(0, "examples")
from expectations import EXAMPLES

def ready(name, target):
    import tilec
    e = EXAMPLES[name]
    op = tilec.compile(e.path, op=e.op, target=target)
    op.build(**e.bench_sizes)
    built = op._latest
    return len(built.emitted.kernels if target == "cpu" else built.cubins)
"""
PROCESS = """
for module in BEFORE:
    try:
        importlib.import_module(module)
    except ImportError:
        pass
start = time.perf_counter()
kernels = ready(NAME, TARGET)
print(json.dumps({"seconds": time.perf_counter() - start, "kernels": kernels, "modules": sorted(sys.modules)}))
"""
WARM = """
from tilec.frontend import read_program
from tilec.api import read_source
from tilec.recipe import Recipe
from tilec.target import load

ready("softmax", TARGET)
ready("linear", TARGET)
for name in NAMES:
    e = EXAMPLES[name]
    start = time.perf_counter()
    Recipe(read_program(read_source(e.path)), e.op, None, e.bench_sizes, load(TARGET)).compiled()
    own = time.perf_counter() - start
    start = time.perf_counter()
    ready(name, TARGET)
    print(json.dumps({"name": name, "own": own, "warm": time.perf_counter() - start}), flush=True)
"""


def measure(names: list[str], target: str) -> Iterator[dict]:
    """A row of facts for each example; `times_us` has the keys above."""
    warm = {}
    for line in _python(f"{HEAD}\nNAMES, TARGET = {names!r}, {target!r}\n{WARM}", "").splitlines():
        facts = json.loads(line)
        warm[facts["name"]] = facts
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            fresh, cached = (_process(name, target, [], folder) for _ in range(2))
            aside = _process(name, target, cached["modules"], folder)
        seconds = {"own": warm[name]["own"], "warm": warm[name]["warm"], "fresh": fresh["seconds"]}
        seconds |= {"cached": cached["seconds"], "aside": aside["seconds"]}
        yield {
            "name": name, "target": target, "kernels": fresh["kernels"],
            "times_us": {k: 1e6 * v for k, v in seconds.items()},
        }  # fmt: skip


def _process(name: str, target: str, before: list[str], folder: str) -> dict:
    code = f"{HEAD}\nNAME, TARGET, BEFORE = {name!r}, {target!r}, {before!r}\n{PROCESS}"
    return json.loads(_python(code, folder).splitlines()[-1])


def _python(code: str, cache: str) -> str:
    variables = os.environ | {"TILEC_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def cells(rows: list[dict]) -> list[list[str]]:
    return [
        [r["name"], r["target"], str(r["kernels"]), *(report.time_text(r["times_us"][k]) for k in KEYS)] for r in rows
    ]


def missed(rows: list[dict]) -> list[str]:
    """Which rows are over which limit."""
    return [
        f"{r['name']} ({r['target']}), {HEADINGS[3 + KEYS.index(k)]}: {report.time_text(r['times_us'][k])}, "
        f"wanted {report.time_text(most)}"
        for r in rows
        for k, most in WANTED.items()
        if r["times_us"][k] > most
    ]


def run(options: argparse.Namespace) -> int:
    from benchmarks.workloads import EXAMPLES

    names = [n for n in EXAMPLES if not options.only or any(o in n for o in options.only)]
    rows: list[dict] = []
    machine, console = report.started(), Console()
    for target in TARGETS:
        try:
            for row in measure(names, target):
                rows.append(row)
                console.print("  ".join(cells([row])[0]), highlight=False)
        except RuntimeError as error:  # no compiler for GPUs here, say
            console.print(f"{target}: {error}", highlight=False, markup=False)
            continue
    path = report.save("compile", rows, options.json, machine)
    console.width = max(console.width, 130)
    report.print_table(console, "to the first launch", HEADINGS, cells(rows), 2)
    for line in missed(rows):
        console.print(f"missed: {line}", highlight=False, markup=False)
    console.print(f"written to {path}")
    return 0


__all__ = ["run"]
