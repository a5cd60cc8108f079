"""One GPU for several processes of a benchmark: rows compile, run and are judged beside each other. One at a time is timed, and the
others are stopped meanwhile: calls that wait for the host would be slower beside processes that compile."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ENDING_S = 20.0  # for processes that end while a row waits to be timed
SPARE = 4 << 30  # bytes of a GPU's memory that no row asks for: contexts of processes, and what libraries take


@contextmanager
def alone() -> Iterator[None]:
    """With the device, and no other process of the benchmark running."""
    with _lock(fcntl.LOCK_EX):
        if (folder := os.environ.get("BENCHMARKS_FOLDER")) is None:
            yield
            return
        holder, stopped, start = Path(folder) / "device.holder", _others(), time.perf_counter()
        holder.write_text(str(os.getpid()))
        try:
            _signal(stopped, signal.SIGSTOP)
            end = time.monotonic() + ENDING_S
            while any(map(_runs, stopped)) and time.monotonic() < end:
                time.sleep(0.01)
            yield
        finally:
            total = _stopped_s() + time.perf_counter() - start
            (Path(folder) / "device.stopped").write_text(repr(total))
            holder.unlink()
            _signal(stopped, signal.SIGCONT)


def resume(killed: int) -> None:
    """In the parent: has the benchmark's processes go on, where the one that was killed had stopped the others."""
    holder = Path(os.environ.get("BENCHMARKS_FOLDER", os.devnull)) / "device.holder"
    with suppress(FileNotFoundError, NotADirectoryError):
        if int(holder.read_text()) == killed:
            holder.unlink()
            _signal(_others(), signal.SIGCONT)


def _signal(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _runs(process: int) -> bool:
    """Whether a process neither is stopped nor has ended. One that ends gives its memory back, for which the driver makes others
    wait."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "TZX"


def _others() -> set[int]:
    """Processes that the benchmark's first one (`BENCHMARKS_PARENT`) has started, but this one, those that it stems from, and, but
    in the first one, those that it has started. None where there is no `/proc`."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])

    def line(process: int) -> list[int]:
        found = [process]
        while (process := parents.get(process, 0)) > 0:
            found.append(process)
        return found

    own, first = os.getpid(), int(os.environ.get("BENCHMARKS_PARENT", "-1"))
    above = line(own)
    return {p for p in parents if p not in above and first in (of := line(p))[1:] and (own == first or own not in of)}


def running_s() -> float:
    """A clock that stands while this process is stopped."""
    return time.perf_counter() - _stopped_s()


def _stopped_s() -> float:
    """Seconds for which this benchmark's processes were stopped so far, but the one that was timed."""
    try:
        return float((Path(os.environ["BENCHMARKS_FOLDER"]) / "device.stopped").read_text())
    except (KeyError, FileNotFoundError):
        return 0.0


def beside() -> AbstractContextManager[None]:
    """With the device, beside others. Who waits to be alone is not overtaken."""
    return _lock(fcntl.LOCK_SH)


@contextmanager
def _lock(kind: int) -> Iterator[None]:
    folder = os.environ.get("BENCHMARKS_FOLDER")
    if folder is None:
        yield
        return
    with open(Path(folder) / "device.turn", "w") as turn, open(Path(folder) / "device.lock", "w") as device:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(device, kind)
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


class BesideButCompiling:
    """A context that has the device beside others, but not while Dynamo compiles. `waited_s`: until it had it again, by
    `running_s`."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._held = ExitStack()

    def __enter__(self) -> BesideButCompiling:
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._release)
        callback_handler.register_end_callback(self._take)
        self._take()
        return self

    def __exit__(self, *_: Any) -> None:
        from torch._dynamo.callback import callback_handler

        callback_handler.remove_start_callback(self._release)
        callback_handler.remove_end_callback(self._take)
        self._release()

    def _take(self, *_: Any) -> None:
        start = running_s()
        self._held.enter_context(beside())
        self.waited_s += running_s() - start

    def _release(self, *_: Any) -> None:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._held.close()


def reserve(count: int) -> None:
    """Waits until so many bytes of the GPU's memory are free, or all that a row may ask for, and keeps them for this process's
    tensors."""
    import torch

    folder = os.environ.get("BENCHMARKS_FOLDER")
    if folder is None or not torch.cuda.is_available():
        return
    with open(Path(folder) / "device.memory", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        count = min(count, torch.cuda.mem_get_info()[1] - 2 * SPARE)
        while torch.cuda.mem_get_info()[0] < count + SPARE:
            time.sleep(0.05)
        torch.empty(count, dtype=torch.uint8, device="cuda")  # freed at once: PyTorch's allocator keeps it


__all__ = ["BesideButCompiling", "alone", "beside", "reserve", "resume", "running_s"]
