"""What the tests of faults share: children of a process that has loaded the compiler, and faults at chosen points in them."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from conftest import Within

from tools.faults import fork_without_interrupts

SOURCE = "op go(x: f32[M, N]) -> (y: f32[M, N]) { y[i, j] = exp(x[i, j] - max[k](x[i, k])) / 3.0 }\n"
SIZES = ["-D", "M=6,N=8"]


def preload() -> None:
    """Loads what compiling and the command need, so that forked children begin at once; starts no thread."""
    import tilec.cli.cache
    import tilec.cli.common
    import tilec.cli.ir
    import tilec.cli.plan
    import tilec.cli.run
    import tilec.driver.lowering
    import tilec.plan.schedule.read
    import tilec.plan.schedule.write
    import tilec.runtime.cpu.compile
    import tilec.runtime.cpu.objects
    import tilec.runtime.emit.cpu  # noqa: F401

    expected(SOURCE, 0)


def results_are_right(source: str | Path = SOURCE, seed: int = 0) -> None:
    """Compiles and calls; many rows, so that the thread pool has a part in it."""
    import tilec

    x, within = expected(source, seed)
    within(tilec.compile(source)(x))


@cache
def expected(source: str | Path, seed: int) -> tuple[np.ndarray, Within]:
    """An input, and what the program may give for it."""
    x = np.random.default_rng(seed).standard_normal((600, 70), np.float32)
    return x, Within(source, [x], kind="cpu")


class Child:
    """A forked process that runs `body`, with `cache` for its cache; what it prints goes to nobody."""

    def __init__(self, body: Callable[[], object], cache: Path | str, folder: Path | None = None, show: bool = False):
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
            self.pid = fork_without_interrupts()
        if self.pid == 0:
            self._be_child(body, str(cache), folder, show)
        self.status: int | None = None

    def _be_child(self, body, cache: str, folder: Path | None, show: bool) -> None:
        """Never returns, whenever it is interrupted: it would go on as the process that runs the tests."""
        status = 99
        try:
            status = self._act(body, cache, folder, show)
        except KeyboardInterrupt:
            status = 130
        finally:
            os._exit(status)

    def _act(self, body, cache: str, folder: Path | None, show: bool) -> int:
        try:
            from tilec.process import atomic_files
            from tilec.runtime import cache as store

            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            os.environ[store.VARIABLE] = cache
            store._checked.cache_clear()
            atomic_files._remove_old.cache_clear()
            if folder is not None:
                os.chdir(folder)
            if not show:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            result = body()
            return result if isinstance(result, int) else 0
        except KeyboardInterrupt:
            return 130
        except BaseException:
            traceback.print_exc()
            return 98

    def wait(self, seconds: float = 120) -> int:
        """The exit status, or the negative number of the signal that ended it. Raises TimeoutError, and ends it."""
        end = time.monotonic() + seconds
        while self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError("the child hangs")
            else:
                time.sleep(0.002)
        return self.status

    def signal_after(self, seconds: float, number: int) -> int:
        time.sleep(seconds)
        os.kill(self.pid, number)  # a child that ended already stays until it is waited for
        return self.wait()


# ---- faults at every write -------------------------------------------------------------------------------------------


class Writes:
    """Counts what changes the file system (files opened to be written, flushed, renamed, folders made), and has `fault`
    happen before one of them."""

    def __init__(self, fault_at: int = -1, fault: Callable[[], object] = lambda: None, lasting: bool = False):
        self.count, self.fault_at, self.fault, self.lasting = 0, fault_at, fault, lasting
        sys.addaudithook(self._hook)
        fsync = os.fsync

        def counted(descriptor: int) -> None:
            self._point()
            fsync(descriptor)

        os.fsync = counted

    def _hook(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and path != os.devnull:
                self._point()
        elif event in ("os.rename", "os.mkdir", "os.chmod", "os.link"):
            self._point()

    def _point(self) -> None:
        number, self.count = self.count, self.count + 1
        if number == self.fault_at or (self.lasting and number > self.fault_at >= 0):
            self.fault()


def no_space() -> None:
    raise OSError(28, "No space left on device")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt
