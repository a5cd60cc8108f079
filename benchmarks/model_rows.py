"""One row of `python -m benchmarks models`: a model compiled in several ways, judged, and timed.

An error is judged as in tests/pytorch: the reference is the model in f32 (on the CPU f64) with the same weights, and an error
may be three times that of eager mode.
"""

from __future__ import annotations

import copy
import gc
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks import model_loads as loads
from benchmarks.device import alone, beside
from benchmarks.measure import in_turn
from benchmarks.model_loads import Load

WAYS: dict[str, dict[str, str]] = {
    "eager": {},
    "tilec": {"backend": "tilec"},
    "torch.compile": {},
    "tilec, graphs": {"backend": "tilec", "mode": "reduce-overhead"},
    "torch.compile, graphs": {"mode": "reduce-overhead"},
    "torch.compile, autotuned": {"mode": "max-autotune"},
}
"""Arguments of torch.compile."""
ERROR = 3.0  # of eager's error
LEAST = {
    torch.bfloat16: 2.0**-9,
    torch.float32: 2e-6,
}  # of the root mean square of what is right: what rounding it makes
COMPILE_S = 240  # all ways of a row, beside other rows
PROFILED = 24  # kernels of a way that a row tells of


@dataclass(frozen=True)
class Setting:
    """How rows are measured, from the command's options."""

    device: str = "cuda"
    small: bool = False
    layers: int | None = None
    compiled: bool = True
    autotuned: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device == "cpu" else torch.bfloat16

    def ways(self, task: str) -> list[str]:
        chosen = [w for w in WAYS if "torch.compile" not in w or self.compiled]
        chosen = [w for w in chosen if "autotuned" not in w or self.autotuned]
        return [w for w in chosen if "graphs" not in w or (self.device == "cuda" and task != "training")]


class Task:
    """A model with its inputs. `call(f)` is one step by `f`, which stands for the module, and returns what it makes by name."""

    def __init__(self, load: Load, task: str, setting: Setting, judged: bool = True):
        """Not `judged`: without the reference's results."""
        self.device, self.training = setting.device, task == "training"
        self.module = loads.make(load, setting.device, setting.dtype, setting.small, setting.layers)
        self.module.train(self.training)
        self.step: loads.Step | None = None
        self.cotangent: torch.Tensor | None = None
        if task == "decoding":
            self.step = loads.decoding(load, self.module, setting.device, setting.small)
            self.inputs = self.step.inputs
        else:
            self.inputs = loads.inputs(load, self.module, setting.device, setting.dtype, setting.small)
        self.want = self._reference(load, setting) if judged else {}

    def _reference(self, load: Load, setting: Setting) -> dict[str, torch.Tensor]:
        """What the same weights give in a wider type."""
        with full_f32():
            wider = torch.float64 if setting.device == "cpu" else torch.float32
            exact = copy.deepcopy(self.module).to(wider)
            if self.step is not None:
                like = loads.decoding(load, exact, setting.device, setting.small, self.step)
                inputs = like.inputs
                like.reset()
            else:
                inputs = {k: v.to(wider) if v.is_floating_point() else v for k, v in self.inputs.items()}
            want = self._made(exact, exact, inputs)
        if self.cotangent is not None:
            self.cotangent = self.cotangent.to(setting.dtype)
        return want

    def before(self) -> None:
        """Before calls that are to see the same state."""
        if self.step is not None:
            self.step.reset()

    def call(self, function: Callable) -> Any:
        if not self.training:
            with torch.no_grad():
                return function(**self.inputs)
        self.module.zero_grad(set_to_none=True)
        made = loads.output(function(**self.inputs))
        made.backward(torch.ones_like(made) if self.cotangent is None else self.cotangent)
        return made

    def _made(self, function: Callable, module: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
        """By name: the output, and gradients of every parameter."""
        if not self.training:
            with torch.no_grad():
                return {"output": loads.output(function(**inputs)).clone()}
        module.zero_grad(set_to_none=True)
        made = loads.output(function(**inputs))
        if self.cotangent is None:
            generator = torch.Generator(self.device).manual_seed(2)
            self.cotangent = torch.randn(made.shape, device=self.device, generator=generator)
        made.backward(self.cotangent.to(made.dtype))
        grads = {f"gradient of {k}": p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}
        module.zero_grad(set_to_none=True)
        return {"output": made.detach().clone()} | grads

    def errors(self, function: Callable) -> dict[str, float]:
        """Root mean squares of what differs from the reference, over the reference's own."""
        self.before()
        made = self._made(function, self.module, self.inputs)
        return {k: _rms(made[k].to(want.dtype) - want) / max(_rms(want), 1e-30) for k, want in self.want.items()}


def _rms(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) / max(1, x.numel()) ** 0.5


@contextmanager
def full_f32() -> Iterator[None]:
    """Products of f32 in f32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def compiled(module: torch.nn.Module, way: str) -> Callable:
    """The module by a way, as a function of its own: what PyTorch compiled for another way is none of its business."""
    if way == "eager":
        return module
    scope: dict[str, Any] = {"module": module}
    exec("def call(**inputs):\n    return module(**inputs)", scope)
    return torch.compile(scope["call"], dynamic=False, **WAYS[way])


def measure(load: Load, task: str, setting: Setting) -> dict[str, Any]:
    """A row of facts. A way that fails has its error in `errors`, and no time."""
    torch._dynamo.config.recompile_limit = 64
    start = time.perf_counter()
    if setting.device == "cuda":
        torch.cuda.init()
    calls: dict[str, Callable] = {}
    with beside(), _within(COMPILE_S):
        state = Task(load, task, setting)
        facts: dict[str, Any] = {
            "group": task, "kind": load.kind, "sizes": load.sizes(setting.small, setting.layers),
            "type": str(setting.dtype).removeprefix("torch."), "made_s": round(time.perf_counter() - start, 2),
            "error_share": {}, "worst": {}, "errors": {}, "workspace_bytes": {},
        }  # fmt: skip
        for way in setting.ways(task):
            with _telling(facts, way):
                calls[way] = _compiled(state, way, facts)
    with alone():
        yardstick: dict[str, float] = {}
        for way in list(calls):
            with _telling(facts, way):
                _again(state, calls[way])
                found = state.errors(calls[way])
                yardstick = yardstick or found
                bounds = {k: max(ERROR * yardstick[k], LEAST[setting.dtype]) for k in found}
                share, name = max((found[k] / bounds[k], k) for k in found)
                facts["error_share"][way], facts["worst"][way] = share, name
            if way in facts["errors"]:
                del calls[way]
        facts["right"] = all(s <= 1 for w, s in facts["error_share"].items() if w.startswith("tilec"))
        state.want = {}
        gc.collect()
        steps = {way: partial(state.call, function) for way, function in calls.items()}
        timed = in_turn(steps, state.before, setting.device, budget=0.02)
        facts["times_us"] = {w: t.median for w, t in timed.items()}
        facts["range_us"] = {w: (t.low, t.high) for w, t in timed.items()}
        facts["host_us"] = {w: _host(step, state) for w, step in steps.items() if "graphs" not in w}
        facts["peak_bytes"] = {
            w: p + facts["workspace_bytes"][w]
            for w, step in steps.items()
            if "graphs" not in w and (p := _peak(step, state)) is not None
        }
        if setting.device == "cuda":
            facts["kernels"] = {}
            for way in ("tilec", "torch.compile"):
                if way in steps:
                    state.before()
                    facts["kernels"][way] = kernels_of(steps[way])
    if "tilec" not in calls:
        facts["error"] = facts["errors"].get("tilec", "not run")
    return facts


@contextmanager
def _telling(facts: dict, way: str) -> Iterator[None]:
    """Puts an error of a way into the row's facts."""
    try:
        yield
    except Exception as error:
        text = " | ".join(line for line in str(error).splitlines() if line.strip())
        facts["errors"][way] = f"{type(error).__name__}: {text[:400]}"


def first_call(state: Task, way: str) -> tuple[Callable, float]:
    """The function of a way, and the seconds of its first call."""
    from tilec.torch.backend import register

    register()
    function = compiled(state.module, way)
    state.before()
    start = time.perf_counter()
    state.call(function)
    wait(state.device)
    return function, time.perf_counter() - start


def _compiled(state: Task, way: str, facts: dict) -> Callable:
    """The function of a way, called once; for tilec, what it took of the graphs."""
    from tilec.runtime.cuda.arena import workspaces
    from tilec.torch import report as tilec_report

    before, held = len(tilec_report().graphs), workspaces.total()
    function, _ = first_call(state, way)
    facts["workspace_bytes"][way] = workspaces.total() - held
    if graphs := tilec_report().graphs[before:]:
        about = {"taken": sum(g.taken for g in graphs), "operations": sum(g.operations for g in graphs)}
        about["partitions"] = sum(len(g.parts) for g in graphs)
        about["splits"] = dict(sum((tally(g) for g in graphs), start=tally(None)).most_common(8))
        facts.setdefault("graphs", {})[way] = about
    return function


def _again(state: Task, function: Callable) -> None:
    """Two later calls: the second call of a function records its CUDA graphs."""
    for _ in range(2):
        state.before()
        state.call(function)
    wait(state.device)


def tally(graph: Any) -> Counter[str]:
    """How often PyTorch runs which operation, and why."""
    if graph is None:
        return Counter()
    found = Counter[str](f"{e.operation}: {e.reason}" for e in graph.eager)
    found.update(f"{graph.kind}, {p.name}: {p.reason}"[:200] for p in graph.parts if p.reason is not None)
    if graph.not_replayed:
        found[f"{graph.kind}: no CUDA graph: {graph.not_replayed}"] += 1
    return found


def wait(device: str) -> None:
    """Until the device has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Ends the process after so long: a kernel that hangs would keep all other rows from the device, and no exception ends it."""
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _host(step: Callable, state: Task) -> float:
    """Microseconds until a call returns, the device having nothing to do before it."""
    taken = []
    for _ in range(20):
        state.before()
        wait(state.device)
        start = time.perf_counter()
        step()
        taken.append(1e6 * (time.perf_counter() - start))
    wait(state.device)
    return sorted(taken)[len(taken) // 2]


def _peak(step: Callable, state: Task) -> int | None:
    """Bytes that a call takes of PyTorch's allocator at one time, beyond what was there before, with results and gradients."""
    if state.device != "cuda":
        return None
    state.module.zero_grad(set_to_none=True)
    state.before()
    wait(state.device)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    made = step()
    wait(state.device)
    del made
    return torch.cuda.max_memory_allocated() - held


def ranked(kernels: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Of kernels by name, start and end in microseconds: how many, what they take, and those that take longest. One that is
    launched before another has ended waits for that: it counts from the other's end."""
    times: dict[str, list[float]] = {}
    ended = 0.0
    for name, start, end in sorted(kernels, key=lambda k: k[2]):
        times.setdefault(name, []).append(end - max(start, ended))
        ended = end
    order = sorted(times.items(), key=lambda item: -sum(item[1]))
    longest = [[name, len(t), round(sum(t), 1)] for name, t in order[:PROFILED]]
    return {"count": len(kernels), "us": round(sum(map(sum, times.values())), 1), "longest": longest}


def kernels_of(step: Callable) -> dict[str, Any]:
    """What one call launches: how many, the device's microseconds, and those that take longest."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            step()
            torch.cuda.synchronize()
        events = [e for e in seen.events() if str(e.device_type).endswith("CUDA")]
        return ranked([(e.name[:120], e.time_range.start, e.time_range.end) for e in events])
    except Exception as error:  # a profiler that is refused its counters
        return {"error": f"{type(error).__name__}: {error}"[:200]}
