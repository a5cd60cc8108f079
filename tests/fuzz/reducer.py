"""Reducing a failure while the hunt goes on: a worker tries simpler and simpler cases that fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.process import LONGEST, Process
from fuzz.reduce import reductions

REDUCING = 60.0
"""Seconds that may go into reducing one failure."""


@dataclass
class Found:
    """A kind of failure, and the first case that showed it. `command` fails again."""

    way: str
    kind: str
    name: str
    error: str
    choices: list[int] | None
    folder: Path
    times: int = 1
    command: str = ""


def ended_kind(reported: str, late: bool) -> str:
    """The kind of failure of a process that died, or was too long at a case."""
    return f"longer than {LONGEST:.0f} seconds" if late else f"the process ended: {reported.partition(chr(10))[0]}"


class Reducer:
    """One failure: written as it is, then simpler ones as long as there is time."""

    def __init__(self, found: Found, seed: int, report: Callable[[Found, bool], None], start: Callable[[], Process]):
        self.found, self.seed, self.report, self.start = found, seed, report, start
        self.end = time.monotonic() + REDUCING
        self.process = start()
        self.script = self._script()
        self.asked: dict[str, Any] | None = next(self.script)
        self.answer: dict[str, Any] | None = None

    def step(self, message: list[dict[str, Any]], ended: bool, late: bool) -> bool:
        """Goes on with what its process wrote. True when nothing is left to do."""
        for facts in message:
            if "case" in facts or "wrote" in facts:
                self.answer = facts
        if ended:
            self.answer = {"kind": ended_kind(self.process.end(), late)}
        if ended or any(facts.get("last") for facts in message):
            if not ended:
                self.process.end()
            self.process = self.start()
        if self.answer is not None and (ended or self.process.idle):
            try:
                self.asked, self.answer = self.script.send(self.answer), None
            except StopIteration:
                self.process.end()
                return True
        if self.process.idle and self.asked is not None:
            self.process.ask(self.found.way, ["given"], **{"seed": self.seed, **self.asked})
            self.asked = None
        return False

    def _script(self) -> Generator[dict[str, Any], dict[str, Any], None]:
        """Yields what to ask for, and is sent the answers."""
        found = self.found
        named = {"cases": [found.name]} if found.choices is None else {"choices": found.choices}
        answer = yield {"write": str(found.folder), **named}
        found.command, found.choices = answer.get("wrote", ""), answer.get("choices")
        self.report(found, False)
        if found.choices is None:
            return
        rows, best = reductions(found.choices), None
        row = next(rows)
        while row is not None and time.monotonic() < self.end:
            answer = yield {"choices": row}
            fails = answer.get("kind") == found.kind
            took = answer.get("choices") or row if fails else None
            if took is not None and (len(took), took) < (len(best or found.choices), best or found.choices):
                best = took
            try:
                row = rows.send(took)
            except StopIteration:
                row = None
        if best is not None:
            answer = yield {"write": str(found.folder), "choices": best}
            found.command, found.choices = answer.get("wrote", found.command), best
            self.report(found, True)
