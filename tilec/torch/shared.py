"""Ops that partitions of equal text share: each text is compiled once in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

from tilec.api import Op
from tilec.api import compile as compile_program
from tilec.core.varying import Varying


class _Once:
    """The op of a text, made by the first thread that asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._op: Op | None = None

    def get(self, make: Callable[[], Op]) -> Op:
        with self._lock:
            self._op = found = self._op or make()
            return found


@lru_cache(maxsize=4096)
def _known(*key: object) -> _Once:
    return _Once()


def program(
    text: str, target: str | None, schedule: str | None, donated: tuple[tuple[int, int], ...] = (),
    varies: tuple[tuple[str, Varying], ...] = (),
) -> Op:  # fmt: skip
    """The op of a text: equal partitions have one. On a GPU, an index outside of its tensor is raised by a later call, as PyTorch's
    own checks are there. `donated`: results that lie in the memory of arguments, of which what changes is stored."""

    def make() -> Op:
        made = compile_program(text, target=target, schedule=schedule, deferred_checks=True, varies=dict(varies))
        return made.donated(donated) if donated else made

    return _known(text, target, schedule, donated, varies).get(make)


def compiled() -> int:
    """How many ops have been made since the start of the process, or since `forget`."""
    return _known.cache_info().misses


def forget() -> None:
    """Compiles (or finds in the cache on disk) what is asked for next, whatever was before."""
    _known.cache_clear()
