"""python -m benchmarks compile: how long programs take to become ready to launch, for the CPU and for a GPU.

Of every example, at the sizes of the benchmarks:

- warm: in a process that has compiled before, without the cache; and how much of that is tilec's own work, the rest being
  Numba's, LLVM's and the assembler's;
- new process, cache empty: imports included, and that of `tilec` alone;
- torch.compile in a new process, its caches empty: its import and the first call, less the time of a second call;
- new process, cache filled: imports included, and without them (with all modules loaded before, that are used). These are
  short, so nothing else runs meanwhile.

Where there is a GPU, kernels are loaded into it, too. The driver's start, its context, is a column of its own, as nobody's
first call includes it. Kernels for a GPU can be compiled without one, torch.compile then has no column.

Python's files of bytecode are there, as after an installation: the first processes may write them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.machine import gpu, has
from benchmarks.workloads import EXAMPLES

KEYS = {
    "own": "warm, own", "warm": "warm", "import": "import", "fresh": "new process", "torch": "torch.compile",
    "cached": "from cache", "aside": "imports aside", "driver": "driver",
}  # fmt: skip
HEADINGS = ["program", "target", "kernels", *KEYS.values()]
WANTED = {"own": 0.3e6, "warm": 1e6, "import": 0.25e6, "fresh": 3e6, "aside": 0.03e6}  # us
SHARE = 0.5  # of torch.compile's time in a new process

READY = """
import ctypes, importlib, json, sys, time

def ready(path, op, sizes, target):
    import tilec
    op = tilec.compile(path, op=op, target=target)
    op.build(**sizes)
    if target == "cuda":
        op._latest.on(0)
    return len(op._latest.emitted.kernels if target == "cpu" else op._latest.cubins)

def start_driver():
    start = time.perf_counter()
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    failed = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
    assert not failed, f"the driver says {failed}"
    return time.perf_counter() - start
"""
PROCESS = """
driver = {"driver": start_driver()} if PROGRAM[3] == "cuda" else {}
for module in BEFORE:
    try:
        importlib.import_module(module)
    except ImportError:
        pass
start = time.perf_counter()
import tilec
imported = time.perf_counter()
kernels = ready(*PROGRAM)
seconds = {"import": imported - start, "all": time.perf_counter() - start} | driver
print(json.dumps({"seconds": seconds, "kernels": kernels, "modules": sorted(sys.modules)}))
"""
WARM = """
from tilec.driver.frontend import read_program
from tilec.core.source import read_source
from tilec.driver.recipe import Recipe
from tilec.core.targets import load

for program in BEFORE:
    ready(*program)
for name, (path, op, sizes, target) in PROGRAMS.items():
    start = time.perf_counter()
    Recipe(read_program(read_source(path)), op, None, sizes, load(target)).compiled()
    own = time.perf_counter() - start
    start = time.perf_counter()
    ready(path, op, sizes, target)
    print(json.dumps({"name": name, "own": own, "warm": time.perf_counter() - start}), flush=True)
"""
TORCH = """
import json, sys, time
start = time.perf_counter()
import torch
imported = time.perf_counter() - start
import numpy as np
from benchmarks.workloads import EXAMPLES, FastNormal

def tensor(a):
    narrow = a.dtype.name == "bfloat16"
    return (torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if narrow else torch.from_numpy(a)).to(DEVICE)

def call():
    start = time.perf_counter()
    function(*tensors)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start

e = EXAMPLES[NAME]
tensors = [tensor(np.asarray(a)) for a in e.inputs(FastNormal(np.random.default_rng(0)), e.bench_sizes).values()]
function = torch.compile(e.torch_eager, dynamic=False)
print(imported + call() - call())
"""


def measure(names: list[str], target: str, at_once: int = 1) -> Iterator[dict]:
    """A row of facts for each example; `times_us` has the keys above. New processes with an empty cache for `at_once`
    programs at a time."""
    warm = dict(_warm(names, target))
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(at_once) as pool:
            new = dict(zip(names, pool.map(lambda name: cold(name, target, Path(folder)), names)))
        for name in names:
            kernels, seconds = new[name]
            times = {k: 1e6 * v for k, v in (warm[name] | seconds | from_cache(name, target, Path(folder))).items()}
            yield {"name": name, "target": target, "kernels": kernels, "times_us": times}


def _warm(names: list[str], target: str) -> Iterator[tuple[str, dict[str, float]]]:
    before, programs = [_program(n, target) for n in ("softmax", "linear")], {n: _program(n, target) for n in names}
    for line in _python(f"{READY}\nBEFORE, PROGRAMS = {before!r}, {programs!r}\n{WARM}", "").splitlines():
        facts = json.loads(line)
        yield facts.pop("name"), facts


def cold(name: str, target: str, folder: Path) -> tuple[int, dict[str, float]]:
    """How many kernels an example has; seconds by key in new processes. Fills the cache in `folder`/`name`."""
    fresh = _process(name, target, [], _made(folder / name))
    seconds = {"import": fresh["seconds"]["import"], "fresh": fresh["seconds"]["all"]}
    if (device := {"cpu": "cpu", "cuda": "cuda"}.get(target)) and has("torch"):
        caches = _made(folder / f"torch-{name}")
        seconds["torch"] = float(_python(f"NAME, DEVICE = {name!r}, {device!r}\n{TORCH}", caches).splitlines()[-1])
    return fresh["kernels"], seconds


def from_cache(name: str, target: str, folder: Path) -> dict[str, float]:
    """Seconds by key in processes that find what `cold` left."""
    cached = _process(name, target, [], str(folder / name))
    aside = _process(name, target, cached["modules"], str(folder / name))["seconds"]
    return {"cached": cached["seconds"]["all"], "aside": aside["all"]} | {k: aside[k] for k in aside if k == "driver"}


def _made(folder: Path) -> str:
    folder.mkdir(mode=0o700)
    return str(folder)


def _program(name: str, target: str) -> tuple:
    e = EXAMPLES[name]
    return str(e.path), e.op, e.bench_sizes, target


def _process(name: str, target: str, before: list[str], folder: str) -> dict:
    code = f"{READY}\nPROGRAM, BEFORE = {_program(name, target)!r}, {before!r}\n{PROCESS}"
    return json.loads(_python(code, folder).splitlines()[-1])


def _python(code: str, cache: str) -> str:
    names = ("TILEC_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    variables = os.environ | dict.fromkeys(names, cache) | {"PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def cells(rows: list[dict]) -> list[list[str]]:
    return [
        [r["name"], r["target"], str(r["kernels"]), *(report.time_text(r["times_us"].get(k)) for k in KEYS)]
        for r in rows
    ]


def shares(rows: list[dict]) -> dict[str, float]:
    """By target: tilec's time in a new process over torch.compile's, the geometric mean."""
    found: dict[str, list[float]] = {}
    for r in rows:
        if share := report.ratio(r["times_us"].get("fresh"), r["times_us"].get("torch")):
            found.setdefault(r["target"], []).append(log(share))
    return {target: exp(sum(logs) / len(logs)) for target, logs in found.items()}


def summary(rows: list[dict]) -> list[str]:
    """The shares, and which rows are over which limit."""
    lines = [
        f"In a new process, caches empty, tilec takes {value:.2f} of torch.compile's time ({target}, geometric mean), "
        f"wanted {SHARE}."
        for target, value in shares(rows).items()
    ]
    missed = [
        f"{r['name']} ({r['target']}), {KEYS[k]}: {report.time_text(r['times_us'][k])}, wanted {report.time_text(most)}"
        for r in rows
        for k, most in WANTED.items()
        if r["times_us"].get(k, 0) > most
    ]
    return [*lines, "Over their limits: " + "; ".join(missed) + "." if missed else "All are within their limits."]


def run(options: argparse.Namespace) -> int:
    names = [n for n in EXAMPLES if not options.only or any(o in n for o in options.only)]
    rows: list[dict] = []
    at_once = options.workers or 1
    machine, console = report.started() | {"at_once": at_once}, Console()
    for target in options.target or ("cpu", "cuda" if gpu() else "sm_90a"):
        try:
            for row in measure(names, target, at_once):
                rows.append(row)
                console.print("  ".join(cells([row])[0]), highlight=False)
        except RuntimeError as error:  # no compiler for GPUs here, say
            console.print(f"{target}: {error}", highlight=False, markup=False)
            continue
    path = report.save("compile", rows, options.json, machine)
    console.width = max(console.width, 130)
    report.print_table(console, "to the first launch", HEADINGS, cells(rows), 2)
    for line in summary(rows):
        console.print(line, highlight=False, markup=False)
    console.print(f"written to {path}")
    return 0


__all__ = ["run"]
