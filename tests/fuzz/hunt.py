"""Looking for failures in several processes at once: cases by number until time or their number is up.

A process that dies or hangs is replaced, and the case that it was at is a failure. The first of each kind of failure is written
at once, and reduced by one more process, while the others go on.
"""

from __future__ import annotations

import selectors
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.counts import Counts
from fuzz.process import Process
from fuzz.reducer import Found, Reducer, ended_kind

LATE = 5.0
"""Seconds that processes have to finish what they are at when the time is up."""
BATCH = {"cpu": 8, "gpu": 8, "stages": 4, "emulator": 4, "sizes-cpu": 8, "sizes-stages": 1, "sizes-emulator": 2, "sizes-gpu": 4}
"""Cases that a process is asked for at a time; texts come in tens."""


@dataclass
class Hunt:
    """What is looked for, and what came of it. `tell` is called with each kind as it is written, and once more when reduced."""

    ways: list[str]
    seed: int
    jobs: int
    out: Path
    minutes: float | None = None
    cases: int | None = None
    attempt: str = "fuzz.attempt"
    report: Callable[[Found, bool], None] = lambda found, reduced: None
    begin: int = 0
    counts: dict[str, Counts] = field(default_factory=dict)
    found: dict[tuple[str, str], Found] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.counts = {way: Counts() for way in self.ways}
        self.next = dict.fromkeys(self.ways, self.begin)
        self.again: deque[tuple[str, list[str]]] = deque()
        self.processes: list[Process] = []
        self.reducer: Reducer | None = None
        self.reduced: deque[Found] = deque()

    def run(self) -> None:
        """Returns when the time is up, or every way has had its cases; whatever happens, with what was reported until then."""
        self.started = time.monotonic()
        self.end = self.started + 60 * self.minutes if self.minutes is not None else float("inf")
        with tempfile.TemporaryDirectory(prefix="tilec-fuzz-") as folder:
            self.cache = Path(folder)
            try:
                while time.monotonic() < self.end and self._step(self._more):
                    pass
                late = time.monotonic() + LATE
                while time.monotonic() < late and self._step(lambda: None):
                    pass
            finally:
                self.seconds = time.monotonic() - self.started
                for process in [*self.processes, *([self.reducer.process] if self.reducer else [])]:
                    process.end()

    # ---- one step ----------------------------------------------------------------------------------------------------

    def _more(self) -> tuple[str, list[str]] | None:
        """The next cases: of the way that had least time."""
        if self.again:
            return self.again.popleft()
        left = [w for w in self.ways if self.cases is None or self.next[w] < self.begin + self.cases]
        if not left:
            return None
        way = min(left, key=lambda w: self.counts[w].seconds + 0.001 * self.next[w])
        first = self.next[way]
        last = first + BATCH.get(way, 10)
        self.next[way] = last if self.cases is None else min(last, self.begin + self.cases)
        return way, [str(n) for n in range(first, self.next[way])]

    def _step(self, more: Callable[[], tuple[str, list[str]] | None]) -> bool:
        """Waits for what processes say. False when nothing is to be done."""
        wanted = self.jobs - len(self.processes)
        if wanted > 0 and (cases := more()) is not None:
            self.again.appendleft(cases)
            self.processes.append(Process(self.attempt, self.cache))
        for process in self.processes:
            if process.idle and (cases := more()) is not None:
                process.ask(*cases, seed=self.seed)
        busy = [p for p in self.processes if not p.idle]
        if self.reducer is None and self.reduced and time.monotonic() < self.end:
            found = self.reduced.popleft()
            self.reducer = Reducer(found, self.seed, self.report, lambda: Process(self.attempt, self.cache))
        if self.reducer is not None:
            busy.append(self.reducer.process)
        if not busy:
            return False
        with selectors.DefaultSelector() as selector:
            for process in busy:
                selector.register(process, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(0.5)]
        for process in busy:
            message, ended = process.read() if process in ready else ([], False)
            late = process.late
            if self.reducer is not None and process is self.reducer.process:
                if self.reducer.step(message, ended or late, late):
                    self.reducer = None
                continue
            for facts in message:
                self._heard(process, facts)
            if ended or late:
                self._died(process, late)
        return True

    def _heard(self, process: Process, facts: dict[str, Any]) -> None:
        if "counts" in facts:
            self.counts[process.way].add(facts["counts"])
        if "kind" in facts:
            self._failed(process.way, facts["kind"], facts["case"], facts["error"], facts["choices"])
        if facts.get("last"):
            if process.pending:
                self.again.append((process.way, process.pending))
            self.processes.remove(process)
            process.end()

    def _died(self, process: Process, late: bool) -> None:
        """The case that it was at failed, the others are asked for again. Where it was at several, each is by itself."""
        self.processes.remove(process)
        at, way, pending = process.at, process.way, process.pending
        reported = process.end()
        kind = ended_kind(reported, late)
        if "~" in at and at not in pending:
            pending = [*pending, at]
        if not pending:
            if not late and way == "":
                raise RuntimeError(f"a worker ended as it began: {reported}")
            return
        if at not in pending:
            if len(pending) > 1:
                self.again += [(way, [name]) for name in pending]
                return
            at = pending[0]
        self.counts[way].add({"tried": 1, "failed": 1})
        self._failed(way, kind, at, reported, None)
        if rest := [name for name in pending if name != at]:
            self.again.append((way, rest))

    def _failed(self, way: str, kind: str, name: str, error: str, choices: list[int] | None) -> None:
        if (known := self.found.get((way, kind))) is not None:
            known.times += 1
            return
        folder = self.out / f"{way}-{self.seed}-{name}"
        found = self.found[way, kind] = Found(way, kind, name, error, choices, folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(error, errors="surrogatepass")
        self.reduced.append(found)
