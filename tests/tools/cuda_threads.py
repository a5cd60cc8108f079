"""Threads of the emulator take turns: one runs until it waits for others, then another does.

So a run is the same every time, however busy the machine is, and where all wait for each other that is known at once. Each is a
greenlet: to go on with another one takes a microsecond, where threads of the system take a hundred. What never waits takes one
greenlet, one after another.

Who may go on does so in the order in which they were woken, or in a drawn one: then some are far behind others, as warps of a GPU
may be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Turns:
    """Runs tasks to their end, in their order where they do not wait. Tasks call `wait`; others are `woken` by them. `drawn` says
    which of those goes on."""

    def __init__(self, tasks: Iterable[Callable[[], None]], drawn: Random | None = None):
        self.drawn = drawn
        self.fresh = deque(tasks)
        self.ready: deque[greenlet] = deque()  # those that may go on
        self.waiting: set[greenlet] = set()

    def run(self) -> None:
        """Raises what the first task to fail raised; no other goes on then."""
        self.scheduler = getcurrent()
        try:
            while (following := self._next()) is not None:
                following.switch()
            assert not self.waiting, "threads wait for each other: a barrier that not all reach, or that never comes"
        finally:
            for left in (*self.waiting, *self.ready):
                left.throw(GreenletExit)

    def wait(self, others: list[greenlet]) -> None:
        """Until somebody wakes `others`, to whom the caller is added."""
        mine = getcurrent()
        others.append(mine)
        self.waiting.add(mine)
        self.scheduler.switch()

    def wake(self, others: list[greenlet]) -> None:
        """They go on in their turn."""
        self.ready.extend(others)
        self.waiting.difference_update(others)
        others.clear()

    def _next(self) -> greenlet | None:
        """Whose turn it is."""
        if self.ready:
            if self.drawn is not None:
                self.ready.rotate(self.drawn.randrange(len(self.ready)))
            return self.ready.popleft()
        return greenlet(self._work) if self.fresh else None

    def _work(self) -> None:
        while self.fresh:
            self.fresh.popleft()()


class Own:
    """Attributes that each thread of the emulator has for itself."""

    def __getattribute__(self, name: str) -> Any:
        """Asked a million times in a test; by `__getattr__` it would be looked up in vain first, which takes four times as long."""
        try:
            return getcurrent().__dict__[name]
        except KeyError:
            return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        getcurrent().__dict__[name] = value

    def forget(self) -> None:
        """Those of who ran before in the same greenlet."""
        getcurrent().__dict__.clear()


class Meeting:
    """A barrier of so many threads: the last to come lets all go on."""

    def __init__(self, threads: int):
        self.threads, self.count = threads, 0
        self.others: list[greenlet] = []

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
