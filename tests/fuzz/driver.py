"""`make fuzz`: draws programs, schedules and texts for as long as asked, and writes what fails.

    python -m fuzz [--minutes 60] [--seed 0] [--target cpu|stages|emulator|gpu|text|all] [--jobs 1] [--out fuzz-found]

`all` are all ways that the machine has: `gpu` where there is one. Each of several jobs draws from a seed of its own.
Each failure becomes a folder with the program, its inputs, its schedule file if it had one, and the command that fails again:
at once, and again when it is reduced, which takes up to a minute.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from fuzz.compare import WAYS
from fuzz.files import AGAIN, FoundText, hunt_texts
from fuzz.hunt import Found, hunt
from tilec.run_data import saved
from tilec.runtime.cuda_driver import device_info

SMALL = [2, 3, 1, 4, 5, 0, 8]
"""Sizes for what runs in Python alone."""
TURN = 5.0
"""Minutes that each way has before the next has its turn."""


APART = 1_000_000_000
"""Between the seeds of two jobs, each of which counts up as long as there is time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=[*WAYS, "text", "all"], default="all")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"))
    args = parser.parse_args()
    ways = [args.target]
    if args.target == "all":
        ways = [*(w for w in WAYS if w != "gpu" or device_info().devices), "text"]
    search = partial(look, args.minutes, ways, args.out)
    seeds = [args.seed + n * APART for n in range(args.jobs)]
    if args.jobs == 1:
        results = [search(args.seed)]
    else:
        with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(search, seeds))
    found = set().union(*(kinds for _, kinds in results))
    print(f"{sum(ran for ran, _ in results)} cases, {len(found)} kinds of failure")
    return 1 if found else 0


def look(minutes: float, ways: list[str], out: Path, seed: int) -> tuple[int, set[tuple[str, str]]]:
    """How many cases one process ran, and the kinds of failure that it wrote, each with the way in which it failed."""
    end, ran = time.monotonic() + 60 * minutes, 0
    found: dict[tuple[str, str], tuple[int, Path]] = {}  # by way and kind: the seed, and where it is written
    while (left := (end - time.monotonic()) / 60) > 0:
        for way in ways:
            turn = min(TURN, left / len(ways)) if len(ways) > 1 else left

            def tell(failure: Found | FoundText, way: str = way, seed: int = seed) -> None:
                kind = failure.kind
                new = (way, kind) not in found
                first, folder = found.setdefault((way, kind), (seed, out / f"{way}-{seed}-{len(found) + 1}"))
                if first == seed:  # which reduced it meanwhile, or found it just now
                    command = write(folder, way, failure)
                    print(f"{way}: {kind}\n  {command}" if new else f"  reduced: {command}", flush=True)

            if way == "text":
                ran += hunt_texts(seed, turn, tell)
            else:
                sizes = {} if way in ("cpu", "gpu") else {"sizes": SMALL}
                ran += hunt(way, seed, turn, tell, statements=6, fuel=4, **sizes)
        seed += 1_000_000
    return ran, {*found}


def write(folder: Path, way: str, failure: Found | FoundText) -> str:
    """Writes one failure to a folder, in place of what is there; returns the command that fails again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "error.txt").write_text("".join(traceback.format_exception(failure.error)))
    if isinstance(failure, FoundText):
        name, command = AGAIN[failure.sort]
        (folder / name).write_text(failure.text, errors="surrogatepass")
        return command.format(folder / name)
    case, path = failure.case, folder / "program.tile"
    path.write_text(case.text)
    if case.inputs:
        np.savez(folder / "inputs.npz", **saved(case.inputs))
    if failure.schedule:
        (folder / "program.sched.toml").write_text(failure.schedule)
    given = f" --input {folder / 'inputs.npz'}" if case.inputs else ""
    sizes = "".join(f" -D {name}={value}" for name, value in case.sizes.items())
    target = {"gpu": " --target cuda", "emulator": " --target cuda"}.get(way, "")
    op = f" --op {case.op}" if case.op else ""
    return f"tilec run {path}{op}{sizes}{given} --check{target}"
