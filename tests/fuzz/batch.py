"""Programs on the CPU, several compiled at once, each run between canaries and, mostly, guard pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from fuzz import attempt
from fuzz.branches import SAMPLE, Branches
from fuzz.by_class import Classes, runs_of
from fuzz.choices import Choices
from fuzz.compare import Expected, lowered_for_cpu, outputs_of, specialised
from fuzz.compiled_as_one import compile_as_one
from fuzz.guards import Pages, run_guarded
from fuzz.worker import failure, success
from tilec.core import mlir
from tilec.core.mlir import ir
from tilec.runtime.program import Emitted

LEVELS = (None, 0, 0, 0, 1, 0, 0, 0)
"""How batches are optimised by LLVM, in turn: one of eight as users' programs are, which takes ten times as long as not at all."""
PAGES: tuple[Pages, ...] = (None, "end", "begin", "end")


@dataclass
class _Run:
    """A call: the kernels that are compiled, what they are for the sizes of this call, and its results."""

    compiled: Emitted
    emitted: Emitted
    expected: Expected
    where: str = ""


@dataclass
class _Program:
    name: str
    choices: Choices
    counts: Any = field(default_factory=attempt.Counts)
    runs: list[_Run] = field(default_factory=list)

    @property
    def compiled(self) -> list[Emitted]:
        """What its calls run, each once."""
        return list({id(run.compiled): run.compiled for run in self.runs}.values())

    def lower(self, drawn: attempt.Drawn) -> None:
        if drawn.sized is None:
            special = drawn.special or specialised(drawn.case)
            emitted = lowered_for_cpu(special, drawn.schedule)
            self.runs = [_Run(emitted, emitted, Expected(drawn.case, special, "cpu"))]
            return
        classes = Classes(drawn.sized, "cpu")
        runs, whole = runs_of(classes), {id(e.recipe): e.emitted for e in classes.built}
        self.runs = [
            _Run(whole[id(r.executable.recipe)], r.executable.emitted, r.expected, f"at {r.chosen} ") for r in runs
        ]
        self.counts.reasons.update(classes.refused)


def together(
    way: str, named: list[tuple[str, Choices]], seed: int, report: Callable[..., None], branches: Branches | None = None
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
                drawn = attempt.draw(way, choices, made.counts)
                watched = branches is not None and (SAMPLE == 1 or int(name.partition("~")[0]) % SAMPLE == 0)
                with branches.watched() if watched else nullcontext(()) as new:
                    made.lower(drawn)
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
        several = [emitted for p in programs for emitted in p.compiled]
        loops = {id(e): kernels for e, kernels in zip(several, compile_as_one(several, LEVELS[batch % len(LEVELS)]))}
    except Exception as error:
        if len(programs) == 1:
            yield failure(attempt, programs[0].name, programs[0].choices, programs[0].counts, error, start)
        else:
            for p in programs:
                yield from together(way, [(p.name, Choices(given=p.choices.taken))], seed, report)
        return
    share = (time.process_time() - start) / len(programs)
    for number, p in enumerate(programs):
        report(at=p.name)
        start = time.process_time() - share
        try:
            for run in p.runs:
                inputs, outputs = run.expected.case.inputs, outputs_of(run.expected.program)
                found = run_guarded(run.emitted, loops[id(run.compiled)], inputs, outputs, PAGES[number % len(PAGES)])
                attempt.judged(run.expected.verdict(found, run.where), p.counts)
        except Exception as error:
            yield failure(attempt, p.name, p.choices, p.counts, error, start)
        else:
            yield success(p.name, p.choices, p.counts, start)
