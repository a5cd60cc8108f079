"""A process of a hunt: takes cases by number, tells what became of each.

    python -m fuzz.worker [MODULE]     MODULE instead of `fuzz.attempt`, for tests

Each line of its input asks for cases: {"way": "cpu", "seed": 7, "cases": ["3", "4"]}, or {"way": ..., "choices": [...]}. Each line
of what it says is {"at": "3"} before something that may crash, or what became of a case. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzz.branches import Branches
from fuzz.choices import Choices, mutated

MOST_MEMORY = 3 << 20
"""KiB, after which a worker makes room for a new one: machine code stays for good."""


MUTATIONS, DEEPEST = 2, 3
"""Of a program that takes a new branch of the passes, and of those in turn."""


def seeded(way: str, seed: int, name: str) -> Choices:
    """The choices of a case: number 12, or `12~3`, the third mutation of those."""
    base, mutation, _ = name.rpartition("~")
    if not mutation:
        return Choices(f"{seed} {way} {name}")
    return mutated(_taken(way, seed, base), f"{seed} {way} {name}")


def _taken(way: str, seed: int, name: str) -> list[int]:
    choices = seeded(way, seed, name)
    attempt = importlib.import_module("fuzz.attempt")
    with suppress(Exception):
        attempt.draw(way, choices, attempt.Counts())
    return choices.taken


class Worker:
    """What one process keeps from case to case."""

    def __init__(self, attempt: ModuleType, out: Any):
        self.attempt, self.out = attempt, out
        self.branches = Branches()
        self.spoiled = False  # whether nothing runs in this process any more

    def report(self, **facts: Any) -> None:
        self.out.write(json.dumps(facts) + "\n")
        self.out.flush()

    def answer(self, asked: dict[str, Any]) -> None:
        way = asked["way"]
        if "choices" in asked:
            named = [("given", Choices(given=asked["choices"]))]
        else:
            named = [(n, seeded(way, asked["seed"], n)) for n in asked["cases"]]
        if "write" in asked:
            self.write(way, named[0][1], Path(asked["write"]))
        elif way in getattr(self.attempt, "BATCHES", ()):
            self.batch(way, named, asked.get("seed", 0))
        else:
            for name, choices in named:
                self.report(at=name)
                self.report(**self.one(way, name, choices))
                if self.spoiled:
                    break
        full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MOST_MEMORY
        self.report(ready=True, last=full or self.spoiled)

    def batch(self, way: str, named: list[tuple[str, Choices]], seed: int) -> None:
        """Programs for the CPU, and then like ones of those that took branches of the passes for the first time."""
        from fuzz.batch import together

        while named:
            following = []
            for facts in together(way, named, seed, self.report, self.branches):
                name, counts = facts["case"], facts["counts"]
                counts["mutated"] = int("~" in name)
                self.report(**facts)
                if counts["branches"] and name != "given" and name.count("~") < DEEPEST:
                    following += [f"{name}~{n}" for n in range(MUTATIONS)]
            named = [(name, seeded(way, seed, name)) for name in following]

    def write(self, way: str, choices: Choices, folder: Path) -> None:
        with suppress(Exception):  # what is wrong may be the drawing
            command = self.attempt.write(self.attempt.draw(way, choices, self.attempt.Counts()), folder)
            (folder / "choices.json").write_text(json.dumps(choices.taken))
            self.report(wrote=command, choices=choices.taken)
            return
        self.report(wrote="", choices=choices.taken)

    def one(self, way: str, name: str, choices: Choices) -> dict[str, Any]:
        counts, drawn, start = self.attempt.Counts(), None, time.process_time()
        try:
            drawn = self.attempt.draw(way, choices, counts)
            self.attempt.run(drawn, counts)
        except Exception as error:
            self.spoiled = isinstance(error, self.attempt.SPOILING)
            return failure(self.attempt, name, choices, counts, error, start)
        return success(name, choices, counts, start)


def success(name: str, choices: Choices, counts: Any, start: float) -> dict[str, Any]:
    counts.seconds += time.process_time() - start
    return {"case": name, "counts": vars(counts), "choices": choices.taken if name == "given" else None}


def failure(
    attempt: ModuleType, name: str, choices: Choices, counts: Any, error: Exception, start: float
) -> dict[str, Any]:
    counts.failed += 1
    reported = "".join(traceback.format_exception(error))
    return success(name, choices, counts, start) | {
        "kind": attempt.kind_of(error), "error": reported[-20_000:], "choices": choices.taken,
    }  # fmt: skip


def lines() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints does not disturb
    worker = Worker(importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "fuzz.attempt"), out)
    worker.report(ready=True)
    for asked in lines():
        worker.answer(asked)


if __name__ == "__main__":
    main()
