"""Compiles one transformer block, runs it on random weights, checks it against plain NumPy at f64, and compares the times.

    python examples/demo.py [--target cpu|cuda] [--sizes B=2,S=128]

Runs on the GPU if there is one and the GPU compiler is installed, else on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import tilec
from tilec.core.dtypes import BF16
from tilec.core.quantities import duration
from tilec.cost.model import roofline
from tilec.driver import measure
from tilec.driver.devices import open_device
from tilec.plan.model import Plan
from tilec.plan.report.explain import bound_by
from tilec.runtime import cache
from tilec.runtime.cuda import toolkit
from tilec.runtime.cuda.driver import device_info

sys.path.insert(0, str(Path(__file__).parent))
from expectations import EXAMPLES, Bound

SIZES = {
    "cpu": {"B": 2, "S": 128, "E": 256, "H": 4, "D": 64, "F": 704},
    "cuda": {"B": 4, "S": 1024, "E": 1024, "H": 8, "D": 128, "F": 2816},
}
CHECKED = {"B": 1, "S": 64, "E": 128, "H": 2, "D": 64, "F": 352}
"""A GPU's result is checked at these sizes, too: NumPy takes long at f64 for the large ones."""


def find_device() -> str:
    """ "cuda" where a driver sees a GPU and the GPU compiler is installed."""
    if device_info().problem:
        return "cpu"
    if parts := toolkit.missing():
        print(f"on the CPU: {toolkit.told(parts)}", file=sys.stderr)
        return "cpu"
    return "cuda"


class GpuArray:
    """A NumPy array's copy on the GPU. Stands in for PyTorch or CuPy, of which the demo needs neither."""

    def __init__(self, array: np.ndarray):
        from cuda.bindings import driver

        self.like, self.driver = array, driver
        self.pointer = int(self.ask(driver.cuMemAlloc(max(1, array.nbytes))))
        self.ask(driver.cuMemcpyHtoD(self.pointer, array.ctypes.data, array.nbytes))

    def ask(self, answer):
        status, *values = answer
        if int(status):
            raise RuntimeError(f"the driver answered {status}")
        return values[0] if values else None

    def __dlpack_device__(self):
        return 2, 0

    def numpy(self) -> np.ndarray:
        result = np.empty_like(self.like)
        self.ask(self.driver.cuMemcpyDtoH(result.ctypes.data, self.pointer, result.nbytes))
        return result

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "version": 3,
            "shape": self.like.shape,
            "typestr": "|V2",
            "data": (self.pointer, False),
            "strides": None,
        }


def to_gpu(array: np.ndarray):
    """On the GPU, by PyTorch if it is there."""
    if importlib.util.find_spec("torch") is None:
        return GpuArray(array)
    import torch

    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()


def to_numpy(array) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    return array.numpy() if isinstance(array, GpuArray) else array.float().cpu().numpy()


def synchronise(device: str) -> None:
    if device == "cuda":
        from cuda.bindings import driver

        driver.cuCtxSynchronize()


def check(result: np.ndarray, expected: np.ndarray, bound: Bound) -> str:
    error = np.abs(result.astype(np.float64) - expected)
    share = float((error / (bound.rtol * np.abs(expected) + bound.atol)).max())
    if not share <= 1:
        raise SystemExit(f"WRONG: the error is {share:.1f} times what is allowed")
    return f"right: largest error {error.max():.2g} against NumPy at f64, {100 * share:.0f}% of what is allowed"


def calls(run: Callable[[], object], device: str) -> list[float]:
    """Seconds of single calls, shortest first: calls for a second, at most 200, and three at least."""
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 1 and len(times) < 200):
        start = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return sorted(times)


def kernel_times(op: tilec.Op, inputs: dict[str, np.ndarray], device: str) -> dict[str, float]:
    """Microseconds of every kernel, by name."""
    executable = op.build_for([(BF16, a.shape) for a in inputs.values()], device)
    with open_device(device, inputs, executable.outputs) as opened:
        return measure.kernel_times(opened, executable)


def kernel_table(plan: Plan, measured: dict[str, float]) -> Table:
    """A line for each kernel, and one for all."""
    computed = {k.name: list(without_sums(k.nodes)) for k in plan.kernels}
    tensors = len(plan.inlined) + sum(map(len, computed.values()))
    title = f"{tensors} tensors of the program in {len(plan.predictions)} kernels"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_footer=True, padding=(0, 1, 0, 0))
    table.add_column("kernel", "all", no_wrap=True)
    table.add_column("computes", overflow="fold")
    table.add_column("bound by", no_wrap=True)
    table.add_column("predicted", duration(plan.time_us), justify="right", no_wrap=True)
    table.add_column("measured", duration(sum(measured.values())), justify="right", no_wrap=True)
    for name, p in plan.predictions.items():
        nodes = [n for k in plan.launches.get(name, (name,)) for n in computed[k]]
        kernel = name.removeprefix("transformer_block_")
        table.add_row(kernel, ", ".join(nodes), bound_by(p).split(" (")[0], duration(p.time_us), duration(measured[name]))
    return table


def without_sums(nodes: Iterable[str]) -> Iterator[str]:
    """The names of tensors that the program gives: not `q.sum`, which the compiler computes for `q`."""
    return (n for n in nodes if n.removesuffix(".sum") == n or n.removesuffix(".sum") not in nodes)


def first_call(seconds: float, compiled: bool) -> str:
    folder = cache.directory()
    if not compiled:
        return f"{seconds:.2f} s: loaded from the cache, {folder}; `tilec cache clear` empties it"
    return f"{seconds:.2f} s: compiled" + (f", and kept in the cache, {folder}; run this again" if folder else "; the cache is off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default=find_device())
    parser.add_argument("--sizes", default="", help="such as B=2,S=128")
    options = parser.parse_args()
    device, console = options.target, Console(highlight=False)
    example = EXAMPLES["transformer_block"]
    sizes = SIZES[device] | {k: int(v) for k, v in (s.split("=") for s in options.sizes.split(",") if s)}

    console.print(
        f"[bold]{example.path.name}[/]: causal attention with rotary positions and a gated MLP, bf16, "
        f"for the {device.upper()}"
    )
    rng = np.random.default_rng(0)
    op = tilec.compile(example.path, op=example.op, target=device)
    for checked in [CHECKED, sizes] if device == "cuda" and not options.sizes else [sizes]:
        inputs = example.inputs(rng, checked)
        arrays = [to_gpu(a) if device == "cuda" else a for a in inputs.values()]
        out = to_gpu(np.zeros_like(inputs["x"])) if device == "cuda" else None
        before, start = cache.made, time.perf_counter()
        result = op(*arrays, out=out)
        synchronise(device)
        first, compiled = time.perf_counter() - start, cache.made > before
        if checked is CHECKED or device == "cpu":
            verdict = check(to_numpy(result), example.expected(inputs)[0], example.bound(checked))

    ours = calls(lambda: op(*arrays, out=result), device)
    singles = [a.astype(np.float32) for a in inputs.values()]
    numpys = calls(lambda: example.numpy(*singles), "cpu")
    fastest, by_numpy = ours[0], numpys[0]  # a median tells of other processes: BLAS waits for its slowest thread

    measured = kernel_times(op, inputs, device)
    console.print(kernel_table(op.plan, measured))
    for line in LEGEND:
        console.print(f"[dim]{line}[/]")
    if op.plan.inlined:
        console.print(f"[dim]Computed where they are read, never stored: {', '.join(op.plan.inlined)}.[/]")
    b, s, e, h, d, f = (sizes[n] for n in "BSEHDF")
    operations = 2 * b * s * (4 * e * h * d + 3 * e * f) + 2 * b * h * s * s * d  # half of the attention is masked
    roof = 1e-6 * sum(roofline(k.work, op.plan.target).time_us for k in op.plan.kernels)
    rows = {
        "sizes": " ".join(f"{n}={v}" for n, v in sizes.items()),
        "result": f"[green]{verdict}[/]",
        "prediction": f"the kernels take {sum(measured.values()) / op.plan.time_us:.2f} times the predicted time",
        "first call": first_call(first, compiled),
        "later calls": f"{1e3 * fastest:.2f} ms, {operations / fastest / 1e9:.1f} GFLOP/s (fastest of {len(ours)} calls); "
        f"the roofline allows {operations / roof / 1e9:.1f} GFLOP/s",
        "NumPy": f"{1e3 * by_numpy:.2f} ms, f32 on the CPU (fastest of {len(numpys)} calls): "
        f"[bold]{by_numpy / fastest:.1f} times[/] tilec's time",
    }
    shown = Table.grid(padding=(0, 1))
    for label, text in rows.items():
        shown.add_row(label, text)
    console.print(shown)


LEGEND = (
    "A kernel has the name of what it stores. `silu.x` is the tensor `x` inside of a call of `silu`.",
    "Bound by: what takes longest in the cost model. Measured: the fastest calls on a CPU, the median on a GPU.",
    "Roofline: the time in which each kernel's data could move, or its operations be computed, whichever is longer.",
)
"""What the table's names and figures mean."""


if __name__ == "__main__":
    main()
