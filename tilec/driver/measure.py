"""Times of compiled ops on a device: single calls, kernels one by one, and several ops in turn."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilec.driver.devices import Host
    from tilec.driver.executable import Executable

ROUNDS = 5


def calls_within(device: Host, executable: Executable, budget: float, most: int = 200) -> int:
    """How many calls fit in `budget` seconds, three at least. The first call is not counted."""
    device.run(executable)
    start = perf_counter()
    device.run(executable)
    return max(3, min(most, int(budget / max(1e-6, perf_counter() - start))))


def kernel_times(device: Host, executable: Executable, budget: float = 0.2) -> dict[str, float]:
    """Microseconds of every kernel, in the order of launches: the program's time with it less the time without it.

    So each finds the caches as the ones before have left them. Copies count for the kernel after them; those behind the
    last kernel are `copies`, a name that no kernel has.
    """
    found: dict[str, float] = {}
    steps = executable.emitted.steps
    ends = [n + 1 for n, step in enumerate(steps) if step.kernel is not None or n + 1 == len(steps)]
    before = 0.0
    for time, end in zip(interleaved(device, [executable.first(n) for n in ends], budget), ends):
        name = steps[end - 1].planned or "copies"
        found[name] = found.get(name, 0.0) + max(0.0, time - before)
        before = time
    return found


def interleaved(device: Host, executables: Sequence[Executable], budget: float, rounds: int = ROUNDS) -> list[float]:
    """Median microseconds of each, in rounds that go through all of them, so that a disturbance hits all.

    A round's figure is the median of its calls; on a CPU the fastest, which other programs disturb least.
    """
    counts = [calls_within(device, e, budget / rounds) for e in executables]
    of_round = [min if e.target.kind == "cpu" else median for e in executables]
    times = [[pick(device.time(e, n)) for e, n, pick in zip(executables, counts, of_round)] for _ in range(rounds)]
    return [1e6 * median(column) for column in zip(*times)]
