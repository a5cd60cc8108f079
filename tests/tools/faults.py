"""Faults at random moments: a warm process forks children that compile, cache and write files, and signals them.

    python tests/tools/faults.py kill|interrupt|fmt TIMES SEED FOLDER

Prints how many children were struck before they were done, and what went wrong afterwards, as JSON. Children are forks of a
process that has imported everything and run nothing, so that a strike lands in the compiler and not in imports.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

_begun = -1
"""In a child: where it tells its parent that what may be struck begins."""


def begin() -> None:
    os.write(_begun, b".")


def compiled_and_right(number: int) -> None:
    """Compiles a program that no other number has, in the cache or not, and checks its results."""
    import tilec

    begin()

    x = np.arange(40, dtype=np.float32).reshape(5, 8)
    program = f"m[i] = max[j](x[i, j])  y[i, j] = x[i, j] * {number} - m[i]"
    found = tilec.compile(program, target="cpu")(x)
    np.testing.assert_array_equal(found, x * number - x.max(1, keepdims=True))


def fork_without_interrupts() -> int:
    """os.fork(), whose child receives no Ctrl-C until it unblocks SIGINT: what strikes before is kept until then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = -1
    try:
        child = os.fork()
        return child
    finally:
        if child:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(action: Callable[[], None]) -> int:
    """A child that does it and exits with 0, 1 for an exception, or 130 for Ctrl-C. Returns when it has called `begin`."""
    global _begun
    reported, _begun = os.pipe()
    child = fork_without_interrupts()
    if child:
        os.close(_begun)
        os.read(reported, 1)
        os.close(reported)
        return child
    code = 130
    try:  # twice: Ctrl-C may come when the inner one has been left
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            action()
            code = 0
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            code = 1
            traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def finish(child: int) -> int:
    """The exit status; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def struck(action: Callable[[], None], number: int, delay: float) -> int:
    child = fork(action)
    time.sleep(delay)
    os.kill(child, number)
    return finish(child)


def how_long(action: Callable[[], None]) -> float:
    """Seconds from its `begin` on."""
    child, start = fork(action), time.monotonic()
    assert finish(child) == 0, "it fails when nothing strikes"
    return time.monotonic() - start


def longer(seconds: float, hit: bool) -> float:
    """Within what the next strike comes: a machine that was busy at first may be quick later, and the other way round."""
    return seconds * (1.1 if hit else 0.8)


def kill(times: int, rng: random.Random, folder: Path) -> dict:
    """Killed while compiling or caching: the next process with the same cache computes the right thing."""
    os.environ["TILEC_CACHE_DIR"] = str(folder / "cache")
    longest, killed, wrong = how_long(lambda: compiled_and_right(1)), 0, []
    for n in range(times):
        again = partial(compiled_and_right, n + 2)
        status = struck(again, signal.SIGKILL, rng.uniform(0, longest))
        killed += status == -signal.SIGKILL
        longest = longer(longest, status == -signal.SIGKILL)
        if status not in (0, -signal.SIGKILL) or (n % 4 == 3 and finish(fork(again))):
            wrong.append(n + 2)
    return {"struck": killed, "wrong": wrong}


def interrupt(times: int, rng: random.Random, folder: Path) -> dict:
    """Ctrl-C in the first call: KeyboardInterrupt, and the same op is right when called again."""
    os.environ["TILEC_CACHE_DIR"] = str(folder / "cache")
    import tilec

    x = np.arange(12, dtype=np.float32)
    marks = folder / "interrupted"
    marks.mkdir()

    def twice(number: int) -> None:
        op = tilec.compile(f"y[i] = cumsum[i](x[i] * {number})", target="cpu")
        try:
            begin()
            op(x)
        except KeyboardInterrupt:
            (marks / str(number)).touch()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        np.testing.assert_array_equal(op(x), np.cumsum(x * number))

    longest, wrong = how_long(lambda: twice(1)), []
    for number in range(2, 2 + times):
        status = struck(partial(twice, number), signal.SIGINT, rng.uniform(0, longest))
        longest = longer(longest, (marks / str(number)).exists())
        if status not in (0, 130):  # 130 where the signal came before the call or between the two
            wrong.append([number, status])
    return {"struck": len(list(marks.iterdir())), "wrong": wrong}


def fmt(times: int, rng: random.Random, folder: Path) -> dict:
    """Killed while a file is written in place: the file is the old one or the new one."""
    from tilec.cli.command import main

    path, killed, wrong = folder / "program.tile", 0, []
    old = "y[i]=2*x[i]\n" * 1 + "".join(f"z{n}[i]=x[i]+{n}\n" for n in range(40))
    path.write_text(old)

    def format_it() -> None:
        begin()
        assert main(["fmt", str(path)]) == 0

    longest = how_long(format_it)
    new = path.read_text()
    for n in range(times):
        path.write_text(old)
        status = struck(format_it, signal.SIGKILL, rng.uniform(0, 1.2 * longest))
        killed += status == -signal.SIGKILL
        longest = longer(longest, status == -signal.SIGKILL)
        if path.read_text() not in (old, new) or (status == 0 and path.read_text() != new):
            wrong.append(n)
    return {"struck": killed, "wrong": wrong}


if __name__ == "__main__":
    import numba  # noqa: F401

    import tilec.driver.lowering
    import tilec.dsl.build
    import tilec.dsl.specialise
    import tilec.runtime.cpu.compile  # noqa: F401

    what, times, seed, folder = sys.argv[1:]
    found = {"kill": kill, "interrupt": interrupt, "fmt": fmt}[what](int(times), random.Random(int(seed)), Path(folder))
    print(json.dumps(found))
