"""Compiling in the background: a thread of this process does one task after another. A task raises nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue


class _Worker:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.waiting = 0
        self.idle = threading.Condition()
        threading.Thread(target=self._work, name="tilec-torch", daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self.tasks.get()
            try:
                task()
            finally:
                with self.idle:
                    self.waiting -= 1
                    self.idle.notify_all()


_worker: _Worker | None = None
_starting = threading.Lock()


def in_background(task: Callable[[], None]) -> None:
    """Has a thread of this process do it, one task after another."""
    global _worker
    with _starting:
        if _worker is None or _worker.process != os.getpid():
            _worker = _Worker()
        with _worker.idle:
            _worker.waiting += 1
        _worker.tasks.put(task)


def wait() -> None:
    """Waits until everything is compiled that `options={"background": True}` left for later."""
    worker = _worker
    if worker is not None and worker.process == os.getpid():
        with worker.idle:
            worker.idle.wait_for(lambda: not worker.waiting)


__all__ = ["in_background", "wait"]
