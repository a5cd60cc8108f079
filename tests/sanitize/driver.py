"""`make sanitize`: NVIDIA's Compute Sanitizer over the kernels of every example and of drawn programs.

    python -m sanitize [--tool NAME ...] [--only TEXT] [--fuzz 32] [--seed 0] [--jobs 16] [--limit 600]

Kernels are compiled first, without a tool. First of all each tool must find the faults planted for it. The exit status is
0 if it did and nothing else was reported, 1 if not, 2 where the tools cannot run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from sanitize import cases
from sanitize.planted import PLANTED, compile_planted
from sanitize.tools import EVERY, TOOLS, UNSUPPORTED, Outcome, find, read
from sanitize.tools import runs as can_run
from tilec.core.diagnostics import TileError
from tilec.core.targets import load
from tilec.runtime.cuda.driver import device_info

ROOT = Path(__file__).parents[2]
DRAWN = 4
"""Programs that one process draws and compiles."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make sanitize", description=__doc__.partition("\n")[0])
    parser.add_argument("--tool", nargs="*", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--fuzz", type=int, default=32, help="drawn programs")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one run of a tool")
    options = parser.parse_args(arguments)
    if (program := find()) is None:
        return refuse(
            "there is no compute-sanitizer: it comes with the CUDA toolkit; put its bin folder on PATH, or set CUDA_HOME"
        )
    if not (info := device_info()).devices:
        return refuse(f"there is no GPU to run on: {info.problem}")
    with tempfile.TemporaryDirectory() as folder:
        prepared, broken = prepare(options, Path(folder))
        print(f"{len(prepared)} programs compiled", flush=True)
        return sanitize(program, options, prepared, broken)


def refuse(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


# ---- preparing -------------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace, folder: Path, target: str = "cuda") -> tuple[list[Path], int]:
    """Folders of the cases, and how many could not be made for another reason than that the target cannot do them."""
    chosen = [c for c in cases.cases() if options.only in c.name]
    seeds = range(options.seed, options.seed + -(-options.fuzz // DRAWN)) if not options.only else ()
    context, broken = multiprocessing.get_context("spawn"), 0
    with ProcessPoolExecutor(options.jobs, context) as pool:
        planted = [pool.submit(compile_planted, name, load(target).chip) for name in PLANTED]
        waiting: dict[str, Future[list[Path]]] = {f"draw {s}": pool.submit(_draw, s, folder, target) for s in seeds}
        waiting |= {c.name: pool.submit(_prepare, c, folder, target) for c in chosen}
        found: list[Path] = []
        for name, future in waiting.items():
            try:
                found += future.result()
            except Exception as error:
                broken += 1
                print(f"{name} was not compiled: {error!r:.300}", flush=True)
        for future in planted:
            future.result()
    return found, broken


def _prepare(case: cases.Case, folder: Path, target: str) -> list[Path]:
    return [cases.prepare(case, folder, target)]


def _draw(seed: int, folder: Path, target: str) -> list[Path]:
    made = []
    for case in cases.drawn_cases(seed, DRAWN):
        try:
            made.append(cases.prepare(case, folder, target))
        except TileError as error:
            print(f"{case.name} is refused: {error!r:.200}", flush=True)
    return made


# ---- running ---------------------------------------------------------------------------------------------------------


def sanitize(program: str, options: argparse.Namespace, prepared: list[Path], broken: int) -> int:
    """Runs the tools, several at a time; tells what each says."""
    faults, unusable = broken, False
    parts = max(1, 2 * options.jobs // len(options.tool))  # twice as many runs as fit at a time: some take longer
    with ThreadPoolExecutor(options.jobs) as pool:

        def start(tool: str, *arguments: str) -> Future[tuple[Outcome, str, float]]:
            return pool.submit(_run, program, tool, arguments, options.limit)

        planted = {(t, n): start(t, "--planted", n) for t in options.tool for n, p in PLANTED.items() if p.tool == t}
        runs = {}
        for tool in options.tool:
            cases_of = [case for case in prepared if can_run(tool, case)]
            if left := [case.name for case in prepared if case not in cases_of]:
                print(
                    f"{tool} cannot run clusters of 16 blocks, more than 3 of them: left out {', '.join(left)}",
                    flush=True,
                )
            runs[tool] = [(part, start(tool, *map(str, part))) for part in _parts(cases_of, parts)]
        for (tool, name), future in planted.items():
            outcome, output, _ = future.result()
            if outcome.problem == UNSUPPORTED:
                unusable = True
            elif not outcome.reports:
                faults += 1
                print(
                    f"{tool} does not see what is planted for it, {name}: {outcome.problem}\n{output[-2000:]}",
                    flush=True,
                )
        if unusable:
            return refuse(f"compute-sanitizer cannot work here: {outcome.problem}. Nothing was checked")
        for tool, parted in runs.items():
            faults += sum(_report(tool, part, *future.result()) for part, future in parted)
    print(f"{len(prepared)} programs under {', '.join(options.tool)}: {faults or 'no'} faults", flush=True)
    return int(faults > 0)


def _parts(prepared: list[Path], count: int) -> Iterator[list[Path]]:
    yield from (part for n in range(count) if (part := prepared[n::count]))


def _run(program: str, tool: str, arguments: tuple[str, ...], limit: float) -> tuple[Outcome, str, float]:
    command = [program, *TOOLS[tool], *EVERY, sys.executable, "-m", "sanitize.child", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])}
    begin = time.monotonic()
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = running.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # the program under the tool, too
        output, _ = running.communicate()
    status = running.returncode
    return read(output, status), output, time.monotonic() - begin


def _report(tool: str, part: list[Path], outcome: Outcome, output: str, seconds: float) -> int:
    """Prints what a run found; returns how much that was."""
    missing = [p.name for p in part if p.name not in outcome.ended]
    kinds: dict[tuple[str, str], list[str]] = {}
    for report in outcome.reports:
        kinds.setdefault((report.case, report.kind), []).append(report.text)
    for (case, _), texts in kinds.items():
        print(f"{tool}: {case}: {len(texts)} times\n  " + texts[0].replace("\n", "\n  "), flush=True)
    if missing or outcome.problem:
        print(f"{tool}: {outcome.problem or 'cases did not end'}; not run: {', '.join(missing) or 'none'}", flush=True)
        print("  " + "\n  ".join(output.splitlines()[-25:]), flush=True)
    print(
        f"{tool}: {len(outcome.ended)} of {len(part)} programs ended, {len(kinds)} kinds of report, {seconds:.0f} s",
        flush=True,
    )
    return len(kinds) + bool(missing or outcome.problem)
