"""Threads of the emulator take turns: one runs until it waits for others, then another does.

So a run is the same every time, however busy the machine is, and where all wait for each other that is known at once. What
never waits takes one thread of the system, one after another.

Who may go on does so in the order in which they were woken, or in a drawn one: then some are far behind others, as warps of a GPU
may be.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from random import Random


class Failed(Exception):
    """Another thread failed, or nothing ends what this one waits for."""


class Turns:
    """Runs tasks to their end, in their order where they do not wait. Tasks call `wait`; others are `woken` by them. `drawn` says
    which of those goes on."""

    def __init__(self, tasks: Iterable[Callable[[], None]], drawn: Random | None = None):
        self.drawn = drawn
        self.fresh = deque(tasks)
        self.ready: deque[threading.Lock] = deque()  # those that may go on
        self.waiting: set[threading.Lock] = set()
        self.problem: BaseException | None = None
        self.done = threading.Semaphore(0)

    def run(self) -> None:
        """Raises what the first task to fail raised."""
        started, self.started = 0, 1
        self._start()
        while started < self.started:
            self.done.acquire()
            started += 1
        if self.problem is not None:
            raise self.problem

    def wait(self, others: list[threading.Lock]) -> None:
        """Until somebody wakes `others`, to whom the caller is added."""
        mine = threading.Lock()
        mine.acquire()
        others.append(mine)
        self.waiting.add(mine)
        self._next()
        mine.acquire()
        if self.problem is not None:
            raise Failed

    def wake(self, others: list[threading.Lock]) -> None:
        """They go on in their turn."""
        self.ready.extend(others)
        self.waiting.difference_update(others)
        others.clear()

    def _next(self) -> None:
        """The caller runs no further: another's turn."""
        if self.ready:
            if self.drawn is not None:
                self.ready.rotate(self.drawn.randrange(len(self.ready)))
            self.ready.popleft().release()
        elif self.fresh:
            self.started += 1
            self._start()
        elif self.waiting:
            self._fail(AssertionError("threads wait for each other: a barrier that not all reach, or that never comes"))

    def _start(self) -> None:
        threading.Thread(target=self._work).start()

    def _work(self) -> None:
        try:
            while self.fresh and self.problem is None:
                self.fresh.popleft()()
            if self.problem is None:
                self._next()
        except Failed:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            self.done.release()

    def _fail(self, error: BaseException) -> None:
        """All others end."""
        if self.problem is None:
            self.problem = error
        for lock in (*self.waiting, *self.ready):
            lock.release()
        self.waiting.clear()
        self.ready.clear()


class Meeting:
    """A barrier of so many threads: the last to come lets all go on."""

    def __init__(self, threads: int):
        self.threads, self.count = threads, 0
        self.others: list[threading.Lock] = []

    def arrive(self, turns: Turns) -> bool:
        """Whether the caller is the last."""
        self.count += 1
        if self.count < self.threads:
            return False
        self.count = 0
        turns.wake(self.others)
        return True

    def wait(self, turns: Turns) -> None:
        if not self.arrive(turns):
            turns.wait(self.others)
