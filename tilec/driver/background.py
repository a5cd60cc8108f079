"""Sizes that are met often, compiled for exactly their numbers beside the calls of an op whose sizes vary.

A call counts its sizes. Those that were met so many times are compiled by another process, one set of them at a time, and a thread
waits for it. Calls go on with what their class was compiled to, until the exact program is there. An error is reported by
`Op.classes`, and by no call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilec.core.target import Target
from tilec.driver.executable import Executable
from tilec.driver.fast_call import NO, Call, Recent
from tilec.driver.recipe import Recipe, Signature
from tilec.process import compile_server
from tilec.process.forking import compiling
from tilec.process.workers import Workers

if TYPE_CHECKING:
    from tilec.driver.classes import Class

COMPILER = "tilec.driver.background_compiler"
MOST = 32
"""Sets of sizes that an op is compiled for so."""
NOT = "not compiled for these numbers alone"
COUNTED = 1024  # sets of sizes whose calls are counted, the latest ones
Key = tuple[object, ...]
_pool: Workers | None = None


class Counter:
    """Calls at some sizes of a class, `whole`, and their `exact` executable, once it is there."""

    exact: Executable | None = None

    def __init__(self, background: Background, whole: Executable, sizes: Mapping[str, int], key: Key):
        self.whole, self.sizes, self.key = whole, dict(sizes), key
        self._background, self._count = background, 0

    def met(self) -> None:
        """One more call."""
        self._count += 1
        if self._count == self._background.after:
            self._background.begin(self)

    def counted(self, call: Call) -> Call:
        """A fast call that counts, and gives way to the exact executable."""

        def counting(arrays: tuple[object, ...], out: object, stream: object) -> object:
            if self.exact is not None:
                return NO
            if (results := call(arrays, out, stream)) is not NO:
                self.met()
            return results

        return counting


@dataclass(frozen=True)
class Report:
    """What became of some sizes: their executable, or None, and in words."""

    sizes: Mapping[str, int]
    target: str
    exact: Executable | None
    text: str


class Background:
    """The sizes of one op. `after`: calls at some sizes before these are compiled. `make` and `build` as those of `ByClass`."""

    def __init__(
        self, after: int, make: Callable[[Signature | None, Mapping[str, int], Target, Class | None], Recipe],
        build: Callable[[Recipe], Executable],
    ):  # fmt: skip
        self.after, self._make, self._build = after, make, build
        self._counters: Recent[Key, Counter] = Recent(COUNTED)
        self._started: dict[Key, Counter] = {}
        self._lock = threading.Lock()
        self.reports: list[Report] = []

    def counter(self, whole: Executable, sizes: Mapping[str, int]) -> Counter:
        key = (*sorted(sizes.items()), whole.target.name, *(dtype.name for _, dtype, _ in whole.compiled.inputs))
        if (found := self._started.get(key) or self._counters[key]) is None:
            found = Counter(self, whole, sizes, key)
            self._counters.put(key, found)
        return found

    def begin(self, counter: Counter) -> None:
        """Has the exact executable compiled, unless there are as many as there may be. Waits for nothing."""
        with self._lock:
            if len(self._started) >= MOST or counter.key in self._started:
                return
            self._started[counter.key] = counter
        future = _workers().submit(self._compile, counter)
        future.add_done_callback(lambda done: self._report(counter, None, f"{NOT}: interrupted") if done.cancelled() else None)

    def _compile(self, counter: Counter) -> None:
        try:
            inputs = [(dtype, shape) for _, dtype, shape in counter.whole.compiled.at(counter.sizes).inputs]
            recipe = self._make(inputs, counter.sizes, counter.whole.target, None)
            recipe.compile_by(COMPILER)
            with compiling():
                exact = self._build(recipe)
                exact.complete()
                exact.load()
        except BaseException as error:
            self._report(counter, None, f"{NOT}: {str(error) or type(error).__name__}")
        else:
            self._report(counter, exact, f"compiled for these numbers alone, after {self.after} calls")
            counter.exact = exact

    def _report(self, counter: Counter, exact: Executable | None, text: str) -> None:
        text += f" ({len(self.reports) + 1} of at most {MOST} in the background)"
        self.reports.append(Report(counter.sizes, counter.whole.target.name, exact, text))


def _workers() -> Workers:
    """The thread of this process that waits for what is compiled."""
    global _pool
    if _pool is None or (_pool.abandoned and not compile_server.over()):
        _pool = Workers(1, "tilec-background", spare=True)
    return _pool


def _in_child() -> None:
    """The thread did not come along."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
