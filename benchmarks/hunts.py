"""The table of fuzzing runs in docs/reliability.md: a row for each method of each run whose result is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks import report
from tilec.core.quantities import count

HEADINGS = [
    "cases",
    "how",
    "statements",
    "with a schedule",
    "failures",
    "unbounded",
    "seed",
    "machine, time",
    "commit, date",
]
COUNTS = (0, 2, 3, 4, 5)


def rows() -> Iterator[list[str]]:
    """Of the newest hunts first. `unbounded`: the share of compared results with elements that have no error bound."""
    for path in sorted(report.RESULTS.glob("*-fuzz.json"), reverse=True):
        hunt = json.loads(path.read_text())
        machine = hunt["machine"]
        for way, counts in hunt["ways"].items():
            free = f"{100 * counts['unbounded'] / counts['compared']:.1f}%" if counts["compared"] else ""
            where = (
                machine["gpu"].split(",")[0] if way in ("gpu", "instructions") else machine["cpu"].replace("(R)", "")
            )
            yield [
                f"{counts['tried']:,}", f"`{way}`", f"{counts['statements']:,}" if counts["statements"] else "",
                f"{counts['scheduled']:,}" if counts["scheduled"] else "", str(counts["failed"]), free, str(hunt["seed"]),
                f"{where}, {count(hunt['jobs'], 'job')}, {_time(hunt['seconds'])}", f"{hunt['versions']['commit']}, {hunt['date']}",
            ]  # fmt: skip


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def compilers() -> str:
    """The versions of the compilers below tilec in these runs."""
    found: dict[str, set[str]] = {}
    for path in sorted(report.RESULTS.glob("*-fuzz.json")):
        versions = json.loads(path.read_text())["versions"]
        for name in ("llvm", "numba", "numba-cuda-mlir", "nvvm", "ptxas", "nvjitlink"):
            if name in versions:
                found.setdefault(name, set()).add(versions[name])
    return ", ".join(f"{name} {' and '.join(sorted(numbers))}" for name, numbers in found.items())
