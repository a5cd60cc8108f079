"""Programs on the CPU, several compiled at once, each run between canaries and, mostly, guard pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from fuzz import attempt
from fuzz.branches import SAMPLE, Branches
from fuzz.choices import Choices
from fuzz.compare import expect, lowered_for_cpu, outputs_of, specialised
from fuzz.compiled_as_one import compile_as_one
from fuzz.guards import Pages, run_guarded
from fuzz.worker import failure, success
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.dsl.specialise import Specialised
from tilec.runtime.program import Emitted

LEVELS = (None, 0, 0, 0, 1, 0, 0, 0)
"""How batches are optimised by LLVM, in turn: one of eight as users' programs are, which takes ten times as long as not at all."""
PAGES: tuple[Pages, ...] = (None, "end", "begin", "end")


@dataclass
class _Program:
    name: str
    choices: Choices
    counts: Any = field(default_factory=attempt.Counts)
    drawn: attempt.Drawn | None = None
    special: Specialised | None = None
    emitted: Emitted | None = None
    loops: dict[str, int] | None = None
    seconds: float = 0.0


def together(
    named: list[tuple[str, Choices]], seed: int, report: Callable[..., None], branches: Branches | None = None
) -> Iterator[dict[str, Any]]:
    """Facts of each case. A failure to compile all of them is one of each, by itself. Programs whose names are a multiple of
    SAMPLE tell how many branches they were the first to take.
    """
    programs = []
    with mlir.context(), ir.Location.unknown():
        for name, choices in named:
            report(at=name)
            made, start = _Program(name, choices), time.process_time()
            try:
                made.drawn = attempt.draw("cpu", choices, made.counts)
                made.special = made.drawn.special or specialised(made.drawn.case)
                watched = branches is not None and (SAMPLE == 1 or int(name.partition("~")[0]) % SAMPLE == 0)
                with branches.watched() if watched else nullcontext(()) as new:
                    made.emitted = lowered_for_cpu(made.special, made.drawn.schedule)
                made.counts.branches += len(new)
            except Exception as error:
                yield failure(attempt, name, choices, made.counts, error, start)
                continue
            made.counts.seconds = time.process_time() - start
            programs.append(made)
    if not programs:
        return
    batch = int(programs[0].name.partition("~")[0]) // len(named) if len(named) > 1 else 0
    report(at="all", names=[p.name for p in programs])
    start = time.process_time()
    try:
        compiled = compile_as_one([p.emitted for p in programs], LEVELS[batch % len(LEVELS)])
    except Exception as error:
        if len(programs) == 1:
            yield failure(attempt, programs[0].name, programs[0].choices, programs[0].counts, error, start)
        else:
            for p in programs:
                yield from together([(p.name, Choices(given=p.choices.taken))], seed, report)
        return
    share = (time.process_time() - start) / len(programs)
    for number, (p, loops) in enumerate(zip(programs, compiled)):
        report(at=p.name)
        start = time.process_time() - share
        try:
            case, outputs = p.drawn.case, outputs_of(p.special)
            found = run_guarded(p.emitted, loops, case.inputs, outputs, PAGES[number % len(PAGES)])
            attempt.judged(expect(case, p.special, found, "cpu"), p.counts)
        except Exception as error:
            yield failure(attempt, p.name, p.choices, p.counts, error, start)
        else:
            yield success(p.name, p.choices, p.counts, start)
