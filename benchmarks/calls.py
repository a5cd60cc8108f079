"""python -m benchmarks calls: what a call costs the host, in microseconds: operators of PyTorch, and compiled modules.

`twice` is one operator in five ways, for eight numbers: PyTorch's own, tilec's, one in C++, and one in Python. `block` is a
perceptron with a residual and a norm, compiled or not. On a GPU the time is the host's alone, since the device runs behind; on the
CPU the kernels are in it, which are as small as they can be.
"""

from __future__ import annotations

import argparse
import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console

import tilec.torch
from benchmarks import model_rows, report
from benchmarks.measure import host_time, on_cpu

CPP = """
#include <torch/extension.h>

at::Tensor on_cpu(const at::Tensor& given) {
  auto x = given.contiguous();
  auto y = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t n = 0; n < x.numel(); ++n) to[n] = 2 * from[n];
  return y;
}

at::Tensor on_cuda(const at::Tensor& x) { return at::mul(x, 2); }

TORCH_LIBRARY(tilec_calls, m) { m.def("twice(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(tilec_calls, CPU, m) { m.impl("twice", on_cpu); }
TORCH_LIBRARY_IMPL(tilec_calls, CUDA, m) { m.impl("twice", on_cuda); }
"""
PROGRAM = "op twice(x: f32[N]) -> (y: f32[N]) { y[i] = 2 * x[i] }"
LACKING = "operator in C++"


class Block(torch.nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.first, self.second = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


@functools.cache
def in_cpp() -> Callable | str:
    """The operator, or why there is none."""
    from torch.utils import cpp_extension

    if not shutil.which(cpp_extension.get_cxx_compiler()):
        return f"there is no compiler `{cpp_extension.get_cxx_compiler()}`"
    try:
        cpp_extension.load_inline("tilec_calls", CPP, is_python_module=False)
    except Exception as error:
        return f"it did not compile: {str(error).strip().splitlines()[-1][:200]}"
    return torch.ops.tilec_calls.twice


@functools.cache
def own() -> tuple[Callable, Callable]:
    """The operators of `tilec.torch.op` and `torch.library.custom_op`, which are registered once."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    python = torch.library.custom_op("tilec_calls_python::twice", twice, mutates_args=())
    return tilec.torch.op(PROGRAM, name="tilec_calls_tile::twice"), python


def operators(device: str) -> tuple[dict[str, Callable], dict[str, str]]:
    """Calls by way, and what is to be said of ways that there are not."""
    x, (tile, python), cpp = torch.randn(8, device=device), own(), in_cpp()
    ways = {
        "eager": lambda: torch.mul(x, 2),
        "tilec.torch.op": lambda: tile(x),
        "torch.library.custom_op": lambda: python(x),
    }
    if isinstance(cpp, str):
        return ways, {LACKING: cpp}
    return ways | {LACKING: lambda: cpp(x)}, {}


def blocks(device: str, compiled: bool) -> tuple[dict[str, Callable], dict[str, str]]:
    block, x = Block().to(device).eval(), torch.randn(16, 32, device=device)
    chosen = ("eager", "tilec", "torch.compile") if compiled else ("eager", "tilec")
    ways: dict[str, Callable] = {way: functools.partial(model_rows.compiled(block, way), x=x) for way in chosen}
    return ways, {}


def measure(name: str, device: str, compiled: bool) -> dict[str, Any]:
    """A row of facts. All ways give the same."""
    torch._dynamo.reset()
    with torch.no_grad():
        ways, notes = operators(device) if name == "twice" else blocks(device, compiled)
        want = ways["eager"]()
        right = all(torch.allclose(call(), want, rtol=1e-4, atol=1e-5) for call in ways.values())
        if device == "cuda":
            times = {way: host_time(call, torch.cuda.synchronize) for way, call in ways.items()}
        else:
            times = {way: t.median for way, t in on_cpu(ways).items()}
    return {"name": f"{name}, {device}", "group": "calls", "right": right, "times_us": times, "notes": notes}


def suite(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    devices = options.target or ["cpu", *["cuda"] * torch.cuda.is_available()]
    for device in devices:
        for name in ("twice", "block"):
            if not options.only or any(o in f"{name}, {device}" for o in options.only):
                yield measure(name, device, not options.no_compile)


def run(options: argparse.Namespace) -> int:
    from tilec.torch.backend import register

    register()
    machine, console, rows = report.started(), Console(), []
    kept, path = options.json or not options.only, None
    for row in suite(options):
        rows.append(row)
        path = report.save("calls", rows, options.json, machine) if kept else None
    console.width = max(console.width, 120)
    report.print_table(console, "what a call costs the host", *report.call_grid(rows))
    for line in report.others(rows):
        console.print(line, highlight=False, markup=False)
    console.print(f"written to {path}" if path else "not written: a part of a suite needs --json FILE")
    return int(any(not r["right"] for r in rows))


__all__ = ["run"]
