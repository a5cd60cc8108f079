"""Threads for some work, which nobody waits for once it is abandoned: by Ctrl-C, or because the interpreter ends.

`concurrent.futures` has its threads do all that they were given before the interpreter ends, and takes no work once the main thread
is over, beside which other threads may still compile. Work here is dropped where it has not begun. What has begun and would now go
on without the processes that compile (`compile_server.py`) raises Abandoned.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from tilec.process.forking import llvm_lock

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
_pools: WeakSet[Workers] = WeakSet()
_lock = threading.Lock()  # of `_pools`
_here = threading.local()


class Abandoned(Exception):
    """In a worker: nobody waits for its work any more."""


class Workers:
    """At most `count` threads. Those that are `spare` are abandoned with the processes that compile."""

    def __init__(self, count: int | None, name: str, spare: bool = False):
        self.count, self.name, self.spare = count or os.cpu_count() or 1, name, spare
        self.tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self._starting = threading.Lock()  # a thread may be at work before it stands among `threads`
        self.outer: Workers | None = getattr(_here, "pool", None)
        self.abandoned = False
        with _lock:
            _pools.add(self)

    def submit(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self.tasks.put((future, lambda: function(*arguments, **named)))
        if len(self.threads) < self.count:
            thread = threading.Thread(target=self._work, name=f"{self.name}_{len(self.threads)}", daemon=True)
            with self._starting:
                thread.start()
                self.threads.append(thread)
        if self.abandoned:  # by another thread, perhaps just now
            self.abandon()
        return future

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        return [f.result() for f in [self.submit(function, item) for item in items]]

    def _work(self) -> None:
        _here.pool = self
        while (task := self.tasks.get()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del task, future, function  # their objects may be the last ones of a program

    def end(self) -> None:
        """Has each thread end when all tasks are taken."""
        for _ in self.threads:
            self.tasks.put(None)

    def abandon(self) -> None:
        """Drops what has not begun."""
        self.abandoned = True
        with suppress(Empty):
            while True:
                if (task := self.tasks.get_nowait()) is not None:
                    task[0].cancel()
        self.end()

    def join(self) -> None:
        with self._starting:
            threads = list(self.threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()


def check() -> None:
    """Raises Abandoned in a thread whose work, or whose maker's, is abandoned."""
    pool: Workers | None = getattr(_here, "pool", None)
    while pool is not None:
        if pool.abandoned:
            raise Abandoned
        pool = pool.outer


def abandon_all(spare: bool) -> list[Workers]:
    """Abandons all, or those that are `spare`; returns them."""
    with _lock:
        found = [pool for pool in _pools if pool.spare or not spare]
    for pool in found:
        pool.abandon()
    return found


def forget() -> None:
    """In a fork: threads did not come along."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()
    _here.__dict__.pop("pool", None)


_interrupted: list[Callable[[], None]] = []


def on_interruption(end: Callable[[], None]) -> None:
    """Has `end` called where an exception leaves a block of workers: it ends what they wait for."""
    _interrupted.append(end)


@contextmanager
def workers(count: int | None, name: str, spare: bool = False) -> Iterator[Workers]:
    """Threads for some work. If an exception leaves the block, above all KeyboardInterrupt, work that has not begun is
    dropped, and nobody waits for the rest: kernels in other processes are abandoned."""
    _free_llvm()
    pool = Workers(count, name, spare)
    try:
        yield pool
    except (Abandoned, CancelledError):
        pool.abandon()
        raise
    except BaseException:
        _free_llvm()
        pool.abandon()
        for end in _interrupted:
            end()
        raise
    pool.end()
    pool.join()


def _free_llvm() -> None:
    """Gives llvmlite's lock back where an interruption left it with the main thread: between the call that takes it and the
    `with` that would have returned it. Every worker would wait for it, and the main thread for them. Whoever makes
    workers is in no call of llvmlite's."""
    lock = llvm_lock()
    if lock is not None and threading.current_thread() is threading.main_thread():
        while lock._is_owned():
            lock.release()
