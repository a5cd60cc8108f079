"""python -m benchmarks kernels --out FOLDER: the plans and printed kernels of every example and of all rows of the suites.

A text for each program and target, so that `diff -r` of two folders shows what a change of the compiler changes. Nothing is
launched, so that kernels for a GPU need none.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cpu, cpu_loads, edits, gpu, matrix_loads, memory_loads
from benchmarks.workloads import EXAMPLES, Workload
from tilec.core import mlir
from tilec.core.dtypes import DTYPES
from tilec.core.source import read_source
from tilec.core.targets import load
from tilec.driver.lowering import lower
from tilec.dsl.build import build
from tilec.dsl.parse import parse
from tilec.dsl.specialise import Specialised, specialise
from tilec.plan.report.explain import explain

TARGETS = {"cpu": "cpu", "cuda": "h200"}
LOADS = {"cpu": (cpu._workloads, cpu_loads.loads), "cuda": (gpu._chains, gpu._matrices, gpu._rows, matrix_loads.loads)}


@dataclass(frozen=True)
class Program:
    """A program with numbers for its sizes, for one target."""

    name: str
    target: str
    special: Specialised

    def text(self) -> str:
        """Its plan with the reasons, and its kernels as printed."""
        with mlir.context(), mlir.ir.Location.unknown():
            lowered = lower(build(self.special), load(TARGETS[self.target]), locations=False, texts=False)
        assert lowered.plan is not None and lowered.emitted is not None
        return f"{explain(lowered.plan, self.special)}\n\n{lowered.emitted.module}\n"


def _of(work: Workload) -> Specialised:
    given = [(DTYPES[i.dtype], i.shape) for i in work.inputs]
    return specialise(parse(read_source(work.program)), work.op, given)


def programs(targets: list[str]) -> Iterator[Program]:
    """Of the kinds of target that are named. Where several rows have one name, the later have a number, too."""
    for target in targets or TARGETS:
        for example in EXAMPLES.values():
            tree = parse(read_source(example.path))
            for kind, sizes in (("small", example.sizes), ("bench", example.bench_sizes)):
                yield Program(f"example {example.name} {kind}", target, specialise(tree, example.op, None, sizes))
        for work in (work for loads in LOADS[target] for work in loads()):
            yield Program(work.name, target, _of(work))
        for row in memory_loads.loads() if target == "cuda" else ():
            yield Program(row.name, target, _of(row.work))
        for edited in edits.PROGRAMS[target]:
            yield Program(f"edit {edited.name}", target, edits.specialised(edited))


def run(options: argparse.Namespace) -> int:
    """Writes the texts; a program that does not compile has its error for a text."""
    folder, seen = Path(options.out), dict[Path, int]()
    for program in programs(options.target):
        if options.only and not any(text in program.name for text in options.only):
            continue
        path = folder / program.target / f"{re.sub(r'[^A-Za-z0-9.]+', '-', program.name)}.txt"
        seen[path] = seen.get(path, 0) + 1
        if seen[path] > 1:
            path = path.with_stem(f"{path.stem}-{seen[path]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_text(program.text())
        except Exception as error:
            path.write_text(f"{type(error).__name__}: {error}\n")
    print(f"{sum(seen.values())} texts in {folder}")
    return 0
