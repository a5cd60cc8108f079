"""Runs the rows of a suite in a process of their own. If it dies or hangs, the next row begins anew."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.device import resume

MARK = "\x1e"  # begins a line of the worker that is for the parent


@dataclass(frozen=True)
class Row:
    """One line of a table: `run` gives its facts. `seconds` is how long it may take. `prepare` does before, beside those of
    other rows, what leaves its results on disk."""

    name: str
    run: Callable[[], dict]
    seconds: float = 180.0
    prepare: Callable[[], dict] | None = None


def prepare(command: list[str], rows: list[Row], workers: int, deadline: float) -> dict[str, dict]:
    """In the parent: the rows' `prepare`, dealt out to processes, until all are done or it is `deadline`. What they return,
    by name: facts that take no device alone."""
    names = [r.name for r in rows if r.prepare is not None]
    alone = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # each is one of many
    with contextlib.ExitStack() as stack:
        started = []
        for share in filter(None, (names[n::workers] for n in range(workers))):
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            started.append((subprocess.Popen([*command, *share], stdout=output, env=alone), output))
        try:
            for process, _ in started:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            print("not all rows could be prepared in time", file=sys.stderr)
        finally:
            for process, _ in started:
                process.kill()
                process.wait()
        found = {}
        for _, output in started:
            output.seek(0)
            found |= {f.pop("name"): f for f in map(_facts, output) if f}
    return found


def _facts(line: str) -> dict | None:
    """What a line of a process's output says, where it is for the parent."""
    return json.loads(line[1:]) if line.startswith(MARK) and line.endswith("\n") else None


def works(rows: list[Row], worker: list[str] | None, ahead: list[str] | None) -> bool:
    """Whether this process is one of the runner's, given the names of the rows that it is to run or to prepare. Then it does."""
    if worker is not None:
        work(rows, worker)
    elif ahead is not None:
        work_ahead(rows, ahead)
    return worker is not None or ahead is not None


def work_ahead(rows: list[Row], names: list[str]) -> None:
    """In such a process, which gives way to what is timed. What fails will fail again when it is run, and be told then."""
    if hasattr(os, "nice"):
        os.nice(19)
    by_name = {r.name: r for r in rows}
    for name in names:
        try:
            print(MARK + json.dumps({"name": name, **by_name[name].prepare()}), flush=True)
        except Exception:
            traceback.print_exc(limit=-3)


def work(rows: list[Row], names: list[str]) -> None:
    """In the worker: runs the rows named, each result a line of JSON."""
    by_name = {r.name: r for r in rows}
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    for name in names:
        try:
            facts = by_name[name].run()
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            facts = {"error": f"{type(error).__name__}: {' | '.join(lines[:3])[:300]}"}
            traceback.print_exc(limit=-6)
        print(MARK + json.dumps({"name": name, **facts}), file=output, flush=True)
        if facts.get("error") and _device_lost():
            os._exit(3)


def _device_lost() -> bool:
    """After an illegal access nothing more runs in this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def run(
    command: list[str], rows: list[Row], deadline: float, variables: Mapping[str, str] | None = None
) -> Iterator[dict]:
    """In the parent: `command` and the rows' names start a worker, with these environment variables beside the parent's. After
    `deadline` no further row begins; one that has begun has its own `seconds`."""
    waiting, alone = list(rows), os.environ | dict(variables or {})
    while waiting and time.monotonic() < deadline:
        worker = subprocess.Popen([*command, *(r.name for r in waiting)], stdout=subprocess.PIPE, text=True, env=alone)
        lines = _listen(worker)
        try:
            for row in list(waiting):
                if time.monotonic() > deadline:
                    break
                facts = _next(worker, lines, row, row.seconds)
                waiting.remove(row)
                yield facts
                if facts.get("fatal"):
                    break
        finally:
            worker.kill()
            worker.wait()
            resume(worker.pid)
    for row in waiting:
        yield {"name": row.name, "error": "not run: no time left"}


def _listen(worker: subprocess.Popen) -> queue.Queue:
    """The worker's lines, and None when it has ended."""
    lines: queue.Queue = queue.Queue()

    def read() -> None:
        for line in worker.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _next(worker: subprocess.Popen, lines: queue.Queue, row: Row, seconds: float) -> dict:
    end = time.monotonic() + seconds
    while True:
        try:
            line = lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            return {"name": row.name, "error": f"no answer within {seconds:.0f} s", "fatal": True}
        if line is None:
            return {"name": row.name, "error": f"the process died, status {worker.wait()}", "fatal": True}
        if facts := _facts(line):
            return facts
