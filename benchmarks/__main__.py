"""python -m benchmarks cpu|gpu [--json FILE] [--only TEXT ...] [--limit SECONDS] [--no-compile]
python -m benchmarks numerics [--json FILE] [--only FUNCTION ...] [--target cpu|cuda ...]
python -m benchmarks compile [--json FILE] [--only TEXT ...]
python -m benchmarks docs

Each row is timed and checked in a worker process: a row that fails or hangs does not stop the others. The results go to
benchmarks/results/<date>-<machine>-<suite>.json, or to FILE. `docs` writes the figures of the newest results, and the
tables that the code determines, into README.md and docs/.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks import report, runner


def rows_of(suite: str, compiled: bool) -> list[runner.Row]:
    if suite == "cpu":
        from benchmarks.cpu import suite as rows

        return rows()
    from benchmarks.gpu import suite as gpu_rows

    return gpu_rows(compiled)


def numerics(options: argparse.Namespace) -> int:
    """Errors of functions, a file for each target."""
    from benchmarks.numerics import right, suite

    facts: dict[str, list[dict]] = {}
    machine, wrong = report.started(), 0
    for row in suite(options.only, options.target):
        mine = facts.setdefault(row["target"], [])
        mine.append(row)
        path = options.json and options.json.with_stem(f"{options.json.stem}-{row['target']}")
        report.save(f"{row['target']}-numerics", mine, path, machine)
        wrong += not right(row)
        said = row.get("error") or f"{row['ulp']:g} of {row['bound']:g} ulp, at {row['at']!r}, of {row['samples']}"
        print(f"{row['target']:5}{row['name']:9}{row['type']:5}{'' if right(row) else 'WRONG '}{said}", flush=True)
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", usage=__doc__)
    parser.add_argument("suite", choices=("cpu", "gpu", "compile", "numerics", "docs"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose names contain one of these")
    parser.add_argument(
        "--target", nargs="*", choices=("cpu", "cuda"), default=[], help="what to measure on (numerics)"
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no further row begins")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (gpu)")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.suite == "compile":
        from benchmarks.compiling import run

        return run(options)
    if options.suite == "docs":
        from benchmarks.docs import write

        return write()
    if options.suite == "numerics":
        return numerics(options)
    rows = rows_of(options.suite, not options.no_compile)
    if options.worker is not None:
        runner.work(rows, options.worker)
        return 0
    rows = [r for r in rows if not options.only or any(o in r.name for o in options.only)]
    console, facts, machine = Console(), [], report.started()
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        options.suite,
        *(["--no-compile"] if options.no_compile else []),
        "--worker",
    ]
    for found in runner.run(command, rows, time.monotonic() + options.limit):
        facts.append(found)
        path = report.save(options.suite, facts, options.json, machine)
        ours = next((t for k, t in report.times(found).items() if k.startswith("tilec")), None)
        console.print(f"{found['name']:40} {report.time_text(ours) or found.get('error', '')}", highlight=False)
    report.show(options.suite, facts, console)
    console.print(f"written to {path}")
    return int(any(f.get("error") or f.get("right") is False for f in facts))


if __name__ == "__main__":
    sys.exit(main())
