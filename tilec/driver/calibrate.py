"""The host CPU as a target, by measuring: once, in seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from tilec.core.host import (
    estimate,
)
from tilec.core.target import Level, Target, from_dict
from tilec.core.targets import calibrated_path
from tilec.process.atomic_files import replace_file


def calibrate(path: Path | None = None) -> Target:
    """Measures this machine for five seconds, and writes the target file to `path`, by default for `load("cpu")`. L1 stays
    estimated: data that fit L1 are copied faster than Python can call."""
    base = estimate()
    f32, f64 = _matmul_tflops(np.float32), _matmul_tflops(np.float64)
    target = replace(
        base,
        dram=_measured(base.dram, _large(base), base.units),
        l2=_measured(base.l2, base.l2.bytes // (2 if base.l2.private else 2 * base.units), base.units),
        l3=base.l3 and _measured(base.l3, base.l3.bytes // (2 * base.units), base.units),
        fma={"f32": f32, "f64": f64},
        sustained=replace(base.sustained, fma=1.0),
        launch=replace(base.launch, overhead_us=_launch_us(base.units)),
        note="",
    )
    _write(target, path or calibrated_path())
    return target


def _large(target: Target) -> int:
    """Bytes a core that no cache holds, within reason."""
    last = max(target.l2.bytes, target.l3.bytes if target.l3 else 0)
    return min(max(64 << 20, 4 * last), 256 << 20) // target.units


def _measured(level: Level, size: int, cores: int) -> Level:
    """`level` with the copy bandwidth of one core and of all, each over its own `size` bytes."""
    one, every = _copy_gbs(size, 1), _copy_gbs(size, cores)
    return replace(level, unit_gbs=round(one, 2), bandwidth_gbs=round(max(one, every), 2), achievable=1.0)


def _copy_gbs(size: int, threads: int) -> float:
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
        seconds = min(max(pool.map(work, pairs)) for _ in range(3))
    return 8e-9 * count * threads * repeats / seconds


def _matmul_tflops(dtype: type) -> float:
    """The vector peak that NumPy's BLAS reaches with the cores it uses."""
    n = 1024
    a: np.ndarray = np.ones((n, n), dtype)
    b, c = a.copy(), a.copy()
    return round(2e-12 * n**3 / _best(lambda: np.matmul(a, b, out=c), 0.5), 6)


def _launch_us(threads: int) -> float:
    """The time of an empty parallel loop of Numba's."""
    from tilec.runtime.cpu.launch import start_pool

    start_pool()  # as it runs kernels
    from numba import config, get_num_threads, njit, prange, set_num_threads

    @njit(parallel=True)
    def empty(out):  # type: ignore[no-untyped-def]
        for i in prange(out.size):
            out[i] = 0.0

    before, out = get_num_threads(), np.zeros(threads, np.float32)
    set_num_threads(min(threads, int(config.NUMBA_NUM_THREADS)))
    try:
        return round(1e6 * _best(lambda: empty(out), 0.2), 2)
    finally:
        set_num_threads(before)


def _best(call: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that fit in `seconds`, after one to warm up."""
    call()
    best, end = float("inf"), perf_counter() + seconds
    while (start := perf_counter()) < end:
        call()
        best = min(best, perf_counter() - start)
    return best


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
