"""Work beside this process, in forks of it: alternatives of which one is chosen, and items that do not depend on each other.

Python runs one thread at a time, and what compiling makes (MLIR's operations) cannot be sent to another process. A fork has all of
it. But whoever first writes to a page of memory copies that, and Python writes to all objects that it looks at: that takes a fork a
tenth of a second, and its process as long.

A process forks here only if it says that it may: it has no other threads, and it answers requests for another process
(`compile_server.py`). Elsewhere all is done one after another. The fork that finds the chosen alternative *goes on* for its
process: it returns from `choose`, answers the request, and ends. In the process itself `choose` raises GoneOn.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from tilec.process.messages import receive, send

T = TypeVar("T")
F = TypeVar("F")

AT_ONCE = 4  # forks that share items
_ANSWERED = b"\1"

_allowed = False
_gone_on_for: list[socket.socket] = []  # connections to the processes that this one has gone on for


class GoneOn(BaseException):
    """A fork goes on for this process. No Exception: nothing that is done about faults is to be done."""

    def __init__(self, fork: socket.socket):
        super().__init__()
        self.fork = fork

    def answered(self) -> bool:
        """Waits until the fork has answered; False where it ended before."""
        with self.fork:
            return receive(self.fork) == _ANSWERED


def allow(yes: bool) -> None:
    """Says whether this process may fork, and its forks."""
    global _allowed
    _allowed = yes


def went_on() -> bool:
    """Whether this process is a fork that has gone on for another."""
    return bool(_gone_on_for)


def end_fork(answered: bool) -> None:
    """Ends a fork that has gone on. Never returns."""
    for connection in _gone_on_for:
        with suppress(OSError):
            if answered:
                send(connection, _ANSWERED)
            connection.close()
    wait_for_forks()
    os._exit(0)


def wait_for_forks() -> None:
    """Waits until all forks of this process have ended."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def choose(
    alternatives: Sequence[Callable[[], T]], about: Callable[[T], F], best: Callable[[Sequence[F]], int], at_once: bool = True
) -> tuple[int, T, list[F]]:  # fmt: skip
    """The number of the alternative that is `best` by the facts `about` each one's result, that result, and the facts
    of all. Facts must be data, for `pickle`. Where this process may fork, and they are to be found `at_once`, all but the
    first are found in forks. Raises what finding the first one raises, or another; and GoneOn."""
    if not (_allowed and at_once) or len(alternatives) < 2:
        found = [find() for find in alternatives]
        facts = [about(result) for result in found]
        number = best(facts)
        return number, found[number], facts
    forks: list[socket.socket] = []
    for number, find in enumerate(alternatives[1:], 1):
        mine, theirs = socket.socketpair()
        if os.fork() == 0:
            for other in (mine, *forks):
                other.close()
            return number, *_found_in_fork(find, about, theirs)
        theirs.close()
        forks.append(mine)
    try:
        made = {0: alternatives[0]()}
        messages = [receive(fork) for fork in forks]
    except BaseException:  # of GoneOn, too: the forks are that fork's business
        for fork in forks:
            fork.close()
        raise
    made |= {n: alternatives[n]() for n, message in enumerate(messages, 1) if not message}  # what has failed there, fails here
    facts = [about(made[n]) if n in made else pickle.loads(messages[n - 1]) for n in range(len(alternatives))]
    number = best(facts)
    for n, fork in enumerate(forks, 1):
        if n != number or n in made:
            fork.close()
    if number in made:
        return number, made[number], facts
    chosen = forks[number - 1]
    with suppress(OSError):  # it has ended: `answered` will say so
        send(chosen, pickle.dumps(facts))
    raise GoneOn(chosen)


def _found_in_fork(find: Callable[[], T], about: Callable[[T], F], connection: socket.socket) -> tuple[T, list[F]]:
    """In a fork: what it finds, once that is chosen. Does not return if it is not."""
    chosen = b""
    with suppress(BaseException):  # of GoneOn, too: then a fork of this one sends its words
        made = find()
        send(connection, pickle.dumps(about(made)))
        chosen = receive(connection)
    if not chosen:
        wait_for_forks()
        os._exit(0)
    _gone_on_for.append(connection)
    return made, pickle.loads(chosen)


def each(find: Callable[[int], T], count: int, at_once: bool = True) -> Iterator[T]:
    """What is found for each number from 0 on, in their order, as soon as it is there; by forks, where this process may have them
    and all are to be found `at_once`. It must be data, for `pickle`."""
    if not (_allowed and at_once) or count < 2:
        yield from map(find, range(count))
        return
    forks: list[socket.socket] = []
    ways = min(AT_ONCE, count)
    for first in range(ways):
        mine, theirs = socket.socketpair()
        if os.fork() == 0:
            with suppress(BaseException):
                for number in range(first, count, ways):
                    send(theirs, pickle.dumps(find(number)))
            os._exit(0)
        theirs.close()
        forks.append(mine)
    try:
        for number in range(count):
            message = receive(forks[number % ways])
            yield pickle.loads(message) if message else find(number)  # what has failed there, fails here
    finally:
        for fork in forks:
            fork.close()
