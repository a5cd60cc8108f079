"""One GPU for several processes of a benchmark: rows compile, run and are judged beside each other; one at a time is timed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

SPARE = 4 << 30  # bytes of a GPU's memory that no row asks for: contexts of processes, and what libraries take


def alone() -> AbstractContextManager[None]:
    """With the device, and no other process."""
    return _lock(fcntl.LOCK_EX)


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
    """A context that has the device beside others, but not while Dynamo compiles. `waited_s`: until it had it again."""

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
        start = time.perf_counter()
        self._held.enter_context(beside())
        self.waited_s += time.perf_counter() - start

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


__all__ = ["BesideButCompiling", "alone", "beside", "reserve"]
