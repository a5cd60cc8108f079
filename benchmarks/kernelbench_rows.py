"""One row of `python -m benchmarks kernelbench`: a problem in eager mode, by torch.compile and by tilec, judged and timed on a
GPU; or planned without one.

The reference is the same module in f64, or in full f32 where f64 does not fit. An error, by root mean squares and at the worst
element, may be three times that of eager mode. Where PyTorch's switches allow tf32 and eager mode does not make use of that, it may
be three times what rounding inputs and parameters to tf32 makes. Random results have equal moments.
"""

from __future__ import annotations

import copy
import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.device import BesideButCompiling, alone, reserve, running_s
from benchmarks.kernelbench_problems import Made, Problem, make, variants
from benchmarks.measure import on_gpu
from benchmarks.model_rows import ERROR, LEAST, full_f32, kernels_of

WAYS: dict[str, dict[str, Any] | None] = {"eager": None, "torch.compile": {}, "tilec": {"backend": "tilec"}}
"""Arguments of torch.compile."""
WORST = 16.0  # the least bound of an element's error, over that of root mean squares
MOMENTS = 0.02  # by which those of random results may differ
SHARE = 0.75  # of the GPU's memory, for f64
MEMORY = 3.0  # times the bytes of a problem, that its results in f64 and in each way take
CHUNK = 1 << 26  # elements that are compared at a time
SLOW = 0.9  # of the best peer's speed: what is below is profiled
WAIT_S = 150.0  # for the kernels that another process compiles


def compiled(module: torch.nn.Module, way: str) -> Callable:
    """The module by a way."""
    return module if (arguments := WAYS[way]) is None else dynamo(module, **arguments)


def dynamo(module: torch.nn.Module, **arguments: Any) -> Callable:
    """The module by torch.compile, as a function of its own: Dynamo numbers a graph's inputs otherwise for a module, and kernels
    that were compiled ahead would be others."""
    scope: dict[str, Any] = {"module": module}
    exec("def call(*inputs):\n    return module(*inputs)", scope)
    return torch.compile(scope["call"], dynamic=False, **arguments)


# ---- without a GPU's memory ------------------------------------------------------------------------------------------


@contextmanager
def traced(target: str | None) -> Iterator[list[tuple[Any, Any, Any]]]:
    """The list fills with (program, types and shapes of its inputs, what `prepare` is to keep) of each partition of the graphs that
    tilec is given. With `target`, graphs of the CPU's tensors are planned as a GPU's, and nothing is compiled."""
    from tilec.torch import backend, call

    found: list[tuple[Any, Any, Any]] = []
    compilers, bound = backend.compilers, call.Partition._bound

    def for_gpus(options: Any, names: Any = ()) -> dict[str, Any]:
        how = compilers(options, names)
        inner = how["inference_compiler"]

        def inference(graph: torch.fx.GraphModule, given: Any) -> Any:
            _to_gpu(graph.graph)
            return inner(graph, given)

        return how | {"inference_compiler": inference}

    def noted(partition: Any, written: Any, graph: Any, key: Any) -> Any:
        inputs = call._inputs(graph, written)
        if target:
            found.append((call.program(written.text, target, None), inputs, None))
            return partition.eager
        made = bound(partition, written, graph, key)
        op = call.program(written.text, partition.options.target, None)
        built = op.build_for(inputs, call._device(graph))
        getattr(built, "cubins", None)  # a GPU's are compiled when they are asked for, else by the first call
        found.append((op, inputs, built.compiled.predicted_us))
        return made

    with ExitStack() as stack:
        patched = lambda *given: stack.enter_context(mock.patch.object(*given))  # noqa: E731
        patched(call.Partition, "_bound", noted)
        if target:
            patched(backend, "compilers", for_gpus)
            patched(backend, "load_compilers", lambda kind: None)
            patched(backend, "_refuse_other_devices", lambda *given: None)
            patched(call.Partition, "ahead", staticmethod(lambda *given: lambda: None))
        yield found


def _to_gpu(graph: torch.fx.Graph) -> None:
    """Has a graph of fake tensors be one of a GPU's, which PyTorch can trace only where it is built for CUDA."""
    from torch._subclasses.fake_tensor import FakeTensor

    gpu = torch.device("cuda:0")

    def moved(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(moved, value))
        if not isinstance(value, FakeTensor):
            return value
        with torch.utils._python_dispatch._disable_current_modes():
            elem = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            return FakeTensor(value.fake_mode, elem, gpu)

    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = moved(node.meta["val"])
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": gpu}


def compile_faked(made: Made, device: str, compile: Callable[[torch.fx.GraphModule, Any], Any]) -> None:
    """Has a back end of torch.compile's compile the module, for fake tensors of a device in place of those on `meta`. What it makes
    is not called: it would read memory that is not there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def faked(x: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

    def backend(graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        compile(copy.deepcopy(graph), given)
        return graph.forward

    with mode:
        made.to(faked)
        made.call(dynamo(made.module, backend=backend))


def predict(problem: Problem, target: str, dtype: torch.dtype) -> dict[str, Any]:
    """The predicted time of the plans beside the time that reading inputs, writing results, and the products take at least."""
    from tilec.core import mlir
    from tilec.core.targets import load
    from tilec.driver.lowering import lower
    from tilec.dsl.build import build
    from tilec.torch import report
    from tilec.torch.backend import backend

    start, machine = time.perf_counter(), load(target)
    _, made = next(variants(problem, dtype))
    facts = _about(problem, made) | {"roofline_us": roofline(made, machine, dtype)}
    with traced(target) as programs:
        compile_faked(made, "cpu", partial(backend, options={"target": target}))
    kernels, total = [], 0.0
    for op, inputs, _ in programs:
        special = op.recipe_for(inputs, 0).specialised
        with mlir.context(), mlir.ir.Location.unknown():
            plan = lower(build(special), machine, end="plan", emit=False, locations=False, texts=False).plan
        assert plan is not None, "the stage ran"
        total += plan.time_us
        families = {k.name: k.options.name for k in plan.kernels}
        kernels += [[name, families.get(name, ""), round(p.time_us, 1)] for name, p in plan.predictions.items()]
    kernels.sort(key=lambda k: -k[2])
    seconds = round(time.perf_counter() - start, 1)
    return facts | {"predicted_us": total, "kernels": kernels[:8], "seconds": seconds} | _taken(report().graphs)


def roofline(made: Made, machine: Any, dtype: torch.dtype) -> float:
    """Microseconds, by the figures of a target file; products of f32 are as exact as PyTorch's switches have them."""
    seconds = 0.0
    for op, flops in made.flops.items():
        kind = "conv" if "conv" in op else "matmul"
        rounded = torch._C._get_fp32_precision_getter("cuda", kind) == "tf32"
        unit = "tensor.bf16" if dtype == torch.bfloat16 else "tensor.tf32" if rounded else "fma.f32"
        seconds += flops / machine.peak(unit)
    memory = made.least_bytes / (1e9 * machine.dram.bandwidth_gbs * machine.dram.achievable)
    return 1e6 * max(seconds, memory)


def _about(problem: Problem, made: Made) -> dict[str, Any]:
    return {"group": f"level {problem.level}", "numbers": {k: str(v) for k, v in made.numbers.items()}}


def _taken(graphs: Any) -> dict[str, Any]:
    """How many operations are tilec's, of how many, and those of PyTorch."""
    refused = [f"{e.operation}: {e.reason}" for g in graphs for e in g.eager]
    refused += [f"{p.name}: {p.reason}" for g in graphs for p in g.parts if p.reason is not None]
    return {
        "taken": sum(g.taken for g in graphs),
        "operations": sum(g.operations for g in graphs),
        "refused": refused[:8],
    }


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def _mark(problem: Problem) -> Path:
    return Path(os.environ["BENCHMARKS_FOLDER"]) / f"{problem.name.replace('/', '-')}.prepared"


def prepare(problem: Problem, dtype: torch.dtype) -> dict[str, Any]:
    """Compiles the problem's kernels, and Inductor's, into their caches on disk, without the problem's memory. Seconds of each."""
    from torch._inductor.compile_fx import compile_fx

    from tilec.torch.backend import backend

    try:
        found: dict[str, Any] = {"prepared_s": {}}
        attempt, _ = next(variants(problem, dtype))
        for way, compile in (("tilec", backend), ("torch.compile", compile_fx)):
            start, made = running_s(), make(problem, "meta", dtype, attempt)
            with traced(None) as programs:
                compile_faked(made, "cuda", compile)
            found["prepared_s"][way] = round(running_s() - start, 2)
            if way == "tilec":
                found["predicted_us"] = sum(sum(p.values()) for *_, p in programs)
            torch._dynamo.reset()
        return found
    finally:
        _mark(problem).touch()


def measure(problem: Problem, dtype: torch.dtype, compiled_too: bool) -> dict[str, Any]:
    """A row of facts. A way that fails has its error in `errors`, and no time."""
    from tilec.torch import report
    from tilec.torch.backend import register

    register()
    end = time.monotonic() + WAIT_S
    drawn = list(zip(range(4), variants(problem, dtype)))
    while not _mark(problem).exists() and time.monotonic() < end:
        time.sleep(0.05)
    reserve(int(MEMORY * drawn[0][1][1].bytes))
    with BesideButCompiling() as device:
        for _, tried in drawn:
            attempt, planned = tried
            with suppress(RuntimeError, ValueError, IndexError):  # what meta tensors do not tell, such as memory
                made = make(problem, "cuda", dtype, attempt)
                made.call(made.module)
                break
            gc.collect()
        else:
            return {"group": f"level {problem.level}", "error": "eager mode fails"}
        facts = _about(problem, planned) | {
            "type": str(dtype).removeprefix("torch."), "first_s": {}, "errors": {}, "error_share": {}, "worst": {},
        }  # fmt: skip
        judge = Judge(problem, attempt, planned, made, dtype)
        facts["reference"] = judge.kind
        calls: dict[str, Callable] = {"eager": made.module}
        for way in WAYS if compiled_too else ("eager", "tilec"):
            try:
                function, start, waited = compiled(made.module, way), running_s(), device.waited_s
                result = judge.seeded(function)
                torch.cuda.synchronize()
                facts["first_s"][way] = round(running_s() - start - device.waited_s + waited, 2)
                facts["error_share"][way], facts["worst"][way] = judge.share(result)
                calls[way] = function
            except Exception as error:
                text = " | ".join(line for line in str(error).splitlines() if line.strip())
                facts["errors"][way] = f"{type(error).__name__}: {text[:400]}"
            result = None
        facts |= _taken(report().graphs) | {"right": facts["error_share"].get("tilec", math.inf) <= 1}
        del judge
        steps = {way: (lambda f=function: made.call(f)) for way, function in calls.items()}
        for step in steps.values():
            step()
    with alone():
        timed = on_gpu(steps)
        facts["times_us"] = {w: t.median for w, t in timed.items()}
        facts["range_us"] = {w: (t.low, t.high) for w, t in timed.items()}
        if "tilec" not in calls:
            return facts | {"error": facts["errors"].get("tilec", "not run")}
        best = min(t for w, t in facts["times_us"].items() if w != "tilec")
        if best < SLOW * facts["times_us"]["tilec"]:
            facts["kernels"] = kernels_of(steps["tilec"])
    return facts


class Judge:
    """The right results of a problem, and what eager mode's are off by. `kind`: what the reference is computed in."""

    def __init__(self, problem: Problem, attempt: int | None, planned: Made, made: Made, dtype: torch.dtype):
        """`planned`: the problem on meta tensors; `made`: on the device, floats as `dtype`."""
        self.problem, self.attempt, self.made, self.dtype = problem, attempt, made, dtype
        self.random = planned.random and self._differs()
        self.kind = "full f32"
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.want: list[torch.Tensor] = []
        share = 64 / torch.finfo(dtype).bits * planned.bytes
        room = torch.cuda.get_device_properties(0).total_memory if self.device == "cuda" else share * 2
        if not self.random and share < SHARE * room:
            with suppress(RuntimeError):  # too large, or the module makes tensors in f32 on its own
                self.want, self.kind = self._wider(torch.float64), "f64"
        if not self.want:
            with full_f32():
                self.want = self._wider(torch.float32) if not self.random else _tensors(self.seeded(made.module))
        gc.collect()
        self.least = LEAST[dtype]
        self.bounds = [(0.0, 0.0)] * len(self.want)
        self.bounds = self._errors(_tensors(self.seeded(made.module)))
        self.rounded: list[tuple[float, float]] | None = None

    def seeded(self, function: Callable, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return self.made.call(function)

    def _differs(self) -> bool:
        """Whether another seed gives other results."""
        first, second = (_tensors(self.seeded(self.made.module, seed)) for seed in (0, 1))
        return any(error(a, b)[0] > 1e-3 for a, b in zip(first, second))

    def _wider(
        self, dtype: torch.dtype, change: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        exact = make(self.problem, self.device, self.dtype, self.attempt, dtype)
        return _tensors((exact.to(change) if change else exact).call(exact.module))

    def _errors(self, results: list[torch.Tensor]) -> list[tuple[float, float]]:
        return [(moments if self.random else error)(a, b) for a, b in zip(results, self.want, strict=True)]

    def share(self, result: Any) -> tuple[float, str]:
        """The largest share of what is allowed, and of which result."""
        found = self._errors(_tensors(result))
        share, name = self._share(found, self.bounds)
        tf32 = torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32"
        if share > 1 and not self.random and self.dtype == torch.float32 and self.device == "cuda" and tf32:
            if self.rounded is None:
                wide = torch.float64 if self.kind == "f64" else torch.float32
                with full_f32():
                    self.rounded = self._errors(self._wider(wide, to_tf32))
            share, name = min((share, name), self._share(found, self.rounded))
        return share, name

    def _share(self, found: list[tuple[float, float]], yardstick: list[tuple[float, float]]) -> tuple[float, str]:
        least = (MOMENTS, MOMENTS) if self.random else (self.least, WORST * self.least)
        return max(
            (off / max(ERROR * (0.0 if self.random else allowed), floor), f"result {n}, {what}")
            for n, (errors, allowances) in enumerate(zip(found, yardstick))
            for off, allowed, floor, what in zip(errors, allowances, least, ("rms", "worst"))
        )


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Floats with 10 bits after the first, the nearest ones."""
    if not x.is_floating_point():
        return x
    bits = x.float().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).to(x.dtype)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]


def _chunks(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = (x[None], y[None]) if not x.dim() else (x, y)
    rows = max(1, CHUNK * x.shape[0] // max(1, x.numel()))
    for first in range(0, x.shape[0], rows):
        yield x[first : first + rows].double(), y[first : first + rows].double()


def error(result: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """What differs: the root mean square over that of `want`, and the largest over the largest of `want`. Of integers, the share
    that is not equal, twice. A number where NaN or another infinity is right is infinitely off, and the other way round."""
    if result.shape != want.shape:
        return math.inf, math.inf
    if not want.is_floating_point():
        wrong = sum(float((a != b).sum()) for a, b in _chunks(result, want)) / max(1, want.numel())
        return wrong, wrong
    squares = of = worst = largest = 0.0
    for a, b in _chunks(result, want):
        off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(math.inf, math.inf)
        right = torch.where(b.isfinite(), b.abs(), 0.0)
        squares, of = squares + float(off.square().sum()), of + float(right.square().sum())
        worst, largest = max(worst, float(off.max())), max(largest, float(right.max()))
    return _over(math.sqrt(squares), math.sqrt(of)), _over(worst, largest)


def _over(off: float, of: float) -> float:
    return off / of if of else math.inf if off else 0.0


def moments(result: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """By how much root mean squares and means differ, over the root mean square of `want`."""
    if result.shape != want.shape:
        return math.inf, math.inf
    sums = [0.0] * 4
    for a, b in _chunks(result, want):
        sums = [s + float(x.sum()) for s, x in zip(sums, (a.square(), b.square(), a, b))]
    rms = [math.sqrt(s / want.numel()) for s in sums[:2]]
    off = abs(rms[0] - rms[1]), abs(sums[2] - sums[3]) / want.numel()
    return (_over(off[0], rms[1]), _over(off[1], rms[1])) if all(map(math.isfinite, off)) else (math.inf, math.inf)


__all__ = ["measure", "predict", "prepare"]
