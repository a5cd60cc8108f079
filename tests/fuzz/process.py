"""A worker as the hunt sees it: what it was asked, what it does now, and since when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
LONGEST = 90.0
"""Seconds that no case may take longer than."""
STARTING = 120.0
THREADS = 2
"""Of a worker, so that kernels share out their blocks even where every core has a worker."""


class Process:
    """Starts a worker. `pending` are the cases that it was asked for and has not reported."""

    def __init__(self, attempt: str, cache: Path):
        self.reported = tempfile.TemporaryFile()  # noqa: SIM115
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "examples"), os.environ.get("PYTHONPATH", "")]),
            "TILEC_CACHE_DIR": str(cache), "TILEC_THREADS": str(THREADS),
            "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        self.child = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", attempt], env=environment, cwd=cache, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.reported,
        )  # fmt: skip
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)
        self.rest, self.way = b"", ""
        self.pending: list[str] = []
        self.at, self.since = "the start", time.monotonic()
        self.idle = False

    @property
    def late(self) -> bool:
        """Whether it is longer at something than it may be."""
        return time.monotonic() > self.since + (LONGEST if self.way else STARTING)

    def fileno(self) -> int:
        assert self.child.stdout is not None
        return self.child.stdout.fileno()

    def ask(self, way: str, names: list[str], **asked: Any) -> None:
        """For cases by name, or what else `fuzz.worker` answers to."""
        assert self.child.stdin is not None
        self.way, self.pending, self.idle = way, list(names), False
        self.at, self.since = "the start", time.monotonic()
        with suppress(OSError):  # where it ended, its output will tell
            self.child.stdin.write(json.dumps({"way": way, "cases": names} | asked).encode() + b"\n")
            self.child.stdin.flush()

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """What it wrote since, and whether it ended."""
        try:
            data = os.read(self.fileno(), 1 << 20)
        except BlockingIOError:
            return [], False
        *lines, self.rest = (self.rest + data).split(b"\n")
        message = [json.loads(line) for line in lines]
        for facts in message:
            self.since = time.monotonic()
            self.at = facts.get("at", self.at)
            for name in facts.get("names", ()):  # of mutations, nobody asked for them
                if name not in self.pending:
                    self.pending.append(name)
            self.idle = self.idle or "ready" in facts
            if facts.get("case") in self.pending:
                self.pending.remove(facts["case"])
        return message, not data

    def end(self) -> str:
        """Ends it, and says how it ended: by which signal, and its last words."""
        if self.child.poll() is None and not self.idle:
            self.child.kill()
        assert self.child.stdin is not None and self.child.stdout is not None
        for pipe in (self.child.stdin, self.child.stdout):
            with suppress(OSError):
                pipe.close()
        try:
            status = self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            status = self.child.wait()
        self.reported.seek(0)
        words = self.reported.read().decode(errors="replace")[-4000:]
        self.reported.close()
        return f"{signal.Signals(-status).name if status < 0 else f'status {status}'}\n{words}"
