"""Many cases in several processes: each worker judges the samples of one operator or module after another.

A worker says each case before it runs it, so that one that kills its process, or that takes too long, is known and counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.pytorch.agreement import CRASHED, Outcome, agreement
from tests.pytorch.checks import check
from tests.pytorch.samples import Case, Choice, modules, of_module, of_operator, operators

LIMIT_S = 300  # of one case
MOST_OF_ONE = 60  # operators that one process runs: what it compiles stays in its memory
KINDS = ("ops", "modules", "checks")


def names(kind: str) -> list[str]:
    return list(modules() if kind == "modules" else operators())


def run_all(
    kind: str, chosen: list[str], choice: Choice, jobs: int, report: Callable[[Outcome], None], dynamo: bool = False,
    log: Path | None = None,
) -> list[Outcome]:  # fmt: skip
    """The outcomes of all samples that `choice` takes of what is `chosen`; those that the log has are not run again."""
    tasks: SimpleQueue[str] = SimpleQueue()
    for name in chosen:
        tasks.put(name)
    found = logged(log)
    lock = threading.Lock()

    def work() -> None:
        worker = _Worker(kind, choice, dynamo, log)
        while True:
            try:
                name = tasks.get_nowait()
            except Empty:
                break
            for outcome in worker.outcomes(name):
                with lock:
                    found.append(outcome)
                    report(outcome)
        worker.end()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def logged(log: Path | None) -> list[Outcome]:
    """The outcomes in a log, which has one in each line."""
    if log is None or not log.exists():
        return []
    return [Outcome(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]


class _Worker:
    """A process that judges cases, begun anew where it ends before its time."""

    def __init__(self, kind: str, choice: Choice, dynamo: bool, log: Path | None):
        self.given = json.dumps({"kind": kind, "choice": asdict(choice), "dynamo": dynamo, "log": str(log) if log else None})
        self.process: subprocess.Popen[str] | None = None
        self.done = 0

    def outcomes(self, name: str) -> Iterator[Outcome]:
        skipped = 0
        while True:
            process, begun = self._begun(), ""
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([name, skipped]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                if message is None:
                    self.done += 1
                    return
                if isinstance(message, str):
                    begun = message
                else:
                    skipped += 1
                    yield Outcome(**message)
            status = process.wait()
            self.process = None
            yield Outcome(begun or name, CRASHED, f"the process ends with status {status}")
            if not begun:
                return
            skipped += 1

    def _begun(self) -> subprocess.Popen[str]:
        if self.process is not None and self.done >= MOST_OF_ONE:
            self.end()
        if self.process is None:
            command = [sys.executable, "-m", "tests.pytorch", "--worker", self.given]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
            self.done = 0
        return self.process

    def end(self) -> None:
        if self.process is not None:
            self.process.communicate()
            self.process = None


def work(given: str) -> int:
    """What a worker does: for each line of a name and a number, the cases of that name but for so many."""
    import torch

    from tilec.torch.backend import register

    register()  # where the package is not installed with its entry points
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what cases print is no outcome
    fields = json.loads(given)
    kind, choice = fields["kind"], Choice(**fields["choice"])
    done = {o.case for o in logged(Path(fields["log"]))} if fields["log"] else set()
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        name, skipped = json.loads(line)
        for case in _cases(kind, name, choice, skipped, done):
            print(json.dumps(case.name), file=out)
            if hasattr(signal, "alarm"):
                signal.alarm(LIMIT_S)
            outcome = check(case) if kind == "checks" else agreement(case, fields["dynamo"])
            print(json.dumps(asdict(outcome)), file=out)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        print("null", file=out)
    return 0


def _cases(kind: str, name: str, choice: Choice, skipped: int, done: set[str]) -> Iterator[Case]:
    made = of_module(name, choice) if kind == "modules" else of_operator(name, choice)
    for number, case in enumerate(c for c in made if c.name not in done):
        if number >= skipped:
            yield case
