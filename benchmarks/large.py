"""python -m benchmarks large: what thousands of statements take before machine code is made of them, in seconds of CPU time.

Of each program of `benchmarks/large_programs.py`: the stages from its text to printed kernels, how many kernels it has,
and of these how many differ; the memory of its intermediates, beside the most that is needed at one time. Nothing is
launched, so that kernels for a GPU need none.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rich.console import Console

from benchmarks import report
from benchmarks.large_programs import LARGE
from tilec.core import mlir
from tilec.core.diagnostics import Source
from tilec.core.targets import load
from tilec.driver import lowering
from tilec.dsl.build import build
from tilec.dsl.mistakes import read
from tilec.dsl.modules import load_file
from tilec.dsl.specialise import specialise
from tilec.runtime.generated import functions, identity
from tilec.runtime.program import Emitted

T = TypeVar("T")
STAGES = ("read", "specialise", "build", "simplify", "plan", "fuse", "tile", "bufferize", "stage", "map", "emit", "all")
HEADINGS = ["program", "target", "statements", "kernels", "different", *STAGES, "intermediates", "least"]


def measure(name: str, target: str, count: int) -> dict[str, Any]:
    """A row of facts; `seconds` has the stages, and `all`."""
    text, seconds = LARGE[name].text(count), dict[str, float]()

    def timed(stage: str, step: Callable[[], T]) -> T:
        start = time.process_time()
        found = step()
        seconds[stage] = time.process_time() - start
        return found

    gc.collect()
    source = Source(f"<{name}>", text)
    tree = timed("read", lambda: read(source, load_file))
    special = timed("specialise", lambda: specialise(tree, name, None, {}, checked=True))
    with mlir.context(), mlir.ir.Location.unknown():
        module = timed("build", lambda: build(special))
        lowered = timed("lower", lambda: lowering.lower(module, load(target), texts=False, clock=time.process_time))
    seconds |= lowered.seconds
    seconds["all"] = sum(seconds[s] for s in ("read", "specialise", "build", "lower"))
    emitted = lowered.emitted
    assert emitted is not None
    codes = functions(emitted.module)
    return {
        "name": name, "target": target, "statements": text.count(" = "), "kernels": len(emitted.kernels),
        "different": len({identity(codes[k.name]) for k in emitted.kernels}),
        "seconds": {s: round(seconds[s], 3) for s in STAGES}, "workspace": emitted.workspace, "least": least(emitted),
    }  # fmt: skip


def least(emitted: Emitted) -> int:
    """The bytes of intermediates that live at the step at which most do."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for n, step in enumerate(emitted.steps):
        for slot in (s for s in step.slots if s.kind == "temporary"):
            begins.setdefault(slot.number, n)
            ends[slot.number] = n
    change = [0] * (len(emitted.steps) + 1)
    for number, n in begins.items():
        change[n] += emitted.temporaries[number].bytes
        change[ends[number] + 1] -= emitted.temporaries[number].bytes
    most = live = 0
    for bytes_ in change:
        live += bytes_
        most = max(most, live)
    return most


def cells(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for r in rows:
        stages = [f"{r['seconds'][s]:.2f}" for s in STAGES]
        memory = [f"{r[k] / 2**20:.1f} MiB" for k in ("workspace", "least")]
        yield [r["name"], r["target"], *(str(r[k]) for k in ("statements", "kernels", "different")), *stages, *memory]


def run(options: argparse.Namespace) -> int:
    machine, console, rows = report.started(), Console(), []
    for name, program in LARGE.items():
        for target in options.target or ("cpu", "cuda"):
            if not options.only or any(o in name for o in options.only):
                rows.append(measure(name, "h200" if target == "cuda" else target, program.count))
                console.print("  ".join(next(cells(rows[-1:]))), highlight=False)
                path = report.save("large", rows, options.json, machine)
    console.width = max(console.width, 190)
    report.print_table(console, "seconds before machine code", HEADINGS, list(cells(rows)), 2)
    console.print(f"written to {path}")
    return 0


__all__ = ["run"]
