"""Compiles one transformer block, runs it on random weights, and checks it against a plain NumPy version at f64.

    python examples/demo.py [--target cpu|cuda] [--sizes B=2,S=128]

Runs on the GPU if there is one and the GPU compiler is installed, else on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import tilec
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
    return f"right: largest error {error.max():.2g}, {100 * share:.0f}% of what is allowed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=("cpu", "cuda"), default=find_device())
    parser.add_argument("--sizes", default="", help="such as B=2,S=128")
    options = parser.parse_args()
    device, console = options.target, Console()
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

    times = []
    while len(times) < 5 or (sum(times) < 1 and len(times) < 200):
        start = time.perf_counter()
        op(*arrays, out=result)
        synchronise(device)
        times.append(time.perf_counter() - start)
    median = sorted(times)[len(times) // 2]

    equations = set(example_names(op))
    table = Table(title=f"{len(equations)} tensors of the program in {len(op.kernels)} kernels", title_justify="left")
    for heading, justify in (("kernel", "left"), ("computes", "left"), ("blocks", "right"), ("predicted", "right")):
        table.add_column(heading, justify=justify)
    for kernel, planned in zip(op.kernels, op.plan.kernels):
        table.add_row(
            kernel.name.removeprefix("transformer_block_"),
            ", ".join(planned.nodes),
            str(kernel.grid),
            f"{kernel.predicted_us:.0f} us",
        )
    console.print(table)
    if op.plan.inlined:
        console.print(f"computed where they are read, never stored: {', '.join(op.plan.inlined)}")
    b, s, e, h, d, f = (sizes[n] for n in "BSEHDF")
    operations = 2 * b * s * (4 * e * h * d + 3 * e * f) + 2 * b * h * s * s * d  # half of the attention is masked
    console.print(f"sizes      {' '.join(f'{n}={v}' for n, v in sizes.items())}")
    console.print(f"result     [green]{verdict}[/]")
    console.print(f"first call {first:.2f} s: {'compiled' if compiled else 'loaded from the cache'}")
    console.print(
        f"time       {1e3 * median:.2f} ms, {operations / median / 1e9:.1f} GFLOP/s (median of {len(times)} calls)"
    )


def example_names(op: tilec.Op) -> list[str]:
    """Every tensor that the plan knows of, stored or not."""
    return [*op.plan.inlined, *(n for k in op.plan.kernels for n in k.nodes)]


if __name__ == "__main__":
    main()
