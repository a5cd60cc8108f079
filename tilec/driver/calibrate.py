"""The host CPU as a target, by measuring: once, in seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from tilec.core.diagnostics import CallError
from tilec.core.host import estimate
from tilec.core.target import Level, Target, from_dict
from tilec.core.targets import calibrated_path
from tilec.driver.other_load import OtherLoad
from tilec.process.atomic_files import replace_file

ROUNDS = 3
BUSY = 0.1
"""The share of the processors that others may have of the time."""
DISAGREEMENT = 1.6
"""The second best of three measurements may be so many times worse than the best: caches and memory are shared with other machines
of a host. What other programs do to a launch is ten times that."""
LONG = 50e-6
"""Seconds of a copy of several threads from which its spread is judged: between shorter ones they wait for the interpreter's lock,
now and then. The best of the three does not."""

Spreads = dict[str, tuple[float, float]]  # by figure, its best and its second best


def calibrate(path: Path | None = None, report: Callable[[str], object] = lambda text: None) -> Target:
    """Measures this machine for five seconds, and writes the target file to `path`, by default for `load("cpu")`. L1 stays
    estimated: data that fit L1 are copied faster than Python can call.

    Where other programs disturb it, it measures again, which is reported. Raises CallError after three rounds, and writes
    nothing.
    """
    base = estimate()
    for left in reversed(range(ROUNDS)):
        spreads: Spreads = {}
        with OtherLoad() as others:
            target = _measure(base, spreads)
        reason = disturbed(others.cores, spreads, base.units)
        if reason is None:
            _write(target, path or calibrated_path())
            return target
        if left:
            report(f"measuring again: {reason}")
    raise CallError(f"this machine is too busy to be measured: {reason}; nothing was written", hint="end other programs first")


def disturbed(others: float | None, spreads: Spreads, units: int) -> str | None:
    """Why a round of measurements cannot be believed, or None."""
    if others is not None and others > BUSY * units:
        return f"other programs take the time of {others:.1f} of {units} processors"
    for name, (best, second) in spreads.items():
        if max(best, second) > DISAGREEMENT * min(best, second):
            return f"{name} was {best:.3g} once, and {second:.3g} at the second best"
    return None


def _measure(base: Target, spreads: Spreads) -> Target:
    """A round. The spread of each figure goes into `spreads`."""
    l2, l3 = base.l2.bytes // (2 if base.l2.private else 2 * base.units), base.l3 and base.l3.bytes // (2 * base.units)
    return replace(
        base,
        dram=_measured(base.dram, _large(base), base.units, "memory, GB/s", spreads),
        l2=_measured(base.l2, l2, base.units, "L2, GB/s", spreads),
        l3=base.l3 and _measured(base.l3, l3 or 0, base.units, "L3, GB/s", spreads),
        fma={t: _matmul_tflops(d, f"{t}, TFLOP/s", spreads) for t, d in (("f32", np.float32), ("f64", np.float64))},
        sustained=replace(base.sustained, fma=1.0),
        launch=replace(base.launch, overhead_us=_launch_us(base.units, spreads)),
        note="",
    )


def _large(target: Target) -> int:
    """Bytes a core that no cache holds, within reason."""
    last = max(target.l2.bytes, target.l3.bytes if target.l3 else 0)
    return min(max(64 << 20, 4 * last), 256 << 20) // target.units


def _measured(level: Level, size: int, cores: int, name: str, spreads: Spreads) -> Level:
    """`level` with the copy bandwidth of one core and of all, each over its own `size` bytes."""
    one, every = (_copy_gbs(size, n, f"{name} of {n}", spreads) for n in (1, cores))
    return replace(level, unit_gbs=round(one, 2), bandwidth_gbs=round(max(one, every), 2), achievable=1.0)


def _copy_gbs(size: int, threads: int, name: str, spreads: Spreads) -> float:
    """GB/s, read plus written, of `threads` copying their own `size` bytes, half to half, in warm memory."""
    count = max(512, size // 8)
    pairs = [(np.ones(count, np.float32), np.zeros(count, np.float32)) for _ in range(threads)]
    repeats = max(1, min(20_000, (1 << 28) // (8 * count) // threads))
    barrier = threading.Barrier(threads)

    def work(pair: tuple[np.ndarray, np.ndarray]) -> float:
        source, target = pair
        np.copyto(target, source)
        barrier.wait()
        start = perf_counter()
        for _ in range(repeats):
            np.copyto(target, source)
        return perf_counter() - start

    with ThreadPoolExecutor(threads) as pool:
        rates = sorted((8e-9 * count * threads * repeats / max(pool.map(work, pairs)) for _ in range(3)), reverse=True)
    if threads == 1 or 8e-9 * count * threads / rates[0] > LONG:
        spreads[name] = rates[0], rates[1]
    return rates[0]


def _matmul_tflops(dtype: type, name: str, spreads: Spreads) -> float:
    """The vector peak that NumPy's BLAS reaches with the cores it uses."""
    n = 1024
    a: np.ndarray = np.ones((n, n), dtype)
    b, c = a.copy(), a.copy()
    best, second = (2e-12 * n**3 / seconds for seconds in _best(lambda: np.matmul(a, b, out=c), 0.5))
    spreads[name] = best, second
    return round(best, 6)


def _launch_us(threads: int, spreads: Spreads) -> float:
    """The time of a launch whose blocks do nothing."""
    from tilec.runtime.cpu import pool

    best, second = (1e6 * seconds for seconds in _best(pool.nothing(threads), 0.2))
    spreads["a launch, us"] = best, second
    return round(best, 2)


def _best(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """After a call to warm up, the shortest call of each third of `seconds`: of the best third, and of the second best."""
    call()
    shortest = []
    for _ in range(3):
        best, end = float("inf"), perf_counter() + seconds / 3
        while (start := perf_counter()) < end:
            call()
            best = min(best, perf_counter() - start)
        shortest.append(best)
    shortest.sort()
    return shortest[0], shortest[1]


def _write(target: Target, path: Path) -> None:
    """The target's TOML, in one step: a reader sees the old file or the new."""
    import tomlkit

    header = "# Measured by `tilec doctor --calibrate`; delete it to go back to estimates.\n"
    text = header + tomlkit.dumps(_plain(target))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def _plain(target: Target) -> dict[str, object]:
    """The target's tables, values before tables, as TOML wants them; checked by reading back."""
    table = target.to_dict()
    table["features"] = list(table.get("features", ()))
    assert from_dict(table) == target
    return dict(sorted(table.items(), key=lambda item: isinstance(item[1], dict)))
